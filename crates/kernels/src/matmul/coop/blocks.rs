//! The blocks of matmuls by cooperative matrices: their measures, which ones fit a shape, and which it gets.

use std::fmt;

use olivine_ir::{DType, Dim};
use olivine_kernel::MatrixSupport;
use olivine_program::DeviceCaps;

use crate::launch::number;
use crate::math;
use crate::matmul::candidates::even_splits;
use crate::matmul::choice::{SMALL_M, Shape, busy, quotient};
use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::packed::{PANEL, PackedShape, whole};
use crate::matmul::coop::staging::PanelLayout;
use crate::matmul::coop::store::{f16_slots, stages_as_f16};
use crate::matmul::problem::{Axis, Problem};

/// How an operand comes to the subgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OperandPath {
    /// Through workgroup memory.
    Staged,
    /// Straight from a packed form, made at load for weights and in every run for anything else.
    Packed,
}

/// A workgroup's part of the matmul, a subgroup's part of that, and how the operands come to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CoopTile {
    pub(crate) m: u32,
    pub(crate) n: u32,
    /// Rows of a subgroup.
    pub(crate) rows: u32,
    /// Columns of a subgroup.
    pub(crate) columns: u32,
    /// Subgroups that share a part, each with its own piece of every K step (sliced-K).
    pub(crate) slices: u32,
    /// Size of a step along K.
    pub(crate) k_step: u32,
    /// Whether the last matrices of a step are multiplied while the next step's are loaded.
    pub(crate) carry: bool,
    /// Swizzle: tile rows that are walked together, column by column, so that both operands stay in the cache.
    pub(crate) band: u32,
    /// How A and B come to the subgroups.
    pub(crate) ways: (OperandPath, OperandPath),
    /// How many matrices along K are loaded ahead, for packed operands.
    pub(crate) ahead: u32,
    /// The matrices that are multiplied.
    pub(crate) form: MatrixForm,
}

/// For large matmuls.
const LARGE: CoopTile = CoopTile {
    m: 128,
    n: 128,
    rows: 64,
    columns: 64,
    slices: 1,
    k_step: 32,
    carry: false,
    band: 8,
    ways: (OperandPath::Staged, OperandPath::Staged),
    ahead: 1,
    form: MatrixForm::CARD,
};
const LARGE_STORED: CoopTile = CoopTile { ways: STORED, ..LARGE };
/// As fast, and twice as many: the last of them keep a device busier.
const BROAD_STORED: CoopTile = CoopTile { m: 64, rows: 32, ways: STORED, ..LARGE };
/// Without workgroup memory and barriers.
const LARGE_PACKED: CoopTile =
    CoopTile { ways: (OperandPath::Packed, OperandPath::Packed), band: 16, ..LARGE };
/// For about a thousand rows and columns: few enough blocks that each begins at once.
const TALL: CoopTile = CoopTile { n: 64, slices: 2, k_step: 64, ..LARGE };
const MEDIUM: CoopTile = CoopTile { m: 64, n: 64, rows: 32, columns: 32, k_step: 64, ..LARGE };
const MEDIUM_STORED: CoopTile = CoopTile { ways: STORED, ..MEDIUM };
/// For small matmuls: little is summed by each subgroup, in long steps.
const WIDE: CoopTile = CoopTile { m: 32, slices: 4, k_step: 128, ..MEDIUM };
const FLAT: CoopTile = CoopTile { m: 16, n: 64, rows: 16, columns: 64, slices: 8, k_step: 128, ..LARGE };
const SMALL: CoopTile = CoopTile { n: 32, ..WIDE };
/// The weights of a whole step in flight: they come from far.
const FLAT_STORED: CoopTile = CoopTile { columns: 32, slices: 2, ways: STORED, ahead: 4, ..FLAT };
/// For so few blocks that each has the workgroup memory of two.
const DEEP_STORED: CoopTile = CoopTile { k_step: 256, ways: STORED, ahead: 4, ..SMALL };
/// What the least capable device with matrices has room for.
const PLAIN: CoopTile = CoopTile { m: 32, n: 32, rows: 16, columns: 16, ..LARGE };

/// For matrices of other forms: what stays in the registers of a subgroup with few lanes or small matrices.
const OF_OTHERS: [CoopTile; 3] =
    [CoopTile { k_step: 32, ..MEDIUM }, CoopTile { m: 32, n: 64, rows: 16, columns: 32, ..LARGE }, PLAIN];

/// Weights are packed, activations are not.
const STORED: (OperandPath, OperandPath) = (OperandPath::Staged, OperandPath::Packed);

/// Blocks worth a measurement.
const ALL: [CoopTile; 15] = [
    LARGE,
    LARGE_STORED,
    BROAD_STORED,
    LARGE_PACKED,
    CoopTile { m: 64, ..LARGE_PACKED },
    TALL,
    MEDIUM,
    MEDIUM_STORED,
    CoopTile { m: 128, carry: true, ..MEDIUM },
    WIDE,
    FLAT,
    SMALL,
    FLAT_STORED,
    DEEP_STORED,
    PLAIN,
];

impl CoopTile {
    /// Invocations.
    pub(crate) fn group(self) -> u32 {
        self.subgroups() * self.form.lanes
    }

    pub(crate) fn subgroups(self) -> u32 {
        self.m / self.rows * (self.n / self.columns) * self.slices
    }

    /// Whether a matmul's operands can come to such blocks, and whether the device has room for them.
    pub(crate) fn fits(self, problem: &Problem<'_>, caps: &DeviceCaps) -> bool {
        let sides = [
            (self.ways.0, &problem.a, problem.m, self.m, self.rows, 0),
            (self.ways.1, &problem.b, problem.n, self.n, self.columns, 1),
        ];
        let mut panels = [0; 2];
        for (way, operand, extent, block, part, number) in sides {
            let jumps = &problem.batch.strides[number];
            let comes = match way {
                OperandPath::Staged => {
                    let panel = PanelLayout::new(operand.along(extent, problem.k), block, self.k_step);
                    panels[number] = panel.len();
                    true
                }
                OperandPath::Packed => {
                    deals_once(caps)
                        && (number == 0 || problem.packed.is_none() || is_decoded_first(problem, caps))
                        && jumps.iter().all(|jump| *jump == 0)
                        && PANEL.is_multiple_of(part)
                        && whole(problem.k).is_multiple_of(self.k_step)
                }
            };
            if !comes {
                return false;
            }
        }
        let (subgroups, slots) = (self.subgroups(), panels[0] + panels[1]);
        let halves = self.slices == 1 && stages_as_f16(problem.dtype(), slots, subgroups, &caps.target);
        let room = self.form.shared_bytes(math::elem(problem.dtype()), panels, subgroups);
        let room = if halves { room.max(16 * slots + 8 * f16_slots(subgroups)) } else { room };
        self.group() <= caps.target.max_invocations && room <= caps.target.shared_bytes
    }

    /// Workgroups for all of a matmul's rows and columns.
    pub(crate) fn count(self, shape: &Shape) -> Dim {
        shape.n.div_ceil(self.n) * shape.batches * shape.m.div_ceil(self.m as usize)
    }
}

/// `128x256/64x64x1/32c/8/sp1`: the block; a subgroup's part and how many share it; the K step, `c` if it is pipelined;
/// the band; how A and B come, and how far ahead.
impl fmt::Display for CoopTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CoopTile { m, n, rows, columns, slices, k_step, band, ahead, .. } = self;
        let carry = if self.carry { "c" } else { "" };
        let way = |way| match way {
            OperandPath::Staged => 's',
            OperandPath::Packed => 'p',
        };
        write!(f, "{m}x{n}/{rows}x{columns}x{slices}/{k_step}{carry}/{band}/")?;
        write!(f, "{}{}{ahead}", way(self.ways.0), way(self.ways.1))
    }
}

/// Whether each element of a device's matrix is in exactly one lane, so that a lane's words are as many as packed
/// operands have; Vulkan leaves it open, and lanes of some devices hold the same elements.
pub(crate) fn deals_once(caps: &DeviceCaps) -> bool {
    caps.driver.starts_with("NVIDIA") && caps.target.matrix_support == MatrixSupport::Full
}

/// The matrices that compute a matmul on a device; `None` where other kernels do.
fn form(problem: &Problem<'_>, shape: &Shape, caps: &DeviceCaps) -> Option<MatrixForm> {
    let form = MatrixForm::of(math::elem(problem.dtype()), &caps.target)?;
    // Packed weights are decoded to 16 bits.
    let decodes = problem.dtype() != DType::F32 || problem.packed.is_none();
    let apt = decodes && problem.experts.is_none();
    let whole = apt && !shape.is_small(SMALL_M) && shape.k != 0 && shape.batches != 0;
    whole.then_some(form)
}

/// The blocks for a matmul, and into how many parts K goes; `None` where other kernels serve it. `left`
/// says that whoever reads the matmul sums the parts.
pub(crate) fn choose(
    problem: &Problem<'_>,
    shape: &Shape,
    caps: &DeviceCaps,
    left: bool,
) -> Option<(CoopTile, usize)> {
    let form = form(problem, shape, caps)?;
    let fit = |blocks: CoopTile| {
        let blocks = CoopTile { form, ..blocks };
        blocks.fits(problem, caps).then_some(blocks)
    };
    // Parts that cost no dispatch: as many as make the device busy.
    let flat = (left && form == MatrixForm::CARD).then_some(FLAT_STORED);
    let flat = flat.filter(|_| problem.b.operand.stored).and_then(fit);
    if let Some(blocks) = flat {
        let splits = parts(shape, busy(caps) * 3 / 2, blocks, 256);
        if splits > 1 {
            return Some((blocks, even_splits(shape.k, splits, blocks.k_step)));
        }
    }
    let blocks = preferences(problem, shape, form, caps).into_iter().find_map(fit)?;
    // The sum of partials is a dispatch more.
    let splits = parts(shape, busy(caps) / 2, blocks, 1024).clamp(1, 32);
    Some((blocks, even_splits(shape.k, splits, blocks.k_step)))
}

/// Parts of K, each at least `least` long, such that there are so many workgroups.
#[track_caller]
fn parts(shape: &Shape, wanted: u64, blocks: CoopTile, least: usize) -> usize {
    number(quotient(wanted, blocks.count(shape)).min(shape.k.div_floor(least)))
}

/// All blocks and parts that a matmul may be computed by.
pub(crate) fn candidates(problem: &Problem<'_>, shape: &Shape, caps: &DeviceCaps) -> Vec<(CoopTile, usize)> {
    let Some(form) = form(problem, shape, caps) else { return Vec::new() };
    let listed = if form == MatrixForm::CARD { &ALL[..] } else { &OF_OTHERS[..] };
    let mut all = Vec::new();
    for blocks in listed.iter().map(|b| CoopTile { form, ..*b }).filter(|b| b.fits(problem, caps)) {
        for wanted in [1, 2, 4, 8] {
            let groups = blocks.count(shape) * wanted;
            if wanted == 1 || (groups <= 4 * busy(caps) && shape.k.div_floor(wanted) >= 256) {
                all.push((blocks, even_splits(shape.k, wanted, blocks.k_step)));
            }
        }
    }
    all
}

/// Rows from which on a packed weight is decoded once, for all of them.
const DECODED_ROWS: usize = 256;
/// Bytes that a decoded weight may take.
const DECODED_BYTES: u64 = 512 << 20;

/// Whether a packed weight may be decoded before the matmul, to where its matrices are loaded from.
fn is_decoded_first(problem: &Problem<'_>, caps: &DeviceCaps) -> bool {
    problem.packed.is_some()
        && problem.experts.is_none()
        && problem.m >= DECODED_ROWS
        && PackedShape::new(problem.n, problem.k).bytes() <= DECODED_BYTES.min(caps.max_buffer_bytes)
}

/// Blocks for a matmul, the best first; the last fit any matmul and device.
fn preferences(problem: &Problem<'_>, shape: &Shape, form: MatrixForm, caps: &DeviceCaps) -> Vec<CoopTile> {
    let stored = problem.b.operand.stored || is_decoded_first(problem, caps);
    let turned = problem.b.along(problem.n, problem.k) == Axis::K;
    // Enough of them for the device, and none mostly empty.
    let apt = |blocks: &CoopTile, times: u64| {
        let full = |size: Dim, block: u32| size * 2 > block;
        full(shape.m.into(), blocks.m) && full(shape.n, blocks.n) && blocks.count(shape) * times >= busy(caps)
    };
    let mut all = Vec::new();
    if form != MatrixForm::CARD {
        all.extend(OF_OTHERS.into_iter().filter(|b| apt(b, 2)));
        all.push(PLAIN);
        return all;
    }
    if apt(&LARGE, 2) {
        // Packing in a run costs a dispatch, and as much time as some hundred rows or columns of the matmul.
        let long = shape.n * shape.k * shape.m > 15_000_000_000u64;
        let a_pays = long && shape.n >= 4096;
        let b_pays = stored || (long && shape.m >= if turned { 2048 } else { 4096 });
        all.extend((a_pays && b_pays).then_some(LARGE_PACKED));
        // Twice as many where the last round of large ones would leave much of the device idle.
        let (count, round) = (LARGE.count(shape), busy(caps));
        let idle = 10 * count < count.div_ceil(round) * (9 * round);
        all.extend((stored && idle).then_some(BROAD_STORED));
        all.extend(b_pays.then_some(LARGE_STORED));
        all.push(LARGE);
    }
    if stored {
        all.extend(apt(&MEDIUM, 2).then_some(MEDIUM_STORED));
        all.extend((2 * DEEP_STORED.count(shape) <= busy(caps)).then_some(DEEP_STORED));
        all.push(FLAT_STORED);
    }
    all.extend(apt(&TALL, 4).then_some(TALL));
    all.extend([MEDIUM, WIDE, FLAT].into_iter().filter(|b| apt(b, 3)));
    all.extend([SMALL, PLAIN]);
    all
}
