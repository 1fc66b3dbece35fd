//! Ensembles of decision trees: all rows walk down all trees at once, one level after another.

use olivine_ir::op::{Compare, ReduceKind, ScalarOp, ScatterMode};
use olivine_ir::{DType, Graph, Tensor, ValueId};

use super::scores::Transform;
use crate::import::{Answer, NodeContext, Value};
use crate::ops::Entry;
use crate::ops::arity::Takes;
use crate::ops::compose::{cast, indices, reduced, reshaped, size, sizes};

/// Operators of `ai.onnx.ml`.
pub(super) const OPERATORS: &[Entry] = &[("TreeEnsemble", Takes(1, 1), tree_ensemble)];

/// Levels that trees have at most.
const MAX_LEVELS: usize = 1024;

/// Numbers in the table of all sets at most: nodes by the longest set.
const MOST_MEMBERS: usize = 1 << 26;

/// The mode that asks whether a feature is one of a set.
const MEMBER: usize = 6;

/// Trees of nodes that branch. Branches and roots are nodes, or past them all leaves.
pub(super) struct Trees {
    features: Vec<i64>,
    modes: Vec<usize>,
    splits: Vec<f64>,
    /// Where a feature that is NaN goes.
    nan_is_true: Vec<bool>,
    branches: [Vec<i64>; 2],
    /// Members of the nodes' sets.
    sets: Vec<Vec<f64>>,
    roots: Vec<i64>,
    leaves: usize,
}

fn numbers(n: &NodeContext<'_, '_>, name: &str) -> Answer<Option<Vec<f64>>> {
    Ok(n.tensor_attribute(name)?.map(|(_, tensor)| tensor.to_f64()))
}

fn required<T>(n: &NodeContext<'_, '_>, name: &str, value: Option<T>) -> Answer<T> {
    value.ok_or_else(|| n.wrong(format!("it has no {name}")))
}

/// Reads the trees; every index in them is checked.
fn trees(n: &NodeContext<'_, '_>, width: usize, leaves: usize) -> Answer<Trees> {
    let ints = |name: &str| required(n, name, n.ints(name)?);
    let features = ints("nodes_featureids")?;
    let count = features.len();
    let modes: Vec<usize> =
        required(n, "nodes_modes", numbers(n, "nodes_modes")?)?.into_iter().map(|m| m as usize).collect();
    let splits = required(n, "nodes_splits", numbers(n, "nodes_splits")?)?;
    let nan_is_true = match n.ints("nodes_missing_value_tracks_true")? {
        Some(list) if !list.is_empty() => list.into_iter().map(|v| v != 0).collect(),
        _ => vec![false; count],
    };
    let branch = |ids: &str, flags: &str| -> Answer<Vec<i64>> {
        let (ids, flags) = (ints(ids)?, ints(flags)?);
        if ids.len() != count || flags.len() != count {
            return Err(n.wrong("its lists of nodes differ in length"));
        }
        let ends = ids.iter().zip(&flags).map(|(id, leaf)| {
            let (first, limit) = if *leaf != 0 { (count, leaves) } else { (0, count) };
            let inside = usize::try_from(*id).ok().filter(|id| *id < limit);
            inside.map(|id| (first + id) as i64).ok_or_else(|| n.wrong(format!("a branch goes to {id}")))
        });
        ends.collect()
    };
    let branches =
        [branch("nodes_falsenodeids", "nodes_falseleafs")?, branch("nodes_truenodeids", "nodes_trueleafs")?];
    let roots = ints("tree_roots")?;
    let outside = |list: &[i64], limit: usize| list.iter().any(|i| *i < 0 || *i as usize >= limit);
    let same = modes.len() == count && splits.len() == count && nan_is_true.len() == count;
    if !same || outside(&features, width) || outside(&roots, count) || modes.iter().any(|m| *m > MEMBER) {
        return Err(n.wrong("its nodes name features, modes or roots that are not there"));
    }
    let members = numbers(n, "membership_values")?.unwrap_or_default();
    let mut groups = members.split(|v| v.is_nan());
    let sets = modes.iter().map(|m| match m {
        &MEMBER => {
            groups.next().map(<[f64]>::to_vec).ok_or_else(|| n.wrong("a set has no membership_values"))
        }
        _ => Ok(Vec::new()),
    });
    let sets = sets.collect::<Answer<_>>()?;
    Ok(Trees { features, modes, splits, nan_is_true, branches, sets, roots, leaves })
}

impl Trees {
    /// Trees without nodes as yet.
    pub(super) fn of_roots(roots: Vec<i64>, leaves: usize) -> Trees {
        Trees {
            features: Vec::new(),
            modes: Vec::new(),
            splits: Vec::new(),
            nan_is_true: Vec::new(),
            branches: [Vec::new(), Vec::new()],
            sets: Vec::new(),
            roots,
            leaves,
        }
    }

    /// Adds a node that compares a feature with a number and goes where the answer, false or true, says.
    pub(super) fn push(
        &mut self,
        feature: i64,
        mode: usize,
        split: f64,
        nan_is_true: bool,
        [on_false, on_true]: [i64; 2],
    ) {
        self.features.push(feature);
        self.modes.push(mode);
        self.splits.push(split);
        self.nan_is_true.push(nan_is_true);
        self.branches[0].push(on_false);
        self.branches[1].push(on_true);
        self.sets.push(Vec::new());
    }

    /// How many trees there are.
    pub(super) fn count(&self) -> usize {
        self.roots.len()
    }

    /// Levels from a root to the farthest leaf, if every path ends.
    fn levels(&self) -> Option<usize> {
        let count = self.features.len();
        let mut frontier: Vec<usize> = self.roots.iter().map(|r| *r as usize).collect();
        for level in 0..=MAX_LEVELS {
            frontier.sort_unstable();
            frontier.dedup();
            frontier.retain(|at| *at < count);
            if frontier.is_empty() {
                return Some(level);
            }
            let next = frontier.iter().flat_map(|at| self.branches.iter().map(|b| b[*at] as usize));
            frontier = next.collect();
        }
        None
    }
}

fn tree_ensemble(n: &mut NodeContext<'_, '_>) -> Answer<Vec<Value>> {
    let x = n.tensor(0)?;
    let (shape, dtype) = (n.shape(x)?, n.dtype(x)?);
    let &[rows, width] = shape.dims() else {
        return Err(n.wrong(format!("it takes rows of features, not {shape}")));
    };
    let weights = required(n, "leaf_weights", n.tensor_attribute("leaf_weights")?)?.1;
    let targets = required(n, "leaf_targetids", n.ints("leaf_targetids")?)?;
    let outputs = n.int_or("n_targets", 1)?;
    let outputs = size(n, "n_targets", outputs)?;
    if sizes(n, "leaf_targetids", &targets)?.iter().any(|t| *t >= outputs)
        || targets.len() != weights.shape().numel()
    {
        return Err(n.wrong("its leaves' weights and targets do not fit"));
    }
    let trees = trees(n, width, targets.len())?;
    let leaf = reached(n, x, &trees)?;
    let each = trees.count();
    let weights = n.constant(weights);
    let weights = reshaped(n, weights, &[targets.len()])?;
    let weights = cast(n, weights, dtype)?;
    let targets = indices(n, targets)?;
    let given = n.build(|g| g.gather(weights, leaf, 0))?;
    let to = n.build(|g| g.gather(targets, leaf, 0))?;
    let (mode, start) = match n.int_or("aggregate_function", 1)? {
        0 | 1 => (ScatterMode::Add, 0.0),
        2 => (ScatterMode::Min, f64::INFINITY),
        3 => (ScatterMode::Max, f64::NEG_INFINITY),
        other => return Err(n.wrong(format!("aggregate_function {other} is unknown"))),
    };
    let start = n.scalar(dtype, start);
    let empty = n.build(|g| g.fill(start, [rows, outputs]))?;
    let mut y = n.build(|g| g.scatter_elements(empty, to, given, 1, mode))?;
    if n.int_or("aggregate_function", 1)? == 0 {
        y = n.build(|g| g.binary_scalar(olivine_ir::op::Binary::Div, y, each.max(1) as f64))?;
    }
    let y = Transform::numbered(n)?.apply(n, y)?;
    n.like_first(y)
}

/// The leaf that every row of x reaches in every tree, `[rows, trees]`.
pub(super) fn reached(n: &mut NodeContext<'_, '_>, x: ValueId, trees: &Trees) -> Answer<ValueId> {
    let Some(levels) = trees.levels() else {
        return Err(n.wrong(format!("its trees have over {MAX_LEVELS} levels, or do not end")));
    };
    walk(n, x, trees, levels)
}

fn walk(n: &mut NodeContext<'_, '_>, x: ValueId, trees: &Trees, levels: usize) -> Answer<ValueId> {
    let (rows, dtype, count) = (n.shape(x)?[0], n.dtype(x)?, trees.features.len());
    // Leaves are nodes that lead to themselves.
    let with_leaves = |list: &[i64], leaf: &dyn Fn(usize) -> i64| -> Vec<i64> {
        list.iter().copied().chain((0..trees.leaves).map(leaf)).collect()
    };
    let itself = |i: usize| (count + i) as i64;
    let on_false = indices(n, with_leaves(&trees.branches[0], &itself))?;
    let on_true = indices(n, with_leaves(&trees.branches[1], &itself))?;
    let features = indices(n, with_leaves(&trees.features, &|_| 0))?;
    let modes: Vec<i64> = trees.modes.iter().map(|m| *m as i64).collect();
    let mode_table = indices(n, with_leaves(&modes, &|_| 0))?;
    let nans: Vec<i64> = trees.nan_is_true.iter().map(|b| i64::from(*b)).collect();
    let nan_table = indices(n, with_leaves(&nans, &|_| 0))?;
    let splits: Vec<f64> = trees.splits.iter().copied().chain((0..trees.leaves).map(|_| 0.0)).collect();
    let split_table = table(n, dtype, &[splits.len()], splits)?;
    let widest = trees.sets.iter().map(Vec::len).max().unwrap_or(0);
    let set_table = if widest > 0 {
        let total = (count + trees.leaves).saturating_mul(widest);
        if total > MOST_MEMBERS {
            return Err(n.wrong(format!("{count} nodes with sets of up to {widest} numbers")));
        }
        let mut all = vec![f64::NAN; total];
        for (i, set) in trees.sets.iter().enumerate() {
            all[i * widest..i * widest + set.len()].copy_from_slice(set);
        }
        Some(table(n, dtype, &[count + trees.leaves, widest], all)?)
    } else {
        None
    };
    let roots = indices(n, trees.roots.clone())?;
    let mut at = n.build(|g| g.expand(roots, [rows, trees.roots.len()]))?;
    for _ in 0..levels {
        let feature = n.build(|g| g.gather(features, at, 0))?;
        let value = n.build(|g| g.gather_elements(x, feature, 1))?;
        let split = n.build(|g| g.gather(split_table, at, 0))?;
        let mode = n.build(|g| g.gather(mode_table, at, 0))?;
        let mut holds: Option<ValueId> = None;
        for (number, compare) in
            [Compare::Le, Compare::Lt, Compare::Ge, Compare::Gt, Compare::Eq, Compare::Ne]
                .into_iter()
                .enumerate()
        {
            if trees.modes.contains(&number) {
                let answer = n.add(ScalarOp::Compare(compare), &[value, split])?;
                holds = Some(n.build(|g| chosen(g, mode, number, answer, holds))?);
            }
        }
        if let Some(sets) = set_table {
            let set = n.build(|g| g.gather(sets, at, 0))?;
            let one = reshaped(n, value, &[rows, trees.roots.len(), 1])?;
            let same = n.build(|g| g.eq(set, one))?;
            let answer = reduced(n, ReduceKind::Any, same, &[2], false)?;
            holds = Some(n.build(|g| chosen(g, mode, MEMBER, answer, holds))?);
        }
        let holds = holds.ok_or_else(|| n.wrong("its nodes have no modes"))?;
        at = n.build(|g| {
            let missing = g.isnan(value)?;
            let track = g.gather(nan_table, at, 0)?;
            let track = g.cast(track, DType::Bool)?;
            let follows = g.and(missing, track)?;
            let holds = g.or(holds, follows)?;
            let (yes, no) = (g.gather(on_true, at, 0)?, g.gather(on_false, at, 0)?);
            g.select(holds, yes, no)
        })?;
    }
    n.build(|g| g.binary_scalar(olivine_ir::op::Binary::Sub, at, count as f64))
}

/// Numbers as a constant of x's dtype, without losing digits.
pub(super) fn table(
    n: &mut NodeContext<'_, '_>,
    dtype: DType,
    dims: &[usize],
    numbers: Vec<f64>,
) -> Answer<ValueId> {
    let tensor = if dtype == DType::F64 {
        Tensor::new(dims, numbers)
    } else {
        Tensor::new(dims, numbers.into_iter().map(|v| v as f32).collect())
    };
    let tensor = n.built(tensor)?;
    let id = n.constant(tensor);
    cast(n, id, dtype)
}

/// The answer where nodes are of a mode, others elsewhere.
fn chosen(
    g: &mut Graph,
    mode: ValueId,
    number: usize,
    answer: ValueId,
    others: Option<ValueId>,
) -> Result<ValueId, olivine_ir::Error> {
    let Some(others) = others else { return Ok(answer) };
    let number = g.constant(Tensor::scalar(number as i64));
    let is = g.eq(mode, number)?;
    g.select(is, answer, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trees(branches: [Vec<i64>; 2], leaves: usize) -> Trees {
        let count = branches[0].len();
        Trees {
            features: vec![0; count],
            modes: vec![0; count],
            splits: vec![0.0; count],
            nan_is_true: vec![false; count],
            branches,
            sets: vec![Vec::new(); count],
            roots: vec![0],
            leaves,
        }
    }

    #[test]
    fn levels_count_to_the_farthest_leaf() {
        // Node 0 leads to a leaf and to node 1, which leads to two leaves.
        assert_eq!(trees([vec![2, 3], vec![1, 4]], 3).levels(), Some(2));
    }

    #[test]
    fn trees_that_go_in_circles_have_no_levels() {
        assert_eq!(trees([vec![1, 0], vec![2, 2]], 1).levels(), None);
    }
}
