//! Runs in flight as futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
#[cfg(not(target_arch = "wasm32"))]
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(not(target_arch = "wasm32"))]
use std::task::Waker;
use std::task::{Context, Poll};

use super::{Outputs, Pending};
use crate::Error;

/// Awaits the outputs. Any executor will do: a thread of its own waits for the device and wakes the task. In a browser the
/// device wakes it.
impl IntoFuture for Pending {
    type Output = Result<Outputs, Error>;
    type IntoFuture = PendingFuture;

    fn into_future(self) -> PendingFuture {
        PendingFuture {
            run: Some(self),
            #[cfg(not(target_arch = "wasm32"))]
            shared: Arc::default(),
        }
    }
}

/// A run in flight that can be awaited.
pub struct PendingFuture {
    /// The run, until somebody asks for its outputs.
    run: Option<Pending>,
    #[cfg(not(target_arch = "wasm32"))]
    shared: Arc<Mutex<Shared>>,
}

impl fmt::Debug for PendingFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingFuture").field("run", &self.run).finish_non_exhaustive()
    }
}

#[cfg(not(target_arch = "wasm32"))]
#[derive(Default)]
struct Shared {
    result: Option<Result<Outputs, Error>>,
    waker: Option<Waker>,
}

#[cfg(target_arch = "wasm32")]
impl Future for PendingFuture {
    type Output = Result<Outputs, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(pending) = self.run.as_mut() else { return Poll::Ready(Err(Error::WorkerDied)) };
        std::task::ready!(pending.run.get_mut()?.poll_done(context))?;
        Poll::Ready(self.run.take().map_or(Err(Error::WorkerDied), Pending::wait))
    }
}

#[cfg(not(target_arch = "wasm32"))]
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
