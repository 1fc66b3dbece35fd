//! Names that nodes and the graphs inside them use.

use std::collections::HashSet;

use crate::proto::{GraphProto, NodeProto, ValueInfoProto};
use crate::sparse::sparse_name;

/// The names that a node uses; of those that the graphs inside it use, the ones that they do not make themselves.
pub(crate) fn needed<'m>(node: &'m NodeProto, names: &mut HashSet<&'m str>) {
    names.extend(node.input.iter().map(String::as_str));
    for attribute in &node.attribute {
        for graph in attribute.g.iter().chain(&attribute.graphs) {
            names.extend(free_names(graph));
        }
    }
}

/// Names of a graph's initializers.
pub(super) fn initializer_names(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let dense = graph.initializer.iter().map(|tensor| tensor.name());
    dense.chain(graph.sparse_initializer.iter().map(sparse_name))
}

/// The inputs of a graph inside a node that so many arguments are for. Files of the first IR versions list initializers
/// among the inputs: those take no argument unless there is one for every input.
pub(super) fn positional_inputs(graph: &GraphProto, arguments: usize) -> Vec<&ValueInfoProto> {
    let all: Vec<&ValueInfoProto> = graph.input.iter().collect();
    if all.len() == arguments {
        return all;
    }
    let initialised: HashSet<&str> = initializer_names(graph).collect();
    all.into_iter().filter(|input| !initialised.contains(input.name())).collect()
}

/// The names that a graph inside a node uses and does not make itself.
pub(super) fn free_names(graph: &GraphProto) -> HashSet<&str> {
    let mut inside = HashSet::new();
    graph.node.iter().for_each(|node| needed(node, &mut inside));
    inside.extend(graph.output.iter().map(|o| o.name()));
    let made = graph.node.iter().flat_map(|node| node.output.iter().map(String::as_str));
    let made = made.chain(graph.input.iter().map(|i| i.name()));
    for name in made.chain(initializer_names(graph)) {
        inside.remove(name);
    }
    inside
}
