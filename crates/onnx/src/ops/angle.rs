//! atan2 as exporters spell it: where(x < 0, where(y > 0, a + π, a − π), a) with a = atan(y / x).
//!
//! The spelling is NaN where y and x are both 0, and atan2 is 0 there. Spectra have such points: the imaginary part of a
//! real signal's first and last frequency is 0, and silence makes the real part 0 as well, as rounding to f16 does.

use std::f64::consts::PI;

use olivine_ir::{Graph, Node, Tensor, ValueId};

use crate::import::{Answer, NodeContext};

/// The parts of the spelling.
struct Angle {
    y: ValueId,
    x: ValueId,
    slope: ValueId,
    is_left: ValueId,
    is_up: ValueId,
    pi: ValueId,
}

/// A Where as the angle that it spells, if it does, without NaN where both parts are 0; elsewhere all bits are the same.
pub(super) fn angle(
    n: &mut NodeContext<'_, '_>,
    condition: ValueId,
    chosen: ValueId,
    otherwise: ValueId,
) -> Answer<Option<ValueId>> {
    let Some(found) = find(n.graph(), condition, chosen, otherwise) else { return Ok(None) };
    let Angle { y, x, slope, is_left, is_up, pi } = found;
    n.build(|g| {
        let dtype = g.ty(y)?.dtype;
        let zero = g.constant(Tensor::scalar_of(dtype, 0.0));
        let (no_y, no_x) = (g.eq(y, zero)?, g.eq(x, zero)?);
        let nothing = g.and(no_y, no_x)?;
        let slope = g.select(nothing, y, slope)?;
        let right = g.atan(slope)?;
        let (up, down) = (g.add(right, pi)?, g.sub(right, pi)?);
        let left = g.select(is_up, up, down)?;
        g.select(is_left, left, right)
    })
    .map(Some)
}

fn find(g: &Graph, condition: ValueId, chosen: ValueId, otherwise: ValueId) -> Option<Angle> {
    let &[slope] = operands(g, otherwise, "atan")? else { return None };
    let &[y, x] = operands(g, slope, "div")? else { return None };
    let &[is_up, up, down] = operands(g, chosen, "where")? else { return None };
    let (&[a, pi], &[b, other]) = (operands(g, up, "add")?, operands(g, down, "sub")?) else { return None };
    let whole = is_compared(g, is_up, y, "gt", "lt")
        && is_compared(g, condition, x, "lt", "gt")
        && (a, b) == (otherwise, otherwise)
        && is_number(g, pi, PI)
        && is_number(g, other, PI);
    whole.then_some(Angle { y, x, slope, is_left: condition, is_up, pi })
}

/// The operands of the operation that makes a value, if it is of this name.
fn operands<'g>(g: &'g Graph, value: ValueId, name: &str) -> Option<&'g [ValueId]> {
    g.producer(value).filter(|node: &&Node| node.op.name() == name).map(|node| node.inputs.as_slice())
}

/// Whether a value compares x with 0: as `x op 0`, or the other way round as `0 turned x`.
fn is_compared(g: &Graph, value: ValueId, x: ValueId, op: &str, turned: &str) -> bool {
    let written = |op: &str, x_at: usize| {
        let found = operands(g, value, op).filter(|o| o.len() == 2);
        found.is_some_and(|o| o[x_at] == x && is_number(g, o[1 - x_at], 0.0))
    };
    written(op, 0) || written(turned, 1)
}

/// Whether a value is a constant of one element of about this number.
fn is_number(g: &Graph, value: ValueId, number: f64) -> bool {
    let found = g.as_const(value).filter(|tensor| tensor.shape().numel() == 1).map(Tensor::to_f64);
    found.is_some_and(|v| v.first().is_some_and(|v| (v - number).abs() <= 1e-2 * number.abs()))
}

#[cfg(test)]
mod tests {
    use olivine_ir::Tensor;

    use super::super::tests::{node, run};

    /// The exporters' nodes, with y and x as inputs.
    fn spelled() -> Vec<crate::proto::NodeProto> {
        vec![
            node("Div", &["y", "x"], &["slope"], vec![]),
            node("Atan", &["slope"], &["right"], vec![]),
            node("Greater", &["y", "zero"], &["is_up"], vec![]),
            node("Add", &["right", "pi"], &["up"], vec![]),
            node("Sub", &["right", "pi"], &["down"], vec![]),
            node("Where", &["is_up", "up", "down"], &["left"], vec![]),
            node("Less", &["x", "zero"], &["is_left"], vec![]),
            node("Where", &["is_left", "left", "right"], &["angle"], vec![]),
        ]
    }

    fn constant(name: &str, value: f32) -> crate::proto::NodeProto {
        node("Constant", &[], &[name], super::super::tests::float(value))
    }

    #[test]
    fn the_angle_of_nothing_is_0_and_all_others_are_as_spelled() {
        let parts = [0.0f32, -0.0, 1.0, -1.0, -3.0, 1e-30, f32::INFINITY, f32::NAN];
        let (mut ys, mut xs) = (Vec::new(), Vec::new());
        for y in parts {
            ys.extend([y; 8]);
            xs.extend(parts);
        }
        let mut nodes = vec![constant("zero", 0.0), constant("pi", std::f32::consts::PI)];
        nodes.extend(spelled());
        let tensor = |v: &[f32]| Tensor::new([v.len()], v.to_vec()).unwrap();
        let (results, _) = run(nodes, &[("y", tensor(&ys)), ("x", tensor(&xs))], &["angle"]);
        let got = results[0][0].as_slice::<f32>().unwrap();
        for ((y, x), got) in ys.iter().zip(&xs).zip(got) {
            let right = (y / x).atan();
            let pi = std::f32::consts::PI;
            let left = if *y > 0.0 { right + pi } else { right - pi };
            let want = if *x < 0.0 { left } else { right };
            if *y == 0.0 && *x == 0.0 {
                assert_eq!(*got, 0.0, "of nothing");
            } else {
                assert!((got - want).abs() < 1e-6 || got.is_nan() && want.is_nan(), "{y} {x}: {got}, {want}");
            }
        }
    }

    #[test]
    fn what_only_looks_like_an_angle_stays_as_it_is() {
        // Another constant than π, and another x in the condition.
        for (pi, compared) in [(1.0, "x"), (std::f32::consts::PI, "y")] {
            let mut nodes = vec![constant("zero", 0.0), constant("pi", pi)];
            nodes.extend(spelled());
            nodes[8].input[0] = compared.into();
            let nothing = Tensor::new([1], vec![0f32]).unwrap();
            let (results, _) = run(nodes, &[("y", nothing.clone()), ("x", nothing)], &["angle"]);
            assert!(results[0][0].as_slice::<f32>().unwrap()[0].is_nan());
        }
    }
}
