//! Random numbers: those of the graph's generator, a function of seed, node and run.

use olivine_ir::{DType, Shape, Tensor, ValueId};

use super::Entry;
use super::arithmetic::filled;
use super::arity::{Since, Takes};
use super::cast::{convert, target};
use super::elementwise::reshaped;
use crate::ElementType;
use crate::import::{Answer, NodeContext, Stop, Value};
use crate::tensor::shape_of;

pub(super) const OPERATORS: &[Entry] = &[
    ("Bernoulli", Takes(1, 1), bernoulli),
    ("Dropout", Since(&[(1, 1, 2), (12, 3, 2)]), dropout),
    ("Multinomial", Takes(1, 1), multinomial),
    ("RandomNormal", Takes(0, 1), |n| random(n, Kind::Normal, false)),
    ("RandomNormalLike", Takes(1, 1), |n| random(n, Kind::Normal, true)),
    ("RandomUniform", Takes(0, 1), |n| random(n, Kind::Uniform, false)),
    ("RandomUniformLike", Takes(1, 1), |n| random(n, Kind::Uniform, true)),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Uniform,
    Normal,
}

/// The seed of a node: an integer of Dropout, of others an f32, whose bits are as good a key as any.
fn seed(n: &NodeContext<'_, '_>) -> Answer<u64> {
    if n.node.op_type() == "Dropout" {
        return Ok(n.int_or("seed", 0)? as u64);
    }
    Ok(n.float("seed")?.map_or(0, |seed| u64::from(seed.to_bits())))
}

/// Refuses to draw inside a body, whose iterations would all draw the same: the caller has to run the loop.
fn outside_bodies(n: &NodeContext<'_, '_>) -> Answer<()> {
    if n.walk.depth() > 0 { Err(Stop::PerIteration) } else { Ok(()) }
}

/// Numbers of f32 from 0 to below 1.
fn uniform(n: &mut NodeContext<'_, '_>, shape: Shape) -> Answer<ValueId> {
    outside_bodies(n)?;
    let seed = seed(n)?;
    n.build(|g| g.rng_uniform(DType::F32, shape, (0.0, 1.0), seed))
}

fn random(n: &mut NodeContext<'_, '_>, kind: Kind, like: bool) -> Answer<Vec<Value>> {
    outside_bodies(n)?;
    let asked = target(n, "dtype")?;
    let (shape, element) = if like {
        let x = n.tensor(0)?;
        (n.shape(x)?, asked.unwrap_or(n.element(0)?))
    } else {
        let dims = n.ints("shape")?.ok_or_else(|| n.wrong("attribute `shape` is missing"))?;
        (shape_of(&dims).map_err(|e| n.wrong(e))?, asked.unwrap_or(ElementType::F32))
    };
    let dtype = match element {
        ElementType::F32 | ElementType::F16 | ElementType::BF16 | ElementType::F64 => {
            element.dtype().unwrap_or(DType::F32)
        }
        other => return Err(n.wrong(format!("it draws floats, not {other}"))),
    };
    let names = if kind == Kind::Normal { ["mean", "scale"] } else { ["low", "high"] };
    let numbers = (f64::from(n.float_or(names[0], 0.0)?), f64::from(n.float_or(names[1], 1.0)?));
    let seed = seed(n)?;
    let y = n.build(|g| match kind {
        Kind::Uniform => g.rng_uniform(dtype, shape, numbers, seed),
        Kind::Normal => g.rng_normal(dtype, shape, numbers, seed),
    })?;
    Ok(vec![n.result(y, element)])
}

fn bernoulli(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (p, own) = (n.tensor(0)?, n.element(0)?);
    let element = target(n, "dtype")?.unwrap_or(own);
    let shape = n.shape(p)?;
    let drawn = uniform(n, shape)?;
    let y = n.build(|g| {
        let wide = if own == ElementType::F64 { DType::F64 } else { DType::F32 };
        let (p, drawn) = (g.cast(p, wide)?, g.cast(drawn, wide)?);
        let hit = g.lt(drawn, p)?;
        convert(g, hit, ElementType::Bool, element)
    })?;
    Ok(vec![n.result(y, element)])
}

/// Classes drawn by logits `[batch, classes]`: the place of the largest sum of a logit and −ln(−ln u).
fn multinomial(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let element = target(n, "dtype")?.unwrap_or(ElementType::I32);
    if !matches!(element, ElementType::I32 | ElementType::I64) {
        return Err(n.wrong(format!("it draws i32 or i64, not {element}")));
    }
    let shape = n.shape(x)?;
    let [batch, classes] = shape.dims() else {
        return Err(n.wrong(format!("its input must be [batch, classes], it is {shape}")));
    };
    let samples =
        usize::try_from(n.int_or("sample_size", 1)?).map_err(|_| n.wrong("sample_size is negative"))?;
    let all = n.built(Shape::new(&[*batch, samples, *classes]))?;
    let drawn = uniform(n, all)?;
    let logits = n.build(|g| g.cast(x, DType::F32))?;
    let logits = reshaped(n, logits, &[*batch, 1, *classes])?;
    let y = n.build(|g| {
        let noise = g.log(drawn)?;
        let noise = g.neg(noise)?;
        let noise = g.log(noise)?;
        let scores = g.sub(logits, noise)?;
        let place = g.argmax(scores, 2, false)?;
        convert(g, place, ElementType::I64, element)
    })?;
    Ok(vec![n.result(y, element)])
}

/// Dropout: the input itself and a mask of ones, unless the node says that it trains.
fn dropout(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let (x, element) = (n.tensor(0)?, n.element(0)?);
    let dtype = n.dtype(x)?;
    // The mask is of the input's type up to opset 9.
    let mask_element = if n.opset() < 10 { element } else { ElementType::Bool };
    let mask_dtype = if n.opset() < 10 { dtype } else { DType::Bool };
    let training = if n.opset() >= 12 {
        n.optional(2)?
    } else if n.opset() < 7 && !n.flag("is_test", false)? {
        Some(n.scalar(DType::Bool, 1.0))
    } else {
        None
    };
    let never = match training {
        Some(flag) => n.constant_of(flag).is_some_and(|t| t.to_f64().iter().all(|v| *v == 0.0)),
        None => true,
    };
    let Some(training) = training.filter(|_| !never) else {
        let mask = n.build(|g| filled(g, Tensor::scalar_of(mask_dtype, 1.0), x))?;
        return Ok(vec![n.value(0)?, n.result(mask, mask_element)]);
    };
    let ratio = if n.opset() >= 12 && n.has(1) {
        let given = n.tensor(1)?;
        n.build(|g| g.cast(given, DType::F32))?
    } else {
        let ratio = if n.opset() < 12 { n.float_or("ratio", 0.5)? } else { 0.5 };
        n.scalar(DType::F32, f64::from(ratio))
    };
    let (training, ratio) = (one(n, training)?, one(n, ratio)?);
    let shape = n.shape(x)?;
    let drawn = uniform(n, shape)?;
    let (one, zero) = (n.scalar(DType::F32, 1.0), n.scalar(dtype, 0.0));
    let (y, mask) = n.build(|g| {
        let kept = g.ge(drawn, ratio)?;
        let resting = g.not(training)?;
        let kept = g.or(kept, resting)?;
        let share = g.sub(one, ratio)?;
        let scale = g.div(one, share)?;
        let scale = g.cast(scale, dtype)?;
        let scaled = g.mul(x, scale)?;
        let dropped = g.select(kept, scaled, zero)?;
        Ok((g.select(training, dropped, x)?, g.cast(kept, mask_dtype)?))
    })?;
    Ok(vec![n.result(y, element), n.result(mask, mask_element)])
}

/// A tensor of one element as a scalar.
fn one(n: &mut NodeContext<'_, '_>, x: ValueId) -> Answer<ValueId> {
    let shape = n.shape(x)?;
    if shape.numel() != 1 {
        return Err(n.wrong(format!("an input should be one number, it is {shape}")));
    }
    reshaped(n, x, &[])
}
