//! Reproducible tensors: the same name and seed give the same numbers in every language.
//!
//! Element i is `mix(hash(name, seed) + i)`, `mix` being SplitMix64's finaliser on a Weyl step and `hash` FNV-1a of the
//! name's bytes and the seed's eight, low byte first, so that a script can make the same weights with a few vector
//! operations.

use std::num::NonZero;

use olivine_ir::{Graph, Shape, Tensor};

use crate::Error;

/// Elements that are worth a thread.
const LEAST_PART: usize = 1 << 18;

/// Uniform numbers in [-1, 1) with 24 bits.
fn uniform(name: &str, seed: u64, count: usize) -> Vec<f32> {
    let base = name
        .bytes()
        .chain(seed.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mut elements = vec![0.0; count];
    let fill = |first: usize, part: &mut [f32]| {
        for (i, x) in part.iter_mut().enumerate() {
            let bits = mix(base.wrapping_add((first + i) as u64)) >> 40;
            *x = bits as f32 / (1u32 << 23) as f32 - 1.0;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let part = count.div_ceil(threads).max(LEAST_PART);
    if part >= count {
        fill(0, &mut elements);
        return elements;
    }
    std::thread::scope(|scope| {
        for (i, elements) in elements.chunks_mut(part).enumerate() {
            scope.spawn(move || fill(i * part, elements));
        }
    });
    elements
}

fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Params for a graph of f32 params: matrices uniform within 1/√rows, vectors within 0.02, norm weights (`*.gamma`)
/// around one.
pub fn seeded_params(graph: &Graph, seed: u64) -> Result<Vec<(String, Tensor)>, Error> {
    graph
        .params()
        .map(|(name, id)| {
            let ty = graph.ty(id)?;
            let scale = if ty.shape.rank() >= 2 { (ty.shape[0].max(1) as f32).sqrt().recip() } else { 0.02 };
            let centre = if name.ends_with(".gamma") { 1.0 } else { 0.0 };
            let elements = uniform(name, seed, ty.shape.numel()).iter().map(|x| centre + scale * x).collect();
            Ok((name.to_string(), Tensor::new::<f32>(ty.shape, elements)?))
        })
        .collect()
}

/// An f32 input, uniform in [-1, 1).
pub fn seeded_input(name: &str, shape: Shape, seed: u64) -> Result<Tensor, Error> {
    Ok(Tensor::new(shape, uniform(name, seed, shape.numel()))?)
}
