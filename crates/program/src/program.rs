//! A lowered graph: kernels, dispatches and buffers. It knows no driver.

use std::ops::Range;
use std::sync::Arc;

use olivine_ir::size::SharedSlice;
use olivine_ir::{DType, Fusion, Tensor, TensorType};
use olivine_kernel::Kernel;

use crate::hazard::{Hazards, Touched};
use crate::sizing::Sizing;
use crate::tuning::Decision;

/// Buffers stand this far apart in the one space of addresses that hazards are looked for in.
const BUFFER_SPACE: u64 = 1 << 44;

/// A buffer of [`Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A kernel of [`Program::kernels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u32);

/// What a buffer holds.
#[derive(Clone, Debug)]
pub enum Content {
    /// Intermediate results of one run.
    Arena,
    /// The i-th input.
    Input(usize),
    /// The i-th output.
    Output(usize),
    /// A constant of the graph.
    Constant(Tensor),
    /// Numbers that follow from the sizes of a run; each run's memory has its own.
    Table(Tensor),
    /// A param by name.
    Param(Arc<str>, TensorType),
    /// What load-time dispatches make. Executables of one model share it by `key`, where there is one.
    Packed {
        /// The computation, spelled out down to params.
        key: Option<Arc<str>>,
    },
    /// Intermediate results of load-time dispatches, and what else they need; goes when they are done.
    LoadScratch,
    /// Numbers of workgroups that dispatches of a run read from memory.
    Gates,
    /// The same for load-time dispatches; may go when they are done.
    LoadGates,
}

/// A buffer of a program.
#[derive(Clone, Debug)]
pub struct BufferDecl {
    /// What it holds.
    pub content: Content,
    /// Bytes, a multiple of the device's alignment; at least that, so that every buffer can be bound.
    pub bytes: u64,
}

/// A range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Slice {
    /// First byte to one past the last.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The kernel.
    pub kernel: KernelId,
    /// Its buffers, in the order of [`Kernel::args`]; what it does with each stands there.
    pub args: SharedSlice<Slice>,
    /// Its run-time numbers, in the order of [`Kernel::params`].
    pub params: SharedSlice<u32>,
    /// Workgroups; none is zero, and none is above the device's limit.
    pub groups: [u32; 3],
    /// Where the number of workgroups is at run time, three words: `groups`, or zeros where a branch is not taken.
    /// `None` where it is always `groups`.
    pub indirect: Option<Slice>,
    /// The operation it belongs to.
    pub op: &'static str,
    /// The node it belongs to; several that one dispatch serves are joined by ` + `.
    pub node: Arc<str>,
    /// The type of the node's first operand. The kernel's own buffers do not say: packed operands are words there.
    pub dtype: DType,
    /// Whether its workgroups normally return at once: it repeats what another dispatch of the node computed, where flags say
    /// that numbers did not suit that one's kernel.
    pub fallback: bool,
    /// Floating-point operations, for profiles.
    pub flops: u64,
    /// Bytes that it must read and write at least, for profiles.
    pub bytes: u64,
}

impl Default for Dispatch {
    /// One workgroup of the first kernel, without buffers.
    fn default() -> Self {
        Dispatch {
            kernel: KernelId(0),
            args: Vec::new().into(),
            params: Vec::new().into(),
            groups: [1; 3],
            indirect: None,
            op: "",
            node: "".into(),
            dtype: DType::F32,
            fallback: false,
            flops: 0,
            bytes: 0,
        }
    }
}

/// An input or output.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Where it lives on the device.
    pub buffer: BufferId,
}

/// A lowered graph.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Kernels, each once.
    pub kernels: Vec<Arc<Kernel>>,
    /// Buffers.
    pub buffers: Vec<BufferDecl>,
    /// Inputs in declaration order.
    pub inputs: Vec<Port>,
    /// Outputs in declaration order.
    pub outputs: Vec<Port>,
    /// What runs once, when params are on the device.
    pub load: Vec<Dispatch>,
    /// For every load-time dispatch a number that it shares with those it exchanges intermediate results with.
    pub load_groups: Vec<u32>,
    /// What every run does.
    pub run: Vec<Dispatch>,
    /// What kernel families chose where they had a choice, node by node.
    pub decisions: Vec<Decision>,
    /// What lowering joined, beside what the graph's passes had fused before.
    pub fusions: Vec<Fusion>,
    /// The numbers as expressions, where the graph has open sizes.
    pub sizing: Option<Arc<Sizing>>,
}

impl Program {
    /// A kernel of a dispatch.
    pub fn kernel(&self, dispatch: &Dispatch) -> &Arc<Kernel> {
        &self.kernels[dispatch.kernel.0 as usize]
    }

    /// For every dispatch of a list whether it must wait for those before it: it reads or writes what one of them since
    /// the last barrier wrote, or writes what one read.
    pub fn waits(&self, dispatches: &[Dispatch]) -> Vec<bool> {
        let mut hazards = Hazards::default();
        let place = |s: &Slice| {
            let base = u64::from(s.buffer.0) * BUFFER_SPACE;
            base + s.range().start..base + s.range().end
        };
        let waits = |dispatch: &Dispatch| {
            let args = || dispatch.args.iter().zip(self.kernel(dispatch).args.iter().map(|a| a.access));
            let reads = args().filter(|(_, access)| access.reads()).map(|(slice, _)| slice);
            let writes = args().filter(|(_, access)| access.writes()).map(|(slice, _)| place(slice));
            let reads: Vec<_> = reads.chain(&dispatch.indirect).map(place).collect();
            hazards.next(&Touched { reads: &reads, writes: &writes.collect::<Vec<_>>() })
        };
        dispatches.iter().map(waits).collect()
    }

    /// Bytes on the device for one run, beside params and what is packed from them.
    pub fn run_bytes(&self) -> u64 {
        self.total(|content| {
            matches!(
                content,
                Content::Arena | Content::Gates | Content::Input(_) | Content::Output(_) | Content::Table(_)
            )
        })
    }

    pub(crate) fn total(&self, of: impl Fn(&Content) -> bool) -> u64 {
        self.buffers.iter().filter(|b| of(&b.content)).fold(0, |sum, b| sum.saturating_add(b.bytes))
    }
}
