//! A driver that computes nothing and fails on demand.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use olivine_compile::{Compiled, Options, compile};
use olivine_gpu::{
    Addressing, Commands, DeviceCaps, DeviceKind, Driver, Error, KernelSource, Record, Weights, lower,
};
use olivine_ir::{DType, Graph, Shape};
use olivine_kernel::{Kernel, Target};

/// A device with a little memory.
pub(crate) struct MockDriver {
    caps: DeviceCaps,
    counts: Arc<Counts>,
    /// Waits that are still to fail.
    pub(crate) lose: AtomicI64,
    /// The labels of what was allocated.
    pub(crate) labels: Mutex<Vec<String>>,
}

/// What there is of the device's memory and recordings.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) bytes: AtomicU64,
    pub(crate) recordings: AtomicU64,
    /// Recordings ever made.
    pub(crate) recorded: AtomicU64,
}

pub(crate) struct Memory {
    bytes: u64,
    counts: Arc<Counts>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.counts.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

pub(crate) struct Recorded {
    _buffers: Vec<Arc<Memory>>,
    counts: Arc<Counts>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.counts.recordings.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a plain device can do, with `memory` bytes.
pub(crate) fn caps(memory: u64) -> DeviceCaps {
    DeviceCaps {
        name: "a mock device".into(),
        driver: "none".into(),
        kind: DeviceKind::Other,
        target: Target::plain(),
        addressing: Addressing::Pointers,
        max_groups: [65535; 3],
        max_buffer_bytes: memory,
        memory_bytes: memory,
        processors: None,
        keeps_denormals: true,
        ptx: None,
    }
}

impl MockDriver {
    pub(crate) fn new(memory: u64) -> Arc<Self> {
        let (caps, counts) = (caps(memory), Arc::default());
        Arc::new(MockDriver { caps, counts, lose: AtomicI64::new(0), labels: Mutex::default() })
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// y = x + x over `n` elements, ready to run.
    pub(crate) fn executable(self: &Arc<Self>, n: usize) -> Arc<olivine_gpu::Executable<MockDriver>> {
        self.executable_with(n, &Arc::default())
    }

    /// The same as a plan of the model that has these weights.
    pub(crate) fn executable_with(
        self: &Arc<Self>,
        n: usize,
        weights: &Arc<Weights<MockDriver>>,
    ) -> Arc<olivine_gpu::Executable<MockDriver>> {
        let program = lower(&compiled(&double(n)), self.caps(), &Record::new(), &[]).unwrap();
        let weights = weights.clone();
        Arc::new(olivine_gpu::Executable::new(self.clone(), program, weights, false).unwrap())
    }

    /// The same for any number of elements, compiled for `n`.
    pub(crate) fn open_executable(self: &Arc<Self>, n: usize) -> Arc<olivine_gpu::Executable<MockDriver>> {
        let graph = open_double().specialise_symbolic(&[("x", Shape::new(&[n]).unwrap())]).unwrap();
        let program = lower(&compiled(&graph), self.caps(), &Record::new(), &[]).unwrap();
        let weights = Arc::new(Weights::default());
        Arc::new(olivine_gpu::Executable::new(self.clone(), program, weights, false).unwrap())
    }
}

fn open_double() -> Graph {
    let mut g = Graph::new("double");
    let x = g.input_with_dims("x", DType::F32, [64], vec![Some("n".into())]).unwrap();
    let y = g.add(x, x).unwrap();
    g.output("y", y).unwrap();
    g
}

pub(crate) fn double(n: usize) -> Graph {
    let mut g = Graph::new("double");
    let x = g.input("x", DType::F32, [n]).unwrap();
    let y = g.add(x, x).unwrap();
    g.output("y", y).unwrap();
    g
}

pub(crate) fn compiled(graph: &Graph) -> Compiled {
    compile(graph, &Options::default()).unwrap()
}

impl Driver for MockDriver {
    type Buffer = Memory;
    type Pipeline = ();
    type Recording = Recorded;

    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn allocate(&self, bytes: u64, label: &str) -> Result<Arc<Memory>, Error> {
        self.labels.lock().unwrap().push(label.to_string());
        let before = self.counts.bytes.fetch_add(bytes, Ordering::SeqCst);
        let memory = Arc::new(Memory { bytes, counts: self.counts.clone() });
        if before + bytes > self.caps.memory_bytes {
            let available = Some(self.caps.memory_bytes.saturating_sub(before));
            return Err(Error::OutOfMemory { what: label.into(), bytes, available });
        }
        Ok(memory)
    }

    fn write(&self, _: &Arc<Memory>, _: u64, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn read(&self, _: &Arc<Memory>, _: u64, _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }

    fn copy(&self, _: &Arc<Memory>, _: &Arc<Memory>, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn pipelines(&self, kernels: &[Arc<Kernel>], _: bool) -> Result<Vec<Arc<()>>, Error> {
        Ok(kernels.iter().map(|_| Arc::new(())).collect())
    }

    fn record(&self, commands: Commands<'_, Self>) -> Result<Recorded, Error> {
        self.counts.recordings.fetch_add(1, Ordering::SeqCst);
        self.counts.recorded.fetch_add(1, Ordering::SeqCst);
        let buffers = commands.buffers.iter().flatten().cloned().collect();
        Ok(Recorded { _buffers: buffers, counts: self.counts.clone() })
    }

    fn upload(&self, _: &mut Recorded, _: usize, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn submit(&self, _: &mut Recorded) -> Result<(), Error> {
        Ok(())
    }

    fn is_done(&self, _: &Recorded) -> Result<bool, Error> {
        Ok(true)
    }

    fn wait(&self, _: &mut Recorded) -> Result<(), Error> {
        match self.lose.fetch_sub(1, Ordering::SeqCst) {
            1.. => Err(Error::DeviceLost { during: Some("add `y`".into()) }),
            _ => Ok(()),
        }
    }

    fn download(&self, _: &mut Recorded, _: usize, into: &mut [u8]) -> Result<(), Error> {
        into.fill(1);
        Ok(())
    }

    fn times(&self, _: &mut Recorded) -> Result<Vec<(Duration, Duration)>, Error> {
        Ok(Vec::new())
    }

    fn source(&self, kernel: &Kernel, _: bool) -> Result<KernelSource, Error> {
        let words = olivine_kernel::spirv::print(kernel, &Default::default());
        words.map(KernelSource::Spirv).map_err(|source| Error::Kernel { kernel: kernel.name.clone(), source })
    }
}
