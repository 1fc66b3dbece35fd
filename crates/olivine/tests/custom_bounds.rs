//! Kernels of custom operations with indices outside of their memory: nothing crashes, nothing but their own memory changes,
//! and checked sessions name the access.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use olivine::PipelineCache;
use olivine::custom::{Attrs, Call, CustomOp, GpuKernel};
use olivine::internals::OptionsExt as _;
use olivine::internals::kernel::{Access, AtomicOp, Elem, MatrixType, MatrixUse, Scalar};
use olivine::ir::{TensorType, ValueId};
use olivine::prelude::*;
use olivine_cases::{Rng, these};

const GROUP: u32 = 32;

fn sessions(checked: bool) -> Vec<Session> {
    let options = SessionOptions::new().pipeline_cache(PipelineCache::Off).checked(checked);
    let browser = options.clone().browser_dialect(true);
    [("vulkan", &options), ("wgpu", &options), ("wgpu", &browser)]
        .map(|(device, options)| {
            Session::with_options(device.parse().unwrap(), options.clone())
                .expect("a device; `apt-get install mesa-vulkan-drivers`")
        })
        .into()
}

/// Indices around and far from the ends of `len` elements; every one inside is there once.
fn indices(len: u32) -> Vec<u32> {
    let inside = [0, 1, 2, 5, len / 2, len - 1].into_iter().filter(|i| *i < len);
    let near = (0..12).map(|i| len + 8 + 7 * i);
    let far = [1 << 16, 1 << 24, 1 << 30, 1 << 31, u32::MAX / 4 + 1, u32::MAX - 7, u32::MAX];
    let mut list: Vec<u32> = inside.chain(near).chain(far).collect();
    list.sort_unstable();
    list.dedup();
    while list.len() < GROUP as usize {
        let next = list[list.len() - 7].wrapping_mul(2_654_435_761) | 0x0100_0000;
        list.push(next);
    }
    list.truncate(GROUP as usize);
    list
}

type Write = fn(&mut Call<'_, '_>) -> Result<(), String>;

/// Runs an operation of an index operand and one of `dtype`, both beside neighbours that must not change, and gives its
/// results.
fn results(
    session: &Session,
    write: Write,
    dtype: DType,
    len: usize,
    outputs: &[(DType, usize)],
) -> Result<Vec<Vec<f64>>, Error> {
    let types: Vec<TensorType> =
        outputs.iter().map(|(d, n)| TensorType::new(*d, Shape::new(&[*n]).unwrap())).collect();
    let op = CustomOp::new("acme.anywhere", move |_, _| Ok(types.clone())).with(GpuKernel::written(write));
    let mut g = Graph::new("g");
    let at = g.input("at", DType::U32, [GROUP as usize])?;
    let x = g.input("x", dtype, [len])?;
    // Values that are alive around the operation, in the memory beside its own.
    let ones = g.input("ones", DType::F32, [64])?;
    let before: Vec<ValueId> = (0..4).map(|_| g.neg(ones)).collect::<Result<_, _>>()?;
    let y = g.custom(&Arc::new(op), Attrs::default(), &[at, x])?;
    for (i, y) in y.iter().enumerate() {
        g.output(&format!("y{i}"), *y)?;
    }
    for (i, value) in before.into_iter().enumerate() {
        g.output(&format!("before{i}"), value)?;
    }
    let run = session.compile(&g)?;
    let numbers: Vec<f64> = (0..len).map(|i| (i + 1) as f64).collect();
    let ty = TensorType::new(dtype, Shape::new(&[len])?);
    let x = these(&numbers).tensor(ty, &mut Rng::new(0)).unwrap();
    let at = Tensor::new([GROUP as usize], indices(len as u32))?;
    let ones = Tensor::new([64], vec![1.0f32; 64])?;
    let out = run.run([("at", &at), ("x", &x), ("ones", &ones)])?;
    for i in 0..4 {
        let kept = out.get(&format!("before{i}"))?.to_f64();
        assert_eq!(kept, vec![-1.0; 64], "a neighbour changed on {}", session.device_name());
    }
    (0..outputs.len()).map(|i| Ok(out.get(&format!("y{i}"))?.to_f64())).collect()
}

/// Element `index` as a bounded load sees it.
fn clamped(index: u32, len: u32) -> f64 {
    f64::from(index.min(len - 1) + 1)
}

/// y = 1 everywhere, then 7 where an index says; z = x there.
fn scattered(call: &mut Call<'_, '_>) -> Result<(), String> {
    let len = call.operands()[1].shape.numel();
    let fenced = call.scratch(64);
    call.dispatch("ones", GROUP, 2, (0, 0), |args| {
        let y = args.result(0)?;
        let i = args.index();
        let (n, one) = (args.size("n", len), args.k().number(y.elem().scalar(), 1.0));
        args.k().if_(i.lt(n), || y.store(i, one));
        // Memory of the operation's own, between others.
        let s = args.scratch("fenced", Elem::U32, Access::Write, fenced);
        args.k().if_(i.lt(16), || s.store(i, i + 1));
        Ok(())
    })?;
    call.dispatch("scatter", GROUP, 1, (0, 0), |args| {
        let (at, x) = (args.operand(0)?, args.operand(1)?);
        let (y, z) = (args.result(0)?, args.result(1)?);
        let i = args.index();
        let index = at.load(i);
        y.store(index, args.k().number(y.elem().scalar(), 7.0));
        z.store(i, x.load(index));
        Ok(())
    })?;
    call.dispatch("fence", GROUP, 1, (0, 0), |args| {
        let s = args.scratch("fenced", Elem::U32, Access::Read, fenced);
        let w = args.result(2)?;
        args.k().if_(args.index().lt(16), || w.store(args.index(), s.load(args.index())));
        Ok(())
    })
}

#[test]
fn elements_outside_are_not_written_and_the_last_is_read_instead() {
    for session in sessions(false) {
        for dtype in [DType::F32, DType::F16, DType::U8, DType::BF16, DType::I64] {
            for len in [1u32, 7, 50] {
                let outputs = [(dtype, len as usize), (dtype, GROUP as usize), (DType::U32, 16)];
                let found = match results(&session, scattered, dtype, len as usize, &outputs) {
                    Ok(found) => found,
                    // Browsers have no integers of 64 bits.
                    Err(e) if dtype == DType::I64 && e.to_string().contains("i64") => continue,
                    Err(e) => panic!("{dtype}, {len} on {}: {e}", session.device_name()),
                };
                let what = format!("{dtype}, {len} on {}", session.device_name());
                let list = indices(len);
                let y: Vec<f64> = (0..len).map(|i| if list.contains(&i) { 7.0 } else { 1.0 }).collect();
                let z: Vec<f64> = list.iter().map(|i| clamped(*i, len)).collect();
                assert_eq!(found[0], y, "{what}");
                assert_eq!(found[1], z, "{what}");
                assert_eq!(found[2], (1..=16).map(f64::from).collect::<Vec<_>>(), "{what}");
            }
        }
    }
}

/// Vectors, uniform loads, atomics, workgroup arrays and 64-bit indices, each with indices from the first operand.
fn every_kind(call: &mut Call<'_, '_>) -> Result<(), String> {
    let (before, own, after) = (call.scratch(256), call.scratch(256), call.scratch(256));
    let wide = call.target().i64;
    call.dispatch("fill", 64, 1, (0, 0), |args| {
        let i = args.index();
        for (name, s) in [("before", before), ("own", own), ("after", after)] {
            args.scratch(name, Elem::U32, Access::Write, s).store(i, args.k().u32(5));
        }
        Ok(())
    })?;
    call.dispatch("every_kind", GROUP, 1, (0, 0), |args| {
        let k = args.k();
        let (at, x) = (args.operand(0)?, args.operand(1)?);
        let z = args.result(0)?;
        let own = args.scratch("own", Elem::U32, Access::ReadWrite, own);
        let shared = k.shared(Elem::U32, 4, 8);
        let counts = k.shared(Elem::U32, 1, 4);
        let i = args.index();
        // What is inside is far apart, so that the invocations do not meet; everything else is outside.
        let index = at.load(i);
        let out = index.gt(49).select(index.min(u32::MAX - 8) + 8, k.u32(0) - index - 1);
        own.store(out, k.u32(9));
        own.store_vec(out, &[k.u32(9); 2]);
        own.store_vec(out, &[k.u32(9); 4]);
        let dropped =
            own.atomic(AtomicOp::Add, out, k.u32(1)) + own.compare_exchange(out, k.u32(5), k.u32(9));
        k.if_(i.lt(8), || shared.store_vec(i, &[i; 4]));
        k.if_(i.lt(4), || counts.store(i, i));
        k.barrier();
        shared.store_vec(out, &[k.u32(77); 4]);
        shared.store_lane(out, 2, k.u32(77));
        let dropped = dropped + counts.atomic(AtomicOp::Max, out, k.u32(77));
        k.barrier();
        let uniform = x.load_uniform(k.u32(u32::MAX)) + x.load_uniform(k.u32(1 << 20));
        let far = if wide {
            let far = out.convert(Scalar::U64) << 9;
            own.store(far | k.constant(Scalar::U64, 1 << 42), k.u32(9));
            x.load(far + k.constant(Scalar::U64, 1 << 43))
        } else {
            x.load(out)
        };
        let vector = x.load_vec(out, 4);
        let lane = shared.load_lane(out, 2) * 10 + shared.load_vec(out)[3] + counts.load(out);
        let numbers = [
            uniform,
            far,
            vector[0] * 100 + vector[1],
            lane.convert(Scalar::F32),
            dropped.convert(Scalar::F32),
        ];
        for (j, number) in numbers.into_iter().enumerate() {
            z.store(i * 5 + j as u32, number);
        }
        Ok(())
    })?;
    call.dispatch("collect", 64, 1, (0, 0), |args| {
        let (i, y) = (args.index(), args.result(1)?);
        for (j, (name, s)) in [("before", before), ("own", own), ("after", after)].into_iter().enumerate() {
            let s = args.scratch(name, Elem::U32, Access::Read, s);
            y.store(i * 3 + j as u32, s.load(i));
        }
        Ok(())
    })
}

#[test]
fn every_kind_of_access_stays_inside() {
    for session in sessions(false) {
        let len = 50;
        let outputs = [(DType::F32, 5 * GROUP as usize), (DType::U32, 192)];
        let found = results(&session, every_kind, DType::F32, len, &outputs).unwrap();
        let name = session.device_name();
        assert_eq!(found[1], vec![5.0; 192], "scratch on {name}");
        // The last element is 50, the last whole vector begins at 48; the last array elements hold 7 and 3.
        let want = [100.0, 50.0, 4950.0, 7.0 * 10.0 + 7.0 + 3.0, 0.0];
        for (i, got) in found[0].chunks(5).enumerate() {
            assert_eq!(got, want, "index {} on {name}", indices(len as u32)[i]);
        }
    }
}

/// A matrix loaded and stored outside of a buffer of 8 rows.
fn matrices(call: &mut Call<'_, '_>) -> Result<(), String> {
    let target = call.target();
    let offered = target.matrices.iter().find(|s| s.operand == Elem::F16).copied();
    let (shape, group) = match (offered, target.subgroup) {
        (Some(shape), Some(lanes)) => (shape, lanes),
        _ => return Err("no matrices".into()),
    };
    let own = call.scratch(256);
    let elements = shape.m * shape.k;
    call.dispatch("matrices", group, 1, (0, 0), |args| {
        let k = args.k();
        let x = args.operand(1)?;
        let y = args.result(0)?;
        let s = args.scratch("own", Elem::F16, Access::ReadWrite, own);
        let ty = MatrixType { elem: Elem::F16, rows: shape.m, columns: shape.k, role: MatrixUse::A };
        let mut found = k.f32(0.0).splat(ty);
        for (index, stride) in [(1 << 20, 16), (u32::MAX - 15, 16), (0, 1 << 27), (0, u32::MAX - 15)] {
            found = found.matrix_add(x.load_matrix(ty, k.u32(index), k.u32(stride), false));
            s.store_matrix(k.u32(index), k.u32(stride), true, k.f32(9.0).splat(ty));
        }
        // In workgroup memory, from where it can be read.
        let shared = k.shared(Elem::F16, 1, elements);
        shared.store_matrix(k.u32(0), k.u32(shape.k), false, found);
        shared.store_matrix(k.u32(elements), k.u32(shape.k), false, k.f32(9.0).splat(ty));
        k.barrier();
        k.for_(k.local_index(), k.u32(64), k.u32(group), |i| y.store(i, shared.load(i)));
        Ok(())
    })
}

#[test]
fn matrices_outside_are_zeros_and_are_not_stored() {
    let session = sessions(false).swap_remove(0);
    match results(&session, matrices, DType::F16, 128, &[(DType::F32, 64)]) {
        Ok(found) => assert_eq!(found[0], vec![0.0; 64]),
        Err(e) => assert!(e.to_string().contains("no matrices"), "{e}"),
    }
}

#[test]
fn checked_sessions_report_the_access() {
    for session in sessions(true) {
        let outputs = [(DType::F32, 7), (DType::F32, GROUP as usize), (DType::U32, 16)];
        let problem = results(&session, scattered, DType::F32, 7, &outputs).expect_err("a report");
        let Error::Gpu(olivine::internals::gpu::Error::OutOfBounds { kernel, arg, size: 7, .. }) = &problem
        else {
            panic!("{problem} on {}", session.device_name());
        };
        assert_eq!(kernel, "scatter");
        assert!(arg == "y0" || arg == "x1", "{arg}");
    }
}

#[test]
fn an_empty_buffer_is_read_as_something_and_never_written() {
    let write: Write = |call| {
        call.dispatch("empty", GROUP, 1, (0, 0), |args| {
            let (x, y, z) = (args.operand(1)?, args.result(0)?, args.result(1)?);
            let i = args.index();
            y.store(i, x.load(i));
            z.store(i, x.load(i) * 0.0 + 1.0);
            Ok(())
        })
    };
    for session in sessions(false) {
        let op = CustomOp::new("acme.empty", |_, x| {
            Ok(vec![x[1], TensorType::new(DType::F32, Shape::new(&[GROUP as usize]).unwrap())])
        });
        let op = Arc::new(op.with(GpuKernel::written(write)));
        let mut g = Graph::new("g");
        let (a, x) = (g.input("a", DType::F32, [4]).unwrap(), g.input("x", DType::F32, [0]).unwrap());
        let y = g.custom(&op, Attrs::default(), &[a, x]).unwrap();
        g.output("y", y[0]).unwrap();
        g.output("z", y[1]).unwrap();
        let (a, x) =
            (Tensor::new([4], vec![0.0f32; 4]).unwrap(), Tensor::new([0], Vec::<f32>::new()).unwrap());
        let out = session.compile(&g).unwrap().run([("a", &a), ("x", &x)]).unwrap();
        assert_eq!(out.get("z").unwrap().to_f64().len(), GROUP as usize);
    }
}

#[test]
fn buffers_and_scratch_that_are_not_the_operations_own_are_refused() {
    let unbound: Write = |call| {
        call.dispatch("unbound", 32, 1, (0, 0), |args| {
            let z = args.k().arg("z", Elem::U32, Access::Write);
            z.store(args.index(), args.index());
            Ok(())
        })
    };
    let session = sessions(false).swap_remove(0);
    let problem = results(&session, unbound, DType::F32, 4, &[(DType::F32, 4)]).unwrap_err().to_string();
    assert!(problem.contains("does not bind"), "{problem}");
    // Scratch that another, larger call left behind.
    static LEFT: std::sync::Mutex<Option<olivine::custom::Scratch>> = std::sync::Mutex::new(None);
    let leaves: Write = |call| {
        call.scratch(1 << 20);
        *LEFT.lock().unwrap() = Some(call.scratch(1 << 20));
        Err("enough".into())
    };
    let takes: Write = |call| {
        call.scratch(16);
        let left = LEFT.lock().unwrap().unwrap();
        call.dispatch("left", 32, 1, (0, 0), |args| {
            args.scratch("left", Elem::U32, Access::Write, left).store(args.index(), args.index());
            Ok(())
        })
    };
    results(&session, leaves, DType::F32, 4, &[(DType::F32, 4)]).unwrap_err();
    let problem = results(&session, takes, DType::F32, 4, &[(DType::F32, 4)]).unwrap_err().to_string();
    assert!(problem.contains("taken by another operation"), "{problem}");
}
