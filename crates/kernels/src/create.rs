//! Tensors without operands, or nearly: one-hot, triangles, ranges.

use olivine_ir::half::{bf16, f16};
use olivine_ir::op::{OneHot, Range, ScalarOp, TriPart, Trilu};
use olivine_ir::{DType, Data, Dim, Tensor, memory, product, round_to_odd};
use olivine_kernel::{Access, Scalar, Val};

use super::cells::{Cell, CellBuf, Cells};
use super::elementwise::whole_copy;
use super::index::Indices;
use crate::kernels;
use crate::launch::{Launch, bytes, number};
use crate::math::{self, Typed};
use crate::site::{Operand, Site, linear_group};

kernels! { |op, site|
    OneHot => one_hot(op, site),
    Trilu => trilu(op, site),
    Range => range(op, site),
}

/// Writes the first `n` cells of a target, whose memory is padded, a vector at a time; `cell` computes each.
fn fill<'k>(
    l: &Launch<'k>,
    cells: Cells,
    to: CellBuf<'k>,
    n: impl Into<Dim>,
    cell: impl Fn(Val<'k>) -> Cell<'k>,
) {
    let (k, n) = (l.k(), n.into());
    let lanes = cells.most_lanes();
    let (count, last) = (l.size("n", n.div_ceil(lanes)), l.size("last", n - 1));
    let work = linear_group(k) * k.group() + k.local_index();
    k.if_(work.lt(count), || {
        let first = work * lanes;
        let values: Vec<Cell<'k>> = (0..lanes).map(|i| cell((first + i).min(last))).collect();
        to.store(first, &values);
    });
}

/// Workgroups for [`fill`].
fn groups(cells: Cells, n: impl Into<Dim>, group: u32) -> Dim {
    n.into().div_ceil(cells.most_lanes()).div_ceil(group)
}

/// A new axis in which the index' position is on and all others are off.
pub(crate) fn one_hot(op: &OneHot, site: &mut Site<'_>) -> Result<(), String> {
    let (indices, values, target) =
        (site.operands[0].clone(), site.operands[1].clone(), site.targets[0].clone());
    let n = target.ty.shape.sizes().numel();
    if n == 0 {
        return Ok(());
    }
    let inner = product(&indices.sizes()[op.axis..]);

    let cells = Cells::new(target.ty.dtype.size(), site.caps);
    let group = site.group_size(256);
    let k = site.builder("one_hot", group);
    let l = Launch::new(&k);
    let read = Indices::declare(&l, "indices", &indices);
    let pair = cells.bind(&l, "values", Access::Read, values.memory);
    let to = cells.bind(&l, "y", Access::Write, target.memory);
    let (depth, inner) = (l.size("depth", op.depth), l.size("inner", inner));
    let (off, on) = (pair.load(k.u32(0)), pair.load(k.u32(1)));
    fill(&l, cells, to, n, |position| {
        let above = position / inner;
        let outer = above / depth;
        let index = read.peek(outer * inner + (position - above * inner), depth);
        on.or(index.inside & index.at.eq(above - outer * depth), &off)
    });

    let moved = bytes(&indices.ty) + bytes(&target.ty);
    let bound = l.done();
    site.dispatch(k, bound, groups(cells, n, group), (0, moved))
}

/// One triangle of the last two axes.
pub(crate) fn trilu(op: &Trilu, site: &mut Site<'_>) -> Result<(), String> {
    let (x, target) = (site.operands[0].clone(), site.targets[0].clone());
    let n = target.ty.shape.sizes().numel();
    let [.., height, width] = x.sizes()[..] else { return Err("a triangle of rank below 2".into()) };
    if n == 0 {
        return Ok(());
    }
    // A diagonal outside the matrix is clamped to its border.
    let right = Dim::from(op.diagonal.max(0)).min(width);
    let down = Dim::from(op.diagonal.min(0).saturating_neg()).min(height);

    let cells = Cells::new(target.ty.dtype.size(), site.caps);
    let group = site.group_size(256);
    let k = site.builder("trilu", group);
    let l = Launch::new(&k);
    let from = cells.bind(&l, "x", Access::Read, x.memory);
    let to = cells.bind(&l, "y", Access::Write, target.memory);
    let (height, width) = (l.size("height", height), l.size("width", width));
    let (right, down) = (l.size("right", right), l.size("down", down));
    fill(&l, cells, to, n, |position| {
        let above = position / width;
        let column = position - above * width + down;
        let row = above % height + right;
        let kept = match op.part {
            TriPart::Upper => column.ge(row),
            TriPart::Lower => column.le(row),
        };
        from.load(position).or(kept, &cells.zero(&k))
    });

    let moved = bytes(&x.ty) + bytes(&target.ty);
    let bound = l.done();
    site.dispatch(k, bound, groups(cells, n, group), (0, moved))
}

/// A range of floats as a table that is stored with the program.
fn float_table(op: &Range, site: &mut Site<'_>) -> Result<(), String> {
    let target = site.targets[0].clone();
    let most = site.caps.max_buffer_bytes;
    // Refused now, before the host computes it.
    if target.ty.size_bytes() > most {
        return Err(format!("{} takes more bytes than a buffer may have, {most}", target.ty));
    }
    let numbers = (0..number(op.count)).map(|i| op.start + i as f64 * op.step);
    let data = match op.dtype {
        DType::F64 => memory::collected(numbers).map(Data::F64),
        DType::F32 => memory::collected(numbers.map(|x| x as f32)).map(Data::F32),
        DType::F16 => memory::collected(numbers.map(|x| f16::from_f32(round_to_odd(x)))).map(Data::F16),
        _ => memory::collected(numbers.map(|x| bf16::from_f32(round_to_odd(x)))).map(Data::BF16),
    };
    let tensor =
        data.and_then(|data| Tensor::from_data([number(op.count)], data)).map_err(|e| e.to_string())?;
    let memory = site.constant(tensor);
    let constant = Operand { memory, ..target.as_operand() };
    whole_copy(&constant, &target, site)
}

/// A range of floats, four numbers to an invocation; memory is padded to four.
fn float_range(op: &Range, site: &mut Site<'_>) -> Result<(), String> {
    let (target, dtype) = (site.targets[0].clone(), op.dtype);
    let group = site.group_size(256);
    let k = site.builder("range", group);
    let l = Launch::new(&k);
    let to = l.write("y", &target);
    let (count, fours) = (l.size("n", op.count), l.size("fours", op.count.div_ceil(4)));
    let (start, step) = (math::splat(&k, DType::F64, op.start).val, math::splat(&k, DType::F64, op.step).val);
    let at = linear_group(&k) * group + k.local_index();
    k.if_(at.lt(fours), || {
        let first = at * 4;
        let number = |i: u32| {
            // The multiplication is opaque, so that no compiler contracts it with the addition.
            let val = start + ((first + i).convert(Scalar::F64) * step).opaque();
            let wide = Typed { val, dtype: DType::F64 };
            if dtype == DType::F64 {
                val
            } else {
                math::scalar_op(&ScalarOp::Cast(dtype), &[wide], dtype).val
            }
        };
        let values = [0, 1, 2, 3].map(number);
        if dtype == DType::F64 {
            for (i, x) in values.into_iter().enumerate() {
                k.if_((first + i).lt(count), || to.store(first + i, x));
            }
        } else {
            to.store_vec(first, &values);
        }
    });
    let fours = op.count.div_ceil(4);
    let bound = l.done();
    site.dispatch(k, bound, fours.div_ceil(group), (8 * fours, bytes(&target.ty)))
}

/// A range of floats of no more bytes than this is a table.
const TABLE: usize = 4 << 10;

/// Numbers at equal distances. Integers are counted on the device; floats are computed there in f64, or are a table
/// that is computed here: a short one, and any on a device without f64.
pub(crate) fn range(op: &Range, site: &mut Site<'_>) -> Result<(), String> {
    let target = site.targets[0].clone();
    if op.count == 0 {
        return Ok(());
    }
    if op.dtype.is_float() {
        let table = !site.caps.target.f64 || target.ty.size_bytes() <= TABLE;
        return if table { float_table(op, site) } else { float_range(op, site) };
    }

    let cells = Cells::new(target.ty.dtype.size(), site.caps);
    let group = site.group_size(256);
    let k = site.builder("range", group);
    let l = Launch::new(&k);
    let to = cells.bind(&l, "y", Access::Write, target.memory);
    let word = |name: &str, bits: i64| {
        [l.size(name, bits as u32 as usize), l.size(name, (bits as u64 >> 32) as usize)]
    };
    let (start, step) = (word("start", op.start as i64), word("step", op.step as i64));
    fill(&l, cells, to, op.count, |i| {
        // start + i·step in two words.
        let (low, high) = (step[0] * i, step[0].mul_high(i) + step[1] * i);
        let sum = start[0] + low;
        let carry = sum.lt(low).select(k.u32(1), k.u32(0));
        cells.of_words(sum, start[1] + high + carry)
    });

    let bound = l.done();
    site.dispatch(k, bound, groups(cells, op.count, group), (op.count, bytes(&target.ty)))
}
