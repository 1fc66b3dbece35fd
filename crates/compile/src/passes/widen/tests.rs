//! What becomes f32, what stays, and where numbers are rounded.

use olivine_ir::op::{Binary, ScalarOp};
use olivine_ir::{DType, Error, Graph, Op, Tensor, ValueId};

use super::*;
use crate::passes::dce::Dce;
use crate::{Compiled, compile};

const F16: DType = DType::F16;

fn widened_within(graph: &Graph, weight_bytes: usize) -> Result<Graph, Error> {
    let wide = WidenFloats(Widen { weight_bytes }).run(graph, &Options::default())?;
    wide.verify()?;
    for (before, after) in graph.outputs().iter().zip(wide.outputs()) {
        assert_eq!(graph.ty(before.value)?, wide.ty(after.value)?, "outputs keep their types");
    }
    Dce.run(&wide, &Options::default())
}

fn widened(graph: &Graph) -> Result<Graph, Error> {
    widened_within(graph, usize::MAX)
}

/// Every node as its name and its first result's dtype.
fn spelled(graph: &Graph) -> Vec<String> {
    let dtype = |id: ValueId| graph.values()[id.index()].ty.dtype;
    graph.nodes().iter().map(|n| format!("{} {}", n.op.name(), dtype(n.outputs[0]))).collect()
}

fn compiled(graph: &Graph) -> Compiled {
    let widen = Some(Widen { weight_bytes: usize::MAX });
    compile(graph, &Options { widen, ..Options::default() }).unwrap_or_else(|e| panic!("{e}"))
}

/// A linear layer and an activation.
fn layer(dtype: DType) -> Result<Graph, Error> {
    let mut g = Graph::new("layer");
    let x = g.input("x", dtype, [4, 8])?;
    let (w, b) = (g.param("w", dtype, [8, 16])?, g.param("b", dtype, [16])?);
    let y = g.linear(x, w, b)?;
    let y = g.tanh(y)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn a_layer_is_cast_at_its_edges_and_its_weights_at_load() -> Result<(), Error> {
    for dtype in [F16, DType::BF16] {
        let compiled = compiled(&layer(dtype)?);
        let loaded: Vec<String> = spelled(&compiled.graph)
            .into_iter()
            .zip(&compiled.at_load)
            .filter_map(|(n, once)| once.then_some(n))
            .collect();
        assert_eq!(loaded, ["cast f32", "cast f32"]);
        let run: Vec<String> = spelled(&compiled.graph)
            .into_iter()
            .zip(&compiled.at_load)
            .filter_map(|(n, once)| (!once).then_some(n))
            .collect();
        assert_eq!(run, ["cast f32".to_string(), format!("matmul {dtype}")]);
        let matmul = compiled.graph.nodes().last().map(|n| n.inputs[0]);
        assert_eq!(matmul.map(|x| compiled.graph.ty(x)).transpose()?.map(|t| t.dtype), Some(DType::F32));
    }
    Ok(())
}

#[test]
fn a_graph_without_narrow_floats_stays_as_it_is() -> Result<(), Error> {
    let g = layer(DType::F32)?;
    assert_eq!(WidenFloats(Widen { weight_bytes: 0 }).run(&g, &Options::default())?, g);
    Ok(())
}

#[test]
fn casts_that_the_model_asks_for_round_and_results_in_between_do_not() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [4])?;
    let h = g.cast(x, F16)?;
    let back = g.cast(h, DType::F32)?;
    g.output("rounded", back)?;
    let sum = g.add(h, h)?;
    let wide = g.cast(sum, DType::F32)?;
    g.output("unrounded", wide)?;
    let whole = g.cast(sum, DType::I32)?;
    g.output("whole", whole)?;
    let other = g.cast(sum, DType::BF16)?;
    g.output("other", other)?;
    let out = widened(&g)?;
    let made = |name: &str| out.output_named(name).map(|id| out.producer(id));
    let op = |node: Option<&Node>| node.map(|n| n.op.clone());
    let cast = |to: DType| Some(Op::ScalarOp(ScalarOp::Cast(to)));
    let rounded = made("rounded")?;
    assert_eq!(op(rounded), cast(DType::F32));
    assert_eq!(op(rounded.and_then(|n| out.producer(n.inputs[0]))), cast(F16));
    assert_eq!(op(made("unrounded")?), Some(Op::ScalarOp(ScalarOp::Binary(Binary::Add))));
    let whole = made("whole")?;
    assert_eq!(op(whole.and_then(|n| out.producer(n.inputs[0]))), cast(F16));
    let other = made("other")?;
    assert_eq!(other.map(|n| out.ty(n.inputs[0])).transpose()?.map(|t| t.dtype), Some(DType::F32));
    Ok(())
}

#[test]
fn an_embedding_is_gathered_narrow_and_a_short_table_is_cast_first() -> Result<(), Error> {
    for (rows, expected) in [
        (1000, ["gather f16", "cast f32", "exp f32", "cast f16"]),
        (2, ["cast f32", "gather f32", "exp f32", "cast f16"]),
    ] {
        let mut g = Graph::new("g");
        let ids = g.input("ids", DType::I64, [5])?;
        let table = g.param("table", F16, [rows, 8])?;
        let x = g.gather(table, ids, 0)?;
        let y = g.exp(x)?;
        g.output("y", y)?;
        assert_eq!(spelled(&widened(&g)?), expected);
    }
    Ok(())
}

#[test]
fn weights_beyond_the_limit_are_used_as_they_are() -> Result<(), Error> {
    let g = layer(F16)?;
    let weight = 8 * 16 * 4;
    assert_eq!(
        spelled(&widened_within(&g, weight)?),
        ["cast f32", "cast f32", "matmul f32", "cast f16", "add f16", "cast f32", "tanh f32", "cast f16"]
    );
    assert_eq!(
        spelled(&widened_within(&g, weight - 1)?),
        ["matmul f16", "cast f32", "cast f32", "add f32", "tanh f32", "cast f16"]
    );
    Ok(())
}

#[test]
fn a_long_cache_stays_narrow_where_rows_are_appended_and_where_it_is_attended_to() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let past = g.input("past", F16, [1, 2, 30, 4])?;
    let x = g.input("x", F16, [1, 2, 1, 4])?;
    let row = g.exp(x)?;
    let present = g.concat(&[past, row], 2)?;
    g.output("present", present)?;
    let spec = olivine_ir::op::Attention::new(olivine_ir::op::HeadLayout::Bhsd);
    let y = g.attention(spec, row, present, present, &[])?;
    g.output("y", y)?;
    assert_eq!(spelled(&widened(&g)?), ["cast f32", "exp f32", "cast f16", "concat f16", "attention f16"]);
    Ok(())
}

#[test]
fn what_depends_on_the_stored_bits_sees_them() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let x = g.input("x", F16, [4])?;
    let y = g.add(x, x)?;
    let bits = g.bitcast(y, DType::I16)?;
    g.output("bits", bits)?;
    assert_eq!(spelled(&widened(&g)?), ["cast f32", "add f32", "cast f16", "bitcast i16"]);
    Ok(())
}

#[test]
fn a_weight_that_a_loop_reads_is_cast_once() -> Result<(), Error> {
    let mut body = Graph::new("body");
    body.input("iteration", DType::I64, [])?;
    let state = body.input("state", F16, [4, 8])?;
    let w = body.input("w", F16, [8, 8])?;
    let going = body.constant(Tensor::scalar(true));
    let next = body.matmul(state, w)?;
    body.output("going", going)?;
    body.output("state", next)?;
    let mut g = Graph::new("g");
    let (x, count) = (g.input("x", F16, [4, 8])?, g.input("count", DType::I64, [])?);
    let w = g.param("w", F16, [8, 8])?;
    let begin = g.constant(Tensor::scalar(true));
    let y = g.loop_(count, begin, &[x], &[w], None, body)?;
    g.output("y", y[0])?;
    let compiled = compiled(&g);
    assert_eq!(spelled(&compiled.graph), ["cast f32", "loop f16"]);
    assert_eq!(compiled.at_load, [true, false]);
    Ok(())
}
