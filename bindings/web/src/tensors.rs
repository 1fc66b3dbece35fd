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

#[wasm_bindgen]
extern "C" {
    /// A tensor as an object of JavaScript. The names of its fields are in the glue code: as strings of this module each would
    /// be converted in every run, which takes longer than a small model.
    type Fields;

    /// A `Uint8Array`, for which the browser may have no memory.
    #[wasm_bindgen(js_name = Uint8Array)]
    type Bytes;

    #[wasm_bindgen(catch, constructor, js_class = "Uint8Array")]
    fn zeroed(length: u32) -> Result<Bytes, JsValue>;

    #[wasm_bindgen(method, getter = "name")]
    fn name(this: &Fields) -> JsValue;
    #[wasm_bindgen(method, getter = "type")]
    fn dtype(this: &Fields) -> JsValue;
    #[wasm_bindgen(method, getter = "dims")]
    fn dims(this: &Fields) -> JsValue;
    #[wasm_bindgen(method, getter = "bytes")]
    fn bytes(this: &Fields) -> JsValue;

    #[wasm_bindgen(method, setter = "name")]
    fn set_name(this: &Fields, name: &str);
    #[wasm_bindgen(method, setter = "type")]
    fn set_dtype(this: &Fields, dtype: &str);
    #[wasm_bindgen(method, setter = "dims")]
    fn set_dims(this: &Fields, dims: &Array);
    #[wasm_bindgen(method, setter = "bytes")]
    fn set_bytes(this: &Fields, bytes: &Uint8Array);
}

fn tensor(object: &JsValue) -> Result<(String, Tensor), JsError> {
    let fields: &Fields = object.unchecked_ref();
    let name = fields.name().as_string().ok_or_else(|| JsError::new("an input has no name"))?;
    let wrong = |problem: String| JsError::new(&format!("input `{name}`: {problem}"));
    let dtype = fields.dtype().as_string().unwrap_or_default();
    let dtype = dtype.parse::<DType>().map_err(|e| wrong(e.to_string()))?;
    let dims = Array::from(&fields.dims());
    let size = |dim: JsValue| dim.as_f64().filter(|d| *d >= 0.0 && d.fract() == 0.0).map(|d| d as usize);
    let dims: Vec<usize> =
        dims.iter().map(size).collect::<Option<_>>().ok_or_else(|| wrong("dims are no sizes".into()))?;
    let shape = Shape::new(&dims).map_err(thrown)?;
    let bytes: Uint8Array = fields.bytes().dyn_into().map_err(|_| wrong("it has no bytes".into()))?;
    let expected = shape.numel().saturating_mul(dtype.size());
    if bytes.length() as usize != expected {
        let got = bytes.length() as usize / dtype.size().max(1);
        return Err(wrong(format!("{got} elements for {dtype}{shape}, which has {}", shape.numel())));
    }
    let mut copy =
        olivine::internals::ir::memory::zeroed::<u8>(expected).map_err(|e| wrong(e.to_string()))?;
    bytes.copy_to(&mut copy);
    let data = Data::from_bytes(dtype, &copy).map_err(|e| wrong(e.to_string()))?;
    Ok((name.clone(), Tensor::from_data(shape, data).map_err(thrown)?))
}

/// The outputs of a run; their bytes are copied out of this module's memory.
pub(crate) fn results(outputs: &Outputs) -> Result<Array, JsError> {
    outputs.iter().map(|(name, tensor)| object(name, tensor)).collect()
}

fn object(name: &str, tensor: &Tensor) -> Result<JsValue, JsError> {
    let length = tensor.bytes().len();
    let full = |_| JsError::new(&format!("output `{name}`: not enough memory for {length} bytes"));
    let bytes: Uint8Array = Bytes::zeroed(length as u32).map_err(full)?.unchecked_into();
    bytes.copy_from(tensor.bytes());
    let dims: Array = tensor.shape().iter().map(|size| JsValue::from(*size as f64)).collect();
    let fields: Fields = Object::new().unchecked_into();
    fields.set_name(name);
    fields.set_dtype(&tensor.dtype().to_string());
    fields.set_dims(&dims);
    fields.set_bytes(&bytes);
    Ok(fields.into())
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
