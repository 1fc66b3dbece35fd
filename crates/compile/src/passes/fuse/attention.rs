//! `softmax(scale·q·kᵀ [masked])·v` becomes [`Attention`].
//!
//! Needs: the two matmuls and the softmax between them with no other readers. Produces: one node, without the scores in
//! memory. What is recognised around the scores: a scale on q, on k or on the scores; a softcap `c·tanh(s/c)`; masks,
//! added or as `where(keep, s, low)`; casts to a wider float and back; NaN weights replaced by 0; kv heads repeated for
//! grouped queries.
//! A result that is only read transposed to `[batch, sequence, heads, dim]` is made in that layout.
//!
//! `low` must be −10000 or less. A row that keeps no key then gives zeros, where the spelled-out form gives NaN (low is
//! −∞) or the mean of all values (low is finite): rows that models ignore.

use std::collections::HashMap;

use olivine_ir::op::{Attention, Binary, HeadLayout, MaskKind, MatMul, ScalarOp, Softmax, Unary};
use olivine_ir::{DType, Dim, Error, Graph, Node, NodeId, Op, Shape, Tensor, ValueId};

use super::edit::{Facts, has, reshaped, sweep, transposed};
use crate::pattern::scalar_constant;
use crate::{Options, Pass, Rewriter};

/// A masked score must vanish under softmax next to any score a model makes.
const LOW_ENOUGH: f64 = -1e4;

/// Heads and sequence exchanged; its own inverse.
const SWAP_HEADS: [usize; 4] = [0, 2, 1, 3];

/// The pass.
pub(super) struct FuseAttention;

impl Pass for FuseAttention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !has(graph, |op| matches!(op, Op::Softmax(_))) {
            return Ok(graph.clone());
        }
        let facts = Facts::new(graph);
        let mut found: HashMap<NodeId, Found> = HashMap::new();
        // The transposes that an attention in the other layout makes needless, with the matmul they read.
        let mut needless: HashMap<NodeId, NodeId> = HashMap::new();
        for index in 0..graph.nodes().len() {
            let id = NodeId(index as u32);
            if let Some(attention) = find(&facts, id) {
                if let Some(reader) = attention.read_by {
                    needless.insert(reader, id);
                }
                found.insert(id, attention);
            }
        }
        if found.is_empty() {
            return Ok(graph.clone());
        }
        let mut swapped: HashMap<NodeId, ValueId> = HashMap::new();
        let out = crate::rewrite(graph, |out, id, node| {
            if let Some(result) = needless.get(&id).and_then(|matmul| swapped.get(matmul)) {
                out.bind(node.outputs[0], *result);
                return Ok(true);
            }
            let Some(attention) = found.get(&id) else { return Ok(false) };
            // An operand that Attention refuses (a head dim beyond its limit) leaves the matmuls as they are.
            let Ok(result) = emit(out, &facts, attention) else { return Ok(false) };
            if attention.read_by.is_some() {
                swapped.insert(id, result);
                return Ok(true);
            }
            if out.new.ty(result)? != graph.ty(node.outputs[0])? {
                return Ok(false);
            }
            out.bind(node.outputs[0], result);
            Ok(true)
        })?;
        sweep(&out)
    }
}

/// An attention in pieces; all values are the old graph's.
struct Found {
    scores: Scores,
    v: ValueId,
    /// The transposition to `[batch, sequence, heads, dim]` that alone reads the result.
    read_by: Option<NodeId>,
}

/// What makes the argument of softmax.
#[derive(Clone, Copy)]
struct Scores {
    q: ValueId,
    /// k with its last two axes swapped.
    kt: ValueId,
    scale: f64,
    softcap: Option<f64>,
    /// What is added: up to two values.
    biases: [Option<ValueId>; 2],
    keep: Option<Keep>,
}

/// A bool mask.
#[derive(Clone, Copy)]
struct Keep {
    mask: ValueId,
    /// True means that the score does not count.
    inverted: bool,
}

impl Scores {
    fn is_masked(&self) -> bool {
        self.keep.is_some() || self.biases[0].is_some()
    }

    fn scaled(self, scale_by: f64) -> Option<Scores> {
        let first = !self.is_masked() && self.softcap.is_none() && scale_by.is_finite();
        first.then_some(Scores { scale: self.scale * scale_by, ..self })
    }

    fn capped(self, cap: f64) -> Option<Scores> {
        // The division by the cap inside tanh was taken for a scale.
        let inside = self.scaled(cap)?;
        (cap > 0.0).then_some(Scores { softcap: Some(cap), ..inside })
    }

    fn biased(self, bias: ValueId) -> Option<Scores> {
        let biases = match self.biases {
            [None, _] => [Some(bias), None],
            [first, None] => [first, Some(bias)],
            _ => return None,
        };
        Some(Scores { biases, ..self })
    }

    fn masked(self, mask: ValueId, inverted: bool) -> Option<Scores> {
        self.keep.is_none().then_some(Scores { keep: Some(Keep { mask, inverted }), ..self })
    }
}

fn plain_matmul(node: &Node) -> Option<(ValueId, ValueId)> {
    match (&node.op, node.inputs.as_slice()) {
        (Op::MatMul(MatMul { epilogue: None }), [a, b]) => Some((*a, *b)),
        _ => None,
    }
}

fn find(facts: &Facts<'_>, id: NodeId) -> Option<Found> {
    let node = facts.node(id);
    let (weights, v) = plain_matmul(node)?;
    let rank = facts.shape(v).rank();
    let dtype = facts.graph.ty(v).ok()?.dtype;
    if !(2..=4).contains(&rank) || !dtype.is_float() {
        return None;
    }
    let weights = inner(facts, weights, is_float_cast)?;
    // Attention gives 0 for rows without keys, which is what a guard against NaN is for.
    let (weights, reads) = match guarded(facts, weights) {
        Some(inside) => (inside, 2),
        None => (weights, 1),
    };
    let softmax = facts.graph.producer(weights)?;
    match &softmax.op {
        Op::Softmax(Softmax { axis }) if *axis + 1 == facts.shape(weights).rank() => {}
        _ => return None,
    }
    if facts.uses[weights.index()] != reads {
        return None;
    }
    let mut scores = scores(facts, softmax.inputs[0])?;
    (scores.q, scores.scale) = unscaled(facts, scores.q, scores.scale);
    (scores.kt, scores.scale) = unscaled(facts, scores.kt, scores.scale);
    let same_type = [scores.q, scores.kt].iter().all(|x| {
        let ty = facts.graph.values()[x.index()].ty;
        ty.dtype == dtype && ty.shape.rank() == rank && !ty.shape.has_zero()
    });
    if !same_type || facts.shape(v).has_zero() || !batches_agree(facts, &scores, v) {
        return None;
    }
    let mut biases = scores.biases.iter().flatten();
    if biases.any(|m| facts.graph.values()[m.index()].ty.dtype != dtype) {
        return None;
    }
    let read_by = facts
        .only_reader(node.outputs[0])
        .filter(|reader| matches!(&facts.node(*reader).op, Op::Transpose(t) if t.perm == SWAP_HEADS));
    Some(Found { scores, v, read_by })
}

/// Batches are equal and kv heads are all or one: attention broadcasts nothing else.
fn batches_agree(facts: &Facts<'_>, scores: &Scores, v: ValueId) -> bool {
    let (q, kt, v) = (facts.shape(scores.q).sizes(), facts.shape(scores.kt).sizes(), facts.shape(v).sizes());
    let lead = q.len() - 2;
    let kv_agree = kt[..lead] == v[..lead];
    kv_agree
        && match lead {
            2 => q[0] == kt[0] && (kt[1] == q[1] || kt[1] == 1),
            1 => q[0] == kt[0],
            _ => true,
        }
}

/// The node that makes a value which nothing else than one operand reads.
fn sole<'g>(facts: &Facts<'g>, id: ValueId) -> Option<&'g Node> {
    if facts.uses[id.index()] != 1 { None } else { facts.graph.producer(id) }
}

/// Past a node that satisfies `skip`, to its operand; the value itself if none stands there. `None` if it is shared.
fn inner(facts: &Facts<'_>, id: ValueId, skip: impl Fn(&Op) -> bool) -> Option<ValueId> {
    match facts.graph.producer(id) {
        Some(node) if skip(&node.op) => (facts.uses[id.index()] == 1).then(|| node.inputs[0]),
        _ => Some(id),
    }
}

/// `w` of `where(isnan(w), 0, w)`.
fn guarded(facts: &Facts<'_>, id: ValueId) -> Option<ValueId> {
    let node = sole(facts, id)?;
    let (Op::ScalarOp(ScalarOp::Where), [nan, zero, w]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let test = sole(facts, *nan)?;
    let is_guard = test.op == Op::ScalarOp(ScalarOp::Unary(Unary::IsNan))
        && test.inputs[0] == *w
        && scalar_constant(facts.graph, *zero) == Some(0.0)
        && facts.shape(*w) == facts.shape(id);
    is_guard.then_some(*w)
}

fn is_float_cast(op: &Op) -> bool {
    matches!(op, Op::ScalarOp(ScalarOp::Cast(to)) if to.is_float())
}

/// Steps between the matmul and softmax, at most; those that models write are three or four.
const MOST_STEPS: usize = 16;

/// Takes the scores apart from softmax's side; the order of steps must be scale, softcap, mask.
fn scores(facts: &Facts<'_>, id: ValueId) -> Option<Scores> {
    peel(facts, id, MOST_STEPS)
}

/// [`scores`] within so many steps.
fn peel(facts: &Facts<'_>, id: ValueId, left: usize) -> Option<Scores> {
    let node = sole(facts, id)?;
    let peel = |id: ValueId| peel(facts, id, left.checked_sub(1)?);
    if let Some((q, kt)) = plain_matmul(node) {
        return Some(Scores { q, kt, scale: 1.0, softcap: None, biases: [None; 2], keep: None });
    }
    let Op::ScalarOp(op) = node.op else { return None };
    let number = |v: ValueId| scalar_constant(facts.graph, v);
    let same_shape = |v: ValueId| facts.shape(v) == facts.shape(id);
    match (op, node.inputs.as_slice()) {
        (ScalarOp::Cast(to), [x]) if to.is_float() => {
            let from = facts.graph.ty(*x).ok()?.dtype;
            (from.is_float() && to.size() >= from.size()).then(|| peel(*x)).flatten()
        }
        (ScalarOp::Binary(Binary::Mul), [a, b]) => {
            let (x, scale_by) = number(*b).map(|n| (*a, n)).or_else(|| number(*a).map(|n| (*b, n)))?;
            if !same_shape(x) {
                return None;
            }
            if let Some(Node { op: Op::ScalarOp(ScalarOp::Unary(Unary::Tanh)), inputs, .. }) = sole(facts, x)
            {
                return peel(inputs[0])?.capped(scale_by);
            }
            peel(x)?.scaled(scale_by)
        }
        (ScalarOp::Binary(Binary::Div), [a, b]) if same_shape(*a) => peel(*a)?.scaled(1.0 / number(*b)?),
        (ScalarOp::Binary(Binary::Add), [a, b]) => [(*a, *b), (*b, *a)]
            .into_iter()
            .filter(|(x, _)| same_shape(*x))
            .find_map(|(x, mask)| peel(x)?.biased(mask)),
        (ScalarOp::Where, [mask, a, b]) => {
            if number(*b).is_some_and(|n| n <= LOW_ENOUGH) && same_shape(*a) {
                peel(*a)?.masked(*mask, false)
            } else if number(*a).is_some_and(|n| n <= LOW_ENOUGH) && same_shape(*b) {
                peel(*b)?.masked(*mask, true)
            } else {
                None
            }
        }
        _ => None,
    }
}

/// Moves a number that multiplies or divides an operand into the scale.
fn unscaled(facts: &Facts<'_>, id: ValueId, scale: f64) -> (ValueId, f64) {
    let number = |v: ValueId| scalar_constant(facts.graph, v).filter(|n| n.is_finite() && *n != 0.0);
    let found = match facts.graph.producer(id) {
        Some(Node { op: Op::ScalarOp(ScalarOp::Binary(op)), inputs, .. }) => match (op, inputs.as_slice()) {
            (Binary::Mul, [a, b]) => number(*b).map(|n| (*a, n)).or_else(|| number(*a).map(|n| (*b, n))),
            (Binary::Div, [a, b]) => number(*b).map(|n| (*a, 1.0 / n)),
            _ => None,
        },
        _ => None,
    };
    match found {
        Some((x, scale_by)) if facts.shape(x) == facts.shape(id) => (x, scale * scale_by),
        _ => (id, scale),
    }
}

/// kv before its heads were repeated for grouped queries: `Reshape(Expand([B, Hkv, 1, S, D]))`.
fn ungrouped(facts: &Facts<'_>, id: ValueId) -> Option<(ValueId, Shape)> {
    let whole = facts.shape(id);
    let Some(Node { op: Op::Reshape(_), inputs, .. }) = facts.graph.producer(id) else { return None };
    let wide = facts.shape(inputs[0]);
    let Some(Node { op: Op::Expand(_), inputs, .. }) = facts.graph.producer(inputs[0]) else { return None };
    let narrow = facts.shape(inputs[0]);
    if whole.rank() != 4 || wide.rank() != 5 || narrow.rank() != 5 {
        return None;
    }
    let (narrow, wide) = (narrow.sizes(), wide.sizes());
    let repeats = narrow[2] == 1
        && (0..5).all(|i| i == 2 || narrow[i] == wide[i])
        && whole == Shape::of_sizes(&[wide[0], wide[1] * wide[2], wide[3], wide[4]]).ok()?;
    if !repeats {
        return None;
    }
    let heads = Shape::of_sizes(&[wide[0], wide[1], wide[3], wide[4]]).ok()?;
    // A reshape that put the axis of size 1 there is skipped.
    if let Some(Node { op: Op::Reshape(_), inputs: before, .. }) = facts.graph.producer(inputs[0])
        && facts.shape(before[0]) == heads
    {
        return Some((before[0], heads));
    }
    Some((inputs[0], heads))
}

/// An operand of the new attention: an old value, the shape it is read with, and then a permutation.
struct Piece {
    value: ValueId,
    shape: Shape,
    perm: Vec<usize>,
}

/// k out of its transposed form, and v, both before their heads were repeated if both were.
fn keys_and_values(facts: &Facts<'_>, found: &Found) -> (Piece, Piece) {
    let (kt, v) = (found.scores.kt, found.v);
    let rank = facts.shape(v).rank();
    let mut swap_last: Vec<usize> = (0..rank).collect();
    swap_last.swap(rank - 2, rank - 1);
    let plain: Vec<usize> = (0..rank).collect();
    if let Some(Node { op: Op::Transpose(t), inputs, .. }) = facts.graph.producer(kt)
        && t.perm == swap_last
        && let (Some((k0, k_shape)), Some((v0, v_shape))) = (ungrouped(facts, inputs[0]), ungrouped(facts, v))
        && k_shape.size(1) == v_shape.size(1)
    {
        let piece = |value, shape| Piece { value, shape, perm: plain.clone() };
        return (piece(k0, k_shape), piece(v0, v_shape));
    }
    let k = Piece { value: kt, shape: facts.shape(kt), perm: swap_last };
    (k, Piece { value: v, shape: facts.shape(v), perm: plain })
}

/// Adds a piece as `[batch, heads, sequence, dim]` or, with `swap`, as `[batch, sequence, heads, dim]`.
fn head_layout_operand(
    out: &mut Rewriter<'_>,
    facts: &Facts<'_>,
    piece: &Piece,
    swap: bool,
) -> Result<ValueId, Error> {
    if facts.shape(piece.value) != piece.shape {
        let x = out.get(piece.value)?;
        let x = reshaped(out, x, &piece.shape.sizes())?;
        return if swap { out.new.transpose(x, &SWAP_HEADS) } else { Ok(x) };
    }
    let perm: Vec<usize> =
        if swap { SWAP_HEADS.iter().map(|a| piece.perm[*a]).collect() } else { piece.perm.clone() };
    let x = transposed(out, facts.graph, piece.value, &perm)?;
    let dims = four(&out.new.ty(x)?.shape);
    reshaped(out, x, &dims)
}

/// A shape of rank 2 or 3 with one head, and one batch if need be.
fn four(shape: &Shape) -> Vec<Dim> {
    match &shape.sizes()[..] {
        [m, n] => vec![Dim::ONE, Dim::ONE, *m, *n],
        [b, m, n] => vec![*b, Dim::ONE, *m, *n],
        dims => dims.to_vec(),
    }
}

/// All masks as one: biases added up, and where there is a bool mask too, −∞ where it drops a score.
fn mask(out: &mut Rewriter<'_>, scores: &Scores, dtype: DType) -> Result<Option<ValueId>, Error> {
    let mut bias = None;
    for b in scores.biases.iter().flatten() {
        let b = out.get(*b)?;
        bias = Some(match bias {
            None => b,
            Some(sum) => out.new.add(sum, b)?,
        });
    }
    let Some(Keep { mask, inverted }) = scores.keep else { return Ok(bias) };
    let mask = out.get(mask)?;
    let Some(bias) = bias else {
        return if inverted { out.new.not(mask).map(Some) } else { Ok(Some(mask)) };
    };
    let low = out.new.constant(Tensor::scalar_of(dtype, f64::NEG_INFINITY));
    let (kept, dropped) = if inverted { (low, bias) } else { (bias, low) };
    out.new.select(mask, kept, dropped).map(Some)
}

fn emit(out: &mut Rewriter<'_>, facts: &Facts<'_>, found: &Found) -> Result<ValueId, Error> {
    let swap = found.read_by.is_some();
    let scores = &found.scores;
    let rank = facts.shape(found.v).rank();
    let (k, v) = keys_and_values(facts, found);
    let q = Piece { value: scores.q, shape: facts.shape(scores.q), perm: (0..rank).collect() };
    let mut operands = vec![
        head_layout_operand(out, facts, &q, swap)?,
        head_layout_operand(out, facts, &k, swap)?,
        head_layout_operand(out, facts, &v, swap)?,
    ];
    let mask = mask(out, scores, facts.graph.ty(found.v)?.dtype)?;
    let kind = match mask {
        None => MaskKind::None,
        Some(m) if out.new.ty(m)?.dtype == DType::Bool => MaskKind::Keep,
        Some(_) => MaskKind::Bias,
    };
    if let Some(mut m) = mask {
        // In rank 3 the first axis is the batch; the head axis comes in after it.
        let shape = out.new.ty(m)?.shape;
        if rank == 3 && shape.rank() == 3 {
            m = reshaped(out, m, &four(&shape))?;
        }
        operands.push(m);
    }
    let layout = if swap { HeadLayout::Bshd } else { HeadLayout::Bhsd };
    let spec = Attention {
        scale: Some(scores.scale),
        softcap: scores.softcap,
        mask: kind,
        ..Attention::new(layout)
    };
    let result = out.new.add1(spec, &operands)?;
    let shape = out.new.ty(result)?.shape.sizes();
    if rank == 4 {
        return Ok(result);
    }
    let dims = if rank == 3 { vec![shape[0], shape[2], shape[3]] } else { vec![shape[2], shape[3]] };
    reshaped(out, result, &dims)
}
