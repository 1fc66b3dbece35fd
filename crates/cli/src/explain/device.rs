//! The stages behind the graph: the kernel calls of a run, and a GPU's program and kernels as the driver is given them.

use std::time::Duration;

use olivine::Session;
use olivine::cost::{Prediction, StepPrediction};
use olivine::internals::SessionExt as _;
use olivine::internals::compile::Compiled;
use olivine::internals::gpu::{Content, Dispatch, Program, Slice};
use olivine::internals::kernel::ptx::{self, Capability, PtxOptions};
use olivine::internals::kernel::spirv;
use olivine::internals::{KernelSource, Lowered};
use serde_json::{Value, json};

use crate::answer::{Answer, Failure};
use crate::table::Table;
use crate::timing::{bytes, short};

/// The names of these stages.
pub(super) const STAGES: [&str; 5] = ["lowered", "program", "spirv", "wgsl", "ptx"];

/// Prints a stage of the session's device.
pub(super) fn stage(name: &str, session: &Session, compiled: &Compiled) -> Result<Answer, Failure> {
    if name == "lowered" {
        return Ok(lowered(&session.lowered(compiled)?));
    }
    let Some(program) = session.program(compiled)? else {
        return Err(Failure::new(format!("the CPU has no stage `{name}`: its kernels are functions"))
            .hint("choose a GPU with --device; `olivine devices` lists what is there"));
    };
    match name {
        "program" => Ok(listing(&program, &session.predict_compiled(compiled)?)),
        _ => kernels(name, session, &program),
    }
}

/// Every kernel as text.
fn kernels(name: &str, session: &Session, program: &Program) -> Result<Answer, Failure> {
    let (mut text, mut list) = (String::new(), Vec::new());
    // PTX can be read without a card that runs it.
    let capability = session.caps().and_then(|caps| caps.ptx).unwrap_or(Capability::HOPPER);
    for (i, kernel) in program.kernels.iter().enumerate() {
        let wrong = |e: olivine::internals::kernel::Error| {
            Failure::new(e.to_string()).context(format!("kernel `{}`", kernel.name))
        };
        let (source, comment) = match (name, session.kernel_source(kernel)?) {
            ("ptx", Some(KernelSource::Spirv(_))) => {
                (ptx::print(kernel, &PtxOptions { capability }).map_err(wrong)?, "//")
            }
            // What has no SPIR-V is shown as what it is.
            ("ptx" | "spirv", Some(KernelSource::Ptx(text))) => (text, "//"),
            ("spirv", Some(KernelSource::Spirv(words))) => (spirv::disassemble(&words).map_err(wrong)?, ";"),
            ("wgsl", Some(KernelSource::Wgsl(text))) => (text, "//"),
            _ => return Err(other_driver(name, session)),
        };
        text += &format!("{comment} kernel {i}: {}\n{}\n\n", kernel.name, source.trim_end());
        list.push(json!({ "kernel": i, "name": kernel.name, "source": source }));
    }
    Ok(Answer::new(text, json!({ "stage": name, "kernels": list })))
}

fn other_driver(name: &str, session: &Session) -> Failure {
    let driver = if name == "wgsl" { "wgpu" } else { "vulkan" };
    Failure::new(format!("`{}` has no stage `{name}`", session.device()))
        .hint(format!("kernels are printed as {name} for `--device {driver}`"))
}

/// For every kernel call of a run the nodes that it computes, and by which rule they were joined.
pub(super) fn lowered(lowered: &Lowered) -> Answer {
    let mut table = Table::new(&[">dispatch", "op", "kernel", "nodes", "joined by"]);
    let mut list = Vec::new();
    for (i, step) in lowered.steps.iter().enumerate() {
        let mut nodes: Vec<&str> = step.node.split(" + ").collect();
        let own = nodes.last().copied().unwrap_or_default();
        let fusions = lowered.fusions.iter().filter(|f| f.nodes.last().is_some_and(|last| last == own));
        let mut rules = Vec::new();
        for fusion in fusions {
            rules.push(fusion.rule);
            let missing = fusion.nodes.iter().map(String::as_str).filter(|n| !nodes.contains(n));
            nodes = missing.chain(nodes.iter().copied()).collect();
        }
        let cells = [i.to_string(), step.op.into(), step.kernel.clone(), nodes.join(" + "), rules.join(", ")];
        table.row(cells);
        list.push(json!({
            "dispatch": i, "op": step.op, "kernel": step.kernel, "nodes": nodes, "rules": rules,
        }));
    }
    let joined = lowered.fusions.len();
    let text =
        format!("{} dispatches at every run, {joined} fusions at lowering\n{table}", lowered.steps.len());
    Answer::new(text, json!({ "stage": "lowered", "dispatches": list, "fusions": joined }))
}

/// Buffers, kernels and dispatches.
fn listing(program: &Program, prediction: &Prediction) -> Answer {
    let mut buffers = Table::new(&[">buffer", "content", ">bytes", ""]);
    for (i, buffer) in program.buffers.iter().enumerate() {
        let (content, size) = (content(&buffer.content, program), bytes(buffer.bytes as usize));
        buffers.row([i.to_string(), content, buffer.bytes.to_string(), size]);
    }
    let (load, run) = (steps(program, &program.load, &[]), steps(program, &program.run, &prediction.steps));
    let barriers = |steps: &[Step<'_>]| steps.iter().filter(|s| s.barrier).count();
    let mut text = format!(
        "{} buffers: {} for every run, {} of params and constants\n{buffers}",
        program.buffers.len(),
        bytes(program.run_bytes() as usize),
        bytes(program.stored_bytes() as usize)
    );
    for (title, steps) in [("once, when params are set", &load), ("at every run", &run)] {
        text += &format!("\n{title}: {} dispatches, {} barriers\n", steps.len(), barriers(steps));
        if !steps.is_empty() {
            text += &table(program, steps).to_string();
        }
    }
    let ms = |time: Duration| short(time.as_secs_f64() * 1e3);
    text += &format!(
        "\npredicted: {} ms a run, of that {} to start it and {} for transfers\n",
        ms(prediction.total),
        ms(prediction.run),
        ms(prediction.transfers)
    );
    text += &format!("\n{} kernels\n", program.kernels.len());
    let part = |steps: &[Step<'_>]| steps.iter().map(|s| s.json(program)).collect::<Vec<_>>();
    let declared: Vec<Value> = program
        .buffers
        .iter()
        .map(|b| json!({ "content": content(&b.content, program), "bytes": b.bytes }))
        .collect();
    let names: Vec<&str> = program.kernels.iter().map(|k| k.name.as_str()).collect();
    let json = json!({
        "stage": "program", "buffers": declared, "kernels": names, "load": part(&load), "run": part(&run),
        "run_bytes": program.run_bytes(), "stored_bytes": program.stored_bytes(),
        "predicted_ms": prediction.total.as_secs_f64() * 1e3,
    });
    Answer::new(text, json)
}

/// A dispatch and whether it must wait for those before it.
struct Step<'a> {
    dispatch: &'a Dispatch,
    barrier: bool,
    reads: Vec<Slice>,
    writes: Vec<Slice>,
    /// What it will take, where it is of every run.
    predicted: Option<Duration>,
}

fn steps<'a>(program: &Program, dispatches: &'a [Dispatch], predicted: &[StepPrediction]) -> Vec<Step<'a>> {
    let times = predicted.iter().map(|step| Some(step.time)).chain(std::iter::repeat(None));
    let step = |((dispatch, barrier), predicted): ((&'a Dispatch, bool), Option<Duration>)| {
        let args =
            || dispatch.args.iter().copied().zip(program.kernel(dispatch).args.iter().map(|a| a.access));
        let read = args().filter(|(_, a)| a.reads()).map(|(s, _)| s);
        let reads: Vec<Slice> = read.chain(dispatch.indirect).collect();
        let writes: Vec<Slice> = args().filter(|(_, a)| a.writes()).map(|(s, _)| s).collect();
        Step { dispatch, barrier, reads, writes, predicted }
    };
    dispatches.iter().zip(program.waits(dispatches)).zip(times).map(step).collect()
}

impl Step<'_> {
    fn json(&self, program: &Program) -> Value {
        let slices = |slices: &[Slice]| -> Vec<Value> {
            let slice = |s: &Slice| json!({ "buffer": s.buffer.0, "offset": s.offset, "bytes": s.bytes });
            slices.iter().map(slice).collect()
        };
        let (d, kernel) = (self.dispatch, program.kernel(self.dispatch));
        let params = kernel.params.iter().zip(&d.params).map(|(p, v)| (p.name.clone(), json!(v))).collect();
        json!({
            "kernel": d.kernel.0, "name": kernel.name, "op": d.op, "node": &*d.node, "groups": d.groups, "gated": d.indirect.is_some(),
            "params": Value::Object(params), "reads": slices(&self.reads), "writes": slices(&self.writes),
            "barrier": self.barrier, "flops": d.flops, "bytes": d.bytes,
            "predicted_us": self.predicted.map(|time| time.as_secs_f64() * 1e6),
        })
    }
}

fn table(program: &Program, steps: &[Step<'_>]) -> Table {
    let mut table = Table::new(&[
        ">#",
        "waits",
        ">predicted µs",
        "op",
        "node",
        "kernel",
        ">groups",
        "reads",
        "writes",
        "params",
    ]);
    for (i, step) in steps.iter().enumerate() {
        let (d, kernel) = (step.dispatch, program.kernel(step.dispatch));
        let groups: Vec<String> = d.groups.iter().map(u32::to_string).collect();
        let params: Vec<String> =
            kernel.params.iter().zip(&d.params).map(|(p, v)| format!("{}={v}", p.name)).collect();
        table.row([
            i.to_string(),
            if step.barrier { "barrier".into() } else { String::new() },
            step.predicted.map_or_else(String::new, |time| short(time.as_secs_f64() * 1e6)),
            d.op.to_string(),
            d.node.to_string(),
            format!("{} {}", d.kernel.0, kernel.name),
            format!("{}{}", groups.join("×"), if d.indirect.is_some() { " or 0" } else { "" }),
            slices(&step.reads),
            slices(&step.writes),
            params.join(" "),
        ]);
    }
    table
}

/// Ranges as `buffer[from..to]`.
fn slices(slices: &[Slice]) -> String {
    let slice = |s: &Slice| format!("{}[{}..{}]", s.buffer.0, s.range().start, s.range().end);
    slices.iter().map(slice).collect::<Vec<_>>().join(" ")
}

fn content(content: &Content, program: &Program) -> String {
    let name = |port: Option<&olivine::internals::gpu::Port>| {
        port.map_or(String::new(), |p| format!(" `{}` {}", p.name, p.ty))
    };
    match content {
        Content::Arena => "intermediate results".into(),
        Content::Input(i) => format!("input{}", name(program.inputs.get(*i))),
        Content::Output(i) => format!("output{}", name(program.outputs.get(*i))),
        Content::Constant(tensor) => format!("constant {}", tensor.ty()),
        Content::Table(tensor) => format!("numbers by sizes {}", tensor.ty()),
        Content::Param(name, ty) => format!("param `{name}` {ty}"),
        Content::Packed { .. } => "made at load".into(),
        Content::LoadScratch => "scratch at load".into(),
        Content::Gates => "gates of branches and loops".into(),
        Content::LoadGates => "gates at load".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine::internals::gpu::BufferId;

    #[test]
    fn ranges_are_written_with_their_buffers() {
        let slice = |buffer, offset, bytes| Slice { buffer: BufferId(buffer), offset, bytes };
        assert_eq!(slices(&[slice(0, 0, 16), slice(3, 8, 4)]), "0[0..16] 3[8..12]");
        assert_eq!(slices(&[]), "");
    }
}
