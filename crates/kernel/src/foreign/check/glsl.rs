//! The functions of GLSL.std.450: how many operands each takes, and of what.

use super::rules::Kind;
use super::{Globals, Problem};

/// Operands of a function, all of the result's type.
enum Takes {
    /// Floats of 16 or 32 bits.
    Narrow(usize),
    /// Floats.
    Floats(usize),
    /// Integers of 32 bits.
    Ints(usize),
}

/// What a function takes, by its number.
fn takes(number: u32) -> Option<Takes> {
    Some(match number {
        // round, roundEven, trunc, fabs, fsign, floor, ceil, fract, sqrt, inversesqrt
        1..=4 | 6 | 8..=10 | 31 | 32 => Takes::Floats(1),
        // radians, degrees, sin … atanh, exp, log, exp2, log2
        11..=24 | 27..=30 => Takes::Narrow(1),
        // atan2, pow
        25 | 26 => Takes::Narrow(2),
        // sabs, ssign, find lsb and msb
        5 | 7 | 73..=75 => Takes::Ints(1),
        // umin, smin, umax, smax
        38 | 39 | 41 | 42 => Takes::Ints(2),
        // uclamp, sclamp
        44 | 45 => Takes::Ints(3),
        // fmin, fmax, step, nmin, nmax
        37 | 40 | 48 | 79 | 80 => Takes::Floats(2),
        // fclamp, fmix, smoothstep, fma, nclamp
        43 | 46 | 49 | 50 | 81 => Takes::Floats(3),
        _ => return None,
    })
}

impl Globals {
    /// Checks a call by its operands' types.
    pub(super) fn calls_glsl(&self, number: u32, ty: u32, operands: &[u32]) -> Result<(), Problem> {
        let unknown = || format!("function {number} of GLSL.std.450 is not known");
        let (kind, count) = self.lanes(ty).ok_or_else(unknown)?;
        let all =
            |n: usize| operands.len() == n && operands.iter().all(|o| self.lanes(*o) == Some((kind, count)));
        let fits = match number {
            // packHalf2x16, unpackHalf2x16, ldexp
            58 => {
                (kind, count) == (Kind::Int(32), 1)
                    && matches!(operands, [x] if self.lanes(*x) == Some((Kind::Float(32), 2)))
            }
            62 => {
                (kind, count) == (Kind::Float(32), 2)
                    && matches!(operands, [x] if self.lanes(*x) == Some((Kind::Int(32), 1)))
            }
            53 => match operands {
                [x, exponent] => {
                    matches!(kind, Kind::Float(_))
                        && self.lanes(*x) == Some((kind, count))
                        && self.lanes(*exponent) == Some((Kind::Int(32), count))
                }
                _ => false,
            },
            _ => match takes(number).ok_or_else(unknown)? {
                Takes::Narrow(n) => all(n) && matches!(kind, Kind::Float(16 | 32)),
                Takes::Floats(n) => all(n) && matches!(kind, Kind::Float(_)),
                Takes::Ints(n) => all(n) && kind == Kind::Int(32),
            },
        };
        if fits {
            Ok(())
        } else {
            Err(format!("function {number} of GLSL.std.450 on operands it does not take"))
        }
    }
}
