//! Every architecture against its definition in f64: whole sequences, scored by chunks, and decoded in a batch.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::{ARCHITECTURES, Reference, TempModel, VOCABULARY, log_softmax};
use olivine::prelude::*;
use olivine_ir::BlockFormat;
use olivine_lm::{CacheType, Engine, EngineOptions, Event, LanguageModel, Request, RequestId};

/// How far logits may be from those in f64, relative to their length.
const BOUND: f64 = 1e-4;
/// How far log-probabilities may be from those in f64 with the same packed caches.
const PACKED_BOUND: f64 = 1e-2;

fn prompt(length: usize, seed: i64) -> Vec<i64> {
    (0..length as i64).map(|i| (i * i * 7 + i * 13 + seed * 31) % VOCABULARY as i64).collect()
}

/// Decodes to the end and checks every token's log-probability, and that it is the likeliest up to that error.
fn check_decoding(
    engine: &mut Engine,
    reference: &Reference,
    requests: &[(usize, usize)],
    (what, bound): (&str, f64),
) {
    let mut sequences: Vec<(RequestId, Vec<i64>, usize)> = Vec::new();
    let mut logprobs: Vec<Vec<f32>> = Vec::new();
    for (seed, (length, most)) in requests.iter().enumerate() {
        let tokens = prompt(*length, seed as i64 + 1);
        sequences.push((engine.add(Request::new(tokens.clone(), *most)).unwrap(), tokens, *length));
        logprobs.push(Vec::new());
    }
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let Event::Token { id, token, logprob, .. } = event else { continue };
            let at = sequences.iter().position(|(of, ..)| *of == id).unwrap();
            sequences[at].1.push(token);
            logprobs[at].push(logprob.unwrap());
        }
    }
    for ((i, (_, tokens, length)), found) in sequences.iter().enumerate().zip(&logprobs) {
        assert_eq!(tokens.len(), length + requests[i].1);
        let exact = reference.logits(&tokens[..tokens.len() - 1]);
        for (step, found) in found.iter().enumerate() {
            let exact = log_softmax(&exact[length - 1 + step]);
            let token = tokens[length + step] as usize;
            let best = exact.iter().copied().fold(f64::MIN, f64::max);
            assert!(
                (f64::from(*found) - exact[token]).abs() < bound,
                "{what}: sequence {i}, step {step}: {found} is not {}",
                exact[token]
            );
            assert!(
                best - exact[token] < bound,
                "{what}: sequence {i}, step {step}: {token} is not the likeliest"
            );
        }
    }
}

fn check(device: &str, architecture: &str, cached: &[CacheType]) {
    let file = TempModel::new(architecture, &format!("arch-{device}"));
    let mut reference = Reference::new(file.path());
    let session = Session::new(device.parse().unwrap()).unwrap();
    // Whole sequences, two at once.
    let executable = session.compile(&Model::load(file.path()).unwrap()).unwrap();
    let tokens = [prompt(9, 0), prompt(9, 5)];
    let input = Tensor::new([2, 9], tokens.concat()).unwrap();
    let out = executable.run([("tokens", &input)]).unwrap();
    let got = out["logits"].as_slice::<f32>().unwrap();
    let want: Vec<f64> = tokens.iter().flat_map(|tokens| reference.logits(tokens)).flatten().collect();
    let scale = want.iter().map(|x| x * x).sum::<f64>().sqrt();
    let error = got.iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>().sqrt();
    assert!(error < BOUND * scale, "{architecture}: relative error {:e}", error / scale);
    // With caches: chunks of prompts, sequences of three lengths in a batch, slots that others used before.
    let model = LanguageModel::load(file.path()).unwrap();
    for cache in cached {
        let options = EngineOptions::default().slots(3).chunk(8).logprobs(true).cache(*cache);
        let mut engine = model.engine(&session, &options).unwrap();
        let what = format!("{architecture} on {device}, {cache} caches");
        // An element between two steps of its block may go to either in f32.
        let (format, bound) = match cache {
            CacheType::Q8_0 => (Some(BlockFormat::Q8_0), PACKED_BOUND),
            _ => (None, 1e-3),
        };
        reference = reference.with_cache(format);
        let requests = [(11, 6), (1, 3), (6, 9), (20, 4), (3, 5)];
        check_decoding(&mut engine, &reference, &requests, (&what, bound));
    }
}

#[test]
fn architectures_compute_what_their_definitions_say() {
    for architecture in ARCHITECTURES {
        check("cpu", architecture, &[CacheType::F32, CacheType::Q8_0]);
    }
}

#[test]
fn one_slot_decodes_in_the_caches_of_its_prompt() {
    let file = TempModel::new("gemma2", "single");
    let reference = Reference::new(file.path());
    let session = Session::new(Device::Cpu).unwrap();
    let model = LanguageModel::load(file.path()).unwrap();
    let mut engine = model.engine(&session, &EngineOptions::default().logprobs(true)).unwrap();
    check_decoding(&mut engine, &reference, &[(7, 8), (12, 3)], ("one slot", 1e-3));
}

#[test]
fn scores_are_those_of_the_definition() {
    let file = TempModel::new("gemma3", "score");
    let session = Session::new(Device::Cpu).unwrap();
    let scorer = LanguageModel::load(file.path()).unwrap().scorer(&session).unwrap();
    let tokens = prompt(140, 3);
    let exact = Reference::new(file.path()).logits(&tokens);
    let found = scorer.logprobs(&tokens).unwrap();
    assert_eq!(found.len(), 139);
    for (i, found) in found.iter().enumerate() {
        let want = log_softmax(&exact[i])[tokens[i + 1] as usize];
        assert!((found - want).abs() < 1e-3, "token {i}: {found} is not {want}");
    }
    let perplexity = scorer.perplexity(&tokens, 70, None).unwrap();
    assert_eq!(perplexity.tokens, 2 * 34);
    assert!(perplexity.value() > 1.0 && perplexity.error > 0.0);
    assert!(scorer.perplexity(&tokens, 141, None).is_err() && scorer.perplexity(&tokens, 3, None).is_err());
}

#[test]
fn architectures_compute_the_same_on_vulkan() {
    for architecture in ["llama", "gemma3", "gpt-oss"] {
        check("vulkan", architecture, &[CacheType::F32, CacheType::Q8_0]);
    }
}
