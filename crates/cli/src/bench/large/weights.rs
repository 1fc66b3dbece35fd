//! A model of many large weights: each is made on the host, multiplied there for the answer, brought to the device and
//! dropped, so that the host holds one at a time.

use olivine::Session;
use olivine::internals::models::seeded_input;
use olivine::ir::{DType, Graph, Shape, Tensor};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::Failure;
use crate::measure::graph;
use crate::model::SEED;
use crate::progress::Progress;
use crate::timing::{bytes, ms, short, timed};

/// Rows of the input, all of them checked.
const ROWS: usize = 4;
/// The L2 norm of the difference over that of the answer may be this.
const TOLERANCE: f64 = 1e-5;

/// What was found.
pub(super) struct Checked {
    bytes: usize,
    params: usize,
    width: usize,
    difference: f64,
    load_ms: f64,
    run_ms: f64,
}

/// x · w0 · w1 · … against the same in f64 on the host.
pub(super) fn check(
    global: &Global,
    session: &Session,
    params: usize,
    width: usize,
) -> Result<Checked, Failure> {
    let executable = session.compile(&chain(params, width)?)?;
    let x = seeded_input("x", Shape::new(&[ROWS, width])?, SEED)?;
    let mut expected = x.to_f64();
    let mut progress = Progress::new(params, global.quiet);
    let mut load_ms = 0.0;
    for i in 0..params {
        let name = name(i);
        progress.begin(&name);
        let weight = weight(&name, width, global.thread_count())?;
        expected = matmul(&expected, weight.as_slice()?, width, global.thread_count());
        let (time, done) = timed(|| executable.upload_param(&name, weight));
        done?;
        load_ms += ms(time);
        progress.step();
    }
    drop(progress);
    let (time, loaded) = timed(|| executable.load());
    loaded?;
    load_ms += ms(time);
    executable.run([("x", &x)])?;
    let (time, out) = timed(|| executable.run([("x", &x)]));
    let difference = relative_l2(&out?.get("y")?.to_f64(), &expected);
    // A NaN is too far as well.
    if !difference.le(&TOLERANCE) {
        return Err(Failure::new(format!(
            "the model's output is {difference:.1e} from the host's (relative L2), more than {TOLERANCE:.0e}"
        )));
    }
    Ok(Checked { bytes: 4 * params * width * width, params, width, difference, load_ms, run_ms: ms(time) })
}

fn name(i: usize) -> String {
    format!("w{i}")
}

fn chain(params: usize, width: usize) -> Result<Graph, Failure> {
    Ok(graph("large", |g| {
        let mut y = g.input("x", DType::F32, [ROWS, width])?;
        for i in 0..params {
            let w = g.param(&name(i), DType::F32, [width, width])?;
            y = g.matmul(y, w)?;
        }
        Ok(y)
    })?)
}

/// Numbers of a variance that keeps a matmul's size, from a generator that every thread can begin anywhere.
fn weight(name: &str, width: usize, threads: usize) -> Result<Tensor, Failure> {
    let scale = (3.0 / width as f32).sqrt();
    let key = name.bytes().fold(SEED, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mut elements = vec![0f32; width * width];
    let part = elements.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        for (t, chunk) in elements.chunks_mut(part).enumerate() {
            let first = (t * part) as u64;
            scope.spawn(move || {
                for (i, element) in (first..).zip(chunk) {
                    *element = scale * uniform(key.wrapping_add(i));
                }
            });
        }
    });
    Ok(Tensor::new([width, width], elements)?)
}

/// A number in [-1, 1) for every counter: SplitMix64's finaliser.
fn uniform(counter: u64) -> f32 {
    let mut z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

/// Rows times a square matrix in f64; every thread takes some of the matrix's rows.
fn matmul(rows: &[f64], matrix: &[f32], width: usize, threads: usize) -> Vec<f64> {
    let part = width.div_ceil(threads.max(1)).max(1);
    let sums: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let workers: Vec<_> = matrix
            .chunks(part * width)
            .enumerate()
            .map(|(t, chunk)| {
                scope.spawn(move || {
                    let mut sum = vec![0f64; rows.len()];
                    for (k, line) in (t * part..).zip(chunk.chunks(width)) {
                        for (row, sum) in rows.chunks(width).zip(sum.chunks_mut(width)) {
                            let lhs = row[k];
                            sum.iter_mut().zip(line).for_each(|(s, w)| *s += lhs * f64::from(*w));
                        }
                    }
                    sum
                })
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    let mut total = vec![0f64; rows.len()];
    for sum in sums {
        total.iter_mut().zip(sum).for_each(|(t, s)| *t += s);
    }
    total
}

/// The L2 norm of the difference over that of the expected; infinite for results of another length.
fn relative_l2(got: &[f64], expected: &[f64]) -> f64 {
    if got.len() != expected.len() {
        return f64::INFINITY;
    }
    let square = |x: f64| x * x;
    let difference: f64 = got.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = expected.iter().copied().map(square).sum();
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

impl Checked {
    pub(super) fn text(&self) -> String {
        format!(
            "model of {} in {} params of {}×{}: {:.1e} from the host (relative L2); loaded in {} ms, run in {} ms\n",
            bytes(self.bytes),
            self.params,
            self.width,
            self.width,
            self.difference,
            short(self.load_ms),
            short(self.run_ms)
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "bytes": self.bytes, "params": self.params, "width": self.width, "relative_l2": self.difference,
            "load_ms": self.load_ms, "run_ms": self.run_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_times_a_matrix_are_right_for_any_number_of_threads() {
        let matrix = [1f32, 2.0, 3.0, 4.0];
        for threads in [1, 2, 5] {
            assert_eq!(matmul(&[1.0, 10.0, 0.5, 0.0], &matrix, 2, threads), [31.0, 42.0, 0.5, 1.0]);
        }
    }

    #[test]
    fn weights_do_not_depend_on_the_threads_and_differ_by_name() -> Result<(), Failure> {
        let (one, many) = (weight("w0", 33, 1)?, weight("w0", 33, 4)?);
        assert_eq!(one.as_slice::<f32>()?, many.as_slice::<f32>()?);
        assert_ne!(weight("w1", 33, 1)?.as_slice::<f32>()?, one.as_slice::<f32>()?);
        Ok(())
    }

    #[test]
    fn results_of_another_length_or_with_nan_are_far() {
        assert!(relative_l2(&[1.0], &[1.0, 2.0]).is_infinite());
        assert!(!relative_l2(&[f64::NAN], &[1.0]).le(&TOLERANCE));
        assert_eq!(relative_l2(&[0.0, 2.0], &[0.0, 2.0]), 0.0);
    }
}
