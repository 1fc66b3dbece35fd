//! Key-value caches of packed blocks: their cases on every backend, and states that are kept.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::PipelineCache;
use olivine::internals::OptionsExt as _;
use olivine::internals::gpu::Mask;
use olivine::ir::op::{Attention, HeadLayout, Rope, RopeScaling, RopeStyle};
use olivine::ir::{BlockFormat, TensorType, half};
use olivine::prelude::*;
use olivine_cases::{Case, SessionBackend, run_table, table};

/// Runs every case, or every `step`-th: a software device takes long to compile kernels.
fn passes(name: &str, device: Device, options: SessionOptions, step: usize) {
    let options = options.pipeline_cache(PipelineCache::Off);
    let backend = SessionBackend::new(name, device, options).unwrap();
    let all = table().into_iter().filter(|case| case.family == "packed_cache");
    let cases: Vec<Case> = all.step_by(step).collect();
    let report = run_table(&backend, &cases, "", 2);
    assert!(report.results.len() * step > 100, "{} cases", report.results.len());
    assert_eq!(report.passed(), report.results.len(), "{report}");
}

#[test]
fn packed_caches_pass_on_the_cpu() {
    passes("cpu", Device::Cpu, SessionOptions::new(), 1);
    passes("cpu unfused", Device::Cpu, SessionOptions::new().no_fusion(true), 1);
    passes("cpu, one thread", Device::Cpu, SessionOptions::new().threads(1), 1);
}

#[test]
fn packed_caches_pass_on_vulkan() {
    passes("vulkan", Device::Vulkan, SessionOptions::new(), 1);
}

#[test]
fn packed_caches_pass_on_vulkan_without_subgroups() {
    let without = Mask { subgroups: true, ..Mask::default() };
    passes("vulkan without subgroups", Device::Vulkan, SessionOptions::new().without(without), 4);
}

#[test]
fn packed_caches_pass_on_wgpu() {
    passes("wgpu", Device::Wgpu, SessionOptions::new(), 5);
}

#[test]
fn packed_caches_pass_on_wgpu_in_the_browsers_dialect() {
    passes("wgpu as in browsers", Device::Wgpu, SessionOptions::new().browser_dialect(true), 4);
}

/// A step of a decoder: rows go to a packed cache, which a query attends to.
fn step() -> Graph {
    let mut g = Graph::new("step");
    let layout = HeadLayout::Bshd;
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, DType::F32, [1, 1, 2, 64]).unwrap());
    let at = g.input("at", DType::I64, []).unwrap();
    let one = g.constant(Tensor::scalar(1i64));
    let length = g.add(at, one).unwrap();
    let mut caches = Vec::new();
    for (name, rows) in [("keys", k), ("values", v)] {
        let ty = TensorType::packed(BlockFormat::Q8_0, [1, 20, 2, 64]).unwrap();
        let before = g.input_of(name, ty, vec![None; 4]).unwrap();
        caches.push(g.kv_append(layout, before, rows, at).unwrap());
        g.output(&format!("{name}.next"), caches[caches.len() - 1]).unwrap();
    }
    let spec = Attention { lengths: true, ..Attention::new(layout) };
    let y = g.attention(spec, q, caches[0], caches[1], &[length]).unwrap();
    g.output("y", y).unwrap();
    g
}

fn rows(seed: usize) -> Tensor {
    Tensor::new(
        [1, 1, 2, 64],
        (0..128).map(|i| ((i * 37 + seed * 101) % 255) as f32 / 64.0 - 2.0).collect::<Vec<f32>>(),
    )
    .unwrap()
}

/// States of packed caches are copied, saved and restored, and their bytes are blocks as GGUF has them.
fn keeps_state(device: Device) {
    let session = Session::new(device.clone()).unwrap();
    let options = CompileOptions::new().state("keys", "keys.next").state("values", "values.next");
    let decoder = session.compile_with(&step(), &options).unwrap();
    let mut state = decoder.new_state().unwrap();
    let run = |state: &mut State, at: usize| {
        let [q, k, v] = [rows(3 * at), rows(3 * at + 1), rows(3 * at + 2)];
        let position = Tensor::scalar(at as i64);
        let inputs = [("q", &q), ("k", &k), ("v", &v), ("at", &position)];
        decoder.run_with_state(state, inputs).unwrap()["y"].clone()
    };
    for at in 0..5 {
        run(&mut state, at);
    }
    let keys = state.get("keys").unwrap().to_tensor().unwrap();
    assert_eq!(keys.ty().to_string(), "q8_0[1, 20, 2, 64]");
    let row = rows(3 * 4 + 1);
    let packed = olivine_quant::encode(BlockFormat::Q8_0, row.as_slice::<f32>().unwrap(), None).unwrap();
    assert_eq!(keys.bytes()[4 * 136..5 * 136], packed);
    assert!(keys.bytes()[5 * 136..].iter().all(|byte| *byte == 0));

    let path =
        std::env::temp_dir().join(format!("olivine-packed-{}-{device}.safetensors", std::process::id()));
    state.save(&path).unwrap();
    let mut restored = decoder.load_state(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut copy = state.try_clone().unwrap();
    let y = run(&mut state, 5);
    assert_eq!(run(&mut restored, 5).bytes(), y.bytes());
    assert_eq!(run(&mut copy, 5).bytes(), y.bytes());

    // Blocks of another format, and sizes that do not fit, are errors.
    let other = Tensor::packed(BlockFormat::Q4_0, [1, 20, 2, 64], vec![0; 20 * 2 * 36]).unwrap();
    let short = Tensor::packed(BlockFormat::Q8_0, [1, 20, 2, 32], vec![0; 20 * 2 * 34]).unwrap();
    for wrong in [&other, &short] {
        let problem = decoder.state_from([("keys", wrong)]).err().unwrap().to_string();
        assert!(problem.contains("q8_0[1, 20, 2, 64]"), "{problem}");
    }
}

#[test]
fn states_of_packed_caches_are_kept_on_the_cpu() {
    keeps_state(Device::Cpu);
}

#[test]
fn states_of_packed_caches_are_kept_on_vulkan() {
    keeps_state(Device::Vulkan);
}

#[test]
fn states_of_packed_caches_are_kept_on_wgpu() {
    keeps_state(Device::Wgpu);
}

/// Rows that a rotation makes for a packed cache alone go there in one pass; the blocks are those of rows that were stored in between.
#[test]
fn rotated_rows_are_packed_as_stored_rows_are() {
    let session = Session::new(Device::Vulkan).unwrap();
    let blocks = |style: RopeStyle, (dim, rotary): (usize, usize), dtype: DType, stored: bool| {
        let mut g = Graph::new("rotated");
        let x = g.input("x", dtype, [2, 3, 2, dim]).unwrap();
        let positions = g.input("positions", DType::I64, [2, 3]).unwrap();
        let starts = g.input("starts", DType::I64, [2]).unwrap();
        let ty = TensorType::packed(BlockFormat::Q8_0, [2, 9, 2, dim]).unwrap();
        let caches = ["keys", "values"].map(|name| g.input_of(name, ty, vec![None; 4]).unwrap());
        let rope = Rope {
            layout: HeadLayout::Bshd,
            style,
            rotary,
            base: 10_000.0,
            scaling: RopeScaling::None,
            tables: false,
        };
        let k = g.rope(rope, x, &[positions]).unwrap();
        let keys = g.kv_append(HeadLayout::Bshd, caches[0], k, starts).unwrap();
        let values = g.kv_append(HeadLayout::Bshd, caches[1], x, starts).unwrap();
        g.output("keys", keys).unwrap();
        g.output("values", values).unwrap();
        if stored {
            g.output("k", k).unwrap();
        }
        let numbers: Vec<f32> = (0..12 * dim).map(|i| ((i * 29) % 97) as f32 / 16.0 - 3.0).collect();
        let x = Tensor::new([2, 3, 2, dim], numbers).unwrap();
        let x = if dtype == DType::F32 { x } else { halves(&x) };
        let positions = Tensor::new([2, 3], vec![4i64, 5, 6, 7, 8, 9]).unwrap();
        let starts = Tensor::from([4i64, 7]);
        let empty = Tensor::zeros_of(ty).unwrap();
        let inputs =
            [("x", &x), ("positions", &positions), ("starts", &starts), ("keys", &empty), ("values", &empty)];
        let out = session.compile(&g).unwrap().run(inputs).unwrap();
        [out["keys"].bytes().to_vec(), out["values"].bytes().to_vec()]
    };
    for style in [RopeStyle::NeoX, RopeStyle::GptJ] {
        for sizes in [(32, 32), (64, 64), (96, 96), (128, 64), (64, 12), (32, 6)] {
            for dtype in [DType::F32, DType::F16] {
                let [joined, apart] = [false, true].map(|stored| blocks(style, sizes, dtype, stored));
                assert!(joined == apart, "{style:?} {sizes:?} {dtype}");
                assert!(joined[0].iter().any(|byte| *byte != 0));
            }
        }
    }
}

/// The same numbers in f16.
fn halves(x: &Tensor) -> Tensor {
    let numbers: Vec<half::f16> =
        x.as_slice::<f32>().unwrap().iter().map(|x| half::f16::from_f32(*x)).collect();
    Tensor::new(*x.shape(), numbers).unwrap()
}
