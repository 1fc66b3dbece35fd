//! Where a case's inputs come from: seeded numbers with a stated distribution.

use olivine_ir::half::{bf16, f16};
use olivine_ir::{DType, Data, Tensor, TensorType};

use crate::bound::round_to;
use crate::oracle::Value;
use crate::range::{corners, int_corners, pair, pattern};

/// A small, fixed generator of random bits (SplitMix64); the same seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that begins at a seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// A generator for a name.
    pub fn named(name: &str) -> Self {
        // FNV-1a: any fixed hash will do.
        Rng(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..1`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number in `0..n`; 0 when n is 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.bits() % n as u64) as usize }
    }

    /// A normally distributed number.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// The distribution of an input's elements.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Normal with a mean and a deviation.
    Normal(f64, f64),
    /// Evenly within two numbers.
    Uniform(f64, f64),
    /// Sign and mantissa random, exponents evenly over `2^lo .. 2^hi` and within the dtype.
    Exponents(i32, i32),
    /// As `Exponents`, positive.
    PositiveExponents(i32, i32),
    /// Whole numbers from lo to hi inclusive, for any dtype; sums of them are exact.
    Whole(i64, i64),
    /// Every bit pattern of an integer dtype, its extremes often; for floats as `Special`.
    Anything,
    /// NaN, infinities, both zeros, subnormals, the largest, halves, ones and ordinary numbers.
    Special,
    /// As `Special`, without infinities.
    Finite,
    /// Every bit pattern of f16 and bf16; every exponent and sign of f32 and f64, each with several mantissas: zeros,
    /// denormals, infinities and NaN are among them. As many as [`whole_range_len`](crate::whole_range_len) says.
    WholeRange,
    /// The first (false) or second (true) of all pairs of a dtype's corners, as many as [`pairs_len`](crate::pairs_len) says.
    Pairs(bool),
    /// True with a probability.
    Chance(f64),
    /// Indices below n; with the flag, negative ones too.
    Index(usize, bool),
    /// Ordinary numbers, with a second number at a part of the positions.
    Mixed(f64, f64),
    /// These numbers in turn.
    These(Vec<f64>),
}

/// Ordinary numbers.
pub fn normal() -> Fill {
    Fill::Normal(0.0, 1.0)
}

/// Evenly within two numbers.
pub fn uniform(low: f64, high: f64) -> Fill {
    Fill::Uniform(low, high)
}

/// Whole numbers from low to high inclusive.
pub fn whole(low: i64, high: i64) -> Fill {
    Fill::Whole(low, high)
}

/// These numbers in turn.
pub fn these(numbers: &[f64]) -> Fill {
    Fill::These(numbers.to_vec())
}

impl Fill {
    /// A tensor of a type, from a generator.
    pub fn tensor(&self, ty: TensorType, rng: &mut Rng) -> Result<Tensor, String> {
        if let Some(format) = ty.packed {
            return crate::blocks::tensor(format, ty, rng);
        }
        let n = ty.shape.numel();
        let data = if ty.dtype.is_float() {
            let limit = if ty.dtype == DType::F16 {
                15
            } else if ty.dtype == DType::F64 {
                1000
            } else {
                127
            };
            store_floats(ty.dtype, n, |i| self.float(ty.dtype, limit, i, rng))
        } else {
            let (low, high) = crate::oracle::limits(ty.dtype);
            let numbers: Vec<i64> = (0..n).map(|i| self.int(low, high, i, rng)).collect();
            store_ints(ty.dtype, &numbers)
        };
        Tensor::from_data(ty.shape, data).map_err(|e| e.to_string())
    }

    fn float(&self, dtype: DType, limit: i32, i: usize, rng: &mut Rng) -> f64 {
        match self {
            Fill::Normal(mean, deviation) => mean + deviation * rng.normal(),
            Fill::Uniform(low, high) => low + (high - low) * rng.unit(),
            Fill::Exponents(low, high) | Fill::PositiveExponents(low, high) => {
                let least = if dtype == DType::F64 { -1000 } else { -limit + 1 };
                let (low, high) = ((*low).clamp(least, limit), (*high).clamp(least, limit));
                let e = f64::from(low) + f64::from(high - low) * rng.unit();
                let sign =
                    if matches!(self, Fill::Exponents(..)) && rng.bits() & 1 == 1 { -1.0 } else { 1.0 };
                sign * e.exp2()
            }
            Fill::Whole(low, high) => (low + rng.below((high - low + 1) as usize) as i64) as f64,
            Fill::Anything | Fill::Special => special(dtype, rng),
            Fill::WholeRange => pattern(dtype, i, rng),
            Fill::Pairs(second) => pair(&corners(dtype), i, *second),
            Fill::Finite => Some(special(dtype, rng)).filter(|x| !x.is_infinite()).unwrap_or(3.0),
            Fill::Chance(p) => f64::from(u8::from(rng.unit() < *p)),
            Fill::Index(n, _) => rng.below(*n) as f64,
            Fill::Mixed(number, part) => {
                if rng.unit() < *part {
                    *number
                } else {
                    rng.normal()
                }
            }
            Fill::These(numbers) => numbers.get(i % numbers.len().max(1)).copied().unwrap_or(0.0),
        }
    }

    fn int(&self, low: i64, high: i64, i: usize, rng: &mut Rng) -> i64 {
        match self {
            Fill::Anything | Fill::Special | Fill::Finite => match rng.below(8) {
                0 => low,
                1 => high,
                2 => [0, 1, -1, 2, 7][rng.below(5)].clamp(low, high),
                _ => rng.bits() as i64,
            },
            Fill::WholeRange => rng.bits() as i64,
            Fill::Pairs(second) => pair(&int_corners(low, high), i, *second),
            Fill::Whole(a, b) => (a + rng.below((b - a + 1) as usize) as i64).clamp(low, high),
            Fill::Index(n, negative) => {
                let index = rng.below(*n) as i64;
                if *negative && rng.bits() & 1 == 1 { index - *n as i64 } else { index }
            }
            // A deviation of one would leave almost nothing but zeros.
            Fill::Normal(mean, deviation) => (mean + 16.0 * deviation * rng.normal()) as i64,
            other => other.float(DType::F64, 60, i, rng) as i64,
        }
    }
}

fn special(dtype: DType, rng: &mut Rng) -> f64 {
    let (tiny, largest) = match dtype {
        DType::F16 => (f16::from_bits(1).to_f64(), f16::MAX.to_f64()),
        DType::BF16 => (bf16::from_bits(1).to_f64(), bf16::MAX.to_f64()),
        DType::F32 => (f64::from(f32::from_bits(1)), f64::from(f32::MAX)),
        _ => (f64::from_bits(1), f64::MAX),
    };
    let sign = if rng.bits() & 1 == 1 { -1.0 } else { 1.0 };
    sign * match rng.below(16) {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => 0.0,
        3 => tiny,
        4 => tiny * 37.0,
        5 => largest,
        6 => 0.5,
        7 => 1.0,
        8 => 1.5,
        9 => 2.5,
        10 => rng.below(100) as f64,
        _ => rng.normal(),
    }
}

fn store_floats(dtype: DType, n: usize, mut next: impl FnMut(usize) -> f64) -> Data {
    match dtype {
        DType::F16 => Data::F16((0..n).map(|i| f16::from_f64(round_to(dtype, next(i)))).collect()),
        DType::BF16 => Data::BF16((0..n).map(|i| bf16::from_f64(round_to(dtype, next(i)))).collect()),
        DType::F32 => Data::F32((0..n).map(|i| next(i) as f32).collect()),
        _ => Data::F64((0..n).map(next).collect()),
    }
}

fn store_ints(dtype: DType, v: &[i64]) -> Data {
    match dtype {
        DType::I8 => Data::I8(v.iter().map(|x| *x as i8).collect()),
        DType::U8 => Data::U8(v.iter().map(|x| *x as u8).collect()),
        DType::I16 => Data::I16(v.iter().map(|x| *x as i16).collect()),
        DType::I32 => Data::I32(v.iter().map(|x| *x as i32).collect()),
        DType::U32 => Data::U32(v.iter().map(|x| *x as u32).collect()),
        DType::I64 => Data::I64(v.to_vec()),
        _ => Data::Bool(v.iter().map(|x| *x & 1 != 0).collect()),
    }
}

/// The oracle's numbers as a tensor of their dtype.
pub fn to_tensor(value: &Value) -> Result<Tensor, String> {
    let dtype = value.ty.dtype;
    let data = match &value.data {
        crate::oracle::Numbers::Floats(v) => store_floats(dtype, v.len(), |i| round_to(dtype, v[i])),
        crate::oracle::Numbers::Ints(v) => store_ints(dtype, v),
    };
    Tensor::of_type(value.ty, data).map_err(|e| e.to_string())
}
