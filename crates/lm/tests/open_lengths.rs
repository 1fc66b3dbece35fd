//! A step on Vulkan is compiled for classes of prompt lengths, not for each.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::TempModel;
use olivine::internals::ExecutableExt;
use olivine::prelude::*;
use olivine_lm::{EngineOptions, LanguageModel, Request, Sampling};

#[test]
fn a_few_plans_serve_prompts_of_any_length_on_vulkan() {
    for (architecture, most) in [("llama", 10), ("qwen3moe", 18)] {
        let file = TempModel::new(architecture, "open_lengths");
        let session = Session::new(Device::Vulkan).unwrap();
        let model = LanguageModel::load(file.path()).unwrap();
        let mut engine = model.engine(&session, &EngineOptions::default().chunk(64)).unwrap();
        let mut at = 7usize;
        for _ in 0..40 {
            // Lengths from 1 to 64, in an order without a pattern.
            at = (at * 37 + 11) % 64;
            engine.add(Request::new((0..=at as i64).collect(), 2)).unwrap();
            while !engine.is_idle() {
                engine.step().unwrap();
            }
        }
        let plans = engine.compiled();
        let last = engine.executable().guards().pop();
        assert!(plans <= most, "{architecture}: {plans} plans, the last for\n{last:#?}");
        // Lengths that were not seen before find their plan.
        for length in [3, 21, 44, 63] {
            engine.add(Request::new((0..length).collect(), 2)).unwrap();
            while !engine.is_idle() {
                engine.step().unwrap();
            }
        }
        assert!(engine.compiled() <= plans + 1, "{architecture}: {} plans", engine.compiled());
    }
}

#[test]
fn penalties_that_count_more_and_more_tokens_need_no_further_plans() {
    let file = TempModel::new("llama", "open_penalties");
    let session = Session::new(Device::Vulkan).unwrap();
    let model = LanguageModel::load(file.path()).unwrap();
    let mut engine = model.engine(&session, &EngineOptions::default().chunk(64)).unwrap();
    let sampling = Sampling { repetition: 1.2, ..Sampling::default() };
    engine.add(Request::new((0..12).collect(), 200).sampling(sampling)).unwrap();
    let mut plans = Vec::new();
    while !engine.is_idle() {
        engine.step().unwrap();
        plans.push(engine.compiled());
    }
    assert!(plans.len() > 150 && plans[10] == plans[150], "{plans:?}");
}
