//! The CPU as an engine.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use olivine_compile::Compiled;
use olivine_cpu::{Executable, Threads, Weights};
use olivine_gpu::{Record, Take};
use olivine_ir::{Data, Recycler, Tensor, TensorType, TensorView};
use olivine_kernel::Kernel;

use super::{DeviceTensor, Engine, Given, InFlight, KernelSource, Model, Prepared, Resident, StepTime};
use crate::Error;
use crate::executable::{write_results, zeros};

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
        let tensor = Tensor::from_data(ty.shape, Data::from_bytes(ty.dtype, bytes)?)?;
        Ok(DeviceTensor::new(ty, Arc::new(Held(tensor))))
    }

    fn describe(&self) -> String {
        olivine_cpu::processor_name()
    }

    fn program(&self, _: &Compiled) -> Result<Option<olivine_gpu::Program>, Error> {
        Ok(None)
    }

    fn source(&self, _: &Kernel) -> Result<Option<KernelSource>, Error> {
        Ok(None)
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

    fn prepare(&self, compiled: &Compiled, _: &[(usize, usize)]) -> Result<Arc<dyn Prepared>, Error> {
        let executable = Arc::new(Executable::new(compiled, self.weights.clone(), self.checked)?);
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
    fn outputs(&self) -> &[(String, TensorType)] {
        self.executable.outputs()
    }

    fn recycler(&self) -> Option<&Arc<Recycler>> {
        Some(&self.recycler)
    }

    fn keeps_state(&self) -> bool {
        false
    }

    fn load(&self) -> Result<(), Error> {
        Ok(self.threads.install(|| self.executable.load())?)
    }

    fn run(&self, inputs: &[Given<'_>], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        let views = views(inputs)?;
        Ok(self.threads.install(|| self.executable.run(&views, outputs))?)
    }

    fn start(&self, inputs: &[Given<'_>], takes: &[Take]) -> Result<Box<dyn InFlight>, Error> {
        let tensors = views(inputs)?.iter().map(TensorView::to_tensor).collect::<Result<Vec<Tensor>, _>>()?;
        let (threads, executable) = (self.threads.clone(), self.executable.clone());
        let work = move || {
            let mut results: Vec<Vec<u8>> =
                executable.outputs().iter().map(|(_, ty)| vec![0; ty.bytes()]).collect();
            // Results are written as words of their type; bytes of a fresh vector need not be aligned for that.
            let mut words: Vec<Vec<u64>> = results.iter().map(|r| vec![0u64; r.len().div_ceil(8)]).collect();
            {
                let mut targets: Vec<&mut [u8]> = words
                    .iter_mut()
                    .zip(&results)
                    .map(|(w, r)| &mut bytemuck::cast_slice_mut(w)[..r.len()])
                    .collect();
                let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::view).collect();
                threads.install(|| executable.run(&views, &mut targets))?;
            }
            for (result, words) in results.iter_mut().zip(&words) {
                let len = result.len();
                result.copy_from_slice(&bytemuck::cast_slice(words)[..len]);
            }
            Ok(results)
        };
        let types = self.outputs().iter().map(|(_, ty)| *ty).collect();
        let takes = takes.to_vec();
        Ok(Box::new(CpuRun { worker: Some(std::thread::spawn(work)), results: Vec::new(), types, takes }))
    }

    fn profile(&self, inputs: &[Given<'_>]) -> Result<Vec<StepTime>, Error> {
        let views = views(inputs)?;
        let mut results = zeros(self.outputs());
        let mut times = Vec::new();
        write_results(&mut results.iter_mut().collect::<Vec<_>>(), |targets| {
            times = self.threads.install(|| self.executable.profile(&views, targets))?;
            Ok(())
        })?;
        let mut start = Duration::ZERO;
        let step = |t: olivine_cpu::StepTime| {
            let began = start;
            start += t.time;
            let kernel = t.op.to_string();
            StepTime { node: t.node, op: t.op, kernel, start: began, time: t.time, flops: 0, bytes: 0 }
        };
        Ok(times.into_iter().map(step).collect())
    }

    fn time(&self, inputs: &[Given<'_>], runs: u32) -> Result<(Duration, Vec<DeviceTensor>), Error> {
        let mut results = zeros(self.outputs());
        let began = Instant::now();
        for _ in 0..runs.max(1) {
            write_results(&mut results.iter_mut().collect::<Vec<_>>(), |targets| self.run(inputs, targets))?;
        }
        let time = began.elapsed() / runs.max(1);
        let types = self.outputs().iter().map(|(_, ty)| *ty);
        let hold = |(ty, data): (TensorType, Data)| {
            let held = Held(Tensor::from_data(ty.shape, data)?);
            Ok(DeviceTensor::new(ty, Arc::new(held)))
        };
        Ok((time, types.zip(results).map(hold).collect::<Result<_, Error>>()?))
    }
}

/// A run on a thread of its own.
struct CpuRun {
    worker: Option<JoinHandle<Result<Vec<Vec<u8>>, olivine_cpu::Error>>>,
    results: Vec<Vec<u8>>,
    types: Vec<TensorType>,
    takes: Vec<Take>,
}

impl CpuRun {
    fn finish(&mut self) -> Result<(), Error> {
        if let Some(worker) = self.worker.take() {
            self.results = worker.join().map_err(|_| Error::WorkerDied)??;
        }
        Ok(())
    }
}

impl InFlight for CpuRun {
    fn wait_into(&mut self, outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        self.finish()?;
        for ((take, result), to) in self.takes.iter().zip(&self.results).zip(outputs) {
            if *take == Take::Host && to.len() == result.len() {
                to.copy_from_slice(result);
            }
        }
        Ok(())
    }

    fn output(&mut self, i: usize) -> Result<DeviceTensor, Error> {
        self.finish()?;
        let (Some(ty), Some(bytes)) = (self.types.get(i), self.results.get(i)) else {
            return Err(Error::WorkerDied);
        };
        let tensor = Tensor::from_data(ty.shape, Data::from_bytes(ty.dtype, bytes)?)?;
        Ok(DeviceTensor::new(*ty, Arc::new(Held(tensor))))
    }
}

/// A tensor of the host; the CPU's device memory.
struct Held(Tensor);

impl Resident for Held {
    fn read(&self, elements: Range<usize>, into: &mut [u8]) -> Result<(), Error> {
        let size = self.0.dtype().size();
        if let Some(from) = self.0.bytes().get(elements.start * size..elements.end * size) {
            into.copy_from_slice(from);
        }
        Ok(())
    }

    fn spoil(&self) -> Result<(), Error> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn views<'a>(inputs: &'a [Given<'_>]) -> Result<Vec<TensorView<'a>>, Error> {
    inputs
        .iter()
        .map(|given| match given {
            Given::View(view) => Ok(*view),
            Given::Own(tensor) => Ok(tensor.view()),
            Given::Resident(tensor) => {
                let held = tensor.downcast::<Held>().ok_or(Error::OtherDevice)?;
                Ok(held.0.view())
            }
        })
        .collect()
}
