//! Lazy arrays: views, broadcasting, axes, text, long chains, and how much runs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::{DEVICES, Opened, contexts, seeded};
use olivine::internals::SessionExt;
use olivine_array::{Array, Buffer, Context, ContextOptions, DType, Device, Tensor, ops};

fn range(context: &Context, shape: &[usize]) -> Array {
    let count = shape.iter().product();
    Array::from_tensor(context, &Tensor::new(shape, (0..count).map(|i| i as f32).collect()).unwrap()).unwrap()
}

#[test]
fn views_read_what_their_strides_say() {
    for context in contexts() {
        let x = range(&context, &[6, 50]);
        let numbers: Vec<f32> = (0..300).map(|i| i as f32).collect();
        let transposed = x.transpose(&[1, 0]).unwrap();
        assert_eq!(transposed.shape().dims(), [50, 6]);
        let want: Vec<f32> = (0..300).map(|at| numbers[at % 6 * 50 + at / 6]).collect();
        assert_eq!(transposed.to_vec::<f32>().unwrap(), want);
        let part = x.slice(&[(1, 6, 2), (49, i64::MIN, -10)]).unwrap();
        let want: Vec<f32> =
            [1, 3, 5].iter().flat_map(|r| (0..5).map(move |c| (r * 50 + 49 - 10 * c) as f32)).collect();
        assert_eq!(part.to_vec::<f32>().unwrap(), want);
        // Overlapping, repeated and reversed.
        let windows = x.view([4, 3], &[1, 1], 10).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(windows, [10., 11., 12., 11., 12., 13., 12., 13., 14., 13., 14., 15.]);
        assert_eq!(x.view([2, 3], &[0, -1], 5).unwrap().to_vec::<f32>().unwrap(), [5., 4., 3., 5., 4., 3.]);
        assert_eq!(x.view([7], &[50], 0).unwrap_err().name(), "bad_input", "past the end");
        // A view of a view of something computed.
        let y = x.add(&x).unwrap().transpose(&[1, 0]).unwrap().slice(&[(0, 2, 1), (0, 6, 3)]).unwrap();
        assert_eq!(y.reshape(&[4]).unwrap().to_vec::<f32>().unwrap(), [0., 300., 2., 302.]);
    }
}

#[test]
fn operands_broadcast_and_are_never_cast() {
    for context in contexts() {
        let (column, row) = (range(&context, &[3, 1]), range(&context, &[4]));
        let sum = column.add(&row).unwrap();
        assert_eq!(sum.shape().dims(), [3, 4]);
        assert_eq!(sum.to_vec::<f32>().unwrap(), [0., 1., 2., 3., 1., 2., 3., 4., 2., 3., 4., 5.]);
        let wide = row.broadcast_to([2, 4]).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(wide, [0., 1., 2., 3., 0., 1., 2., 3.]);
        let scalar = Array::scalar(&context, DType::F32, 10.0);
        assert_eq!(row.mul(&scalar).unwrap().to_vec::<f32>().unwrap(), [0., 10., 20., 30.]);
        let error = row.add(&range(&context, &[3])).unwrap_err();
        assert_eq!(error.name(), "bad_input");
        assert!(error.message().contains("f32[4]") && error.message().contains("f32[3]"), "{error}");
        let integers = row.cast(DType::I32).unwrap();
        assert!(row.add(&integers).unwrap_err().message().contains("dtypes differ"));
        assert_eq!(integers.to_vec::<i32>().unwrap(), [0, 1, 2, 3]);
    }
}

#[test]
fn matmuls_have_batches_and_reductions_any_axes() {
    for context in contexts() {
        let (a, b) = (range(&context, &[2, 3, 4]), range(&context, &[4, 5]));
        let product = a.matmul(&b).unwrap();
        assert_eq!(product.shape().dims(), [2, 3, 5]);
        let got = product.to_vec::<f32>().unwrap();
        for (at, got) in got.iter().enumerate() {
            let (row, column) = (at / 5, at % 5);
            let want: f32 = (0..4).map(|k| (row * 4 + k) as f32 * (k * 5 + column) as f32).sum();
            assert_eq!(*got, want);
        }
        assert_eq!(a.sum(&[0, -1], false).unwrap().to_vec::<f32>().unwrap(), [60., 92., 124.]);
        assert_eq!(a.reduce_max(&[1], true).unwrap().shape().dims(), [2, 1, 4]);
        assert_eq!(a.mean(&[0, 1, 2], false).unwrap().to_vec::<f32>().unwrap(), [11.5]);
        assert_eq!(a.argmax(-1, false).unwrap().to_vec::<i64>().unwrap(), [3; 6]);
        assert_eq!(a.sum(&[3], false).unwrap_err().name(), "bad_input");
    }
}

#[test]
fn every_operation_can_be_applied_by_its_text() {
    for context in contexts() {
        let x = range(&context, &[2, 3]);
        let sums = x.apply_text("reduce_sum {axes=[0], keepdims=true}", &[]).unwrap();
        assert_eq!(sums[0].to_vec::<f32>().unwrap(), [3., 5., 7.]);
        let best = x.apply_text("top_k {k=2, axis=1, largest=true}", &[]).unwrap();
        assert_eq!(best[0].to_vec::<f32>().unwrap(), [2., 1., 5., 4.]);
        assert_eq!(best[1].to_vec::<i64>().unwrap(), [2, 1, 2, 1]);
        let parts = x.apply_text("split {axis=1, sizes=[1, 2]}", &[]).unwrap();
        assert_eq!(parts[1].to_vec::<f32>().unwrap(), [1., 2., 4., 5.]);
        let range =
            Array::apply_text_in(&context, "range {dtype=i32, start=3.0, step=2.0, count=4}", &[]).unwrap();
        assert_eq!(range[0].to_vec::<i32>().unwrap(), [3, 5, 7, 9]);
        let cast = x.apply_text("cast {to=bool}", &[]).unwrap();
        assert_eq!(cast[0].to_bytes().unwrap(), [0, 1, 1, 1, 1, 1]);
        for (text, why) in [
            ("reduce_summ {axes=[0]}", "did you mean `reduce_sum`"),
            ("reduce_sum {axes=[7], keepdims=false}", "axis 7"),
            ("add", "takes 2 operands"),
            ("add {} x", "expected the end"),
            ("", "expected an operation"),
        ] {
            let error = x.apply_text(text, &[]).unwrap_err();
            assert_eq!(error.name(), "bad_input");
            assert!(error.message().contains(why), "{text}: {error}");
        }
    }
}

#[test]
fn all_dtypes_go_to_the_device_and_back() {
    for context in contexts() {
        for dtype in DType::ALL {
            for count in [0, 3, 1000] {
                let bytes: Vec<u8> = (0..count * dtype.size())
                    .map(|i| if dtype == DType::Bool { (i % 2) as u8 } else { (i % 60) as u8 })
                    .collect();
                let x = Array::from_bytes(&context, dtype, [count], &bytes).unwrap();
                assert_eq!(x.to_bytes().unwrap(), bytes);
                let twice = Array::concat(&[&x, &x], 0).unwrap();
                assert_eq!(twice.to_bytes().unwrap(), [bytes.clone(), bytes].concat(), "{dtype}");
            }
        }
        let short = Array::from_bytes(&context, DType::F32, [2], &[0; 7]).unwrap_err();
        assert_eq!(short.name(), "size_mismatch");
        assert_eq!(Array::from_bytes(&context, DType::Bool, [1], &[2]).unwrap_err().name(), "bad_input");
    }
}

#[test]
fn a_chain_of_elementwise_operations_is_one_dispatch() {
    for device in DEVICES {
        let context = Opened::new(device);
        let x = range(&context, &[1000]);
        let one = Array::scalar(&context, DType::F32, 1.0);
        let mut y = x.clone();
        for _ in 0..5 {
            y = y.add(&one).unwrap().abs().unwrap();
        }
        assert!(y.is_lazy());
        y.eval().unwrap();
        assert!(!y.is_lazy());
        assert_eq!(context.cache_stats().compiled, 1);
        let graph = context.graphs().pop().unwrap();
        assert_eq!(graph.nodes().len(), 10);
        let compiled = context.session().explain(&graph).unwrap();
        let program = context.session().program(&compiled).unwrap();
        assert_eq!(program.map_or(1, |program| program.run.len()), 1);
        assert_eq!(y.to_vec::<f32>().unwrap()[999], 1004.0);

        // The same on buffers, whose operations wait in lazy mode.
        let context = Opened::with(context.session().device().clone(), ContextOptions::new().lazy(true));
        let buffer = context.upload(&common::f32s(&[1.5; 1000])).unwrap();
        for _ in 0..10 {
            context.unary(&buffer, &buffer, 1000, ops::unary::NEG, DType::F32).unwrap();
        }
        assert_eq!(context.cache_stats().compiled, 0);
        context.flush().unwrap();
        assert_eq!(context.cache_stats().compiled, 1);
        assert_eq!(common::to_f32s(&buffer.download().unwrap()), [1.5; 1000]);
    }
}

#[test]
fn the_same_program_is_compiled_once() {
    for context in contexts() {
        for round in 0..20 {
            let x = Array::from_slice(&context, [100], &[round as f32; 100]).unwrap();
            let factor = Array::scalar(&context, DType::F32, f64::from(round));
            let y = x.mul(&factor).unwrap().sum(&[0], false).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [100.0 * (round * round) as f32]);
        }
        assert_eq!(context.cache_stats().compiled, 1);
    }
}

#[test]
fn the_cache_is_bounded() {
    let context = Opened::with(Device::Cpu, ContextOptions::new().executables(4));
    for size in 1..=20 {
        range(&context, &[size]).neg().unwrap().wait().unwrap();
    }
    let stats = context.cache_stats();
    assert_eq!((stats.cached, stats.compiled), (4, 20));
    range(&context, &[20]).neg().unwrap().wait().unwrap();
    assert_eq!(context.cache_stats().compiled, 20, "what was used last is kept");
    range(&context, &[1]).neg().unwrap().wait().unwrap();
    assert_eq!(context.cache_stats().compiled, 21);
}

#[test]
fn a_hundred_thousand_operations_neither_overflow_nor_grow() {
    for context in contexts() {
        let one = Array::scalar(&context, DType::F32, 1.0);
        let mut x = Array::from_slice(&context, [64], &[0.0f32; 64]).unwrap();
        for _ in 0..100_000 {
            x = x.add(&one).unwrap();
        }
        assert_eq!(x.to_vec::<f32>().unwrap(), [100_000.0; 64]);
        assert!(context.cache_stats().compiled < 5, "{:?}", context.cache_stats());
        // One that is dropped without being asked for.
        let mut y = x.clone();
        for _ in 0..100_000 {
            y = y.neg().unwrap();
        }
        drop(y);
    }
}

#[test]
fn a_context_that_never_runs_by_itself_runs_long_chains_when_told() {
    for context in contexts() {
        let options = ContextOptions::new().graph_nodes(usize::MAX);
        let context = Context::of_session(context.session().clone(), &options);
        let one = Array::scalar(&context, DType::F32, 1.0);
        let mut x = Array::from_slice(&context, [64], &[0.0f32; 64]).unwrap();
        for _ in 0..1000 {
            x = x.add(&one).unwrap();
        }
        assert_eq!(x.waiting(), 1000);
        x.settle(1000).unwrap();
        assert!(x.is_lazy());
        x.settle(999).unwrap();
        assert!(!x.is_lazy() && x.waiting() == 0);
        assert_eq!(x.to_vec::<f32>().unwrap(), [1000.0; 64]);
        // As a tree this would be 2^20 operations.
        for _ in 0..20 {
            x = x.max(&x).unwrap();
        }
        assert!(x.waiting() > 1000);
        x.settle(20).unwrap();
        assert!(x.is_lazy() && x.waiting() == 20, "{}", x.waiting());
        // A chain that nobody ever ran goes without a deep stack.
        for _ in 0..300_000 {
            x = x.neg().unwrap();
        }
        drop(x);
    }
}

#[test]
fn what_operands_share_counts_once_and_is_computed_once() {
    for context in contexts() {
        // As a tree this would be 2^200 operations.
        let mut x = Array::from_slice(&context, [8], &[1.0f32; 8]).unwrap();
        let half = Array::scalar(&context, DType::F32, 0.5);
        for _ in 0..100 {
            x = x.add(&x).unwrap().mul(&half).unwrap();
        }
        assert!(x.is_lazy());
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 8]);
        assert_eq!(context.cache_stats().compiled, 1);
    }
}

#[test]
fn an_intermediate_result_that_is_needed_again_is_kept() {
    for context in contexts() {
        let base = range(&context, &[300]).exp().unwrap().log().unwrap();
        for round in 1..6 {
            let y = base.add(&Array::scalar(&context, DType::F32, f64::from(round))).unwrap();
            let got = y.to_vec::<f32>().unwrap();
            assert!((got[10] - 10.0 - round as f32).abs() < 1e-4);
            // The second evaluation keeps it; the first did not know.
            assert_eq!(base.is_lazy(), round == 1);
        }
        // The whole, the whole with the result kept, and the addition alone.
        assert_eq!(context.cache_stats().compiled, 3);
    }
}

#[test]
fn several_arrays_are_one_graph() {
    for context in contexts() {
        let x = range(&context, &[400]);
        let shared = x.sqrt().unwrap();
        let (a, b) = (shared.neg().unwrap(), shared.square().unwrap());
        Array::eval_all(&[&a, &b, &a, &x]).unwrap();
        assert!(!a.is_lazy() && !b.is_lazy());
        assert_eq!(context.cache_stats().compiled, 1);
        assert_eq!(a.to_vec::<f32>().unwrap()[4], -2.0);
        assert!((b.to_vec::<f32>().unwrap()[9] - 9.0).abs() < 1e-5);
        Array::eval_all(&[]).unwrap();
    }
}

#[test]
fn buffers_and_arrays_become_each_other() {
    for context in contexts() {
        for n in [6, 600] {
            let numbers: Vec<f32> = seeded(1, n, -1.0, 1.0).iter().map(|x| *x as f32).collect();
            let buffer = context.upload(&common::f32s(&numbers)).unwrap();
            let array = buffer.array(DType::F32, [n / 3, 3]).unwrap();
            // What comes later does not change the array.
            context.unary(&buffer, &buffer, n, ops::unary::NEG, DType::F32).unwrap();
            assert_eq!(array.to_vec::<f32>().unwrap(), numbers);
            let back = Buffer::from_array(&array.neg().unwrap()).unwrap();
            assert_eq!(back.download().unwrap(), buffer.download().unwrap());
            assert_eq!(buffer.array(DType::F32, [n + 1]).unwrap_err().name(), "size_mismatch");
        }
        let flags = context.upload(&[0, 1, 2, 255]).unwrap().array(DType::Bool, [4]).unwrap();
        assert_eq!(flags.to_bytes().unwrap(), [0, 1, 1, 1]);
        let none = Buffer::from_array(&range(&context, &[0, 3])).unwrap();
        assert_eq!(none.byte_size(), 0);
    }
}

#[test]
fn arrays_of_different_contexts_do_not_mix() {
    let (a, b) = (Context::new(Device::Cpu).unwrap(), Context::new(Device::Cpu).unwrap());
    let error = range(&a, &[2]).add(&range(&b, &[2])).unwrap_err();
    assert_eq!(error.name(), "bad_input");
}

#[test]
fn tensors_of_a_session_and_arrays_share_the_device() {
    for context in contexts() {
        let tensor = context.session().upload(&Tensor::from([1.0f32, 2.0, 3.0])).unwrap();
        let array = Array::from_device(&context, tensor).neg().unwrap();
        let tensor = array.device_tensor().unwrap().to_tensor().unwrap();
        assert_eq!(tensor.as_slice::<f32>().unwrap(), [-1.0, -2.0, -3.0]);
    }
}
