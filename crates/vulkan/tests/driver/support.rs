//! A device under validation, and programs put together by hand.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;

use olivine_kernel::{Access, Builder, Elem, Kernel, Scalar, Target};
use olivine_program::{
    BufferDecl, BufferId, Commands, Content, Dispatch, Driver, KernelId, Program, Slice, Timing,
};
use olivine_vulkan::{Buffer, Device, Error, Messages, Options, Recording, Select};

const NEEDED: &str = "these tests need a Vulkan 1.3 device and the validation layer: \
                      apt install libvulkan1 mesa-vulkan-drivers vulkan-validationlayers";

/// A turn under the validation layer. Debian 12's (1.3.239) corrupts its own memory when several threads record at a
/// time, so tests that use it take turns; a test may hold several.
struct Turn;

static TURN: (Mutex<Option<(ThreadId, usize)>>, Condvar) = (Mutex::new(None), Condvar::new());

impl Turn {
    fn take() -> Self {
        let me = std::thread::current().id();
        let mut holder = TURN.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &mut *holder {
                None => *holder = Some((me, 1)),
                Some((thread, turns)) if *thread == me => *turns += 1,
                Some(_) => {
                    holder = TURN.1.wait(holder).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            }
            return Turn;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut holder = TURN.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *holder {
            Some((_, turns)) if *turns > 1 => *turns -= 1,
            _ => *holder = None,
        }
        TURN.1.notify_all();
    }
}

/// A device that fails the test if the validation layer said anything until its end.
pub(crate) struct Checked {
    device: Option<Device>,
    messages: Option<Arc<Messages>>,
    _turn: Option<Turn>,
}

impl Deref for Checked {
    type Target = Device;
    fn deref(&self) -> &Device {
        self.device.as_ref().unwrap()
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        drop(self.device.take());
        let said = self.messages.as_ref().map_or_else(Vec::new, |m| m.list());
        if !std::thread::panicking() {
            assert!(said.is_empty(), "{} validation messages: {}", said.len(), said.join("\n"));
        }
    }
}

pub(crate) fn open_with(change: impl FnOnce(&mut Options)) -> Checked {
    let mut options = Options { validation: true, cache_dir: None, ..Options::default() };
    change(&mut options);
    let turn = options.validation.then(Turn::take);
    let device = Device::open(&Select::Auto, &options).unwrap_or_else(|e| panic!("{e}. {NEEDED}"));
    let messages = device.messages();
    assert_eq!(messages.is_some(), options.validation, "validation collects messages");
    Checked { device: Some(device), messages, _turn: turn }
}

/// For tests that record on several threads.
pub(crate) fn open_without_validation() -> Checked {
    open_with(|options| options.validation = false)
}

pub(crate) fn open() -> Checked {
    open_with(|_| {})
}

/// A folder of the test's own.
pub(crate) fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("olivine-vulkan-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

/// y[i] = factor * x[i] + i.
pub(crate) fn scale(target: &Target, elem: Elem, factor: f32) -> Kernel {
    let k = Builder::new(format!("scale by {factor} to {elem}"), 64, target);
    let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", elem, Access::Write));
    let n = k.param("n", Scalar::U32);
    let i = k.group_id(0) * 64 + k.local_index();
    k.if_(i.lt(n), || y.store(i, x.load(i) * factor + i.convert(Scalar::F32)));
    k.finish().unwrap()
}

/// A program put together by hand, with its buffers.
#[derive(Default)]
pub(crate) struct Rig {
    pub(crate) program: Program,
    pub(crate) dispatches: Vec<Dispatch>,
    pub(crate) buffers: Vec<Option<Arc<Buffer>>>,
    pub(crate) uploads: Vec<(BufferId, u64)>,
    pub(crate) downloads: Vec<(BufferId, u64)>,
    pub(crate) timing: Timing,
    pub(crate) checked: bool,
}

impl Rig {
    pub(crate) fn kernel(&mut self, kernel: Kernel) -> KernelId {
        self.program.kernels.push(Arc::new(kernel));
        KernelId(self.program.kernels.len() as u32 - 1)
    }

    pub(crate) fn buffer(&mut self, device: &Device, bytes: u64) -> BufferId {
        self.program.buffers.push(BufferDecl { content: Content::Arena, bytes });
        self.buffers.push(Some(device.allocate(bytes, "test").unwrap()));
        BufferId(self.buffers.len() as u32 - 1)
    }

    pub(crate) fn dispatch(
        &mut self,
        kernel: KernelId,
        args: &[(BufferId, u64, u64)],
        params: &[u32],
        groups: u32,
    ) {
        let slice = |(buffer, offset, bytes): &(BufferId, u64, u64)| Slice {
            buffer: *buffer,
            offset: *offset,
            bytes: *bytes,
        };
        self.dispatches.push(Dispatch {
            kernel,
            args: args.iter().map(slice).collect(),
            params: params.to_vec().into(),
            groups: [groups, 1, 1],
            op: "Test",
            node: format!("node{}", self.dispatches.len()).into(),
            ..Dispatch::default()
        });
    }

    pub(crate) fn record(&self, device: &Device) -> Result<Recording, Error> {
        let pipelines = device.pipelines(&self.program.kernels, self.checked)?;
        device.record(Commands {
            program: &self.program,
            dispatches: &self.dispatches,
            pipelines: &pipelines,
            buffers: &self.buffers,
            uploads: &self.uploads,
            downloads: &self.downloads,
            timing: self.timing,
            checked: self.checked,
        })
    }
}

/// One run: bytes in, bytes out.
pub(crate) fn run(
    device: &Device,
    recording: &mut Recording,
    inputs: &[&[u8]],
    output: usize,
) -> Result<Vec<u8>, Error> {
    for (i, bytes) in inputs.iter().enumerate() {
        device.upload(recording, i, bytes)?;
    }
    device.submit(recording)?;
    device.wait(recording)?;
    let mut bytes = vec![0; output];
    device.download(recording, 0, &mut bytes)?;
    Ok(bytes)
}

pub(crate) fn to_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(crate) fn to_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
