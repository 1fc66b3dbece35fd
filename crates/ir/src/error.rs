//! What can be wrong with a graph, a tensor or a text.

use crate::{DType, TensorType};

/// An error of the graph layer; each variant carries the facts needed to fix the cause.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation refuses its operands.
    #[error("{op} `{node}`: {problem}; operands: {}", list(.operands))]
    Op {
        /// The operation's name, for example `matmul`.
        op: String,
        /// The node's name.
        node: String,
        /// What is wrong, in words.
        problem: String,
        /// The operands' types.
        operands: Vec<TensorType>,
    },
    /// More dimensions than a tensor may have.
    #[error("rank {rank} is above the limit of 8")]
    RankTooHigh {
        /// The rank asked for.
        rank: usize,
    },
    /// A product of sizes above [`MAX_ELEMENTS`](crate::MAX_ELEMENTS).
    #[error("shape {dims:?} is too large: more than 2^{} elements", crate::MAX_ELEMENTS.ilog2())]
    TooLarge {
        /// The sizes asked for.
        dims: Vec<usize>,
    },
    /// Memory for a tensor could not be had.
    #[error("not enough memory for a tensor of {bytes} bytes")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// Elements that do not fit their shape or dtype.
    #[error("{problem}")]
    BadData {
        /// What is wrong, in words.
        problem: String,
    },
    /// Elements asked for as another Rust type than they are.
    #[error("the tensor holds {expected}, not {got}")]
    WrongElement {
        /// The dtype held.
        expected: DType,
        /// The dtype asked for.
        got: DType,
    },
    /// A name used twice.
    #[error("{kind} `{name}` is declared twice")]
    Duplicate {
        /// `input`, `param` or `output`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A name that the graph does not have.
    #[error("no {kind} named `{name}`{}", hint(.nearest))]
    Unknown {
        /// `input`, `param`, `output` or `value`.
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The nearest name that exists.
        nearest: Option<String>,
    },
    /// A graph that breaks the rules of the IR.
    #[error("invalid graph at {location}: {problem}")]
    Invalid {
        /// The node or value, as printed in the text form.
        location: String,
        /// What is wrong, in words.
        problem: String,
    },
    /// A text that is not a graph.
    #[error("line {line}, column {column}: {problem}")]
    Parse {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong, in words.
        problem: String,
    },
}

fn list(types: &[TensorType]) -> String {
    if types.is_empty() {
        return "none".into();
    }
    types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
}

/// `; did you mean …?`, or nothing.
pub(crate) fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
}

/// The candidate with the smallest edit distance, unless every one is further than half the longer name; of equally
/// near ones the first in the alphabet.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let length = name.chars().count();
    candidates
        .into_iter()
        .filter_map(|c| {
            let other = c.chars().count();
            let limit = length.max(other).div_ceil(2);
            // The lengths alone rule most out; a name may be a megabyte of someone's broken file.
            let distance = (length.abs_diff(other) <= limit).then(|| edit_distance(name, c))?;
            (distance <= limit).then_some((distance, c))
        })
        .min()
        .map(|(_, c)| c.to_string())
}

/// Insertions, deletions, substitutions and swaps of neighbours that make `b` of `a`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut last = None;
    for (i, ca) in a.chars().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        next.push(i + 1);
        for (j, cb) in b.iter().enumerate() {
            let mut least = (row[j] + usize::from(ca != *cb)).min(row[j + 1] + 1).min(next[j] + 1);
            if j > 0 && last == Some(*cb) && b[j - 1] == ca {
                least = least.min(before[j - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
        last = Some(ca);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_changes_and_swaps() {
        for (a, b, distance) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("rleu", "relu", 1),
            ("axes", "axis", 1),
            ("über", "uber", 1),
            ("ab", "ba", 1),
        ] {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
            assert_eq!(edit_distance(b, a), distance, "{b} {a}");
        }
    }

    #[test]
    fn the_nearest_name_is_found_unless_all_are_far() {
        let names = ["input_ids", "attention_mask", "token_type_ids"];
        assert_eq!(nearest("inputs_ids", names).as_deref(), Some("input_ids"));
        assert_eq!(nearest("mask_attention", names), None);
        assert_eq!(nearest("attn_mask", names).as_deref(), Some("attention_mask"));
        assert_eq!(nearest("x", []), None);
        assert_eq!(nearest("b", ["c", "a"]).as_deref(), Some("a"), "the first in the alphabet among equals");
    }

    #[test]
    fn a_megabyte_of_name_is_not_compared() {
        let start = std::time::Instant::now();
        assert_eq!(nearest(&"x".repeat(1 << 20), ["relu"; 1000]), None);
        assert!(start.elapsed().as_secs() < 2);
    }
}
