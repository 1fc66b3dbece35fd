//! How many dispatches a layer takes when one token is decoded, on a device that need not be here: lowering reads plain data.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod card;

use card::h200;
use olivine::internals::compile::{Options, compile};
use olivine::internals::gpu::{Addressing, DeviceCaps, Program, Record, State, lower};
use olivine::internals::models::{CacheType, CausalLm, DecoderOptions};
use olivine::ir::Shape;
use olivine_gguf::{Gguf, TensorKind, Value, Writer};
use olivine_ir::BlockFormat;

const HIDDEN: usize = 1024;
const FEED: usize = 2048;
const KV: usize = 256;
const DIM: usize = 128;

/// A llama of two layers with packed weights, all of them zeros.
fn llama(format: BlockFormat) -> CausalLm {
    decoder("llama", format, format, false)
}

/// The same of another architecture, with another format for the values, and with biases of queries, keys and values.
fn decoder(architecture: &str, format: BlockFormat, of_values: BlockFormat, has_biases: bool) -> CausalLm {
    let mut w = Writer::new();
    w.metadata("general.architecture", Value::from(architecture)).unwrap();
    let sizes = [
        ("block_count", 2),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FEED),
        ("attention.head_count", HIDDEN / DIM),
        ("attention.head_count_kv", KV / DIM),
        ("context_length", 4096),
    ];
    for (key, value) in sizes {
        w.metadata(format!("{architecture}.{key}"), Value::U32(value as u32)).unwrap();
    }
    w.metadata(format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5)).unwrap();
    let mut put = |name: &str, kind: TensorKind, shape: &[usize]| {
        let count: usize = shape.iter().product();
        let bytes = match kind {
            TensorKind::Blocks(format) => olivine_quant::encode(format, &vec![0.0; count], None).unwrap(),
            _ => vec![0; 4 * count],
        };
        w.tensor(name, kind, shape, bytes).unwrap();
    };
    let packed = TensorKind::Blocks(format);
    put("token_embd.weight", packed, &[512, HIDDEN]);
    put("output_norm.weight", TensorKind::F32, &[HIDDEN]);
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        put(&name("attn_norm"), TensorKind::F32, &[HIDDEN]);
        put(&name("ffn_norm"), TensorKind::F32, &[HIDDEN]);
        for (part, shape) in [
            ("attn_q", [HIDDEN, HIDDEN]),
            ("attn_k", [KV, HIDDEN]),
            ("attn_v", [KV, HIDDEN]),
            ("attn_output", [HIDDEN, HIDDEN]),
            ("ffn_gate", [FEED, HIDDEN]),
            ("ffn_up", [FEED, HIDDEN]),
            ("ffn_down", [HIDDEN, FEED]),
        ] {
            let kind = if part == "attn_v" { TensorKind::Blocks(of_values) } else { packed };
            put(&name(part), kind, &shape);
            if has_biases && ["attn_q", "attn_k", "attn_v"].contains(&part) {
                put(&format!("blk.{layer}.{part}.bias"), TensorKind::F32, &shape[..1]);
            }
        }
    }
    CausalLm::of_gguf(Gguf::from_bytes(w.to_bytes().unwrap()).unwrap()).unwrap()
}

/// The program of a step: `batch` sequences, `sequence` tokens of each.
fn step(model: &CausalLm, sizes: [usize; 2], narrow: bool) -> Program {
    step_on(&h200(), model, sizes, narrow)
}

fn step_on(caps: &DeviceCaps, model: &CausalLm, [batch, sequence]: [usize; 2], narrow: bool) -> Program {
    let options = DecoderOptions { cache: Some(CacheType::F16), picked: true, context: None };
    let mut built = model.decoder(&options).unwrap();
    built.graph.output("logits", built.logits).unwrap();
    let graph = &built.graph;
    let mut shapes = vec![
        ("tokens".to_string(), vec![batch, sequence]),
        ("positions".to_string(), vec![batch, sequence]),
        ("starts".to_string(), vec![batch]),
        ("lengths".to_string(), vec![batch]),
        ("pages".to_string(), vec![batch, 128]),
        ("picked".to_string(), vec![batch]),
    ];
    for (input, _) in &built.states {
        shapes.push((input.clone(), vec![128 * batch, 32, KV / DIM, DIM]));
    }
    let shapes: Vec<(&str, Shape)> =
        shapes.iter().map(|(name, dims)| (name.as_str(), Shape::new(dims).unwrap())).collect();
    let fixed = graph.specialise(&shapes).unwrap();
    let at = |names: Vec<String>, name: &str| names.iter().position(|n| n == name).unwrap();
    let inputs: Vec<String> = fixed.inputs().map(|(name, _)| name.to_string()).collect();
    let outputs: Vec<String> = fixed.outputs().iter().map(|o| o.name.clone()).collect();
    let states: Vec<State> = (built.states.iter())
        .map(|(input, output)| (at(inputs.clone(), input), at(outputs.clone(), output)))
        .collect();
    let options = Options { narrow, ..Options::default() };
    lower(&compile(&fixed, &options).unwrap(), caps, &Record::new(), &states).unwrap()
}

/// The kernels of the second layer: from the norm before its attention on.
fn of_layer(program: &Program) -> Vec<&str> {
    let names: Vec<&str> = program.run.iter().map(|d| program.kernel(d).name.as_str()).collect();
    let norms: Vec<usize> = (0..names.len()).filter(|i| names[*i].starts_with("rms_norm")).collect();
    names[norms[2]..norms[4]].to_vec()
}

/// What a layer with packed weights takes for a few rows in all.
const SIX: [&str; 6] = [
    // The norm, queries, keys and values.
    "rms_norm_gemv",
    "rotations",
    // The workgroup that is last combines the ranges of keys.
    "attention_decode_split",
    "dequant_gemv",
    // The norm, gate and up.
    "rms_norm_gemv",
    "dequant_gemv",
];

#[test]
fn a_layer_with_packed_weights_decodes_a_token_in_six_dispatches() {
    use BlockFormat::{MXFP4, Q4_K, Q6_K, Q8_0};
    let models = [
        (decoder("llama", Q4_K, Q4_K, false), "q4_k"),
        (decoder("llama", Q4_K, Q6_K, false), "q4_k, values in q6_k"),
        (decoder("qwen2", Q4_K, Q4_K, true), "q4_k with biases"),
        (decoder("qwen2", Q4_K, Q6_K, true), "q4_k with biases, values in q6_k"),
        (decoder("llama", Q8_0, Q8_0, false), "q8_0"),
        (decoder("llama", MXFP4, MXFP4, false), "mxfp4"),
    ];
    for (model, name) in models {
        for narrow in [false, true] {
            let program = step(&model, [1, 1], narrow);
            let mut kernels = of_layer(&program);
            // Before the output's norm comes the row that is picked.
            kernels.retain(|name| *name != "gather");
            assert_eq!(kernels, SIX, "{name}, narrow {narrow}");
            for kernel in &program.kernels {
                // What does not fit push constants would be read from memory by every workgroup.
                let bytes = 8 * kernel.args.len() + 4 * kernel.params.len();
                assert!(
                    bytes <= 256 || !kernel.name.ends_with("gemv"),
                    "{name}: {} takes {bytes}",
                    kernel.name
                );
            }
            let of_rule = |rule: &str| program.fusions.iter().filter(|fusion| fusion.rule == rule).count();
            // Two to a layer, and the output's.
            assert_eq!(of_rule("norm in packed matmuls"), 5, "{name}, narrow {narrow}");
        }
    }
}

#[test]
fn two_sequences_take_as_many_dispatches_as_one_and_a_few_join_what_stays_f32() {
    let kernels = |sequences: usize, narrow: bool| {
        let program = step(&llama(BlockFormat::Q4_K), [sequences, 1], narrow);
        let mut kernels: Vec<String> = of_layer(&program).into_iter().map(str::to_string).collect();
        kernels.retain(|name| name != "gather");
        kernels
    };
    for narrow in [false, true] {
        assert_eq!(kernels(2, narrow), SIX, "narrow {narrow}");
    }
    // From three rows on, f16 is for matrices: attention's result is.
    for sequences in [3, 4] {
        let kernels = kernels(sequences, false);
        let joined = kernels.iter().filter(|name| *name == "rms_norm_gemv").count();
        assert_eq!((joined, kernels.len()), (2, SIX.len() + 1), "{kernels:?}");
    }
}

#[test]
fn a_device_of_bindings_combines_ranges_of_keys_apart_and_joins_what_its_bindings_hold() {
    let with = |max_count: u32| {
        let mut caps = h200();
        caps.target.device_fences = false;
        caps.addressing =
            Addressing::Bindings { alignment: 256, max_bytes: 1 << 30, max_count, overlap: true };
        let model = decoder("qwen2", BlockFormat::Q4_K, BlockFormat::Q6_K, true);
        let program = step_on(&caps, &model, [1, 1], false);
        let count = |name: &str| program.run.iter().filter(|d| program.kernel(d).name == name).count();
        ["rms_norm_rows", "rms_norm_gemv", "dequant_gemv", "attention_combine"].map(count)
    };
    // Two layers, and the output's norm. x, gamma; of queries, keys and values each a weight, a bias and a result.
    assert_eq!(with(16), [0, 5, 4, 2]);
    // Queries and keys in one dispatch, values in another: each normalises x.
    assert_eq!(with(8), [0, 7, 4, 2]);
}

#[test]
fn prompts_are_rounded_to_f16_for_cooperative_matrices_where_that_is_allowed() {
    let count = |program: &Program, name: &str| {
        program.run.iter().filter(|d| program.kernel(d).name.starts_with(name)).count()
    };
    let exact = step(&llama(BlockFormat::Q4_K), [1, 512], false);
    assert_eq!(count(&exact, "cast"), 0);
    let fast = step(&llama(BlockFormat::Q4_K), [1, 512], true);
    // x of queries, keys and values; of gate and up; of down. Attention's result is f16, and the caches are.
    assert_eq!(count(&fast, "cast"), 2 * 3);
    assert!(count(&fast, "matmul_coop") >= 2 * 7, "{}", count(&fast, "matmul_coop"));
}

#[test]
fn a_layer_of_several_sequences_takes_its_packed_weights_by_matrices() {
    for sequences in [8, 32] {
        let program = step(&llama(BlockFormat::Q4_K), [sequences, 1], true);
        let kernels = of_layer(&program);
        let count = |name: &str| kernels.iter().filter(|kernel| **kernel == name).count();
        // Queries, keys, values, attention's result, gate and up in one, down.
        assert_eq!(count("dequant_matmul_coop"), 6, "{kernels:?}");
        // x of queries, keys and values; attention's result; of gate and up; of down.
        assert_eq!(count("pack_rows"), 4, "{kernels:?}");
        assert_eq!(count("cast") + count("dequant_gemv") + count("matmul_coop"), 0, "{kernels:?}");
    }
}
