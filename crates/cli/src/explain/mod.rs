//! `olivine explain`: how a graph is compiled, stage by stage.

mod device;

use std::collections::BTreeMap;

use clap::Args;
use olivine::Session;
use olivine::internals::compile::{Compiled, plan};
use olivine::internals::ir::{Printer, nearest};
use olivine::internals::{ExecutableExt as _, SessionExt as _};
use olivine::ir::{Def, Graph, Op};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::model::Sizes;
use crate::source;
use crate::timing::bytes;

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// A built-in model (bert-base, encoder), an ONNX file, a file with a graph in text form, or `-` for stdin.
    graph: String,
    /// Print one stage: `ir` (as given), a pass by name, `fused` (the last graph), `all` of these,
    /// `lowered` (the nodes of each kernel call), `guards` (which sizes a plan serves, and the last graph with sizes as
    /// expressions), or on a GPU `program` (buffers, dispatches, barriers), `spirv`, `wgsl`,
    /// `ptx` (its kernels).
    #[arg(long, value_name = "NAME")]
    stage: Option<String>,
    /// On a GPU, show the kernel calls of a run with these operations on the host, by the operation's name or the node's;
    /// with `--stage lowered`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    host_ops: Vec<String>,
    /// Print every constant in full, so that the text can be read back.
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    sizes: Sizes,
}

pub(crate) fn run(global: &Global, args: &ExplainArgs) -> Result<Answer, Failure> {
    let graph = source::graph(&args.graph, &args.sizes)?;
    let session = global.session()?;
    if !args.host_ops.is_empty() {
        return match args.stage.as_deref() {
            Some("lowered") => Ok(device::lowered(&session.lowered_with_host_ops(&graph, &args.host_ops)?)),
            _ => Err(Failure::new("operations on the host are no part of this stage")
                .hint("they are in the kernel calls of a run: --stage lowered")),
        };
    }
    let compiled = session.explain(&graph)?;
    let stages = stages(&graph, &compiled);
    let print = |graph: &Graph| Printer::new(graph).elide_constants(!args.full).to_string();
    let summary = Summary::new(&graph, &compiled)?;
    match args.stage.as_deref() {
        None => {
            let text = format!("{}{summary}", sections(&compiled, args.full));
            let json =
                json!({ "stage": "fused", "graph": print(&compiled.graph), "summary": summary.json() });
            Ok(Answer::new(text, json))
        }
        Some("all") => {
            let text: String =
                stages.iter().map(|(name, graph)| format!("# {name}\n{}\n", print(graph))).collect();
            let list: Vec<Value> =
                stages.iter().map(|(name, graph)| json!({ "stage": name, "graph": print(graph) })).collect();
            Ok(Answer::new(format!("{text}{summary}"), json!({ "stages": list, "summary": summary.json() })))
        }
        Some("guards") => guards(&session, &graph, args.full),
        Some(name) if device::STAGES.contains(&name) => device::stage(name, &session, &compiled),
        Some(name) => {
            let Some((_, graph)) = stages.iter().find(|(n, _)| n == name) else {
                return Err(unknown_stage(name, &stages));
            };
            let text = print(graph);
            let json = json!({ "stage": name, "graph": text, "summary": summary.json() });
            Ok(Answer::new(text, json))
        }
    }
}

/// What sizes a plan for the graph serves, and the graph with open sizes as expressions.
fn guards(session: &Session, graph: &Graph, full: bool) -> Result<Answer, Failure> {
    let plans = session.compile(graph)?.guards();
    let guards = plans.into_iter().next().unwrap_or_default();
    let open = session.explain(&graph.specialise_symbolic(&[])?)?;
    let text = Printer::new(&open.graph).elide_constants(!full).to_string();
    let list = match guards.is_empty() {
        true => "  none: it serves all sizes\n".to_string(),
        false => guards.iter().map(|guard| format!("  {guard}\n")).collect(),
    };
    let json = json!({ "stage": "guards", "guards": guards, "graph": text });
    Ok(Answer::new(format!("# guards\n{list}\n{text}"), json))
}

/// All stages by name; a pass that runs again is numbered.
fn stages<'a>(graph: &'a Graph, compiled: &'a Compiled) -> Vec<(String, &'a Graph)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut stages = vec![("ir".to_string(), graph)];
    for stage in &compiled.stages {
        let count = counts.entry(stage.name).or_default();
        *count += 1;
        let name = if *count == 1 { stage.name.to_string() } else { format!("{}#{count}", stage.name) };
        stages.push((name, &stage.graph));
    }
    stages.push(("fused".to_string(), &compiled.graph));
    stages
}

fn unknown_stage(name: &str, stages: &[(String, &Graph)]) -> Failure {
    let more = ["guards"].into_iter().chain(device::STAGES);
    let names: Vec<&str> = stages.iter().map(|(n, _)| n.as_str()).chain(more).collect();
    let failure = Failure::new(format!("no stage `{name}`; there are {}, all", names.join(", ")));
    match nearest(name, names.iter().copied()) {
        Some(near) => failure.hint(format!("did you mean `--stage {near}`?")),
        None => failure,
    }
}

/// The compiled graph's lines, what runs once apart from what runs every time.
fn sections(compiled: &Compiled, full: bool) -> String {
    let graph = &compiled.graph;
    let text = Printer::new(graph).elide_constants(!full).to_string();
    let mut lines = text.lines();
    let mut parts: [(&str, String); 4] = [
        ("inputs, params and constants", String::new()),
        ("once, when params are set", String::new()),
        ("at every run", String::new()),
        ("outputs", String::new()),
    ];
    let mut out = lines.next().map(|line| format!("{line}\n")).unwrap_or_default();
    // The printer writes one line for every value but the further results of a node.
    let values = graph.values().iter().filter(|v| !matches!(v.def, Def::Node { result: 1.., .. }));
    for (value, line) in values.zip(lines.by_ref()) {
        let part = match value.def {
            Def::Node { node, .. } if compiled.at_load.get(node.index()) == Some(&true) => 1,
            Def::Node { .. } => 2,
            _ => 0,
        };
        parts[part].1 += &format!("{line}\n");
    }
    for line in lines.filter(|line| *line != "}") {
        parts[3].1 += &format!("{line}\n");
    }
    for (heading, lines) in parts.iter().filter(|(_, lines)| !lines.is_empty()) {
        out += &format!("\n  # {heading}\n{lines}");
    }
    out + "}\n\n"
}

/// The compiled graph in numbers.
struct Summary {
    nodes_before: usize,
    nodes_after: usize,
    at_load: usize,
    kernels: usize,
    views: usize,
    per_layer: BTreeMap<usize, usize>,
    arena: usize,
}

impl Summary {
    fn new(graph: &Graph, compiled: &Compiled) -> Result<Self, Failure> {
        let plan = plan::plan_graph(&compiled.graph, &compiled.at_load)
            .map_err(|error| Failure::new(error.to_string()).context("the memory cannot be planned"))?;
        let nodes = compiled.graph.nodes();
        let at_run = nodes.iter().zip(&compiled.at_load).filter(|(_, once)| !**once).map(|(node, _)| node);
        let (views, kernels): (Vec<_>, Vec<_>) = at_run.partition(|node| matches!(node.op, Op::View(_)));
        let mut per_layer = BTreeMap::new();
        for layer in kernels.iter().filter_map(|node| layer(&node.name)) {
            *per_layer.entry(layer).or_default() += 1;
        }
        Ok(Summary {
            nodes_before: graph.nodes().len(),
            nodes_after: nodes.len(),
            at_load: compiled.at_load.iter().filter(|once| **once).count(),
            kernels: kernels.len(),
            views: views.len(),
            per_layer,
            arena: plan.arena,
        })
    }

    fn json(&self) -> Value {
        let layers: Vec<Value> = self
            .per_layer
            .iter()
            .map(|(layer, kernels)| json!({ "layer": layer, "kernels": kernels }))
            .collect();
        json!({
            "nodes_before": self.nodes_before, "nodes_after": self.nodes_after, "at_load": self.at_load,
            "kernels": self.kernels, "views": self.views, "layers": layers, "arena_bytes": self.arena,
        })
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} nodes became {}: {} at load, {} kernels at every run, {} views; arena {}",
            self.nodes_before,
            self.nodes_after,
            self.at_load,
            self.kernels,
            self.views,
            bytes(self.arena)
        )?;
        let counts: Vec<String> = self.per_layer.values().map(usize::to_string).collect();
        match counts.as_slice() {
            [] => writeln!(f),
            [first, rest @ ..] if rest.iter().all(|c| c == first) => {
                writeln!(f, "; {first} kernels per layer")
            }
            _ => writeln!(f, "; kernels by layer: {}", counts.join(" ")),
        }
    }
}

/// The layer in a node's name: `layer3/attention/matmul_7` is of layer 3.
fn layer(name: &str) -> Option<usize> {
    name.split('/').find_map(|scope| scope.strip_prefix("layer")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_layer_is_read_from_its_scopes() {
        assert_eq!(layer("layer3/attention/matmul_7"), Some(3));
        assert_eq!(layer("decoder/layer12/norm"), Some(12));
        assert_eq!(layer("layer_norm_4"), None);
        assert_eq!(layer("add_1"), None);
    }
}
