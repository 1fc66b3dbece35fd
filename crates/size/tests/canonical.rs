//! Equal sizes are one expression: whatever the order in which they were computed, and on whatever thread.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use std::collections::HashSet;

use common::{Random, Tree, dims, values};
use olivine_size::{Bindings, Dim, Scope, Symbol, guards};

fn sizes() -> [Dim; 4] {
    let mut scope = Scope::new();
    [("a", 3), ("b", 5), ("c", 8), ("d", 2)]
        .map(|(name, value)| scope.declare(name, 1..=4096, value).unwrap())
}

#[track_caller]
fn same(left: Dim, right: impl Into<Dim>) {
    assert_eq!(left.structural(), right.into().structural());
}

#[test]
fn known_identities_hold() {
    let [a, b, c, d] = sizes();
    same(a * 1, a);
    same(a + 0, a);
    same(a - a, 0);
    same(a * Dim::ZERO, 0);
    same(a * b, b * a);
    same((a + b) * c, b * c + c * a);
    same((a + 1) * (a - 1), a * a - 1);
    same((a * 6).div_floor(6), a);
    same((a * 6 + 5).div_floor(6), a);
    same((a * 6 + b).div_floor(6), a + b.div_floor(6));
    same((a * 8).div_ceil(8), a);
    same((a * 4).rem_floor(4), 0);
    same((a * 4 + b * 5 + 7).rem_floor(4), (b + 3).rem_floor(4));
    same((a * 2).div_floor(4), a.div_floor(2));
    same((a * 2).rem_floor(4), a.rem_floor(2) * 2);
    same(a.div_floor(-2), (-a).div_floor(2));
    same((a + 7).div_floor(8), a.div_ceil(8));
    same(a.div_ceil(2).div_ceil(2), a.div_ceil(4));
    same((a - 3).div_floor(2) + 1, (a - 1).div_floor(2));
    same(a.next_multiple_of(16), a.div_ceil(16) * 16);
    same((a * b * c).div_floor(b), a * c);
    same((a * b * c).div_floor(b * a), c);
    same((a * b + b).rem_floor(b), 0);
    same((a * 2 + b * 2).div_floor(a + b), 2);
    same((a * 2 + b * 2).rem_floor(a + b), 0);
    same((a * 2 + b * 2 + 1).rem_floor(a + b), 1);
    same((-a).rem_floor(4), (a * 3).rem_floor(4));
    same(a.rem_floor(-4), -(a * 3).rem_floor(4));
    same(a.min(b).min(a), b.min(a));
    same(a.min(b.min(c)), c.min(a).min(b));
    same(a.max(a.min(b)), a);
    same(a.min(a.max(b)), a);
    same(a.min(a + 1), a);
    same(a.max(1), a);
    same(a.min(8).min(5), a.min(5));
    same(a.min(8).max(8), 8);
    same(a.abs(), a);
    same((a - b).abs(), (b - a).abs());
    same(-(-a), a);
    same(a.clamp(1, 4096), a);
    same(a.div_floor(5000), 0);
    same(a.rem_floor(5000), a);
    same([a, b, d].iter().sum::<Dim>(), d + b + a);
    same([a, b, d].iter().product::<Dim>(), d * a * b);
}

#[test]
fn products_too_large_to_expand_have_a_normal_form() {
    let mut scope = Scope::with_number(11);
    let mut sum = |letter: &str| -> Dim {
        (1..=7).map(|i| scope.declare(&format!("{letter}{i}"), 1..=9, i).unwrap() * i).sum()
    };
    let [s, t, u] = ["s", "t", "u"].map(&mut sum);
    let x = scope.declare("x", 1..=9, 2).unwrap();
    same((-s) * t, -(s * t));
    same((s * 2) * (t * -3), s * t * -6);
    same(s * t * u, u * (t * s));
    same(x * (s * t), t * s * x);
    for dim in [s * t, -s * t * 3, x * s * t + 1, (s * t + x) * x, (s * t + x) * (x + 1) * u] {
        assert_eq!(Dim::parse(&dim.to_string(), &scope).unwrap().structural(), dim.structural(), "{dim}");
    }
}

#[test]
fn what_differs_stays_different() {
    let [a, b, ..] = sizes();
    let all =
        [a, b, a + b, a * b, a + 1, a.max(2), a.min(2), a.div_floor(2), a.div_ceil(2), a.rem_floor(2), a - b];
    let keys: HashSet<_> = all.iter().map(|dim| dim.structural()).collect();
    assert_eq!(keys.len(), all.len());
    let three = Dim::from(3usize);
    assert!(a == three && a.structural() != three.structural());
}

#[test]
fn sums_and_products_do_not_depend_on_the_order() {
    let symbols = ["a", "b", "c", "d"].map(|name| Symbol::new(name, 1..=64).unwrap());
    let mut random = Random::new(5);
    for _ in 0..1500 {
        let mut leaves = random_leaves(&mut random, &symbols);
        let [first, second] = twice(&mut random, &mut leaves, |a, b| a + b);
        assert_eq!(first.map(Dim::structural), second.map(Dim::structural), "{leaves:?}");
        // More factors than three would pass the limit on expanded products now and then.
        leaves.truncate(3);
        let [first, second] = twice(&mut random, &mut leaves, |a, b| a * b);
        if first.is_some_and(|first| first.to_string().len() < 60) {
            assert_eq!(first.map(Dim::structural), second.map(Dim::structural), "{leaves:?}");
        }
    }
}

#[test]
fn minima_and_maxima_of_symbols_do_not_depend_on_the_order() {
    let bounds = [1..=64, 0..=9, 9..=20, -5..=70];
    let mut next = 0;
    let symbols = bounds.map(|bounds| {
        next += 1;
        Symbol::in_scope(12, &format!("m{next}"), bounds).unwrap()
    });
    let mut random = Random::new(6);
    for _ in 0..3000 {
        let hints = values(&mut random, &symbols);
        let atoms = dims(&symbols, &hints);
        let mut leaves: Vec<Dim> = (0..random.between(2, 7))
            .map(|_| match random.below(5) {
                0 => Dim::from(random.between(-3, 70)),
                _ => atoms[random.below(4)] + random.between(-4, 4),
            })
            .collect();
        for combine in [|a: Dim, b: Dim| a.min(b), |a: Dim, b: Dim| a.max(b)] {
            let [first, second] = twice(&mut random, &mut leaves, combine);
            assert_eq!(first.map(Dim::structural), second.map(Dim::structural), "{leaves:?}");
        }
    }
}

/// What is dropped from nested minima and maxima can depend on the order. That is rare, and the value is the same.
#[test]
fn nested_minima_and_maxima_rarely_depend_on_the_order() {
    let symbols = ["a", "b", "c", "d"].map(|name| Symbol::new(name, 1..=64).unwrap());
    let mut random = Random::new(7);
    let mut different = 0;
    for _ in 0..3000 {
        let mut leaves = random_leaves(&mut random, &symbols);
        for combine in [|a: Dim, b: Dim| a.min(b), |a: Dim, b: Dim| a.max(b)] {
            let [first, second] = twice(&mut random, &mut leaves, combine);
            different += usize::from(first.map(Dim::structural) != second.map(Dim::structural));
            let [Some(first), Some(second)] = [first, second] else { continue };
            for _ in 0..5 {
                let sizes = common::bindings(&symbols, &values(&mut random, &symbols));
                if let (Ok(first), Ok(second)) = (first.evaluate(&sizes), second.evaluate(&sizes)) {
                    assert_eq!(first, second, "{leaves:?}");
                }
            }
        }
    }
    assert!(different <= 6, "{different} of 6000 have two forms");
}

fn random_leaves(random: &mut Random, symbols: &[Symbol]) -> Vec<Dim> {
    let hints = values(random, symbols);
    let atoms = dims(symbols, &hints);
    let leaves = (0..random.between(2, 6)).map(|_| Tree::random(random, symbols.len(), 2).dim(&atoms));
    leaves.filter(|leaf| leaf.fault().is_none()).collect()
}

/// The leaves combined in two random orders.
fn twice(random: &mut Random, leaves: &mut [Dim], combine: impl Fn(Dim, Dim) -> Dim) -> [Option<Dim>; 2] {
    let first = reduce(random, leaves.to_vec(), &combine);
    random.shuffle(leaves);
    [first, reduce(random, leaves.to_vec(), &combine)]
}

/// Combines neighbours in a random order.
fn reduce(random: &mut Random, mut leaves: Vec<Dim>, combine: impl Fn(Dim, Dim) -> Dim) -> Option<Dim> {
    while leaves.len() > 1 {
        let at = random.below(leaves.len() - 1);
        let right = leaves.remove(at + 1);
        leaves[at] = combine(leaves[at], right);
    }
    leaves.pop()
}

#[test]
fn text_is_in_a_fixed_order() {
    let mut scope = Scope::new();
    // Declared in the reverse order of their names.
    let [z, y, x] = ["z", "y", "x"].map(|name| scope.declare(name, 0..=100, 9).unwrap());
    let texts = [
        (z * y + x * 2 + 1, "y*z + 2*x + 1"),
        (x - z, "x - z"),
        (z - x - 3, "z - x - 3"),
        (z.min(x).min(7), "min(x, z, 7)"),
        ((z - x).abs(), "abs(x - z)"),
        ((z + x).div_floor(4), "floor((x + z) / 4)"),
        ((z + x).div_ceil(4), "ceil((x + z) / 4)"),
        (z.div_ceil(x + 1), "ceil(z / (x + 1))"),
        (z.rem_floor(4) * 3 + x.rem_floor(2), "x mod 2 + 3*(z mod 4)"),
        ((z + 1).rem_floor(x * y), "(z + 1) mod (x*y)"),
        (z.next_power_of_two() * x, "next_power_of_two(z)*x"),
        (-z, "-z"),
        (7 - z - x, "7 - x - z"),
    ];
    for (dim, text) in texts {
        assert_eq!(dim.to_string(), text);
        assert_eq!(Dim::parse(text, &scope).unwrap().structural(), dim.structural());
    }
    assert_eq!(format!("{:?}", z * y + 1), "y*z + 1 = 82");
    assert_eq!(format!("{:>6}|{:<6}|", z, Dim::from(7)), "     z|7     |");
}

#[test]
fn threads_that_build_the_same_get_the_same() {
    let symbols = ["a", "b", "c", "thread"].map(|name| Symbol::new(name, 1..=64).unwrap());
    let build = || {
        let mut random = Random::new(77);
        (0..2000)
            .map(|_| Tree::random(&mut random, 4, 3).dim(&dims(&symbols, &[3, 5, 7, 11])))
            .map(|dim| (dim.structural(), dim.to_string()))
            .collect::<Vec<_>>()
    };
    let results: Vec<_> = std::thread::scope(|threads| {
        let workers: Vec<_> = (0..4).map(|_| threads.spawn(build)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn expressions_that_grow_without_end_become_constants_with_guards() {
    let symbol = Symbol::in_scope(9, "x", 0..=1000).unwrap();
    let (size, set) = guards::record(|| {
        let mut size = symbol.with_value(9).unwrap();
        for step in 0..10_000 {
            size = (size.min(100 + step) + size.rem_floor(97)).max(step % 5);
        }
        size
    });
    assert!(size.is_constant());
    // The last operands that still were expressions are fixed; the steps after them are on constants.
    assert!((1..=4).contains(&set.len()) && set.iter().all(|guard| guard.to_string().contains(" == ")));
    let holds = |value| {
        let mut bindings = Bindings::new();
        bindings.bind(symbol, value).unwrap();
        set.holds(&bindings)
    };
    assert!(holds(9) && !holds(10));
}

#[test]
fn the_largest_expressions_still_print_and_parse() {
    let mut scope = Scope::with_number(10);
    let x = scope.declare("x", -100..=1000, 9).unwrap();
    let y = scope.declare(&"\"".repeat(128), -3..=1000, 2).unwrap();
    let steps: [fn(Dim, Dim, Dim) -> Dim; 8] = [
        |size, x, y| (size + x).div_floor(y),
        |size, x, y| (size - x).div_ceil(y + 1) + 1,
        |size, x, y| (size + y).rem_floor(x * 100) + 1,
        |size, x, y| (size - x).abs() - y,
        |size, x, y| (size + y).min(x * 3) - x,
        |size, x, y| (size - x).next_power_of_two() - y,
        |size, x, y| (size - x).max(y) * y - size,
        |size, x, _| size * (x + 1) - size,
    ];
    // A small stack: printing may not recurse without bound.
    let worker = std::thread::Builder::new().stack_size(512 << 10).spawn(move || {
        for (number, step) in steps.into_iter().enumerate() {
            let mut size = x;
            let mut count = 0;
            loop {
                let next = step(size, x, y);
                if next.fault().is_some() || next.structural() == size.structural() || count == 1000 {
                    break;
                }
                size = next;
                count += 1;
            }
            assert!(count > 4, "step {number} ended after {count} times: {:?}", step(size, x, y));
            let text = size.to_string();
            let parsed =
                Dim::parse(&text, &scope).unwrap_or_else(|error| panic!("step {number}: {error}: {text}"));
            assert_eq!(parsed.structural(), size.structural());
        }
    });
    worker.unwrap().join().unwrap();
}
