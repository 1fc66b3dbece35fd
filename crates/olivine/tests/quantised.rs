//! Models of dequantised operands on the CPU, whose matmuls and convolutions run on integers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use olivine::internals::OptionsExt as _;
use olivine::prelude::*;
use olivine_cases::oracle::{self, Between, Value};
use olivine_cases::{Fill, Rng};
use olivine_ir::op::Window;
use olivine_ir::{Error as GraphError, IntoShape, TensorType, ValueId};

/// A graph and what its inputs are.
struct Model {
    graph: Graph,
    inputs: Vec<(String, Tensor)>,
    rng: Rng,
}

impl Model {
    fn new() -> Self {
        Model { graph: Graph::new("g"), inputs: Vec::new(), rng: Rng::new(3) }
    }

    fn input(&mut self, dtype: DType, shape: &[usize], fill: Fill) -> ValueId {
        let ty = TensorType::new(dtype, shape.into_shape().unwrap());
        let name = format!("x{}", self.inputs.len());
        self.inputs.push((name.clone(), fill.tensor(ty, &mut self.rng).unwrap()));
        self.graph.input(&name, dtype, shape).unwrap()
    }

    /// Integers as reals, by one scale or one for each position of an axis.
    fn dequantised(&mut self, dtype: DType, shape: &[usize], axis: Option<usize>) -> ValueId {
        let values = self.input(dtype, shape, Fill::Anything);
        let scales: Vec<usize> = axis.map(|a| shape[a]).into_iter().collect();
        let scale = self.input(DType::F32, &scales, Fill::Uniform(0.01, 0.02));
        let zero = self.input(dtype, &scales, Fill::Whole(0, 9));
        let axis = axis.unwrap_or(0) as isize;
        self.graph.dequantize_linear(values, scale, Some(zero), axis, 0).unwrap()
    }

    /// The CPU's reals against the oracle's, both relative to the largest.
    fn check(mut self, what: &str, y: Result<ValueId, GraphError>) {
        self.graph.output("y", y.unwrap()).unwrap();
        let feeds: Vec<(String, Value)> =
            self.inputs.iter().map(|(name, t)| (name.clone(), Value::of(t))).collect();
        let want = oracle::run(&self.graph, &feeds, Between::Unrounded).unwrap()[0].to_f64();
        let executable = Session::new(Device::Cpu).unwrap().compile(&self.graph).unwrap();
        let got = executable.run(self.inputs.iter().map(|(name, t)| (name.as_str(), t))).unwrap();
        let got = got.get("y").unwrap().to_f64();
        let most = want.iter().fold(0f64, |m, x| m.max(x.abs()));
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((got - want).abs() <= 1e-6 * most, "{what} at {i}: got {got}, want {want}");
        }
    }
}

#[test]
fn matmuls_agree_with_reals() {
    use DType::{I8, U8};
    for (a, b, axis) in [(U8, I8, None), (U8, I8, Some(1)), (I8, I8, None), (U8, U8, Some(1))] {
        let mut m = Model::new();
        let (x, w) = (m.dequantised(a, &[3, 17, 40], None), m.dequantised(b, &[40, 24], axis));
        let y = m.graph.matmul(x, w);
        m.check(&format!("{a} by {b} {axis:?}"), y);
        // Weights stored by column.
        let mut m = Model::new();
        let (x, w) = (m.dequantised(a, &[17, 40], None), m.dequantised(b, &[24, 40], axis.map(|_| 0)));
        let y = m.graph.matmul_nt(x, w);
        m.check(&format!("{a} by {b} transposed {axis:?}"), y);
    }
}

#[test]
fn convolutions_agree_with_reals() {
    for (axis, bias) in [(None, false), (Some(0), true)] {
        let mut m = Model::new();
        let x = m.dequantised(DType::U8, &[2, 4, 9, 8], None);
        let w = m.dequantised(DType::I8, &[6, 4, 3, 3], axis);
        let bias = bias.then(|| m.input(DType::F32, &[6], Fill::Normal(0.0, 1.0)));
        let y = m.graph.conv(x, w, bias, Window::same(2, 1, 1), 1);
        m.check(&format!("{axis:?}"), y);
    }
}

#[test]
fn bytes_that_are_quantised_as_before_are_the_same_bytes() {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::U8, [256]).unwrap();
    let scale = g.constant(Tensor::scalar(0.0173f32));
    let zero = g.constant(Tensor::scalar(131u8));
    let real = g.dequantize_linear(x, scale, Some(zero), 0, 0).unwrap();
    let real = g.reshape(real, &[16, 16]).unwrap();
    let real = g.transpose(real, &[1, 0]).unwrap();
    let y = g.quantize_linear(real, scale, Some(zero), DType::U8, 0, 0).unwrap();
    g.output("y", y).unwrap();
    let bytes = Tensor::new([256], (0..=255u8).collect::<Vec<u8>>()).unwrap();
    let run = |options: SessionOptions| {
        let session = Session::with_options(Device::Cpu, options).unwrap();
        session.compile(&g).unwrap().run([("x", &bytes)]).unwrap().get("y").unwrap().to_f64()
    };
    let moved = run(SessionOptions::default());
    assert_eq!(moved, run(SessionOptions::new().no_fusion(true)));
    assert_eq!(moved[..3], [0.0, 16.0, 32.0]);
}
