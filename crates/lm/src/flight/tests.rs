//! Steps that fail: a token that the model does not have reaches a run, whose kernels are checked.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::TempModel;
use common::recorded::Recorded;
use olivine::prelude::*;

use crate::{Engine, EngineOptions, Event, LanguageModel, Request, RequestId};

type Tokens = BTreeMap<RequestId, Vec<(i64, Option<u32>)>>;

fn engine(device: &str, path: &Path, ahead: bool) -> Engine {
    let options = SessionOptions::default().checked(true);
    let session = Session::with_options(device.parse().unwrap(), options).unwrap();
    let options = EngineOptions::default().slots(2).chunk(4).context(64).logprobs(true).ahead(ahead);
    LanguageModel::load(path).unwrap().engine(&session, &options).unwrap()
}

fn step(engine: &mut Engine, tokens: &mut Tokens) -> Result<(), crate::Error> {
    for event in engine.step()? {
        if let Event::Token { id, token, logprob, .. } = event {
            tokens.entry(id).or_default().push((token, logprob.map(f32::to_bits)));
        }
    }
    Ok(())
}

/// Sets a token of a sequence, wherever it is.
fn set(engine: &mut Engine, id: RequestId, at: usize, token: i64) {
    let of_slots = engine.slots.iter_mut().flatten();
    let sequence = of_slots.chain(&mut engine.queue).find(|sequence| sequence.id == id).unwrap();
    sequence.tokens[at] = token;
}

/// A long prompt beside a sequence that decodes. If `fails`, a chunk of the prompt cannot be computed for a while.
fn run(engine: &mut Engine, fails: bool) -> Tokens {
    let mut tokens = Tokens::new();
    engine.add(Request::new(vec![3, 1, 4], 20)).unwrap();
    for _ in 0..3 {
        step(engine, &mut tokens).unwrap();
    }
    let prompt: Vec<i64> = (1..15).collect();
    let id = engine.add(Request::new(prompt.clone(), 9)).unwrap();
    step(engine, &mut tokens).unwrap();
    if fails {
        set(engine, id, 6, engine.vocabulary() as i64);
        let failed = (0..4).find_map(|_| step(engine, &mut tokens).err());
        let problem = failed.unwrap().to_string();
        assert!(problem.contains("range") || problem.contains("outside"), "{problem}");
        assert!(engine.slots.iter().flatten().all(|s| s.submitted == s.cached || !engine.flights.is_empty()));
        let second = (0..4).find_map(|_| step(engine, &mut tokens).err());
        assert!(second.is_some(), "the chunk is tried again");
        set(engine, id, 6, prompt[6]);
    }
    while !engine.is_idle() {
        step(engine, &mut tokens).unwrap();
    }
    let (pages, available) = engine.pages();
    assert_eq!(pages, available);
    tokens
}

fn check(path: &Path) {
    for device in ["cpu", "vulkan"] {
        for ahead in [false, true] {
            let want = run(&mut engine(device, path, ahead), false);
            assert_eq!(want.values().map(Vec::len).collect::<Vec<_>>(), [20, 9]);
            assert_eq!(run(&mut engine(device, path, ahead), true), want, "{device}, ahead {ahead}");
        }
    }
}

#[test]
fn a_step_that_fails_leaves_every_sequence_where_it_was() {
    check(&TempModel::new("llama", "fails").path());
}

#[test]
fn states_of_fixed_size_that_a_failed_step_changed_are_computed_again() {
    let recorded = Recorded::all().into_iter().find(|recorded| recorded.name == "mamba2").unwrap();
    check(&recorded.folder("fails").0);
}

#[test]
fn a_step_without_memory_is_an_error_and_goes_on_once_there_is_some() {
    let file = TempModel::new("llama", "memory");
    for ahead in [false, true] {
        let limit = SessionOptions::default().memory_limit(96 << 20);
        let session = Session::with_options("vulkan".parse().unwrap(), limit).unwrap();
        let options = EngineOptions::default().slots(2).cache_tokens(1400).logprobs(true).ahead(ahead);
        let mut engine = LanguageModel::load(file.path()).unwrap().engine(&session, &options).unwrap();
        let requests =
            || [Request::new(vec![1, 2, 3], 30), Request::new((0..400).map(|i| i % 150).collect(), 5)];
        let all = |engine: &mut Engine, short: bool| {
            let [first, second] = requests();
            let mut tokens = Tokens::new();
            let from = engine.add(first).unwrap().0;
            for _ in 0..4 {
                step(engine, &mut tokens).unwrap();
            }
            let taken = if short { fill(&session) } else { Vec::new() };
            engine.add(second).unwrap();
            if short {
                let failed = (0..2).find_map(|_| step(engine, &mut tokens).err()).unwrap();
                assert!(failed.to_string().contains("memory"), "{failed}");
            }
            drop(taken);
            while !engine.is_idle() {
                step(engine, &mut tokens).unwrap();
            }
            tokens.into_iter().map(|(id, tokens)| (id.0 - from, tokens)).collect::<Vec<_>>()
        };
        let short = all(&mut engine, true);
        assert_eq!(short.iter().map(|(_, tokens)| tokens.len()).collect::<Vec<_>>(), [30, 5]);
        engine.forget();
        assert_eq!(short, all(&mut engine, false), "ahead {ahead}");
    }
}

/// Takes all memory that a session may take.
fn fill(session: &Session) -> Vec<DeviceTensor> {
    let mut taken = Vec::new();
    let mut bytes = 32usize << 20;
    while bytes >= 256 {
        match session.upload(&Tensor::zeros(DType::U8, [bytes]).unwrap()) {
            Ok(tensor) => taken.push(tensor),
            Err(_) => bytes /= 2,
        }
    }
    taken
}
