//! Spelled-out activations, norms and softmax become one operation.
//!
//! Needs: any graph. Produces: the same graph with each idiom of the table as its own op; statistics of norms are then
//! computed without cancellation, and softplus without overflow.

use std::collections::HashSet;
use std::sync::OnceLock;

use olivine_ir::op::{LayerNorm, RmsNorm, ScalarOp, Softmax, Unary};
use olivine_ir::{Error, Graph, Node, Op, TensorType, ValueId};

use super::edit::{reshaped, sweep};
use crate::pattern::{Match, Pattern};
use crate::{Options, Pass, Rewriter};

/// The pass.
pub(super) struct Idioms;

/// One idiom: a name, how it is written, and what it becomes.
struct Rule {
    name: &'static str,
    pattern: &'static str,
    becomes: Idiom,
}

/// What a match becomes: an activation of `x`, softmax of `x`, or a norm of `x` with `g`, `b` and `E`.
#[derive(Clone, Copy)]
enum Idiom {
    Activation(Unary),
    Softmax,
    LayerNorm,
    RmsNorm,
}

const fn rule(name: &'static str, pattern: &'static str, becomes: Idiom) -> Rule {
    Rule { name, pattern, becomes }
}

const RULES: &[Rule] = {
    use Idiom::{Activation, LayerNorm, RmsNorm, Softmax};
    &[
        rule("gelu", "x * 0.5 * (1 + erf(x * 0.70710678))", Activation(Unary::Gelu)),
        rule("gelu, halved inside", "x * (0.5 + 0.5 * erf(x * 0.70710678))", Activation(Unary::Gelu)),
        rule(
            "gelu_tanh",
            "x * 0.5 * (1 + tanh(0.79788456 * (x + 0.044715 * x * x * x)))",
            Activation(Unary::GeluTanh),
        ),
        rule(
            "gelu_tanh, factored",
            "x * 0.5 * (1 + tanh(0.79788456 * x * (1 + 0.044715 * x * x)))",
            Activation(Unary::GeluTanh),
        ),
        rule("sigmoid", "1 / (1 + exp(-x))", Activation(Unary::Sigmoid)),
        rule("silu", "x * sigmoid(x)", Activation(Unary::Silu)),
        rule("silu, by exp", "x / (1 + exp(-x))", Activation(Unary::Silu)),
        rule("softplus", "log(1 + exp(x))", Activation(Unary::Softplus)),
        rule("softplus, by log1p", "log1p(exp(x))", Activation(Unary::Softplus)),
        rule("softsign", "x / (1 + abs(x))", Activation(Unary::Softsign)),
        rule("mish", "x * tanh(softplus(x))", Activation(Unary::Mish)),
        rule("hard_swish", "x * clamp(x + 3, 0, 6) / 6", Activation(Unary::HardSwish)),
        rule("hard_swish, scaled inside", "x * clamp(x / 6 + 0.5, 0, 1)", Activation(Unary::HardSwish)),
        rule(
            "hard_swish, by hard_sigmoid",
            "x * hard_sigmoid[alpha=0.16666667, beta=0.5](x)",
            Activation(Unary::HardSwish),
        ),
        rule("softmax", "exp(x - amax(x)) / sum(exp(x - amax(x)))", Softmax),
        rule(
            "layer_norm with bias",
            "(x - mean(x)) * rsqrt(mean(square(x - mean(x))) + E) * g + b",
            LayerNorm,
        ),
        rule("layer_norm", "(x - mean(x)) * rsqrt(mean(square(x - mean(x))) + E) * g", LayerNorm),
        rule("rms_norm with bias", "x * rsqrt(mean(square(x)) + E) * g + b", RmsNorm),
        rule("rms_norm", "x * rsqrt(mean(square(x)) + E) * g", RmsNorm),
        rule("rms_norm, widened inside", "cast(cast(x) * rsqrt(mean(square(cast(x))) + E)) * g", RmsNorm),
    ]
};

/// Some idioms contain others: mish a softplus, hence more than one round.
const MOST_ROUNDS: usize = 3;

impl Pass for Idioms {
    fn name(&self) -> &'static str {
        "idioms"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        let all = parsed()?;
        let mut graph = graph.clone();
        for _ in 0..MOST_ROUNDS {
            let names: HashSet<&str> = graph.nodes().iter().map(|node| node.op.name()).collect();
            let rules: Vec<&(&Rule, Pattern)> =
                all.iter().filter(|(_, pattern)| pattern.may_be_among(&names)).collect();
            let uses = graph.use_counts();
            if !graph.nodes().iter().any(|node| is_root(&rules, &graph, &uses, node)) {
                break;
            }
            let mut changed = false;
            let next = crate::rewrite(&graph, |out, _, node| {
                let applied = apply(&rules, &graph, &uses, out, node)?;
                changed |= applied;
                Ok(applied)
            })?;
            if !changed {
                break;
            }
            graph = sweep(&next)?;
        }
        Ok(graph)
    }
}

/// The rules with their patterns, parsed once: constants are folded one small graph at a time, and each runs this pass.
fn parsed() -> Result<&'static [(&'static Rule, Pattern)], Error> {
    static PARSED: OnceLock<Result<Vec<(&'static Rule, Pattern)>, Error>> = OnceLock::new();
    let parse = |rule: &'static Rule| match Pattern::parse(rule.pattern) {
        Ok(pattern) => Ok((rule, pattern)),
        Err(problem) => Err(Error::Invalid { location: format!("rule `{}`", rule.name), problem }),
    };
    let all = PARSED.get_or_init(|| RULES.iter().map(parse).collect());
    all.as_deref().map_err(Clone::clone)
}

/// Whether an idiom ends at a node.
fn is_root(rules: &[&(&Rule, Pattern)], graph: &Graph, uses: &[usize], node: &Node) -> bool {
    let (Op::ScalarOp(_), [root]) = (&node.op, node.outputs.as_slice()) else { return false };
    rules.iter().any(|(_, pattern)| pattern.find(graph, uses, *root).is_some())
}

/// Replaces a node that is the root of an idiom. What it covered stays until it is swept.
fn apply(
    rules: &[&(&Rule, Pattern)],
    graph: &Graph,
    uses: &[usize],
    out: &mut Rewriter<'_>,
    node: &Node,
) -> Result<bool, Error> {
    let (Op::ScalarOp(_), [root]) = (&node.op, node.outputs.as_slice()) else { return Ok(false) };
    for (rule, pattern) in rules {
        let Some(found) = pattern.find(graph, uses, *root) else { continue };
        // An operation that refuses the operands leaves the spelling as it is.
        if let Ok(Some(new)) = build(out, graph, &found, rule.becomes)
            && out.new.ty(new)? == graph.ty(*root)?
        {
            out.bind(*root, new);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds what a match becomes; `None` if its operands do not fit after all.
fn build(
    out: &mut Rewriter<'_>,
    graph: &Graph,
    m: &Match<'_>,
    idiom: Idiom,
) -> Result<Option<ValueId>, Error> {
    let Some(x) = m.value("x") else { return Ok(None) };
    let (op, operands) = match idiom {
        Idiom::Activation(unary) => (Op::ScalarOp(ScalarOp::Unary(unary)), vec![out.get(x)?]),
        Idiom::Softmax => match m.axis() {
            Some(axis) if axis + 1 == graph.ty(x)?.shape.rank() => {
                (Op::Softmax(Softmax { axis }), vec![out.get(x)?])
            }
            _ => return Ok(None),
        },
        Idiom::LayerNorm | Idiom::RmsNorm => {
            let Some(parts) = norm_parts(out, graph, m)? else { return Ok(None) };
            let NormParts { operands, axis, eps, bias } = parts;
            let (prologue, emit_input) = (None, false);
            let op = match idiom {
                Idiom::RmsNorm => Op::RmsNorm(RmsNorm { axis, eps, bias, prologue, emit_input }),
                _ => Op::LayerNorm(LayerNorm { axis, eps, bias, prologue, emit_input }),
            };
            (op, operands)
        }
    };
    out.new.add1(op, &operands).map(Some)
}

/// x, the axis and eps of a norm, and its weights as the norm wants them: of the block's shape.
struct NormParts {
    operands: Vec<ValueId>,
    axis: usize,
    eps: f64,
    bias: bool,
}

fn norm_parts(out: &mut Rewriter<'_>, graph: &Graph, m: &Match<'_>) -> Result<Option<NormParts>, Error> {
    let (Some(x), Some(axis), Some(eps), Some(gamma)) = (m.value("x"), m.axis(), m.number("E"), m.value("g"))
    else {
        return Ok(None);
    };
    let ty = graph.ty(x)?;
    if ty.shape.has_zero() || !widens(graph, m, &ty) {
        return Ok(None);
    }
    let bias = m.value("b");
    let mut operands = vec![out.get(x)?];
    for weight in std::iter::once(gamma).chain(bias) {
        if !is_of_block(&graph.ty(weight)?, &ty, axis) {
            return Ok(None);
        }
        let weight = out.get(weight)?;
        operands.push(reshaped(out, weight, &ty.shape.sizes()[axis..])?);
    }
    Ok(Some(NormParts { operands, axis, eps, bias: bias.is_some() }))
}

/// Whether no cast inside the match loses digits of x.
fn widens(graph: &Graph, m: &Match<'_>, x: &TensorType) -> bool {
    m.nodes().iter().all(|id| match graph.nodes()[id.index()].op {
        Op::ScalarOp(ScalarOp::Cast(to)) => to.is_float() && to.size() >= x.dtype.size(),
        _ => true,
    })
}

/// Whether a weight has the sizes of x's trailing axes from `axis` on, with ones before them at most.
fn is_of_block(weight: &TensorType, x: &TensorType, axis: usize) -> bool {
    let sizes = x.shape.sizes();
    let block = &sizes[axis..];
    let Some(lead) = weight.shape.rank().checked_sub(block.len()) else { return false };
    let weight_sizes = weight.shape.sizes();
    weight.dtype == x.dtype && weight_sizes[lead..] == *block && weight_sizes[..lead].iter().all(|d| *d == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use olivine_ir::op::{Binary, ReduceKind};
    use olivine_ir::{DType, Tensor};

    type Outcome = Result<(), Error>;

    fn fused(g: &Graph) -> Result<Vec<&'static str>, Error> {
        let out = Idioms.run(g, &Options::default())?;
        Ok(out.nodes().iter().map(|n| n.op.name()).collect())
    }

    /// A graph of one input `x: f32[2, 3, 8]` and what `body` makes of it.
    fn graph(body: impl FnOnce(&mut Graph, ValueId) -> Result<ValueId, Error>) -> Result<Graph, Error> {
        let mut g = Graph::new("idiom");
        let x = g.input("x", DType::F32, [2, 3, 8])?;
        let y = body(&mut g, x)?;
        g.output("y", y)?;
        Ok(g)
    }

    #[test]
    fn every_rule_parses() {
        for rule in RULES {
            assert!(Pattern::parse(rule.pattern).is_ok(), "{}", rule.name);
        }
    }

    #[test]
    fn gelu_is_found_in_every_association_and_by_division() -> Outcome {
        let erf_part = |g: &mut Graph, x, divide: bool| {
            let inner = if divide {
                g.binary_scalar(Binary::Div, x, std::f64::consts::SQRT_2)?
            } else {
                g.binary_scalar(Binary::Mul, x, std::f64::consts::FRAC_1_SQRT_2)?
            };
            let e = g.erf(inner)?;
            g.binary_scalar(Binary::Add, e, 1.0)
        };
        for order in 0..4 {
            let g = graph(|g, x| {
                let e = erf_part(g, x, order % 2 == 0)?;
                match order {
                    0 => {
                        let half = g.binary_scalar(Binary::Mul, x, 0.5)?;
                        g.mul(half, e)
                    }
                    1 => {
                        let y = g.mul(e, x)?;
                        g.binary_scalar(Binary::Mul, y, 0.5)
                    }
                    2 => {
                        let half = g.binary_scalar(Binary::Div, e, 2.0)?;
                        g.mul(x, half)
                    }
                    _ => {
                        let y = g.mul(x, e)?;
                        g.binary_scalar(Binary::Div, y, 2.0)
                    }
                }
            })?;
            assert_eq!(fused(&g)?, ["gelu"], "order {order}");
        }
        Ok(())
    }

    #[test]
    fn gelu_with_another_constant_or_a_shared_inside_is_left() -> Outcome {
        let spelled = |wrong: bool, shared: bool| {
            let mut g = Graph::new("not");
            let x = g.input("x", DType::F16, [4])?;
            let inner =
                g.binary_scalar(Binary::Mul, x, if wrong { 0.72 } else { std::f64::consts::FRAC_1_SQRT_2 })?;
            let e = g.erf(inner)?;
            let e1 = g.binary_scalar(Binary::Add, e, 1.0)?;
            let half = g.binary_scalar(Binary::Mul, x, 0.5)?;
            let y = g.mul(half, e1)?;
            g.output("y", y)?;
            if shared {
                g.output("e", e)?;
            }
            Ok::<_, Error>(g)
        };
        assert_eq!(fused(&spelled(false, false)?)?, ["gelu"]);
        assert_eq!(fused(&spelled(true, false)?)?.len(), 5);
        assert_eq!(fused(&spelled(false, true)?)?.len(), 5);
        Ok(())
    }

    #[test]
    fn gelu_tanh_is_found_with_its_cube_as_power_or_product() -> Outcome {
        for spelling in 0..3 {
            let g = graph(|g, x| {
                let cube = match spelling {
                    0 => g.binary_scalar(Binary::Pow, x, 3.0)?,
                    1 => {
                        let s = g.mul(x, x)?;
                        g.mul(x, s)?
                    }
                    _ => {
                        let s = g.square(x)?;
                        g.mul(s, x)?
                    }
                };
                let c = g.binary_scalar(Binary::Mul, cube, 0.044715)?;
                let s = g.add(x, c)?;
                let t = g.binary_scalar(Binary::Mul, s, (2.0 / std::f64::consts::PI).sqrt())?;
                let t = g.tanh(t)?;
                let t = g.binary_scalar(Binary::Add, t, 1.0)?;
                let half = g.binary_scalar(Binary::Mul, x, 0.5)?;
                g.mul(half, t)
            })?;
            assert_eq!(fused(&g)?, ["gelu_tanh"], "spelling {spelling}");
        }
        Ok(())
    }

    #[test]
    fn silu_mish_softplus_and_sigmoid_are_found() -> Outcome {
        let g = graph(|g, x| {
            let s = g.sigmoid(x)?;
            g.mul(s, x)
        })?;
        assert_eq!(fused(&g)?, ["silu"]);
        let g = graph(|g, x| {
            let n = g.neg(x)?;
            let e = g.exp(n)?;
            let d = g.binary_scalar(Binary::Add, e, 1.0)?;
            g.div(x, d)
        })?;
        assert_eq!(fused(&g)?, ["silu"]);
        let g = graph(|g, x| {
            let e = g.exp(x)?;
            let e = g.binary_scalar(Binary::Add, e, 1.0)?;
            let s = g.log(e)?;
            let t = g.tanh(s)?;
            g.mul(x, t)
        })?;
        assert_eq!(fused(&g)?, ["mish"]);
        let g = graph(|g, x| {
            let n = g.neg(x)?;
            let e = g.exp(n)?;
            let d = g.binary_scalar(Binary::Add, e, 1.0)?;
            g.reciprocal(d)
        })?;
        assert_eq!(fused(&g)?, ["sigmoid"]);
        Ok(())
    }

    #[test]
    fn silu_of_another_value_is_left() -> Outcome {
        let g = graph(|g, x| {
            let other = g.exp(x)?;
            let s = g.sigmoid(other)?;
            g.mul(s, x)
        })?;
        assert_eq!(fused(&g)?, ["exp", "sigmoid", "mul"]);
        Ok(())
    }

    #[test]
    fn hard_swish_is_found_by_clamp_min_max_and_hard_sigmoid() -> Outcome {
        let by_clamp = graph(|g, x| {
            let s = g.binary_scalar(Binary::Add, x, 3.0)?;
            let c = g.clamp(s, 0.0, 6.0)?;
            let y = g.mul(x, c)?;
            g.binary_scalar(Binary::Div, y, 6.0)
        })?;
        assert_eq!(fused(&by_clamp)?, ["hard_swish"]);
        let by_relu6 = graph(|g, x| {
            let s = g.binary_scalar(Binary::Add, x, 3.0)?;
            let r = g.relu(s)?;
            let c = g.binary_scalar(Binary::Min, r, 6.0)?;
            let c = g.binary_scalar(Binary::Div, c, 6.0)?;
            g.mul(x, c)
        })?;
        assert_eq!(fused(&by_relu6)?, ["hard_swish"]);
        let by_hard_sigmoid = |alpha| {
            graph(move |g, x| {
                let s = g.activation(olivine_ir::op::Activation::HardSigmoid { alpha, beta: 0.5 }, x)?;
                g.mul(x, s)
            })
        };
        assert_eq!(fused(&by_hard_sigmoid(1.0 / 6.0)?)?, ["hard_swish"]);
        assert_eq!(fused(&by_hard_sigmoid(0.2)?)?, ["hard_sigmoid", "mul"]);
        Ok(())
    }

    fn spelled_layer_norm(g: &mut Graph, x: ValueId, squares: usize, divide: bool) -> Result<ValueId, Error> {
        let gamma = g.param("gamma", DType::F32, [8])?;
        let beta = g.param("beta", DType::F32, [1, 1, 8])?;
        let mean = g.reduce(ReduceKind::Mean, x, &[-1], true)?;
        let d = g.sub(x, mean)?;
        let sq = match squares {
            0 => g.binary_scalar(Binary::Pow, d, 2.0)?,
            1 => g.mul(d, d)?,
            _ => g.square(d)?,
        };
        let var = g.reduce(ReduceKind::Mean, sq, &[-1], true)?;
        let var = g.binary_scalar(Binary::Add, var, 1e-5)?;
        let n = if divide {
            let s = g.sqrt(var)?;
            g.div(d, s)?
        } else {
            let r = g.rsqrt(var)?;
            g.mul(d, r)?
        };
        let n = g.mul(n, gamma)?;
        g.add(n, beta)
    }

    #[test]
    fn layer_norm_is_found_in_the_spellings_of_exporters() -> Outcome {
        for squares in 0..3 {
            for divide in [false, true] {
                let g = graph(|g, x| spelled_layer_norm(g, x, squares, divide))?;
                let out = Idioms.run(&g, &Options::default())?;
                let [.., Node { op: Op::LayerNorm(norm), .. }] = out.nodes() else {
                    return Err(Error::BadData { problem: format!("not a norm: {out}") });
                };
                assert_eq!((norm.axis, norm.bias), (2, true));
                assert!((norm.eps - 1e-5).abs() < 1e-9);
                assert_eq!(out.nodes().len(), 2, "the norm and the reshape of beta");
            }
        }
        Ok(())
    }

    #[test]
    fn layer_norm_over_a_leading_axis_is_left() -> Outcome {
        let g = graph(|g, x| {
            let gamma = g.param("gamma", DType::F32, [8])?;
            let mean = g.reduce(ReduceKind::Mean, x, &[0], true)?;
            let d = g.sub(x, mean)?;
            let sq = g.square(d)?;
            let var = g.reduce(ReduceKind::Mean, sq, &[0], true)?;
            let var = g.binary_scalar(Binary::Add, var, 1e-5)?;
            let r = g.rsqrt(var)?;
            let n = g.mul(d, r)?;
            g.mul(n, gamma)
        })?;
        assert!(!fused(&g)?.contains(&"layer_norm"));
        Ok(())
    }

    #[test]
    fn rms_norm_is_found_and_a_weight_of_another_shape_is_not() -> Outcome {
        let spelled = |weight: &[usize]| {
            let mut g = Graph::new("rms");
            let x = g.input("x", DType::F32, [2, 3, 8])?;
            let gamma = g.param("gamma", DType::F32, weight)?;
            let sq = g.mul(x, x)?;
            let mean = g.reduce(ReduceKind::Mean, sq, &[-1], true)?;
            let e = g.binary_scalar(Binary::Add, mean, 1e-6)?;
            let s = g.sqrt(e)?;
            let n = g.div(x, s)?;
            let y = g.mul(gamma, n)?;
            g.output("y", y)?;
            Ok::<_, Error>(g)
        };
        assert_eq!(fused(&spelled(&[8])?)?, ["rms_norm"]);
        assert!(!fused(&spelled(&[3, 8])?)?.contains(&"rms_norm"));
        assert!(!fused(&spelled(&[1])?)?.contains(&"rms_norm"));
        Ok(())
    }

    #[test]
    fn rms_norm_widened_to_f32_inside_runs_on_the_narrow_value() -> Outcome {
        let mut g = Graph::new("wide");
        let x = g.input("x", DType::F16, [2, 8])?;
        let gamma = g.param("gamma", DType::F16, [8])?;
        let w = g.cast(x, DType::F32)?;
        let sq = g.binary_scalar(Binary::Pow, w, 2.0)?;
        let mean = g.reduce(ReduceKind::Mean, sq, &[-1], true)?;
        let e = g.binary_scalar(Binary::Add, mean, 1e-6)?;
        let r = g.rsqrt(e)?;
        let n = g.mul(w, r)?;
        let n = g.cast(n, DType::F16)?;
        let y = g.mul(gamma, n)?;
        g.output("y", y)?;
        assert_eq!(fused(&g)?, ["rms_norm"]);
        Ok(())
    }

    #[test]
    fn softmax_by_hand_is_found_on_the_last_axis_only() -> Outcome {
        let by_hand = |axis: isize| {
            graph(move |g, x| {
                let max = g.reduce(ReduceKind::Max, x, &[axis], true)?;
                let d = g.sub(x, max)?;
                let e = g.exp(d)?;
                let s = g.reduce(ReduceKind::Sum, e, &[axis], true)?;
                g.div(e, s)
            })
        };
        assert_eq!(fused(&by_hand(-1)?)?, ["softmax"]);
        assert_eq!(fused(&by_hand(1)?)?.len(), 5);
        Ok(())
    }

    #[test]
    fn a_constant_that_raises_the_rank_keeps_the_spelling() -> Outcome {
        let mut g = Graph::new("rank");
        let x = g.input("x", DType::F32, [8])?;
        let s = g.sigmoid(x)?;
        let one = g.constant(Tensor::new([1, 1], vec![1.0f32])?);
        let n = g.neg(x)?;
        let e = g.exp(n)?;
        let d = g.add(e, one)?;
        let y = g.div(x, d)?;
        g.output("y", y)?;
        g.output("s", s)?;
        assert!(!fused(&g)?.contains(&"silu"));
        Ok(())
    }
}
