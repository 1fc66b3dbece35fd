//! What happens when the process holds as many shapes with expressions as it may. Alone in its process: the limit is one
//! for all.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use olivine_ir::Shape;
use olivine_size::{Scope, guards, set_expression_limit};

#[test]
fn beyond_the_limit_shapes_become_numbers_with_guards() {
    let mut scope = Scope::new();
    let batch = scope.declare("batch", 1..=64, 4).unwrap();
    let known = Shape::of_sizes(&[batch, 3.into()]).unwrap();
    set_expression_limit(0);

    // What exists still works.
    assert!(Shape::of_sizes(&[batch, 5.into()]).unwrap().is_symbolic() && known.is_symbolic());
    // Outside of a recording nothing could keep the numbers valid.
    let error = Shape::of_sizes(&[3.into(), batch]).unwrap_err();
    assert!(error.to_string().contains("one too many for this process"), "{error}");

    let (shape, set) = guards::record(|| Shape::of_sizes(&[3.into(), batch]).unwrap());
    assert!(!shape.is_symbolic());
    assert_eq!(shape.dims(), [3, 4]);
    let texts: Vec<String> = set.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["batch == 4"]);
}
