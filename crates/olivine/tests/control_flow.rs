//! Branches, loops and scans give the same on every device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use olivine::internals::OptionsExt as _;
use olivine::prelude::*;
use olivine::{Backend, PipelineCache};
use olivine_ir::op::Scan;
use olivine_ir::{Error as GraphError, SubGraph, ValueId};

fn sessions() -> Vec<Session> {
    let open = |device: &str, no_fusion| {
        let options = SessionOptions::new().pipeline_cache(PipelineCache::Off).no_fusion(no_fusion);
        let device: Device = device.parse().unwrap();
        Session::with_options(device, options).expect("a device; `apt-get install mesa-vulkan-drivers`")
    };
    vec![open("cpu", false), open("vulkan", false), open("vulkan", true), open("wgpu", false)]
}

/// Runs a graph on every device; all outputs as f64, in order.
fn everywhere(graph: &Graph, inputs: &[(&str, Tensor)], expected: &[Vec<f64>]) {
    for session in sessions() {
        let run = session.compile(graph).unwrap();
        // Twice: what one run leaves behind is not the next one's.
        for _ in 0..2 {
            let out = run.run(inputs.iter().map(|(name, t)| (*name, t))).unwrap();
            for (output, expected) in graph.outputs().iter().zip(expected) {
                let got = out.get(&output.name).unwrap().to_f64();
                assert_eq!(&got, expected, "{} on {}", output.name, session.device_name());
            }
        }
    }
}

fn graph(
    inputs: &[(DType, &[usize])],
    build: impl FnOnce(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, GraphError>,
) -> Graph {
    let mut g = Graph::new("g");
    let ids: Vec<ValueId> =
        inputs.iter().enumerate().map(|(i, (d, s))| g.input(&format!("x{i}"), *d, *s).unwrap()).collect();
    for (i, id) in build(&mut g, &ids).unwrap().into_iter().enumerate() {
        g.output(&format!("y{i}"), id).unwrap();
    }
    g
}

fn floats(values: &[f32]) -> Tensor {
    Tensor::new([values.len()], values.to_vec()).unwrap()
}

#[test]
fn an_if_goes_both_ways_in_one_executable() {
    let g = graph(&[(DType::Bool, &[]), (DType::F32, &[3])], |g, x| {
        let body = |double: bool| {
            graph(&[(DType::F32, &[3])], |g, x| {
                Ok(vec![if double { g.add(x[0], x[0])? } else { g.neg(x[0])? }])
            })
        };
        g.if_(x[0], body(true), body(false), &[x[1]])
    });
    let x = floats(&[1.0, -2.0, 3.0]);
    for session in sessions() {
        let run = session.compile(&g).unwrap();
        for (set, expected) in
            [(true, [2.0, -4.0, 6.0]), (false, [-1.0, 2.0, -3.0]), (true, [2.0, -4.0, 6.0])]
        {
            let set = Tensor::scalar(set);
            let out = run.run([("x0", &set), ("x1", &x)]).unwrap();
            assert_eq!(
                out.get("y0").unwrap().as_slice::<f32>().unwrap(),
                &expected,
                "{}",
                session.device_name()
            );
        }
    }
}

#[test]
fn a_condition_may_lie_in_the_midst_of_another_value() {
    let g = graph(&[(DType::Bool, &[3]), (DType::F32, &[2])], |g, x| {
        let body = |double: bool| {
            graph(&[(DType::F32, &[2])], |g, x| {
                Ok(vec![if double { g.add(x[0], x[0])? } else { g.neg(x[0])? }])
            })
        };
        let second = g.narrow(x[0], 0, 1, 1)?;
        let second = g.reshape(second, &[])?;
        g.if_(second, body(true), body(false), &[x[1]])
    });
    let x = floats(&[1.0, -2.0]);
    for session in sessions() {
        let run = session.compile(&g).unwrap();
        for (flags, expected) in [([false, true, false], [2.0, -4.0]), ([true, false, true], [-1.0, 2.0])] {
            let flags = Tensor::new([3], flags.to_vec()).unwrap();
            let out = run.run([("x0", &flags), ("x1", &x)]).unwrap();
            let y = out.get("y0").unwrap();
            assert_eq!(y.as_slice::<f32>().unwrap(), &expected, "{}", session.device_name());
        }
    }
}

/// Collatz steps until 1: the number, its path as rows, the trips.
fn collatz() -> Graph {
    let scalar: &[usize] = &[];
    graph(&[(DType::I32, scalar)], |g, x| {
        let body = graph(&[(DType::I64, scalar), (DType::I32, scalar)], |g, x| {
            let [one, two] = [1, 2].map(|n| g.constant(Tensor::scalar(n)));
            let bit = g.rem(x[1], two)?;
            let odd = g.eq(bit, one)?;
            let then = graph(&[(DType::I32, scalar)], |g, x| {
                let [one, three] = [1, 3].map(|n| g.constant(Tensor::scalar(n)));
                let y = g.mul(x[0], three)?;
                Ok(vec![g.add(y, one)?])
            });
            let other = graph(&[(DType::I32, scalar)], |g, x| {
                let two = g.constant(Tensor::scalar(2i32));
                Ok(vec![g.div(x[0], two)?])
            });
            let next = g.if_(odd, then, other, &[x[1]])?[0];
            let go = g.ne(next, one)?;
            Ok(vec![go, next, next])
        });
        let one = g.constant(Tensor::scalar(1i32));
        let begin = g.ne(x[0], one)?;
        let trips = g.constant(Tensor::scalar(1000i64));
        g.loop_(trips, begin, &[x[0]], &[], Some(12), body)
    })
}

#[test]
fn a_loop_with_a_branch_inside_ends_when_its_condition_says_so() {
    let path = |rows: &[f64]| {
        let mut rows = rows.to_vec();
        rows.resize(12, 0.0);
        rows
    };
    for (from, rows) in [
        (6, vec![3.0, 10.0, 5.0, 16.0, 8.0, 4.0, 2.0, 1.0]),
        (1, vec![]),
        (8, vec![4.0, 2.0, 1.0]),
        (7, vec![22.0, 11.0, 34.0, 17.0, 52.0, 26.0, 13.0, 40.0, 20.0, 10.0, 5.0, 16.0]),
    ] {
        let last = rows.last().copied().unwrap_or(f64::from(from));
        let expected = [vec![last], path(&rows), vec![rows.len() as f64]];
        everywhere(&collatz(), &[("x0", Tensor::scalar(from))], &expected);
    }
}

#[test]
fn a_long_scan_runs_forward_and_back_with_a_capture() {
    let (n, k) = (200, 3.0);
    for back in [false, true] {
        let g = graph(&[(DType::F32, &[1]), (DType::F32, &[n]), (DType::F32, &[1])], |g, x| {
            let one: &[usize] = &[1];
            let slice: &[usize] = &[];
            let body = graph(&[(DType::F32, one), (DType::F32, slice), (DType::F32, one)], |g, x| {
                let weighted = g.mul(x[1], x[2])?;
                let sum = g.add(x[0], weighted)?;
                Ok(vec![sum, sum])
            });
            let op = Scan {
                states: 1,
                axes: vec![0],
                reverse: vec![back],
                out_axes: vec![0],
                out_reverse: vec![back],
                body: SubGraph::new(body)?,
            };
            g.add_op(op, x)
        });
        let xs: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
        let mut sum = 5.0;
        let mut rows = vec![0.0; n];
        for trip in 0..n {
            let at = if back { n - 1 - trip } else { trip };
            sum += f64::from(xs[at]) * k;
            rows[at] = sum;
        }
        let inputs = [("x0", floats(&[5.0])), ("x1", floats(&xs)), ("x2", floats(&[k as f32]))];
        everywhere(&g, &inputs, &[vec![sum], rows]);
    }
}

#[test]
fn a_loop_over_weights_runs_when_they_are_set() {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [2]).unwrap();
    let w = g.param("w", DType::F32, [2]).unwrap();
    let limit = g.param("limit", DType::F32, [1]).unwrap();
    let one: &[usize] = &[1];
    let body = graph(&[(DType::I64, &[]), (DType::F32, &[2]), (DType::F32, one)], |g, x| {
        let y = g.add(x[1], x[1])?;
        let first = g.slice(y, 0, 0, 1, 1)?;
        let go = g.lt(first, x[2])?;
        Ok(vec![go, y])
    });
    let trips = g.constant(Tensor::scalar(50i64));
    let begin = g.constant(Tensor::scalar(true));
    let grown = g.loop_(trips, begin, &[w], &[limit], None, body).unwrap();
    let y = g.mul(x, grown[0]).unwrap();
    g.output("y", y).unwrap();
    for session in sessions() {
        let run = session.compile(&g).unwrap();
        run.set_param("w", floats(&[1.0, 3.0])).unwrap();
        run.set_param("limit", floats(&[10.0])).unwrap();
        let x = floats(&[2.0, 1.0]);
        let out = run.run([("x", &x)]).unwrap();
        assert_eq!(
            out.get("y").unwrap().as_slice::<f32>().unwrap(),
            &[32.0, 48.0],
            "{}",
            session.device_name()
        );
        run.set_param("w", floats(&[20.0, 1.0])).unwrap();
        let out = run.run([("x", &x)]).unwrap();
        assert_eq!(
            out.get("y").unwrap().as_slice::<f32>().unwrap(),
            &[80.0, 2.0],
            "{}",
            session.device_name()
        );
    }
}

/// A loop whose trips and condition are inputs.
fn open_loop(max_iterations: Option<usize>) -> Graph {
    graph(&[(DType::I64, &[]), (DType::Bool, &[]), (DType::F32, &[4])], |g, x| {
        let body = graph(&[(DType::I64, &[]), (DType::F32, &[4]), (DType::Bool, &[])], |g, x| {
            let y = g.add(x[1], x[1])?;
            Ok(vec![x[2], y])
        });
        g.loop_(x[0], x[1], &[x[2]], &[x[1]], max_iterations, body)
    })
}

#[test]
fn a_gpu_refuses_loops_without_a_bound_or_with_too_many_dispatches_and_the_cpu_runs_them() {
    for session in sessions() {
        let gpu = session.device().backend() != Backend::Cpu;
        for (bound, why) in [(None, "max_iterations"), (Some(1_000_000), "more than 100000 dispatches")] {
            match session.compile(&open_loop(bound)) {
                Ok(run) => {
                    assert!(!gpu, "{bound:?} on {}", session.device_name());
                    let (trips, go, x) = (Tensor::scalar(3i64), Tensor::scalar(true), floats(&[1.0; 4]));
                    let out = run.run([("x0", &trips), ("x1", &go), ("x2", &x)]).unwrap();
                    assert_eq!(out.get("y0").unwrap().to_f64(), [8.0; 4]);
                }
                Err(e) => {
                    assert!(gpu, "{e}");
                    let typed = matches!(&e, Error::Gpu(olivine::internals::gpu::Error::Unsupported { .. }));
                    assert!(typed && e.to_string().contains(why), "{e}");
                }
            }
        }
    }
}

#[test]
fn free_sizes_reach_inner_graphs() {
    let mut g = Graph::new("g");
    let c = g.input("c", DType::Bool, []).unwrap();
    let x = g.input_with_dims("x", DType::F32, [2], vec![Some("n".into())]).unwrap();
    let body = |double: bool| {
        graph(&[(DType::F32, &[2])], |g, x| Ok(vec![if double { g.add(x[0], x[0])? } else { x[0] }]))
    };
    let y = g.if_(c, body(true), body(false), &[x]).unwrap();
    g.output("y", y[0]).unwrap();
    for session in sessions() {
        let run = session.compile(&g).unwrap();
        for n in [2usize, 5, 1] {
            let (c, x) = (Tensor::scalar(true), floats(&vec![1.5; n]));
            let out = run.run([("c", &c), ("x", &x)]).unwrap();
            assert_eq!(out.get("y").unwrap().to_f64(), vec![3.0; n], "{}", session.device_name());
        }
    }
}
