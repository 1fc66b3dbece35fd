//! ONNX's numbers of element types.

use olivine_ir::port::ElementType;

use crate::proto::tensor_proto::DataType;

/// The element type with ONNX's number, if there is one.
pub(crate) fn element_type(number: i32) -> Option<ElementType> {
    use DataType as D;
    Some(match DataType::try_from(number).ok()? {
        D::Undefined | D::Float6e2m3 | D::Float6e3m2 => return None,
        D::Float => ElementType::F32,
        D::Uint8 => ElementType::U8,
        D::Int8 => ElementType::I8,
        D::Uint16 => ElementType::U16,
        D::Int16 => ElementType::I16,
        D::Int32 => ElementType::I32,
        D::Int64 => ElementType::I64,
        D::String => ElementType::String,
        D::Bool => ElementType::Bool,
        D::Float16 => ElementType::F16,
        D::Double => ElementType::F64,
        D::Uint32 => ElementType::U32,
        D::Uint64 => ElementType::U64,
        D::Complex64 => ElementType::Complex64,
        D::Complex128 => ElementType::Complex128,
        D::Bfloat16 => ElementType::BF16,
        D::Float8e4m3fn => ElementType::F8E4M3FN,
        D::Float8e4m3fnuz => ElementType::F8E4M3FNUZ,
        D::Float8e5m2 => ElementType::F8E5M2,
        D::Float8e5m2fnuz => ElementType::F8E5M2FNUZ,
        D::Uint4 => ElementType::U4,
        D::Int4 => ElementType::I4,
        D::Float4e2m1 => ElementType::F4E2M1,
        D::Float8e8m0 => ElementType::F8E8M0,
        D::Uint2 => ElementType::U2,
        D::Int2 => ElementType::I2,
    })
}
