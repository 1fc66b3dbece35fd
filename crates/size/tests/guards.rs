//! Guards: what holds gives the same answers, and little is asked twice.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::panic::Location;

use common::{Random, Tree, bindings, check_programs, dims, values};
use olivine_size::guards::{self, GuardSet, Recorder};
use olivine_size::{Bindings, Dim, Scope, Symbol};

fn sizes() -> (Scope, Dim, Dim) {
    let mut scope = Scope::new();
    let batch = scope.declare("batch", 1..=1024, 4).unwrap();
    let sequence = scope.declare("sequence", 0..=4096, 7).unwrap();
    (scope, batch, sequence)
}

fn texts(guards: &GuardSet) -> Vec<String> {
    guards.iter().map(ToString::to_string).collect()
}

fn holds(guards: &GuardSet, batch: i64, sequence: i64) -> bool {
    let (scope, ..) = sizes();
    let mut bindings = Bindings::new();
    for ((symbol, _), value) in scope.iter().zip([batch, sequence]) {
        bindings.bind(symbol, value).unwrap();
    }
    guards.holds(&bindings)
}

#[test]
fn sizes_for_which_guards_hold_give_the_same_answers() {
    let symbol = |name, bounds| Symbol::new(name, bounds).unwrap();
    let symbols = [symbol("b", 1..=8), symbol("s", 0..=30), symbol("p", -5..=10)];
    let (mut held, mut tried) = (0, 0);
    for (seed, depth) in [(11, 1), (12, 2), (13, 3), (14, 4)] {
        let (more_held, more_tried) = check_programs(seed, 800, depth, &symbols);
        held += more_held;
        tried += more_tried;
    }
    assert!(held * 10 > tried, "guards held for {held} of {tried} sizes only");
}

#[test]
fn sizes_near_the_end_of_64_bits_give_the_same_answers() {
    let symbol = |name, bounds| Symbol::new(name, bounds).unwrap();
    let symbols = [symbol("b", 1 << 30..=1 << 62), symbol("s", -(1 << 61)..=1 << 62), symbol("p", 0..=3)];
    for (seed, depth) in [(15, 1), (16, 2), (17, 3)] {
        check_programs(seed, 800, depth, &symbols);
    }
}

#[test]
fn without_a_guard_the_answer_is_the_same_for_all_sizes() {
    let symbol = |name, bounds| Symbol::new(name, bounds).unwrap();
    let symbols = [symbol("x", -3..=4), symbol("y", 0..=6), symbol("z", 1..=3)];
    let mut random = Random::new(21);
    let mut unguarded = 0;
    for _ in 0..4000 {
        let depth = 1 + random.below(3);
        let (left, right) = (Tree::random(&mut random, 3, depth), Tree::random(&mut random, 3, depth));
        let hints = values(&mut random, &symbols);
        let (answer, guards) = guards::record(|| {
            let dims = dims(&symbols, &hints);
            left.dim(&dims) >= right.dim(&dims)
        });
        if !guards.is_empty() {
            continue;
        }
        unguarded += 1;
        for x in -3..=4 {
            for y in 0..=6 {
                for z in 1..=3 {
                    let [a, b] = [&left, &right].map(|tree| tree.value(&[x, y, z], &mut 0));
                    if let (Some(a), Some(b)) = (a, b) {
                        assert_eq!(a >= b, answer, "{left:?} >= {right:?} with {x}, {y}, {z}");
                    }
                }
            }
        }
    }
    assert!(unguarded > 500, "{unguarded} questions had one answer");
}

#[test]
fn a_guard_names_what_holds_and_who_asked() {
    let (_, batch, sequence) = sizes();
    let line = line!() + 1;
    let (_, guards) = guards::record(|| sequence >= 2);
    assert_eq!(guards.to_string(), format!("sequence >= 2   (crates/size/tests/guards.rs:{line})\n"));
    let (_, guards) =
        guards::record(|| (batch * sequence < 100, batch == sequence, sequence != 3, 2 * batch > sequence));
    assert_eq!(
        texts(&guards),
        ["batch*sequence <= 99", "batch != sequence", "sequence != 3", "2*batch >= sequence + 1"]
    );
    assert!(guards.iter().all(|guard| guard.location().file() == file!()));
}

#[test]
fn the_asker_can_be_named() {
    let (_, batch, sequence) = sizes();
    let here = Location::caller();
    let (_, guards) = guards::record(|| guards::asked_at(here, || [batch] == [sequence]));
    assert_eq!(guards.iter().next().unwrap().location(), here);
}

#[test]
fn what_the_bounds_decide_leaves_no_guard() {
    let (_, batch, sequence) = sizes();
    let ((), guards) = guards::record(|| {
        assert!(batch * sequence + 1 >= 1);
        assert!(batch != 0);
        assert!(sequence >= 0);
        assert!(sequence <= 4096);
        assert!(2 * sequence != 2 * batch + 1);
        assert!(sequence.rem_floor(8) < 8);
        assert!((batch * 64).is_multiple_of(16));
        assert!(batch + sequence == sequence + batch);
        assert!(sequence.min(128) <= 128);
        assert!(sequence.min(batch) <= sequence);
        assert!(sequence - sequence.min(4) >= 0);
        assert!(sequence.next_multiple_of(8) >= sequence);
        assert!(sequence.next_multiple_of(8) - sequence < 8);
        assert!(sequence.div_floor(2) * 4 <= sequence * 2);
        assert!(sequence.max(batch) + 1 != batch);
        assert!((batch - sequence).abs() >= batch - sequence);
    });
    assert_eq!(guards.to_string(), "");
    assert!(guards.holds(&Bindings::new()));
}

#[test]
fn implied_guards_are_dropped() {
    let (_, batch, sequence) = sizes();
    let (_, guards) =
        guards::record(|| (sequence >= 2, sequence.specialize(), sequence != 3, sequence < 100));
    assert_eq!(texts(&guards), ["sequence == 7"]);
    let (_, guards) =
        guards::record(|| (sequence >= 2, sequence >= 5, sequence > 5, sequence < 100, sequence != 4));
    assert_eq!(texts(&guards), ["sequence >= 6", "sequence <= 99"]);
    let (_, guards) = guards::record(|| (sequence != 0, sequence != 1));
    assert_eq!(texts(&guards), ["sequence >= 2"]);
    let (_, guards) = guards::record(|| (sequence >= 7, sequence <= 7));
    assert_eq!(texts(&guards), ["sequence == 7"]);
    let (_, guards) =
        guards::record(|| (batch * sequence > 9, batch == 4, sequence == 7, (batch + sequence) == 11));
    assert_eq!(texts(&guards), ["batch == 4", "sequence == 7"]);
    let (_, guards) = guards::record(|| {
        (batch * sequence != 0, sequence > 3, sequence.div_ceil(8) >= 1, batch * sequence > 3)
    });
    assert_eq!(texts(&guards), ["sequence >= 4"]);
    let (_, guards) =
        guards::record(|| (batch <= 5, sequence <= 8, batch * sequence != 40, batch * sequence != 41));
    assert_eq!(texts(&guards), ["batch <= 5", "sequence <= 8", "batch*sequence != 40"]);
    let (_, guards) = guards::record(|| (sequence + 1 >= 3, 4 * sequence > 7, sequence.specialize()));
    assert_eq!(guards.len(), 1);
}

#[test]
fn recordings_nest() {
    let (_, batch, sequence) = sizes();
    let (inner, outer) = guards::record(|| {
        assert!(batch < 10);
        let (_, inner) = guards::record(|| sequence > 1);
        inner
    });
    assert_eq!(texts(&inner), ["sequence >= 2"]);
    assert_eq!(texts(&outer), ["batch <= 9", "sequence >= 2"]);
    assert!(!guards::is_recording());
}

#[test]
fn nothing_is_recorded_outside() {
    let (_, _, sequence) = sizes();
    assert!(sequence > 1);
    let ((), guards) = guards::record(|| {});
    assert!(guards.is_empty());
}

#[test]
fn a_panic_ends_its_recording() {
    let caught = std::panic::catch_unwind(|| guards::record(|| panic!("on purpose")));
    assert!(caught.is_err() && !guards::is_recording());
}

#[test]
fn other_threads_join_a_recording() {
    let (_, batch, sequence) = sizes();
    let ((), guards) = guards::record(|| {
        let recorder = Recorder::current();
        std::thread::scope(|threads| {
            for limit in 10..14 {
                let recorder = recorder.clone();
                threads.spawn(move || recorder.enter(|| assert!(sequence < limit && batch < limit)));
            }
            threads.spawn(|| assert!(sequence < 8));
        });
        recorder.enter(|| assert!(batch > 2));
    });
    let mut texts = texts(&guards);
    texts.sort();
    assert_eq!(texts, ["batch <= 9", "batch >= 3", "sequence <= 9"]);
}

#[test]
fn everything_can_be_sent_to_other_threads() {
    fn check<T: Send + Sync>() {}
    check::<(Dim, Scope, Symbol, Bindings)>();
    check::<(GuardSet, Recorder, olivine_size::Table, olivine_size::Error)>();
}

#[test]
fn kept_results_bring_their_guards_along() {
    let (_, batch, sequence) = sizes();
    let (_, kept) = guards::record(|| sequence > 1);
    let ((), mut again) = guards::record(|| kept.record_again());
    assert_eq!(texts(&again), ["sequence >= 2"]);
    let (_, other) = guards::record(|| batch > 1);
    again.merge(&other);
    assert_eq!(texts(&again), ["sequence >= 2", "batch >= 2"]);
}

#[test]
fn sets_that_contradict_each_other_never_hold() {
    let (_, _, sequence) = sizes();
    let symbol = sequence.as_symbol().unwrap();
    let (_, mut seven) = guards::record(|| sequence.specialize());
    let one = symbol.with_value(1).unwrap();
    let (_, small) = guards::record(|| one * one <= 3);
    seven.merge(&small);
    assert_eq!(texts(&seven), ["sequence == 7", "sequence*sequence <= 3"]);
    assert!((0..20).all(|value| !holds(&seven, 4, value)));
}

#[test]
fn a_failure_names_guard_and_values() {
    let (_, batch, sequence) = sizes();
    let (_, guards) = guards::record(|| (batch * sequence >= 10, sequence.div_floor(batch - 2) < 9));
    let symbols = [batch, sequence].map(|dim| dim.as_symbol().unwrap());
    let failure = guards.first_failure(&bindings(&symbols, &[3, 2])).unwrap().to_string();
    assert!(
        failure.starts_with(
            "`batch*sequence >= 10` does not hold with batch = 3, sequence = 2 (asked at crates/size/"
        ),
        "{failure}"
    );
    let failure = guards.first_failure(&bindings(&symbols[..1], &[3])).unwrap().to_string();
    assert!(failure.contains("`sequence` has no value"), "{failure}");
    assert!(!holds(&guards, 2, 40), "the divisor is zero");
    assert!(holds(&guards, 5, 7) && guards.first_failure(&bindings(&symbols, &[5, 7])).is_none());
}

#[test]
fn a_divisor_that_cancels_must_stay_different_from_zero() {
    let (_, batch, sequence) = sizes();
    let (quotient, guards) = guards::record(|| (batch * sequence).div_floor(sequence));
    assert_eq!(quotient.structural(), batch.structural());
    assert_eq!(texts(&guards), ["sequence >= 1"]);
}

#[test]
fn a_question_about_a_fault_holds_for_no_sizes() {
    let (_, batch, sequence) = sizes();
    let (answer, guards) = guards::record(|| {
        let fault = sequence.div_floor(batch - batch);
        fault == fault || fault < 3 || fault >= 3
    });
    assert!(!answer && !holds(&guards, 4, 7));
    assert!(guards.to_string().starts_with("never: floor(sequence / 0) divides by zero"), "{guards}");
}
