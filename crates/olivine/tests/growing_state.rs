//! States that grow: caches that a run appends to in place, with room for more.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::ExecutableExt;
use olivine::prelude::*;
use olivine_ir::op::{Attention, HeadLayout};
use olivine_ir::{Error as GraphError, ValueId};

const HEADS: usize = 2;
const DIM: usize = 8;

fn everywhere(test: impl Fn(&Session)) {
    for device in [Device::Cpu, Device::Vulkan, Device::Wgpu] {
        test(&Session::new(device).unwrap());
    }
}

/// A layer of attention over `past` and the new rows of `x`: by the operation, or spelled out as exporters do.
fn decoder(spelled_out: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new("decoder");
    let open = |name: &str| Some(name.to_string());
    let width = HEADS * DIM;
    let x = g.input_with_dims("x", DType::F32, [2, 1, width], vec![open("batch"), open("n"), None])?;
    let cache = |g: &mut Graph, name: &str| {
        let dims = vec![open("batch"), None, open("past"), None];
        g.input_with_dims(name, DType::F32, [2, HEADS, 0, DIM], dims)
    };
    let (keys, values) = (cache(&mut g, "keys")?, cache(&mut g, "values")?);
    let heads = |g: &mut Graph, name: &str| -> Result<ValueId, GraphError> {
        let weight = g.param(name, DType::F32, [width, width])?;
        let y = g.matmul(x, weight)?;
        let y = g.reshape(y, &[0, 0, HEADS as i64, DIM as i64])?;
        g.transpose(y, &[0, 2, 1, 3])
    };
    let (q, k, v) = (heads(&mut g, "q")?, heads(&mut g, "k")?, heads(&mut g, "v")?);
    let keys = g.concat(&[keys, k], 2)?;
    let values = g.concat(&[values, v], 2)?;
    let y = if spelled_out {
        let turned = g.transpose(keys, &[0, 1, 3, 2])?;
        let scores = g.matmul(q, turned)?;
        let weights = g.softmax(scores, -1)?;
        g.matmul(weights, values)?
    } else {
        g.attention(Attention::new(HeadLayout::Bhsd), q, keys, values, &[])?
    };
    g.output("y", y)?;
    g.output("next_keys", keys)?;
    g.output("next_values", values)?;
    Ok(g)
}

fn compile(session: &Session, spelled_out: bool, state: bool) -> Executable {
    let graph = decoder(spelled_out).unwrap();
    let pairs = [("keys", "next_keys"), ("values", "next_values")];
    let options = if state { CompileOptions::new().states(pairs) } else { CompileOptions::new() };
    let executable = session.compile_with(&graph, &options).unwrap();
    let width = HEADS * DIM;
    for (i, name) in ["q", "k", "v"].iter().enumerate() {
        let weight: Vec<f32> = (0..width * width).map(|j| number(i * 1000 + j) * 0.4).collect();
        executable.set_param(name, Tensor::new([width, width], weight).unwrap()).unwrap();
    }
    executable
}

/// A number between −1 and 1 that looks random.
fn number(i: usize) -> f32 {
    let bits = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    bits as f32 / (1u64 << 23) as f32 - 1.0
}

fn rows(batch: usize, n: usize, seed: usize) -> Tensor {
    let count = batch * n * HEADS * DIM;
    let data: Vec<f32> = (0..count).map(|i| number(seed * 7919 + i)).collect();
    Tensor::new([batch, n, HEADS * DIM], data).unwrap()
}

fn empty(batch: usize) -> Tensor {
    Tensor::zeros(DType::F32, [batch, HEADS, 0, DIM]).unwrap()
}

fn close(a: &Tensor, b: &Tensor, what: &str) {
    assert_eq!(a.shape(), b.shape(), "{what}");
    for (x, y) in a.as_slice::<f32>().unwrap().iter().zip(b.as_slice::<f32>().unwrap()) {
        assert!((x - y).abs() <= 2e-6, "{what}: {x} and {y}");
    }
}

#[test]
fn a_growing_cache_gives_what_the_whole_sequence_gives() {
    everywhere(|session| {
        for spelled_out in [false, true] {
            let (with_state, without) =
                (compile(session, spelled_out, true), compile(session, spelled_out, false));
            for batch in [2, 1] {
                let first = empty(batch);
                let mut state = with_state.state_from([("keys", &first), ("values", &first)]).unwrap();
                let (mut keys, mut values) = (first.clone(), first);
                let mut length = 0;
                // Prompts of several rows, single rows, and enough of them to move to larger memory twice.
                for (step, n) in [5, 1, 1, 3, 1, 60, 1, 1, 70, 1].into_iter().enumerate() {
                    let x = rows(batch, n, step);
                    let out = with_state.run_with_state(&mut state, [("x", &x)]).unwrap();
                    let expected = without.run([("x", &x), ("keys", &keys), ("values", &values)]).unwrap();
                    length += n;
                    let what = format!("{}, batch {batch}, step {step}", session.device());
                    assert_eq!(out.len(), 1, "states are no results");
                    close(&out["y"], &expected["y"], &what);
                    (keys, values) = (expected["next_keys"].clone(), expected["next_values"].clone());
                    assert_eq!(state.ty("keys").unwrap().shape.dims(), [batch, HEADS, length, DIM]);
                    if step % 3 == 0 {
                        close(&state.get("keys").unwrap().to_tensor().unwrap(), &keys, &what);
                        close(&state.get("values").unwrap().to_tensor().unwrap(), &values, &what);
                    }
                }
            }
        }
    });
}

#[test]
fn lengths_that_come_compile_nothing_once_the_first_have() {
    everywhere(|session| {
        let decoder = compile(session, true, true);
        let mut state = decoder.state_from([("keys", &empty(1)), ("values", &empty(1))]).unwrap();
        let mut run = |n: usize, seed: usize| {
            decoder.run_with_state(&mut state, [("x", &rows(1, n, seed))]).unwrap();
            decoder.compiled()
        };
        run(4, 0);
        run(1, 1);
        let compiled = run(1, 2);
        let after: Vec<usize> = (3..150).map(|seed| run(1, seed)).collect();
        let late = after.last().unwrap() - compiled;
        // Attention over many keys has another kernel.
        let guards: Vec<String> = decoder.guards().iter().map(|plan| plan.join("\n")).collect();
        assert!(late <= 1, "{}: {late} plans for 147 lengths\n{}", session.device(), guards.join("\n\n"));
    });
}

#[test]
fn a_copy_of_a_growing_state_goes_its_own_way() {
    let path = std::env::temp_dir().join(format!("olivine-growing-{}.safetensors", std::process::id()));
    everywhere(|session| {
        let decoder = compile(session, false, true);
        let mut state = decoder.state_from([("keys", &empty(1)), ("values", &empty(1))]).unwrap();
        let step = |state: &mut State, seed: usize| {
            decoder.run_with_state(state, [("x", &rows(1, 1, seed))]).unwrap()["y"].clone()
        };
        (0..3).for_each(|seed| drop(step(&mut state, seed)));
        let mut copy = state.try_clone().unwrap();
        state.save(&path).unwrap();
        let first = step(&mut state, 3);
        step(&mut state, 4);
        assert_eq!(step(&mut copy, 3), first, "the copy has the rows of its own past");
        assert_eq!(copy.ty("keys").unwrap().shape.dims(), [1, HEADS, 4, DIM]);
        let mut restored = decoder.load_state(&path).unwrap();
        close(&step(&mut restored, 3), &first, "restored");
        // What was read stays, whatever runs come after.
        let read = copy.get("keys").unwrap().clone();
        let before = read.to_tensor().unwrap();
        step(&mut copy, 9);
        assert_eq!(read.to_tensor().unwrap(), before);
        // A part may be replaced by one of any length.
        let short = Tensor::zeros(DType::F32, [1, HEADS, 1, DIM]).unwrap();
        copy.set("keys", &short).unwrap();
        copy.set("values", &short).unwrap();
        step(&mut copy, 5);
        assert_eq!(copy.ty("values").unwrap().shape.dims(), [1, HEADS, 2, DIM]);
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn caches_that_do_not_agree_are_refused_and_the_state_goes_on() {
    everywhere(|session| {
        let decoder = compile(session, true, true);
        let mut state = decoder.state_from([("keys", &empty(1)), ("values", &empty(1))]).unwrap();
        let good = rows(1, 2, 0);
        decoder.run_with_state(&mut state, [("x", &good)]).unwrap();
        decoder.run_with_state(&mut state, [("x", &good)]).unwrap();
        let wrong = decoder.run_with_state(&mut state, [("x", &rows(3, 1, 0))]).unwrap_err().to_string();
        assert!(wrong.contains("batch") && wrong.contains('3') && wrong.contains('1'), "{wrong}");
        let mut other = state.try_clone().unwrap();
        other.set("keys", &Tensor::zeros(DType::F32, [1, HEADS, 7, DIM]).unwrap()).unwrap();
        let wrong = decoder.run_with_state(&mut other, [("x", &good)]).unwrap_err().to_string();
        assert!(wrong.contains("past") && wrong.contains('7') && wrong.contains('4'), "{wrong}");
        decoder.run_with_state(&mut state, [("x", &good)]).unwrap();
        assert_eq!(state.ty("keys").unwrap().shape.dims(), [1, HEADS, 6, DIM]);
    });
}
