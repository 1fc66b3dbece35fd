//! Random expressions: plain arithmetic, the size's own value, a table and the text form must agree.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{Random, Tree, bindings, dims, values};
use olivine_size::{Dim, Error, Fault, Scope, Symbol, Table};

fn symbols() -> Vec<Symbol> {
    let symbol = |name, bounds| Symbol::new(name, bounds).unwrap();
    vec![
        symbol("batch", 1..=9),
        symbol("sequence", 0..=20),
        symbol("past", -6..=12),
        symbol("a \"quoted\" size", 1..=40),
        symbol("min", 0..=3),
    ]
}

fn scope(symbols: &[Symbol], values: &[i64]) -> Scope {
    let mut scope = Scope::new();
    for (symbol, &value) in symbols.iter().zip(values) {
        scope.declare(symbol.name(), symbol.bounds(), value).unwrap();
    }
    scope
}

#[test]
fn plain_arithmetic_values_tables_and_text_agree() {
    let symbols = symbols();
    let mut random = Random::new(1);
    let (mut compared, mut all, mut symbolic) = (0, 0, 0);
    for case in 0..6000 {
        let depth = 1 + case % 5;
        let tree = Tree::random(&mut random, symbols.len(), depth);
        let hints = values(&mut random, &symbols);
        let dim = tree.dim(&dims(&symbols, &hints));
        let mut largest = 0;
        let Some(expected) = tree.value(&hints, &mut largest) else {
            assert!(dim.fault().is_some(), "case {case}: {dim:?} of {tree:?}");
            continue;
        };
        if let Some(Fault::TooComplex | Fault::Overflow) = dim.fault() {
            assert!(depth > 3, "case {case}: {dim:?}");
            continue;
        }
        assert_eq!(i128::from(dim.value().unwrap()), expected, "case {case}: {tree:?} with {hints:?}");
        symbolic += usize::from(!dim.is_constant());

        let text = dim.to_string();
        let parsed =
            Dim::parse(&text, &scope(&symbols, &hints)).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parsed.structural(), dim.structural(), "case {case}: {text} reads as {parsed}");

        let mut table = Table::new();
        let slot = table.add_signed(dim).unwrap();
        let mut results = Vec::new();
        for round in 0..20 {
            let others = if round == 0 { hints.clone() } else { values(&mut random, &symbols) };
            let mut largest = 0;
            let Some(expected) = tree.value(&others, &mut largest) else { continue };
            all += 1;
            match table.evaluate(&bindings(&symbols, &others), &mut results) {
                Ok(()) => {
                    compared += 1;
                    assert_eq!(
                        i128::from(results[slot.index()]),
                        expected,
                        "case {case}: {text} with {others:?}"
                    );
                }
                // Expanded products can be larger than what was computed.
                Err(Error::Arithmetic { fault: Fault::Overflow, .. }) => assert!(largest > 1 << 20, "{text}"),
                Err(error) => panic!("case {case}: {text} with {others:?}: {error}"),
            }
        }
    }
    assert!(symbolic > 3000, "{symbolic} expressions had symbols");
    assert!(compared > 60_000 && compared * 100 > all * 99, "{compared} of {all} values were compared");
}

#[test]
fn nothing_wraps_near_the_end_of_64_bits() {
    let symbol = |name, bounds| Symbol::new(name, bounds).unwrap();
    let symbols = [symbol("b", 1 << 30..=1 << 62), symbol("s", -(1 << 62)..=1 << 62), symbol("p", 0..=3)];
    let mut random = Random::new(4);
    let (mut faults, mut compared) = (0, 0);
    for case in 0..6000 {
        let tree = Tree::random(&mut random, symbols.len(), 1 + case % 3);
        let hints = values(&mut random, &symbols);
        let dim = tree.dim(&dims(&symbols, &hints));
        match (dim.value(), tree.value(&hints, &mut 0)) {
            (Ok(value), expected) => assert_eq!(Some(i128::from(value)), expected, "case {case}: {dim:?}"),
            (Err(_), None) => faults += 1,
            (Err(_), Some(_)) => assert_eq!(dim.fault(), Some(Fault::TooComplex), "case {case}: {dim:?}"),
        }
        for _ in 0..10 {
            let others = values(&mut random, &symbols);
            if let (Ok(value), Some(expected)) =
                (dim.evaluate(&bindings(&symbols, &others)), tree.value(&others, &mut 0))
            {
                compared += 1;
                assert_eq!(i128::from(value), expected, "case {case}: {dim} with {others:?}");
            }
        }
    }
    assert!(faults > 500 && compared > 20_000, "{faults} faults, {compared} compared");
}

#[test]
fn one_table_of_many_expressions_agrees_with_each_alone() {
    let symbols = symbols();
    let mut random = Random::new(2);
    let hints = values(&mut random, &symbols);
    let mut table = Table::new();
    let mut slots = Vec::new();
    while slots.len() < 500 {
        let dim = Tree::random(&mut random, symbols.len(), 3).dim(&dims(&symbols, &hints));
        // A divisor that can be zero would end the evaluation of all.
        let divides = dim.to_string().contains(['/', '%']) || dim.to_string().contains("mod");
        if dim.fault().is_none() && !divides {
            slots.push((dim, table.add_signed(dim).unwrap()));
        }
    }
    let mut results = Vec::new();
    for _ in 0..20 {
        let sizes = bindings(&symbols, &values(&mut random, &symbols));
        table.evaluate(&sizes, &mut results).unwrap();
        let room = results.capacity();
        for &(dim, slot) in &slots {
            assert_eq!(results[slot.index()], dim.evaluate(&sizes).unwrap(), "{dim}");
        }
        table.evaluate(&sizes, &mut results).unwrap();
        assert_eq!(results.capacity(), room);
    }
    assert_eq!(table.to_string().lines().count(), table.len());
}

#[test]
fn bounds_contain_every_value() {
    let symbol = |name, bounds| Symbol::new(name, bounds).unwrap();
    let symbols = [symbol("x", -3..=4), symbol("y", 0..=6), symbol("z", 1..=3)];
    let mut random = Random::new(3);
    for case in 0..3000 {
        let tree = Tree::random(&mut random, symbols.len(), 1 + case % 4);
        let hints = values(&mut random, &symbols);
        let dim = tree.dim(&dims(&symbols, &hints));
        if dim.fault().is_some() {
            continue;
        }
        let bounds = dim.bounds();
        for x in -3..=4 {
            for y in 0..=6 {
                for z in 1..=3 {
                    if let Some(value) = tree.value(&[x, y, z], &mut 0) {
                        let value = i64::try_from(value).unwrap();
                        assert!(
                            bounds.contains(&value),
                            "{dim} is {value} with {x}, {y}, {z}: not in {bounds:?}"
                        );
                    }
                }
            }
        }
    }
}
