//! ONNX files written by hand: protobuf's wire format, and the few messages that the tests need.

/// A message under construction.
#[derive(Clone, Default)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    pub(crate) fn new() -> Self {
        Message::default()
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// An integer field.
    pub(crate) fn int(mut self, field: u32, value: i64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(value as u64);
        self
    }

    /// A float field.
    pub(crate) fn float(mut self, field: u32, value: f32) -> Self {
        self.varint(u64::from(field) << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A field of bytes.
    pub(crate) fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    /// A field of text.
    pub(crate) fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    /// A message inside.
    pub(crate) fn inside(self, field: u32, value: &Message) -> Self {
        self.bytes(field, &value.0)
    }

    /// Several messages in one repeated field.
    pub(crate) fn all(self, field: u32, values: &[Message]) -> Self {
        values.iter().fold(self, |message, value| message.inside(field, value))
    }
}

/// ONNX's numbers of element types.
pub(crate) const F32: i64 = 1;
pub(crate) const I64: i64 = 7;
pub(crate) const BOOL: i64 = 9;

/// A model around a graph, of opset 17 and with functions of the domain `local`.
pub(crate) fn model(graph: &Message) -> Message {
    let onnx = Message::new().int(2, 17);
    let local = Message::new().text(1, "local").int(2, 1);
    Message::new().int(1, 8).inside(8, &onnx).inside(8, &local).inside(7, graph)
}

/// A graph's parts.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Message>,
    pub(crate) initializers: Vec<Message>,
    pub(crate) inputs: Vec<Message>,
    pub(crate) outputs: Vec<Message>,
    pub(crate) values: Vec<Message>,
}

impl Graph {
    pub(crate) fn message(&self) -> Message {
        Message::new()
            .all(1, &self.nodes)
            .text(2, "g")
            .all(5, &self.initializers)
            .all(11, &self.inputs)
            .all(12, &self.outputs)
            .all(13, &self.values)
    }

    /// The model around it as bytes.
    pub(crate) fn model(&self) -> Vec<u8> {
        model(&self.message()).0
    }
}

/// A node; its operator may have a domain before a colon.
pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let (domain, op) = op.split_once(':').unwrap_or(("", op));
    let message = inputs.iter().fold(Message::new(), |m, name| m.text(1, name));
    outputs.iter().fold(message, |m, name| m.text(2, name)).text(4, op).text(7, domain)
}

/// An integer attribute.
pub(crate) fn int_attribute(name: &str, value: i64) -> Message {
    Message::new().text(1, name).int(3, value).int(20, 2)
}

/// A float attribute.
pub(crate) fn float_attribute(name: &str, value: f32) -> Message {
    Message::new().text(1, name).float(2, value).int(20, 1)
}

/// A string attribute.
pub(crate) fn string_attribute(name: &str, value: &str) -> Message {
    Message::new().text(1, name).text(4, value).int(20, 3)
}

/// A list of integers as an attribute.
pub(crate) fn ints_attribute(name: &str, values: &[i64]) -> Message {
    values.iter().fold(Message::new().text(1, name), |m, v| m.int(8, *v)).int(20, 7)
}

/// A graph as an attribute.
pub(crate) fn graph_attribute(name: &str, graph: &Message) -> Message {
    Message::new().text(1, name).inside(6, graph).int(20, 5)
}

/// A tensor as an attribute.
pub(crate) fn tensor_attribute(name: &str, tensor: &Message) -> Message {
    Message::new().text(1, name).inside(5, tensor).int(20, 4)
}

/// A tensor whose elements are given as they lie in memory.
pub(crate) fn tensor(name: &str, element: i64, dims: &[i64], raw: &[u8]) -> Message {
    dims.iter().fold(Message::new(), |m, d| m.int(1, *d)).int(2, element).text(8, name).bytes(9, raw)
}

/// A tensor of 64-bit integers.
pub(crate) fn ints(name: &str, dims: &[i64], values: &[i64]) -> Message {
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, I64, dims, &raw)
}

/// A tensor of 32-bit floats.
pub(crate) fn floats(name: &str, dims: &[i64], values: &[f32]) -> Message {
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, F32, dims, &raw)
}

/// A tensor whose elements lie in another file.
pub(crate) fn external(name: &str, element: i64, dims: &[i64], entries: &[(&str, &str)]) -> Message {
    let message = dims.iter().fold(Message::new(), |m, d| m.int(1, *d)).int(2, element).text(8, name);
    let entries = entries.iter().map(|(k, v)| Message::new().text(1, k).text(2, v));
    message.all(13, &entries.collect::<Vec<_>>()).int(14, 1)
}

/// A declared tensor; sizes are numbers or names.
pub(crate) fn value(name: &str, element: i64, dims: &[&str]) -> Message {
    let dims: Vec<Message> = dims
        .iter()
        .map(|d| match d.parse::<i64>() {
            Ok(size) => Message::new().int(1, size),
            Err(_) => Message::new().text(2, d),
        })
        .collect();
    let shape = Message::new().all(1, &dims);
    let tensor = Message::new().int(1, element).inside(2, &shape);
    Message::new().text(1, name).inside(2, &Message::new().inside(1, &tensor))
}

/// A function of the domain `local`.
pub(crate) fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: &[Message]) -> Message {
    let message = inputs.iter().fold(Message::new().text(1, name), |m, i| m.text(4, i));
    let message = outputs.iter().fold(message, |m, o| m.text(5, o));
    let opsets = [Message::new().int(2, 17), Message::new().text(1, "local").int(2, 1)];
    message.all(7, nodes).all(9, &opsets).text(10, "local")
}
