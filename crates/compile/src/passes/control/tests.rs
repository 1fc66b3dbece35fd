//! What is decided at compile time, and what stays.

use olivine_ir::{DType, Error, Graph, Tensor, ValueId};

use crate::{Options, compile};

fn names(g: &Graph) -> Vec<&'static str> {
    match compile(g, &Options::default()) {
        Ok(compiled) => compiled.graph.nodes().iter().map(|n| n.op.name()).collect(),
        Err(e) => panic!("{e}"),
    }
}

fn unary(name: &str, f: impl Fn(&mut Graph, ValueId) -> Result<ValueId, Error>) -> Result<Graph, Error> {
    let mut g = Graph::new(name);
    let x = g.input("x", DType::F32, [4])?;
    let y = f(&mut g, x)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn a_constant_condition_leaves_one_branch() -> Result<(), Error> {
    for (condition, expected) in [(true, "exp"), (false, "tanh")] {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [4])?;
        let c = g.constant(Tensor::scalar(condition));
        let y = g.if_(c, unary("t", |g, x| g.exp(x))?, unary("e", |g, x| g.tanh(x))?, &[x])?;
        g.output("y", y[0])?;
        assert_eq!(names(&g), [expected]);
    }
    Ok(())
}

/// `x = x + x` for some iterations.
fn doubling(iterations: i64, always: bool) -> Result<Graph, Error> {
    let mut body = Graph::new("b");
    body.input("iteration", DType::I64, [])?;
    let x = body.input("x", DType::F32, [4])?;
    let go = if always { body.constant(Tensor::scalar(true)) } else { body.input("go", DType::Bool, [])? };
    let y = body.add(x, x)?;
    body.output("go", go)?;
    body.output("y", y)?;
    body.output("row", x)?;
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [4])?;
    let count = g.constant(Tensor::scalar(iterations));
    let begin = g.constant(Tensor::scalar(true));
    let captures = if always { vec![] } else { vec![g.input("go", DType::Bool, [])?] };
    let y = g.loop_(count, begin, &[x], &captures, Some(1000), body)?;
    for (i, y) in y.iter().enumerate() {
        g.output(&i.to_string(), *y)?;
    }
    Ok(g)
}

#[test]
fn short_loops_are_unrolled_and_long_or_open_ones_stay() -> Result<(), Error> {
    assert!(!names(&doubling(3, true)?).contains(&"loop"));
    assert!(!names(&doubling(0, false)?).contains(&"loop"));
    assert!(names(&doubling(900, true)?).contains(&"loop"));
    assert!(names(&doubling(3, false)?).contains(&"loop"));
    Ok(())
}

#[test]
fn bodies_come_out_as_kernel_operations() -> Result<(), Error> {
    let composite = |g: &mut Graph, x: ValueId| {
        let y = g.reshape(x, &[2, 2])?;
        let y = g.einsum("ij,kj->ik", &[y, y])?;
        let y = g.repeat(y, 1, 2)?;
        let y = g.reshape(y, &[8])?;
        g.slice(y, 0, 0, 8, 2)
    };
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [4])?;
    let c = g.input("c", DType::Bool, [])?;
    let y = g.if_(c, unary("t", composite)?, unary("e", |g, x| g.exp(x))?, &[x])?;
    g.output("y", y[0])?;
    assert_eq!(names(&g), ["if"]);
    Ok(())
}

#[test]
fn a_long_scan_becomes_a_loop() -> Result<(), Error> {
    let mut body = Graph::new("b");
    let (s, x) = (body.input("s", DType::F32, [])?, body.input("x", DType::F32, [])?);
    let y = body.add(s, x)?;
    body.output("s", y)?;
    body.output("y", y)?;
    let mut g = Graph::new("g");
    let (s, x) = (g.input("s", DType::F32, [])?, g.input("x", DType::F32, [500])?);
    let y = g.scan(&[s], &[x], &[], body)?;
    g.output("y", y[1])?;
    assert_eq!(names(&g), ["loop"]);
    Ok(())
}

#[test]
fn a_weight_that_a_body_reads_transposed_is_turned_once_at_load() -> Result<(), Error> {
    let mut body = Graph::new("b");
    let (s, x) = (body.input("s", DType::F32, [1, 8])?, body.input("x", DType::F32, [1, 8])?);
    let w = body.input("w", DType::F32, [8, 8])?;
    let turned = body.transpose(w, &[1, 0])?;
    let halved = body.binary_scalar(olivine_ir::op::Binary::Mul, turned, 0.5)?;
    let product = body.matmul(s, halved)?;
    let y = body.add(product, x)?;
    body.output("s", y)?;
    let mut g = Graph::new("g");
    let (s, x) = (g.input("s", DType::F32, [1, 8])?, g.input("x", DType::F32, [100, 1, 8])?);
    let w = g.param("w", DType::F32, [8, 8])?;
    let y = g.scan(&[s], &[x], &[w], body)?;
    g.output("y", y[0])?;
    let compiled = match compile(&g, &Options::default()) {
        Ok(compiled) => compiled,
        Err(e) => panic!("{e}"),
    };
    let outer: Vec<(&str, bool)> =
        compiled.graph.nodes().iter().map(|n| n.op.name()).zip(compiled.at_load).collect();
    assert!(outer.iter().filter(|(name, _)| *name != "loop").all(|(_, at_load)| *at_load), "{outer:?}");
    let body = compiled.graph.nodes().iter().find_map(|n| n.op.bodies().first().copied());
    let inner: Vec<&str> =
        body.map(|b| b.graph().nodes().iter().map(|n| n.op.name()).collect()).unwrap_or_default();
    // The last one is whether to go on.
    assert_eq!(inner, ["gather", "matmul", "fused"]);
    Ok(())
}
