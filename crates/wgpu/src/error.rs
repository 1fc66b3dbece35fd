//! What wgpu reports, as errors: scopes around calls, and a record of what came outside of any scope.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use olivine_program::Error;

/// What the device said outside of any scope: that it is lost, or errors of calls that nobody waited for.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lost: Option<String>,
    uncaptured: Option<String>,
}

impl Faults {
    /// Listens to a device, in place of wgpu's handler, which panics.
    pub(crate) fn of(device: &wgpu::Device) -> Arc<Self> {
        let faults = Arc::new(Faults::default());
        let to = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| to.uncaptured(describe(&error))));
        let to = faults.clone();
        device.set_device_lost_callback(move |_, message| to.lose(message));
        faults
    }

    /// Marks the device as lost; every later call fails.
    pub(crate) fn lose(&self, message: String) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lost.get_or_insert(message);
    }

    fn uncaptured(&self, message: String) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.uncaptured.get_or_insert(message);
    }

    /// Fails when the device is lost, or with what was reported outside of scopes since the last call.
    pub(crate) fn check(&self, call: &'static str, during: Option<&str>) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = &state.lost {
            let during = match (during, message.is_empty()) {
                (Some(d), true) => Some(d.to_string()),
                (Some(d), false) => Some(format!("{d} ({message})")),
                (None, true) => None,
                (None, false) => Some(format!("{call} ({message})")),
            };
            return Err(Error::DeviceLost { during });
        }
        match state.uncaptured.take() {
            Some(problem) => Err(Error::Driver { call, problem }),
            None => Ok(()),
        }
    }
}

/// Catches the errors of the calls made on this thread while it lives. Scopes nest.
pub(crate) struct Scope {
    memory: wgpu::ErrorScopeGuard,
    validation: wgpu::ErrorScopeGuard,
    internal: wgpu::ErrorScopeGuard,
}

/// What a scope caught.
#[derive(Debug)]
pub(crate) enum Caught {
    /// The device is out of memory.
    OutOfMemory,
    /// Anything else, in wgpu's words.
    Refused(String),
    /// The device is lost, or an earlier call had failed unseen.
    Known(Error),
}

impl Scope {
    pub(crate) fn new(device: &wgpu::Device) -> Self {
        Scope {
            memory: device.push_error_scope(wgpu::ErrorFilter::OutOfMemory),
            validation: device.push_error_scope(wgpu::ErrorFilter::Validation),
            internal: device.push_error_scope(wgpu::ErrorFilter::Internal),
        }
    }

    /// Ends the scope at once; the future says what it caught, and is ready at once except in browsers.
    pub(crate) fn end(self) -> impl Future<Output = Result<(), Caught>> {
        let internal = self.internal.pop();
        let validation = self.validation.pop();
        let memory = self.memory.pop();
        async move {
            let (internal, validation, memory) = (internal.await, validation.await, memory.await);
            // Lack of memory explains refusals that came with it.
            if memory.is_some() {
                return Err(Caught::OutOfMemory);
            }
            match validation.or(internal) {
                Some(error) => Err(Caught::Refused(describe(&error))),
                None => Ok(()),
            }
        }
    }
}

impl Caught {
    /// As the error of a call that takes no memory to speak of.
    pub(crate) fn into_error(self, call: &'static str) -> Error {
        match self {
            Caught::OutOfMemory => Error::OutOfMemory { what: call.to_string(), bytes: 0, available: None },
            Caught::Refused(problem) => Error::Driver { call, problem },
            Caught::Known(error) => error,
        }
    }
}

/// wgpu's description with its causes, which it prints on lines of their own, on one line.
fn describe(error: &wgpu::Error) -> String {
    error.to_string().lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(": ")
}

/// Runs a future to its end on this thread.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    use std::task::{Context, Poll, Wake, Waker};

    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uncaptured_error_is_told_once_and_a_lost_device_for_ever() {
        let faults = Faults::default();
        assert!(faults.check("wait", None).is_ok());
        faults.uncaptured("first".into());
        faults.uncaptured("second".into());
        assert!(
            matches!(faults.check("wait", None), Err(Error::Driver { problem, .. }) if problem == "first")
        );
        assert!(faults.check("wait", None).is_ok());
        faults.lose("gone".into());
        for _ in 0..2 {
            let Err(Error::DeviceLost { during: Some(during) }) = faults.check("wait", Some("matmul `a`"))
            else {
                panic!("expected the loss of the device");
            };
            assert_eq!(during, "matmul `a` (gone)");
        }
    }
}
