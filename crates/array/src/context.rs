//! A device with its executables and the work in flight.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use olivine::{Backend, Device, Session, SessionOptions};
use olivine_ir::Graph;

use crate::buffer;
use crate::cache::Cache;
use crate::flight::{Flight, InFlight};
use crate::node::Node;
use crate::notify::Notifier;
use crate::outline::Outline;
use crate::spv::Modules;
use crate::{Error, ErrorKind};

/// Executables kept unless [`ContextOptions::executables`] says otherwise.
const EXECUTABLES: usize = 512;
/// Operations of one graph unless [`ContextOptions::graph_nodes`] says otherwise.
const GRAPH_NODES: usize = 256;

/// With so many buffers that may wait, those that are gone are looked for.
const FORGOTTEN: usize = 1024;

/// Options of a context; the defaults are right for most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContextOptions {
    /// How the device is opened.
    pub session: SessionOptions,
    /// Compiled graphs that are kept; the one that was not used for longest goes first.
    pub executables: usize,
    /// The most operations that are joined into one graph; a longer chain runs in several.
    pub graph_nodes: usize,
    /// Whether operations on buffers wait, as those on arrays do, until a result is asked for.
    pub lazy: bool,
}

impl Default for ContextOptions {
    fn default() -> Self {
        ContextOptions {
            session: SessionOptions::default(),
            executables: EXECUTABLES,
            graph_nodes: GRAPH_NODES,
            lazy: false,
        }
    }
}

impl ContextOptions {
    /// The defaults.
    pub fn new() -> Self {
        ContextOptions::default()
    }

    /// Sets [`ContextOptions::session`].
    pub fn session(self, session: SessionOptions) -> Self {
        ContextOptions { session, ..self }
    }

    /// Sets [`ContextOptions::executables`].
    pub fn executables(self, executables: usize) -> Self {
        ContextOptions { executables, ..self }
    }

    /// Sets [`ContextOptions::graph_nodes`].
    pub fn graph_nodes(self, graph_nodes: usize) -> Self {
        ContextOptions { graph_nodes, ..self }
    }

    /// Sets [`ContextOptions::lazy`].
    pub fn lazy(self, lazy: bool) -> Self {
        ContextOptions { lazy, ..self }
    }
}

/// A device that buffers and arrays live on; clones share it. All of it may be used from several threads at once.
///
/// ```
/// use olivine_array::{Context, Device};
/// let context = Context::new(Device::Cpu)?;
/// # Ok::<(), olivine_array::Error>(())
/// ```
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    session: Session,
    cache: Cache,
    graph_nodes: usize,
    lazy: AtomicBool,
    in_flight: InFlight,
    /// Buffers whose bytes may not have been submitted, by address.
    unsubmitted: Mutex<HashMap<usize, Weak<buffer::Inner>>>,
    pub(crate) notifier: Notifier,
    pub(crate) modules: Modules,
}

/// How much a context has compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Compiled graphs in the cache.
    pub cached: usize,
    /// Graphs that were compiled so far.
    pub compiled: u64,
}

impl Context {
    /// Opens a device.
    pub fn new(device: Device) -> Result<Self, Error> {
        Context::with_options(device, ContextOptions::default())
    }

    /// Opens a device with options.
    pub fn with_options(device: Device, options: ContextOptions) -> Result<Self, Error> {
        let session = Session::with_options(device, options.session.clone())?;
        Ok(Context::of_session(session, &options))
    }

    /// A context on an open session, whose executables and it can share tensors on the device.
    pub fn of_session(session: Session, options: &ContextOptions) -> Self {
        let inner = Inner {
            session,
            cache: Cache::new(options.executables),
            graph_nodes: options.graph_nodes.max(1),
            lazy: AtomicBool::new(options.lazy),
            in_flight: InFlight::default(),
            unsubmitted: Mutex::default(),
            notifier: Notifier::default(),
            modules: Modules::default(),
        };
        Context { inner: Arc::new(inner) }
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.inner.session
    }

    /// Whether operations on buffers wait until a result is asked for.
    pub fn is_lazy(&self) -> bool {
        self.inner.lazy.load(Ordering::Relaxed)
    }

    /// Sets whether operations on buffers wait until a result is asked for; what waits already goes on waiting.
    pub fn set_lazy(&self, lazy: bool) {
        self.inner.lazy.store(lazy, Ordering::Relaxed);
    }

    /// Submits what operations on buffers have left waiting, without waiting for it.
    pub fn flush(&self) -> Result<(), Error> {
        let waiting = std::mem::take(&mut *self.unsubmitted());
        let buffers = waiting.values().filter_map(Weak::upgrade);
        let nodes: Vec<Arc<Node>> = buffers.map(|buffer| buffer.node()).collect();
        crate::eval::evaluate(self, &nodes)
    }

    /// Submits what waits, and waits for all work submitted so far. The first failure is the error.
    pub fn wait(&self) -> Result<(), Error> {
        self.flush()?;
        self.inner.in_flight.wait()
    }

    /// How much is compiled.
    pub fn cache_stats(&self) -> CacheStats {
        let (cached, compiled) = self.inner.cache.counts();
        CacheStats { cached, compiled }
    }

    /// The graphs that operations became and that are kept compiled, the one that ran last at the end; for a look inside.
    pub fn graphs(&self) -> Vec<Graph> {
        self.inner.cache.graphs()
    }

    /// Waits for the work in flight and frees everything that is kept for later runs: compiled graphs and their memory.
    pub fn release(&self) -> Result<(), Error> {
        let ended = self.inner.in_flight.wait();
        self.inner.cache.clear();
        ended
    }

    /// Whether two contexts are clones of one.
    pub(crate) fn same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn graph_nodes(&self) -> usize {
        self.inner.graph_nodes
    }

    /// Whether a run's outputs can be used before it has ended.
    pub(crate) fn outputs_at_once(&self) -> bool {
        self.inner.session.device().backend() != Backend::Cpu
    }

    pub(crate) fn executable(&self, outline: &Outline<'_>) -> Result<Arc<olivine::Executable>, Error> {
        self.inner.cache.get(&self.inner.session, outline)
    }

    pub(crate) fn launched(&self, flight: Arc<Flight>) {
        self.inner.in_flight.push(flight);
    }

    /// Remembers a buffer whose bytes wait, for [`Context::flush`].
    pub(crate) fn remember(&self, buffer: &Arc<buffer::Inner>) {
        let mut waiting = self.unsubmitted();
        if waiting.len() >= FORGOTTEN {
            waiting.retain(|_, buffer| buffer.strong_count() > 0);
        }
        waiting.insert(Arc::as_ptr(buffer).addr(), Arc::downgrade(buffer));
    }

    /// Does something that needs memory; where there is none, what is kept for later is freed and it is tried again.
    pub(crate) fn with_memory<R>(&self, work: impl Fn() -> Result<R, Error>) -> Result<R, Error> {
        match work() {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                // A run that failed in flight is an error where its results are asked for.
                let _ = self.release();
                work()
            }
            other => other,
        }
    }

    fn unsubmitted(&self) -> MutexGuard<'_, HashMap<usize, Weak<buffer::Inner>>> {
        self.inner.unsubmitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
