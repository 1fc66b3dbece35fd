//! How many dispatches a layer takes when one token is decoded, on a device that need not be here: lowering reads plain data.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod card;

use card::h200;
use olivine::internals::compile::{Options, compile};
use olivine::internals::gpu::{Program, Record, State, lower};
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
    let mut w = Writer::new();
    w.metadata("general.architecture", Value::from("llama")).unwrap();
    let sizes = [
        ("block_count", 2),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FEED),
        ("attention.head_count", HIDDEN / DIM),
        ("attention.head_count_kv", KV / DIM),
        ("context_length", 4096),
    ];
    for (key, value) in sizes {
        w.metadata(format!("llama.{key}"), Value::U32(value as u32)).unwrap();
    }
    w.metadata("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)).unwrap();
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
            put(&name(part), packed, &shape);
        }
    }
    CausalLm::of_gguf(Gguf::from_bytes(w.to_bytes().unwrap()).unwrap()).unwrap()
}

/// The program of a step: `batch` sequences, `sequence` tokens of each.
fn step(model: &CausalLm, [batch, sequence]: [usize; 2], narrow: bool) -> Program {
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
    lower(&compile(&fixed, &options).unwrap(), &h200(), &Record::new(), &states).unwrap()
}

/// The kernels of the second layer: from the norm before its attention on.
fn of_layer(program: &Program) -> Vec<&str> {
    let names: Vec<&str> = program.run.iter().map(|d| program.kernel(d).name.as_str()).collect();
    let norms: Vec<usize> = (0..names.len()).filter(|i| names[*i].starts_with("rms_norm")).collect();
    names[norms[2]..norms[4]].to_vec()
}

#[test]
fn a_layer_with_packed_weights_decodes_a_token_in_eleven_dispatches() {
    for (format, narrow) in [(BlockFormat::Q4_K, false), (BlockFormat::Q4_K, true), (BlockFormat::Q8_0, true)]
    {
        let program = step(&llama(format), [1, 1], narrow);
        let mut kernels = of_layer(&program);
        // Before the output's norm comes the row that is picked.
        kernels.retain(|name| *name != "gather");
        let expected = [
            "rms_norm_rows",
            // Queries, keys and values wait for nothing but the norm.
            "dequant_gemv",
            "dequant_gemv",
            "dequant_gemv",
            "rotations",
            "attention_decode_split",
            "attention_combine",
            "dequant_gemv",
            "rms_norm_rows",
            // Gate and up.
            "dequant_gemv",
            "dequant_gemv",
        ];
        assert_eq!(kernels, expected, "{format}");
    }
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
