//! The file of expected results, the inputs that its rules give, and how far a result is from it.

use std::path::Path;

use olivine::ir::half::f16;
use olivine::ir::{Data, Shape, Tensor};
use olivine::{Model, Session};
use serde_json::Value;

use crate::answer::Failure;

/// A model, its inputs, and what is known of its outputs.
pub(super) struct Entry {
    /// Path below the zoo's folder.
    pub(super) model: String,
    /// How far results may be from those expected, relative to them.
    pub(super) bound: f64,
    inputs: Vec<(String, Value)>,
    outputs: Vec<Expected>,
}

/// What is known of an output.
struct Expected {
    name: String,
    shape: Vec<usize>,
    norm: f64,
    at: Vec<usize>,
    values: Vec<f64>,
}

/// Reads the file.
pub(super) fn load(path: &Path) -> Result<Vec<Entry>, Failure> {
    let bad = |problem: String| Failure::new(format!("cannot use `{}`: {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    let entries = json.as_array().and_then(|all| all.iter().map(entry).collect::<Option<Vec<Entry>>>());
    entries.ok_or_else(|| bad("it is not what zoo/oracle.py writes".into()))
}

fn entry(json: &Value) -> Option<Entry> {
    let inputs =
        json["inputs"].as_object()?.iter().map(|(name, spec)| (name.clone(), spec.clone())).collect();
    let outputs = json["outputs"].as_array()?.iter().map(expected).collect::<Option<_>>()?;
    Some(Entry {
        model: json["model"].as_str()?.to_string(),
        bound: json["bound"].as_f64()?,
        inputs,
        outputs,
    })
}

fn expected(json: &Value) -> Option<Expected> {
    let numbers = |key: &str| json[key].as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
    let sizes = |key: &str| Some(numbers(key)?.into_iter().map(|v| v as usize).collect::<Vec<usize>>());
    Some(Expected {
        name: json["name"].as_str()?.to_string(),
        shape: sizes("shape")?,
        norm: json["norm"].as_f64()?,
        at: sizes("at")?,
        values: numbers("values")?,
    })
}

impl Entry {
    /// The inputs, made by their rules.
    pub(super) fn inputs(&self, folder: &Path) -> Result<Vec<(String, Tensor)>, Failure> {
        let one = |(name, spec): &(String, Value)| {
            let tensor = input(spec, folder)?.ok_or_else(|| {
                Failure::new(format!("{}: the rule of input `{name}` cannot be read", self.model))
            })?;
            Ok((name.clone(), tensor))
        };
        self.inputs.iter().map(one).collect()
    }

    /// The rules, for another program that makes the same inputs.
    pub(super) fn json(&self) -> Value {
        let inputs: serde_json::Map<String, Value> = self.inputs.iter().cloned().collect();
        serde_json::json!({ "model": self.model, "inputs": inputs })
    }
}

/// A tensor by its rule, or `None` if there is no such rule.
fn input(spec: &Value, folder: &Path) -> Result<Option<Tensor>, Failure> {
    let sizes =
        spec["shape"].as_array().and_then(|s| s.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
    let Some(sizes) = sizes else { return Ok(None) };
    let shape = Shape::new(&sizes.into_iter().map(|s| s as usize).collect::<Vec<_>>())?;
    let count = shape.numel();
    let seed = spec["seed"].as_u64().unwrap_or(0);
    let values: Vec<f64> = match spec["kind"].as_str() {
        Some("noise") => {
            let scale = spec["scale"].as_f64().unwrap_or(1.0) as f32;
            let unit = |i| (splitmix(seed, i) >> 40) as f32 / (1u64 << 24) as f32;
            (0..count as u64).map(|i| f64::from((unit(i) * 2.0 - 1.0) * scale)).collect()
        }
        Some("below") => {
            let limit = spec["limit"].as_u64().unwrap_or(1).max(1);
            (0..count as u64).map(|i| (splitmix(seed, i) % limit) as f64).collect()
        }
        Some("list") => {
            let list = spec["values"].as_array().and_then(|v| v.iter().map(Value::as_f64).collect());
            let Some(list) = list else { return Ok(None) };
            list
        }
        Some("bars") if shape.rank() == 4 => {
            (0..count).map(|i| f64::from(bars(i / shape[3] % shape[2], i % shape[3]))).collect()
        }
        Some("speech") => speech(folder, count)?.into_iter().map(f64::from).collect(),
        _ => return Ok(None),
    };
    let Some(data) = spec["dtype"].as_str().and_then(|dtype| typed(dtype, values)) else { return Ok(None) };
    Ok(Some(Tensor::from_data(shape, data)?))
}

/// Numbers as elements of the type that NumPy calls so.
fn typed(dtype: &str, values: Vec<f64>) -> Option<Data> {
    let values = values.into_iter();
    Some(match dtype {
        "float32" => Data::F32(values.map(|v| v as f32).collect()),
        "float16" => Data::F16(values.map(f16::from_f64).collect()),
        "int32" => Data::I32(values.map(|v| v as i32).collect()),
        "int64" => Data::I64(values.map(|v| v as i64).collect()),
        "bool" => Data::Bool(values.map(|v| v != 0.0).collect()),
        _ => return None,
    })
}

/// A pixel of an image of bars that look like lines of text.
fn bars(y: usize, x: usize) -> f32 {
    let ink = y % 24 < 12 && x % 40 < 30 && ((x * 7 + y % 24 * (x / 40 + 3)) / 5).is_multiple_of(2);
    if ink { -1.75 } else { 2.0 }
}

/// SplitMix64 of a position.
fn splitmix(seed: u64, i: u64) -> u64 {
    let x = i.wrapping_add(seed << 32).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The first samples of the recording.
fn speech(folder: &Path, count: usize) -> Result<Vec<f32>, Failure> {
    let path = folder.join("speech/beckett.wav");
    let bad = |problem: String| Failure::new(format!("cannot use `{}`: {problem}", path.display()));
    let bytes = std::fs::read(&path).map_err(|e| bad(e.to_string()))?;
    let start = bytes.windows(4).position(|w| w == b"data").map(|at| at + 8);
    let samples =
        start.and_then(|start| bytes.get(start..)).ok_or_else(|| bad("it has no samples".into()))?;
    let numbers = samples.chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0);
    Ok(numbers.take(count).collect())
}

/// How far a model's results are from those expected, relative to them: the worst of its outputs.
pub(super) fn error(
    entry: &Entry,
    folder: &Path,
    session: &Session,
    inputs: &[(String, Tensor)],
) -> Result<f64, Failure> {
    let model = Model::load(folder.join(&entry.model))?;
    let executable = session.compile(&model)?;
    let results = executable.run(inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let mut worst: f64 = 0.0;
    for expected in &entry.outputs {
        let got = results.get(&expected.name)?;
        if got.shape().dims() != expected.shape {
            let problem = format!("output `{}` is {}, not {:?}", expected.name, got.shape(), expected.shape);
            return Err(Failure::new(problem));
        }
        worst = worst.max(expected.error(got));
    }
    Ok(worst)
}

impl Expected {
    fn error(&self, got: &Tensor) -> f64 {
        let got = got.to_f64();
        let norm = got.iter().map(|v| v * v).sum::<f64>().sqrt();
        let (mut apart, mut size) = (0.0, 0.0);
        for (at, want) in self.at.iter().zip(&self.values) {
            let got = got.get(*at).copied().unwrap_or(f64::NAN);
            apart += (got - want) * (got - want);
            size += want * want;
        }
        // A few elements could all be zero where the whole is not.
        let share = self.norm * (self.at.len() as f64 / got.len().max(1) as f64).sqrt();
        let elements = apart.sqrt() / size.sqrt().max(share).max(f64::MIN_POSITIVE);
        let whole = (norm - self.norm).abs() / self.norm.max(f64::MIN_POSITIVE);
        let error = elements.max(if self.norm == 0.0 { norm } else { whole });
        if error.is_nan() { f64::INFINITY } else { error }
    }
}
