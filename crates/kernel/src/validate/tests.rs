//! Each rule with a kernel that keeps it and one that breaks it.

use crate::*;

fn full() -> Target {
    let shape = |operand, accumulator| MatrixShape { operand, accumulator, m: 16, n: 16, k: 16 };
    Target {
        subgroup: Some(32),
        f16: true,
        exact_f16: false,
        f64: true,
        i64: true,
        i64_pairs: false,
        packed_dot: true,
        matrices: vec![shape(Elem::F16, Elem::F32)],
        matrix_support: MatrixSupport::Full,
        fragments: Some(Fragments::Quads),
        warpgroups: false,
        int8_warpgroups: false,
        device_fences: false,
        max_invocations: 1024,
        shared_bytes: 16384,
    }
}

/// Builds for a target, with a u32 buffer `x` (read and written) to begin with.
fn build(target: &Target, group: u32, write: impl for<'k> Fn(&'k Builder, Buf<'k>)) -> Result<Kernel, Error> {
    let k = Builder::new("kernel", group, target);
    let x = k.arg("x", Elem::U32, Access::ReadWrite);
    write(&k, x);
    k.finish()
}

fn keeps(write: impl for<'k> Fn(&'k Builder, Buf<'k>)) -> Kernel {
    match build(&full(), 64, write) {
        Ok(kernel) => kernel,
        Err(error) => panic!("{error}"),
    }
}

fn breaks(part: &str, write: impl for<'k> Fn(&'k Builder, Buf<'k>)) {
    refused(build(&full(), 64, write).map(|_| ()), part);
}

/// Checks that the error says `part`, and which kernel it is about.
fn refused(result: Result<(), Error>, part: &str) {
    match result {
        Ok(()) => panic!("accepted, though: {part}"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(part) && text.contains("kernel"), "`{text}` does not say `{part}`");
        }
    }
}

/// Breaks a kernel that is fine so far.
fn broken(part: &str, kernel: &Kernel, change: impl FnOnce(&mut Kernel)) {
    let mut kernel = kernel.clone();
    assert_eq!(validate(&kernel, &full()), Ok(()));
    change(&mut kernel);
    refused(validate(&kernel, &full()), part);
}

/// A value whose expression is this.
fn find(kernel: &Kernel, is: impl Fn(&Expr) -> bool) -> Value {
    match kernel.values.iter().position(|d| is(&d.expr)) {
        Some(i) => Value(i as u32),
        None => panic!("no such value"),
    }
}

#[test]
fn limits_hold() {
    let fill = |group, len| {
        build(&full(), group, move |k, x| {
            let s = k.shared(Elem::F32, 4, len);
            s.store_vec(k.u32(0), &[k.f32(0.0); 4]);
            x.store(k.local_index(), k.u32(0));
        })
    };
    assert!(fill(1024, 1024).is_ok());
    assert!(matches!(fill(1025, 1), Err(Error::Limit { needed: 1025, limit: 1024, .. })));
    assert!(matches!(fill(64, 1025), Err(Error::Limit { needed: 16400, limit: 16384, .. })));
    assert!(matches!(fill(64, u32::MAX), Err(Error::Limit { needed: u32::MAX, .. })), "no overflow");
    refused(fill(0, 1).map(|_| ()), "without invocations");
}

#[test]
fn declarations_are_checked() {
    let kernel = keeps(|k, x| {
        let n = k.param("n", Scalar::U32);
        let s = k.shared(Elem::F32, 2, 4);
        s.store_vec(k.u32(0), &[k.f32(0.0); 2]);
        let v = k.var(n);
        x.store(k.local_index(), v.get());
    });
    broken("no statement", &kernel, |k| k.body.clear());
    broken("param `n` of u64", &kernel, |k| k.params[0].scalar = Scalar::U64);
    broken("shared array 0 of bf16", &kernel, |k| k.shared[0].elem = Elem::BF16);
    broken("shared array 0 of 3 scalars", &kernel, |k| k.shared[0].lanes = 3);
    broken("shared array 0 is empty", &kernel, |k| k.shared[0].len = 0);
    broken("variable 0 of u32x3", &kernel, |k| k.vars[0] = Type::Vector(Scalar::U32, 3));
}

#[test]
fn values_are_computed_once_before_their_uses_and_in_scope() {
    let kernel = keeps(|k, x| {
        let i = k.local_index();
        let a = x.load(i);
        k.if_(a.gt(3), || x.store(i, a + 1));
        x.store(i, a);
    });
    let sum = find(&kernel, |e| matches!(e, Expr::Binary(..)));
    broken("used outside the block", &kernel, |k| {
        if let Some(Stmt::Store { value, .. }) = k.body.last_mut() {
            *value = sum;
        }
    });
    broken("used before it is computed", &kernel, |k| k.body.rotate_left(1));
    broken("computed twice", &kernel, |k| {
        let first = k.body[0].clone();
        k.body.push(first);
    });
    broken("there is no value %99", &kernel, |k| k.body.push(Stmt::Let(Value(99))));
}

#[test]
fn the_branches_of_an_if_do_not_see_each_other() {
    let kernel = keeps(|k, x| {
        let i = k.local_index();
        k.if_else(i.gt(3), || x.store(i, i + 1), || x.store(i, i + 2));
    });
    let sum = find(&kernel, |e| matches!(e, Expr::Binary(..)));
    broken("used outside the block", &kernel, |k| {
        if let Some(Stmt::If { otherwise, .. }) = k.body.last_mut() {
            otherwise.push(Stmt::Store { place: Storage::Arg(ArgId(0)), index: Value(0), value: sum });
        }
    });
}

#[test]
fn types_are_derived_again() {
    let kernel = keeps(|k, x| {
        let i = k.local_index();
        x.store(i, x.load(i) + 1);
    });
    let sum = find(&kernel, |e| matches!(e, Expr::Binary(..)));
    broken("is declared f32, but is u32", &kernel, |k| {
        k.values[sum.index()].ty = Type::Scalar(Scalar::F32);
    });
    broken("does not fit u32", &kernel, |k| {
        k.values.push(Def { expr: Expr::Const(Scalar::U32, 1 << 32), ty: Type::Scalar(Scalar::U32) });
    });
    broken(
        "MulHigh of i32",
        &keeps(|k, x| {
            let i = k.local_index().convert(Scalar::I32);
            x.store(k.local_index(), (i + i).convert(Scalar::U32));
        }),
        |k| {
            for def in &mut k.values {
                if let Expr::Binary(op, ..) = &mut def.expr {
                    *op = BinaryOp::MulHigh;
                }
            }
        },
    );
}

/// Replaces the expression of the last value, which `x.store` takes.
fn swap(kernel: &Kernel, expr: Expr) -> impl FnOnce(&mut Kernel) {
    let last = kernel.values.len() - 1;
    move |k: &mut Kernel| k.values[last].expr = expr
}

#[test]
fn operands_have_the_types_of_their_operation() {
    // The first values: 0 local index (u32), 1 loaded (u32), 2 f32, 3 i32, 4 bool, 5 vector, then the last.
    let kernel = keeps(|k, x| {
        let i = k.local_index();
        let u = x.load(i);
        u.convert(Scalar::F32);
        u.convert(Scalar::I32);
        u.gt(u);
        x.load_vec(i, 2);
        x.store(i, u + u);
    });
    assert!(matches!(kernel.values[5].expr, Expr::Load { lanes: 2, .. }));
    let [i, u, f, s, b, v] = [0, 1, 2, 3, 4, 5].map(Value);
    let cases = [
        ("Not of f32", Expr::Unary(UnaryOp::Not, f)),
        ("Sqrt of u32", Expr::Unary(UnaryOp::Sqrt, u)),
        ("Neg of u32", Expr::Unary(UnaryOp::Neg, u)),
        ("LeadingZeros of i32", Expr::Unary(UnaryOp::LeadingZeros, s)),
        ("%1 is u32, %2 is f32", Expr::Binary(BinaryOp::Add, u, f)),
        ("Rem of f32", Expr::Binary(BinaryOp::Rem, f, f)),
        ("And of f32", Expr::Binary(BinaryOp::And, f, f)),
        ("Add of bool", Expr::Binary(BinaryOp::Add, b, b)),
        ("%5 is u32x2, not a scalar", Expr::Binary(BinaryOp::Add, v, v)),
        ("fma of u32", Expr::Fma(u, u, u)),
        ("Lt of bool", Expr::Compare(CompareOp::Lt, b, b)),
        ("condition: %1 is u32, not bool", Expr::Select(u, u, u)),
        ("%1 is u32, %3 is i32", Expr::Select(b, u, s)),
        ("bitcast of bool to u32", Expr::Bitcast(Scalar::U32, b)),
        ("bitcast of u32 to f64", Expr::Bitcast(Scalar::F64, u)),
        ("opaque of u32", Expr::Opaque(u)),
        ("join: %2 is f32, not u32", Expr::Join(u, f)),
        ("pack: %1 is u32, not f32", Expr::PackHalf(f, u)),
        ("half 2 of a word", Expr::UnpackHalf(u, 2)),
        ("a vector of 3", Expr::Vector(vec![u, u, u])),
        ("component 2 of u32x2", Expr::Extract(v, 2)),
        ("component 0 of u32", Expr::Extract(u, 0)),
        ("no variable 7", Expr::Get(VarId(7))),
        ("a counter without its loop", Expr::Counter),
        ("elements at once", Expr::Load { place: Storage::Arg(ArgId(0)), index: i, lanes: 3 }),
        ("is f32, not u32 or u64", Expr::Load { place: Storage::Arg(ArgId(0)), index: f, lanes: 1 }),
        ("no buffer 9", Expr::Load { place: Storage::Arg(ArgId(9)), index: i, lanes: 1 }),
        ("no shared array 9", Expr::LoadLane { shared: SharedId(9), index: i, lane: 0 }),
        ("buffer that the kernel writes", Expr::LoadUniform { arg: ArgId(0), index: i }),
        ("is declared u32, but is f32", Expr::Convert(Scalar::F32, u)),
    ];
    for (part, expr) in cases {
        broken(part, &kernel, swap(&kernel, expr));
    }
}

#[test]
fn constant_divisors_and_shifts_are_in_range() {
    let kernel = keeps(|k, x| {
        let i = k.local_index();
        x.store(i + k.u32(32), i / k.u32(3));
        x.store(i, i << 31u32);
    });
    let number = |k: &Kernel, n| find(k, |e| *e == Expr::Const(Scalar::U32, n));
    let (i, wide) = (find(&kernel, |e| matches!(e, Expr::Builtin(_))), number(&kernel, 32));
    broken("u32 shifted by 32", &kernel, swap(&kernel, Expr::Binary(BinaryOp::Shl, i, wide)));
    broken("division by zero", &kernel, |k| {
        for def in &mut k.values {
            if def.expr == Expr::Const(Scalar::U32, 3) {
                def.expr = Expr::Const(Scalar::U32, 0);
            }
        }
    });
}

#[test]
fn stores_and_statements_have_the_right_types() {
    let kernel = keeps(|k, x| {
        let (i, f) = (k.local_index(), k.f32(1.0));
        let var = k.var(i);
        k.if_(i.gt(3), || x.store(i, var.get()));
        k.for_(k.u32(0), i, k.u32(1), |j| x.store(j, i));
        k.while_(|| var.get().gt(f.convert(Scalar::U32)), || var.set(k.u32(0)));
        k.report(i, k.i32(1), i);
    });
    let (i, f) = (
        find(&kernel, |e| matches!(e, Expr::Builtin(_))),
        find(&kernel, |e| matches!(e, Expr::Const(Scalar::F32, _))),
    );
    let each = |part: &str, change: &dyn Fn(&mut Stmt)| {
        broken(part, &kernel, |k| k.body.iter_mut().for_each(change));
    };
    each("set of variable 0", &|s| {
        if let Stmt::Set(_, value) = s {
            *value = f;
        }
    });
    each("no variable 5", &|s| {
        if let Stmt::Set(var, _) = s {
            *var = VarId(5);
        }
    });
    each("condition: ", &|s| {
        if let Stmt::If { condition, .. } = s {
            *condition = i;
        }
    });
    each("condition: ", &|s| {
        if let Stmt::While { condition, .. } = s {
            *condition = i;
        }
    });
    each("is f32, not u32", &|s| {
        if let Stmt::For { end, .. } = s {
            *end = f;
        }
    });
    each("but is no counter", &|s| {
        if let Stmt::For { counter, .. } = s {
            *counter = i;
        }
    });
    each("the step is not above zero", &|s| {
        if let Stmt::For { start, step, .. } = s {
            *step = *start;
        }
    });
    each("store: %", &|s| {
        if let Stmt::For { body, .. } = s
            && let Some(Stmt::Store { value, .. }) = body.first_mut()
        {
            *value = f;
        }
    });
    each("position of a report", &|s| {
        if let Stmt::Report { position, .. } = s {
            *position = f;
        }
    });
    each("report of %", &|s| {
        if let Stmt::Report { value, .. } = s {
            *value = f;
        }
    });
}

#[test]
fn a_counter_lives_in_its_loop() {
    let kernel = keeps(|k, x| {
        k.for_(k.u32(0), k.u32(4), k.u32(1), |j| x.store(j, j));
        x.store(k.local_index(), k.u32(0));
    });
    let counter = find(&kernel, |e| *e == Expr::Counter);
    broken("used outside the block", &kernel, |k| {
        if let Some(Stmt::Store { value, .. }) = k.body.last_mut() {
            *value = counter;
        }
    });
    broken("computed twice", &kernel, |k| {
        let again = k.body[0].clone();
        k.body.push(again);
    });
    broken("a counter without its loop", &kernel, |k| k.body.insert(0, Stmt::Let(counter)));
}

#[test]
fn buffers_are_used_as_declared() {
    let kernel = keeps(|k, x| {
        let i = k.local_index();
        let y = k.arg("y", Elem::F16, Access::Read);
        x.store(i, y.load(i).convert(Scalar::U32));
        x.atomic(AtomicOp::Add, i, i);
    });
    broken("store on buffer `x`, which is declared Read", &kernel, |k| k.args[0].access = Access::Read);
    broken("load on buffer `x`, which is declared Write", &kernel, |k| k.args[0].access = Access::Write);
    broken("load on buffer `y`, which is declared Write", &kernel, |k| k.args[1].access = Access::Write);
    broken("an atomic operation on u8", &kernel, |k| k.args[0].elem = Elem::U8);
}

#[test]
fn atomics_have_their_operands() {
    let kernel = keeps(|k, x| {
        let i = k.local_index();
        x.compare_exchange(i, i, i);
        let s = k.shared(Elem::I32, 1, 4);
        s.atomic(AtomicOp::Max, k.u32(0), k.i32(1));
    });
    let set = |k: &mut Kernel, change: &dyn Fn(&mut AtomicOp, &mut Option<Value>)| {
        for def in &mut k.values {
            if let Expr::Atomic { op, comparand, .. } = &mut def.expr {
                change(op, comparand);
            }
        }
    };
    broken("CompareExchange with 0 comparands", &kernel, |k| set(k, &|_, c| *c = None));
    broken("Add with 1 comparands", &kernel, |k| set(k, &|op, _| *op = AtomicOp::Add));
    broken("whose elements have 2", &kernel, |k| k.shared[0].lanes = 2);
}

#[test]
fn shared_elements_are_accessed_whole_or_by_lane() {
    let kernel = keeps(|k, x| {
        let s = k.shared(Elem::U32, 4, 8);
        let i = k.local_index() % 8;
        s.store_lane(i, 3, s.load_lane(k.u32(7), 3));
        x.store(i, s.load_vec(i)[0]);
    });
    broken("whose elements have 2", &kernel, |k| {
        k.shared[0].lanes = 2;
        k.values.iter_mut().for_each(|d| {
            if let Expr::LoadLane { lane, .. } = &mut d.expr {
                *lane = 0
            }
        });
        k.body.iter_mut().for_each(|s| {
            if let Stmt::StoreLane { lane, .. } = s {
                *lane = 0
            }
        });
    });
    broken("scalar 3 of shared array 0", &kernel, |k| k.shared[0].lanes = 2);
    broken("index 7 of shared array 0, which has 7", &kernel, |k| k.shared[0].len = 7);
}

#[test]
fn registers_are_those_of_the_target() {
    let wants = [
        ("f16 registers", Elem::F32, Scalar::F16, Target { f16: false, ..full() }),
        ("f64 registers", Elem::F64, Scalar::F64, Target { f64: false, ..full() }),
        ("i64 registers", Elem::I64, Scalar::I64, Target { i64: false, ..full() }),
        ("u64 registers", Elem::U64, Scalar::U64, Target { i64: false, ..full() }),
    ];
    for (part, elem, scalar, target) in wants {
        let kernel = keeps(|k, _| {
            let y = k.arg("y", elem, Access::ReadWrite);
            let i = k.local_index();
            y.store(i, y.load(i).convert(scalar).convert(elem.scalar()));
        });
        refused(validate(&kernel, &target), part);
    }
    let half = keeps(|k, _| k.shared(Elem::F16, 1, 4).store(k.u32(0), k.f32(1.0)));
    refused(validate(&half, &Target { f16: false, ..full() }), "f16 registers for shared array 0");
    let dot = keeps(|k, x| {
        let i = k.local_index();
        x.store(i, i.packed_dot(i, i, false));
    });
    refused(validate(&dot, &Target { packed_dot: false, ..full() }), "packed dot");
    broken("accumulator: %", &dot, |k| {
        for def in &mut k.values {
            if let Expr::PackedDot { signed, .. } = &mut def.expr {
                *signed = true;
            }
        }
    });
}

#[test]
fn stores_are_ordered_between_workgroups_where_the_target_can() {
    breaks("stores ordered between workgroups", |k, _| k.device_fence());
    let ordered = Target { device_fences: true, ..full() };
    // Anywhere: it waits for nobody.
    let fence = |k: &Builder, x: Buf<'_>| {
        k.if_(k.local_index().eq(0), || {
            x.store(k.u32(0), k.u32(1));
            k.device_fence();
        })
    };
    assert!(build(&ordered, 64, |k, x| fence(k, x)).is_ok());
}

#[test]
fn subgroups_are_whole_and_of_the_target() {
    let sum =
        |group| build(&full(), group, |k, x| x.store(k.lane(), k.subgroup_id().subgroup(SubgroupOp::Add)));
    assert!(sum(96).is_ok());
    refused(sum(48).map(|_| ()), "not made of whole subgroups of 32");
    let plain = Target { subgroup: None, ..full() };
    refused(build(&plain, 64, |k, x| x.store(k.lane(), k.lane())).map(|_| ()), "no subgroups");
    refused(build(&plain, 64, |k, _| k.subgroup_barrier()).map(|_| ()), "no subgroups");
    breaks("subgroup Any of u32", |k, x| x.store(k.lane(), k.lane().subgroup(SubgroupOp::Any)));
    breaks("subgroup Max of bool", |k, x| {
        let max = k.lane().gt(1).subgroup(SubgroupOp::Max);
        x.store(k.lane(), max.convert(Scalar::U32));
    });
    breaks("Shuffle without a lane", |k, x| x.store(k.lane(), k.lane().subgroup(SubgroupOp::Shuffle)));
    let kernel = keeps(|k, x| x.store(k.lane(), k.lane().shuffle_xor(1)));
    broken("not constant", &kernel, |k| {
        for def in &mut k.values {
            if let Expr::Subgroup(_, value, other) = &mut def.expr {
                *other = Some(*value);
            }
        }
    });
}

#[test]
fn matrices_are_those_of_the_target() {
    let ty = |elem, role| MatrixType { elem, rows: 16, columns: 16, role };
    let half = ty(Elem::F16, MatrixUse::A);
    let sum = ty(Elem::F32, MatrixUse::Accumulator);
    let kernel = keeps(|k, _| {
        let (a, y) = (k.arg("a", Elem::F16, Access::Read), k.arg("y", Elem::F32, Access::ReadWrite));
        let (zero, stride) = (k.u32(0), k.u32(16));
        let left = a.load_matrix(half, zero, stride, false);
        let right = a.load_matrix(ty(Elem::F16, MatrixUse::B), zero, stride, true);
        let c = left.matrix_mul_add(right, k.f32(0.0).splat(sum)).matrix_scale(k.f32(2.0));
        y.store_matrix(zero, stride, false, c.matrix_add(c));
    });
    let none = Target { matrices: Vec::new(), ..full() };
    refused(validate(&kernel, &none), "no cooperative matrix f16[16x16]A");
    let other = MatrixShape { operand: Elem::F16, accumulator: Elem::F16, m: 16, n: 16, k: 16 };
    let apart = MatrixShape { operand: Elem::F32, accumulator: Elem::F32, m: 16, n: 16, k: 16 };
    let no_product = Target { matrices: vec![other, apart], ..full() };
    refused(
        validate(&kernel, &no_product),
        "no matrix multiply f16[16x16]A x f16[16x16]B + f32[16x16]Accumulator",
    );
    broken("in memory of f32", &kernel, |k| k.args[1].elem = Elem::F32);
    broken("a matrix multiply of", &kernel, |k| {
        for def in &mut k.values {
            if let Expr::MatrixMulAdd(a, b, _) = &mut def.expr {
                std::mem::swap(a, b);
            }
        }
    });
    broken("of matrices", &kernel, |k| {
        for def in &mut k.values {
            if let Expr::MatrixBinary(op, ..) = &mut def.expr {
                *op = BinaryOp::Sub;
            }
        }
    });
    breaks("may differ inside a subgroup", |k, _| {
        let a = k.arg("a", Elem::F16, Access::ReadWrite);
        let m = a.load_matrix(half, k.lane(), k.u32(16), false);
        a.store_matrix(k.u32(0), k.u32(16), false, m);
    });
    breaks("a cooperative matrix in control flow", |k, _| {
        let a = k.arg("a", Elem::F16, Access::ReadWrite);
        let m = a.load_matrix(half, k.u32(0), k.u32(16), false);
        k.if_(k.lane().eq(0), || a.store_matrix(k.u32(0), k.u32(16), false, m));
    });
}

#[test]
fn basic_matrices_are_zeros_and_live_in_memory_of_their_type() {
    let ty = |elem, role| MatrixType { elem, rows: 16, columns: 16, role };
    let (half, right) = (ty(Elem::F16, MatrixUse::A), ty(Elem::F16, MatrixUse::B));
    let sum = ty(Elem::F32, MatrixUse::Accumulator);
    let basic = Target { matrix_support: MatrixSupport::Basic, ..full() };
    let check = |write: &dyn Fn(&Builder)| {
        let kernel = keeps(|k, _| write(k));
        validate(&kernel, &basic)
    };
    let multiplied = check(&|k| {
        let (a, y) = (k.arg("a", Elem::F16, Access::Read), k.arg("y", Elem::F32, Access::ReadWrite));
        let left = k.shared(Elem::F16, 1, 256).load_matrix(half, k.u32(0), k.u32(16), false);
        let right = a.load_matrix(right, k.u32(0), k.u32(16), true);
        let c = left.matrix_mul_add(right, k.f32(0.0).splat(sum));
        y.store_matrix(k.u32(0), k.u32(16), false, c);
    });
    multiplied.unwrap();
    let words = check(&|k| {
        let words = k.shared(Elem::U32, 1, 256);
        words.store_matrix(k.u32(0), k.u32(16), false, k.f32(0.0).splat(sum));
    });
    refused(words, "f32[16x16]Accumulator in memory of u32");
    let vectors = check(&|k| {
        let vectors = k.shared(Elem::F32, 4, 64);
        vectors.store_matrix(k.u32(0), k.u32(4), false, k.f32(0.0).splat(sum));
    });
    refused(vectors, "f32[16x16]Accumulator in memory of f32 vectors");
    let ones = check(&|k| {
        let y = k.arg("y", Elem::F32, Access::ReadWrite);
        y.store_matrix(k.u32(0), k.u32(16), false, k.f32(1.0).splat(sum));
    });
    refused(ones, "of a number other than zero");
    let added = check(&|k| {
        let y = k.arg("y", Elem::F32, Access::ReadWrite);
        let c = y.load_matrix(sum, k.u32(0), k.u32(16), false);
        y.store_matrix(k.u32(0), k.u32(16), false, c.matrix_add(c));
    });
    refused(added, "arithmetic on f32[16x16]Accumulator");
    let parts = check(&|k| {
        let y = k.arg("y", Elem::F32, Access::ReadWrite);
        let parts = y.load_matrix(sum, k.u32(0), k.u32(16), false).matrix_parts();
        y.store_matrix(k.u32(0), k.u32(16), false, k.matrix_of(sum, &parts));
    });
    refused(parts, "elements of f32[16x16]Accumulator");
    let words = check(&|k| {
        let y = k.arg("y", Elem::F16, Access::ReadWrite);
        let words = y.load_matrix(half, k.u32(0), k.u32(16), false).matrix_words(4);
        y.store_matrix(k.u32(0), k.u32(16), false, k.matrix_of_words(half, &words));
    });
    refused(words, "words of f16[16x16]A");
}

#[test]
fn elements_of_matrices_are_held_where_the_target_says() {
    let ty = |elem, role| MatrixType { elem, rows: 16, columns: 16, role };
    let (half, sum) = (ty(Elem::F16, MatrixUse::A), ty(Elem::F32, MatrixUse::Accumulator));
    let kernel = keeps(|k, _| {
        let y = k.arg("y", Elem::F32, Access::ReadWrite);
        let parts = y.load_matrix(sum, k.u32(0), k.u32(16), false).matrix_parts();
        let twice: Vec<Val<'_>> = parts.iter().map(|p| *p + *p).collect();
        let product = k
            .matrix_of(half, &twice)
            .matrix_mul_add(k.f32(1.0).splat(ty(Elem::F16, MatrixUse::B)), k.matrix_of(sum, &parts));
        y.store_matrix(k.u32(0), k.u32(16), false, product);
    });
    refused(validate(&kernel, &Target { fragments: None, ..full() }), "no elements of f32[16x16]Accumulator");
    broken("part 8 of", &kernel, |k| {
        for def in &mut k.values {
            if let Expr::MatrixPart(_, part) = &mut def.expr {
                *part = 8;
            }
        }
    });
    broken("of 7 parts", &kernel, |k| {
        for def in &mut k.values {
            if let Expr::MatrixOf(_, parts) = &mut def.expr {
                parts.pop();
            }
        }
    });
    breaks("parts of f16[16x16]B", |k, x| {
        let parts = k.f32(1.0).splat(ty(Elem::F16, MatrixUse::B)).matrix_parts();
        x.store(k.u32(0), parts[0].bitcast(Scalar::U32));
    });
    breaks("a cooperative matrix in control flow", |k, x| {
        let m = k.f32(1.0).splat(sum);
        k.if_(k.lane().eq(0), || x.store(k.u32(0), m.matrix_parts()[0].bitcast(Scalar::U32)));
    });
}

#[test]
fn barriers_stand_in_uniform_control_flow() {
    keeps(|k, _| {
        let n = k.param("n", Scalar::U32);
        let lengths = k.arg("lengths", Elem::U32, Access::Read);
        k.if_(k.group_id(0).lt(n), || k.barrier());
        let length = lengths.load_uniform(k.group_id(1) + 1);
        let left = k.var(length);
        k.for_(k.group_id(0), length, k.group_count(0), |i| {
            k.if_(i.lt(n), || k.barrier());
            left.set(left.get() - i);
        });
        k.while_(
            || left.get().gt(0),
            || {
                k.barrier();
                left.set(left.get() / 2);
            },
        );
    });
    breaks("a barrier in control flow steered by %", |k, _| k.if_(k.local_index().lt(3), || k.barrier()));
    breaks("a barrier", |k, _| k.if_(k.subgroup_id().lt(1), || k.barrier()));
    breaks("a barrier", |k, x| k.if_(x.load(k.u32(0)).lt(1), || k.barrier()));
    breaks("a barrier", |k, _| {
        let y = k.arg("y", Elem::U32, Access::Read);
        k.if_(y.load(k.u32(0)).lt(1), || k.barrier());
    });
    breaks("a barrier", |k, _| {
        let s = k.shared(Elem::U32, 1, 4);
        k.if_(s.load(k.u32(0)).lt(1), || k.barrier());
    });
    breaks("a barrier", |k, x| k.if_(x.atomic(AtomicOp::Add, k.u32(0), k.u32(1)).lt(1), || k.barrier()));
    breaks("a barrier", |k, _| k.for_(k.u32(0), k.local_index(), k.u32(1), |_| k.barrier()));
    breaks("a barrier", |k, x| k.while_(|| x.load(k.u32(0)).gt(0), || k.barrier()));
    breaks("a barrier", |k, _| {
        let flag = k.var(k.u32(0));
        k.if_(k.local_index().lt(3), || flag.set(k.u32(1)));
        k.if_(flag.get().eq(1), || k.barrier());
    });
}

#[test]
fn a_variable_is_followed_around_loops() {
    // The barrier's condition is uniform in the first round only: `a` becomes `b`, `b` becomes `c`, which differs.
    breaks("a barrier", |k, _| {
        let (a, b, c) = (k.var(k.u32(0)), k.var(k.u32(0)), k.var(k.u32(0)));
        k.for_(k.u32(0), k.u32(9), k.u32(1), |_| {
            k.if_(a.get().eq(0), || k.barrier());
            a.set(b.get());
            b.set(c.get());
            c.set(k.local_index());
        });
    });
    // The condition of the outer loop differs only through the body.
    breaks("a barrier", |k, _| {
        let left = k.var(k.u32(8));
        k.while_(
            || {
                k.barrier();
                left.get().gt(0)
            },
            || left.set(left.get() - k.lane()),
        );
    });
}

#[test]
fn subgroup_operations_stand_in_flow_that_is_uniform_per_subgroup() {
    keeps(|k, x| {
        k.if_(k.subgroup_id().lt(1), || {
            x.store(k.lane(), k.lane().subgroup(SubgroupOp::Add));
            k.subgroup_barrier();
        });
        let any = k.lane().gt(7).subgroup(SubgroupOp::Any);
        k.if_(any, || x.store(k.lane(), k.lane().shuffle_xor(1)));
        let first = k.lane().shuffle(k.u32(0));
        k.if_(first.gt(7), || x.store(k.lane(), k.lane().shuffle(k.lane())));
        k.if_((k.local_index() / 32u32).lt(1), || k.subgroup_barrier());
        k.if_((k.local_index() >> 6u32).lt(1), || k.subgroup_barrier());
    });
    breaks("subgroup Add in control flow steered by %", |k, x| {
        k.if_(k.lane().lt(3), || x.store(k.lane(), k.lane().subgroup(SubgroupOp::Add)));
    });
    breaks("a subgroup barrier", |k, _| k.if_((k.local_index() / 16u32).lt(1), || k.subgroup_barrier()));
    breaks("a subgroup barrier", |k, _| {
        let scan = k.u32(1).subgroup(SubgroupOp::InclusiveAdd);
        k.if_(scan.lt(3), || k.subgroup_barrier());
    });
}

#[test]
fn uniform_loads_have_uniform_indices_and_control_flow() {
    keeps(|k, x| {
        let y = k.arg("y", Elem::U32, Access::Read);
        x.store(k.local_index(), y.load_uniform(k.group_id(0)));
    });
    breaks("of a uniform load may differ", |k, x| {
        let y = k.arg("y", Elem::U32, Access::Read);
        x.store(k.local_index(), y.load_uniform(k.local_index()));
    });
    breaks("a uniform load in control flow", |k, x| {
        let y = k.arg("y", Elem::U32, Access::Read);
        k.if_(k.local_index().lt(3), || x.store(k.local_index(), y.load_uniform(0u32)));
    });
}

#[test]
fn twenty_thousand_values_are_validated_in_a_few_milliseconds() {
    let kernel = keeps(|k, x| {
        let sum = k.var(k.local_index());
        for _ in 0..6000 {
            sum.set(sum.get() * 3 + 1);
        }
        k.barrier();
        x.store(k.local_index(), sum.get());
    });
    assert!(kernel.values.len() > 18_000);
    let start = std::time::Instant::now();
    assert_eq!(validate(&kernel, &full()), Ok(()));
    assert!(start.elapsed().as_millis() < 200, "{:?}", start.elapsed());
}
