//! What reductions accumulate: a few registers for every kind, and how two such states join.

use olivine_ir::DType;
use olivine_ir::op::ReduceKind;
use olivine_kernel::{Builder, Scalar, Val};

use crate::math;
use crate::rows::{State, tree, wide};

/// A way to accumulate elements. Joins are associative and commutative but for rounding.
pub(crate) trait Fold {
    /// The name of its kernels.
    fn name(&self) -> &'static str;

    /// The state of nothing; its registers' types are those of every state.
    fn identity<'k>(&self, k: &'k Builder) -> State<'k>;

    /// The state of one element, which stands at a position among those that fall together.
    fn lift<'k>(&self, x: Val<'k>, position: Val<'k>) -> State<'k>;

    /// Two states together.
    fn join<'k>(&self, a: &[Val<'k>], b: &[Val<'k>]) -> State<'k>;

    /// The registers that are stored, of the state of `count` elements.
    fn finish<'k>(&self, state: &[Val<'k>], count: Val<'k>) -> Vec<Val<'k>>;

    /// The state of several elements, whose positions grow; there is at least one.
    fn batch<'k>(&self, elements: &[(Val<'k>, Val<'k>)]) -> State<'k> {
        let lifted = elements.iter().map(|(x, position)| self.lift(*x, *position)).collect();
        tree(lifted, |a, b| self.join(a, b))
    }
}

/// The fold of a reduction.
pub(crate) struct Kind {
    pub(crate) kind: ReduceKind,
    pub(crate) dtype: DType,
}

impl Fold for Kind {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn identity<'k>(&self, k: &'k Builder) -> State<'k> {
        use ReduceKind as K;
        let scalar = math::elem(self.dtype).scalar();
        match self.kind {
            K::Sum | K::Mean | K::L1 | K::L2 | K::SumSquare | K::LogSum => vec![k.number(scalar, 0.0)],
            K::Prod => vec![k.number(scalar, 1.0)],
            K::Max => vec![extreme(k, self.dtype, false)],
            K::Min => vec![extreme(k, self.dtype, true)],
            K::Any => vec![k.u32(0)],
            K::All => vec![k.u32(1)],
            K::LogSumExp => LogSumExp(self.dtype).identity(k),
        }
    }

    fn lift<'k>(&self, x: Val<'k>, position: Val<'k>) -> State<'k> {
        use ReduceKind as K;
        match self.kind {
            K::Sum | K::Mean | K::LogSum | K::Prod | K::Max | K::Min => vec![x],
            K::L1 => vec![magnitude(x)],
            K::L2 | K::SumSquare => vec![x * x],
            K::Any | K::All => vec![x.convert(Scalar::U32)],
            K::LogSumExp => LogSumExp(self.dtype).lift(x, position),
        }
    }

    fn join<'k>(&self, a: &[Val<'k>], b: &[Val<'k>]) -> State<'k> {
        use ReduceKind as K;
        let (x, y) = (a[0], b[0]);
        match self.kind {
            K::Sum | K::Mean | K::L1 | K::L2 | K::SumSquare | K::LogSum => vec![x + y],
            K::Prod => vec![x * y],
            K::Max => vec![larger(x, y)],
            K::Min if x.scalar().is_float() => vec![math::min_nan(x, y)],
            K::Min => vec![x.min(y)],
            K::Any => vec![x | y],
            K::All => vec![x & y],
            K::LogSumExp => LogSumExp(self.dtype).join(a, b),
        }
    }

    fn finish<'k>(&self, state: &[Val<'k>], count: Val<'k>) -> Vec<Val<'k>> {
        use ReduceKind as K;
        let x = state[0];
        vec![match self.kind {
            K::Sum | K::L1 | K::SumSquare | K::Prod | K::Max | K::Min => x,
            K::Mean => count.eq(0).select(x.like(f64::NAN), math::div(x, count.convert(x.scalar()))),
            K::L2 => math::sqrt(x),
            K::LogSum => math::log(x),
            K::Any | K::All => x.ne(0),
            K::LogSumExp => {
                let sum = state[1];
                // Of nothing there is no logarithm to take.
                sum.eq(0.0).select(x.like(f64::NEG_INFINITY), x + math::log(sum))
            }
        }]
    }
}

/// The largest, or the smallest, of f32 and what is held in f32, among integers in the order of the numbers: a join is
/// one instruction, and NaN and denormals are what they are.
pub(crate) struct Extreme {
    pub(crate) smallest: bool,
}

impl Extreme {
    /// All bits but the sign's turned where that is set: between bits of floats and integers in their order.
    fn turned(bits: Val<'_>) -> Val<'_> {
        bits ^ ((bits >> 31) & 0x7fff_ffff)
    }

    /// The order from the largest down, where the smallest is looked for.
    fn directed<'k>(&self, key: Val<'k>) -> Val<'k> {
        if self.smallest { !key } else { key }
    }
}

impl Fold for Extreme {
    fn name(&self) -> &'static str {
        if self.smallest { ReduceKind::Min.name() } else { ReduceKind::Max.name() }
    }

    fn identity<'k>(&self, k: &'k Builder) -> State<'k> {
        // −∞ going up is ∞ going down.
        vec![k.constant(Scalar::I32, 0x807f_ffff)]
    }

    fn lift<'k>(&self, x: Val<'k>, _: Val<'k>) -> State<'k> {
        let key = self.directed(Extreme::turned(x.bitcast(Scalar::I32)));
        // The greatest of all is NaN's either way.
        vec![math::is_nan(x).select(key.like(f64::from(i32::MAX)), key)]
    }

    fn join<'k>(&self, a: &[Val<'k>], b: &[Val<'k>]) -> State<'k> {
        vec![a[0].max(b[0])]
    }

    fn finish<'k>(&self, state: &[Val<'k>], _: Val<'k>) -> Vec<Val<'k>> {
        vec![Extreme::turned(self.directed(state[0])).bitcast(Scalar::F32)]
    }
}

/// The larger; NaN if either is.
fn larger<'k>(a: Val<'k>, b: Val<'k>) -> Val<'k> {
    if a.scalar().is_float() { math::max_nan(a, b) } else { a.max(b) }
}

/// |x|; the least integer is its own.
fn magnitude(x: Val<'_>) -> Val<'_> {
    match x.scalar() {
        s if s.is_float() => x.abs(),
        s if s.is_signed_int() => x.lt(0).select(x.like(0.0) - x, x),
        _ => x,
    }
}

/// The least (or greatest) number of a dtype: −∞ (or ∞) of floats.
pub(crate) fn extreme(k: &Builder, dtype: DType, greatest: bool) -> Val<'_> {
    let scalar = math::elem(dtype).scalar();
    if scalar.is_float() {
        return k.number(scalar, if greatest { f64::INFINITY } else { f64::NEG_INFINITY });
    }
    let bits = 8 * dtype.size() as u32;
    let signed = scalar.is_signed_int();
    let all = u64::MAX >> (64 - bits);
    let value = match (signed, greatest) {
        (false, false) => 0,
        (false, true) => all,
        (true, true) => all >> 1,
        // Sign-extended to the register.
        (true, false) => !(all >> 1) & (u64::MAX >> (64 - scalar.bits())),
    };
    k.constant(scalar, value)
}

/// ln Σeˣ as the largest element and the sum of e to the distances from it.
pub(crate) struct LogSumExp(pub(crate) DType);

impl Fold for LogSumExp {
    fn name(&self) -> &'static str {
        "log_sum_exp"
    }

    fn identity<'k>(&self, k: &'k Builder) -> State<'k> {
        let scalar = wide(self.0);
        vec![k.number(scalar, f64::NEG_INFINITY), k.number(scalar, 0.0)]
    }

    fn lift<'k>(&self, x: Val<'k>, _: Val<'k>) -> State<'k> {
        vec![x, x.like(1.0)]
    }

    fn join<'k>(&self, a: &[Val<'k>], b: &[Val<'k>]) -> State<'k> {
        // Equal maxima first: the distance of two infinities would be NaN. Elsewhere NaN makes the sum NaN.
        let distance = a[0].eq(b[0]).select(a[0].like(0.0), b[0] - a[0]);
        let b_leads = distance.gt(0.0);
        let scale = math::exp(-distance.abs());
        let (most, least) = (b_leads.select(b[1], a[1]), b_leads.select(a[1], b[1]));
        vec![b_leads.select(b[0], a[0]), least.fma(scale, most)]
    }

    fn finish<'k>(&self, state: &[Val<'k>], _: Val<'k>) -> Vec<Val<'k>> {
        state.to_vec()
    }

    /// The largest first: an exponential for every element and none for joins.
    fn batch<'k>(&self, elements: &[(Val<'k>, Val<'k>)]) -> State<'k> {
        let numbers = || elements.iter().map(|(x, _)| *x);
        let Some(largest) = numbers().reduce(|a, b| a.max(b)) else { return Vec::new() };
        let term = |x: Val<'k>| {
            let distance = x.eq(largest).select(x.like(0.0), x - largest.opaque());
            vec![math::exp_multiple(distance).0]
        };
        let sum = tree(numbers().map(term).collect(), |a, b| vec![a[0] + b[0]]);
        vec![largest, sum[0] * math::exp_multiple(largest.like(0.0)).1]
    }
}

/// Mean and summed squared deviations by Chan's updates, which lose nothing to a mean far from zero. A state holds how
/// many elements it has seen, as a float.
pub(crate) struct Moments(pub(crate) DType);

impl Fold for Moments {
    fn name(&self) -> &'static str {
        "moments"
    }

    fn identity<'k>(&self, k: &'k Builder) -> State<'k> {
        vec![k.number(wide(self.0), 0.0); 3]
    }

    fn lift<'k>(&self, x: Val<'k>, _: Val<'k>) -> State<'k> {
        vec![x.like(1.0), x, x.like(0.0)]
    }

    fn join<'k>(&self, a: &[Val<'k>], b: &[Val<'k>]) -> State<'k> {
        let n = a[0] + b[0];
        let part = n.gt(0.0).select(b[0] / n, n.like(0.0));
        let distance = b[1] - a[1];
        // The part first: a square may overflow where the product does not.
        let between = distance * (distance * (a[0] * part));
        vec![n, distance.fma(part, a[1]), (a[2] + b[2]) + between]
    }

    fn finish<'k>(&self, state: &[Val<'k>], _: Val<'k>) -> Vec<Val<'k>> {
        state.to_vec()
    }

    fn batch<'k>(&self, elements: &[(Val<'k>, Val<'k>)]) -> State<'k> {
        let sum = |values: Vec<Val<'k>>| {
            tree(values.into_iter().map(|v| vec![v]).collect(), |a, b| vec![a[0] + b[0]])[0]
        };
        let Some((first, _)) = elements.first() else { return Vec::new() };
        let n = elements.len() as f64;
        let mean = sum(elements.iter().map(|(x, _)| *x).collect()) * (1.0 / n);
        let squares = sum(elements.iter().map(|(x, _)| (*x - mean) * (*x - mean)).collect());
        vec![first.like(n), mean, squares]
    }
}
