//! Callbacks when work is done: a thread waits for the device and calls them.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::flight::Flight;
use crate::{Error, ErrorKind};

/// What is called when work has ended, with how it ended.
pub(crate) type Callback = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// A run, and what to call after it.
type Job = (Arc<Flight>, Callback);

/// A thread that begins with the first callback and ends with the context.
#[derive(Default)]
pub(crate) struct Notifier {
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Notifier {
    /// Calls back when a run has ended. Callbacks of one context are called one after another.
    pub(crate) fn when_done(&self, flight: Arc<Flight>, callback: Callback) -> Result<(), Error> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.is_none() {
            *jobs = Some(start()?);
        }
        let sent = jobs.as_ref().map(|jobs| jobs.send((flight, callback)));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::new(ErrorKind::DispatchFailed, "the thread that calls back has ended")),
        }
    }
}

fn start() -> Result<Sender<Job>, Error> {
    let (sender, receiver) = channel::<(Arc<Flight>, Callback)>();
    let work = move || {
        for (flight, callback) in receiver {
            let ended = flight.wait();
            drop(flight);
            // A callback that panics must not take the others with it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| callback(ended)));
        }
    };
    match std::thread::Builder::new().name("olivine-array".into()).spawn(work) {
        Ok(_) => Ok(sender),
        Err(e) => Err(Error::new(ErrorKind::DispatchFailed, format!("no thread for callbacks: {e}"))),
    }
}
