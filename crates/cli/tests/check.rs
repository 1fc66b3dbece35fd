//! `olivine check`, `run` and `inspect` on models written here.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use wire::{F32, Graph, floats, node, value};

fn olivine(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_olivine"));
    command.args(args).stdin(Stdio::null()).env("NODEVICE_SELECT", "1").output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn file(name: &str, content: &[u8]) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_string()
}

/// A NumPy file of floats in one row.
fn npy(name: &str, values: &[f32]) -> String {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", values.len());
    let header = format!("{header:<117}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    file(name, &bytes)
}

/// y = relu(x·w) − relu(x·w), which is 0, and z = relu(x·w); w is an input with a default.
fn model(name: &str) -> String {
    let graph = Graph {
        nodes: vec![
            node("Mul", &["x", "w"], &["a"]),
            node("Relu", &["a"], &["z"]),
            node("Sub", &["z", "z"], &["y"]),
        ],
        initializers: vec![floats("w", &[2], &[1.0, -1.0])],
        inputs: vec![value("x", F32, &["2"]), value("w", F32, &["2"])],
        outputs: vec![value("y", F32, &["2"]), value("z", F32, &["2"])],
        ..Graph::default()
    };
    file(name, &graph.model())
}

#[test]
fn what_is_expected_is_the_reference_for_the_cpu_too() {
    let (model, x) = (model("expected.onnx"), npy("x.npy", &[3.0, -4.0]));
    let input = format!("x={x}");
    let (right, wrong) = (npy("right.npy", &[3.0, 4.0]), npy("wrong.npy", &[3.0, 5.0]));
    let zeros = npy("zeros.npy", &[0.0, 0.0]);
    let check = |z: &str, more: &[&str]| {
        let (z, y) = (format!("z={z}"), format!("y={zeros}"));
        let args = ["check", &model, "--input", &input, "--expect", &z, "--expect", &y, "--device=cpu"];
        olivine(&[&args, more, &["--no-oracle", "--json"]].concat())
    };
    let output = check(&right, &[]);
    assert!(output.status.success(), "{}", json(&output));
    assert_eq!(json(&output)["reference"], "the expected outputs");
    let output = check(&wrong, &[]);
    assert_eq!(output.status.code(), Some(1));
    let cpu = &json(&output)["devices"][0];
    assert_eq!((&cpu["device"], &cpu["agrees"]), (&"cpu".into(), &false.into()));
    let (y, z) = (&cpu["outputs"][0], &cpu["outputs"][1]);
    assert_eq!((&y["verdict"], &z["verdict"]), (&"agrees".into(), &"differs".into()));
    assert_eq!(z["error"]["size"], 0.2);
    assert!(check(&wrong, &["--tolerance=0.5"]).status.success());
}

#[test]
fn a_reference_of_zeros_is_no_reason_for_hundreds_of_digits() {
    let (model, x) = (model("zeros.onnx"), npy("zero_x.npy", &[3.0, -4.0]));
    let zeros = npy("zero_z.npy", &[0.0, 0.0]);
    let (input, expect) = (format!("x={x}"), format!("z={zeros}"));
    let args = ["check", &model, "--input", &input, "--expect", &expect, "--device=cpu", "--no-oracle"];
    let output = olivine(&args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("4.00 where the reference is 0"), "{text}");
    assert!(text.lines().all(|line| line.len() < 250), "{text}");
}

#[test]
fn expected_outputs_that_are_not_there_are_refused() {
    let model = model("refused.onnx");
    let refused = |expect: &str| {
        let output = olivine(&["check", &model, "--expect", expect, "--no-oracle"]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused("q=q.npy").contains("no output `q`"));
    assert!(refused("z").contains("not NAME=FILE"));
    assert!(refused("z=/no/such/file.npy").contains("cannot read"));
}

#[test]
fn an_input_with_a_default_may_be_left_out_or_given() {
    let (model, x, w) = (model("default.onnx"), npy("dx.npy", &[3.0, -4.0]), npy("dw.npy", &[10.0, 1.0]));
    let (x, w) = (format!("x={x}"), format!("w={w}"));
    let largest = |more: &[&str]| {
        let args = [&["run", &model, "--input", &x, "--device=cpu", "--json"], more].concat();
        let output = olivine(&args);
        let outputs = json(&output)["outputs"].as_array().unwrap().clone();
        outputs.iter().find(|o| o["name"] == "z").unwrap()["largest"].as_f64().unwrap()
    };
    assert_eq!((largest(&[]), largest(&["--input", &w])), (4.0, 30.0));
    let inspected = json(&olivine(&["inspect", &model, "--device=cpu", "--json"]));
    assert_eq!(inspected["inputs"].as_array().unwrap().len(), 1);
    assert_eq!(inspected["inputs_with_defaults"][0]["name"], "w");
}
