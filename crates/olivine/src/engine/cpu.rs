//! The CPU as an engine.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use olivine_compile::Compiled;
use olivine_cpu::{Executable, HostBytes, Spawned, Threads, Weights};
use olivine_gpu::{KernelSource, Record, Take};
use olivine_ir::size::Bindings;
use olivine_ir::{Data, Recycler, Tensor, TensorType, TensorView};
use olivine_kernel::Kernel;

use super::{
    DeviceTensor, Engine, InFlight, Lowered, LoweredStep, Model, ModuleDispatch, Prepared, Resident, Site,
    StatePart, StepTime,
};
use crate::Error;
use crate::cost::Work;
use crate::executable::{Input, write_results, zeros};

/// This machine's processor with some threads.
pub(crate) struct CpuEngine {
    pub(crate) threads: Arc<Threads>,
    pub(crate) checked: bool,
}

impl Engine for CpuEngine {
    fn model(&self, _: Option<Arc<Record>>) -> Arc<dyn Model> {
        let (threads, checked) = (self.threads.clone(), self.checked);
        Arc::new(CpuModel { threads, checked, weights: Arc::new(Weights::new()) })
    }

    fn upload(&self, ty: TensorType, bytes: &[u8]) -> Result<DeviceTensor, Error> {
        Ok(resident(Tensor::of_type(ty, Data::from_bytes(ty.dtype, bytes)?)?))
    }

    fn describe(&self) -> String {
        olivine_cpu::processor_name()
    }

    fn program(&self, _: &Compiled) -> Result<Option<olivine_gpu::Program>, Error> {
        Ok(None)
    }

    fn lowered(&self, compiled: &Compiled) -> Result<Lowered, Error> {
        let executable = Executable::new(compiled, Arc::new(Weights::new()), self.checked)?;
        Ok(lowered(&executable, &self.threads))
    }

    fn dispatch_module(&self, call: &ModuleDispatch<'_>) -> Result<Box<dyn InFlight>, Error> {
        let (op, node) = ("a SPIR-V module", call.module.entry().to_string());
        Err(olivine_cpu::Error::Unsupported { op, node, problem: "it is code for GPUs".into() }.into())
    }

    fn source(&self, _: &Kernel) -> Result<Option<KernelSource>, Error> {
        Ok(None)
    }
}

fn lowered(executable: &Executable, threads: &Threads) -> Lowered {
    let step = |cost: olivine_cpu::StepCost| {
        fn inside(cost: &olivine_cpu::StepCost, times: u64) -> Vec<Work> {
            let times = times.saturating_mul(cost.iterations);
            let step = |inner| [vec![Work { times, ..Work::of_cpu(inner) }], inside(inner, times)].concat();
            cost.inner.iter().flat_map(step).collect()
        }
        let (work, inner) = (Work::of_cpu(&cost), inside(&cost, 1));
        LoweredStep {
            node: cost.node,
            op: cost.op,
            kernel: cost.op.into(),
            work,
            inner,
            branch: None,
            site: Site::Device,
        }
    };
    let bytes = |ty: &TensorType| ty.bytes() as u64;
    Lowered {
        steps: executable.costs().into_iter().map(step).collect(),
        fusions: executable.fusions().to_vec(),
        width: executable.width().min(threads.count()),
        submissions: 1,
        sent: executable.inputs().iter().map(|(_, ty)| bytes(ty)).sum(),
        received: executable.outputs().iter().map(|(_, ty)| bytes(ty)).sum(),
    }
}

struct CpuModel {
    threads: Arc<Threads>,
    checked: bool,
    weights: Arc<Weights>,
}

impl Model for CpuModel {
    fn set_param(&self, name: &str, tensor: Tensor) {
        self.weights.set(name, tensor);
    }

    fn upload_param(&self, name: &str, tensor: Tensor) -> Result<(), Error> {
        self.weights.set(name, tensor);
        Ok(())
    }

    fn prepare(&self, compiled: &Compiled, states: &[(usize, usize)]) -> Result<Arc<dyn Prepared>, Error> {
        let weights = self.weights.clone();
        let executable = Arc::new(Executable::with_states(compiled, weights, self.checked, states)?);
        let recycler = Recycler::new(executable.outputs().iter().map(|(_, ty)| *ty));
        Ok(Arc::new(CpuPrepared { threads: self.threads.clone(), executable, recycler }))
    }
}

struct CpuPrepared {
    threads: Arc<Threads>,
    executable: Arc<Executable>,
    recycler: Arc<Recycler>,
}

impl Prepared for CpuPrepared {
    fn lowered(&self) -> Lowered {
        lowered(&self.executable, &self.threads)
    }

    fn host_bytes(&self) -> Option<HostBytes> {
        Some(self.executable.host_bytes())
    }

    fn outputs(&self) -> &[(String, TensorType)] {
        self.executable.outputs()
    }

    fn for_sizes(&self, sizes: &Bindings) -> Result<Option<Arc<dyn Prepared>>, Error> {
        if !self.executable.has_open_sizes() {
            return Ok(None);
        }
        let executable = Arc::new(self.executable.for_sizes(sizes)?);
        let recycler = Recycler::new(executable.outputs().iter().map(|(_, ty)| *ty));
        Ok(Some(Arc::new(CpuPrepared { threads: self.threads.clone(), executable, recycler })))
    }

    fn recycler(&self) -> Option<&Arc<Recycler>> {
        Some(&self.recycler)
    }

    fn load(&self) -> Result<(), Error> {
        Ok(self.threads.install(|| self.executable.load())?)
    }

    fn run(&self, inputs: &[Input<'_>], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        let views = views(inputs)?;
        Ok(self.threads.install(|| self.executable.run(&views, outputs))?)
    }

    fn run_with_state(
        &self,
        inputs: &[Option<Input<'_>>],
        states: &mut [StatePart<'_>],
    ) -> Result<Vec<Data>, Error> {
        let in_place = self.executable.in_place_states();
        let is_in_place = |input: Option<usize>, output: usize| {
            input.is_some_and(|input| in_place.contains(&(input, output)))
        };
        let mut results = Vec::with_capacity(self.outputs().len());
        for (i, (_, ty)) in self.outputs().iter().enumerate() {
            let in_place = states.iter().any(|state| state.output == i && is_in_place(state.input, i));
            results.push(if in_place { Data::zeros(ty.dtype, 0)? } else { self.recycler.take(*ty)? });
        }
        {
            let mut targets: Vec<Option<&mut Data>> = results.iter_mut().map(Some).collect();
            // A state in place is read where it is written, and has no view.
            let nothing = TensorView::new([0], &[0u8; 0])?;
            let mut views = inputs
                .iter()
                .map(|input| input.as_ref().map_or(Ok(nothing), view))
                .collect::<Result<Vec<_>, _>>()?;
            for state in states.iter_mut() {
                if is_in_place(state.input, state.output) {
                    targets[state.output] = Some(own(state.tensor)?.data_mut()?);
                } else if let Some(input) = state.input.and_then(|input| views.get_mut(input)) {
                    *input = host(state.tensor)?.view();
                }
            }
            write_results(&mut targets.into_iter().flatten().collect::<Vec<_>>(), |targets| {
                Ok(self.threads.install(|| self.executable.run_in_place(&views, targets))?)
            })?;
        }
        for state in states.iter_mut().filter(|state| !is_in_place(state.input, state.output)) {
            let ty = self.outputs()[state.output].1;
            let data = std::mem::replace(&mut results[state.output], Data::zeros(ty.dtype, 0)?);
            // The old one's memory is what the next run writes to.
            *state.tensor = resident(Tensor::recycled(ty, data, &self.recycler)?);
        }
        Ok(results)
    }

    fn start(&self, inputs: &[Input<'_>], takes: &[Take]) -> Result<Box<dyn InFlight>, Error> {
        let (executable, recycler) = (self.executable.clone(), self.recycler.clone());
        let run = if executable.is_quick() {
            let views = views(inputs)?;
            Begun::Done(self.threads.install(|| results(&executable, &recycler, &views)))
        } else {
            let taken = |input| taken(input, &self.recycler);
            let tensors = inputs.iter().map(taken).collect::<Result<Vec<Tensor>, _>>()?;
            let threads = self.threads.clone();
            Begun::Left(self.threads.spawn(move || {
                let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::view).collect();
                threads.install(|| results(&executable, &recycler, &views))
            }))
        };
        let types = self.outputs().iter().map(|(_, ty)| *ty).collect();
        let (takes, recycler) = (takes.to_vec(), self.recycler.clone());
        let alone = self.threads.count() == 1;
        Ok(Box::new(CpuRun { run: Some(run), results: Vec::new(), types, takes, recycler, alone }))
    }

    fn profile(&self, inputs: &[Input<'_>]) -> Result<Vec<StepTime>, Error> {
        let views = views(inputs)?;
        let mut results = zeros(self.outputs())?;
        let mut times = Vec::new();
        write_results(&mut results.iter_mut().collect::<Vec<_>>(), |targets| {
            times = self.threads.install(|| self.executable.profile(&views, targets))?;
            Ok(())
        })?;
        let mut start = Duration::ZERO;
        let step = |(t, cost): (olivine_cpu::StepTime, olivine_cpu::StepCost)| {
            let began = start;
            start += t.time;
            let (kernel, flops, bytes) = (t.op.to_string(), cost.flops, cost.bytes);
            StepTime { node: t.node, op: t.op, kernel, start: began, time: t.time, flops, bytes }
        };
        Ok(times.into_iter().zip(self.executable.costs()).map(step).collect())
    }

    fn time(&self, inputs: &[Input<'_>], runs: u32) -> Result<(Duration, Vec<DeviceTensor>), Error> {
        let mut results = zeros(self.outputs())?;
        let began = web_time::Instant::now();
        for _ in 0..runs.max(1) {
            write_results(&mut results.iter_mut().collect::<Vec<_>>(), |targets| self.run(inputs, targets))?;
        }
        let time = began.elapsed() / runs.max(1);
        let types = self.outputs().iter().map(|(_, ty)| *ty);
        let output = |(ty, data): (TensorType, Data)| Ok(resident(Tensor::of_type(ty, data)?));
        Ok((time, types.zip(results).map(output).collect::<Result<_, Error>>()?))
    }
}

/// A run's results, in memory of results that are gone.
fn results(
    executable: &Executable,
    recycler: &Recycler,
    inputs: &[TensorView<'_>],
) -> Result<Vec<Data>, Error> {
    let types = executable.outputs().iter();
    let mut results = types.map(|(_, ty)| recycler.take(*ty)).collect::<Result<Vec<_>, _>>()?;
    write_results(&mut results.iter_mut().collect::<Vec<_>>(), |to| Ok(executable.run(inputs, to)?))?;
    Ok(results)
}

/// An input for a run that others will do: what the caller may change is copied, to memory of tensors that are gone.
fn taken(input: &Input<'_>, recycler: &Arc<Recycler>) -> Result<Tensor, Error> {
    match input {
        Input::Host(view) => {
            let mut data = recycler.take(view.ty())?;
            let Some(bytes) = data.as_bytes_mut() else { return Ok(view.to_tensor()?) };
            bytes.copy_from_slice(view.bytes());
            Ok(Tensor::recycled(view.ty(), data, recycler)?)
        }
        Input::Device(tensor) => Ok(host(tensor)?.clone()),
    }
}

/// A run that was begun: done already, or left to the pool.
enum Begun {
    Done(Result<Vec<Data>, Error>),
    Left(Spawned<Result<Vec<Data>, Error>>),
}

struct CpuRun {
    run: Option<Begun>,
    /// Outputs that nobody has taken yet.
    results: Vec<Option<Data>>,
    types: Vec<TensorType>,
    takes: Vec<Take>,
    recycler: Arc<Recycler>,
    /// Whether the pool has no thread but the caller's.
    alone: bool,
}

impl CpuRun {
    fn finish(&mut self) -> Result<(), Error> {
        let results = match self.run.take() {
            None => return Ok(()),
            Some(Begun::Done(results)) => results?,
            Some(Begun::Left(run)) => run.wait().map_err(|_| Error::WorkerDied)??,
        };
        self.results = results.into_iter().map(Some).collect();
        Ok(())
    }
}

impl InFlight for CpuRun {
    fn wait(&mut self) -> Result<Vec<Data>, Error> {
        self.finish()?;
        let mut outputs = Vec::with_capacity(self.types.len());
        for ((ty, take), result) in self.types.iter().zip(&self.takes).zip(&mut self.results) {
            let taken = if *take == Take::Host { result.take() } else { None };
            outputs.push(taken.map_or_else(|| Data::zeros(ty.dtype, 0), Ok)?);
        }
        Ok(outputs)
    }

    fn is_done(&mut self) -> Result<bool, Error> {
        match &self.run {
            // Without workers nobody but the caller does it.
            Some(Begun::Left(run)) if !self.alone && !run.is_done() => Ok(false),
            _ => self.finish().map(|()| true),
        }
    }

    fn output(&mut self, i: usize) -> Result<DeviceTensor, Error> {
        self.finish()?;
        let data = self.results.get_mut(i).and_then(Option::take);
        let (Some(ty), Some(data)) = (self.types.get(i), data) else { return Err(Error::WorkerDied) };
        Ok(resident(Tensor::recycled(*ty, data, &self.recycler)?))
    }
}

/// A tensor as one of the CPU's device memory.
fn resident(tensor: Tensor) -> DeviceTensor {
    DeviceTensor::new(tensor.ty(), Arc::new(HostTensor(tensor)))
}

/// The host's tensor behind a device's, which is the caller's own: a copy if others hold it.
fn own(tensor: &mut DeviceTensor) -> Result<&mut Tensor, Error> {
    if tensor.downcast_mut::<HostTensor>().is_none() {
        *tensor = resident(host(tensor)?.clone());
    }
    tensor.downcast_mut::<HostTensor>().map(|tensor| &mut tensor.0).ok_or(Error::OtherDevice)
}

/// A tensor of the host; the CPU's device memory.
struct HostTensor(Tensor);

impl Resident for HostTensor {
    fn read(&self, elements: Range<usize>, into: &mut [u8]) -> Result<(), Error> {
        let size = self.0.dtype().size();
        if let Some(from) = self.0.bytes().get(elements.start * size..elements.end * size) {
            into.copy_from_slice(from);
        }
        Ok(())
    }

    fn write(&mut self, first: usize, bytes: &[u8]) -> Result<(), Error> {
        let size = self.0.dtype().size();
        let data = self.0.data_mut()?;
        if let Data::Bool(bools) = data {
            bools.iter_mut().skip(first).zip(bytes).for_each(|(to, byte)| *to = *byte != 0);
        } else if let Some(to) =
            data.as_bytes_mut().and_then(|all| all.get_mut(first * size..first * size + bytes.len()))
        {
            to.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn copy(&self) -> Result<DeviceTensor, Error> {
        // Elements are shared until one of the two is written.
        Ok(resident(self.0.clone()))
    }

    fn is_shared(&self) -> bool {
        // Elements are copied when they are written.
        false
    }

    fn reinterpret(&self, ty: TensorType) -> Result<DeviceTensor, Error> {
        if ty.dtype == self.0.dtype() && ty.shape.numel() == self.0.shape().numel() {
            return Ok(resident(self.0.reshaped(ty.shape)?));
        }
        self.upload(ty, self.0.bytes().get(..ty.bytes()).unwrap_or_default())
    }

    fn with_prefix(&self, prefix: &DeviceTensor) -> Result<DeviceTensor, Error> {
        let prefix = prefix.downcast::<HostTensor>().ok_or(Error::OtherDevice)?.0.bytes();
        let mut copy = HostTensor(self.0.clone());
        match copy.0.data_mut()?.as_bytes_mut().and_then(|all| all.get_mut(..prefix.len())) {
            Some(to) => to.copy_from_slice(prefix),
            // Bools are written one by one.
            None => copy.write(0, prefix)?,
        }
        Ok(resident(copy.0))
    }

    fn upload(&self, ty: TensorType, bytes: &[u8]) -> Result<DeviceTensor, Error> {
        Ok(resident(Tensor::of_type(ty, Data::from_bytes(ty.dtype, bytes)?)?))
    }

    fn poison(&self) -> Result<(), Error> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The host's tensor behind a device's.
fn host(tensor: &DeviceTensor) -> Result<&Tensor, Error> {
    tensor.downcast::<HostTensor>().map(|tensor| &tensor.0).ok_or(Error::OtherDevice)
}

fn view<'a>(input: &Input<'a>) -> Result<TensorView<'a>, Error> {
    match input {
        Input::Host(view) => Ok(*view),
        Input::Device(tensor) => Ok(host(tensor)?.view()),
    }
}

fn views<'a>(inputs: &[Input<'a>]) -> Result<Vec<TensorView<'a>>, Error> {
    inputs.iter().map(view).collect()
}
