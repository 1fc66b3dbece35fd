//! A GPU driver as an engine.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use olivine_compile::Compiled;
use olivine_gpu::{
    DeviceCaps, Driver, Executable, Finding, KernelSource, ModuleRun, Program, Record, Run, Take, Weights,
    check_memory, lower, proven, try_matrices,
};
use olivine_ir::size::Bindings;
use olivine_ir::{Data, Tensor, TensorType, memory};
use olivine_kernel::Kernel;

#[cfg(any(feature = "async", feature = "onnx"))]
use super::Later;
use super::{
    DeviceTensor, Engine, InFlight, Lowered, LoweredStep, Model, ModuleDispatch, Prepared, Resident, Site,
    StatePart, StepTime,
};
use crate::Error;
use crate::cost::Work;
use crate::executable::{Input, write_results};

/// A device opened by a driver.
pub(crate) struct GpuEngine<D: Driver> {
    pub(crate) driver: Arc<D>,
    /// What the session tunes by.
    pub(crate) tuning: Arc<Record>,
    pub(crate) checked: bool,
}

impl<D: Driver> Engine for GpuEngine<D> {
    fn model(&self, tuning: Option<Arc<Record>>) -> Arc<dyn Model> {
        let tuning = tuning.unwrap_or_else(|| self.tuning.clone());
        let (driver, checked) = (self.driver.clone(), self.checked);
        Arc::new(GpuModel { driver, tuning, checked, weights: Arc::new(Weights::default()) })
    }

    fn caps(&self) -> Option<&DeviceCaps> {
        Some(self.driver.caps())
    }

    fn tuning(&self) -> Option<&Arc<Record>> {
        Some(&self.tuning)
    }

    fn upload(&self, ty: TensorType, bytes: &[u8]) -> Result<DeviceTensor, Error> {
        Ok(resident(olivine_gpu::DeviceTensor::upload(&self.driver, ty, bytes)?))
    }

    fn describe(&self) -> String {
        let caps = self.driver.caps();
        format!("{} · {}", caps.name, caps.driver)
    }

    #[cfg(feature = "async")]
    fn watch<'a>(&'a self, calls: &mut dyn FnMut()) -> Later<'a> {
        let outcome = self.driver.watch(calls);
        Box::pin(async move { Ok(outcome.await?) })
    }

    fn messages(&self) -> Vec<String> {
        self.driver.validation_messages()
    }

    fn memory_taken(&self) -> Option<u64> {
        self.driver.memory_taken()
    }

    fn program(&self, compiled: &Compiled) -> Result<Option<Program>, Error> {
        Ok(Some(program_of(&self.driver, compiled, &self.tuning, &[], self.checked)?))
    }

    fn lowered(&self, compiled: &Compiled) -> Result<Lowered, Error> {
        let program = program_of(&self.driver, compiled, &self.tuning, &[], self.checked)?;
        check_memory(&program, self.driver.as_ref())?;
        Ok(lowered(&program))
    }

    fn try_matrices(&self) -> Result<Vec<Finding>, Error> {
        Ok(try_matrices(&self.driver)?)
    }

    fn dispatch_module(&self, call: &ModuleDispatch<'_>) -> Result<Box<dyn InFlight>, Error> {
        let on_gpu = |tensor: &&DeviceTensor| match tensor.downcast::<OnGpu<D>>() {
            Some(on_gpu) => Ok(on_gpu.0.clone()),
            None => Err(Error::OtherDevice),
        };
        let tensors = call.tensors.iter().map(on_gpu).collect::<Result<Vec<_>, _>>()?;
        let tensors: Vec<_> = tensors.iter().collect();
        let run = ModuleRun::start(&self.driver, call.module, call.op, &tensors, call.push, call.groups)?;
        Ok(Box::new(GpuModuleRun(run)))
    }

    fn source(&self, kernel: &Kernel) -> Result<Option<KernelSource>, Error> {
        Ok(Some(self.driver.source(kernel, self.checked)?))
    }
}

/// Lowers for a device as it has proved to be. Checks are part of SPIR-V: a checked program has no kernel that is PTX only.
fn program_of<D: Driver>(
    driver: &Arc<D>,
    compiled: &Compiled,
    tuning: &Record,
    states: &[(usize, usize)],
    checked: bool,
) -> Result<Program, Error> {
    let program = proven(driver, |caps| {
        let mut caps = caps.clone();
        caps.target.warpgroups &= !checked;
        lower(compiled, &caps, tuning, states)
    });
    Ok(program?)
}

fn lowered(program: &Program) -> Lowered {
    let mut branches = Work::branches(program).into_iter();
    let step = |(dispatch, work): (&olivine_gpu::Dispatch, Work)| LoweredStep {
        node: dispatch.node.to_string(),
        op: dispatch.op,
        kernel: program.kernel(dispatch).name.clone(),
        work,
        inner: Vec::new(),
        branch: branches.next().flatten(),
        site: Site::Device,
    };
    let bytes = |ports: &[olivine_gpu::Port]| ports.iter().map(|port| port.ty.bytes() as u64).sum();
    Lowered {
        steps: program.run.iter().zip(Work::of_program(program)).map(step).collect(),
        fusions: program.fusions.clone(),
        width: 1,
        submissions: 1,
        sent: bytes(&program.inputs),
        received: bytes(&program.outputs),
    }
}

struct GpuModel<D: Driver> {
    driver: Arc<D>,
    tuning: Arc<Record>,
    checked: bool,
    weights: Arc<Weights<D>>,
}

impl<D: Driver> Model for GpuModel<D> {
    fn set_param(&self, name: &str, tensor: Tensor) {
        self.weights.set(name, tensor);
    }

    fn upload_param(&self, name: &str, tensor: Tensor) -> Result<(), Error> {
        Ok(self.weights.upload(&self.driver, name, &tensor)?)
    }

    fn prepare(&self, compiled: &Compiled, states: &[(usize, usize)]) -> Result<Arc<dyn Prepared>, Error> {
        let program = program_of(&self.driver, compiled, &self.tuning, states, self.checked)?;
        let outputs = program.outputs.iter().map(|p| (p.name.clone(), p.ty)).collect();
        let (driver, weights) = (self.driver.clone(), self.weights.clone());
        let executable = Arc::new(Executable::new(driver, program, weights, self.checked)?);
        let (driver, states) = (self.driver.clone(), states.to_vec());
        Ok(Arc::new(GpuPrepared { driver, executable, outputs, states }))
    }
}

struct GpuPrepared<D: Driver> {
    driver: Arc<D>,
    executable: Arc<Executable<D>>,
    outputs: Vec<(String, TensorType)>,
    /// Inputs with the outputs that are in their bytes.
    states: Vec<(usize, usize)>,
}

impl<D: Driver> Prepared for GpuPrepared<D> {
    fn lowered(&self) -> Lowered {
        lowered(self.executable.program())
    }

    fn recordings(&self) -> usize {
        self.executable.recordings()
    }

    #[cfg(feature = "async")]
    fn replays(&self, inputs: &[Input<'_>], takes: &[Take]) -> bool {
        self.typed(inputs).is_ok_and(|inputs| self.executable.replays(&inputs, takes))
    }

    #[cfg(feature = "async")]
    fn evict(&self) -> bool {
        self.executable.evict()
    }

    fn outputs(&self) -> &[(String, TensorType)] {
        &self.outputs
    }

    fn for_sizes(&self, sizes: &Bindings) -> Result<Option<Arc<dyn Prepared>>, Error> {
        if self.executable.program().sizing.is_none() {
            return Ok(None);
        }
        let executable = Arc::new(self.executable.for_sizes(sizes)?);
        let outputs = executable.outputs().iter().map(|p| (p.name.clone(), p.ty)).collect();
        let (driver, states) = (self.driver.clone(), self.states.clone());
        Ok(Some(Arc::new(GpuPrepared { driver, executable, outputs, states })))
    }

    fn load(&self) -> Result<(), Error> {
        Ok(self.executable.load()?)
    }

    fn run(&self, inputs: &[Input<'_>], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        let takes = vec![Take::Host; self.outputs.len()];
        Ok(self.executable.start(&self.typed(inputs)?, &takes)?.wait_into(outputs)?)
    }

    fn start(&self, inputs: &[Input<'_>], takes: &[Take]) -> Result<Box<dyn InFlight>, Error> {
        let run = self.executable.start(&self.typed(inputs)?, takes)?;
        let types = self.outputs.iter().map(|(_, ty)| *ty).collect();
        Ok(Box::new(GpuRun { run, types, takes: takes.to_vec() }))
    }

    fn run_with_state(
        &self,
        inputs: &[Option<Input<'_>>],
        states: &mut [StatePart<'_>],
    ) -> Result<Vec<Data>, Error> {
        let mut run = self.begin(inputs, states)?;
        let results = run.wait()?;
        self.replace(states, run.as_mut())?;
        Ok(results)
    }

    fn start_with_state(
        &self,
        inputs: &[Option<Input<'_>>],
        states: &mut [StatePart<'_>],
    ) -> Result<Box<dyn InFlight>, Error> {
        let mut run = self.begin(inputs, states)?;
        self.replace(states, run.as_mut())?;
        Ok(run)
    }

    fn profile(&self, inputs: &[Input<'_>]) -> Result<Vec<StepTime>, Error> {
        let times = self.executable.profile(&self.typed(inputs)?)?;
        let step = |t: olivine_gpu::DispatchTime| StepTime {
            node: t.node,
            op: t.op,
            kernel: t.kernel,
            start: t.start,
            time: t.time,
            flops: t.flops,
            bytes: t.bytes,
        };
        Ok(times.into_iter().map(step).collect())
    }

    fn time(&self, inputs: &[Input<'_>], runs: u32) -> Result<(Duration, Vec<DeviceTensor>), Error> {
        let (time, outputs) = self.executable.time(&self.typed(inputs)?, runs)?;
        Ok((time, outputs.into_iter().map(resident).collect()))
    }
}

/// Outputs with the driver's type forgotten.
fn resident<D: Driver>(tensor: olivine_gpu::DeviceTensor<D>) -> DeviceTensor {
    DeviceTensor::new(tensor.ty(), Arc::new(OnGpu(tensor)))
}

struct GpuRun<D: Driver> {
    run: Run<D>,
    types: Vec<TensorType>,
    takes: Vec<Take>,
}

impl<D: Driver> InFlight for GpuRun<D> {
    fn wait(&mut self) -> Result<Vec<Data>, Error> {
        self.run.finish()?;
        let size = |(ty, take): (&TensorType, &Take)| match take {
            Take::Host => Data::zeros(ty.dtype, ty.shape.numel()),
            Take::Device => Data::zeros(ty.dtype, 0),
        };
        let mut results = self.types.iter().zip(&self.takes).map(size).collect::<Result<Vec<_>, _>>()?;
        let run = &mut self.run;
        write_results(&mut results.iter_mut().collect::<Vec<_>>(), |targets| Ok(run.copy_outputs(targets)?))?;
        Ok(results)
    }

    fn is_done(&mut self) -> Result<bool, Error> {
        Ok(self.run.is_done()?)
    }

    fn poll_done(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.run.poll_done(context).map_err(Error::from)
    }

    fn output(&mut self, i: usize) -> Result<DeviceTensor, Error> {
        Ok(resident(self.run.output(i).ok_or(Error::OtherDevice)?))
    }
}

/// A dispatch of a user's module; it has no outputs but the tensors that it writes.
struct GpuModuleRun<D: Driver>(ModuleRun<D>);

impl<D: Driver> InFlight for GpuModuleRun<D> {
    fn wait(&mut self) -> Result<Vec<Data>, Error> {
        self.0.finish()?;
        Ok(Vec::new())
    }

    fn is_done(&mut self) -> Result<bool, Error> {
        Ok(self.0.is_done()?)
    }

    fn output(&mut self, _: usize) -> Result<DeviceTensor, Error> {
        Err(Error::WorkerDied)
    }
}

/// A tensor in a driver's memory.
struct OnGpu<D: Driver>(olivine_gpu::DeviceTensor<D>);

impl<D: Driver> Resident for OnGpu<D> {
    fn read(&self, elements: Range<usize>, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.0.read_elements(elements, into)?)
    }

    #[cfg(any(feature = "async", feature = "onnx"))]
    fn read_async<'a>(&'a self, elements: Range<usize>, into: &'a mut [u8]) -> Later<'a> {
        Box::pin(async move { Ok(self.0.read_elements_async(elements, into).await?) })
    }

    fn write(&mut self, first: usize, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.0.write(first, bytes)?)
    }

    fn copy(&self) -> Result<DeviceTensor, Error> {
        Ok(resident(self.0.copy()?))
    }

    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    fn reinterpret(&self, ty: TensorType) -> Result<DeviceTensor, Error> {
        Ok(resident(self.0.reinterpret(ty)?))
    }

    fn with_prefix(&self, prefix: &DeviceTensor) -> Result<DeviceTensor, Error> {
        match prefix.downcast::<OnGpu<D>>() {
            Some(prefix) if prefix.0.is_of(self.0.driver()) => Ok(resident(self.0.with_prefix(&prefix.0)?)),
            _ => Err(Error::OtherDevice),
        }
    }

    fn upload(&self, ty: TensorType, bytes: &[u8]) -> Result<DeviceTensor, Error> {
        Ok(resident(olivine_gpu::DeviceTensor::upload(self.0.driver(), ty, bytes)?))
    }

    fn poison(&self) -> Result<(), Error> {
        Ok(self.0.write(0, &memory::filled(0xff, self.0.ty().bytes())?)?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl<D: Driver> GpuPrepared<D> {
    /// Begins a run on a state, which is the input where `inputs` has none.
    fn begin(
        &self,
        inputs: &[Option<Input<'_>>],
        states: &[StatePart<'_>],
    ) -> Result<Box<dyn InFlight>, Error> {
        let mut takes = vec![Take::Host; self.outputs.len()];
        let mut of_states: Vec<Option<&DeviceTensor>> = vec![None; inputs.len()];
        for state in states {
            takes.get_mut(state.output).into_iter().for_each(|take| *take = Take::Device);
            let input = state.input.and_then(|input| of_states.get_mut(input));
            input.into_iter().for_each(|input| *input = Some(&*state.tensor));
        }
        let all =
            inputs.iter().zip(&of_states).filter_map(|(input, state)| input.or(state.map(Input::Device)));
        self.start(&all.collect::<Vec<_>>(), &takes)
    }

    /// Makes the outputs of a run the state, but those that are in the state's own bytes.
    fn replace(&self, states: &mut [StatePart<'_>], run: &mut dyn InFlight) -> Result<(), Error> {
        for state in states {
            let in_place = state.input.is_some_and(|input| self.states.contains(&(input, state.output)));
            if !in_place {
                *state.tensor = run.output(state.output)?;
            }
        }
        Ok(())
    }

    /// The inputs with the driver's type known again.
    #[allow(clippy::type_complexity, reason = "inputs of the executable")]
    fn typed<'a>(
        &self,
        inputs: &[Input<'a>],
    ) -> Result<Vec<olivine_gpu::Input<'a, olivine_gpu::DeviceTensor<D>>>, Error> {
        let typed = |input: &Input<'a>| match input {
            Input::Host(view) => Ok(olivine_gpu::Input::Host(*view)),
            Input::Device(tensor) => match tensor.downcast::<OnGpu<D>>() {
                Some(on_gpu) if on_gpu.0.is_of(&self.driver) => Ok(olivine_gpu::Input::Device(&on_gpu.0)),
                _ => Err(Error::OtherDevice),
            },
        };
        inputs.iter().map(typed).collect()
    }
}
