//! Matmuls by warpgroups, interpreted and, printed as PTX, emulated, held against exact sums; and which matmuls get them.

use olivine_ir::op::{Arg, Binary, Instr, InstrOp, Region, ScalarOp, Unary};
use olivine_ir::{DType, Dim, Shape, TensorType, ValueId};
use olivine_kernel::Kernel;
use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::ptx::{self, Capability, PtxOptions};
use olivine_program::DeviceCaps;
use olivine_ptx::{Module, Order};

use crate::matmul::coop::tests::{bits, card, number, run_by};
use crate::matmul::problem::Problem;
use crate::matmul::warpgroup::{self, PathOfA};
use crate::site::{Memory, Operand, Site, Target};

/// Runs a kernel: its workgroups, buffers and parameters.
pub(super) type Launch<'l> = dyn Fn(&Kernel, [u32; 3], &mut [Vec<u8>], &[u32]) + 'l;

/// A card of Hopper with so many cores.
pub(super) fn hopper(cores: u32) -> DeviceCaps {
    let mut caps = card();
    caps.target.warpgroups = true;
    caps.target.int8_warpgroups = true;
    caps.ptx = Some(Capability::HOPPER);
    caps.processors = Some(cores);
    caps
}

/// What becomes of the sums.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Nothing,
    /// A bias and a residual are added.
    Added,
    /// A bias is added, and so many limits are set that few copies of the epilogue are made.
    Long,
    /// Even columns, limited, times odd ones.
    Gated,
}

impl End {
    fn region(self, dtype: DType) -> Option<Region> {
        let scalar = |op, a, b| Instr { op: InstrOp::Scalar(ScalarOp::Binary(op)), args: vec![a, b] };
        let splat = |x| Instr { op: InstrOp::Splat(dtype, x), args: Vec::new() };
        use Arg::{Input, Instr as Made};
        let limited = |first: Instr| {
            let limits = [splat(-8.0), splat(9.0), splat(-5.0), first];
            let held = [(Binary::Max, 0), (Binary::Min, 1), (Binary::Max, 2)];
            let held = (3..).zip(held).map(|(i, (op, limit))| scalar(op, Made(i), Made(limit)));
            limits.into_iter().chain(held).collect::<Vec<_>>()
        };
        let (inputs, instrs) = match self {
            End::Nothing => return None,
            End::Added => {
                let sum = scalar(Binary::Add, Input(0), Input(1));
                (3, vec![sum, scalar(Binary::Add, Made(0), Input(2))])
            }
            End::Long => (2, limited(scalar(Binary::Add, Input(0), Input(1)))),
            End::Gated => {
                let first = Instr { op: InstrOp::Scalar(ScalarOp::Unary(Unary::Neg)), args: vec![Input(0)] };
                let mut all = limited(first);
                all.push(scalar(Binary::Mul, Made(6), Input(1)));
                (2, all)
            }
        };
        let last = instrs.len() - 1;
        Some(Region { inputs, instrs, outputs: vec![Made(last)] })
    }
}

/// A matmul to be checked.
#[derive(Clone, Copy, Debug)]
struct Check {
    dtype: DType,
    batches: usize,
    /// Rows, columns, K.
    sizes: [usize; 3],
    /// Whether K is the outer axis of A, and the inner axis of B.
    turned: [bool; 2],
    /// Whether all batches have the same B, and whether B is a weight.
    alike: bool,
    stored: bool,
    path: PathOfA,
    end: End,
    cores: u32,
}

const PLAIN: Check = Check {
    dtype: DType::F16,
    batches: 1,
    sizes: [128, 256, 256],
    turned: [false; 2],
    alike: true,
    stored: true,
    path: PathOfA::Rows,
    end: End::Nothing,
    cores: 1,
};

impl Check {
    fn operand(&self, id: u32, dims: [usize; 3], turned: bool) -> Operand {
        let [batches, rows, columns] = dims;
        let ty = TensorType::new(self.dtype, Shape::new(&dims).unwrap());
        let inner = if turned { [1, rows] } else { [columns, 1] };
        let outer = if batches == 1 { 0 } else { rows * columns };
        Operand {
            ty,
            strides: [outer, inner[0], inner[1]].map(Dim::from).to_vec(),
            offset: Dim::ZERO,
            memory: Memory::Value(ValueId::new(id)),
            stored: false,
        }
    }

    fn run(self) {
        let Check { dtype, batches, sizes: [m, n, k], turned, alike, .. } = self;
        let (caps, size) = (hopper(self.cores), dtype.size());
        let of_b = if alike { 1 } else { batches };
        let a = self.operand(0, [batches, m, k], turned[0]);
        let b = Operand { stored: self.stored, ..self.operand(1, [of_b, k, n], turned[1]) };
        let wide = if self.end == End::Gated { n / 2 } else { n };
        let ty = TensorType::new(dtype, Shape::new(&[batches, m, wide]).unwrap());
        let target = Target { ty, memory: Memory::Value(ValueId::new(2)) };
        let bias = self.operand(3, [1, 1, n], false);
        let residual = self.operand(4, [batches, m, n], false);
        let extras = match self.end {
            End::Nothing | End::Gated => vec![],
            End::Added => vec![bias, residual],
            End::Long => vec![bias],
        };
        let operands: Vec<Operand> = [a, b].into_iter().chain(extras).collect();
        let mut site = Site::new(&caps, operands.clone(), vec![target.clone()]);
        let region = self.end.region(dtype);
        let problem = match (&region, self.end) {
            (Some(region), End::Gated) => Problem::of_gated(&operands, &target, region).unwrap(),
            _ => Problem::new(&operands, &target, region.as_ref()).unwrap(),
        };
        warpgroup::emit(&problem, self.path, &mut site).unwrap();
        let fill = |count: usize, skew: usize| -> Vec<u8> {
            (0..count).flat_map(|i| bits(dtype, number(i, skew))).collect()
        };
        let given = || {
            let (a, b) = (fill(batches * m * k, 0), fill(of_b * k * n, 5));
            [a, b, vec![0xff; size * batches * m * wide], fill(n, 2), fill(batches * m * n, 3)]
        };
        let expected = self.expected();
        let check = |what: &str, launch: &Launch<'_>| {
            let memory = run_by(&site, given(), launch);
            let found = &memory[&Memory::Value(ValueId::new(2))];
            for (i, want) in expected.iter().enumerate() {
                let at = |i: usize| (i / wide / m, i / wide % m, i % wide);
                assert_eq!(found[size * i..][..size], bits(dtype, *want), "{self:?}, {what}: {:?}", at(i));
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

    /// Whole numbers, so that f32 sums of any order are exact; the epilogue's steps are rounded to the type.
    fn expected(self) -> Vec<f32> {
        let Check { dtype, batches, sizes: [m, n, k], turned, alike, .. } = self;
        let rounded = |x: f32| match dtype {
            DType::F32 => x,
            DType::F16 => olivine_ir::half::f16::from_f32(x).to_f32(),
            _ => olivine_ir::half::bf16::from_f32(x).to_f32(),
        };
        let sum = |batch: usize, i: usize, j: usize| -> f32 {
            let of_b = if alike { 0 } else { batch };
            let a = |l: usize| batch * m * k + if turned[0] { l * m + i } else { i * k + l };
            let b = |l: usize| of_b * k * n + if turned[1] { j * k + l } else { l * n + j };
            (0..k).map(|l| f64::from(number(a(l), 0)) * f64::from(number(b(l), 5))).sum::<f64>() as f32
        };
        let wide = if self.end == End::Gated { n / 2 } else { n };
        let mut all = Vec::with_capacity(batches * m * wide);
        for at in 0..batches * m * wide {
            let (batch, i, j) = (at / wide / m, at / wide % m, at % wide);
            let residual = number((batch * m + i) * n + j, 3);
            all.push(match self.end {
                End::Nothing => sum(batch, i, j),
                End::Added => rounded(rounded(sum(batch, i, j)) + number(j, 2)) + residual,
                End::Long => rounded(rounded(sum(batch, i, j)) + number(j, 2)).clamp(-5.0, 9.0),
                End::Gated => {
                    let gate = (-rounded(sum(batch, i, 2 * j))).clamp(-5.0, 9.0);
                    gate * rounded(sum(batch, i, 2 * j + 1))
                }
            });
        }
        all
    }
}

#[test]
fn tiles_and_rings_that_wrap_give_the_sums() {
    for path in [PathOfA::Rows, PathOfA::Packed] {
        Check { path, ..PLAIN }.run();
        // Several tiles to a workgroup, several blocks of K, both workgroups busy or one idle in the last wave.
        Check { path, sizes: [384, 512, 512], cores: 4, ..PLAIN }.run();
    }
    Check { dtype: DType::BF16, sizes: [256, 256, 256], ..PLAIN }.run();
}

#[test]
fn sizes_that_end_inside_of_tiles_are_cut() {
    let odd = Check { path: PathOfA::Packed, ..PLAIN };
    for (sizes, turned) in [
        ([1, 1, 1], [false, false]),
        ([70, 33, 31], [false, true]),
        ([129, 257, 300], [true, false]),
        ([130, 262, 264], [false, false]),
        ([64, 100, 520], [true, true]),
    ] {
        Check { sizes, turned, stored: false, ..odd }.run();
    }
    Check { dtype: DType::BF16, sizes: [67, 30, 258], turned: [false, true], ..odd }.run();
    // Rows as they are, past the last of which nothing is read.
    Check { sizes: [131, 259, 256], ..PLAIN }.run();
}

#[test]
fn batches_have_their_own_operands_or_share_one() {
    // One B for all batches makes them rows, unless A has rows in another order.
    for (path, turned) in [(PathOfA::Rows, [false; 2]), (PathOfA::Packed, [true, false])] {
        for alike in [true, false] {
            let check = Check { batches: 3, alike, path, turned, stored: false, ..PLAIN };
            Check { sizes: [40, 130, 256], end: End::Added, ..check }.run();
        }
    }
}

#[test]
fn every_epilogue_takes_the_sums() {
    for end in [End::Added, End::Long, End::Gated] {
        Check { end, sizes: [130, 260, 256], ..PLAIN }.run();
        Check { end, sizes: [66, 134, 100], path: PathOfA::Packed, dtype: DType::BF16, ..PLAIN }.run();
    }
    // Columns that no vector holds.
    for end in [End::Added, End::Long] {
        Check { end, sizes: [70, 131, 256], ..PLAIN }.run();
    }
}

#[test]
fn whole_numbers_of_f32_are_exact_in_two_parts() {
    let f32 = Check { dtype: DType::F32, path: PathOfA::Packed, sizes: [128, 128, 128], ..PLAIN };
    f32.run();
    // Several tiles to a workgroup, several blocks of K.
    Check { sizes: [257, 384, 384], cores: 3, ..f32 }.run();
    for (sizes, turned) in [
        ([1, 1, 1], [false, false]),
        ([70, 33, 31], [false, true]),
        ([129, 257, 300], [true, false]),
        ([64, 100, 200], [true, true]),
    ] {
        Check { sizes, turned, stored: false, ..f32 }.run();
        Check { sizes, turned, ..f32 }.run();
    }
    for (alike, turned) in
        [(true, [false; 2]), (false, [false, true]), (true, [true, false]), (false, [true; 2])]
    {
        let check = Check { batches: 3, alike, turned, stored: alike, end: End::Added, ..f32 };
        Check { sizes: [40, 130, 72], ..check }.run();
    }
    for end in [End::Added, End::Long, End::Gated] {
        Check { end, sizes: [130, 260, 96], ..f32 }.run();
    }
    for end in [End::Added, End::Long] {
        Check { end, sizes: [70, 131, 33], ..f32 }.run();
    }
}

/// What a matmul of f16 gets.
fn chosen(sizes: [usize; 3], stored: [bool; 2], caps: &DeviceCaps) -> Option<PathOfA> {
    chosen_of(DType::F16, sizes, stored, caps)
}

fn chosen_of(
    dtype: DType,
    sizes: [usize; 3],
    [a_stored, b_stored]: [bool; 2],
    caps: &DeviceCaps,
) -> Option<PathOfA> {
    let [m, n, k] = sizes;
    let check = Check { dtype, sizes, ..PLAIN };
    let a = Operand { stored: a_stored, ..check.operand(0, [1, m, k], false) };
    let b = Operand { stored: b_stored, ..check.operand(1, [1, k, n], false) };
    let ty = TensorType::new(dtype, Shape::new(&[1, m, n]).unwrap());
    let target = Target { ty, memory: Memory::Value(ValueId::new(2)) };
    let problem = Problem::new(&[a, b], &target, None).unwrap();
    warpgroup::choose(&problem, &crate::matmul::tests::shape([m, n, k, 1]), caps)
}

#[test]
fn large_matmuls_get_warpgroups_where_the_device_has_them() {
    let h200 = hopper(132);
    let weight = [false, true];
    assert_eq!(chosen([4096, 4096, 4096], weight, &h200), Some(PathOfA::Rows));
    assert_eq!(chosen([4096, 4096, 4096], [false, false], &h200), Some(PathOfA::Rows));
    // K that ends inside of a block, and rows that are not aligned.
    assert_eq!(chosen([4096, 4096, 4000], weight, &h200), Some(PathOfA::Packed));
    assert_eq!(chosen([4096, 4096, 4097], weight, &h200), Some(PathOfA::Packed));
    // Too few tiles, mostly empty ones, a short K, packing that few rows pay for.
    assert_eq!(chosen([128, 768, 768], weight, &h200), None);
    assert_eq!(chosen([1024, 1024, 1024], weight, &h200), None);
    assert_eq!(chosen([16, 65536, 4096], weight, &h200), None);
    assert_eq!(chosen([4096, 4096, 256], weight, &h200), None);
    assert_eq!(chosen([256, 32768, 4096], [false, false], &h200), None);
    assert_eq!(chosen([256, 32768, 4096], weight, &h200), Some(PathOfA::Rows));
    // f32 is packed always, and worth fuller waves.
    let f32 = |sizes| chosen_of(DType::F32, sizes, weight, &h200);
    assert_eq!(f32([4096, 4096, 4096]), Some(PathOfA::Packed));
    assert_eq!(f32([512, 4096, 4096]), Some(PathOfA::Packed));
    assert_eq!(f32([256, 4096, 4096]), None);
    assert_eq!(f32([128, 768, 768]), None);
    // The same device through SPIR-V.
    let mut spirv = hopper(132);
    spirv.target.warpgroups = false;
    assert_eq!(chosen([4096, 4096, 4096], weight, &spirv), None);
}
