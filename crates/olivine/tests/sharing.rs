//! Sessions and executables used from many threads at once.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::internals::OptionsExt as _;
use olivine::internals::models::{Encoder, seeded_input, seeded_params};
use olivine::prelude::*;

const fn shareable<T: Send + Sync>() {}

const _: () = shareable::<Session>();
const _: () = shareable::<Executable>();
const _: () = shareable::<Outputs>();
const _: () = shareable::<Device>();
const _: () = shareable::<Graph>();
const _: () = shareable::<Tensor>();
const _: () = shareable::<Error>();

fn encoder() -> Encoder {
    Encoder { layers: 2, hidden: 32, heads: 4, feed_forward: 64, batch: 1, sequence: 8, dtype: DType::F32 }
}

fn compiled(options: SessionOptions) -> Executable {
    let graph = encoder().graph().unwrap();
    let executable = Session::with_options(Device::Cpu, options).unwrap().compile(&graph).unwrap();
    executable.set_params(seeded_params(&graph, 0).unwrap()).unwrap();
    executable
}

fn input(seed: u64) -> Tensor {
    seeded_input("x", Shape::new(&[1, 8, 32]).unwrap(), seed).unwrap()
}

#[test]
fn sixteen_threads_get_the_answers_to_their_own_inputs() {
    let executable = compiled(SessionOptions::default());
    let want: Vec<Tensor> = (0..16)
        .map(|seed| executable.run([("x", &input(seed))]).unwrap().get("y").unwrap().clone())
        .collect();
    assert!(
        want.windows(2).all(|pair| pair[0] != pair[1]),
        "the inputs must differ for this to mean anything"
    );
    std::thread::scope(|scope| {
        for (seed, want) in want.iter().enumerate() {
            let executable = &executable;
            scope.spawn(move || {
                let x = input(seed as u64);
                for _ in 0..20 {
                    assert_eq!(executable.run([("x", &x)]).unwrap().get("y").unwrap(), want);
                }
            });
        }
    });
}

#[test]
fn threads_that_bring_new_shapes_at_once_all_get_answers() {
    let executable = compiled(SessionOptions::default());
    std::thread::scope(|scope| {
        for n in 1..=16usize {
            let executable = &executable;
            scope.spawn(move || {
                let x = seeded_input("x", Shape::new(&[1, n % 5 + 1, 32]).unwrap(), 0).unwrap();
                let out = executable.run([("x", &x)]).unwrap();
                assert_eq!(out.get("y").unwrap().shape(), x.shape());
            });
        }
    });
    let plans = executable.compiled();
    assert!(
        (1..=6).contains(&plans),
        "at most one for each of five new shapes and the declared one, not {plans}"
    );
    let x = seeded_input("x", Shape::new(&[1, 4, 32]).unwrap(), 0).unwrap();
    executable.run([("x", &x)]).unwrap();
    assert_eq!(executable.compiled(), plans, "a shape that came before compiles nothing");
}

#[test]
fn the_number_of_threads_changes_only_the_last_bits() {
    let x = input(3);
    let run = |options| compiled(options).run([("x", &x)]).unwrap().get("y").unwrap().to_f64();
    let one = run(SessionOptions::new().threads(1));
    for threads in [2, 3, 8] {
        let many = run(SessionOptions::new().threads(threads));
        let worst = one.iter().zip(&many).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-4, "{threads} threads differ by {worst}");
    }
}

#[test]
fn fusion_changes_only_the_last_bits() {
    let x = input(4);
    let run = |options| compiled(options).run([("x", &x)]).unwrap().get("y").unwrap().to_f64();
    let fused = run(SessionOptions::default());
    let plain = run(SessionOptions::new().no_fusion(true));
    let worst = fused.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-4, "they differ by {worst}");
    assert!(fused.iter().all(|y| y.is_finite()) && fused.iter().any(|y| *y != 0.0));
}
