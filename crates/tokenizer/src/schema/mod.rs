//! JSON schemas: what values they allow, as nodes that [`SchemaState`] walks over.
//!
//! Objects have their properties in the order of the schema, and others only where `additionalProperties` allows them. A keyword that restricts
//! values in a way that is not followed is an error.

mod first;
mod object;
mod state;

use std::collections::{HashMap, HashSet};

use crate::Error;
use crate::json::Json;

use object::{Object, Property};
pub use state::SchemaState;
pub(crate) use state::Work;

/// The number of a node.
pub(crate) type NodeId = usize;

/// What a value may be.
#[derive(Debug)]
pub(crate) enum Node {
    /// Anything.
    Any,
    /// A string of so many characters.
    String {
        least: usize,
        most: usize,
    },
    /// A number, or only an integer.
    Number {
        integer: bool,
    },
    /// One of these texts, in order.
    Texts(Vec<Box<[u8]>>),
    Array {
        /// The first items.
        first: Vec<NodeId>,
        /// The others, if there may be others.
        rest: Option<NodeId>,
        least: usize,
        most: usize,
    },
    Object(Object),
    /// One of these.
    Either(Vec<NodeId>),
}

/// A JSON schema that text can be held to.
#[derive(Debug)]
pub struct JsonSchema {
    pub(crate) nodes: Vec<Node>,
    /// With which bytes the values of each node can begin.
    pub(crate) first: Vec<first::Bytes>,
    pub(crate) root: NodeId,
}

/// Keywords that do not restrict values.
const ANNOTATIONS: [&str; 14] = [
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
    "$anchor",
];

/// Keywords that are followed.
const KEYWORDS: [&str; 16] = [
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
];

/// Nodes of a schema at most.
const MOST_NODES: usize = 10_000;

fn bad<T>(problem: impl Into<String>) -> Result<T, Error> {
    Err(Error::Grammar { problem: format!("JSON schema: {}", problem.into()) })
}

impl JsonSchema {
    /// Reads a schema.
    pub fn parse(text: &str) -> Result<JsonSchema, Error> {
        JsonSchema::from_json(&Json::parse(text)?)
    }

    /// Reads a schema that is parsed.
    pub fn from_json(document: &Json) -> Result<JsonSchema, Error> {
        let mut reader = Reader {
            document,
            nodes: Vec::new(),
            of_references: HashMap::new(),
            unread: Vec::new(),
            indices: HashMap::new(),
        };
        let root = reader.node(document)?;
        while let Some((place, target)) = reader.unread.pop() {
            let node = reader.node(target)?;
            reader.nodes[place] = Node::Either(vec![node]);
        }
        let first = first::first_bytes(&reader.nodes);
        Ok(JsonSchema { nodes: reader.nodes, first, root })
    }
}

struct Reader<'a> {
    document: &'a Json,
    nodes: Vec<Node>,
    of_references: HashMap<String, NodeId>,
    /// What references lead to, with the nodes that will have it: a chain of references is no recursion.
    unread: Vec<(NodeId, &'a Json)>,
    /// The entries of objects that references lead through.
    indices: HashMap<*const Json, HashMap<&'a str, &'a Json>>,
}

impl<'a> Reader<'a> {
    fn add(&mut self, node: Node) -> Result<NodeId, Error> {
        if self.nodes.len() >= MOST_NODES {
            return bad(format!("it has more than {MOST_NODES} parts"));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    fn node(&mut self, schema: &'a Json) -> Result<NodeId, Error> {
        let entries = match schema {
            Json::Bool(true) => return self.add(Node::Any),
            Json::Object(entries) => entries,
            _ => return bad("a schema must be an object or true"),
        };
        let known = |key: &str| ANNOTATIONS.contains(&key) || KEYWORDS.contains(&key);
        if let Some((key, _)) = entries.iter().find(|(key, _)| !known(key)) {
            return bad(format!("`{key}` is not supported"));
        }
        let has = |keys: &[&str]| keys.iter().filter(|key| schema.get(key).is_some()).count();
        let alone = ["enum", "const", "anyOf", "oneOf", "allOf", "$ref"];
        let of_types = entries.iter().any(|(key, _)| {
            KEYWORDS.contains(&key.as_str()) && !alone.contains(&key.as_str()) && key != "type"
        });
        if has(&alone) > 1 || (has(&alone) == 1 && of_types) {
            return bad(format!("one of {} cannot stand with other keywords", alone.join(", ")));
        }
        if let Some(reference) = schema.get("$ref") {
            return self.reference(reference);
        }
        if let Some(value) = schema.get("const") {
            return self.add(Node::Texts(vec![written(value)]));
        }
        if let Some(values) = schema.get("enum") {
            let texts = values.as_array().filter(|all| !all.is_empty());
            return match texts.map(|all| all.iter().map(written).collect()) {
                Some(texts) => self.add(texts_of(texts)),
                None => bad("`enum` must be an array with values"),
            };
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            let Some(parts) = schema.get(key) else { continue };
            let Some(parts) = parts.as_array().filter(|parts| !parts.is_empty()) else {
                return bad(format!("`{key}` must be an array with schemas"));
            };
            if key == "allOf" && parts.len() > 1 {
                return bad("`allOf` of several schemas is not supported");
            }
            let nodes = parts.iter().map(|part| self.node(part)).collect::<Result<_, _>>()?;
            return self.either(nodes);
        }
        let types: Vec<&str> = match schema.get("type") {
            None if has(&["properties", "required", "additionalProperties"]) > 0 => vec!["object"],
            None if has(&["items", "prefixItems", "minItems", "maxItems"]) > 0 => vec!["array"],
            None if has(&["minLength", "maxLength"]) > 0 => vec!["string"],
            None => return self.add(Node::Any),
            Some(Json::String(one)) => vec![one],
            Some(Json::Array(all)) => all.iter().filter_map(Json::as_str).collect(),
            Some(_) => vec![],
        };
        let mut nodes = Vec::with_capacity(types.len());
        for name in types {
            nodes.push(self.of_type(name, schema)?);
        }
        match nodes.as_slice() {
            [] => bad("`type` must be a name or an array of names"),
            [one] => Ok(*one),
            _ => self.either(nodes),
        }
    }

    /// One of several nodes. Those of texts become one, whose texts are found faster.
    fn either(&mut self, mut nodes: Vec<NodeId>) -> Result<NodeId, Error> {
        let mut texts = Vec::new();
        let mut first = None;
        nodes.retain(|&node| {
            let Node::Texts(more) = &mut self.nodes[node] else { return true };
            texts.append(more);
            first.replace(first.unwrap_or(node)).is_none()
        });
        if let Some(first) = first {
            self.nodes[first] = texts_of(texts);
        }
        self.add(Node::Either(nodes))
    }

    fn of_type(&mut self, name: &str, schema: &'a Json) -> Result<NodeId, Error> {
        let texts = |all: &[&str]| texts_of(all.iter().map(|text| text.as_bytes().into()).collect());
        let node = match name {
            "null" => texts(&["null"]),
            "boolean" => texts(&["true", "false"]),
            "number" => Node::Number { integer: false },
            "integer" => Node::Number { integer: true },
            "string" => {
                let (least, most) = (count(schema, "minLength", 0)?, count(schema, "maxLength", usize::MAX)?);
                if least > most {
                    return bad(format!("a string cannot have {least} characters and at most {most}"));
                }
                Node::String { least, most }
            }
            "array" => self.array(schema)?,
            "object" => self.object(schema)?,
            other => return bad(format!("there is no type `{other}`")),
        };
        self.add(node)
    }

    fn array(&mut self, schema: &'a Json) -> Result<Node, Error> {
        let mut first = Vec::new();
        for item in schema.get("prefixItems").and_then(Json::as_array).unwrap_or_default() {
            first.push(self.node(item)?);
        }
        let rest = match schema.get("items") {
            Some(Json::Bool(false)) => None,
            Some(items) => Some(self.node(items)?),
            None => Some(self.add(Node::Any)?),
        };
        let most = count(schema, "maxItems", usize::MAX)?;
        let most = if rest.is_none() { most.min(first.len()) } else { most };
        let least = count(schema, "minItems", 0)?;
        if least > most {
            return bad(format!("an array cannot have {least} items and at most {most}"));
        }
        Ok(Node::Array { first, rest, least, most })
    }

    fn object(&mut self, schema: &'a Json) -> Result<Node, Error> {
        let properties = match schema.get("properties") {
            None => &[][..],
            Some(Json::Object(entries)) => entries,
            Some(_) => return bad("`properties` must be an object"),
        };
        let required = schema.get("required").and_then(Json::as_array).unwrap_or_default();
        let mut missing: HashSet<&str> = required.iter().filter_map(Json::as_str).collect();
        let key = |name: &str| written(&Json::String(name.into()));
        let mut all: Vec<Property> = Vec::with_capacity(properties.len());
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (name, value) in properties {
            let value = self.node(value)?;
            // Of two with one name the last counts, as in all of JSON here.
            if let Some(&place) = places.get(name.as_str()) {
                all[place].value = value;
                continue;
            }
            places.insert(name, all.len());
            all.push(Property { key: key(name), value, required: missing.remove(name.as_str()) });
        }
        for name in required.iter().filter_map(Json::as_str) {
            if missing.remove(name) {
                let value = self.add(Node::Any)?;
                all.push(Property { key: key(name), value, required: true });
            }
        }
        let others = match schema.get("additionalProperties") {
            Some(Json::Bool(false)) => None,
            Some(others) => Some(self.node(others)?),
            // A schema that lists properties means these.
            None if schema.get("properties").is_some() => None,
            None => Some(self.add(Node::Any)?),
        };
        Ok(Node::Object(Object::new(all, others)))
    }

    /// An entry of an object that references lead through, of which there may be many.
    fn entry(&mut self, object: &'a Json, name: &str) -> Option<&'a Json> {
        let Json::Object(entries) = object else { return None };
        let index = || entries.iter().map(|(name, value)| (name.as_str(), value)).collect();
        self.indices.entry(std::ptr::from_ref(object)).or_insert_with(index).get(name).copied()
    }

    /// The node of a reference into the document; it may refer to itself.
    fn reference(&mut self, reference: &Json) -> Result<NodeId, Error> {
        let Some(path) = reference.as_str().and_then(|text| text.strip_prefix('#')) else {
            return bad("`$ref` must begin with `#`");
        };
        if let Some(known) = self.of_references.get(path) {
            return Ok(*known);
        }
        let mut target = self.document;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let name = part.replace("~1", "/").replace("~0", "~");
            match self.entry(target, &name) {
                Some(found) => target = found,
                None => return bad(format!("`$ref` leads nowhere: #{path}")),
            }
        }
        // Its place is known before what is inside, which may lead back to it.
        let place = self.add(Node::Either(Vec::new()))?;
        self.of_references.insert(path.to_string(), place);
        self.unread.push((place, target));
        Ok(place)
    }
}

/// The node of texts.
fn texts_of(mut texts: Vec<Box<[u8]>>) -> Node {
    texts.sort_unstable();
    texts.dedup();
    Node::Texts(texts)
}

/// A number of items or characters.
fn count(schema: &Json, key: &str, default: usize) -> Result<usize, Error> {
    match schema.get(key) {
        None => Ok(default),
        Some(Json::Int(number)) if *number >= 0 => Ok(*number as usize),
        Some(_) => bad(format!("`{key}` must be a number from 0 on")),
    }
}

/// A value as JSON without spaces.
fn written(value: &Json) -> Box<[u8]> {
    let mut out = String::new();
    write(value, &mut out);
    out.into_bytes().into()
}

fn write(value: &Json, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Json::Int(number) => out.push_str(&number.to_string()),
        Json::Float(number) => out.push_str(&number.to_string()),
        Json::String(text) => {
            out.push('"');
            for c in text.chars() {
                match c {
                    '"' | '\\' => out.extend(['\\', c]),
                    '\n' => out.push_str("\\n"),
                    '\t' => out.push_str("\\t"),
                    '\r' => out.push_str("\\r"),
                    c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                    c => out.push(c),
                }
            }
            out.push('"');
        }
        Json::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Json::Object(entries) => {
            out.push('{');
            for (i, (name, value)) in entries.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(&Json::String(name.clone()), out);
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
    }
}
