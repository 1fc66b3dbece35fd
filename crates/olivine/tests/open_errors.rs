//! Sizes that break what a graph relies on: an error that names what and the sizes, and the executable goes on working.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

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
