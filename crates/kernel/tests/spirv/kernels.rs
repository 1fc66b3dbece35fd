//! Small kernels that together use every part of the language.

use olivine_kernel::*;

/// A device with everything.
pub(crate) fn rich() -> Target {
    let product = |operand, accumulator, k| MatrixShape { operand, accumulator, m: 16, n: 16, k };
    Target {
        subgroup: Some(32),
        f16: true,
        exact_f16: true,
        f64: true,
        i64: true,
        i64_pairs: false,
        packed_dot: true,
        matrices: vec![
            product(Elem::F16, Elem::F32, 16),
            product(Elem::BF16, Elem::F32, 16),
            product(Elem::I8, Elem::I32, 32),
            product(Elem::U8, Elem::U32, 32),
        ],
        matrix_support: MatrixSupport::Full,
        fragments: Some(Fragments::Quads),
        warpgroups: false,
        int8_warpgroups: false,
        device_fences: true,
        max_invocations: 1024,
        shared_bytes: 49152,
    }
}

pub(crate) const SCALARS: [Scalar; 8] =
    [Scalar::Bool, Scalar::I32, Scalar::U32, Scalar::I64, Scalar::U64, Scalar::F16, Scalar::F32, Scalar::F64];

fn kernel(name: impl Into<String>, write: impl FnOnce(&Builder)) -> Kernel {
    let builder = Builder::new(name, 64, &rich());
    write(&builder);
    builder.finish().expect("a valid kernel")
}

/// The kernel of the crate's documentation.
pub(crate) fn double() -> Kernel {
    kernel("double", |k| {
        let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::F16, Access::Write));
        let n = k.param("n", Scalar::U32);
        let i = k.group_id(0) * 64 + k.local_index();
        k.if_(i.lt(n), || y.store(i, x.load(i) * 2));
    })
}

/// Elements of one type copied by 1, 2 and 4, with a 32-bit and a 64-bit index.
pub(crate) fn copy(elem: Elem) -> Kernel {
    kernel(format!("copy_{elem}"), |k| {
        let (x, y) = (k.arg("x", elem, Access::Read), k.arg("y", elem, Access::ReadWrite));
        let i = k.local_index();
        y.store(i, x.load(i));
        for lanes in [2, 4] {
            let values = x.load_vec(i * u32::from(lanes), lanes);
            y.store_vec(i * u32::from(lanes), &values);
        }
        let wide = i.convert(Scalar::U64) * 3;
        y.store(wide, x.load(wide));
        y.store(k.u32(0), x.load_uniform(7));
    })
}

/// A value of a scalar type that the driver cannot know.
fn some<'k>(k: &'k Builder, scalar: Scalar) -> Val<'k> {
    k.local_index().convert(scalar)
}

/// Keeps a value alive by folding its bits into a word.
fn keep<'k>(out: Buf<'k>, at: &mut u32, value: Val<'k>) {
    let k = value.builder();
    for part in value.components() {
        let word = match part.scalar() {
            Scalar::U32 => part,
            Scalar::F32 | Scalar::I32 => part.bitcast(Scalar::U32),
            _ => part.convert(Scalar::U32),
        };
        out.store(k.u32(*at), word);
        *at += 1;
    }
}

/// Every operation that a scalar type has.
pub(crate) fn arithmetic(scalar: Scalar) -> Kernel {
    kernel(format!("arithmetic_{scalar}"), |k| {
        let out = k.arg("out", Elem::U32, Access::Write);
        let mut at = 0;
        let (a, b) = (some(k, scalar), some(k, Scalar::U32).eq(3).convert(scalar));
        let (float, int, bool) = (scalar.is_float(), scalar.is_int(), scalar == Scalar::Bool);
        let mut unary = Vec::new();
        if float || scalar.is_signed_int() {
            unary.extend([UnaryOp::Neg, UnaryOp::Abs]);
        }
        if int || bool {
            unary.push(UnaryOp::Not);
        }
        if float {
            unary.extend([UnaryOp::Floor, UnaryOp::Ceil, UnaryOp::Trunc, UnaryOp::RoundEven]);
            unary.extend([UnaryOp::Sqrt, UnaryOp::InverseSqrt]);
        }
        if matches!(scalar, Scalar::F16 | Scalar::F32) {
            unary.extend([UnaryOp::Exp2, UnaryOp::Log2, UnaryOp::Sin, UnaryOp::Cos]);
        }
        if matches!(scalar, Scalar::U32 | Scalar::I32) {
            unary.push(UnaryOp::CountOnes);
        }
        if scalar == Scalar::U32 {
            unary.push(UnaryOp::LeadingZeros);
        }
        for op in unary {
            keep(out, &mut at, a.unary(op));
        }
        let mut binary = Vec::new();
        if !bool {
            binary.extend([BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul]);
            binary.extend([BinaryOp::Div, BinaryOp::Min, BinaryOp::Max]);
        }
        if int {
            binary.extend([BinaryOp::Rem, BinaryOp::Shl, BinaryOp::Shr]);
        }
        if int || bool {
            binary.extend([BinaryOp::And, BinaryOp::Or, BinaryOp::Xor]);
        }
        if scalar == Scalar::U32 {
            binary.push(BinaryOp::MulHigh);
        }
        for op in binary {
            keep(out, &mut at, a.binary(op, b));
        }
        let mut comparisons = vec![CompareOp::Eq, CompareOp::Ne];
        if !bool {
            comparisons.extend([CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge]);
        }
        for op in comparisons {
            let holds = a.compare(op, b);
            keep(out, &mut at, holds.select(a, b));
        }
        if float {
            keep(out, &mut at, a.fma(b, 0.5));
        }
        for to in SCALARS {
            keep(out, &mut at, a.convert(to));
            if scalar != Scalar::Bool && to != Scalar::Bool && scalar.bits() == to.bits() {
                keep(out, &mut at, a.bitcast(to));
            }
        }
    })
}

/// Words, halves and vectors; params of every type; the position of an invocation.
pub(crate) fn words() -> Kernel {
    kernel("words", |k| {
        let out = k.arg("out", Elem::U32, Access::Write);
        let mut at = 0;
        let (u, i, f) = (k.param("u", Scalar::U32), k.param("i", Scalar::I32), k.param("f", Scalar::F32));
        keep(out, &mut at, u.join(k.lane()));
        let packed = f.pack_half(f * 2);
        keep(out, &mut at, packed);
        keep(out, &mut at, packed.unpack_half(0));
        keep(out, &mut at, packed.unpack_half(1));
        keep(out, &mut at, i);
        for d in 0..3 {
            keep(out, &mut at, k.group_id(d) + k.group_count(d));
        }
        keep(out, &mut at, k.subgroup_id());
        keep(out, &mut at, u.packed_dot(packed, i, true));
        keep(out, &mut at, u.packed_dot(packed, u, false));
        let signed = i.bitcast(Scalar::I32);
        keep(out, &mut at, signed.packed_dot(signed, i, true));
    })
}

/// Every statement of control flow, nested; variables; reports.
pub(crate) fn flow() -> Kernel {
    kernel("flow", |k| {
        let x = k.arg("x", Elem::F32, Access::Read);
        let y = k.arg("y", Elem::F32, Access::Write);
        let n = k.param("n", Scalar::U32);
        let sum = k.var(k.f32(0.0));
        k.for_(k.local_index(), n, k.u32(64), |i| {
            k.if_else(
                i.lt(k.u32(100)),
                || sum.set(sum.get() + x.load(i)),
                || {
                    k.for_(k.i32(-3), i.convert(Scalar::I32), k.i32(2), |j| {
                        sum.set(sum.get() - j.convert(Scalar::F32));
                    })
                },
            );
        });
        let left = k.var(n);
        k.while_(
            || {
                let more = k.if_value(left.get().gt(5), || left.get() / 2, || left.get());
                more.gt(1)
            },
            || {
                left.set(left.get() - 1);
                k.if_(left.get().eq(9), || k.report(left.get(), k.i32(-7), n));
            },
        );
        k.report(left.get(), left.get().convert(Scalar::I64), n);
        y.store(k.local_index(), sum.get());
    })
}

/// Workgroup arrays of one type, by 1, 2 and 4 scalars.
pub(crate) fn shared(elem: Elem) -> Kernel {
    kernel(format!("shared_{elem}"), |k| {
        let y = k.arg("y", elem, Access::ReadWrite);
        let me = k.local_index();
        for lanes in [1, 2, 4] {
            let array = k.shared(elem, lanes, 64);
            let values: Vec<_> = (0..lanes).map(|i| y.load(me + u32::from(i))).collect();
            array.store_vec(me, &values);
            k.barrier();
            array.store_lane(me, lanes - 1, array.load_lane(me ^ 1, 0));
            k.subgroup_barrier();
            let seen = array.load_vec(me ^ 2);
            y.store_vec(me * u32::from(lanes), &seen);
        }
    })
}

/// Subgroup operations of one type.
pub(crate) fn subgroup(scalar: Scalar) -> Kernel {
    kernel(format!("subgroup_{scalar}"), |k| {
        let out = k.arg("out", Elem::U32, Access::Write);
        let mut at = 0;
        let a = some(k, scalar);
        if scalar == Scalar::Bool {
            keep(out, &mut at, a.subgroup(SubgroupOp::Any));
            keep(out, &mut at, a.subgroup(SubgroupOp::All));
        } else {
            let sums = [SubgroupOp::Add, SubgroupOp::InclusiveAdd, SubgroupOp::ExclusiveAdd];
            for op in sums.into_iter().chain([SubgroupOp::Min, SubgroupOp::Max]) {
                keep(out, &mut at, a.subgroup(op));
            }
        }
    })
}

/// Values of one type passed between lanes.
pub(crate) fn shuffles(scalar: Scalar) -> Kernel {
    kernel(format!("shuffles_{scalar}"), |k| {
        let out = k.arg("out", Elem::U32, Access::Write);
        let mut at = 0;
        let a = some(k, scalar);
        keep(out, &mut at, a.shuffle_xor(1));
        keep(out, &mut at, a.shuffle(k.lane() / 2));
    })
}

/// Atomics on a buffer and on a workgroup array.
pub(crate) fn atomics(elem: Elem) -> Kernel {
    kernel(format!("atomics_{elem}"), |k| {
        let x = k.arg("x", elem, Access::ReadWrite);
        let array = k.shared(elem, 1, 64);
        let me = k.local_index();
        let value = me.convert(elem.scalar());
        let ops = [AtomicOp::Add, AtomicOp::Min, AtomicOp::Max, AtomicOp::And, AtomicOp::Or, AtomicOp::Xor];
        for op in ops.into_iter().chain([AtomicOp::Exchange]) {
            let old = x.atomic(op, me, value);
            array.atomic(op, me, old);
        }
        let old = x.compare_exchange(me, value, value + 1);
        k.barrier();
        x.store(me, old + array.load(me));
    })
}

/// The workgroup that comes last adds up what all stored.
pub(crate) fn last_arrival() -> Kernel {
    kernel("last_arrival", |k| {
        let parts = k.arg("parts", Elem::U32, Access::ReadWrite);
        let arrivals = k.arg("arrivals", Elem::U32, Access::ReadWrite);
        let out = k.arg("out", Elem::U32, Access::Write);
        let found = k.shared(Elem::U32, 1, 1);
        let (me, group) = (k.local_index(), k.group());
        parts.store(k.group_id(0) * group + me, me + k.group_id(0));
        k.device_fence();
        k.barrier();
        k.if_(me.eq(0), || {
            k.device_fence();
            let before = arrivals.atomic(AtomicOp::Add, k.u32(0), k.u32(1));
            k.device_fence();
            let is_last = (before + 1).eq(k.group_count(0));
            k.if_(is_last, || arrivals.store(k.u32(0), k.u32(0)));
            found.store(k.u32(0), is_last.select(k.group_count(0), k.u32(0)));
        });
        k.barrier();
        k.device_fence();
        let sum = k.var(k.u32(0));
        k.for_(k.u32(0), found.load(k.u32(0)), k.u32(1), |i| {
            sum.set(sum.get() + parts.load(i * group + me));
        });
        k.if_(found.load(k.u32(0)).ne(0), || out.store(me, sum.get()));
    })
}

/// A reduction over the workgroup, on a device with subgroups or without.
pub(crate) fn reduce(target: &Target) -> Kernel {
    let k = Builder::new("reduce", 256.min(target.max_invocations), target);
    let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::F32, Access::Write));
    let sum = k.group_reduce(x.load(k.local_index()), Reduction::Add);
    let most = k.group_reduce(x.load(k.local_index()), Reduction::Max);
    k.if_(k.local_index().eq(0), || y.store(k.group_id(0), sum / most));
    k.finish().expect("a valid kernel")
}

/// More arguments than push constants hold.
pub(crate) fn many_args() -> Kernel {
    kernel("many_args", |k| {
        let args: Vec<_> = (0..40).map(|i| k.arg(format!("x{i}"), Elem::F32, Access::Read)).collect();
        let out = k.arg("out", Elem::F32, Access::Write);
        let scale = k.param("scale", Scalar::F32);
        let i = k.local_index();
        let sum = args.iter().fold(scale, |sum, x| sum + x.load(i));
        out.store(i, sum);
    })
}

/// A product of cooperative matrices from buffers and from workgroup arrays.
pub(crate) fn matrices(shape: MatrixShape) -> Kernel {
    kernel(format!("matrices_{}", shape.operand), |k| {
        let a = k.arg("a", shape.operand, Access::Read);
        let b = k.arg("b", shape.operand, Access::Read);
        let c = k.arg("c", shape.accumulator, Access::ReadWrite);
        let n = k.param("n", Scalar::U32);
        let matrix = |elem, rows, columns, role| MatrixType { elem, rows, columns, role };
        let left = matrix(shape.operand, shape.m, shape.k, MatrixUse::A);
        let right = matrix(shape.operand, shape.k, shape.n, MatrixUse::B);
        let sum = matrix(shape.accumulator, shape.m, shape.n, MatrixUse::Accumulator);
        let one = k.number(shape.accumulator.scalar(), 1.0);
        let total = k.var(one.splat(sum));
        let tile = k.shared(shape.accumulator, 1, shape.m * shape.n);
        tile.store(k.local_index(), one);
        k.barrier();
        k.for_(k.u32(0), n, k.u32(shape.k), |i| {
            let x = a.load_matrix(left, i, n, false);
            let y = b.load_matrix(right, i, n, true);
            let z = tile.load_matrix(sum, k.u32(0), k.u32(shape.n), false);
            total.set(x.matrix_mul_add(y, x.matrix_mul_add(y, z)));
        });
        let operand = k.number(shape.operand.scalar(), 3.0).splat(left);
        let old = c.load_matrix(sum, k.u32(0), n, false);
        let scaled =
            old.matrix_add(operand.matrix_mul_add(operand_right(k, right), total.get())).matrix_scale(one);
        c.store_matrix(k.u32(0), n, false, scaled);
        tile.store_matrix(k.u32(0), k.u32(shape.m), true, scaled);
    })
}

fn operand_right<'k>(k: &'k Builder, ty: MatrixType) -> Val<'k> {
    k.number(ty.elem.scalar(), 5.0).splat(ty)
}

/// Everything that the installed validators know: all but cooperative matrices, whose extension is newer.
pub(crate) fn all() -> Vec<Kernel> {
    let mut kernels = vec![double(), words(), flow(), many_args(), reduce(&rich()), reduce(&Target::plain())];
    kernels.push(last_arrival());
    kernels.extend(Elem::ALL.map(copy));
    kernels.extend(SCALARS.map(arithmetic));
    kernels.extend(SCALARS.map(subgroup));
    // Lanes pass each other numbers only.
    kernels.extend(SCALARS.into_iter().filter(|s| *s != Scalar::Bool).map(shuffles));
    let held = [Elem::F16, Elem::F32, Elem::F64, Elem::I32, Elem::U32, Elem::I64, Elem::U64];
    kernels.extend(held.map(shared));
    kernels.extend([Elem::U32, Elem::I32].map(atomics));
    kernels
}

/// An unrolled tile of a matrix product: some thousands of instructions.
pub(crate) fn tile() -> Kernel {
    kernel("tile", |k| {
        let a = k.arg("a", Elem::F32, Access::Read);
        let b = k.arg("b", Elem::F16, Access::Read);
        let c = k.arg("c", Elem::F32, Access::Write);
        let n = k.param("n", Scalar::U32);
        let sums: Vec<_> = (0..64).map(|_| k.var(k.f32(0.0))).collect();
        k.for_(k.u32(0), n, k.u32(8), |at| {
            for step in 0..8u32 {
                let row: Vec<_> = (0..2).flat_map(|i| a.load_vec((at + step) * 8 + 4 * i, 4)).collect();
                let column: Vec<_> = (0..2).flat_map(|i| b.load_vec((at + step) * 8 + 4 * i, 4)).collect();
                for (i, sum) in sums.iter().enumerate() {
                    sum.set(row[i / 8].fma(column[i % 8], sum.get()));
                }
            }
        });
        for (i, sum) in sums.iter().enumerate() {
            c.store(k.u32(i as u32), sum.get());
        }
    })
}
