//! Padding and cutting at both ends of every axis.

use olivine_ir::op::{Pad, PadMode};
use olivine_ir::{Dim, Tensor};
use olivine_kernel::{Access, Val};

use super::cells::{Cell, Cells};
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::site::{Site, linear_group};

kernels! { |op, site|
    Pad => pad(op, site),
}

/// One axis, or several that move as one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    /// The operand's size.
    size: Dim,
    /// The target's size.
    out: Dim,
    /// Elements before the operand's first; negative where it is cut.
    before: Dim,
    /// Whether nothing is added or cut.
    kept: bool,
}

/// Axes with neighbours merged where that changes nothing: kept ones always, and a padded one with the kept ones after
/// it where all that is outside is one number.
fn axes(op: &Pad, from: &[Dim], to: &[Dim]) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    for ((pads, size), out) in op.pads.iter().zip(from).zip(to) {
        let before = match op.mode {
            // Cuts of more than there is leave the same outside: nothing of the operand.
            PadMode::Constant | PadMode::Edge if pads.0 != 0 => pads.0.clamp(-*size, *out),
            _ => pads.0,
        };
        let kept = pads.0 == 0 && pads.1 == 0;
        match axes.last_mut() {
            Some(last) if kept && (last.kept || op.mode == PadMode::Constant) => {
                last.size *= *size;
                last.out *= *out;
                last.before *= *size;
            }
            _ => axes.push(Axis { size: *size, out: *out, before, kept }),
        }
    }
    axes
}

/// Cells that are contiguous in the operand and in the result, so that a vector is wholly one or the other.
fn run(op: &Pad, axes: &[Axis], most: usize) -> usize {
    let Some(last) = axes.last() else { return 1 };
    if !(last.kept || op.mode == PadMode::Constant) {
        return 1;
    }
    let whole = |lanes: &usize| {
        last.size.is_multiple_of(*lanes)
            && last.out.is_multiple_of(*lanes)
            && last.before.is_multiple_of(*lanes)
    };
    [4, 2].into_iter().filter(|lanes| *lanes <= most).find(whole).unwrap_or(1)
}

/// The operand's position for the target's `coordinate`, and whether it is inside.
fn source<'k>(mode: PadMode, coordinate: Val<'k>, axis: &Declared<'k>) -> (Val<'k>, Val<'k>) {
    let k = coordinate.builder();
    // Positions before the first wrap to above all sizes.
    let p = coordinate - axis.before;
    let inside = p.lt(axis.size);
    let below = coordinate.lt(axis.padded);
    let last = axis.size - 1u32;
    let at = match mode {
        PadMode::Constant => p,
        PadMode::Edge => below.select(k.u32(0), p.min(last)),
        PadMode::Reflect => {
            let beyond = p - last;
            let above = beyond.le(last).select(last - beyond, k.u32(0));
            inside.select(p, below.select(k.u32(0) - p, above))
        }
        PadMode::Wrap => inside.select(p, below.select(p + axis.size, p - axis.size)),
    };
    (at, inside)
}

/// An axis as run-time numbers.
struct Declared<'k> {
    size: Val<'k>,
    out: Val<'k>,
    before: Val<'k>,
    /// Elements added before; none where it is cut.
    padded: Val<'k>,
}

/// Lowers a padding.
pub(crate) fn pad(op: &Pad, site: &mut Site<'_>) -> Result<(), String> {
    let (operand, target) = (site.operands[0].clone(), site.targets[0].clone());
    let to = target.ty.shape.sizes();
    let n = to.numel();
    if n == 0 {
        return Ok(());
    }
    let mut axes = axes(op, &operand.sizes(), &to);
    let mut size = target.ty.dtype.size();
    // Narrow elements that are padded by whole words move as words.
    let factor = if size < 4 { run(op, &axes, 4 / size) } else { 1 };
    if let Some(last) = axes.last_mut() {
        (last.size, last.out, last.before) =
            (last.size.div_floor(factor), last.out.div_floor(factor), last.before.div_floor(factor));
    }
    let value = Tensor::scalar_of(target.ty.dtype, op.value);
    let mut bits = [0; 8];
    bits[..size].copy_from_slice(value.bytes());
    for i in size..size * factor {
        bits[i] = bits[i - size];
    }
    size *= factor;
    let cells = Cells::new(size, site.caps);
    let lanes = run(op, &axes, cells.most_lanes());

    let group = site.group_size(256);
    let k = site.builder("pad", group);
    let l = Launch::new(&k);
    let from = cells.bind(&l, "x", Access::Read, operand.memory);
    let to = cells.bind(&l, "y", Access::Write, target.memory);
    let filling = cells.param(&l, "value", u64::from_le_bytes(bits));
    let items = n.div_floor(factor * lanes);
    let count = l.size("n", items);
    let declare = |a: &Axis| Declared {
        size: l.size("size", a.size),
        out: l.size("out", a.out),
        before: l.stride("before", a.before),
        padded: l.size("padded", a.before.max(0)),
    };
    let declared: Vec<Declared<'_>> = axes.iter().map(declare).collect();

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(count), || {
        let mut rest = work * lanes;
        let (mut inside, mut index, mut stride) = (k.bool(true), k.u32(0), k.u32(1));
        for (i, axis) in declared.iter().enumerate().rev() {
            let outer = if i == 0 { k.u32(0) } else { rest / axis.out };
            let (at, there) = source(op.mode, rest - outer * axis.out, axis);
            rest = outer;
            inside = inside & there;
            index = index + at * stride;
            stride = stride * axis.size;
        }
        if op.mode == PadMode::Constant {
            k.if_else(
                inside,
                || to.store(work * lanes, &from.load_many(index, lanes)),
                || to.store(work * lanes, &vec![filling.clone(); lanes]),
            );
        } else {
            let values: Vec<Cell<'_>> = from.load_many(index, lanes);
            to.store(work * lanes, &values);
        }
    });

    let moved = bytes(&operand.ty) + bytes(&target.ty);
    let bound = l.done();
    site.dispatch(k, bound, items.div_ceil(group), (0, moved))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes<const N: usize>(numbers: [usize; N]) -> [Dim; N] {
        numbers.map(Dim::from)
    }

    fn axis(size: usize, out: usize, before: i64, kept: bool) -> Axis {
        Axis { size: size.into(), out: out.into(), before: before.into(), kept }
    }

    fn pad(mode: PadMode, pads: &[(i64, i64)]) -> Pad {
        let pads = pads.iter().map(|(before, after)| ((*before).into(), (*after).into())).collect();
        Pad { pads, mode, value: 0.0 }
    }

    #[test]
    fn kept_axes_merge_and_padded_ones_take_them_in_only_where_one_number_is_outside() {
        let pads = [(0, 0), (0, 0), (1, 2), (0, 0)];
        let (from, to) = (sizes([2, 3, 4, 8]), sizes([2, 3, 7, 8]));
        let kept = axis(6, 6, 0, true);
        let whole = axis(32, 56, 8, false);
        let constant = pad(PadMode::Constant, &pads);
        assert_eq!(axes(&constant, &from, &to), [kept, whole]);
        assert_eq!(run(&constant, &[kept, whole], 4), 4);

        let edge = pad(PadMode::Edge, &pads);
        let padded = axis(4, 7, 1, false);
        let last = axis(8, 8, 0, true);
        assert_eq!(axes(&edge, &from, &to), [kept, padded, last]);
        assert_eq!(run(&edge, &[kept, padded, last], 4), 4);
        assert_eq!(run(&edge, &[kept, padded], 4), 1);
    }

    #[test]
    fn a_cut_of_more_than_there_is_stays_countable() {
        let op = pad(PadMode::Constant, &[(-(1 << 40), (1 << 40) + 2)]);
        assert_eq!(axes(&op, &sizes([3]), &sizes([5])), [axis(3, 5, -3, false)]);
    }
}
