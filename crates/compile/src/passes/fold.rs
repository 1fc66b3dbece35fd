//! Constant folding: what depends on constants alone, or has no elements, becomes a constant.
//!
//! Layout operations are folded here, all others by the evaluator of the options; where that declines, the node stays.

use olivine_ir::op::View;
use olivine_ir::{Element, Error, Graph, Node, Op, Shape, Tensor, TensorType, ValueId, memory, with_dtype};

use super::views::{compose, is_layout};
use crate::{Options, Pass, rewrite};

/// Results larger than this are made at load instead, unless they are smaller than what they are made from.
const MOST_BYTES: usize = 16 << 20;

/// What repeats its operand is read through strides at no cost; it is folded only where that costs nothing either.
const MOST_REPEATED_BYTES: usize = 64 << 10;

/// See the module.
pub(crate) struct Fold;

impl Pass for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn run(&self, graph: &Graph, options: &Options<'_>) -> Result<Graph, Error> {
        if !graph.nodes().iter().any(|node| may_fold(graph, node)) {
            return Ok(graph.clone());
        }
        rewrite(graph, |out, _, node| {
            let types = node.outputs.iter().map(|id| graph.ty(*id)).collect::<Result<Vec<_>, _>>()?;
            let inputs = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
            let Some(results) = fold(&out.new, node, &inputs, &types, options) else { return Ok(false) };
            for (old, tensor) in node.outputs.iter().zip(results) {
                let new = out.new.constant(tensor);
                out.bind(*old, new);
            }
            Ok(true)
        })
    }
}

/// Whether a node has no elements, or constant operands alone.
fn may_fold(graph: &Graph, node: &Node) -> bool {
    node.inputs.iter().all(|id| graph.as_const(*id).is_some())
        || node.outputs.iter().all(|id| graph.values()[id.index()].ty.shape.has_zero())
}

/// The node's results, if they can be known now.
fn fold(
    g: &Graph,
    node: &Node,
    inputs: &[ValueId],
    types: &[TensorType],
    options: &Options<'_>,
) -> Option<Vec<Tensor>> {
    if types.iter().all(|t| t.shape.has_zero()) {
        // A constant has sizes that are numbers.
        return types.iter().map(|t| Tensor::zeros(t.dtype, t.shape.dims()).ok()).collect();
    }
    // Constants have sizes that are numbers.
    if node.op.has_open_sizes() || types.iter().any(|t| t.shape.is_symbolic()) {
        return None;
    }
    // A loop may take long or have no end, and a user's operation is not run before the user asks for it.
    if !node.op.bodies().is_empty() || matches!(node.op, Op::Custom(_)) {
        return None;
    }
    let operands: Vec<Tensor> = inputs.iter().map(|id| g.as_const(*id).cloned()).collect::<Option<_>>()?;
    if let (Op::Reshape(_), [x], [to]) = (&node.op, operands.as_slice(), types) {
        return Some(vec![x.reshaped(to.shape).ok()?]);
    }
    let size: usize = types.iter().map(TensorType::bytes).sum();
    let given: usize = operands.iter().map(|t| t.ty().bytes()).sum();
    let most = match node.op {
        Op::Expand(_) | Op::Fill(_) | Op::Tile(_) | Op::Repeat(_) | Op::Unfold(_) | Op::Range(_) => {
            MOST_REPEATED_BYTES
        }
        _ => MOST_BYTES,
    };
    if size > most && size > given {
        return None;
    }
    if let (true, [x]) = (is_layout(&node.op), operands.as_slice()) {
        let shapes: Vec<Shape> = types.iter().map(|t| t.shape).collect();
        let views = compose(&node.op, &View::packed(*x.shape()), &shapes)?;
        return views.iter().map(|view| read(x, view)).collect();
    }
    let results = options.evaluator?.evaluate(&node.op, &operands).ok()?;
    let fits = results.len() == types.len() && results.iter().zip(types).all(|(r, t)| r.ty() == *t);
    fits.then_some(results)
}

/// The elements a view reads, as a tensor of its own.
fn read(x: &Tensor, view: &View) -> Option<Tensor> {
    with_dtype!(x.dtype(), T => {
        let elements = gather(x.as_slice::<T>().ok()?, view)?;
        Tensor::new(view.shape, elements).ok()
    })
}

fn gather<T: Element>(from: &[T], view: &View) -> Option<Vec<T>> {
    let rank = view.shape.rank();
    let mut out = memory::with_room(view.shape.numel()).ok()?;
    let mut index = vec![0usize; rank];
    let mut at = view.offset.as_constant()?;
    let strides = view.strides.iter().map(|s| s.as_constant()).collect::<Option<Vec<i64>>>()?;
    for _ in 0..view.shape.numel() {
        out.push(*from.get(usize::try_from(at).ok()?)?);
        for axis in (0..rank).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < view.shape[axis] {
                break;
            }
            at -= strides[axis] * index[axis] as i64;
            index[axis] = 0;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Evaluate;
    use olivine_ir::DType;

    /// Knows `neg` of f32 alone.
    struct Negate;

    impl Evaluate for Negate {
        fn evaluate(&self, op: &Op, operands: &[Tensor]) -> Result<Vec<Tensor>, String> {
            let x = operands.first().filter(|_| op.name() == "neg").ok_or("only neg")?;
            let y = x.as_slice::<f32>().map_err(|e| e.to_string())?.iter().map(|v| -v).collect();
            Ok(vec![Tensor::new(*x.shape(), y).map_err(|e| e.to_string())?])
        }
    }

    fn run(g: &Graph) -> Result<Graph, Error> {
        Fold.run(g, &Options { evaluator: Some(&Negate), ..Options::default() })
    }

    #[test]
    fn chains_of_constants_fold_and_what_the_evaluator_declines_stays() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let c = g.constant(Tensor::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?);
        let n = g.neg(c)?;
        let t = g.transpose(n, &[1, 0])?;
        let e = g.exp(t)?;
        g.output("t", t)?;
        g.output("e", e)?;
        let out = run(&g)?;
        assert_eq!(out.nodes().len(), 1);
        let folded = out.as_const(out.output_named("t")?).map(Tensor::to_f64);
        assert_eq!(folded, Some(vec![-1.0, -3.0, -2.0, -4.0]));
        Ok(())
    }

    #[test]
    fn large_repeats_of_a_constant_stay_strides() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let c = g.constant(Tensor::scalar(1.0f32));
        let small = g.expand(c, [3])?;
        let large = g.expand(c, [1 << 20])?;
        g.output("small", small)?;
        g.output("large", large)?;
        let out = run(&g)?;
        assert!(out.as_const(out.output_named("small")?).is_some());
        assert!(out.as_const(out.output_named("large")?).is_none());
        Ok(())
    }

    #[test]
    fn a_result_without_elements_is_known_without_its_operands() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F16, [0, 4])?;
        let y = g.exp(x)?;
        g.output("y", y)?;
        let out = run(&g)?;
        assert_eq!(out.as_const(out.output_named("y")?).map(Tensor::ty), Some(g.ty(x)?));
        Ok(())
    }

    #[test]
    fn a_result_that_contradicts_the_shape_rule_is_not_taken() -> Result<(), Error> {
        struct Wrong;
        impl Evaluate for Wrong {
            fn evaluate(&self, _: &Op, _: &[Tensor]) -> Result<Vec<Tensor>, String> {
                Ok(vec![Tensor::scalar(1i64)])
            }
        }
        let mut g = Graph::new("g");
        let c = g.constant(Tensor::scalar(1.0f32));
        let y = g.neg(c)?;
        g.output("y", y)?;
        let out = Fold.run(&g, &Options { evaluator: Some(&Wrong), ..Options::default() })?;
        assert_eq!(out.nodes().len(), 1);
        Ok(())
    }
}
