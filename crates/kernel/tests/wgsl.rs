//! Printed WGSL: everything the language has is taken by naga's parser and validator, in both dialects.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use olivine_kernel::wgsl::{self, Dialect, Module, WgslOptions};
use olivine_kernel::*;

/// Everything that some device has.
fn target() -> Target {
    let shape = |operand, accumulator| MatrixShape { operand, accumulator, m: 16, n: 16, k: 16 };
    Target {
        subgroup: Some(32),
        f16: true,
        exact_f16: false,
        f64: true,
        i64: true,
        i64_pairs: false,
        packed_dot: true,
        matrices: vec![
            shape(Elem::F16, Elem::F32),
            shape(Elem::F16, Elem::F16),
            shape(Elem::BF16, Elem::F32),
        ],
        matrix_support: MatrixSupport::Full,
        fragments: None,
        warpgroups: false,
        int8_warpgroups: false,
        device_fences: false,
        max_invocations: 1024,
        shared_bytes: 49152,
    }
}

fn kernel(name: &str, write: impl FnOnce(&Builder)) -> Kernel {
    kernel_for(&target(), name, write)
}

fn kernel_for(target: &Target, name: &str, write: impl FnOnce(&Builder)) -> Kernel {
    let k = Builder::new(name, 64, target);
    write(&k);
    k.finish().expect("a valid kernel")
}

/// Prints, parses and validates.
fn check(kernel: &Kernel, dialect: Dialect, checked: bool) -> Module {
    use naga::valid::Capabilities as C;
    let module = wgsl::print(kernel, &WgslOptions { dialect, checked }).expect("printable");
    let parsed = naga::front::wgsl::parse_str(&module.source)
        .unwrap_or_else(|e| panic!("{}\n{}", module.source, e.emit_to_string(&module.source)));
    let plain = C::SHADER_FLOAT16 | C::SHADER_FLOAT16_IN_FLOAT32;
    let native = C::IMMEDIATES | C::FLOAT64 | C::SHADER_INT64 | C::SUBGROUP | C::SUBGROUP_BARRIER;
    let capabilities = match dialect {
        Dialect::Plain => plain,
        Dialect::Native => plain | native | C::COOPERATIVE_MATRIX,
    };
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
    validator
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    validator
        .validate(&parsed)
        .unwrap_or_else(|e| panic!("{}\n{}", module.source, e.emit_to_string(&module.source)));
    module
}

fn both(kernel: &Kernel) {
    for checked in [false, true] {
        check(kernel, Dialect::Native, checked);
        check(kernel, Dialect::Plain, checked);
    }
    let kept = with_bounds(kernel);
    check(&kept, Dialect::Native, true);
    check(&kept, Dialect::Plain, false);
}

fn with_bounds(kernel: &Kernel) -> Kernel {
    bounded(kernel.clone(), &target()).expect("bounds")
}

/// For kernels that use what browsers do not have: printed natively, and refused in plain.
fn native_only(kernel: &Kernel) {
    check(kernel, Dialect::Native, false);
    check(kernel, Dialect::Native, true);
    check(&with_bounds(kernel), Dialect::Native, false);
    let plain = wgsl::print(kernel, &WgslOptions { dialect: Dialect::Plain, checked: false });
    assert!(matches!(plain, Err(Error::Missing(_))), "{plain:?}");
}

const FLOAT_UNARY: [UnaryOp; 13] = [
    UnaryOp::Neg,
    UnaryOp::Abs,
    UnaryOp::Floor,
    UnaryOp::Ceil,
    UnaryOp::Trunc,
    UnaryOp::RoundEven,
    UnaryOp::Sqrt,
    UnaryOp::InverseSqrt,
    UnaryOp::Exp2,
    UnaryOp::Log2,
    UnaryOp::Sin,
    UnaryOp::Cos,
    UnaryOp::Neg,
];
const FLOAT_BINARY: [BinaryOp; 6] =
    [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Min, BinaryOp::Max];
const INT_BINARY: [BinaryOp; 12] = [
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Div,
    BinaryOp::Rem,
    BinaryOp::Min,
    BinaryOp::Max,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Xor,
    BinaryOp::Shl,
    BinaryOp::Shr,
];
const COMPARISONS: [CompareOp; 6] =
    [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];

/// All arithmetic on a value and a constant of its type; the result uses every operation.
fn arithmetic<'k>(k: &'k Builder, x: Val<'k>) -> Val<'k> {
    let scalar = x.scalar();
    let two = k.number(scalar, 2.0);
    let mut sum = x;
    if scalar.is_float() {
        let wide = scalar == Scalar::F64;
        let native = |op: &UnaryOp| matches!(op, UnaryOp::Exp2 | UnaryOp::Log2 | UnaryOp::Sin | UnaryOp::Cos);
        for op in FLOAT_UNARY.iter().filter(|op| !(wide && native(op))) {
            sum = sum + x.unary(*op) + two.unary(*op);
        }
        for op in FLOAT_BINARY {
            sum = sum + x.binary(op, two) + two.binary(op, two);
        }
        sum = sum.fma(x, two);
    } else {
        for op in INT_BINARY {
            sum = sum + x.binary(op, two) + two.binary(op, two);
        }
        sum = sum + !x;
        if scalar.is_signed_int() {
            sum = sum + -x + x.abs();
        }
        if scalar.bits() == 32 {
            sum = sum + x.count_ones();
        }
        if scalar == Scalar::U32 {
            sum = sum + x.leading_zeros() + x.mul_high(sum);
        }
    }
    for op in COMPARISONS {
        sum = x.compare(op, two).select(sum, two);
    }
    sum
}

#[test]
fn arithmetic_of_every_register_type() {
    let all = [Scalar::I32, Scalar::U32, Scalar::F32, Scalar::F16, Scalar::I64, Scalar::U64, Scalar::F64];
    for scalar in all {
        let kernel = kernel(scalar.name(), |k| {
            let elem = match scalar {
                Scalar::I32 => Elem::I32,
                Scalar::U32 => Elem::U32,
                Scalar::I64 => Elem::I64,
                Scalar::U64 => Elem::U64,
                Scalar::F64 => Elem::F64,
                _ => Elem::F32,
            };
            let x = k.arg("x", elem, Access::ReadWrite);
            let i = k.local_index();
            let v = arithmetic(k, x.load(i).convert(scalar));
            x.store(i, v.convert(elem.scalar()));
        });
        if scalar == Scalar::F64 { native_only(&kernel) } else { both(&kernel) }
    }
}

#[test]
fn booleans_and_their_conversions() {
    both(&kernel("bools", |k| {
        let x = k.arg("x", Elem::Bool, Access::ReadWrite);
        let i = k.local_index();
        let (a, b) = (x.load(i), i.lt(3));
        let mixed = (a & b) | (!a ^ b);
        let count = mixed.convert(Scalar::U32) + mixed.convert(Scalar::F32).convert(Scalar::U32);
        x.store(i, a.eq(count.convert(Scalar::Bool)) | mixed.ne(k.bool(true)));
    }));
}

#[test]
fn conversions_between_all_register_types() {
    let all = [
        Scalar::Bool,
        Scalar::I32,
        Scalar::U32,
        Scalar::F32,
        Scalar::F16,
        Scalar::I64,
        Scalar::U64,
        Scalar::F64,
    ];
    for from in all {
        for to in all {
            let kernel = kernel("convert", |k| {
                let x = k.arg("x", Elem::F32, Access::ReadWrite);
                let i = k.local_index();
                let y = x.load(i).convert(from).convert(to);
                let constant = k.number(from, 1.0).convert(to);
                x.store(i, y.convert(Scalar::F32) + constant.convert(Scalar::F32));
            });
            if from == Scalar::F64 || to == Scalar::F64 { native_only(&kernel) } else { both(&kernel) }
        }
    }
}

#[test]
fn bits_halves_and_words() {
    both(&kernel("bits", |k| {
        let x = k.arg("x", Elem::F32, Access::ReadWrite);
        let i = k.local_index();
        let v = x.load(i);
        let bits = v.bitcast(Scalar::U32).bitcast(Scalar::I32).bitcast(Scalar::F32);
        let packed = v.pack_half(bits);
        x.store(i, packed.unpack_half(0) + packed.unpack_half(1) + k.u32(1).bitcast(Scalar::F32));
    }));
    native_only(&kernel("wide bits", |k| {
        let x = k.arg("x", Elem::F64, Access::ReadWrite);
        let i = k.local_index();
        let wide = i.join(i + 1).bitcast(Scalar::F64);
        x.store(i, wide + wide.bitcast(Scalar::I64).bitcast(Scalar::U64).bitcast(Scalar::F64));
    }));
}

#[test]
fn numbers_without_a_literal_are_made_from_their_bits() {
    let kernel = kernel("constants", |k| {
        let x = k.arg("x", Elem::F32, Access::ReadWrite);
        let i = k.local_index();
        let numbers =
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0, 1e-40, f32::MAX, f32::MIN_POSITIVE, 0.1, -3.0];
        for number in numbers {
            x.store(i, x.load(i).max(k.f32(number)));
        }
        for bits in [0x7c00, 0xfc00, 0x7e00, 0x8000, 1, 0x3c00, 0xc248] {
            x.store(i, k.constant(Scalar::F16, bits).convert(Scalar::F32));
        }
        x.store(i, k.i32(i32::MIN).bitcast(Scalar::F32) * k.i32(-1).bitcast(Scalar::F32));
    });
    both(&kernel);
    native_only(&crate::kernel("wide constants", |k| {
        let x = k.arg("x", Elem::F64, Access::ReadWrite);
        let i = k.local_index();
        for number in [f64::INFINITY, f64::NAN, -0.0, 1e-320, f64::MAX, 0.1, -1e300] {
            x.store(i, x.load(i).max(k.f64(number)));
        }
        for number in [i64::MIN, i64::MAX, -1, 0] {
            x.store(i, k.constant(Scalar::I64, number as u64).bitcast(Scalar::F64));
        }
        x.store(i, k.constant(Scalar::U64, u64::MAX).bitcast(Scalar::F64));
    }));
}

#[test]
fn every_element_type_in_every_vector_width() {
    for elem in Elem::ALL {
        for widths in [&[1u8][..], &[2], &[4], &[1, 2, 4], &[2, 4]] {
            let kernel = kernel(elem.name(), |k| {
                let x = k.arg("x", elem, Access::Read);
                let y = k.arg("y", elem, Access::ReadWrite);
                for lanes in widths {
                    let i = k.local_index() * u32::from(*lanes);
                    let (a, b) = (x.load_vec(i, *lanes), y.load_vec(i, *lanes));
                    let sum: Vec<_> = a
                        .into_iter()
                        .zip(b)
                        .map(|(a, b)| if elem == Elem::Bool { a & b } else { a + b })
                        .collect();
                    y.store_vec(i, &sum);
                }
            });
            if elem == Elem::F64 { native_only(&kernel) } else { both(&kernel) }
        }
    }
}

#[test]
fn narrow_stores_leave_their_neighbours_alone() {
    let scalar = kernel("scalar", |k| {
        let y = k.arg("y", Elem::F16, Access::Write);
        y.store(k.local_index(), k.f32(1.0));
    });
    let source = check(&scalar, Dialect::Plain, false).source;
    assert!(source.contains("array<atomic<u32>>") && source.contains("atomicAnd"), "{source}");
    let words = kernel("words", |k| {
        let y = k.arg("y", Elem::F16, Access::Write);
        y.store_vec(k.local_index() * 4, &[k.f32(1.0); 4]);
    });
    let source = check(&words, Dialect::Plain, false).source;
    assert!(source.contains("array<vec2<u32>>") && !source.contains("atomic"), "{source}");
}

#[test]
fn control_flow_variables_and_workgroup_memory() {
    let target = Target { subgroup: None, ..target() };
    both(&kernel_for(&target, "flow", |k| {
        let x = k.arg("x", Elem::F32, Access::ReadWrite);
        let n = k.param("n", Scalar::U32);
        let (scale, low) = (k.param("scale", Scalar::F32), k.param("low", Scalar::I32));
        let (s, v) = (k.shared(Elem::F32, 1, 64), k.shared(Elem::F16, 4, 16));
        let (count, me) = (k.shared(Elem::I32, 1, 4), k.local_index());
        let sum = k.var(k.f32(0.0));
        let start = k.group_id(0) + k.group_id(1) * k.group_count(0) + k.group_id(2);
        k.for_(start, n, k.group_count(1) * k.group_count(2), |i| {
            sum.set(sum.get() + x.load(i * 64 + me) * scale);
        });
        k.for_(low, k.i32(9), k.i32(2), |i| sum.set(sum.get() + i.convert(Scalar::F32)));
        s.store(me, sum.get());
        k.if_else(
            me.lt(16),
            || v.store_vec(me, &[sum.get(), scale, k.f32(1.0), k.f32(2.0)]),
            || {
                count.atomic(AtomicOp::Add, k.u32(0), k.i32(1));
            },
        );
        k.barrier();
        k.if_(me.lt(16), || {
            v.store_lane(me, 3, v.load_lane(me, 1) + v.load_vec(me)[0]);
            count.store(k.u32(1), count.load(k.u32(0)));
        });
        k.barrier();
        let left = k.var(n);
        k.while_(|| left.get().gt(0), || left.set(left.get() / 2));
        let picked = k.if_value(me.eq(0), || s.load(k.u32(63)), || k.f32(f32::NEG_INFINITY));
        x.store(me, picked + k.group_reduce(picked, Reduction::Max));
    }));
}

#[test]
fn atomics_of_both_types_in_both_memories() {
    const OPS: [AtomicOp; 7] = [
        AtomicOp::Add,
        AtomicOp::Min,
        AtomicOp::Max,
        AtomicOp::And,
        AtomicOp::Or,
        AtomicOp::Xor,
        AtomicOp::Exchange,
    ];
    for elem in [Elem::U32, Elem::I32] {
        both(&kernel("atomics", |k| {
            let x = k.arg("x", elem, Access::ReadWrite);
            let s = k.shared(elem, 1, 8);
            let one = k.number(elem.scalar(), 1.0);
            let i = k.local_index() % 8;
            for op in OPS {
                let before = x.atomic(op, i, one);
                s.atomic(op, i, before);
            }
            let before = x.compare_exchange(i, one, s.load(i));
            s.store(i, before + x.load_vec(i * 2, 2)[1]);
            x.store_vec(i * 2, &[before, one]);
        }));
    }
}

#[test]
fn uniform_loads_may_steer_barriers() {
    let kernel = kernel("uniform", |k| {
        let lengths = k.arg("lengths", Elem::I32, Access::Read);
        let live = k.arg("live", Elem::Bool, Access::Read);
        let y = k.arg("y", Elem::F32, Access::Write);
        let s = k.shared(Elem::F32, 1, 64);
        let n = lengths.load_uniform(k.group_id(0)).convert(Scalar::U32);
        k.if_(live.load_uniform(0u32), || {
            k.for_(k.u32(0), n, k.u32(1), |i| {
                s.store(k.local_index(), i.convert(Scalar::F32));
                k.barrier();
                y.store(i, s.load(k.u32(63) - k.local_index()));
                k.barrier();
            });
        });
    });
    both(&kernel);
    let plain = check(&kernel, Dialect::Plain, false).source;
    assert_eq!(plain.matches("workgroupUniformLoad").count(), 2, "{plain}");
    let native = check(&kernel, Dialect::Native, false).source;
    assert!(!native.contains("workgroupUniformLoad"), "{native}");
}

#[test]
fn subgroup_operations() {
    native_only(&kernel("subgroup", |k| {
        let x = k.arg("x", Elem::F32, Access::ReadWrite);
        let i = k.subgroup_id() * 32 + k.lane();
        let mut v = x.load(i);
        for op in [SubgroupOp::Add, SubgroupOp::Min, SubgroupOp::Max] {
            v = v + v.subgroup(op) + v.bitcast(Scalar::U32).subgroup(op).bitcast(Scalar::F32);
        }
        v = v + v.subgroup(SubgroupOp::InclusiveAdd) + v.subgroup(SubgroupOp::ExclusiveAdd);
        let any = v.gt(0).subgroup(SubgroupOp::Any) & v.gt(1).subgroup(SubgroupOp::All);
        k.subgroup_barrier();
        x.store(i, any.select(v.shuffle_xor(16), v.shuffle(k.lane() / 2)));
        x.store(i, k.subgroup_sum(v));
    }));
}

#[test]
fn subgroup_barriers_order_memory_or_are_refused() {
    let exchange = |everywhere: bool| {
        kernel("exchange", |k| {
            let x = k.arg("x", Elem::U32, Access::Write);
            let s = k.shared(Elem::U32, 1, 64);
            let me = k.local_index();
            k.if_(if everywhere { k.group_id(0).lt(9) } else { k.subgroup_id().lt(1) }, || {
                s.store(me, me);
                k.subgroup_barrier();
                x.store(me, s.load(me / 32u32 * 32u32));
            });
        })
    };
    let source = check(&exchange(true), Dialect::Native, false).source;
    assert!(source.contains("workgroupBarrier") && !source.contains("subgroupBarrier"), "{source}");
    let refused = wgsl::print(&exchange(false), &WgslOptions { dialect: Dialect::Native, checked: false });
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
    let alone = kernel("alone", |k| k.subgroup_barrier());
    assert!(check(&alone, Dialect::Native, false).source.contains("subgroupBarrier"));
}

#[test]
fn packed_dot_products() {
    both(&kernel("dot", |k| {
        let x = k.arg("x", Elem::U32, Access::ReadWrite);
        let i = k.local_index();
        let (a, b) = (x.load(i), x.load(i + 1));
        let signed = a.packed_dot(b, k.i32(3), true);
        let packed = a.bitcast(Scalar::I32).packed_dot(b.bitcast(Scalar::I32), signed, true);
        x.store(i, a.packed_dot(b, packed.convert(Scalar::U32), false));
    }));
}

fn matrix(elem: Elem, role: MatrixUse) -> MatrixType {
    MatrixType { elem, rows: 16, columns: 16, role }
}

#[test]
fn cooperative_matrices_of_the_shapes_that_naga_has() {
    for accumulator in [Elem::F32, Elem::F16] {
        native_only(&kernel("matrices", |k| {
            let x = k.arg("x", Elem::F16, Access::ReadWrite);
            let y = k.arg("y", accumulator, Access::ReadWrite);
            let n = k.param("n", Scalar::U32);
            let tile = k.shared(Elem::F16, 4, 128);
            x.store(k.local_index(), x.load(k.local_index()) + 1);
            tile.store_vec(k.local_index(), &x.load_vec(k.local_index() * 4, 4));
            k.barrier();
            let a = tile.load_matrix(matrix(Elem::F16, MatrixUse::A), k.u32(0), k.u32(4), false);
            let b = x.load_matrix(matrix(Elem::F16, MatrixUse::B), k.u32(0), n * 2, true);
            let zero = k.number(accumulator.scalar(), 0.0);
            let c = k.var(zero.splat(matrix(accumulator, MatrixUse::Accumulator)));
            k.for_(k.u32(0), n, k.u32(16), |_| c.set(a.matrix_mul_add(b, c.get())));
            let sum = c.get().matrix_add(c.get()).matrix_scale(k.number(accumulator.scalar(), 0.5));
            y.store_matrix(k.u32(0), n * 2, false, sum);
            y.store_matrix(k.u32(256), n, true, sum);
        }));
    }
    let brain = kernel("brain", |k| {
        let x = k.arg("x", Elem::BF16, Access::ReadWrite);
        let a = x.load_matrix(matrix(Elem::BF16, MatrixUse::A), k.u32(0), k.u32(16), false);
        x.store_matrix(k.u32(0), k.u32(16), false, a);
    });
    let refused = wgsl::print(&brain, &WgslOptions { dialect: Dialect::Native, checked: false });
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
}

#[test]
fn reports_of_indices() {
    let kernel = kernel("report", |k| {
        let x = k.arg("x", Elem::I32, Access::Read);
        let i = k.local_index();
        k.report(i, x.load(i), k.u32(10));
    });
    both(&kernel);
    let unchecked = check(&kernel, Dialect::Plain, false);
    assert!(!unchecked.source.contains("bad_index"));
    both(&crate::kernel("wide report", |k| {
        let x = k.arg("x", Elem::I64, Access::Read);
        let i = k.local_index();
        k.report(i, x.load(i), k.u32(10));
    }));
    both(&crate::kernel("wide index", |k| {
        let x = k.arg("x", Elem::F16, Access::ReadWrite);
        let i = k.local_index().convert(Scalar::U64);
        x.store(i, x.load(i));
    }));
}

#[test]
fn the_driver_is_told_bindings_and_params() {
    let some = kernel("some", |k| {
        let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::U8, Access::Write));
        let n = k.param("n", Scalar::U32);
        y.store(k.local_index(), x.load_vec(n * 4, 4)[0].convert(Scalar::U32));
    });
    let kinds = |m: &Module| m.interface.bindings.iter().map(|b| b.kind).collect::<Vec<_>>();
    let args = [BindingKind::Arg(ArgId(0)), BindingKind::Arg(ArgId(1))];
    let native = check(&some, Dialect::Native, false);
    assert_eq!(kinds(&native), args);
    assert_eq!(native.interface.params, Some(ParamsLocation::Immediate { bytes: 4 }));
    assert_eq!(native.interface.bindings.iter().map(|b| b.min_bytes).collect::<Vec<_>>(), [16, 4]);
    let plain = check(&some, Dialect::Plain, true);
    assert_eq!(kinds(&plain), [&args[..], &[BindingKind::Params, BindingKind::Report]].concat());
    assert_eq!(plain.interface.params, Some(ParamsLocation::Uniform { binding: 2, bytes: 8 }));
    assert_eq!(plain.interface.param_bytes(7, &[9]), [7, 0, 0, 0, 9, 0, 0, 0]);
    assert_eq!(native.interface.param_bytes(7, &[9]), [9, 0, 0, 0]);
    let many = kernel("many", |k| {
        let x = k.arg("x", Elem::U32, Access::Write);
        (0..40).for_each(|i| x.store(k.local_index(), k.param(format!("p {i}"), Scalar::U32)));
    });
    assert_eq!(
        check(&many, Dialect::Native, false).interface.params,
        Some(ParamsLocation::Uniform { binding: 1, bytes: 160 })
    );
}

#[test]
fn an_opaque_value_hides_behind_a_zero_that_only_the_driver_knows() {
    let build = |k: &Builder| {
        let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::F32, Access::Write));
        let (i, n) = (k.local_index(), k.param("n", Scalar::U32));
        y.store(i, (x.load(i + n) + 1.0).opaque() - 1.0);
    };
    let some = kernel("some", build);
    let native = check(&some, Dialect::Native, false);
    assert!(native.source.contains(" ^ params.zero)"), "{}", native.source);
    assert_eq!(native.interface.params, Some(ParamsLocation::Immediate { bytes: 8 }));
    assert_eq!(native.interface.param_bytes(7, &[9]), [9, 0, 0, 0, 0, 0, 0, 0]);
    let plain = check(&some, Dialect::Plain, true);
    assert_eq!(plain.interface.params, Some(ParamsLocation::Uniform { binding: 2, bytes: 12 }));
    assert_eq!(plain.interface.param_bytes(7, &[9]), [7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
}

/// Compares with a file under `tests/snapshots`; `UPDATE_SNAPSHOTS=1` writes it.
fn snapshot(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).expect("a writable snapshot");
    }
    let stored = std::fs::read_to_string(&path).expect("a snapshot; UPDATE_SNAPSHOTS=1 writes it");
    assert_eq!(stored, text, "{name} changed; UPDATE_SNAPSHOTS=1 accepts it");
}

#[test]
fn printed_kernels_stay_as_they_are() {
    let norm = kernel("rms_norm", |k| {
        let (x, y) = (k.arg("x", Elem::F16, Access::Read), k.arg("y", Elem::F16, Access::Write));
        let (n, eps) = (k.param("n", Scalar::U32), k.param("eps", Scalar::F32));
        let (row, me) = (k.group_id(0) * n, k.local_index() * 4);
        let sum = k.var(k.f32(0.0));
        k.for_(me, n, k.u32(256), |i| {
            x.load_vec(row + i, 4).into_iter().for_each(|v| sum.set(v.fma(v, sum.get())));
        });
        let total = k.group_reduce(sum.get(), Reduction::Add);
        let scale = (total / n.convert(Scalar::F32) + eps).inverse_sqrt();
        k.for_(me, n, k.u32(256), |i| {
            let scaled: Vec<_> = x.load_vec(row + i, 4).into_iter().map(|v| v * scale).collect();
            y.store_vec(row + i, &scaled);
        });
    });
    snapshot("rms_norm.native.wgsl", &check(&norm, Dialect::Native, false).source);
    let plain = Target { subgroup: None, ..target() };
    let count = kernel_for(&plain, "count", |k| {
        let (x, y) = (k.arg("x", Elem::U8, Access::Read), k.arg("y", Elem::U8, Access::Write));
        let (i, n) = (k.group_id(0) * 64 + k.local_index(), k.param("n", Scalar::U32));
        k.if_(i.lt(n), || y.store(i, x.load(i).count_ones()));
    });
    snapshot("count.plain.checked.wgsl", &check(&count, Dialect::Plain, true).source);
}

/// A matmul-like body: `steps` rounds of 16 multiply-adds on variables, fully unrolled.
fn unrolled(steps: u32) -> Kernel {
    kernel("unrolled", |k| {
        let (a, b) = (k.arg("a", Elem::F32, Access::Read), k.arg("b", Elem::F32, Access::Read));
        let y = k.arg("y", Elem::F32, Access::Write);
        let sums: Vec<_> = (0..16).map(|_| k.var(k.f32(0.0))).collect();
        for step in 0..steps {
            let at = k.local_index() * 4 + step * 256;
            let (left, right) = (a.load_vec(at, 4), b.load_vec(at, 4));
            for (i, sum) in sums.iter().enumerate() {
                sum.set(left[i / 4].fma(right[i % 4], sum.get()));
            }
        }
        k.barrier();
        let total = sums.iter().fold(k.f32(0.0), |total, sum| total + sum.get());
        y.store(k.local_index(), total);
    })
}

#[test]
fn building_validating_and_printing_stays_fast_and_linear() {
    let time = |steps| {
        let rounds = (0..5).map(|_| {
            let start = std::time::Instant::now();
            let kernel = unrolled(steps);
            let options = WgslOptions { dialect: Dialect::Native, checked: false };
            wgsl::print(&kernel, &options).expect("printable");
            (start.elapsed(), kernel.values.len())
        });
        rounds.min().expect("five rounds")
    };
    let (small, values) = time(8);
    println!("{values} values: {small:?}");
    let (large, values) = time(500);
    println!("{values} values: {large:?}");
    // Loose enough for a busy machine, tight enough for a square law to fail.
    assert!(values > 20_000 && small.as_micros() < 20_000, "{small:?}");
    assert!(large < small * 1000 && large.as_millis() < 1000, "{large:?}");
}
