//! Times `dequant_matmul` for `bench/quant_cpu.py`: one weight after the other, so that no cache holds them.
//!
//! usage: quant_rows FORMAT M N K COUNT THREADS WEIGHT X Y
//!
//! WEIGHT and X are files of bytes; COUNT copies of the weight are used in turn. Every line on standard input is a number
//! of runs, answered by a line of nanoseconds, one for each run. At the end the result is written to Y.
#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Instant;

use olivine_compile::{Options, compile};
use olivine_cpu::{CpuEvaluator, Executable, Threads, Weights};
use olivine_ir::{BlockFormat, DType, Graph, Tensor, TensorType, TensorView};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [format, m, n, k, count, threads, weight, x, y] = args.as_slice() else {
        return Err("usage: quant_rows FORMAT M N K COUNT THREADS WEIGHT X Y".into());
    };
    let format: BlockFormat = format.parse()?;
    let (m, n, k): (usize, usize, usize) = (m.parse()?, n.parse()?, k.parse()?);
    let weight = std::fs::read(weight)?;
    let x: Vec<f32> =
        std::fs::read(x)?.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let mut graph = Graph::new("rows");
    let input = graph.input("x", DType::F32, [m, k])?;
    let w = graph.param_of("w", TensorType::packed(format, [n, k])?)?;
    let out = graph.dequant_matmul(input, w)?;
    graph.output("y", out)?;
    let compiled = compile(&graph, &Options { evaluator: Some(&CpuEvaluator), ..Options::default() })?;
    let mut models = Vec::new();
    for _ in 0..count.parse()? {
        let weights = Weights::new();
        weights.set("w", Tensor::packed(format, [n, k], weight.clone())?);
        models.push(Executable::new(&compiled, Arc::new(weights), false)?);
    }
    let threads = Threads::new(Some(threads.parse()?))?;
    let mut result = vec![0f32; m * n];
    let mut next = 0;
    for line in std::io::stdin().lock().lines() {
        let mut times = Vec::new();
        for _ in 0..line?.trim().parse()? {
            let model = &models[next % models.len()];
            next += 1;
            let view = TensorView::new([m, k], &x)?;
            let start = Instant::now();
            threads.install(|| model.run(&[view], &mut [bytemuck::cast_slice_mut(&mut result)]))?;
            times.push(start.elapsed().as_nanos().to_string());
        }
        println!("{}", times.join(" "));
    }
    std::fs::write(y, bytemuck::cast_slice::<f32, u8>(&result))?;
    Ok(())
}
