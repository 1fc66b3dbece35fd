//! `olivine bench ops`: single operations at sizes where speed shows.

use std::time::Duration;

use clap::Args;
use olivine::Session;
use olivine::internals::models::seeded_input;
use olivine::ir::op::{Attention, HeadLayout, ReduceKind, Window};
use olivine::ir::{DType, Error, Graph, Tensor, ValueId};
use serde_json::{Value, json};

use super::copy::Copy;
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::model::SEED;
use crate::progress::Progress;
use crate::table::Table;
use crate::timing::{Repeat, Times, short, timed};

#[derive(Args)]
pub(crate) struct OpsArgs {
    /// Only operations whose name contains this.
    #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
    filter: String,
    /// Smaller sizes and fewer runs.
    #[arg(long)]
    quick: bool,
    /// Run the table of cases that every backend must pass instead, and time each family.
    #[arg(long)]
    cases: bool,
}

/// An operation to time: how to build it, and what to measure it by.
struct Subject {
    name: &'static str,
    /// Floating-point operations where they are what limits it.
    flops: f64,
    /// Compared with a memory copy: it reads every row once and writes it once.
    by_rows: bool,
    graph: Graph,
}

struct Measured {
    name: &'static str,
    shapes: String,
    median_ms: f64,
    runs: usize,
    gb_per_s: f64,
    gflops: Option<f64>,
    copy_ms: Option<f64>,
}

pub(crate) fn run(global: &Global, args: &OpsArgs) -> Result<Answer, Failure> {
    let session = global.session()?;
    if args.cases {
        return super::cases::run(global, &session, &args.filter);
    }
    let subjects: Vec<Subject> =
        subjects(args.quick)?.into_iter().filter(|s| s.name.contains(args.filter.as_str())).collect();
    if subjects.is_empty() {
        return Err(Failure::new(format!("no operation's name contains `{}`", args.filter))
            .hint("without --filter, all are timed and listed"));
    }
    let mut progress = Progress::new(subjects.len(), global.quiet);
    let mut rows = Vec::new();
    for subject in &subjects {
        progress.begin(subject.name);
        rows.push(measure(global, &session, subject, args.quick)?);
        progress.step();
    }
    drop(progress);
    Ok(report(global, &session, &rows))
}

/// Times an operation; the copy it is compared with runs in turn with it, so that both see the same machine.
fn measure(global: &Global, session: &Session, subject: &Subject, quick: bool) -> Result<Measured, Failure> {
    let graph = &subject.graph;
    let executable = session.compile(graph)?;
    for (name, id) in graph.params() {
        executable.set_param(name, seeded_input(name, graph.ty(id)?.shape, SEED)?)?;
    }
    let inputs: Vec<(&str, Tensor)> = graph
        .inputs()
        .map(|(name, id)| Ok((name, seeded_input(name, graph.ty(id)?.shape, SEED)?)))
        .collect::<Result<_, Failure>>()?;
    let views = || inputs.iter().map(|(name, tensor)| (*name, tensor));
    // Results go into the same tensors every time: fresh memory would be measured with the kernel.
    let mut results = executable.run(views())?.into_tensors();
    let names: Vec<&str> = graph.outputs().iter().map(|o| o.name.as_str()).collect();

    let rows = graph.inputs().next().and_then(|(_, id)| graph.ty(id).ok()).map_or(0, |ty| ty.shape.numel());
    let mut copy = subject.by_rows.then(|| Copy::new(rows, global.thread_count()));
    let mut copies = Times::default();
    let repeat =
        Repeat { runs: if quick { 5 } else { 15 }, budget: Duration::from_secs(if quick { 1 } else { 5 }) };
    let times = repeat.time(|| {
        if let Some(copy) = &mut copy {
            copies.push(copy.time());
        }
        let mut targets: Vec<(&str, &mut Tensor)> = names.iter().copied().zip(&mut results).collect();
        let (time, done) = timed(|| executable.run_into(views(), &mut targets));
        done?;
        Ok(time)
    })?;

    let median_ms = times.median();
    let ids = graph.inputs().chain(graph.params()).map(|(_, id)| id);
    let moved: usize = ids
        .chain(graph.outputs().iter().map(|o| o.value))
        .map(|id| graph.ty(id).map_or(0, |t| t.bytes()))
        .sum();
    Ok(Measured {
        name: subject.name,
        shapes: shapes(graph),
        median_ms,
        runs: times.count(),
        gb_per_s: moved as f64 / median_ms / 1e6,
        gflops: (subject.flops > 0.0).then(|| subject.flops / median_ms / 1e6),
        copy_ms: copy.is_some().then(|| copies.median()),
    })
}

/// The operands' shapes in words.
fn shapes(graph: &Graph) -> String {
    let ids = graph.inputs().chain(graph.params()).map(|(_, id)| id);
    ids.filter_map(|id| Some(graph.ty(id).ok()?.to_string())).collect::<Vec<_>>().join(" · ")
}

fn report(global: &Global, session: &Session, rows: &[Measured]) -> Answer {
    let mut table = Table::new(&["op", "operands", ">median ms", ">GB/s", ">GFLOP/s", ">copy ms", ">× copy"]);
    let optional = |number: Option<f64>| number.map_or(String::new(), short);
    let mut list: Vec<Value> = Vec::new();
    for row in rows {
        let ratio = row.copy_ms.map(|copy| row.median_ms / copy);
        table.row([
            row.name.to_string(),
            row.shapes.clone(),
            short(row.median_ms),
            short(row.gb_per_s),
            optional(row.gflops),
            optional(row.copy_ms),
            optional(ratio),
        ]);
        list.push(json!({
            "op": row.name, "operands": row.shapes, "median_ms": row.median_ms, "runs": row.runs,
            "gb_per_s": row.gb_per_s, "gflops": row.gflops, "copy_ms": row.copy_ms, "ratio_to_copy": ratio,
        }));
    }
    let device = session.device().to_string();
    let threads = global.thread_count();
    let text = format!("{device}, {threads} threads\n\n{table}");
    Answer::new(text, json!({ "device": device, "threads": threads, "ops": list }))
}

/// The operations, at sizes far beyond the caches unless `quick`.
fn subjects(quick: bool) -> Result<Vec<Subject>, Error> {
    let rows = if quick { 1 << 10 } else { 1 << 14 };
    let (batch, image) = if quick { (1, 28) } else { (4, 56) };
    let sizes: &[(&str, usize)] =
        if quick { &[("matmul 256", 256)] } else { &[("matmul 512", 512), ("matmul 1024", 1024)] };
    let wide = [rows, 1024];
    let mut list = vec![
        subject("add", 0.0, false, |g| {
            let (a, b) = (g.input("a", DType::F32, wide)?, g.input("b", DType::F32, wide)?);
            g.add(a, b)
        })?,
        row("relu", wide, |g, x| g.relu(x))?,
        row("gelu", wide, |g, x| g.gelu(x))?,
        row("exp", wide, |g, x| g.exp(x))?,
        row("softmax", wide, |g, x| g.softmax(x, -1))?,
        row("layer_norm", wide, |g, x| {
            let gamma = g.param("gamma", DType::F32, [1024])?;
            let beta = g.param("beta", DType::F32, [1024])?;
            g.layer_norm(x, gamma, Some(beta), 1e-5)
        })?,
        row("rms_norm", wide, |g, x| {
            let gamma = g.param("gamma", DType::F32, [1024])?;
            g.rms_norm(x, gamma, None, 1e-5)
        })?,
        subject("sum, last axis", 0.0, false, |g| {
            let x = g.input("x", DType::F32, wide)?;
            g.reduce(ReduceKind::Sum, x, &[-1], false)
        })?,
        subject("sum, first axis", 0.0, false, |g| {
            let x = g.input("x", DType::F32, wide)?;
            g.reduce(ReduceKind::Sum, x, &[0], false)
        })?,
        subject("transpose", 0.0, false, |g| {
            let x = g.input("x", DType::F32, wide)?;
            g.transpose(x, &[1, 0])
        })?,
    ];
    for (name, n) in sizes.iter().copied() {
        list.push(subject(name, 2.0 * (n as f64).powi(3), false, |g| {
            let (a, b) = (g.input("a", DType::F32, [n, n])?, g.param("b", DType::F32, [n, n])?);
            g.matmul(a, b)
        })?);
    }
    let (heads, positions, dim) = (12, if quick { 64 } else { 512 }, 64);
    let attention_flops = 4.0 * (heads * positions * positions * dim) as f64;
    list.push(subject("attention", attention_flops, false, |g| {
        let shape = [1, heads, positions, dim];
        let q = g.input("q", DType::F32, shape)?;
        let k = g.input("k", DType::F32, shape)?;
        let v = g.input("v", DType::F32, shape)?;
        g.attention(Attention::new(HeadLayout::Bhsd), q, k, v, &[])
    })?);
    let channels = 64;
    let conv_flops = 2.0 * (batch * channels * channels * 9 * image * image) as f64;
    list.push(subject("conv 3x3", conv_flops, false, |g| {
        let x = g.input("x", DType::F32, [batch, channels, image, image])?;
        let w = g.param("w", DType::F32, [channels, channels, 3, 3])?;
        g.conv(x, w, None, Window::same(2, 1, 1), 1)
    })?);
    let depthwise_flops = 2.0 * (batch * channels * 9 * image * image) as f64;
    list.push(subject("conv 3x3 depthwise", depthwise_flops, false, |g| {
        let x = g.input("x", DType::F32, [batch, channels, image, image])?;
        let w = g.param("w", DType::F32, [channels, 1, 3, 3])?;
        g.conv(x, w, None, Window::same(2, 1, 1), channels)
    })?);
    Ok(list)
}

/// A kernel that reads each row once and writes it once.
fn row(
    name: &'static str,
    shape: [usize; 2],
    body: impl FnOnce(&mut Graph, ValueId) -> Result<ValueId, Error>,
) -> Result<Subject, Error> {
    subject(name, 0.0, true, |g| {
        let x = g.input("x", DType::F32, shape)?;
        body(g, x)
    })
}

fn subject(
    name: &'static str,
    flops: f64,
    by_rows: bool,
    body: impl FnOnce(&mut Graph) -> Result<ValueId, Error>,
) -> Result<Subject, Error> {
    let mut graph = Graph::new(name);
    let y = body(&mut graph)?;
    graph.output("y", y)?;
    Ok(Subject { name, flops, by_rows, graph })
}
