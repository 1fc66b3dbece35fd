//! What is computed on integers, and what is not.

use olivine_ir::op::Window;
use olivine_ir::{DType, Error, Graph, Tensor, ValueId};

use crate::{Options, compile};

fn names(g: &Graph) -> Vec<&'static str> {
    let options = Options { integers: true, ..Options::default() };
    match compile(g, &options) {
        Ok(compiled) => compiled.graph.nodes().iter().map(|n| n.op.name()).collect(),
        Err(e) => panic!("{e}"),
    }
}

fn number(g: &mut Graph, x: f32) -> ValueId {
    g.constant(Tensor::scalar(x))
}

/// An input of bytes as reals.
fn dequantised(g: &mut Graph, name: &str, shape: &[usize], scale: f32) -> Result<ValueId, Error> {
    let values = g.input(name, DType::U8, shape)?;
    let (scale, zero) = (number(g, scale), g.constant(Tensor::scalar(128u8)));
    g.dequantize_linear(values, scale, Some(zero), 0, 0)
}

#[test]
fn matmuls_of_dequantised_operands_are_matmuls_of_integers() -> Result<(), Error> {
    for per_column in [false, true] {
        let mut g = Graph::new("g");
        let x = dequantised(&mut g, "x", &[4, 8], 0.1)?;
        let values = g.param("w", DType::I8, [16, 8])?;
        let scale = match per_column {
            true => g.param("scales", DType::F32, [16])?,
            false => number(&mut g, 0.02),
        };
        let w = g.dequantize_linear(values, scale, None, 0, 0)?;
        let w = g.transpose(w, &[1, 0])?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        let names = names(&g);
        assert!(names.contains(&"qmatmul") && !names.contains(&"matmul"), "{names:?}");
    }
    Ok(())
}

#[test]
fn convolutions_of_dequantised_operands_are_convolutions_of_integers() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let x = dequantised(&mut g, "x", &[1, 4, 9, 9], 0.1)?;
    let values = g.param("w", DType::I8, [6, 4, 3, 3])?;
    let scale = g.param("scales", DType::F32, [6])?;
    let bias = g.param("b", DType::F32, [6])?;
    let w = g.dequantize_linear(values, scale, None, 0, 0)?;
    let y = g.conv(x, w, Some(bias), Window::unit(2), 1)?;
    g.output("y", y)?;
    let names = names(&g);
    assert!(names.contains(&"qconv") && !names.contains(&"conv"), "{names:?}");
    Ok(())
}

#[test]
fn scales_along_the_sum_and_reals_stay_matmuls_of_reals() -> Result<(), Error> {
    let mut g = Graph::new("g");
    let x = dequantised(&mut g, "x", &[4, 8], 0.1)?;
    let values = g.param("w", DType::I8, [8, 16])?;
    let scale = g.param("scales", DType::F32, [8])?;
    let w = g.dequantize_linear(values, scale, None, 0, 0)?;
    let y = g.matmul(x, w)?;
    let real = g.input("real", DType::F32, [16, 8])?;
    let z = g.matmul(y, real)?;
    g.output("z", z)?;
    assert_eq!(names(&g).iter().filter(|n| **n == "matmul").count(), 2);
    Ok(())
}

#[test]
fn bytes_move_as_they_are_where_the_scale_stays() -> Result<(), Error> {
    for (scale, expected) in [(0.1, 0), (0.2, 1)] {
        let mut g = Graph::new("g");
        let x = dequantised(&mut g, "x", &[4, 8], 0.1)?;
        let x = g.transpose(x, &[1, 0])?;
        let (scale, zero) = (number(&mut g, scale), g.constant(Tensor::scalar(128u8)));
        let y = g.quantize_linear(x, scale, Some(zero), DType::U8, 0, 0)?;
        let y = g.reshape(y, &[2, 16])?;
        g.output("y", y)?;
        let computing = g.nodes().iter().map(|n| n.op.name()).collect::<Vec<_>>();
        let options = Options { integers: true, ..Options::default() };
        let compiled = compile(&g, &options).unwrap_or_else(|e| panic!("{computing:?}: {e}"));
        let rounds = compiled.graph.nodes().iter().filter(|n| n.op.attrs().to_string().contains("round"));
        assert_eq!(rounds.count(), expected);
    }
    Ok(())
}
