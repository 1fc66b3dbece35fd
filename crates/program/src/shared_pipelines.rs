//! A cache of built pipelines, bounded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most pipelines that are cached, beside those that executables hold.
const CACHED: usize = 256;

/// A kernel's content, and whether it is checked.
pub type PipelineKey = (u128, bool);

/// Pipelines by the content of their kernels, so that equal kernels of all graphs share one. A process may compile any
/// number of different graphs, so what no executable holds any more goes when there are too many, the longest unused
/// first.
pub struct SharedPipelines<P> {
    state: Mutex<State<P>>,
    most: usize,
}

struct State<P> {
    pipelines: HashMap<PipelineKey, Entry<P>>,
    /// Counts uses.
    clock: u64,
}

struct Entry<P> {
    pipeline: Arc<P>,
    used: u64,
}

impl<P> Default for SharedPipelines<P> {
    fn default() -> Self {
        SharedPipelines::with_bound(CACHED)
    }
}

impl<P> std::fmt::Debug for SharedPipelines<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedPipelines").field("pipelines", &self.len()).finish_non_exhaustive()
    }
}

impl<P> SharedPipelines<P> {
    fn with_bound(most: usize) -> Self {
        SharedPipelines { state: Mutex::new(State { pipelines: HashMap::new(), clock: 0 }), most }
    }

    /// For every key its pipeline, if it is cached.
    pub fn find(&self, keys: &[PipelineKey]) -> Vec<Option<Arc<P>>> {
        let mut state = self.lock();
        state.clock += 1;
        let now = state.clock;
        let find = |key| {
            state.pipelines.get_mut(key).map(|entry| {
                entry.used = now;
                entry.pipeline.clone()
            })
        };
        keys.iter().map(find).collect()
    }

    /// Caches a pipeline and returns it; if another thread was first, returns that one.
    pub fn keep(&self, key: PipelineKey, pipeline: Arc<P>) -> Arc<P> {
        let mut state = self.lock();
        state.clock += 1;
        let used = state.clock;
        let first = state.pipelines.entry(key).or_insert(Entry { pipeline, used }).pipeline.clone();
        if state.pipelines.len() > self.most {
            state.drop_unused(self.most);
        }
        first
    }

    /// How many are cached now.
    pub fn len(&self) -> usize {
        self.lock().pipelines.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> State<P> {
    /// Drops half of the bound of what nobody holds, so that the search is rare.
    fn drop_unused(&mut self, most: usize) {
        let mut unused: Vec<(u64, PipelineKey)> = self
            .pipelines
            .iter()
            .filter(|(_, entry)| Arc::strong_count(&entry.pipeline) == 1)
            .map(|(key, entry)| (entry.used, *key))
            .collect();
        unused.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in unused.iter().take(most.div_ceil(2)) {
            self.pipelines.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_kernels_share_and_the_longest_unused_go() {
        let cache = SharedPipelines::with_bound(4);
        let held = cache.keep((0, false), Arc::new(0));
        assert!(Arc::ptr_eq(&held, &cache.keep((0, false), Arc::new(9))), "the first one stays");
        assert!(!Arc::ptr_eq(&held, &cache.keep((0, true), Arc::new(1))), "checked ones are apart");
        for i in 1..4 {
            cache.keep((i, false), Arc::new(i));
        }
        assert!(cache.len() <= 4);
        assert!(cache.find(&[(0, false)])[0].is_some(), "it is in use");
        for i in 4..100 {
            cache.keep((i, false), Arc::new(i));
            assert!(cache.len() <= 4);
        }
        assert_eq!(
            cache.find(&[(0, false), (99, false), (5, false)]),
            [Some(Arc::new(0)), Some(Arc::new(99)), None]
        );
    }
}
