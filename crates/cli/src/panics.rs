//! Panics as errors: what one device cannot do must not keep the others from being looked at.

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send + 'static>;

/// While it lives, panics print nothing: whoever catches them reports them.
pub(crate) struct Silence(Option<Hook>);

impl Silence {
    pub(crate) fn new() -> Self {
        let before = take_hook();
        set_hook(Box::new(|_| {}));
        Silence(Some(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        if let Some(before) = self.0.take()
            && !std::thread::panicking()
        {
            set_hook(before);
        }
    }
}

/// The result of `work`, or what its panic says.
pub(crate) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        format!("panicked: {}", text.unwrap_or_else(|| "without a message".into()))
    })
}
