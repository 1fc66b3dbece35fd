//! Sequences and optional values: lists while a model is imported, and nothing but their tensors in the graph.

use olivine_ir::{Shape, Tensor, ValueId};

use super::Entry;
use super::arity::{ANY, Takes};
use super::shape::reshape_to;
use crate::ElementType;
use crate::Kind;
use crate::element::element_type;
use crate::import::{Answer, NodeContext, Stop, TensorRef, Value};

pub(super) const OPERATORS: &[Entry] = &[
    ("ConcatFromSequence", Takes(1, 1), concat_from_sequence),
    ("Optional", Takes(1, 1), optional),
    ("OptionalGetElement", Takes(1, 1), optional_get_element),
    ("OptionalHasElement", Takes(1, 1), optional_has_element),
    ("SequenceAt", Takes(2, 1), sequence_at),
    ("SequenceConstruct", Takes(ANY, 1), sequence_construct),
    ("SequenceEmpty", Takes(0, 1), sequence_empty),
    ("SequenceErase", Takes(2, 1), sequence_erase),
    ("SequenceInsert", Takes(3, 1), sequence_insert),
    ("SequenceLength", Takes(1, 1), sequence_length),
    ("SequenceMap", Takes(ANY, ANY), sequence_map),
    ("SplitToSequence", Takes(2, 1), split_to_sequence),
];

/// Elements that a sequence may come to when a tensor is taken apart.
const MOST_PARTS: usize = 1 << 16;

/// Input `i`, a sequence.
fn sequence(n: &NodeContext<'_, '_>, i: usize) -> Answer<(Vec<Value>, Option<ElementType>)> {
    match n.value(i)? {
        Value::Sequence(items, element) => Ok((items, element)),
        other => Err(n.wrong(format!("input {i} is {}, not a sequence", other.describe()))),
    }
}

/// A position in a list of `length`, counted from the back where it is negative; `last` is the greatest that counts.
fn position(n: &NodeContext<'_, '_>, at: i64, length: usize, last: i64) -> Answer<usize> {
    let from_front = if at < 0 { at.saturating_add(length as i64) } else { at };
    match usize::try_from(from_front) {
        Ok(found) if from_front <= last => Ok(found),
        _ => Err(n.wrong(format!("position {at} is outside a sequence of {length}"))),
    }
}

/// The element type of all tensors of a list, if it has one.
fn common(n: &NodeContext<'_, '_>, items: &[Value]) -> Answer<Option<ElementType>> {
    let mut found = None;
    for item in items {
        if let Value::Tensor(held) = item {
            let element = *found.get_or_insert(held.element);
            if element != held.element {
                return Err(n.wrong(format!("a sequence of {element} has an element of {}", held.element)));
            }
        }
    }
    Ok(found)
}

fn sequence_construct(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let items = (0..n.input_count()).map(|i| n.value(i)).collect::<Answer<Vec<_>>>()?;
    let element = common(n, &items)?;
    Ok(vec![Value::Sequence(items, element)])
}

fn sequence_empty(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let element = match n.int("dtype")? {
        None => ElementType::F32,
        Some(number) => i32::try_from(number)
            .ok()
            .and_then(element_type)
            .ok_or_else(|| n.wrong(format!("element type {number} is unknown")))?,
    };
    Ok(vec![Value::Sequence(Vec::new(), Some(element))])
}

fn sequence_length(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (items, _) = sequence(n, 0)?;
    let id = n.constant(Tensor::scalar(items.len() as i64));
    Ok(vec![n.result(id, ElementType::I64)])
}

fn sequence_at(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (mut items, _) = sequence(n, 0)?;
    let at = n.fixed_int(1)?;
    let at = position(n, at, items.len(), items.len() as i64 - 1)?;
    Ok(vec![items.swap_remove(at)])
}

fn sequence_insert(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (mut items, element) = sequence(n, 0)?;
    let item = n.value(1)?;
    let at = match n.has(2) {
        true => n.fixed_int(2)?,
        false => items.len() as i64,
    };
    let at = position(n, at, items.len(), items.len() as i64)?;
    items.insert(at, item);
    let found = common(n, &items)?;
    Ok(vec![Value::Sequence(items, found.or(element))])
}

fn sequence_erase(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (mut items, element) = sequence(n, 0)?;
    let at = match n.has(1) {
        true => n.fixed_int(1)?,
        false => -1,
    };
    let at = position(n, at, items.len(), items.len() as i64 - 1)?;
    items.remove(at);
    Ok(vec![Value::Sequence(items, element)])
}

fn split_to_sequence(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (shape, element) = (n.shape(x)?, n.element(0)?);
    let axis = n.axis(n.int_or("axis", 0)?, shape.rank())?;
    let length = shape[axis];
    let keepdims = n.has(1) || n.flag("keepdims", true)?;
    let sizes: Vec<usize> = if n.has(1) {
        let split = n.fixed_ints(1)?;
        let each: Result<Vec<usize>, _> = split.iter().map(|s| usize::try_from(*s)).collect();
        let each = each.map_err(|_| n.wrong(format!("parts {split:?} are not all from 0 on")))?;
        let is_scalar = {
            let id = n.tensor(1)?;
            n.shape(id)?.rank() == 0
        };
        match each.as_slice() {
            [0] if is_scalar => return Err(n.wrong("its parts have no elements")),
            [size] if is_scalar && length.div_ceil(*size) > MOST_PARTS => {
                return Err(too_long(n, length.div_ceil(*size)));
            }
            // As many of this size as there are, and what is left.
            [size] if is_scalar => (0..length).step_by(*size).map(|at| (*size).min(length - at)).collect(),
            _ => each,
        }
    } else if length > MOST_PARTS {
        return Err(too_long(n, length));
    } else {
        vec![1; length]
    };
    if sizes.is_empty() {
        return Ok(vec![Value::Sequence(Vec::new(), Some(element))]);
    }
    let mut parts = n.build(|g| g.split(x, axis as isize, &sizes))?;
    if !keepdims {
        let rest: Vec<usize> =
            shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, s)| *s).collect();
        let to = n.built(Shape::new(&rest))?;
        for part in &mut parts {
            *part = reshape_to(n, *part, to)?;
        }
    }
    let items = parts.into_iter().map(|id| n.result(id, element)).collect();
    Ok(vec![Value::Sequence(items, Some(element))])
}

fn too_long(n: &NodeContext<'_, '_>, parts: usize) -> Stop {
    n.wrong(format!("a sequence of {parts} is longer than {MOST_PARTS}"))
}

fn concat_from_sequence(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (items, _) = sequence(n, 0)?;
    let mut operands: Vec<ValueId> = Vec::with_capacity(items.len());
    let mut kind: Option<TensorRef> = None;
    for item in &items {
        let Value::Tensor(held) = item else {
            return Err(n.wrong(format!("an element is {}, not a tensor", item.describe())));
        };
        kind.get_or_insert(*held);
        operands.push(n.walk.local(*held)?);
    }
    let (Some(kind), Some(first)) = (kind, operands.first().copied()) else {
        return Err(n.wrong("its sequence is empty: the result's type is not known"));
    };
    let axis = n.int("axis")?.ok_or_else(|| n.wrong("attribute `axis` is missing"))?;
    let rank = n.shape(first)?.rank();
    let y = if n.flag("new_axis", false)? {
        let axis = n.axis(axis, rank + 1)?;
        n.build(|g| g.stack(&operands, axis))?
    } else {
        let axis = n.axis(axis, rank)?;
        n.build(|g| g.concat(&operands, axis as isize))?
    };
    Ok(vec![n.result(y, kind.element)])
}

fn sequence_map(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (body, node) = (n.graph_attribute("body")?, n.node);
    let (items, _) = sequence(n, 0)?;
    let others = (1..n.input_count()).map(|i| n.value(i)).collect::<Answer<Vec<_>>>()?;
    let mut results: Vec<Vec<Value>> = vec![Vec::new(); body.output.len()];
    for (i, item) in items.iter().enumerate() {
        let mut arguments = vec![item.clone()];
        for other in &others {
            arguments.push(match other {
                Value::Sequence(list, _) => match list.get(i) {
                    Some(value) if list.len() == items.len() => value.clone(),
                    _ => {
                        let problem = format!("sequences of {} and of {}", items.len(), list.len());
                        return Err(n.wrong(problem));
                    }
                },
                same => same.clone(),
            });
        }
        for (list, value) in results.iter_mut().zip(n.walk.inline(body, arguments, node)?) {
            list.push(value);
        }
    }
    let mut sequences = Vec::with_capacity(results.len());
    for (list, declared) in results.into_iter().zip(&body.output) {
        let element = match common(n, &list)? {
            Some(element) => Some(element),
            None => match crate::model::port(declared).kind {
                Kind::Tensor { element, .. } => Some(element),
                _ => None,
            },
        };
        sequences.push(Value::Sequence(list, element));
    }
    Ok(sequences)
}

fn optional(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    Ok(vec![if n.has(0) { n.value(0)? } else { Value::Nothing }])
}

fn optional_get_element(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    match n.value(0)? {
        Value::Nothing => Err(n.wrong("its optional value is not there")),
        value => Ok(vec![value]),
    }
}

fn optional_has_element(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let id = n.constant(Tensor::scalar(n.has(0)));
    Ok(vec![n.result(id, ElementType::Bool)])
}
