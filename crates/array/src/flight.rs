//! Work that was handed to the device and may not be done yet.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use olivine::{DeviceTensor, ResidentRun};

use crate::Error;

/// A run in flight. On a GPU its outputs are there when it is submitted; on the CPU when it has ended.
pub(crate) struct Flight {
    state: Mutex<State>,
}

struct State {
    /// Until it has ended.
    run: Option<ResidentRun>,
    /// Outputs that nobody has taken yet.
    outputs: Vec<Option<DeviceTensor>>,
    failed: Option<Error>,
}

impl Flight {
    /// Takes over a run; `at_once` where its outputs need not be waited for.
    pub(crate) fn new(mut run: ResidentRun, at_once: bool) -> Result<Self, Error> {
        let outputs = if at_once { tensors(&mut run)? } else { Vec::new() };
        Ok(Flight { state: Mutex::new(State { run: Some(run), outputs, failed: None }) })
    }

    /// Takes over a run without outputs of its own.
    pub(crate) fn of_module(run: ResidentRun) -> Self {
        // Nobody takes it; it is there so that the run is not asked for outputs.
        Flight { state: Mutex::new(State { run: Some(run), outputs: vec![None], failed: None }) }
    }

    /// Takes an output out; it can be taken once. On the CPU this waits for the run.
    pub(crate) fn take(&self, output: usize) -> Result<DeviceTensor, Error> {
        let mut state = self.lock();
        if state.outputs.is_empty() {
            state.finish()?;
        }
        let taken = state.outputs.get_mut(output).and_then(Option::take);
        taken
            .ok_or_else(|| state.failed.clone().unwrap_or_else(|| Error::bad("the output was taken already")))
    }

    /// Whether the run has ended.
    pub(crate) fn is_done(&self) -> Result<bool, Error> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody waits for it.
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let done = match &mut state.run {
            Some(run) => run.is_done()?,
            None => return state.failed.clone().map_or(Ok(true), Err),
        };
        if done {
            state.finish()?;
        }
        Ok(done)
    }

    /// Waits for the end of the run, and frees what only the run needs.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        self.lock().finish()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn finish(&mut self) -> Result<(), Error> {
        if let Some(mut run) = self.run.take() {
            let ended = run.wait().and_then(|()| {
                if self.outputs.is_empty() {
                    self.outputs = tensors(&mut run)?;
                }
                Ok(())
            });
            self.failed = ended.err().map(Error::from);
        }
        self.failed.clone().map_or(Ok(()), Err)
    }
}

/// The outputs of a run, for each to be taken.
fn tensors(run: &mut ResidentRun) -> Result<Vec<Option<DeviceTensor>>, olivine::Error> {
    Ok(run.outputs()?.into_tensors().into_iter().map(Some).collect())
}

/// Runs in flight of one device, in the order of their submission.
#[derive(Default)]
pub(crate) struct InFlight {
    flights: Mutex<std::collections::VecDeque<Arc<Flight>>>,
}

/// So many runs may be in flight; a submission beyond them waits for the oldest.
const MOST: usize = 32;

impl InFlight {
    /// Adds a run, lets go of those that have ended, and waits where there are too many. A run that
    /// failed is an error where its results are asked for.
    pub(crate) fn push(&self, flight: Arc<Flight>) {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.push_back(flight);
        let mut ended = Vec::new();
        while flights.front().is_some_and(|first| first.is_done().unwrap_or(true)) {
            ended.extend(flights.pop_front());
        }
        let oldest = if flights.len() > MOST { flights.pop_front() } else { None };
        drop(flights);
        if let Some(oldest) = oldest {
            let _ = oldest.wait();
        }
    }

    /// Waits for all runs so far; the first failure is the error.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        let flights = std::mem::take(&mut *self.flights.lock().unwrap_or_else(PoisonError::into_inner));
        // All of them, also after one that failed; the first error counts.
        let mut result = Ok(());
        for flight in flights {
            result = result.and(flight.wait());
        }
        result
    }
}
