//! Sequence models and signals.

use olivine::ir::DType;
use olivine::ir::op::{
    Direction, GatedDeltaNet, Mamba2, Recurrent, RecurrentKind, RecurrentLayer, SelectiveScan,
};

use super::{Measurement, Unit, device};
use crate::answer::Failure;

/// Sequence models with a carried state: a long sequence, and a single token.
pub(super) fn state_spaces(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let mut list = Vec::new();
    let (b, long) = if quick { (1, 100) } else { (2, 4096) };
    for l in [long, 1] {
        let (d, n) = if quick { (8, 4) } else { (2048, 16) };
        let bytes = 4.0 * (b * (3 * l * d + 2 * l * n + 2 * d * n)) as f64;
        list.push(device(format!("selective_scan b{b} l{l} d{d} n{n}"), Unit::Bytes(bytes), |g| {
            let (x, delta) = (g.input("x", DType::F32, [b, l, d])?, g.input("delta", DType::F32, [b, l, d])?);
            let a = g.input("a", DType::F32, [d, n])?;
            let (keys, queries) =
                (g.input("b", DType::F32, [b, l, n])?, g.input("c", DType::F32, [b, l, n])?);
            let state = g.input("state", DType::F32, [b, d, n])?;
            let spec = SelectiveScan { state: true, ..SelectiveScan::new() };
            let (y, state) = g.selective_scan(spec, [x, delta, a, keys, queries], &[state])?;
            g.output("state_out", state)?;
            Ok(y)
        })?);
        let (h, p, n) = if quick { (2, 4, 8) } else { (32, 64, 128) };
        let flops = 4.0 * (b * l * h * p * n) as f64;
        list.push(device(format!("mamba2 b{b} l{l} h{h} p{p} n{n}"), Unit::Flops(flops), |g| {
            let (x, dt) = (g.input("x", DType::F32, [b, l, h, p])?, g.input("dt", DType::F32, [b, l, h])?);
            let a = g.input("a", DType::F32, [h])?;
            let keys = g.input("b", DType::F32, [b, l, 1, n])?;
            let queries = g.input("c", DType::F32, [b, l, 1, n])?;
            let state = g.input("state", DType::F32, [b, h, p, n])?;
            let spec = Mamba2 { skip: false, state: true };
            let (y, state) = g.mamba2(spec, [x, dt, a, keys, queries], &[state])?;
            g.output("state_out", state)?;
            Ok(y)
        })?);
        let (h, dim) = if quick { (2, 8) } else { (16, 128) };
        let flops = 6.0 * (b * l * h * dim * dim) as f64;
        let name = format!("gated_delta_net b{b} l{l} h{h} d{dim}");
        list.push(device(name, Unit::Flops(flops), |g| {
            let rows = [b, l, h, dim];
            let (q, k) = (g.input("q", DType::F32, rows)?, g.input("k", DType::F32, rows)?);
            let v = g.input("v", DType::F32, rows)?;
            let (decay, beta) =
                (g.input("g", DType::F32, [b, l, h])?, g.input("beta", DType::F32, [b, l, h])?);
            let state = g.input("state", DType::F32, [b, h, dim, dim])?;
            let spec = GatedDeltaNet { state: true, ..GatedDeltaNet::new() };
            let (o, state) = g.gated_delta_net(spec, [q, k, v, decay, beta], Some(state))?;
            g.output("state_out", state)?;
            Ok(o)
        })?);
    }
    Ok(list)
}

/// Recurrent layers.
pub(super) fn recurrent_layers(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let layers: [(RecurrentKind, [usize; 3]); 3] = [
        (RecurrentKind::Lstm, if quick { [32, 8, 2] } else { [512, 256, 16] }),
        (RecurrentKind::Gru, if quick { [32, 8, 2] } else { [512, 256, 16] }),
        (RecurrentKind::Lstm, if quick { [64, 4, 4] } else { [1024, 64, 64] }),
    ];
    layers.into_iter().map(|(kind, sizes)| recurrent(kind, sizes)).collect()
}

/// A layer whose input is as wide as its state, with biases; a gru resets after its matmul, as cuDNN's does.
fn recurrent(kind: RecurrentKind, [hidden, sequence, batch]: [usize; 3]) -> Result<Measurement, Failure> {
    let rows = kind.gates() * hidden;
    let flops = 2.0 * (rows * 2 * hidden) as f64 * (sequence * batch) as f64;
    let name = format!("{} h{hidden} s{sequence} b{batch}", kind.name());
    device(name, Unit::Flops(flops), |g| {
        let x = g.input("x", DType::F32, [sequence, batch, hidden])?;
        let (w, r) =
            (g.param("w", DType::F32, [1, rows, hidden])?, g.param("r", DType::F32, [1, rows, hidden])?);
        let bias = Some(g.param("b", DType::F32, [1, 2 * rows])?);
        let reset_after = kind == RecurrentKind::Gru;
        let spec = Recurrent { reset_after, ..Recurrent::new(kind, Direction::Forward) };
        let results = g.recurrent(spec, x, &RecurrentLayer { bias, ..RecurrentLayer::new(w, r) }, None)?;
        Ok(results[0])
    })
}

/// Fourier transforms: one pass, two, and lengths with large primes.
pub(super) fn transforms(quick: bool) -> Result<Vec<Measurement>, Failure> {
    let mut list = Vec::new();
    let shrink = if quick { 64 } else { 1 };
    for (n, batch) in [(1 << 20, 64), (4096, 16384), (1000, 65536), (65537, 256)] {
        let (n, batch) = if n > 4096 && quick { (n / 64, 1) } else { (n, batch / shrink) };
        list.push(device(format!("fft {n}x{batch}"), Unit::Bytes(16.0 * (n * batch) as f64), |g| {
            let x = g.input("x", DType::F32, [batch, n, 2])?;
            g.fft(x, -1)
        })?);
    }
    let (n, batch) = (400, 48_000 / shrink);
    let bytes = (4 * n + 8 * (n / 2 + 1)) * batch;
    list.push(device(format!("rfft {n}x{batch}"), Unit::Bytes(bytes as f64), |g| {
        let x = g.input("x", DType::F32, [batch, n])?;
        g.rfft(x, -1)
    })?);
    Ok(list)
}
