//! Graphs and models that ask for more memory than the process may use: an error in words, never an abort.
//!
//! Every case runs in a process of its own, this test binary again, under a limit of its address space.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[path = "../../onnx/tests/wire/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod wire;

use std::process::Command;

use olivine::ir::op::{HeadLayout, ReduceKind, ResizeMode, WindowKind};
use olivine::ir::{Data, ValueId};
use olivine::prelude::*;
use wire::{F32, I64, int_attribute, ints, node, value};

/// Names the case that a child is to run.
const CASE: &str = "OLIVINE_MEMORY_CASE";

/// The address space of a child on the CPU.
const LIMIT: usize = 1 << 30;

type Case = fn() -> Result<(), Error>;

fn session() -> Result<Session, Error> {
    Session::new(Device::Cpu)
}

/// Compiles and runs a graph of an input `x: f32[1]`.
fn graph(
    build: impl FnOnce(&mut Graph, ValueId) -> Result<ValueId, olivine::ir::Error>,
) -> Result<(), Error> {
    let mut g = Graph::new("large");
    let x = g.input("x", DType::F32, [1])?;
    let y = build(&mut g, x)?;
    g.output("y", y)?;
    let executable = session()?.compile(&g)?;
    executable.run([("x", &Tensor::scalar(1f32).reshaped([1])?)])?;
    Ok(())
}

/// Runs on a large input of one type and some operations.
fn of_input(
    dtype: DType,
    dims: &[usize],
    build: impl FnOnce(&mut Graph, ValueId) -> Result<ValueId, olivine::ir::Error>,
) -> Result<(), Error> {
    let mut g = Graph::new("large");
    let x = g.input("x", dtype, dims)?;
    let y = build(&mut g, x)?;
    g.output("y", y)?;
    let input = Tensor::zeros(dtype, dims)?;
    let executable = session()?.compile(&g)?;
    executable.run([("x", &input)])?;
    Ok(())
}

/// Runs an ONNX model of one node, whose operands are initializers, and of an input `x: f32[1]` that it may read.
fn onnx(op: &str, operands: &[(&str, wire::Message)], attributes: &[wire::Message]) -> Result<(), Error> {
    let names: Vec<&str> = operands.iter().map(|(name, _)| *name).collect();
    let made = node(op, &names, &["y"]).all(5, attributes);
    let graph = wire::Graph {
        nodes: vec![made],
        initializers: operands.iter().filter(|(name, _)| *name != "x").map(|(_, t)| t.clone()).collect(),
        inputs: vec![value("x", F32, &["1"])],
        outputs: vec![value("y", if op == "EyeLike" || op == "OneHot" { I64 } else { F32 }, &["n"])],
        ..wire::Graph::default()
    };
    let model = Model::from_onnx(graph.model())?;
    let executable = session()?.compile(&model)?;
    executable.run([("x", &Tensor::scalar(1f32).reshaped([1])?)])?;
    Ok(())
}

const CASES: &[(&str, Case)] = &[
    // Less than the limit, but the process has other things too.
    ("a result that would just fit", || graph(|g, x| g.expand(x, [260_000_000]))),
    ("a result in flight that would just fit", || {
        let mut g = Graph::new("async");
        let x = g.input("x", DType::F32, [1])?;
        let y = g.expand(x, [260_000_000])?;
        g.output("y", y)?;
        let executable = session()?.compile(&g)?;
        executable.submit([("x", &Tensor::scalar(1f32).reshaped([1])?)])?.wait().map(drop)
    }),
    ("a large result", || graph(|g, x| g.expand(x, [3_000_000_000]))),
    ("a large result of bools", || {
        graph(|g, x| {
            let wide = g.expand(x, [3_000_000_000])?;
            g.cast(wide, DType::Bool)
        })
    }),
    ("a large range of each kind", || {
        let dtypes = [DType::F32, DType::F16, DType::BF16, DType::F64, DType::I64, DType::U8];
        let failed = |dtype: &DType| graph(|g, _| g.range(*dtype, 0.0, 1.0, 2_000_000_000)).is_err();
        assert!(dtypes.iter().all(failed));
        Err(Error::Graph(olivine::ir::Error::OutOfMemory { bytes: 0 }))
    }),
    ("a large value in between", || {
        graph(|g, x| {
            let numbers = g.range(DType::F32, 0.0, 1.0, 1 << 30)?;
            let sorted = g.sort(numbers, 0, true)?;
            let sum = g.reduce(ReduceKind::Sum, sorted, &[0], true)?;
            g.add(sum, x)
        })
    }),
    ("what is made of params at load", || {
        let mut g = Graph::new("load");
        let (x, w) = (g.input("x", DType::F32, [1])?, g.param("w", DType::F32, [1 << 20])?);
        let wide = g.tile(w, &[1 << 11])?;
        let sorted = g.sort(wide, 0, false)?;
        let first = g.slice(sorted, 0, 0, 1, 1)?;
        let y = g.add(first, x)?;
        g.output("y", y)?;
        let executable = session()?.compile(&g)?;
        executable.set_param("w", Tensor::zeros(DType::F32, [1 << 20])?)?;
        executable.load()
    }),
    ("results of a run in flight", || {
        let mut g = Graph::new("async");
        let x = g.input("x", DType::F32, [1])?;
        let y = g.expand(x, [3_000_000_000])?;
        g.output("y", y)?;
        let executable = session()?.compile(&g)?;
        executable.submit([("x", &Tensor::scalar(1f32).reshaped([1])?)])?.wait().map(drop)
    }),
    ("a large state", || {
        let mut g = Graph::new("state");
        let cache = g.input("cache", DType::F32, [1, 1 << 30, 1, 1])?;
        let (row, at) = (g.input("row", DType::F32, [1, 1, 1, 1])?, g.input("at", DType::I64, [])?);
        let next = g.kv_append(HeadLayout::Bshd, cache, row, at)?;
        g.output("next", next)?;
        let options = CompileOptions::new().state("cache", "next");
        session()?.compile_with(&g, &options)?.new_state().map(drop)
    }),
    ("scratch of a sort", || of_input(DType::F32, &[60_000_000], |g, x| g.argsort(x, 0, false))),
    ("accumulators of sums of bytes", || {
        of_input(DType::I8, &[2, 120_000_000], |g, x| g.reduce(ReduceKind::Sum, x, &[0], true))
    }),
    ("scratch of a resize", || {
        of_input(DType::F32, &[1, 1, 1000], |g, x| {
            let y = g.resize(x, &[1, 1, 50_000_000], ResizeMode::Cubic)?;
            g.reduce(ReduceKind::Sum, y, &[0, 1, 2], true)
        })
    }),
    ("scratch of a product of narrow floats", || {
        of_input(DType::F16, &[100_000_000, 1], |g, x| {
            let turned = g.transpose(x, &[1, 0])?;
            g.matmul(turned, x)
        })
    }),
    ("a window", || {
        graph(|g, x| {
            let window = g.window(WindowKind::Hann, 1 << 28, true, DType::F64)?;
            let window = g.cast(window, DType::F32)?;
            g.mul(window, x)
        })
    }),
    ("a constant of a shape", || onnx("ConstantOfShape", &[("s", ints("s", &[1], &[3_000_000_000]))], &[])),
    ("a range of ONNX", || {
        let number = |name, value: f32| (name, wire::floats(name, &[], &[value]));
        onnx("Range", &[number("a", 0.0), number("b", 1e9), number("c", 1.0)], &[])
    }),
    ("an expand of ONNX", || {
        onnx("Expand", &[("x", wire::Message::new()), ("s", ints("s", &[1], &[3_000_000_000]))], &[])
    }),
    ("a tile of ONNX", || {
        onnx("Tile", &[("x", wire::Message::new()), ("s", ints("s", &[1], &[3_000_000_000]))], &[])
    }),
    ("a one-hot of ONNX", || {
        let operands = [
            ("i", ints("i", &[1], &[5])),
            ("d", ints("d", &[], &[1 << 30])),
            ("v", ints("v", &[2], &[0, 1])),
        ];
        onnx("OneHot", &operands, &[])
    }),
    ("an eye of ONNX", || {
        let like = ints("l", &[1, 1], &[0]);
        let graph = wire::Graph {
            nodes: vec![
                node("Expand", &["l", "s"], &["w"]),
                node("EyeLike", &["w"], &["y"]).inside(5, &int_attribute("dtype", 7)),
            ],
            initializers: vec![like, ints("s", &[2], &[40_000, 40_000])],
            inputs: vec![value("x", F32, &["1"])],
            outputs: vec![value("y", I64, &["n", "m"])],
            ..wire::Graph::default()
        };
        let model = Model::from_onnx(graph.model())?;
        session()?.compile(&model)?.run([("x", &Tensor::scalar(1f32).reshaped([1])?)]).map(drop)
    }),
];

/// In a child: runs one case, and ends with 3 if it is refused.
fn child(name: &str) -> ! {
    let case = CASES.iter().find(|(n, _)| *n == name).unwrap().1;
    match case() {
        Ok(()) => std::process::exit(4),
        Err(error) => {
            eprintln!("refused: {error}");
            std::process::exit(3);
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error_in_words() {
    if let Ok(name) = std::env::var(CASE) {
        child(&name);
    }
    for (name, _) in CASES {
        let output = Command::new("prlimit")
            .arg(format!("--as={LIMIT}"))
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "what_does_not_fit_is_an_error_in_words", "--nocapture"])
            .env(CASE, name)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        println!("{name}: {}", said.lines().rfind(|l| l.starts_with("refused")).unwrap_or("?"));
        assert_eq!(output.status.code(), Some(3), "{name}: {}\n{said}", output.status);
        let in_words =
            said.lines().any(|l| l.starts_with("refused") && (l.contains("memory") || l.contains("bytes")));
        assert!(in_words, "{name}: {said}");
    }
}

#[test]
fn printing_touches_what_it_prints() {
    use std::fmt::Write;

    /// Counts what is written and keeps nothing.
    struct Count(usize);
    impl Write for Count {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0 += text.len();
            assert!(text.len() < 1 << 20, "a piece of {} bytes", text.len());
            Ok(())
        }
    }
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    // Zeros that nobody has looked at have no pages.
    let large = Tensor::zeros(DType::F32, [1 << 28]).unwrap();
    let before = resident();
    assert_eq!(format!("{large:?}"), "f32[268435456] [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] …");
    assert!(resident() < before + (64 << 20), "a line of text took {} bytes", resident() - before);
    let mut g = Graph::new("g");
    let c = g.constant(Tensor::from_data([1 << 20], Data::F32(vec![1.5; 1 << 20])).unwrap());
    g.output("c", c).unwrap();
    let mut count = Count(0);
    write!(count, "{g}").unwrap();
    assert!(count.0 > 4 << 20);
}
