//! Devices behind one face: what a session and its executables ask of the CPU and of every GPU driver.

mod cpu;
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
mod gpu;

use std::any::Any;
use std::fmt;
use std::ops::Range;
#[cfg(any(feature = "async", feature = "onnx"))]
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use olivine_compile::Compiled;
use olivine_cpu::HostBytes;
use olivine_gpu::{DeviceCaps, Finding, KernelSource, Record, Take};
use olivine_ir::size::Bindings;
use olivine_ir::{Data, Fusion, Recycler, Tensor, TensorType, TensorView};
use olivine_kernel::{BoundModule, Kernel};

use crate::Error;
use crate::cost::Work;
use crate::executable::{Input, write_results};
use crate::process::OfProcess;

pub(crate) use cpu::CpuEngine;
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
pub(crate) use gpu::GpuEngine;

/// What a device does without blocking, where it can.
#[cfg(any(feature = "async", feature = "onnx"))]
pub(crate) type Later<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// A device that is open.
pub(crate) trait Engine: Send + Sync {
    /// A place for a model's params; graphs are lowered by another record than the session's if one is given.
    fn model(&self, tuning: Option<Arc<Record>>) -> Arc<dyn Model>;

    /// What a GPU can do; `None` on the CPU.
    fn caps(&self) -> Option<&DeviceCaps> {
        None
    }

    /// The record of measured choices in use; `None` on the CPU.
    fn tuning(&self) -> Option<&Arc<Record>> {
        None
    }

    /// Brings packed bytes to the device.
    fn upload(&self, ty: TensorType, bytes: &[u8]) -> Result<DeviceTensor, Error>;

    /// What the device is, for error messages and reports.
    fn describe(&self) -> String;

    /// Makes calls, and resolves when their errors are known; a browser reports these later than the calls return.
    #[cfg(feature = "async")]
    fn watch<'a>(&'a self, calls: &mut dyn FnMut()) -> Later<'a> {
        calls();
        Box::pin(std::future::ready(Ok(())))
    }

    /// Messages of a validation layer so far.
    fn messages(&self) -> Vec<String> {
        Vec::new()
    }

    /// Bytes of device memory that are taken, where the driver says.
    fn memory_taken(&self) -> Option<u64> {
        None
    }

    /// Tries the cooperative matrix shapes that the device offers; none on the CPU.
    fn try_matrices(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }

    /// The program that a compiled graph becomes; `None` on the CPU, whose kernels are functions.
    fn program(&self, compiled: &Compiled) -> Result<Option<olivine_gpu::Program>, Error>;

    /// The kernel calls of a run, and what lowering joined. What does not fit in the device's memory is an error.
    fn lowered(&self, compiled: &Compiled) -> Result<Lowered, Error>;

    /// Begins a dispatch of a user's module on tensors, which it may write in place.
    fn dispatch_module(&self, call: &ModuleDispatch<'_>) -> Result<Box<dyn InFlight>, Error>;

    /// A kernel as the driver is given it; `None` on the CPU.
    fn source(&self, kernel: &Kernel) -> Result<Option<KernelSource>, Error>;
}

/// A model's params on a device, shared by what is prepared for all its input shapes.
pub(crate) trait Model: Send + Sync {
    /// Sets or replaces a param.
    fn set_param(&self, name: &str, tensor: Tensor);

    /// Sets or replaces a param and brings it to the device now.
    fn upload_param(&self, name: &str, tensor: Tensor) -> Result<(), Error>;

    /// Makes a compiled graph ready to run. `states` pairs inputs with the outputs that take over their bytes.
    fn prepare(&self, compiled: &Compiled, states: &[(usize, usize)]) -> Result<Arc<dyn Prepared>, Error>;
}

/// A graph ready to run.
pub(crate) trait Prepared: Send + Sync {
    /// Outputs in declaration order.
    fn outputs(&self) -> &[(String, TensorType)];

    /// The same graph for other values of its open sizes, for which the guards of its compile hold; `None` where it has
    /// none.
    fn for_sizes(&self, sizes: &Bindings) -> Result<Option<Arc<dyn Prepared>>, Error>;

    /// The kernel calls of a run.
    fn lowered(&self) -> Lowered;

    /// How many times runs were recorded, for all sizes; 0 where nothing is recorded.
    fn recordings(&self) -> usize {
        0
    }

    /// Whether such a run takes no memory of a device: an earlier one left it.
    #[cfg(feature = "async")]
    fn replays(&self, _inputs: &[Input<'_>], _takes: &[Take]) -> bool {
        true
    }

    /// Frees what earlier runs left on a device, and returns whether that was anything.
    #[cfg(feature = "async")]
    fn evict(&self) -> bool {
        false
    }

    /// What it takes of the host's memory, on the CPU.
    fn host_bytes(&self) -> Option<HostBytes> {
        None
    }

    /// Who keeps the memory of large results between runs, where that is worth it.
    fn recycler(&self) -> Option<&Arc<Recycler>> {
        None
    }

    /// Packs params now instead of at the first run.
    fn load(&self) -> Result<(), Error>;

    /// Runs and waits; outputs are packed bytes of their types (bool as 0 or 1).
    fn run(&self, inputs: &[Input<'_>], outputs: &mut [&mut [u8]]) -> Result<(), Error>;

    /// Runs and waits; outputs that are paired with a state become it. `inputs` has `None` where a state is the input.
    /// Returns all outputs, those that became state without elements.
    fn run_with_state(
        &self,
        inputs: &[Option<Input<'_>>],
        states: &mut [StatePart<'_>],
    ) -> Result<Vec<Data>, Error>;

    /// Begins a run that changes a state and returns; the state is what the run leaves, also before its end. Here the run is over
    /// when this returns.
    fn start_with_state(
        &self,
        inputs: &[Option<Input<'_>>],
        states: &mut [StatePart<'_>],
    ) -> Result<Box<dyn InFlight>, Error> {
        Ok(Box::new(Ended(self.run_with_state(inputs, states)?)))
    }

    /// Begins a run and returns at once, or when it is done where it takes less than handing it over.
    fn start(&self, inputs: &[Input<'_>], takes: &[Take]) -> Result<Box<dyn InFlight>, Error>;

    /// Runs and times every step.
    fn profile(&self, inputs: &[Input<'_>]) -> Result<Vec<StepTime>, Error>;

    /// Runs several times in a row, and a run's share of the time of all; outputs stay on the device.
    fn time(&self, inputs: &[Input<'_>], runs: u32) -> Result<(Duration, Vec<DeviceTensor>), Error>;
}

/// A dispatch of a user's module, whose buffers are in bindings.
#[cfg_attr(
    not(any(feature = "vulkan", feature = "wgpu")),
    allow(dead_code, reason = "GPUs alone run modules")
)]
pub(crate) struct ModuleDispatch<'a> {
    pub(crate) module: &'a Arc<BoundModule>,
    pub(crate) op: Option<u32>,
    pub(crate) tensors: &'a [&'a DeviceTensor],
    pub(crate) push: &'a [u8],
    pub(crate) groups: [u32; 3],
}

/// A part of a state: the input that it is, where the graph takes it, and the output that it becomes.
pub(crate) struct StatePart<'a> {
    pub(crate) input: Option<usize>,
    pub(crate) output: usize,
    pub(crate) tensor: &'a mut DeviceTensor,
}

/// A run that was begun.
pub(crate) trait InFlight: Send {
    /// Waits for all outputs; those that stay on the device come without elements.
    fn wait(&mut self) -> Result<Vec<Data>, Error>;

    /// Whether it has ended. Where no other thread does the work, it is done here.
    fn is_done(&mut self) -> Result<bool, Error>;

    /// Whether [`InFlight::wait`] returns at once; the task is woken when it does. A device that can block may wait here.
    #[cfg_attr(
        not(all(feature = "async", target_arch = "wasm32")),
        allow(dead_code, reason = "threads wait")
    )]
    fn poll_done(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    /// An output that stays on the device.
    fn output(&mut self, i: usize) -> Result<DeviceTensor, Error>;
}

/// A run that is over, with what it returns to the host.
struct Ended(Vec<Data>);

impl InFlight for Ended {
    fn wait(&mut self) -> Result<Vec<Data>, Error> {
        Ok(std::mem::take(&mut self.0))
    }

    fn is_done(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

    fn output(&mut self, _: usize) -> Result<DeviceTensor, Error> {
        // Outputs that stay on the device are the state by now.
        Err(Error::WorkerDied)
    }
}

/// A graph as it is lowered for a device.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// The kernel calls of a run, in order.
    pub steps: Vec<LoweredStep>,
    /// What lowering joined, beside what the graph's passes had fused before.
    pub fusions: Vec<Fusion>,
    /// The threads that a run's work pays for on the CPU, of those that the session has; 1 on a GPU.
    pub width: usize,
    /// How often a run submits to the device and waits: once, unless operations run on the host in between.
    pub submissions: usize,
    /// Bytes of inputs.
    pub sent: u64,
    /// Bytes of outputs.
    pub received: u64,
}

impl Lowered {
    /// Whether operations run on the host although the device is a GPU.
    pub fn has_host_steps(&self) -> bool {
        self.steps.iter().any(|step| step.site == Site::Host)
    }
}

/// Where a step of a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Site {
    /// On the session's device.
    #[default]
    Device,
    /// On the host, as the caller asked ([`CompileOptions::host_ops`](crate::CompileOptions::host_ops)).
    Host,
    /// A copy from the device to the host.
    ToHost,
    /// A copy from the host to the device.
    ToDevice,
}

/// A kernel call of a run.
#[derive(Clone, Debug)]
pub struct LoweredStep {
    /// The names of its nodes, with ` + ` between them.
    pub node: String,
    /// The operation.
    pub op: &'static str,
    /// The GPU kernel; the operation again on the CPU.
    pub kernel: String,
    /// What it does.
    pub work: Work,
    /// What the steps of a graph inside it do, on the CPU: of the larger branch, or of a loop's iterations.
    pub inner: Vec<Work>,
    /// On a GPU, the branch of an `if` that it belongs to, and that runs only where it is taken.
    pub branch: Option<Branch>,
    /// Where it is.
    pub site: Site,
}

/// A branch of an `if` on a GPU, whose steps have no workgroups in a run that takes the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The position of the step that decides between the two.
    pub gate: usize,
    /// Whether it is the second one.
    pub second: bool,
}

/// How long one step of a run took, and what it did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StepTime {
    /// The node.
    pub node: String,
    /// The operation.
    pub op: &'static str,
    /// The GPU kernel; the operation again on the CPU.
    pub kernel: String,
    /// When it began, from the first step.
    pub start: Duration,
    /// Time on the device; wall-clock time on the CPU.
    pub time: Duration,
    /// Floating-point operations, about; 0 where they are not counted.
    pub flops: u64,
    /// Bytes it must read and write at least; 0 where they are not counted.
    pub bytes: u64,
}

/// A tensor that stays on a device between runs; clones share it.
#[derive(Clone)]
pub struct DeviceTensor {
    ty: TensorType,
    inner: OfProcess<Arc<dyn Resident>>,
}

/// What holds a tensor on a device.
pub(crate) trait Resident: Send + Sync {
    fn read(&self, elements: Range<usize>, into: &mut [u8]) -> Result<(), Error>;
    /// As `read`, without blocking where the device can.
    #[cfg(any(feature = "async", feature = "onnx"))]
    fn read_async<'a>(&'a self, elements: Range<usize>, into: &'a mut [u8]) -> Later<'a> {
        Box::pin(std::future::ready(self.read(elements, into)))
    }
    /// Writes packed bytes over elements from one on, after every run submitted so far.
    fn write(&mut self, first: usize, bytes: &[u8]) -> Result<(), Error>;
    /// Another tensor with the same elements, on the same device.
    fn copy(&self) -> Result<DeviceTensor, Error>;
    /// Whether others may hold the same memory.
    fn is_shared(&self) -> bool;
    /// The first bytes as a tensor of another type, which is not larger.
    fn reinterpret(&self, ty: TensorType) -> Result<DeviceTensor, Error>;
    /// A copy whose first bytes are another's, which is not larger.
    fn with_prefix(&self, prefix: &DeviceTensor) -> Result<DeviceTensor, Error>;
    /// Brings packed bytes to the same device.
    fn upload(&self, ty: TensorType, bytes: &[u8]) -> Result<DeviceTensor, Error>;
    /// Sets every bit of memory that a later run may be given; nothing where every run's is fresh.
    fn poison(&self) -> Result<(), Error>;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({})", self.ty)
    }
}

impl olivine_gpu::Typed for DeviceTensor {
    fn ty(&self) -> TensorType {
        self.ty
    }
}

impl DeviceTensor {
    pub(crate) fn new(ty: TensorType, inner: Arc<dyn Resident>) -> Self {
        DeviceTensor { ty, inner: OfProcess::new(inner) }
    }

    /// Its type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Brings all of it to the host, after the runs submitted so far.
    pub fn to_tensor(&self) -> Result<Tensor, Error> {
        let data = self.read_elements(0..self.ty.shape.numel())?;
        Ok(Tensor::of_type(self.ty, data)?)
    }

    /// As [`DeviceTensor::to_tensor`], without blocking: in a browser, the only way to read. Elsewhere it blocks.
    #[cfg(feature = "async")]
    pub async fn to_tensor_async(&self) -> Result<Tensor, Error> {
        self.fetched().await
    }

    /// As `to_tensor_async`, which needs a feature.
    #[cfg(any(feature = "async", feature = "onnx"))]
    pub(crate) async fn fetched(&self) -> Result<Tensor, Error> {
        self.inner.check()?;
        let count = self.ty.shape.numel();
        let mut bytes = olivine_ir::memory::zeroed(self.ty.bytes())?;
        self.inner.read_async(0..count, &mut bytes).await?;
        Ok(Tensor::of_type(self.ty, Data::from_bytes(self.ty.dtype, &bytes)?)?)
    }

    /// Brings some elements, counted row-major, to the host.
    pub fn read_elements(&self, elements: Range<usize>) -> Result<Data, Error> {
        self.inner.check()?;
        let all = self.ty.shape.numel();
        if elements.start > elements.end || elements.end > all {
            return Err(Error::BadRange { elements, all });
        }
        let mut data = Data::zeros(self.ty.dtype, elements.len())?;
        write_results(&mut [&mut data], |targets| match targets {
            [to] => self.inner.read(elements, to),
            _ => Ok(()),
        })?;
        Ok(data)
    }

    /// Overwrites all of it, after the runs submitted so far. Clones keep the old elements.
    pub fn write<'a>(&mut self, tensor: impl Into<TensorView<'a>>) -> Result<(), Error> {
        let view = tensor.into();
        if view.ty() != self.ty {
            let (name, expected) = ("device tensor".into(), self.ty.to_string());
            return Err(Error::WrongType { kind: "write to", name, expected, got: view.ty() });
        }
        if Arc::get_mut(self.inner.get_mut()?).is_none() {
            *self = self.inner.upload(self.ty, view.bytes())?;
            return Ok(());
        }
        self.write_elements(0, view)
    }

    /// Overwrites elements, counted row-major, from one on; clones keep the old ones.
    pub fn write_elements<'a>(
        &mut self,
        first: usize,
        elements: impl Into<TensorView<'a>>,
    ) -> Result<(), Error> {
        let view = elements.into();
        let (all, count) = (self.ty.shape.numel(), view.ty().shape.numel());
        if view.ty().dtype != self.ty.dtype {
            let (name, expected) = ("device tensor".into(), self.ty.to_string());
            return Err(Error::WrongType { kind: "write to", name, expected, got: view.ty() });
        }
        if first.checked_add(count).is_none_or(|end| end > all) {
            return Err(Error::BadRange { elements: first..first.saturating_add(count), all });
        }
        if Arc::get_mut(self.inner.get_mut()?).is_none() {
            *self = self.copy()?;
        }
        match Arc::get_mut(self.inner.get_mut()?) {
            Some(inner) => inner.write(first, view.bytes()),
            None => Err(Error::OtherDevice),
        }
    }

    /// Another tensor on the device with the same elements, which may be overwritten by itself.
    pub fn copy(&self) -> Result<DeviceTensor, Error> {
        self.inner.check()?;
        self.inner.copy()
    }

    /// The first bytes as a tensor of another type, which must not be larger. On a GPU the two share memory; on the CPU
    /// the bytes are copied, unless the type is the same.
    pub fn reinterpret(&self, ty: TensorType) -> Result<DeviceTensor, Error> {
        self.inner.check()?;
        self.fits("reinterpreted tensor", ty)?;
        if ty == self.ty { Ok(self.clone()) } else { self.inner.reinterpret(ty) }
    }

    /// A copy on the device whose first bytes are those of another tensor, which must not be larger.
    pub fn with_prefix(&self, prefix: &DeviceTensor) -> Result<DeviceTensor, Error> {
        self.inner.check()?;
        self.fits("prefix", prefix.ty)?;
        self.inner.with_prefix(prefix)
    }

    /// Copies the packed bytes of all elements to the host, after the runs submitted so far.
    pub fn read_bytes(&self, into: &mut [u8]) -> Result<(), Error> {
        self.inner.check()?;
        if into.len() != self.ty.bytes() {
            return Err(Error::BadRange { elements: 0..into.len(), all: self.ty.bytes() });
        }
        self.inner.read(0..self.ty.shape.numel(), into)
    }

    fn fits(&self, name: &str, got: TensorType) -> Result<(), Error> {
        if got.bytes() <= self.ty.bytes() {
            return Ok(());
        }
        let expected = format!("at most the {} bytes of {}", self.ty.bytes(), self.ty);
        Err(Error::WrongType { kind: "bytes of", name: name.into(), expected, got })
    }

    /// Brings a tensor to the device that this one is on.
    pub(crate) fn like(&self, view: TensorView<'_>) -> Result<DeviceTensor, Error> {
        self.inner.check()?;
        self.inner.upload(view.ty(), view.bytes())
    }

    /// As [`poison`](crate::internals::DeviceTensorExt::poison).
    pub(crate) fn fill_with_ones(&self) -> Result<(), Error> {
        self.inner.check()?;
        self.inner.poison()
    }

    /// As [`is_shared`](crate::internals::DeviceTensorExt::is_shared).
    pub(crate) fn may_be_shared(&self) -> bool {
        Arc::strong_count(&self.inner) > 1 || self.inner.is_shared()
    }

    /// The device's own tensor, if it is that kind of device's.
    pub(crate) fn downcast<T: 'static>(&self) -> Option<&T> {
        self.inner.as_any().downcast_ref()
    }

    /// The device's own tensor for changing, if it is that kind of device's and nobody else holds it.
    pub(crate) fn downcast_mut<T: 'static>(&mut self) -> Option<&mut T> {
        Arc::get_mut(self.inner.get_mut().ok()?)?.as_any_mut().downcast_mut()
    }
}
