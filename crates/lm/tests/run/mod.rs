//! Engines that run requests to their ends.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by tests, which say what they expect"
)]

use std::collections::HashMap;

use olivine::prelude::*;
use olivine_lm::{Engine, EngineOptions, Event, Finish, LanguageModel, Request, RequestId, Sampling};

use crate::common::{TempModel, VOCABULARY};

pub(crate) fn engine(file: &TempModel, options: EngineOptions) -> Engine {
    engine_on(Device::Cpu, file, options)
}

pub(crate) fn engine_on(device: Device, file: &TempModel, options: EngineOptions) -> Engine {
    let session = Session::new(device).unwrap();
    LanguageModel::load(file.path()).unwrap().engine(&session, &options).unwrap()
}

pub(crate) fn request(seed: u64, length: usize, most: usize) -> Request {
    let prompt = (0..length as u64).map(|i| ((i * 37 + seed * 11) % VOCABULARY as u64) as i64).collect();
    let sampling =
        Sampling { temperature: 1.3, top_k: 60, top_p: 0.95, min_p: 0.001, seed, ..Sampling::default() };
    Request::new(prompt, most).sampling(sampling)
}

/// What a sequence got: tokens with the bits of their log-probabilities, and its end.
#[derive(Default, Debug, PartialEq, Clone)]
pub(crate) struct Got {
    pub(crate) tokens: Vec<(i64, Option<u32>)>,
    pub(crate) finish: Option<Finish>,
}

/// Runs steps until nothing is left; `before` may add or cancel before each.
pub(crate) fn finish(
    engine: &mut Engine,
    mut before: impl FnMut(&mut Engine, usize),
) -> HashMap<RequestId, Got> {
    let mut all: HashMap<RequestId, Got> = HashMap::new();
    let mut step = 0;
    loop {
        before(engine, step);
        step += 1;
        if engine.is_idle() {
            return all;
        }
        for event in engine.step().unwrap() {
            match event {
                Event::Token { id, token, logprob, .. } => {
                    all.entry(id).or_default().tokens.push((token, logprob.map(f32::to_bits)));
                }
                Event::End { id, finish } => all.entry(id).or_default().finish = Some(finish),
                _ => {}
            }
        }
    }
}

pub(crate) fn one(engine: &mut Engine, request: Request) -> Got {
    let id = engine.add(request).unwrap();
    finish(engine, |_, _| {}).remove(&id).unwrap()
}
