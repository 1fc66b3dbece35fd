//! Random formats and sizes against decoded weights and sums in f64, on every instruction set and on several threads.

use olivine_ir::op::{DequantGather, DequantMatMul, Scaling};
use olivine_ir::{BlockFormat, DType, Op, Tensor};

use crate::simd::{Vectors, limit_vectors};
use crate::{Threads, evaluate};

/// A linear congruential generator.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.next() % 2001) as f32 / 1000.0 - 1.0).collect()
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// Random blocks: valid ones where there is an encoder, otherwise bytes that are no NaN.
fn blocks(rng: &mut Rng, format: BlockFormat, elements: usize) -> Vec<u8> {
    if format.ggml_id().is_some() {
        return olivine_quant::encode(format, &rng.floats(elements), None).unwrap();
    }
    let mut bytes = rng.bytes(format.bytes_of(elements).unwrap());
    bytes.iter_mut().filter(|b| **b & 0x78 == 0x78).for_each(|b| *b ^= 0x40);
    bytes
}

fn decoded(format: BlockFormat, bytes: &[u8]) -> Vec<f32> {
    let mut all = vec![0.0; bytes.len() / format.bytes() * format.elements()];
    olivine_quant::decode(format, bytes, &mut all).unwrap();
    all
}

/// Runs an operation on every instruction set, on one to three threads.
fn everywhere(what: &str, op: &Op, operands: &[Tensor], check: &dyn Fn(&str, &[f32])) {
    for count in [1, 2, 3] {
        let threads = Threads::new(Some(count)).unwrap();
        for set in [Vectors::Base, Vectors::Avx2, Vectors::Avx512] {
            limit_vectors(set);
            let found = threads.install(|| evaluate(op, operands)).unwrap();
            check(&format!("{what} on {set:?}, {count} threads"), found[0].as_slice::<f32>().unwrap());
        }
    }
    limit_vectors(Vectors::Avx512);
}

/// `x[m, k] · w[n, ..]ᵀ` in f64, and the largest result.
fn expected(x: &[f32], w: &[f32], (m, n, k): (usize, usize, usize)) -> (Vec<f64>, f64) {
    let columns = w.len() / n;
    let dot = |i: usize| {
        let (x, w) = (&x[i / n * k..][..k], &w[i % n * columns..][..k]);
        x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
    };
    let all: Vec<f64> = (0..m * n).map(dot).collect();
    let largest = all.iter().fold(0.0, |l: f64, x| l.max(x.abs()));
    (all, largest)
}

/// Within a few roundings of the largest result.
fn close(what: &str, found: &[f32], (want, largest): &(Vec<f64>, f64)) {
    assert_eq!(found.len(), want.len(), "{what}");
    for (i, (f, w)) in found.iter().zip(want).enumerate() {
        let error = (f64::from(*f) - w).abs();
        assert!(error <= 16.0 * f64::from(f32::EPSILON) * largest + 1e-30, "{what} at {i}: {f}, not {w}");
    }
}

const ENCODED: &[BlockFormat] = &[
    BlockFormat::Q4_0,
    BlockFormat::Q4_1,
    BlockFormat::Q5_0,
    BlockFormat::Q5_1,
    BlockFormat::Q8_0,
    BlockFormat::Q4_K,
    BlockFormat::Q5_K,
    BlockFormat::Q6_K,
    BlockFormat::IQ4_NL,
    BlockFormat::IQ4_XS,
    BlockFormat::MXFP4,
    BlockFormat::Q2_K,
    BlockFormat::Q3_K,
];

#[test]
fn formats_with_their_own_scales_multiply_as_their_decoded_elements() {
    let mut rng = Rng(1);
    for round in 0..4 {
        for &format in ENCODED {
            let k = format.elements() * (1 + rng.below(if format.elements() == 32 { 17 } else { 4 }));
            let (m, n) = (1 + rng.below(if round == 0 { 40 } else { 9 }), 1 + rng.below(90));
            let (x, bytes) = (rng.floats(m * k), blocks(&mut rng, format, n * k));
            let want = expected(&x, &decoded(format, &bytes), (m, n, k));
            let w = Tensor::packed(format, [n, k], bytes).unwrap();
            let operands = [Tensor::new([m, k], x).unwrap(), w];
            let what = format!("{format} {m}x{n}x{k}");
            everywhere(&what, &DequantMatMul::new().into(), &operands, &|what, found| {
                close(what, found, &want);
            });
        }
    }
}

#[test]
fn a_last_block_may_be_longer_than_x() {
    let (mut rng, format) = (Rng(2), BlockFormat::Q5_1);
    for (m, k) in [(1, 70), (3, 65), (12, 90)] {
        let (x, bytes) = (rng.floats(m * k), blocks(&mut rng, format, 7 * 96));
        let want = expected(&x, &decoded(format, &bytes), (m, 7, k));
        let operands = [Tensor::new([m, k], x).unwrap(), Tensor::packed(format, [7, 96], bytes).unwrap()];
        everywhere("short", &DequantMatMul::new().into(), &operands, &|what, found| {
            close(what, found, &want)
        });
    }
}

#[test]
fn scales_and_zero_points_beside_the_elements_are_read_where_they_are() {
    let mut rng = Rng(3);
    let bare = [
        Some(BlockFormat::U4),
        Some(BlockFormat::I4),
        Some(BlockFormat::F8_E4M3),
        Some(BlockFormat::F8_E5M2),
        Some(BlockFormat::U2),
        None,
    ];
    for block in [16usize, 32, 48, 64, 128, 256, 20] {
        for format in bare {
            let k = block * (1 + rng.below(5)) * if block == 20 { 8 } else { 1 };
            let (m, n, blocks_of_row) = (1 + rng.below(11), 1 + rng.below(50), k / block);
            let x = rng.floats(m * k);
            let zero = format.is_none_or(|f| matches!(f, BlockFormat::U4 | BlockFormat::U2));
            let (bytes, w) = match format {
                Some(format) => {
                    let bytes = blocks(&mut rng, format, n * k);
                    let w = Tensor::packed(format, [n, k], bytes.clone()).unwrap();
                    (decoded(format, &bytes), w)
                }
                None => {
                    let bytes = rng.bytes(n * k);
                    (bytes.iter().map(|b| f32::from(*b)).collect(), Tensor::new([n, k], bytes).unwrap())
                }
            };
            let scales: Vec<half::f16> =
                (0..n * blocks_of_row).map(|_| half::f16::from_f32(0.01 + rng.below(9) as f32)).collect();
            let zeros: Vec<u8> = (0..n * blocks_of_row).map(|_| rng.below(16) as u8).collect();
            let weight: Vec<f32> = bytes
                .iter()
                .enumerate()
                .map(|(i, x)| {
                    let at = i / k * blocks_of_row + i % k / block;
                    let zero = if zero { f32::from(zeros[at]) } else { 0.0 };
                    (x - zero) * scales[at].to_f32()
                })
                .collect();
            let want = expected(&x, &weight, (m, n, k));
            let scales = Tensor::new([n, blocks_of_row], scales).unwrap();
            let zeros = Tensor::new([n, blocks_of_row], zeros).unwrap();
            let mut operands = vec![Tensor::new([m, k], x).unwrap(), w.clone(), scales.clone()];
            let index = Tensor::new([2], vec![0i32, -1]).unwrap();
            let mut rows = vec![w, index, scales];
            if zero {
                operands.push(zeros.clone());
                rows.push(zeros);
            }
            let scaling = Scaling { block, zero, offset: 0 };
            let what = format!("{format:?} by {block}: {m}x{n}x{k}");
            everywhere(&what, &DequantMatMul::scaled(scaling).into(), &operands, &|what, found| {
                close(what, found, &want);
            });
            let want = [&weight[..k], &weight[(n - 1) * k..]].concat();
            everywhere(&what, &DequantGather::new(DType::F32, scaling).into(), &rows, &|what, found| {
                assert_eq!(found, want, "{what}");
            });
        }
    }
}

#[test]
fn any_bytes_decode_to_the_same_bits_as_the_plain_decoder_has() {
    let mut rng = Rng(4);
    for &format in BlockFormat::ALL {
        let (n, k) = (5, 256 * (1 + rng.below(3)));
        let bytes = rng.bytes(format.bytes_of(n * k).unwrap());
        let want = decoded(format, &bytes);
        let index: Vec<i32> = (0..n as i32).collect();
        let operands = [Tensor::packed(format, [n, k], bytes).unwrap(), Tensor::new([n], index).unwrap()];
        let op = DequantGather::new(DType::F32, Scaling::NONE);
        everywhere(format.name(), &op.into(), &operands, &|what, found| {
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(found.iter().zip(&want).all(|(a, b)| same(*a, *b)), "{what}");
        });
    }
}

#[test]
fn experts_with_few_and_many_rows_give_what_each_alone_gives() {
    let mut rng = Rng(5);
    for (m, count) in [(1usize, 4usize), (3, 8), (40, 3), (64, 1)] {
        let (format, n, k) = (BlockFormat::Q4_K, 21, 512);
        let (x, bytes) = (rng.floats(m * k), blocks(&mut rng, format, count * n * k));
        let experts: Vec<i32> = (0..m).map(|_| rng.below(count) as i32).collect();
        let weights = decoded(format, &bytes);
        let of_row = |i: usize| {
            let w = &weights[experts[i] as usize * n * k..][..n * k];
            expected(&x[i * k..][..k], w, (1, n, k))
        };
        let rows: Vec<_> = (0..m).map(of_row).collect();
        let largest = rows.iter().fold(0.0, |l: f64, row| l.max(row.1));
        let want = (rows.into_iter().flat_map(|row| row.0).collect(), largest);
        let operands = [
            Tensor::new([m, k], x.clone()).unwrap(),
            Tensor::packed(format, [count, n, k], bytes).unwrap(),
            Tensor::new([m], experts.clone()).unwrap(),
        ];
        let op = DequantMatMul { grouped: true, ..DequantMatMul::new() };
        everywhere("experts", &op.into(), &operands, &|what, found| close(what, found, &want));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn fixed_point_is_as_near_as_its_digits_and_leaves_what_is_not_finite_to_f32() {
    use super::fixed;
    use super::weight::Weight;
    use crate::operand::Operand;
    // The processor, not the set in use: other tests change that meanwhile.
    let able = crate::simd::has_dot_products();
    let (mut rng, n) = (Rng(6), 5);
    let sizes = [32, 96, 128, 256, 384, 576, 768, 1024];
    let formats = [BlockFormat::Q4_0, BlockFormat::Q4_1, BlockFormat::Q8_0];
    let of_32 = sizes.into_iter().flat_map(|k| formats.map(|format| (format, k)));
    for (format, k) in of_32.chain([256, 768, 1024].map(|k| (BlockFormat::Q4_K, k))) {
        let w = Tensor::packed(format, [n, k], blocks(&mut rng, format, n * k)).unwrap();
        let weight = Weight::new(&Operand::packed(w.ty(), w.bytes()), Scaling::NONE, &[]);
        for m in [1, 2] {
            let mut x = rng.floats(m * k);
            // Groups of very different sizes, and one of zeros.
            x.iter_mut().enumerate().for_each(|(i, x)| *x *= [1.0, 1e-20, 3e4, 0.0][i / 32 % 4]);
            let want = expected(&x, &decoded(format, w.bytes()), (m, n, k));
            let prepared = fixed::prepare(&weight, &x);
            assert_eq!(prepared.is_some(), able, "{format} {m} {k}");
            if let Some(prepared) = prepared {
                let mut out = vec![0f32; m * n];
                let mut rows: Vec<&mut [f32]> = out.chunks_exact_mut(n).collect();
                fixed::multiply(&weight, 0..n, &prepared, &mut rows);
                for (found, want_one) in out.iter().zip(&want.0) {
                    let error = (f64::from(*found) - want_one).abs();
                    let bound = 6.0 * f64::from(f32::EPSILON) * want.1;
                    assert!(error <= bound, "{format} {m} {k}: {found}, not {want_one}");
                }
            }
            for odd in [f32::NAN, f32::INFINITY, 1e-36] {
                x[..32].fill(odd);
                assert!(fixed::prepare(&weight, &x).is_none());
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_largest_codes_and_elements_do_not_overflow_fixed_point() {
    use super::fixed;
    use super::weight::Weight;
    use crate::operand::Operand;
    let k = 512;
    let headers =
        [(BlockFormat::Q4_0, 2), (BlockFormat::Q4_1, 4), (BlockFormat::Q8_0, 2), (BlockFormat::Q4_K, 16)];
    for (format, header) in headers {
        for code in [0u8, 0x7f, 0x80, 0xff] {
            let mut block = vec![code; format.bytes()];
            // Scales, and minimums where there are some: f16 ones, then the largest of 6 bits.
            block[..header].fill(0xff);
            block[..header.min(4)].chunks_exact_mut(2).for_each(|one| one.copy_from_slice(&[0, 0x3c]));
            let w = Tensor::packed(format, [1, k], block.repeat(k / format.elements())).unwrap();
            let weight = Weight::new(&Operand::packed(w.ty(), w.bytes()), Scaling::NONE, &[]);
            for x in [vec![1.0f32; k], vec![-1.0; k], (0..k).map(|i| 1.0 - (i % 2) as f32 * 2.0).collect()] {
                let (want, _) = expected(&x, &decoded(format, w.bytes()), (1, 1, k));
                let size = expected(&[1.0].repeat(k), &decoded(format, w.bytes()), (1, 1, k)).1;
                let prepared = fixed::prepare(&weight, &x);
                assert_eq!(prepared.is_some(), crate::simd::has_dot_products());
                if let Some(prepared) = prepared {
                    let mut out = [0f32];
                    fixed::multiply(&weight, 0..1, &prepared, &mut [&mut out]);
                    let error = (f64::from(out[0]) - want[0]).abs();
                    let bound = 4.0 * f64::from(f32::EPSILON) * size;
                    assert!(error <= bound, "{format} {code}: {}, not {}", out[0], want[0]);
                }
            }
        }
    }
}
