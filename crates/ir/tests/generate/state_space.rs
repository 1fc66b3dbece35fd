//! Sequence models with a carried state.

use olivine_ir::op::{CausalConv1d, GatedDeltaNet, Mamba2, SelectiveScan, state_dtype};

use super::{Made, Rng, ty};

pub(crate) const MAKERS: &[fn(&mut Rng) -> Made] = &[selective_scan, mamba2, gated_delta_net, causal_conv1d];

fn selective_scan(rng: &mut Rng) -> Made {
    let [b, l, d] = [0; 3].map(|_| rng.size());
    let n = 1 + rng.below(4);
    let dtype = rng.float();
    let [skip, gate, delta_bias, softplus, state] = [0; 5].map(|_| rng.chance(50));
    let (x, keys) = (ty(dtype, &[b, l, d]), ty(dtype, &[b, l, n]));
    let mut types = vec![x, x, ty(dtype, &[d, n]), keys, keys];
    types.extend(skip.then_some(ty(dtype, &[d])));
    types.extend(gate.then_some(x));
    types.extend(delta_bias.then_some(ty(dtype, &[d])));
    types.extend(state.then_some(ty(state_dtype(dtype), &[b, d, n])));
    (SelectiveScan { skip, gate, delta_bias, softplus, state }.into(), types)
}

fn mamba2(rng: &mut Rng) -> Made {
    let [b, l, p, groups] = [0; 4].map(|_| rng.size());
    let (n, h) = (1 + rng.below(4), groups * (1 + rng.below(3)));
    let dtype = rng.float();
    let [skip, state] = [0; 2].map(|_| rng.chance(50));
    let keys = ty(dtype, &[b, l, groups, n]);
    let mut types = vec![ty(dtype, &[b, l, h, p]), ty(dtype, &[b, l, h]), ty(dtype, &[h]), keys, keys];
    types.extend(skip.then_some(ty(dtype, &[h])));
    types.extend(state.then_some(ty(state_dtype(dtype), &[b, h, p, n])));
    (Mamba2 { skip, state }.into(), types)
}

fn gated_delta_net(rng: &mut Rng) -> Made {
    let [b, l, dv, key_heads] = [0; 4].map(|_| rng.size());
    let (dk, h) = (1 + rng.below(4), key_heads * (1 + rng.below(3)));
    let dtype = rng.float();
    let scale = rng.chance(50).then(|| rng.real());
    let normalise = rng.chance(30).then_some(1e-6);
    let state = rng.chance(50);
    let (keys, steps) = (ty(dtype, &[b, l, key_heads, dk]), ty(dtype, &[b, l, h]));
    let mut types = vec![keys, keys, ty(dtype, &[b, l, h, dv]), steps, steps];
    types.extend(state.then_some(ty(state_dtype(dtype), &[b, h, dk, dv])));
    (GatedDeltaNet { scale, normalise, state }.into(), types)
}

fn causal_conv1d(rng: &mut Rng) -> Made {
    let [b, l, d] = [0; 3].map(|_| rng.size());
    let taps = 1 + rng.below(4);
    let dtype = rng.float();
    let [bias, silu, state] = [0; 3].map(|_| rng.chance(50));
    let mut types = vec![ty(dtype, &[b, l, d]), ty(dtype, &[d, taps])];
    types.extend(bias.then_some(ty(dtype, &[d])));
    types.extend(state.then_some(ty(dtype, &[b, taps - 1, d])));
    (CausalConv1d { bias, silu, state }.into(), types)
}
