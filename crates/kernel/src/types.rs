//! Types of registers and of memory, and what a device's kernels may use.

use std::fmt;

/// The type of a register: what arithmetic works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum Scalar {
    Bool,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
}

impl Scalar {
    /// f16, f32 or f64.
    pub const fn is_float(self) -> bool {
        matches!(self, Scalar::F16 | Scalar::F32 | Scalar::F64)
    }

    /// A signed or unsigned integer.
    pub const fn is_int(self) -> bool {
        matches!(self, Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64)
    }

    /// A signed integer.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, Scalar::I32 | Scalar::I64)
    }

    /// Bits of a value; a bool has one.
    pub const fn bits(self) -> u32 {
        match self {
            Scalar::Bool => 1,
            Scalar::F16 => 16,
            Scalar::I32 | Scalar::U32 | Scalar::F32 => 32,
            Scalar::I64 | Scalar::U64 | Scalar::F64 => 64,
        }
    }

    /// The name in printed kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Scalar::Bool => "bool",
            Scalar::I32 => "i32",
            Scalar::U32 => "u32",
            Scalar::I64 => "i64",
            Scalar::U64 => "u64",
            Scalar::F16 => "f16",
            Scalar::F32 => "f32",
            Scalar::F64 => "f64",
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of an element in memory. Loads widen it to its register type, stores narrow to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum Elem {
    F32,
    F16,
    BF16,
    F64,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    /// One byte, 0 or 1.
    Bool,
}

impl Elem {
    /// Every element type, in declaration order.
    pub const ALL: [Elem; 13] = [
        Elem::F32,
        Elem::F16,
        Elem::BF16,
        Elem::F64,
        Elem::I8,
        Elem::U8,
        Elem::I16,
        Elem::U16,
        Elem::I32,
        Elem::U32,
        Elem::I64,
        Elem::U64,
        Elem::Bool,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> u32 {
        match self {
            Elem::I8 | Elem::U8 | Elem::Bool => 1,
            Elem::F16 | Elem::BF16 | Elem::I16 | Elem::U16 => 2,
            Elem::F32 | Elem::I32 | Elem::U32 => 4,
            Elem::F64 | Elem::I64 | Elem::U64 => 8,
        }
    }

    /// The register type of loads and stores: f16 becomes f32, narrow integers 32 bits wide.
    /// Stores of floats round to nearest even; stores of integers keep the low bits.
    pub const fn scalar(self) -> Scalar {
        match self {
            Elem::F32 | Elem::F16 | Elem::BF16 => Scalar::F32,
            Elem::F64 => Scalar::F64,
            Elem::I8 | Elem::I16 | Elem::I32 => Scalar::I32,
            Elem::U8 | Elem::U16 | Elem::U32 => Scalar::U32,
            Elem::I64 => Scalar::I64,
            Elem::U64 => Scalar::U64,
            Elem::Bool => Scalar::Bool,
        }
    }

    /// The name in printed kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Elem::F32 => "f32",
            Elem::F16 => "f16",
            Elem::BF16 => "bf16",
            Elem::F64 => "f64",
            Elem::I8 => "i8",
            Elem::U8 => "u8",
            Elem::I16 => "i16",
            Elem::U16 => "u16",
            Elem::I32 => "i32",
            Elem::U32 => "u32",
            Elem::I64 => "i64",
            Elem::U64 => "u64",
            Elem::Bool => "bool",
        }
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a cooperative matrix is in A·B + C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixUse {
    /// The left operand, M x K.
    A,
    /// The right operand, K x N.
    B,
    /// The accumulator, M x N.
    Accumulator,
}

/// A matrix held by a subgroup together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixType {
    /// Element type: f16, bf16, i8, u8 as operands; f16, f32, i32, u32 as accumulators.
    pub elem: Elem,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Its role.
    pub role: MatrixUse,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// One register.
    Scalar(Scalar),
    /// 2 to 4 registers; made by vector loads, taken apart by `extract`.
    Vector(Scalar, u8),
    /// A cooperative matrix.
    Matrix(MatrixType),
}

impl Type {
    /// The scalar type of a scalar or a vector's components.
    pub const fn scalar(self) -> Option<Scalar> {
        match self {
            Type::Scalar(s) | Type::Vector(s, _) => Some(s),
            Type::Matrix(_) => None,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Scalar(s) => write!(f, "{s}"),
            Type::Vector(s, n) => write!(f, "{s}x{n}"),
            Type::Matrix(m) => write!(f, "{}[{}x{}]{:?}", m.elem, m.rows, m.columns, m.role),
        }
    }
}

/// A cooperative matrix multiply that a device offers at subgroup scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixShape {
    /// Element type of both operands.
    pub operand: Elem,
    /// Element type of accumulator and result.
    pub accumulator: Elem,
    /// Rows of A and of the result.
    pub m: u32,
    /// Columns of B and of the result.
    pub n: u32,
    /// Columns of A, rows of B.
    pub k: u32,
}

/// Which elements of a cooperative matrix an invocation holds.
///
/// Vulkan leaves it open; a driver that knows it, because it tried, says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragments {
    /// Of A and accumulator of 16 rows and columns in subgroups of 32 alike: four neighbouring lanes hold two rows,
    /// eight apart, each lane two neighbours of either row and two more eight columns on.
    Quads,
}

impl Fragments {
    /// Elements that an invocation holds.
    pub const COUNT: u8 = 8;

    /// Whether it is known which elements of such a matrix an invocation holds.
    pub fn covers(self, ty: MatrixType) -> bool {
        (ty.rows, ty.columns) == (16, 16) && ty.role != MatrixUse::B
    }

    /// Row and column of the `part`-th element that a lane holds.
    pub const fn position(self, lane: u32, part: u32) -> (u32, u32) {
        match self {
            Fragments::Quads => (lane / 4 + part / 4 * 8, lane % 4 * 2 + part % 2 + part / 2 % 2 * 8),
        }
    }
}

/// What can be done with cooperative matrices besides loading, multiplying and storing them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MatrixSupport {
    /// All that the language has, as in SPIR-V and PTX.
    #[default]
    Full,
    /// What naga's WGSL has on all its back ends: matrices of zeros, and memory of scalars of the matrix's own element
    /// type. There is no arithmetic on whole matrices, and their elements and words cannot be reached.
    Basic,
}

/// What kernels may use on a device. Authors ask it to choose an algorithm; the validator holds them to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The size of every subgroup, where subgroup arithmetic and shuffles are there and the size is fixed.
    pub subgroup: Option<u32>,
    /// Registers of 16-bit floats.
    pub f16: bool,
    /// Whether results in them are rounded to nearest even, and denormal numbers are kept.
    pub exact_f16: bool,
    /// Registers of 64-bit floats.
    pub f64: bool,
    /// Registers of 64-bit integers.
    pub i64: bool,
    /// 64-bit integers as pairs of words, where there are no such registers: exact, and several times as slow.
    pub i64_pairs: bool,
    /// Packed dot products of four 8-bit integers.
    pub packed_dot: bool,
    /// Cooperative matrix multiplies.
    pub matrices: Vec<MatrixShape>,
    /// What else can be done with their matrices.
    pub matrix_support: MatrixSupport,
    /// Which elements of their matrices invocations hold, where that is known.
    pub fragments: Option<Fragments>,
    /// Warpgroups, asynchronous copies and roles of subgroups, as NVIDIA's Hopper has them, in kernels printed as PTX.
    pub warpgroups: bool,
    /// Whether these warpgroups multiply 8-bit integers too.
    pub int8_warpgroups: bool,
    /// Whether stores to buffers can be ordered between workgroups of a dispatch.
    pub device_fences: bool,
    /// Invocations of a workgroup.
    pub max_invocations: u32,
    /// Bytes of workgroup memory.
    pub shared_bytes: u32,
}

impl Target {
    /// Whether matrices of `m` by `k` and `k` by `n` elements can be multiplied, their products added up in another
    /// type.
    pub fn multiplies(&self, operand: Elem, accumulator: Elem, [m, n, k]: [u32; 3]) -> bool {
        self.matrices.contains(&MatrixShape { operand, accumulator, m, n, k })
    }

    /// The same, with [all that the language has](MatrixSupport::Full) for such matrices.
    pub fn multiplies_fully(&self, operand: Elem, accumulator: Elem, sizes: [u32; 3]) -> bool {
        self.matrix_support == MatrixSupport::Full && self.multiplies(operand, accumulator, sizes)
    }

    /// What every Vulkan and WebGPU device has.
    pub fn plain() -> Self {
        Target {
            subgroup: None,
            f16: false,
            exact_f16: false,
            f64: false,
            i64: false,
            i64_pairs: false,
            packed_dot: false,
            matrices: Vec::new(),
            matrix_support: MatrixSupport::Full,
            fragments: None,
            warpgroups: false,
            int8_warpgroups: false,
            device_fences: false,
            max_invocations: 128,
            shared_bytes: 16384,
        }
    }

    /// Whether registers of a type exist.
    pub fn has(&self, scalar: Scalar) -> bool {
        match scalar {
            Scalar::Bool | Scalar::I32 | Scalar::U32 | Scalar::F32 => true,
            Scalar::I64 | Scalar::U64 => self.i64 || self.i64_pairs,
            Scalar::F16 => self.f16,
            Scalar::F64 => self.f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_hold_every_element_once() {
        let mut held = [0; 256];
        for lane in 0..32 {
            for part in 0..u32::from(Fragments::COUNT) {
                let (row, column) = Fragments::Quads.position(lane, part);
                held[(row * 16 + column) as usize] += 1;
            }
        }
        assert_eq!(held, [1; 256]);
    }
}
