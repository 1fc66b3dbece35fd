//! Positions of what is not zero: blocks are counted, the counts are added up, and every block writes its own.

use olivine_ir::op::NonZero;
use olivine_ir::{DType, Dim};
use olivine_kernel::{Access, Builder, Elem, Reduction, Shared, Val};
use olivine_program::DeviceCaps;

use super::cells::{Cell, CellBuf, Cells};
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::site::{Memory, Operand, Site, linear_group};

kernels! { |op, site|
    NonZero => nonzero(op, site),
}

/// Rounds of a workgroup over its block: a block is as many elements as the group has invocations, times this.
const ROUNDS: usize = 16;

/// Lowers a search for what is not zero.
pub(crate) fn nonzero(_: &NonZero, site: &mut Site<'_>) -> Result<(), String> {
    let n = site.operands[0].sizes().numel();
    let block = site.group_size(256) as usize * ROUNDS;
    if n > u32::MAX as usize - block {
        return Err(format!("{n} elements are more than positions can be counted of"));
    }
    let blocks = n.div_ceil(block);
    // The total comes last, so that an empty operand has one too.
    let counts = site.scratch((blocks + 1) * 4);
    count(blocks, counts, site)?;
    add_up(blocks, counts, site)?;
    write(blocks, counts, site)
}

/// Whether an element is not zero, by its bits: negative zero is zero, NaN is not.
fn is_nonzero<'k>(dtype: DType, cell: &Cell<'k>) -> Option<Val<'k>> {
    let sign = dtype.is_float().then_some(dtype.size() * 8 - 1);
    let magnitude = |value: Val<'k>, bit: usize| {
        let k = value.builder();
        value & k.constant(value.scalar(), (1 << bit) - 1)
    };
    match (cell.0.as_slice(), sign) {
        ([low, high], Some(_)) => Some((*low | magnitude(*high, 31)).ne(0)),
        ([low, high], None) => Some((*low | *high).ne(0)),
        ([value], Some(bit)) => Some(magnitude(*value, bit).ne(0)),
        ([value], None) => Some(value.ne(0)),
        _ => None,
    }
}

/// The operand, by whether its elements are zero.
struct Flags<'k> {
    x: CellBuf<'k>,
    dtype: DType,
    n: Val<'k>,
}

impl<'k> Flags<'k> {
    fn declare(l: &Launch<'k>, operand: &Operand, caps: &DeviceCaps) -> Self {
        let x = Cells::new(operand.ty.dtype.size(), caps).bind(l, "x", Access::Read, operand.memory);
        Flags { x, dtype: operand.ty.dtype, n: l.size("n", operand.sizes().numel()) }
    }

    /// Whether an element is there and not zero.
    fn at(&self, position: Val<'k>) -> Val<'k> {
        let k = position.builder();
        let inside = position.lt(self.n);
        // Outside, the first element stands in; callers have at least one.
        let set = is_nonzero(self.dtype, &self.x.load(inside.select(position, k.u32(0))));
        inside & set.unwrap_or_else(|| k.bool(false))
    }
}

/// Counts every block's.
fn count(blocks: Dim, counts: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let x = site.operands[0].clone();
    let group = site.group_size(256);
    let k = site.builder("nonzero_count", group);
    let l = Launch::new(&k);
    let set = Flags::declare(&l, &x, site.caps);
    let to = l.bind("counts", Elem::U32, Access::Write, counts);
    let all = l.size("blocks", blocks);

    let block = linear_group(&k);
    let first = block * (group as usize * ROUNDS) + k.local_index();
    let mut sum = k.u32(0);
    for round in 0..ROUNDS {
        sum = sum + set.at(first + round * group as usize).select(k.u32(1), k.u32(0));
    }
    let total = k.group_reduce(sum, Reduction::Add);
    k.if_(block.lt(all) & k.local_index().eq(0), || to.store(block, total));

    let (bound, moved) = (l.done(), bytes(&x.ty));
    site.dispatch(k, bound, blocks, (0, moved))
}

/// The sum of all earlier invocations' values, and of all.
pub(super) fn scan<'k>(k: &'k Builder, memory: Shared<'k>, value: Val<'k>) -> (Val<'k>, Val<'k>) {
    let (me, group) = (k.local_index(), k.group());
    let sum = k.var(value);
    let mut step = 1;
    while step < group {
        k.barrier();
        memory.store(me, sum.get());
        k.barrier();
        k.if_(me.ge(step), || sum.set(sum.get() + memory.load(me - step)));
        step *= 2;
    }
    k.barrier();
    memory.store(me, sum.get());
    k.barrier();
    (sum.get() - value, memory.load(k.u32(group - 1)))
}

/// Turns counts into where every block begins, by one workgroup, and stores the total.
fn add_up(blocks: Dim, counts: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let total = site.targets[1].clone();
    let cells = Cells::new(8, site.caps);
    let group = site.group_size(256);
    let k = site.builder("nonzero_scan", group);
    let l = Launch::new(&k);
    let all = l.size("blocks", blocks);
    let counts = l.bind("counts", Elem::U32, Access::ReadWrite, counts);
    let to = cells.bind(&l, "count", Access::Write, total.memory);
    let memory = k.shared(Elem::U32, 1, group);

    let before = k.var(k.u32(0));
    k.for_(k.u32(0), all, k.u32(group), |first| {
        let at = first + k.local_index();
        let value = k.if_value(at.lt(all), || counts.load(at), || k.u32(0));
        let (start, sum) = scan(&k, memory, value);
        k.if_(at.lt(all), || counts.store(at, before.get() + start));
        before.set(before.get() + sum);
    });
    k.if_(k.local_index().eq(0), || {
        counts.store(all, before.get());
        to.store(k.u32(0), &[cells.of_words(before.get(), k.u32(0))]);
    });

    let bound = l.done();
    site.dispatch(k, bound, 1, (0, blocks * 8))
}

/// Writes every block's positions, and -1 from the total on.
fn write(blocks: Dim, counts: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let (x, target) = (site.operands[0].clone(), site.targets[0].clone());
    if target.ty.shape.sizes().numel() == 0 {
        return Ok(());
    }
    let wide = Cells::new(8, site.caps);
    let group = site.group_size(256);
    let k = site.builder("nonzero_write", group);
    let l = Launch::new(&k);
    let set = Flags::declare(&l, &x, site.caps);
    let counts = l.bind("counts", Elem::U32, Access::Read, counts);
    let to = wide.bind(&l, "positions", Access::Write, target.memory);
    let all = l.size("blocks", blocks);
    let dims: Vec<Val<'_>> = x.sizes().iter().map(|size| l.size("axis", *size)).collect();
    let memory = k.shared(Elem::U32, 1, group);

    let block = linear_group(&k);
    let total = counts.load(all);
    let there = block.lt(all);
    let next = k.var(k.u32(0));
    k.if_(there, || next.set(counts.load(block)));
    let minus_one = wide.of_words(k.u32(u32::MAX), k.u32(u32::MAX));
    k.for_(k.u32(0), k.u32(ROUNDS as u32), k.u32(1), |round| {
        let position = (block * ROUNDS + round) * group + k.local_index();
        let hit = there & set.at(position);
        let (before, sum) = scan(&k, memory, hit.select(k.u32(1), k.u32(0)));
        k.if_(hit, || {
            let column = next.get() + before;
            let mut rest = position;
            for (axis, size) in dims.iter().enumerate().rev() {
                let outer = if axis == 0 { k.u32(0) } else { rest / *size };
                let coordinate = rest - outer * *size;
                rest = outer;
                to.store(set.n * axis + column, &[wide.of_words(coordinate, k.u32(0))]);
            }
        });
        k.if_(position.ge(total) & position.lt(set.n), || {
            for axis in 0..dims.len() {
                to.store(set.n * axis + position, std::slice::from_ref(&minus_one));
            }
        });
        next.set(next.get() + sum);
    });

    let moved = bytes(&x.ty) + bytes(&target.ty);
    let bound = l.done();
    site.dispatch(k, bound, blocks, (0, moved))
}
