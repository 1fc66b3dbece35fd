//! What each operation means, said as directly as the mathematics is written: slow, in f64 and i64, without rounding.
//!
//! Nothing here is shared with a backend, so that an agreement means something.

mod attention;
pub(crate) mod backend;
mod contraction;
mod control;
mod conv;
mod create;
mod elementwise;
mod index;
mod interpolate;
mod join;
mod layout;
mod norm;
mod packed;
mod pool;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod region;
mod resize;
mod rope;
mod scan;
mod signal;
pub mod special;
mod state_space;
mod value;

use olivine_ir::{Def, Graph, Op, TensorType, for_each_op};

use crate::denormals::flushed;

pub use elementwise::Scalar;
pub(crate) use value::limits;
pub use value::{Numbers, Value};

/// The results of one operation.
pub fn eval(op: &Op, operands: &[Value]) -> Result<Vec<Value>, String> {
    eval_in(op, operands, Between::Unrounded)
}

/// As [`eval`]; `between` says how graphs inside the operation hold their results.
fn eval_in(op: &Op, operands: &[Value], between: Between) -> Result<Vec<Value>, String> {
    let types: Vec<_> = operands.iter().map(|v| v.ty).collect();
    let results = op.infer(&types)?;
    if let Some(v) = operands.iter().find(|v| v.len() != v.ty.shape.numel()) {
        return Err(format!("{} holds {} elements", v.ty, v.len()));
    }
    if results.is_empty() {
        return Ok(Vec::new());
    }
    let call = Call { results: &results, between };
    macro_rules! eval {
        ($($name:ident,)*) => {
            match op { $(Op::$name(op) => op.eval(operands, &call)),* }
        };
    }
    for_each_op!(eval)
}

/// What an operation means. Every operation implements it, by [`meanings!`] beside its function.
trait Meaning {
    fn eval(&self, x: &[Value], call: &Call<'_>) -> Result<Vec<Value>, String>;
}

/// What an operation may need beside its operands.
struct Call<'a> {
    /// The types of the results, at least one.
    results: &'a [TensorType],
    /// How graphs inside the operation hold their results.
    between: Between,
}

impl Call<'_> {
    /// The type of the first result.
    fn ty(&self) -> TensorType {
        self.results[0]
    }
}

/// Implements [`Meaning`]: `meanings! { |op, x, call| Conv => one(conv(op, x, call.ty())), }`.
macro_rules! meanings {
    (|$op:ident, $x:ident, $call:ident| $($name:ident => $value:expr),* $(,)?) => {$(
        impl $crate::oracle::Meaning for olivine_ir::op::$name {
            #[allow(unused_variables, reason = "not every operation needs all")]
            fn eval(
                &self,
                $x: &[$crate::oracle::Value],
                $call: &$crate::oracle::Call<'_>,
            ) -> Result<Vec<$crate::oracle::Value>, String> {
                let $op = self;
                $value
            }
        }
    )*};
}
use meanings;

/// The result of an operation that has one.
fn one(value: Result<Value, String>) -> Result<Vec<Value>, String> {
    value.map(|v| vec![v])
}

/// Whether results between operations are held as computed or as their dtype would store them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// In f64, as if every operation were exact.
    Unrounded,
    /// Rounded to the value's dtype, for graphs in which one step decides by the last bit of another.
    Rounded,
    /// In f64, with inputs and results that are denormal in f32 as zeros.
    Flushed,
}

/// A value as the rest of the graph sees it; `inner` is a result that is no output.
fn held(value: Value, between: Between, inner: bool) -> Value {
    match between {
        Between::Rounded if inner => value.rounded(),
        Between::Flushed => flushed(value),
        _ => value,
    }
}

/// The outputs of a whole graph; `feeds` gives inputs and params by name.
pub fn run(graph: &Graph, feeds: &[(String, Value)], between: Between) -> Result<Vec<Value>, String> {
    let mut values: Vec<Option<Value>> = vec![None; graph.values().len()];
    let mut uses = graph.use_counts();
    for (slot, value) in values.iter_mut().zip(graph.values()) {
        *slot = match &value.def {
            Def::Input { name, .. } | Def::Param { name } => {
                let feed = feeds.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
                let feed = feed.ok_or_else(|| format!("nothing is fed to `{name}`"))?;
                if feed.ty != value.ty {
                    return Err(format!("`{name}` is {}, fed {}", value.ty, feed.ty));
                }
                Some(held(feed, between, false))
            }
            Def::Const(t) => Some(held(Value::of(t), between, false)),
            Def::Node { .. } => None,
        };
    }
    for node in graph.nodes() {
        let mut operands = Vec::with_capacity(node.inputs.len());
        for id in &node.inputs {
            uses[id.index()] -= 1;
            let slot = &mut values[id.index()];
            // The last reader takes the value, so that a long graph of large tensors stays small.
            let value = if uses[id.index()] == 0 { slot.take() } else { slot.clone() };
            operands.push(value.ok_or_else(|| format!("`{}` reads a value not yet made", node.name))?);
        }
        let results = eval_in(&node.op, &operands, between)
            .map_err(|e| format!("{} `{}`: {e}", node.op.name(), node.name))?;
        for (id, value) in node.outputs.iter().zip(results) {
            let inner = graph.outputs().iter().all(|o| o.value != *id);
            values[id.index()] = Some(held(value, between, inner));
        }
    }
    graph
        .outputs()
        .iter()
        .map(|o| values[o.value.index()].clone().ok_or_else(|| format!("output `{}` is not made", o.name)))
        .collect()
}
