//! Warnings of the library, collected by tests.

use std::fmt::{self, Write};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The warnings of this process since the first call.
pub fn warnings() -> Vec<String> {
    static BEGUN: Once = Once::new();
    // A process that has another subscriber has no warnings here.
    BEGUN.call_once(|| drop(tracing::subscriber::set_global_default(Collector)));
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push(message.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{value:?}");
    }
}
