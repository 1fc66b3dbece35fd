//! Values as the data sets of ONNX's tests hold them: tensors, sequences, optional values.

use bytes::Bytes;
use olivine_ir::Tensor;
use prost::Message;

use crate::ElementType;
use crate::Kind;
use crate::error::Error;
use crate::files::Files;
use crate::proto::TensorProto;
use crate::tensor::decode;

/// `SequenceProto`, as far as it holds tensors and sequences.
#[derive(Clone, PartialEq, Message)]
struct SequenceProto {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int32, optional, tag = "2")]
    elem_type: Option<i32>,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    tensors: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    sequences: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    optionals: Vec<Bytes>,
}

/// `OptionalProto`, as far as it holds tensors and sequences.
#[derive(Clone, PartialEq, Message)]
struct OptionalProto {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int32, optional, tag = "2")]
    elem_type: Option<i32>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    tensor: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    sequence: Option<Bytes>,
}

/// A value of a data set.
#[derive(Clone, Debug)]
pub enum DataValue {
    /// A tensor and its elements' type in ONNX's terms.
    Tensor(ElementType, Tensor),
    /// A sequence.
    Sequence(Vec<DataValue>),
    /// An optional value that is not there.
    Nothing,
}

impl DataValue {
    /// Reads a value of a declared kind.
    pub fn read(bytes: &[u8], kind: &Kind) -> Result<DataValue, Error> {
        let bad = |e: prost::DecodeError| Error::NotOnnx { problem: e.to_string() };
        match kind {
            Kind::Sequence(inner) => {
                let proto = SequenceProto::decode(bytes).map_err(bad)?;
                let parts = proto.tensors.iter().chain(&proto.sequences).chain(&proto.optionals);
                Ok(DataValue::Sequence(parts.map(|b| DataValue::read(b, inner)).collect::<Result<_, _>>()?))
            }
            Kind::Optional(inner) => {
                let proto = OptionalProto::decode(bytes).map_err(bad)?;
                match proto.tensor.or(proto.sequence) {
                    Some(part) => DataValue::read(&part, inner),
                    None => Ok(DataValue::Nothing),
                }
            }
            Kind::Tensor { .. } | Kind::Other(_) => {
                let (element, tensor) = decode(&TensorProto::decode(bytes).map_err(bad)?, &Files::default())?;
                Ok(DataValue::Tensor(element, tensor))
            }
        }
    }

    /// Its tensors under the names that runs know them by: element `i` of a sequence is `name[i]`.
    pub fn flat(&self, name: &str) -> Vec<(String, ElementType, Tensor)> {
        match self {
            DataValue::Tensor(element, tensor) => vec![(name.to_string(), *element, tensor.clone())],
            DataValue::Sequence(items) => {
                items.iter().enumerate().flat_map(|(i, item)| item.flat(&format!("{name}[{i}]"))).collect()
            }
            DataValue::Nothing => Vec::new(),
        }
    }
}
