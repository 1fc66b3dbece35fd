//! Graph to graph: passes that fold, canonicalise, legalise and fuse, and the planner that places buffers.
//!
//! ```text
//!   Graph ─ pass ─ pass ─ … ─ fused Graph ─ schedule (load once / every run) ─ memory plan
//! ```
//!
//! ```
//! use olivine_compile::{Options, compile};
//! use olivine_ir::{DType, Graph};
//! let mut g = Graph::new("scores");
//! let x = g.input("x", DType::F32, [2, 8, 4])?;
//! let y = g.einsum("bqd,bkd->bqk", &[x, x])?;
//! g.output("y", y)?;
//! let compiled = compile(&g, &Options::default())?;
//! let ops: Vec<&str> = compiled.graph.nodes().iter().map(|n| n.op.name()).collect();
//! assert_eq!(ops, ["view", "matmul"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

use olivine_ir::{Def, Error as GraphError, Graph, Node, Op, SubGraph, ValueId};

mod append;
mod passes;
mod pattern;
pub mod plan;
mod rewrite;
mod spelling;

pub use append::{Growing, append_in_place, growing_states};
pub use olivine_ir::Evaluate;
pub use passes::Widen;
pub use rewrite::{Rewriter, rewrite};
pub use spelling::Spelling;

/// What the compiler may do.
#[derive(Default)]
pub struct Options<'a> {
    /// Who computes constant nodes; without one they stay.
    pub evaluator: Option<&'a dyn Evaluate>,
    /// Leave out the fusion passes: every op runs as it was written (decomposed where no kernel exists).
    pub no_fusion: bool,
    /// Compute f16 and bf16 in f32 and keep results in f32 between operations.
    pub widen: Option<Widen>,
    /// Multiply f16 operands in f32 matmuls, convolutions and attention.
    pub narrow: bool,
    /// Compute matmuls and convolutions of dequantised operands on their integers.
    pub integers: bool,
    /// Keep the graph after every pass, for `explain`.
    pub keep_stages: bool,
}

/// A graph after one pass.
pub struct Stage {
    /// The pass.
    pub name: &'static str,
    /// What it made.
    pub graph: Graph,
}

/// The compiler's result.
pub struct Compiled {
    /// The fused graph.
    pub graph: Graph,
    /// For every node: whether it depends on params and constants alone and so runs once, when params are set.
    pub at_load: Vec<bool>,
    /// Every pass' result, if asked for.
    pub stages: Vec<Stage>,
}

/// What compiling can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The graph is not valid, at the start or after a pass.
    #[error("after {pass}: {source}")]
    Graph {
        /// The pass, or `input`.
        pass: &'static str,
        /// What is wrong.
        source: GraphError,
    },
    /// Operations that no pass rewrites and no kernel computes.
    #[error("no kernel for {}", .nodes.join(", "))]
    Unsupported {
        /// All of them: operation and node.
        nodes: Vec<String>,
    },
}

/// One graph-to-graph step.
pub trait Pass {
    /// A short name for `explain` and errors.
    fn name(&self) -> &'static str;
    /// The graph after the step; equal in meaning.
    fn run(&self, graph: &Graph, options: &Options<'_>) -> Result<Graph, GraphError>;
}

/// Runs all passes, verifying what goes in and what comes out; a build with debug assertions verifies after each.
pub fn compile(graph: &Graph, options: &Options<'_>) -> Result<Compiled, Error> {
    graph.verify().map_err(|source| Error::Graph { pass: "input", source })?;
    let mut stages = Vec::new();
    let control = graph.nodes().iter().any(|n| !n.op.bodies().is_empty());
    let mut made: Option<Graph> = None;
    for pass in passes::pipeline(options, control) {
        let fail = |source| Error::Graph { pass: pass.name(), source };
        let before = made.as_ref().unwrap_or(graph);
        let next = match control {
            true => run_everywhere(pass.as_ref(), before, options),
            false => pass.run(before, options),
        };
        let next = next.map_err(fail)?;
        if cfg!(debug_assertions) && !next.shares_with(before) {
            next.verify().map_err(fail)?;
        }
        if options.keep_stages {
            stages.push(Stage { name: pass.name(), graph: next.clone() });
        }
        made = Some(next);
    }
    let graph = made.unwrap_or_else(|| graph.clone());
    graph.verify().map_err(|source| Error::Graph { pass: "all passes", source })?;
    let left = without_kernel(&graph);
    if !left.is_empty() {
        return Err(Error::Unsupported { nodes: left });
    }
    let at_load = at_load(&graph);
    Ok(Compiled { graph, at_load, stages })
}

/// Runs a pass on the graphs inside operations, and then on the graph itself.
fn run_everywhere(pass: &dyn Pass, graph: &Graph, options: &Options<'_>) -> Result<Graph, GraphError> {
    if graph.nodes().iter().all(|n| n.op.bodies().is_empty()) {
        return pass.run(graph, options);
    }
    let inner = rewrite(graph, |out, _, node| {
        if node.op.bodies().is_empty() {
            return Ok(false);
        }
        let op = node.op.map_bodies(|b| SubGraph::new(run_everywhere(pass, b.graph(), options)?))?;
        out.replace(node, op, &node.inputs)?;
        Ok(true)
    })?;
    pass.run(&inner, options)
}

/// The nodes that no kernel computes, those of inner graphs among them.
fn without_kernel(graph: &Graph) -> Vec<String> {
    let mut left = Vec::new();
    for node in graph.nodes() {
        if !node.op.is_compiled() {
            left.push(format!("{} `{}`", node.op.name(), node.name));
        }
        for body in node.op.bodies() {
            let inner = without_kernel(body.graph());
            left.extend(inner.into_iter().map(|n| format!("{n} in {} `{}`", node.op.name(), node.name)));
        }
    }
    left
}

/// A result of more bytes than this is not kept from run to run if it is [`GENERATED`] times as large as its operands.
const MOST_GENERATED: usize = 16 << 20;

/// See [`MOST_GENERATED`].
const GENERATED: usize = 64;

/// Marks the nodes whose operands are all params, constants or results of such nodes. What is large and made of next to
/// nothing, such as a long range, is made by every run: it costs no more time than reading it, and no memory in between.
pub fn at_load(graph: &Graph) -> Vec<bool> {
    let mut fixed: Vec<bool> =
        graph.values().iter().map(|v| matches!(v.def, Def::Param { .. } | Def::Const(_))).collect();
    graph
        .nodes()
        .iter()
        .map(|node| {
            // What has open sizes is another tensor for other sizes, and so is what they choose a part of.
            let fixed_sizes = !node.op.has_open_sizes()
                && node.outputs.iter().all(|id| !graph.values()[id.index()].ty.shape.is_symbolic());
            let once =
                fixed_sizes && node.inputs.iter().all(|id| fixed[id.index()]) && !is_generated(graph, node);
            for id in &node.outputs {
                fixed[id.index()] = once;
            }
            once
        })
        .collect()
}

/// Whether a node makes much of next to nothing, at about the cost of writing it.
fn is_generated(graph: &Graph, node: &Node) -> bool {
    if !matches!(node.op, Op::Range(_) | Op::OneHot(_) | Op::ScalarOp(_) | Op::Fused(_)) {
        return false;
    }
    let bytes = |id: &ValueId| graph.values()[id.index()].ty.bytes();
    // A view counts as the elements that it reads.
    let read = |id: &ValueId| match graph.producer(*id) {
        Some(Node { op: Op::View(_), inputs, .. }) => inputs.iter().map(bytes).fold(0, usize::saturating_add),
        _ => bytes(id),
    };
    let made = node.outputs.iter().map(bytes).fold(0, usize::saturating_add);
    made > MOST_GENERATED && made / GENERATED > node.inputs.iter().map(read).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine_ir::DType;

    /// A stack of transformer layers written the way exporters write them: no composite attention, explicit layouts.
    fn encoder(layers: usize) -> Result<Graph, GraphError> {
        let (s, h, heads) = (8usize, 16usize, 4usize);
        let mut g = Graph::new("encoder");
        let mut x = g.input("x", DType::F32, [1, s, h])?;
        for layer in 0..layers {
            let linear = |g: &mut Graph, x: ValueId, name: &str, from: usize, to: usize| {
                let w = g.param(&format!("{layer}.{name}.w"), DType::F32, [from, to])?;
                let b = g.param(&format!("{layer}.{name}.b"), DType::F32, [to])?;
                g.linear(x, w, b)
            };
            let norm = |g: &mut Graph, x: ValueId, name: &str| {
                let gamma = g.param(&format!("{layer}.{name}.g"), DType::F32, [h])?;
                let beta = g.param(&format!("{layer}.{name}.b"), DType::F32, [h])?;
                g.layer_norm(x, gamma, Some(beta), 1e-12)
            };
            let mut heads_of = Vec::new();
            for name in ["q", "k", "v"] {
                let y = linear(&mut g, x, name, h, h)?;
                let y = g.reshape(y, &[1, s as i64, heads as i64, -1])?;
                heads_of.push(g.transpose(y, &[0, 2, 1, 3])?);
            }
            let scores = g.matmul_nt(heads_of[0], heads_of[1])?;
            let scores = g.binary_scalar(olivine_ir::op::Binary::Div, scores, 2.0)?;
            let weights = g.softmax(scores, -1)?;
            let mixed = g.matmul(weights, heads_of[2])?;
            let mixed = g.transpose(mixed, &[0, 2, 1, 3])?;
            let mixed = g.reshape(mixed, &[1, s as i64, h as i64])?;
            let mixed = linear(&mut g, mixed, "o", h, h)?;
            let sum = g.add(x, mixed)?;
            let attended = norm(&mut g, sum, "n1")?;
            let wide = linear(&mut g, attended, "up", h, 4 * h)?;
            let wide = g.gelu(wide)?;
            let narrow = linear(&mut g, wide, "down", 4 * h, h)?;
            let sum = g.add(attended, narrow)?;
            x = norm(&mut g, sum, "n2")?;
        }
        g.output("y", x)?;
        Ok(g)
    }

    #[test]
    fn a_join_of_params_runs_at_load_and_what_reads_inputs_at_every_run() -> Result<(), Error> {
        let build = || {
            let mut g = Graph::new("g");
            let x = g.input("x", DType::F32, [4, 2])?;
            let (q, k) = (g.param("q", DType::F32, [2, 3])?, g.param("k", DType::F32, [2, 3])?);
            let w = g.concat(&[q, k], 1)?;
            let y = g.matmul(x, w)?;
            g.output("y", y)?;
            Ok::<_, GraphError>(g)
        };
        let g = build().map_err(|source| Error::Graph { pass: "input", source })?;
        let compiled = compile(&g, &Options::default())?;
        let stages: Vec<(&str, bool)> =
            compiled.graph.nodes().iter().map(|n| n.op.name()).zip(compiled.at_load).collect();
        assert_eq!(stages, [("concat", true), ("matmul", false)]);
        Ok(())
    }

    #[test]
    fn what_is_large_and_made_of_nothing_is_not_kept_from_run_to_run() -> Result<(), GraphError> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [1])?;
        for (count, once) in [(1 << 10, true), (1 << 24, false)] {
            let numbers = g.range(DType::F32, 0.0, 1.0, count)?;
            let one = g.constant(olivine_ir::Tensor::scalar(1f32));
            let ones = g.expand(one, [count])?;
            let weights = g.param(&format!("w{count}"), DType::F32, [count])?;
            let doubled = g.add(weights, weights)?;
            for (i, y) in [numbers, ones, doubled].into_iter().enumerate() {
                let y = g.mul(y, x)?;
                g.output(&format!("{i} {once}"), y)?;
            }
        }
        let compiled = compile(&g, &Options { no_fusion: true, ..Options::default() });
        let compiled = compiled.map_err(|e| GraphError::BadData { problem: e.to_string() })?;
        let ranges =
            compiled.graph.nodes().iter().zip(&compiled.at_load).filter(|(n, _)| n.op.name() == "range");
        assert_eq!(ranges.map(|(_, once)| *once).collect::<Vec<_>>(), [true, false]);
        Ok(())
    }

    #[test]
    fn an_encoder_needs_one_copy_a_layer_without_fusion() -> Result<(), Error> {
        let g = encoder(2).map_err(|source| Error::Graph { pass: "input", source })?;
        let compiled = compile(&g, &Options { no_fusion: true, keep_stages: true, ..Options::default() })?;
        let count = |name| compiled.graph.nodes().iter().filter(|n| n.op.name() == name).count();
        // Merging the heads after attention is the one layout step that strides cannot say.
        assert_eq!(count("fused"), 2);
        assert_eq!(count("reshape") + count("transpose"), 0);
        assert_eq!(count("div"), 0);
        let names: Vec<&str> = compiled.stages.iter().map(|s| s.name).collect();
        assert_eq!(names.last(), Some(&"dce"));
        Ok(())
    }
}
