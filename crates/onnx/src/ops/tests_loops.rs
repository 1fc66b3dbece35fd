//! Loops stay loops: their iterations are graphs that are made once for every shape, and end by their data.

use olivine_ir::Tensor;

use super::tests::{attribute, body, float, floats, graph, int, ints, node, run_with};
use crate::proto::attribute_proto::AttributeType;
use crate::proto::{AttributeProto, NodeProto};

fn int_constant(name: &str, values: &[i64]) -> NodeProto {
    let list = AttributeProto { ints: values.to_vec(), ..attribute("value_ints", AttributeType::Ints) };
    node("Constant", &[], &[name], vec![list])
}

/// The devices that a loop is imported for: one that runs it to its end, and one that records a few iterations at a time.
const BATCHES: [Option<usize>; 2] = [None, Some(4)];

/// Writes `x` times the number so far into place `i` of a list, as decoders of exported models do: the place is carried,
/// and what is sliced there decides a shape.
fn filling(limit: f32) -> Vec<NodeProto> {
    vec![
        node("Constant", &[], &["limit"], float(limit)),
        int_constant("one", &[1]),
        int_constant("zero", &[0]),
        node("Add", &["at", "one"], &["next"], vec![]),
        node("Shape", &["list"], &["size"], vec![]),
        node("Min", &["size", "next"], &["end"], vec![]),
        node("Slice", &["list", "at", "end", "zero"], &["part"], vec![]),
        node("Shape", &["part"], &["part_size"], vec![]),
        node("Squeeze", &["at"], &["from"], vec![]),
        node("Squeeze", &["end"], &["to"], vec![]),
        node("Squeeze", &["one"], &["by"], vec![]),
        node("Range", &["from", "to", "by"], &["places"], vec![]),
        node("Add", &["last", "x"], &["value"], vec![]),
        node("Expand", &["value", "part_size"], &["values"], vec![]),
        node("ScatterElements", &["list", "places", "values"], &["filled"], vec![]),
        node("ReduceSum", &["filled"], &["sum"], vec![int("keepdims", 0)]),
        node("Less", &["sum", "limit"], &["more"], vec![]),
    ]
}

#[test]
fn a_place_that_is_carried_does_not_unroll_a_loop() {
    for batch in BATCHES {
        for (limit, count) in [(2.5f32, 2usize), (100.0, 14), (1e9, 30)] {
            let outputs = ["more", "next", "filled", "value"];
            let attributes = body(&["i", "c", "at", "list", "last"], filling(limit), &outputs);
            let nodes =
                vec![node("Loop", &["most", "", "first", "begin", "zero"], &["at", "y", "v"], attributes)];
            let inputs = [
                ("x", floats(&[1], &[1.0])),
                ("first", ints(&[1], &[0])),
                ("begin", floats(&[30], &[0.0; 30])),
                ("zero", floats(&[1], &[0.0])),
                ("most", ints(&[], &[30])),
            ];
            let (results, counts) = run_with(nodes, &inputs, &["at", "y", "v"], batch);
            let expected: Vec<f32> = (0..30).map(|i| if i < count { (i + 1) as f32 } else { 0.0 }).collect();
            assert_eq!(results[0][0], ints(&[1], &[count as i64]));
            assert_eq!(results[1][0], floats(&[30], &expected));
            assert_eq!(results[2][0], floats(&[1], &[count as f32]));
            // One graph of iterations, or as many as the device needs for its batches.
            assert!(counts.iterations <= count.div_ceil(batch.unwrap_or(30)) + 1, "{}", counts.iterations);
            assert!(counts.nodes < 120, "a graph of {} nodes", counts.nodes);
        }
    }
}

#[test]
fn shapes_that_change_in_the_middle_of_a_loop_change() {
    // Every iteration sums the last 3 of a list, or as many as there are from the place that is carried on.
    let nodes = |batch| {
        let inner = vec![
            int_constant("one", &[1]),
            int_constant("three", &[3]),
            int_constant("zero", &[0]),
            node("Add", &["at", "three"], &["end"], vec![]),
            node("Slice", &["x", "at", "end", "zero"], &["part"], vec![]),
            node("Shape", &["part"], &["size"], vec![]),
            node("Cast", &["size"], &["length"], vec![int("to", 1)]),
            node("ReduceSum", &["part"], &["sum"], vec![int("keepdims", 1)]),
            node("Mul", &["sum", "length"], &["row"], vec![]),
            node("Add", &["at", "one"], &["next"], vec![]),
            node("Constant", &[], &["limit"], float(-1.0)),
            node("ReduceSum", &["sum"], &["scalar"], vec![int("keepdims", 0)]),
            node("Greater", &["scalar", "limit"], &["more"], vec![]),
        ];
        let attributes = body(&["i", "c", "at"], inner, &["more", "next", "row"]);
        let nodes = vec![node("Loop", &["most", "", "first"], &["at", "rows"], attributes)];
        let x: Vec<f32> = (1..=8).map(|v| v as f32).collect();
        let inputs = [("x", floats(&[8], &x)), ("first", ints(&[1], &[0])), ("most", ints(&[], &[10]))];
        run_with(nodes, &inputs, &["at", "rows"], batch)
    };
    for batch in BATCHES {
        let (results, counts) = nodes(batch);
        let expected = [18.0, 27.0, 36.0, 45.0, 54.0, 63.0, 30.0, 8.0, 0.0, 0.0];
        assert_eq!(results[1][0], floats(&[10, 1], &expected));
        // Lengths of 3, 2, 1 and 0.
        assert!(counts.iterations <= 6, "{} graphs ran", counts.iterations);
    }
}

#[test]
fn a_loop_ends_where_its_bound_and_its_condition_say() {
    let cases: [(Option<i64>, Option<bool>, f32, usize); 6] = [
        (Some(0), None, 100.0, 0),
        (Some(i64::MAX), Some(true), 100.0, 7),
        (None, Some(false), 100.0, 0),
        (None, Some(true), 100.0, 7),
        (Some(3), Some(true), 100.0, 3),
        (Some(-5), None, 100.0, 0),
    ];
    for batch in BATCHES {
        for rows in [false, true] {
            for (most, begin, limit, expected) in cases {
                let inner = vec![
                    node("Constant", &[], &["limit"], float(limit)),
                    node("Add", &["v", "v"], &["w"], vec![]),
                    node("Less", &["w", "limit"], &["more"], vec![]),
                ];
                let made: &[&str] = if rows { &["more", "w", "w"] } else { &["more", "w"] };
                let mut attributes = body(&["i", "c", "v"], inner, made);
                // Without iterations the type of the rows is the declared one.
                if let Some(body) = attributes[0].g.as_mut().filter(|_| rows) {
                    body.output[2] = super::tests::info("w", Some(1));
                }
                let names = [most.map_or("", |_| "most"), begin.map_or("", |_| "begin"), "x"];
                let outputs: &[&str] = if rows { &["y", "rows"] } else { &["y"] };
                let nodes = vec![node("Loop", &names, outputs, attributes)];
                let mut inputs = vec![("x", Tensor::scalar(1f32))];
                inputs.extend(most.map(|most| ("most", ints(&[], &[most]))));
                inputs.extend(begin.map(|begin| ("begin", Tensor::scalar(begin))));
                let (results, _) = run_with(nodes, &inputs, outputs, batch);
                assert_eq!(results[0][0], Tensor::scalar(2f32.powi(expected as i32)), "{most:?} {begin:?}");
                if rows {
                    let powers: Vec<f32> = (1..=expected as i32).map(|i| 2f32.powi(i)).collect();
                    assert_eq!(results[1][0], floats(&[expected], &powers), "{most:?} {begin:?}");
                }
            }
        }
    }
}

#[test]
fn a_sequence_grows_while_its_data_say_so() {
    let inner = vec![
        node("Constant", &[], &["limit"], float(20.0)),
        node("Add", &["v", "x"], &["w"], vec![]),
        node("SequenceInsert", &["s", "w"], &["t"], vec![]),
        node("ReduceSum", &["w"], &["sum"], vec![int("keepdims", 0)]),
        node("Less", &["sum", "limit"], &["more"], vec![]),
    ];
    let attributes = body(&["i", "c", "v", "s"], inner, &["more", "w", "t"]);
    let nodes = vec![
        node("SequenceConstruct", &["x"], &["begin"], vec![]),
        node("Loop", &["", "", "x", "begin"], &["y", "list"], attributes),
        node("ConcatFromSequence", &["list"], &["all"], vec![int("axis", 0)]),
    ];
    for batch in BATCHES {
        let x = floats(&[12], &[0.5; 12]);
        let (results, _) = run_with(nodes.clone(), &[("x", x)], &["all", "list"], batch);
        let expected: Vec<f32> = (0..48).map(|i| 0.5 * (i / 12 + 1) as f32).collect();
        assert_eq!(results[0][0], floats(&[48], &expected));
        assert_eq!(results[1].len(), 4);
    }
}

#[test]
fn a_loop_inside_a_branch_inside_a_loop_grows_by_its_own_data() {
    // The inner loop doubles until it passes 10 and joins what it has; the outer one stops at 40 elements.
    let inner = vec![
        node("Constant", &[], &["ten"], float(10.0)),
        node("Add", &["a", "a"], &["b"], vec![]),
        node("Concat", &["l", "b"], &["m"], vec![int("axis", 0)]),
        node("ReduceMax", &["b"], &["top"], vec![int("keepdims", 0)]),
        node("Less", &["top", "ten"], &["on"], vec![]),
    ];
    let inner = body(&["j", "d", "a", "l"], inner, &["on", "b", "m"]);
    let branches = vec![
        graph("then_branch", &[], vec![node("Loop", &["", "", "x", "v"], &["p", "q"], inner)], &["q"]),
        graph("else_branch", &[], vec![node("Identity", &["v"], &["r"], vec![])], &["r"]),
    ];
    let outer = vec![
        node("Constant", &[], &["least"], float(0.0)),
        node("ReduceSum", &["v"], &["s"], vec![int("keepdims", 0)]),
        node("Greater", &["s", "least"], &["positive"], vec![]),
        node("If", &["positive"], &["w"], branches),
        node("Size", &["w"], &["size"], vec![]),
        node(
            "Constant",
            &[],
            &["forty"],
            vec![AttributeProto { i: Some(40), ..attribute("value_int", AttributeType::Int) }],
        ),
        node("Less", &["size", "forty"], &["more"], vec![]),
    ];
    let attributes = body(&["i", "c", "v"], outer, &["more", "w"]);
    let nodes = vec![node("Loop", &["", "", "x"], &["y"], attributes)];
    let x = [1.0f32, 3.0, 0.5, 0.25, 2.0, 1.0, 1.0, 1.0, 1.0];
    let mut expected = x.to_vec();
    while expected.len() < 40 {
        let mut a = x.to_vec();
        loop {
            a.iter_mut().for_each(|v| *v *= 2.0);
            expected.extend(&a);
            if a.iter().copied().fold(0.0, f32::max) >= 10.0 {
                break;
            }
        }
    }
    for batch in BATCHES {
        let (results, _) = run_with(nodes.clone(), &[("x", floats(&[9], &x))], &["y"], batch);
        assert_eq!(results[0][0], floats(&[expected.len()], &expected));
    }
}

#[test]
fn what_a_stage_has_computed_is_not_computed_again() {
    // How many are positive decides a shape; the exponentials before it are read after it as well.
    let nodes = vec![
        node("Exp", &["x"], &["e"], vec![]),
        node("Constant", &[], &["limit"], float(2.0)),
        node("Greater", &["e", "limit"], &["large"], vec![]),
        node("NonZero", &["large"], &["at"], vec![]),
        node("Cast", &["at"], &["places"], vec![int("to", 1)]),
        node("Sqrt", &["e"], &["root"], vec![]),
    ];
    let x: Vec<f32> = (0..9).map(|v| v as f32 / 4.0).collect();
    let (results, counts) = run_with(nodes, &[("x", floats(&[9], &x))], &["places", "root"], None);
    assert_eq!(results[0][0], floats(&[1, 6], &[3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
    assert_eq!(counts.known, 1);
    let root = results[1][0].to_f64();
    assert!(root.iter().zip(&x).all(|(r, x)| (r - f64::from(x / 2.0).exp()).abs() < 1e-5), "{root:?}");
    assert!(!counts.last.contains(&"exp") && !counts.last.contains(&"nonzero"), "{:?}", counts.last);
}

#[test]
fn one_element_with_and_without_an_axis_does_not_end_a_graph_of_iterations() {
    // One branch makes a scalar, the other a list of one; what is carried is a scalar before the first iteration.
    let one = AttributeProto { floats: vec![3.0], ..attribute("value_floats", AttributeType::Floats) };
    let branches = vec![
        graph("then_branch", &[], vec![node("Constant", &[], &["f"], vec![one])], &["f"]),
        graph("else_branch", &[], vec![node("Constant", &[], &["f"], float(2.0))], &["f"]),
    ];
    let inner = vec![
        node("Constant", &[], &["some"], float(20.0)),
        node("Constant", &[], &["limit"], float(100.0)),
        node("ReduceSum", &["v"], &["s"], vec![int("keepdims", 0)]),
        node("Greater", &["s", "some"], &["past"], vec![]),
        node("If", &["past"], &["f"], branches),
        node("Mul", &["x", "v"], &["w"], vec![]),
        node("ReduceMax", &["w"], &["m"], vec![int("keepdims", 0)]),
        node("Add", &["m", "f"], &["u"], vec![]),
        node("Less", &["s", "limit"], &["more"], vec![]),
    ];
    let attributes = body(&["i", "c", "v"], inner, &["more", "u"]);
    let nodes = vec![node("Loop", &["", "", "begin"], &["y"], attributes)];
    for batch in BATCHES {
        let inputs = [("x", floats(&[12], &[1.0; 12])), ("begin", Tensor::scalar(1f32))];
        let (results, counts) = run_with(nodes.clone(), &inputs, &["y"], batch);
        let (mut v, mut count) = (1f32, 0);
        loop {
            let s = v;
            v += if s > 20.0 { 3.0 } else { 2.0 };
            count += 1;
            if s >= 100.0 {
                break;
            }
        }
        assert_eq!(results[0][0].to_f64(), [f64::from(v)]);
        let most = batch.map_or(2, |batch| 1 + usize::div_ceil(count, batch));
        assert!(counts.iterations <= most, "{} graphs for {count} iterations", counts.iterations);
    }
}
