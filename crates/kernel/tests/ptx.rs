//! Kernels printed as PTX and run by an emulator, beside the interpreter: the same bits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "spirv/kernels.rs"]
#[allow(dead_code, reason = "shared with the tests of SPIR-V")]
mod kernels;

use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::ptx::{self, Capability, PtxOptions};
use olivine_kernel::*;
use olivine_ptx::{Module, Order};

const HOPPER: PtxOptions = PtxOptions { capability: Capability::HOPPER };

fn printed(kernel: &Kernel) -> String {
    ptx::print(kernel, &HOPPER).unwrap_or_else(|e| panic!("{}: {e}", kernel.name))
}

/// Runs a kernel in both ways; what the emulator left in the buffers.
fn both(
    kernel: &Kernel,
    groups: [u32; 3],
    buffers: &[Vec<u8>],
    params: &[u32],
    order: Order,
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut expected = buffers.to_vec();
    interpret(kernel, 32, groups, &mut expected, params, Device::EXACT)
        .unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
    let (text, mut found) = (printed(kernel), buffers.to_vec());
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", kernel.name));
    module.run(groups, &mut found, params, order).unwrap_or_else(|e| panic!("{}: {e}\n{text}", kernel.name));
    (expected, found)
}

/// Whether two buffers hold the same; a NaN is like another.
fn same(elem: Elem, a: &[u8], b: &[u8]) -> Result<(), String> {
    let size = elem.size() as usize;
    let is_nan = |raw: &[u8]| {
        let bits = raw.iter().rev().fold(0u64, |sum, b| (sum << 8) | u64::from(*b));
        match elem {
            Elem::F32 => bits & 0x7fff_ffff > 0x7f80_0000,
            Elem::F16 => bits & 0x7fff > 0x7c00,
            Elem::BF16 => bits & 0x7fff > 0x7f80,
            Elem::F64 => f64::from_bits(bits).is_nan(),
            _ => false,
        }
    };
    for (i, (x, y)) in a.chunks(size).zip(b.chunks(size)).enumerate() {
        if x != y && !(is_nan(x) && is_nan(y)) {
            return Err(format!("element {i}: {x:02x?} expected, {y:02x?} found"));
        }
    }
    Ok(())
}

fn check(kernel: &Kernel, groups: [u32; 3], buffers: &[Vec<u8>], params: &[u32], orders: &[Order]) {
    for order in orders {
        let (expected, found) = both(kernel, groups, buffers, params, *order);
        for (i, arg) in kernel.args.iter().enumerate() {
            same(arg.elem, &expected[i], &found[i]).unwrap_or_else(|e| {
                panic!("{}, {}, {order:?}: {e}\n{}", kernel.name, arg.name, printed(kernel))
            });
        }
    }
}

/// Numbers of every kind, as bits of a type.
fn wild(scalar: Scalar, seed: u64) -> Vec<u64> {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        1e-3,
        1e3,
        1e-7,
        6e-8,
        1e-40,
        -1e-45,
        65504.0,
        65519.9,
        65520.0,
        1e10,
        -1e10,
        3.4e38,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        1.0 / 3.0,
        2049.0,
        2051.0,
        -7.75,
        0.1,
        1.0009765625,
        1.00048828125,
        16777217.0,
    ];
    let ints = [
        0u64,
        1,
        2,
        3,
        31,
        32,
        63,
        255,
        256,
        65535,
        65536,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x1_0000_0000,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        u64::MAX,
        0xdead_beef,
        0x0123_4567_89ab_cdef,
    ];
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state ^ (state >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    (0..256)
        .map(|i| {
            let random = next();
            let picked = random % 3 != 0;
            match scalar {
                Scalar::F64 if picked => floats[i % floats.len()].to_bits(),
                Scalar::F32 if picked => u64::from((floats[i % floats.len()] as f32).to_bits()),
                Scalar::F32 => random >> 32,
                Scalar::I32 | Scalar::U32 if picked => ints[i % ints.len()] & 0xffff_ffff,
                Scalar::I32 | Scalar::U32 => random >> 32,
                Scalar::I64 | Scalar::U64 if picked => ints[i % ints.len()],
                _ => random,
            }
        })
        .collect()
}

/// The memory type of a register type; f16 comes from f32.
fn held(scalar: Scalar) -> Elem {
    match scalar {
        Scalar::Bool => Elem::Bool,
        Scalar::I32 => Elem::I32,
        Scalar::U32 => Elem::U32,
        Scalar::I64 => Elem::I64,
        Scalar::U64 => Elem::U64,
        Scalar::F16 | Scalar::F32 => Elem::F32,
        Scalar::F64 => Elem::F64,
    }
}

fn bytes_of(elem: Elem, values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()[..elem.size() as usize].to_vec()).collect()
}

/// `y = f(a, b)` for 256 pairs of wild numbers of a type, in its own type.
fn try_function(
    name: &str,
    scalar: Scalar,
    fit: impl Fn(u64, u64) -> (u64, u64),
    f: impl for<'k> Fn(&'k Builder, Val<'k>, Val<'k>) -> Val<'k>,
) {
    let k = Builder::new(format!("{name}_{scalar}"), 64, &kernels::rich());
    let elem = held(scalar);
    let (x, y) = (k.arg("x", elem, Access::Read), k.arg("y", elem, Access::Read));
    let i = k.group_id(0) * 64 + k.local_index();
    let (a, b) = (x.load(i).convert(scalar), y.load(i).convert(scalar));
    let result = f(&k, a, b);
    let out = match result.scalar() {
        Scalar::F16 => result.convert(Scalar::F32),
        _ => result,
    };
    let z = k.arg("z", held(out.scalar()), Access::Write);
    let size = held(out.scalar()).size() as usize;
    z.store(i, out);
    let kernel = k.finish().unwrap_or_else(|e| panic!("{name} of {scalar}: {e}"));
    let memory = if scalar == Scalar::F16 { Scalar::F32 } else { scalar };
    let of = if scalar == Scalar::Bool { Scalar::U32 } else { memory };
    let pairs: Vec<(u64, u64)> = wild(of, 7).into_iter().zip(wild(of, 99)).map(|(a, b)| fit(a, b)).collect();
    let pick = |second: bool| -> Vec<u64> {
        let bool = |v: u64| if scalar == Scalar::Bool { v & 1 } else { v };
        pairs.iter().map(|(a, b)| bool(if second { *b } else { *a })).collect()
    };
    let buffers = [bytes_of(elem, &pick(false)), bytes_of(elem, &pick(true)), vec![0; 256 * size]];
    check(&kernel, [4, 1, 1], &buffers, &[], &[Order::Ascending]);
}

const NUMBERS: [Scalar; 7] =
    [Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64, Scalar::F16, Scalar::F32, Scalar::F64];

#[test]
fn functions_of_one_number_have_the_interpreters_bits() {
    use UnaryOp::*;
    for scalar in kernels::SCALARS {
        let (float, signed) = (scalar.is_float(), scalar.is_signed_int());
        let of_all = [
            (Neg, float || signed),
            (Abs, float || signed),
            (Not, !float),
            (CountOnes, matches!(scalar, Scalar::I32 | Scalar::U32)),
            (LeadingZeros, scalar == Scalar::U32),
            (Exp2, matches!(scalar, Scalar::F16 | Scalar::F32)),
            (Log2, matches!(scalar, Scalar::F16 | Scalar::F32)),
            (Sin, matches!(scalar, Scalar::F16 | Scalar::F32)),
            (Cos, matches!(scalar, Scalar::F16 | Scalar::F32)),
        ];
        let of_floats = [Floor, Ceil, Trunc, RoundEven, Sqrt, InverseSqrt].map(|op| (op, float));
        for (op, _) in of_all.into_iter().chain(of_floats).filter(|(_, has)| *has) {
            try_function(&format!("{op:?}"), scalar, |a, b| (a, b), |_, a, _| a.unary(op));
        }
    }
}

#[test]
fn functions_of_two_numbers_have_the_interpreters_bits() {
    use BinaryOp::*;
    for scalar in NUMBERS {
        let int = scalar.is_int();
        let ops = [Add, Sub, Mul, Div, Min, Max];
        let of_ints = [Rem, And, Or, Xor, Shl, Shr];
        let ops = ops.into_iter().chain(of_ints.into_iter().filter(|_| int));
        for op in ops.chain((scalar == Scalar::U32).then_some(MulHigh)) {
            // What the language leaves open is left out: division by zero, shifts by the width, zeros of both signs.
            let fit = |a: u64, b: u64| match op {
                Div | Rem if int && (b == 0 || b as u32 == u32::MAX || b == u64::MAX) => (a, 3),
                Shl | Shr => (a, b % u64::from(scalar.bits())),
                Min | Max if !int && (a << 1 == 0 || a == 0x8000_0000) => (1, b),
                _ => (a, b),
            };
            let is_nan = |v: u64| match scalar {
                Scalar::F64 => f64::from_bits(v).is_nan(),
                Scalar::F16 | Scalar::F32 => f32::from_bits(v as u32).is_nan(),
                _ => false,
            };
            let fit = |a: u64, b: u64| {
                let (a, b) = fit(a, b);
                let no_nan = matches!(op, Min | Max) && (is_nan(a) || is_nan(b));
                let tiny = scalar == Scalar::F16 && matches!(op, Min | Max);
                if no_nan || tiny && f32::from_bits(a as u32).abs() < 1e-7 {
                    (0x3f80_0000, 0x4000_0000)
                } else {
                    (a, b)
                }
            };
            try_function(&format!("{op:?}"), scalar, fit, |_, a, b| a.binary(op, b));
        }
    }
    for op in [And, Or, Xor] {
        try_function(&format!("{op:?}"), Scalar::Bool, |a, b| (a, b >> 3), |_, a, b| a.binary(op, b));
    }
}

#[test]
fn comparisons_selections_and_fused_products_have_the_interpreters_bits() {
    use CompareOp::*;
    for scalar in kernels::SCALARS {
        let ops = [Eq, Ne, Lt, Le, Gt, Ge];
        for op in ops.into_iter().take(if scalar == Scalar::Bool { 2 } else { 6 }) {
            let equal = |a: u64, b: u64| if b.is_multiple_of(3) { (a, a) } else { (a, b >> 1) };
            try_function(&format!("{op:?}"), scalar, equal, |_, a, b| a.compare(op, b));
            try_function("select", scalar, equal, |_, a, b| a.compare(op, b).select(b, a));
        }
        if scalar.is_float() {
            try_function("fma", scalar, |a, b| (a, b), |_, a, b| a.fma(b, a));
            try_function("apart", scalar, |a, b| (a, b), |_, a, b| a * b + a);
        }
    }
}

#[test]
fn conversions_have_the_interpreters_bits() {
    for from in kernels::SCALARS {
        for to in kernels::SCALARS {
            // Floats outside of an integer's range become anything.
            let fit = move |a: u64, b: u64| {
                if !from.is_float() || !to.is_int() {
                    return (a, b);
                }
                let least = if to.is_signed_int() { -60_000.7 } else { -0.9 };
                match from {
                    Scalar::F64 => (f64::from_bits(a).clamp(least, 2e9).max(least).to_bits(), b),
                    _ => {
                        let x = f32::from_bits(a as u32).clamp(least as f32, 60_000.0);
                        (u64::from((if x.is_nan() { 1.5 } else { x }).to_bits()), b)
                    }
                }
            };
            let fit = move |a: u64, b: u64| {
                let (a, b) = fit(a, b);
                if from == Scalar::F64 && f64::from_bits(a).is_nan() {
                    (0x3ff8_0000_0000_0000, b)
                } else {
                    (a, b)
                }
            };
            // A double becomes a half in two steps on some devices, in one here.
            if (from, to) != (Scalar::F64, Scalar::F16) {
                try_function(&format!("to_{to}"), from, fit, |_, a, _| a.convert(to));
            }
            if from.bits() == to.bits() && from != Scalar::Bool && from != Scalar::F16 {
                try_function(&format!("as_{to}"), from, |a, b| (a, b), |_, a, _| a.bitcast(to));
            }
        }
    }
    let halves = |k: &Builder| kernels::rich() == *k.target();
    try_function(
        "halves",
        Scalar::F32,
        |a, b| (a, b),
        move |k, a, b| {
            assert!(halves(k));
            let word = a.pack_half(b);
            word.unpack_half(0) + word.unpack_half(1)
        },
    );
    try_function("join", Scalar::U32, |a, b| (a, b), |_, a, b| a.join(b));
    for signed in [true, false] {
        try_function(
            "dot",
            Scalar::U32,
            |a, b| (a, b),
            move |_, a, b| {
                if signed {
                    a.packed_dot(b, a.bitcast(Scalar::I32), true).bitcast(Scalar::U32)
                } else {
                    a.packed_dot(b, a, false)
                }
            },
        );
    }
}

/// Numbers that all types hold exactly, so that sums in any order are the same.
fn modest(elem: Elem, count: usize) -> Vec<u8> {
    let value = |i: usize| (i * 7 % 23) as u64;
    (0..count)
        .flat_map(|i| {
            let bits = match elem {
                Elem::F32 => u64::from((value(i) as f32 - 9.0).to_bits()),
                Elem::F16 => [0x3c00, 0x4000, 0xc200, 0x3800, 0xb400][i % 5],
                Elem::BF16 => [0x3f80, 0x4000, 0xc040, 0x3f00, 0xbe80][i % 5],
                Elem::F64 => (value(i) as f64 - 9.0).to_bits(),
                Elem::Bool => value(i) & 1,
                _ => value(i),
            };
            bits.to_le_bytes()[..elem.size() as usize].to_vec()
        })
        .collect()
}

#[test]
fn the_kernels_that_use_every_part_of_the_language_agree() {
    // Those of arithmetic divide by zero, and those of shared arrays have threads read what others write, which the
    // interpreter's lock step allows. Other tests here have what they do.
    let left_out = |k: &Kernel| k.name.starts_with("arithmetic") || k.name.starts_with("shared");
    for kernel in kernels::all().into_iter().filter(|k| !left_out(k)) {
        let buffers: Vec<Vec<u8>> = kernel.args.iter().map(|a| modest(a.elem, 4096)).collect();
        let params: Vec<u32> = kernel
            .params
            .iter()
            .map(|p| if p.scalar == Scalar::F32 { 1.5f32.to_bits() } else { 200 })
            .collect();
        // Several threads store to one place in some; the last of them wins.
        check(&kernel, [1, 1, 1], &buffers, &params, &[Order::Ascending]);
    }
}

#[test]
fn reductions_and_shared_arrays_do_not_depend_on_the_order_of_threads() {
    let both_orders = [Order::Ascending, Order::Descending];
    for kernel in [kernels::reduce(&kernels::rich()), kernels::reduce(&Target::plain())] {
        let buffers: Vec<Vec<u8>> = kernel.args.iter().map(|a| modest(a.elem, 256)).collect();
        check(&kernel, [1, 1, 1], &buffers, &[], &both_orders);
    }
    for scalar in NUMBERS {
        let k = Builder::new(format!("scans_{scalar}"), 64, &kernels::rich());
        let elem = held(scalar);
        let (x, y) = (k.arg("x", elem, Access::Read), k.arg("y", elem, Access::Write));
        let me = k.local_index();
        let a = x.load(me).convert(scalar);
        let ops = [
            SubgroupOp::Add,
            SubgroupOp::InclusiveAdd,
            SubgroupOp::ExclusiveAdd,
            SubgroupOp::Min,
            SubgroupOp::Max,
        ];
        let mut results: Vec<Val<'_>> = ops.into_iter().map(|op| a.subgroup(op)).collect();
        results.extend([a.shuffle_xor(5), a.shuffle((k.lane() * 7) % 32)]);
        for (i, result) in results.into_iter().enumerate() {
            let result = if scalar == Scalar::F16 { result.convert(Scalar::F32) } else { result };
            y.store(me + 64 * i as u32, result);
        }
        let kernel = k.finish().expect("a valid kernel");
        let buffers = [modest(elem, 64), vec![0; 7 * 64 * elem.size() as usize]];
        check(&kernel, [1, 1, 1], &buffers, &[], &both_orders);
    }
}

#[test]
fn the_last_workgroup_finds_what_all_stored() {
    let buffers = [vec![0; 4 * 64 * 5], vec![0; 4], vec![0; 4 * 64]];
    let both_orders = [Order::Ascending, Order::Descending];
    check(&kernels::last_arrival(), [5, 1, 1], &buffers, &[], &both_orders);
}

#[test]
fn shared_arrays_of_every_type_hold_what_was_stored() {
    for elem in [Elem::F16, Elem::F32, Elem::F64, Elem::I32, Elem::U32, Elem::I64, Elem::U64] {
        for lanes in [1u8, 2, 4] {
            let k = Builder::new(format!("shared_{elem}_{lanes}"), 64, &kernels::rich());
            let (x, y) = (k.arg("x", elem, Access::Read), k.arg("y", elem, Access::Write));
            let (me, array) = (k.local_index(), k.shared(elem, lanes, 64));
            let n = u32::from(lanes);
            array.store_vec(me, &x.load_vec(me * n, lanes));
            k.barrier();
            let (neighbour, fixed) = (array.load_lane(me ^ 1, lanes - 1), array.load_lane(k.u32(63), 0));
            let all = array.load_vec(k.u32(63) - me);
            k.barrier();
            array.store_lane(me, lanes - 1, neighbour);
            k.subgroup_barrier();
            y.store(me, array.load_lane(me ^ 1, lanes - 1));
            y.store(me + 64, fixed);
            y.store_vec(me * n + 128, &all);
            let kernel = k.finish().expect("a valid kernel");
            let size = elem.size() as usize;
            let buffers = [modest(elem, 64 * usize::from(lanes)), vec![0; (128 + 256) * size]];
            check(&kernel, [1, 1, 1], &buffers, &[], &[Order::Ascending, Order::Descending]);
        }
    }
}

#[test]
fn cooperative_matrices_agree_from_buffers_and_workgroup_memory() {
    let f16 = MatrixShape { operand: Elem::F16, accumulator: Elem::F16, m: 16, n: 16, k: 16 };
    for shape in kernels::rich().matrices {
        let kernel = kernels::matrices(shape);
        let buffers: Vec<Vec<u8>> = kernel.args.iter().map(|a| modest(a.elem, 64 * 64)).collect();
        check(&kernel, [1, 1, 1], &buffers, &[64], &[Order::Ascending, Order::Descending]);
    }
    let sizes = [[16, 16, 16], [16, 8, 16], [16, 8, 8]].map(|s| (Elem::F16, s));
    let bytes = [[16, 16, 32], [16, 8, 32]].into_iter().flat_map(|s| [(Elem::I8, s), (Elem::U8, s)]);
    for (operand, [m, n, k]) in sizes.into_iter().chain([(Elem::BF16, [16, 16, 16])]).chain(bytes) {
        let accumulator = match operand {
            Elem::I8 => Elem::I32,
            Elem::U8 => Elem::U32,
            _ => Elem::F32,
        };
        for layouts in 0..16 {
            matrix_layouts(MatrixShape { operand, accumulator, m, n, k }, layouts);
        }
    }
    matrix_layouts(f16, 0);
}

/// A product whose three matrices are rows or columns, from buffers or through workgroup memory.
fn matrix_layouts(shape: MatrixShape, layouts: u32) {
    let target = Target { matrices: vec![shape], ..kernels::rich() };
    let b = Builder::new(format!("layouts_{layouts}_{}", shape.operand), 32, &target);
    let [by_columns_a, by_columns_b, by_columns_c, through_shared] =
        [0, 1, 2, 3].map(|i| layouts >> i & 1 == 1);
    let x = b.arg("x", shape.operand, Access::Read);
    let y = b.arg("y", shape.operand, Access::Read);
    let z = b.arg("z", shape.accumulator, Access::ReadWrite);
    let matrix = |elem, rows, columns, role| MatrixType { elem, rows, columns, role };
    let left = matrix(shape.operand, shape.m, shape.k, MatrixUse::A);
    let right = matrix(shape.operand, shape.k, shape.n, MatrixUse::B);
    let sum = matrix(shape.accumulator, shape.m, shape.n, MatrixUse::Accumulator);
    let (zero, stride) = (b.u32(0), b.u32(48));
    let (mut p, mut q) =
        (x.load_matrix(left, zero, stride, by_columns_a), y.load_matrix(right, zero, stride, by_columns_b));
    if through_shared && shape.operand == Elem::F16 {
        let [first, second] = [x, y].map(|from| {
            let tile = b.shared(Elem::F16, 1, 48 * 32);
            b.for_(b.local_index(), b.u32(48 * 32), b.u32(32), |i| tile.store(i, from.load(i)));
            tile
        });
        b.barrier();
        p = first.load_matrix(left, zero, stride, by_columns_a);
        q = second.load_matrix(right, zero, stride, by_columns_b);
    }
    let r = z.load_matrix(sum, zero, stride, by_columns_c);
    z.store_matrix(zero, stride, by_columns_c, p.matrix_mul_add(q, r));
    let kernel = b.finish().expect("a valid kernel");
    let buffers: Vec<Vec<u8>> = kernel.args.iter().map(|a| modest(a.elem, 48 * 48)).collect();
    check(&kernel, [1, 1, 1], &buffers, &[], &[Order::Ascending]);
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let old = PtxOptions { capability: Capability { major: 7, minor: 5 } };
    assert!(matches!(ptx::print(&kernels::double(), &old), Err(Error::Missing(_))));
    let k = Builder::new("args", 64, &kernels::rich());
    let args: Vec<_> = (0..600).map(|i| k.arg(format!("x{i}"), Elem::F32, Access::Write)).collect();
    args[0].store(k.local_index(), k.f32(1.0));
    let many = k.finish().expect("a valid kernel");
    assert!(matches!(ptx::print(&many, &HOPPER), Err(Error::Limit { .. })));
}

#[test]
fn a_small_kernel_prints_as_expected() {
    let text = printed(&kernels::double());
    let expected = include_str!("snapshots/double.ptx");
    assert_eq!(text, expected, "the printed kernel is\n{text}");
}
