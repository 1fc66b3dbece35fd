//! One call of a tool, `{"name": …, "arguments": {…}}`, read as its characters come.

/// Where in the object the next character is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the object.
    Outside,
    /// Before a key, or before the end.
    Key,
    /// In a key.
    InKey,
    /// Before a colon.
    Colon,
    /// Before a value.
    Value,
    /// In a value that ends with a quote or a bracket.
    InValue,
    /// In a number, `true`, `false` or `null`.
    Literal,
}

/// What a character ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// Nothing.
    More,
    /// The object.
    Done,
    /// This is no call.
    Invalid,
}

/// A call of which a part has come.
#[derive(Debug)]
pub(crate) struct CallScan {
    state: State,
    in_string: bool,
    escaped: bool,
    /// Brackets that are open in a value.
    depth: usize,
    key: String,
    value: String,
    /// The tool's name, once it is whole.
    pub(crate) name: Option<String>,
    /// The text of the arguments that was not taken yet.
    arguments: String,
    has_arguments: bool,
}

impl CallScan {
    pub(crate) fn new() -> Self {
        CallScan {
            state: State::Outside,
            in_string: false,
            escaped: false,
            depth: 0,
            key: String::new(),
            value: String::new(),
            name: None,
            arguments: String::new(),
            has_arguments: false,
        }
    }

    /// The text of the arguments that came since the last time.
    pub(crate) fn take_arguments(&mut self) -> String {
        std::mem::take(&mut self.arguments)
    }

    fn is_arguments(&self) -> bool {
        matches!(self.key.as_str(), "\"arguments\"" | "\"parameters\"")
    }

    /// Whether arguments are handed on as they come: those that are no string with JSON in it.
    fn streams(&self) -> bool {
        self.is_arguments() && !self.value.starts_with('"')
    }

    /// Goes on with a character.
    pub(crate) fn push(&mut self, c: char) -> Scanned {
        match self.state {
            State::InKey => {
                self.key.push(c);
                if self.ends_string(c) {
                    self.state = State::Colon;
                }
            }
            State::InValue => {
                self.add(c);
                let ended = match self.in_string {
                    true => self.ends_string(c) && self.depth == 0,
                    false => self.bracket(c),
                };
                if ended {
                    return self.end_value();
                }
            }
            State::Literal if matches!(c, ',' | '}') || c.is_whitespace() => match self.end_value() {
                Scanned::More => return self.push(c),
                other => return other,
            },
            State::Literal => self.add(c),
            _ if c.is_whitespace() => {}
            State::Outside if c == '{' => self.state = State::Key,
            State::Key if c == '}' => return self.end(),
            State::Key if c == ',' => {}
            State::Key if c == '"' => {
                (self.key, self.value) = ("\"".into(), String::new());
                (self.state, self.in_string) = (State::InKey, true);
            }
            State::Colon if c == ':' => self.state = State::Value,
            State::Value => {
                self.state = match c {
                    '"' | '{' | '[' => State::InValue,
                    ',' | '}' | ']' | ':' => return Scanned::Invalid,
                    _ => State::Literal,
                };
                self.in_string = c == '"';
                self.depth = usize::from(matches!(c, '{' | '['));
                self.add(c);
            }
            State::Outside | State::Key | State::Colon => return Scanned::Invalid,
        }
        Scanned::More
    }

    fn add(&mut self, c: char) {
        // Of arguments that are handed on, the first character is enough.
        if self.value.is_empty() || !self.streams() {
            self.value.push(c);
        }
        if self.streams() {
            self.has_arguments = true;
            self.arguments.push(c);
        }
    }

    /// Whether a character within a string ends it.
    fn ends_string(&mut self, c: char) -> bool {
        let ends = c == '"' && !self.escaped;
        self.escaped = c == '\\' && !self.escaped;
        self.in_string = !ends;
        ends
    }

    /// Whether a character outside of strings closes the last bracket.
    fn bracket(&mut self, c: char) -> bool {
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth -= 1,
            _ => {}
        }
        self.depth == 0
    }

    fn end_value(&mut self) -> Scanned {
        self.state = State::Key;
        if self.key == "\"name\"" {
            match serde_json::from_str(&self.value) {
                Ok(name) => self.name = Some(name),
                Err(_) => return Scanned::Invalid,
            }
        } else if self.is_arguments() && !self.streams() {
            let Ok(text) = serde_json::from_str::<String>(&self.value) else { return Scanned::Invalid };
            (self.has_arguments, self.arguments) = (true, text);
        }
        Scanned::More
    }

    fn end(&mut self) -> Scanned {
        if !self.has_arguments {
            self.arguments = "{}".into();
        }
        Scanned::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> (Scanned, Option<String>, String) {
        let (mut scan, mut last) = (CallScan::new(), Scanned::More);
        for c in text.chars() {
            assert_eq!(last, Scanned::More, "{text}");
            last = scan.push(c);
        }
        (last, scan.name.clone(), scan.take_arguments())
    }

    #[test]
    fn names_and_arguments_are_found_whatever_is_around_them() {
        for (text, arguments) in [
            (r#"{"name": "f", "arguments": {"a": [1, "}\"]"], "b": {}}}"#, r#"{"a": [1, "}\"]"], "b": {}}"#),
            (r#" {"type":"function","name":"f","parameters":{ }}"#, "{ }"),
            (r#"{"id": 1.5, "x": [{"name": "g"}], "name": "\u0066"}"#, "{}"),
            (r#"{"arguments": {"a": 1}, "name": "f"}"#, r#"{"a": 1}"#),
            (r#"{"name": "f", "arguments": "{\"a\": \"b\"}"}"#, r#"{"a": "b"}"#),
            (r#"{"name": "f", "arguments": null}"#, "null"),
        ] {
            assert_eq!(scan(text), (Scanned::Done, Some("f".into()), arguments.into()), "{text}");
        }
        assert_eq!(scan(r#"{"name": "f", "arguments": {"a": "b"#).2, r#"{"a": "b"#);
    }

    #[test]
    fn what_is_no_call_is_found_out() {
        for text in ["x", "[", "{x", r#"{"a" x"#, r#"{"a":}"#, r#"{"name": 5,"#, r#"{"a": 1 x"#] {
            assert_eq!(scan(text).0, Scanned::Invalid, "{text}");
        }
    }
}
