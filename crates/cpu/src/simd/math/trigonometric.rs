//! Sine, cosine and tangent: reduced and evaluated in f64 lanes, large arguments one by one.

use crate::simd::{Kernel, run};

/// Above this the two-part reduction loses bits, and the library's exact one takes over.
const LARGE: f32 = 1_048_576.0;

/// 1.5·2⁵², which rounds a sum to an integer and keeps that integer in the low bits.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// The first 33 bits of π/2: products with numbers below 2²⁰ are exact.
const HALF_PI_HIGH: f64 = 1.570_796_326_734_125_6;
const HALF_PI_LOW: f64 = 6.077_100_506_506_192e-11;

/// sin r / r in r², on |r| ≤ π/4.
const SIN: [f64; 6] = [
    0.999_999_999_999_995_2,
    -0.166_666_666_666_115_2,
    0.008_333_333_323_103_716,
    -0.000_198_412_629_002_301_66,
    2.755_518_966_243_048e-6,
    -2.475_068_892_046_893_8e-8,
];

/// cos r in r², on |r| ≤ π/4.
const COS: [f64; 6] = [
    0.999_999_999_999_937_5,
    -0.499_999_999_992_842_2,
    0.041_666_666_533_874_87,
    -0.001_388_887_987_768_844,
    2.479_882_215_462_874_2e-5,
    -2.716_581_959_268_798_3e-7,
];

#[inline(always)]
fn horner(x: f64, c: &[f64; 6]) -> f64 {
    ((((c[5] * x + c[4]) * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0]
}

/// The sine and cosine of the reduced argument, and the quadrant's two bits.
#[inline(always)]
fn reduced(x: f32) -> (f64, f64, u64) {
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * HALF_PI_HIGH) - n * HALF_PI_LOW;
    let square = r * r;
    (r * horner(square, &SIN), horner(square, &COS), shifted.to_bits())
}

#[inline(always)]
fn negate_if(x: f64, bit: u64) -> f64 {
    f64::from_bits(x.to_bits() ^ (bit << 63))
}

#[inline(always)]
fn sin(x: f32) -> f32 {
    let (s, c, n) = reduced(x);
    let y = negate_if(if n & 1 == 0 { s } else { c }, (n >> 1) & 1) as f32;
    if x == 0.0 { x } else { y }
}

#[inline(always)]
fn cos(x: f32) -> f32 {
    let (s, c, n) = reduced(x);
    negate_if(if n & 1 == 0 { c } else { s }, ((n >> 1) ^ n) & 1) as f32
}

#[inline(always)]
fn tan(x: f32) -> f32 {
    let (s, c, n) = reduced(x);
    let (over, under) = if n & 1 == 0 { (s, c) } else { (-c, s) };
    let y = (over / under) as f32;
    if x == 0.0 { x } else { y }
}

/// Whether the vector loop cannot reduce an argument; NaN and infinities count too.
#[inline(always)]
fn is_large(x: f32) -> bool {
    x.abs() >= LARGE || x.is_nan()
}

macro_rules! block {
    ($name:ident, $f:ident, $doc:literal) => {
        #[doc = $doc]
        pub(crate) fn $name(x: &[f32], out: &mut [f32]) {
            struct Block<'a>(&'a [f32], &'a mut [f32]);
            impl Kernel for Block<'_> {
                type Output = bool;
                #[inline(always)]
                fn run<const FMA: bool>(self) -> bool {
                    let mut large = false;
                    for (o, x) in self.1.iter_mut().zip(self.0) {
                        *o = $f(*x);
                        large |= is_large(*x);
                    }
                    large
                }
            }
            if run(Block(x, out)) {
                for (o, x) in out.iter_mut().zip(x).filter(|(_, x)| is_large(**x)) {
                    *o = f64::from(*x).$f() as f32;
                }
            }
        }
    };
}
block!(sin_block, sin, "Sines of a block.");
block!(cos_block, cos, "Cosines of a block.");
block!(tan_block, tan, "Tangents of a block.");
