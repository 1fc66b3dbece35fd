//! `olivine bench accuracy`: the error of f32 matmuls, by the kernels that are chosen and by tiles of fused
//! multiply-adds, on numbers of several kinds.

use clap::Args;
use olivine::internals::OptionsExt as _;
use olivine::internals::gpu::Mask;
use olivine::internals::models::seeded_input;
use olivine::ir::{DType, Shape, Tensor};
use olivine::{Executable, Session};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::measure::graph;
use crate::progress::Progress;
use crate::table::Table;

#[derive(Args)]
pub(crate) struct AccuracyArgs {
    /// Small sizes.
    #[arg(long)]
    quick: bool,
}

/// Random numbers that operands are cut from: a prime, so that no two rows are alike.
const STRETCH: usize = 1_048_583;
/// Products of an element of a row with one of the right operand's that the exact results take, about.
const WORK: usize = 64 << 20;

/// Makes an operand's number of two that are uniform in [-1, 1) and one that is normal.
type Draw = fn(uniform: f64, sign: f64, normal: f64) -> f64;

const DISTRIBUTIONS: [(&str, Draw); 5] = [
    ("normal", |_, _, normal| normal),
    ("uniform(0,1)", |uniform, _, _| uniform.abs()),
    ("±exp(3·normal)", |_, sign, normal| (3.0 * normal).exp().copysign(sign)),
    ("1e-4·normal", |_, _, normal| 1e-4 * normal),
    ("1e4·normal", |_, _, normal| 1e4 * normal),
];

struct Error {
    n: usize,
    distribution: &'static str,
    chosen: f64,
    fma: f64,
}

pub(crate) fn run(global: &Global, args: &AccuracyArgs) -> Result<Answer, Failure> {
    let sizes: &[usize] = if args.quick { &[64, 96] } else { &[1024, 4096] };
    let open = |matrices: bool| -> Result<Session, Failure> {
        let without = Mask { matrices: !matrices, ..Mask::default() };
        Ok(Session::with_options(global.device()?, global.options().without(without))?)
    };
    let (chosen, fma) = (open(true)?, open(false)?);
    let mut progress = Progress::new(sizes.len() * DISTRIBUTIONS.len(), global.quiet);
    let mut errors = Vec::new();
    let mut kernels: Vec<String> = Vec::new();
    for n in sizes.iter().copied() {
        let matmul = |session: &Session| -> Result<Executable, Failure> {
            Ok(session.compile(&graph("matmul", |g| {
                let (a, b) = (g.input("a", DType::F32, [n, n])?, g.input("b", DType::F32, [n, n])?);
                g.matmul(a, b)
            })?)?)
        };
        let (by_chosen, by_fma) = (matmul(&chosen)?, matmul(&fma)?);
        for (distribution, draw) in DISTRIBUTIONS {
            progress.begin(&format!("{n} {distribution}"));
            let a = operand(&format!("{distribution} a"), draw, n)?;
            let b = operand(&format!("{distribution} b"), draw, n)?;
            let rows = sampled(n);
            let exact = exact(&a, &b, n, &rows)?;
            let error = |matmul: &Executable| -> Result<f64, Failure> {
                let out = matmul.run([("a", &a), ("b", &b)])?;
                relative_l2(out.get("y")?.as_slice::<f32>()?, &exact, n, &rows)
            };
            errors.push(Error { n, distribution, chosen: error(&by_chosen)?, fma: error(&by_fma)? });
            progress.step();
        }
        let zero = Tensor::zeros(DType::F32, [n, n])?;
        let steps = by_chosen.profile([("a", &zero), ("b", &zero)])?;
        kernels
            .extend(steps.into_iter().map(|s| s.kernel).filter(|k| !kernels.contains(k)).collect::<Vec<_>>());
    }
    drop(progress);
    Ok(report(&chosen, &errors, &kernels))
}

fn report(session: &Session, errors: &[Error], kernels: &[String]) -> Answer {
    let mut table = Table::new(&[">n", "both operands", ">chosen", ">fma tiles"]);
    for e in errors {
        let cells =
            [e.n.to_string(), e.distribution.into(), format!("{:.2e}", e.chosen), format!("{:.2e}", e.fma)];
        table.row(cells);
    }
    let (device, name) = (session.device().to_string(), session.device_name());
    let rows: Vec<Value> = errors
        .iter()
        .map(|e| json!({ "n": e.n, "distribution": e.distribution, "chosen": e.chosen, "fma": e.fma }))
        .collect();
    let text = format!("{device} · {name}\nrelative L2; chosen: {}\n\n{table}", kernels.join(", "));
    Answer::new(text, json!({ "device": device, "name": name, "kernels": kernels, "rows": rows }))
}

/// A square operand of numbers drawn so.
fn operand(name: &str, draw: Draw, n: usize) -> Result<Tensor, Failure> {
    let count = STRETCH.min(n * n);
    let stream = |part: &str| seeded_input(&format!("{name} {part}"), Shape::new(&[count])?, n as u64);
    let (uniform, sign, angle) = (stream("uniform")?, stream("sign")?, stream("angle")?);
    let drawn = uniform.as_slice::<f32>()?.iter().zip(sign.as_slice::<f32>()?).zip(angle.as_slice::<f32>()?);
    let stretch: Vec<f32> = drawn
        .map(|((u, s), v)| {
            let (u, s, v) = (f64::from(*u), f64::from(*s), f64::from(*v));
            // Box and Muller; |u| is uniform in [0, 1] and 24 bits fine.
            let normal = (-2.0 * u.abs().max(1e-9).ln()).sqrt() * (std::f64::consts::PI * v).cos();
            draw(u, s, normal) as f32
        })
        .collect();
    let mut all = Vec::with_capacity(n * n);
    while all.len() < n * n {
        let left = n * n - all.len();
        all.extend_from_slice(stretch.get(..left).unwrap_or(&stretch));
    }
    Ok(Tensor::new([n, n], all)?)
}

/// Rows whose results are computed exactly: as many as take a moment, all over the matmul.
fn sampled(n: usize) -> Vec<usize> {
    let count = (WORK / (n * n).max(1)).clamp(1, 16).min(n);
    (0..count).map(|i| (i * n + n / 2) / count).collect()
}

/// Rows of the matmul, in f64, each by a thread.
fn exact(a: &Tensor, b: &Tensor, n: usize, rows: &[usize]) -> Result<Vec<f64>, Failure> {
    let (a, b) = (a.as_slice::<f32>()?, b.as_slice::<f32>()?);
    let mut all = vec![0.0f64; rows.len() * n];
    std::thread::scope(|scope| {
        for (row, sums) in rows.iter().zip(all.chunks_exact_mut(n)) {
            scope.spawn(move || {
                for (x, line) in a.iter().skip(row * n).zip(b.chunks_exact(n)) {
                    let x = f64::from(*x);
                    for (sum, y) in sums.iter_mut().zip(line) {
                        *sum += x * f64::from(*y);
                    }
                }
            });
        }
    });
    Ok(all)
}

fn relative_l2(matmul: &[f32], exact: &[f64], n: usize, rows: &[usize]) -> Result<f64, Failure> {
    let (mut wrong, mut all) = (0.0, 0.0);
    for (row, exact) in rows.iter().zip(exact.chunks_exact(n)) {
        for (y, e) in matmul.iter().skip(row * n).zip(exact) {
            wrong += (f64::from(*y) - e).powi(2);
            all += e.powi(2);
        }
    }
    let error = (wrong / all).sqrt();
    if error.is_finite() {
        Ok(error)
    } else {
        Err(Failure::new("the matmul has numbers that are not finite"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_found_in_the_rows_that_are_looked_at() -> Result<(), Failure> {
        let n = 8;
        let a = operand("a", DISTRIBUTIONS[0].1, n)?;
        let mut identity = vec![0.0f32; n * n];
        identity.iter_mut().step_by(n + 1).for_each(|x| *x = 1.0);
        let rows = sampled(n);
        assert!(rows.len() == n && rows.iter().all(|r| *r < n), "{rows:?}");
        let exact = exact(&a, &Tensor::new([n, n], identity)?, n, &rows)?;
        let mut matmul = a.as_slice::<f32>()?.to_vec();
        assert_eq!(relative_l2(&matmul, &exact, n, &rows)?, 0.0);
        matmul.iter_mut().for_each(|x| *x *= 1.5);
        assert!((relative_l2(&matmul, &exact, n, &rows)? - 0.5).abs() < 1e-6);
        matmul[n] = f32::NAN;
        assert!(relative_l2(&matmul, &exact, n, &rows).is_err());
        Ok(())
    }

    #[test]
    fn operands_are_distributed_as_they_are_named() -> Result<(), Failure> {
        let n = 300;
        let numbers = |i: usize| operand("x", DISTRIBUTIONS[i].1, n).map(|t| t.to_f64());
        let deviation = |x: &[f64]| (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64).sqrt();
        assert!((deviation(&numbers(0)?) - 1.0).abs() < 0.02);
        assert!(numbers(1)?.iter().all(|x| (0.0..=1.0).contains(x)));
        let wild = numbers(2)?;
        assert!(
            wild.iter().any(|x| *x > 1e3)
                && wild.iter().any(|x| *x < -1e3)
                && wild.iter().any(|x| x.abs() < 1e-3)
        );
        assert!((deviation(&numbers(3)?) / 1e-4 - 1.0).abs() < 0.02);
        assert!((deviation(&numbers(4)?) / 1e4 - 1.0).abs() < 0.02);
        Ok(())
    }
}
