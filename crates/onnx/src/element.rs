//! ONNX element types, and the dtypes that hold them here.

use std::fmt;

use olivine_ir::DType;

use crate::proto::tensor_proto::DataType;

/// The element type of an ONNX tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are ONNX's")]
pub enum Element {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
    F4E2M1,
    I4,
    U4,
    I2,
    U2,
    String,
    Complex64,
    Complex128,
}

impl Element {
    /// The element type with ONNX's number, if there is one.
    pub fn of_number(number: i32) -> Option<Element> {
        use DataType as D;
        Some(match DataType::try_from(number).ok()? {
            D::Undefined | D::Float6e2m3 | D::Float6e3m2 => return None,
            D::Float => Element::F32,
            D::Uint8 => Element::U8,
            D::Int8 => Element::I8,
            D::Uint16 => Element::U16,
            D::Int16 => Element::I16,
            D::Int32 => Element::I32,
            D::Int64 => Element::I64,
            D::String => Element::String,
            D::Bool => Element::Bool,
            D::Float16 => Element::F16,
            D::Double => Element::F64,
            D::Uint32 => Element::U32,
            D::Uint64 => Element::U64,
            D::Complex64 => Element::Complex64,
            D::Complex128 => Element::Complex128,
            D::Bfloat16 => Element::BF16,
            D::Float8e4m3fn => Element::F8E4M3FN,
            D::Float8e4m3fnuz => Element::F8E4M3FNUZ,
            D::Float8e5m2 => Element::F8E5M2,
            D::Float8e5m2fnuz => Element::F8E5M2FNUZ,
            D::Uint4 => Element::U4,
            D::Int4 => Element::I4,
            D::Float4e2m1 => Element::F4E2M1,
            D::Float8e8m0 => Element::F8E8M0,
            D::Uint2 => Element::U2,
            D::Int2 => Element::I2,
        })
    }

    /// The dtype that holds such elements in a graph; `None` for those that no graph holds.
    ///
    /// Types of the IR hold themselves. u16 is held by u32 and u64, bit for bit, by i64. Floats of 8 and 4 bits are held
    /// by the f32 of equal value, integers of 4 and 2 bits by those of 8.
    pub fn dtype(self) -> Option<DType> {
        Some(match self {
            Element::F32 => DType::F32,
            Element::F16 => DType::F16,
            Element::BF16 => DType::BF16,
            Element::F64 => DType::F64,
            Element::I8 | Element::I4 | Element::I2 => DType::I8,
            Element::I16 => DType::I16,
            Element::I32 => DType::I32,
            Element::I64 | Element::U64 => DType::I64,
            Element::U8 | Element::U4 | Element::U2 => DType::U8,
            Element::U16 | Element::U32 => DType::U32,
            Element::Bool => DType::Bool,
            Element::F8E4M3FN
            | Element::F8E4M3FNUZ
            | Element::F8E5M2
            | Element::F8E5M2FNUZ
            | Element::F8E8M0
            | Element::F4E2M1 => DType::F32,
            Element::String | Element::Complex64 | Element::Complex128 => return None,
        })
    }

    /// The element type of a dtype's own.
    pub fn of_dtype(dtype: DType) -> Element {
        match dtype {
            DType::F32 => Element::F32,
            DType::F16 => Element::F16,
            DType::BF16 => Element::BF16,
            DType::F64 => Element::F64,
            DType::I8 => Element::I8,
            DType::U8 => Element::U8,
            DType::I16 => Element::I16,
            DType::I32 => Element::I32,
            DType::U32 => Element::U32,
            DType::I64 => Element::I64,
            DType::Bool => Element::Bool,
        }
    }

    /// Whether a graph computes with these elements as its dtype does, without a thought to how they are held.
    pub fn is_native(self) -> bool {
        self.dtype().is_some_and(|dtype| Element::of_dtype(dtype) == self)
    }

    /// Bits of one element in a file; 0 for strings.
    pub fn bits(self) -> usize {
        match self {
            Element::String => 0,
            Element::I2 | Element::U2 => 2,
            Element::I4 | Element::U4 | Element::F4E2M1 => 4,
            Element::I8
            | Element::U8
            | Element::Bool
            | Element::F8E4M3FN
            | Element::F8E4M3FNUZ
            | Element::F8E5M2
            | Element::F8E5M2FNUZ
            | Element::F8E8M0 => 8,
            Element::F16 | Element::BF16 | Element::I16 | Element::U16 => 16,
            Element::F32 | Element::I32 | Element::U32 => 32,
            Element::F64 | Element::I64 | Element::U64 | Element::Complex64 => 64,
            Element::Complex128 => 128,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format!("{self:?}").to_lowercase())
    }
}
