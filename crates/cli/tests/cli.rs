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
    // Mesa's layer that chooses among devices complains on stderr where there is no desktop.
    command.args(args).stdin(Stdio::null()).env("NODEVICE_SELECT", "1");
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
        let of_backend = |d: &&Value| d["device"].as_str().unwrap().split(':').next() == Some(name);
        assert!(all.iter().any(|d| of_backend(&d)), "{name}");
    }
    for info in all {
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
    let demo = json(&with_tiny(&["demo", "--device=cpu", "--json", "--threads=2", "--runs=2"]));
    let rows = demo["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "unfused, one thread, two threads");
    for row in rows {
        assert_eq!(row["agrees"], true, "{row}");
        assert!(row["median_ms"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(rows[0]["relative_difference"], 0.0);
    let table = text(&with_tiny(&["demo", "--device=cpu", "--runs=1"]));
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
        &["demo", "--device=vulkan:99"] as &[&str],
        &["bench", "ops", "--device=wgpu:99"],
        &["explain", "encoder", "--device=vulkan:name:no such device"],
        &["profile", "encoder", "--device=vulkan:99"],
    ] {
        let text = failure(args);
        assert!(text.contains("not available") && text.contains("  hint: "), "{text}");
    }
    assert!(failure(&["demo", "--device=vulcan"]).contains("did you mean `vulkan`?"));
}

#[test]
fn an_error_in_json_mode_is_one_document_too() {
    let output = olivine(&["demo", "--device=vulkan:99", "--json"]);
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

/// The GPU devices of this machine that can be opened; none where no driver is installed.
fn gpus() -> Vec<&'static str> {
    let there = |name: &&str| olivine::is_available(name.parse().unwrap());
    ["vulkan", "wgpu"].into_iter().filter(there).collect()
}

const SMALL: &str = r#"graph "small" {
  %0 = input "x": f32[8, 30]
  %1 = param "w": f32[30]
  %2 = mul(%0, %1) "scale"
  %3 = sin(%2) "wave"
  output "y" = %3
}
"#;

#[test]
fn profile_writes_a_trace_and_accounts_for_the_time_on_every_device() {
    let graph = file("profiled.txt", SMALL);
    let trace = file("trace.json", "");
    let flag = format!("--trace={}", trace.display());
    for device in gpus().into_iter().chain(["cpu"]) {
        let device_flag = format!("--device={device}");
        let args =
            ["profile", graph.to_str().unwrap(), &flag, &device_flag, "--runs=3", "--no-ceilings", "--json"];
        let profile = json(&args);
        let dispatches = profile["dispatches"].as_array().unwrap();
        assert!(!dispatches.is_empty(), "{profile}");
        let sum: f64 = profile["groups"].as_array().unwrap().iter().map(|g| g["ms"].as_f64().unwrap()).sum();
        assert!((sum - profile["kernels_ms"].as_f64().unwrap()).abs() < 1e-9);
        assert!(dispatches[0]["gb_per_s"].as_f64().unwrap() > 0.0, "every device counts bytes");
        assert!(dispatches.iter().all(|d| d["predicted_ms"].as_f64().unwrap() > 0.0), "{profile}");
        assert!(profile["predicted_ms"].as_f64().unwrap() > 0.0, "{profile}");
        let trace: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
        assert_eq!(events.count(), dispatches.len());
    }
}

#[test]
fn devices_are_ranked_for_a_model_and_drawn() {
    let graph = file("ranked.txt", SMALL);
    let (bars, roofs) = (file("ranking.svg", ""), file("roofline.svg", ""));
    let (svg, roofline) = (format!("--svg={}", bars.display()), format!("--roofline={}", roofs.display()));
    let ranked = json(&["devices", "--rank", graph.to_str().unwrap(), &svg, &roofline, "--json"]);
    let rows = ranked["ranking"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["device"] == "cpu" && row["predicted_ms"].as_f64().unwrap() > 0.0));
    let times: Vec<f64> = rows.iter().filter_map(|row| row["predicted_ms"].as_f64()).collect();
    assert!(times.is_sorted(), "{ranked}");
    assert!(rows.iter().all(|row| !row["reason"].as_str().unwrap().is_empty()), "{ranked}");
    for plot in [bars, roofs] {
        let drawn = std::fs::read_to_string(plot).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("cpu") && !drawn.contains("NaN"), "{drawn}");
    }
    let said = failure(&["devices", "--rank", graph.to_str().unwrap(), "--svg=/no/such/folder/r.svg"]);
    assert!(said.contains("cannot write") && said.contains("  hint: "), "{said}");
    assert!(failure(&["devices", "--rank", "/no/such/model.onnx"]).contains("error: "));
}

#[test]
fn profile_shows_what_the_device_can_do_at_best() {
    let graph = file("ceilings.txt", SMALL);
    let device = gpus().first().copied().unwrap_or("cpu");
    let device = format!("--device={device}");
    let profile = json(&["profile", graph.to_str().unwrap(), &device, "--runs=2", "--json"]);
    assert!(profile["ceilings"]["gb_per_s"].as_f64().unwrap() > 0.0, "{profile}");
    assert!(profile["ceilings"]["tflops"].as_f64().unwrap() > 0.0, "{profile}");
}

#[test]
fn profile_takes_an_empty_run_and_refuses_what_is_not_there() {
    let graph = file("empty.txt", "graph \"empty\" {\n  %0 = input \"x\": f32[2]\n  output \"y\" = %0\n}\n");
    let trace = file("empty-trace.json", "");
    let flag = format!("--trace={}", trace.display());
    let args = ["profile", graph.to_str().unwrap(), &flag, "--device=cpu", "--runs=1", "--no-ceilings"];
    assert!(text(&args).contains("dispatches"));
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    assert!(written["traceEvents"].is_array());

    let said = failure(&["profile", "bert-bsae", "--device=cpu"]);
    assert!(said.contains("  hint: ") && said.contains("bert-base"), "{said}");
    let said = failure(&with_tiny(&["profile", "encoder", "--device=cpu", "--trace=/no/such/folder/t.json"]));
    assert!(said.contains("cannot write the trace") && said.contains("  hint: "), "{said}");
}

#[test]
fn explain_shows_a_gpus_program_and_its_kernels_in_the_drivers_language() {
    let graph = file("staged.txt", SMALL);
    let graph = graph.to_str().unwrap();
    for device in gpus() {
        let flag = format!("--device={device}");
        let program = json(&["explain", graph, "--stage=program", &flag, "--json"]);
        let run = program["run"].as_array().unwrap();
        assert!(!run.is_empty() && run[0]["barrier"] == false, "nothing stands before the first: {program}");
        assert!(run[0]["writes"].as_array().unwrap().len() == 1, "{program}");
        assert!(run.iter().all(|d| d["predicted_us"].as_f64().unwrap() > 0.0), "{program}");
        assert!(text(&["explain", graph, "--stage=program", &flag]).contains("input `x` f32[8, 30]"));
        let lowered = json(&["explain", graph, "--stage=lowered", &flag, "--json"]);
        let dispatches = lowered["dispatches"].as_array().unwrap();
        assert_eq!(dispatches.len(), run.len(), "{lowered}");
        assert!(dispatches.iter().all(|d| !d["nodes"].as_array().unwrap().is_empty()), "{lowered}");
        let (own, other) = if device == "vulkan" { ("spirv", "wgsl") } else { ("wgsl", "spirv") };
        let entry = if own == "spirv" { "OpEntryPoint GLCompute" } else { "@compute" };
        let own = format!("--stage={own}");
        assert!(text(&["explain", graph, &own, &flag]).contains(entry));
        assert!(failure(&["explain", graph, &format!("--stage={other}"), &flag]).contains("  hint: "));
    }
    for stage in ["program", "spirv", "wgsl", "ptx"] {
        let said = failure(&["explain", graph, &format!("--stage={stage}"), "--device=cpu"]);
        assert!(said.contains("CPU") && said.contains("  hint: "), "{said}");
    }
}

#[test]
fn explain_shows_what_lowering_joins_on_the_cpu_as_on_a_gpu() {
    let graph = file(
        "scores.txt",
        r#"graph "scores" {
  %0 = input "q": f32[3, 70, 8]
  %1 = input "k": f32[3, 8, 33]
  %2 = matmul(%0, %1) "scores"
  %3 = softmax(%2) {axis=2} "weights"
  output "y" = %3
}
"#,
    );
    let args = ["explain", graph.to_str().unwrap(), "--stage=lowered", "--device=cpu"];
    let lowered = json(&[&args[..], &["--json"]].concat());
    assert_eq!(lowered["fusions"], 1, "{lowered}");
    let calls = lowered["dispatches"].as_array().unwrap();
    assert_eq!(calls.len(), 1, "{lowered}");
    assert_eq!(calls[0]["nodes"], serde_json::json!(["scores", "weights"]));
    assert_eq!(calls[0]["rules"], serde_json::json!(["softmax in its matmul"]));
    let said = text(&args);
    assert!(said.contains("1 dispatches at every run, 1 fusions at lowering"), "{said}");
    assert!(said.contains("scores + weights") && said.contains("softmax in its matmul"), "{said}");
}

#[test]
fn bench_gpu_measures_rates_and_counts_the_dispatches_of_a_chain() {
    for device in gpus().into_iter().chain(["cpu"]) {
        let flag = format!("--device={device}");
        let result = json(&["bench", "gpu", "--quick", "--filter=chain of", &flag, "--json"]);
        assert_eq!(result["measurements"][0]["dispatches"], 20, "{result}");
        let result = json(&["bench", "gpu", "--quick", "--filter=add", &flag, "--json"]);
        assert!(result["measurements"][0]["gb_per_s"].as_f64().unwrap() > 0.0, "{result}");
    }
    assert!(failure(&["bench", "gpu", "--filter=no-such-thing", "--device=cpu"]).contains("no-such-thing"));
}

#[test]
fn bench_gpu_makes_every_measurement_in_small_and_says_so_line_by_line() {
    for device in gpus() {
        let flag = format!("--device={device}");
        let said = text(&["bench", "gpu", "--quick", "--lines", "--same-bits=2", &flag]);
        let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["device"], device);
        let begun: Vec<&Value> = lines.iter().filter_map(|l| l.get("begin")).collect();
        let made: Vec<&Value> =
            lines.iter().filter_map(|l| l.get("measurement")).map(|m| &m["name"]).collect();
        assert!(begun == made && made.len() > 60, "{device}: {said}");
        let only = text(&["bench", "gpu", "--quick", "--only=softmax 128x128", "--only=add 65536", &flag]);
        assert!(only.contains("softmax") && only.contains("add") && !only.contains("attention"), "{only}");
    }
    assert!(failure(&["bench", "gpu", "--only=soft", "--device=cpu"]).contains("`soft`"));
}

#[test]
fn bench_accuracy_finds_the_errors_of_matmuls_small_on_every_kind_of_numbers() {
    for device in gpus().into_iter().chain(["cpu"]) {
        let result = json(&["bench", "accuracy", "--quick", &format!("--device={device}"), "--json"]);
        let rows = result["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 10, "{result}");
        for row in rows {
            for of in ["chosen", "fma"] {
                let error = row[of].as_f64().unwrap();
                assert!(error > 0.0 && error < 2e-6, "{device}: {row}");
            }
        }
    }
}

#[test]
fn bench_start_tells_the_parts_of_a_first_result() {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-cache", std::process::id()));
    let flag = format!("--cache={}", cache.display());
    let result = json(&with_tiny(&["bench", "start", "encoder", "--device=cpu", &flag, "--json"]));
    let ms = |part: &str| result["ms"][part].as_f64().unwrap();
    let parts = ms("open_the_device") + ms("make_the_weights") + ms("compile") + ms("load") + ms("first_run");
    assert!(ms("process_start_to_first_result") >= parts, "{result}");
    assert_eq!(olivine(&["bench", "start", "--no-cache", &flag]).status.code(), Some(2));
}

#[test]
fn bench_large_checks_a_tensor_and_a_model_against_the_host() {
    for device in gpus().into_iter().chain(["cpu"]) {
        let flag = format!("--device={device}");
        let sizes = ["--tensor-mib=2", "--elements=70000", "--params=3", "--width=40"];
        let result = json(&[&["bench", "large", &flag, "--json"][..], &sizes].concat());
        let operations = result["operations"].as_array().unwrap();
        assert!(operations.len() > 20, "{result}");
        assert!(operations.iter().all(|o| o["checked"].as_u64().unwrap() > 0), "{result}");
        assert!(result["tensor"]["checked"].as_u64().unwrap() > 10_000, "{result}");
        assert!(result["model"]["relative_l2"].as_f64().unwrap() <= 1e-5, "{result}");
    }
}

#[test]
fn tune_measures_candidates_and_keeps_what_is_better() {
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-tuning", std::process::id()));
    let folder = format!("--cache={}", cache.display());
    for device in gpus() {
        let flag = format!("--device={device}");
        let args = ["tune", "--quick", "--dtypes=f32", &flag, &folder, "--json"];
        let result = json(&args);
        let rows = result["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 3, "two products and an attention: {result}");
        for row in rows {
            assert!(row["best_ms"].as_f64().unwrap() <= row["default_ms"].as_f64().unwrap(), "{row}");
            assert_eq!(row["notes"].as_array().unwrap().len(), 0, "{row}");
        }
        let kept: Vec<&Value> = rows.iter().filter(|row| row["best"] != row["default"]).collect();
        if let Some(path) = result["kept"].as_str() {
            let text = std::fs::read_to_string(path).unwrap();
            for row in kept {
                let word = |key: &str| row[key].as_str().unwrap();
                let line = format!("{} {} = {}\n", word("family"), word("class"), word("best"));
                assert!(text.contains(&line), "{line} in {text}");
            }
        } else {
            assert!(kept.is_empty(), "{result}");
        }
    }
    let dry = ["tune", "--shapes=8x8x8", "--quick", "--dry-run", "--device=vulkan", &folder];
    assert!(text(&dry).contains("nothing to keep"));
    assert!(failure(&["tune", "--shapes=8x8", "--device=vulkan", &folder]).contains("8x8"));
    assert!(failure(&["tune", "--quick", "--device=cpu"]).contains("nothing to tune"));
    let _ = std::fs::remove_dir_all(&cache);
}

#[test]
fn a_name_or_filter_that_matches_nothing_is_an_error() {
    let missing = ["devices", "--device=gpu"];
    assert!(failure(&missing).contains("unknown device"));
    for args in [
        &["devices", "--device=vulkan:name:no such card"] as &[&str],
        &["devices", "--device=vulkan:99"],
        &["devices", "--device=wgpu:99"],
        &["verify", "no-such-case", "--device=cpu"],
        &["demo", "--dim=batch=2", "--device=cpu"],
        &["explain", "encoder", "--dim=batch=2", "--device=cpu"],
        &["bench", "ops", "--filter=no-such-operation", "--device=cpu"],
        &["bench", "gpu", "--filter=no-such-measurement", "--device=cpu"],
        &["test", "zoo", "/", "no-such-model", "--device=cpu", "--oracle=../../zoo/oracle.json"],
    ] {
        let text = failure(args);
        assert!(text.contains("  hint: "), "{args:?}: {text}");
    }
    for device in gpus() {
        let flag = format!("--device={device}");
        assert!(failure(&["verify", "no-such-case", "--words", &flag]).contains("no-such-case"));
        let tune = ["tune", "--quick", "--shapes=8x8x8", "--family=no-such-family", "--dry-run", &flag];
        assert!(failure(&tune).contains("no-such-family"));
    }
    let cpu = json(&["devices", "--device=cpu", "--json"]);
    assert_eq!(cpu["devices"].as_array().unwrap().len(), 1);
    assert_eq!(json(&["verify", "relu", "--device=cpu", "--repeat=1", "--json"])["wrong"], 0);
}

#[test]
fn files_that_are_no_model_are_named_with_what_to_do() {
    let safetensors = String::from_utf8([&2u64.to_le_bytes(), b"{}".as_slice()].concat()).unwrap();
    let path = file("weights.safetensors", &safetensors);
    let path = path.to_str().unwrap();
    for command in ["run", "inspect", "check", "explain", "profile"] {
        let text = failure(&[command, path, "--device=cpu"]);
        assert!(text.contains("a safetensors file") && text.contains("export"), "{command}: {text}");
    }
    let pointer = file("pointer.onnx", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    assert!(failure(&["run", pointer.to_str().unwrap(), "--device=cpu"]).contains("git lfs pull"));
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_folders_are_refused_as_models_and_graphs() {
    let pipe = file("pipe", "");
    std::fs::remove_file(&pipe).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    for path in [pipe, "/dev/zero", "/"] {
        for command in ["run", "inspect", "explain"] {
            let text = failure(&[command, path, "--device=cpu"]);
            assert!(text.contains("not a plain file"), "{command} {path}: {text}");
        }
    }
    let _ = std::fs::remove_file(pipe);
}

#[cfg(feature = "serve")]
#[test]
fn what_cannot_be_served_is_said_before_anything_is_loaded() {
    assert!(failure(&["serve", "nothing.gguf", "--device", "cpu"]).contains("nothing.gguf"));
    let keys = std::env::temp_dir().join(format!("olivine-no-keys-{}", std::process::id()));
    std::fs::write(&keys, "\n  \n").unwrap();
    let path = keys.to_str().unwrap();
    assert!(failure(&["serve", "nothing.gguf", "--api-key-file", path]).contains("has no key"));
    std::fs::remove_file(&keys).unwrap();
}
