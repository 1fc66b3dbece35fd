//! `olivine check`: whether a model's results are the same everywhere, and as ONNX Runtime has them.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use olivine::ir::{DType, Tensor};
use olivine::onnx::{Element, NodeInfo};
use olivine::{Device, Model, Session};
use serde_json::{Value, json};

use super::compare::{Comparison, Distance, Values, node_by_node};
use super::given::GivenArgs;
use super::{element_of, load, npy};
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::table::Table;
use crate::timing::short;

/// What asks ONNX Runtime.
const ORACLE: &str = include_str!("oracle.py");

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The ONNX file.
    model: PathBuf,
    #[command(flatten)]
    given: GivenArgs,
    /// The largest difference that is allowed, as a part of a tensor's largest number.
    #[arg(long, default_value_t = 1e-3, value_name = "PART")]
    tolerance: f64,
    /// Do not ask ONNX Runtime.
    #[arg(long)]
    no_oracle: bool,
}

pub(crate) fn run(global: &Global, args: &CheckArgs) -> Result<Answer, Failure> {
    let model = load(&args.model)?;
    let inputs = args.given.tensors(&model, true)?;
    let nodes = model.onnx().nodes();
    let check = Check { global, args, model, inputs, nodes };
    let cpu = check.values(Device::Cpu, false)?;
    let watched = check.values(Device::Cpu, true)?;
    let mut text = format!("{}\n", args.model.display());
    let given: Vec<String> = check.inputs.iter().map(|(n, t)| format!("{n}: {}", t.ty())).collect();
    text += &format!("for {}\n\n", given.join(", "));
    let mut wrong = Vec::new();

    let mut table = Table::new(&["device", "output", ">error", ""]);
    let mut culprits = String::new();
    let mut devices = Vec::new();
    let own = check.outputs_against("cpu, every value kept", &watched, &cpu, &mut table);
    if !own {
        wrong.push("cpu with every value kept".to_string());
    }
    for device in check.others()? {
        let name = device.to_string();
        match check.values(device.clone(), false) {
            Err(failure) => {
                table.row([name.clone(), String::new(), String::new(), failure.line()]);
                devices.push(json!({ "device": name, "problem": failure.line() }));
                wrong.push(name);
            }
            Ok(values) => {
                let agrees = check.outputs_against(&name, &values, &cpu, &mut table);
                let mut first = Value::Null;
                if !agrees {
                    let found =
                        node_by_node(&check.nodes, &check.values(device, true)?, &watched, args.tolerance);
                    culprits += &format!("\n{name} against cpu, node by node:\n{}", told(&found));
                    first = found.first.as_ref().map_or(Value::Null, |c| c.json());
                    wrong.push(name.clone());
                }
                devices.push(json!({ "device": name, "agrees": agrees, "first": first }));
            }
        }
    }
    text += &format!("{table}{culprits}\n");

    let oracle = if args.no_oracle { Err("not asked".to_string()) } else { check.oracle(&watched) };
    let mut oracle_json = json!(null);
    match &oracle {
        Err(problem) => {
            text += &format!("not compared with ONNX Runtime: {problem}\n");
            oracle_json = json!({ "problem": problem });
        }
        Ok((version, values)) => {
            let found = node_by_node(&check.nodes, &watched, values, args.tolerance);
            text += &format!("cpu against ONNX Runtime {version}, node by node:\n{}", told(&found));
            if found.first.is_some() {
                wrong.push(format!("ONNX Runtime {version}"));
            }
            oracle_json = json!({
                "version": version, "compared": found.compared, "worst": found.worst,
                "first": found.first.as_ref().map(|c| c.json()),
            });
            if found.compared == 0 {
                wrong.push("ONNX Runtime gave no value to compare".into());
            }
        }
    }
    let json = json!({
        "model": args.model, "tolerance": args.tolerance, "devices": devices, "onnxruntime": oracle_json,
        "agrees": wrong.is_empty(),
    });
    let failure = (!wrong.is_empty())
        .then(|| Failure::new(format!("results differ or are missing: {}", wrong.join(", "))));
    Ok(Answer::new(text, json).with_failure(failure))
}

fn told(found: &Comparison) -> String {
    let summary = format!("  {} values compared, largest error {}\n", found.compared, short(found.worst));
    found.first.as_ref().map_or(summary.clone(), |culprit| summary + &culprit.text())
}

struct Check<'a> {
    global: &'a Global,
    args: &'a CheckArgs,
    model: Model,
    inputs: Vec<(String, Tensor)>,
    nodes: Vec<NodeInfo>,
}

impl Check<'_> {
    /// What a device computes: the outputs, or every value that a node of the main graph makes.
    fn values(&self, device: Device, all: bool) -> Result<Values, Failure> {
        let session = Session::with_options(device, self.global.options())?;
        let made = self.nodes.iter().flat_map(|node| node.outputs.iter().cloned());
        let model = if all { self.model.clone().watching(made) } else { self.model.clone() };
        let given = self.inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let outputs = session.compile(&model)?.run(given)?;
        Ok(outputs.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect())
    }

    /// The devices to compare with the CPU.
    fn others(&self) -> Result<Vec<Device>, Failure> {
        let all = match &self.global.device {
            Some(_) => vec![self.global.device()?],
            None => {
                let there = olivine::devices().into_iter().filter(|info| info.unavailable.is_none());
                there.map(|info| info.device).collect()
            }
        };
        Ok(all.into_iter().filter(|device| *device != Device::Cpu).collect())
    }

    /// Compares the outputs of the model; a row for each.
    fn outputs_against(&self, device: &str, got: &Values, want: &Values, table: &mut Table) -> bool {
        let mut names: Vec<&String> = want.keys().collect();
        names.sort();
        let mut agrees = true;
        for name in names {
            let of = match (got.get(name), want.get(name)) {
                (Some(got), Some(want)) => Distance::of(got, want),
                _ => Distance::Type("missing".into()),
            };
            let verdict = if of.within(self.args.tolerance) { "agrees" } else { "differs" };
            agrees &= verdict == "agrees";
            table.row([device.to_string(), name.clone(), of.to_string(), verdict.into()]);
        }
        agrees
    }

    /// The values of ONNX Runtime and its version, or why there are none.
    fn oracle(&self, ours: &Values) -> Result<(String, Values), String> {
        let there = Command::new("python3").args(["-c", "import onnx, onnxruntime, numpy"]).output();
        match there {
            Ok(output) if output.status.success() => {}
            Ok(_) => return Err("python3 has no onnx and onnxruntime".into()),
            Err(error) => return Err(format!("python3: {error}")),
        }
        let folder = Scratch::new().map_err(|e| format!("no folder for its files: {e}"))?;
        let made: Vec<&String> =
            self.nodes.iter().flat_map(|n| &n.outputs).filter(|n| ours.contains_key(*n)).collect();
        self.ask(&folder.0, &made).map_err(|e| format!("{e:.400}"))
    }

    fn ask(&self, folder: &Path, made: &[&String]) -> Result<(String, Values), String> {
        let failed = |e: std::io::Error| e.to_string();
        let ports = self.model.inputs();
        let mut files = serde_json::Map::new();
        for (i, (name, tensor)) in self.inputs.iter().enumerate() {
            let element = element_of(name, &ports).unwrap_or_else(|| Element::of_dtype(tensor.dtype()));
            if name.contains('[') || element == Element::BF16 {
                return Err(format!("input `{name}` cannot be handed over"));
            }
            let file = format!("input_{i}.npy");
            let written = std::fs::File::create(folder.join(&file));
            written.and_then(|mut to| npy::write(&mut to, tensor, element)).map_err(failed)?;
            files.insert(name.clone(), file.into());
        }
        let request = json!({ "inputs": files, "values": made, "threads": self.global.threads });
        std::fs::write(folder.join("request.json"), request.to_string()).map_err(failed)?;
        let output = Command::new("python3")
            .args(["-c", ORACLE])
            .arg(&self.args.model)
            .arg(folder)
            .output()
            .map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(said.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("it failed").to_string());
        }
        let answer = std::fs::read_to_string(folder.join("answer.json")).map_err(failed)?;
        let answer: Value = serde_json::from_str(&answer).map_err(|e| e.to_string())?;
        let version = answer["version"].as_str().unwrap_or_default().to_string();
        let mut values = Values::new();
        for index in answer["saved"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
            let Some(name) = made.get(index as usize) else { continue };
            let bytes = std::fs::read(folder.join(format!("value_{index}.npy"))).map_err(failed)?;
            if let Some(tensor) = read_any(&bytes) {
                values.insert((*name).clone(), tensor);
            }
        }
        Ok((version, values))
    }
}

/// A tensor of whatever type, as a graph holds it.
fn read_any(bytes: &[u8]) -> Option<Tensor> {
    let natives = DType::ALL.iter().filter(|d| **d != DType::BF16).map(|d| Element::of_dtype(*d));
    natives.chain([Element::U16, Element::U64]).find_map(|element| npy::read(bytes, element).ok())
}

/// A folder that goes when it is no longer needed.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("olivine-check-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
