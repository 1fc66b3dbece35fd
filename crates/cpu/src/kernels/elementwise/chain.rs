//! Epilogues that are a chain on a convolution's result: affine maps per channel, functions of one number, and the
//! addition of a tensor of the result's shape. They run on tiles of any size without the bookkeeping of a sweep.

use olivine_ir::op::{Binary, ScalarOp, Unary};
use olivine_ir::{DType, Shape};

use super::float::step32;
use super::program::{Program, Slot, Step};
use crate::operand::Operand;
use crate::simd::{self, Kernel};

/// One link of a chain.
pub(crate) enum Link<'a> {
    /// `x · scale + shift`, both per channel.
    Affine(Affine),
    /// A function of one number.
    Map(ScalarOp),
    /// The larger of x and a number.
    AtLeast(f32),
    /// The smaller of x and a number.
    AtMost(f32),
    /// Adds the element of the same position.
    Plus(&'a [f32]),
}

/// A scale and a shift for every channel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Affine {
    pub(crate) scale: Vec<f32>,
    pub(crate) shift: Vec<f32>,
}

/// The epilogue of a result `[N, channels, ..]` in the order it is computed.
#[derive(Default)]
pub(crate) struct Chain<'a> {
    pub(crate) links: Vec<Link<'a>>,
}

impl Affine {
    fn identity(channels: usize) -> Self {
        Affine { scale: vec![1.0; channels], shift: vec![0.0; channels] }
    }

    /// Applies `scale`, then `shift`, per channel after what the map already does.
    fn then(&mut self, f: impl Fn(usize) -> (f32, f32)) {
        for (c, (scale, shift)) in self.scale.iter_mut().zip(&mut self.shift).enumerate() {
            let (a, b) = f(c);
            (*scale, *shift) = (*scale * a, *shift * a + b);
        }
    }
}

impl<'a> Chain<'a> {
    /// Reads an f32 program as a chain on input 0; `extra` are its other inputs. `None` if it is anything else.
    pub(crate) fn new(program: &Program, extra: &[Operand<'a>], shape: &Shape) -> Option<Self> {
        let [(output, DType::F32)] = program.outputs.as_slice() else { return None };
        let mut chain = Chain { links: Vec::new() };
        let mut current = Slot::Input(0);
        for step in &program.steps {
            if step.dtype != DType::F32 || step.result != DType::F32 {
                return None;
            }
            chain.push(program, step, current, extra, shape)?;
            current = Slot::Register(step.to);
        }
        (*output == current).then_some(chain)
    }

    fn push(
        &mut self,
        program: &Program,
        step: &Step,
        current: Slot,
        extra: &[Operand<'a>],
        shape: &Shape,
    ) -> Option<()> {
        let channels = shape[1];
        match (step.op, step.args.as_slice()) {
            (op @ (ScalarOp::Unary(_) | ScalarOp::Activation(_)), [x]) if *x == current => {
                if op == ScalarOp::Unary(Unary::Neg) {
                    self.affine(channels, |_| (-1.0, 0.0));
                } else {
                    self.links.push(Link::Map(op));
                }
            }
            (ScalarOp::Clamp, &[x, low, high]) if x == current => {
                let term = |slot: Slot| Term::new(program, slot, extra, shape);
                let (Term::One(low), Term::One(high)) = (term(low)?, term(high)?) else { return None };
                if low.is_nan() || high.is_nan() {
                    return None;
                }
                self.links.extend([Link::AtLeast(low), Link::AtMost(high)]);
            }
            (ScalarOp::Binary(op), &[a, b]) if (a == current) != (b == current) => {
                let (swapped, other) = if a == current { (false, b) } else { (true, a) };
                match (op, Term::new(program, other, extra, shape)?) {
                    (Binary::Add, Term::All(all)) => self.links.push(Link::Plus(all)),
                    (Binary::Add, t) => self.affine(channels, |c| (1.0, t.at(c))),
                    (Binary::Sub, Term::All(_)) => return None,
                    (Binary::Sub, t) if swapped => self.affine(channels, |c| (-1.0, t.at(c))),
                    (Binary::Sub, t) => self.affine(channels, |c| (1.0, -t.at(c))),
                    (Binary::Mul, t @ (Term::One(_) | Term::Channels(_))) => {
                        self.affine(channels, |c| (t.at(c), 0.0));
                    }
                    (Binary::Max, Term::One(x)) if !x.is_nan() => self.links.push(Link::AtLeast(x)),
                    (Binary::Min, Term::One(x)) if !x.is_nan() => self.links.push(Link::AtMost(x)),
                    _ => return None,
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Appends `scale` and `shift` per channel, to an affine map at the chain's end if there is one.
    fn affine(&mut self, channels: usize, f: impl Fn(usize) -> (f32, f32)) {
        if let Some(Link::Affine(affine)) = self.links.last_mut() {
            return affine.then(f);
        }
        let mut affine = Affine::identity(channels);
        affine.then(f);
        self.links.push(Link::Affine(affine));
    }

    /// Takes off an affine map at the chain's beginning.
    pub(crate) fn take_affine(&mut self) -> Option<Affine> {
        if !matches!(self.links.first(), Some(Link::Affine(_))) {
            return None;
        }
        match self.links.remove(0) {
            Link::Affine(affine) => Some(affine),
            _ => None,
        }
    }

    /// Splits off the links from the first that reads by position on.
    pub(crate) fn split_positions(&mut self) -> Self {
        let first = self.links.iter().position(|l| matches!(l, Link::Plus(_))).unwrap_or(self.links.len());
        Chain { links: self.links.split_off(first) }
    }
}

/// Applies links to rows of `width` elements that belong to channels `first..`; the whole begins at element `at` of
/// the result for links that read by position. `spare` is as long as `x`; what it holds does not matter.
pub(crate) fn apply(
    links: &[Link<'_>],
    x: &mut [f32],
    spare: &mut [f32],
    width: usize,
    first: usize,
    at: usize,
) {
    let spare = &mut spare[..x.len()];
    for link in links {
        match link {
            Link::Affine(affine) => {
                for (row, c) in x.chunks_mut(width.max(1)).zip(first..) {
                    // Rows of padding may follow the last channel.
                    if let (Some(scale), Some(shift)) = (affine.scale.get(c), affine.shift.get(c)) {
                        simd::run(Scaled(row, *scale, *shift));
                    }
                }
            }
            Link::Map(op) => {
                step32(*op, DType::F32, [bytemuck::cast_slice(x), &[], &[]], bytemuck::cast_slice_mut(spare));
                x.copy_from_slice(spare);
            }
            Link::AtLeast(low) => simd::run(Clamped(x, *low, f32::INFINITY)),
            Link::AtMost(high) => simd::run(Clamped(x, f32::NEG_INFINITY, *high)),
            Link::Plus(all) => simd::run(Added(x, &all[at..])),
        }
    }
}

/// What a chain's step takes beside the current value.
enum Term<'a> {
    One(f32),
    Channels(Vec<f32>),
    All(&'a [f32]),
}

impl<'a> Term<'a> {
    fn new(program: &Program, slot: Slot, extra: &[Operand<'a>], shape: &Shape) -> Option<Self> {
        let i = match slot {
            Slot::Register(r) => {
                let constant =
                    program.constants.iter().find(|(to, dtype, _)| *to == r && *dtype == DType::F32);
                return constant.map(|(_, _, value)| Term::One(*value as f32));
            }
            Slot::Input(i) => i,
        };
        let operand = extra.get(i.checked_sub(1)?)?;
        if operand.ty.dtype != DType::F32 || operand.bytes().is_empty() {
            return None;
        }
        let sizes = operand.shape();
        if sizes.numel() == 1 {
            return operand.elements::<f32>().get(operand.offset).map(|x| Term::One(*x));
        }
        // The axis of the operand that is the result's channels, when it has one.
        let channel = (sizes.rank() + 1).checked_sub(shape.rank());
        if let Some(axis) = channel
            && sizes.numel() == shape[1]
            && sizes.get(axis) == Some(&shape[1])
        {
            let (all, step) = (operand.elements::<f32>(), operand.strides()[axis]);
            let at = |c: usize| all.get((operand.offset as isize + c as isize * step) as usize).copied();
            return (0..shape[1]).map(at).collect::<Option<Vec<f32>>>().map(Term::Channels);
        }
        if sizes == shape { operand.contiguous().map(Term::All) } else { None }
    }

    fn at(&self, channel: usize) -> f32 {
        match self {
            Term::One(x) => *x,
            Term::Channels(x) => x[channel],
            Term::All(_) => 0.0,
        }
    }
}

struct Scaled<'a>(&'a mut [f32], f32, f32);

impl Kernel for Scaled<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        self.0.iter_mut().for_each(|x| *x = simd::fma::<FMA>(*x, self.1, self.2));
    }
}

struct Clamped<'a>(&'a mut [f32], f32, f32);

impl Kernel for Clamped<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        // Comparisons that are false for NaN leave it.
        for x in self.0 {
            let above = if *x < self.1 { self.1 } else { *x };
            *x = if above > self.2 { self.2 } else { above };
        }
    }
}

struct Added<'a>(&'a mut [f32], &'a [f32]);

impl Kernel for Added<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        self.0.iter_mut().zip(self.1).for_each(|(x, y)| *x += *y);
    }
}
