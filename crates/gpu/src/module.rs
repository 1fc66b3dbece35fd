//! Dispatches of modules that users bring, whose buffers are in bindings.

use std::sync::Arc;

use olivine_kernel::BoundModule;
use olivine_program::{Driver, Error, ModuleCall};

use crate::DeviceTensor;

/// A dispatch in flight. Dropping it waits for its end.
pub struct ModuleRun<D: Driver> {
    driver: Arc<D>,
    /// It keeps the buffers alive. Their tensors may go: who is given the memory next runs later on the same queue.
    recording: D::Recording,
}

impl<D: Driver> ModuleRun<D> {
    /// Submits a dispatch on tensors, which it may write in place, and returns at once.
    pub fn start(
        driver: &Arc<D>,
        module: &Arc<BoundModule>,
        op: Option<u32>,
        tensors: &[&DeviceTensor<D>],
        push: &[u8],
        groups: [u32; 3],
    ) -> Result<Self, Error> {
        if tensors.iter().any(|tensor| !tensor.is_of(driver)) {
            return Err(Error::OtherDevice { what: "a binding of a module".into() });
        }
        let buffers: Vec<(Arc<D::Buffer>, u64)> =
            tensors.iter().map(|tensor| (tensor.buffer().clone(), tensor.ty().bytes() as u64)).collect();
        let call = ModuleCall { module, op, buffers: &buffers, push, groups };
        let mut recording = driver.record_module(&call)?;
        driver.submit(&mut recording)?;
        Ok(ModuleRun { driver: driver.clone(), recording })
    }

    /// Whether it has ended, without waiting for that.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.driver.is_done(&self.recording)
    }

    /// Waits for the end.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.driver.wait(&mut self.recording)
    }
}
