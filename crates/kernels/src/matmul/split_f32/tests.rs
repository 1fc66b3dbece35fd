//! Split-f32 matmuls, interpreted: every layout of the operands, sizes that fill no tile, wild numbers, and accuracy.

use std::collections::HashMap;

use olivine_ir::{DType, Dim, Shape as Dims, TensorType, ValueId};
use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::ptx::{self, Capability, PtxOptions};
use olivine_kernel::{Elem, Fragments, MatrixShape, MatrixSupport, Target as Features};
use olivine_program::{Addressing, DeviceCaps, DeviceKind};
use olivine_ptx::{Module, Order};

use crate::matmul::epilogue::Destination;
use crate::matmul::problem::Problem;
use crate::matmul::split_f32;
use crate::matmul::split_f32::small_m::SplitF32SmallM;
use crate::matmul::split_f32::{SplitF32Config, SplitF32Tile, small_m};
use crate::matmul::warpgroup::{self, PathOfA};
use crate::site::{Memory, Operand, Site, Target};

fn card() -> DeviceCaps {
    let shape = MatrixShape { operand: Elem::F16, accumulator: Elem::F32, m: 16, n: 16, k: 16 };
    let target = Features {
        subgroup: Some(32),
        f16: true,
        exact_f16: false,
        f64: true,
        i64: true,
        i64_pairs: false,
        packed_dot: true,
        matrices: vec![shape],
        max_invocations: 1024,
        shared_bytes: 49152,
        matrix_support: MatrixSupport::Full,
        fragments: Some(Fragments::Quads),
        warpgroups: false,
        int8_warpgroups: false,
        device_fences: false,
    };
    DeviceCaps {
        name: "a card".into(),
        driver: "interpreter".into(),
        kind: DeviceKind::Discrete,
        target,
        addressing: Addressing::Pointers,
        max_groups: [65535; 3],
        max_buffer_bytes: 1 << 32,
        memory_bytes: 1 << 34,
        processors: None,
        keeps_denormals: true,
        ptx: None,
    }
}

/// A tensor of f32 in memory; the last two axes of `turned` ones are exchanged in memory.
struct Input {
    dims: Vec<usize>,
    turned: bool,
    stored: bool,
    data: Vec<f32>,
}

impl Input {
    /// Of row-major elements.
    fn new(dims: &[usize], data: Vec<f32>) -> Self {
        Input { dims: dims.to_vec(), turned: false, stored: false, data }
    }

    fn turned(self) -> Self {
        Input { turned: true, ..self }
    }

    fn operand(&self, number: u32) -> Operand {
        let shape = Dims::new(&self.dims).unwrap();
        let mut strides: Vec<i64> = shape.strides().iter().map(|s| *s as i64).collect();
        if self.turned {
            let [.., rows, _] = self.dims[..] else { panic!("no matrix") };
            let last = strides.len();
            strides[last - 2..].copy_from_slice(&[1, rows as i64]);
        }
        let ty = TensorType::new(DType::F32, shape);
        let strides = strides.into_iter().map(Dim::from).collect();
        Operand {
            ty,
            strides,
            offset: Dim::ZERO,
            memory: Memory::Value(ValueId::new(number)),
            stored: self.stored,
        }
    }

    /// The bytes in their own layout.
    fn bytes(&self) -> Vec<u8> {
        let [.., rows, columns] = self.dims[..] else { panic!("no matrix") };
        let matrices = self.data.chunks(rows * columns);
        let lying = matrices.flat_map(|m| {
            let at = |i: usize| match self.turned {
                true => m[i % rows * columns + i / rows],
                false => m[i],
            };
            (0..m.len()).map(at).collect::<Vec<f32>>()
        });
        lying.flat_map(f32::to_le_bytes).collect()
    }
}

/// One way or the other.
#[derive(Clone, Copy, Debug)]
enum Way {
    Block(SplitF32Config),
    SmallM(SplitF32SmallM),
    /// By warpgroups, interpreted, or emulated as PTX in that order.
    Warpgroup(Option<Order>),
}

const WARPGROUP: Way = Way::Warpgroup(None);

impl From<SplitF32Config> for Way {
    fn from(config: SplitF32Config) -> Self {
        Way::Block(config)
    }
}

impl From<SplitF32SmallM> for Way {
    fn from(cut: SplitF32SmallM) -> Self {
        Way::SmallM(cut)
    }
}

/// Runs a matmul of two inputs by three.
fn matmul(a: &Input, b: &Input, way: impl Into<Way>) -> Vec<f32> {
    let way = way.into();
    let mut caps = card();
    caps.target.warpgroups = matches!(way, Way::Warpgroup(_));
    // One workgroup has all tiles.
    caps.processors = Some(1);
    let (m, n) = (a.dims[a.dims.len() - 2], b.dims[b.dims.len() - 1]);
    let longer = if a.dims.len() > b.dims.len() { &a.dims } else { &b.dims };
    let mut dims = longer[..longer.len() - 2].to_vec();
    dims.extend([m, n]);
    let shape = Dims::new(&dims).unwrap();
    let target = Target { ty: TensorType::new(DType::F32, shape), memory: Memory::Value(ValueId::new(2)) };
    let operands = vec![a.operand(0), b.operand(1)];
    let problem = Problem::new(&operands, &target, None).unwrap();
    let mut site = Site::new(&caps, operands, vec![target.clone()]);
    let size = 4 * shape.numel() as u64;
    let splits = match way {
        Way::Block(config) => config.splits,
        Way::SmallM(_) | Way::Warpgroup(_) => 1,
    };
    let parts = (splits > 1).then(|| site.scratch(size * splits as u64));
    let destination = parts.map_or(Destination::Target, Destination::Partials);
    match way {
        Way::Block(config) => split_f32::emit(&problem, config, &destination, &mut site).unwrap(),
        Way::SmallM(cut) => small_m::emit(&problem, cut, &destination, &mut site).unwrap(),
        Way::Warpgroup(_) => warpgroup::emit(&problem, PathOfA::Packed, &mut site).unwrap(),
    }
    if let Some(parts) = parts {
        crate::matmul::split_k::emit(&problem, parts, splits, &[], &mut site).unwrap();
    }
    for emitted in &site.emitted {
        // The kernels read packed operands as words.
        assert_eq!(emitted.dtype, DType::F32);
        assert_eq!(emitted.fallback, emitted.kernel.name == "matmul_tiled", "{}", emitted.kernel.name);
    }
    let mut memory: HashMap<Memory, Vec<u8>> = HashMap::new();
    memory.insert(Memory::Value(ValueId::new(0)), a.bytes());
    memory.insert(Memory::Value(ValueId::new(1)), b.bytes());
    memory.insert(target.memory, vec![0xff; size as usize]);
    for emitted in &site.emitted {
        let (args, params) = emitted.bound.parts();
        let take = |m: &Memory| {
            let fresh = || match m {
                Memory::Scratch { bytes, .. } => vec![0xff; bytes.dim().specialize().unwrap()],
                Memory::LoadScratch { bytes, .. } => vec![0xff; *bytes as usize],
                Memory::Prepacked(i) => vec![0xff; site.prepacked[*i].bytes as usize],
                _ => panic!("{m:?} was never written"),
            };
            memory.get(m).cloned().unwrap_or_else(fresh)
        };
        let mut buffers: Vec<Vec<u8>> = args.iter().map(take).collect();
        let (kernel, groups) = (&emitted.kernel, emitted.group_numbers());
        if let Way::Warpgroup(Some(order)) = way {
            let text = ptx::print(kernel, &PtxOptions { capability: Capability::HOPPER }).unwrap();
            let module = Module::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
            module
                .run(groups, &mut buffers, &params, order)
                .unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
        } else {
            interpret(kernel, 32, groups, &mut buffers, &params, Device::EXACT)
                .unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
        }
        let written = emitted.kernel.args.iter().map(|arg| arg.access.writes());
        let kept = args.iter().zip(buffers).zip(written).filter(|(_, written)| *written);
        memory.extend(kept.map(|((memory, bytes), _)| (*memory, bytes)));
    }
    let out = &memory[&target.memory];
    out.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The matmul in f64, and by one f32 after another.
fn expected(a: &Input, b: &Input) -> (Vec<f64>, Vec<f32>) {
    let [.., m, k] = a.dims[..] else { panic!("no matrix") };
    let n = b.dims[b.dims.len() - 1];
    let batches = (a.data.len() / (m * k)).max(b.data.len() / (k * n));
    let (mut exact, mut single) = (Vec::new(), Vec::new());
    for batch in 0..batches {
        let x = &a.data[batch * m * k % a.data.len()..];
        let y = &b.data[batch * k * n % b.data.len()..];
        for i in 0..m * n {
            let terms = (0..k).map(|d| (x[i / n * k + d], y[d * n + i % n]));
            exact.push(terms.clone().map(|(x, y)| f64::from(x) * f64::from(y)).sum());
            single.push(terms.fold(0f32, |sum, (x, y)| x.mul_add(y, sum)));
        }
    }
    (exact, single)
}

fn relative_l2(found: &[f32], exact: &[f64]) -> f64 {
    let error: f64 = found.iter().zip(exact).map(|(x, y)| (f64::from(*x) - y).powi(2)).sum();
    (error / exact.iter().map(|y| y * y).sum::<f64>()).sqrt()
}

/// Numbers that look random (splitmix64), uniform in (0, 1).
fn uniform(seed: u64, count: usize) -> impl Iterator<Item = f64> {
    (0..count as u64).map(move |i| {
        let mut z = (seed * 1_000_003 + i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    })
}

fn normal(seed: u64, count: usize) -> impl Iterator<Item = f64> {
    let pairs = uniform(seed, count).zip(uniform(seed + 77, count));
    pairs.map(|(u, v)| (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos())
}

fn numbers(seed: u64, dims: &[usize]) -> Input {
    let count = dims.iter().product();
    Input::new(dims, normal(seed, count).map(|x| x as f32).collect())
}

const SMALL: SplitF32Tile = SplitF32Tile { m: 64, n: 64, k: 32, rows: 32, columns: 32 };

/// Small blocks of one subgroup's rows and columns to four that share the indices along K.
const SHARED: SplitF32SmallM = SplitF32SmallM { rows: 32, columns: 32, k_step: 32, slices: 4 };

fn whole(blocks: SplitF32Tile) -> SplitF32Config {
    SplitF32Config { blocks, splits: 1, raw: false, direct: false }
}

fn check(a: &Input, b: &Input, way: impl Into<Way>) {
    let (exact, single) = expected(a, b);
    let config = way.into();
    let found = matmul(a, b, config);
    let (error, of_single) = (relative_l2(&found, &exact), relative_l2(&single, &exact));
    // Tiles, which take the place of parts that serve badly, give other bits.
    assert!(a.dims[a.dims.len() - 1] < 64 || found != single, "{config:?} was not used");
    assert!(
        error <= of_single.max(3e-7),
        "{:?} {:?} {config:?}: {error:e}, f32 {of_single:e}",
        a.dims,
        b.dims
    );
}

#[test]
fn any_size_and_layout_is_multiplied() {
    for (m, n, k) in [(70, 40, 100), (33, 81, 37), (9, 12, 5)] {
        for turn in 0..4 {
            let (mut a, mut b) = (numbers(1, &[m, k]), numbers(2, &[k, n]));
            if turn & 1 != 0 {
                a = a.turned();
            }
            if turn & 2 != 0 {
                b = b.turned();
            }
            check(&a, &b, whole(SMALL));
            if turn & 1 == 0 {
                check(&a, &b, SplitF32Config { raw: true, direct: turn == 0, ..whole(SMALL) });
                check(&a, &b, SplitF32Config { direct: true, ..whole(SMALL) });
            }
        }
    }
}

#[test]
fn every_block_multiplies_in_parts_too() {
    for blocks in split_f32::BLOCKS {
        check(&numbers(3, &[70, 72]), &numbers(4, &[72, 132]), whole(blocks));
        for raw in [false, true] {
            check(
                &numbers(3, &[20, 180]),
                &numbers(4, &[180, 36]),
                SplitF32Config { blocks, splits: 3, raw, direct: raw },
            );
        }
    }
}

#[test]
fn batches_may_share_an_operand() {
    for (a, b) in [(vec![3, 20, 40], vec![3, 40, 24]), (vec![20, 40], vec![3, 40, 24])] {
        check(&numbers(5, &a), &numbers(6, &b), whole(SMALL));
        check(&numbers(5, &a), &numbers(6, &b), SplitF32Config { raw: true, ..whole(SMALL) });
        check(&numbers(5, &a).turned(), &numbers(6, &b).turned(), whole(SMALL));
    }
}

#[test]
fn a_stored_operand_becomes_planes_at_load() {
    let weights = |turned: bool| {
        let b = Input { stored: true, ..numbers(14, &[70, 50]) };
        if turned { b.turned() } else { b }
    };
    for turned in [false, true] {
        for direct in [false, true] {
            check(
                &numbers(13, &[40, 70]),
                &weights(turned),
                SplitF32Config { raw: direct, direct, ..whole(SMALL) },
            );
        }
    }
}

#[test]
fn errors_are_not_above_those_of_single_precision() {
    let (m, n, k) = (48, 48, 384);
    let of = |f: &dyn Fn(f64, f64) -> f64, seed: u64, count: usize| -> Vec<f32> {
        let pairs = normal(seed, count).zip(uniform(seed + 5, count));
        pairs.map(|(x, u)| f(x, u) as f32).collect()
    };
    let sign = |u: f64| if u < 0.5 { -1.0 } else { 1.0 };
    let distributions: [&dyn Fn(f64, f64) -> f64; 5] =
        [&|x, _| x, &|_, u| u, &|x, u| sign(u) * (3.0 * x).exp(), &|x, _| 1e-4 * x, &|x, _| 1e4 * x];
    for (i, distribution) in distributions.iter().enumerate() {
        let a = Input::new(&[m, k], of(distribution, 10 + i as u64, m * k));
        let b = Input::new(&[k, n], of(distribution, 20 + i as u64, k * n));
        let (exact, single) = expected(&a, &b);
        let ways: [Way; 3] = [whole(SMALL).into(), SHARED.into(), WARPGROUP];
        for way in ways {
            let found = matmul(&a, &b, way);
            let (error, of_single) = (relative_l2(&found, &exact), relative_l2(&single, &exact));
            assert!(error <= of_single, "distribution {i}, {way:?}: {error:e}, f32 {of_single:e}");
        }
    }
}

#[test]
fn a_row_that_hangs_on_one_element_sends_its_matrix_to_single_precision() {
    for (splits, turn) in [(1, false), (2, false), (1, true)] {
        let (m, n, k) = (20, 24, 512);
        let (mut a, mut b) = (numbers(11, &[2, m, k]), numbers(12, &[2, k, n]));
        match turn {
            true => b.data[k * n + 100 * n + 3] = 1e6,
            false => a.data[m * k + 9 * k + 77] = 1e6,
        }
        let found = matmul(&a, &b, SplitF32Config { splits, ..whole(SMALL) });
        let (_, single) = expected(&a, &b);
        // The second matrix alone is wild.
        let same: Vec<usize> = found
            .chunks(m * n)
            .zip(single.chunks(m * n))
            .map(|(f, s)| f.iter().zip(s).filter(|(x, y)| x == y).count())
            .collect();
        assert!(same[0] < m * n / 2, "{same:?}");
        if splits == 1 {
            assert_eq!(same[1], m * n);
        }
        let (exact, _) = expected(&a, &b);
        assert!(relative_l2(&found, &exact) < 1e-6);
    }
}

#[test]
fn rows_of_any_magnitude_keep_their_precision() {
    let (m, n, k) = (16, 16, 64);
    let magnitudes = [1e30f32, 1e-30, 1.0, 1e-38, 3e38, 0.0, 1e-42, 1e10];
    let mut a = numbers(7, &[m, k]);
    let mut b = numbers(8, &[k, n]);
    for (i, x) in a.data.iter_mut().enumerate() {
        // Below 1, so that what is scaled stays in range.
        *x = x.clamp(-1.0, 1.0) * magnitudes[i / k % 8];
    }
    for (i, y) in b.data.iter_mut().enumerate() {
        *y *= if i % n % 2 == 0 { 1.0 } else { 1e-8 };
    }
    let (exact, _) = expected(&a, &b);
    let ways: [Way; 3] = [whole(SMALL).into(), SHARED.into(), WARPGROUP];
    for (found, i) in ways.iter().flat_map(|way| matmul(&a, &b, *way).into_iter().zip(0..)) {
        let terms =
            (0..k).map(|d| (f64::from(a.data[i / n * k + d]) * f64::from(b.data[d * n + i % n])).abs());
        // Half a unit of the least denormal to a term, or a few of the sum of magnitudes in single precision.
        let bound = (terms.sum::<f64>() * 4e-7).max(0.7e-45 * k as f64);
        let limit = f64::from(f32::MAX);
        if exact[i].abs() < limit {
            assert!((f64::from(found) - exact[i]).abs() <= bound, "{i}: {found} for {}", exact[i]);
        } else {
            assert!(found.is_infinite(), "{i}: {found}");
        }
    }
}

#[test]
fn infinities_and_nan_spread_as_in_single_precision() {
    let (m, n, k) = (70, 70, 40);
    for turn in [false, true] {
        let (mut a, mut b) = (numbers(9, &[m, k]), numbers(10, &[k, n]));
        a.data[3 * k + 5] = f32::INFINITY;
        a.data[68 * k + 7] = f32::NAN;
        a.data[40 * k + 39] = f32::from_bits(0xffff_ffff);
        a.data[10 * k] = f32::INFINITY;
        a.data[10 * k + 1] = f32::NEG_INFINITY;
        b.data[5 * n + 6] = 0.0;
        b.data[9 * n + 69] = f32::NEG_INFINITY;
        a.data[20 * k + 9] = 0.0;
        if turn {
            (a, b) = (a.turned(), b.turned());
        }
        let (_, single) = expected(&a, &b);
        let mut ways: Vec<Way> =
            vec![SplitF32Config { raw: !turn, direct: !turn, ..whole(SMALL) }.into(), WARPGROUP];
        if !turn {
            ways.push(SHARED.into());
        }
        for way in ways {
            for (i, (x, y)) in matmul(&a, &b, way).iter().zip(&single).enumerate() {
                let same = if y.is_finite() {
                    (x - y).abs() <= 1e-5 * y.abs().max(1.0)
                } else {
                    x == y || (x.is_nan() && y.is_nan())
                };
                assert!(same, "row {}, column {}: {x} for {y}, {way:?}", i / n, i % n);
            }
        }
    }
}

#[test]
fn warpgroups_multiply_any_size_layout_and_batch() {
    let stored = |b: Input| Input { stored: true, ..b };
    for order in [Order::Ascending, Order::Descending] {
        let emulated = Way::Warpgroup(Some(order));
        check(&numbers(1, &[70, 100]), &numbers(2, &[100, 140]), emulated);
        check(&numbers(1, &[130, 257]).turned(), &stored(numbers(2, &[257, 40]).turned()), emulated);
        check(&numbers(5, &[3, 20, 72]).turned(), &numbers(6, &[3, 72, 24]), emulated);
    }
    check(&numbers(1, &[200, 300]), &stored(numbers(2, &[300, 300])), WARPGROUP);
    check(&numbers(5, &[20, 72]), &numbers(6, &[3, 72, 24]), WARPGROUP);
    check(&numbers(5, &[3, 20, 72]), &numbers(6, &[72, 24]).turned(), WARPGROUP);
}

#[test]
fn warpgroups_leave_outliers_to_single_precision_batch_by_batch() {
    let (m, n, k) = (20, 24, 512);
    for (side, wild) in [(0, 1e6), (1, 1e6), (0, f32::NAN), (1, f32::INFINITY)] {
        let (mut a, mut b) = (numbers(11, &[2, m, k]), numbers(12, &[2, k, n]));
        match side {
            0 => a.data[m * k + 9 * k + 77] = wild,
            _ => b.data[k * n + 100 * n + 3] = wild,
        }
        let found = matmul(&a, &b, WARPGROUP);
        let (exact, single) = expected(&a, &b);
        let equal = |(x, y): &(&f32, &f32)| x == y || (x.is_nan() && y.is_nan());
        let same: Vec<usize> = found
            .chunks(m * n)
            .zip(single.chunks(m * n))
            .map(|(f, s)| f.iter().zip(s).filter(equal).count())
            .collect();
        assert!(same[0] < m * n / 2 && same[1] == m * n, "{same:?}");
        assert!(relative_l2(&found[..m * n], &exact[..m * n]) < 1e-6);
    }
}

#[test]
fn lanes_multiply_rows_of_any_size() {
    let b = |k: usize, n: usize, turned: bool| {
        let b = Input { stored: true, ..numbers(2, &[k, n]) };
        if turned { b.turned() } else { b }
    };
    for (m, n, k) in [(70, 40, 100), (33, 81, 38), (9, 12, 6), (40, 64, 320)] {
        for turned in [false, true] {
            check(&numbers(1, &[m, k]), &b(k, n, turned), SHARED);
        }
    }
    let more = [
        SplitF32SmallM { k_step: 16, slices: 1, ..SHARED },
        SplitF32SmallM { rows: 64, k_step: 64, slices: 8, ..SHARED },
    ];
    for cut in more.into_iter().chain(small_m::CUTS) {
        check(&numbers(3, &[70, 180]), &b(180, 132, false), cut);
    }
    check(&numbers(5, &[3, 20, 40]), &numbers(6, &[3, 40, 24]), SHARED);
    check(&numbers(5, &[20, 40]), &numbers(6, &[3, 40, 24]), SHARED);
}
