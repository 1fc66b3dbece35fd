//! Narrow: matmuls, convolutions and attention of f32 read f16 operands, where the caller prefers speed.
//!
//! Needs: nothing; comes first. Produces: a graph of the same inputs, params and outputs, whose weights are f16 from load on.
//!
//! ```text
//!   x f32 ─ cast f16 ─┐
//!   w f32 ─ cast f16 ─┴─ matmul, sums in f32 ─ cast f32 ─ …
//! ```
//!
//! Matmuls with packed weights stay as they are, marked as fast: how x is rounded depends on the kernel. Casts of weights run at load. Those of results become part of the epilogue, and what is between two matmuls stays f32.
//! Numbers beyond f16's range overflow, as in any f16 model.

use olivine_ir::op::{Conv, DequantMatMul, MaskKind, MatMul};
use olivine_ir::{DType, Def, Error, Graph, Node, Op, ValueId};

use crate::{Options, Pass, at_load, rewrite};

/// See the module.
pub(crate) struct Narrow;

impl Pass for Narrow {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        let fixed = fixed_values(graph);
        let own = |node: &Node| narrowed_operands(graph, &fixed, node);
        let packed = |node: &Node| matches!(&node.op, Op::DequantMatMul(op) if !op.fast);
        if !graph.nodes().iter().any(|node| packed(node) || own(node).is_some()) {
            return Ok(graph.clone());
        }
        rewrite(graph, |out, _, node| {
            if let (Op::DequantMatMul(op), true) = (&node.op, packed(node)) {
                let operands = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
                let fast = DequantMatMul { fast: true, ..op.clone() };
                let y = out.new.add_named(node.name.clone(), fast, &operands)?[0];
                out.bind(node.outputs[0], y);
                return Ok(true);
            }
            let Some(cast) = own(node) else { return Ok(false) };
            let mut operands = Vec::with_capacity(node.inputs.len());
            for (i, id) in node.inputs.iter().enumerate() {
                let operand = out.get(*id)?;
                operands.push(if cast.contains(&i) { out.new.cast(operand, DType::F16)? } else { operand });
            }
            let narrow = out.new.add_named(node.name.clone(), node.op.clone(), &operands)?[0];
            let wide = out.new.cast(narrow, DType::F32)?;
            out.bind(node.outputs[0], wide);
            Ok(true)
        })
    }
}

/// For every value whether it is known at load.
fn fixed_values(graph: &Graph) -> Vec<bool> {
    let loaded = at_load(graph);
    let fixed = graph.values().iter().map(|value| match value.def {
        Def::Param { .. } | Def::Const(_) => true,
        Def::Input { .. } => false,
        Def::Node { node, .. } => loaded[node.index()],
    });
    fixed.collect()
}

/// Which of a node's operands are cast; `None` if it stays as it is.
fn narrowed_operands(graph: &Graph, fixed: &[bool], node: &Node) -> Option<Vec<usize>> {
    let is_f32 = |id: &ValueId| graph.ty(*id).is_ok_and(|ty| ty.dtype == DType::F32 && ty.packed.is_none());
    let is_packed =
        |i: usize| node.inputs.get(i).is_some_and(|id| graph.ty(*id).is_ok_and(|ty| ty.packed.is_some()));
    let cast: Vec<usize> = match &node.op {
        Op::MatMul(MatMul { epilogue: None }) => (0..2).collect(),
        Op::Conv(Conv { epilogue: None, bias, .. }) => (0..2 + usize::from(*bias)).collect(),
        // Packed caches stay what they are.
        Op::Attention(op) if op.mask != MaskKind::Bias && is_packed(1) => {
            [Some(0), op.optional_operands().sinks].into_iter().flatten().collect()
        }
        // Caches in pages are read in part: a cast would read all of them.
        Op::Attention(op) if op.mask != MaskKind::Bias && !op.sinks && !op.pages => (0..3).collect(),
        _ => return None,
    };
    let operands = cast.iter().map(|i| node.inputs.get(*i)).collect::<Option<Vec<_>>>()?;
    // What is known at load is computed once: as exactly as it can be.
    let varies = operands.iter().any(|id| !fixed[id.index()]);
    (varies && operands.iter().all(|id| is_f32(id))).then_some(cast)
}

#[cfg(test)]
mod tests {
    use olivine_ir::op::{Attention, HeadLayout};
    use olivine_ir::{BlockFormat, TensorType};

    use super::*;
    use crate::compile;

    fn names(g: &Graph) -> Vec<String> {
        let compiled = compile(g, &Options { narrow: true, ..Options::default() }).unwrap();
        let node = |(node, loaded): (&Node, &bool)| {
            format!("{}{}", node.op.name(), if *loaded { " at load" } else { "" })
        };
        compiled.graph.nodes().iter().zip(&compiled.at_load).map(node).collect()
    }

    #[test]
    fn weights_become_f16_at_load_and_results_stay_f32() {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [4, 8]).unwrap();
        let w = g.param("w", DType::F32, [8, 16]).unwrap();
        let b = g.param("b", DType::F32, [16]).unwrap();
        let y = g.linear(x, w, b).unwrap();
        let y = g.relu(y).unwrap();
        g.output("y", y).unwrap();
        assert_eq!(names(&g), ["cast", "cast at load", "matmul"]);
        let compiled = compile(&g, &Options { narrow: true, ..Options::default() }).unwrap();
        assert_eq!(compiled.graph.ty(compiled.graph.outputs()[0].value).unwrap().dtype, DType::F32);
    }

    #[test]
    fn queries_of_packed_caches_become_f16() {
        let mut g = Graph::new("g");
        let q = g.input("q", DType::F32, [1, 3, 2, 64]).unwrap();
        let ty = TensorType::packed(BlockFormat::Q8_0, [1, 9, 2, 64]).unwrap();
        let caches = ["k", "v"].map(|name| g.input_of(name, ty, vec![None; 4]).unwrap());
        let sinks = g.param("sinks", DType::F32, [2]).unwrap();
        let spec = Attention { sinks: true, ..Attention::new(HeadLayout::Bshd) };
        let y = g.attention(spec, q, caches[0], caches[1], &[sinks]).unwrap();
        g.output("y", y).unwrap();
        assert_eq!(names(&g), ["cast", "cast at load", "attention", "cast"]);
    }

    #[test]
    fn integers_f64_and_load_time_matmuls_stay() {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F64, [4, 8]).unwrap();
        let i = g.input("i", DType::I32, [4, 4]).unwrap();
        let w = g.param("w", DType::F32, [4, 4]).unwrap();
        for (name, value) in [("x", x), ("i", i), ("w", w)] {
            let y = if name == "x" { g.matmul_nt(value, value) } else { g.matmul(value, value) };
            g.output(name, y.unwrap()).unwrap();
        }
        assert!(names(&g).iter().all(|name| !name.contains("cast")), "{:?}", names(&g));
    }
}
