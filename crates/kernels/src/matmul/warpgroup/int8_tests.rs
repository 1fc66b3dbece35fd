//! Matmuls of 8-bit integers by warpgroups, interpreted and, printed as PTX, emulated, held against sums in i64 that wrap; and
//! which matmuls get them.

use olivine_ir::{DType, Dim, Shape, TensorType, ValueId};
use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::ptx::{self, Capability, PtxOptions};
use olivine_program::DeviceCaps;
use olivine_ptx::{Module, Order};

use crate::matmul::coop::tests::run_by;
use crate::matmul::problem::Problem;
use crate::matmul::warpgroup::tests::{Launch, hopper};
use crate::matmul::warpgroup::{self, PathOfA, ZeroOperands};
use crate::site::{Memory, Operand, Site, Target};

/// A zero point.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Zero {
    None,
    One,
    /// One to a row of A or column of B.
    Each,
}

/// A matmul to be checked.
#[derive(Clone, Copy, Debug)]
struct Check {
    dtypes: [DType; 2],
    batches: usize,
    /// Rows, columns, K.
    sizes: [usize; 3],
    /// Whether K is the outer axis of A, and the inner axis of B.
    turned: [bool; 2],
    /// Whether all batches have the same B, and whether B is a weight.
    alike: bool,
    stored: bool,
    path: PathOfA,
    zeros: [Zero; 2],
    cores: u32,
}

const PLAIN: Check = Check {
    dtypes: [DType::I8, DType::I8],
    batches: 1,
    sizes: [128, 256, 512],
    turned: [false; 2],
    alike: true,
    stored: true,
    path: PathOfA::Rows,
    zeros: [Zero::None; 2],
    cores: 1,
};

/// Bytes over their whole range.
fn byte(i: usize, skew: usize) -> u8 {
    ((i * 71 + i / 256 * 13 + i / 7 + skew * 29) % 256) as u8
}

fn number(dtype: DType, byte: u8) -> i64 {
    if dtype == DType::I8 { i64::from(byte as i8) } else { i64::from(byte) }
}

impl Check {
    fn operand(id: u32, dtype: DType, dims: [usize; 3], turned: bool) -> Operand {
        let [batches, rows, columns] = dims;
        let inner = if turned { [1, rows] } else { [columns, 1] };
        let outer = if batches == 1 { 0 } else { rows * columns };
        Operand {
            ty: TensorType::new(dtype, Shape::new(&dims).unwrap()),
            strides: [outer, inner[0], inner[1]].map(Dim::from).to_vec(),
            offset: Dim::ZERO,
            memory: Memory::Value(ValueId::new(id)),
            stored: false,
        }
    }

    fn zero(self, i: usize) -> Option<Operand> {
        let dims = match self.zeros[i] {
            Zero::None => return None,
            Zero::One => vec![],
            Zero::Each => vec![self.sizes[i]],
        };
        Some(Operand {
            ty: TensorType::new(self.dtypes[i], Shape::new(&dims).unwrap()),
            strides: dims.iter().map(|_| Dim::ONE).collect(),
            offset: Dim::ZERO,
            memory: Memory::Value(ValueId::new(3 + i as u32)),
            stored: false,
        })
    }

    fn run(self) {
        let Check { dtypes, batches, sizes: [m, n, k], turned, alike, .. } = self;
        let caps = hopper(self.cores);
        let of_b = if alike { 1 } else { batches };
        let a = Self::operand(0, dtypes[0], [batches, m, k], turned[0]);
        let b = Operand { stored: self.stored, ..Self::operand(1, dtypes[1], [of_b, k, n], turned[1]) };
        let ty = TensorType::new(DType::I32, Shape::new(&[batches, m, n]).unwrap());
        let target = Target { ty, memory: Memory::Value(ValueId::new(2)) };
        let zeros = [self.zero(0), self.zero(1)];
        let operands = [a, b];
        let mut site = Site::new(&caps, operands.to_vec(), vec![target.clone()]);
        let problem = Problem::new(&operands, &target, None).unwrap();
        let of = ZeroOperands { a: zeros[0].as_ref(), b: zeros[1].as_ref() };
        warpgroup::emit_int8(&problem, self.path, &of, &mut site).unwrap();
        let fill = |count: usize, skew: usize| -> Vec<u8> { (0..count).map(|i| byte(i, skew)).collect() };
        let given = || {
            let operands = [fill(batches * m * k, 0), fill(of_b * k * n, 5)];
            let [a, b] = operands;
            [a, b, vec![0xff; 4 * batches * m * n], fill(m, 2), fill(n, 3)]
        };
        let expected = self.expected();
        let check = |what: &str, launch: &Launch<'_>| {
            let memory = run_by(&site, given(), launch);
            let found = &memory[&Memory::Value(ValueId::new(2))];
            for (i, want) in expected.iter().enumerate() {
                let at = |i: usize| (i / n / m, i / n % m, i % n);
                assert_eq!(found[4 * i..4 * i + 4], want.to_le_bytes(), "{self:?}, {what}: {:?}", at(i));
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

    fn expected(self) -> Vec<i32> {
        let Check { dtypes, batches, sizes: [m, n, k], turned, alike, zeros, .. } = self;
        let zero = |side: usize, line: usize| match zeros[side] {
            Zero::None => 0,
            Zero::One => number(dtypes[side], byte(0, 2 + side)),
            Zero::Each => number(dtypes[side], byte(line, 2 + side)),
        };
        let mut all = Vec::with_capacity(batches * m * n);
        for at in 0..batches * m * n {
            let (batch, i, j) = (at / n / m, at / n % m, at % n);
            let of_b = if alike { 0 } else { batch };
            let a = |l: usize| batch * m * k + if turned[0] { l * m + i } else { i * k + l };
            let b = |l: usize| of_b * k * n + if turned[1] { j * k + l } else { l * n + j };
            let (p, q) = (zero(0, i), zero(1, j));
            let term = |l| (number(dtypes[0], byte(a(l), 0)) - p) * (number(dtypes[1], byte(b(l), 5)) - q);
            all.push((0..k).map(term).sum::<i64>() as i32);
        }
        all
    }
}

const MIXES: [[DType; 2]; 4] =
    [[DType::I8, DType::I8], [DType::U8, DType::I8], [DType::I8, DType::U8], [DType::U8, DType::U8]];

#[test]
fn integers_of_either_sign_give_the_sums() {
    for dtypes in MIXES {
        Check { dtypes, ..PLAIN }.run();
        Check { dtypes, path: PathOfA::Packed, sizes: [130, 260, 100], ..PLAIN }.run();
    }
    // Several tiles to a workgroup, several blocks of K.
    for path in [PathOfA::Rows, PathOfA::Packed] {
        Check { path, sizes: [257, 512, 1024], cores: 3, ..PLAIN }.run();
    }
}

#[test]
fn zero_points_are_taken_off() {
    use Zero::{Each, None, One};
    for zeros in [[One, None], [None, One], [Each, None], [None, Each]] {
        Check { dtypes: [DType::U8, DType::I8], zeros, sizes: [70, 270, 512], ..PLAIN }.run();
    }
    for (dtypes, zeros) in MIXES.into_iter().zip([[One, One], [Each, One], [One, Each], [Each, Each]]) {
        Check { dtypes, zeros, sizes: [131, 259, 37], path: PathOfA::Packed, stored: false, ..PLAIN }.run();
        Check { dtypes, zeros, sizes: [40, 131, 512], ..PLAIN }.run();
        // Rows that end inside of a block.
        Check { dtypes, zeros, sizes: [70, 40, 784], ..PLAIN }.run();
    }
}

#[test]
fn batches_have_their_own_zero_points_sums_and_operands_or_share_them() {
    use Zero::{Each, One};
    for (path, turned) in [(PathOfA::Rows, [false, true]), (PathOfA::Packed, [true, false])] {
        for alike in [true, false] {
            let check = Check { batches: 3, alike, path, turned, stored: false, zeros: [Each, One], ..PLAIN };
            Check { sizes: [40, 130, 512], ..check }.run();
            Check { sizes: [30, 257, 512], zeros: [One, Each], dtypes: [DType::U8; 2], ..check }.run();
        }
    }
}

#[test]
fn sizes_that_end_inside_of_tiles_are_cut() {
    let odd = Check { path: PathOfA::Packed, zeros: [Zero::One, Zero::One], ..PLAIN };
    for (sizes, turned) in [
        ([1, 1, 1], [false, false]),
        ([70, 33, 31], [false, true]),
        ([129, 257, 600], [true, false]),
        ([130, 262, 528], [false, true]),
        ([64, 100, 1030], [true, true]),
    ] {
        Check { sizes, turned, stored: false, ..odd }.run();
    }
}

#[test]
fn rows_that_end_inside_of_a_block_are_read_as_they_are() {
    for k in [16, 256, 272, 528, 1008] {
        Check { sizes: [130, 70, k], cores: 1, ..PLAIN }.run();
    }
    Check { sizes: [300, 40, 768], batches: 2, alike: false, stored: false, cores: 2, ..PLAIN }.run();
}

/// What a matmul of integers gets.
fn chosen(sizes: [usize; 3], stored: bool, caps: &DeviceCaps) -> Option<PathOfA> {
    let [m, n, k] = sizes;
    let a = Check::operand(0, DType::U8, [1, m, k], false);
    let b = Operand { stored, ..Check::operand(1, DType::I8, [1, k, n], false) };
    let ty = TensorType::new(DType::I32, Shape::new(&[1, m, n]).unwrap());
    let target = Target { ty, memory: Memory::Value(ValueId::new(2)) };
    let problem = Problem::new(&[a, b], &target, None).unwrap();
    warpgroup::choose(&problem, &crate::matmul::tests::shape([m, n, k, 1]), caps)
}

#[test]
fn large_matmuls_of_integers_get_warpgroups_where_the_device_has_them() {
    let h200 = hopper(132);
    assert_eq!(chosen([4096, 4096, 4096], true, &h200), Some(PathOfA::Rows));
    assert_eq!(chosen([4096, 4096, 4096], false, &h200), Some(PathOfA::Rows));
    assert_eq!(chosen([4096, 4096, 784], true, &h200), Some(PathOfA::Rows));
    assert_eq!(chosen([4096, 4096, 776], true, &h200), Some(PathOfA::Packed));
    assert_eq!(chosen([4096, 4096, 4097], true, &h200), Some(PathOfA::Packed));
    assert_eq!(chosen([128, 768, 768], true, &h200), None);
    assert_eq!(chosen([256, 32768, 4096], false, &h200), None);
    // A device whose trial of integers was wrong.
    let mut floats = hopper(132);
    floats.target.int8_warpgroups = false;
    assert_eq!(chosen([4096, 4096, 4096], true, &floats), None);
}
