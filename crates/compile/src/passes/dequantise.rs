//! Dequantise: matmuls with dequantised weights read the integers, which stay as they are stored.
//!
//! Needs: `dequantize_linear` as an operation; comes after *integers*, which also needs the other operand's integers, and
//! before weights are legalised and folded. Produces:
//!
//! ```text
//!   matmul(x, dq(w))             ->  dequant_matmul(x, transpose(w)), transposed at load
//!   matmul(x, transpose(dq(w)))  ->  dequant_matmul(x, w)
//! ```
//!
//! The scales must be the weight's, or one for each column of the matmul, or one for each block along K.

use olivine_ir::op::{DequantMatMul, DequantizeLinear, Granularity, MatMul, ScalarOp, Scaling};
use olivine_ir::{DType, Def, Error, Graph, Node, Op, ValueId};

use super::legalise::reshape;
use crate::{Options, Pass, Rewriter};

/// Weights of fewer elements are dequantised once: they are small in f32 too.
const SMALL: usize = 1024;

/// See the module.
pub(crate) struct Dequantise;

impl Pass for Dequantise {
    fn name(&self) -> &'static str {
        "dequantise"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !graph.nodes().iter().any(|n| matches!(n.op, Op::DequantizeLinear(_))) {
            return Ok(graph.clone());
        }
        let mut readers = vec![0usize; graph.values().len()];
        let read = graph.nodes().iter().flat_map(|node| &node.inputs);
        read.for_each(|id| readers[id.index()] += 1);
        graph.outputs().iter().for_each(|output| readers[output.value.index()] += 1);
        crate::rewrite(graph, |out, _, node| {
            let (Op::MatMul(MatMul { epilogue: None }), [x, w]) = (&node.op, node.inputs.as_slice()) else {
                return Ok(false);
            };
            match Weight::behind(graph, *w, &readers) {
                Some(weight) => weight.multiply(out, graph, node, *x),
                None => Ok(false),
            }
        })
    }
}

/// A stored matrix of bytes, all values of the old graph.
struct Weight {
    values: ValueId,
    scales: ValueId,
    zero: Option<ValueId>,
    /// Elements along K that share a scale; `None` where all of a row do.
    block: Option<usize>,
    /// Whether one scale is all there is.
    is_whole: bool,
    /// Sizes of the matmul: N and K.
    sizes: [usize; 2],
    /// Whether K is the first axis.
    by_columns: bool,
}

impl Weight {
    /// What the right operand of a matmul is made from, if nothing else reads it.
    fn behind(graph: &Graph, mut id: ValueId, readers: &[usize]) -> Option<Weight> {
        let mut by_columns = true;
        loop {
            let node = graph.producer(id).filter(|_| readers[id.index()] == 1)?;
            match (&node.op, node.inputs.as_slice()) {
                (Op::Transpose(t), [x]) if *t.perm == [1, 0] => {
                    by_columns = !by_columns;
                    id = *x;
                }
                (Op::DequantizeLinear(op), [values, scales, zero @ ..]) => {
                    let zero = zero.first().copied();
                    return Weight::of(graph, op, (*values, *scales, zero), by_columns);
                }
                _ => return None,
            }
        }
    }

    fn of(
        graph: &Graph,
        op: &DequantizeLinear,
        (values, scales, zero): (ValueId, ValueId, Option<ValueId>),
        by_columns: bool,
    ) -> Option<Weight> {
        let ty = graph.ty(values).ok()?;
        let [first, second] = *ty.shape.dims() else { return None };
        let operands = [Some(values), Some(scales), zero];
        let stored = operands.into_iter().flatten().all(|id| is_stored(graph, id));
        if !stored || !matches!(ty.dtype, DType::I8 | DType::U8) || ty.shape.numel() < SMALL {
            return None;
        }
        let k_axis = usize::from(!by_columns);
        let granularity = op.granularity(&graph.ty(scales).ok()?.shape, &ty.shape).ok()?;
        let block = match granularity {
            Granularity::Tensor => None,
            Granularity::Axis(axis) if axis != k_axis => None,
            Granularity::Block { axis, size } if axis == k_axis => Some(size),
            _ => return None,
        };
        let is_whole = granularity == Granularity::Tensor;
        let sizes = if by_columns { [second, first] } else { [first, second] };
        Some(Weight { values, scales, zero, block, is_whole, sizes, by_columns })
    }

    fn multiply(
        &self,
        out: &mut Rewriter<'_>,
        graph: &Graph,
        node: &Node,
        x: ValueId,
    ) -> Result<bool, Error> {
        let [_, columns] = self.sizes;
        if graph.ty(x)?.shape.last() != Some(&columns) {
            return Ok(false);
        }
        let values = out.get(self.values)?;
        let values = if self.by_columns { out.new.swap_last_axes(values)? } else { values };
        let mut operands = vec![out.get(x)?, values, self.spread(out, self.scales)?];
        if let Some(zero) = self.zero {
            operands.push(self.spread(out, zero)?);
        }
        let scaling = Scaling { block: self.block.unwrap_or(columns), zero: self.zero.is_some(), offset: 0 };
        let op = Op::DequantMatMul(DequantMatMul::scaled(scaling));
        let result = out.new.add_named(node.name.clone(), op, &operands)?[0];
        out.bind(node.outputs[0], result);
        Ok(true)
    }

    /// Scales or zero points, one for each block of each row along K.
    fn spread(&self, out: &mut Rewriter<'_>, id: ValueId) -> Result<ValueId, Error> {
        let (x, [rows, _]) = (out.get(id)?, self.sizes);
        match self.block {
            Some(_) if self.by_columns => out.new.swap_last_axes(x),
            Some(_) => Ok(x),
            None if self.is_whole => out.new.expand(x, [rows, 1]),
            None => reshape(&mut out.new, x, &[rows, 1]),
        }
    }
}

/// Whether a value is a param or a constant, perhaps of another shape.
fn is_stored(graph: &Graph, id: ValueId) -> bool {
    match graph.value(id).map(|value| &value.def) {
        Ok(Def::Param { .. } | Def::Const(_)) => true,
        Ok(Def::Node { .. }) => match graph.producer(id) {
            Some(Node {
                op: Op::Reshape(_) | Op::ScalarOp(ScalarOp::Cast(_)) | Op::Transpose(_),
                inputs,
                ..
            }) => inputs.iter().all(|id| is_stored(graph, *id)),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile;

    /// The operations that a matmul with a dequantised weight `[K, N]`, or its transpose, is compiled to.
    fn compiled(
        dims: [usize; 2],
        (scale, axis, block): (&[usize], isize, usize),
        transposed: bool,
        integers: bool,
    ) -> Result<Vec<&'static str>, Box<dyn std::error::Error>> {
        let mut g = Graph::new("g");
        let k = if transposed { dims[1] } else { dims[0] };
        let quantised = g.input("x", DType::U8, [3, k])?;
        let one = g.constant(olivine_ir::Tensor::scalar(0.5f32));
        let reals = g.dequantize_linear(quantised, one, None, 0, 0)?;
        let x = if integers { reals } else { g.input("reals", DType::F32, [3, k])? };
        let values = g.param("w", DType::I8, dims)?;
        let (scales, zero) = (g.param("s", DType::F32, scale)?, g.param("z", DType::I8, scale)?);
        let w = g.dequantize_linear(values, scales, Some(zero), axis, block)?;
        let w = if transposed { g.transpose(w, &[1, 0])? } else { w };
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        let compiled = compile(&g, &Options { integers, ..Options::default() })?;
        Ok(compiled.graph.nodes().iter().map(|node| node.op.name()).filter(|name| *name != "view").collect())
    }

    #[test]
    fn weights_along_k_stay_integers() -> Result<(), Box<dyn std::error::Error>> {
        let rows = |scales: (&[usize], isize, usize)| compiled([64, 96], scales, true, false);
        assert_eq!(rows((&[64, 3], 1, 32))?, ["dequant_matmul"]);
        assert_eq!(rows((&[64], 0, 0))?, ["dequant_matmul"]);
        assert!(rows((&[], 0, 0))?.contains(&"dequant_matmul"));
        let columns = |scales: (&[usize], isize, usize)| compiled([96, 64], scales, false, false);
        assert!(columns((&[3, 64], 0, 32))?.contains(&"dequant_matmul"));
        assert!(columns((&[64], 1, 0))?.contains(&"dequant_matmul"));
        Ok(())
    }

    #[test]
    fn other_scales_and_small_weights_are_dequantised_at_load() -> Result<(), Box<dyn std::error::Error>> {
        for (dims, scales) in
            [([64, 96], (&[96][..], 1, 0)), ([64, 96], (&[2, 96], 0, 32)), ([8, 16], (&[8], 0, 0))]
        {
            let found = compiled(dims, scales, true, false)?;
            assert!(!found.contains(&"dequant_matmul"), "{dims:?}: {found:?}");
        }
        Ok(())
    }

    #[test]
    fn matmuls_of_integers_on_both_sides_stay_so() -> Result<(), Box<dyn std::error::Error>> {
        let found = compiled([64, 96], (&[64], 0, 0), true, true)?;
        assert!(found.contains(&"qmatmul") && !found.contains(&"dequant_matmul"), "{found:?}");
        Ok(())
    }
}
