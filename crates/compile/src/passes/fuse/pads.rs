//! A pad with zeros before a convolution becomes the convolution's own padding: what is not there need not be read.

use olivine_ir::op::{Conv, Pad, PadMode, Window};
use olivine_ir::{Dim, Error, Graph, Op, ValueId};

use super::edit::sweep;
use crate::{Options, Pass, rewrite};

/// See the module.
pub(super) struct FoldPads;

impl Pass for FoldPads {
    fn name(&self) -> &'static str {
        "fold pads"
    }

    fn run(&self, graph: &Graph, _options: &Options<'_>) -> Result<Graph, Error> {
        if !graph.nodes().iter().any(|node| matches!(node.op, Op::Pad(_))) {
            return Ok(graph.clone());
        }
        let folded = rewrite(graph, |out, _, node| {
            let (Op::Conv(conv), [result]) = (&node.op, node.outputs.as_slice()) else { return Ok(false) };
            let Some((conv, x)) = fold(graph, conv, node.inputs[0]) else { return Ok(false) };
            let mut inputs = node.inputs.iter().map(|id| out.get(*id)).collect::<Result<Vec<_>, _>>()?;
            inputs[0] = out.get(x)?;
            let ty = graph.ty(*result)?;
            let values = out.new.add_typed(node.name.clone(), conv.into(), inputs, [ty]);
            let Some(value) = values.first().copied() else { return Ok(false) };
            out.bind(*result, value);
            Ok(true)
        })?;
        sweep(&folded)
    }
}

/// The convolution of what was padded, if that was with zeros around spatial axes.
fn fold(graph: &Graph, conv: &Conv, x: ValueId) -> Option<(Conv, ValueId)> {
    let before = graph.producer(x)?;
    let (Op::Pad(Pad { pads, mode: PadMode::Constant, value }), [inner]) =
        (&before.op, before.inputs.as_slice())
    else {
        return None;
    };
    let (outer, spatial) = pads.split_at_checked(2)?;
    if *value != 0.0 || outer.iter().any(|(before, after)| *before != 0 || *after != 0) {
        return None;
    }
    // A convolution's own padding is numbers.
    let sum = |own: usize, more: Dim| own.checked_add(usize::try_from(more.as_constant()?).ok()?);
    let both = |(own, more): (&(usize, usize), &(Dim, Dim))| Some((sum(own.0, more.0)?, sum(own.1, more.1)?));
    let pads = conv.window.pads.iter().zip(spatial).map(both).collect::<Option<Vec<_>>>()?;
    Some((Conv { window: Window { pads, ..conv.window.clone() }, ..conv.clone() }, *inner))
}

#[cfg(test)]
mod tests {
    use olivine_ir::op::PadMode;
    use olivine_ir::{DType, Graph, Op};

    use super::*;

    fn convolved(pads: &[(i64, i64)], mode: PadMode, value: f64) -> Graph {
        let mut g = Graph::new("padded");
        let x = g.input("x", DType::F32, [1, 3, 8, 9]).unwrap();
        let w = g.param("w", DType::F32, [4, 3, 3, 3]).unwrap();
        let padded = g.pad(x, pads, mode, value).unwrap();
        let y = g.conv(padded, w, None, Window::same(2, 2, 1), 1).unwrap();
        g.output("y", y).unwrap();
        FoldPads.run(&g, &Options::default()).unwrap()
    }

    fn pads_left(g: &Graph) -> usize {
        g.nodes().iter().filter(|n| matches!(n.op, Op::Pad(_))).count()
    }

    #[test]
    fn zeros_around_spatial_axes_become_the_convolutions_padding() {
        let g = convolved(&[(0, 0), (0, 0), (1, 2), (3, 0)], PadMode::Constant, 0.0);
        assert_eq!(pads_left(&g), 0);
        let convs: Vec<_> =
            g.nodes().iter().filter_map(|n| if let Op::Conv(c) = &n.op { Some(c) } else { None }).collect();
        assert_eq!(convs[0].window.pads, [(2, 3), (4, 1)]);
    }

    #[test]
    fn other_pads_stay() {
        type Case = (&'static [(i64, i64)], PadMode, f64);
        let cases: [Case; 4] = [
            (&[(0, 0), (0, 0), (1, 1), (1, 1)], PadMode::Constant, 1.0),
            (&[(0, 0), (0, 0), (1, 1), (1, 1)], PadMode::Reflect, 0.0),
            (&[(1, 0), (0, 0), (1, 1), (1, 1)], PadMode::Constant, 0.0),
            (&[(0, 0), (0, 0), (-1, 1), (1, 1)], PadMode::Constant, 0.0),
        ];
        for (pads, mode, value) in cases {
            assert_eq!(pads_left(&convolved(pads, mode, value)), 1, "{pads:?} {mode:?} {value}");
        }
    }
}
