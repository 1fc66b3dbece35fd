//! A session: a device, and the executables compiled for it.

use std::sync::Arc;

use olivine_compile::{Compiled, Options, compile};
use olivine_cpu::{CpuEvaluator, Threads};
use olivine_ir::Graph;

use crate::device::unavailable_reason;
use crate::{Device, Error, Executable};

/// Options of a session; the defaults are right for most.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// Threads on the CPU; one per core when not given.
    pub threads: Option<usize>,
    /// Report run-time indices out of range as errors instead of clamping reads and dropping writes.
    pub checked: bool,
    /// Run every operation by itself, to compare with the fused graph.
    pub no_fusion: bool,
}

/// A device ready to compile for; clones share it.
///
/// ```
/// use olivine::prelude::*;
/// let session = Session::new(Device::auto()?)?;
/// # Ok::<(), olivine::Error>(())
/// ```
#[derive(Clone)]
pub struct Session {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    device: Device,
    options: SessionOptions,
    pub(crate) threads: Threads,
}

impl Session {
    /// Opens a device.
    pub fn new(device: Device) -> Result<Self, Error> {
        Session::with_options(device, SessionOptions::default())
    }

    /// Opens a device with options.
    pub fn with_options(device: Device, options: SessionOptions) -> Result<Self, Error> {
        if let Some(reason) = unavailable_reason(&device) {
            return Err(Error::Unavailable { device: device.to_string(), reason });
        }
        let threads = Threads::new(options.threads)?;
        Ok(Session { inner: Arc::new(Inner { device, options, threads }) })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Compiles a graph; params are set on the result.
    pub fn compile(&self, graph: &Graph) -> Result<Executable, Error> {
        Executable::new(self.clone(), graph.clone())
    }

    /// The compiler's stages for a graph, for inspection.
    pub fn explain(&self, graph: &Graph) -> Result<Compiled, Error> {
        self.inner.compile(graph, true)
    }
}

impl Inner {
    pub(crate) fn compile(&self, graph: &Graph, keep_stages: bool) -> Result<Compiled, Error> {
        let options =
            Options { evaluator: Some(&CpuEvaluator), no_fusion: self.options.no_fusion, keep_stages };
        Ok(compile(graph, &options)?)
    }

    pub(crate) fn checked(&self) -> bool {
        self.options.checked
    }
}
