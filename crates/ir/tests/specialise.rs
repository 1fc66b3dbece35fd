//! A graph made for other input sizes: only declared axes move, and every shape is inferred anew.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine_ir::{DType, Error, Graph, Shape};

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

/// Two inputs that share `seq`, a param, and results that follow the sizes.
fn encoder() -> Graph {
    let mut g = Graph::new("encoder");
    let free = |names: [&str; 2]| names.map(|n| (!n.is_empty()).then(|| n.to_string())).to_vec();
    let x = g.input_with_dims("x", DType::F32, [128, 8], free(["seq", ""])).unwrap();
    let mask = g.input_with_dims("mask", DType::F32, [1, 128], free(["", "seq"])).unwrap();
    let w = g.param("w", DType::F32, [8, 4]).unwrap();
    let y = g.matmul(mask, x).unwrap();
    let (best, at) = g.top_k(y, 3, 1, true).unwrap();
    let z = g.matmul(x, w).unwrap();
    for (name, value) in [("z", z), ("best", best), ("at", at)] {
        g.output(name, value).unwrap();
    }
    g
}

#[test]
fn shapes_follow_the_new_sizes_and_ids_stay() {
    let g = encoder();
    let small = g.specialise(&[("x", shape(&[5, 8])), ("mask", shape(&[1, 5]))]).unwrap();
    small.verify().unwrap();
    let z = small.output_named("z").unwrap();
    assert_eq!(z, g.output_named("z").unwrap());
    assert_eq!(small.ty(z).unwrap().to_string(), "f32[5, 4]");
    assert_eq!(small.values().len(), g.values().len());
    assert_eq!(small.specialise(&[("x", shape(&[128, 8])), ("mask", shape(&[1, 128]))]).unwrap(), g);
}

#[test]
fn without_shapes_the_graph_is_the_same() {
    assert_eq!(encoder().specialise(&[]).unwrap(), encoder());
}

#[test]
fn a_size_of_zero_and_of_one_is_a_size() {
    for n in [0, 1] {
        let g = encoder().specialise(&[("x", shape(&[n, 8])), ("mask", shape(&[1, n]))]).unwrap();
        assert_eq!(g.ty(g.output_named("z").unwrap()).unwrap().shape.dims(), [n, 4]);
    }
}

#[test]
fn what_may_not_move_is_told() {
    let g = encoder();
    let fails = |shapes: &[(&str, Shape)]| g.specialise(shapes).unwrap_err().to_string();
    assert_eq!(
        fails(&[("x", shape(&[128, 9]))]),
        "invalid graph at input `x`: expected shape [128, 8], got [128, 9]"
    );
    assert_eq!(
        fails(&[("x", shape(&[128]))]),
        "invalid graph at input `x`: expected rank 2, got shape [128]"
    );
    assert_eq!(
        fails(&[("x", shape(&[5, 8]))]),
        "invalid graph at input `mask`: size `seq` is 128 here and 5 elsewhere"
    );
    assert_eq!(fails(&[("maks", shape(&[1]))]), "no input named `maks`; did you mean `mask`?");
}

#[test]
fn a_node_that_cannot_follow_is_named() {
    let mut g = Graph::new("fixed");
    let x = g.input_with_dims("x", DType::F32, [4, 2], vec![Some("n".into()), None]).unwrap();
    g.scoped("head", |g| g.reshape(x, &[8])).unwrap();
    match g.specialise(&[("x", shape(&[3, 2]))]) {
        Err(Error::Op { op, node, .. }) => {
            assert_eq!((op.as_str(), node.as_str()), ("reshape", "head/reshape_0"))
        }
        other => assert!(other.is_err(), "a reshape to 8 elements cannot take 6"),
    }
}
