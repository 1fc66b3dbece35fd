//! Small windows, many of them: the window is baked, and an invocation computes a column of neighbouring results, which
//! share the rows that they read. Neighbouring invocations have neighbouring columns.

use std::collections::BTreeMap;

use olivine_ir::op::PoolKind;
use olivine_ir::{Dim, product};
use olivine_kernel::{Scalar, Val};

use super::fold::Fold;
use super::windows::{Axis, Windows};
use crate::launch::{Launch, bytes};
use crate::rows::{GROUP, State};
use crate::site::{Site, linear_group};

/// Result rows of an invocation.
const ROWS: usize = 4;

/// Results for which a window is worth a kernel of its own.
const MANY: usize = 1 << 15;

/// Elements of the largest window that is unrolled.
const AREA: usize = 16;

/// Whether windows are small, flat and many.
pub(super) fn fits(fold: Fold, windows: &Windows, outputs: Dim) -> bool {
    let [depth, rows, columns] = &windows.axes;
    let flat = depth.input == 1 && depth.output == 1 && depth.kernel == 1;
    let small = rows.kernel.saturating_mul(columns.kernel) <= AREA;
    let reaches = fold.kind != PoolKind::Max || (rows.clamps() && columns.clamps());
    flat && small && reaches && !fold.located && outputs >= MANY
}

/// Lowers windows that fit.
pub(super) fn emit(fold: Fold, windows: &Windows, site: &mut Site<'_>) -> Result<(), String> {
    let (operand, target) = (site.operands[0].clone(), site.targets[0].clone());
    let [_, rows, columns] = &windows.axes;
    let blocks = rows.output.div_ceil(ROWS);
    let planes = product(&target.ty.shape.sizes()[..2]);
    let items = planes * blocks * columns.output;
    let counted = fold.kind == PoolKind::Average;
    let table = if counted { windows.table(site)? } else { None };

    let group = site.group_size(GROUP);
    let k = site.builder(&format!("{}_{}x{}", fold.name(), rows.kernel, columns.kernel), group);
    let l = Launch::new(&k);
    let x = l.read("x", &operand);
    let y = l.write("y", &target);
    let declare = |a: &Axis| {
        let before = l.i32("before", a.before as i32);
        (l.size("input", a.input), l.size("output", a.output), before)
    };
    let ((height, out_rows, above), (width, out_columns, left)) = (declare(rows), declare(columns));
    let (count, blocks) = (l.size("n", items), l.size("blocks", blocks));
    let bounds = counted.then(|| windows.declare(&l, table));

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(count), || {
        let line = work / out_columns;
        let column = work - line * out_columns;
        let plane = line / blocks;
        let first = (line - plane * blocks) * ROWS;

        let across = window(columns, column, left, width);
        // Folds of a window's width in every row that some result needs.
        let mut folded: BTreeMap<usize, State<'_>> = BTreeMap::new();
        let start = (first * rows.stride).bitcast(Scalar::I32) - above;
        for r in 0..ROWS {
            for tap in 0..rows.kernel {
                let down = r * rows.stride + tap * rows.dilation;
                folded.entry(down).or_insert_with(|| {
                    let row = clamped(start + k.i32(down as i32), height);
                    let from = (plane * height + row.at) * width;
                    let taken = across.iter().map(|c| {
                        let lifted = fold.lift(x.load(from + c.at), c.at);
                        masked(fold, c.inside, lifted)
                    });
                    let joined = taken.reduce(|a, b| fold.join(&a, &b)).unwrap_or_default();
                    masked(fold, row.inside, joined)
                });
            }
        }
        let counts = bounds.as_ref().map(|bounds| bounds.of(2, column)[2]);
        for r in 0..ROWS {
            let row = first + r;
            let down = |tap: usize| folded.get(&(r * rows.stride + tap * rows.dilation)).cloned();
            let state =
                (0..rows.kernel).filter_map(down).reduce(|a, b| fold.join(&a, &b)).unwrap_or_default();
            k.if_(row.lt(out_rows), || {
                let one = k.number(y.elem().scalar(), 1.0);
                let positions = match (&bounds, counts) {
                    (Some(bounds), Some(across)) => {
                        let down = bounds.of(1, row)[2];
                        down.convert(one.scalar()) * across.convert(one.scalar())
                    }
                    _ => one,
                };
                let at = (plane * out_rows + row) * out_columns + column;
                y.store(at, fold.finish(&state, positions));
            });
        }
    });

    let moved = bytes(&operand.ty) + bytes(&target.ty);
    let flops = target.ty.shape.sizes().numel() * (rows.kernel * columns.kernel);
    let bound = l.done();
    site.dispatch(k, bound, items.div_ceil(group), (flops, moved))
}

/// A position of an axis, moved to the nearest one inside.
struct ClampedIndex<'k> {
    at: Val<'k>,
    inside: Val<'k>,
}

fn clamped<'k>(at: Val<'k>, size: Val<'k>) -> ClampedIndex<'k> {
    let inside = at.bitcast(Scalar::U32).lt(size);
    let last = (size - 1u32).bitcast(Scalar::I32);
    ClampedIndex { at: at.max(0).min(last).bitcast(Scalar::U32), inside }
}

/// The positions of a window's elements along an axis.
fn window<'k>(axis: &Axis, output: Val<'k>, before: Val<'k>, size: Val<'k>) -> Vec<ClampedIndex<'k>> {
    let start = (output * axis.stride).bitcast(Scalar::I32) - before;
    let k = output.builder();
    (0..axis.kernel).map(|tap| clamped(start + k.i32((tap * axis.dilation) as i32), size)).collect()
}

/// A state where it comes from inside the operand, else that of nothing. Maxima need no care: what stands in for
/// padding is an element of the window.
fn masked<'k>(fold: Fold, inside: Val<'k>, state: State<'k>) -> State<'k> {
    if fold.kind == PoolKind::Max {
        return state;
    }
    let nothing = fold.identity(inside.builder());
    state.iter().zip(nothing).map(|(x, zero)| crate::math::pick(inside, *x, zero)).collect()
}
