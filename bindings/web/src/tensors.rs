//! Tensors from and to objects of JavaScript: `{name, type, dims, bytes}`.

use js_sys::{Array, Object, Reflect, Uint8Array};
use olivine::Outputs;
use olivine::ir::{DType, Data, Shape, Tensor};
use wasm_bindgen::prelude::*;

use crate::thrown;

/// The inputs of a run; their bytes are copied into this module's memory.
pub(crate) fn given(inputs: &Array) -> Result<Vec<(String, Tensor)>, JsError> {
    inputs.iter().map(|input| tensor(&input)).collect()
}

fn tensor(object: &JsValue) -> Result<(String, Tensor), JsError> {
    let field = |name: &str| Reflect::get(object, &name.into()).unwrap_or(JsValue::UNDEFINED);
    let name = field("name").as_string().ok_or_else(|| JsError::new("an input has no name"))?;
    let wrong = |problem: String| JsError::new(&format!("input `{name}`: {problem}"));
    let dtype = field("type").as_string().unwrap_or_default();
    let dtype = dtype.parse::<DType>().map_err(|e| wrong(e.to_string()))?;
    let dims = Array::from(&field("dims"));
    let size = |dim: JsValue| dim.as_f64().filter(|d| *d >= 0.0 && d.fract() == 0.0).map(|d| d as usize);
    let dims: Vec<usize> =
        dims.iter().map(size).collect::<Option<_>>().ok_or_else(|| wrong("dims are no sizes".into()))?;
    let shape = Shape::new(&dims).map_err(thrown)?;
    let bytes: Uint8Array = field("bytes").dyn_into().map_err(|_| wrong("it has no bytes".into()))?;
    let expected = shape.numel().saturating_mul(dtype.size());
    if bytes.length() as usize != expected {
        let got = bytes.length() as usize / dtype.size().max(1);
        return Err(wrong(format!("{got} elements for {dtype}{shape}, which has {}", shape.numel())));
    }
    let data = Data::from_bytes(dtype, &bytes.to_vec()).map_err(thrown)?;
    Ok((name.clone(), Tensor::from_data(shape, data).map_err(thrown)?))
}

/// The outputs of a run; their bytes are copied out of this module's memory.
pub(crate) fn results(outputs: &Outputs) -> Result<Array, JsError> {
    outputs.iter().map(|(name, tensor)| object(name, tensor)).collect()
}

fn object(name: &str, tensor: &Tensor) -> Result<JsValue, JsError> {
    let dims: Array = tensor.shape().iter().map(|size| JsValue::from(*size as f64)).collect();
    let fields = [
        ("name", JsValue::from(name)),
        ("type", JsValue::from(tensor.dtype().to_string())),
        ("dims", dims.into()),
        ("bytes", Uint8Array::from(tensor.bytes()).into()),
    ];
    of_fields(&fields).map(Into::into)
}

/// An object with some fields.
pub(crate) fn of_fields(fields: &[(&str, JsValue)]) -> Result<Object, JsError> {
    let object = Object::new();
    for (name, value) in fields {
        let set = Reflect::set(&object, &(*name).into(), value);
        set.map_err(|_| JsError::new(&format!("cannot set `{name}`")))?;
    }
    Ok(object)
}
