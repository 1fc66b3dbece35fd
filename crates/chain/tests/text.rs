//! The text form: what is read, what is refused and where, and that it can be written and read again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use olivine_chain::{Builder, Data, Density, Error, MAX_NODES};

fn value(text: &str, q: &[f64]) -> f64 {
    let density: Density = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    density.evaluate(&Data::new(vec![1.0, 2.0]), q).unwrap().0
}

#[test]
fn operators_bind_as_in_mathematics() {
    for (text, wanted) in [
        ("1 + 2 * 3", 7.0),
        ("-2^2", -4.0),
        ("2^-1", 0.5),
        ("2^3^2", 512.0),
        ("8 / 2 / 2", 2.0),
        ("1 - 2 - 3", -4.0),
        ("select(1 + 1 < 3, 5, 6)", 5.0),
        ("select(2 >= 3, 5, 6) + (1 == 1) + (1 != 1)", 7.0),
        ("max(q[0], q[1]) - min(q[0], q[1])", 1.0),
        ("sum_obs(y) + max_obs(y) + sum_coord(q) + n_obs + dim", 12.0),
        ("logsumexp(0, 0) - log(2)", 0.0),
        ("let a = q[1]; # a comment\n let b = a * a; b + 1.5e1 + .5", 19.5),
        ("pow(2, 3) + add(1, 1) + lt(1, 2)", 11.0),
    ] {
        let found = value(text, &[1.0, 2.0]);
        assert!((found - wanted).abs() < 1e-15, "{text}: {found}");
    }
}

#[test]
fn mistakes_are_named_where_they_are() {
    for (text, line, column, word) in [
        ("", 1, 1, "expression"),
        ("1 +", 1, 4, "expression"),
        ("q[0] $ 2", 1, 6, "`$`"),
        ("(1 + 2", 1, 7, "`)`"),
        ("1 2", 1, 3, "operator"),
        ("let a = 1;\nsum_obs(b)", 2, 9, "`b`"),
        ("foo(1)", 1, 1, "no function `foo` of 1 argument"),
        ("exp(1, 2)", 1, 1, "of 2 arguments"),
        ("q[1.5]", 1, 3, "whole number"),
        ("q[g]", 1, 3, "not declared"),
        ("index g; g + 1", 1, 10, "q[g]"),
        ("let q = 1; q", 1, 5, "word of the language"),
        ("let a = 1; let a = 2; a", 1, 16, "taken"),
        ("column x; column x; 1", 1, 18, "taken"),
        ("exp(q)[0]", 1, 7, "operator"),
        ("matrix X; sum_obs(X[0])", 1, 19, "indexed"),
        ("1e999e", 1, 6, "operator"),
    ] {
        match text.parse::<Density>() {
            Err(Error::Parse { line: l, column: c, problem }) => {
                assert_eq!((l, c), (line, column), "{text}: {problem}");
                assert!(problem.contains(word), "{text}: {problem}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    for text in ["q", "y", "sum_obs(q)", "sum_coord(y)"] {
        let error = text.parse::<Density>().unwrap_err().to_string();
        assert!(error.contains("a density is one number"), "{text}: {error}");
    }
}

#[test]
fn texts_and_expressions_of_any_depth_end_in_a_value_or_an_error() {
    for deep in ["(", "-", "exp(", "2^"] {
        let error = deep.repeat(100_000).parse::<Density>().unwrap_err();
        assert!(matches!(error, Error::Parse { .. }), "{error}");
    }
    let long = vec!["q[0]"; 20_000].join(" + ");
    assert_eq!(value(&long, &[1.0]), 20_000.0);
    // A chain of 20,000 functions, by the builder, printed and read again.
    let b = Builder::new();
    let mut x = b.position().at(0);
    for _ in 0..20_000 {
        x = x.sin();
    }
    let density = b.density(x).unwrap();
    let (value, gradient) = density.evaluate(&Data::default(), &[1.0]).unwrap();
    assert!(value.is_finite() && gradient[0].is_finite());
    let again: Density = density.to_string().parse().unwrap();
    assert_eq!(again.to_string(), density.to_string());
    let mut x = b.position().at(0);
    for i in 0..MAX_NODES {
        x = x.sin() + i as f64;
    }
    assert!(matches!(b.density(x), Err(Error::TooLarge { .. })));
}

#[test]
fn a_density_is_the_same_when_it_is_printed_and_read() {
    for text in [
        "sum_obs(-0.5 * ((y - q[0]) / exp(q[1]))^2 - q[1])",
        "matrix X, Z; index g; vector v; scalar tau; column w;
         sum_obs(w * softplus(sum_coord(X * q)) + v[g] * q[g]) + sum_coord(select(coord < 2, q / tau, -q))",
        "max_obs(y * q[0]) + -inf * q[0] + nan + 1e-300",
    ] {
        let density: Density = text.parse().unwrap();
        let again: Density = density.to_string().parse().unwrap_or_else(|e| panic!("{e}\n{density}"));
        assert_eq!(
            again.to_string().lines().count(),
            density.to_string().lines().count(),
            "{density}\n{again}"
        );
        assert_eq!(again.data().len(), density.data().len());
        assert_eq!(again.size(), density.size());
    }
}

#[test]
fn equal_subexpressions_are_one() {
    let density: Density = "exp(q[0]) * exp(q[0]) + exp(q[0])".parse().unwrap();
    assert_eq!(density.size(), 4);
    let density: Density = "1 * q[0] + 0 + (2 + 3) * q[0]^1".parse().unwrap();
    assert_eq!(density.size(), 4);
}
