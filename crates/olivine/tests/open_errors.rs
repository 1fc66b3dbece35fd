//! Sizes that break what a graph relies on: an error that names what and the sizes, and the executable goes on working.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use olivine::prelude::*;
use olivine_ir::Error as GraphError;
use olivine_ir::op::Window;

/// A class of sizes that do not fit.
struct Class {
    name: &'static str,
    build: fn(&mut Graph) -> Result<(), GraphError>,
    /// Shapes of the inputs `x` and `y` that fit, and some that do not.
    fits: [&'static [usize]; 2],
    breaks: [&'static [usize]; 2],
    /// What the message must contain.
    says: &'static [&'static str],
}

fn inputs(g: &mut Graph, x: &[&str], y: &[&str]) -> Result<[ValueId; 2], GraphError> {
    let mut input = |name: &str, sizes: &[&str]| {
        let open = |size: &&str| size.parse::<usize>().is_err().then(|| size.to_string());
        let dims: Vec<usize> = sizes.iter().map(|size| size.parse().unwrap_or(4)).collect();
        g.input_with_dims(name, DType::F32, dims.as_slice(), sizes.iter().map(open).collect())
    };
    Ok([input("x", x)?, input("y", y)?])
}

const CLASSES: [Class; 5] = [
    Class {
        name: "a size named twice with different values",
        build: |g| {
            let [x, y] = inputs(g, &["n", "3"], &["n", "1"])?;
            let sum = g.add(x, y)?;
            g.output("out", sum)
        },
        fits: [&[5, 3], &[5, 1]],
        breaks: [&[2, 3], &[7, 1]],
        says: &["n", "2", "7"],
    },
    Class {
        name: "an equality that a matmul relies on",
        build: |g| {
            let [x, y] = inputs(g, &["2", "a"], &["b", "3"])?;
            let product = g.matmul(x, y)?;
            g.output("out", product)
        },
        fits: [&[2, 6], &[6, 3]],
        breaks: [&[2, 5], &[9, 3]],
        says: &["matmul", "5", "9"],
    },
    Class {
        name: "sizes that do not broadcast",
        build: |g| {
            let [x, y] = inputs(g, &["2", "a"], &["2", "b"])?;
            let sum = g.add(x, y)?;
            g.output("out", sum)
        },
        fits: [&[2, 6], &[2, 6]],
        breaks: [&[2, 5], &[2, 9]],
        says: &["add", "5", "9"],
    },
    Class {
        name: "a window longer than its axis",
        build: |g| {
            let [x, y] = inputs(g, &["1", "1", "a"], &["2", "1", "3"])?;
            let line = g.conv(x, y, None, Window::unit(1), 1)?;
            g.output("out", line)
        },
        fits: [&[1, 1, 8], &[2, 1, 3]],
        breaks: [&[1, 1, 2], &[2, 1, 3]],
        says: &["conv", "2", "3"],
    },
    Class {
        name: "a size that is fixed",
        build: |g| {
            let [x, y] = inputs(g, &["n", "3"], &["1", "3"])?;
            let sum = g.add(x, y)?;
            g.output("out", sum)
        },
        fits: [&[5, 3], &[1, 3]],
        breaks: [&[5, 4], &[1, 3]],
        says: &["x", "4", "3"],
    },
];

#[test]
fn sizes_that_do_not_fit_are_named_and_the_executable_goes_on() {
    for device in [Device::Cpu, Device::Vulkan] {
        let session = Session::new(device.clone()).unwrap();
        for class in CLASSES {
            let mut graph = Graph::new("class");
            (class.build)(&mut graph).unwrap();
            let executable = session.compile(&graph).unwrap();
            let run = |[x, y]: [&[usize]; 2]| {
                let filled = |dims: &[usize]| Tensor::new(dims, vec![1f32; dims.iter().product()]).unwrap();
                let (x, y) = (filled(x), filled(y));
                executable.run([("x", &x), ("y", &y)]).map(|out| out["out"].bytes().to_vec())
            };
            let what = format!("{device:?}: {}", class.name);
            let before = run(class.fits).unwrap_or_else(|e| panic!("{what}: {e}"));
            for _ in 0..2 {
                let problem = run(class.breaks).err().map(|e| e.to_string());
                let problem = problem.unwrap_or_else(|| panic!("{what}: runs"));
                for word in class.says {
                    assert!(problem.contains(word), "{what}: no {word} in: {problem}");
                }
                assert_eq!(run(class.fits).unwrap(), before, "{what}");
            }
        }
    }
}

/// Sizes that do not fit an ONNX model.
struct FileClass {
    name: &'static str,
    /// Sizes of the inputs `x` and `y`, names or numbers.
    inputs: [&'static [&'static str]; 2],
    nodes: fn() -> Vec<wire::Message>,
    fits: [&'static [usize]; 2],
    breaks: [&'static [usize]; 2],
    says: &'static [&'static str],
}

/// A tensor whose only size is made of the first size of `x`, a list of one that is called `size`.
fn filled_by(more: &[wire::Message]) -> Vec<wire::Message> {
    let mut nodes = vec![
        wire::node("Shape", &["x"], &["shape"]),
        wire::node("Gather", &["shape", "zero"], &["size"]).inside(5, &wire::int_attribute("axis", 0)),
    ];
    nodes.extend_from_slice(more);
    nodes.push(wire::node("ConstantOfShape", &["count"], &["out"]));
    nodes
}

fn file_classes() -> [FileClass; 9] {
    let sum = || vec![wire::node("Add", &["x", "y"], &["out"])];
    let twice = FileClass {
        name: "a size named twice with different values",
        inputs: [&["batch", "3"], &["batch", "1"]],
        nodes: sum,
        fits: [&[5, 3], &[5, 1]],
        breaks: [&[2, 3], &[7, 1]],
        says: &["`batch`", "`x`", "`y`", "2", "7"],
    };
    [
        FileClass {
            name: "a size named twice that would broadcast",
            breaks: [&[2, 3], &[1, 1]],
            says: &["`batch`", "`x`", "`y`", "2", "1"],
            ..twice
        },
        FileClass {
            name: "a size named twice that is 0 once",
            breaks: [&[0, 3], &[1, 1]],
            says: &["`batch`", "`x`", "`y`", "0", "1"],
            ..twice
        },
        FileClass {
            name: "a size named twice, first 1",
            breaks: [&[1, 3], &[0, 1]],
            says: &["`batch`", "`x`", "`y`", "0", "1"],
            ..twice
        },
        FileClass {
            name: "an equality that a matmul relies on",
            inputs: [&["2", "a"], &["b", "3"]],
            nodes: || vec![wire::node("MatMul", &["x", "y"], &["out"])],
            fits: [&[2, 6], &[6, 3]],
            breaks: [&[2, 5], &[9, 3]],
            says: &["node `out` (MatMul)", "a = 5", "b = 9"],
        },
        FileClass {
            name: "sizes without names that do not broadcast",
            inputs: [&["2", "?"], &["2", "?"]],
            nodes: sum,
            fits: [&[2, 6], &[2, 6]],
            breaks: [&[2, 5], &[2, 9]],
            says: &["node `out` (Add)", "x.1 = 5", "y.1 = 9"],
        },
        FileClass {
            name: "a size of 0",
            inputs: [&["1", "1", "n"], &["2", "1", "3"]],
            nodes: || vec![wire::node("Conv", &["x", "y"], &["out"])],
            fits: [&[1, 1, 8], &[2, 1, 3]],
            breaks: [&[1, 1, 0], &[2, 1, 3]],
            says: &["node `out` (Conv)", "n = 0"],
        },
        FileClass {
            name: "a negative size",
            inputs: [&["n"], &["1"]],
            nodes: || filled_by(&[wire::node("Sub", &["size", "five"], &["count"])]),
            fits: [&[8], &[1]],
            breaks: [&[3], &[1]],
            says: &["node `out` (ConstantOfShape)", "-2", "n = 3"],
        },
        FileClass {
            name: "sizes that overflow",
            inputs: [&["n"], &["1"]],
            nodes: || {
                let product = wire::node("Mul", &["size", "huge"], &["product"]);
                let more = wire::node("Add", &["size", "five"], &["more"]);
                filled_by(&[product, more, wire::node("Mod", &["product", "more"], &["count"])])
            },
            fits: [&[1], &[1]],
            breaks: [&[1 << 12], &[1]],
            says: &["out", "does not fit in 64 bits", "n = 4096"],
        },
        twice,
    ]
}

#[test]
fn sizes_that_do_not_fit_a_model_file_are_named_and_the_executable_goes_on() {
    use wire::{F32, ints, value};
    for device in [Device::Cpu, Device::Vulkan] {
        let session = Session::new(device.clone()).unwrap();
        for class in file_classes() {
            let graph = wire::Graph {
                nodes: (class.nodes)(),
                initializers: vec![
                    ints("zero", &[1], &[0]),
                    ints("five", &[1], &[5]),
                    ints("huge", &[1], &[1 << 62]),
                ],
                inputs: vec![value("x", F32, class.inputs[0]), value("y", F32, class.inputs[1])],
                outputs: vec![value("out", F32, &[])],
                ..wire::Graph::default()
            };
            let executable = session.compile(&Model::from_onnx(graph.model()).unwrap()).unwrap();
            let run = |[x, y]: [&[usize]; 2]| {
                let filled = |dims: &[usize]| Tensor::new(dims, vec![1f32; dims.iter().product()]).unwrap();
                let (x, y) = (filled(x), filled(y));
                executable.run([("x", &x), ("y", &y)]).map(|out| out["out"].bytes().to_vec())
            };
            let what = format!("{device:?}: {}", class.name);
            // The first run may be one that does not fit.
            for _ in 0..2 {
                let problem = run(class.breaks).err().map(|e| e.to_string());
                let problem = problem.unwrap_or_else(|| panic!("{what}: runs"));
                for word in class.says {
                    assert!(problem.contains(word), "{what}: no {word} in: {problem}");
                }
                let again = run(class.fits).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(run(class.fits).unwrap(), again, "{what}");
            }
        }
    }
}
