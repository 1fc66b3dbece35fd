//! The inside of the library: for its command line, tests and benchmarks. Nothing here is stable; a minor version may change
//! or remove it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use olivine_compile::Compiled;
use olivine_cpu::HostBytes;
use olivine_gpu::{DeviceCaps, Finding, Mask, Program, Ptx, Record, Tuning, tuning_file};
use olivine_ir::Graph;
use olivine_kernel::{BoundModule, Kernel};

#[cfg(feature = "onnx")]
use crate::Model;
use crate::cost::{Calibration, Prediction};
use crate::engine::ModuleDispatch;
use crate::executable::{HostOps, check_names};
use crate::{DeviceTensor, Error, Executable, Input, ResidentOutputs, ResidentRun, Session, SessionOptions};

pub use crate::engine::{Branch, Lowered, LoweredStep, Site};
pub use olivine_compile as compile;
pub use olivine_cpu as cpu;
pub use olivine_gpu as gpu;
pub use olivine_gpu::KernelSource;
pub use olivine_ir as ir;
pub use olivine_kernel as kernel;
#[cfg(feature = "onnx")]
pub use olivine_onnx as onnx;

/// Models built in Rust, with seeded weights or with those of a folder.
pub mod models {
    pub use crate::models::{
        Bert, BertSizes, CacheType, CausalLm, Decoder, DecoderGraph, DecoderOptions, Encoder, PAGE, Pooling,
        RecurrentState, seeded_input, seeded_params,
    };
}

/// The compiler's stages, programs and kernels of a session's device, and its record of measured choices.
pub trait SessionExt {
    /// The compiler's stages for a graph.
    fn explain(&self, graph: &Graph) -> Result<Compiled, Error>;

    /// The program that a compiled graph becomes on a GPU; `None` on the CPU.
    fn program(&self, compiled: &Compiled) -> Result<Option<Program>, Error>;

    /// The kernel calls that a compiled graph becomes on the session's device, and what lowering joined.
    fn lowered(&self, compiled: &Compiled) -> Result<Lowered, Error>;

    /// The kernel calls of a graph whose named operations run on the host, with the copies in between; an error that lists its
    /// operations where it has none of a name. On the CPU all runs on the host.
    fn lowered_with_host_ops(&self, graph: &Graph, names: &[String]) -> Result<Lowered, Error>;

    /// What a run of a compiled graph will take; a device that has no calibration is measured.
    fn predict_compiled(&self, compiled: &Compiled) -> Result<Prediction, Error>;

    /// A kernel of a program as the driver is given it; `None` on the CPU.
    fn kernel_source(&self, kernel: &Kernel) -> Result<Option<KernelSource>, Error>;

    /// Tries every shape of cooperative matrices that the device offers. Programs do this by themselves for what they use,
    /// once in a process, and leave out what is wrong, with a [warning](crate#warnings-and-progress).
    fn try_matrices(&self) -> Result<Vec<Finding>, Error>;

    /// What a GPU can do; `None` on the CPU.
    fn caps(&self) -> Option<&DeviceCaps>;

    /// Begins a dispatch of a user's module over bindings on tensors, which it writes in place; what else holds their
    /// memory sees that.
    fn dispatch_module(
        &self,
        module: &Arc<BoundModule>,
        op: Option<u32>,
        tensors: &[&DeviceTensor],
        push: &[u8],
        groups: [u32; 3],
    ) -> Result<ResidentRun, Error>;

    /// The record of measured choices in use; `None` on the CPU.
    fn tuning(&self) -> Option<&Arc<Record>>;

    /// Parts of this machine's record of measured choices that cannot be read and are left out.
    fn tuning_notes(&self) -> &[String];

    /// Adds measured choices to this machine's record for the device, which sessions opened later are tuned by. Returns
    /// the file, or `None` where there is none: on the CPU, and without a folder of built pipelines.
    fn save_tuning(&self, lines: &Record) -> Result<Option<PathBuf>, Error>;
}

impl SessionExt for Session {
    fn explain(&self, graph: &Graph) -> Result<Compiled, Error> {
        self.inner.check()?;
        self.inner.compile(graph, true)
    }

    fn program(&self, compiled: &Compiled) -> Result<Option<Program>, Error> {
        self.inner.check()?;
        self.inner.engine.program(compiled)
    }

    fn lowered(&self, compiled: &Compiled) -> Result<Lowered, Error> {
        self.inner.check()?;
        self.inner.engine.lowered(compiled)
    }

    fn lowered_with_host_ops(&self, graph: &Graph, names: &[String]) -> Result<Lowered, Error> {
        self.inner.check()?;
        check_names(names, &[graph])?;
        let host = HostOps::new(self, names)?;
        let in_parts = host.map(|host| host.lowered(self, graph)).transpose()?.flatten();
        in_parts.map_or_else(|| self.inner.engine.lowered(&self.inner.compile(graph, false)?), Ok)
    }

    fn predict_compiled(&self, compiled: &Compiled) -> Result<Prediction, Error> {
        self.inner.check()?;
        let calibration = Calibration::load_or_measure(self)?;
        Ok(calibration.predict(&self.inner.engine.lowered(compiled)?, None))
    }

    fn kernel_source(&self, kernel: &Kernel) -> Result<Option<KernelSource>, Error> {
        self.inner.check()?;
        self.inner.engine.source(kernel)
    }

    fn try_matrices(&self) -> Result<Vec<Finding>, Error> {
        self.inner.check()?;
        self.inner.engine.try_matrices()
    }

    fn caps(&self) -> Option<&DeviceCaps> {
        self.inner.engine.caps()
    }

    fn dispatch_module(
        &self,
        module: &Arc<BoundModule>,
        op: Option<u32>,
        tensors: &[&DeviceTensor],
        push: &[u8],
        groups: [u32; 3],
    ) -> Result<ResidentRun, Error> {
        self.inner.check()?;
        let run = self.inner.engine.dispatch_module(&ModuleDispatch { module, op, tensors, push, groups })?;
        Ok(ResidentRun::new(run, Vec::new()))
    }

    fn tuning(&self) -> Option<&Arc<Record>> {
        self.inner.engine.tuning()
    }

    fn tuning_notes(&self) -> &[String] {
        &self.inner.notes
    }

    fn save_tuning(&self, lines: &Record) -> Result<Option<PathBuf>, Error> {
        let Some((caps, folder)) = self.caps().zip(self.inner.folder.as_ref()) else { return Ok(None) };
        let path = tuning_file(caps, folder.path());
        let failed = |source| Error::Tuning { path, source };
        Ok(Some(Tuning::save(caps, folder, lines).map_err(failed)?))
    }
}

/// Times on the device, graphs and memory of an executable.
pub trait ExecutableExt {
    /// Runs so many times in a row and returns how long all kernels of the last graph together took on the device (from
    /// call to return on the CPU), running as they do untimed: a run's share. The outputs stay on the device, by name.
    fn time<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        runs: u32,
    ) -> Result<(Duration, ResidentOutputs), Error>;

    /// The last graph of a run on these inputs, compiled.
    fn graph_for<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Graph, Error>;

    /// Bytes on the CPU for each of [`Executable::graphs`] at the sizes compiled last. `None` on a GPU.
    fn host_bytes(&self) -> Vec<Option<HostBytes>>;

    /// For every import of a model and every plan of every graph what sizes it holds for: guards, each with the line that
    /// asked.
    fn guards(&self) -> Vec<Vec<String>>;
}

impl ExecutableExt for Executable {
    fn time<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
        runs: u32,
    ) -> Result<(Duration, ResidentOutputs), Error> {
        self.time_runs(inputs, runs)
    }

    fn graph_for<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Graph, Error> {
        self.last_graph(inputs)
    }

    fn host_bytes(&self) -> Vec<Option<HostBytes>> {
        self.compiled_graphs().iter().map(|graph| graph.host_bytes()).collect()
    }

    fn guards(&self) -> Vec<Vec<String>> {
        let mut guards = self.import_guards();
        guards.extend(self.compiled_graphs().iter().flat_map(|graph| graph.guards()));
        guards
    }
}

/// A model's file.
#[cfg(feature = "onnx")]
pub trait ModelExt {
    /// The ONNX model, of a model that is one.
    fn onnx(&self) -> Option<&olivine_onnx::Model>;
}

#[cfg(feature = "onnx")]
impl ModelExt for Model {
    fn onnx(&self) -> Option<&olivine_onnx::Model> {
        self.onnx_file()
    }
}

/// Memory of a tensor on the device.
pub trait DeviceTensorExt {
    /// Sets all its bits (floats become NaNs), so that what a later run into the same memory leaves unwritten shows. Runs
    /// write into the memory of outputs that nobody holds any more; on the CPU every run has fresh memory and this does
    /// nothing. No run that uses the tensor may be in flight.
    fn poison(&self) -> Result<(), Error>;

    /// Whether others may hold the same memory, so that writing to it in place would show there.
    fn is_shared(&self) -> bool;
}

impl DeviceTensorExt for DeviceTensor {
    fn poison(&self) -> Result<(), Error> {
        self.fill_with_ones()
    }

    fn is_shared(&self) -> bool {
        self.may_be_shared()
    }
}

/// Switches for tests and comparisons.
pub trait OptionsExt {
    /// Runs every operation by itself, to compare with the fused graph.
    fn no_fusion(self, no_fusion: bool) -> Self;

    /// On the CPU, rounds f16 and bf16 after every operation as GPUs do, instead of keeping results in f32 between
    /// operations.
    fn round_every_op(self, round_every_op: bool) -> Self;

    /// Leaves out features of a GPU.
    fn without(self, without: Mask) -> Self;

    /// On wgpu, uses only what browsers offer.
    fn browser_dialect(self, browser_dialect: bool) -> Self;

    /// On Vulkan, which kernels are launched as PTX where NVIDIA's driver takes it.
    fn ptx(self, ptx: Ptx) -> Self;

    /// Whether only what browsers offer is used.
    fn is_browser_dialect(&self) -> bool;

    /// On wgpu over Vulkan, uses WGSL instead of SPIR-V.
    fn wgsl(self, wgsl: bool) -> Self;
}

impl OptionsExt for SessionOptions {
    fn no_fusion(self, no_fusion: bool) -> Self {
        SessionOptions { no_fusion, ..self }
    }

    fn round_every_op(self, round_every_op: bool) -> Self {
        SessionOptions { round_every_op, ..self }
    }

    fn without(self, without: Mask) -> Self {
        SessionOptions { without, ..self }
    }

    fn browser_dialect(self, browser_dialect: bool) -> Self {
        SessionOptions { browser_dialect, ..self }
    }

    fn ptx(self, ptx: Ptx) -> Self {
        SessionOptions { ptx, ..self }
    }

    fn is_browser_dialect(&self) -> bool {
        self.browser_dialect
    }

    fn wgsl(self, wgsl: bool) -> Self {
        SessionOptions { wgsl, ..self }
    }
}
