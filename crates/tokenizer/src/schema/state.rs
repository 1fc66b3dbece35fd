//! A place in a text that follows a schema: all ways to read what was written, each a stack of what is open.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::{JsonSchema, Node, NodeId};
use crate::grammar::{JsonState, MOST_SPACES};

/// Ways to read a text at most; more are dropped, so that some texts are not reached, but none that is wrong.
const MOST_WAYS: usize = 64;
/// Arrays, objects and alternatives inside each other.
const DEEPEST: usize = 128;
/// Alternatives that consist of alternatives.
const DEEPEST_CHOICE: usize = 32;

/// What is open, innermost last.
type Way = Vec<Open>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Open {
    /// Before a value.
    Value {
        node: NodeId,
        spaces: u8,
    },
    /// Inside a given text of a node: which, and how much was read.
    Text {
        node: NodeId,
        text: usize,
        at: usize,
    },
    /// Inside the key of a property.
    Key {
        node: NodeId,
        property: usize,
        at: usize,
    },
    /// Inside a value that the JSON automaton reads.
    Free {
        state: JsonState,
        kind: Free,
    },
    Array {
        node: NodeId,
        items: usize,
        phase: Phase,
        spaces: u8,
    },
    Object {
        node: NodeId,
        next: usize,
        phase: Phase,
        spaces: u8,
    },
}

/// What a free value is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Free {
    Any,
    String {
        characters: usize,
        least: usize,
        most: usize,
    },
    Number {
        integer: bool,
    },
    /// A key that is none of an object's properties, as it was written so far.
    OtherKey {
        written: Vec<u8>,
        node: NodeId,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// After the bracket.
    First,
    /// After a comma.
    Next,
    /// After a key, with the node of its value.
    Colon(NodeId),
    /// After a value.
    After,
}

/// A place in a text that follows a schema.
#[derive(Clone, Debug)]
pub struct SchemaState {
    schema: Arc<JsonSchema>,
    ways: Vec<Way>,
}

impl PartialEq for SchemaState {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.schema, &other.schema) && self.ways == other.ways
    }
}

impl Eq for SchemaState {}

impl Hash for SchemaState {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ways.hash(state);
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

impl SchemaState {
    /// Before the first byte.
    pub(crate) fn new(schema: Arc<JsonSchema>) -> Self {
        let ways = vec![vec![Open::Value { node: schema.root, spaces: 0 }]];
        SchemaState { schema, ways }
    }

    /// Whether the text is a complete value.
    pub fn is_complete(&self) -> bool {
        let number = |open: &Open| matches!(open, Open::Free { state, kind: Free::Any | Free::Number { .. } } if state.is_complete());
        self.ways.iter().any(|way| way.iter().all(number) && way.len() <= 1)
    }

    /// The state after a byte; `None` if it cannot follow.
    pub(crate) fn step(&self, byte: u8) -> Option<SchemaState> {
        let mut ways = Vec::new();
        for way in &self.ways {
            Reader { schema: &self.schema, byte, ways: &mut ways }.step(way, 0);
        }
        ways.truncate(MOST_WAYS);
        (!ways.is_empty()).then(|| SchemaState { schema: self.schema.clone(), ways })
    }
}

/// Reads a byte in every way.
struct Reader<'a> {
    schema: &'a JsonSchema,
    byte: u8,
    ways: &'a mut Vec<Way>,
}

impl Reader<'_> {
    fn keep(&mut self, way: Way) {
        if !self.ways.contains(&way) {
            self.ways.push(way);
        }
    }

    /// Goes on with a way whose innermost part became this.
    fn keep_with(&mut self, before: &[Open], open: Open) {
        self.keep([before, &[open]].concat());
    }

    fn step(&mut self, way: &[Open], depth: usize) {
        let Some((open, before)) = way.split_last() else { return };
        if depth > DEEPEST_CHOICE || way.len() > DEEPEST {
            return;
        }
        let (byte, space) = (self.byte, is_space(self.byte));
        match open {
            Open::Value { node, spaces } => {
                if space && *spaces < MOST_SPACES {
                    self.keep_with(before, Open::Value { node: *node, spaces: spaces + 1 });
                } else if !space {
                    self.begin(before, *node, depth);
                }
            }
            Open::Text { node, text, at } => {
                let Node::Texts(texts) = &self.schema.nodes[*node] else { return };
                self.spell(before, &texts[*text], *at, |at| Open::Text { node: *node, text: *text, at });
            }
            Open::Key { node, property, at } => {
                let Node::Object { properties, .. } = &self.schema.nodes[*node] else { return };
                let of = |at| Open::Key { node: *node, property: *property, at };
                self.spell(before, &properties[*property].key, *at, of);
            }
            Open::Free { state, kind } => self.free(before, state, kind, depth),
            Open::Array { spaces, .. } | Open::Object { spaces, .. } if space && *spaces >= MOST_SPACES => {}
            Open::Array { node, items, phase, spaces } => {
                let Node::Array { first, rest, least, most } = &self.schema.nodes[*node] else { return };
                let with = |items, phase, spaces| Open::Array { node: *node, items, phase, spaces };
                // A comma promises an item.
                let more = items < most && (*items < first.len() || rest.is_some());
                match (*phase, byte) {
                    _ if space => self.keep_with(before, with(*items, *phase, spaces + 1)),
                    (Phase::First | Phase::After, b']') if items >= least => self.keep(before.to_vec()),
                    (Phase::After, b',') if more => self.keep_with(before, with(*items, Phase::Next, 0)),
                    (Phase::First | Phase::Next, _) if more => {
                        let Some(item) = first.get(*items).copied().or(*rest) else { return };
                        let open = [before, &[with(items + 1, Phase::After, 0)]].concat();
                        self.begin(&open, item, depth);
                    }
                    _ => {}
                }
            }
            Open::Object { node, next, phase, spaces } => {
                let Node::Object { properties, others } = &self.schema.nodes[*node] else { return };
                let with = |phase, spaces| Open::Object { node: *node, next: *next, phase, spaces };
                let done = properties[*next..].iter().all(|property| !property.required);
                match (*phase, byte) {
                    _ if space => self.keep_with(before, with(*phase, spaces + 1)),
                    (Phase::First | Phase::After, b'}') if done => self.keep(before.to_vec()),
                    // A comma promises a property.
                    (Phase::After, b',') if *next < properties.len() || others.is_some() => {
                        self.keep_with(before, with(Phase::Next, 0));
                    }
                    (Phase::Colon(value), b':') => {
                        let value = Open::Value { node: value, spaces: 0 };
                        self.keep([before, &[with(Phase::After, 0), value]].concat());
                    }
                    (Phase::First | Phase::Next, b'"') => self.keys(before, *node, *next),
                    _ => {}
                }
            }
        }
    }

    /// The next byte of a given text.
    fn spell(&mut self, before: &[Open], text: &[u8], at: usize, open: impl Fn(usize) -> Open) {
        if text.get(at) != Some(&self.byte) {
            return;
        }
        match at + 1 == text.len() {
            true => self.keep(before.to_vec()),
            false => self.keep_with(before, open(at + 1)),
        }
    }

    /// The first byte of a value.
    fn begin(&mut self, before: &[Open], node: NodeId, depth: usize) {
        if depth > DEEPEST_CHOICE {
            return;
        }
        let byte = self.byte;
        let empty = |phase| (phase, 0, 0u8);
        match &self.schema.nodes[node] {
            Node::Any => self.free(before, &JsonState::start(), &Free::Any, depth),
            Node::String { least, most } if byte == b'"' => {
                let kind = Free::String { characters: 0, least: *least, most: *most };
                self.keep_with(before, Open::Free { state: JsonState::string(), kind });
            }
            Node::Number { integer } if byte == b'-' || byte.is_ascii_digit() => {
                self.free(before, &JsonState::start(), &Free::Number { integer: *integer }, depth);
            }
            Node::Texts(texts) => {
                for (text, bytes) in texts.iter().enumerate() {
                    self.spell(before, bytes, 0, |at| Open::Text { node, text, at });
                }
            }
            Node::Array { .. } if byte == b'[' => {
                let (phase, items, spaces) = empty(Phase::First);
                self.keep_with(before, Open::Array { node, items, phase, spaces });
            }
            Node::Object { .. } if byte == b'{' => {
                let (phase, next, spaces) = empty(Phase::First);
                self.keep_with(before, Open::Object { node, next, phase, spaces });
            }
            Node::Either(nodes) => nodes.iter().for_each(|node| self.begin(before, *node, depth + 1)),
            _ => {}
        }
    }

    /// The quote of a key: any property up to the next that is required, or another.
    fn keys(&mut self, before: &[Open], node: NodeId, next: usize) {
        let Node::Object { properties, others } = &self.schema.nodes[node] else { return };
        let object = |next, value| Open::Object { node, next, phase: Phase::Colon(value), spaces: 0 };
        let mut skips = true;
        for (i, property) in properties.iter().enumerate().skip(next).take_while(|(_, property)| {
            let may = skips;
            skips = !property.required;
            may
        }) {
            let key = Open::Key { node, property: i, at: 1 };
            self.keep([before, &[object(i + 1, property.value), key]].concat());
        }
        if let (Some(value), true) = (others, properties[next..].iter().all(|property| !property.required)) {
            let kind = Free::OtherKey { written: vec![b'"'], node };
            let key = Open::Free { state: JsonState::string(), kind };
            self.keep([before, &[object(properties.len(), *value), key]].concat());
        }
    }

    /// A byte of a value that the JSON automaton reads; a number ends with the byte after it.
    fn free(&mut self, before: &[Open], state: &JsonState, kind: &Free, depth: usize) {
        let byte = self.byte;
        if state.is_complete() {
            self.step(before, depth + 1);
            if is_space(byte) {
                return;
            }
        }
        let mut kind = kind.clone();
        match &mut kind {
            Free::Number { integer: true } if matches!(byte, b'.' | b'e' | b'E') => return,
            Free::String { characters, least, most } => {
                let begins = state.begins_character();
                let ends = begins && byte == b'"';
                if (ends && *characters < *least) || (begins && !ends && *characters >= *most) {
                    return;
                }
                *characters += usize::from(begins && !ends && (*least > *characters || *most < usize::MAX));
            }
            Free::OtherKey { written, node } => {
                written.push(byte);
                let Node::Object { properties, .. } = &self.schema.nodes[*node] else { return };
                // Written otherwise it could be a property after all.
                if byte == b'\\' || properties.iter().any(|property| *property.key == **written) {
                    return;
                }
            }
            _ => {}
        }
        let mut next = state.clone();
        if !next.read(byte) {
            return;
        }
        match next.is_closed() {
            true => self.keep(before.to_vec()),
            false => self.keep_with(before, Open::Free { state: next, kind }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_comes_only_where_something_can_follow() {
        let continues = |schema: &str, text: &str| {
            let schema = Arc::new(JsonSchema::parse(schema).unwrap());
            text.bytes().try_fold(SchemaState::new(schema), |state, byte| state.step(byte)).is_some()
        };
        let closed = r#"{"type": "object", "additionalProperties": false, "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}"#;
        assert!(continues(closed, r#"{"a": 1, "b": 2}"#) && continues(closed, r#"{"a": 1,"#));
        assert!(!continues(closed, r#"{"a": 1, "b": 2,"#) && !continues(closed, r#"{"a": 1, "b": 2 ,"#));
        let open =
            r#"{"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": true}"#;
        assert!(continues(open, r#"{"a": 1, "#));
        let pair =
            r#"{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}], "items": false}"#;
        assert!(continues(pair, "[1, 2]") && !continues(pair, "[1, 2,"));
    }

    fn accepts(schema: &Arc<JsonSchema>, text: &str) -> bool {
        let end = text.bytes().try_fold(SchemaState::new(schema.clone()), |state, byte| state.step(byte));
        end.is_some_and(|state| state.is_complete())
    }

    fn check(schema: &str, good: &[&str], bad: &[&str]) {
        let read = Arc::new(JsonSchema::parse(schema).unwrap());
        for text in good {
            assert!(accepts(&read, text), "{schema} should allow {text}");
        }
        for text in bad {
            assert!(!accepts(&read, text), "{schema} should not allow {text}");
        }
    }

    #[test]
    fn values_of_each_type() {
        check(r#"{"type": "integer"}"#, &["0", "-12", " 7"], &["1.5", "1e3", "\"1\"", "-", "01", "1,"]);
        check(r#"{"type": "number"}"#, &["1.5", "-0.1e+9"], &["true", "1."]);
        check(r#"{"type": "boolean"}"#, &["true", "false"], &["null", "tru", "truee"]);
        check(r#"{"type": ["string", "null"]}"#, &["\"\"", "\"é\\n\"", "null"], &["1", "\"", "\"\n\""]);
        check(
            r#"{"enum": ["a", 1, {"b": [null]}]}"#,
            &["\"a\"", "1", "{\"b\":[null]}"],
            &["\"b\"", "11", "2"],
        );
        check(r#"{"const": 12}"#, &["12"], &["1", "123"]);
        check("true", &["[1, {\"a\": 2}]", "3"], &["[1,]"]);
        let short = r#"{"type": "string", "minLength": 1, "maxLength": 3}"#;
        check(short, &["\"a\"", "\"äöü\"", "\"\\u00e9\\n.\""], &["\"\"", "\"abcd\"", "\"äöüß\""]);
    }

    #[test]
    fn objects_have_their_properties_in_order() {
        let person = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array",
            "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2}}, "required": ["name", "tags"]}"#;
        let good =
            [r#"{"name":"x","tags":["a"]}"#, r#" { "name" : "x" , "age" : 3 , "tags" : [ "a" , "b" ] }"#];
        let bad = [
            r#"{}"#,
            r#"{"name":"x"}"#,
            r#"{"tags":["a"],"name":"x"}"#,
            r#"{"name":"x","tags":[]}"#,
            r#"{"name":"x","tags":["a","b","a"]}"#,
            r#"{"name":"x","tags":["c"]}"#,
            r#"{"name":"x","other":1,"tags":["a"]}"#,
            r#"{"name":"x","age":1.5,"tags":["a"]}"#,
            r#"{"name":"x","tags":["a"],}"#,
            r#"{"name":"x","tags":["a"]}}"#,
        ];
        check(person, &good, &bad);
        // After the last property there is no comma, which nothing could follow.
        let schema = Arc::new(JsonSchema::parse(person).unwrap());
        let start = SchemaState::new(schema);
        let end =
            r#"{"name":"x","tags":["a"]"#.bytes().try_fold(start, |state, byte| state.step(byte)).unwrap();
        assert!(end.step(b',').is_none() && end.step(b'}').is_some());
        let open =
            r#"{"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}"#;
        check(
            open,
            &["{}", r#"{"a":1}"#, r#"{"b":true}"#, r#"{"a":1,"ab":false}"#],
            &[r#"{"b":1}"#, r#"{"b":true,"a":true}"#, r#"{"a":true}"#],
        );
        check(r#"{"type": "object"}"#, &["{}", r#"{"x":[1]}"#], &["[]"]);
    }

    #[test]
    fn alternatives_and_references() {
        let tree = r##"{"$ref": "#/$defs/tree", "$defs": {"tree": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref":
            "#/$defs/tree"}, "minItems": 2, "maxItems": 2}]}}}"##;
        check(tree, &["1", "[1,[2,3]]", "[[1,2],[3,[4,5]]]"], &["[1]", "[1,2,3]", "[1,[2]]"]);
        let either = r#"{"oneOf": [{"const": "ab"}, {"const": "abc"}, {"type": "object", "properties": {"k": true}, "required": ["k"]}]}"#;
        check(either, &["\"ab\"", "\"abc\"", r#"{"k":{"z":[]}}"#], &["\"a\"", "{}"]);
        let pair =
            r#"{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false}"#;
        check(pair, &["[]", "[1]", "[1,\"x\"]"], &["[\"x\"]", "[1,\"x\",2]"]);
    }

    #[test]
    fn schemas_that_cannot_be_followed_are_errors() {
        for (schema, problem) in [
            ("3", "must be an object"),
            (r#"{"type": "string", "pattern": "a+"}"#, "`pattern` is not supported"),
            (r#"{"type": "text"}"#, "no type `text`"),
            (r##"{"$ref": "#/$defs/none"}"##, "leads nowhere"),
            (r#"{"$ref": "http://x"}"#, "must begin with"),
            (r#"{"enum": []}"#, "must be an array"),
            (r#"{"anyOf": [true], "properties": {}}"#, "cannot stand with"),
            (r#"{"type": "array", "minItems": 3, "maxItems": 2}"#, "cannot have 3 items"),
            (r#"{"type": "string", "minLength": -1}"#, "from 0 on"),
            (r#"{"type": []}"#, "must be a name"),
            ("{", "JSON"),
        ] {
            let error = JsonSchema::parse(schema).unwrap_err().to_string();
            assert!(error.contains(problem), "{schema}: {error}");
        }
        // One that refers to itself alone allows nothing, and ends.
        let endless = Arc::new(JsonSchema::parse(r##"{"$ref": "#"}"##).unwrap());
        assert!(!accepts(&endless, "1"));
    }
}
