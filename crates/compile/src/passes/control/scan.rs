//! A scan as a loop whose body slices its operands by the index of the iteration.

use olivine_ir::op::{Loop, Scan};
use olivine_ir::{DType, Error, Graph, SubGraph, Tensor, ValueId};

use super::inline::inline;
use super::unroll::length;

/// The scan's results. Operands that are read backwards are reversed before the loop, and results that are written
/// backwards after it, so that the body counts up. Every operand has at least one slice: a scan without iterations was unrolled.
pub(super) fn as_loop(
    g: &mut Graph,
    op: &Scan,
    inputs: &[ValueId],
    name: &str,
) -> Result<Vec<ValueId>, Error> {
    let (states, rest) = inputs.split_at(op.states);
    let (sliced, captures) = rest.split_at(op.axes.len());
    let mut ordered = Vec::with_capacity(sliced.len());
    for (i, (x, axis)) in sliced.iter().zip(&op.axes).enumerate() {
        let back = op.reverse.get(i).copied().unwrap_or(false);
        ordered.push(if back { g.reverse(*x, &[*axis as isize])? } else { *x });
    }
    let iterations = match (sliced.first(), op.axes.first()) {
        (Some(x), Some(axis)) => length(g, *x, *axis)?,
        _ => 0,
    };

    let mut body = Graph::new(op.body.graph().name());
    let iteration = body.input("iteration", DType::I64, [])?;
    let mut declare = |g: &Graph, kind: &str, ids: &[ValueId]| {
        let one = |(i, id): (usize, &ValueId)| {
            let ty = g.ty(*id)?;
            body.input(&format!("{kind}{i}"), ty.dtype, ty.shape)
        };
        ids.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()
    };
    let mut inner = declare(g, "state", states)?;
    let whole = declare(g, "sliced", &ordered)?;
    let captured = declare(g, "capture", captures)?;
    for (x, axis) in whole.iter().zip(&op.axes) {
        inner.push(body.gather(*x, iteration, *axis as isize)?);
    }
    inner.extend(captured);
    let outputs = inline(&mut body, &op.body, &inner, "iteration")?;
    let go_on = body.constant(Tensor::scalar(true));
    for (i, value) in std::iter::once(go_on).chain(outputs).enumerate() {
        body.output(&i.to_string(), value)?;
    }

    let count = g.constant(Tensor::scalar(iterations as i64));
    let begin = g.constant(Tensor::scalar(true));
    let operands = [&[count, begin], states, &ordered, captures].concat();
    let all = Loop { carried: op.states, max_iterations: Some(iterations), body: SubGraph::new(body)? };
    let mut results = g.add_named(name, all, &operands)?;
    results.pop();
    for (i, result) in results.iter_mut().skip(op.states).enumerate() {
        if op.out_reverse.get(i).copied().unwrap_or(false) {
            *result = g.reverse(*result, &[0])?;
        }
        let axis = op.out_axis(i);
        if axis > 0 {
            let rank = g.ty(*result)?.shape.rank();
            let perm: Vec<usize> = (1..=axis).chain([0]).chain(axis + 1..rank).collect();
            *result = g.transpose(*result, &perm)?;
        }
    }
    Ok(results)
}
