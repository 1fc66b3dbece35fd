//! Depthwise convolutions over one or two axes: an invocation sums a patch of neighbouring results of one channel.
//!
//! Every row of the input that the patch needs is loaded once, as vectors where rows allow it, and serves all
//! rows and columns of the patch that it reaches. The kernel's size, strides and dilations are baked in; a filter
//! stays in registers.

use olivine_ir::op::Window;
use olivine_ir::{DType, Dim};
use olivine_kernel::{Buf, Val};
use olivine_program::DeviceKind;

use crate::conv::ConvOperands;
use crate::launch::{Launch, bytes};
use crate::math::{self, Typed};
use crate::matmul::{accumulator_elem, is_heavy, rounded_sum};
use crate::site::{Operand, Site, linear_group};
use crate::walk::{Walk, Walker};

/// Neighbouring results of a row that an invocation sums.
const ACROSS: usize = 4;
/// Rows of results that an invocation sums, most first.
const DOWN: [usize; 3] = [4, 2, 1];
/// Taps of the largest filter that is held in registers.
const MOST_TAPS: usize = 49;
/// Elements of a row, and rows, that the largest patch needs.
const MOST_REACH: usize = 24;
/// Elements before the first that coordinates may address.
const MOST_LEAD: usize = 1 << 20;

/// The baked geometry of an axis.
#[derive(Clone, Copy)]
struct Along {
    kernel: usize,
    stride: usize,
    dilation: usize,
    lead: usize,
}

impl Along {
    /// Elements that `count` neighbouring results need.
    fn reach(self, count: usize) -> usize {
        (count - 1).saturating_mul(self.stride).saturating_add(self.span())
    }

    fn span(self) -> usize {
        (self.kernel - 1).saturating_mul(self.dilation).saturating_add(1)
    }
}

/// The vertical and the horizontal axis; one of length 1 stands for the missing vertical one.
fn axes(window: &Window, parts: &ConvOperands<'_>) -> Option<(Along, Along)> {
    let kernel = parts.spatial().1;
    let along = |i: usize| Along {
        kernel: kernel[i],
        stride: window.strides[i],
        dilation: if kernel[i] == 1 { 1 } else { window.dilations[i] },
        lead: window.pads[i].0,
    };
    match kernel.len() {
        1 => Some((Along { kernel: 1, stride: 1, dilation: 1, lead: 0 }, along(0))),
        2 => Some((along(0), along(1))),
        _ => None,
    }
}

/// Whether a convolution has one input channel to a group and a kernel that registers hold.
pub(crate) fn suits(window: &Window, parts: &ConvOperands<'_>) -> bool {
    let Some((down, across)) = axes(window, parts) else { return false };
    parts.channels == 1
        && parts.x.sizes().numel() != 0
        && down.kernel * across.kernel <= MOST_TAPS
        && down.reach(2) <= MOST_REACH
        && across.reach(ACROSS) <= MOST_REACH
        && down.lead.max(across.lead) <= MOST_LEAD
}

/// Rows of a patch: as many as leave enough invocations.
fn rows(parts: &ConvOperands<'_>, along: Along, (height, width): (Dim, Dim), kind: DeviceKind) -> usize {
    let planes = parts.images() * (parts.groups * parts.m);
    let enough = if matches!(kind, DeviceKind::Cpu) { 1 << 10 } else { 1 << 16 };
    let heavy = parts.region.is_some_and(is_heavy);
    let fits = |rows: &usize| {
        let invocations = planes * height.div_ceil(*rows) * width.div_ceil(ACROSS);
        // A long epilogue is unrolled for every result.
        along.reach(*rows) <= MOST_REACH && !(heavy && *rows > 2) && *rows <= height && invocations >= enough
    };
    DOWN.into_iter().find(fits).unwrap_or(1)
}

/// Elements to a vector of at most 16 bytes, or four, that rows are made of whole.
#[track_caller]
fn lanes_of(dtype: DType, width: impl Into<Dim>) -> usize {
    let width = width.into();
    let most = if dtype.size() > 4 { 2 } else { 4 };
    [4, 2].into_iter().find(|lanes| *lanes <= most && width.is_multiple_of(*lanes)).unwrap_or(1)
}

/// Lowers a depthwise convolution that suits.
pub(crate) fn depthwise(
    window: &Window,
    parts: &ConvOperands<'_>,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let Some((down, across)) = axes(window, parts) else { return Err("a depthwise convolution".into()) };
    let elem = accumulator_elem(math::elem(parts.x.ty.dtype));
    if !site.caps.target.has(elem.scalar()) {
        return Err(format!("the device has no {elem}"));
    }
    let (sizes, _, out) = parts.spatial();
    let plane = |dims: &[Dim]| match dims {
        [width] => (Dim::ONE, *width),
        [height, width] => (*height, *width),
        _ => (Dim::ZERO, Dim::ZERO),
    };
    let ((height, width), (out_height, out_width)) = (plane(&sizes), plane(&out));
    if parts.target.ty.shape.sizes().numel() == 0 {
        return Ok(());
    }
    let rows = rows(parts, down, (out_height, out_width), site.caps.kind);
    let (lanes, out_lanes) = (lanes_of(parts.x.ty.dtype, width), lanes_of(parts.target.ty.dtype, out_width));
    let planes = parts.images() * (parts.groups * parts.m);
    let patches = (out_height.div_ceil(rows), out_width.div_ceil(ACROSS));
    let items = planes * patches.0 * patches.1;
    let is_single = patches.0 == 1;

    let group = site.group_size(256);
    let k = site.builder("conv_depthwise", group);
    let l = Launch::new(&k);
    let (x, w) = (l.read("x", &parts.x), l.read("w", &parts.w));
    let tail = Tail::declare(&l, parts)?;
    let (total, patches_across) = (l.size("items", items), l.size("across", patches.1));
    let patches_down = if is_single { k.u32(1) } else { l.size("down", patches.0) };
    let filters = l.size("filters", parts.groups * parts.m);
    let multiplier = if parts.m == 1 { k.u32(1) } else { l.size("multiplier", parts.m) };
    let input = (l.size("height", height), l.size("width", width));
    let out = (l.size("out_height", out_height), l.size("out_width", out_width));
    let lead = (l.size("lead_down", down.lead), l.size("lead_across", across.lead));

    let id = linear_group(&k) * group + k.local_index();
    k.if_(id.lt(total), || {
        let rest = id / patches_across;
        let left = (id - rest * patches_across) * ACROSS;
        let (top, number) = if is_single {
            (k.u32(0), rest)
        } else {
            let number = rest / patches_down;
            ((rest - number * patches_down) * rows, number)
        };
        let image = number / filters;
        let filter = number - image * filters;
        let taps = down.kernel * across.kernel;
        let weights: Vec<Val<'_>> = (0..taps).map(|t| w.load(filter * taps + t)).collect();
        let from = Rows {
            buffer: x,
            start: number / multiplier * (input.0 * input.1),
            height: input.0,
            width: input.1,
            first: left * across.stride - lead.1,
            reach: across.reach(ACROSS),
            lanes,
            shift: (lanes - across.lead % lanes) % lanes,
        };
        let zero = k.number(elem.scalar(), 0.0);
        let mut sums = vec![zero; rows * ACROSS];
        let first = top * down.stride - lead.0;
        for row in 0..down.reach(rows) {
            // Which rows of the patch this row of the input reaches, and by which row of the kernel.
            let reached: Vec<(usize, usize)> = (0..rows)
                .filter_map(|r| Some((r, row.checked_sub(r * down.stride)?)))
                .filter(|(_, at)| at.is_multiple_of(down.dilation) && at / down.dilation < down.kernel)
                .map(|(r, at)| (r, at / down.dilation))
                .collect();
            if reached.is_empty() {
                continue;
            }
            let values = from.load(first + row, zero);
            for (r, tap_row) in reached {
                for c in 0..ACROSS {
                    for tap in 0..across.kernel {
                        let (sum, weight) =
                            (&mut sums[r * ACROSS + c], weights[tap_row * across.kernel + tap]);
                        *sum = values[c * across.stride + tap * across.dilation].fma(weight, *sum);
                    }
                }
            }
        }
        let sums = tail.biased(sums, filter);
        for (r, run) in sums.chunks(ACROSS).enumerate() {
            let y = top + r;
            k.if_(y.lt(out.0), || {
                for (c, run) in run.chunks(out_lanes).enumerate() {
                    let x = left + c * out_lanes;
                    k.if_(x.lt(out.1), || tail.store((number * out.0 + y) * out.1 + x, run));
                }
            });
        }
    });
    let read: Dim = [&parts.x, &parts.w].into_iter().chain(&parts.extras).map(|o| bytes(&o.ty)).sum();
    let flops = parts.target.ty.shape.sizes().numel() * (2 * down.kernel * across.kernel);
    let bound = l.done();
    let groups = items.div_ceil(group);
    site.dispatch(k, bound, groups, (flops, read + bytes(&parts.target.ty)))
}

/// The rows of a plane that a patch reads.
struct Rows<'k> {
    buffer: Buf<'k>,
    /// Index of the plane's first element.
    start: Val<'k>,
    height: Val<'k>,
    width: Val<'k>,
    /// Column of the first element, which may be before the row's.
    first: Val<'k>,
    /// Elements from there on.
    reach: usize,
    /// Elements of a vector, of which rows are made whole.
    lanes: usize,
    /// Elements from a vector's beginning to `first`.
    shift: usize,
}

impl<'k> Rows<'k> {
    /// The elements of row `y`; zeros outside.
    fn load(&self, y: Val<'k>, zero: Val<'k>) -> Vec<Val<'k>> {
        let k = y.builder();
        let there = y.lt(self.height);
        let row = self.start + y * self.width;
        let mut values = Vec::with_capacity(self.reach + self.lanes);
        for vector in 0..(self.shift + self.reach).div_ceil(self.lanes) {
            // Columns before the first wrap to above all widths; a vector is wholly inside or wholly outside.
            let begin = vector * self.lanes;
            let wanted = begin.max(self.shift)..(begin + self.lanes).min(self.shift + self.reach);
            let single = wanted.len() == 1;
            let at = if single { wanted.start } else { begin };
            let column = self.first + at - self.shift;
            let inside = there & column.lt(self.width);
            let index = inside.select(row + column, k.u32(0));
            let loaded = self.buffer.load_vec(index, if single { 1 } else { self.lanes as u8 });
            let kept = wanted.map(|i| loaded[i - at]);
            values.extend(kept.map(|value| inside.select(value, zero)));
        }
        values
    }
}

/// Bias, epilogue and store.
struct Tail<'k, 'p> {
    parts: &'p ConvOperands<'p>,
    out: Buf<'k>,
    bias: Option<Buf<'k>>,
    epilogue_inputs: Vec<Buf<'k>>,
    walk: Walk,
    walker: Walker<'k>,
}

impl<'k, 'p> Tail<'k, 'p> {
    fn declare(l: &Launch<'k>, parts: &'p ConvOperands<'p>) -> Result<Self, String> {
        let (bias, extras) = match parts.extras.split_last() {
            Some((bias, extras)) if parts.bias => (Some(l.read("bias", bias)), extras),
            _ => (None, parts.extras.as_slice()),
        };
        if extras.iter().any(|o| o.offset != 0) {
            return Err("an operand of the epilogue has an offset".into());
        }
        let walk = Walk::new(&parts.target.ty.shape.sizes(), &parts.strides[..extras.len()]);
        let input = |(i, o): (usize, &Operand)| l.read(&format!("x{i}"), o);
        Ok(Tail {
            parts,
            out: l.write("out", &parts.target),
            bias,
            epilogue_inputs: extras.iter().enumerate().map(input).collect(),
            walker: walk.declare(l, &vec![Dim::ZERO; extras.len()]),
            walk,
        })
    }

    /// Sums of a filter with its bias.
    fn biased(&self, sums: Vec<Val<'k>>, filter: Val<'k>) -> Vec<Val<'k>> {
        let Some(bias) = self.bias.map(|b| b.load(filter)) else { return sums };
        sums.into_iter().map(|sum| sum + bias).collect()
    }

    /// Finishes neighbours in a row of the result, from `position` on.
    fn store(&self, position: Val<'k>, sums: &[Val<'k>]) {
        let Some(region) = self.parts.region else { return self.out.store_vec(position, sums) };
        let indices = self.walker.at(position);
        let lanes = sums.len();
        let load = |(i, (buffer, index)): (usize, (&Buf<'k>, &Val<'k>))| {
            let strides = &self.walk.strides[i];
            let mut outer = strides[..strides.len().saturating_sub(1)].iter();
            let vector = lanes_of(self.parts.extras[i].ty.dtype, lanes) == lanes;
            // Neighbours of packed operands are contiguous, or the same for a whole row.
            match self.walk.steps_by(i, 0) {
                true => vec![buffer.load(*index); lanes],
                _ if vector && outer.all(|s| s.is_multiple_of(lanes)) => buffer.load_vec(*index, lanes as u8),
                _ => (0..lanes).map(|lane| buffer.load(*index + lane)).collect(),
            }
        };
        let loaded: Vec<Vec<Val<'k>>> =
            self.epilogue_inputs.iter().zip(&indices).enumerate().map(load).collect();
        let finished = |(lane, sum): (usize, &Val<'k>)| {
            let mut inputs = vec![rounded_sum(*sum, self.parts.x.ty.dtype)];
            for (values, operand) in loaded.iter().zip(&self.parts.extras) {
                inputs.push(Typed { val: values[lane], dtype: operand.ty.dtype });
            }
            math::region(region, &inputs).first().map(|result| result.val)
        };
        let results: Vec<Val<'k>> = sums.iter().enumerate().filter_map(finished).collect();
        self.out.store_vec(position, &results);
    }
}
