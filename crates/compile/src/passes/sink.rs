//! Sink: casts of weights move behind the layout operations that follow them.
//!
//! Needs: fusion, which joins weights. Produces: load-time values that are rearranged in their stored dtype and cast once,
//! which takes less memory and lets a kernel read them in that dtype.

use std::collections::HashMap;

use olivine_ir::op::ScalarOp;
use olivine_ir::{DType, Error, Graph, Node, Op, ValueId};

use super::widen::is_narrow;
use crate::{Options, Pass, Rewriter, at_load};

/// See the module.
pub(crate) struct Sink;

impl Pass for Sink {
    fn name(&self) -> &'static str {
        "sink"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !graph.nodes().iter().any(|node| is_widening(graph, node)) {
            return Ok(graph.clone());
        }
        let loaded = at_load(graph);
        // For new f32 values the value that they are cast from.
        let mut narrow: HashMap<ValueId, ValueId> = HashMap::new();
        crate::rewrite(graph, |out, id, node| {
            if !loaded[id.index()] {
                return Ok(false);
            }
            if is_widening(graph, node) {
                let x = out.get(node.inputs[0])?;
                let wide = out.new.add_named(node.name.clone(), node.op.clone(), &[x])?[0];
                narrow.insert(wide, x);
                out.bind(node.outputs[0], wide);
                return Ok(true);
            }
            let Some(stored) = stored_operands(out, &narrow, node)? else { return Ok(false) };
            let moved = out.new.add_named(node.name.clone(), node.op.clone(), &stored)?[0];
            let wide = out.new.cast(moved, DType::F32)?;
            narrow.insert(wide, moved);
            out.bind(node.outputs[0], wide);
            Ok(true)
        })
    }
}

/// Whether a node casts f16 or bf16 to f32.
fn is_widening(graph: &Graph, node: &Node) -> bool {
    let (Op::ScalarOp(ScalarOp::Cast(DType::F32)), [x]) = (&node.op, node.inputs.as_slice()) else {
        return false;
    };
    graph.ty(*x).is_ok_and(|ty| is_narrow(ty.dtype))
}

/// The operands of a node that only moves elements, before they were cast, if all were of one dtype.
fn stored_operands(
    out: &mut Rewriter<'_>,
    narrow: &HashMap<ValueId, ValueId>,
    node: &Node,
) -> Result<Option<Vec<ValueId>>, Error> {
    // Operations that repeat or pad elements stay behind the cast: there would be more to cast.
    if !matches!(node.op, Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Concat(_) | Op::Stack(_)) {
        return Ok(None);
    }
    let mut stored = Vec::with_capacity(node.inputs.len());
    for id in &node.inputs {
        let Some(x) = narrow.get(&out.get(*id)?) else { return Ok(None) };
        stored.push(*x);
    }
    let dtype = |id: &ValueId| out.new.ty(*id).map(|ty| ty.dtype);
    let dtypes = stored.iter().map(dtype).collect::<Result<Vec<DType>, _>>()?;
    Ok(dtypes.windows(2).all(|w| w[0] == w[1]).then_some(stored).filter(|s| !s.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Widen, compile};

    #[test]
    fn weights_that_are_joined_are_cast_once_after_that() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F16, [4, 8])?;
        for name in ["q", "k", "v"] {
            let w = g.param(name, DType::F16, [8, 8])?;
            let y = g.matmul(x, w)?;
            let y = g.reshape(y, &[4, 2, 4])?;
            let y = g.transpose(y, &[1, 0, 2])?;
            g.output(&format!("{name}.y"), y)?;
        }
        let options = Options { widen: Some(Widen { weight_bytes: 1 << 20 }), ..Options::default() };
        let compiled = compile(&g, &options).map_err(|e| Error::BadData { problem: e.to_string() })?;
        let loaded = compiled.graph.nodes().iter().zip(&compiled.at_load).filter(|(_, once)| **once);
        let names: Vec<String> = loaded
            .map(|(n, _)| Ok(format!("{} {}", n.op.name(), compiled.graph.ty(n.outputs[0])?.dtype)))
            .collect::<Result<_, Error>>()?;
        assert_eq!(names, ["concat f16", "cast f32"]);
        Ok(())
    }
}
