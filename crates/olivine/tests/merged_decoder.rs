//! A decoder as exporters merge it: one file for the prompt and for the tokens after it, which differ by
//! `If(use_cache_branch)`, with caches that grow in place. After the second token nothing is compiled any more.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[allow(dead_code, reason = "a part is enough here")]
#[path = "../../onnx/tests/wire/mod.rs"]
mod wire;

use olivine::internals::ExecutableExt as _;
use olivine::prelude::*;
use wire::{
    BOOL, F32, I64, Message, floats, graph_attribute, int_attribute, ints, ints_attribute, node, tensor,
    value,
};

const LAYERS: usize = 2;
const HEADS: usize = 2;
const DIM: usize = 16;
const WIDTH: usize = HEADS * DIM;
const WORDS: usize = 40;
/// Positions of the encoder.
const HEARD: usize = 25;
/// Tokens of a transcription, and those of its prompt.
const TOKENS: usize = 64;
const PROMPT: usize = 4;
const LONGEST: usize = 128;

/// A number between −1 and 1 that looks random.
fn number(i: usize) -> f32 {
    let bits = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    bits as f32 / (1u64 << 23) as f32 - 1.0
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| 0.3 * number(seed * 100_003 + i)).collect()
}

/// Nodes of one branch, and the weights that both share.
#[derive(Default)]
struct Branch {
    nodes: Vec<Message>,
    weights: Vec<Message>,
    cached: bool,
}

impl Branch {
    fn add(&mut self, op: &str, inputs: &[&str], output: &str, attributes: &[Message]) -> String {
        let inside = |node: Message, attribute: &Message| node.inside(5, attribute);
        self.nodes.push(attributes.iter().fold(node(op, inputs, &[output]), inside));
        output.to_string()
    }

    /// The name of a value of this branch.
    fn name(&self, name: &str) -> String {
        format!("{}.{name}", if self.cached { "cached" } else { "first" })
    }

    /// x times a weight of bytes, quantised as it comes.
    fn linear(&mut self, x: &str, name: &str, [k, n]: [usize; 2]) -> String {
        let (weight, scale, zero) = (format!("{name}.w"), format!("{name}.scale"), format!("{name}.zero"));
        let bytes: Vec<u8> = numbers(k * n, name.len()).iter().map(|v| (v * 200.0) as i8 as u8).collect();
        self.weights.push(tensor(&weight, 3, &[k as i64, n as i64], &bytes));
        self.weights.push(floats(&scale, &[], &[0.004]));
        self.weights.push(tensor(&zero, 3, &[], &[0]));
        let [q, s, z, product, float, scales, y] = ["q", "s", "z", "product", "float", "scales", "y"]
            .map(|part| self.name(&format!("{name}.{part}")));
        self.nodes.push(node("DynamicQuantizeLinear", &[x], &[&q, &s, &z]));
        self.add("MatMulInteger", &[&q, &weight, &z, &zero], &product, &[]);
        self.add("Cast", &[&product], &float, &[int_attribute("to", F32)]);
        self.add("Mul", &[&s, &scale], &scales, &[]);
        self.add("Mul", &[&float, &scales], &y, &[])
    }

    /// Heads of a projection: `[batch, heads, positions, dim]`.
    fn heads(&mut self, x: &str, name: &str) -> String {
        let y = self.linear(x, name, [WIDTH, WIDTH]);
        let [split, turned] = ["split", "turned"].map(|part| self.name(&format!("{name}.{part}")));
        self.add("Reshape", &[&y, "by_head"], &split, &[]);
        self.add("Transpose", &[&split], &turned, &[ints_attribute("perm", &[0, 2, 1, 3])])
    }

    /// Attention spelled out, and the projection after it.
    fn attention(&mut self, name: &str, q: &str, keys: &str, values: &str, mask: Option<&str>) -> String {
        let parts = ["across", "scores", "scaled", "masked", "weights", "mixed", "back", "joined"];
        let [across, scores, scaled, masked, weights, mixed, back, joined] =
            parts.map(|part| self.name(&format!("{name}.{part}")));
        self.add("Transpose", &[keys], &across, &[ints_attribute("perm", &[0, 1, 3, 2])]);
        self.add("MatMul", &[q, &across], &scores, &[]);
        let mut last = self.add("Mul", &[&scores, "quarter"], &scaled, &[]);
        if let Some(mask) = mask {
            last = self.add("Add", &[&last, mask], &masked, &[]);
        }
        self.add("Softmax", &[&last], &weights, &[int_attribute("axis", -1)]);
        self.add("MatMul", &[&weights, values], &mixed, &[]);
        self.add("Transpose", &[&mixed], &back, &[ints_attribute("perm", &[0, 2, 1, 3])]);
        self.add("Reshape", &[&back, "together"], &joined, &[]);
        self.linear(&joined, &format!("{name}.out"), [WIDTH, WIDTH])
    }

    fn norm(&mut self, x: &str, name: &str) -> String {
        let y = self.name(&format!("{name}.norm"));
        self.add("LayerNormalization", &[x, "gamma", "beta"], &y, &[])
    }

    fn sum(&mut self, a: &str, b: &str, name: &str) -> String {
        let y = self.name(name);
        self.add("Add", &[a, b], &y, &[])
    }

    /// The sizes of tokens and of the past, the positions of the new tokens, and the mask of a prompt.
    fn beginning(&mut self) -> (String, Option<String>) {
        let parts = ["shape", "count", "past", "end", "places", "embedded", "x"];
        let [shape, count, past, end, places, embedded, x] = parts.map(|part| self.name(part));
        self.add("Shape", &["input_ids"], &shape, &[]);
        self.add("Slice", &[&shape, "one", "two", "zero"], &count, &[]);
        let from = if self.cached {
            let caches = self.name("caches");
            self.add("Shape", &["past_key_values.0.decoder.key"], &caches, &[]);
            self.add("Slice", &[&caches, "two", "three", "zero"], &past, &[])
        } else {
            "zero".to_string()
        };
        self.add("Add", &[&from, &count], &end, &[]);
        self.add("Slice", &["positions", &from, &end, "zero"], &places, &[]);
        self.add("Gather", &["table", "input_ids"], &embedded, &[]);
        self.add("Add", &[&embedded, &places], &x, &[]);
        if self.cached {
            return (x, None);
        }
        let parts = ["length", "range", "column", "row", "later", "mask"];
        let [length, range, column, row, later, mask] = parts.map(|part| self.name(part));
        self.add("Squeeze", &[&count, "zero"], &length, &[]);
        self.add("Range", &["number_0", &length, "number_1"], &range, &[]);
        self.add("Unsqueeze", &[&range, "one"], &column, &[]);
        self.add("Unsqueeze", &[&range, "zero"], &row, &[]);
        self.add("Greater", &[&row, &column], &later, &[]);
        let mask = self.add("Where", &[&later, "least", "none"], &mask, &[]);
        (x, Some(mask))
    }

    /// The graph of the branch, whose outputs are the logits and all caches.
    fn graph(mut self) -> (Message, Vec<Message>) {
        let (mut x, mask) = self.beginning();
        let mut outputs = Vec::new();
        for layer in 0..LAYERS {
            let of = |part: &str| format!("{layer}.{part}");
            let past = |part: &str| format!("past_key_values.{layer}.{part}");
            let y = self.norm(&x, &of("own"));
            let (q, mut k, mut v) = (
                self.heads(&y, &of("own.qq")),
                self.heads(&y, &of("own.kkk")),
                self.heads(&y, &of("own.vvvv")),
            );
            if self.cached {
                for (part, new) in [("decoder.key", &mut k), ("decoder.value", &mut v)] {
                    let longer = self.name(&of(&format!("{part}.longer")));
                    *new = self.add("Concat", &[&past(part), new], &longer, &[int_attribute("axis", 2)]);
                }
            }
            let mixed = self.attention(&of("own"), &q, &k, &v, mask.as_deref());
            x = self.sum(&x, &mixed, &of("own.sum"));
            let y = self.norm(&x, &of("other"));
            let q = self.heads(&y, &of("other.qq"));
            // A branch with caches leaves the encoder's alone, and says so by constants without elements.
            let (keys, values) = match self.cached {
                true => (past("encoder.key"), past("encoder.value")),
                false => (
                    self.heads("encoder_hidden_states", &of("other.kkk")),
                    self.heads("encoder_hidden_states", &of("other.vvvv")),
                ),
            };
            let mixed = self.attention(&of("other"), &q, &keys, &values, None);
            x = self.sum(&x, &mixed, &of("other.sum"));
            let y = self.norm(&x, &of("hidden"));
            let up = self.linear(&y, &of("up.of.it"), [WIDTH, 4 * WIDTH]);
            let bent = self.name(&of("bent"));
            self.add("Relu", &[&up], &bent, &[]);
            let down = self.linear(&bent, &of("down.of.it"), [4 * WIDTH, WIDTH]);
            x = self.sum(&x, &down, &of("hidden.sum"));
            let kept = if self.cached { ["nothing".into(), "nothing".into()] } else { [keys, values] };
            outputs.extend([k, v].into_iter().chain(kept));
        }
        let y = self.norm(&x, "last");
        let logits = self.linear(&y, "words", [WIDTH, WORDS]);
        outputs.insert(0, logits);
        // What a branch returns it must compute.
        let mut declared = Vec::new();
        for (i, output) in outputs.iter().enumerate() {
            let returned = self.name(&format!("output.{i}"));
            self.add("Identity", &[output], &returned, &[]);
            let name = |axis: &str| self.name(&format!("output.{i}.{axis}"));
            let dims = ["a", "b", "c", "d"].map(name);
            let dims: Vec<&str> = dims.iter().take(if i == 0 { 3 } else { 4 }).map(String::as_str).collect();
            declared.push(value(&returned, F32, &dims));
        }
        let graph = wire::Graph { nodes: self.nodes, outputs: declared, ..wire::Graph::default() };
        (graph.message(), self.weights)
    }
}

fn merged() -> Model {
    let (first, weights) = Branch::default().graph();
    let (cached, _) = Branch { cached: true, ..Branch::default() }.graph();
    let caches: Vec<String> = (0..LAYERS)
        .flat_map(|layer| {
            ["decoder.key", "decoder.value", "encoder.key", "encoder.value"].map(|p| format!("{layer}.{p}"))
        })
        .collect();
    let presents: Vec<String> = caches.iter().map(|name| format!("present.{name}")).collect();
    let outputs: Vec<&str> = std::iter::once("logits").chain(presents.iter().map(String::as_str)).collect();
    let choice = node("If", &["use_cache_branch"], &outputs)
        .inside(5, &graph_attribute("then_branch", &cached))
        .inside(5, &graph_attribute("else_branch", &first));
    let (width, heads, dim) = (WIDTH.to_string(), HEADS.to_string(), DIM.to_string());
    let mut inputs = vec![
        value("input_ids", I64, &["batch_size", "decoder_sequence_length"]),
        value("encoder_hidden_states", F32, &["batch_size", "encoder_sequence_length", &width]),
    ];
    let mut declared = vec![value("logits", F32, &["batch_size", "decoder_sequence_length", "40"])];
    for name in &caches {
        let kind = if name.contains("decoder") { "decoder" } else { "encoder" };
        let past = format!("past_{kind}_sequence_length");
        inputs.push(value(&format!("past_key_values.{name}"), F32, &["batch_size", &heads, &past, &dim]));
        let present = format!("present_{kind}_sequence_length");
        declared.push(value(&format!("present.{name}"), F32, &["batch_size", &heads, &present, &dim]));
    }
    inputs.push(value("use_cache_branch", BOOL, &["1"]));
    let mut initializers = weights;
    initializers.extend([
        floats("table", &[WORDS as i64, WIDTH as i64], &numbers(WORDS * WIDTH, 3)),
        floats("positions", &[LONGEST as i64, WIDTH as i64], &numbers(LONGEST * WIDTH, 5)),
        floats("gamma", &[WIDTH as i64], &[1.0; WIDTH]),
        floats("beta", &[WIDTH as i64], &[0.1; WIDTH]),
        floats("quarter", &[], &[0.25]),
        floats("least", &[], &[f32::MIN]),
        floats("none", &[], &[0.0]),
        floats("nothing", &[0, HEADS as i64, 1, DIM as i64], &[]),
        ints("by_head", &[4], &[0, 0, HEADS as i64, DIM as i64]),
        ints("together", &[3], &[0, 0, WIDTH as i64]),
        ints("zero", &[1], &[0]),
        ints("one", &[1], &[1]),
        ints("two", &[1], &[2]),
        ints("three", &[1], &[3]),
        ints("number_0", &[], &[0]),
        ints("number_1", &[], &[1]),
    ]);
    let graph = wire::Graph {
        nodes: vec![choice],
        initializers,
        inputs,
        outputs: declared,
        ..wire::Graph::default()
    };
    Model::from_onnx(graph.model()).unwrap()
}

/// The token that goes in after a prompt of [`PROMPT`], and the values of a run.
fn ids(step: usize) -> Vec<i64> {
    match step {
        0 => (0..PROMPT as i64).collect(),
        _ => vec![(step * 17 % WORDS) as i64],
    }
}

/// The logits of every run with a state, and what was compiled and recorded after it.
fn transcribe(decoder: &Executable, heard: &Tensor) -> (Vec<Vec<f32>>, Vec<(usize, usize)>) {
    let empty = Tensor::zeros(DType::F32, [1, HEADS, 0, DIM]).unwrap();
    let states: Vec<String> = merged().cache_pairs().into_iter().map(|(input, _)| input).collect();
    let mut state = decoder.state_from(states.iter().map(|name| (name.as_str(), &empty))).unwrap();
    let (mut all, mut counts) = (Vec::new(), Vec::new());
    for step in 0..TOKENS {
        let ids = ids(step);
        let ids = Tensor::new([1, ids.len()], ids).unwrap();
        let cached = Tensor::new([1], vec![step > 0]).unwrap();
        let given =
            inputs! { "input_ids" => &ids, "encoder_hidden_states" => heard, "use_cache_branch" => &cached };
        let out = decoder.run_with_state(&mut state, given).unwrap();
        let logits = out.get("logits").unwrap().as_slice::<f32>().unwrap();
        all.push(logits[logits.len() - WORDS..].to_vec());
        counts.push((decoder.compiled(), decoder.recordings()));
    }
    (all, counts)
}

/// The same with caches that go in and come out of every run as tensors.
fn without_state(decoder: &Executable, heard: &Tensor) -> Vec<Vec<f32>> {
    let empty = Tensor::zeros(DType::F32, [1, HEADS, 0, DIM]).unwrap();
    let pairs = merged().cache_pairs();
    let mut caches: Vec<Tensor> = vec![empty; pairs.len()];
    let mut all = Vec::new();
    for step in 0..TOKENS {
        let ids = ids(step);
        let ids = Tensor::new([1, ids.len()], ids).unwrap();
        let cached = Tensor::new([1], vec![step > 0]).unwrap();
        let mut given =
            vec![("input_ids", &ids), ("encoder_hidden_states", heard), ("use_cache_branch", &cached)];
        given.extend(pairs.iter().zip(&caches).map(|((input, _), cache)| (input.as_str(), cache)));
        let out = decoder.run(given).unwrap();
        let logits = out.get("logits").unwrap().as_slice::<f32>().unwrap();
        all.push(logits[logits.len() - WORDS..].to_vec());
        let next = |(pair, cache): (&(String, String), &Tensor)| match step > 0 && pair.0.contains("encoder")
        {
            true => cache.clone(),
            false => out.get(&pair.1).unwrap().clone(),
        };
        caches = pairs.iter().zip(&caches).map(next).collect();
    }
    all
}

fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    for (step, (got, want)) in got.iter().zip(want).enumerate() {
        for (a, b) in got.iter().zip(want) {
            // A number that is rounded to the next byte shows.
            assert!((a - b).abs() <= 0.02, "{what}, step {step}: {got:?}\n{want:?}");
        }
    }
}

#[test]
fn nothing_is_compiled_after_the_second_token() {
    let heard = Tensor::new([1, HEARD, WIDTH], numbers(HEARD * WIDTH, 9)).unwrap();
    let model = merged();
    let cpu = Session::new(Device::Cpu).unwrap();
    let want = without_state(&cpu.compile(&model).unwrap(), &heard);
    for device in [Device::Cpu, Device::Vulkan] {
        let session = Session::new(device.clone()).unwrap();
        let options = CompileOptions::new().states(model.cache_pairs()).outputs(["logits"]);
        let decoder = session.compile_with(&model, &options).unwrap();
        let (got, counts) = transcribe(&decoder, &heard);
        let guards = decoder.guards().iter().map(|plan| plan.join("\n")).collect::<Vec<_>>().join("\n\n");
        assert_eq!(counts[TOKENS - 1].0, counts[1].0, "{device:?}: {counts:?}\n{guards}");
        assert!(
            counts[TOKENS - 1].1 <= TOKENS,
            "{device:?}: recorded more than once for a token: {counts:?}"
        );
        assert_close(&got, &want, &format!("{device:?}"));
    }
}
