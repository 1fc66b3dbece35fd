//! The formats and their sizes.

use std::fmt;
use std::str::FromStr;

/// Lists every format once: its variant, GGUF's number if it has one, its name, elements and bytes of a block.
macro_rules! formats {
    ($($variant:ident = $id:expr, $name:literal, $elements:literal, $bytes:literal, $doc:literal;)*) => {
        /// How a block of consecutive elements of a row is packed into bytes. The names are those of GGUF; formats that
        /// GGUF lacks hold elements alone, whose scales are stored apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, reason = "the names that everyone knows these formats by")]
        #[non_exhaustive]
        pub enum BlockFormat {
            $(#[doc = $doc] $variant,)*
        }

        impl BlockFormat {
            /// Every format.
            pub const ALL: &'static [BlockFormat] = &[$(BlockFormat::$variant),*];

            /// The number of the type in a GGUF file, if GGUF has it.
            pub const fn ggml_id(self) -> Option<u32> {
                match self {
                    $(BlockFormat::$variant => $id,)*
                }
            }

            /// The name, in lower case: `q4_k`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(BlockFormat::$variant => $name,)*
                }
            }

            /// Elements of a block.
            pub const fn elements(self) -> usize {
                match self {
                    $(BlockFormat::$variant => $elements,)*
                }
            }

            /// Bytes of a block.
            pub const fn bytes(self) -> usize {
                match self {
                    $(BlockFormat::$variant => $bytes,)*
                }
            }
        }
    };
}

formats! {
    Q4_0 = Some(2), "q4_0", 32, 18, "4 bits and an f16 scale, symmetric.";
    Q4_1 = Some(3), "q4_1", 32, 20, "4 bits, an f16 scale and an f16 minimum.";
    Q5_0 = Some(6), "q5_0", 32, 22, "5 bits and an f16 scale, symmetric.";
    Q5_1 = Some(7), "q5_1", 32, 24, "5 bits, an f16 scale and an f16 minimum.";
    Q8_0 = Some(8), "q8_0", 32, 34, "8 bits and an f16 scale.";
    Q8_1 = Some(9), "q8_1", 32, 36, "8 bits, an f16 scale and the f16 sum of the elements.";
    Q2_K = Some(10), "q2_k", 256, 84, "2 bits with 4-bit scales and minimums for every 16 elements.";
    Q3_K = Some(11), "q3_k", 256, 110, "3 bits with 6-bit scales for every 16 elements.";
    Q4_K = Some(12), "q4_k", 256, 144, "4 bits with 6-bit scales and minimums for every 32 elements.";
    Q5_K = Some(13), "q5_k", 256, 176, "5 bits with 6-bit scales and minimums for every 32 elements.";
    Q6_K = Some(14), "q6_k", 256, 210, "6 bits with 8-bit scales for every 16 elements.";
    Q8_K = Some(15), "q8_k", 256, 292, "8 bits, an f32 scale and sums of every 16 elements.";
    IQ2_XXS = Some(16), "iq2_xxs", 256, 66, "2.06 bits: a code book of 256 entries of eight elements, with signs.";
    IQ2_XS = Some(17), "iq2_xs", 256, 74, "2.31 bits: a code book of 512 entries of eight elements, with signs.";
    IQ3_XXS = Some(18), "iq3_xxs", 256, 98, "3.06 bits: a code book of 256 entries of four elements, with signs.";
    IQ1_S = Some(19), "iq1_s", 256, 50, "1.56 bits: a code book of 2,048 entries of eight elements.";
    IQ4_NL = Some(20), "iq4_nl", 32, 18, "4 bits as an index into 16 values, and an f16 scale.";
    IQ3_S = Some(21), "iq3_s", 256, 110, "3.44 bits: a code book of 512 entries of four elements, with signs.";
    IQ2_S = Some(22), "iq2_s", 256, 82, "2.56 bits: a code book of 1,024 entries of eight elements, with signs.";
    IQ4_XS = Some(23), "iq4_xs", 256, 136, "4 bits as an index into 16 values, with 6-bit scales for every 32 elements.";
    IQ1_M = Some(29), "iq1_m", 256, 56, "1.75 bits: the code book of IQ1_S with a scale for every 16 elements.";
    TQ1_0 = Some(34), "tq1_0", 256, 54, "1.69 bits: five ternary elements a byte.";
    TQ2_0 = Some(35), "tq2_0", 256, 66, "2.06 bits: four ternary elements a byte.";
    MXFP4 = Some(39), "mxfp4", 32, 17, "Microscaling: 4-bit floats (e2m1) and a power of two.";
    NVFP4 = Some(40), "nvfp4", 64, 36, "4-bit floats (e2m1) and an 8-bit float (e4m3) for every 16 elements.";
    Q1_0 = Some(41), "q1_0", 128, 18, "1 bit, the sign of an f16 scale.";
    U2 = None, "u2", 4, 1, "2 bits, unsigned, the first element lowest.";
    U4 = None, "u4", 2, 1, "4 bits, unsigned, the first element lowest.";
    I4 = None, "i4", 2, 1, "4 bits, two's complement, the first element lowest.";
    F8_E4M3 = None, "f8_e4m3", 1, 1, "8-bit float of OCP: 4 bits of exponent, 448 the largest, no infinity.";
    F8_E5M2 = None, "f8_e5m2", 1, 1, "8-bit float of OCP: the upper byte of an f16.";
}

impl BlockFormat {
    /// The format with a number in GGUF files.
    pub fn from_ggml_id(id: u32) -> Option<BlockFormat> {
        Self::ALL.iter().copied().find(|f| f.ggml_id() == Some(id))
    }

    /// Bytes of so many elements; `None` where they are not whole blocks or do not fit in memory.
    pub const fn bytes_of(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.elements()) {
            return None;
        }
        (elements / self.elements()).checked_mul(self.bytes())
    }

    /// Bits an element.
    pub fn bits(self) -> f64 {
        (self.bytes() * 8) as f64 / self.elements() as f64
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BlockFormat {
    type Err = crate::Error;
    fn from_str(name: &str) -> Result<Self, crate::Error> {
        let found = Self::ALL.iter().find(|f| f.name().eq_ignore_ascii_case(name));
        found.copied().ok_or_else(|| crate::Error::UnknownFormat { name: name.to_string() })
    }
}
