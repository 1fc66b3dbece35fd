//! Arithmetic that a graph asks for.

use olivine::ir::{Dim, Graph, Node, Op, Shape};

/// Operations of one run: two for each multiplication and addition of matmuls, convolutions, attention and recurrent
/// layers; one for each element that another operation computes; none for those that move elements. A loop counts as if
/// it made all its iterations, a choice as its dearer branch.
pub(crate) fn of_graph(graph: &Graph) -> u64 {
    graph.nodes().iter().map(|node| of_node(graph, node)).fold(0, u64::saturating_add)
}

fn of_node(graph: &Graph, node: &Node) -> u64 {
    let shape =
        |i: usize| node.inputs.get(i).and_then(|id| graph.ty(*id).ok()).map_or(Shape::SCALAR, |ty| ty.shape);
    let count = |shape: &Shape| shape.numel() as u64;
    let made: u64 = node
        .outputs
        .iter()
        .filter_map(|id| graph.ty(*id).ok())
        .map(|ty| count(&ty.shape))
        .fold(0, u64::saturating_add);
    let sums = |inner: usize| made.saturating_mul(2).saturating_mul(inner as u64);
    let last = |shape: &Shape| shape.last().copied().unwrap_or(1);
    match &node.op {
        Op::MatMul(_) | Op::QMatMul(_) | Op::GroupedMatMul(_) | Op::DequantMatMul(_) | Op::LoraMatMul(_) => {
            sums(last(&shape(0)))
        }
        Op::DotGeneral(op) => {
            let lhs = shape(0);
            sums(op.lhs_contract.iter().filter_map(|axis| lhs.get(*axis)).product())
        }
        Op::Einsum(op) => {
            let shapes: Vec<Shape> = (0..node.inputs.len()).map(shape).collect();
            let sizes = op.plan(&shapes).map(|plan| plan.sizes).unwrap_or_default();
            let number = |size: &Dim| size.value().map_or(u64::MAX, i64::unsigned_abs);
            sizes.iter().fold(2, |all: u64, size| all.saturating_mul(number(size)))
        }
        Op::Conv(_) | Op::QConv(_) => sums(shape(1).iter().skip(1).product()),
        Op::ConvTranspose(_) => {
            let taps: usize = shape(1).iter().skip(1).product();
            count(&shape(0)).saturating_mul(2).saturating_mul(taps as u64)
        }
        Op::Attention(op) if shape(0).rank() == 4 && shape(1).rank() == 4 => {
            let (batch, heads, queries, dim) = op.layout.numbers(&shape(0));
            let (_, _, keys, _) = op.layout.numbers(&shape(1));
            let values = if shape(2).rank() == 4 { op.layout.numbers(&shape(2)).3 } else { dim };
            [batch, heads, queries, keys, dim + values].iter().fold(2, |all, n| all.saturating_mul(*n as u64))
        }
        Op::Recurrent(_) => {
            // Every step and every batch goes through both matrices.
            let steps = shape(0).iter().take(2).product::<usize>() as u64;
            steps.saturating_mul(2).saturating_mul(count(&shape(1)) + count(&shape(2)))
        }
        Op::Loop(op) => (op.max_iterations.unwrap_or(1) as u64).saturating_mul(of_graph(op.body.graph())),
        Op::Scan(op) => {
            let iterations =
                op.axes.first().and_then(|axis| shape(op.states).get(*axis).copied()).unwrap_or(0);
            (iterations as u64).saturating_mul(of_graph(op.body.graph()))
        }
        Op::If(op) => of_graph(op.then_branch.graph()).max(of_graph(op.else_branch.graph())),
        op if moves(op.name()) => 0,
        _ => made,
    }
}

/// Whether an operation only moves elements.
fn moves(op: &str) -> bool {
    matches!(
        op,
        "reshape"
            | "transpose"
            | "slice"
            | "expand"
            | "view"
            | "concat"
            | "split"
            | "stack"
            | "tile"
            | "repeat"
            | "reverse"
            | "roll"
            | "pad"
            | "gather"
            | "gather_elements"
            | "gather_nd"
            | "scatter_elements"
            | "scatter_nd"
            | "depth_to_space"
            | "space_to_depth"
            | "unfold"
            | "fill"
            | "kv_append"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine::ir::DType;

    #[test]
    fn matmuls_count_twice_their_sizes_and_the_rest_its_elements() {
        let mut g = Graph::new("g");
        let (a, b) = (g.input("a", DType::F32, [2, 3]).unwrap(), g.input("b", DType::F32, [3, 5]).unwrap());
        let c = g.matmul(a, b).unwrap();
        assert_eq!(of_graph(&g), 2 * 2 * 3 * 5);
        let c = g.relu(c).unwrap();
        assert_eq!(of_graph(&g), 60 + 10);
        g.reshape(c, &[-1]).unwrap();
        assert_eq!(of_graph(&g), 70);
    }
}
