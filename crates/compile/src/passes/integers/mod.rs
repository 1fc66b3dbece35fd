//! Integers: matmuls and convolutions of dequantised operands are computed on the integers.
//!
//! Needs: `dequantize_linear` and `quantize_linear` as operations; comes before they are legalised and folded. Produces:
//!
//! ```text
//!   matmul(dq(a), dq(b))       ->  f32(qmatmul(a, b))·(scale_a·scale_b)
//!   conv(dq(x), dq(w)) + bias  ->  f32(qconv(x, w))·(scale_x·scale_w) + bias
//!   q(transpose(dq(x)))        ->  transpose(x), where both scales and zero points are the same
//! ```
//!
//! Sums of integers are exact, so results differ from the f32 ones by their rounding alone.

#[cfg(test)]
mod tests;

use olivine_ir::op::{Conv, DequantizeLinear, Granularity, MatMul, QConv, QMatMul, QuantizeLinear};
use olivine_ir::{DType, Error, Graph, Node, Op, ValueId};

use super::legalise::reshape;
use crate::{Options, Pass, Rewriter};

/// The longest sum of products of two bytes that i32 holds.
const LONGEST_SUM: usize = 1 << 15;

/// See the module.
pub(crate) struct Integers;

impl Pass for Integers {
    fn name(&self) -> &'static str {
        "integers"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !graph.nodes().iter().any(|n| matches!(n.op, Op::DequantizeLinear(_))) {
            return Ok(graph.clone());
        }
        let mut known = Known { old: graph, of: vec![None; graph.values().len()] };
        crate::rewrite(graph, |out, _, node| known.visit(out, node))
    }
}

/// A real tensor as integers: `(values − zero)·scale`.
#[derive(Clone, Copy)]
struct Quantised {
    /// The integers, in the new graph.
    values: ValueId,
    /// In the old graph, as is the zero point.
    scale: ValueId,
    zero: Option<ValueId>,
    /// The axis along which scales and zero points differ.
    axis: Option<usize>,
}

/// For every old value the integers behind it, where they are known.
struct Known<'g> {
    old: &'g Graph,
    of: Vec<Option<Quantised>>,
}

impl Known<'_> {
    /// Replaces a node; false to have it copied.
    fn visit(&mut self, out: &mut Rewriter<'_>, node: &Node) -> Result<bool, Error> {
        match (&node.op, node.inputs.as_slice()) {
            (Op::DequantizeLinear(op), inputs) => self.dequantised(out, op, inputs, node.outputs[0]),
            (Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Expand(_), [x]) => {
                self.moved(out, node, *x)
            }
            (Op::QuantizeLinear(op), inputs) => Ok(self.again(out, op, inputs, node.outputs[0])),
            (Op::MatMul(MatMul { epilogue: None }), [a, b]) => self.matmul(out, node, *a, *b),
            (Op::Conv(op @ Conv { epilogue: None, .. }), inputs) => self.conv(out, node, op, inputs),
            _ => Ok(false),
        }
    }

    fn dequantised(
        &mut self,
        out: &mut Rewriter<'_>,
        op: &DequantizeLinear,
        inputs: &[ValueId],
        result: ValueId,
    ) -> Result<bool, Error> {
        let [x, scale, zero @ ..] = inputs else { return Ok(false) };
        let (ty, scales) = (self.old.ty(*x)?, self.old.ty(*scale)?);
        let axis = match op.granularity(&scales.shape, &ty.shape) {
            Ok(Granularity::Tensor) => None,
            Ok(Granularity::Axis(axis)) => Some(axis),
            _ => return Ok(false),
        };
        if matches!(ty.dtype, DType::I8 | DType::U8) && scales.dtype == DType::F32 {
            let values = out.get(*x)?;
            let zero = zero.first().copied();
            self.of[result.index()] = Some(Quantised { values, scale: *scale, zero, axis });
        }
        Ok(false)
    }

    /// The integers behind what only moves elements, beside the reals; whichever is not read goes away.
    fn moved(&mut self, out: &mut Rewriter<'_>, node: &Node, x: ValueId) -> Result<bool, Error> {
        let Some(q) = self.of[x.index()] else { return Ok(false) };
        let axis = match (&node.op, q.axis) {
            (_, None) => None,
            (Op::Transpose(t), Some(axis)) => t.perm.iter().position(|a| *a == axis),
            _ => return Ok(false),
        };
        let values = out.new.add_named(node.name.clone(), node.op.clone(), &[q.values])?[0];
        self.of[node.outputs[0].index()] = Some(Quantised { values, axis, ..q });
        Ok(false)
    }

    /// Reals that are quantised as they were before are the same integers.
    fn again(
        &self,
        out: &mut Rewriter<'_>,
        op: &QuantizeLinear,
        inputs: &[ValueId],
        result: ValueId,
    ) -> bool {
        let [x, scale, zero @ ..] = inputs else { return false };
        let Some(q) = self.of[x.index()] else { return false };
        let same_zero = match (q.zero, zero.first()) {
            (Some(a), Some(b)) => self.same(a, *b),
            (None, None) => true,
            _ => false,
        };
        let same_dtype = out.new.ty(q.values).is_ok_and(|ty| ty.dtype == op.dtype);
        let known = q.axis.is_none() && same_dtype && same_zero && self.same(q.scale, *scale);
        if known && self.is_ordinary(q.scale) {
            out.bind(result, q.values);
            return true;
        }
        false
    }

    /// Whether two values are one, or equal constants.
    fn same(&self, a: ValueId, b: ValueId) -> bool {
        a == b || self.old.as_const(a).zip(self.old.as_const(b)).is_some_and(|(a, b)| a == b)
    }

    /// Whether a scale is a number that divides out of what it multiplied.
    fn is_ordinary(&self, scale: ValueId) -> bool {
        let numbers = self.old.as_const(scale).map(olivine_ir::Tensor::to_f64);
        numbers.is_some_and(|n| n.iter().all(|s| (1e-30..1e30).contains(s)))
    }

    fn matmul(&self, out: &mut Rewriter<'_>, node: &Node, a: ValueId, b: ValueId) -> Result<bool, Error> {
        let (Some(left), Some(right)) = (self.of[a.index()], self.of[b.index()]) else { return Ok(false) };
        let (a, b) = (self.old.ty(a)?.shape, self.old.ty(b)?.shape);
        let (Some(terms), true) = (a.last(), a.rank() >= 2 && b.rank() >= 2) else { return Ok(false) };
        let by_column = right.axis.is_none_or(|axis| axis + 1 == b.rank());
        if left.axis.is_some() || !by_column || *terms > LONGEST_SUM {
            return Ok(false);
        }
        let op = QMatMul { a_zero: left.zero.is_some(), b_zero: right.zero.is_some() };
        let sums = self.sums(out, node, op.into(), [left, right])?;
        let scale = self.scales(out, [left, right])?;
        let result = scaled(&mut out.new, sums, scale)?;
        self.bind(out, node, result)
    }

    fn conv(
        &self,
        out: &mut Rewriter<'_>,
        node: &Node,
        op: &Conv,
        inputs: &[ValueId],
    ) -> Result<bool, Error> {
        let [x, w, bias @ ..] = inputs else { return Ok(false) };
        let (Some(left), Some(right)) = (self.of[x.index()], self.of[w.index()]) else { return Ok(false) };
        let weights = self.old.ty(*w)?.shape;
        let terms = weights[1..].iter().product::<usize>();
        if left.axis.is_some() || right.axis.is_some_and(|axis| axis != 0) || terms > LONGEST_SUM {
            return Ok(false);
        }
        let (x_zero, w_zero) = (left.zero.is_some(), right.zero.is_some());
        let conv = QConv { window: op.window.clone(), groups: op.groups, x_zero, w_zero };
        let sums = self.sums(out, node, conv.into(), [left, right])?;
        // A number for each channel stands before the spatial axes.
        let mut channels = vec![1; weights.rank() - 1];
        channels[0] = weights[0];
        let mut scale = self.scales(out, [left, right])?;
        if right.axis.is_some() {
            scale = reshape(&mut out.new, scale, &channels)?;
        }
        let mut result = scaled(&mut out.new, sums, scale)?;
        if let (true, [bias]) = (op.bias, bias) {
            let bias = out.get(*bias)?;
            let bias = reshape(&mut out.new, bias, &channels)?;
            result = out.new.add(result, bias)?;
        }
        self.bind(out, node, result)
    }

    /// The sums of products of integers less their zero points.
    fn sums(
        &self,
        out: &mut Rewriter<'_>,
        node: &Node,
        op: Op,
        operands: [Quantised; 2],
    ) -> Result<ValueId, Error> {
        let mut inputs: Vec<ValueId> = operands.iter().map(|q| q.values).collect();
        for zero in operands.iter().filter_map(|q| q.zero) {
            inputs.push(out.get(zero)?);
        }
        Ok(out.new.add_named(node.name.clone(), op, &inputs)?[0])
    }

    fn scales(&self, out: &mut Rewriter<'_>, [left, right]: [Quantised; 2]) -> Result<ValueId, Error> {
        let (a, b) = (out.get(left.scale)?, out.get(right.scale)?);
        out.new.mul(a, b)
    }

    fn bind(&self, out: &mut Rewriter<'_>, node: &Node, result: ValueId) -> Result<bool, Error> {
        if out.new.ty(result)? != self.old.ty(node.outputs[0])? {
            return Ok(false);
        }
        out.bind(node.outputs[0], result);
        Ok(true)
    }
}

/// Sums as reals.
fn scaled(g: &mut Graph, sums: ValueId, scale: ValueId) -> Result<ValueId, Error> {
    let reals = g.cast(sums, DType::F32)?;
    g.mul(reals, scale)
}
