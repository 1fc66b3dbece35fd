//! A caller's own SPIR-V on buffers.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use olivine::internals::kernel::{Binding, BoundModule, MAX_PUSH_BYTES};
use olivine::internals::{SessionExt, gpu};
use olivine::{Backend, DeviceTensor};

use crate::flight::Flight;
use crate::{Array, Buffer, Context, Error, ErrorKind};

/// Modules that a context keeps checked; the one that was not used for longest goes first.
const CACHED: usize = 64;
/// A file of SPIR-V above this is refused.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A compute shader over storage buffers in bindings, read and checked.
///
/// Buffer `i` of a dispatch is the storage buffer at set 0, binding `i`. The module is checked as a validator would
/// ([`Context::dispatch_spv`] says what for); what passes builds on any driver that has its capabilities.
#[derive(Clone, Debug)]
pub struct SpvModule {
    module: Arc<BoundModule>,
    op: Option<u32>,
}

impl SpvModule {
    /// Checks a module in memory: little-endian words, as files hold it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let module = BoundModule::from_bytes(bytes).map_err(|e| Error::bad(e.to_string()))?;
        Ok(SpvModule { module: Arc::new(module), op: None })
    }

    /// Reads and checks a file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        SpvModule::from_bytes(&read_file(path.as_ref())?)
    }

    /// The same module with specialisation constant 0 set: the operation, where a module has several.
    pub fn with_op(&self, op: u32) -> Result<Self, Error> {
        if !self.module.has_op() {
            return Err(Error::bad("the module has no specialisation constant 0"));
        }
        Ok(SpvModule { module: self.module.clone(), op: Some(op) })
    }

    /// Whether it has a specialisation constant 0.
    pub fn has_op(&self) -> bool {
        self.module.has_op()
    }

    /// How many buffers a dispatch takes: one more than the highest binding.
    pub fn bindings(&self) -> usize {
        self.module.bindings().len()
    }

    /// Bytes of its push constants.
    pub fn push_bytes(&self) -> usize {
        self.module.push_bytes() as usize
    }

    /// Invocations of a workgroup, by dimension.
    pub fn workgroup(&self) -> [u32; 3] {
        self.module.local_size()
    }

    /// The name of its entry point.
    pub fn entry_point(&self) -> &str {
        self.module.entry()
    }
}

/// Modules by their bytes, so that a caller who hands in the same ones again pays for the check once.
#[derive(Default)]
pub(crate) struct Modules {
    /// The one used last stands last.
    known: Mutex<Vec<(Vec<u8>, SpvModule)>>,
}

impl Modules {
    fn get(&self, bytes: &[u8]) -> Result<SpvModule, Error> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = lock();
        if let Some(at) = known.iter().position(|(known, _)| known == bytes) {
            let found = known.remove(at);
            let module = found.1.clone();
            known.push(found);
            return Ok(module);
        }
        drop(known);
        let module = SpvModule::from_bytes(bytes)?;
        let mut known = lock();
        if known.len() >= CACHED {
            known.remove(0);
        }
        known.push((bytes.to_vec(), module.clone()));
        Ok(module)
    }
}

impl Context {
    /// A module by its bytes; one that was checked before is not checked again.
    pub fn module(&self, bytes: &[u8]) -> Result<SpvModule, Error> {
        self.inner.modules.get(bytes)
    }

    /// A module by its file, as [`Context::module`].
    pub fn module_file(&self, path: impl AsRef<Path>) -> Result<SpvModule, Error> {
        self.module(&read_file(path.as_ref())?)
    }

    /// Runs a caller's own SPIR-V on buffers, which it may write in place, and returns without waiting.
    ///
    /// Checked before any call of the driver: that the module is well formed and is a compute shader with logical
    /// addressing whose only resources are storage buffers in set 0; one buffer for each binding up to the highest, large
    /// enough for what stands before a runtime array; push constants of up to 128 bytes, in words, at least as many as the
    /// module has; the workgroup's size, shared memory and capabilities against the device; the number of workgroups.
    /// Accesses past the end of a buffer read zeros or are dropped where the driver has `robustBufferAccess`, which the
    /// device is opened with then. What the module does otherwise is the caller's: a loop without an end hangs the device.
    ///
    /// On the CPU, and on wgpu, the error is `unsupported`.
    pub fn dispatch_spv(
        &self,
        buffers: &[&Buffer],
        push: &[u8],
        groups: [u32; 3],
        module: &SpvModule,
    ) -> Result<(), Error> {
        self.check_dispatch(buffers, push, groups, module)?;
        let writes = |binding: &Option<Binding>| binding.is_some_and(|binding| !binding.read_only);
        let writes: Vec<bool> = module.module.bindings().iter().map(writes).collect();
        Buffer::change(self, buffers, &writes, |tensors| {
            let tensors: Vec<&DeviceTensor> = tensors.iter().collect();
            let session = self.session();
            let run = session.dispatch_module(&module.module, module.op, &tensors, push, groups);
            let run = run.map_err(|error| match &error {
                // What the driver's own checks refuse was not given to the device.
                olivine::Error::Gpu(
                    gpu::Error::Kernel { .. } | gpu::Error::Driver { call: "record_module", .. },
                ) => Error::bad(error.to_string()),
                _ => error.into(),
            })?;
            let flight = Arc::new(Flight::of_module(run));
            self.launched(flight.clone());
            Ok(flight)
        })
    }

    fn check_dispatch(
        &self,
        buffers: &[&Buffer],
        push: &[u8],
        groups: [u32; 3],
        module: &SpvModule,
    ) -> Result<(), Error> {
        if buffers.iter().any(|buffer| !buffer.context().same(self)) {
            return Err(Error::bad("a buffer belongs to another context"));
        }
        let bindings = module.module.bindings();
        if buffers.len() != bindings.len() {
            let (given, needed) = (buffers.len(), bindings.len());
            return Err(Error::bad(format!("the module has {needed} bindings, {given} buffers are given")));
        }
        for (i, (buffer, binding)) in buffers.iter().zip(bindings).enumerate() {
            let size = buffer.byte_size();
            if let Some(Binding { bytes, .. }) = binding
                && *bytes > size as u64
            {
                return Err(Error::size(format!("binding {i} needs {bytes} bytes, the buffer has {size}")));
            }
        }
        let needed = module.push_bytes();
        if push.len() > MAX_PUSH_BYTES as usize || push.len() < needed || !push.len().is_multiple_of(4) {
            let given = push.len();
            return Err(Error::bad(format!(
                "{given} bytes of push constants: the module needs {needed}, at most {MAX_PUSH_BYTES}, in words of 4"
            )));
        }
        if self.session().device().backend() != Backend::Vulkan {
            let device = self.session().device();
            return Err(Error::unsupported(format!("SPIR-V over bindings runs on Vulkan, not on {device}")));
        }
        let Some(caps) = self.session().caps() else { return Ok(()) };
        module.module.fits(&caps.target).map_err(|e| Error::bad(e.to_string()))?;
        if (0..3).any(|d| groups[d] > caps.max_groups[d]) {
            let most = caps.max_groups;
            return Err(Error::bad(format!("{groups:?} workgroups; the device takes {most:?}")));
        }
        Ok(())
    }
}

impl Buffer {
    /// Lets `work` change the bytes of buffers in place, of those that it says it writes. Bytes that others hold as well
    /// (arrays made of a buffer, other buffers, runs that may be repeated) are copied first.
    fn change(
        context: &Context,
        buffers: &[&Buffer],
        writes: &[bool],
        work: impl FnOnce(&[DeviceTensor]) -> Result<Arc<Flight>, Error>,
    ) -> Result<(), Error> {
        // Each once, and in one order for all threads, so that none waits for another in a circle.
        let mut distinct: Vec<&Buffer> = buffers.to_vec();
        distinct.sort_by_key(|buffer| buffer.address());
        distinct.dedup_by_key(|buffer| buffer.address());
        let is_written = |buffer: &Buffer| {
            let mut bindings = buffers.iter().zip(writes);
            bindings.any(|(other, written)| *written && other.address() == buffer.address())
        };
        let mut contents: Vec<_> =
            distinct.iter().map(|buffer| (buffer.content(), is_written(buffer))).collect();
        let mut tensors = Vec::with_capacity(contents.len());
        for (content, written) in &contents {
            let tensor = || if *written { content.own_tensor() } else { content.device_tensor() };
            tensors.push(context.with_memory(tensor)?);
        }
        let at = |buffer: &&Buffer| distinct.iter().position(|other| other.address() == buffer.address());
        let bound: Vec<DeviceTensor> =
            buffers.iter().filter_map(|buffer| tensors.get(at(buffer)?).cloned()).collect();
        let flight = work(&bound)?;
        drop(bound);
        for ((content, written), tensor) in contents.iter_mut().zip(tensors) {
            if *written {
                **content = Array::in_flight(context, tensor, flight.clone());
            }
        }
        Ok(())
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |problem: String| {
        Error::new(ErrorKind::SpvReadFailed, format!("cannot read `{}`: {problem}", path.display()))
    };
    let about = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?;
    if !about.is_file() || about.len() > MAX_FILE_BYTES {
        return Err(failed("it is no file, or too large".into()));
    }
    std::fs::read(path).map_err(|e| failed(e.to_string()))
}
