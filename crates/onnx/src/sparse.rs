//! Sparse tensors, made dense.

use olivine_ir::{Data, Tensor, memory};

use crate::ElementType;
use crate::error::Error;
use crate::files::Files;
use crate::proto::{SparseTensorProto, TensorProto};
use crate::tensor::{decode, shape_of};

/// The tensor that a sparse proto describes, with its zeros.
pub(crate) fn decode_sparse(
    proto: &SparseTensorProto,
    files: &Files,
) -> Result<(ElementType, Tensor), Error> {
    let values = proto.values.as_ref();
    let name = sparse_name(proto);
    let bad = |problem: String| Error::invalid(format!("sparse tensor `{name}`"), problem);
    let part = |part: Option<&TensorProto>, what: &str| match part {
        Some(part) => decode(part, files),
        None => Err(bad(format!("it has no {what}"))),
    };
    let (element, values) = part(values, "values")?;
    let (_, indices) = part(proto.indices.as_ref(), "indices")?;
    let shape = shape_of(&proto.dims).map_err(bad)?;
    let given = values.shape().numel();
    let positions = indices.as_slice::<i64>().map_err(|e| bad(e.to_string()))?;
    // One position in row-major order for each value, or one along each axis.
    let tuple = if *indices.shape().dims() == [given] { 1 } else { shape.rank() };
    if Some(positions.len()) != given.checked_mul(tuple) {
        return Err(bad(format!("indices {} for {given} values of {shape}", indices.shape())));
    }
    let sizes: Vec<usize> = if tuple == 1 { vec![shape.numel()] } else { shape.to_vec() };
    let width = values.dtype().size();
    files.write_out(shape.numel()).map_err(bad)?;
    let mut bytes: Vec<u8> =
        memory::zeroed(shape.numel().saturating_mul(width)).map_err(|e| bad(e.to_string()))?;
    for (i, value) in values.bytes().chunks_exact(width).enumerate() {
        let mut at = 0;
        for (index, size) in positions[i * tuple..(i + 1) * tuple].iter().zip(&sizes) {
            let index = usize::try_from(*index).ok().filter(|index| index < size);
            let index = index.ok_or_else(|| bad(format!("index {i} lies outside {shape}")))?;
            at = at * size + index;
        }
        if let Some(place) = bytes.get_mut(at * width..(at + 1) * width) {
            place.copy_from_slice(value);
        }
    }
    let data = Data::from_bytes(values.dtype(), &bytes).map_err(|e| bad(e.to_string()))?;
    Ok((element, Tensor::from_data(shape, data).map_err(|e| bad(e.to_string()))?))
}

/// The name of a sparse tensor, which is that of its values.
pub(crate) fn sparse_name(proto: &SparseTensorProto) -> &str {
    proto.values.as_ref().map_or("", |v| v.name())
}
