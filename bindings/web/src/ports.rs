//! What a model says of itself, as objects of JavaScript.

use js_sys::{Array, Object};
use olivine::internals::ModelExt as _;
use olivine::ir::port::{Dim, ElementType, Kind, Port};
use wasm_bindgen::prelude::*;

use crate::tensors::of_fields;

/// Inputs or outputs: `{name, type, dims}`, sizes as numbers, names, or null where they are open.
pub(crate) fn list(ports: &[Port]) -> Result<Array, JsError> {
    ports.iter().map(|port| object(port).map(JsValue::from)).collect()
}

fn object(port: &Port) -> Result<Object, JsError> {
    let size = |dim: &Dim| match dim {
        Dim::Fixed(size) => JsValue::from(*size as f64),
        Dim::Named(name) => JsValue::from(name.as_str()),
        Dim::Free => JsValue::NULL,
    };
    let (element, dims) = match &port.kind {
        Kind::Tensor { element, dims } => {
            // The element type of the tensors that a run takes, such as f32 for a float of 8 bits. JavaScript has arrays for two
            // that the package converts.
            let element = match element {
                ElementType::U16 | ElementType::U64 => element.to_string(),
                other => other.dtype().map_or_else(|| other.to_string(), |dtype| dtype.to_string()),
            };
            let dims = dims.as_ref().map(|dims| dims.iter().map(size).collect::<Array>());
            (element, dims.map_or(JsValue::NULL, Into::into))
        }
        other => (other.to_string(), JsValue::NULL),
    };
    of_fields(&[
        ("name", JsValue::from(port.name.as_str())),
        ("type", JsValue::from(element)),
        ("dims", dims),
    ])
}

/// A model's name, producer, operators and weights.
pub(crate) fn summary(model: &olivine::Model) -> Result<Object, JsError> {
    let (producer, operators, (elements, bytes)) = match model.onnx() {
        Some(onnx) => (onnx.producer().to_string(), onnx.operators(), onnx.parameters()),
        None => {
            let mut operators = std::collections::BTreeMap::new();
            let graph = model.graph();
            let nodes = graph.map_or(&[][..], |graph| graph.nodes());
            nodes.iter().for_each(|node| *operators.entry(node.op.name().to_string()).or_default() += 1);
            let weights = graph.into_iter().flat_map(|graph| graph.params());
            let weights: Vec<_> = weights.filter_map(|(name, _)| model.weight(name)).collect();
            let elements = weights.iter().map(|tensor| tensor.shape().numel()).sum();
            (String::new(), operators, (elements, weights.iter().map(|tensor| tensor.bytes().len()).sum()))
        }
    };
    let pair = |(name, count): (&String, &usize)| {
        Array::of2(&JsValue::from(name.as_str()), &JsValue::from(*count as f64))
    };
    let operators: Array = operators.iter().map(pair).collect();
    of_fields(&[
        ("name", JsValue::from(model.name())),
        ("producer", JsValue::from(producer)),
        ("operators", operators.into()),
        ("parameters", JsValue::from(elements as f64)),
        ("parameterBytes", JsValue::from(bytes as f64)),
    ])
}
