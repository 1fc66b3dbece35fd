//! State of models from files: caches that grow, caches of a fixed size, and what is compiled before the first run.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use olivine::internals::OptionsExt as _;
use olivine::prelude::*;
use wire::{F32, floats, int_attribute, node, value};

/// ONNX's number of doubles.
const F64: i64 = 11;

fn everywhere(test: impl Fn(&Session)) {
    for device in [Device::Cpu, Device::Vulkan, Device::Wgpu] {
        test(&Session::new(device).unwrap());
    }
}

/// present = past with x after it, total = total + x in place, sum = the sum of present.
fn cache() -> Model {
    let graph = wire::Graph {
        nodes: vec![
            node("Concat", &["past", "x"], &["present"]).inside(5, &int_attribute("axis", 0)),
            node("Add", &["total", "x"], &["new_total"]),
            node("ReduceSum", &["present"], &["sum"]).inside(5, &int_attribute("keepdims", 0)),
        ],
        inputs: vec![
            value("past", F32, &["rows", "2"]),
            value("total", F32, &["1", "2"]),
            value("x", F32, &["1", "2"]),
        ],
        outputs: vec![
            value("present", F32, &["rows_after", "2"]),
            value("new_total", F32, &["1", "2"]),
            value("sum", F32, &[]),
        ],
        ..wire::Graph::default()
    };
    Model::from_onnx(graph.model()).unwrap()
}

fn pairs() -> CompileOptions {
    CompileOptions::new().state("past", "present").state("total", "new_total")
}

#[test]
fn caches_of_a_model_grow_on_the_device() {
    everywhere(|session| {
        let model = session.compile_with(&cache(), &pairs()).unwrap();
        assert_eq!(model.inputs().iter().map(|p| p.name.clone()).collect::<Vec<_>>(), ["x"]);
        let open = model.new_state().unwrap_err().to_string();
        assert!(open.contains("past") && open.contains("state_from"), "{open}");
        let empty = Tensor::zeros(DType::F32, [0, 2]).unwrap();
        let mut state = model.state_from([("past", &empty)]).unwrap();
        let mut sum = 0.0;
        for step in 1..=5 {
            let x = Tensor::from([[step as f32, 1.0]]);
            let out = model.run_with_state(&mut state, [("x", &x)]).unwrap();
            sum += step as f32 + 1.0;
            assert_eq!(out.len(), 1, "states are no results");
            assert_eq!(out["sum"].as_slice::<f32>().unwrap(), [sum]);
        }
        assert_eq!(state.get("past").unwrap().to_tensor().unwrap().shape().dims(), [5, 2]);
        assert_eq!(state.get("total").unwrap().to_tensor().unwrap(), Tensor::from([[15.0f32, 5.0]]));
    });
}

#[test]
fn a_state_is_copied_changed_saved_and_restored() {
    let path = std::env::temp_dir().join(format!("olivine-state-{}.safetensors", std::process::id()));
    everywhere(|session| {
        let model = session.compile_with(&cache(), &pairs()).unwrap();
        let (past, one) = (Tensor::from([[1.0f32, 2.0]]), Tensor::from([[1.0f32, 1.0]]));
        let mut state = model.state_from([("past", &past)]).unwrap();
        model.run_with_state(&mut state, [("x", &one)]).unwrap();
        let mut other = state.try_clone().unwrap();
        state.save(&path).unwrap();

        let step = |state: &mut State| model.run_with_state(state, [("x", &one)]).unwrap();
        let total = |state: &State| state.get("total").unwrap().to_tensor().unwrap();
        step(&mut state);
        step(&mut state);
        assert_eq!(total(&state), Tensor::from([[3.0f32, 3.0]]));
        assert_eq!(total(&other), Tensor::from([[1.0f32, 1.0]]), "the copy stays");
        other.set("total", &Tensor::from([[10.0f32, 20.0]])).unwrap();
        step(&mut other);
        assert_eq!(total(&other), Tensor::from([[11.0f32, 21.0]]));

        let mut restored = model.load_state(&path).unwrap();
        assert_eq!(step(&mut restored)["sum"].as_slice::<f32>().unwrap(), [7.0]);
        assert_eq!(restored.names().collect::<Vec<_>>(), ["past", "total"]);

        let wrong = Tensor::from([1.0f32]);
        assert!(matches!(model.state_from([("past", &wrong)]), Err(Error::WrongType { .. })));
        assert!(matches!(model.state_from([("pst", &past)]), Err(Error::UnknownName { .. })));
        assert!(matches!(
            model.state_from([("past", &past), ("past", &past)]),
            Err(Error::GivenTwice { .. })
        ));
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn pairs_that_can_never_be_state_are_refused_at_compile() {
    let session = Session::new(Device::Cpu).unwrap();
    let refused = |options: CompileOptions| session.compile_with(&cache(), &options).map(drop).unwrap_err();
    assert!(matches!(refused(CompileOptions::new().state("past", "sum")), Error::WrongType { .. }));
    assert!(matches!(refused(CompileOptions::new().state("pats", "present")), Error::UnknownName { .. }));
    assert!(matches!(refused(CompileOptions::new().state("past", "presnt")), Error::UnknownName { .. }));
    assert!(matches!(refused(pairs().state("x", "present")), Error::GivenTwice { .. }));
    assert!(matches!(refused(CompileOptions::new().dim("row", 3)), Error::UnknownName { .. }));
    assert!(matches!(refused(CompileOptions::new().shape("x", [1, 3])), Error::WrongType { .. }));
}

/// y = x·w of some element type and sizes.
fn scaled(element: i64, sizes: &[&str]) -> Model {
    let graph = wire::Graph {
        nodes: vec![node("Add", &["x", "x"], &["a"]), node("Sqrt", &["a"], &["y"])],
        inputs: vec![value("x", element, sizes)],
        outputs: vec![value("y", element, sizes)],
        initializers: vec![floats("unused", &[1], &[1.0])],
        ..wire::Graph::default()
    };
    Model::from_onnx(graph.model()).unwrap()
}

#[test]
fn fixed_and_given_sizes_are_compiled_before_the_first_run() {
    everywhere(|session| {
        let x = Tensor::zeros(DType::F32, [2, 3]).unwrap();
        for (sizes, options, ahead) in [
            (["2", "3"], CompileOptions::new(), 1),
            (["n", "3"], CompileOptions::new(), 0),
            (["n", "3"], CompileOptions::new().dim("n", 2), 1),
            (["n", "m"], CompileOptions::new().shape("x", [2, 3]), 1),
        ] {
            let compiled = session.compile_with(&scaled(F32, &sizes), &options).unwrap();
            assert_eq!(compiled.compiled(), ahead, "{sizes:?}");
            compiled.run([("x", &x)]).unwrap();
            assert_eq!(compiled.compiled(), 1, "{sizes:?}: a run compiles nothing again");
        }
    });
}

#[test]
fn what_a_device_cannot_run_is_refused_at_compile() {
    let options = SessionOptions::new().browser_dialect(true);
    let session = Session::with_options(Device::Wgpu, options).unwrap();
    for sizes in [["2", "3"], ["n", "3"], ["n", "m"]] {
        let refused = session.compile(&scaled(F64, &sizes)).map(drop).unwrap_err().to_string();
        assert!(refused.contains("cannot run") && refused.contains("f64"), "{refused}");
        session.compile(&scaled(F32, &sizes)).unwrap();
    }
}

#[test]
fn the_order_of_inputs_does_not_matter() {
    let session = Session::new(Device::Cpu).unwrap();
    let model = session.compile(&cache()).unwrap();
    let (a, b) = (Tensor::from([[1.0f32, 2.0]]), Tensor::from([[3.0f32, 4.0]]));
    let first = model.run([("past", &a), ("total", &a), ("x", &b)]).unwrap();
    let second = model.run([("x", &b), ("total", &a), ("past", &a)]).unwrap();
    assert_eq!(first["present"], second["present"]);
    assert_eq!(model.compiled(), 1);
    let twice = model.run([("x", &b), ("total", &a), ("past", &a), ("x", &b)]);
    assert!(twice.is_err(), "an input given twice");
}
