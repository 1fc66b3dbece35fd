//! im2col, a copy of elements of any type, and col2im, which adds columns up to an image.
//!
//! An invocation of the copy takes a run of windows for all taps of the innermost axis, so that it computes its index
//! once. An invocation of the sum finds all windows that reach its element.

use olivine_ir::op::{Col2Im, Im2Col};
use olivine_kernel::{Access, Buf, Builder, Val, Var};

use crate::cells::{Cell, Cells};
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::reduce::admit;
use crate::site::{Site, linear_group};

kernels! { |op, site|
    Im2Col => im2col(op, site),
    Col2Im => col2im(op, site),
}

/// Lowers im2col.
pub(crate) fn im2col(op: &Im2Col, site: &mut Site<'_>) -> Result<(), String> {
    let (x, target) = (site.operands[0].clone(), site.targets[0].clone());
    let n = target.ty.shape.numel();
    let (sizes, rank) = (&x.dims()[2..], op.kernel.len());
    let (Some(taps), Some(last)) = (op.kernel.last().copied(), rank.checked_sub(1)) else {
        return Err("a kernel without axes".into());
    };
    if n == 0 {
        return Ok(());
    }
    let counts = (0..rank)
        .map(|i| op.window.count(i, sizes[i], op.kernel[i], false))
        .collect::<Result<Vec<usize>, String>>()?;
    let far = |i: usize| {
        let span = (op.kernel[i] - 1).saturating_mul(op.window.dilations[i]);
        (counts[i] - 1).saturating_mul(op.window.strides[i]).saturating_add(span).max(op.window.pads[i].0)
    };
    if let Some(axis) = (0..rank).find(|i| far(*i) > i32::MAX as usize) {
        return Err(format!("windows reach {} elements far on axis {axis}", far(axis)));
    }
    let empty = x.ty.shape.numel() == 0;
    let cells = Cells::new(target.ty.dtype.size(), site.caps);
    let lanes = cells.lanes_in(counts[last]);
    let windows: usize = counts.iter().product();
    let items = n / taps / lanes;

    let group = site.group_size(256);
    let k = site.builder("im2col", group);
    let l = Launch::new(&k);
    let from = cells.bind(&l, "x", Access::Read, x.memory);
    let to = cells.bind(&l, "y", Access::Write, target.memory);
    let (items_left, runs) = (l.size("items", items), l.size("runs", windows / lanes));
    let count = l.size("windows", windows);
    let sized = |name: &str, values: &[usize]| -> Vec<Val<'_>> {
        values.iter().enumerate().map(|(i, v)| l.size(&format!("{name}{i}"), *v)).collect()
    };
    let leads: Vec<usize> = op.window.pads.iter().map(|p| p.0).collect();
    let (sizes, kernel, counts) =
        (sized("size", sizes), sized("kernel", &op.kernel), sized("count", &counts));
    let (strides, dilations) = (sized("stride", &op.window.strides), sized("dilation", &op.window.dilations));
    let leads = sized("lead", &leads);

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(items_left), || {
        let row = work / runs;
        let window = (work - row * runs) * lanes;
        // Coordinates of the window and of the tap; both innermost first.
        let (mut places, mut rest) = (Vec::new(), window);
        for size in counts.iter().skip(1).rev() {
            let outer = rest / *size;
            places.push(rest - outer * *size);
            rest = outer;
        }
        places.push(rest);
        let (mut tap, mut rest) = (vec![k.u32(0)], row);
        for size in kernel.iter().take(last).rev() {
            let outer = rest / *size;
            tap.push(rest - outer * *size);
            rest = outer;
        }
        let plane = rest;
        let (mut index, mut step, mut inside) = (k.u32(0), k.u32(1), k.bool(true));
        let mut inner = k.u32(0);
        for (i, axis) in (0..rank).rev().enumerate() {
            let at = places[i] * strides[axis] + tap[i] * dilations[axis] - leads[axis];
            if axis == last {
                inner = at;
            } else {
                inside = inside & at.lt(sizes[axis]);
                index = index + at * step;
            }
            step = step * sizes[axis];
        }
        index = index + plane * step;
        let to_row = row * kernel[last] * count + window;
        k.for_(k.u32(0), kernel[last], k.u32(1), |t| {
            let values: Vec<Cell<'_>> = (0..lanes)
                .map(|lane| {
                    if empty {
                        return cells.zero(&k);
                    }
                    let at = inner + strides[last] * lane + t * dilations[last];
                    let there = inside & at.lt(sizes[last]);
                    from.load(there.select(index + at, k.u32(0))).or(there, &cells.zero(&k))
                })
                .collect();
            to.store(to_row + t * count, &values);
        });
    });
    let moved = bytes(&x.ty) + bytes(&target.ty);
    let bound = l.done();
    site.dispatch(k, bound, items.div_ceil(group as usize) as u64, (0, moved))
}

/// Lowers col2im.
fn col2im(op: &Col2Im, site: &mut Site<'_>) -> Result<(), String> {
    let (x, target) = (site.operands[0].clone(), site.targets[0].clone());
    admit(target.ty.dtype, site)?;
    let n = target.ty.shape.numel();
    if n == 0 {
        return Ok(());
    }
    let counts = op.counts()?;
    for (axis, size) in op.image.iter().enumerate() {
        let span = op.window.span(axis, op.kernel[axis])?;
        let far = size.saturating_add(op.window.pads[axis].0).max(span);
        if far > i32::MAX as usize {
            return Err(format!("windows reach {far} elements far on axis {axis}"));
        }
    }

    let group = site.group_size(256);
    let k = site.builder("col2im", group);
    let l = Launch::new(&k);
    let (columns, y) = (l.read("x", &x), l.write("y", &target));
    let (items, windows) = (l.size("items", n), l.size("windows", counts.iter().product::<usize>()));
    let axes: Vec<Axis<'_>> = (0..counts.len())
        .map(|i| Axis {
            size: l.size(&format!("size{i}"), op.image[i]),
            kernel: l.size(&format!("kernel{i}"), op.kernel[i]),
            count: l.size(&format!("count{i}"), counts[i]),
            stride: l.size(&format!("stride{i}"), op.window.strides[i]),
            dilation: l.size(&format!("dilation{i}"), op.window.dilations[i]),
            lead: l.size(&format!("lead{i}"), op.window.pads[i].0),
        })
        .collect();

    let work = linear_group(&k) * group + k.local_index();
    k.if_(work.lt(items), || {
        // The element's coordinates in the padded image, outermost first.
        let (mut at, mut rest) = (Vec::new(), work);
        for axis in axes.iter().rev() {
            let outer = rest / axis.size;
            at.insert(0, rest - outer * axis.size + axis.lead);
            rest = outer;
        }
        let sum = k.var(k.number(y.elem().scalar(), 0.0));
        Windows { k: &k, columns, windows, at: &at, sum }.add(&axes, rest, k.u32(0));
        y.store(work, sum.get());
    });
    let taps: usize = op.kernel.iter().product();
    let moved = bytes(&x.ty) + bytes(&target.ty);
    let bound = l.done();
    let flops = (n as u64).saturating_mul(taps as u64);
    site.dispatch(k, bound, n.div_ceil(group as usize) as u64, (flops, moved))
}

/// One axis of an image and its windows.
struct Axis<'k> {
    size: Val<'k>,
    kernel: Val<'k>,
    count: Val<'k>,
    stride: Val<'k>,
    dilation: Val<'k>,
    /// Padding before the first element.
    lead: Val<'k>,
}

/// The windows that reach one element.
struct Windows<'a, 'k> {
    k: &'k Builder,
    columns: Buf<'k>,
    /// Windows on all axes.
    windows: Val<'k>,
    /// The element's coordinates in the padded image.
    at: &'a [Val<'k>],
    sum: Var<'k>,
}

impl<'k> Windows<'_, 'k> {
    /// Adds what they hold for the element: `tap` and `window` number the channel, the kernel positions and the windows
    /// on the axes before `axes`.
    fn add(&self, axes: &[Axis<'k>], tap: Val<'k>, window: Val<'k>) {
        let Some((axis, rest)) = axes.split_first() else { return };
        let at = self.at[self.at.len() - axes.len()];
        self.k.for_(self.k.u32(0), axis.kernel, self.k.u32(1), |t| {
            let reach = t * axis.dilation;
            let offset = at - reach;
            let own = offset / axis.stride;
            let hit = reach.le(at) & (own * axis.stride).eq(offset) & own.lt(axis.count);
            self.k.if_(hit, || {
                let (tap, window) = (tap * axis.kernel + t, window * axis.count + own);
                if rest.is_empty() {
                    // Columns are rows of all windows, one for each channel and kernel position.
                    self.sum.set(self.sum.get() + self.columns.load(tap * self.windows + window));
                } else {
                    self.add(rest, tap, window);
                }
            });
        });
    }
}
