//! `olivine check`: whether a model's results are right on every device, and where they part from a reference.
//!
//! ```text
//!   mod.rs          arguments, the devices of this machine
//!   examine.rs      devices against the reference, and what is reported
//!   compare.rs      distances, and values node by node
//!   sensitivity.rs  how far rounding alone moves a model's results
//!   oracle.rs       ONNX Runtime
//! ```

mod compare;
mod examine;
mod oracle;
mod sensitivity;

use std::path::PathBuf;

use clap::Args;
use olivine::internals::ModelExt as _;
use olivine::internals::onnx::{ElementType, NodeInfo};
use olivine::ir::Tensor;
use olivine::{Device, Model, Session, npy};

use super::inputs::{InputArgs, all_inputs};
use super::{element_of, load};
use crate::Global;
use crate::answer::{Answer, Failure};
use compare::Values;
use examine::{Examination, Runner};
use oracle::Question;

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The ONNX file.
    model: PathBuf,
    #[command(flatten)]
    given: InputArgs,
    /// An expected output: `NAME=FILE.npy`. With any, these are the reference.
    #[arg(long = "expect", value_name = "NAME=FILE")]
    expected: Vec<String>,
    /// Largest allowed difference, relative to a tensor's largest magnitude.
    #[arg(long, default_value_t = 1e-3, value_name = "PART")]
    tolerance: f64,
    /// How many of the nodes that differ most to list.
    #[arg(long, default_value_t = 10, value_name = "N")]
    worst: usize,
    /// Do not compare with ONNX Runtime.
    #[arg(long)]
    no_oracle: bool,
}

pub(crate) fn run(global: &Global, args: &CheckArgs) -> Result<Answer, Failure> {
    let model = load(&args.model, &args.given.load_options())?;
    let inputs = args.given.tensors(&model, true)?;
    let expected = expected(&args.expected, &model)?;
    let devices = devices(global)?;
    let nodes = match model.onnx() {
        Some(onnx) => onnx.nodes(),
        None => {
            return Err(Failure::new("`check` compares nodes of ONNX models")
                .hint("`olivine verify` checks operations"));
        }
    };
    let ports = all_inputs(&model);
    let runs = Devices { global, model: &model, inputs: &inputs, nodes: &nodes };
    let made: Vec<String> = nodes.iter().flat_map(|node| node.outputs.iter().cloned()).collect();
    let ask = |ours: Option<&Values>| {
        if args.no_oracle {
            return Err("not asked".to_string());
        }
        // Of values that are no tensors here there is nothing to compare.
        let values = made.iter().filter(|name| ours.is_none_or(|ours| ours.contains_key(*name)));
        let (model, threads) = (args.model.as_path(), global.threads);
        Question { model, inputs: &inputs, ports: &ports, values: values.cloned().collect(), threads }.ask()
    };
    let examination = Examination {
        runs: &runs,
        nodes: &nodes,
        outputs: model.outputs().into_iter().map(|port| port.name).collect(),
        tolerance: args.tolerance,
        worst: args.worst,
    };
    let report = examination.report(&devices, expected, ask);
    let given: Vec<String> = inputs.iter().map(|(n, t)| format!("{n}: {}", t.ty())).collect();
    let heading = format!("{}\nfor {}\n", args.model.display(), given.join(", "));
    Ok(report.answer(&heading, &args.model))
}

/// The outputs that `--expect` names.
fn expected(texts: &[String], model: &Model) -> Result<Values, Failure> {
    let ports = model.outputs();
    let mut values = Values::new();
    for text in texts {
        let (name, path) = text.split_once('=').ok_or_else(|| {
            Failure::new(format!("`--expect {text}` is not NAME=FILE")).hint("for example --expect y=y.npy")
        })?;
        let context = |e: Failure| e.context(format!("expected output `{name}`"));
        let element = element_of(name, &ports).ok_or_else(|| {
            let names: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
            Failure::new(format!("the model has no output `{name}`"))
                .hint(format!("its outputs are {}", names.join(", ")))
        })?;
        let bytes =
            std::fs::read(path).map_err(|e| context(Failure::new(format!("cannot read `{path}`: {e}"))))?;
        let tensor = npy::read(&bytes, element)
            .map_err(|e| context(Failure::new(format!("cannot use `{path}`: {e}"))))?;
        values.insert(name.to_string(), tensor);
    }
    Ok(values)
}

/// The devices to examine beside the CPU.
fn devices(global: &Global) -> Result<Vec<Device>, Failure> {
    let all = match &global.device {
        Some(_) => vec![global.device()?],
        None => {
            let there = olivine::devices().into_iter().filter(|info| info.unavailable.is_none());
            there.map(|info| info.device).collect()
        }
    };
    Ok(all.into_iter().filter(|device| *device != Device::Cpu).collect())
}

/// The devices of this machine.
struct Devices<'a> {
    global: &'a Global,
    model: &'a Model,
    inputs: &'a [(String, Tensor)],
    nodes: &'a [NodeInfo],
}

impl Devices<'_> {
    fn run(
        &self,
        device: Device,
        model: &Model,
        inputs: &[(String, Tensor)],
        all: bool,
    ) -> Result<Values, Failure> {
        let session = Session::with_options(device, self.global.options())?;
        let made = self.nodes.iter().flat_map(|node| node.outputs.iter().cloned());
        let model = if all { model.clone().watching(made) } else { model.clone() };
        let given = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let outputs = session.compile(&model)?.run(given)?;
        Ok(outputs.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect())
    }
}

impl Runner for Devices<'_> {
    fn values(&self, device: &Device, all: bool) -> Result<Values, Failure> {
        self.run(device.clone(), self.model, self.inputs, all)
    }

    fn moved(&self, seed: u64) -> Result<Values, Failure> {
        let ports = all_inputs(self.model);
        let is_float =
            |element: ElementType| element.dtype().is_some_and(|d| ElementType::of_dtype(d) == element);
        let seeded =
            |name: &str| name.bytes().fold(seed, |s, b| s.wrapping_mul(31).wrapping_add(u64::from(b)));
        let mut inputs = self.inputs.to_vec();
        for (name, tensor) in &mut inputs {
            if element_of(name, &ports).is_some_and(is_float)
                && let Some(moved) = sensitivity::moved(tensor, seeded(name))
            {
                *tensor = moved;
            }
        }
        let model = self.model.with_weights(|name, element, tensor| {
            let moves = is_float(element) && tensor.shape().numel() > sensitivity::FEW;
            if moves { sensitivity::moved(tensor, seeded(name)) } else { None }
        })?;
        self.run(Device::Cpu, &model, &inputs, true)
    }
}
