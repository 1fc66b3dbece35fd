//! Params of a model and what load-time nodes made of them, shared by all executables of the model.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use olivine_compile::Widen;
use olivine_ir::Tensor;

use crate::arena::Buffer;
use crate::limit::memory_limit;

/// How the CPU computes f16 and bf16 in f32: weights may take a quarter of the memory that this process may use.
pub fn widen() -> Widen {
    Widen { weight_bytes: memory_limit() / 4 }
}

/// A model's params and their packed forms; executables for several shapes share one.
#[derive(Default)]
pub struct Weights {
    state: RwLock<State>,
    /// Memory of finished runs of all executables.
    arenas: Arc<Mutex<Vec<Buffer>>>,
}

#[derive(Default)]
struct State {
    params: HashMap<String, Tensor>,
    /// Load-time results by the expression that makes them.
    packed: HashMap<String, Arc<Buffer>>,
    /// Counts changes, so that an executable notices that what it loaded is stale.
    generation: u64,
}

impl Weights {
    /// No params yet.
    pub fn new() -> Self {
        Weights::default()
    }

    /// Sets or replaces a param; the elements are shared, not copied.
    pub fn set(&self, name: &str, tensor: Tensor) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.params.insert(name.to_string(), tensor);
        state.packed.clear();
        state.generation += 1;
    }

    pub(crate) fn arenas(&self) -> Arc<Mutex<Vec<Buffer>>> {
        self.arenas.clone()
    }

    /// A param's elements, if set.
    pub fn get(&self, name: &str) -> Option<Tensor> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).params.get(name).cloned()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.state.read().unwrap_or_else(PoisonError::into_inner).generation
    }

    pub(crate) fn packed(&self, expression: &str) -> Option<Arc<Buffer>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).packed.get(expression).cloned()
    }

    /// Keeps a packed form, unless a param changed since `generation`.
    pub(crate) fn keep_packed(&self, generation: u64, expression: String, buffer: Arc<Buffer>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.generation == generation {
            state.packed.insert(expression, buffer);
        }
    }
}
