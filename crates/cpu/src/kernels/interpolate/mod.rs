//! Sampling at computed places. Places and weights are worked out in f64, and so are sums.

mod grid;
mod roi;
#[cfg(test)]
mod tests;

/// Elements that a task should read at least.
const TASK: usize = 1 << 14;

/// Runs `$body` with `$t` bound to the Rust type of a float dtype.
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            olivine_ir::DType::F16 => {
                type $t = half::f16;
                $body
            }
            olivine_ir::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            olivine_ir::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
use with_float;
