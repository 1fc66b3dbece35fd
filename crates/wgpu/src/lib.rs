//! GPU programs run through wgpu: Vulkan, Metal, Direct3D 12 and the browser's WebGPU.
//!
//! ```text
//!   device    adapters, choice, capabilities      record    bind groups, params, read-back buffers
//!   memory    buffers, host reads and writes      submit    encoding, submission, waiting, reports
//!   patch     writes of parts of words            time      timestamps
//!   pipeline  kernels printed, built and cached     error     scopes, lost devices
//!   vulkan    facts of the device under wgpu      alias     bytes in two bindings of a dispatch
//!   matrices  subgroups and matrices of adapters
//! ```
//!
//! Over Vulkan kernels are our own SPIR-V, which says how floats are to be rounded and that NaN and subnormal numbers
//! count; naga's does not, and drivers make use of that. Elsewhere they are WGSL.
//!
//! Programs see it as an [`olivine_program::Driver`]. What blocks there (`read`, `wait`) has a twin here that does not
//! ([`Device::read_async`], [`Device::wait_async`]), which is the only way in a browser; so has what a browser refuses
//! only later ([`Device::allocate_async`], [`Device::pipelines_async`]).
//!
//! ```no_run
//! use olivine_program::Driver;
//! use olivine_wgpu::{Device, Options, Select};
//! for adapter in olivine_wgpu::devices() {
//!     println!("{}: {} ({})", adapter.index, adapter.caps.name, adapter.api.name());
//! }
//! let device = Device::open(Select::Auto, Options::default())?;
//! let buffer = device.allocate(1024, "scratch")?;
//! device.write(&buffer, 0, &[1; 1024])?;
//! # Ok::<(), olivine_program::Error>(())
//! ```
#![deny(unsafe_code)]

mod alias;
mod device;
mod error;
mod matrices;
mod memory;
mod patch;
mod pipeline;
mod record;
mod submit;
mod time;
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
mod vulkan;

use std::sync::Arc;
#[cfg(target_arch = "wasm32")]
use std::task::{Context, Poll};
use std::time::Duration;

use olivine_kernel::Kernel;
use olivine_program::{Commands, DeviceCaps, Driver, Error, KernelSource};

#[cfg(not(target_arch = "wasm32"))]
pub use device::devices;
pub use device::{AdapterReport, Api, Device, Options, Select, devices_async};
pub use memory::Buffer;
pub use pipeline::Pipeline;
pub use record::Recording;

impl Driver for Device {
    type Buffer = Buffer;
    type Pipeline = Pipeline;
    type Recording = Recording;

    fn caps(&self) -> &DeviceCaps {
        Device::caps(self)
    }

    fn allocate(&self, bytes: u64, label: &str) -> Result<Arc<Buffer>, Error> {
        self.allocate_for(bytes, label, wgpu::BufferUsages::empty())
    }

    fn allocate_gates(&self, bytes: u64, label: &str) -> Result<Arc<Buffer>, Error> {
        self.allocate_for(bytes, label, wgpu::BufferUsages::INDIRECT)
    }

    fn write(&self, buffer: &Arc<Buffer>, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        Device::write(self, buffer, offset, bytes)
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn read(&self, buffer: &Arc<Buffer>, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        Device::read(self, buffer, offset, into)
    }

    #[cfg(target_arch = "wasm32")]
    fn read(&self, _: &Arc<Buffer>, _: u64, _: &mut [u8]) -> Result<(), Error> {
        Err(cannot_block("read"))
    }

    fn copy(&self, from: &Arc<Buffer>, to: &Arc<Buffer>, bytes: u64) -> Result<(), Error> {
        Device::copy(self, from, to, bytes)
    }

    fn pipelines(&self, kernels: &[Arc<Kernel>], checked: bool) -> Result<Vec<Arc<Pipeline>>, Error> {
        Device::pipelines(self, kernels, checked)
    }

    fn record(&self, commands: Commands<'_, Self>) -> Result<Recording, Error> {
        Device::record(self, &commands)
    }

    fn upload(&self, recording: &mut Recording, i: usize, bytes: &[u8]) -> Result<(), Error> {
        Device::upload(self, recording, i, bytes)
    }

    fn submit(&self, recording: &mut Recording) -> Result<(), Error> {
        Device::submit(self, recording)
    }

    fn is_done(&self, recording: &Recording) -> Result<bool, Error> {
        Device::is_done(self, recording)
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn wait(&self, recording: &mut Recording) -> Result<(), Error> {
        Device::wait(self, recording)
    }

    #[cfg(target_arch = "wasm32")]
    fn wait(&self, _: &mut Recording) -> Result<(), Error> {
        Err(cannot_block("wait"))
    }

    #[cfg(target_arch = "wasm32")]
    fn read_async(
        &self,
        buffer: &Arc<Buffer>,
        offset: u64,
        into: &mut [u8],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        Device::read_async(self, buffer, offset, into)
    }

    #[cfg(target_arch = "wasm32")]
    fn poll_done(&self, recording: &mut Recording, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Device::poll_done(self, recording, context)
    }

    #[cfg(target_arch = "wasm32")]
    fn end_load(&self, _: &mut Recording) -> Result<(), Error> {
        self.faults.check("load", None)
    }

    #[cfg(target_arch = "wasm32")]
    fn watch(&self, calls: &mut dyn FnMut()) -> impl Future<Output = Result<(), Error>> + use<'_> {
        Device::watch(self, calls)
    }

    fn download(&self, recording: &mut Recording, i: usize, into: &mut [u8]) -> Result<(), Error> {
        Device::download(self, recording, i, into)
    }

    fn times(&self, recording: &mut Recording) -> Result<Vec<(Duration, Duration)>, Error> {
        Device::times(self, recording)
    }

    fn source(&self, kernel: &Kernel, checked: bool) -> Result<KernelSource, Error> {
        self.wgsl(kernel, checked).map(KernelSource::Wgsl)
    }
}

#[cfg(target_arch = "wasm32")]
fn cannot_block(call: &'static str) -> Error {
    Error::Driver { call, problem: format!("a browser cannot block: use `{call}_async`") }
}
