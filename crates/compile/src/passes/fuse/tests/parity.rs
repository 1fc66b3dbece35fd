//! Random graphs compute the same before and after fusion.

use olivine_ir::op::{Binary, ReduceKind};
use olivine_ir::{DType, Error, Graph, ValueId};

use super::interpreter::difference;
use super::{Outcome, fuse, kernels};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 20) % n as u64) as usize
    }
}

/// Elementwise ops, matmuls, reductions and norms over shapes that broadcast with each other.
fn random_graph(random: &mut Random) -> Result<Graph, Error> {
    let mut g = Graph::new("random");
    let shapes: [&[usize]; 5] = [&[2, 3, 4], &[3, 4], &[4], &[2, 3, 1], &[1, 3, 4]];
    let mut values: Vec<ValueId> = Vec::new();
    for i in 0..3 {
        values.push(g.input(&format!("x{i}"), DType::F32, shapes[random.below(5)])?);
    }
    values.push(g.param("p", DType::F32, shapes[random.below(5)])?);
    let gamma = g.param("gamma", DType::F32, [4])?;
    for i in 0..4 + random.below(40) {
        let pick = |random: &mut Random| {
            let back = if random.below(3) == 0 { values.len() } else { values.len().min(4) };
            values[values.len() - 1 - random.below(back)]
        };
        let (a, b) = (pick(random), pick(random));
        let rank = g.ty(a)?.shape.rank();
        let last = g.ty(a)?.shape[rank - 1];
        let y = match random.below(14) {
            0 | 1 => g.add(a, b)?,
            2 => g.max(a, b)?,
            3 => {
                let t = g.tanh(a)?;
                g.mul(t, b)?
            }
            4 => g.relu(a)?,
            5 => g.tanh(a)?,
            6 => g.binary_scalar(Binary::Mul, a, 0.3)?,
            7 => g.binary_scalar(Binary::Sub, a, 1.5)?,
            8 => {
                let s = g.sigmoid(a)?;
                g.mul(a, s)?
            }
            9 => {
                let s = g.abs(a)?;
                let s = g.reduce(ReduceKind::Mean, s, &[-1], true)?;
                let s = g.tanh(s)?;
                g.add(a, s)?
            }
            10 if last == 4 && rank > 1 => {
                let w = g.param(&format!("w{i}"), DType::F32, [4, 4])?;
                let y = g.matmul(a, w)?;
                g.tanh(y)?
            }
            11 if last == 4 => g.rms_norm(a, gamma, None, 0.1)?,
            12 if last == 4 => g.layer_norm(a, gamma, Some(gamma), 0.1)?,
            _ => g.sub(a, b)?,
        };
        values.push(y);
    }
    g.output("last", values[values.len() - 1])?;
    for i in 0..random.below(3) {
        g.output(&format!("more{i}"), values[random.below(values.len())])?;
    }
    Ok(g)
}

#[test]
fn random_graphs_compute_the_same_after_fusion() -> Outcome {
    let mut random = Random(17);
    let (mut before, mut after) = (0, 0);
    for round in 0..600 {
        let g = random_graph(&mut random)?;
        let fused = fuse(&g)?;
        let d = difference(&g, &fused);
        assert!(d < 1e-7, "round {round}: differ by {d}\n{g}\n{fused}");
        before += kernels(&g).len();
        after += kernels(&fused).len();
    }
    assert!(after * 3 < before * 2, "{before} kernels became {after}");
    Ok(())
}

#[test]
fn fusing_twice_changes_nothing_more() -> Outcome {
    let mut random = Random(23);
    for _ in 0..100 {
        let once = fuse(&random_graph(&mut random)?)?;
        let twice = fuse(&once)?;
        assert!(kernels(&twice).len() <= kernels(&once).len());
        assert!(difference(&once, &twice) < 1e-7);
    }
    Ok(())
}
