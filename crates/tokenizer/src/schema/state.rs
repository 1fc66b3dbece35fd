//! A place in a text that follows a schema: all ways to read what was written, each a stack of what is open.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::object::narrowed;
use super::{JsonSchema, Node, NodeId};
use crate::grammar::{JsonState, MOST_SPACES};
use crate::hash::FoldHasher;

/// Ways to read a text at most; more are dropped, so that some texts are not reached, but none that is wrong. A call of one of 128 tools
/// has that many until its name is read.
const MOST_WAYS: usize = 160;
/// Arrays, objects and alternatives inside each other.
const DEEPEST: usize = 128;
/// Masks of a schema that are kept, and parts of the stacks that they are of.
const MOST_MASKS: usize = 1024;
const HEAVIEST_MASKS: usize = 1 << 16;

/// What is open, innermost last.
type Way = Vec<Open>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Open {
    /// Before a value.
    Value {
        node: NodeId,
        spaces: u8,
    },
    /// Inside one of the texts of a node: those that begin as what was read, and how much that is.
    Text {
        node: NodeId,
        texts: Range<usize>,
        at: usize,
    },
    /// Inside a key of an object, from property `next` on: places of keys that begin as what was read, and how much that is.
    Key {
        node: NodeId,
        next: usize,
        places: Range<usize>,
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

/// Parts of the stacks of all ways: what a step costs.
fn weight_of(ways: &[Way]) -> usize {
    ways.iter().map(|way| way.len() + 1).sum()
}

/// Masks of places in a schema, which go with it.
#[derive(Debug, Default)]
struct Masks {
    of: HashMap<Vec<Way>, Arc<[u64]>>,
    weight: usize,
}

/// A place in a text that follows a schema.
#[derive(Clone, Debug)]
pub struct SchemaState {
    schema: Arc<JsonSchema>,
    masks: Arc<Mutex<Masks>>,
    ways: Vec<Way>,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

impl SchemaState {
    /// Before the first byte.
    pub(crate) fn new(schema: Arc<JsonSchema>) -> Self {
        let ways = vec![vec![Open::Value { node: schema.root, spaces: 0 }]];
        SchemaState { schema, masks: Arc::default(), ways }
    }

    /// The mask of this place, which `make` finds where it is not kept.
    pub(crate) fn mask(&self, make: impl FnOnce() -> Arc<[u64]>) -> Arc<[u64]> {
        // What is kept is whole, whatever a thread did that panicked.
        let mut masks = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mask) = masks.of.get(&self.ways) {
            return mask.clone();
        }
        let (mask, weight) = (make(), weight_of(&self.ways));
        if masks.of.len() >= MOST_MASKS || masks.weight + weight > HEAVIEST_MASKS {
            *masks = Masks::default();
        }
        masks.weight += weight;
        masks.of.insert(self.ways.clone(), mask.clone());
        mask
    }

    /// Whether the text is a complete value.
    pub fn is_complete(&self) -> bool {
        let number = |open: &Open| matches!(open, Open::Free { state, kind: Free::Any | Free::Number { .. } } if state.is_complete());
        self.ways.iter().any(|way| way.iter().all(number) && way.len() <= 1)
    }

    /// The state after a byte; `None` if it cannot follow.
    #[cfg(test)]
    pub(crate) fn step(&self, byte: u8) -> Option<SchemaState> {
        self.step_within(byte, &mut Work::new(usize::MAX))
    }

    /// The state after a byte; `None` if it cannot follow. Where there is no time for more, text is read in the first way only.
    pub(crate) fn step_within(&self, byte: u8, work: &mut Work) -> Option<SchemaState> {
        let schema = &*self.schema;
        let (ways, hashes, met) = (Vec::new(), Vec::new(), Vec::new());
        let mut reader = Reader { schema, byte, ways, hashes, met, begun: 0, work: 0 };
        let most = if work.is_spent() { 1 } else { usize::MAX };
        for way in self.ways.iter().take(most) {
            reader.step(way);
        }
        work.done += reader.work;
        let mut ways = reader.ways;
        if work.is_spent() {
            ways.truncate(1);
        }
        (!ways.is_empty()).then(|| SchemaState {
            schema: self.schema.clone(),
            masks: self.masks.clone(),
            ways,
        })
    }
}

/// What steps have cost: ways and alternatives that were tried, with the parts of stacks that were copied for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) done: usize,
    most: usize,
}

impl Work {
    /// Nothing yet, and so much before only the first way is read.
    pub(crate) fn new(most: usize) -> Self {
        Work { done: 0, most }
    }

    fn is_spent(&self) -> bool {
        self.done > self.most
    }

    /// Whether reading in one way, too, has taken as much.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.done / 2 > self.most
    }
}

/// Reads a byte in every way.
struct Reader<'a> {
    schema: &'a JsonSchema,
    byte: u8,
    ways: Vec<Way>,
    /// Of each way, so that few are compared.
    hashes: Vec<u64>,
    /// Which beginning of a value has met each node last.
    met: Vec<u32>,
    begun: u32,
    work: usize,
}

impl Reader<'_> {
    fn is_full(&self) -> bool {
        self.ways.len() == MOST_WAYS
    }

    fn keep(&mut self, way: Way) {
        self.work += way.len() + 1;
        if self.is_full() {
            return;
        }
        let hash = BuildHasherDefault::<FoldHasher>::default().hash_one(&way);
        let same = |(i, other): (usize, &u64)| *other == hash && self.ways[i] == way;
        if !self.hashes.iter().enumerate().any(same) {
            self.hashes.push(hash);
            self.ways.push(way);
        }
    }

    /// Goes on with a way whose innermost part became this.
    fn keep_with(&mut self, before: &[Open], open: Open) {
        self.keep([before, &[open]].concat());
    }

    fn step(&mut self, way: &[Open]) {
        let Some((open, before)) = way.split_last() else { return };
        if way.len() > DEEPEST {
            return;
        }
        self.work += 1;
        let (byte, space) = (self.byte, is_space(self.byte));
        match open {
            Open::Value { node, spaces } => {
                if space && *spaces < MOST_SPACES {
                    self.keep_with(before, Open::Value { node: *node, spaces: spaces + 1 });
                } else if !space {
                    self.begin(before, *node);
                }
            }
            Open::Text { node, texts, at } => self.spell(before, *node, texts.clone(), *at),
            Open::Key { node, next, places, at } => self.key(before, (*node, *next), places.clone(), *at),
            Open::Free { state, kind } => self.free(before, state, kind),
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
                        self.begin(&open, item);
                    }
                    _ => {}
                }
            }
            Open::Object { node, next, phase, spaces } => {
                let Node::Object(object) = &self.schema.nodes[*node] else { return };
                let with = |phase, spaces| Open::Object { node: *node, next: *next, phase, spaces };
                match (*phase, byte) {
                    _ if space => self.keep_with(before, with(*phase, spaces + 1)),
                    (Phase::First | Phase::After, b'}') if object.may_end(*next) => {
                        self.keep(before.to_vec())
                    }
                    // A comma promises a property.
                    (Phase::After, b',') if *next < object.len() || object.others.is_some() => {
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

    /// The next byte of one of the texts of a node.
    fn spell(&mut self, before: &[Open], node: NodeId, texts: Range<usize>, at: usize) {
        let Node::Texts(all) = &self.schema.nodes[node] else { return };
        let mut texts = narrowed(texts, at, self.byte, |text| &all[text]);
        // Of numbers one may be the beginning of others.
        if !texts.is_empty() && all[texts.start].len() == at + 1 {
            self.keep(before.to_vec());
            texts.start += 1;
        }
        if !texts.is_empty() {
            self.keep_with(before, Open::Text { node, texts, at: at + 1 });
        }
    }

    /// The next byte of a key of an object, from a property on.
    fn key(&mut self, before: &[Open], (node, next): (NodeId, usize), places: Range<usize>, at: usize) {
        let Node::Object(object) = &self.schema.nodes[node] else { return };
        let places = object.narrowed(places, at, self.byte);
        self.work += places.len();
        let at = at + 1;
        if !places.clone().any(|place| object.may_come(next, object.at_place(place))) {
            return;
        }
        // Keys end with quotes, so that none is the beginning of another.
        let number = object.at_place(places.start);
        let property = object.property(number);
        if property.key.len() == at {
            let phase = Phase::Colon(property.value);
            self.keep_with(before, Open::Object { node, next: number + 1, phase, spaces: 0 });
        } else {
            self.keep_with(before, Open::Key { node, next, places, at });
        }
    }

    /// The first byte of a value.
    fn begin(&mut self, before: &[Open], node: NodeId) {
        let schema = self.schema;
        let byte = self.byte;
        if !schema.first[node].has(byte) {
            return;
        }
        let Node::Either(nodes) = &schema.nodes[node] else { return self.begin_one(before, node) };
        // Alternatives may consist of alternatives, and of themselves: each is met once.
        if self.met.is_empty() {
            self.met = vec![0; schema.nodes.len()];
            self.work += schema.nodes.len() / 64;
        }
        self.begun += 1;
        let mut left: Vec<std::slice::Iter<'_, NodeId>> = vec![nodes.iter()];
        while let Some(nodes) = left.last_mut() {
            let Some(&node) = nodes.next() else {
                left.pop();
                continue;
            };
            self.work += 1;
            if !schema.first[node].has(byte)
                || std::mem::replace(&mut self.met[node], self.begun) == self.begun
            {
                continue;
            }
            match &schema.nodes[node] {
                Node::Either(nodes) => left.push(nodes.iter()),
                _ if self.is_full() => return,
                _ => self.begin_one(before, node),
            }
        }
    }

    /// The first byte of a value of a node that is no alternative.
    fn begin_one(&mut self, before: &[Open], node: NodeId) {
        let byte = self.byte;
        match &self.schema.nodes[node] {
            Node::Any => self.free(before, &JsonState::start(), &Free::Any),
            Node::String { least, most } if byte == b'"' => {
                let kind = Free::String { characters: 0, least: *least, most: *most };
                self.keep_with(before, Open::Free { state: JsonState::string(), kind });
            }
            Node::Number { integer } if byte == b'-' || byte.is_ascii_digit() => {
                self.free(before, &JsonState::start(), &Free::Number { integer: *integer });
            }
            Node::Texts(texts) => self.spell(before, node, 0..texts.len(), 0),
            Node::Array { .. } if byte == b'[' => {
                self.keep_with(before, Open::Array { node, items: 0, phase: Phase::First, spaces: 0 });
            }
            Node::Object { .. } if byte == b'{' => {
                self.keep_with(before, Open::Object { node, next: 0, phase: Phase::First, spaces: 0 });
            }
            _ => {}
        }
    }

    /// The quote of a key: any property up to the next that is required, or another.
    fn keys(&mut self, before: &[Open], node: NodeId, next: usize) {
        let Node::Object(object) = &self.schema.nodes[node] else { return };
        self.key(before, (node, next), 0..object.len(), 0);
        if let (Some(value), true) = (object.others, object.may_end(next)) {
            let phase = Phase::Colon(value);
            let kind = Free::OtherKey { written: vec![b'"'], node };
            let key = Open::Free { state: JsonState::string(), kind };
            let after = Open::Object { node, next: object.len(), phase, spaces: 0 };
            self.keep([before, &[after, key]].concat());
        }
    }

    /// A byte of a value that the JSON automaton reads; a number ends with the byte after it.
    fn free(&mut self, before: &[Open], state: &JsonState, kind: &Free) {
        let byte = self.byte;
        if state.is_complete() {
            self.step(before);
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
                self.work += written.len() / 8;
                written.push(byte);
                let Node::Object(object) = &self.schema.nodes[*node] else { return };
                // Written otherwise it could be a property after all.
                if byte == b'\\' || object.has(written) {
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
    fn every_text_of_many_is_reached() {
        let list = |count: usize| (0..count).map(|i| format!("\"word {i}\"")).collect::<Vec<_>>().join(",");
        check(
            &format!(r#"{{"enum": [{}]}}"#, list(2000)),
            &["\"word 0\"", "\"word 1\"", "\"word 19\"", "\"word 1999\""],
            &["\"word 2000\"", "\"word \"", "\"word 01\""],
        );
        check(
            r#"{"enum": [123, 1, 12, 1, "1"]}"#,
            &["1", "12", "123", " 12", "\"1\""],
            &["13", "1234", "2", "\"12\""],
        );
        let named = |i: usize| format!("\"key {i}\": {{\"const\": {i}}}");
        let properties: Vec<String> = (0..1000).map(named).collect();
        let object = format!(r#"{{"properties": {{{}}}, "required": ["key 500"]"#, properties.join(","));
        let good = [
            r#"{"key 500":500}"#,
            r#"{"key 0":0,"key 499":499,"key 500":500,"key 501":501,"key 999":999}"#,
            r#"{"key 1":1,"key 10":10,"key 100":100,"key 500" : 500 }"#,
        ];
        let bad = [
            r#"{"key 501":501}"#,
            r#"{"key 1":1}"#,
            r#"{"key 2":2,"key 1":1,"key 500":500}"#,
            r#"{"key 500":500,"key 500":500}"#,
            r#"{"key 1000":1000,"key 500":500}"#,
        ];
        check(&(object.clone() + "}"), &good, &bad);
        let open = object + r#", "additionalProperties": {"type": "null"}}"#;
        check(&open, &[r#"{"key 500":500,"key 5000":null,"k":null}"#], &[r#"{"k":null,"key 500":500}"#]);
        let call = |i: usize| {
            format!(
                r#"{{"properties": {{"name": {{"const": "tool {i}"}}, "a": {{"type": "integer"}}}}, "required": ["name", "a"]}}"#
            )
        };
        let calls: Vec<String> = (0..128).map(call).collect();
        check(
            &format!(r#"{{"anyOf": [{}]}}"#, calls.join(",")),
            &[r#"{"name": "tool 0", "a": 1}"#, r#"{"name": "tool 127", "a": 1}"#],
            &[r#"{"name": "tool 128", "a": 1}"#],
        );
        check(
            r#"{"properties": {"a": {"type": "null"}, "a": {"type": "integer"}}}"#,
            &[r#"{"a":1}"#],
            &[r#"{"a":null}"#],
        );
    }

    #[test]
    fn references_in_circles_and_in_long_chains_end() {
        let circle = r##"{"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/a"}]},
            {"type": "array", "items": {"$ref": "#"}}, {"const": 1}], "$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}]}}}"##;
        assert!(JsonSchema::parse(&circle.replace(", \"$defs\"", "}, {\"$defs\"")).is_err());
        check(circle, &["1", "[[1],1,[]]"], &["2", "[2]"]);
        let link = |i: usize| format!(r##""a{i}": {{"$ref": "#/$defs/a{}"}}"##, i + 1);
        let links: Vec<String> = (0..9000).map(link).collect();
        let chain = format!(
            r##"{{"$ref": "#/$defs/a0", "$defs": {{{}, "a9000": {{"const": 1}}}}}}"##,
            links.join(",")
        );
        // The stack of a thread that prepares requests.
        let checked = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
            check(&chain, &["1"], &["2"]);
        });
        checked.unwrap().join().unwrap();
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
            (r#"{"type": "string", "minLength": 3, "maxLength": 2}"#, "cannot have 3 characters"),
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
