//! What an array is behind its handle: an operation that waits, or elements.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use olivine::DeviceTensor;
use olivine::internals::DeviceTensorExt;
use olivine_ir::{Op, Tensor, TensorType};

use crate::Error;
use crate::flight::Flight;

/// One operation with its results, computed or not.
pub(crate) struct Node {
    types: Vec<TensorType>,
    state: Mutex<State>,
    /// Operations that are not computed up to this one; at least as many as there are.
    waiting: AtomicUsize,
    /// Whether an evaluation went through it without keeping its results.
    passed: AtomicBool,
}

/// A long chain goes one by one: each node is the last holder of the one before, and the stack is not that deep.
impl Drop for Node {
    fn drop(&mut self) {
        let mut gone = self.take_inputs();
        while let Some((node, _)) = gone.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                gone.append(&mut node.take_inputs());
            }
        }
    }
}

/// A result of a node.
pub(crate) type Operand = (Arc<Node>, usize);

/// An operation that waits.
pub(crate) struct Work {
    pub(crate) op: Op,
    pub(crate) inputs: Vec<Operand>,
}

enum State {
    Lazy(Arc<Work>),
    Ready(Vec<Value>),
}

/// Elements of a result.
#[derive(Clone)]
pub(crate) enum Value {
    /// On the host: small. On the CPU it goes along with every run, a GPU is given it once.
    Host(Tensor),
    /// On the device, once the run that computes them has ended.
    Device(DeviceTensor, Option<Arc<Flight>>),
    /// What a run on the CPU will have for its so manieth output.
    Flying(Arc<Flight>, usize),
}

impl Node {
    pub(crate) fn lazy(op: Op, inputs: Vec<Operand>, types: Vec<TensorType>) -> Arc<Self> {
        let waiting = inputs.iter().fold(1usize, |sum, (node, _)| sum.saturating_add(node.waiting()));
        let state = State::Lazy(Arc::new(Work { op, inputs }));
        Arc::new(Node::new(types, state, waiting))
    }

    pub(crate) fn ready(ty: TensorType, value: Value) -> Arc<Self> {
        Arc::new(Node::new(vec![ty], State::Ready(vec![value]), 0))
    }

    fn new(types: Vec<TensorType>, state: State, waiting: usize) -> Self {
        let (state, waiting) = (Mutex::new(state), AtomicUsize::new(waiting));
        Node { types, state, waiting, passed: AtomicBool::new(false) }
    }

    /// The operands of a node that goes, if nobody else computes with them.
    fn take_inputs(&mut self) -> Vec<Operand> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(state, State::Ready(Vec::new())) {
            State::Lazy(work) => Arc::into_inner(work).map_or_else(Vec::new, |work| work.inputs),
            State::Ready(_) => Vec::new(),
        }
    }

    pub(crate) fn types(&self) -> &[TensorType] {
        &self.types
    }

    /// Operations that are not computed up to this one; at least as many as there are.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Sets that number to what was counted.
    pub(crate) fn set_waiting(&self, count: usize) {
        self.waiting.store(count, Ordering::Relaxed);
    }

    /// Notes that an evaluation goes through the node; whether one did before.
    pub(crate) fn pass(&self) -> bool {
        self.passed.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_lazy(&self) -> bool {
        matches!(*self.lock(), State::Lazy(_))
    }

    /// The operation, if it waits.
    pub(crate) fn work(&self) -> Option<Arc<Work>> {
        match &*self.lock() {
            State::Lazy(work) => Some(work.clone()),
            State::Ready(_) => None,
        }
    }

    /// A result, if it is computed or being computed.
    pub(crate) fn value(&self, result: usize) -> Option<Value> {
        match &*self.lock() {
            State::Lazy(_) => None,
            State::Ready(values) => values.get(result).cloned(),
        }
    }

    /// A result's elements on the device; on the CPU this waits for the run that computes them. `None` for elements of the
    /// host and for what is not computed.
    pub(crate) fn tensor(&self, result: usize) -> Result<Option<DeviceTensor>, Error> {
        let mut state = self.lock();
        let State::Ready(values) = &mut *state else { return Ok(None) };
        let Some(value) = values.get_mut(result) else { return Ok(None) };
        match value {
            Value::Host(_) => Ok(None),
            Value::Device(tensor, _) => Ok(Some(tensor.clone())),
            Value::Flying(flight, output) => {
                let tensor = flight.take(*output)?;
                *value = Value::Device(tensor.clone(), None);
                Ok(Some(tensor))
            }
        }
    }

    /// Brings elements of the host to the device, once.
    pub(crate) fn bring(
        &self,
        result: usize,
        upload: impl FnOnce(&Tensor) -> Result<DeviceTensor, Error>,
    ) -> Result<(), Error> {
        if let State::Ready(values) = &mut *self.lock()
            && let Some(value) = values.get_mut(result)
            && let Value::Host(tensor) = value
        {
            *value = Value::Device(upload(tensor)?, None);
        }
        Ok(())
    }

    /// Whether nobody else holds the memory of a result on the device.
    pub(crate) fn is_unshared(&self, result: usize) -> bool {
        match &*self.lock() {
            State::Ready(values) => {
                matches!(values.get(result), Some(Value::Device(tensor, _)) if !tensor.is_shared())
            }
            State::Lazy(_) => false,
        }
    }

    /// Gives the node its results, unless another thread was first; its operation goes.
    pub(crate) fn settle(&self, values: Vec<Value>) {
        let mut state = self.lock();
        if matches!(*state, State::Lazy(_)) {
            let before = std::mem::replace(&mut *state, State::Ready(values));
            self.set_waiting(0);
            drop(state);
            // Operands may go with it, and they need not be locked out of here.
            drop(before);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
