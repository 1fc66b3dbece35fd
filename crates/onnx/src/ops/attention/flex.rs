//! FlexAttention: attention whose scores and weights go through graphs of the model's.

use olivine_ir::{DType, ValueId};

use super::scores::Heads;
use crate::ElementType;
use crate::element::element_type;
use crate::import::{Answer, NodeContext, Value};

pub(super) fn flex_attention(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let element = n.element(0)?;
    let (q, k, v) = (n.tensor(0)?, n.tensor(1)?, n.tensor(2)?);
    let dtype = n.dtype(q)?;
    let default = if dtype == DType::F64 { ElementType::F64 } else { ElementType::F32 };
    let precision = precision(n, default)?;
    let mut heads = Heads::new(q, k, v);
    heads.scale = n.float("scale")?.map(f64::from);
    let is_plain = n.attribute("score_mod").is_none() && n.attribute("prob_mod").is_none();
    if is_plain && precision == default {
        let y = heads.result(n)?;
        return n.like_first(y);
    }
    let scores = heads.qk(n)?;
    let at = precision.dtype().ok_or_else(|| n.wrong(format!("softmax in {precision} is impossible")))?;
    let scores = n.build(|g| g.cast(scores, at))?;
    let scores = modified(n, "score_mod", scores, precision)?;
    let weights = n.build(|g| g.softmax(scores, -1))?;
    let weights = modified(n, "prob_mod", weights, precision)?;
    let repeats = n.shape(q)?[1] / n.shape(k)?[1];
    let y = n.build(|g| {
        let v = if repeats == 1 { v } else { g.repeat(v, 1, repeats)? };
        let v = g.cast(v, at)?;
        let y = g.matmul(weights, v)?;
        g.cast(y, dtype)
    })?;
    Ok(vec![n.result(y, element)])
}

/// The type that the softmax and the graphs before and after it are computed in.
fn precision(n: &NodeContext<'_, '_>, default: ElementType) -> Answer<ElementType> {
    let Some(number) = n.int("softmax_precision")? else { return Ok(default) };
    let found = i32::try_from(number).ok().and_then(element_type);
    match found {
        Some(float @ (ElementType::F16 | ElementType::BF16 | ElementType::F32 | ElementType::F64)) => {
            Ok(float)
        }
        _ => Err(n.wrong(format!("softmax_precision {number} is no float"))),
    }
}

/// x through a graph of the node's, if it has it.
fn modified(n: &mut NodeContext<'_, '_>, name: &str, x: ValueId, element: ElementType) -> Answer<ValueId> {
    if n.attribute(name).is_none() {
        return Ok(x);
    }
    let (graph, node) = (n.graph_attribute(name)?, n.node);
    let argument = n.result(x, element);
    let results = n.walk.inline(graph, vec![argument], node)?;
    let [Value::Tensor(held)] = results.as_slice() else {
        return Err(n.wrong(format!("{name} should return one tensor")));
    };
    let y = n.walk.local(*held)?;
    let (from, to) = (n.ty(x)?, n.ty(y)?);
    if from != to {
        return Err(n.wrong(format!("{name} makes {to} of {from}; it should keep type and shape")));
    }
    Ok(y)
}
