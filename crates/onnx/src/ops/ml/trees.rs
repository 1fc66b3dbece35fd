//! Ensembles of decision trees in the form of `ai.onnx.ml` before version 5: nodes by the number of their
//! tree and their own, leaves among them, and any number of votes at each leaf.

use std::collections::{BTreeSet, HashMap, HashSet};

use olivine_ir::op::{Binary, ReduceKind, ScatterMode};
use olivine_ir::{DType, ValueId};

use super::scores::{Transform, best, class_labels, classified, either, equally_long, rows};
use super::tree_ensemble::{Trees, reached, table};
use crate::ElementType;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::Entry;
use crate::ops::arity::Takes;
use crate::ops::compose::{binary, cast, indices, reduced, reshaped, size, with_number};

/// Operators of `ai.onnx.ml`.
pub(super) const OPERATORS: &[Entry] = &[
    ("TreeEnsembleClassifier", Takes(1, 2), tree_ensemble_classifier),
    ("TreeEnsembleRegressor", Takes(1, 1), tree_ensemble_regressor),
];

/// Weights that all leaves have together at most.
const MAX_WEIGHTS: usize = 1 << 28;

/// A leaf's weight for one of the scores.
#[derive(Clone, Copy)]
struct Vote {
    score: usize,
    weight: f64,
}

/// Trees and what their leaves vote.
struct Ensemble {
    trees: Trees,
    votes: Vec<Vec<Vote>>,
    scores: usize,
}

/// How votes for one score become one number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aggregate {
    Average,
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn read(n: &NodeContext<'_, '_>) -> Answer<Aggregate> {
        Ok(match n.string_or("aggregate_function", "SUM")?.as_str() {
            "AVERAGE" => Aggregate::Average,
            "SUM" => Aggregate::Sum,
            "MIN" => Aggregate::Min,
            "MAX" => Aggregate::Max,
            other => return Err(n.wrong(format!("aggregate_function `{other}` is unknown"))),
        })
    }

    /// What changes nothing.
    fn neutral(self) -> f64 {
        match self {
            Aggregate::Average | Aggregate::Sum => 0.0,
            Aggregate::Min => f64::INFINITY,
            Aggregate::Max => f64::NEG_INFINITY,
        }
    }

    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            Aggregate::Average | Aggregate::Sum => a + b,
            Aggregate::Min => a.min(b),
            Aggregate::Max => a.max(b),
        }
    }

    fn reduction(self) -> (ReduceKind, ScatterMode) {
        match self {
            Aggregate::Average | Aggregate::Sum => (ReduceKind::Sum, ScatterMode::Add),
            Aggregate::Min => (ReduceKind::Min, ScatterMode::Min),
            Aggregate::Max => (ReduceKind::Max, ScatterMode::Max),
        }
    }
}

/// Numbers that stand in a list of floats or, as doubles, in a tensor.
fn numbers(n: &NodeContext<'_, '_>, name: &str) -> Answer<Vec<f64>> {
    let list = n.floats(name)?.unwrap_or_default();
    match n.tensor_attribute(&format!("{name}_as_tensor"))? {
        Some((_, tensor)) if list.is_empty() => Ok(tensor.to_f64()),
        _ => Ok(list.into_iter().map(f64::from).collect()),
    }
}

/// The dtype that trees are walked and votes are counted in: doubles where the features or some attribute
/// are.
fn precision(n: &mut NodeContext<'_, '_>, x: ValueId, weights: &str) -> Answer<DType> {
    let mut dtype = n.dtype(x)?;
    for name in ["nodes_values", weights, "base_values"] {
        if let Some((ElementType::F64, _)) = n.tensor_attribute(&format!("{name}_as_tensor"))? {
            dtype = DType::F64;
        }
    }
    Ok(if dtype == DType::F64 { DType::F64 } else { DType::F32 })
}

/// The number that trees know a node's comparison by; nothing for a leaf.
fn mode(n: &NodeContext<'_, '_>, name: &str) -> Answer<Option<usize>> {
    Ok(Some(match name {
        "BRANCH_LEQ" => 0,
        "BRANCH_LT" => 1,
        "BRANCH_GTE" => 2,
        "BRANCH_GT" => 3,
        "BRANCH_EQ" => 4,
        "BRANCH_NEQ" => 5,
        "LEAF" => return Ok(None),
        other => return Err(n.wrong(format!("a node's mode is `{other}`, which is unknown"))),
    }))
}

impl Ensemble {
    /// Reads an ensemble for features of a width; `kind` is what attributes of votes begin with.
    fn read(n: &NodeContext<'_, '_>, kind: &str, width: usize, scores: usize) -> Answer<Ensemble> {
        let ints = |name: &str| -> Answer<Vec<i64>> { Ok(n.ints(name)?.unwrap_or_default()) };
        let (tree_ids, node_ids) = (ints("nodes_treeids")?, ints("nodes_nodeids")?);
        let (features, values) = (ints("nodes_featureids")?, numbers(n, "nodes_values")?);
        let (on_true, on_false) = (ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
        let modes = n.strings("nodes_modes")?.unwrap_or_default();
        let mut follows = ints("nodes_missing_value_tracks_true")?;
        if follows.is_empty() {
            follows = vec![0; tree_ids.len()];
        }
        equally_long(
            n,
            &[
                ("nodes_treeids", tree_ids.len()),
                ("nodes_nodeids", node_ids.len()),
                ("nodes_featureids", features.len()),
                ("nodes_values", values.len()),
                ("nodes_modes", modes.len()),
                ("nodes_truenodeids", on_true.len()),
                ("nodes_falsenodeids", on_false.len()),
                ("nodes_missing_value_tracks_true", follows.len()),
            ],
        )?;
        let modes: Vec<Option<usize>> = modes.iter().map(|name| mode(n, name)).collect::<Answer<_>>()?;
        // Nodes that branch are counted first, leaves past them all.
        let branching = modes.iter().flatten().count();
        let (mut next_branch, mut next_leaf) = (0, branching);
        let mut places = HashMap::with_capacity(modes.len());
        let (mut seen, mut roots) = (HashSet::new(), Vec::new());
        for ((tree, id), mode) in tree_ids.iter().zip(&node_ids).zip(&modes) {
            let next = if mode.is_some() { &mut next_branch } else { &mut next_leaf };
            if places.insert((*tree, *id), *next).is_some() {
                return Err(n.wrong(format!("node {id} of tree {tree} is there twice")));
            }
            // A tree's first node is its root.
            if seen.insert(*tree) {
                roots.push(*next as i64);
            }
            *next += 1;
        }
        let place = |tree: i64, id: i64| {
            let found = places.get(&(tree, id)).copied();
            found.ok_or_else(|| n.wrong(format!("tree {tree} has no node {id}")))
        };
        let mut trees = Trees::of_roots(roots, next_leaf - branching);
        for (i, mode) in modes.iter().enumerate() {
            let Some(mode) = *mode else { continue };
            if usize::try_from(features[i]).is_ok_and(|feature| feature < width) {
                let ends = [place(tree_ids[i], on_false[i])?, place(tree_ids[i], on_true[i])?];
                trees.push(features[i], mode, values[i], follows[i] != 0, ends.map(|end| end as i64));
            } else {
                return Err(n.wrong(format!("a node asks for feature {} of {width}", features[i])));
            }
        }
        let mut votes = vec![Vec::new(); next_leaf - branching];
        let of = |part: &str| format!("{kind}_{part}");
        let (vote_trees, vote_nodes) = (ints(&of("treeids"))?, ints(&of("nodeids"))?);
        let (ids, weights) = (ints(&of("ids"))?, numbers(n, &of("weights"))?);
        equally_long(
            n,
            &[
                (&of("treeids"), vote_trees.len()),
                (&of("nodeids"), vote_nodes.len()),
                (&of("ids"), ids.len()),
                (&of("weights"), weights.len()),
            ],
        )?;
        for (i, id) in ids.iter().enumerate() {
            let Some(score) = usize::try_from(*id).ok().filter(|score| *score < scores) else {
                return Err(n.wrong(format!("a vote is for {kind} {id} of {scores}")));
            };
            let place = place(vote_trees[i], vote_nodes[i])?;
            // Votes at nodes that branch are never cast.
            if let Some(leaf) = place.checked_sub(branching) {
                votes[leaf].push(Vote { score, weight: weights[i] });
            }
        }
        Ok(Ensemble { trees, votes, scores })
    }

    /// Every row's scores, `[rows, scores]`, without base values.
    fn scores(
        &self,
        n: &mut NodeContext<'_, '_>,
        x: ValueId,
        dtype: DType,
        how: Aggregate,
    ) -> Answer<ValueId> {
        let x = cast(n, x, dtype)?;
        let leaf = reached(n, x, &self.trees)?;
        let most = self.votes.iter().map(Vec::len).max().unwrap_or(0);
        // Leaves that vote for few of many scores name those; others have a weight for each.
        let sparse = most.saturating_mul(4) < self.scores;
        let each = if sparse { most } else { self.scores };
        if self.votes.len().saturating_mul(each) > MAX_WEIGHTS {
            return Err(n.wrong(format!("{} leaves of {each} votes are too many", self.votes.len())));
        }
        let mut y =
            if sparse { self.scattered(n, leaf, dtype, how) } else { self.summed(n, leaf, dtype, how) }?;
        if how == Aggregate::Average {
            y = with_number(n, Binary::Div, y, self.trees.count().max(1) as f64)?;
        }
        if matches!(how, Aggregate::Min | Aggregate::Max) {
            // Scores that no leaf votes for.
            let (nothing, zero) = (n.scalar(dtype, how.neutral()), n.scalar(dtype, 0.0));
            y = n.build(|g| {
                let none = g.eq(y, nothing)?;
                g.select(none, zero, y)
            })?;
        }
        Ok(y)
    }

    fn summed(
        &self,
        n: &mut NodeContext<'_, '_>,
        leaf: ValueId,
        dtype: DType,
        how: Aggregate,
    ) -> Answer<ValueId> {
        let mut all = vec![how.neutral(); self.votes.len() * self.scores];
        for (votes, row) in self.votes.iter().zip(all.chunks_mut(self.scores.max(1))) {
            for vote in votes {
                row[vote.score] = how.of(row[vote.score], vote.weight);
            }
        }
        let weights = table(n, dtype, &[self.votes.len(), self.scores], all)?;
        let given = n.build(|g| g.gather(weights, leaf, 0))?;
        reduced(n, how.reduction().0, given, &[1], false)
    }

    fn scattered(
        &self,
        n: &mut NodeContext<'_, '_>,
        leaf: ValueId,
        dtype: DType,
        how: Aggregate,
    ) -> Answer<ValueId> {
        let most = self.votes.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let leaves = self.votes.len();
        let (mut weights, mut targets) = (vec![how.neutral(); leaves * most], vec![0; leaves * most]);
        for (i, votes) in self.votes.iter().enumerate() {
            for (j, vote) in votes.iter().enumerate() {
                weights[i * most + j] = vote.weight;
                targets[i * most + j] = vote.score as i64;
            }
        }
        let weights = table(n, dtype, &[leaves, most], weights)?;
        let targets = indices(n, targets)?;
        let targets = reshaped(n, targets, &[leaves, most])?;
        let (number, trees) = (n.shape(leaf)?[0], self.trees.count());
        let start = n.scalar(dtype, how.neutral());
        let given = n.build(|g| g.gather(weights, leaf, 0))?;
        let given = reshaped(n, given, &[number, trees * most])?;
        let to = n.build(|g| g.gather(targets, leaf, 0))?;
        let to = reshaped(n, to, &[number, trees * most])?;
        n.build(|g| {
            let empty = g.fill(start, [number, self.scores])?;
            g.scatter_elements(empty, to, given, 1, how.reduction().1)
        })
    }
}

/// Scores plus `base_values`: one for each, or one for the first of two classes.
fn with_base(n: &mut NodeContext<'_, '_>, scores: ValueId, dtype: DType) -> Answer<ValueId> {
    let mut base = numbers(n, "base_values")?;
    let count = n.shape(scores)?[1];
    if base.is_empty() {
        return Ok(scores);
    }
    if base.len() == 1 && count == 2 {
        base.push(0.0);
    }
    if base.len() != count {
        return Err(n.wrong(format!("`base_values` has {} elements for {count} scores", base.len())));
    }
    let base = table(n, dtype, &[1, count], base)?;
    binary(n, Binary::Add, scores, base)
}

fn tree_ensemble_regressor(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = rows(n)?;
    let (transform, how) = (Transform::named(n)?, Aggregate::read(n)?);
    let targets = n.int_or("n_targets", 1)?;
    let targets = size(n, "n_targets", targets)?;
    let width = n.shape(x)?[1];
    let ensemble = Ensemble::read(n, "target", width, targets)?;
    let dtype = precision(n, x, "target_weights")?;
    let y = ensemble.scores(n, x, dtype, how)?;
    let y = with_base(n, y, dtype)?;
    let y = cast(n, y, DType::F32)?;
    let y = transform.apply(n, y)?;
    Ok(vec![n.result(y, ElementType::F32)])
}

fn tree_ensemble_classifier(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = rows(n)?;
    let transform = Transform::named(n)?;
    let labels = class_labels(n, "classlabels_int64s")?;
    if labels.is_empty() {
        return Err(n.wrong("it has no classlabels_int64s"));
    }
    let width = n.shape(x)?[1];
    let ensemble = Ensemble::read(n, "class", width, labels.len())?;
    let dtype = precision(n, x, "class_weights")?;
    let total = ensemble.scores(n, x, dtype, Aggregate::Sum)?;
    let total = with_base(n, total, dtype)?;
    let scores = cast(n, total, DType::F32)?;
    let votes = || ensemble.votes.iter().flatten();
    let voted: BTreeSet<usize> = votes().map(|vote| vote.score).collect();
    let only = voted.first().copied().filter(|_| voted.len() == 1);
    match (labels.as_slice(), only) {
        (&[first, second], Some(only)) => {
            // Two classes and votes for one of them: a margin, or a probability if nothing votes against it.
            let like_probability = votes().all(|vote| vote.weight >= 0.0);
            let own = n.build(|g| g.narrow(total, 1, only, 1))?;
            let threshold = if like_probability { 0.5 } else { 0.0 };
            let label = either(n, own, threshold, [first, second])?;
            let scores = if only == 0 {
                let own = cast(n, own, DType::F32)?;
                transform.of_one_score(n, own, like_probability)?
            } else {
                transform.apply(n, scores)?
            };
            classified(n, label, scores)
        }
        (&[_], _) => {
            let label = either(n, total, 0.0, [0, 1])?;
            let scores = transform.apply(n, scores)?;
            classified(n, label, scores)
        }
        _ => {
            let label = best(n, total, labels)?;
            let scores = transform.apply(n, scores)?;
            classified(n, label, scores)
        }
    }
}
