//! How far results are from those of a reference, and which node is the first to differ.

use std::collections::HashMap;

use olivine::ir::Tensor;
use olivine::onnx::NodeInfo;
use serde_json::{Value, json};

use crate::timing::short;

/// Values by name.
pub(super) type Values = HashMap<String, Tensor>;

/// How far a tensor is from the reference.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Distance {
    /// The largest difference as a part of the reference's largest number; 0 where all is equal.
    Relative(f64),
    /// Another type or shape.
    Type(String),
    /// Infinities or NaN where the reference has numbers, or the other way round.
    NotNumbers,
    /// Integers or bools that are not equal: how many.
    Unequal(usize),
}

impl Distance {
    pub(super) fn of(got: &Tensor, want: &Tensor) -> Distance {
        if got.ty() != want.ty() {
            return Distance::Type(format!("{} instead of {}", got.ty(), want.ty()));
        }
        if !want.dtype().is_float() {
            let size = want.dtype().size();
            let pairs = got.bytes().chunks_exact(size).zip(want.bytes().chunks_exact(size));
            return match pairs.filter(|(a, b)| a != b).count() {
                0 => Distance::Relative(0.0),
                unequal => Distance::Unequal(unequal),
            };
        }
        let (mut scale, mut most) = (0.0f64, 0.0f64);
        for (a, b) in got.numbers().zip(want.numbers()) {
            if a == b || a.is_nan() && b.is_nan() {
                scale = if b.is_finite() { scale.max(b.abs()) } else { scale };
                continue;
            }
            if !a.is_finite() || !b.is_finite() {
                return Distance::NotNumbers;
            }
            (scale, most) = (scale.max(b.abs()), most.max((a - b).abs()));
        }
        Distance::Relative(if most == 0.0 { 0.0 } else { most / scale.max(f64::MIN_POSITIVE) })
    }

    /// Whether it is within a tolerance.
    pub(super) fn within(&self, tolerance: f64) -> bool {
        matches!(self, Distance::Relative(error) if *error <= tolerance)
    }
}

impl std::fmt::Display for Distance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Distance::Relative(error) => f.write_str(&short(*error)),
            Distance::Type(problem) => f.write_str(problem),
            Distance::NotNumbers => f.write_str("infinities or NaN differ"),
            Distance::Unequal(count) => write!(f, "{count} elements differ"),
        }
    }
}

/// The first node whose results differ, with how far its operands and results are.
#[derive(Debug)]
pub(super) struct Culprit {
    node: String,
    inputs: Vec<(String, Distance)>,
    outputs: Vec<(String, Distance)>,
}

/// What comparing node by node says.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Values that both have.
    pub(super) compared: usize,
    /// The value that is furthest off within the tolerance.
    pub(super) worst: f64,
    pub(super) first: Option<Culprit>,
}

/// Compares all values that both have, in the order of the nodes that make them.
pub(super) fn node_by_node(nodes: &[NodeInfo], got: &Values, want: &Values, tolerance: f64) -> Comparison {
    let distance = |name: &String| Some((name.clone(), Distance::of(got.get(name)?, want.get(name)?)));
    let mut comparison = Comparison { compared: 0, worst: 0.0, first: None };
    for node in nodes {
        let outputs: Vec<(String, Distance)> = node.outputs.iter().filter_map(distance).collect();
        comparison.compared += outputs.len();
        for (_, of) in &outputs {
            if let Distance::Relative(error) = of {
                comparison.worst = comparison.worst.max(*error);
            }
        }
        if outputs.iter().any(|(_, of)| !of.within(tolerance)) {
            let inputs = node.inputs.iter().filter_map(distance).collect();
            comparison.first = Some(Culprit { node: node.place.clone(), inputs, outputs });
            break;
        }
    }
    comparison
}

impl Culprit {
    pub(super) fn text(&self) -> String {
        let list = |what: &str, values: &[(String, Distance)]| {
            values.iter().map(|(name, of)| format!("    {what} `{name}`: {of}\n")).collect::<String>()
        };
        format!(
            "  first to differ: {}\n{}{}",
            self.node,
            list("input", &self.inputs),
            list("output", &self.outputs)
        )
    }

    pub(super) fn json(&self) -> Value {
        let list = |values: &[(String, Distance)]| {
            values
                .iter()
                .map(|(name, of)| json!({ "name": name, "error": of.to_string() }))
                .collect::<Vec<_>>()
        };
        json!({ "node": self.node, "inputs": list(&self.inputs), "outputs": list(&self.outputs) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::new([values.len()], values.to_vec()).unwrap()
    }

    #[test]
    fn distances_are_relative_to_the_largest_number_and_integers_must_be_equal() {
        let of = |a: &[f32], b: &[f32]| Distance::of(&tensor(a), &tensor(b));
        assert_eq!(of(&[1.0, 2.0], &[1.0, 4.0]), Distance::Relative(0.5));
        assert_eq!(of(&[f32::NAN], &[f32::NAN]), Distance::Relative(0.0));
        assert_eq!(of(&[f32::NAN], &[1.0]), Distance::NotNumbers);
        assert_eq!(of(&[f32::INFINITY], &[f32::INFINITY]), Distance::Relative(0.0));
        assert!(matches!(of(&[1.0], &[1.0, 2.0]), Distance::Type(_)));
        let ints = |v: &[i64]| Tensor::new([v.len()], v.to_vec()).unwrap();
        assert_eq!(Distance::of(&ints(&[1, 2]), &ints(&[1, 3])), Distance::Unequal(1));
    }

    #[test]
    fn the_first_node_that_differs_is_named_with_what_it_was_given() {
        let info = |place: &str, input: &str, output: &str| NodeInfo {
            place: place.into(),
            inputs: vec![input.into()],
            outputs: vec![output.into()],
        };
        let nodes = [info("one", "x", "a"), info("two", "a", "b"), info("three", "b", "c")];
        let values = |b: f32| -> Values {
            [("a", 1.0), ("b", b), ("c", b)].map(|(n, v)| (n.to_string(), tensor(&[v]))).into()
        };
        let found = node_by_node(&nodes, &values(2.0), &values(3.0), 1e-3);
        let first = found.first.unwrap();
        assert_eq!(first.node, "two");
        assert_eq!(first.inputs, [("a".to_string(), Distance::Relative(0.0))]);
        assert!(node_by_node(&nodes, &values(3.0), &values(3.0), 1e-3).first.is_none());
    }
}
