//! The Vulkan driver: everything that says `ash`.
//!
//! ```text
//!   instance ─ facts ─ report (devices, choice)      what there is
//!   context                                          the logical device; everything below keeps it alive
//!   memory ─ block ─ ranges     transfer ─ copy      device memory, and bytes between it and the host
//!   pipeline ─ cache                                 kernels built, in parallel, and cached on disk
//!   record ─ submit ─ run       time                 commands recorded once and replayed
//!   ptx                                              kernels as PTX beside SPIR-V, on NVIDIA's drivers
//!   module                                           users' modules over bindings
//! ```
//!
//! ```no_run
//! use olivine_program::Driver;
//! use olivine_vulkan::{Device, Options, Select};
//!
//! for device in olivine_vulkan::devices()? {
//!     println!("{device}");
//! }
//! let device = Device::open(&Select::Auto, &Options::default())?;
//! let buffer = device.allocate(4, "a word")?;
//! device.write(&buffer, 0, &7u32.to_le_bytes())?;
//! # Ok::<(), olivine_program::Error>(())
//! ```

mod block;
mod cache;
mod context;
mod copy;
mod error;
mod facts;
mod instance;
mod memory;
mod module;
mod pipeline;
mod ptx;
mod ranges;
mod record;
mod report;
mod run;
mod submit;
mod time;
mod transfer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use olivine_kernel::ptx::Capability;
use olivine_kernel::{Fragments, Kernel, Target};
use olivine_program::{Commands, DeviceCaps, Driver, KernelSource, ModuleCall, ask_fragments};
pub use olivine_program::{Mask, Ptx};

pub use olivine_program::Error;

pub use instance::Messages;
pub use memory::Buffer;
pub use pipeline::{Pipeline, Statistic};
pub use record::Recording;
pub use report::{DeviceReport, Heap, Select, devices};

use cache::Cache;
use context::Context;
use memory::Memory;
use module::Modules;
use pipeline::Pipelines;
use ptx::{Known, Outcome, Outcomes};
use transfer::Transfers;

/// How a device is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Features not to use.
    pub mask: Mask,
    /// Whether every call is checked by the validation layer, which must be installed.
    pub validation: bool,
    /// The folder of built pipelines, by default `olivine` in the user's cache folder; `None` keeps none. A folder that
    /// another user could write is not used.
    pub cache_dir: Option<PathBuf>,
    /// Whether dispatches and objects carry names for debuggers and profilers, and pipelines keep statistics.
    pub labels: bool,
    /// The most bytes of device memory to take; all that there is if `None`.
    pub memory_limit: Option<u64>,
    /// Which kernels are launched as PTX where the driver takes it.
    pub ptx: Ptx,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            mask: Mask::default(),
            validation: false,
            cache_dir: olivine_files::default_cache_dir(),
            labels: false,
            memory_limit: None,
            ptx: Ptx::default(),
        }
    }
}

/// An open device.
pub struct Device {
    caps: DeviceCaps,
    pipelines: Pipelines,
    transfers: Transfers,
    modules: Modules,
    memory: Arc<Memory>,
    context: Arc<Context>,
}

impl Device {
    /// Opens a device. Several may be open at once, also of the same hardware, and a new one after one was lost.
    pub fn open(select: &Select, options: &Options) -> Result<Self, Error> {
        let mut device = Device::open_with(select, options, None)?;
        if device.context.binary_import.is_none() {
            return Ok(device);
        }
        device.pipelines.launches_ptx = options.ptx == Ptx::All;
        let outcomes = Outcomes::open(&device.context, options.cache_dir.as_deref());
        match outcomes.as_ref().and_then(Outcomes::read) {
            Some(Known::Right { capability, warpgroups, int8_warpgroups }) => {
                device.caps.ptx = Some(capability);
                device.caps.target.warpgroups = warpgroups;
                device.caps.target.int8_warpgroups = int8_warpgroups;
                let masked = device.caps.clone().without(options.mask).target;
                device.caps.target.warpgroups = masked.warpgroups;
                device.caps.target.int8_warpgroups = masked.int8_warpgroups;
                return Ok(device);
            }
            Some(Known::Gone(problem)) => {
                tracing::warn!("{}: PTX is not used: {problem}, in an earlier process", device.caps.name);
                return Ok(device);
            }
            None => {}
        }
        // What a masked device does says nothing of the others.
        let outcomes = outcomes.filter(|_| options.mask == Mask::default());
        let keep = |known: Known| outcomes.iter().for_each(|outcomes| outcomes.write(&known));
        device.pipelines.launches_ptx = true;
        let outcome = device.try_ptx();
        device.pipelines.launches_ptx = options.ptx == Ptx::All;
        match outcome {
            Outcome::Right => {
                let Target { warpgroups, int8_warpgroups, .. } = device.caps.target;
                match device.caps.ptx {
                    // A failure may be one of this moment, such as of memory: it is tried again.
                    Some(Capability::HOPPER) if !(warpgroups && int8_warpgroups) => {}
                    Some(capability) => keep(Known::Right { capability, warpgroups, int8_warpgroups }),
                    None if options.ptx == Ptx::All => {
                        let problem = "the driver takes the PTX of no generation that is printed";
                        tracing::warn!("{}: PTX is not used: {problem}", device.caps.name);
                    }
                    None => {}
                }
                device.caps = device.caps.clone().without(options.mask);
                Ok(device)
            }
            Outcome::Wrong(problem) => {
                tracing::warn!("{}: PTX is not used: {problem}", device.caps.name);
                device.caps.ptx = None;
                device.caps.target.warpgroups = false;
                device.caps.target.int8_warpgroups = false;
                Ok(device)
            }
            Outcome::Gone(problem) => {
                tracing::warn!(
                    "{}: PTX is not used: {problem}; the device is opened again",
                    device.caps.name
                );
                keep(Known::Gone(problem));
                // To wait for what it runs is to hang.
                std::mem::forget(device);
                Device::open_with(select, &Options { ptx: Ptx::Off, ..options.clone() }, None)
            }
        }
    }

    /// Finds the device's generation and runs a known kernel as PTX; then those of warpgroups, if it has any. Where those of
    /// integers alone are wrong, floats are still multiplied by warpgroups.
    fn try_ptx(&mut self) -> Outcome {
        self.caps.ptx = ptx::capability(&self.context);
        // An older card has nothing to try.
        let Some(capability) = self.caps.ptx else { return Outcome::Right };
        let outcome = ptx::run_trial(self);
        if capability != Capability::HOPPER || !matches!(outcome, Outcome::Right) {
            return outcome;
        }
        self.caps.target.warpgroups = true;
        match ptx::run_warpgroup_trial(self, &ptx::FLOATS) {
            Outcome::Right => {}
            Outcome::Wrong(problem) => {
                tracing::warn!("{}: warpgroups are not used: {problem}", self.caps.name);
                self.caps.target.warpgroups = false;
                return Outcome::Right;
            }
            gone => return gone,
        }
        self.caps.target.int8_warpgroups = true;
        match ptx::run_warpgroup_trial(self, &ptx::INTEGERS) {
            Outcome::Wrong(problem) => {
                tracing::warn!("{}: warpgroups are not used for integers: {problem}", self.caps.name);
                self.caps.target.int8_warpgroups = false;
                Outcome::Right
            }
            other => other,
        }
    }

    fn open_with(select: &Select, options: &Options, mock: Option<ptx::EntryPoints>) -> Result<Self, Error> {
        let instance = if options.validation { instance::validated()? } else { instance::plain()? };
        let facts = report::choose(&instance, select)?;
        let mut caps = report::caps(&facts).without(options.mask);
        if let Some(limit) = options.memory_limit {
            caps.memory_bytes = caps.memory_bytes.min(limit);
            caps.max_buffer_bytes = caps.max_buffer_bytes.min(limit);
        }
        let context = Context::open(instance, facts, options, mock)?;
        let cache = Cache::open(&context, options.cache_dir.as_deref())?;
        let mut device = Device {
            caps,
            pipelines: Pipelines::new(&context, cache),
            transfers: Transfers::new(&context),
            modules: Modules::default(),
            memory: Memory::new(&context),
            context,
        };
        // As if they were known: the kernel that asks is held against what the device has.
        device.caps.target.fragments = Some(Fragments::Quads);
        device.caps.target.fragments = ask_fragments(&device);
        Ok(device)
    }

    /// The SPIR-V of a kernel, as the driver compiles it.
    pub fn spirv(&self, kernel: &Kernel, checked: bool) -> Result<Vec<u32>, Error> {
        self.pipelines.words(&self.caps, kernel, checked)
    }

    /// Identifies the device.
    pub fn uuid(&self) -> [u8; 16] {
        self.context.facts.uuid
    }

    /// Bytes of device memory taken, with what is free in shared blocks.
    pub fn memory_taken(&self) -> u64 {
        self.context.taken()
    }

    /// What the validation layer said so far, of devices opened with it.
    pub fn validation_messages(&self) -> Vec<String> {
        self.messages().map_or_else(Vec::new, |m| m.list())
    }

    /// The same collection, to look at when the device is gone.
    pub fn messages(&self) -> Option<Arc<Messages>> {
        self.context.instance.messages.clone()
    }
}

impl Driver for Device {
    type Buffer = Buffer;
    type Pipeline = Pipeline;
    type Recording = Recording;

    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn allocate(&self, bytes: u64, label: &str) -> Result<Arc<Buffer>, Error> {
        match self.memory.allocate(bytes, label) {
            // Buffers that were dropped may still be held by copies under way.
            Err(Error::OutOfMemory { .. }) => {
                self.transfers.settle()?;
                self.memory.allocate(bytes, label)
            }
            other => other,
        }
    }

    fn write(&self, buffer: &Arc<Buffer>, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.transfers.write(buffer, offset, bytes)
    }

    fn read(&self, buffer: &Arc<Buffer>, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.transfers.read(buffer, offset, into)
    }

    fn copy(&self, from: &Arc<Buffer>, to: &Arc<Buffer>, bytes: u64) -> Result<(), Error> {
        self.transfers.copy(from, to, bytes)
    }

    fn pipelines(&self, kernels: &[Arc<Kernel>], checked: bool) -> Result<Vec<Arc<Pipeline>>, Error> {
        self.pipelines.get(&self.caps, kernels, checked)
    }

    fn record(&self, commands: Commands<'_, Self>) -> Result<Recording, Error> {
        Device::record(self, &commands)
    }

    fn record_module(&self, call: &ModuleCall<'_, Self>) -> Result<Recording, Error> {
        Device::record_module(self, call)
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

    fn wait(&self, recording: &mut Recording) -> Result<(), Error> {
        Device::wait(self, recording)
    }

    fn download(&self, recording: &mut Recording, i: usize, into: &mut [u8]) -> Result<(), Error> {
        Device::download(self, recording, i, into)
    }

    fn times(&self, recording: &mut Recording) -> Result<Vec<(Duration, Duration)>, Error> {
        Device::times(self, recording)
    }

    fn source(&self, kernel: &Kernel, checked: bool) -> Result<KernelSource, Error> {
        match self.caps.ptx {
            Some(capability) if kernel.has_warpgroups() => {
                ptx::text(kernel, capability).map(KernelSource::Ptx)
            }
            _ => self.spirv(kernel, checked).map(KernelSource::Spirv),
        }
    }

    fn validation_messages(&self) -> Vec<String> {
        Device::validation_messages(self)
    }

    fn memory_taken(&self) -> Option<u64> {
        Some(Device::memory_taken(self))
    }
}
