//! Sizes that a run chooses: few plans for all of them, checked against each other.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::prelude::*;

fn named(name: &str) -> Option<String> {
    Some(name.to_string())
}

/// y = x · w + rows, x `[n, 3]`, rows `[n, 1]`.
fn model() -> Executable {
    let mut g = Graph::new("free");
    let x = g.input_with_dims("x", DType::F32, [1, 3], vec![named("n"), None]).unwrap();
    let rows = g.input_with_dims("rows", DType::F32, [1, 1], vec![named("n"), None]).unwrap();
    let w = g.param("w", DType::F32, [3, 2]).unwrap();
    let y = g.matmul(x, w).unwrap();
    let y = g.add(y, rows).unwrap();
    g.output("y", y).unwrap();
    let model = Session::new(Device::Cpu).unwrap().compile(&g).unwrap();
    model.set_param("w", Tensor::new([3, 2], vec![1f32; 6]).unwrap()).unwrap();
    model
}

fn inputs(n: usize) -> (Tensor, Tensor) {
    let x = Tensor::new([n, 3], vec![1f32; 3 * n]).unwrap();
    let rows = Tensor::new([n, 1], (0..n).map(|i| i as f32).collect()).unwrap();
    (x, rows)
}

#[test]
fn every_size_gives_its_own_answer_and_few_plans_serve_all() {
    let model = model();
    let sizes = [1, 2, 7, 0, 300];
    let mut plans = None;
    for round in 0..3 {
        for n in sizes {
            let (x, rows) = inputs(n);
            let out = model.run([("x", &x), ("rows", &rows)]).unwrap();
            let y = out.get("y").unwrap();
            assert_eq!(y.shape().dims(), [n, 2]);
            let want: Vec<f32> = (0..n).flat_map(|i| [3.0 + i as f32; 2]).collect();
            assert_eq!(y.as_slice::<f32>().unwrap(), want);
        }
        // One row, several, and none.
        assert!(model.compiled() <= 3, "{} plans", model.compiled());
        assert_eq!(model.compiled(), *plans.get_or_insert(model.compiled()), "round {round}");
    }
}

#[test]
fn sizes_of_one_name_must_agree() {
    let model = model();
    let ((x, _), (_, rows)) = (inputs(2), inputs(3));
    let text = model.run([("x", &x), ("rows", &rows)]).unwrap_err().to_string();
    assert!(text.contains("`n`") && text.contains('2') && text.contains('3'), "{text}");
    assert_eq!(model.compiled(), 1, "a refused run compiles nothing");
}

#[test]
fn fixed_sizes_stay_fixed_and_the_message_names_the_free_ones() {
    let x = Tensor::new([2, 4], vec![1f32; 8]).unwrap();
    let rows = Tensor::new([2, 1], vec![0f32; 2]).unwrap();
    let text = model().run([("x", &x), ("rows", &rows)]).unwrap_err().to_string();
    assert!(text.contains("f32[n, 3]") && text.contains("f32[2, 4]"), "{text}");
}

#[test]
fn a_shape_that_an_operation_cannot_take_is_an_error_at_run_time() {
    let mut g = Graph::new("halves");
    let x = g.input_with_dims("x", DType::F32, [4], vec![named("n")]).unwrap();
    let y = g.reshape(x, &[2, -1]).unwrap();
    g.output("y", y).unwrap();
    let halves = Session::new(Device::Cpu).unwrap().compile(&g).unwrap();
    let six = Tensor::new([6], vec![1f32; 6]).unwrap();
    assert_eq!(halves.run([("x", &six)]).unwrap().get("y").unwrap().shape().dims(), [2, 3]);
    let five = Tensor::new([5], vec![1f32; 5]).unwrap();
    let text = halves.run([("x", &five)]).unwrap_err().to_string();
    assert!(text.contains("reshape") && text.contains("f32[5]"), "{text}");
}

#[test]
fn more_sizes_than_are_cached_still_give_right_answers() {
    let mut g = Graph::new("twice");
    let x = g.input_with_dims("x", DType::I32, [1], vec![named("n")]).unwrap();
    let y = g.add(x, x).unwrap();
    g.output("y", y).unwrap();
    let twice = Session::new(Device::Cpu).unwrap().compile(&g).unwrap();
    for n in (0..150).chain([3]) {
        let x = Tensor::new([n], (0..n as i32).collect()).unwrap();
        let out = twice.run([("x", &x)]).unwrap();
        assert_eq!(
            out.get("y").unwrap().as_slice::<i32>().unwrap(),
            (0..n as i32).map(|i| 2 * i).collect::<Vec<_>>()
        );
    }
    assert!(twice.compiled() < 150, "old shapes must go");
}
