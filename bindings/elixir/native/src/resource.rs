//! Handles that Elixir holds.
//!
//! Garbage collection runs on a scheduler, which must not wait for a device. So a handle's content goes to a thread that
//! drops it.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use olivine_array::{Array, Buffer};
use rustler::{Resource, ResourceArc, Term};

use crate::call::Failure;
use crate::chain::Bound;
use crate::model::Loaded;

/// What is dropped on the thread, whatever it is.
type Garbage = Box<dyn Send>;

/// A value that the thread drops; it is there until then.
struct Held<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Drop for Held<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            discard(Box::new(value));
        }
    }
}

fn discard(garbage: Garbage) {
    static REAPER: OnceLock<Option<Mutex<Sender<Garbage>>>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = channel::<Garbage>();
        let work = move || {
            for garbage in receiver {
                // A driver that fails to free something must not end the thread.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(garbage)));
            }
        };
        std::thread::Builder::new().name("olivine-reaper".into()).spawn(work).ok().map(|_| Mutex::new(sender))
    };
    // Without a thread it is dropped here.
    if let Some(sender) = REAPER.get_or_init(start) {
        let _ = sender.lock().unwrap_or_else(PoisonError::into_inner).send(garbage);
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident: $inner:ty = $what:literal, $make:ident, $get:ident;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name(Held<$inner>);

        #[rustler::resource_impl]
        impl Resource for $name {}

        #[doc = concat!("A term's handle of ", $what, ".")]
        pub(crate) fn $make(value: $inner) -> ResourceArc<$name> {
            ResourceArc::new($name(Held(Some(value))))
        }

        #[doc = concat!("The ", $what, " of a term; another reference is an error, what is none a bad argument.")]
        pub(crate) fn $get(term: Term<'_>) -> Result<$inner, Failure> {
            if !term.is_ref() {
                return Err(Failure::BadArgument);
            }
            let handle: Result<ResourceArc<$name>, _> = term.decode();
            let value = handle.ok().and_then(|handle| handle.0.0.clone());
            value.ok_or_else(|| Failure::bad(concat!("the reference is not one of ", $what)))
        }
    )*};
}

handles! {
    /// A buffer on a device.
    BufferHandle: Buffer = "a buffer", buffer_handle, buffer;
    /// A lazy array.
    ArrayHandle: Array = "an array", array_handle, array;
    /// A density with its data.
    ChainHandle: Bound = "a chain", chain_handle, chain;
    /// A compiled model.
    ModelHandle: Loaded = "a model", model_handle, model;
}
