//! `olivine run`: a model on inputs from files, its outputs, or every value inside it, into files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::Args;
use olivine::internals::onnx::{ElementType, Kind};
use olivine::ir::Tensor;
use olivine::{CompileOptions, Executable, Model, Outputs, Session, npy};
use serde_json::{Value, json};

use super::inputs::{Fill, InputArgs, fill};
use super::{element_of, load};
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::table::Table;
use crate::timing::{Times, ms, short, timed};

/// Elements of an output to show.
const SHOWN: usize = 4;

#[derive(Args)]
pub(crate) struct RunArgs {
    /// The model: an ONNX file, a GGUF file, a graph in text form, or a folder of safetensors.
    model: PathBuf,
    #[command(flatten)]
    given: InputArgs,
    /// Write every output as a .npy file into this folder.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Write every node's value as a .npy file into this folder, by its name, and list them. The model is compiled a
    /// second time for it.
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Run this often and print the times.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// On a GPU, run these operations on the host, by the operation's name or the node's.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    host_ops: Vec<String>,
    /// Report indices out of range as errors; on a GPU, check every access of every kernel.
    #[arg(long)]
    checked: bool,
}

pub(crate) fn run(global: &Global, args: &RunArgs) -> Result<Answer, Failure> {
    let (loading, model) = timed(|| load(&args.model, &args.given.load_options()));
    let model = model?;
    let inputs = args.given.tensors(&model, false)?;
    let options = global.options().checked(args.checked);
    let session = Session::with_options(global.device()?, options)?;
    let compile = shapes(&model, &inputs).host_ops(args.host_ops.iter().cloned());
    let executable = session.compile_with(&model, &compile)?;
    let random = random_params(&model, &executable)?;
    let given = || inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let (first, outputs) = timed(|| executable.run(given()));
    let outputs = outputs?;
    let mut times = Times::default();
    for _ in 1..args.repeat {
        let (time, again) = timed(|| executable.run(given()));
        again?;
        times.push(time);
    }
    if let Some(folder) = &args.output {
        make_folder(folder)?;
    }
    let dumped = match &args.dump {
        Some(folder) => Some(dump(folder, &executable.run_watching(given(), executable.values())?)?),
        None => None,
    };
    let ports = model.outputs();
    let mut table = Table::new(&["output", "type", ">least", ">mean", ">largest", "first elements", "file"]);
    let (mut list, mut taken) = (Vec::new(), HashSet::new());
    for (name, tensor) in outputs.iter() {
        let element = element_of(name, &ports).unwrap_or_else(|| ElementType::of_dtype(tensor.dtype()));
        let file = match &args.output {
            Some(folder) => Some(save(folder, name, tensor, element, &mut taken)?),
            None => None,
        };
        let about = About::of(tensor, element);
        let shown = file.as_ref().map_or(String::new(), |f| f.display().to_string());
        let numbers = [about.least, about.mean, about.largest].map(short);
        let [least, mean, largest] = numbers;
        let ty = format!("{element}{}", tensor.shape());
        table.row([name.to_string(), ty, least, mean, largest, about.first.join(" "), shown]);
        list.push(json!({
            "name": name, "element": element.to_string(), "shape": tensor.shape().to_vec(), "least": about.least,
            "mean": about.mean, "largest": about.largest, "file": file,
        }));
    }
    let device = format!("{} · {}", session.device(), session.device_name());
    let mut text = format!("{}\n{device}\n\n{table}\n", args.model.display());
    text += &format!("loaded in {} ms, compiled and run in {} ms", short(ms(loading)), short(ms(first)));
    if times.count() > 0 {
        text += &format!(
            "; {} more runs: median {} ms, least {} ms",
            times.count(),
            short(times.median()),
            short(times.least())
        );
    }
    if let Some((values, _)) = &dumped {
        text += &format!("\n\n{values}");
    }
    if !random.is_empty() {
        text += &format!("\nparams are random: {}", random.join(", "));
    }
    let later: Value = if times.count() > 0 {
        json!({ "runs": times.count(), "median_ms": times.median(), "least_ms": times.least() })
    } else {
        Value::Null
    };
    let json = json!({
        "model": args.model, "device": session.device().to_string(), "outputs": list,
        "load_ms": ms(loading), "first_ms": ms(first), "repeated": later, "random_params": random,
        "values": dumped.map(|(_, values)| values),
    });
    Ok(Answer::new(text, json))
}

/// Options to compile for the shapes of these inputs.
pub(crate) fn shapes(model: &Model, inputs: &[(String, Tensor)]) -> CompileOptions {
    let is_input = |name: &str| {
        let port = model.inputs().into_iter().find(|port| port.name == name);
        port.is_some_and(|port| matches!(port.kind, Kind::Tensor { .. }))
    };
    let tensors = inputs.iter().filter(|(name, _)| is_input(name));
    tensors.fold(CompileOptions::new(), |options, (name, tensor)| {
        options.shape(name.as_str(), tensor.shape().to_vec())
    })
}

/// Gives the params of a graph that came without any random numbers; their names.
fn random_params(model: &Model, executable: &Executable) -> Result<Vec<String>, Failure> {
    let Some(graph) = model.graph() else { return Ok(Vec::new()) };
    let mut random = Vec::new();
    for (name, id) in graph.params().filter(|(name, _)| model.weight(name).is_none()) {
        let ty = graph.ty(id)?;
        let tensor = match ty.packed {
            Some(_) => crate::noise::blocks(ty)?,
            None => fill(ElementType::of_dtype(ty.dtype), &ty.shape, Fill::Random, random.len() as u64)?,
        };
        executable.set_param(name, tensor)?;
        random.push(name.to_string());
    }
    Ok(random)
}

fn make_folder(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Failure::new(e.to_string()).context(format!("cannot make `{}`", folder.display())))
}

/// Writes values into a folder, and lists them.
fn dump(folder: &Path, values: &Outputs) -> Result<(Table, Vec<Value>), Failure> {
    make_folder(folder)?;
    let mut table = Table::new(&["value", "type", ">least", ">mean", ">largest", "file"]);
    let (mut list, mut taken) = (Vec::new(), HashSet::new());
    for (name, tensor) in values.iter() {
        let element = ElementType::of_dtype(tensor.dtype());
        let file = save(folder, name, tensor, element, &mut taken)?;
        let about = About::of(tensor, element);
        let [least, mean, largest] = [about.least, about.mean, about.largest].map(short);
        table.row([name.into(), tensor.ty().to_string(), least, mean, largest, file.display().to_string()]);
        list.push(json!({
            "name": name, "type": tensor.ty().to_string(), "least": about.least, "mean": about.mean,
            "largest": about.largest, "file": file,
        }));
    }
    Ok((table, list))
}

/// Statistics of an output.
struct About {
    least: f64,
    mean: f64,
    largest: f64,
    first: Vec<String>,
}

impl About {
    fn of(tensor: &Tensor, element: ElementType) -> Self {
        // Held in i64, the upper half of the numbers is below zero.
        let wraps = element == ElementType::U64;
        let values = || tensor.numbers().map(|x| if wraps && x < 0.0 { x + 2f64.powi(64) } else { x });
        // `f64::min` and `f64::max` would drop a NaN.
        let fold = |pick: fn(f64, f64) -> f64| {
            values().reduce(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { pick(a, b) })
        };
        About {
            least: fold(f64::min).unwrap_or(f64::NAN),
            mean: values().sum::<f64>() / tensor.shape().numel() as f64,
            largest: fold(f64::max).unwrap_or(f64::NAN),
            first: values().take(SHOWN).map(short).collect(),
        }
    }
}

/// Writes an output under its name, in which odd characters become `_`; names that become the same are numbered.
fn save(
    folder: &Path,
    name: &str,
    tensor: &Tensor,
    element: ElementType,
    taken: &mut HashSet<String>,
) -> Result<PathBuf, Failure> {
    let mut file = file_name(name);
    let mut number = 1;
    while !taken.insert(file.to_lowercase()) {
        number += 1;
        file = format!("{}_{number}", file_name(name));
    }
    let path = folder.join(format!("{file}.npy"));
    std::fs::File::create(&path)
        .and_then(|mut file| npy::write(&mut file, tensor, element))
        .map_err(|e| Failure::new(e.to_string()).context(format!("cannot write `{}`", path.display())))?;
    Ok(path)
}

fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    let text: String = name.chars().map(plain).take(120).collect();
    let text = text.trim_start_matches('.');
    if text.is_empty() { "output".into() } else { text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_stay_in_the_folder() {
        assert_eq!(file_name("logits"), "logits");
        assert_eq!(file_name("/model/layer.0/out[1]"), "_model_layer.0_out_1_");
        assert_eq!(file_name("../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(file_name(".."), "output");
    }

    #[test]
    fn a_nan_shows_in_what_is_told() {
        let tensor = Tensor::new([3], vec![1.0f32, f32::NAN, 2.0]).unwrap();
        let about = About::of(&tensor, ElementType::F32);
        assert!(about.least.is_nan() && about.largest.is_nan() && about.mean.is_nan());
        let whole = Tensor::new([1], vec![-1i64]).unwrap();
        assert_eq!(About::of(&whole, ElementType::U64).largest, 2f64.powi(64));
    }
}
