//! What the device can do at best, measured in this process: copying memory, and multiply-adds in registers.

use olivine::ir::{DType, Graph};
use olivine::{Backend, Session};
use serde_json::{Value, json};

use crate::answer::Failure;
use crate::bench::Copy;
use crate::measure::{Runs, Subject, graph};
use crate::timing::{ms, short};

/// Instructions to an element: as many as one fused kernel takes, so that writing it is not what limits them.
const CHAIN: usize = 60;
/// Numbers of a row.
const COLUMNS: usize = 1024;
/// A copy of this many numbers in less than [`FAST_MS`] calls for larger tensors.
const PROBE: usize = 1 << 20;
const FAST_MS: f64 = 0.1;

/// The device's measured limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceilings {
    pub(crate) gb_per_s: f64,
    pub(crate) tflops: f64,
}

impl Ceilings {
    /// Measures a session's device; the CPU with so many threads.
    pub(crate) fn measure(session: &Session, threads: usize) -> Result<Self, Failure> {
        if session.device().backend() == Backend::Cpu {
            return Ceilings::of_the_cpu(session, threads);
        }
        let fast = least(session, &copying(PROBE)?)? < FAST_MS;
        // Far beyond the caches of a fast device; a slow one's caches are smaller too.
        let (elements, rows) = if fast { (64 << 20, 16 << 10) } else { (16 << 20, 64) };
        let gb_per_s = 8.0 * elements as f64 / least(session, &copying(elements)?)? / 1e6;
        // Some devices have no instruction for a multiply-add that rounds once.
        let mut tflops = 0f64;
        for fused in [true, false] {
            let (graph, flops) = multiply_adds(rows, fused)?;
            tflops = tflops.max(flops / least(session, &graph)? / 1e9);
        }
        Ok(Ceilings { gb_per_s, tflops })
    }

    /// The CPU's elementwise kernels pass numbers through its caches and into new memory, so a plain copy and a
    /// matmul are its yardsticks.
    fn of_the_cpu(session: &Session, threads: usize) -> Result<Self, Failure> {
        let elements = 16 << 20;
        let mut copy = Copy::new(elements, threads);
        let copy_ms = (0..10).map(|_| ms(copy.time())).fold(f64::INFINITY, f64::min);
        let n = 1024;
        let matmul_ms = least(session, &matmul(n)?)?;
        let tflops = 2.0 * (n as f64).powi(3) / matmul_ms / 1e9;
        Ok(Ceilings { gb_per_s: 8.0 * elements as f64 / copy_ms / 1e6, tflops })
    }

    /// The larger part of a ceiling that bytes and operations in a time reach; `None` where neither is counted.
    pub(crate) fn share(&self, bytes: u64, flops: u64, ms: f64) -> Option<f64> {
        let memory = bytes as f64 / ms / 1e6 / self.gb_per_s;
        let arithmetic = flops as f64 / ms / 1e9 / self.tflops;
        let share = memory.max(arithmetic);
        ((bytes > 0 || flops > 0) && share.is_finite()).then_some(share)
    }

    pub(crate) fn text(&self) -> String {
        let (copy, fma) = (short(self.gb_per_s), short(self.tflops));
        format!("measured ceilings: {copy} GB/s copying memory, {fma} TFLOP/s of f32\n")
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "gb_per_s": self.gb_per_s, "tflops": self.tflops })
    }
}

/// The shortest time on the device, in milliseconds.
fn least(session: &Session, graph: &Graph) -> Result<f64, Failure> {
    let runs = Runs { timed: 10, ..Runs::STEADY };
    Ok(Subject::new(session, graph)?.device_times(runs)?.least())
}

/// Reads every number once and writes it once.
fn copying(elements: usize) -> Result<Graph, Failure> {
    Ok(graph("copy", |g| {
        let x = g.input("x", DType::F32, [elements])?;
        g.neg(x)
    })?)
}

/// Rows of numbers, each number through a chain of multiply-adds, fused or not; hardly anything is read.
fn multiply_adds(rows: usize, fused: bool) -> Result<(Graph, f64), Failure> {
    let links = if fused { CHAIN } else { CHAIN / 2 };
    let graph = graph("multiply-adds", |g| {
        let mut y = g.input("x", DType::F32, [rows, 1])?;
        let a = g.input("a", DType::F32, [COLUMNS])?;
        let b = g.input("b", DType::F32, [1])?;
        for _ in 0..links {
            y = if fused {
                g.fma(y, a, b)?
            } else {
                let product = g.mul(y, a)?;
                g.add(product, b)?
            };
        }
        Ok(y)
    })?;
    Ok((graph, 2.0 * (links * rows * COLUMNS) as f64))
}

fn matmul(n: usize) -> Result<Graph, Failure> {
    Ok(graph("matmul", |g| {
        let (a, b) = (g.input("a", DType::F32, [n, n])?, g.input("b", DType::F32, [n, n])?);
        g.matmul(a, b)
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_ceiling_that_is_nearer() {
        let ceilings = Ceilings { gb_per_s: 100.0, tflops: 10.0 };
        assert_eq!(ceilings.share(50_000_000, 0, 1.0), Some(0.5));
        assert_eq!(ceilings.share(10_000_000, 9_000_000_000, 1.0), Some(0.9));
        assert_eq!(ceilings.share(0, 0, 1.0), None);
        assert_eq!(ceilings.share(1, 0, 0.0), None, "no time was measured");
    }
}
