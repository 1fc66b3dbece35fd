//! Language models: tokens that llama.cpp picks greedily, one after the other from all before it.
//!
//! Two things are compared at every position: the likeliest token and its log-probability with those of the same model in
//! f64, closely; the log-probability of llama.cpp's token with llama.cpp's, loosely, since it rounds activations to 8
//! bits. Where its token is not the likeliest one, decoding goes on with its token.

use std::path::Path;

use olivine::ir::Tensor;
use olivine::{Executable, Model, Session};
use serde_json::Value;

use crate::answer::Failure;

/// How far log-probabilities may be from those in f64.
pub(super) const BOUND: f64 = 2e-4;

/// How far log-probabilities may be from llama.cpp's, whose own are as far from those in f64.
const LLAMA_BOUND: f64 = 0.25;

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

/// Compiles a language model for all of its prompts.
pub(super) fn compile(model: &str, folder: &Path, session: &Session) -> Result<Executable, Failure> {
    Ok(session.compile(&Model::load(folder.join(model))?)?)
}

impl Prompt {
    /// Decodes up to `most` tokens and returns the largest difference of a log-probability from that in f64.
    pub(super) fn decode(&self, executable: &Executable, most: usize) -> Result<f64, Failure> {
        let mut ids = self.ids.clone();
        let mut worst: f64 = 0.0;
        for (i, Step { llama, exact }) in self.steps.iter().take(most).enumerate() {
            let tokens = Tensor::new([1, ids.len()], ids.clone())?;
            let out = executable.run([("tokens", &tokens)])?;
            let logprobs = last_logprobs(out.get("logits")?, ids.len())?;
            let (token, found) = likeliest(&logprobs);
            if token != exact.0 {
                return Err(Failure::new(format!("token {i} is {token}, not {}", exact.0)));
            }
            worst = worst.max((found - exact.1).abs());
            let theirs = usize::try_from(llama.0).ok().and_then(|token| logprobs.get(token)).copied();
            let theirs = theirs.unwrap_or(f64::NEG_INFINITY);
            if (theirs - llama.1).abs() > LLAMA_BOUND {
                let problem =
                    format!("token {i}, {}, has log-probability {theirs:.3}, not {:.3}", llama.0, llama.1);
                return Err(Failure::new(problem));
            }
            ids.push(llama.0);
        }
        Ok(worst)
    }
}

/// The log-probabilities of the token after the last of `count`.
fn last_logprobs(logits: &Tensor, count: usize) -> Result<Vec<f64>, Failure> {
    let all = logits.as_slice::<f32>()?;
    let vocabulary = match *logits.shape().dims() {
        [1, sequence, vocabulary] if sequence == count && vocabulary > 0 => vocabulary,
        _ => return Err(Failure::new(format!("logits are {} for {count} tokens", logits.shape()))),
    };
    if all.iter().any(|x| !x.is_finite()) {
        return Err(Failure::new("logits are not finite"));
    }
    let last = &all[(count - 1) * vocabulary..];
    let largest = f64::from(last.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = last.iter().map(|x| (f64::from(*x) - largest).exp()).sum();
    Ok(last.iter().map(|x| f64::from(*x) - largest - sum.ln()).collect())
}

/// The first of the likeliest tokens and its log-probability.
fn likeliest(logprobs: &[f64]) -> (i64, f64) {
    let first = (0, f64::NEG_INFINITY);
    logprobs.iter().zip(0..).fold(first, |best, (x, token)| if *x > best.1 { (token, *x) } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_logits_of_the_last_position_is_the_likeliest() {
        let logits = Tensor::new([1, 2, 3], vec![9.0f32, 0.0, 0.0, 1.0, 2.0, 2.0]).unwrap();
        let Ok(logprobs) = last_logprobs(&logits, 2) else { panic!("two positions") };
        let (token, logprob) = likeliest(&logprobs);
        assert_eq!(token, 1);
        assert!((logprob + (2.0 + (-1f64).exp()).ln()).abs() < 1e-12);
        assert!(last_logprobs(&logits, 3).is_err());
    }

    #[test]
    fn the_file_of_prompts_is_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../zoo/greedy.json");
        let prompts = load(&file).unwrap_or_else(|failure| panic!("{}", failure.error()));
        assert_eq!(prompts.iter().map(|p| p.steps.len()).collect::<Vec<_>>(), [24, 24, 24, 7]);
    }
}
