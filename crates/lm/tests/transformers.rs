//! Every architecture beside Hugging Face transformers, whose results are recorded: whole sequences, and sequences of different
//! lengths that share a batch and use the slots of others.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::log_softmax;
use common::recorded::Recorded;
use olivine::prelude::*;
use olivine_lm::{EngineOptions, Event, LanguageModel, Request};

/// How far logits may be from those of transformers, relative to their length.
const BOUND: f64 = 1e-5;

fn check_whole(session: &Session, recorded: &Recorded, path: &std::path::Path) {
    let executable = session.compile(&Model::load(path).unwrap()).unwrap();
    // The same sequence twice, so that one of a batch that is not the first counts.
    let tokens = recorded.tokens();
    let input = Tensor::new([2, tokens.len()], [&tokens[..], &tokens].concat()).unwrap();
    let out = executable.run([("tokens", &input)]).unwrap();
    let got = out["logits"].as_slice::<f32>().unwrap();
    let want = recorded.logits().concat();
    assert_eq!(got.len(), 2 * want.len());
    let scale = want.iter().map(|x| x * x).sum::<f64>().sqrt();
    for got in got.chunks(want.len()) {
        let error = got.iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>().sqrt();
        assert!(error < BOUND * scale, "{}: relative error {:e}", recorded.name, error / scale);
    }
}

fn check_engine(session: &Session, recorded: &Recorded, path: &std::path::Path) {
    let model = LanguageModel::load(path).unwrap();
    // Chunks that divide no prompt; three slots for five sequences, so that two of them use slots of others. The recorded
    // sequences are within the context for which short factors of frequencies hold.
    let options = EngineOptions::default().slots(3).chunk(4).context(64).logprobs(true);
    let mut engine = model.engine(session, &options).unwrap();
    for round in 0..2 {
        let all = recorded.generated();
        let ids: Vec<_> = all
            .iter()
            .map(|one| engine.add(Request::new(one.prompt.clone(), one.tokens.len())).unwrap())
            .collect();
        let mut found = vec![(Vec::new(), Vec::new()); all.len()];
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                let Event::Token { id, token, logprob, .. } = event else { continue };
                let at = ids.iter().position(|of| *of == id).unwrap();
                found[at].0.push(token);
                found[at].1.push(f64::from(logprob.unwrap()));
            }
        }
        for (i, (want, (tokens, logprobs))) in all.iter().zip(&found).enumerate() {
            let what = format!("{}, sequence {i} of round {round}", recorded.name);
            assert_eq!(tokens, &want.tokens, "{what}");
            for (found, want) in logprobs.iter().zip(&want.logprobs) {
                assert!((found - want).abs() < 1e-4, "{what}: log-probability {found} is not {want}");
            }
        }
    }
}

fn check_scores(session: &Session, recorded: &Recorded, path: &std::path::Path) {
    let scorer = LanguageModel::load(path).unwrap().scorer(session).unwrap();
    let (tokens, logits) = (recorded.tokens(), recorded.logits());
    // Twice, because caches of the first may be used again.
    for _ in 0..2 {
        let found = scorer.logprobs(&tokens).unwrap();
        assert_eq!(found.len(), tokens.len() - 1);
        for (i, found) in found.iter().enumerate() {
            let want = log_softmax(&logits[i])[tokens[i + 1] as usize];
            assert!((found - want).abs() < 1e-4, "{}, token {i}: {found} is not {want}", recorded.name);
        }
    }
}

fn check(device: &str, names: &[&str]) {
    let session = Session::new(device.parse().unwrap()).unwrap();
    let all = Recorded::all();
    assert!(names.iter().all(|name| all.iter().any(|recorded| recorded.name == *name)));
    for recorded in all.iter().filter(|recorded| names.is_empty() || names.contains(&recorded.name.as_str()))
    {
        let folder = recorded.folder(device);
        check_whole(&session, recorded, &folder.0);
        check_engine(&session, recorded, &folder.0);
        if device == "cpu" {
            check_scores(&session, recorded, &folder.0);
        }
    }
}

#[test]
fn folders_compute_what_transformers_does() {
    check("cpu", &[]);
}

#[test]
fn folders_compute_the_same_on_vulkan() {
    check("vulkan", &["mamba2_groups", "qwen3_next"]);
}
