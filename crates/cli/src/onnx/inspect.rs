//! `olivine inspect`: what is in a model file, and what it takes to run it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use olivine::internals::ExecutableExt as _;
use olivine::internals::ModelExt as _;
use olivine::internals::onnx::{Port, Unsupported};
use olivine::ir::{Graph, Node, Op, Tensor};
use olivine::{Executable, Model, Session};
use serde_json::{Value, json};

use super::inputs::InputArgs;
use super::predicted::{Memory, memory_of_all};
use super::{flops, read_failure};
use crate::answer::{Answer, Failure};
use crate::table::Table;
use crate::timing::{bytes, ms, short, timed};
use crate::{Global, gguf};

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// The model: an ONNX file, a GGUF file, a graph in text form, or a folder of safetensors.
    model: PathBuf,
    #[command(flatten)]
    given: InputArgs,
}

pub(crate) fn run(global: &Global, args: &InspectArgs) -> Result<Answer, Failure> {
    if gguf::is_gguf(&args.model) {
        return gguf::inspect::run(&args.model);
    }
    let options = args.given.load_options().allow_unsupported(true);
    let (loading, model) = timed(|| Model::load_with(&args.model, &options));
    let model = model.map_err(|e| read_failure(&args.model, e))?;
    match (model.onnx(), model.graph()) {
        (Some(onnx), _) => inspect_onnx(global, args, &model, onnx, loading),
        (None, Some(graph)) => inspect_graph(global, args, &model, graph, loading),
        (None, None) => Err(Failure::new("the model has no graph")),
    }
}

/// A graph in text form, or one whose weights are in safetensors files.
fn inspect_graph(
    global: &Global,
    args: &InspectArgs,
    model: &Model,
    graph: &Graph,
    loading: Duration,
) -> Result<Answer, Failure> {
    let mut operations: BTreeMap<&str, usize> = BTreeMap::new();
    graph.nodes().iter().for_each(|node| *operations.entry(node.op.name()).or_default() += 1);
    let params: Vec<_> = graph.params().map(|(_, id)| graph.ty(id)).collect::<Result<_, _>>()?;
    let parameters: usize = params.iter().map(|ty| ty.shape.numel()).sum();
    let weights: usize = params.iter().map(|ty| ty.bytes()).sum();
    let mut text = format!("{}\ngraph `{}`\n", args.model.display(), graph.name());
    text += &format!("{parameters} parameters, {}; read in {} ms\n", bytes(weights), short(ms(loading)));
    text += &format!("\n{}", ports(&model.inputs(), &[], &model.outputs()));
    let mut table = Table::new(&["operation", ">nodes"]);
    operations.iter().for_each(|(name, count)| table.row([name.to_string(), count.to_string()]));
    text += &format!("\n{table}\n");
    let json = json!({
        "model": args.model, "graph": graph.name(), "inputs": ports_json(&model.inputs()),
        "outputs": ports_json(&model.outputs()), "parameters": parameters, "weight_bytes": weights,
        "operations": operations, "load_ms": ms(loading),
    });
    specialised(global, args, model, text, json)
}

fn inspect_onnx(
    global: &Global,
    args: &InspectArgs,
    model: &Model,
    onnx: &olivine::internals::onnx::Model,
    loading: Duration,
) -> Result<Answer, Failure> {
    let (parameters, weights) = onnx.parameters();
    let opsets: Vec<String> = onnx
        .opsets()
        .into_iter()
        .map(|(domain, version)| format!("{} {version}", if domain.is_empty() { "ai.onnx" } else { &domain }))
        .collect();
    let mut text = format!("{}\n", args.model.display());
    let producer = if onnx.producer().is_empty() { "nobody named" } else { onnx.producer() };
    text += &format!("graph `{}`, made by {producer}; opsets: {}\n", onnx.name(), opsets.join(", "));
    text += &format!("{parameters} parameters, {}; read in {} ms\n", bytes(weights), short(ms(loading)));
    let defaults = model.overridable_initializers();
    text += &format!("\n{}", ports(&model.inputs(), &defaults, &model.outputs()));

    let mut operators: Vec<(String, usize)> = onnx.operators().into_iter().collect();
    operators.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut table = Table::new(&["operator", ">nodes"]);
    operators.iter().for_each(|(name, count)| table.row([name.clone(), count.to_string()]));
    text += &format!("\n{table}\n");

    let unsupported = onnx.unsupported();
    let json = json!({
        "model": args.model, "graph": onnx.name(), "producer": onnx.producer(), "opsets": onnx.opsets(),
        "inputs": ports_json(&model.inputs()), "outputs": ports_json(&model.outputs()),
        "inputs_with_defaults": ports_json(&defaults),
        "parameters": parameters, "weight_bytes": weights, "operators": onnx.operators(), "load_ms": ms(loading),
        "unsupported": unsupported.iter().map(unsupported_json).collect::<Vec<_>>(),
    });
    if !unsupported.is_empty() {
        text += &missing(unsupported);
        return Ok(Answer::new(text, json));
    }
    specialised(global, args, model, text, json)
}

/// Adds what the model comes to for the inputs that were given.
fn specialised(
    global: &Global,
    args: &InspectArgs,
    model: &Model,
    mut text: String,
    mut json: Value,
) -> Result<Answer, Failure> {
    match Specialised::of(global, args, model) {
        Ok(known) => {
            text += &known.text();
            if let (Value::Object(all), Value::Object(more)) = (&mut json, known.json()) {
                all.extend(more);
            }
            Ok(Answer::new(text, json))
        }
        Err(failure) => Ok(Answer::new(text, json).with_failure(Some(too_small(failure)))),
    }
}

fn too_small(failure: Failure) -> Failure {
    failure.context("the model cannot be made a graph for these inputs").hint(
        "sizes that are not given are 1: give others with --dim NAME=N or --input NAME=shape:1x3x224x224",
    )
}

fn ports(inputs: &[Port], defaults: &[Port], outputs: &[Port]) -> Table {
    let mut table = Table::new(&["", "name", "type"]);
    for (what, ports) in [("input", inputs), ("input with a default", defaults), ("output", outputs)] {
        for port in ports {
            table.row([what.into(), port.name.clone(), port.kind.to_string()]);
        }
    }
    table
}

fn ports_json(ports: &[Port]) -> Vec<Value> {
    ports.iter().map(|p| json!({ "name": p.name, "type": p.kind.to_string() })).collect()
}

fn missing(unsupported: &[Unsupported]) -> String {
    let mut table = Table::new(&["would not run", ">nodes", "first"]);
    for u in unsupported {
        table.row([u.operator.clone(), u.count.to_string(), u.first.clone()]);
    }
    table.to_string()
}

fn unsupported_json(u: &Unsupported) -> Value {
    json!({ "operator": u.operator, "count": u.count, "first": u.first })
}

/// What a model comes to for some inputs.
struct Specialised {
    inputs: Vec<(String, Tensor)>,
    nodes: usize,
    flops: u64,
    graphs: usize,
    devices: Vec<(String, Result<Memory, String>)>,
}

impl Specialised {
    fn of(global: &Global, args: &InspectArgs, model: &Model) -> Result<Self, Failure> {
        let inputs = args.given.tensors(model, true)?;
        let session = Session::with_options(olivine::Device::Cpu, global.options())?;
        let executable = session.compile(model)?;
        let given = || inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
        // Graphs that find out sizes, and loops, are known after a run; a graph is known as it is.
        let find_graphs = |executable: &Executable| -> Result<Vec<Graph>, Failure> {
            if model.graph().is_none() {
                executable.run(given())?;
            }
            Ok(executable.graphs())
        };
        let graphs = find_graphs(&executable)?;
        // A GPU has other graphs of loops that end by their data: it records a few iterations at a time.
        let differ = graphs.len() > 1 || graphs.iter().any(has_open_loop);
        let memory_on = |session: &Session| -> Result<Memory, Failure> {
            if *session.device() == olivine::Device::Cpu {
                return memory_of_all(session, &graphs, &executable.host_bytes());
            }
            if !differ {
                return memory_of_all(session, &graphs, &[]);
            }
            memory_of_all(session, &find_graphs(&session.compile(model)?)?, &[])
        };
        let chosen: Vec<olivine::Device> = match &global.device {
            Some(_) => vec![global.device()?],
            None => {
                let there = olivine::devices().into_iter().filter(|info| info.unavailable.is_none());
                there.map(|info| info.device).collect()
            }
        };
        let devices = chosen.into_iter().map(|device| {
            let name = device.to_string();
            let memory = Session::with_options(device, global.options())
                .map_err(Failure::from)
                .and_then(|session| memory_on(&session));
            (name, memory.map_err(|failure| failure.line()))
        });
        let devices = devices.collect();
        Ok(Specialised {
            inputs,
            nodes: graphs.iter().map(nodes_of).sum(),
            flops: graphs.iter().map(flops::of_graph).fold(0, u64::saturating_add),
            graphs: graphs.len(),
            devices,
        })
    }

    fn text(&self) -> String {
        let given: Vec<String> = self.inputs.iter().map(|(n, t)| format!("{n}: {}", t.ty())).collect();
        let mut text = format!("for {}\n", given.join(", "));
        let graphs = match self.graphs {
            0 | 1 => "one graph".to_string(),
            n => format!("{n} graphs, of stages that find out shapes and of loops"),
        };
        text += &format!(
            "{} operations in {graphs}; {} GFLOP a run\n\n",
            self.nodes,
            short(self.flops as f64 / 1e9)
        );
        let mut table = Table::new(&["device", ">weights", ">load", ">one run", ""]);
        for (name, memory) in &self.devices {
            match memory {
                Ok(m) => table.row([
                    name.clone(),
                    bytes(m.stored as usize),
                    bytes(m.load as usize),
                    bytes(m.run as usize),
                    m.problem().unwrap_or_default(),
                ]),
                Err(problem) => table.row([
                    name.clone(),
                    String::new(),
                    String::new(),
                    String::new(),
                    format!("would not run: {problem}"),
                ]),
            }
        }
        text + &table.to_string()
    }

    fn json(&self) -> Value {
        let inputs: Vec<Value> =
            self.inputs.iter().map(|(n, t)| json!({ "name": n, "type": t.ty().to_string() })).collect();
        let devices: Vec<Value> = self
            .devices
            .iter()
            .map(|(name, memory)| match memory {
                Ok(m) => json!({
                    "device": name, "stored_bytes": m.stored, "load_bytes": m.load, "run_bytes": m.run,
                    "device_bytes": m.there, "fits": m.problem().is_none(), "problem": m.problem(),
                }),
                Err(problem) => json!({ "device": name, "problem": problem }),
            })
            .collect();
        json!({
            "for": inputs, "operations": self.nodes, "graphs": self.graphs, "flops": self.flops,
            "devices": devices,
        })
    }
}

/// Whether a graph has a loop without a bound of its iterations.
fn has_open_loop(graph: &Graph) -> bool {
    let open = |op: &Op| matches!(op, Op::Loop(op) if op.max_iterations.is_none());
    graph.nodes().iter().any(|n| open(&n.op) || n.op.bodies().iter().any(|b| has_open_loop(b.graph())))
}

/// The operations of a graph, those of graphs inside included.
fn nodes_of(graph: &Graph) -> usize {
    let inner = |node: &Node| node.op.bodies().iter().map(|body| nodes_of(body.graph())).sum::<usize>();
    graph.nodes().iter().map(|node| 1 + inner(node)).sum()
}
