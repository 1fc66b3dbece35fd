//! Matmuls with packed weights whose x is not finite, very large or very small: on every device that is here.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::ir::{BlockFormat, DType, Graph, Tensor, TensorType};
use olivine::{Device, Session};

const K: usize = 512;
const N: usize = 9;

/// The devices that this machine has.
fn sessions() -> Vec<Session> {
    let names = ["cpu", "vulkan", "wgpu"];
    let devices = names.iter().filter_map(|name| name.parse::<Device>().ok());
    devices.filter(|d| olivine::is_available(d.clone())).map(|d| Session::new(d).unwrap()).collect()
}

/// The product of two rows of x with a weight of ones.
fn matmul(session: &Session, format: BlockFormat, rows: [Vec<f32>; 2]) -> Vec<f32> {
    let bytes = olivine_quant::encode(format, &[1.0; N * K], None).unwrap();
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [2, K]).unwrap();
    let w = g.param_of("w", TensorType::packed(format, [N, K]).unwrap()).unwrap();
    let y = g.dequant_matmul(x, w).unwrap();
    g.output("y", y).unwrap();
    let executable = session.compile(&g).unwrap();
    executable.set_params([("w".to_string(), Tensor::packed(format, [N, K], bytes).unwrap())]).unwrap();
    let x = Tensor::new([2, K], rows.concat()).unwrap();
    let outputs = executable.run([("x", &x)]).unwrap();
    outputs["y"].as_slice::<f32>().unwrap().to_vec()
}

const FORMATS: [BlockFormat; 4] =
    [BlockFormat::Q8_0, BlockFormat::Q4_0, BlockFormat::Q4_K, BlockFormat::Q6_K];

#[test]
fn a_row_that_is_not_finite_gives_nothing_finite_and_leaves_the_others_alone() {
    for session in sessions() {
        for format in FORMATS {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut rows = [vec![1.0; K], vec![1.0; K]];
                rows[0][K / 2 + 3] = bad;
                let y = matmul(&session, format, rows);
                let name = session.device_name();
                assert!(y[..N].iter().all(|y| !y.is_finite()), "{name} {format} {bad}: {y:?}");
                assert!(y[N..].iter().all(|y| (y - K as f32).abs() < 8.0), "{name} {format} {bad}: {y:?}");
            }
        }
    }
}

#[test]
fn the_largest_and_the_smallest_numbers_are_multiplied() {
    for session in sessions() {
        for format in FORMATS {
            let mut rows = [vec![0.0; K], vec![0.0; K]];
            (rows[0][5], rows[1][7]) = (1e36, 1e-25);
            let y = matmul(&session, format, rows);
            let name = session.device_name();
            assert!(y[..N].iter().all(|y| (y / 1e36 - 1.0).abs() < 0.02), "{name} {format}: {y:?}");
            assert!(y[N..].iter().all(|y| (y / 1e-25 - 1.0).abs() < 0.02), "{name} {format}: {y:?}");
            let y = matmul(&session, format, [vec![0.0; K], vec![-0.0; K]]);
            assert!(y.iter().all(|y| *y == 0.0), "{name} {format}: {y:?}");
        }
    }
}
