//! State and runs in flight on the CPU: in place, without a thread for each run, and no slower than a plain run.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::time::{Duration, Instant};

use olivine::Input;
use olivine::ir::op::HeadLayout;
use olivine::prelude::*;

/// Rows of a cache of 32 MiB.
const ROWS: usize = 1 << 13;
const WIDTH: usize = 1 << 10;

fn states(pairs: &[(&str, &str)]) -> CompileOptions {
    CompileOptions::new().states(pairs.iter().copied())
}

/// next = cache with a row at `at`; y = the row of next at `index`, which may be out of range.
fn cache() -> Graph {
    let mut g = Graph::new("cache");
    let cache = g.input("cache", DType::F32, [1, ROWS, 1, WIDTH]).unwrap();
    let row = g.input("row", DType::F32, [1, 1, 1, WIDTH]).unwrap();
    let (at, index) = (g.input("at", DType::I64, []).unwrap(), g.input("index", DType::I64, [1]).unwrap());
    let next = g.kv_append(HeadLayout::Bshd, cache, row, at).unwrap();
    let y = g.gather(next, index, 1).unwrap();
    g.output("next", next).unwrap();
    g.output("y", y).unwrap();
    g
}

fn row(value: f32) -> Tensor {
    Tensor::new([1, 1, 1, WIDTH], vec![value; WIDTH]).unwrap()
}

fn number(value: i64) -> Tensor {
    Tensor::scalar(value)
}

fn index(value: i64) -> Tensor {
    Tensor::new([1], vec![value]).unwrap()
}

fn checked() -> Session {
    Session::with_options(Device::Cpu, SessionOptions::new().checked(true)).unwrap()
}

/// The least of several times.
fn least(mut run: impl FnMut()) -> Duration {
    (0..9)
        .map(|_| {
            let begun = Instant::now();
            run();
            begun.elapsed()
        })
        .min()
        .unwrap()
}

/// Measures until a bound holds. A busy machine only makes times longer, so one good attempt of several is proof enough.
fn eventually(mut measure: impl FnMut() -> Result<(), String>) {
    let begun = Instant::now();
    loop {
        match measure() {
            Ok(()) => return,
            Err(problem) => assert!(begun.elapsed() < Duration::from_secs(60), "{problem}"),
        }
        // What else runs on the machine may be done by then.
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// An error with both times unless the first is shorter than the second.
fn shorter(what: &str, time: Duration, bound: Duration) -> Result<(), String> {
    println!("{what}: {time:?}, at most {bound:?}");
    if time < bound { Ok(()) } else { Err(format!("{what} takes {time:?}, at most {bound:?}")) }
}

#[test]
fn a_step_with_state_costs_no_more_than_a_plain_run() {
    let session = Session::new(Device::Cpu).unwrap();
    let with = session.compile_with(&cache(), &states(&[("cache", "next")])).unwrap();
    let without = session.compile(&cache()).unwrap();
    let (row, at, index) = (row(1.0), number(5), index(5));
    let given = || [("row", &row), ("at", &at), ("index", &index)];
    let whole = Tensor::zeros(DType::F32, [1, ROWS, 1, WIDTH]).unwrap();
    let mut state = with.new_state().unwrap();
    eventually(|| {
        let plain = least(|| drop(without.run(given().into_iter().chain([("cache", &whole)])).unwrap()));
        let kept = least(|| drop(with.run_with_state(&mut state, given()).unwrap()));
        // A plain run copies the cache and this one does not.
        shorter("a step with state", kept, plain)
    });
}

#[test]
fn a_state_that_is_computed_anew_costs_about_a_plain_run() {
    let n = 1 << 23;
    let mut g = Graph::new("mean");
    let (state, x) = (g.input("state", DType::F32, [n]).unwrap(), g.input("x", DType::F32, [1]).unwrap());
    let next = g.add(state, x).unwrap();
    g.output("next", next).unwrap();
    let session = Session::new(Device::Cpu).unwrap();
    let with = session.compile_with(&g, &states(&[("state", "next")])).unwrap();
    let without = session.compile(&g).unwrap();
    let (whole, one) = (Tensor::zeros(DType::F32, [n]).unwrap(), Tensor::new([1], vec![1f32]).unwrap());
    let mut state = with.new_state().unwrap();
    let mut steps = 0.0;
    eventually(|| {
        let plain = least(|| drop(without.run([("state", &whole), ("x", &one)]).unwrap()));
        let kept = least(|| {
            drop(with.run_with_state(&mut state, [("x", &one)]).unwrap());
            steps += 1.0;
        });
        shorter("a state computed anew", kept, 3 * plain)
    });
    let sum = state.get("state").unwrap().read_elements(n - 1..n).unwrap();
    assert_eq!(sum, olivine::ir::Data::F32(vec![steps]));
}

#[test]
fn what_others_hold_of_a_state_stays_as_it_was() {
    let executable = checked().compile_with(&cache(), &states(&[("cache", "next")])).unwrap();
    let mut state = executable.new_state().unwrap();
    let mut step = |value: f32, at: i64| {
        let (row, number, index) = (row(value), number(at), index(at));
        executable.run_with_state(&mut state, [("row", &row), ("at", &number), ("index", &index)]).unwrap();
        state.get("cache").unwrap().clone()
    };
    let first = step(1.0, 0);
    let pending = {
        // A run in flight on what the state is now.
        let (row, at, index) = (row(9.0), number(3), index(0));
        executable
            .submit([
                ("cache", Input::from(&first)),
                ("row", Input::from(&row)),
                ("at", Input::from(&at)),
                ("index", Input::from(&index)),
            ])
            .unwrap()
    };
    let second = step(2.0, 1);
    let third = step(3.0, 0);
    let begin =
        |tensor: &DeviceTensor, row: usize| tensor.read_elements(row * WIDTH..row * WIDTH + 1).unwrap();
    let f32s = |value: f32| olivine::ir::Data::F32(vec![value]);
    assert_eq!((begin(&first, 0), begin(&first, 1)), (f32s(1.0), f32s(0.0)));
    assert_eq!((begin(&second, 0), begin(&second, 1)), (f32s(1.0), f32s(2.0)));
    assert_eq!((begin(&third, 0), begin(&third, 1)), (f32s(3.0), f32s(2.0)));
    let out = pending.wait().unwrap();
    assert_eq!(out.get("y").unwrap().as_slice::<f32>().unwrap()[0], 1.0);
    assert_eq!(out.get("next").unwrap().as_slice::<f32>().unwrap()[3 * WIDTH], 9.0);
}

#[test]
fn a_run_that_fails_can_be_done_again() {
    let mut g = cache();
    let (sum, row_again) =
        (g.input("sum", DType::F32, [WIDTH]).unwrap(), g.input("add", DType::F32, [WIDTH]).unwrap());
    let total = g.add(sum, row_again).unwrap();
    g.output("total", total).unwrap();
    let executable = checked().compile_with(&g, &states(&[("cache", "next"), ("sum", "total")])).unwrap();
    let mut state = executable.new_state().unwrap();
    let add = Tensor::new([WIDTH], vec![1f32; WIDTH]).unwrap();
    let mut step = |value: f32, at: i64, wanted: i64| {
        let (row, number, index) = (row(value), number(at), index(wanted));
        let given = [("row", &row), ("at", &number), ("index", &index), ("add", &add)];
        let out = executable.run_with_state(&mut state, given);
        let total = state.get("sum").unwrap().to_tensor().unwrap().as_slice::<f32>().unwrap()[3];
        (out.map(|out| out.get("y").unwrap().as_slice::<f32>().unwrap()[0]).ok(), total)
    };
    assert_eq!(step(1.0, 0, 0), (Some(1.0), 1.0));
    assert_eq!(step(2.0, 1, ROWS as i64), (None, 1.0), "what is computed anew stays as it was");
    assert_eq!(step(2.0, 1, 0), (Some(1.0), 2.0), "rows before are still there");
    assert_eq!(step(3.0, 2, 1), (Some(2.0), 3.0));
    assert_eq!(step(4.0, 3, 2), (Some(3.0), 4.0));
}

#[test]
fn runs_in_flight_take_no_threads_of_their_own() {
    let n = 1 << 18;
    let mut g = Graph::new("square");
    let x = g.input("x", DType::F32, [n]).unwrap();
    let y = g.mul(x, x).unwrap();
    let y = g.sqrt(y).unwrap();
    g.output("y", y).unwrap();
    for threads in [1, 2, 4] {
        let options = SessionOptions::new().threads(threads);
        let executable = Session::with_options(Device::Cpu, options).unwrap().compile(&g).unwrap();
        let count = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
        let inputs: Vec<Tensor> = (0..64).map(|i| Tensor::new([n], vec![i as f32; n]).unwrap()).collect();
        executable.run([("x", &inputs[0])]).unwrap();
        let before = count();
        let pending: Vec<_> = inputs.iter().map(|x| executable.submit([("x", x)]).unwrap()).collect();
        // Other tests of this process start threads too, but not one for each of these runs.
        assert!(count() < before + 32, "{} threads before, {} now", before, count());
        for (i, run) in pending.into_iter().enumerate().rev() {
            let out = run.wait().unwrap();
            assert!(out.get("y").unwrap().as_slice::<f32>().unwrap().iter().all(|v| *v == i as f32));
        }
    }
}

#[test]
fn a_run_in_flight_costs_about_what_a_plain_run_does() {
    for n in [64, 1 << 20] {
        let mut g = Graph::new("twice");
        let x = g.input("x", DType::F32, [n]).unwrap();
        let y = g.add(x, x).unwrap();
        g.output("y", y).unwrap();
        let executable = Session::new(Device::Cpu).unwrap().compile(&g).unwrap();
        let x = Tensor::zeros(DType::F32, [n]).unwrap();
        let some = if n < 1000 { 200 } else { 5 };
        eventually(|| {
            let plain = least(|| (0..some).for_each(|_| drop(executable.run([("x", &x)]).unwrap())));
            let left = least(|| {
                (0..some).for_each(|_| drop(executable.submit([("x", &x)]).unwrap().wait().unwrap()))
            });
            // The input is copied, and a thread may have to be woken.
            shorter(&format!("{n} elements in flight"), left, 4 * plain + Duration::from_millis(1))
        });
    }
}

#[test]
fn a_run_in_flight_that_fails_says_so_when_it_is_waited_for() {
    let executable = checked().compile(&cache()).unwrap();
    let whole = Tensor::zeros(DType::F32, [1, ROWS, 1, WIDTH]).unwrap();
    let (row, at) = (row(1.0), number(0));
    let start = |wanted: i64| {
        let index = index(wanted);
        executable.submit([("cache", &whole), ("row", &row), ("at", &at), ("index", &index)]).unwrap()
    };
    let runs = [start(0), start(ROWS as i64), start(0)];
    let ok: Vec<bool> = runs.into_iter().map(|run| run.wait().is_ok()).collect();
    assert_eq!(ok, [true, false, true]);
}
