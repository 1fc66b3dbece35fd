//! The program as a person or a script meets it.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const GRAPH: &str = r#"graph "dense" {
  %0 = input "x": f32[2, 3]
  %1 = param "w": f32[3, 4]
  %2 = matmul(%0, %1) "layer0/product"
  %3 = relu(%2) "layer0/relu"
  output "y" = %3
}
"#;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_olivine"));
    command.args(args).stdin(Stdio::null());
    command
}

fn olivine(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The one JSON document of a run that succeeds and says nothing else.
fn json(args: &[&str]) -> Value {
    let output = olivine(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    assert_eq!(stderr(&output), "", "{args:?}");
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", stdout(&output)))
}

/// A text that succeeds.
fn text(args: &[&str]) -> String {
    let output = olivine(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

/// What a run that must fail says on stderr, after it exits with 1.
fn failure(args: &[&str]) -> String {
    let output = olivine(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    assert!(stderr(&output).starts_with("error: "), "{args:?}: {}", stderr(&output));
    stderr(&output)
}

/// A file of this test's own in cargo's folder for such files.
fn file(name: &str, content: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, content).unwrap();
    path
}

const TINY: [&str; 5] = ["--layers=2", "--hidden=16", "--heads=2", "--sequence=4", "--batch=2"];

fn with_tiny<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter().copied().chain(TINY).collect()
}

#[test]
fn devices_lists_the_cpu_and_why_the_rest_is_missing() {
    let table = text(&["devices"]);
    assert!(table.lines().any(|line| line.starts_with("cpu") && line.ends_with("available")), "{table}");
    let devices = json(&["devices", "--json"]);
    let all = devices["devices"].as_array().unwrap();
    for name in ["cpu", "vulkan", "wgpu"] {
        let info = all.iter().find(|d| d["device"] == name).unwrap();
        assert_eq!(info["available"].as_bool().unwrap(), info["reason"].is_null(), "{info}");
    }
}

#[test]
fn doctor_is_content_with_a_working_cpu_and_gives_a_line_for_what_is_missing() {
    let report = json(&["doctor", "--json"]);
    assert_eq!(report["works"], true);
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().any(|c| c["what"] == "CPU device" && c["ok"] == true));
    for check in checks.iter().filter(|c| c["ok"] == false) {
        assert!(!check["fix"].as_str().unwrap().is_empty(), "{check}");
    }
    assert!(text(&["doctor"]).lines().all(|l| ["status", "ok", "missing"].iter().any(|s| l.starts_with(s))));
}

#[test]
fn demo_runs_every_way_and_they_agree() {
    let demo = json(&with_tiny(&["demo", "--json", "--threads=2", "--runs=2"]));
    let rows = demo["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "unfused, one thread, two threads");
    for row in rows {
        assert_eq!(row["agrees"], true, "{row}");
        assert!(row["median_ms"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(rows[0]["relative_difference"], 0.0);
    let table = text(&with_tiny(&["demo", "--runs=1"]));
    assert!(table.contains("2 layers of width 16") && table.contains("reference"), "{table}");
}

#[test]
fn explain_shows_a_file_its_stages_and_a_summary() {
    let path = file("dense.txt", GRAPH);
    let path = path.to_str().unwrap();
    let shown = text(&["explain", path]);
    assert!(shown.contains("at every run") && shown.contains("2 nodes became"), "{shown}");
    assert!(shown.contains("output \"y\""), "{shown}");

    let input = text(&["explain", path, "--stage", "ir"]);
    assert_eq!(input.parse::<olivine::ir::Graph>().unwrap(), GRAPH.parse().unwrap());

    let stages = json(&["explain", path, "--stage=all", "--full", "--json"]);
    let names: Vec<&str> =
        stages["stages"].as_array().unwrap().iter().map(|s| s["stage"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[names.len() - 1]), ("ir", "fused"));
    for stage in stages["stages"].as_array().unwrap() {
        stage["graph"].as_str().unwrap().parse::<olivine::ir::Graph>().unwrap();
        let name = stage["stage"].as_str().unwrap();
        assert_eq!(
            json(&["explain", path, "--stage", name, "--full", "--json"])["graph"],
            stage["graph"],
            "{name}"
        );
    }
    assert_eq!(stages["summary"]["nodes_before"], 2);
    assert!(stages["summary"]["kernels"].as_u64().unwrap() <= 2);
}

#[test]
fn explain_counts_the_kernels_of_a_built_in_models_layers() {
    let summary = json(&with_tiny(&["explain", "encoder", "--json"]))["summary"].clone();
    let layers = summary["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2, "{summary}");
    assert!(summary["nodes_after"].as_u64() < summary["nodes_before"].as_u64(), "{summary}");
    assert!(summary["arena_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn explain_reads_a_graph_from_stdin() {
    let mut child = command(&["explain", "-", "--stage=ir"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(GRAPH.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(stdout(&output).contains("layer0/product"));
}

#[test]
fn explain_refuses_what_it_cannot_find_or_read() {
    let path = file("broken.txt", "graph \"x\" {\n  %0 = rleu(%1)\n}\n");
    let text = failure(&["explain", path.to_str().unwrap()]);
    assert!(
        text.contains("is not a graph") && text.contains("  cause: ") && text.contains("line 2"),
        "{text}"
    );

    let text = failure(&["explain", "bert-bsae"]);
    assert!(text.contains("  hint: ") && text.contains("bert-base"), "{text}");

    let text = failure(&with_tiny(&["explain", "encoder", "--stage=fusd"]));
    assert!(text.contains("ir, ") && text.contains("fused") && text.contains("--stage fused"), "{text}");

    let path = file("sized.txt", GRAPH);
    assert!(failure(&["explain", path.to_str().unwrap(), "--layers=2"]).contains("built-in"));
}

#[test]
fn bench_model_times_a_model_and_dumps_its_output() {
    let dump = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-output.f32", std::process::id()));
    let flag = format!("--dump-output={}", dump.display());
    let args = with_tiny(&["bench", "model", "encoder", "--runs=3", "--warmup=1", "--json", &flag]);
    let result = json(&args);
    assert_eq!(result["runs"], 3);
    assert!(result["median_ms"].as_f64() >= result["least_ms"].as_f64());
    assert!(result["kernels"]["count"].as_u64().unwrap() > 0);
    let bytes = std::fs::read(&dump).unwrap();
    assert_eq!(bytes.len(), 4 * 2 * 4 * 16);
    let first = f32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert_eq!(result["output"]["first"][0].as_f64().unwrap() as f32, first);
    let again = json(&args);
    assert_eq!(again["output"], result["output"], "the same seed gives the same numbers");
}

#[test]
fn bench_ops_compares_row_kernels_with_a_copy() {
    let result = json(&["bench", "ops", "--quick", "--filter=softmax", "--json"]);
    let ops = result["ops"].as_array().unwrap();
    assert_eq!(ops.len(), 1);
    assert!(ops[0]["ratio_to_copy"].as_f64().unwrap() > 0.0);
    assert!(ops[0]["gb_per_s"].as_f64().unwrap() > 0.0);
    let result = json(&["bench", "ops", "--quick", "--filter=matmul", "--json"]);
    assert!(result["ops"][0]["gflops"].as_f64().unwrap() > 0.0);
    assert!(failure(&["bench", "ops", "--filter=no-such-operation"]).contains("no-such-operation"));
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(text(&["completions", shell]).contains("olivine"), "{shell}");
    }
    assert_eq!(json(&["completions", "bash", "--json"])["shell"], "bash");
}

#[test]
fn bad_arguments_exit_with_two() {
    for args in [
        &["no-such-command"] as &[&str],
        &[],
        &["demo", "--layers=many"],
        &["demo", "--threads=0"],
        &["bench", "model", "gpt-9"],
        &["completions", "csh-of-1978"],
    ] {
        assert_eq!(olivine(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_with_a_hint() {
    for args in [
        &["demo", "--device=vulkan"] as &[&str],
        &["bench", "ops", "--device=wgpu"],
        &["explain", "encoder", "--device=vulkan:3"],
    ] {
        let text = failure(args);
        assert!(text.contains("not available") && text.contains("  hint: "), "{text}");
    }
    assert!(failure(&["demo", "--device=vulcan"]).contains("did you mean `vulkan`?"));
}

#[test]
fn an_error_in_json_mode_is_one_document_too() {
    let output = olivine(&["demo", "--device=vulkan", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(document["error"].as_str().unwrap().contains("vulkan"));
    assert!(document["hint"].is_string());
}

#[test]
fn absurd_sizes_are_errors_and_not_crashes() {
    for args in [
        &["demo", "--hidden=10", "--heads=3"] as &[&str],
        &["demo", "--hidden=0"],
        &["demo", "--hidden=4000000000", "--heads=1"],
        &["demo", "--sequence=18446744073709551615"],
        &["demo", "--batch=1000000", "--sequence=1000000"],
        &["bench", "model", "encoder", "--hidden=1048576", "--heads=1"],
        &["explain", "encoder", "--layers=18446744073709551615"],
    ] {
        failure(args);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child =
        command(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(child.wait().unwrap().success(), "{errors}");
    assert_eq!(errors, "");
}
