//! Inputs and outputs of a model, as its file declares them.

use std::fmt;

use crate::{BlockFormat, DType, TensorType};

/// A size in an input's or output's declared shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Known.
    Fixed(usize),
    /// Chosen by a run; axes of one name have one size.
    Named(String),
    /// Chosen by a run.
    Free,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(size) => write!(f, "{size}"),
            // A name of a file can be of any length.
            Dim::Named(name) => write!(f, "{name:.200}"),
            Dim::Free => f.write_str("?"),
        }
    }
}

/// What an input or output holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor; sizes are `None` where not even their number is declared.
    Tensor {
        /// Its elements.
        element: ElementType,
        /// Its sizes.
        dims: Option<Vec<Dim>>,
    },
    /// A sequence of such values.
    Sequence(Box<Kind>),
    /// Such a value or none.
    Optional(Box<Kind>),
    /// Something else, in ONNX's words.
    Other(&'static str),
}

impl Kind {
    /// Whether a tensor of some type is such a value; fixed sizes must agree.
    pub fn takes(&self, ty: TensorType) -> bool {
        let fits = |(dim, size): (&Dim, &usize)| !matches!(dim, Dim::Fixed(fixed) if fixed != size);
        match self {
            Kind::Tensor { element, dims } => {
                let shape = ty.elements();
                let sizes = shape.dims();
                let fits = |dims: &Vec<Dim>| dims.len() == sizes.len() && dims.iter().zip(sizes).all(fits);
                element.dtype() == Some(ty.dtype)
                    && element.format() == ty.packed
                    && dims.as_ref().is_none_or(fits)
            }
            Kind::Optional(inner) => inner.takes(ty),
            Kind::Sequence(_) | Kind::Other(_) => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Tensor { element, dims: None } => write!(f, "{element}[…]"),
            Kind::Tensor { element, dims: Some(dims) } => {
                let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
                write!(f, "{element}[{}]", dims.join(", "))
            }
            Kind::Sequence(inner) => write!(f, "sequence of {inner}"),
            Kind::Optional(inner) => write!(f, "optional {inner}"),
            Kind::Other(what) => f.write_str(what),
        }
    }
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

/// The element type of a model's input, output or weight: what the model's format has, which is more than [`DType`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of ONNX's types")]
#[non_exhaustive]
pub enum ElementType {
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
    /// Packed blocks; sizes are in elements.
    Blocks(BlockFormat),
}

impl ElementType {
    /// The dtype that holds such elements in a graph; `None` for those that no graph holds.
    ///
    /// Types of the IR hold themselves. u16 is held by u32 and u64, bit for bit, by i64. Floats of 8 and 4 bits are held
    /// by the f32 of equal value, integers of 4 and 2 bits by those of 8.
    pub fn dtype(self) -> Option<DType> {
        Some(match self {
            ElementType::F32 => DType::F32,
            ElementType::F16 => DType::F16,
            ElementType::BF16 => DType::BF16,
            ElementType::F64 => DType::F64,
            ElementType::I8 | ElementType::I4 | ElementType::I2 => DType::I8,
            ElementType::I16 => DType::I16,
            ElementType::I32 => DType::I32,
            ElementType::I64 | ElementType::U64 => DType::I64,
            ElementType::U8 | ElementType::U4 | ElementType::U2 | ElementType::Blocks(_) => DType::U8,
            ElementType::U16 | ElementType::U32 => DType::U32,
            ElementType::Bool => DType::Bool,
            ElementType::F8E4M3FN
            | ElementType::F8E4M3FNUZ
            | ElementType::F8E5M2
            | ElementType::F8E5M2FNUZ
            | ElementType::F8E8M0
            | ElementType::F4E2M1 => DType::F32,
            ElementType::String | ElementType::Complex64 | ElementType::Complex128 => return None,
        })
    }

    /// The element type of a dtype's own.
    pub fn of_dtype(dtype: DType) -> ElementType {
        match dtype {
            DType::F32 => ElementType::F32,
            DType::F16 => ElementType::F16,
            DType::BF16 => ElementType::BF16,
            DType::F64 => ElementType::F64,
            DType::I8 => ElementType::I8,
            DType::U8 => ElementType::U8,
            DType::I16 => ElementType::I16,
            DType::I32 => ElementType::I32,
            DType::U32 => ElementType::U32,
            DType::I64 => ElementType::I64,
            DType::Bool => ElementType::Bool,
        }
    }

    /// The element type of a tensor's own.
    pub fn of(ty: TensorType) -> ElementType {
        ty.packed.map_or(ElementType::of_dtype(ty.dtype), ElementType::Blocks)
    }

    /// The block format of packed elements.
    pub fn format(self) -> Option<BlockFormat> {
        match self {
            ElementType::Blocks(format) => Some(format),
            _ => None,
        }
    }

    /// Whether a graph computes with these elements as its dtype does, without a thought to how they are held.
    pub fn is_native(self) -> bool {
        self.dtype().is_some_and(|dtype| ElementType::of_dtype(dtype) == self)
    }

    /// Bits of one element in a file; 0 for strings and blocks.
    pub fn bits(self) -> usize {
        match self {
            ElementType::String | ElementType::Blocks(_) => 0,
            ElementType::I2 | ElementType::U2 => 2,
            ElementType::I4 | ElementType::U4 | ElementType::F4E2M1 => 4,
            ElementType::I8
            | ElementType::U8
            | ElementType::Bool
            | ElementType::F8E4M3FN
            | ElementType::F8E4M3FNUZ
            | ElementType::F8E5M2
            | ElementType::F8E5M2FNUZ
            | ElementType::F8E8M0 => 8,
            ElementType::F16 | ElementType::BF16 | ElementType::I16 | ElementType::U16 => 16,
            ElementType::F32 | ElementType::I32 | ElementType::U32 => 32,
            ElementType::F64 | ElementType::I64 | ElementType::U64 | ElementType::Complex64 => 64,
            ElementType::Complex128 => 128,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElementType::Blocks(format) => write!(f, "{format}"),
            other => write!(f, "{}", format!("{other:?}").to_lowercase()),
        }
    }
}
