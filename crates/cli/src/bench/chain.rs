//! `olivine bench chain`: leapfrog chains of a mixture of normal distributions on every device.

use std::time::Duration;

use clap::Args;
use olivine::{Device, Session, SessionOptions};
use olivine_chain::{BoundChain, Chain, DType, Data, Density, Leapfrog};
use serde_json::json;

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::table::Table;
use crate::timing::{Repeat, short, timed};

#[derive(Args)]
pub(crate) struct ChainArgs {
    /// Steps of each chain.
    #[arg(long, default_value_t = 32)]
    steps: usize,
    /// Chains of the batch.
    #[arg(long, default_value_t = 1024)]
    chains: usize,
    /// Timed runs of each.
    #[arg(long, default_value_t = 25)]
    runs: usize,
}

/// Three components: means, logarithms of scales, two logits.
const MIXTURE: &str = "
    let w = logsumexp(q[6], q[7], 0);
    let a = (y - q[0]) / exp(q[3]);
    let b = (y - q[1]) / exp(q[4]);
    let c = (y - q[2]) / exp(q[5]);
    sum_obs(logsumexp(q[6] - w - q[3] - 0.5 * a^2, q[7] - w - q[4] - 0.5 * b^2, -w - q[5] - 0.5 * c^2))
      - 0.5 * sum_coord(q^2)";
const COORDINATES: usize = 8;
const FEW: usize = 200;
const MANY: usize = 10_000;

/// Milliseconds of one device and dtype.
struct Row {
    device: String,
    dtype: DType,
    few: f64,
    many: f64,
    batch: f64,
}

pub(crate) fn run(global: &Global, args: &ChainArgs) -> Result<Answer, Failure> {
    let density: Density = MIXTURE.parse().map_err(failed)?;
    let mut rows = Vec::new();
    let one_core = Session::with_options(Device::Cpu, SessionOptions::new().threads(1))?;
    let base =
        [DType::F32, DType::F64].map(|dtype| measure(&one_core, "cpu, one thread", &density, dtype, args));
    for row in base {
        rows.push(row?);
    }
    let asked = global.device.is_some().then(|| global.device()).transpose()?;
    for info in olivine::devices().iter().filter(|info| info.unavailable.is_none()) {
        if asked.as_ref().is_some_and(|device| !info.is(device)) {
            continue;
        }
        let session = Session::with_options(info.device.clone(), global.options())?;
        for dtype in [DType::F32, DType::F64] {
            match Chain::compile(&session, &density, dtype) {
                Err(olivine_chain::Error::Unsupported(_)) => continue,
                Err(other) => return Err(failed(other)),
                Ok(_) => rows.push(measure(&session, &info.device.to_string(), &density, dtype, args)?),
            }
        }
    }
    let single = |dtype: DType| rows.iter().find(|r| r.dtype == dtype).map_or(f64::NAN, |r| r.few);
    let mut table = Table::new(&[
        "device",
        "dtype",
        ">200 obs, ms",
        ">10,000 obs, ms",
        ">ratio",
        ">batch, ms",
        ">against one core",
    ]);
    let mut lines = Vec::new();
    for row in &rows {
        let (ratio, gain) = (row.many / row.few, single(row.dtype) * args.chains as f64 / row.batch);
        let numbers = [row.few, row.many, ratio, row.batch, gain].map(short);
        table.row([row.device.clone(), row.dtype.to_string()].into_iter().chain(numbers));
        lines.push(json!({
            "device": row.device, "dtype": row.dtype.to_string(), "few_ms": row.few, "many_ms": row.many,
            "batch_ms": row.batch, "chains_against_one_core": gain,
        }));
    }
    let text = format!(
        "{} steps, {COORDINATES} coordinates; the batch has {} chains of {FEW} observations\n\n{table}",
        args.steps, args.chains
    );
    Ok(Answer::new(text, json!({ "steps": args.steps, "chains": args.chains, "rows": lines })))
}

fn failed(error: olivine_chain::Error) -> Failure {
    Failure::new(error.to_string())
}

fn measure(
    session: &Session,
    device: &str,
    density: &Density,
    dtype: DType,
    args: &ChainArgs,
) -> Result<Row, Failure> {
    let chain = Chain::compile(session, density, dtype).map_err(failed)?;
    let bound = |n_obs: usize| chain.bind(&Data::new(observations(n_obs)), COORDINATES).map_err(failed);
    let (few, many) = (bound(FEW)?, bound(MANY)?);
    Ok(Row {
        device: device.into(),
        dtype,
        few: time(&few, 1, args)?,
        many: time(&many, 1, args)?,
        batch: time(&few, args.chains, args)?,
    })
}

/// Numbers around three means.
fn observations(n_obs: usize) -> Vec<f64> {
    (0..n_obs).map(|n| [-2.0, 0.5, 2.5][n % 3] + (n as f64 * 0.737).sin()).collect()
}

/// The median of runs from start to results on the host, in milliseconds.
fn time(chain: &BoundChain, chains: usize, args: &ChainArgs) -> Result<f64, Failure> {
    let leapfrog = Leapfrog { step_size: 0.005, inverse_mass: vec![1.0; COORDINATES], steps: args.steps };
    let q: Vec<f64> = (0..chains * COORDINATES).map(|i| 0.1 * (i as f64).sin()).collect();
    let p: Vec<f64> = (0..chains * COORDINATES).map(|i| (i as f64 * 1.7).cos()).collect();
    let run = || {
        let (time, result) = timed(|| chain.run_batch(&leapfrog, &q, &p));
        let result = result.map_err(failed)?;
        if result.density.iter().any(|x| !x.is_finite()) {
            return Err(Failure::new("a log-density is not finite"));
        }
        Ok(time)
    };
    run()?;
    run()?;
    let repeat = Repeat { runs: args.runs, budget: Duration::from_secs(5) };
    Ok(repeat.time(run)?.median())
}
