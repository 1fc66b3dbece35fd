//! What lowering joins and packs.

use std::sync::Arc;

use olivine_compile::Widen;
use olivine_compile::{Options, compile};
use olivine_ir::half::f16;
use olivine_ir::{Error as GraphError, TensorView};

use super::*;
use crate::{Executable, Weights};

/// softmax(q·k) as an output, and what reads it; also the matmul itself if `scores`.
fn attention(scores: bool) -> Result<(Graph, Compiled), GraphError> {
    let mut g = Graph::new("attention");
    let (q, k) = (g.input("q", DType::F32, [3, 70, 8])?, g.input("k", DType::F32, [3, 8, 33])?);
    let scored = g.matmul(q, k)?;
    let weights = g.softmax(scored, -1)?;
    g.output("weights", weights)?;
    let most = g.reduce(olivine_ir::op::ReduceKind::Sum, weights, &[2], false)?;
    g.output("sum", most)?;
    let flat = g.reshape(weights, &[210, 33])?;
    let shifted = g.add(flat, flat)?;
    let twice = g.reshape(shifted, &[-1])?;
    g.output("twice", twice)?;
    if scores {
        g.output("scores", scored)?;
    }
    let compiled = compile(&g, &Options::default())
        .map_err(|e| GraphError::Invalid { location: "test".into(), problem: e.to_string() })?;
    Ok((g, compiled))
}

#[test]
fn a_softmax_joins_the_matmul_that_nobody_else_reads() -> Result<(), Box<dyn std::error::Error>> {
    let (_, joined) = attention(false)?;
    let (_, apart) = attention(true)?;
    let steps = |c: &Compiled| Program::new(c, false, &[]).map(|p| p.run.len());
    assert_eq!(steps(&joined)? + 1, steps(&apart)?);
    let fused = Program::new(&joined, false, &[])?.fusions;
    assert_eq!(
        fused.iter().map(|f| (f.rule, f.nodes.len())).collect::<Vec<_>>(),
        [("softmax in its matmul", 2)]
    );
    assert!(Program::new(&apart, false, &[])?.fusions.is_empty());
    let number = |i: usize| ((i * 37) % 101) as f32 / 25.0 - 2.0;
    let (q, k): (Vec<f32>, Vec<f32>) =
        ((0..3 * 70 * 8).map(number).collect(), (0..3 * 8 * 33).map(number).collect());
    let inputs = [TensorView::new([3, 70, 8], &q)?, TensorView::new([3, 8, 33], &k)?];
    let (mut ours, mut theirs, mut scores) = (vec![0f32; 6930], vec![0f32; 6930], vec![0f32; 6930]);
    let (mut sum, mut other) = (vec![0f32; 210], vec![0f32; 210]);
    let (mut twice, mut more) = (vec![0f32; 6930], vec![0f32; 6930]);
    Executable::new(&joined, Arc::new(Weights::new()), false)?.run(
        &inputs,
        &mut [
            bytemuck::cast_slice_mut(&mut ours),
            bytemuck::cast_slice_mut(&mut sum),
            bytemuck::cast_slice_mut(&mut twice),
        ],
    )?;
    Executable::new(&apart, Arc::new(Weights::new()), false)?.run(
        &inputs,
        &mut [
            bytemuck::cast_slice_mut(&mut theirs),
            bytemuck::cast_slice_mut(&mut other),
            bytemuck::cast_slice_mut(&mut more),
            bytemuck::cast_slice_mut(&mut scores),
        ],
    )?;
    for (a, b) in ours.iter().zip(&theirs) {
        assert!((a - b).abs() <= 1e-6, "{a} is not {b}");
    }
    assert!(sum.iter().all(|s| (s - 1.0).abs() < 1e-5));
    assert!(twice.iter().zip(&ours).all(|(t, w)| *t == 2.0 * w));
    Ok(())
}

#[test]
fn a_large_weight_is_read_as_it_is_stored_by_small_m_and_cast_for_large()
-> Result<(), Box<dyn std::error::Error>> {
    let weights = Arc::new(Weights::new());
    let number = |i: usize| f16::from_f32(((i * 37) % 101) as f32 / 50.0 - 1.0);
    let weight: Vec<f16> = (0..1 << 20).map(number).collect();
    weights.set("w", Tensor::new([1024, 1024], weight)?);
    let mut results: Vec<Vec<f16>> = Vec::new();
    for (rows, cast) in [(1usize, false), (9, true)] {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F16, [rows, 1024])?;
        let w = g.param("w", DType::F16, [1024, 1024])?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        let widen = Some(Widen { weight_bytes: usize::MAX });
        let compiled = compile(&g, &Options { widen, ..Options::default() })?;
        let program = Program::new(&compiled, false, &[])?;
        assert_eq!(program.load.len(), usize::from(cast));
        assert_eq!(program.fusions.len(), usize::from(!cast), "{:?}", program.fusions);
        let read = program.run.iter().find(|s| s.operands.len() == 2).map(|s| s.operands[1].ty.dtype);
        assert_eq!(read, Some(if cast { DType::F32 } else { DType::F16 }));
        let x: Vec<f16> = (0..rows * 1024).map(number).collect();
        let mut y = vec![f16::ZERO; rows * 1024];
        Executable::new(&compiled, weights.clone(), false)?
            .run(&[TensorView::new([rows, 1024], &x)?], &mut [bytemuck::cast_slice_mut(&mut y)])?;
        results.push(y);
    }
    for (few, many) in results[0].iter().zip(&results[1]) {
        assert!((few.to_f32() - many.to_f32()).abs() <= 1e-3 * many.to_f32().abs().max(1.0));
    }
    Ok(())
}
