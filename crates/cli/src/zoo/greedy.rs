//! Language models: tokens that llama.cpp picks greedily, one after the other from all before it.
//!
//! Two things are compared at every position: the likeliest token and its log-probability with those of the same model in
//! f64, closely; the log-probability of llama.cpp's token with llama.cpp's, loosely, since it rounds activations to 8
//! bits. Where its token is not the likeliest one, decoding goes on with its token.

use std::path::Path;

use olivine::Session;
use olivine_lm::{Engine, EngineOptions, Event, LanguageModel, Request, Scorer};
use serde_json::Value;

use crate::answer::Failure;

/// How far log-probabilities may be from those in f64.
pub(super) const BOUND: f64 = 2e-4;

/// How far log-probabilities may be from llama.cpp's, whose own are as far from those in f64.
const LLAMA_BOUND: f64 = 0.25;

/// Positions of a prompt and what follows it at most.
const CONTEXT: usize = 512;

/// A prompt and what follows it.
pub(super) struct Prompt {
    /// Path of the model below the zoo's folder.
    pub(super) model: String,
    /// The prompt as text, for messages.
    pub(super) text: String,
    ids: Vec<i64>,
    steps: Vec<Step>,
}

/// A position after a prompt: tokens and their log-probabilities.
struct Step {
    llama: (i64, f64),
    exact: (i64, f64),
}

/// Reads the file that `zoo/greedy.py` writes.
pub(super) fn load(path: &Path) -> Result<Vec<Prompt>, Failure> {
    let bad = |problem: String| Failure::new(format!("cannot use `{}`: {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    let prompts = json.as_array().and_then(|all| all.iter().map(prompt).collect::<Option<Vec<Prompt>>>());
    prompts.ok_or_else(|| bad("it is not what zoo/greedy.py writes".into()))
}

fn prompt(json: &Value) -> Option<Prompt> {
    let ids = |key: &str| json[key].as_array()?.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>();
    let logprobs = |key: &str| json[key].as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
    let pairs = |tokens: &str, of: &str| {
        let (tokens, logprobs) = (ids(tokens)?, logprobs(of)?);
        (tokens.len() == logprobs.len()).then(|| tokens.into_iter().zip(logprobs))
    };
    let (llama, exact) = (pairs("tokens", "logprobs")?, pairs("exact", "exact_logprobs")?);
    let whole = llama.len() == exact.len() && llama.len() > 0;
    let steps = llama.zip(exact).map(|(llama, exact)| Step { llama, exact }).collect();
    let text = |key: &str| Some(json[key].as_str()?.to_string());
    let ids = ids("prompt").filter(|ids| whole && !ids.is_empty())?;
    Some(Prompt { model: text("model")?, text: text("text")?, ids, steps })
}

/// A language model that decodes with caches and scores given tokens.
pub(super) struct Compiled {
    engine: Engine,
    scorer: Scorer,
}

/// Compiles a language model for all of its prompts.
pub(super) fn compile(model: &str, folder: &Path, session: &Session) -> Result<Compiled, Failure> {
    let model = LanguageModel::load(folder.join(model))?;
    let options = EngineOptions::default().context(CONTEXT).logprobs(true);
    Ok(Compiled { engine: model.engine(session, &options)?, scorer: model.scorer(session)? })
}

impl Prompt {
    /// Decodes up to `most` tokens and returns the largest difference of a log-probability from that in f64.
    pub(super) fn decode(&self, model: &mut Compiled, most: usize) -> Result<f64, Failure> {
        let steps = &self.steps[..self.steps.len().min(most)];
        let forced: Vec<i64> =
            self.ids.iter().copied().chain(steps.iter().map(|step| step.llama.0)).collect();
        let scores = model.scorer.logprobs(&forced)?;
        for (i, (step, found)) in steps.iter().zip(&scores[self.ids.len() - 1..]).enumerate() {
            let (token, theirs) = step.llama;
            if !found.is_finite() || (found - theirs).abs() > LLAMA_BOUND {
                let problem = format!("token {i}, {token}, has log-probability {found:.3}, not {theirs:.3}");
                return Err(Failure::new(problem));
            }
        }
        let (mut worst, mut done) = (0f64, 0);
        while done < steps.len() {
            // From here on with the caches, until llama.cpp goes another way.
            let prompt = forced[..self.ids.len() + done].to_vec();
            model.engine.add(Request::new(prompt, steps.len() - done))?;
            while !model.engine.is_idle() {
                for event in model.engine.step()? {
                    let Event::Token { id, token, logprob, .. } = event else { continue };
                    let Step { llama, exact } = &steps[done];
                    if token != exact.0 {
                        return Err(Failure::new(format!("token {done} is {token}, not {}", exact.0)));
                    }
                    let found = logprob.map_or(f64::NAN, f64::from);
                    worst = if found.is_nan() { f64::INFINITY } else { worst.max((found - exact.1).abs()) };
                    done += 1;
                    if token != llama.0 {
                        model.engine.cancel(id);
                    }
                }
            }
        }
        Ok(worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_prompts_is_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../zoo/greedy.json");
        let prompts = load(&file).unwrap_or_else(|failure| panic!("{}", failure.error()));
        assert_eq!(prompts.iter().map(|p| p.steps.len()).collect::<Vec<_>>(), [24, 24, 24, 7]);
    }
}
