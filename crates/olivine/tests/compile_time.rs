//! Compiling takes time in proportion to a graph's nodes, whatever the graph looks like.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[path = "../../onnx/tests/wire/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod wire;

use olivine::internals::compile::{Options, compile};
use olivine::internals::cpu::{self, CpuEvaluator};
use olivine::internals::gpu;
use olivine::ir::ValueId;
use olivine::ir::op::{Binary, CumulativeKind, ReduceKind};
use olivine::prelude::*;

type Built = Result<(), olivine::ir::Error>;
type Build = fn(&mut Graph, ValueId, usize) -> Built;

/// Graphs of `n` nodes of an input `x: f32[4]`.
const GRAPHS: &[(&str, Build)] = &[
    ("a chain", |g, x, n| {
        let mut y = x;
        for _ in 0..n {
            y = g.add(y, x)?;
        }
        g.output("y", y)
    }),
    ("a chain that nothing fuses", |g, x, n| {
        let mut y = x;
        for _ in 0..n {
            y = sums(g, y)?;
        }
        g.output("y", y)
    }),
    ("a value that all read", |g, x, n| {
        let shared = g.exp(x)?;
        let mut y = x;
        for i in 0..n / 3 {
            let scaled = g.binary_scalar(Binary::Mul, shared, i as f64)?;
            let moved = g.roll(scaled, 0, 1)?;
            y = g.add(y, moved)?;
        }
        g.output("y", y)
    }),
    ("readers that differ in attributes", |g, x, n| {
        let wide = g.expand(x, [n, 4])?;
        let mut y = x;
        for i in 0..n / 2 {
            let part = g.slice(wide, 0, i as i64, i as i64 + 1, 1)?;
            y = g.add(y, part)?;
            y = g.reshape(y, &[4])?;
        }
        g.output("y", y)
    }),
    ("many operands of one node", |g, x, n| {
        let mut parts = vec![x];
        for i in 0..n {
            parts.push(g.binary_scalar(Binary::Add, x, i as f64)?);
        }
        let all = g.concat(&parts, 0)?;
        let y = g.reduce(ReduceKind::Sum, all, &[0], true)?;
        g.output("y", y)
    }),
    ("many outputs", |g, x, n| {
        for i in 0..n / 2 {
            let y = g.binary_scalar(Binary::Add, x, i as f64)?;
            let y = sums(g, y)?;
            g.output(&format!("y{i}"), y)?;
        }
        Ok(())
    }),
    ("diamonds", |g, x, n| {
        let mut y = x;
        for _ in 0..n / 3 {
            let (a, b) = (g.sin(y)?, sums(g, y)?);
            y = g.add(a, b)?;
        }
        g.output("y", y)
    }),
    ("diamonds of params", |g, x, n| {
        let mut w = g.param("w", DType::F32, [4])?;
        for _ in 0..n / 2 {
            let turned = sums(g, w)?;
            w = g.add(turned, w)?;
        }
        let y = g.add(x, w)?;
        g.output("y", y)
    }),
    ("a chain of two kinds of operations", |g, x, n| {
        let mut y = x;
        for _ in 0..n / 2 {
            let bent = g.tanh(y)?;
            y = g.mul(bent, x)?;
        }
        g.output("y", y)
    }),
    ("many readers and a tree of sums", |g, x, n| {
        let mut row = Vec::new();
        for i in 0..n / 2 {
            row.push(g.binary_scalar(Binary::Mul, x, i as f64)?);
        }
        while let [_, _, ..] = row.as_slice() {
            let sum = |pair: &[ValueId]| pair.get(1).map_or(Ok(pair[0]), |b| g.add(pair[0], *b));
            row = row.chunks(2).map(sum).collect::<Result<_, _>>()?;
        }
        g.output("y", row[0])
    }),
    ("a chain that only moves elements", |g, x, n| {
        let mut y = g.reshape(x, &[2, 2])?;
        for _ in 0..n / 2 {
            let turned = g.transpose(y, &[1, 0])?;
            let flat = g.reshape(turned, &[4])?;
            y = g.reshape(flat, &[2, 2])?;
        }
        g.output("y", y)
    }),
    ("layers of several operations", |g, x, n| {
        let mut y = g.reshape(x, &[2, 2])?;
        for _ in 0..n / 8 {
            let wide = g.matmul(y, y)?;
            let soft = g.softmax(wide, -1)?;
            let turned = g.transpose(soft, &[1, 0])?;
            let sum = g.add(turned, y)?;
            let most = g.reduce(ReduceKind::Max, sum, &[1], true)?;
            let less = g.sub(sum, most)?;
            let flat = g.reshape(less, &[4])?;
            y = g.reshape(flat, &[2, 2])?;
        }
        g.output("y", y)
    }),
];

/// Running sums, which no pass joins with anything.
fn sums(g: &mut Graph, x: ValueId) -> Result<ValueId, olivine::ir::Error> {
    g.cumulative(CumulativeKind::Sum, x, 0, false, false)
}

/// Time that this thread has run, in seconds: that of other processes does not count.
fn running() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// The seconds that `work` takes this thread, the mean over enough runs: some kernels count a thread's time in ticks of 4 ms.
fn seconds(mut work: impl FnMut()) -> f64 {
    let (begun, mut runs) = (running(), 0);
    loop {
        work();
        runs += 1;
        let ran = running() - begun;
        if ran >= 0.1 {
            return ran / f64::from(runs);
        }
    }
}

fn graph(build: Build, n: usize) -> Graph {
    let mut g = Graph::new("many");
    let x = g.input("x", DType::F32, [4]).unwrap();
    build(&mut g, x, n).unwrap();
    g
}

/// Builds, compiles and lowers for the CPU.
fn on_cpu(build: Build, n: usize) -> f64 {
    seconds(|| {
        let g = graph(build, n);
        let compiled =
            compile(&g, &Options { evaluator: Some(&CpuEvaluator), ..Options::default() }).unwrap();
        cpu::Executable::new(&compiled, std::sync::Arc::default(), false).unwrap();
    })
}

/// Lowers for a GPU that is not there.
fn on_gpu(build: Build, n: usize) -> f64 {
    let g = graph(build, n);
    let compiled = compile(&g, &Options::default()).unwrap();
    let caps = gpu::DeviceCaps {
        name: "none".into(),
        driver: "none".into(),
        kind: gpu::DeviceKind::Other,
        target: olivine::internals::kernel::Target::plain(),
        addressing: gpu::Addressing::Pointers,
        max_groups: [65535; 3],
        max_buffer_bytes: 1 << 32,
        memory_bytes: 1 << 34,
        processors: None,
        keeps_denormals: true,
        ptx: None,
    };
    seconds(|| drop(gpu::lower(&compiled, &caps, &gpu::Record::new(), &[]).unwrap()))
}

/// Twice the nodes take twice the time. Work that grows with the square of the nodes takes four times as long once it is
/// most of it; the smaller graph is large enough for that.
fn grows_in_proportion(what: &str, name: &str, small: usize, time: impl Fn(usize) -> f64) {
    let (mut once, mut twice) = (f64::INFINITY, f64::INFINITY);
    let mut ratio = f64::INFINITY;
    // Other programs disturb caches and clocks: the least time of several tries counts. What grows with the square does so in
    // every try. What takes next to no time is not measured well.
    for _ in 0..5 {
        (once, twice) = (once.min(time(small)), twice.min(time(2 * small)));
        ratio = if twice < 0.02 { 0.0 } else { twice / once };
        if ratio < 3.0 {
            break;
        }
    }
    println!("{what}, {name}: {small} nodes in {once:.3} s, twice as many in {twice:.3} s");
    assert!(ratio < 3.0, "{what}, {name}: twice the nodes take {ratio:.1} times as long");
}

#[test]
fn compiling_takes_time_in_proportion_to_the_nodes() {
    for (name, build) in GRAPHS {
        grows_in_proportion("cpu", name, 4_000, |n| on_cpu(*build, n));
    }
}

#[test]
fn lowering_for_a_gpu_takes_time_in_proportion_to_the_nodes() {
    for (name, build) in GRAPHS {
        grows_in_proportion("gpu", name, 3_000, |n| on_gpu(*build, n));
    }
}

#[test]
fn the_text_form_is_read_and_written_in_time_in_proportion_to_the_nodes() {
    for (name, build) in GRAPHS {
        grows_in_proportion("text", name, 20_000, |n| {
            let g = graph(*build, n);
            seconds(|| drop(g.to_string().parse::<Graph>().unwrap()))
        });
    }
}

#[test]
fn importing_takes_time_in_proportion_to_the_nodes() {
    let model = |n: usize| {
        let names: Vec<String> = (0..=n).map(|i| format!("v{i}")).collect();
        let add = |i: usize| wire::node(["Add", "Mul", "Max"][i % 3], &[&names[i], "v0"], &[&names[i + 1]]);
        let graph = wire::Graph {
            nodes: (0..n).map(add).collect(),
            inputs: vec![wire::value("v0", wire::F32, &["4"])],
            outputs: vec![wire::value(&names[n], wire::F32, &["4"])],
            ..wire::Graph::default()
        };
        graph.model()
    };
    grows_in_proportion("onnx", "a chain", 4_000, |n| {
        let bytes = model(n);
        let x = Tensor::zeros(DType::F32, [4]).unwrap();
        seconds(|| {
            let session = Session::new(Device::Cpu).unwrap();
            let model = Model::from_onnx(bytes.clone()).unwrap();
            session.compile(&model).unwrap().run([("v0", &x)]).unwrap();
        })
    });
}
