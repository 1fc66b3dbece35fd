//! Attention by warpgroups, interpreted and, printed as PTX, emulated, beside sums in f64.

use olivine_ir::op::{Attention, HeadLayout, MaskKind};
use olivine_ir::{DType, Dim, Shape, TensorType, ValueId, half};
use olivine_kernel::Kernel;
use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::ptx::{self, Capability, PtxOptions};
use olivine_program::DeviceCaps;
use olivine_ptx::{Module, Order};

use super::super::problem::Problem;
use super::{emit, serves};
use crate::matmul::coop::tests::{bits, card, run_by};
use crate::site::{Memory, Operand, Site, Target};

/// Runs a kernel: its workgroups, buffers and parameters.
type Launch<'l> = dyn Fn(&Kernel, [u32; 3], &mut [Vec<u8>], &[u32]) + 'l;

/// A card of Hopper with so many cores.
fn hopper(cores: u32) -> DeviceCaps {
    let mut caps = card();
    caps.target.warpgroups = true;
    caps.ptx = Some(Capability::HOPPER);
    caps.processors = Some(cores);
    caps
}

/// An attention to be checked.
#[derive(Clone, Debug)]
struct Check {
    dtype: DType,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    /// Of q and k, and of v.
    dims: [usize; 2],
    op: Attention,
    /// Keys that count in each batch.
    lengths: Option<Vec<i32>>,
    /// Positions of a page of k and v, which are pools then.
    page: Option<usize>,
    /// The key whose first value is infinite.
    infinite: Option<usize>,
    cores: u32,
}

fn plain() -> Check {
    Check {
        dtype: DType::F16,
        batch: 1,
        heads: 1,
        kv_heads: 1,
        queries: 128,
        keys: 256,
        dims: [64, 64],
        op: Attention::new(HeadLayout::Bhsd),
        lengths: None,
        page: None,
        infinite: None,
        cores: 2,
    }
}

/// Numbers between -1 and 1 without a pattern that a wrong order keeps, exact in 16 bits.
fn number(i: usize, skew: usize) -> f32 {
    let mixed = (i as u32).wrapping_mul(0x9e37_79b9).wrapping_add((skew as u32).wrapping_mul(0x85eb_ca6b));
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x2c1b_3c6d);
    ((mixed >> 20) % 65) as f32 / 32.0 - 1.0
}

impl Check {
    fn strides(&self, heads: usize, length: usize, dim: usize) -> [usize; 4] {
        match self.op.layout {
            HeadLayout::Bhsd => [heads * length * dim, length * dim, dim, 1],
            HeadLayout::Bshd => [heads * length * dim, heads * dim, dim, 1],
        }
    }

    /// Where an element of `[batch, head, position, element]` is.
    fn at(&self, heads: usize, length: usize, dim: usize, [b, h, s, d]: [usize; 4]) -> usize {
        let steps = self.strides(heads, length, dim);
        let (head, position) = match self.op.layout {
            HeadLayout::Bhsd => (steps[1], steps[2]),
            HeadLayout::Bshd => (steps[2], steps[1]),
        };
        b * steps[0] + h * head + s * position + d
    }

    fn shape(&self, batch: usize, heads: usize, length: usize, dim: usize) -> Shape {
        match self.op.layout {
            HeadLayout::Bhsd => Shape::new(&[batch, heads, length, dim]).unwrap(),
            HeadLayout::Bshd => Shape::new(&[batch, length, heads, dim]).unwrap(),
        }
    }

    /// The page of a sequence's position and the position there: pages in reverse order.
    fn page_of(&self, batch: usize, key: usize) -> (usize, usize) {
        match self.page {
            None => (batch, key),
            Some(page) => (self.batch * self.keys / page - 1 - (batch * self.keys + key) / page, key % page),
        }
    }

    fn run(self) {
        let Check { dtype, batch, heads, kv_heads, queries, keys, dims: [dim, value_dim], .. } = self;
        let (pool, positions) = self.page.map_or((batch, keys), |page| (batch * keys / page, page));
        let mut operands = Vec::new();
        let mut given = Vec::new();
        let mut add = |ty: TensorType, strides: Vec<usize>, bytes: Vec<u8>| {
            let memory = Memory::Value(ValueId::new(operands.len() as u32));
            let strides = strides.into_iter().map(Dim::from).collect();
            operands.push(Operand { ty, strides, offset: Dim::ZERO, memory, stored: false });
            given.push(bytes);
        };
        let fill = |count: usize, skew: usize| -> Vec<u8> {
            (0..count).flat_map(|i| bits(dtype, number(i, skew))).collect()
        };
        let mut tensor = |sizes: [usize; 4], bytes: Vec<u8>| {
            let [b, h, s, d] = sizes;
            add(TensorType::new(dtype, self.shape(b, h, s, d)), self.strides(h, s, d).to_vec(), bytes);
        };
        tensor([batch, heads, queries, dim], fill(batch * heads * queries * dim, 1));
        tensor([pool, kv_heads, positions, dim], fill(pool * kv_heads * positions * dim, 2));
        let mut values = fill(pool * kv_heads * positions * value_dim, 3);
        if let Some(key) = self.infinite {
            let (page, position) = self.page_of(0, key);
            let at = 2 * self.at(kv_heads, positions, value_dim, [page, 0, position, 0]);
            values[at..at + 2].copy_from_slice(&bits(dtype, f32::INFINITY));
        }
        tensor([pool, kv_heads, positions, value_dim], values);
        if self.op.mask == MaskKind::Bias {
            let ty = TensorType::new(dtype, Shape::new(&[1, 1, queries, keys]).unwrap());
            add(ty, vec![0, 0, keys, 1], fill(queries * keys, 4));
        }
        if self.op.sinks {
            add(TensorType::new(dtype, Shape::new(&[heads]).unwrap()), vec![1], fill(heads, 5));
        }
        if let Some(lengths) = &self.lengths {
            let bytes = lengths.iter().flat_map(|n| n.to_le_bytes()).collect();
            add(TensorType::new(DType::I32, Shape::new(&[batch]).unwrap()), vec![1], bytes);
        }
        if let Some(page) = self.page {
            let numbers = (0..batch * keys / page).map(|i| self.page_of(0, i * page).0 as i32);
            let ty = TensorType::new(DType::I32, Shape::new(&[batch, keys / page]).unwrap());
            add(ty, vec![keys / page, 1], numbers.flat_map(i32::to_le_bytes).collect());
        }
        let out = Memory::Value(ValueId::new(operands.len() as u32));
        given.push(vec![0xff; 2 * batch * heads * queries * value_dim]);
        let ty = TensorType::new(dtype, self.shape(batch, heads, queries, value_dim));
        let caps = hopper(self.cores);
        let mut site = Site::new(&caps, operands, vec![Target { ty, memory: out }]);
        let problem = Problem::new(&self.op, &site).unwrap();
        assert!(serves(&problem, &caps), "{self:?}");
        emit(&problem, &mut site).unwrap();

        let expected = self.expected();
        let check = |what: &str, launch: &Launch<'_>| {
            let given: [Vec<u8>; 8] = std::array::from_fn(|i| given.get(i).cloned().unwrap_or_default());
            let memory = run_by(&site, given, launch);
            let found = memory[&out].chunks_exact(2).map(|b| {
                let bits = u16::from_le_bytes([b[0], b[1]]);
                match dtype {
                    DType::F16 => f64::from(half::f16::from_bits(bits)),
                    _ => f64::from(half::bf16::from_bits(bits)),
                }
            });
            let bound = if dtype == DType::F16 { 2e-3 } else { 1.2e-2 };
            for (i, (found, want)) in found.zip(&expected).enumerate() {
                let near = if want.is_finite() { (found - want).abs() <= bound } else { !found.is_finite() };
                assert!(near, "{self:?}, {what}: {found} at {i}, not {want}");
            }
        };
        check("interpreted", &|kernel, groups, buffers, params| {
            interpret(kernel, 32, groups, buffers, params, Device::EXACT).unwrap();
        });
        for order in [Order::Ascending, Order::Descending] {
            check("emulated", &|kernel, groups, buffers, params| {
                let text = ptx::print(kernel, &PtxOptions { capability: Capability::HOPPER }).unwrap();
                Module::parse(&text).unwrap().run(groups, buffers, params, order).unwrap();
            });
        }
    }

    fn expected(&self) -> Vec<f64> {
        let Check { batch, heads, kv_heads, queries, keys, dims: [dim, value_dim], .. } = *self;
        let positions = self.page.unwrap_or(keys);
        let mut out = vec![0.0; batch * heads * queries * value_dim];
        let all = (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..queries).map(move |i| (b, h, i))));
        for (b, h, i) in all {
            let length = self.lengths.as_ref().map_or(keys, |lengths| lengths[b] as usize);
            let kv = h / (heads / kv_heads);
            let past = (length + i + 1).saturating_sub(queries);
            let looks_back = self.op.causal || self.op.window.is_some();
            let end = if looks_back { past.min(length) } else { length };
            let first = self.op.window.map_or(0, |window| past.saturating_sub(window).min(end));
            let score = |key: usize| -> f64 {
                let (page, position) = self.page_of(b, key);
                let q = |d| f64::from(number(self.at(heads, queries, dim, [b, h, i, d]), 1));
                let k = |d| f64::from(number(self.at(kv_heads, positions, dim, [page, kv, position, d]), 2));
                let mut score = self.op.scale_for(dim) * (0..dim).map(|d| q(d) * k(d)).sum::<f64>();
                if let Some(cap) = self.op.softcap {
                    score = cap * (score / cap).tanh();
                }
                if self.op.mask == MaskKind::Bias {
                    score += f64::from(number(i * keys + key, 4));
                }
                score
            };
            let scores: Vec<f64> = (first..end).map(score).collect();
            let sink = self.op.sinks.then(|| f64::from(number(h, 5)));
            let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - most).exp());
            for d in 0..value_dim {
                let value = |key: usize| {
                    let (page, position) = self.page_of(b, key);
                    if b == 0 && kv == 0 && d == 0 && self.infinite == Some(key) {
                        return f64::INFINITY;
                    }
                    f64::from(number(self.at(kv_heads, positions, value_dim, [page, kv, position, d]), 3))
                };
                let total: f64 = (first..end).zip(&weights).map(|(key, weight)| weight * value(key)).sum();
                let at = self.at(heads, queries, value_dim, [b, h, i, d]);
                out[at] = if sum == 0.0 { 0.0 } else { total / sum };
            }
        }
        out
    }
}

#[test]
fn rows_and_keys_of_whole_tiles() {
    plain().run();
    Check { dtype: DType::BF16, dims: [128, 128], ..plain() }.run();
}

#[test]
fn rings_that_wrap_and_workgroups_with_several_tiles() {
    Check { keys: 384, heads: 3, kv_heads: 3, cores: 1, dims: [128, 128], ..plain() }.run();
}

#[test]
fn sizes_that_end_inside_of_tiles() {
    Check { queries: 131, keys: 205, ..plain() }.run();
    Check { queries: 150, keys: 131, dims: [40, 24], ..plain() }.run();
    Check { queries: 128, keys: 130, dims: [100, 72], ..plain() }.run();
    Check { keys: 129, dims: [33, 17], ..plain() }.run();
}

#[test]
fn heads_that_share_keys_in_both_layouts() {
    let shared = Check { batch: 2, heads: 4, kv_heads: 2, queries: 70, keys: 140, ..plain() };
    shared.clone().run();
    Check { op: Attention::new(HeadLayout::Bshd), ..shared }.run();
}

#[test]
fn causal_rows_windows_and_lengths() {
    let causal = Attention { causal: true, ..plain().op };
    Check { queries: 256, op: causal.clone(), ..plain() }.run();
    Check { queries: 140, keys: 300, op: Attention { window: Some(37), ..causal.clone() }, ..plain() }.run();
    // More queries than keys: the first rows see nothing.
    Check { queries: 200, keys: 150, op: causal.clone(), ..plain() }.run();
    let lengths = Attention { lengths: true, ..plain().op };
    Check { batch: 3, lengths: Some(vec![0, 129, 256]), op: lengths.clone(), ..plain() }.run();
    let both = Attention { causal: true, ..lengths };
    Check { batch: 2, lengths: Some(vec![77, 200]), op: both, ..plain() }.run();
}

#[test]
fn scores_with_masks_caps_sinks_and_negative_scales() {
    let op = |edit: &dyn Fn(&mut Attention)| {
        let mut op = plain().op;
        edit(&mut op);
        op
    };
    Check { op: op(&|op| op.mask = MaskKind::Bias), ..plain() }.run();
    Check { op: op(&|op| op.softcap = Some(0.5)), ..plain() }.run();
    Check { op: op(&|op| op.sinks = true), heads: 2, ..plain() }.run();
    Check { op: op(&|op| op.scale = Some(-0.3)), keys: 200, ..plain() }.run();
}

#[test]
fn masked_values_may_be_infinite() {
    let op = Attention { causal: true, ..plain().op };
    Check { op, infinite: Some(200), ..plain() }.run();
}

#[test]
fn keys_in_pages() {
    let op = Attention { pages: true, lengths: true, causal: true, ..plain().op };
    Check { batch: 2, page: Some(32), lengths: Some(vec![250, 100]), op, ..plain() }.run();
}
