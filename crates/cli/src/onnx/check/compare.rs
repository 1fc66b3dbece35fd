//! How far results are from those of a reference, and which nodes differ.

use std::collections::HashMap;

use olivine::internals::onnx::NodeInfo;
use olivine::ir::Tensor;
use serde_json::{Value, json};

use crate::table::Table;
use crate::timing::short;

/// Values by name.
pub(super) type Values = HashMap<String, Tensor>;

/// How far values move when floats move by about as much as rounding moves them, by name.
pub(super) type Sensitivity = HashMap<String, Distance>;

/// Errors up to so many times the model's sensitivity are within it: of rounding at every node a few moved inputs show
/// only a part.
const SENSITIVE: f64 = 4.0;

/// How far a tensor is from the reference.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Distance {
    /// The largest difference as a part of the reference's largest number; 0 where all is equal.
    Relative(f64),
    /// The largest difference where the reference is 0 everywhere.
    Absolute(f64),
    /// Another type or shape, or no value at all.
    Type(String),
    /// Infinities or NaN where the reference has numbers, or the other way round.
    NotNumbers,
    /// Integers or bools that are not equal.
    Unequal {
        /// How many.
        count: usize,
        /// Of how many.
        of: usize,
    },
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
                count => Distance::Unequal { count, of: want.shape().numel() },
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
        match (most, scale) {
            (0.0, _) => Distance::Relative(0.0),
            (_, 0.0) => Distance::Absolute(most),
            _ => Distance::Relative(most / scale),
        }
    }

    /// Whether it is within a tolerance.
    fn within(&self, tolerance: f64) -> bool {
        matches!(self, Distance::Relative(error) | Distance::Absolute(error) if *error <= tolerance)
    }

    /// A number to order distances by.
    pub(super) fn size(&self) -> f64 {
        match self {
            Distance::Relative(error) | Distance::Absolute(error) => *error,
            Distance::Unequal { count, of } => *count as f64 / (*of).max(1) as f64,
            Distance::Type(_) | Distance::NotNumbers => f64::INFINITY,
        }
    }

    /// The larger of two.
    pub(super) fn max(self, other: Distance) -> Distance {
        if other.size() > self.size() { other } else { self }
    }

    /// What it means under a tolerance, where the model's sensitivity may be known.
    pub(super) fn verdict(&self, tolerance: f64, sensitivity: Option<&Distance>) -> Verdict {
        if self.within(tolerance) {
            return Verdict::Agrees;
        }
        let sensitive = match (self, sensitivity) {
            (Distance::Relative(error), Some(Distance::Relative(moved)))
            | (Distance::Absolute(error), Some(Distance::Absolute(moved))) => *error <= SENSITIVE * moved,
            (Distance::Unequal { count, .. }, Some(Distance::Unequal { count: moved, .. })) => {
                *count as f64 <= SENSITIVE * *moved as f64
            }
            _ => false,
        };
        if sensitive { Verdict::Sensitive } else { Verdict::Differs }
    }

    /// The distance for a program: its words, and its number where there is one.
    pub(super) fn json(&self) -> Value {
        let number = if self.size().is_finite() { json!(self.size()) } else { Value::Null };
        json!({ "words": self.to_string(), "size": number })
    }
}

impl std::fmt::Display for Distance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Distance::Relative(error) => f.write_str(&short(*error)),
            Distance::Absolute(error) => write!(f, "{} where the reference is 0", short(*error)),
            Distance::Type(problem) => f.write_str(problem),
            Distance::NotNumbers => f.write_str("infinities or NaN differ"),
            Distance::Unequal { count, of } => write!(f, "{count} of {of} elements differ"),
        }
    }
}

/// What a distance means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Within the tolerance.
    Agrees,
    /// Beyond the tolerance, and no further than rounding alone takes the model.
    Sensitive,
    /// Neither.
    Differs,
}

impl Verdict {
    pub(super) fn words(self) -> &'static str {
        match self {
            Verdict::Agrees => "agrees",
            Verdict::Sensitive => "within the model's own sensitivity",
            Verdict::Differs => "differs",
        }
    }
}

/// A node whose results differ, with how far its operands and results are off.
#[derive(Clone, Debug)]
pub(super) struct Culprit {
    node: String,
    inputs: Vec<(String, Distance)>,
    outputs: Vec<(String, Distance)>,
}

/// What comparing node by node says.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Values that both have.
    pub(super) compared: usize,
    /// The largest distance that is a number.
    pub(super) largest: f64,
    /// Nodes whose results are beyond the tolerance and within the model's sensitivity.
    pub(super) sensitive: usize,
    /// Nodes that differ, in the order of the model.
    differing: Vec<Culprit>,
}

/// Compares all values that both have, in the order of the nodes that make them.
pub(super) fn node_by_node(
    nodes: &[NodeInfo],
    got: &Values,
    want: &Values,
    tolerance: f64,
    sensitivity: &Sensitivity,
) -> Comparison {
    let distance = |name: &String| Some((name.clone(), Distance::of(got.get(name)?, want.get(name)?)));
    let mut comparison = Comparison::default();
    for node in nodes {
        let outputs: Vec<(String, Distance)> = node.outputs.iter().filter_map(distance).collect();
        comparison.compared += outputs.len();
        let finite = outputs.iter().map(|(_, of)| of.size()).filter(|size| size.is_finite());
        comparison.largest = finite.fold(comparison.largest, f64::max);
        let verdicts = outputs.iter().map(|(name, of)| of.verdict(tolerance, sensitivity.get(name)));
        let verdicts: Vec<Verdict> = verdicts.collect();
        if verdicts.contains(&Verdict::Differs) {
            let inputs = node.inputs.iter().filter_map(distance).collect();
            comparison.differing.push(Culprit { node: node.location.clone(), inputs, outputs });
        } else if verdicts.contains(&Verdict::Sensitive) {
            comparison.sensitive += 1;
        }
    }
    comparison
}

impl Comparison {
    /// The first node that differs.
    pub(super) fn first(&self) -> Option<&Culprit> {
        self.differing.first()
    }

    /// The nodes that differ most, the worst first; of equal ones in the order of the model.
    fn worst(&self, count: usize) -> Vec<&Culprit> {
        let mut all: Vec<&Culprit> = self.differing.iter().collect();
        all.sort_by(|a, b| b.size().total_cmp(&a.size()));
        all.truncate(count);
        all
    }

    /// The comparison in words, with so many of the worst nodes.
    pub(super) fn text(&self, count: usize) -> String {
        let mut text =
            format!("  {} values compared, largest error {}\n", self.compared, short(self.largest));
        if self.sensitive > 0 {
            text += &format!("  {} nodes differ within the model's own sensitivity\n", self.sensitive);
        }
        let Some(first) = self.first() else { return text };
        text += &first.text();
        let worst = self.worst(count);
        if self.differing.len() > 1 && !worst.is_empty() {
            text += &format!("  the worst {} of {} that differ:\n", worst.len(), self.differing.len());
            let mut table = Table::new(&["   ", "node", ">error", ">of its inputs"]);
            for culprit in worst {
                let error = largest(&culprit.outputs).map_or(String::new(), Distance::to_string);
                let given = largest(&culprit.inputs).map_or(String::new(), Distance::to_string);
                table.row([String::new(), culprit.node.clone(), error, given]);
            }
            text += &table.to_string();
        }
        text
    }

    pub(super) fn json(&self, count: usize) -> Value {
        json!({
            "compared": self.compared, "largest": self.largest, "sensitive": self.sensitive,
            "differing": self.differing.len(), "first": self.first().map(Culprit::json),
            "worst": self.worst(count).into_iter().map(Culprit::json).collect::<Vec<_>>(),
        })
    }
}

fn largest(of: &[(String, Distance)]) -> Option<&Distance> {
    of.iter().map(|(_, of)| of).max_by(|a, b| a.size().total_cmp(&b.size()))
}

impl Culprit {
    fn size(&self) -> f64 {
        largest(&self.outputs).map_or(0.0, Distance::size)
    }

    fn text(&self) -> String {
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

    fn json(&self) -> Value {
        let list = |values: &[(String, Distance)]| {
            values.iter().map(|(name, of)| json!({ "name": name, "error": of.json() })).collect::<Vec<_>>()
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
        assert_eq!(Distance::of(&ints(&[1, 2]), &ints(&[1, 3])), Distance::Unequal { count: 1, of: 2 });
    }

    #[test]
    fn a_reference_of_zeros_is_compared_by_the_difference_itself() {
        let of = |a: &[f32]| Distance::of(&tensor(a), &tensor(&[0.0, 0.0]));
        assert_eq!(of(&[0.0, -0.0]), Distance::Relative(0.0));
        assert_eq!(of(&[0.5, -0.25]), Distance::Absolute(0.5));
        assert_eq!(of(&[0.5, 0.0]).to_string(), "0.5000 where the reference is 0");
        assert_eq!(of(&[1e-9, 0.0]).verdict(1e-3, None), Verdict::Agrees);
        assert_eq!(of(&[1.0, 0.0]).verdict(1e-3, None), Verdict::Differs);
    }

    #[test]
    fn an_error_is_within_the_sensitivity_if_it_is_of_its_kind_and_size() {
        let verdict = |of: Distance, moved: Distance| of.verdict(1e-3, Some(&moved));
        let (relative, unequal) = (Distance::Relative, |count| Distance::Unequal { count, of: 100 });
        assert_eq!(verdict(relative(0.03), relative(0.01)), Verdict::Sensitive);
        assert_eq!(verdict(relative(0.05), relative(0.01)), Verdict::Differs);
        assert_eq!(verdict(unequal(3), unequal(1)), Verdict::Sensitive);
        assert_eq!(verdict(unequal(3), relative(0.5)), Verdict::Differs);
        assert_eq!(verdict(Distance::NotNumbers, Distance::NotNumbers), Verdict::Differs);
        assert_eq!(verdict(relative(1e-4), relative(0.0)), Verdict::Agrees);
    }

    fn chain() -> [NodeInfo; 3] {
        let info = |place: &str, input: &str, output: &str| NodeInfo {
            location: place.into(),
            inputs: vec![input.into()],
            outputs: vec![output.into()],
        };
        [info("one", "x", "a"), info("two", "a", "b"), info("three", "b", "c")]
    }

    fn values(b: f32, c: f32) -> Values {
        [("a", 1.0), ("b", b), ("c", c)].map(|(n, v)| (n.to_string(), tensor(&[v]))).into()
    }

    #[test]
    fn the_first_node_that_differs_is_named_with_what_it_was_given() {
        let compare =
            |got: &Values, want: &Values| node_by_node(&chain(), got, want, 1e-3, &Sensitivity::default());
        let found = compare(&values(2.0, 2.0), &values(3.0, 3.0));
        let first = found.first().unwrap();
        assert_eq!(first.node, "two");
        assert_eq!(first.inputs, [("a".to_string(), Distance::Relative(0.0))]);
        assert!(compare(&values(3.0, 3.0), &values(3.0, 3.0)).first().is_none());
    }

    #[test]
    fn comparing_goes_on_after_the_first_node_and_lists_the_worst_before_the_rest() {
        let found =
            node_by_node(&chain(), &values(2.0, 9.0), &values(3.0, 3.0), 1e-3, &Sensitivity::default());
        let worst: Vec<&str> = found.worst(10).iter().map(|c| c.node.as_str()).collect();
        assert_eq!((found.compared, worst.as_slice()), (3, ["three", "two"].as_slice()));
        assert_eq!(found.worst(1).len(), 1);
        let text = found.text(10);
        assert!(text.contains("first to differ: two") && text.contains("worst 2 of 2"), "{text}");
        assert_eq!(found.json(1)["worst"][0]["node"], "three");
    }

    #[test]
    fn nodes_within_the_sensitivity_are_counted_and_are_no_culprits() {
        let moved = Sensitivity::from([("b".to_string(), Distance::Relative(0.2))]);
        let found = node_by_node(&chain(), &values(2.0, 9.0), &values(3.0, 3.0), 1e-3, &moved);
        assert_eq!((found.sensitive, found.first().unwrap().node.as_str()), (1, "three"));
    }
}
