//! Calls of tools in the text that a model writes, as the text comes.

use std::sync::Arc;

use super::call_scan::{CallScan, Scanned};
use super::params::random;

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen do.
    Hermes,
    /// `{"name": …, "parameters": {…}}` instead of text, perhaps after `<|python_tag|>`, as Llama 3 does.
    Llama,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`
    Mistral,
}

impl Syntax {
    /// The syntax that a chat template writes earlier calls in.
    pub(crate) fn of_template(source: &str) -> Option<Self> {
        let has = |part: &str| source.contains(part);
        match () {
            () if has("<tool_call>") => Some(Syntax::Hermes),
            () if has("[TOOL_CALLS]") => Some(Syntax::Mistral),
            () if has("<|python_tag|>") || has("ipython") => Some(Syntax::Llama),
            () => None,
        }
    }

    /// What begins a call.
    pub(crate) fn opening(self) -> &'static str {
        match self {
            Syntax::Hermes => "<tool_call>",
            Syntax::Llama => "<|python_tag|>",
            Syntax::Mistral => "[TOOL_CALLS]",
        }
    }

    fn closing(self) -> &'static str {
        match self {
            Syntax::Hermes => "</tool_call>",
            Syntax::Llama | Syntax::Mistral => "",
        }
    }

    /// Its markers, which may be control tokens.
    pub(crate) fn markers(self) -> [&'static str; 2] {
        [self.opening(), self.closing()]
    }

    /// The key of a call's arguments.
    pub(crate) fn arguments(self) -> &'static str {
        match self {
            Syntax::Llama => "parameters",
            Syntax::Hermes | Syntax::Mistral => "arguments",
        }
    }

    /// What ends a prompt whose answer has to be a call.
    pub(crate) fn forcing(self) -> &'static str {
        match self {
            Syntax::Hermes => "<tool_call>\n",
            Syntax::Llama => "",
            Syntax::Mistral => "[TOOL_CALLS]",
        }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delta {
    Content(String),
    /// A call begins.
    Call {
        index: usize,
        id: String,
        name: String,
    },
    /// More of its arguments.
    Arguments {
        index: usize,
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// Before the array of calls.
    Array,
    Call,
    After,
}

/// Which calls a text may have.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    pub(crate) syntax: Syntax,
    /// The tools' names.
    pub(crate) names: Arc<[String]>,
    /// Whether several calls may come.
    pub(crate) parallel: bool,
    /// Whether the prompt ends with the beginning of a call.
    pub(crate) forced: bool,
}

/// Tells calls from text.
pub(crate) struct CallParser {
    calls: Calls,
    state: State,
    /// Text that is not understood yet.
    held: String,
    /// The text of the call in progress, which becomes content if it is none.
    raw: String,
    scan: CallScan,
    /// Whether the call in progress was announced.
    announced: bool,
    count: usize,
    has_content: bool,
}

impl CallParser {
    pub(crate) fn new(calls: Calls) -> Self {
        let state = match (calls.forced, calls.syntax) {
            (false, _) => State::Text,
            (true, Syntax::Mistral) => State::Array,
            (true, _) => State::Call,
        };
        CallParser {
            calls,
            state,
            held: String::new(),
            raw: String::new(),
            scan: CallScan::new(),
            announced: false,
            count: 0,
            has_content: false,
        }
    }

    /// Whether a call was found.
    pub(crate) fn has_calls(&self) -> bool {
        self.count > 0 || self.announced
    }

    /// What is understood with more text.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while self.step(&mut out) {}
        out
    }

    /// What is left at the end of the text.
    pub(crate) fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        let rest = std::mem::take(&mut self.raw) + &std::mem::take(&mut self.held);
        let is_call = self.announced || (self.has_calls() && rest.trim().is_empty());
        if !is_call {
            self.content(rest, &mut out);
        }
        out
    }

    fn content(&mut self, text: String, out: &mut Vec<Delta>) {
        if !text.is_empty() {
            self.has_content = true;
            out.push(Delta::Content(text));
        }
    }

    /// Goes on by one part of the text; false if more text is needed.
    fn step(&mut self, out: &mut Vec<Delta>) -> bool {
        match self.state {
            State::Text => self.text(out),
            State::Array => self.array(out),
            State::Call => self.call(out),
            State::After => self.after(),
        }
    }

    fn text(&mut self, out: &mut Vec<Delta>) -> bool {
        let opening = self.calls.syntax.opening();
        if let Some(at) = self.held.find(opening) {
            let rest = self.held.split_off(at + opening.len());
            let before = std::mem::replace(&mut self.held, rest);
            let before = before[..at].trim_end();
            if !before.is_empty() {
                self.content(before.to_string(), out);
            }
            self.raw = opening.into();
            self.state = if self.calls.syntax == Syntax::Mistral { State::Array } else { State::Call };
            return true;
        }
        // Llama's calls are marked by nothing but that the answer begins with them.
        if self.calls.syntax == Syntax::Llama && !self.has_content && self.held.trim_start().starts_with('{')
        {
            self.state = State::Call;
            return true;
        }
        // What may become a marker is held back, and space before it, which is no content then.
        let sure = self.held.len() - begun(&self.held, opening);
        let shown = self.held[..sure].trim_end().len();
        let rest = self.held.split_off(shown);
        let shown = std::mem::replace(&mut self.held, rest);
        self.content(shown, out);
        false
    }

    fn array(&mut self, out: &mut Vec<Delta>) -> bool {
        let Some((at, c)) = self.held.char_indices().find(|(_, c)| !c.is_whitespace()) else { return false };
        self.raw.extend(self.held.drain(..at + c.len_utf8()));
        match c {
            '[' => self.state = State::Call,
            _ => self.is_no_call(out),
        }
        true
    }

    /// Takes what was read as a call for text.
    fn is_no_call(&mut self, out: &mut Vec<Delta>) {
        let raw = std::mem::take(&mut self.raw);
        if !self.announced {
            self.content(raw, out);
        }
        self.end_call();
        self.state = State::Text;
    }

    fn end_call(&mut self) {
        self.raw.clear();
        self.count += usize::from(std::mem::take(&mut self.announced));
        self.scan = CallScan::new();
        self.state = State::After;
    }

    fn call(&mut self, out: &mut Vec<Delta>) -> bool {
        let held = std::mem::take(&mut self.held);
        for (at, c) in held.char_indices() {
            self.raw.push(c);
            let mut scanned = self.scan.push(c);
            if !self.announced && scanned != Scanned::Invalid {
                match &self.scan.name {
                    Some(name) if self.calls.names.contains(name) => self.announce(out),
                    // Of a tool that is not there, or of none.
                    Some(_) => scanned = Scanned::Invalid,
                    None if scanned == Scanned::Done => scanned = Scanned::Invalid,
                    None => {}
                }
            }
            if scanned != Scanned::More {
                self.held = held[at + c.len_utf8()..].to_string();
                self.arguments(out);
                match scanned {
                    Scanned::Done => self.end_call(),
                    _ => self.is_no_call(out),
                }
                return true;
            }
        }
        self.arguments(out);
        false
    }

    fn announce(&mut self, out: &mut Vec<Delta>) {
        self.announced = true;
        let (index, name) = (self.count, self.scan.name.clone().unwrap_or_default());
        // Templates of Mistral take nine letters and digits only.
        let id = match self.calls.syntax {
            Syntax::Mistral => format!("{:09x}", random() & 0xf_ffff_ffff),
            _ => format!("call_{:016x}", random()),
        };
        if self.is_wanted() {
            out.push(Delta::Call { index, id, name });
        }
    }

    fn is_wanted(&self) -> bool {
        self.calls.parallel || self.count == 0
    }

    fn arguments(&mut self, out: &mut Vec<Delta>) {
        if !self.announced {
            return;
        }
        let (index, text) = (self.count, self.scan.take_arguments());
        if !text.is_empty() && self.is_wanted() {
            out.push(Delta::Arguments { index, text });
        }
    }

    /// Between calls.
    fn after(&mut self) -> bool {
        let rest = self.held.trim_start();
        let closing = self.calls.syntax.closing();
        let (taken, state) = match (self.calls.syntax, rest.chars().next()) {
            (_, None) => return false,
            (Syntax::Hermes, _) if rest.starts_with(closing) => (closing.len(), State::Text),
            (Syntax::Hermes, _) if closing.starts_with(rest) => return false,
            (Syntax::Mistral, Some(',')) => (1, State::Call),
            (Syntax::Mistral, Some(']')) => (1, State::Text),
            (Syntax::Llama, Some(';')) => (1, State::After),
            (Syntax::Llama, Some('{')) => (0, State::Call),
            _ => (0, State::Text),
        };
        self.held = rest[taken..].to_string();
        self.state = state;
        true
    }
}

/// Bytes at the end of a text with which a marker begins.
fn begun(text: &str, marker: &str) -> usize {
    (1..marker.len()).rev().find(|n| text.ends_with(&marker[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The content and the calls of a text that comes in pieces of a size.
    fn parsed(calls: &Calls, text: &str, size: usize) -> (String, Vec<(String, String)>) {
        let mut parser = CallParser::new(calls.clone());
        let chars: Vec<char> = text.chars().collect();
        let mut deltas: Vec<Delta> = Vec::new();
        for part in chars.chunks(size) {
            deltas.extend(parser.push(&part.iter().collect::<String>()));
        }
        deltas.extend(parser.finish());
        let (mut content, mut all) = (String::new(), Vec::new());
        for delta in deltas {
            match delta {
                Delta::Content(text) => content += &text,
                Delta::Call { index, name, .. } => {
                    assert_eq!(index, all.len());
                    all.push((name, String::new()));
                }
                Delta::Arguments { index, text } => all[index].1 += &text,
            }
        }
        assert_eq!(parser.has_calls(), !all.is_empty());
        (content, all)
    }

    fn calls(syntax: Syntax) -> Calls {
        Calls { syntax, names: Arc::new(["f".into(), "g".into()]), parallel: true, forced: false }
    }

    fn check(calls: &Calls, text: &str, content: &str, expected: &[(&str, &str)]) {
        let expected: Vec<(String, String)> =
            expected.iter().map(|(name, arguments)| (name.to_string(), arguments.to_string())).collect();
        for size in 1..=text.chars().count().max(1) {
            assert_eq!(
                parsed(calls, text, size),
                (content.to_string(), expected.clone()),
                "{text:?} by {size}"
            );
        }
    }

    #[test]
    fn calls_of_hermes_and_qwen() {
        let calls = calls(Syntax::Hermes);
        let (one, two) =
            (r#"{"name": "f", "arguments": {"x": "<tool_call>é"}}"#, r#"{"name": "g", "arguments": {}}"#);
        let arguments = r#"{"x": "<tool_call>é"}"#;
        check(&calls, &format!("<tool_call>\n{one}\n</tool_call>"), "", &[("f", arguments)]);
        let both = format!("Let me see.\n<tool_call>\n{one}\n</tool_call>\n<tool_call>{two}</tool_call>\n");
        check(&calls, &both, "Let me see.", &[("f", arguments), ("g", "{}")]);
        check(&calls, "a < b <tool_cal", "a < b <tool_cal", &[]);
        check(&calls, " plain text \n", " plain text \n", &[]);
        // What is no call stays text.
        for text in [
            r#"<tool_call>{"name": "h", "arguments": {}}</tool_call>"#,
            "<tool_call> nothing",
            "<tool_call>{\"a\": 1}",
            "",
        ] {
            check(&calls, text, text, &[]);
        }
        // One that breaks off has what came of it.
        check(&calls, r#"<tool_call>{"name": "f", "arguments": {"x": "#, "", &[("f", r#"{"x": "#)]);
    }

    #[test]
    fn calls_of_llama() {
        let calls = calls(Syntax::Llama);
        check(&calls, r#"{"name": "f", "parameters": {"x": 1}}"#, "", &[("f", r#"{"x": 1}"#)]);
        check(
            &calls,
            r#" <|python_tag|>{"type": "function", "name": "f", "parameters": {}}"#,
            "",
            &[("f", "{}")],
        );
        let two = r#"{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"y": [1]}}"#;
        check(&calls, two, "", &[("f", "{}"), ("g", r#"{"y": [1]}"#)]);
        check(&calls, r#"{"answer": 5}"#, r#"{"answer": 5}"#, &[]);
        check(&calls, r#"See {"name": "f"}"#, r#"See {"name": "f"}"#, &[]);
    }

    #[test]
    fn calls_of_mistral() {
        let calls = calls(Syntax::Mistral);
        let two = r#"[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]"#;
        check(&calls, two, "", &[("f", r#"{"x": 1}"#), ("g", "{}")]);
        check(&calls, "[TOOL_CALLS] what", "[TOOL_CALLS] what", &[]);
        check(&Calls { parallel: false, ..calls }, two, "", &[("f", r#"{"x": 1}"#)]);
    }

    #[test]
    fn forced_calls_begin_at_once() {
        let text = r#"{"name": "g", "arguments": {"a": true}}"#;
        check(&Calls { forced: true, ..calls(Syntax::Hermes) }, text, "", &[("g", r#"{"a": true}"#)]);
        check(
            &Calls { forced: true, ..calls(Syntax::Mistral) },
            &format!("[{text}]"),
            "",
            &[("g", r#"{"a": true}"#)],
        );
    }

    #[test]
    fn templates_show_how_calls_are_written() {
        assert_eq!(Syntax::of_template("{{ '<tool_call>' }}"), Some(Syntax::Hermes));
        assert_eq!(Syntax::of_template("{{ '[TOOL_CALLS]' }}"), Some(Syntax::Mistral));
        assert_eq!(Syntax::of_template("Environment: ipython"), Some(Syntax::Llama));
        assert_eq!(Syntax::of_template("{{ messages }}"), None);
    }
}
