//! GPU programs run through wgpu: Vulkan, Metal, Direct3D 12 and the browser's WebGPU.
//!
//! ```text
//!   device    adapters, choice, capabilities      record    bind groups, params, read-back buffers
//!   memory    buffers, host reads and writes      submit    encoding, submission, waiting, reports
//!   patch     writes of parts of words            time      timestamps
//!   pipeline  kernels printed, built and kept     error     scopes, lost devices
//!   vulkan    facts of the device under wgpu
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
//!     println!("{}: {} ({})", adapter.index, adapter.caps.name, adapter.api);
//! }
//! let device = Device::open(Select::Auto, Options::default())?;
//! let buffer = device.allocate(1024, "scratch")?;
//! device.write(&buffer, 0, &[1; 1024])?;
//! # Ok::<(), olivine_program::Error>(())
//! ```
#![deny(unsafe_code)]

mod device;
mod error;
mod memory;
mod patch;
mod pipeline;
mod record;
mod submit;
mod time;
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
mod vulkan;

use std::sync::Arc;
use std::time::Duration;

use olivine_kernel::Kernel;
use olivine_program::{Commands, DeviceCaps, Driver, Error};

#[cfg(not(target_arch = "wasm32"))]
pub use device::devices;
pub use device::{AdapterReport, Device, Options, Select, devices_async};
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
        self.allocate_now(bytes, label, wgpu::BufferUsages::empty())
    }

    fn allocate_gates(&self, bytes: u64, label: &str) -> Result<Arc<Buffer>, Error> {
        self.allocate_now(bytes, label, wgpu::BufferUsages::INDIRECT)
    }

    fn write(&self, buffer: &Arc<Buffer>, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.write_now(buffer, offset, bytes)
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn read(&self, buffer: &Arc<Buffer>, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.read_now(buffer, offset, into)
    }

    #[cfg(target_arch = "wasm32")]
    fn read(&self, _: &Arc<Buffer>, _: u64, _: &mut [u8]) -> Result<(), Error> {
        Err(cannot_block("read"))
    }

    fn copy(&self, from: &Arc<Buffer>, to: &Arc<Buffer>, bytes: u64) -> Result<(), Error> {
        self.copy_now(from, to, bytes)
    }

    fn pipelines(&self, kernels: &[Arc<Kernel>], checked: bool) -> Result<Vec<Arc<Pipeline>>, Error> {
        self.pipelines_now(kernels, checked)
    }

    fn record(&self, commands: Commands<'_, Self>) -> Result<Recording, Error> {
        self.record_now(&commands)
    }

    fn upload(&self, recording: &mut Recording, i: usize, bytes: &[u8]) -> Result<(), Error> {
        self.upload_now(recording, i, bytes)
    }

    fn submit(&self, recording: &mut Recording) -> Result<(), Error> {
        self.submit_now(recording)
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn wait(&self, recording: &mut Recording) -> Result<(), Error> {
        self.wait_now(recording)
    }

    #[cfg(target_arch = "wasm32")]
    fn wait(&self, _: &mut Recording) -> Result<(), Error> {
        Err(cannot_block("wait"))
    }

    fn download(&self, recording: &mut Recording, i: usize, into: &mut [u8]) -> Result<(), Error> {
        self.download_now(recording, i, into)
    }

    fn times(&self, recording: &mut Recording) -> Result<Vec<(Duration, Duration)>, Error> {
        self.times_now(recording)
    }
}

#[cfg(target_arch = "wasm32")]
fn cannot_block(call: &'static str) -> Error {
    Error::Driver { call, problem: format!("a browser cannot block: use `{call}_async`") }
}
