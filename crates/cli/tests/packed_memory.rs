//! What a 4-bit ONNX model takes of a GPU's and the host's memory, beside its file and what `olivine inspect` predicts.
//! One test: others would take memory meanwhile.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use olivine::ir::{DType, Tensor};
use olivine::{Device, Executable, Model, Session};
use serde_json::Value;
use wire::{F32, Graph, Message, int_attribute, node, tensor, value};

const U8: i64 = 2;
const BLOCK: usize = 32;
const SIZE: usize = 2048;

/// Where zero points of a model are.
#[derive(Clone, Copy, Debug)]
enum Zeros {
    None,
    Packed,
}

/// `count` MatMulNBits one after another, of 4-bit weights `[SIZE, SIZE]`; the file and its bytes.
fn model(name: &str, count: usize, zeros: Zeros) -> (String, u64) {
    let (size, blocks) = (SIZE, SIZE / BLOCK);
    let dims = |dims: &[usize]| dims.iter().map(|d| *d as i64).collect::<Vec<i64>>();
    // Pages of one byte could be stored once.
    let bytes = |n: usize, seed: usize| (0..n).map(|i| (i * 31 + i / 4096 + seed) as u8).collect::<Vec<u8>>();
    let scales: Vec<u8> =
        (0..size * blocks).flat_map(|i| (1e-4 * (1 + i % 7) as f32).to_le_bytes()).collect();
    let (mut nodes, mut initializers) = (Vec::new(), Vec::new());
    for i in 0..count {
        let names = ["b", "s", "z"].map(|name| format!("{name}{i}"));
        let [b, s, z] = &names;
        let (x, y) = (format!("x{i}"), format!("x{}", i + 1));
        initializers.push(tensor(b, U8, &dims(&[size, blocks, BLOCK / 2]), &bytes(size * size / 2, i)));
        initializers.push(tensor(s, F32, &dims(&[size, blocks]), &scales));
        let mut inputs = vec![x.as_str(), b, s];
        if let Zeros::Packed = zeros {
            let row = blocks.div_ceil(2);
            initializers.push(tensor(z, U8, &dims(&[size, row]), &bytes(size * row, i)));
            inputs.push(z);
        }
        let attributes = [("K", size), ("N", size), ("block_size", BLOCK), ("bits", 4)];
        let matmul = node("com.microsoft:MatMulNBits", &inputs, &[&y]);
        let with =
            |node: Message, (name, value): (&str, usize)| node.inside(5, &int_attribute(name, value as i64));
        nodes.push(attributes.into_iter().fold(matmul, with));
    }
    let (last, columns) = (format!("x{count}"), size.to_string());
    let graph = Graph {
        nodes,
        initializers,
        inputs: vec![value("x0", F32, &["1", &columns])],
        outputs: vec![value(&last, F32, &["1", &columns])],
        ..Graph::default()
    };
    let opsets = [Message::new().int(2, 21), Message::new().text(1, "com.microsoft").int(2, 1)];
    let whole = Message::new().int(1, 10).all(8, &opsets).inside(7, &graph.message()).0;
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, &whole).unwrap();
    (path.to_str().unwrap().to_string(), whole.len() as u64)
}

/// Loads a model and runs it once.
fn ran(session: &Session, path: &str, size: usize) -> (Model, Executable) {
    let model = Model::load(path).unwrap();
    let executable = session.compile(&model).unwrap();
    let x = Tensor::zeros(DType::F32, [1, size]).unwrap();
    drop(executable.run([("x0", &x)]).unwrap());
    (model, executable)
}

/// Bytes of this process in memory, without pages of files. A software device's memory is among them.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
    };
    of("RssAnon:") + of("RssShmem:")
}

/// Variables that make this program measure a model: a small one to warm up, then the model itself.
const MEASURE: [&str; 2] = ["OLIVINE_TEST_WARM", "OLIVINE_TEST_MODEL"];

/// Bytes of the device and of the process that a model takes, in a process of its own: memory that this one freed could
/// be used again, and nobody would see.
fn measured(small: &str, path: &str) -> (u64, u64) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", NAME, "--nocapture"]).env(MEASURE[0], small).env(MEASURE[1], path);
    let output = command.stdin(Stdio::null()).env("NODEVICE_SELECT", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once("measured ")).map(|(_, line)| line);
    let numbers = line.and_then(|line| line.split_once(' ')).unwrap_or_else(|| panic!("{text}"));
    (numbers.0.parse().unwrap(), numbers.1.trim().parse().unwrap())
}

fn measure(small: &str, path: &str) {
    let session = Session::new("vulkan".parse::<Device>().unwrap()).unwrap();
    // The driver compiles the kernels and keeps them before anything is measured.
    drop(ran(&session, small, SIZE));
    let before = resident();
    let loaded = ran(&session, path, SIZE);
    println!("measured {} {}", session.memory_taken().unwrap(), resident().saturating_sub(before));
    drop(loaded);
}

/// What `olivine inspect` predicts that weights and one run take of a device.
fn predicted(path: &str) -> u64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_olivine"));
    command.args(["inspect", path, "--json", "--device=vulkan"]);
    let output = command.stdin(Stdio::null()).env("NODEVICE_SELECT", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let device = &json["devices"][0];
    let bytes = |key: &str| device[key].as_u64().unwrap_or_else(|| panic!("no {key}: {json}"));
    bytes("stored_bytes") + bytes("run_bytes")
}

const NAME: &str = "a_4_bit_model_takes_a_fifth_more_than_its_file_at_most_and_what_was_predicted";

#[test]
fn a_4_bit_model_takes_a_fifth_more_than_its_file_at_most_and_what_was_predicted() {
    if let [Ok(small), Ok(path)] = MEASURE.map(std::env::var) {
        return measure(&small, &path);
    }
    for (zeros, count) in [(Zeros::None, 4), (Zeros::Packed, 4), (Zeros::Packed, 16)] {
        let (small, _) = model("small.onnx", 1, zeros);
        let (path, file) = model("model.onnx", count, zeros);
        assert!(file > (count << 21) as u64, "{file} bytes");
        let (device, host) = measured(&small, &path);
        let predicted = predicted(&path);
        let what = format!("{count} weights, zero points {zeros:?}");
        println!("{what}: file {file}, device {device}, predicted {predicted}, process {host}");
        assert!(device * 10 <= file * 12, "{what}: {device} bytes of the device for a file of {file}");
        assert!(predicted.abs_diff(device) * 10 <= device, "{what}: {predicted} predicted, {device} taken");
        // A software device's memory is the process's: weights are there once, and a copy would be a file's more.
        assert!(
            host * 10 <= device * 10 + file * 4,
            "{what}: {host} bytes of the process, {device} of the device"
        );
        for path in [path, small] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
