//! What a driver implements: memory, pipelines, recorded commands, submissions. Everything else is shared.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use olivine_kernel::{BoundModule, Kernel};

use crate::caps::DeviceCaps;
use crate::program::{BufferId, Dispatch};
use crate::{Error, Program};

/// A device opened through some API. All methods may be called from several threads at once.
pub trait Driver: Send + Sync + Sized + 'static {
    /// Device-local memory; freed when dropped. Recordings keep what they use alive.
    type Buffer: Send + Sync;
    /// A built kernel.
    type Pipeline: Send + Sync;
    /// Recorded commands with staging memory of their own; one run at a time.
    type Recording: Send;

    /// What the device can do (features masked off are not in it).
    fn caps(&self) -> &DeviceCaps;

    /// Allocates device-local memory; its content is unspecified. `label` says what for, in errors and debuggers.
    fn allocate(&self, bytes: u64, label: &str) -> Result<Arc<Self::Buffer>, Error>;

    /// As [`Driver::allocate`], for memory that dispatches read their numbers of workgroups from.
    fn allocate_gates(&self, bytes: u64, label: &str) -> Result<Arc<Self::Buffer>, Error> {
        self.allocate(bytes, label)
    }

    /// Writes from the host. It waits for nothing but staging memory; later submissions see the bytes. The range must
    /// not be in use by a run.
    fn write(&self, buffer: &Arc<Self::Buffer>, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Reads to the host after all submissions so far.
    fn read(&self, buffer: &Arc<Self::Buffer>, offset: u64, into: &mut [u8]) -> Result<(), Error>;

    /// As [`Driver::read`], where a driver can without blocking: a browser has no other way.
    fn read_async(
        &self,
        buffer: &Arc<Self::Buffer>,
        offset: u64,
        into: &mut [u8],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        std::future::ready(self.read(buffer, offset, into))
    }

    /// Copies bytes from the beginning of one buffer to that of another, after all submissions and writes so far; later
    /// submissions see them. The range that is written must not be in use by a run.
    fn copy(&self, from: &Arc<Self::Buffer>, to: &Arc<Self::Buffer>, bytes: u64) -> Result<(), Error>;

    /// Builds kernels, those that are not known yet in parallel; in order.
    fn pipelines(&self, kernels: &[Arc<Kernel>], checked: bool) -> Result<Vec<Arc<Self::Pipeline>>, Error>;

    /// Records commands.
    fn record(&self, commands: Commands<'_, Self>) -> Result<Self::Recording, Error>;

    /// Records one dispatch of a user's module, whose buffers are in bindings. Nothing of the call is trusted.
    fn record_module(&self, call: &ModuleCall<'_, Self>) -> Result<Self::Recording, Error> {
        let node = format!("`{}`: modules over bindings run on Vulkan alone", call.module.entry());
        Err(Error::Unsupported { device: self.caps().name.clone(), nodes: vec![node] })
    }

    /// Sets the bytes of the i-th upload for the next submission.
    fn upload(&self, recording: &mut Self::Recording, i: usize, bytes: &[u8]) -> Result<(), Error>;

    /// Submits; returns at once. The recording must not be in flight.
    fn submit(&self, recording: &mut Self::Recording) -> Result<(), Error>;

    /// Whether the submission has ended, without waiting for it; a recording that is not in flight has.
    fn is_done(&self, recording: &Self::Recording) -> Result<bool, Error>;

    /// Waits for the submission; a violation that checked kernels reported is an error.
    fn wait(&self, recording: &mut Self::Recording) -> Result<(), Error>;

    /// As [`Driver::wait`], where a driver can without blocking.
    fn poll_done(&self, recording: &mut Self::Recording, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(self.wait(recording))
    }

    /// Waits for a submission of load-time dispatches, so that memory that they alone need can go. Where nothing can
    /// wait, it goes when they are done, and their errors come with a later call.
    fn end_load(&self, recording: &mut Self::Recording) -> Result<(), Error> {
        self.wait(recording)
    }

    /// Makes calls, and resolves when their errors are known. A browser reports these later than the calls return.
    fn watch(&self, calls: &mut dyn FnMut()) -> impl Future<Output = Result<(), Error>> + use<'_, Self> {
        calls();
        std::future::ready(Ok(()))
    }

    /// Copies the bytes of the i-th download; after `wait`.
    fn download(&self, recording: &mut Self::Recording, i: usize, into: &mut [u8]) -> Result<(), Error>;

    /// When what the last submission timed began and ended, from the first beginning: each dispatch, or each piece that
    /// the run was submitted in. An error for recordings that are not timed.
    fn times(&self, recording: &mut Self::Recording) -> Result<Vec<(Duration, Duration)>, Error>;

    /// A kernel as the driver compiles it, checked or not.
    fn source(&self, kernel: &Kernel, checked: bool) -> Result<KernelSource, Error>;

    /// Messages of the driver's validation layer so far.
    fn validation_messages(&self) -> Vec<String> {
        Vec::new()
    }

    /// Bytes of device memory that it has allocated, if it counts them.
    fn memory_taken(&self) -> Option<u64> {
        None
    }
}

/// A kernel as a driver compiles it.
#[derive(Clone, Debug)]
pub enum KernelSource {
    /// Words of SPIR-V, on Vulkan.
    Spirv(Vec<u32>),
    /// WGSL text, on wgpu.
    Wgsl(String),
    /// PTX text, on Vulkan, of kernels that have no other form.
    Ptx(String),
}

/// What a recording takes the time of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// Nothing.
    #[default]
    Off,
    /// Every dispatch; they then run one after another.
    Dispatches,
    /// All dispatches together, which run as they do untimed; as often in a row as this says, at least once.
    Runs(u32),
}

/// A dispatch of a user's module.
pub struct ModuleCall<'a, D: Driver> {
    /// The module.
    pub module: &'a Arc<BoundModule>,
    /// What its specialisation constant 0 is.
    pub op: Option<u32>,
    /// For every binding of set 0 the buffer, and how many of its bytes are bound.
    pub buffers: &'a [(Arc<D::Buffer>, u64)],
    /// Push constants, as they are.
    pub push: &'a [u8],
    /// Workgroups; a zero means that nothing runs.
    pub groups: [u32; 3],
}

/// What to record.
pub struct Commands<'a, D: Driver> {
    /// The program whose kernels and buffers the dispatches name.
    pub program: &'a Program,
    /// In order.
    pub dispatches: &'a [Dispatch],
    /// For every kernel of the program.
    pub pipelines: &'a [Arc<D::Pipeline>],
    /// For every buffer of the program where it is; two may share bytes. Those that nothing here uses may be `None`.
    pub buffers: &'a [Option<Arc<D::Buffer>>],
    /// Buffers that the host writes before each run, with the bytes that matter.
    pub uploads: &'a [(BufferId, u64)],
    /// Buffers that the host reads after each run, with the bytes that matter.
    pub downloads: &'a [(BufferId, u64)],
    /// What to take the time of.
    pub timing: Timing,
    /// Whether pipelines are checked ones.
    pub checked: bool,
}
