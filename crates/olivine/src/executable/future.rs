//! Runs in flight as futures.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Outputs, Pending};
use crate::Error;

/// Awaits the outputs. Any executor will do: a thread of its own waits for the device and wakes the task.
impl IntoFuture for Pending {
    type Output = Result<Outputs, Error>;
    type IntoFuture = PendingFuture;

    fn into_future(self) -> PendingFuture {
        PendingFuture { run: Some(self), shared: Arc::default() }
    }
}

/// A run in flight that can be awaited.
pub struct PendingFuture {
    /// The run, until somebody asks for its outputs.
    run: Option<Pending>,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    result: Option<Result<Outputs, Error>>,
    waker: Option<Waker>,
}

impl Future for PendingFuture {
    type Output = Result<Outputs, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        {
            let mut shared = this.shared.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(result) = shared.result.take() {
                return Poll::Ready(result);
            }
            shared.waker = Some(context.waker().clone());
        }
        let Some(run) = this.run.take() else { return Poll::Pending };
        let shared = this.shared.clone();
        let waiting = std::thread::Builder::new().name("olivine-wait".into()).spawn(move || {
            let result = run.wait();
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.result = Some(result);
            let waker = shared.waker.take();
            drop(shared);
            waker.into_iter().for_each(Waker::wake);
        });
        match waiting {
            Ok(_) => Poll::Pending,
            // The run went with the closure of the thread that could not begin.
            Err(_) => Poll::Ready(Err(Error::WorkerDied)),
        }
    }
}
