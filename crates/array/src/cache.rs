//! Executables by the content of their graphs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use olivine::{Executable, Session};
use olivine_ir::Graph;

use crate::Error;
use crate::outline::Outline;

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
    used: u64,
    slot: Arc<Slot>,
}

/// A graph and its executable.
struct Slot {
    graph: Graph,
    /// Empty until it is compiled; whoever needs it meanwhile waits.
    executable: Mutex<Option<Arc<Executable>>>,
}

impl Cache {
    pub(crate) fn new(most: usize) -> Self {
        Cache { most: most.max(1), entries: Mutex::default() }
    }

    /// The executable of a graph, compiled if it is not known.
    pub(crate) fn get(&self, session: &Session, outline: &Outline<'_>) -> Result<Arc<Executable>, Error> {
        let slot = self.slot(outline)?;
        let mut compiled = slot.executable.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(executable) = &*compiled {
            return Ok(executable.clone());
        }
        let executable = Arc::new(session.compile(&slot.graph)?);
        *compiled = Some(executable.clone());
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).compiled += 1;
        Ok(executable)
    }

    fn slot(&self, outline: &Outline<'_>) -> Result<Arc<Slot>, Error> {
        let hash = outline.hash();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.clock += 1;
        let clock = entries.clock;
        let same = entries.by_hash.entry(hash).or_default();
        if let Some(entry) = same.iter_mut().find(|entry| outline.describes(&entry.slot.graph)) {
            entry.used = clock;
            return Ok(entry.slot.clone());
        }
        let slot = Arc::new(Slot { graph: outline.build()?, executable: Mutex::default() });
        same.push(Entry { used: clock, slot: slot.clone() });
        entries.count += 1;
        if entries.count > self.most {
            entries.evict();
        }
        Ok(slot)
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
            entries.by_hash.values().flatten().map(|entry| (entry.used, entry.slot.graph.clone())).collect();
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
