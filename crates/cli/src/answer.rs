//! What a command hands back: text and JSON, or a failure with its causes and a hint.

use std::error::Error as _;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

/// A command's result in both forms, and what failed in spite of it.
pub(crate) struct Answer {
    text: String,
    json: Value,
    failure: Option<Failure>,
}

impl Answer {
    /// A result that is all well.
    pub(crate) fn new(text: impl Into<String>, json: Value) -> Self {
        Answer { text: text.into(), json, failure: None }
    }

    /// A result that was printed already.
    #[cfg(feature = "serve")]
    pub(crate) fn nothing() -> Self {
        Answer { text: String::new(), json: Value::Null, failure: None }
    }

    /// The result is worth showing, but the command still fails.
    pub(crate) fn with_failure(mut self, failure: Option<Failure>) -> Self {
        self.failure = failure;
        self
    }

    /// Adds a line to the text.
    pub(crate) fn with_line(mut self, line: &str) -> Self {
        self.text += &format!("{line}\n");
        self
    }

    /// Writes the answer to stdout and the failure to stderr; a reader that went away is no failure.
    pub(crate) fn print(self, as_json: bool) -> ExitCode {
        let mut text = self.text;
        if as_json {
            text = match (&self.failure, self.json) {
                (Some(failure), Value::Null) => failure.json().to_string(),
                (None, Value::Null) => String::new(),
                (_, json) => json.to_string(),
            };
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let mut stdout = std::io::stdout().lock();
        if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            if error.kind() == ErrorKind::BrokenPipe {
                return ExitCode::SUCCESS;
            }
            Failure::new(format!("cannot write the answer: {error}")).print();
            return ExitCode::FAILURE;
        }
        match self.failure {
            Some(failure) => {
                failure.print();
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        }
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        Answer { text: String::new(), json: Value::Null, failure: Some(failure) }
    }
}

/// Why a command could not do its work.
#[derive(Debug)]
pub(crate) struct Failure {
    error: String,
    causes: Vec<String>,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(error: impl Into<String>) -> Self {
        Failure { error: error.into(), causes: Vec::new(), hint: None }
    }

    /// What went wrong, without causes and hint.
    pub(crate) fn error(&self) -> &str {
        &self.error
    }

    /// Says what was being done when `self` happened; `self` becomes the cause.
    pub(crate) fn context(self, error: impl Into<String>) -> Self {
        let mut causes = vec![self.error];
        causes.extend(self.causes);
        Failure { error: error.into(), causes, hint: self.hint }
    }

    /// The error and its causes on one line.
    pub(crate) fn line(&self) -> String {
        let all: Vec<&str> = [&self.error].into_iter().chain(&self.causes).map(String::as_str).collect();
        all.join(": ")
    }

    /// Adds what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Error, causes and hint as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({ "error": self.error, "causes": self.causes, "hint": self.hint })
    }

    /// The lines for a person, on stderr.
    fn print(&self) {
        let mut text = format!("error: {}\n", self.error);
        for cause in &self.causes {
            text += &format!("  cause: {cause}\n");
        }
        if let Some(hint) = &self.hint {
            text += &format!("  hint: {hint}\n");
        }
        // Nobody is left to tell if stderr is closed as well.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

impl From<olivine::Error> for Failure {
    fn from(error: olivine::Error) -> Self {
        let mut failure = Failure::new(error.to_string());
        let mut above = failure.error.clone();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some errors print their source themselves; once is enough.
            if !above.contains(&text) {
                failure.causes.push(text.clone());
            }
            above = text;
            source = cause.source();
        }
        failure.hint = hint(&error);
        failure
    }
}

impl From<olivine_lm::Error> for Failure {
    fn from(error: olivine_lm::Error) -> Self {
        match error {
            olivine_lm::Error::Olivine(error) => error.into(),
            other => Failure::new(other.to_string()),
        }
    }
}

#[cfg(feature = "serve")]
impl From<olivine_serve::Error> for Failure {
    fn from(error: olivine_serve::Error) -> Self {
        match error {
            olivine_serve::Error::Olivine(error) => error.into(),
            olivine_serve::Error::Model(error) => error.into(),
            other => Failure::new(other.to_string()),
        }
    }
}

impl From<olivine::ir::Error> for Failure {
    fn from(error: olivine::ir::Error) -> Self {
        olivine::Error::from(error).into()
    }
}

/// What to do about an error, where that is known.
fn hint(error: &olivine::Error) -> Option<String> {
    use olivine::Error as E;
    let hint = match error {
        E::Unavailable { .. } => "`olivine devices` lists what is there; `--device cpu` always works",
        E::BadDevice { .. } => {
            "devices are named auto, cpu, vulkan, vulkan:N, vulkan:uuid:…, wgpu, wgpu:N, wgpu:vulkan"
        }
        E::Cpu(
            olivine::internals::cpu::Error::OutOfMemory { .. }
            | olivine::internals::cpu::Error::TooLarge { .. },
        ) => "use a smaller batch or sequence, or a machine with more memory",
        E::Graph(olivine::ir::Error::TooLarge { .. }) => "use smaller sizes",
        _ => return None,
    };
    Some(hint.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_turns_the_error_into_the_first_cause_and_keeps_the_hint() {
        let failure = Failure::new("no such file").hint("look again").context("cannot read `x`");
        assert_eq!(
            failure.json(),
            json!({ "error": "cannot read `x`", "causes": ["no such file"], "hint": "look again" })
        );
    }

    #[test]
    fn a_cause_that_the_error_prints_itself_is_not_repeated() {
        let source = olivine::ir::Error::BadData { problem: "too short".into() };
        let failure = Failure::from(olivine::Error::Compile(olivine::internals::compile::Error::Graph {
            pass: "fold",
            source,
        }));
        assert_eq!(failure.error, "after fold: too short");
        assert!(failure.causes.is_empty(), "{:?}", failure.causes);
    }

    #[test]
    fn an_absent_device_comes_with_a_hint() {
        let error = olivine::Error::Unavailable { device: "vulkan".into(), reason: "no loader".into() };
        assert!(Failure::from(error).hint.is_some_and(|h| h.contains("--device cpu")));
    }
}
