//! How a dispatch hands its arguments to a kernel on pointer targets: one block of bytes, in push constants where it
//! fits and in memory where it does not.

use crate::ir::Kernel;

/// Words of the report that checked kernels write: see [`Report`].
pub const REPORT_WORDS: usize = 8;

/// The offset of each argument in the block.
///
/// ```text
///   address of every buffer: u64 ─ [checked: address of the report: u64 ─ elements of every buffer: u32 ─ dispatch: u32] ─ params: u32
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArgLayout {
    args: usize,
    params: usize,
    checked: bool,
    /// Whether the block itself is in the push constants; otherwise these hold its address (u64).
    pub in_push: bool,
}

impl ArgLayout {
    /// The layout of a kernel on a device with this many bytes of push constants.
    pub fn new(kernel: &Kernel, push_bytes: u32, checked: bool) -> Self {
        let mut layout =
            ArgLayout { args: kernel.args.len(), params: kernel.params.len(), checked, in_push: true };
        layout.in_push = layout.bytes() <= push_bytes;
        layout
    }

    /// Bytes of the block, a multiple of 8.
    pub fn bytes(&self) -> u32 {
        (self.param_offset(self.params) as usize).next_multiple_of(8) as u32
    }

    /// Bytes of push constants that the kernel reads.
    pub fn push_bytes(&self) -> u32 {
        if self.in_push { self.bytes() } else { 8 }
    }

    /// Where buffer `i`'s address is.
    pub fn address_offset(&self, i: usize) -> u32 {
        8 * i as u32
    }

    /// Where the report's address is, in checked kernels.
    pub fn report_offset(&self) -> u32 {
        8 * self.args as u32
    }

    /// Where buffer `i`'s number of elements is, in checked kernels.
    pub fn length_offset(&self, i: usize) -> u32 {
        8 * (self.args as u32 + 1) + 4 * i as u32
    }

    /// Where the number of the dispatch is, in checked kernels.
    pub fn dispatch_offset(&self) -> u32 {
        self.length_offset(self.args)
    }

    /// Where param `i` is.
    pub fn param_offset(&self, i: usize) -> u32 {
        let base = if self.checked { self.dispatch_offset() + 4 } else { 8 * self.args as u32 };
        base + 4 * i as u32
    }

    /// Adds the block of one dispatch to others.
    pub fn append(&self, addresses: &[u64], params: &[u32], check: Option<&Check<'_>>, blocks: &mut Vec<u8>) {
        let start = blocks.len();
        blocks.resize(start + self.bytes() as usize, 0);
        let block = blocks.get_mut(start..).unwrap_or_default();
        let mut put = |offset: u32, bytes: &[u8]| {
            let offset = offset as usize;
            if let Some(to) = block.get_mut(offset..offset + bytes.len()) {
                to.copy_from_slice(bytes);
            }
        };
        for (i, address) in addresses.iter().enumerate() {
            put(self.address_offset(i), &address.to_le_bytes());
        }
        if let (true, Some(check)) = (self.checked, check) {
            put(self.report_offset(), &check.report.to_le_bytes());
            for (i, length) in check.lengths.iter().enumerate() {
                put(self.length_offset(i), &length.to_le_bytes());
            }
            put(self.dispatch_offset(), &check.dispatch.to_le_bytes());
        }
        for (i, param) in params.iter().enumerate() {
            put(self.param_offset(i), &param.to_le_bytes());
        }
    }
}

/// What checked kernels get beside their arguments.
#[derive(Clone, Debug)]
pub struct Check<'a> {
    /// Address of the report.
    pub report: u64,
    /// Elements of every buffer, at most `u32::MAX`.
    pub lengths: &'a [u32],
    /// Number of the dispatch, for the report.
    pub dispatch: u32,
}

/// The first violation that a run of checked kernels met; zeros when there was none. As words in memory:
/// taken (0 or 1), dispatch, what, index, 0, value low, value high, size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of the dispatch.
    pub dispatch: u32,
    /// What went wrong.
    pub what: Violation,
}

/// What a checked kernel found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An access past the end of a buffer.
    OutOfBounds {
        /// Which argument of the kernel.
        arg: u32,
        /// The index.
        index: u32,
        /// Elements of the buffer.
        size: u32,
    },
    /// An index of the user's data out of range, reported by the kernel itself ([`Stmt::Report`](crate::Stmt)).
    BadIndex {
        /// Position of the index in its operand.
        position: u32,
        /// The index.
        value: i64,
        /// What it must stay below.
        size: u32,
    },
}

impl Report {
    /// `what` of a report that the kernel made itself.
    pub const BAD_INDEX: u32 = u32::MAX;

    /// Reads the words; `None` when nothing was reported.
    pub fn read(words: &[u32; REPORT_WORDS]) -> Option<Report> {
        let [taken, dispatch, what, index, _, low, high, size] = *words;
        if taken == 0 {
            return None;
        }
        let what = if what == Report::BAD_INDEX {
            let value = ((u64::from(high) << 32) | u64::from(low)) as i64;
            Violation::BadIndex { position: index, value, size }
        } else {
            Violation::OutOfBounds { arg: what, index, size }
        };
        Some(Report { dispatch, what })
    }
}
