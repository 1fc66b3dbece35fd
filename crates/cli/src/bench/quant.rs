//! `olivine bench quant`: matmuls with packed weights, format by format.

use clap::Args;
use olivine::Session;
use olivine::internals::ExecutableExt as _;
use olivine::ir::{BlockFormat, DType, Data, Graph, Shape, Tensor, TensorType, half};
use olivine_cases::{Rng, normal, uniform};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::measure::Busy;
use crate::progress::Progress;
use crate::table::Table;
use crate::timing::{Times, short};

#[derive(Args)]
pub(crate) struct QuantArgs {
    /// Only formats whose name contains this; `f16` is the matmul with plain weights.
    #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
    filter: String,
    /// Only these formats, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    formats: Vec<String>,
    /// Rows of x, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 512])]
    rows: Vec<usize>,
    /// Rows of the weight.
    #[arg(long, default_value_t = 4096)]
    n: usize,
    /// Columns of the weight.
    #[arg(long, default_value_t = 14336)]
    k: usize,
    /// The dtype of x: f32, f16 or bf16.
    #[arg(long, default_value = "f16")]
    dtype: DType,
    /// Timed runs of each.
    #[arg(long, default_value_t = 25)]
    runs: usize,
    /// Let each matmul read the result of the one before, as the layers of a model do; K is N then. Without, they overlap.
    #[arg(long)]
    chain: bool,
    /// Small sizes and few runs, to see that all of it works.
    #[arg(long)]
    quick: bool,
}

impl QuantArgs {
    /// Rows and columns of the weights.
    fn sizes(&self) -> (usize, usize) {
        let (n, k) = if self.quick { (self.n.min(96), self.k.min(512)) } else { (self.n, self.k) };
        if self.chain { (k, k) } else { (n, k) }
    }
}

/// Bytes of weights that a run goes through: more than the caches of today's devices hold.
const ROUND: usize = 256 << 20;
/// Rows of a weight that are encoded; the others repeat them.
const ENCODED: usize = 8;
/// Elements that share a scale, of formats without one.
const BLOCK: usize = 32;

/// Weights of a kind.
#[derive(Clone, Copy)]
enum Kind {
    /// f16, as the dense matmul takes them.
    Plain,
    Packed(BlockFormat),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Plain => "f16",
            Kind::Packed(format) => format.name(),
        }
    }

    fn bytes(self, n: usize, k: usize) -> usize {
        match self {
            Kind::Plain => 2 * n * k,
            Kind::Packed(format) => {
                let scales = if format.ggml_id().is_some() { 0 } else { 2 * n * k.div_ceil(BLOCK) };
                format.bytes_of(n * k).unwrap_or(0) + scales
            }
        }
    }
}

/// One format and number of rows.
struct Row {
    name: &'static str,
    rows: usize,
    /// Of one matmul.
    ms: f64,
    bytes: usize,
    flops: f64,
    /// The largest error relative to the largest result, against f64.
    error: f64,
}

impl Row {
    fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.ms / 1e6
    }

    fn tflops(&self) -> f64 {
        self.flops / self.ms / 1e9
    }

    fn json(&self) -> Value {
        json!({
            "format": self.name, "rows": self.rows, "ms": self.ms, "gb_per_s": self.gb_per_s(),
            "tflops": self.tflops(), "bytes": self.bytes, "error": self.error,
        })
    }
}

pub(crate) fn run(global: &Global, args: &QuantArgs) -> Result<Answer, Failure> {
    let kinds = std::iter::once(Kind::Plain).chain(BlockFormat::ALL.iter().map(|f| Kind::Packed(*f)));
    let wanted = |kind: &Kind| {
        let name = kind.name();
        name.contains(args.filter.as_str())
            && (args.formats.is_empty() || args.formats.iter().any(|f| f == name))
    };
    let kinds: Vec<Kind> = kinds.filter(wanted).collect();
    if kinds.is_empty() {
        return Err(Failure::new("no format has such a name")
            .hint("without --filter and --formats, all are measured"));
    }
    let device = global.device()?;
    let session = Session::with_options(device.clone(), global.options())?;
    let busy = if args.quick { None } else { Some(Busy::new(&session)?) };
    let mut progress = Progress::new(kinds.len() * args.rows.len(), global.quiet);
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for kind in kinds {
        for m in &args.rows {
            progress.begin(&format!("{} {m}", kind.name()));
            match measure(&session, kind, *m, args, busy.as_ref()) {
                Ok(row) => rows.push(row),
                Err(failure) => failed.push(failure.context(format!("{} {m}", kind.name()))),
            }
            progress.step();
        }
    }
    drop(progress);
    let mut table = Table::new(&["format", ">rows", ">ms", ">GB/s", ">TFLOP/s", ">error"]);
    for row in &rows {
        let numbers = [row.ms, row.gb_per_s(), row.tflops(), row.error].map(short);
        table.row([row.name.to_string(), row.rows.to_string()].into_iter().chain(numbers));
    }
    let ((n, k), name) = (args.sizes(), session.device_name());
    let text = format!("{device} · {name}\n{n} by {k}, x of {}\n\n{table}", args.dtype);
    let json = json!({
        "device": device.to_string(), "name": name, "n": n, "k": k, "dtype": args.dtype.to_string(),
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
        "failed": failed.iter().map(Failure::json).collect::<Vec<_>>(),
    });
    Ok(Answer::new(text, json).with_failure(failed.into_iter().next()))
}

/// A weight and what is beside it, with its elements as they are decoded.
struct Weight {
    bytes: Tensor,
    scales: Option<Tensor>,
    /// The first rows.
    values: Vec<f32>,
}

impl Weight {
    fn new(kind: Kind, n: usize, k: usize, rng: &mut Rng) -> Result<Self, Failure> {
        let encoded = ENCODED.min(n.max(1));
        match kind {
            Kind::Plain => {
                let ty = TensorType::new(DType::F16, Shape::new(&[encoded, k])?);
                let sample = uniform(-1.0, 1.0).tensor(ty, rng).map_err(Failure::new)?;
                let values = sample.as_slice::<half::f16>()?.iter().map(|x| x.to_f32()).collect();
                let bytes = tiled(sample.data().as_bytes(), 2 * n * k);
                let data = Data::from_bytes(DType::F16, &bytes)?;
                Ok(Weight { bytes: Tensor::from_data([n, k], data)?, scales: None, values })
            }
            Kind::Packed(format) => {
                let ty = TensorType::packed(format, [encoded, k])?;
                let sample = normal().tensor(ty, rng).map_err(Failure::new)?;
                let sample = sample.data().as_bytes();
                let mut values = vec![0.0; encoded * k];
                olivine_quant::decode(format, sample, &mut values)
                    .map_err(|e| Failure::new(e.to_string()))?;
                let all = format.bytes_of(n * k).ok_or_else(|| Failure::new("K is not whole blocks"))?;
                let bytes = Tensor::packed(format, [n, k], tiled(sample, all))?;
                let scales = match format.ggml_id() {
                    Some(_) => None,
                    None => Some(Tensor::new(
                        [n, k.div_ceil(BLOCK)],
                        vec![half::f16::from_f32(0.125); n * k.div_ceil(BLOCK)],
                    )?),
                };
                if scales.is_some() {
                    values.iter_mut().for_each(|x| *x *= 0.125);
                }
                Ok(Weight { bytes, scales, values })
            }
        }
    }
}

/// Bytes again and again.
fn tiled(bytes: &[u8], len: usize) -> Vec<u8> {
    bytes.iter().copied().cycle().take(len).collect()
}

fn measure(
    session: &Session,
    kind: Kind,
    m: usize,
    args: &QuantArgs,
    busy: Option<&Busy>,
) -> Result<Row, Failure> {
    let (n, k) = args.sizes();
    let each = kind.bytes(n, k);
    let count = if args.quick || m > 16 { 1 } else { ROUND.div_ceil(each.max(1)).clamp(2, 64) };
    let mut rng = Rng::new(7);
    let weight = Weight::new(kind, n, k, &mut rng)?;
    let mut g = Graph::new("quant");
    let mut x = g.input("x", args.dtype, [m, k])?;
    let mut params = Vec::new();
    for i in 0..count {
        let name = format!("w{i}");
        let y = match kind {
            Kind::Plain => {
                let w = g.param(&name, DType::F16, [n, k])?;
                let w = if args.dtype == DType::F16 { w } else { g.cast(w, args.dtype)? };
                g.matmul_nt(x, w)?
            }
            Kind::Packed(format) => {
                let w = g.param_of(&name, TensorType::packed(format, [n, k])?)?;
                match &weight.scales {
                    None => g.dequant_matmul(x, w)?,
                    Some(scales) => {
                        let name = format!("s{i}");
                        let s = g.param(&name, DType::F16, scales.ty().shape.dims())?;
                        params.push((name, scales.clone()));
                        g.dequant_matmul_scaled(x, w, (s, None), (BLOCK, 0))?
                    }
                }
            }
        };
        params.push((name, weight.bytes.clone()));
        if args.chain {
            x = y;
        }
        g.output(&format!("y{i}"), y)?;
    }
    let executable = session.compile(&g)?;
    executable.set_params(params)?;
    executable.load()?;
    let ty = TensorType::new(args.dtype, Shape::new(&[m, k])?);
    let host = uniform(-1.0, 1.0).tensor(ty, &mut rng).map_err(Failure::new)?;
    let input = session.upload(&host)?;
    let run = || executable.time([("x", &input)], 1);
    let outputs = run()?.1;
    let error = outputs.iter().next().map_or(Ok(f64::NAN), |(_, y)| {
        let y = Tensor::from_data([m, n], y.read_elements(0..m * n)?)?;
        error(&host, &weight, &y, (m, n, k))
    })?;
    drop(outputs);
    busy.map_or(Ok(()), Busy::work)?;
    let (warm, runs) = if args.quick { (1, 3) } else { (3, args.runs) };
    for _ in 0..warm {
        run()?;
    }
    let mut times = Times::default();
    for _ in 0..runs.max(1) {
        times.push(run()?.0 / count as u32);
    }
    let flops = 2.0 * m as f64 * n as f64 * k as f64;
    Ok(Row { name: kind.name(), rows: m, ms: times.median(), bytes: each, flops, error })
}

/// The largest error of some results against sums in f64, relative to the largest of them.
fn error(x: &Tensor, weight: &Weight, y: &Tensor, (m, n, k): (usize, usize, usize)) -> Result<f64, Failure> {
    let (x, y) = (x.to_f64(), y.to_f64());
    let known = weight.values.len() / k.max(1);
    let (mut largest, mut worst) = (0f64, 0f64);
    for row in [0, m / 2, m - 1] {
        for column in (0..n).step_by((n / 64).max(1)) {
            let w = &weight.values[column % known * k..][..k];
            let sum: f64 = w.iter().zip(&x[row * k..]).map(|(w, x)| f64::from(*w) * x).sum();
            largest = largest.max(sum.abs());
            worst = worst.max((sum - y[row * n + column]).abs());
        }
    }
    Ok(worst / largest.max(f64::MIN_POSITIVE))
}
