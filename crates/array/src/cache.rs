//! Executables by the content of their graphs.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use olivine::{Executable, Session};
use olivine_ir::op::ScalarOp;
use olivine_ir::{Graph, Op};

use crate::Error;

/// Compiled graphs; the one that was not used for longest goes when there are too many.
pub(crate) struct Cache {
    most: usize,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    /// By the hash of their graphs; graphs of one hash are compared.
    by_hash: HashMap<u64, Vec<Entry>>,
    count: usize,
    clock: u64,
    compiled: u64,
}

struct Entry {
    graph: Graph,
    used: u64,
    executable: Arc<Slot>,
}

/// Empty until it is compiled; whoever needs it meanwhile waits.
#[derive(Default)]
struct Slot(Mutex<Option<Arc<Executable>>>);

impl Cache {
    pub(crate) fn new(most: usize) -> Self {
        Cache { most: most.max(1), entries: Mutex::default() }
    }

    /// The executable of a graph, compiled if it is not known.
    pub(crate) fn get(&self, session: &Session, graph: &Graph) -> Result<Arc<Executable>, Error> {
        let slot = self.slot(graph);
        let mut compiled = slot.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(executable) = &*compiled {
            return Ok(executable.clone());
        }
        let executable = Arc::new(session.compile(graph)?);
        *compiled = Some(executable.clone());
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).compiled += 1;
        Ok(executable)
    }

    fn slot(&self, graph: &Graph) -> Arc<Slot> {
        let hash = hash(graph);
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.clock += 1;
        let clock = entries.clock;
        let same = entries.by_hash.entry(hash).or_default();
        if let Some(entry) = same.iter_mut().find(|entry| entry.graph == *graph) {
            entry.used = clock;
            return entry.executable.clone();
        }
        let slot = Arc::<Slot>::default();
        same.push(Entry { graph: graph.clone(), used: clock, executable: slot.clone() });
        entries.count += 1;
        if entries.count > self.most {
            entries.evict();
        }
        slot
    }

    /// Forgets everything, and with it the memory that executables hold between runs.
    pub(crate) fn clear(&self) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = std::mem::take(&mut entries.by_hash);
        entries.count = 0;
        drop(entries);
        drop(gone);
    }

    /// The graphs that are known, the one used last at the end.
    pub(crate) fn graphs(&self) -> Vec<Graph> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut graphs: Vec<(u64, Graph)> =
            entries.by_hash.values().flatten().map(|entry| (entry.used, entry.graph.clone())).collect();
        graphs.sort_by_key(|(used, _)| *used);
        graphs.into_iter().map(|(_, graph)| graph).collect()
    }

    /// How many graphs are known, and how many were compiled so far.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        (entries.count, entries.compiled)
    }
}

impl Entries {
    /// Lets the one go that was not used for longest.
    fn evict(&mut self) {
        let oldest =
            self.by_hash.iter().flat_map(|(hash, same)| same.iter().map(move |entry| (entry.used, *hash)));
        let Some((used, hash)) = oldest.min() else { return };
        if let Some(same) = self.by_hash.get_mut(&hash) {
            same.retain(|entry| entry.used != used);
            if same.is_empty() {
                self.by_hash.remove(&hash);
            }
            self.count -= 1;
        }
    }
}

/// A number for a graph's content; equal graphs have equal ones.
fn hash(graph: &Graph) -> u64 {
    let mut hasher = DefaultHasher::new();
    for value in graph.values() {
        value.ty.hash(&mut hasher);
    }
    for node in graph.nodes() {
        node.op.name().hash(&mut hasher);
        for input in &node.inputs {
            input.index().hash(&mut hasher);
        }
        if has_attributes(&node.op) {
            // Writing to a hasher never fails.
            let _ = write!(Text(&mut hasher), "{}", node.op.attrs());
        }
    }
    for output in graph.outputs() {
        output.value.index().hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether an operation's name is not all of it.
fn has_attributes(op: &Op) -> bool {
    use ScalarOp as S;
    !matches!(op, Op::ScalarOp(S::Unary(_) | S::Binary(_) | S::Compare(_) | S::Where | S::Fma | S::Clamp))
}

/// Text that goes into a hash.
struct Text<'a>(&'a mut DefaultHasher);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
