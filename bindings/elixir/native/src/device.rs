//! Devices by name, each opened once.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use olivine_array::{Context, ContextOptions, Device};
use rustler::{Env, NifResult, Term};

use crate::call::{Errors, Failure, done};

/// The context of a device's name. The first call for a device opens it, and others wait.
pub(crate) fn context(name: &str) -> Result<Context, Failure> {
    static CONTEXTS: OnceLock<Mutex<HashMap<String, Context>>> = OnceLock::new();
    let mut contexts = CONTEXTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = contexts.get(name) {
        return Ok(context.clone());
    }
    let device: Device = name.parse()?;
    // Arrays are built on normal schedulers, which must not run graphs: `array_settle` does when they become long.
    let context = Context::with_options(device, ContextOptions::new().graph_nodes(usize::MAX))?;
    contexts.insert(name.to_string(), context.clone());
    Ok(context)
}

/// Opens a device, so that later calls need not.
#[rustler::nif(schedule = "DirtyIo")]
fn open<'a>(env: Env<'a>, device: &str) -> NifResult<Term<'a>> {
    done(env, Errors::All, || context(device).map(|_| ()))
}

/// The names of devices that can be opened, with their descriptions.
#[rustler::nif(schedule = "DirtyIo")]
fn devices() -> Vec<(String, String)> {
    let listed = std::panic::catch_unwind(olivine::devices).unwrap_or_default();
    let available = listed.into_iter().filter(|info| info.unavailable.is_none());
    available.map(|info| (info.device.to_string(), info.name)).collect()
}

/// Bytes of the device's memory that are taken, or `nil` where that is not known.
#[rustler::nif(schedule = "DirtyIo")]
fn memory(device: &str) -> Option<u64> {
    std::panic::catch_unwind(|| context(device).ok()?.session().memory_taken()).ok().flatten()
}
