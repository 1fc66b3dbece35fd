//! How a GEMV divides its work.

use std::fmt;

use olivine_kernel::{Elem, Target};
use olivine_program::DeviceCaps;

use crate::math;
use crate::matmul::problem::Problem;
use crate::packed::digits;
use crate::packed::weight::{SMALL_TABLE, Weight};

/// How the work is divided. `rows`, `run`, `runs`, `width` and `unroll` are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GemvCut {
    /// Rows of x in registers; more take several workgroups.
    pub(crate) rows: u32,
    /// Elements that an invocation decodes together.
    pub(crate) run: u32,
    /// Runs of an invocation, each from another stretch of K.
    pub(crate) runs: u32,
    /// Invocations of a cluster.
    pub(crate) width: u32,
    /// Clusters that divide K among them.
    pub(crate) clusters: u32,
    /// How many times as many clusters a workgroup has, for as many rows of the weight at once.
    pub(crate) lines: u32,
    /// Rows of the weight whose loads are in flight together.
    pub(crate) unroll: u32,
    /// Rows of the weight of a workgroup, a multiple of `lines · unroll`.
    pub(crate) span: u32,
    /// Digits of x, which is made integers then; 0 if it stays floats.
    pub(crate) digits: u32,
}

impl GemvCut {
    /// Indices along K that a cluster has at once.
    pub(crate) fn chunk(self) -> u32 {
        self.width * self.run * self.runs
    }

    /// Whether each workgroup makes the digits of x itself, in its memory: that costs less than a dispatch and a barrier. Tables of the
    /// weight and sums have room beside them.
    pub(crate) fn makes_digits(self, weight: &Weight, k: usize, target: &Target) -> bool {
        let words = k.next_multiple_of(self.chunk() as usize) / 4 * self.digits as usize;
        let bytes = 4 * self.rows as usize * (words + k.div_ceil(self.run as usize));
        let table = 4 * weight.table_words() as usize;
        self.digits > 0 && bytes + table <= target.shared_bytes as usize / 3 * 2
    }

    /// The same with workgroups of so many invocations, if clusters fill them.
    pub(crate) fn in_groups_of(self, group: u32) -> Self {
        let cluster = self.width * self.clusters;
        if self.group() == group || !group.is_multiple_of(cluster) {
            return self;
        }
        let lines = group / cluster;
        GemvCut { lines, span: self.span.next_multiple_of(lines * self.unroll), ..self }
    }

    /// The same for as many columns in pairs, one of each of two weights.
    pub(crate) fn of_pairs(self) -> Self {
        let unroll = (self.unroll / 2).max(1);
        let span = self.span.div_ceil(2).next_multiple_of(self.lines * unroll);
        GemvCut { unroll, span, ..self }
    }

    /// Whether rows of the weight are loaded before they are needed, the next ones while some are multiplied: where registers have room
    /// for both.
    pub(crate) fn loads_ahead(self, weight: &Weight) -> bool {
        self.rows == 1 && self.group() * self.registers(weight, 2 * self.unroll) <= REGISTERS_OF_PROCESSOR
    }

    /// About how many registers an invocation needs that has the loads of so many rows.
    fn registers(self, weight: &Weight, unroll: u32) -> u32 {
        let x = self.rows * self.run * self.runs * if self.digits == 0 { 4 } else { self.digits } / 4;
        x + unroll * self.runs * weight.run_words(self.run) + OTHER_REGISTERS
    }

    /// Invocations of a workgroup.
    pub(crate) fn group(self) -> u32 {
        self.width * self.clusters * self.lines
    }
}

impl fmt::Display for GemvCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GemvCut { rows, run, runs, width, clusters, lines, unroll, span, digits } = self;
        write!(f, "r{rows} {run}x{runs} w{width}x{clusters}x{lines} u{unroll}/{span} d{digits}")
    }
}

/// Words of x that an invocation has in registers, of all rows.
const REGISTERS: u32 = 64;

/// How many digits x is made of, if the device multiplies integers and the weight has them; 0 otherwise.
/// `fast` says that as many bits as f16 has are enough.
pub(crate) fn digits(problem: &Problem<'_>, weight: &Weight, fast: bool, caps: &DeviceCaps) -> u32 {
    let elem = math::elem(problem.dtype());
    let known = matches!(elem, Elem::F16 | Elem::BF16 | Elem::F32) && caps.target.packed_dot;
    match known && weight.integer_run().is_some() {
        true if fast => digits::count(Elem::F16),
        true => digits::count(elem),
        false => 0,
    }
}

/// The default for a matmul of `m` by `n` by `k`, `batches` times.
pub(crate) fn choose(
    weight: &Weight,
    digits: u32,
    (m, n, k): (usize, usize, usize),
    batches: usize,
    caps: &DeviceCaps,
) -> GemvCut {
    let short = caps.wants_short_kernels();
    let rows = (m.next_power_of_two() as u32).min(4);
    let longest = if digits > 0 { weight.integer_run().unwrap_or(8) } else { weight.preferred_run() };
    // What x takes in registers leaves room for the loads of several rows.
    let most = elements(digits, if digits > 0 { REGISTERS } else { 2 * REGISTERS }) / rows;
    let is_run = |run: &u32| *run <= longest.min(most) && weight.has_run(*run);
    let run = if short { None } else { [64, 32, 16].into_iter().find(is_run) };
    let run = run.unwrap_or(weight.shortest_run());
    // Copies of a small table fill the workgroup's memory: so many invocations share them, with longer parts of x.
    let copied = digits > 0 && weight.table_words() == SMALL_TABLE;
    let held = if copied { 64 } else { 32 }.min(if digits > 0 { most } else { most / 2 });
    let runs = if short { 1 } else { (held / run).max(1) };
    let width = caps.target.subgroup.unwrap_or(16).clamp(4, 32);
    let unroll = match weight.run_words(run) {
        _ if short => 1,
        // One group of rows is loaded while another is multiplied.
        12.. if digits > 0 && rows == 1 => 2,
        // What is loaded takes so many registers that few invocations would fit.
        12.. if digits > 0 => 1,
        _ if copied => 2,
        _ => 4,
    };
    let lines = if copied && !short { 4 } else { 1 };
    let cut = GemvCut { rows, run, runs, width, clusters: 16, lines, unroll, span: 0, digits };
    fit(weight, cut, (m, n, k), batches, caps)
}

/// Elements of x in so many words: floats, or digits four to a word.
fn elements(digits: u32, words: u32) -> u32 {
    if digits == 2 { 2 * words } else { words }
}

/// Registers of an invocation that x and loads may take, and what it has beside them.
const MOST_REGISTERS: u32 = 200;
const OTHER_REGISTERS: u32 = 40;
/// Registers of a processor, and an eighth more, since the counts are rough.
const REGISTERS_OF_PROCESSOR: u32 = (1 << 16) + (1 << 13);
/// Invocations that keep a processor busy, of kernels that read digits and of those that make x ready in registers.
const BUSY: u32 = 768;
const BUSY_WITH_X: u32 = 224;
/// Invocations of a workgroup that makes digits: as many rows of the weight as it can share them.
const MAKES_DIGITS: u32 = 512;
/// Invocations of the largest workgroup, each with at least 72 registers.
const MOST_INVOCATIONS: u32 = 896;

/// The same cut with as many clusters as K needs, and rows that keep the device busy.
fn fit(
    weight: &Weight,
    cut: GemvCut,
    (m, n, k): (usize, usize, usize),
    batches: usize,
    caps: &DeviceCaps,
) -> GemvCut {
    let short = caps.wants_short_kernels();
    let mut cut = cut;
    // No more runs than K has.
    while cut.runs > 1 && k <= (cut.chunk() / 2) as usize {
        cut.runs /= 2;
    }
    // Kernels with many rows of x have less in flight.
    while cut.unroll > 1 && cut.registers(weight, cut.unroll) > MOST_REGISTERS {
        cut.unroll /= 2;
    }
    let invocations = if short { 64 } else { 512 }.min(caps.target.max_invocations);
    let most = (invocations / cut.width).min(cut.clusters).max(1);
    let chunks = k.div_ceil(cut.chunk() as usize).max(1) as u32;
    let rounds = chunks.div_ceil(most);
    cut.clusters = chunks.div_ceil(rounds);
    let lines = |most: u32| (most.min(caps.target.max_invocations) / (cut.width * cut.clusters)).max(1);
    let makes_digits = cut.makes_digits(weight, k, &caps.target);
    if makes_digits && !short && cut.lines == 1 {
        cut.lines = lines(MAKES_DIGITS.max(cut.width * cut.clusters));
    }
    cut.lines = cut.lines.min(lines(MOST_INVOCATIONS));
    // Few workgroups to each of the device's processors: x is loaded anew by every one.
    let passes = m.div_ceil(cut.rows as usize) * batches;
    let busy = if cut.digits == 0 { BUSY_WITH_X } else { BUSY };
    let each = if makes_digits { 1 } else { busy.div_ceil(cut.group()) };
    let wanted = (caps.processor_count() * each) as usize;
    let rows = n.div_ceil(wanted.div_ceil(passes.max(1)).max(1)) as u32;
    // Sums of all rows are in workgroup memory.
    let room = (caps.target.shared_bytes / 8 / 4 / (cut.rows * cut.clusters)).max(1);
    let rows = rows.min(room);
    cut.lines = cut.lines.min(rows);
    while cut.unroll > 1 && cut.lines * cut.unroll > rows {
        cut.unroll /= 2;
    }
    cut.span = rows.next_multiple_of(cut.lines * cut.unroll);
    cut
}

/// Cuts worth a measurement.
pub(crate) fn candidates(
    weight: &Weight,
    default: GemvCut,
    sizes: (usize, usize, usize),
    batches: usize,
    caps: &DeviceCaps,
) -> Vec<GemvCut> {
    let mut all = vec![default];
    let longest = if default.digits > 0 { weight.integer_run().unwrap_or(8) } else { weight.longest_run() };
    let is_run = |run: &u32| (weight.shortest_run()..=longest).contains(run) && weight.has_run(*run);
    for run in [8, 16, 32, 64].into_iter().filter(is_run) {
        for held in [16, 32, 64] {
            let most = 2 * elements(default.digits, REGISTERS);
            if held < run || held * default.rows > most || held > 4 * run {
                continue;
            }
            let ways = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 2), (4, 4)];
            let wide = [(1, 8), (2, 8), (4, 8), (1, 12), (2, 12), (1, 14), (2, 14)];
            let wide = wide.into_iter().filter(|_| default.digits > 0 && default.rows == 1);
            for (unroll, lines) in ways.into_iter().chain(wide) {
                let cut = GemvCut { run, runs: held / run, clusters: 16, lines, unroll, ..default };
                let cut = fit(weight, cut, sizes, batches, caps);
                let step = cut.lines * cut.unroll;
                let spans =
                    [cut.span, cut.span.div_ceil(2), cut.span.div_ceil(4), 2 * cut.span, 4 * cut.span];
                for span in spans.map(|span| span.next_multiple_of(step)) {
                    let cut = GemvCut { span, ..cut };
                    let sums = 4 * span * cut.rows * cut.clusters;
                    if !all.contains(&cut) && sums <= caps.target.shared_bytes / 4 {
                        all.push(cut);
                    }
                }
            }
        }
    }
    all
}
