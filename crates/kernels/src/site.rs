//! What a kernel family sees of its node: operands, targets, scratch, and how to emit dispatches.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use olivine_ir::size::Structural;
use olivine_ir::{DType, Dim, Sizes, Tensor, TensorType, ValueId};
use olivine_kernel::{Builder, Kernel, Val};
use olivine_program::{Decision, DeviceCaps, HostTable, Record};

use crate::launch::{Bound, Launch, number};
use crate::matmul::SplitKPartials;

/// Bytes that get their place when all nodes are lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// All bytes of a value that is no view.
    Value(ValueId),
    /// The graph's i-th output, where it is copied.
    Output(usize),
    /// The graph's i-th output on its way to the state that it becomes.
    Moving(usize),
    /// A range of the node's scratch.
    Scratch {
        /// First byte.
        offset: Structural,
        /// Bytes.
        bytes: Structural,
    },
    /// A range of the scratch of the graph's `step`-th node, an earlier one, which keeps it for this one.
    Deferred {
        /// The node.
        step: usize,
        /// First byte.
        offset: Structural,
        /// Bytes.
        bytes: Structural,
    },
    /// The node's i-th table of numbers that lowering computed.
    Constant(usize),
    /// A range of the node's i-th table, which begins where a range may.
    Row {
        /// The table.
        table: usize,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A range of the node's gates: numbers of workgroups that dispatches read from memory.
    Gate {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A word that is not 0 where the graph runs that the node stands in: branches that are not taken do not.
    Alive,
    /// What the node made of a stored operand at load, the i-th such thing.
    Prepacked(usize),
    /// A range of what dispatches at load need beside their results.
    LoadScratch {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
}

/// A strided reading of memory; strides and offset count elements.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Its type.
    pub ty: TensorType,
    /// One stride per dimension.
    pub strides: Vec<Dim>,
    /// Its first element.
    pub offset: Dim,
    /// The memory that it reads.
    pub memory: Memory,
    /// Whether its bytes are the same in every run, so that something may be made of them at load: a weight.
    pub stored: bool,
}

impl Operand {
    /// Sizes as numbers: what is lowered then holds for these alone.
    #[track_caller]
    pub fn dims(&self) -> &[usize] {
        self.ty.shape.dims()
    }

    /// Sizes.
    pub fn sizes(&self) -> Sizes {
        self.ty.shape.sizes()
    }

    /// Strides as numbers: what is lowered then holds for these alone.
    #[track_caller]
    pub fn stride_numbers(&self) -> Vec<i64> {
        let number = |stride: &Dim| stride.specialize_signed().unwrap_or(0);
        self.strides.iter().map(number).collect()
    }

    /// The first element as a number: what is lowered then holds for this alone.
    #[track_caller]
    pub fn first(&self) -> usize {
        self.offset.specialize().unwrap_or(0)
    }

    /// Whether it is contiguous from the root's first element on.
    #[track_caller]
    pub fn is_packed(&self) -> bool {
        self.offset == 0 && self.is_contiguous()
    }

    /// Whether it is contiguous from `offset` on.
    #[track_caller]
    pub fn is_contiguous(&self) -> bool {
        let packed = self.ty.shape.stride_sizes();
        let sizes = self.sizes();
        (0..sizes.len()).all(|i| self.strides[i] == packed[i] || sizes[i] <= 1)
    }

    /// The same elements read as if broadcast to a shape; `None` if they do not broadcast.
    #[track_caller]
    pub fn broadcast_to(&self, dims: &[Dim]) -> Option<Vec<Dim>> {
        let own = self.sizes();
        let missing = dims.len().checked_sub(own.len())?;
        let mut strides = vec![Dim::ZERO; dims.len()];
        for (i, (size, stride)) in own.iter().zip(&self.strides).enumerate() {
            let to = dims[missing + i];
            let is_one = size.as_constant() == Some(1);
            if size.structural() == to.structural() || !is_one && *size == to {
                strides[missing + i] = if is_one { Dim::ZERO } else { *stride };
            } else if *size != 1 {
                return None;
            }
        }
        Some(strides)
    }

    /// Whether another reads the same, for all sizes.
    pub(crate) fn reads_like(&self, other: &Operand) -> bool {
        let same = |a: &Dim, b: &Dim| a.structural() == b.structural();
        (self.memory, self.stored) == (other.memory, other.stored)
            && same_type(&self.ty, &other.ty)
            && same(&self.offset, &other.offset)
            && self.strides.len() == other.strides.len()
            && self.strides.iter().zip(&other.strides).all(|(a, b)| same(a, b))
    }
}

/// Whether types are equal for all sizes; no question is asked.
fn same_type(a: &TensorType, b: &TensorType) -> bool {
    let sizes = |ty: &TensorType| ty.shape.sizes();
    (a.dtype, a.packed) == (b.dtype, b.packed)
        && a.shape.rank() == b.shape.rank()
        && sizes(a).iter().zip(sizes(b).iter()).all(|(a, b)| a.structural() == b.structural())
}

/// Where a result goes: packed.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its type.
    pub ty: TensorType,
    /// The memory that is written.
    pub memory: Memory,
}

impl Target {
    /// Whether another is the same, for all sizes.
    pub(crate) fn is_like(&self, other: &Target) -> bool {
        self.memory == other.memory && same_type(&self.ty, &other.ty)
    }

    /// The target read back by a later dispatch of the same node.
    pub fn as_operand(&self) -> Operand {
        let strides = self.ty.shape.stride_sizes();
        Operand { ty: self.ty, strides, offset: Dim::ZERO, memory: self.memory, stored: false }
    }
}

/// Whether a dispatch depends on a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// It runs when its graph does.
    Free,
    /// It runs always: a gate.
    Always,
    /// It runs as many workgroups as that memory says: its own, or none.
    By(Memory),
}

/// A dispatch whose memory has no place yet.
#[derive(Clone)]
pub struct Emitted {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// What it is bound to.
    pub bound: Bound,
    /// Workgroups.
    pub groups: [Dim; 3],
    /// The type of the node's first operand.
    pub dtype: DType,
    /// Whether its workgroups normally return at once: see [`Dispatch::fallback`](olivine_program::Dispatch::fallback).
    pub fallback: bool,
    /// Floating-point operations, for profiles.
    pub flops: Dim,
    /// Bytes that it must read and write at least, for profiles.
    pub bytes: Dim,
    /// Whether it depends on a gate.
    pub gating: Gating,
    /// Operation and node, where they are an inner graph's.
    pub of: Option<(&'static str, Arc<str>)>,
    /// What it helps to make at load; `None` where it is part of every run.
    pub prepacks: Option<usize>,
}

impl Emitted {
    /// Workgroups in the current compile.
    #[cfg(test)]
    pub(crate) fn group_numbers(&self) -> [u32; 3] {
        self.groups.map(|count| count.value().unwrap_or(0) as u32)
    }
}

/// What a node makes of a stored operand at load.
#[derive(Clone)]
pub struct Prepacked {
    /// How, in words: with the operand, all that it depends on.
    pub how: String,
    /// The operand.
    pub of: Operand,
    /// Bytes of the result.
    pub bytes: u64,
}

/// What a node made of an operand in scratch memory that others may read instead of making it again.
#[derive(Clone, Debug)]
pub struct Shared {
    /// How, in words: with the operand, all that it depends on.
    pub how: String,
    /// The operand.
    pub of: Operand,
    /// Where it is.
    pub memory: Memory,
    /// The dispatches that make it, by their places among the node's.
    pub emitted: Range<usize>,
}

/// A record without lines.
static UNTUNED: Record = Record::new();

/// A node being lowered.
#[derive(Clone)]
pub struct Site<'a> {
    /// The device.
    pub caps: &'a DeviceCaps,
    /// What was measured on such a device.
    pub tuning: &'a Record,
    /// What the node reads.
    pub operands: Vec<Operand>,
    /// What it writes.
    pub targets: Vec<Target>,
    /// Its dispatches so far.
    pub emitted: Vec<Emitted>,
    /// Bytes of scratch so far.
    pub scratch: Dim,
    /// Tables of numbers that are stored with the program.
    pub constants: Vec<HostTable>,
    /// Bytes of gates.
    pub gates: u64,
    /// The operands that are constants, of nodes with graphs inside.
    pub known: Vec<Option<Tensor>>,
    /// Whether the node that reads this product can sum its parts.
    pub may_defer_sum: bool,
    /// The product's parts, left to that node.
    pub deferred: Option<SplitKPartials>,
    /// An earlier product that operands read and whose memory holds nothing yet: its parts, to be taken and summed.
    pub partials: Option<SplitKPartials>,
    /// What is made of stored operands at load.
    pub prepacked: Vec<Prepacked>,
    /// What is made of operands in every run and may be shared.
    pub shared: Vec<Shared>,
    /// What nodes became that were lowered together, where that depends on sizes and on the device.
    pub joined: Option<&'static str>,
    /// Bytes of scratch at load.
    pub load_scratch: u64,
    /// Whether what is emitted now makes something at load.
    loading: bool,
    /// Choices of kernels; the node's name is added later.
    pub decisions: Vec<Decision>,
}

impl<'a> Site<'a> {
    /// A node with nothing emitted yet, for which kernel families take their defaults.
    pub fn new(caps: &'a DeviceCaps, operands: Vec<Operand>, targets: Vec<Target>) -> Self {
        Site {
            caps,
            tuning: &UNTUNED,
            operands,
            targets,
            emitted: Vec::new(),
            scratch: Dim::ZERO,
            constants: Vec::new(),
            gates: 0,
            known: Vec::new(),
            may_defer_sum: false,
            deferred: None,
            partials: None,
            prepacked: Vec::new(),
            shared: Vec::new(),
            joined: None,
            load_scratch: 0,
            loading: false,
            decisions: Vec::new(),
        }
    }

    /// A kernel for this device.
    pub fn builder(&self, name: &str, group: u32) -> Builder {
        Builder::new(name, group, &self.caps.target)
    }

    /// Invocations for a workgroup, at most `wanted` and at most what the device has.
    pub fn group_size(&self, wanted: u32) -> u32 {
        let most = self.caps.target.max_invocations;
        wanted.min(if most.is_power_of_two() { most } else { most.next_power_of_two() / 2 })
    }

    /// Whether the device's record has anything to say about a family: only then its classes matter.
    pub fn is_tuned(&self, family: &str) -> bool {
        self.tuning.has_family(family)
    }

    /// The configuration that the device's record has for a class of shapes, if it is among the candidates, else the
    /// default; the choice is noted. Candidates are all that may be chosen for the shape at hand.
    pub fn tuned<C: Copy + PartialEq + Display>(
        &mut self,
        family: &'static str,
        class: String,
        default: C,
        mut candidates: Vec<C>,
    ) -> C {
        if !candidates.contains(&default) {
            candidates.insert(0, default);
        }
        let names: Vec<String> = candidates.iter().map(C::to_string).collect();
        let recorded = self.tuning.get(family, &class);
        let found = recorded.and_then(|config| names.iter().position(|name| name == config));
        let chosen = found.and_then(|i| candidates.get(i)).copied().unwrap_or(default);
        let (default, of_chosen) = (default.to_string(), chosen.to_string());
        let node = String::new();
        self.decisions.push(Decision { node, family, class, default, chosen: of_chosen, candidates: names });
        chosen
    }

    /// Takes scratch bytes that live while this node runs, or while it makes something at load.
    #[track_caller]
    pub fn scratch(&mut self, bytes: impl Into<Dim>) -> Memory {
        let bytes = bytes.into().max(1).next_multiple_of(self.caps.alignment());
        if self.loading {
            // What is made at load has sizes that are numbers.
            let bytes = bytes.specialize().unwrap_or(usize::MAX) as u64;
            let offset = self.load_scratch;
            self.load_scratch = offset.saturating_add(bytes);
            return Memory::LoadScratch { offset, bytes };
        }
        let offset = self.scratch;
        self.scratch += bytes;
        Memory::Scratch { offset: offset.structural(), bytes: bytes.structural() }
    }

    /// Memory of `bytes` that the dispatches emitted by `make` fill from a stored operand, once at load. Nodes and
    /// executables that make the same of the same operand share it: `how` names all that `make` depends on besides.
    pub fn at_load(
        &mut self,
        how: String,
        of: &Operand,
        bytes: u64,
        make: impl FnOnce(&mut Self, Memory) -> Result<(), String>,
    ) -> Result<Memory, String> {
        if !of.stored || self.loading {
            return Err(format!("{how}: only what is stored can be brought to another form at load"));
        }
        let memory = Memory::Prepacked(self.prepacked.len());
        self.prepacked.push(Prepacked { how, of: of.clone(), bytes });
        self.loading = true;
        let made = make(self, memory);
        self.loading = false;
        made.map(|()| memory)
    }

    /// Scratch of `bytes` that the dispatches emitted by `make` fill from an operand. Later nodes that make the same of the
    /// same operand read this instead: `how` names all that `make` depends on besides.
    pub fn shared(
        &mut self,
        how: String,
        of: &Operand,
        bytes: impl Into<Dim>,
        make: impl FnOnce(&mut Self, Memory) -> Result<(), String>,
    ) -> Result<Memory, String> {
        let memory = self.scratch(bytes);
        let first = self.emitted.len();
        make(self, memory)?;
        self.shared.push(Shared { how, of: of.clone(), memory, emitted: first..self.emitted.len() });
        Ok(memory)
    }

    /// Takes memory for numbers of workgroups.
    pub fn gate(&mut self, bytes: u64) -> Memory {
        let offset = self.gates;
        let bytes = bytes.next_multiple_of(self.caps.alignment() as u64);
        self.gates += bytes;
        Memory::Gate { offset, bytes }
    }

    /// Stores a table of numbers with the program; equal tables of several nodes are stored once.
    pub fn constant(&mut self, table: Tensor) -> Memory {
        self.table(table.into())
    }

    /// The same of a table that may follow from sizes.
    pub fn table(&mut self, table: HostTable) -> Memory {
        self.constants.push(table);
        Memory::Constant(self.constants.len() - 1)
    }

    /// Words of 0 that a dispatch counts with and leaves as they were.
    pub fn counters(&mut self, count: impl Into<Dim>) -> Result<Memory, String> {
        let table = HostTable::counters(count.into())?;
        Ok(self.table(table))
    }

    /// Emits a dispatch of `groups` workgroups in a row; kernels find their number with [`linear_group`]. None if
    /// there is no group.
    #[track_caller]
    pub fn dispatch(
        &mut self,
        k: Builder,
        bound: Bound,
        groups: impl Into<Dim>,
        cost: (impl Into<Dim>, impl Into<Dim>),
    ) -> Result<(), String> {
        let groups = groups.into();
        if groups == 0 {
            return Ok(());
        }
        let kernel = k.finish().map_err(|e| e.to_string())?;
        self.dispatch_finished(kernel, bound, groups, cost)
    }

    /// The same of a finished kernel.
    #[track_caller]
    pub fn dispatch_finished(
        &mut self,
        kernel: Kernel,
        bound: Bound,
        groups: impl Into<Dim>,
        cost: (impl Into<Dim>, impl Into<Dim>),
    ) -> Result<(), String> {
        let groups = groups.into().check().map_err(|e| e.to_string())?;
        if groups == 0 {
            return Ok(());
        }
        let row = self.caps.max_groups[0];
        let grid = if groups <= row {
            [groups, Dim::ONE, Dim::ONE]
        } else {
            let count = groups.specialize().map_err(|e| e.to_string())? as u64;
            grid(count, self.caps.max_groups)
                .ok_or_else(|| format!("{groups} workgroups are more than the device can count"))?
                .map(Dim::from)
        };
        self.dispatch_kernel(kernel, bound, grid, cost)
    }

    /// Emits a dispatch of a finished kernel.
    #[track_caller]
    pub fn dispatch_kernel(
        &mut self,
        kernel: Kernel,
        bound: Bound,
        groups: [impl Into<Dim>; 3],
        (flops, bytes): (impl Into<Dim>, impl Into<Dim>),
    ) -> Result<(), String> {
        let (groups, flops, bytes): ([Dim; 3], Dim, Dim) =
            (groups.map(Into::into), flops.into(), bytes.into());
        if groups.iter().any(|count| *count == 0) {
            return Ok(());
        }
        if let Some(d) = (0..3).find(|d| groups[*d] > self.caps.max_groups[*d]) {
            return Err(format!(
                "{} workgroups in dimension {d}, the device allows {}",
                groups[d], self.caps.max_groups[d]
            ));
        }
        let kernel = Arc::new(kernel);
        let gating = Gating::Free;
        let prepacks = if self.loading { self.prepacked.len().checked_sub(1) } else { None };
        let dtype = self.operands.first().map_or(DType::F32, |operand| operand.ty.dtype);
        let (fallback, of) = (false, None);
        let emitted = Emitted { kernel, bound, groups, dtype, fallback, flops, bytes, gating, of, prepacks };
        self.emitted.push(emitted);
        Ok(())
    }

    /// Emits a dispatch of this node once more, with changed bindings; the kernel is not made or compared again. None
    /// if there is no such dispatch.
    pub fn dispatch_again(&mut self, number: usize, change: impl FnOnce(&mut Bound)) {
        self.dispatch_again_times(number, Dim::ONE, change);
    }

    /// The same where `times` is 1; where it is 0, the dispatch has no workgroups and does not run.
    pub(crate) fn dispatch_again_times(
        &mut self,
        number: usize,
        times: Dim,
        change: impl FnOnce(&mut Bound),
    ) {
        let Some(earlier) = self.emitted.get(number) else { return };
        let mut again = earlier.clone();
        change(&mut again.bound);
        again.groups[0] *= times;
        self.emitted.push(again);
    }
}

impl Site<'_> {
    /// Whether another site that nothing was emitted for reads and writes the same, in the same places.
    pub fn reads_like(&self, other: &Self) -> bool {
        self.operands.len() == other.operands.len()
            && self.targets.len() == other.targets.len()
            && self.operands.iter().zip(&other.operands).all(|(a, b)| a.reads_like(b))
            && self.targets.iter().zip(&other.targets).all(|(a, b)| a.is_like(b))
            && self.may_defer_sum == other.may_defer_sum
            && match (&self.partials, &other.partials) {
                (Some(a), Some(b)) => a.reads_like(b),
                (a, b) => a.is_none() && b.is_none(),
            }
    }

    /// Changes all memory that it names.
    pub fn rebind(&mut self, mut to: impl FnMut(Memory) -> Memory) {
        let operands = self.operands.iter_mut().map(|o| &mut o.memory);
        let targets = self.targets.iter_mut().map(|t| &mut t.memory);
        operands.chain(targets).for_each(|memory| *memory = to(*memory));
        for emitted in &mut self.emitted {
            emitted.bound.args.iter_mut().for_each(|memory| *memory = to(*memory));
            if let Gating::By(memory) = &mut emitted.gating {
                *memory = to(*memory);
            }
        }
        self.prepacked.iter_mut().for_each(|p| p.of.memory = to(p.of.memory));
        for shared in &mut self.shared {
            (shared.of.memory, shared.memory) = (to(shared.of.memory), to(shared.memory));
        }
        for partials in self.deferred.iter_mut().chain(&mut self.partials) {
            partials.rebind(&mut to);
        }
    }
}

/// A grid of at least so many workgroups.
fn grid(groups: u64, max: [u32; 3]) -> Option<[u32; 3]> {
    let x = groups.min(u64::from(max[0]));
    let y = groups.div_ceil(x);
    if y <= u64::from(max[1]) {
        // Even rows waste the fewest groups.
        let x = groups.div_ceil(y);
        return Some([x as u32, y as u32, 1]);
    }
    let y = u64::from(max[1]);
    let z = groups.div_ceil(x * y);
    (z <= u64::from(max[2])).then_some([x as u32, y as u32, z as u32])
}

/// The workgroup's number in a dispatch made by [`Site::dispatch`]; the last ones may be past the asked-for count.
pub fn linear_group(k: &Builder) -> Val<'_> {
    let (x, y, z) = (k.group_id(0), k.group_id(1), k.group_id(2));
    (z * k.group_count(1) + y) * k.group_count(0) + x
}

/// The same counted from the last of `groups` to the first, for what reads once more what another dispatch has just
/// read: the last of it may still be in the cache. Numbers past the asked-for count are no group's.
pub(crate) fn reversed_group<'k>(l: &Launch<'k>, groups: impl Into<Dim>) -> Val<'k> {
    l.size("last", groups.into().max(1) - 1) - linear_group(l.k())
}

/// Sizes up to which each number is a class of its own: kernels for few rows are written for their number.
const SMALL: usize = 8;

/// The largest size of the class that a size is in; above [`SMALL`] there are two classes to a power of two.
///
/// What decides between kernels looks at this instead of the size: then one choice, and so one plan, serves all sizes
/// of a class, and a compile for a fixed size makes the same choice.
#[track_caller]
pub(crate) fn class_of(size: Dim) -> usize {
    if size <= SMALL {
        return number(size);
    }
    let Some((above, most)) = class_bounds(size) else { return number(size) };
    if size > above && size <= most { most } else { number(size) }
}

/// The class that a size is in: sizes above the first number, up to the second. No question is asked; `None` for what
/// is no size.
fn class_bounds(size: Dim) -> Option<(usize, usize)> {
    let now = usize::try_from(size.value().ok()?).ok()?;
    if now <= SMALL {
        return Some((now.checked_sub(1)?, now));
    }
    let power = 1 << (now - 1).ilog2();
    let step = power / 2;
    let most = power + (now - power).div_ceil(step) * step;
    Some((most - step, most))
}

/// Sizes up to which neighbouring classes are looked at.
const LARGEST_CLASS: usize = 1 << 24;

/// What `choose` makes of the class of a size. Sizes are restricted to this class and those around it that get the same:
/// one plan serves all of them.
#[track_caller]
pub(crate) fn choose_by_class<C: PartialEq>(size: Dim, choose: impl Fn(usize) -> C) -> C {
    let bounds = class_bounds(size).filter(|_| !size.is_constant());
    let Some((mut above, mut most)) = bounds else { return choose(class_of(size)) };
    let chosen = choose(most);
    let of = |size: usize| class_bounds(size.into());
    while let Some((_, next)) =
        of(most + 1).filter(|(_, next)| *next <= LARGEST_CLASS && choose(*next) == chosen)
    {
        most = next;
    }
    while let Some((next, _)) = of(above).filter(|(_, before)| choose(*before) == chosen) {
        above = next;
    }
    if !(size > above && size <= most) {
        number(size);
    }
    chosen
}

/// The class of a size for a family's record. Where the record has nothing to say, the class is for those who measure
/// and restricts no sizes.
#[track_caller]
pub(crate) fn recorded_class(size: Dim, is_tuned: bool) -> usize {
    let size = if is_tuned { size } else { Dim::from(size.value().unwrap_or(0)) };
    class_of(size)
}

/// A size as classes know it: the nearest power of two, so that one measurement serves sizes up to 1.4 times away.
pub(crate) fn rounded(size: usize) -> usize {
    match size as u128 {
        0 => 0,
        size => 1 << ((2 * size * size).ilog2() / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_known_by_its_largest_size() {
        let pairs = [
            (0, 0),
            (1, 1),
            (8, 8),
            (9, 12),
            (16, 16),
            (17, 24),
            (24, 24),
            (25, 32),
            (32, 32),
            (33, 48),
            (300, 384),
        ];
        for (size, class) in pairs.into_iter().chain([(128, 128), (129, 192), (4096, 4096), (4097, 6144)]) {
            assert_eq!(class_of(Dim::from(size)), class, "{size}");
        }
    }

    #[test]
    fn sizes_go_to_the_nearest_power_of_two() {
        let pairs = [(0, 0), (1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (520, 512), (724, 512), (725, 1024)];
        for (size, class) in pairs {
            assert_eq!(rounded(size), class, "{size}");
        }
        assert_eq!(rounded(u32::MAX as usize), 1 << 32);
    }

    #[test]
    fn grids_cover_any_count_within_the_limits() {
        let max = [65535, 65535, 65535];
        for groups in [1u64, 65535, 65536, 1 << 20, (1 << 32) - 1, 1 << 40] {
            let g = grid(groups, max);
            assert!(g.is_some_and(|g| {
                let all: u64 = g.iter().map(|n| u64::from(*n)).product();
                all >= groups && all < groups + groups / 8 + 65535 * 65535 && g.iter().all(|n| *n <= 65535)
            }));
        }
        assert_eq!(grid(u64::MAX, max), None);
    }
}
