//! The fusion passes on whole layers and on random graphs, checked by a slow interpreter in f64.

mod interpreter;
mod models;
mod parity;
mod rules;

use olivine_ir::{Error, Graph, Op};

use crate::Options;

type Outcome = Result<(), Error>;

/// A graph after all fusion passes, verified after each.
fn fuse(graph: &Graph) -> Result<Graph, Error> {
    let mut graph = graph.clone();
    for pass in super::passes() {
        graph = pass.run(&graph, &Options::default())?;
        graph.verify()?;
    }
    Ok(graph)
}

/// The names of the nodes that run every time and move or compute something.
fn kernels(graph: &Graph) -> Vec<&'static str> {
    let layout = |op: &Op| {
        matches!(op, Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Expand(_) | Op::View(_))
    };
    let at_load = crate::at_load(graph);
    let runs = graph.nodes().iter().zip(at_load).filter(|(n, once)| !once && !layout(&n.op));
    runs.map(|(n, _)| n.op.name()).collect()
}
