//! Arithmetic on open sizes as exporters write it: one plan serves many lengths, with the results of a compile for fixed ones.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use olivine::internals::ExecutableExt;
use olivine::prelude::*;
use wire::{F32, I64, Message, floats, int_attribute, ints, node, string_attribute, value};

/// A model of `x: [batch, n, 3]` with nodes that read the scalars `batch` and `n` and write `y` or `z`.
fn model(nodes: Vec<Message>, output: Message) -> Model {
    let mut all = vec![
        node("Shape", &["x"], &["shape"]),
        node("Gather", &["shape", "zero"], &["batch"]),
        node("Gather", &["shape", "one"], &["n"]),
        node("Unsqueeze", &["batch", "axis0"], &["batch1"]),
        node("Unsqueeze", &["n", "axis0"], &["n1"]),
    ];
    all.extend(nodes);
    let graph = wire::Graph {
        nodes: all,
        initializers: vec![
            ints("zero", &[], &[0]),
            ints("one", &[], &[1]),
            ints("two", &[], &[2]),
            ints("four", &[], &[4]),
            ints("axis0", &[1], &[0]),
            ints("zero1", &[1], &[0]),
            ints("one1", &[1], &[1]),
            ints("three1", &[1], &[3]),
            ints("minus1", &[1], &[-1]),
            ints("ones", &[3], &[1, 1, 1]),
            ints("minus_ones", &[3], &[-1, -1, -1]),
            floats("quarter", &[], &[0.25]),
            floats("four_f", &[], &[4.0]),
            floats("six_f", &[], &[6.0]),
            floats("stretch", &[], &[1.5]),
            floats("row", &[1, 1, 3], &[1.0, 2.0, 3.0]),
        ],
        inputs: vec![value("x", F32, &["batch", "n", "3"])],
        outputs: vec![output],
        ..wire::Graph::default()
    };
    Model::from_onnx(graph.model()).unwrap()
}

fn cast(from: &str, to: i64, result: &str) -> Message {
    node("Cast", &[from], &[result]).inside(5, &int_attribute("to", to))
}

fn concat(parts: &[&str], result: &str) -> Message {
    node("Concat", parts, &[result]).inside(5, &int_attribute("axis", 0))
}

/// Pads `n` at both ends by what the scalar `more` says, half of it before.
fn pad_by_more(mode: &str) -> Vec<Message> {
    vec![
        node("Div", &["more", "two"], &["before"]),
        node("Sub", &["more", "before"], &["after"]),
        node("Unsqueeze", &["before", "axis0"], &["before1"]),
        node("Unsqueeze", &["after", "axis0"], &["after1"]),
        concat(&["zero1", "before1", "zero1", "zero1", "after1", "zero1"], "pads"),
        node("Pad", &["x", "pads"], &["y"]).inside(5, &string_attribute("mode", mode)),
    ]
}

/// Compares an open executable with fixed ones at lengths from 3 to 40, and returns how many plans it needed on the CPU.
fn plans(name: &str, model: &Model) -> usize {
    let mut counted = 0;
    for device in [Device::Cpu, Device::Vulkan] {
        let session = Session::new(device.clone()).unwrap();
        let open = session.compile(model).unwrap();
        // A software GPU compiles for every fixed length.
        let step = if device == Device::Cpu { 1 } else { 9 };
        for n in (3..=40).step_by(step) {
            let batch = 1 + n % 2;
            let x: Vec<f32> = (0..batch * n * 3).map(|i| (i % 17) as f32 - 5.0).collect();
            let x = Tensor::new([batch, n, 3], x).unwrap();
            let options = CompileOptions::default().dim("batch", batch).dim("n", n);
            let fixed = session.compile_with(model, &options).unwrap();
            let (got, want) = (open.run([("x", &x)]).unwrap(), fixed.run([("x", &x)]).unwrap());
            let (got, want) = (got.at(0).unwrap(), want.at(0).unwrap());
            assert_eq!(got.shape(), want.shape(), "{name}, {device:?}, n = {n}");
            assert_eq!(got.bytes(), want.bytes(), "{name}, {device:?}, n = {n}");
        }
        if device == Device::Cpu {
            counted = open.compiled();
            println!("{name}: {counted} plans\n{:#?}", open.guards());
        }
    }
    counted
}

fn any(dtype: i64) -> Message {
    value("y", dtype, &["a", "b", "c"])
}

#[test]
fn padding_to_a_multiple_by_floats_is_one_plan_for_many_lengths() {
    // ceil(n / 4) · 4 − n, as for convolutions with the padding `SAME` and for windows of attention.
    for division in ["Div", "Mul"] {
        let by = if division == "Div" { "four_f" } else { "quarter" };
        let mut nodes = vec![
            cast("n", F32, "n_f"),
            node(division, &["n_f", by], &["quotient"]),
            node("Ceil", &["quotient"], &["windows"]),
            node("Mul", &["windows", "four_f"], &["padded_f"]),
            cast("padded_f", I64, "padded"),
            node("Sub", &["padded", "n"], &["more"]),
        ];
        nodes.extend(pad_by_more("constant"));
        let count = plans(division, &model(nodes, any(F32)));
        assert!(count <= 6, "{division}: {count} plans");
    }
}

#[test]
fn padding_to_a_multiple_by_remainders_is_one_plan_for_many_lengths() {
    for mode in ["constant", "reflect", "edge"] {
        let mut nodes = vec![node("Neg", &["n"], &["less"]), node("Mod", &["less", "four"], &["more"])];
        nodes.extend(pad_by_more(mode));
        let count = plans(mode, &model(nodes, any(F32)));
        assert!(count <= 6, "{mode}: {count} plans");
    }
}

#[test]
fn shapes_with_choices_are_one_plan_for_many_lengths() {
    // What `expand` with −1 becomes.
    let nodes = vec![
        concat(&["batch1", "n1", "minus1"], "wanted"),
        node("Equal", &["wanted", "minus_ones"], &["is_given"]),
        node("Where", &["is_given", "ones", "wanted"], &["target"]),
        node("Expand", &["row", "target"], &["y"]),
    ];
    let count = plans("expand", &model(nodes, any(F32)));
    assert!(count <= 2, "{count} plans");
}

#[test]
fn tiles_and_scaled_sizes_are_one_plan_for_many_lengths() {
    let nodes = vec![
        cast("n", F32, "n_f"),
        node("Div", &["n_f", "six_f"], &["sixths"]),
        node("Floor", &["sixths"], &["times_f"]),
        cast("times_f", I64, "times"),
        node("Add", &["times", "one"], &["again"]),
        node("Unsqueeze", &["again", "axis0"], &["again1"]),
        concat(&["one1", "again1", "one1"], "repeats"),
        node("Tile", &["x", "repeats"], &["y"]),
    ];
    let count = plans("tile", &model(nodes, any(F32)));
    assert!(count <= 4, "{count} plans");
    let nodes = vec![
        cast("n", F32, "n_f"),
        node("Mul", &["n_f", "stretch"], &["longer_f"]),
        node("Floor", &["longer_f"], &["longer_whole"]),
        cast("longer_whole", I64, "longer"),
        node("Unsqueeze", &["longer", "axis0"], &["longer1"]),
        concat(&["batch1", "longer1", "three1"], "target"),
        node("CenterCropPad", &["x", "target"], &["y"]),
    ];
    let count = plans("scale", &model(nodes, any(F32)));
    assert!(count <= 4, "{count} plans");
}
