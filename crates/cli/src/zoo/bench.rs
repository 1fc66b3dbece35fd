//! `olivine bench zoo`: a run of each model on each device, beside ONNX Runtime on this machine's processor.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Args;
use olivine::ir::Tensor;
use olivine::{Model, Session};
use serde_json::{Value, json};

use super::ZooArgs;
use super::oracle::Entry;
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::progress::Progress;
use crate::table::Table;
use crate::timing::{Times, short, timed};

/// Makes the inputs that the rules give and times ONNX Runtime on them.
const SCRIPT: &str = include_str!("oracle.py");

/// Arguments of `bench zoo`.
#[derive(Args)]
pub(crate) struct ZooBenchArgs {
    #[command(flatten)]
    zoo: ZooArgs,
    /// Timed runs.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Runs before the timed ones.
    #[arg(long, default_value_t = 3, value_name = "N")]
    warmup: u32,
    /// Do not look for ONNX Runtime.
    #[arg(long)]
    no_onnxruntime: bool,
}

pub(crate) fn run(global: &Global, args: &ZooBenchArgs) -> Result<Answer, Failure> {
    let (sessions, entries) = (args.zoo.sessions(global)?, args.zoo.entries()?);
    if entries.is_empty() {
        return Err(args.zoo.nothing(&args.zoo.oracle));
    }
    let peer = if args.no_onnxruntime { Err("not asked for".to_string()) } else { Peer::start(global, args) };
    let mut headings = vec!["model".to_string()];
    headings.extend(sessions.iter().map(|(device, _)| format!(">{device} ms")));
    headings.push(">ONNX Runtime ms".into());
    headings.extend(sessions.iter().map(|(device, _)| format!(">{device} / ONNX Runtime")));
    let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
    let mut progress = Progress::new(entries.len(), global.quiet);
    let mut list = Vec::new();
    let mut ratios: HashMap<&str, Vec<f64>> = HashMap::new();
    let (mut peer, missing) = match peer {
        Ok(peer) => (Some(peer), None),
        Err(why) => (None, Some(why)),
    };
    for entry in &entries {
        progress.begin(&entry.model);
        let inputs = entry.inputs(&args.zoo.folder)?;
        // In turn and not one after the other has done all, so that both see the machine in the same mood.
        let other = peer.as_mut().map(|peer| peer.time(entry));
        let other = other.and_then(|answer| answer.ok().flatten());
        let mut cells = vec![entry.model.clone()];
        let mut compared = Vec::new();
        let mut devices = serde_json::Map::new();
        for (device, session) in &sessions {
            let time = time(entry, &args.zoo.folder, session, &inputs, args);
            cells.push(time.as_ref().map_or_else(|e| e.error().to_string(), |t| short(*t)));
            let ratio = time.as_ref().ok().zip(other).map(|(ours, theirs)| ours / theirs);
            compared.push(ratio.map_or_else(String::new, |r| format!("{r:.2}")));
            ratios.entry(device).or_default().extend(ratio);
            devices.insert(device.clone(), json!(time.ok()));
        }
        cells.push(other.map_or_else(String::new, short));
        cells.extend(compared);
        table.row(cells);
        list.push(json!({ "model": entry.model, "ms": devices, "onnxruntime_ms": other }));
        progress.step();
    }
    let mut means = vec!["geometric mean".to_string()];
    means.extend(sessions.iter().map(|_| String::new()).chain([String::new()]));
    let mean = |r: &Vec<f64>| (r.iter().map(|r| r.ln()).sum::<f64>() / r.len().max(1) as f64).exp();
    let of = |device: &str| ratios.get(device).filter(|r| !r.is_empty()).map(mean);
    means.extend(sessions.iter().map(|(d, _)| of(d).map_or_else(String::new, |m| format!("{m:.2}"))));
    table.row(means);
    let mut text = format!("{} threads, medians of {} runs\n\n{table}", global.thread_count(), args.runs);
    if let Some(why) = &missing {
        text += &format!("\nwithout ONNX Runtime: {why}\n");
    }
    Ok(Answer::new(text, json!({ "threads": global.thread_count(), "models": list })))
}

/// The median of some runs in milliseconds, from inputs on the host to outputs on the host.
fn time(
    entry: &Entry,
    folder: &Path,
    session: &Session,
    inputs: &[(String, Tensor)],
    args: &ZooBenchArgs,
) -> Result<f64, Failure> {
    let executable = session.compile(&Model::load(folder.join(&entry.model))?)?;
    let mut times = Times::default();
    for i in 0..args.warmup + args.runs {
        let (time, out) =
            timed(|| executable.run(inputs.iter().map(|(name, tensor)| (name.as_str(), tensor))));
        out?;
        if i >= args.warmup {
            times.push(time);
        }
    }
    Ok(times.median())
}

/// ONNX Runtime in a process of its own, asked for one model at a time.
struct Peer {
    process: std::process::Child,
    answers: std::io::BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn start(global: &Global, args: &ZooBenchArgs) -> Result<Self, String> {
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT, "--time"]).arg(&args.zoo.folder).arg(global.thread_count().to_string());
        command.arg(args.warmup.to_string()).arg(args.runs.to_string());
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut process = spawned.map_err(|e| format!("python3 does not start: {e}"))?;
        let stdout = process.stdout.take().ok_or("python3 has no output")?;
        let mut peer = Peer { process, answers: std::io::BufReader::new(stdout) };
        match peer.answer() {
            Some(_) => Ok(peer),
            None => Err("python3 does not have onnxruntime and numpy".into()),
        }
    }

    fn answer(&mut self) -> Option<Value> {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut self.answers, &mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// Its median in milliseconds, `None` if it cannot run the model.
    fn time(&mut self, entry: &Entry) -> Result<Option<f64>, Failure> {
        let stdin = self.process.stdin.as_mut().ok_or_else(|| Failure::new("python3 has no input"))?;
        let sent = writeln!(stdin, "{}", entry.json()).and_then(|()| stdin.flush());
        sent.map_err(|e| Failure::new(format!("cannot ask ONNX Runtime: {e}")))?;
        Ok(self.answer().and_then(|answer| answer["ms"].as_f64()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Without input it ends by itself; waiting leaves no zombie.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
