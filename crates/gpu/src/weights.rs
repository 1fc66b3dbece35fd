//! Params of a model on a device, and what load-time dispatches made of them; all executables of the model share them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use olivine_ir::{Tensor, TensorType};
use olivine_program::{Driver, Error};

/// Memory that finished runs of an executable have left for later ones.
pub(crate) trait Idle: Send + Sync {
    /// Its bytes.
    fn bytes(&self) -> u64;
    /// When a run last used it, as a count of uses.
    fn used(&self) -> u64;
    /// Frees it.
    fn clear(&self);
}

/// A model's params. A param stays on the host until runs of an executable read it, and is on the device from then on;
/// one that only loads read comes to the device for as long as these take.
pub struct Weights<D: Driver> {
    state: Mutex<State<D>>,
    /// Of all executables of the model.
    idle: Mutex<Vec<Weak<dyn Idle>>>,
    /// Uses of idle memory so far.
    uses: AtomicU64,
}

struct State<D: Driver> {
    params: HashMap<String, Param<D>>,
    packed: HashMap<String, Arc<D::Buffer>>,
    /// Counts changes, so that an executable notices that what it loaded is stale.
    generation: u64,
}

enum Param<D: Driver> {
    Host(Tensor),
    Device(TensorType, Arc<D::Buffer>),
}

impl<D: Driver> Default for Weights<D> {
    fn default() -> Self {
        let state = State { params: HashMap::new(), packed: HashMap::new(), generation: 0 };
        Weights { state: Mutex::new(state), idle: Mutex::default(), uses: AtomicU64::new(0) }
    }
}

impl<D: Driver> Weights<D> {
    /// Counts an executable's idle memory among the model's.
    pub(crate) fn add_idle(&self, idle: Weak<dyn Idle>) {
        let mut all = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(idle);
    }

    /// The number of a use.
    pub(crate) fn use_number(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Frees idle memory of other executables than one that is to have more, the least recently used first, until they have
    /// so many bytes at most; returns whether there was any.
    pub(crate) fn bound_idle(&self, most: u64, but: &Arc<impl Idle>) -> bool {
        let all = self.idle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_other = |idle: &Arc<dyn Idle>| !std::ptr::addr_eq(Arc::as_ptr(idle), Arc::as_ptr(but));
        let mut others: Vec<(u64, Arc<dyn Idle>)> =
            all.iter().filter_map(Weak::upgrade).filter(is_other).map(|idle| (idle.bytes(), idle)).collect();
        let mut bytes: u64 = others.iter().map(|(bytes, _)| bytes).sum();
        if bytes <= most {
            return false;
        }
        others.sort_by_key(|(_, idle)| idle.used());
        for (own, idle) in others.iter().filter(|(own, _)| *own > 0) {
            if bytes <= most {
                break;
            }
            idle.clear();
            bytes -= own;
        }
        true
    }

    /// Sets or replaces a param; the elements are shared until they are on the device.
    pub fn set(&self, name: &str, tensor: Tensor) {
        let mut state = self.lock();
        state.params.insert(name.to_string(), Param::Host(tensor));
        state.packed.clear();
        state.generation += 1;
    }

    /// Sets or replaces a param and brings it to the device now, so that the host need not keep it.
    pub fn upload(&self, driver: &D, name: &str, tensor: &Tensor) -> Result<(), Error> {
        // What it replaces goes before the new one comes.
        self.lock().params.remove(name);
        let bytes = tensor.bytes();
        let padded = (bytes.len() as u64).max(1).next_multiple_of(driver.caps().alignment() as u64);
        let buffer = driver.allocate(padded, &format!("param `{name}`"))?;
        driver.write(&buffer, 0, bytes)?;
        let mut state = self.lock();
        state.params.insert(name.to_string(), Param::Device(tensor.ty(), buffer));
        state.packed.clear();
        state.generation += 1;
        Ok(())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Whether a param was set.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.lock().params.contains_key(name)
    }

    /// A param on the device, brought there if it is not; `None` when it was never set. One that does not stay is the
    /// caller's alone, unless it is there already.
    pub(crate) fn param(
        &self,
        driver: &D,
        name: &str,
        ty: TensorType,
        bytes: u64,
        stays: bool,
    ) -> Result<Option<Arc<D::Buffer>>, Error> {
        let mut state = self.lock();
        let wrong = |got: TensorType| Error::WrongType { what: format!("param `{name}`"), expected: ty, got };
        let tensor = match state.params.get(name) {
            None => return Ok(None),
            Some(Param::Device(got, buffer)) if *got == ty => return Ok(Some(buffer.clone())),
            Some(Param::Device(got, _)) => return Err(wrong(*got)),
            Some(Param::Host(tensor)) if tensor.ty() == ty => tensor.clone(),
            Some(Param::Host(tensor)) => return Err(wrong(tensor.ty())),
        };
        let buffer = driver.allocate(bytes, &format!("param `{name}`"))?;
        driver.write(&buffer, 0, tensor.bytes())?;
        if stays {
            state.params.insert(name.to_string(), Param::Device(ty, buffer.clone()));
        }
        Ok(Some(buffer))
    }

    pub(crate) fn packed(&self, key: &str) -> Option<Arc<D::Buffer>> {
        self.lock().packed.get(key).cloned()
    }

    /// Keeps a packed form, unless a param changed since `generation`.
    pub(crate) fn keep_packed(&self, generation: u64, key: &str, buffer: Arc<D::Buffer>) {
        let mut state = self.lock();
        if state.generation == generation {
            state.packed.insert(key.to_string(), buffer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
