//! The engine: sequences that come and go, draws that reproduce, requests that cannot be served.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod run;

use common::{CONTEXT, TempModel, VOCABULARY};
use olivine::prelude::*;
use olivine_lm::{
    CacheType, Engine, EngineOptions, Error, Event, Finish, LanguageModel, Request, RequestId, Sampling,
};
use run::{engine, finish, one, request};

#[test]
fn a_sequence_does_not_depend_on_who_shares_its_batch() {
    for architecture in ["llama", "qwen3moe", "gemma2"] {
        let file = TempModel::new(architecture, "batch");
        let options = EngineOptions::default().slots(4).chunk(7).logprobs(true);
        let mut alone = engine(&file, options);
        let watched = || request(5, 17, 24);
        let want = one(&mut alone, watched());
        assert_eq!(want.tokens.len(), 24);
        // Others come before it, with it and after it, longer and shorter, and one is cancelled.
        let mut shared = engine(&file, options);
        let mut ids = Vec::new();
        let got = finish(&mut shared, |engine, step| {
            let mut add = |request| ids.push(engine.add(request).unwrap());
            match step {
                0 => [request(1, 30, 12), request(2, 3, 2), request(3, 9, 40)].into_iter().for_each(add),
                2 => add(watched()),
                3 => add(request(4, 50, 9)),
                9 => assert!(engine.cancel(ids[2])),
                12 => add(request(6, 1, 5)),
                _ => {}
            }
        });
        assert_eq!(got[&ids[3]], want, "{architecture}");
        // And in a slot that others used before, as the first of many.
        assert_eq!(one(&mut shared, watched()), want, "{architecture}");
    }
}

#[test]
fn a_seed_reproduces_and_another_draws_otherwise() {
    let file = TempModel::new("llama", "seed");
    let mut engine = engine(&file, EngineOptions::default().slots(2));
    let first = one(&mut engine, request(1, 5, 20));
    assert_eq!(one(&mut engine, request(1, 5, 20)), first);
    let mut other = request(1, 5, 20);
    other.sampling.seed = 2;
    assert_ne!(one(&mut engine, other), first);
}

#[test]
fn sequences_end_by_stop_tokens_lengths_and_the_context() {
    let file = TempModel::new("qwen3", "ends");
    let mut engine = engine(&file, EngineOptions::default().context(20));
    assert_eq!(engine.context(), 20);
    let all = one(&mut engine, request(1, 5, 6));
    assert_eq!((all.tokens.len(), all.finish), (6, Some(Finish::Length)));
    let third = all.tokens[2].0;
    let stopped = one(&mut engine, request(1, 5, 6).stop([third]));
    let until = all.tokens.iter().position(|(token, _)| *token == third).unwrap();
    assert_eq!((stopped.tokens.len(), stopped.finish), (until, Some(Finish::Stop(third))));
    let full = one(&mut engine, request(1, 5, 1000));
    assert_eq!((full.tokens.len(), full.finish), (15, Some(Finish::Context)));
    assert_eq!(one(&mut engine, request(1, 5, 0)).finish, Some(Finish::Length));
}

#[test]
fn penalties_and_biases_change_what_is_likeliest() {
    let file = TempModel::new("qwen2", "bias");
    let mut engine = engine(&file, EngineOptions::default());
    let greedy = |sampling: Sampling| Request::new(vec![3, 4, 5], 12).sampling(sampling);
    let plain = one(&mut engine, greedy(Sampling::default()));
    let banned = plain.tokens[0].0;
    let bias = vec![(banned, f32::NEG_INFINITY)];
    let without = one(&mut engine, greedy(Sampling { bias, ..Sampling::default() }));
    assert!(without.tokens.iter().all(|(token, _)| *token != banned));
    let forced = one(&mut engine, greedy(Sampling { bias: vec![(77, 1e6)], ..Sampling::default() }));
    assert!(forced.tokens.iter().all(|(token, _)| *token == 77));
    // A presence penalty beyond all logits: no token comes twice, and none of the prompt.
    let sampling = Sampling { presence: 1e6, last_tokens: 0, ..Sampling::default() };
    let varied = one(&mut engine, greedy(sampling));
    let mut seen = vec![3, 4, 5];
    for (token, _) in &varied.tokens {
        assert!(!seen.contains(token), "{token} comes twice");
        seen.push(*token);
    }
}

#[test]
fn f16_and_packed_caches_are_close_to_f32_ones() {
    let file = TempModel::new("gpt-oss", "f16");
    let options = EngineOptions::default().slots(2).logprobs(true);
    let logprob = |options: EngineOptions| {
        let got = one(&mut engine(&file, options), Request::new((1..40).collect(), 1));
        f32::from_bits(got.tokens[0].1.unwrap())
    };
    let (exact, close) = (logprob(options), logprob(options.cache(CacheType::F16)));
    assert!((exact - close).abs() < 0.02 && exact != close, "{exact} and {close}");
    let packed = logprob(options.cache(CacheType::Q8_0));
    assert!((exact - packed).abs() < 0.1 && exact != packed, "{exact} and {packed}");
}

#[test]
fn requests_that_cannot_be_served_are_errors_and_harm_no_other() {
    let file = TempModel::new("phi3", "bad");
    let mut engine = engine(&file, EngineOptions::default());
    let good = engine.add(Request::new(vec![1, 2], 3)).unwrap();
    let refused = |engine: &mut Engine, request: Request| engine.add(request).unwrap_err();
    assert!(matches!(refused(&mut engine, Request::new(vec![], 3)), Error::EmptyPrompt));
    let long = refused(&mut engine, Request::new(vec![1; CONTEXT], 3));
    assert!(matches!(long, Error::PromptTooLong { tokens: CONTEXT, context: CONTEXT }), "{long}");
    let unknown = refused(&mut engine, Request::new(vec![1, VOCABULARY as i64], 3));
    assert!(unknown.to_string().contains("160 at position 1"), "{unknown}");
    for sampling in [
        Sampling { temperature: -1.0, ..Sampling::default() },
        Sampling { top_p: f32::NAN, ..Sampling::default() },
        Sampling { repetition: 0.0, ..Sampling::default() },
        Sampling { bias: vec![(-1, 1.0)], ..Sampling::default() },
        Sampling { bias: vec![(1, f32::NAN)], ..Sampling::default() },
    ] {
        refused(&mut engine, Request::new(vec![1], 3).sampling(sampling));
    }
    assert!(!engine.cancel(RequestId(99)));
    assert_eq!(finish(&mut engine, |_, _| {})[&good].tokens.len(), 3);
    let session = Session::new(Device::Cpu).unwrap();
    let model = LanguageModel::load(file.path()).unwrap();
    for options in [EngineOptions::default().slots(0), EngineOptions::default().chunk(0)] {
        assert!(model.engine(&session, &options).is_err());
    }
    assert!("i32".parse::<CacheType>().is_err());
}

#[test]
fn numbers_beyond_all_bounds_are_errors_or_as_much_as_fits() {
    let file = TempModel::new("llama", "bounds");
    let model = LanguageModel::load(file.path()).unwrap();
    let session = Session::new(Device::Cpu).unwrap();
    for slots in [0, 1 << 17, 1_000_000_000, usize::MAX] {
        let error = model.engine(&session, &EngineOptions::default().slots(slots)).err().unwrap();
        assert!(error.to_string().contains("slots"), "{error}");
    }
    let want = one(&mut engine(&file, EngineOptions::default()), request(5, 17, 24)).tokens;
    let most = EngineOptions::default()
        .context(Some(usize::MAX))
        .chunk(usize::MAX)
        .cache_tokens(Some(usize::MAX))
        .draft(usize::MAX);
    assert_eq!(one(&mut engine(&file, most), request(5, 17, 24)).tokens, want);
}

#[test]
fn the_likeliest_tokens_come_with_those_that_ask_for_them() {
    let file = TempModel::new("llama", "top");
    let options = EngineOptions::default().slots(2).logprobs(true).top_logprobs(5);
    let mut asked = engine(&file, options);
    assert!(asked.add(request(1, 5, 4).top_logprobs(6)).is_err());
    let mut greedy = request(1, 5, 8).top_logprobs(5);
    greedy.sampling.temperature = 0.0;
    let (with, without) = (asked.add(greedy).unwrap(), asked.add(request(2, 4, 8)).unwrap());
    while !asked.is_idle() {
        for event in asked.step().unwrap() {
            let Event::Token { id, token, logprob, top } = event else { continue };
            if id == without {
                assert!(top.is_empty());
                continue;
            }
            assert!(id == with && top.len() == 5 && top.is_sorted_by(|a, b| a.1 >= b.1), "{top:?}");
            assert_eq!((top[0].0, Some(top[0].1)), (token, logprob));
        }
    }
    let wrong = EngineOptions::default().top_logprobs(5);
    let session = Session::new(Device::Cpu).unwrap();
    assert!(LanguageModel::load(file.path()).unwrap().engine(&session, &wrong).is_err());
}
