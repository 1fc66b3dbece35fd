//! Whole runs, from inputs in host memory to outputs in host memory.

use olivine::internals::models::Encoder;
use olivine::ir::{DType, Graph};

use super::{Clock, Measurement, Source, Unit};
use crate::answer::Failure;
use crate::measure::graph;

/// A chain of tiny dispatches, and BERT-base.
pub(super) fn whole(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let links = if quick { 20 } else { 1000 };
    let mut list = vec![Measurement {
        name: format!("chain of {links}"),
        unit: Unit::Time,
        clock: Clock::WallUnfused,
        source: Source::Graph(chain(links)?),
    }];
    let (f32, f16) = (DType::F32, DType::F16);
    for (dtype, batch, sequence) in
        [(f32, 1, 128), (f32, 1, 512), (f32, 32, 128), (f16, 1, 128), (f16, 32, 128)]
    {
        let small = Encoder { layers: 1, hidden: 64, heads: 2, feed_forward: 128, ..Encoder::small() };
        let (name, encoder) = if quick {
            ("encoder", Encoder { batch: batch.min(2), sequence: sequence / 8, dtype, ..small })
        } else {
            ("bert-base", Encoder { dtype, ..Encoder::bert_base(batch, sequence) })
        };
        let Encoder { batch, sequence, .. } = encoder;
        list.push(Measurement {
            name: format!("{name} {dtype} b{batch} s{sequence}"),
            unit: Unit::Flops(encoder.flops()),
            clock: Clock::Wall,
            source: Source::Graph(encoder.graph()?),
        });
    }
    Ok(list)
}

/// Tiny operations, each waiting for the one before; sums and products in turn, so that nothing folds.
fn chain(links: usize) -> Result<Graph, Failure> {
    Ok(graph("chain", |g| {
        let mut y = g.input("x", DType::F32, [256])?;
        let (a, b) = (g.input("a", DType::F32, [256])?, g.input("b", DType::F32, [256])?);
        for i in 0..links {
            y = if i % 2 == 0 { g.mul(y, a)? } else { g.add(y, b)? };
        }
        Ok(y)
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_has_as_many_operations_as_links() -> Result<(), Failure> {
        assert_eq!(chain(7)?.nodes().len(), 7);
        Ok(())
    }
}
