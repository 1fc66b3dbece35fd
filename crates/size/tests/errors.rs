//! Bad input: an error that names the size and the values, never a panic and never a wrong number.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::ops::RangeInclusive;

use common::Random;
use olivine_size::{Bindings, Dim, Error, Fault, Scope, Symbol, Table};

fn large() -> (Scope, Dim, Dim) {
    let mut scope = Scope::new();
    let rows = scope.declare("rows", Symbol::ANY_SIZE, 8).unwrap();
    let columns = scope.declare("columns", Symbol::ANY_SIZE, 3).unwrap();
    (scope, rows, columns)
}

fn bind(values: [i64; 2]) -> Bindings {
    let (_, rows, columns) = large();
    let mut bindings = Bindings::new();
    for (dim, value) in [rows, columns].into_iter().zip(values) {
        bindings.bind(dim.as_symbol().unwrap(), value).unwrap();
    }
    bindings
}

fn evaluate(dim: Dim, values: [i64; 2]) -> Result<i64, String> {
    let mut table = Table::new();
    let slot = table.add(dim).map_err(|error| error.to_string())?;
    let mut results = Vec::new();
    table.evaluate(&bind(values), &mut results).map_err(|error| error.to_string())?;
    Ok(results[slot.index()])
}

#[test]
fn constants_overflow_into_a_fault() {
    let most = Dim::constant(i64::MAX);
    for dim in
        [most + 1, -most - 2, most * 2, most.next_power_of_two(), Dim::constant(i64::MIN).abs(), most * most]
    {
        assert_eq!(dim.fault(), Some(Fault::Overflow), "{dim:?}");
        assert!(dim.value().is_err() && dim.specialize().is_err() && dim.as_constant().is_none());
    }
    assert_eq!(Dim::from(u64::MAX).fault(), Some(Fault::Overflow));
    assert_eq!(
        (most + 1).check().unwrap_err().to_string(),
        "`9223372036854775807 + 1` does not fit in 64 bits"
    );
    assert_eq!((most - 1 + 1).as_constant(), Some(i64::MAX));
}

#[test]
fn a_fault_stays_and_is_unequal_to_everything() {
    let fault = Dim::from(7).div_floor(0);
    let (_, rows, _) = large();
    for dim in [fault + 1, rows * fault, fault.min(rows), Dim::ZERO * fault, fault.next_power_of_two()] {
        assert_eq!(dim.check().unwrap_err().to_string(), "`floor(7 / 0)` divides by zero");
        assert!(dim != dim && [dim < 1, dim >= 1] == [false; 2] && dim.partial_cmp(&rows).is_none());
    }
    assert_eq!(Dim::from(7).rem_floor(0).fault(), Some(Fault::DivisionByZero));
    assert!(Dim::ZERO.is_multiple_of(0) && !Dim::ONE.is_multiple_of(0));
}

#[test]
fn a_symbolic_overflow_names_its_operands() {
    let (_, rows, columns) = large();
    let rows = rows.as_symbol().unwrap().with_value(1 << 40).unwrap();
    let fault = rows * rows * columns;
    assert_eq!(
        fault.check().unwrap_err().to_string(),
        "`rows*rows` does not fit in 64 bits, with rows = 1099511627776"
    );
}

#[test]
fn evaluation_names_the_expression_and_the_values() {
    let (_, rows, columns) = large();
    assert_eq!(evaluate(rows * columns, [5, 6]), Ok(30));
    assert_eq!(
        evaluate(rows * columns + 1, [1 << 40, 1 << 30]).unwrap_err(),
        "`columns*rows` does not fit in 64 bits, with columns = 1073741824, rows = 1099511627776"
    );
    assert_eq!(
        evaluate(rows.div_floor(columns), [5, 0]).unwrap_err(),
        "`floor(rows / columns)` divides by zero, with columns = 0, rows = 5"
    );
    assert_eq!(
        evaluate(rows - columns, [5, 6]).unwrap_err(),
        "`rows - columns` is -1, which is no size, with columns = 6, rows = 5"
    );
    assert_eq!(rows.evaluate(&Bindings::new()).unwrap_err().to_string(), "`rows` has no value");
    assert_eq!(evaluate(Dim::from(-1), [1, 1]).unwrap_err(), "`-1` is -1, which is no size");
    assert_eq!((rows - columns).evaluate(&bind([5, 6])), Ok(-1));
}

#[test]
fn a_table_goes_on_working_after_an_error() {
    let (_, rows, columns) = large();
    let mut table = Table::new();
    let slot = table.add(rows.div_floor(columns)).unwrap();
    let mut values = Vec::new();
    assert!(table.evaluate(&bind([5, 0]), &mut values).is_err());
    table.evaluate(&bind([5, 2]), &mut values).unwrap();
    assert_eq!(values[slot.index()], 2);
}

#[test]
fn the_numbers_that_have_no_value_are_found() {
    let (_, rows, columns) = large();
    let mut table = Table::new();
    let dims = [rows + 1, rows * columns * 2 + rows, rows.div_floor(columns), rows - columns];
    let slots = dims.map(|dim| table.add(dim).unwrap());
    let first = |values| table.first_without_value(&slots, &bind(values));
    assert_eq!(first([5, 2]), None);
    assert_eq!(first([1 << 40, 1 << 30]), Some(1));
    assert_eq!(first([5, 0]), Some(2));
    assert_eq!(first([5, 6]), Some(3));
}

#[test]
fn specialize_refuses_negative_sizes() {
    let (_, rows, columns) = large();
    assert_eq!(rows.specialize(), Ok(8));
    let error = (columns - rows).specialize().unwrap_err();
    assert_eq!(error.to_string(), "`columns - rows` is -5, which is no size");
    assert_eq!((columns - rows).specialize_signed(), Ok(-5));
}

#[test]
fn bindings_refuse_second_values_and_values_out_of_bounds() {
    let symbol = Symbol::new("sequence", 1..=512).unwrap();
    let mut bindings = Bindings::new();
    bindings.bind(symbol, 7).unwrap();
    bindings.bind(symbol, 7).unwrap();
    assert_eq!(bindings.bind(symbol, 9).unwrap_err().to_string(), "`sequence` is both 7 and 9");
    assert_eq!(
        bindings.bind(symbol, 513).unwrap_err().to_string(),
        "`sequence` is 513: it must be from 1 to 512"
    );
    assert_eq!((bindings.get(symbol), bindings.to_string()), (Some(7), "sequence = 7".to_owned()));
    assert!(symbol.with_value(0).is_err());
}

#[test]
fn symbols_have_valid_names_and_bounds() {
    for name in ["", "line\nbreak", &"x".repeat(129)] {
        assert!(matches!(Symbol::new(name, 0..=1), Err(Error::InvalidName { .. })));
    }
    assert_eq!(
        Symbol::new("x", RangeInclusive::new(3, 2)).unwrap_err().to_string(),
        "the bounds of `x` are invalid: 3 to 2"
    );
    assert!(Symbol::new("x", 0..=i64::MAX).is_err());
    let mut scope = Scope::new();
    let first = scope.declare("x", 0..=9, 3).unwrap();
    assert_eq!(scope.declare("x", 0..=9, 3).unwrap().structural(), first.structural());
    assert_eq!(
        scope.declare("x", 1..=9, 4).unwrap_err().to_string(),
        "`x` is declared as 3 of 0 to 9 and as 4 of 1 to 9"
    );
    let other = Scope::with_number(1).declare("x", 0..=9, 3).unwrap();
    assert_ne!(other.structural(), first.structural());
    assert_eq!(first.symbols(), [first.as_symbol().unwrap()]);
}

#[test]
fn two_values_of_one_symbol_are_found() {
    let symbol = Symbol::new("x", 0..=9).unwrap();
    let difference = symbol.with_value(3).unwrap() - symbol.with_value(4).unwrap();
    assert_eq!(difference.fault(), Some(Fault::Inconsistent));
}

#[test]
fn bad_text_is_an_error_that_says_where() {
    let (scope, ..) = large();
    let cases = [
        ("", "at byte 0 of a size expression: expected a size, found the end"),
        ("rows +", "at byte 6 of a size expression: expected a size, found the end"),
        ("2 rows", "at byte 2 of a size expression: expected the end, found `r`"),
        ("width", "at byte 0 of a size expression: there is no size `width`"),
        ("floor(rows, 2)", "at byte 10 of a size expression: expected `/`, found `,`"),
        ("min(rows", "at byte 8 of a size expression: expected `)`, found the end"),
        ("mod", "at byte 0 of a size expression: expected a size, found `m`"),
        ("\"rows", "at byte 1 of a size expression: a quoted name has no end"),
        ("99999999999999999999", "at byte 0 of a size expression: a number does not fit in 64 bits"),
        ("rows * é", "at byte 7 of a size expression: expected a size, found `é`"),
        (
            "floor(rows / (columns - 3))",
            "`floor(rows / (columns - 3))` divides by zero, with rows = 8, columns - 3 = 0",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(Dim::parse(text, &scope).unwrap_err().to_string(), message);
    }
    assert_eq!(Dim::parse(" -9223372036854775808 ", &scope).unwrap().as_constant(), Some(i64::MIN));
    assert_eq!(Dim::parse("--7 mod 4*2", &scope).unwrap().as_constant(), Some(6));
    assert_eq!(Dim::parse("\"rows\"*2", &scope).unwrap().to_string(), "2*rows");
}

#[test]
fn hostile_text_ends_in_an_error() {
    let (scope, ..) = large();
    let repeated = |text: &str, times: usize| text.repeat(times);
    let texts = [
        repeated("(", 200_000),
        repeated("min(", 60_000),
        repeated("-", 250_000),
        repeated("rows*", 50_000) + "rows",
        repeated("rows+", 500_000),
        repeated("(rows + 1)*", 10_000) + "1",
        repeated("min(rows, ", 300) + "1" + &repeated(")", 299),
    ];
    // A small stack: nothing may recurse without bound.
    let worker = std::thread::Builder::new().stack_size(512 << 10).spawn(move || {
        for text in texts {
            assert!(Dim::parse(&text, &scope).is_err(), "{}...", &text[..20]);
        }
    });
    worker.unwrap().join().unwrap();
}

#[test]
fn random_text_never_panics() {
    let (scope, ..) = large();
    let pieces = [
        "rows", "columns", "floor(", "ceil(", "min(", "max(", " mod ", "/", "*", "+", "-", ")", "(", ",",
        "7", "0", "\"", "é", "abs(",
    ];
    let mut random = Random::new(31);
    let mut valid = 0;
    for _ in 0..30_000 {
        let text: String = (0..random.between(1, 9)).map(|_| pieces[random.below(pieces.len())]).collect();
        if let Ok(dim) = Dim::parse(&text, &scope) {
            valid += 1;
            let again = Dim::parse(&dim.to_string(), &scope).unwrap();
            assert_eq!(again.structural(), dim.structural(), "{text} prints as {dim}");
        }
    }
    assert!(valid > 300, "{valid} texts were valid");
}
