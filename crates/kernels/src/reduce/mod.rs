//! Reductions over any axes of a strided operand, and everything else that folds many elements into one state.
//!
//! Where memory runs along a reduced axis, the invocations of a cluster stride over one row together; where it runs
//! along a free one, neighbouring invocations own neighbouring columns. Few long folds are split over workgroups, whose
//! states go to scratch and are folded again.

mod columns;
mod fold;
mod shape;
mod strip;

use olivine_ir::op::{Reduce, ReduceKind};
use olivine_ir::{DType, Dim};
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Val};

use super::rows::stored;
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::site::{Memory, Operand, Site};
use fold::Extreme;
pub(crate) use fold::{Fold, Kind, LogSumExp, Moments, extreme};
pub(crate) use shape::{Block, Folded, Split};

kernels! { |op, site|
    Reduce => reduce(op, site),
}

/// Lowers a reduction.
pub(crate) fn reduce(op: &Reduce, site: &mut Site<'_>) -> Result<(), String> {
    let operand = site.operands[0].clone();
    let kind = Kind { kind: op.kind, dtype: operand.ty.dtype };
    let extreme = Extreme { smallest: op.kind == ReduceKind::Min };
    let single = math::elem(operand.ty.dtype).scalar() == Scalar::F32;
    let fold: &dyn Fold = match op.kind {
        ReduceKind::Max | ReduceKind::Min if single => &extreme,
        _ => &kind,
    };
    let to =
        ReduceOutput::Result { memory: site.targets[0].memory, elem: math::elem(operand.ty.dtype), lanes: 1 };
    run(fold, &operand, &op.axes, to, site)
}

/// Folds axes of an operand into an outlet.
pub(crate) fn run(
    fold: &dyn Fold,
    operand: &Operand,
    axes: &[usize],
    to: ReduceOutput,
    site: &mut Site<'_>,
) -> Result<(), String> {
    admit(operand.ty.dtype, site)?;
    let folded = Folded::new(&operand.sizes(), &operand.strides, operand.offset, axes);
    emit(fold, ReduceInput::Elements(operand.clone()), folded, to, site)
}

/// Folds an operand into states in scratch: an array for every register, a state for every result in row-major order.
pub(crate) fn states(
    fold: &dyn Fold,
    operand: &Operand,
    folded: Folded,
    site: &mut Site<'_>,
) -> Result<States, String> {
    let states = States::new(fold, folded.results(), site);
    emit(fold, ReduceInput::Elements(operand.clone()), folded, ReduceOutput::States(states.clone()), site)?;
    Ok(states)
}

/// States that the parts of a split fold left in scratch; for those who fold them on their own.
pub(crate) fn parts(
    fold: &dyn Fold,
    operand: &Operand,
    folded: &Folded,
    split: Split,
    site: &mut Site<'_>,
) -> Result<States, String> {
    let states = States::new(fold, folded.results() * split.parts, site);
    let to = ReduceOutput::States(states.clone());
    dispatch(fold, &ReduceInput::Elements(operand.clone()), folded, &to, split, site)?;
    Ok(states)
}

/// Says what is missing where the device cannot hold a dtype's numbers.
pub(crate) fn admit(dtype: DType, site: &Site<'_>) -> Result<(), String> {
    let scalar = math::elem(dtype).scalar();
    if site.caps.target.has(scalar) { Ok(()) } else { Err(format!("the device has no {scalar} registers")) }
}

/// Arrays of states in scratch, one for every register.
#[derive(Clone, Debug)]
pub(crate) struct States {
    pub(crate) arrays: Vec<(Elem, Memory)>,
    pub(crate) count: Dim,
}

impl States {
    fn new(fold: &dyn Fold, count: Dim, site: &mut Site<'_>) -> Self {
        let probe = Builder::new("", 1, &site.caps.target);
        let registers: Vec<Scalar> = fold.identity(&probe).iter().map(|v| v.scalar()).collect();
        let arrays = registers
            .into_iter()
            .map(|scalar| {
                let elem = stored(scalar);
                (elem, site.scratch(count * elem.size()))
            })
            .collect();
        States { arrays, count }
    }

    /// Declares all arrays.
    pub(crate) fn bind<'k>(&self, l: &Launch<'k>, access: Access) -> Vec<Buf<'k>> {
        self.arrays
            .iter()
            .enumerate()
            .map(|(i, (elem, memory))| l.bind(&format!("state{i}"), *elem, access, *memory))
            .collect()
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> Dim {
        self.arrays.iter().map(|(elem, _)| self.count * elem.size()).sum()
    }
}

/// Where folds read.
enum ReduceInput {
    Elements(Operand),
    States(States),
}

impl ReduceInput {
    fn bytes(&self) -> Dim {
        match self {
            ReduceInput::Elements(operand) => bytes(&operand.ty),
            ReduceInput::States(states) => states.bytes(),
        }
    }

    fn bind<'k>(&self, l: &Launch<'k>) -> DeclaredInput<'k> {
        match self {
            ReduceInput::Elements(operand) => DeclaredInput::Elements(l.read("x", operand)),
            ReduceInput::States(states) => DeclaredInput::States(states.bind(l, Access::Read)),
        }
    }

    /// How it may be loaded.
    fn access(&self) -> shape::Access {
        match self {
            ReduceInput::Elements(operand) => {
                let dtype = operand.ty.dtype;
                shape::Access { lanes: super::rows::vector(dtype), bytes: dtype.size() }
            }
            ReduceInput::States(_) => shape::Access { lanes: 1, bytes: 4 },
        }
    }
}

/// A declared source.
enum DeclaredInput<'k> {
    Elements(Buf<'k>),
    States(Vec<Buf<'k>>),
}

/// What a load gave: an element of every lane, or a state.
enum LoadedElements<'k> {
    Elements(Vec<Val<'k>>),
    State(Vec<Val<'k>>),
}

impl<'k> DeclaredInput<'k> {
    fn load(&self, index: Val<'k>, lanes: usize) -> LoadedElements<'k> {
        match self {
            DeclaredInput::Elements(x) => LoadedElements::Elements(x.load_vec(index, lanes as u8)),
            DeclaredInput::States(arrays) => {
                LoadedElements::State(arrays.iter().map(|a| a.load(index)).collect())
            }
        }
    }
}

/// Where folds write.
#[derive(Clone)]
pub(crate) enum ReduceOutput {
    /// What [`Fold::finish`] returns, as many elements to a result as `lanes` says.
    Result { memory: Memory, elem: Elem, lanes: usize },
    /// States as they are.
    States(States),
}

impl ReduceOutput {
    fn bytes(&self, results: Dim) -> Dim {
        match self {
            ReduceOutput::Result { elem, lanes, .. } => results * *lanes * elem.size(),
            ReduceOutput::States(states) => states.bytes(),
        }
    }

    fn bind<'k>(&self, l: &Launch<'k>) -> DeclaredOutput<'k> {
        match self {
            ReduceOutput::Result { memory, elem, lanes } => {
                DeclaredOutput::Result(l.bind("y", *elem, Access::Write, *memory), *lanes as u32)
            }
            ReduceOutput::States(states) => DeclaredOutput::States(states.bind(l, Access::Write)),
        }
    }
}

/// A declared outlet.
enum DeclaredOutput<'k> {
    Result(Buf<'k>, u32),
    States(Vec<Buf<'k>>),
}

impl<'k> DeclaredOutput<'k> {
    fn store(&self, fold: &dyn Fold, index: Val<'k>, state: &[Val<'k>], count: Val<'k>) {
        match self {
            DeclaredOutput::Result(y, lanes) => y.store_vec(index * *lanes, &fold.finish(state, count)),
            DeclaredOutput::States(arrays) => {
                arrays.iter().zip(state).for_each(|(array, v)| array.store(index, *v));
            }
        }
    }
}

/// Emits a fold, in as many steps as its shape needs.
fn emit(
    fold: &dyn Fold,
    source: ReduceInput,
    folded: Folded,
    to: ReduceOutput,
    site: &mut Site<'_>,
) -> Result<(), String> {
    if folded.results() == 0 {
        return Ok(());
    }
    let split = folded.split(source.access(), room(site));
    if split.is_whole {
        return dispatch(fold, &source, &folded, &to, split, site);
    }
    let states = States::new(fold, folded.results() * split.parts, site);
    dispatch(fold, &source, &folded, &ReduceOutput::States(states.clone()), split, site)?;
    emit(fold, ReduceInput::States(states), folded.of_parts(split.parts), to, site)
}

/// Invocations that folds may have.
fn room(site: &Site<'_>) -> shape::Room {
    let group = site.group_size(super::rows::GROUP);
    // Without subgroups the states of all invocations are in workgroup memory.
    let most = if site.caps.target.subgroup.is_some() { site.group_size(1024) } else { group };
    shape::Room { group, most }
}

/// Emits one step: whole folds, or the parts of split ones.
fn dispatch(
    fold: &dyn Fold,
    source: &ReduceInput,
    folded: &Folded,
    to: &ReduceOutput,
    split: Split,
    site: &mut Site<'_>,
) -> Result<(), String> {
    if folded.along_rows() {
        strip::dispatch(fold, source, folded, to, split, site)
    } else {
        columns::dispatch(fold, source, folded, to, split, site)
    }
}

/// Floating-point operations and bytes of one step.
fn cost(source: &ReduceInput, folded: &Folded, to: &ReduceOutput, split: Split) -> (Dim, Dim) {
    let results = folded.results() * split.parts;
    (folded.results() * folded.count(), source.bytes() + to.bytes(results))
}

/// How many elements went into each result, for [`Fold::finish`].
fn declare_count<'k>(l: &Launch<'k>, folded: &Folded) -> Val<'k> {
    l.size("count", folded.elements)
}
