//! A caller's own SPIR-V: what runs, what is refused, and that nothing that is broken reaches a driver.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod spirv;

use common::{Opened, contexts, f32s, to_f32s};
use olivine_array::{Array, Context, DType, Device, SpvModule, ops};

fn vulkan() -> Opened {
    Opened::new(Device::Vulkan)
}

fn push(n: u32) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

#[test]
fn a_module_says_what_it_needs() {
    for old in [true, false] {
        let module = SpvModule::from_bytes(&spirv::elementwise(old)).unwrap();
        assert_eq!(module.bindings(), 3);
        assert_eq!(module.push_bytes(), 4);
        assert_eq!(module.workgroup(), [64, 1, 1]);
        assert_eq!(module.entry_point(), "main");
        assert!(module.has_op());
    }
}

#[test]
fn modules_run_on_buffers_in_place() {
    let context = vulkan();
    for old in [true, false] {
        let module = context.module(&spirv::elementwise(old)).unwrap();
        for n in [1usize, 63, 64, 65, 1000] {
            let a: Vec<f32> = (0..n).map(|i| i as f32 + 1.0).collect();
            let b: Vec<f32> = (0..n).map(|i| 0.5 * i as f32 - 3.0).collect();
            let (x, y) = (context.upload(&f32s(&a)).unwrap(), context.upload(&f32s(&b)).unwrap());
            for (op, f) in [(0, (|a, b| a + b) as fn(f32, f32) -> f32), (1, |a, b| a * b), (2, |a, b| a - b)]
            {
                let out = context.upload(&f32s(&vec![9.0; n + 2])).unwrap();
                let groups = [(n as u32).div_ceil(64), 1, 1];
                let special = module.with_op(op).unwrap();
                context.dispatch_spv(&[&x, &y, &out], &push(n as u32), groups, &special).unwrap();
                let got = to_f32s(&out.download().unwrap());
                let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| f(*a, *b)).chain([9.0, 9.0]).collect();
                assert_eq!(got, want, "operation {op} on {n}");
            }
        }
    }
}

#[test]
fn modules_have_loops_functions_and_barriers() {
    let module = SpvModule::from_bytes(&spirv::row_sums()).unwrap();
    assert_eq!((module.bindings(), module.push_bytes(), module.has_op()), (2, 4, false));
    assert_eq!(module.with_op(0).unwrap_err().name(), "bad_input");
    let context = vulkan();
    for (rows, columns) in [(1usize, 1usize), (3, 64), (5, 200), (2, 0)] {
        let x: Vec<f32> = (0..rows * columns).map(|i| (i * i) as f32).collect();
        let (x, out) =
            (context.upload(&f32s(&x)).unwrap(), context.upload(&f32s(&vec![-1.0; rows])).unwrap());
        let groups = [rows as u32, 1, 1];
        context.dispatch_spv(&[&x, &out], &push(columns as u32), groups, &module).unwrap();
        let want: Vec<f32> =
            (0..rows).map(|row| (0..columns).map(|c| (row * columns + c) as f32).sum()).collect();
        assert_eq!(to_f32s(&out.download().unwrap()), want);
    }
}

#[test]
fn what_others_hold_of_a_buffer_does_not_change() {
    let context = vulkan();
    let module = context.module(&spirv::elementwise(false)).unwrap().with_op(0).unwrap();
    let n = 1000;
    let buffer = context.upload(&f32s(&vec![1.0; n])).unwrap();
    let before = buffer.array(DType::F32, [n]).unwrap();
    let double = || context.dispatch_spv(&[&buffer, &buffer, &buffer], &push(n as u32), [16, 1, 1], &module);
    double().unwrap();
    let between = buffer.array(DType::F32, [n]).unwrap();
    for _ in 0..3 {
        double().unwrap();
    }
    // An operation of ours on what the module wrote, and the module on what that wrote.
    context.unary(&buffer, &buffer, n, ops::unary::NEG, DType::F32).unwrap();
    let negative = buffer.array(DType::F32, [n]).unwrap();
    double().unwrap();
    assert_eq!(before.to_vec::<f32>().unwrap(), vec![1.0; n]);
    assert_eq!(between.to_vec::<f32>().unwrap(), vec![2.0; n]);
    assert_eq!(negative.to_vec::<f32>().unwrap(), vec![-16.0; n]);
    assert_eq!(to_f32s(&buffer.download().unwrap()), vec![-32.0; n]);
    let sum = Array::apply_text(&negative, "reduce_sum {axes=[0], keepdims=false}", &[]).unwrap();
    assert_eq!(sum[0].to_vec::<f32>().unwrap(), [-16.0 * n as f32]);
}

#[test]
fn accesses_past_the_end_of_a_buffer_do_no_harm() {
    let context = vulkan();
    let module = context.module(&spirv::elementwise(false)).unwrap().with_op(0).unwrap();
    let neighbour = context.upload(&f32s(&[5.0; 64])).unwrap();
    let (x, out) = (context.upload(&f32s(&[1.0; 10])).unwrap(), context.alloc(40).unwrap());
    // The module believes that there are a million elements.
    context.dispatch_spv(&[&x, &x, &out], &push(1_000_000), [15625, 1, 1], &module).unwrap();
    assert_eq!(to_f32s(&out.download().unwrap()), [2.0; 10]);
    assert_eq!(to_f32s(&neighbour.download().unwrap()), [5.0; 64]);
}

#[test]
fn calls_that_do_not_fit_the_module_are_refused() {
    let context = vulkan();
    let module = context.module(&spirv::elementwise(false)).unwrap();
    let buffer = context.alloc(256).unwrap();
    let three = [&buffer, &buffer, &buffer];
    let name = |result: Result<(), olivine_array::Error>| result.unwrap_err().name();
    assert_eq!(name(context.dispatch_spv(&three[..2], &push(1), [1, 1, 1], &module)), "bad_input");
    assert_eq!(name(context.dispatch_spv(&[&buffer; 4], &push(1), [1, 1, 1], &module)), "bad_input");
    assert_eq!(name(context.dispatch_spv(&three, &[], [1, 1, 1], &module)), "bad_input");
    assert_eq!(name(context.dispatch_spv(&three, &[0; 5], [1, 1, 1], &module)), "bad_input");
    assert_eq!(name(context.dispatch_spv(&three, &[0; 132], [1, 1, 1], &module)), "bad_input");
    assert_eq!(name(context.dispatch_spv(&three, &push(1), [u32::MAX, 1, 1], &module)), "bad_input");
    let other = Context::new(Device::Cpu).unwrap().alloc(256).unwrap();
    assert_eq!(name(context.dispatch_spv(&[&other; 3], &push(1), [1, 1, 1], &module)), "bad_input");
    // 128 bytes are passed on as given, and no workgroups are legal.
    context.dispatch_spv(&three, &[0; 128], [1, 1, 1], &module).unwrap();
    context.dispatch_spv(&three, &push(9), [0, 1, 1], &module).unwrap();
    assert_eq!(buffer.download().unwrap(), [0; 256]);
}

#[test]
fn only_vulkan_runs_modules() {
    let context = Context::new(Device::Cpu).unwrap();
    let module = context.module(&spirv::elementwise(true)).unwrap();
    let buffer = context.alloc(256).unwrap();
    let error = context.dispatch_spv(&[&buffer; 3], &push(1), [1, 1, 1], &module).unwrap_err();
    assert_eq!(error.name(), "unsupported");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    for context in contexts() {
        let error = context.module_file("/nowhere/at/all.spv").unwrap_err();
        assert_eq!((error.name(), error.code()), ("spv_read_failed", 3));
        assert!(error.message().contains("/nowhere/at/all.spv"));
        assert_eq!(context.module_file("/").unwrap_err().name(), "spv_read_failed");
    }
    let path = std::env::temp_dir().join(format!("olivine-array-{}.spv", std::process::id()));
    std::fs::write(&path, spirv::elementwise(true)).unwrap();
    assert!(SpvModule::read(&path).is_ok());
    std::fs::write(&path, b"not SPIR-V at all").unwrap();
    assert_eq!(SpvModule::read(&path).unwrap_err().name(), "bad_input");
    std::fs::remove_file(&path).unwrap();
}

/// Every word of a module changed in turn. Whatever passes the check is given to the driver, which must live through it.
#[test]
fn broken_modules_are_refused_or_build() {
    let context = vulkan();
    for good in [spirv::elementwise(false), spirv::elementwise(true), spirv::row_sums()] {
        let words: Vec<u32> = good.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let (mut refused, mut passed) = (0, 0);
        for at in 0..words.len() {
            let word = words[at];
            for value in
                [0, 1, word ^ 1, word.wrapping_add(1), word.wrapping_sub(1), word ^ 0x10000, u32::MAX, 7]
            {
                let mut broken = words.clone();
                broken[at] = value;
                let bytes: Vec<u8> = broken.iter().flat_map(|w| w.to_le_bytes()).collect();
                let Ok(module) = SpvModule::from_bytes(&bytes) else {
                    refused += 1;
                    continue;
                };
                passed += 1;
                let buffers: Vec<_> = (0..module.bindings()).map(|_| context.alloc(64).unwrap()).collect();
                let buffers: Vec<_> = buffers.iter().collect();
                // No workgroups: the module is built and does not run.
                let _ = context.dispatch_spv(&buffers, &[0; 128], [0, 1, 1], &module);
            }
        }
        for length in 0..good.len() {
            assert!(SpvModule::from_bytes(&good[..length]).is_err(), "{length} of {} bytes", good.len());
        }
        assert!(refused > 1000 && passed > 10, "{refused} refused, {passed} passed");
    }
    assert_eq!(context.upload(&[1, 2, 3]).unwrap().download().unwrap(), [1, 2, 3]);
}

/// What a careless or hostile module could ask a driver for.
#[test]
fn modules_of_impossible_sizes_are_refused() {
    let good = spirv::row_sums();
    let words: Vec<u32> = good.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let with = |at: usize, value: u32| {
        let mut broken = words.clone();
        broken[at] = value;
        SpvModule::from_bytes(&broken.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())
    };
    assert!(with(3, u32::MAX).unwrap_err().message().contains("ids go up to"), "the bound of ids");
    assert!(with(1, 0x0002_0000).unwrap_err().message().contains("SPIR-V 2.0"), "the version");
    // LocalSize 64 1 1 becomes 64 1 0; the execution mode is the only place with these words.
    let size = words.windows(3).position(|w| w == [64, 1, 1]).unwrap();
    assert!(with(size + 2, 0).unwrap_err().message().contains("workgroup's size"));
    let context = vulkan();
    let large = with(size, 1 << 20).unwrap();
    let buffer = context.alloc(64).unwrap();
    let error = context.dispatch_spv(&[&buffer, &buffer], &push(1), [1, 1, 1], &large).unwrap_err();
    assert_eq!(error.name(), "bad_input", "{error}");
}
