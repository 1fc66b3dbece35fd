//! Steps that are submitted before the tokens of the step before are read: nothing changes but when tokens come.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod run;

use std::collections::HashMap;

use common::TempModel;
use olivine::prelude::*;
use olivine_lm::{EngineOptions, Finish, Request, RequestId, Sampling, Share};
use run::{Got, engine_on, finish, one, request};

/// Requests of every kind: sampled, greedy, with penalties, of several chunks, that end by a token, a length and the context.
fn requests(stop: i64) -> Vec<Request> {
    let penalised = Sampling { temperature: 0.7, repetition: 1.3, seed: 3, ..Sampling::default() };
    vec![
        request(1, 5, 20),
        Request::new(vec![7; 70], 12),
        request(2, 33, 1),
        Request::new((1..40).collect(), 30).sampling(penalised),
        Request::new(vec![9, 8], 40).stop([stop]),
        request(4, 90, 500),
        request(5, 3, 0),
    ]
}

fn all(engine: &mut olivine_lm::Engine, requests: Vec<Request>) -> Vec<Got> {
    let mut waiting = requests.into_iter();
    let mut ids: Vec<RequestId> = Vec::new();
    // Two at the beginning, then one every other step.
    let mut got: HashMap<RequestId, Got> = HashMap::new();
    for _ in 0..2 {
        ids.extend(waiting.next().map(|request| engine.add(request).unwrap()));
    }
    loop {
        let more = finish_some(engine, 2, &mut got);
        let next = waiting.next().map(|request| engine.add(request).unwrap());
        if !more && next.is_none() && engine.is_idle() {
            break;
        }
        ids.extend(next);
    }
    ids.iter().map(|id| got.remove(id).unwrap()).collect()
}

/// Runs some steps; whether there was something to do.
fn finish_some(engine: &mut olivine_lm::Engine, steps: usize, got: &mut HashMap<RequestId, Got>) -> bool {
    for _ in 0..steps {
        if engine.is_idle() {
            return false;
        }
        for event in engine.step().unwrap() {
            match event {
                olivine_lm::Event::Token { id, token, logprob, .. } => {
                    got.entry(id).or_default().tokens.push((token, logprob.map(f32::to_bits)));
                }
                olivine_lm::Event::End { id, finish } => got.entry(id).or_default().finish = Some(finish),
                _ => {}
            }
        }
    }
    true
}

#[test]
fn steps_ahead_change_no_bit_whoever_comes_and_ends() {
    for architecture in ["llama", "gemma3"] {
        let file = TempModel::new(architecture, "ahead");
        // A token that comes in the middle of a sequence ends it there.
        let options = EngineOptions::default().slots(3).chunk(32).context(160).logprobs(true);
        let mut alone = engine_on(Device::Cpu, &file, options.ahead(false));
        let free = one(&mut alone, Request::new(vec![9, 8], 40));
        let stop = free.tokens[7].0;
        for share in [Share::Nothing, Share::Chunks] {
            let want =
                all(&mut engine_on(Device::Cpu, &file, options.ahead(false).share(share)), requests(stop));
            assert_eq!(want[4].finish, Some(Finish::Stop(stop)));
            assert_eq!(want[5].finish, Some(Finish::Context));
            let mut ahead = engine_on(Device::Cpu, &file, options.ahead(true).share(share));
            assert_eq!(all(&mut ahead, requests(stop)), want, "{architecture} {share:?}");
            let (pages, available) = ahead.pages();
            assert_eq!(pages, available);
            // Pages that run out are given away while runs are in flight.
            let few = options.ahead(true).share(share).cache_tokens(160);
            let mut few = engine_on(Device::Cpu, &file, few);
            assert_eq!(all(&mut few, requests(stop)), want, "{architecture} {share:?} in few pages");
        }
    }
}

#[test]
fn on_vulkan_steps_ahead_change_no_bit_and_replay_two_recordings() {
    let file = TempModel::new("llama", "ahead-vulkan");
    let options = EngineOptions::default().slots(2).chunk(32).context(160).logprobs(true);
    let device: Device = "vulkan".parse().unwrap();
    let mut reads = engine_on(device.clone(), &file, options.ahead(false));
    let stop = one(&mut reads, Request::new(vec![9, 8], 12)).tokens[7].0;
    let want = all(&mut reads, requests(stop));
    let mut ahead = engine_on(device, &file, options);
    assert_eq!(all(&mut ahead, requests(stop)), want);
    // A sequence in the same caches as before, some steps to settle, and then nothing is recorded.
    ahead.add(Request::new(vec![5, 6, 7], 60)).unwrap();
    for _ in 0..5 {
        ahead.step().unwrap();
    }
    let before = ahead.executable().recordings();
    for _ in 0..20 {
        assert!(!ahead.step().unwrap().is_empty());
    }
    assert_eq!(ahead.executable().recordings(), before);
    finish(&mut ahead, |_, _| {});
}

#[test]
fn what_is_cancelled_with_a_run_in_flight_has_no_further_events() {
    let file = TempModel::new("llama", "ahead-cancel");
    let options = EngineOptions::default().slots(2).ahead(true);
    let mut engine = engine_on(Device::Cpu, &file, options);
    let want = one(&mut engine, Request::new(vec![3, 4], 9));
    let [first, second] = [5, 3].map(|token| engine.add(Request::new(vec![token, 4], 9)).unwrap());
    let mut got = HashMap::new();
    finish_some(&mut engine, 4, &mut got);
    let seen = got[&first].clone();
    assert!(engine.cancel(first));
    // Its slot and pages are another's at once.
    let third = engine.add(Request::new(vec![3, 4], 9)).unwrap();
    while finish_some(&mut engine, 1, &mut got) {}
    assert_eq!(got[&first], seen);
    assert_eq!([&got[&second], &got[&third]], [&want; 2]);
}
