//! What happens when the process holds as many expressions as it may. Alone in its process: the limit is one for all.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::cmp::Ordering;

use common::check_programs;
use olivine_size::{Bindings, Dim, Fault, Scope, Symbol, expression_count, guards, set_expression_limit};

#[test]
fn beyond_the_limit_sizes_become_constants_with_guards() {
    let mut scope = Scope::new();
    let batch = scope.declare("batch", 1..=64, 4).unwrap();
    let sequence = scope.declare("sequence", 0..=512, 7).unwrap();
    let known = batch * sequence;
    let before = expression_count();
    set_expression_limit(before);

    // What exists still works.
    assert_eq!((sequence * batch).structural(), known.structural());
    // Outside of a recording nothing could keep a constant valid.
    let error = (batch + sequence).check().unwrap_err();
    assert_eq!((batch + sequence).fault(), Some(Fault::TooComplex));
    assert!(error.to_string().contains("one too many for this process"), "{error}");
    assert!(Symbol::new("another", 0..=1).unwrap_err().to_string().contains("`another`"));

    let (sum, set) = guards::record(|| batch + sequence + 1);
    assert_eq!(sum.as_constant(), Some(12));
    let texts: Vec<String> = set.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["batch == 4", "sequence == 7"]);
    assert!(set.holds(&scope.bindings()));

    // A question that needs a new expression fixes both sides.
    let questions: [fn(Dim, Dim) -> bool; 3] =
        [|a, b| a < b, |a, b| a == b, |a, b| a.partial_cmp(&b) == Some(Ordering::Less)];
    for question in questions {
        let (answer, set) = guards::record(|| question(known, sequence));
        assert!(!answer && set.holds(&scope.bindings()));
        let mut texts: Vec<String> = set.iter().map(ToString::to_string).collect();
        texts.sort();
        assert_eq!(texts, ["batch*sequence == 28", "sequence == 7"]);
    }
    let (_, set) = guards::record(|| known < sequence * 2);
    let mut others = Bindings::new();
    for (symbol, value) in scope.iter().map(|(symbol, _)| symbol).zip([7, 4]) {
        others.bind(symbol, value).unwrap();
    }
    assert!(!set.holds(&others));
    assert_eq!(expression_count(), before);

    // Operations that fail take half of the room at most, and are errors beyond it too.
    set_expression_limit(before * 2 + 400);
    for step in 0..1000 {
        assert_eq!((sequence * (i64::MAX - step)).fault(), Some(Fault::Overflow));
        let error = Dim::from(step).div_floor(0).check().unwrap_err();
        assert!(error.to_string().ends_with("divides by zero"), "{error}");
    }
    assert!((before + 200..before + 210).contains(&expression_count()), "{} of {before}", expression_count());

    // Guards stay sound while the store fills up and after.
    set_expression_limit(u32::MAX);
    let symbols = [("b", 1..=8), ("s", 0..=30), ("p", -5..=10)]
        .map(|(name, bounds)| Symbol::new(name, bounds).unwrap());
    for seed in 0..20 {
        set_expression_limit(expression_count() + 40);
        check_programs(100 + seed, 60, 3, &symbols);
    }
}
