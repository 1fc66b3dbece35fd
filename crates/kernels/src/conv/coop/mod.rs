//! Convolutions of f16 by cooperative matrices, without columns in memory: filters by gathered pixels.
//!
//! ```text
//!   x [N, C, ..] ── pixels ── [N, padded .., C in whole slots] ──┐ slots of 8 channels, wherever a table says
//!   w [M, C, ..] ── filters ─ [M, taps × C in whole slots] ──────┴─ matmul ─ [N, M, ..]
//! ```
//! Channels become the inner axis and what windows reach outside becomes zeros, so that eight channels of a tap are
//! one aligned load without a question. Filters are brought into the same order, at load where they are stored.

mod filters;
mod gemm;
mod pixels;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
mod tests;

use olivine_ir::{DType, Dim};
use olivine_kernel::Elem;
use olivine_program::DeviceCaps;

use crate::conv::coop::filters::Filters;
use crate::conv::coop::gemm::CoopGemm;
use crate::conv::coop::pixels::spread;
use crate::conv::taps::{Bounds, Class, Tap, TapAxis, TapForm, Taps};
use crate::launch::number;
use crate::math;
use crate::matmul::candidates::even_splits;
use crate::matmul::choice::{Shape, busy};
use crate::matmul::coop::blocks::{CoopTile, OperandPath, deals_once};
use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::staging::{PanelLayout, SLOT};
use crate::matmul::epilogue::Destination;
use crate::matmul::problem::{Axis, Problem};
use crate::matmul::split_k;
use crate::matmul::stream_k::{StreamK, waves};
use crate::site::{Operand, Site};

/// The fewest filters, columns and K that are worth another form of the image.
const LEAST: [usize; 3] = [32, 256, 64];

/// Blocks from the largest to the smallest; A and B are filters and pixels.
const LARGE: CoopTile = CoopTile {
    m: 128,
    n: 128,
    rows: 64,
    columns: 64,
    slices: 1,
    k_step: 32,
    carry: false,
    band: 8,
    form: MatrixForm::CARD,
    ways: (OperandPath::Packed, OperandPath::Staged),
    ahead: 1,
};
const MEDIUM: CoopTile = CoopTile { m: 64, n: 64, rows: 32, columns: 32, k_step: 64, ..LARGE };
const SMALL: CoopTile = CoopTile { m: 32, n: 32, rows: 32, columns: 32, slices: 4, k_step: 128, ..LARGE };
/// What the least capable device with matrices has room for.
const PLAIN: CoopTile = CoopTile { m: 32, n: 32, rows: 16, columns: 16, ..LARGE };

/// A convolution brought to this form.
struct Plan {
    /// Input channels, and those of the new form.
    channels: usize,
    padded: usize,
    /// Taps of a channel.
    taps: usize,
    /// Sizes of the new image by axis.
    sizes: Vec<usize>,
}

impl Plan {
    /// The form of a convolution, if it has one of a reasonable size.
    fn new(taps: &Taps) -> Option<Plan> {
        let [class] = taps.classes.as_slice() else { return None };
        let of_kernel: usize = taps.axes.iter().map(|a| a.kernel).product();
        let channels = class.taps.len() / of_kernel.max(1);
        let reach = |(axis, out): (&TapAxis, &Dim)| {
            let out = number(*out);
            let span = (axis.kernel - 1).saturating_mul(axis.dilation);
            (out - 1).saturating_mul(axis.stride).saturating_add(span).saturating_add(1)
        };
        let sizes: Vec<usize> = taps.axes.iter().zip(&class.dims).map(reach).collect();
        let plane: usize = number(taps.plane);
        let padded_plane = sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size))?;
        // What windows reach outside should not be most of it.
        let apt = !taps.by_weight && padded_plane <= 2 * plane + 256;
        let padded = channels.next_multiple_of(SLOT as usize);
        apt.then_some(Plan { channels, padded, taps: of_kernel, sizes })
    }

    /// Indices along K of the matmul.
    fn k_size(&self) -> usize {
        self.taps * self.padded
    }

    fn plane(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Elements of the new image.
    fn elements(&self, images: Dim) -> Dim {
        images * (self.plane() * self.padded)
    }

    /// The taps of the new image: pixels are its elements, and an index along K is a slot.
    fn slots(&self, taps: &Taps) -> Taps {
        let mut axes = taps.axes.clone();
        let mut step = 1;
        for (axis, size) in axes.iter_mut().zip(&self.sizes).rev() {
            *axis =
                TapAxis { size: (*size).into(), step: step.into(), lead: 0, padded: false, ..axis.clone() };
            step *= size;
        }
        let each = self.padded / SLOT as usize;
        let of_kernel = taps.classes.iter().flat_map(|c| c.taps.iter().take(self.taps));
        let slots = of_kernel.flat_map(|tap| (0..each).map(move |c| (tap, c)));
        let slots = slots.map(|(tap, c)| Tap { channel: c, delta: tap.delta, bits: 0, weight: 0 }).collect();
        let offset_steps = (Dim::ONE, axes.iter().map(|axis| axis.step * each).collect());
        let classes = taps.classes.iter().map(|c| Class { taps: Vec::clone(&slots), ..c.clone() }).collect();
        let image = (self.plane().into(), taps.image.1);
        let form = TapForm::Offsets;
        Taps { axes, bounds: Bounds::Inside, form, image, offset_steps, classes, ..taps.clone() }
    }
}

/// How the sums of a matmul are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KDivision {
    /// Into so many parts.
    SplitK(usize),
    /// Those of the last blocks, evenly.
    StreamK(StreamK),
}

/// What a convolution is computed by.
pub(crate) struct Choice {
    plan: Plan,
    blocks: CoopTile,
    division: KDivision,
}

/// The choice for a convolution; `None` where other kernels serve it.
pub(crate) fn choose(problem: &Problem<'_>, taps: &Taps, caps: &DeviceCaps) -> Option<Choice> {
    let elem = math::elem(problem.dtype());
    let halves = matches!(problem.dtype(), DType::F16 | DType::BF16);
    let form = MatrixForm::of(elem, &caps.target)?;
    let sizes = [problem.m, problem.n, problem.k];
    let worth = || sizes.iter().zip(LEAST).all(|(size, least)| *size >= least);
    if !halves || problem.batches() != 1 || !worth() {
        return None;
    }
    let plan = Plan::new(taps)?;
    let (columns, k_size) = (problem.columns(), plan.k_size());
    let shape = Shape { m: problem.rows(), n: columns.into(), k: k_size.into(), batches: Dim::ONE };
    if plan.elements(taps.images) > u32::MAX / 2 {
        return None;
    }
    let all = match form {
        MatrixForm::CARD => [LARGE, MEDIUM, SMALL, PLAIN],
        // Larger blocks would not stay in the registers of subgroups with few matrices, nor their panels in memory.
        _ => [MEDIUM, PLAIN, PLAIN, PLAIN].map(|b| CoopTile { k_step: 32, form, ..b }),
    };
    let all = all.map(|b| if deals_once(caps) { b } else { by_panels(b) });
    let apt = |blocks: &CoopTile| {
        let count = blocks.count(&shape);
        match blocks.m {
            128 => {
                3 * blocks.m as usize <= 4 * problem.rows()
                    && 2 * count >= busy(caps)
                    && large_pays(&shape, caps)
            }
            64 => 2 * count >= busy(caps),
            _ => true,
        }
    };
    let blocks = all.into_iter().filter(|b| fits(*b, elem, caps)).find(apt)?;
    let count = number(blocks.count(&shape));
    let stream_k = StreamK::new(count, k_size.div_ceil(blocks.k_step as usize), caps);
    let division = match stream_k.filter(|_| blocks.m == LARGE.m) {
        Some(stream_k) => KDivision::StreamK(stream_k),
        None => {
            let wanted = busy(caps) as usize / 2 / count.max(1);
            KDivision::SplitK(even_splits(shape.k, wanted.min(k_size / 512).clamp(1, 16), blocks.k_step))
        }
    };
    Some(Choice { plan, blocks, division })
}

/// Whether large blocks take less time than medium ones, of which a device holds twice as many at a time. A step of
/// either is as much work for the device; the large ones' take less time.
fn large_pays(shape: &Shape, caps: &DeviceCaps) -> bool {
    let round = busy(caps) as usize;
    let of = |blocks: CoopTile| (number(blocks.count(shape)), number(shape.k.div_ceil(blocks.k_step)));
    let ((count, steps), (medium_count, medium_steps)) = (of(LARGE), of(MEDIUM));
    let whole = waves(count, steps, round);
    let large = StreamK::new(count, steps, caps).map_or(whole, |stream_k| stream_k.time(caps));
    100 * large < 115 * waves(medium_count, medium_steps, 2 * round)
}

/// The same blocks with filters through workgroup memory.
fn by_panels(blocks: CoopTile) -> CoopTile {
    CoopTile { ways: (OperandPath::Staged, OperandPath::Staged), ..blocks }
}

/// Whether a device has room for such blocks.
fn fits(blocks: CoopTile, elem: Elem, caps: &DeviceCaps) -> bool {
    let panel = |extent| PanelLayout::new(Axis::K, extent, blocks.k_step).len();
    let a = if blocks.ways.0 == OperandPath::Staged { panel(blocks.m) } else { 0 };
    let b = panel(blocks.n);
    let room = blocks.form.shared_bytes(elem, [a, b], blocks.subgroups());
    blocks.group() <= caps.target.max_invocations && room <= caps.target.shared_bytes
}

/// Lowers a convolution as chosen; `extras` are its further operands as they broadcast to the target.
pub(crate) fn lower(
    problem: &Problem<'_>,
    taps: &Taps,
    choice: &Choice,
    extras: &[Operand],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let Choice { plan, blocks, division } = choice;
    let filters = Filters::new(problem, plan, blocks.ways.0, site)?;
    let image = site.scratch(2 * plan.elements(taps.images));
    spread(problem, taps, plan, image, site)?;
    let slots = plan.slots(taps);
    let table = slots.store(site)?;
    let product = CoopGemm { problem, plan, blocks: *blocks, filters, image, slots, table };
    match division {
        KDivision::StreamK(stream_k) => product.emit_stream_k(*stream_k, site),
        KDivision::SplitK(1) => product.emit(1, &Destination::Target, site),
        KDivision::SplitK(count) => {
            let size = problem.target.ty.shape.sizes().numel() * 4;
            let parts = site.scratch(size * *count);
            product.emit(*count, &Destination::Partials(parts), site)?;
            split_k::emit(problem, parts, *count, extras, site)
        }
    }
}
