//! Mistakes that used to pass in silence: values of another graph, bools that are neither 0 nor 1.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

use olivine_ir::{DType, Data, Graph, Shape, TensorType, TensorView};

/// A graph of one input and its square root.
fn built(name: &str) -> (Graph, [olivine_ir::ValueId; 2]) {
    let mut g = Graph::new(name);
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let y = g.sqrt(x).unwrap();
    g.output("y", y).unwrap();
    (g, [x, y])
}

#[test]
fn every_use_of_another_graphs_value_is_an_error() {
    let (first, _) = built("first");
    let (mut second, [x, y]) = built("second");
    for foreign in first.ids() {
        let said = [
            second.value(foreign).map(drop),
            second.ty(foreign).map(drop),
            second.output("z", foreign),
            second.add(x, foreign).map(drop),
            second.add(foreign, y).map(drop),
            second.concat(&[x, foreign], 0).map(drop),
            second.reshape(foreign, &[6]).map(drop),
            second.exp(foreign).map(drop),
        ];
        for outcome in said {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("another graph than `second`"), "{error}");
        }
        assert!(second.producer(foreign).is_none() && second.as_const(foreign).is_none());
    }
    assert_eq!(second.nodes().len(), 1, "nothing was added");
    second.add(x, y).unwrap();
}

#[test]
fn copies_keep_the_ids_of_their_values() {
    let (first, [x, y]) = built("first");
    let mut copy = first.clone();
    copy.add(x, y).unwrap();
    let same = first.specialise(&[]).unwrap();
    assert_eq!(same.ty(y).unwrap(), first.ty(y).unwrap());
    assert_eq!(same, first);
    let text: Graph = first.to_string().parse().unwrap();
    assert_eq!(text, first);
    assert!(text.ids().zip(first.ids()).all(|(a, b)| a == b));
}

#[test]
fn bools_are_0_or_1_wherever_bytes_come_in() {
    let ty = TensorType::new(DType::Bool, Shape::new(&[4]).unwrap());
    assert!(TensorView::from_bytes(ty, &[0, 1, 1, 0]).is_ok());
    for wrong in [2u8, 127, 255] {
        let bytes = [0, 1, wrong, 0];
        for error in [TensorView::from_bytes(ty, &bytes).err(), Data::from_bytes(DType::Bool, &bytes).err()] {
            assert!(error.unwrap().to_string().contains("0 or 1"));
        }
    }
}
