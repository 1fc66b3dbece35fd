//! Types of tensors: plain elements or blocks.

use std::fmt;
use std::str::FromStr;

use olivine_quant::BlockFormat;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorKind {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// IEEE 754 double precision.
    F64,
    /// Signed 8-bit integers.
    I8,
    /// Signed 16-bit integers.
    I16,
    /// Signed 32-bit integers.
    I32,
    /// Signed 64-bit integers.
    I64,
    /// Quantised blocks.
    Blocks(BlockFormat),
}

/// Number in a file, name, bytes of an element.
const PLAIN: [(TensorKind, u32, &str, usize); 8] = [
    (TensorKind::F32, 0, "f32", 4),
    (TensorKind::F16, 1, "f16", 2),
    (TensorKind::I8, 24, "i8", 1),
    (TensorKind::I16, 25, "i16", 2),
    (TensorKind::I32, 26, "i32", 4),
    (TensorKind::I64, 27, "i64", 8),
    (TensorKind::F64, 28, "f64", 8),
    (TensorKind::BF16, 30, "bf16", 2),
];

/// Numbers that once were types, and what became of them.
const REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2, which was removed"),
    (5, "Q4_3, which was removed"),
    (31, "Q4_0_4_4, which was removed: Q4_0 is repacked when it is loaded"),
    (32, "Q4_0_4_8, which was removed: Q4_0 is repacked when it is loaded"),
    (33, "Q4_0_8_8, which was removed: Q4_0 is repacked when it is loaded"),
    (36, "IQ4_NL_4_4, which was removed: IQ4_NL is repacked when it is loaded"),
    (37, "IQ4_NL_4_8, which was removed: IQ4_NL is repacked when it is loaded"),
    (38, "IQ4_NL_8_8, which was removed: IQ4_NL is repacked when it is loaded"),
];

impl TensorKind {
    /// Every type.
    pub fn all() -> impl Iterator<Item = TensorKind> {
        let stored = BlockFormat::ALL.iter().filter(|format| format.ggml_id().is_some());
        let blocks = stored.map(|format| TensorKind::Blocks(*format));
        PLAIN.iter().map(|plain| plain.0).chain(blocks)
    }

    /// The number of the type in a file; `None` for block formats that GGUF lacks.
    pub fn id(self) -> Option<u32> {
        match self {
            TensorKind::Blocks(format) => format.ggml_id(),
            plain => Some(plain.entry().1),
        }
    }

    /// The type with a number; the error says what the number means.
    pub fn from_id(id: u32) -> Result<TensorKind, String> {
        if let Some(plain) = PLAIN.iter().find(|plain| plain.1 == id) {
            return Ok(plain.0);
        }
        BlockFormat::from_ggml_id(id).map(TensorKind::Blocks).ok_or_else(|| {
            let removed = REMOVED.iter().find(|(number, _)| *number == id);
            let known = removed.map_or("which is not known", |(_, words)| *words);
            format!("its type is {id}, {known}")
        })
    }

    /// The name, in lower case: `f16`, `q4_k`.
    pub fn name(self) -> &'static str {
        match self {
            TensorKind::Blocks(format) => format.name(),
            plain => plain.entry().2,
        }
    }

    /// Elements that are stored together: 1 for plain types.
    pub fn block_elements(self) -> usize {
        match self {
            TensorKind::Blocks(format) => format.elements(),
            _ => 1,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            TensorKind::Blocks(format) => format.bytes(),
            plain => plain.entry().3,
        }
    }

    /// The row of a plain type; blocks have none and get that of f32, which is never used.
    fn entry(self) -> &'static (TensorKind, u32, &'static str, usize) {
        PLAIN.iter().find(|plain| plain.0 == self).unwrap_or(&PLAIN[0])
    }

    /// Bytes of a tensor whose rows are the last size; the error says what does not fit.
    pub fn bytes_of(self, shape: &[usize]) -> Result<usize, String> {
        let row = shape.last().copied().unwrap_or(1);
        let block = self.block_elements();
        if !row.is_multiple_of(block) {
            return Err(format!("rows of {row} elements are not whole blocks of {self}, which have {block}"));
        }
        let elements = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        let bytes = elements.and_then(|n| (n / block).checked_mul(self.block_bytes()));
        bytes.ok_or_else(|| format!("{self}{shape:?} has more bytes than memory can have"))
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TensorKind {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let found = TensorKind::all().find(|kind| kind.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("there is no tensor type `{name}`"))
    }
}
