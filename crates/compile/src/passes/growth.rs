//! Passes whose time must grow in proportion to the nodes, each on the graph that would make it grow faster.

use std::sync::OnceLock;
use std::time::Instant;

use olivine_ir::op::Binary;
use olivine_ir::{DType, Error, Graph, ValueId};

use crate::plan::{Lifetime, place};
use crate::{Options, Pass};

/// Seconds that this thread has run, or that have passed where the system does not say: other processes do not count.
fn running() -> f64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran = text.split_whitespace().next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok());
    ran.map_or_else(|| FIRST.get_or_init(Instant::now).elapsed().as_secs_f64(), |ran| ran / 1e9)
}

/// Twice the size takes twice the time; work that grows with the square takes four times as long.
fn assert_linear(
    what: &str,
    small: usize,
    mut work: impl FnMut(usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut seconds = |n: usize| {
        let mut least = f64::INFINITY;
        for _ in 0..3 {
            let begun = running();
            work(n)?;
            least = least.min(running() - begun);
        }
        Ok::<f64, Error>(least)
    };
    let mut grows = || {
        let (once, twice) = (seconds(small)?, seconds(2 * small)?);
        println!("{what}: {small} in {once:.4} s, twice as many in {twice:.4} s");
        // So little time shows nothing; a square of these sizes takes longer.
        Ok::<bool, Error>(twice > 0.2 && twice > 3.3 * once)
    };
    // Another try or two for what the machine did in between.
    assert!(!grows()? || !grows()? || !grows()?, "{what}: twice as many take more than three times as long");
    Ok(())
}

fn graph(
    n: usize,
    build: impl Fn(&mut Graph, ValueId, usize) -> Result<ValueId, Error>,
) -> Result<Graph, Error> {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [4])?;
    let y = build(&mut g, x, n)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn a_chain_of_elementwise_operations_is_fused_in_linear_time() -> Result<(), Error> {
    let fuse = crate::passes::fuse::passes();
    let regions = fuse.iter().find(|pass| pass.name() == "regions");
    assert_linear("regions", 20_000, |n| {
        let g = graph(n, |g, x, n| (0..n).try_fold(x, |y, _| g.add(y, x)))?;
        regions.map_or(Ok(()), |pass| pass.run(&g, &Options::default()).map(drop))
    })
}

/// A copy of a graph costs as much as a pass that does something; over twenty of them look at every graph.
#[test]
fn passes_with_nothing_to_do_copy_nothing() -> Result<(), Error> {
    let wide = Some(crate::Widen { weight_bytes: 1 << 20 });
    let options = Options { widen: wide, integers: true, keep_stages: true, ..Options::default() };
    let rebuilding = |g: &Graph| -> Result<Vec<&'static str>, Error> {
        let compiled = crate::compile(g, &options).map_err(|e| Error::BadData { problem: e.to_string() })?;
        let graphs = std::iter::once(g).chain(compiled.stages.iter().map(|stage| &stage.graph));
        let changed = graphs.zip(&compiled.stages).filter(|(before, stage)| !stage.graph.shares_with(before));
        Ok(changed.map(|(_, stage)| stage.name).collect())
    };
    let sums = graph(100, |g, x, n| (0..n).try_fold(x, |y, _| g.add(y, x)))?;
    assert_eq!(rebuilding(&sums)?, ["regions"]);
    let kernels = graph(100, |g, x, n| (0..n).try_fold(x, |y, _| g.softmax(y, -1)))?;
    assert_eq!(rebuilding(&kernels)?, [""; 0]);
    let matmuls = graph(100, |g, x, n| {
        let w = g.param("w", DType::F32, [4, 4])?;
        let row = g.reshape(x, &[1, 4])?;
        (0..n).try_fold(row, |y, _| g.matmul(y, w))
    })?;
    // The reshape becomes a view.
    assert_eq!(rebuilding(&matmuls)?, ["views"]);
    Ok(())
}

#[test]
fn readers_of_one_value_that_differ_are_told_apart_in_linear_time() -> Result<(), Error> {
    assert_linear("cse", 10_000, |n| {
        let g = graph(n, |g, x, n| {
            let wide = g.expand(x, [n, 4])?;
            let part = |g: &mut Graph, i: usize| g.slice(wide, 0, i as i64, i as i64 + 1, 1);
            (0..n).try_fold(x, |y, i| {
                let part = part(g, i)?;
                let flat = g.reshape(part, &[4])?;
                g.add(y, flat)
            })
        })?;
        super::cse::Cse.run(&g, &Options::default()).map(drop)
    })
}

#[test]
fn matmuls_of_one_operand_are_looked_at_in_linear_time() -> Result<(), Error> {
    let fuse = crate::passes::fuse::passes();
    let gates = fuse.iter().find(|pass| pass.name() == "gates");
    assert_linear("gates", 4_000, |n| {
        let g = graph(n, |g, x, n| {
            let row = g.reshape(x, &[1, 4])?;
            let mut sum = x;
            for i in 0..n {
                let w = g.param(&format!("w{i}"), DType::F32, [4, 4])?;
                let matmul = g.matmul(row, w)?;
                let scaled = g.binary_scalar(Binary::Mul, matmul, 2.0)?;
                let flat = g.reshape(scaled, &[4])?;
                sum = g.add(sum, flat)?;
            }
            Ok(sum)
        })?;
        gates.map_or(Ok(()), |pass| pass.run(&g, &Options::default()).map(drop))
    })
}

#[test]
fn many_outputs_are_named_in_linear_time() -> Result<(), Error> {
    assert_linear("outputs", 10_000, |n| {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [4])?;
        (0..n).try_for_each(|i| g.output(&format!("output {i}"), x))
    })
}

#[test]
fn many_buffers_are_placed_in_linear_time() -> Result<(), Error> {
    assert_linear("place", 20_000, |n| {
        let lives: Vec<Lifetime> = (0..n)
            .map(|i| Lifetime { size: 64 + 64 * (i * 7 % 13), first: i, last: i + i * 31 % 97 })
            .collect();
        place(&lives, 64).map(drop).map_err(|e| Error::BadData { problem: e.to_string() })
    })
}
