//! Scan: a graph for every slice of some operands.

use olivine_ir::op::{PadMode, Scan};
use olivine_ir::{Shape, SubGraph, TensorType, ValueId};

use super::Entry;
use super::arity::{ANY, Takes};
use super::shape::reshape_to;
use crate::ElementType;
use crate::import::{Answer, BodyInput, NodeContext, Stop, Value};

pub(super) const OPERATORS: &[Entry] = &[("Scan", Takes(ANY, ANY), scan)];

/// Slices whose iterations are unrolled at most, where shapes inside depend on what is sliced; and sequences of a batch.
const MAX_UNROLLED: usize = 4096;

fn scan(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    if n.opset() < 9 {
        return scan_of_batches(n);
    }
    let count = n.int("num_scan_inputs")?.and_then(|c| usize::try_from(c).ok());
    let count = count.filter(|c| (1..=n.input_count()).contains(c));
    let count = count.ok_or_else(|| n.wrong("num_scan_inputs is missing or above its inputs"))?;
    let operands = n.tensors()?;
    let elements: Vec<ElementType> = (0..operands.len()).map(|i| n.element(i)).collect::<Answer<_>>()?;
    let states = operands.len() - count;
    let (axes, out_axes) = (n.ints("scan_input_axes")?, n.ints("scan_output_axes")?.unwrap_or_default());
    let flags =
        |v: Option<Vec<i64>>| v.unwrap_or_default().into_iter().map(|d| d != 0).collect::<Vec<bool>>();
    let (reverse, out_reverse) =
        (flags(n.ints("scan_input_directions")?), flags(n.ints("scan_output_directions")?));
    let mut sliced = Vec::new();
    let mut inputs = Vec::new();
    for (i, id) in operands.iter().enumerate() {
        let mut ty = n.ty(*id)?;
        if i >= states {
            let axis = axes.as_ref().and_then(|a| a.get(i - states).copied()).unwrap_or(0);
            let axis = n.axis(axis, ty.shape.rank())?;
            let mut dims = ty.shape.to_vec();
            dims.remove(axis);
            ty = TensorType::new(ty.dtype, n.built(Shape::new(&dims))?);
            sliced.push(axis);
        }
        inputs.push(BodyInput::New { element: elements[i], ty, first: None });
    }
    let (body, node) = (n.graph_attribute("body")?, n.node);
    let built = match n.walk.body(body, &inputs, &[], node) {
        Ok(built) => built,
        Err(Stop::PerIteration) => {
            let slices = Slices { axes: sliced, reverse, out_axes, out_reverse };
            return unrolled(n, &operands, &elements, &slices);
        }
        Err(stop) => return Err(stop),
    };
    let rows = built.outputs.len().saturating_sub(states);
    let mut stacked = Vec::with_capacity(rows);
    for (i, (_, ty)) in built.outputs.iter().skip(states).enumerate() {
        let axis = out_axes.get(i).copied().unwrap_or(0);
        stacked.push(n.axis(axis, ty.shape.rank() + 1)?);
    }
    let graph = n.built(SubGraph::new(built.graph))?;
    let op = Scan { states, axes: sliced, reverse, out_axes: stacked, out_reverse, body: graph };
    let results = n.build(|g| g.add_op(op, &[operands.as_slice(), &built.captures].concat()))?;
    Ok(results.into_iter().zip(built.outputs).map(|(id, (element, _))| n.result(id, element)).collect())
}

/// How operands of a scan are sliced and its rows stacked.
struct Slices {
    axes: Vec<usize>,
    reverse: Vec<bool>,
    out_axes: Vec<i64>,
    out_reverse: Vec<bool>,
}

/// Slice `at` of an axis, without the axis.
fn slice_of(n: &mut NodeContext<'_, '_>, x: ValueId, axis: usize, at: usize) -> Answer<ValueId> {
    let one = n.build(|g| g.narrow(x, axis as isize, at, 1))?;
    let mut sizes = n.shape(one)?.to_vec();
    sizes.remove(axis);
    let to = n.built(Shape::new(&sizes))?;
    reshape_to(n, one, to)
}

/// A scan's iterations one after another, for bodies whose shapes depend on what they are given.
fn unrolled(
    n: &mut NodeContext<'_, '_>,
    operands: &[ValueId],
    elements: &[ElementType],
    slices: &Slices,
) -> Answer<Vec<Value>> {
    let (body, node) = (n.graph_attribute("body")?, n.node);
    let states = operands.len() - slices.axes.len();
    let iterations = match (operands.get(states), slices.axes.first()) {
        (Some(x), Some(axis)) => n.shape(*x)?[*axis],
        _ => 0,
    };
    if iterations == 0 || iterations > MAX_UNROLLED {
        return Err(
            n.wrong(format!("shapes inside it change from slice to slice, and there are {iterations}"))
        );
    }
    let value = |n: &NodeContext<'_, '_>, i: usize, id: ValueId| n.result(id, elements[i]);
    let mut carried: Vec<Value> = (0..states).map(|i| value(n, i, operands[i])).collect();
    let mut stacks: Vec<Vec<Value>> = Vec::new();
    for iteration in 0..iterations {
        let mut arguments = std::mem::take(&mut carried);
        for (i, axis) in slices.axes.iter().enumerate() {
            let back = slices.reverse.get(i).copied().unwrap_or(false);
            let at = if back { iterations - 1 - iteration } else { iteration };
            let x = operands[states + i];
            if n.shape(x)?.get(*axis) != Some(&iterations) {
                return Err(n.wrong(format!("its operands have other than {iterations} slices")));
            }
            let id = slice_of(n, x, *axis, at)?;
            arguments.push(value(n, states + i, id));
        }
        let mut results = n.walk.inline(body, arguments, node)?;
        if results.len() < states {
            return Err(n.wrong("its body has fewer outputs than states"));
        }
        let rows = results.split_off(states);
        carried = results;
        stacks.resize(rows.len(), Vec::new());
        stacks.iter_mut().zip(rows).for_each(|(stack, row)| stack.push(row));
    }
    for (i, mut stack) in stacks.into_iter().enumerate() {
        if slices.out_reverse.get(i).copied().unwrap_or(false) {
            stack.reverse();
        }
        let mut ids = Vec::with_capacity(stack.len());
        let mut element = ElementType::F32;
        for row in stack {
            let Value::Tensor(held) = row else { return Err(n.wrong("a row that it collects is no tensor")) };
            element = held.element;
            ids.push(n.walk.local(held)?);
        }
        let rank = match ids.first() {
            Some(first) => n.shape(*first)?.rank(),
            None => 0,
        };
        let axis = n.axis(slices.out_axes.get(i).copied().unwrap_or(0), rank + 1)?;
        let id = n.build(|g| g.stack(&ids, axis))?;
        carried.push(n.result(id, element));
    }
    Ok(carried)
}

/// Scan as it was up to opset 8: a batch axis before all others, and the lengths as a first operand.
fn scan_of_batches(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let count = n.int_or("num_scan_inputs", 0)?.max(0) as usize;
    let operands: Vec<ValueId> = (1..n.input_count()).map(|i| n.tensor(i)).collect::<Answer<_>>()?;
    let elements: Vec<ElementType> = (1..n.input_count()).map(|i| n.element(i)).collect::<Answer<_>>()?;
    let states = operands.len().checked_sub(count).filter(|_| count > 0);
    let states = states.ok_or_else(|| n.wrong("num_scan_inputs is missing or above its inputs"))?;
    let (batch, most) = match n.shape(operands[states])?.dims() {
        [batch, most, ..] => (*batch, *most),
        _ => return Err(n.wrong("its scanned inputs have no axes of batch and time")),
    };
    // Every sequence of the batch becomes a node.
    if batch == 0 || batch > MAX_UNROLLED {
        return Err(n.wrong(format!("a batch of {batch}; it must be of 1 to {MAX_UNROLLED}")));
    }
    let lengths = n.optional_ints(0)?.unwrap_or_else(|| vec![most as i64; batch]);
    if lengths.len() != batch {
        return Err(n.wrong(format!("{} lengths for a batch of {batch}", lengths.len())));
    }
    let fits = |length: &i64| usize::try_from(*length).ok().filter(|l| *l <= most);
    if let Some(wrong) = lengths.iter().find(|length| fits(length).is_none()) {
        return Err(n.wrong(format!("a length of {wrong} with {most} steps")));
    }
    let lengths: Vec<usize> = lengths.iter().filter_map(fits).collect();
    let directions = n.ints("directions")?.unwrap_or_default();
    let (body, node) = (n.graph_attribute("body")?, n.node);
    let mut parts: Vec<Vec<ValueId>> = Vec::new();
    let mut kinds = Vec::new();
    for (b, length) in lengths.into_iter().enumerate() {
        let mut of = Vec::new();
        let mut inputs = Vec::new();
        for (i, id) in operands.iter().enumerate() {
            let mut one = slice_of(n, *id, 0, b)?;
            if i >= states {
                one = n.build(|g| g.narrow(one, 0, 0, length))?;
            }
            let ty = n.ty(one)?;
            let dims: Vec<usize> = ty.shape.iter().copied().skip(usize::from(i >= states)).collect();
            let ty = TensorType::new(ty.dtype, n.built(Shape::new(&dims))?);
            inputs.push(BodyInput::New { element: elements[i], ty, first: None });
            of.push(one);
        }
        let built = n.walk.body(body, &inputs, &[], node)?;
        let op = Scan {
            states,
            axes: vec![0; count],
            reverse: (0..count).map(|i| directions.get(i).is_some_and(|d| *d != 0)).collect(),
            out_axes: Vec::new(),
            out_reverse: Vec::new(),
            body: n.built(SubGraph::new(built.graph))?,
        };
        let mut results = n.build(|g| g.add_op(op, &[of.as_slice(), &built.captures].concat()))?;
        // Rows past the end are zero.
        for row in results.iter_mut().skip(states).filter(|_| length < most) {
            let mut pads = vec![(0, 0); n.shape(*row)?.rank()];
            pads[0] = (0, (most - length) as i64);
            let short = *row;
            *row = n.build(|g| g.pad(short, &pads, PadMode::Constant, 0.0))?;
        }
        parts.push(results);
        kinds = built.outputs;
    }
    let mut results = Vec::new();
    for (i, (element, _)) in kinds.into_iter().enumerate() {
        let ids: Vec<ValueId> = parts.iter().filter_map(|p| p.get(i).copied()).collect();
        let id = n.build(|g| g.stack(&ids, 0))?;
        results.push(n.result(id, element));
    }
    Ok(results)
}
