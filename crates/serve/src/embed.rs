//! Embeddings of a BERT encoder, by a thread of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use olivine::internals::models::{Bert, BertSizes, Pooling};
use olivine::ir::Tensor;
use olivine::{Executable, Model, Session};
use olivine_gguf::Gguf;
use olivine_tokenizer::{Json, Tokenizer};
use tokio::sync::oneshot;

use crate::Error;
use crate::admission::{Admission, Permit};
use crate::metrics::Metrics;
use crate::status::{State, Status, Watch};

/// Bytes of a JSON file beside a model at most.
const LARGEST_FILE: u64 = 1 << 28;
/// Texts of one run.
const BATCH: usize = 16;

/// A compiled encoder with its tokenizer.
pub(crate) struct Encoder {
    executable: Executable,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pooling: Pooling,
    /// Tokens of a text at most.
    pub(crate) context: usize,
    /// Elements of a vector.
    pub(crate) hidden: usize,
    pub(crate) vocabulary: usize,
}

/// Texts to embed, as tokens.
pub(crate) struct EmbedJob {
    pub(crate) texts: Vec<Vec<i64>>,
    /// Closed if the client has left.
    pub(crate) reply: oneshot::Sender<Result<Vec<Vec<f32>>, String>>,
    pub(crate) permit: Permit,
    pub(crate) begun: Instant,
}

fn read(path: &Path) -> Result<String, Error> {
    olivine_files::read_text(path, LARGEST_FILE)
        .map_err(|e| Error::File { path: path.display().to_string(), problem: e.to_string() })
}

impl Encoder {
    /// Loads the encoder of a folder or of a GGUF file; `None` if the path is something else.
    pub(crate) fn load(path: &Path, session: &Session) -> Result<Option<Self>, Error> {
        if path.is_file() {
            return Encoder::of_gguf(path, session);
        }
        let config = path.join("config.json");
        if !path.is_dir() || !config.is_file() {
            return Ok(None);
        }
        let json = Json::parse(&read(&config)?)?;
        if json.get("model_type").and_then(Json::as_str) != Some("bert") {
            return Ok(None);
        }
        let size = |key: &str| {
            let found = json.get(key).and_then(Json::as_u32).filter(|size| *size > 0);
            let bad = || Error::File {
                path: config.display().to_string(),
                problem: format!("`{key}` is not a size"),
            };
            found.map(|size| size as usize).ok_or_else(bad)
        };
        let (context, hidden) = (size("max_position_embeddings")?, size("hidden_size")?);
        let vocabulary = size("vocab_size")?;
        let tokenizer = Arc::new(Tokenizer::from_folder(path)?);
        let executable = session.compile(&Model::load(path)?)?;
        Ok(Some(Encoder { executable, tokenizer, pooling: pooling(path)?, context, hidden, vocabulary }))
    }

    fn of_gguf(path: &Path, session: &Session) -> Result<Option<Self>, Error> {
        // What is no GGUF file is the language model's to report.
        let Ok(file) = Gguf::open(path) else { return Ok(None) };
        if !Bert::is_in(&file) {
            return Ok(None);
        }
        let BertSizes { context, hidden, vocabulary, pooling } = Bert::sizes(&file)?;
        let tokenizer = Arc::new(Tokenizer::from_gguf(file.metadata())?);
        let bert = Bert::of_gguf(&file)?;
        let executable = session.compile(&Model::from_graph(bert.graph().clone(), bert.params()))?;
        Ok(Some(Encoder { executable, tokenizer, pooling, context, hidden, vocabulary }))
    }

    /// A vector of length 1 for each text.
    fn embed(&self, texts: &[Vec<i64>]) -> Result<Vec<Vec<f32>>, olivine::Error> {
        let (batch, width) = (texts.len(), texts.iter().map(Vec::len).max().unwrap_or(0));
        let (mut ids, mut mask) = (vec![0i64; batch * width], vec![0i64; batch * width]);
        for (i, text) in texts.iter().enumerate() {
            ids[i * width..][..text.len()].copy_from_slice(text);
            mask[i * width..][..text.len()].fill(1);
        }
        let sizes = [batch, width];
        let (ids, mask) = (Tensor::new(sizes, ids)?, Tensor::new(sizes, mask)?);
        let kinds = Tensor::new(sizes, vec![0i64; batch * width])?;
        let inputs = [("input_ids", &ids), ("attention_mask", &mask), ("token_type_ids", &kinds)];
        let out = self.executable.run(inputs)?;
        if self.pooling == Pooling::Mean {
            let vectors = out.get("sentence_embedding")?.as_slice::<f32>()?;
            return Ok(vectors.chunks(self.hidden).map(<[f32]>::to_vec).collect());
        }
        let states = out.get("last_hidden_state")?.as_slice::<f32>()?;
        let first = |states: &[f32]| normalised(&states[..self.hidden]);
        Ok(states.chunks(width * self.hidden).map(first).collect())
    }
}

fn normalised(x: &[f32]) -> Vec<f32> {
    let length = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt().max(1e-12);
    x.iter().map(|x| (f64::from(*x) / length) as f32).collect()
}

/// What `1_Pooling/config.json` of sentence-transformers says; the mean without it.
fn pooling(folder: &Path) -> Result<Pooling, Error> {
    let path = folder.join("1_Pooling/config.json");
    if !path.is_file() {
        return Ok(Pooling::Mean);
    }
    let json = Json::parse(&read(&path)?)?;
    let Json::Object(entries) = &json else {
        return Err(Error::File { path: path.display().to_string(), problem: "it is not an object".into() });
    };
    let is_mode =
        |(key, value): &&(String, Json)| key.starts_with("pooling_mode_") && *value == Json::Bool(true);
    let modes: Vec<&str> = entries.iter().filter(is_mode).map(|(key, _)| key.as_str()).collect();
    match modes[..] {
        ["pooling_mode_mean_tokens"] => Ok(Pooling::Mean),
        ["pooling_mode_cls_token"] => Ok(Pooling::First),
        _ => {
            let problem = format!("of poolings only the mean and the first token are known, not {modes:?}");
            Err(Error::File { path: path.display().to_string(), problem })
        }
    }
}

/// Serves until every sender of jobs is gone.
pub(crate) fn run(
    encoder: &Encoder,
    jobs: &Receiver<EmbedJob>,
    (status, metrics, admission): (&Arc<Status>, &Metrics, &Admission),
) {
    let _watch = Watch(status);
    if let Err(error) = encoder.embed(&[vec![0]]) {
        status.set(State::Failed(error.to_string()));
        return;
    }
    status.set(State::Ready);
    while let Ok(job) = jobs.recv() {
        metrics.busy.set(1);
        serve(encoder, job, status, metrics, admission);
        metrics.busy.set(0);
    }
}

fn serve(encoder: &Encoder, job: EmbedJob, status: &Status, metrics: &Metrics, admission: &Admission) {
    let EmbedJob { texts, reply, permit, begun } = job;
    let mut vectors = Vec::with_capacity(texts.len());
    for batch in texts.chunks(BATCH) {
        if reply.is_closed() {
            metrics.cancelled.add(1);
            return;
        }
        status.step_begins();
        let started = Instant::now();
        let result = encoder.embed(batch);
        metrics.step.record(started.elapsed());
        metrics.steps.add(1);
        status.step_ends(true);
        match result {
            Ok(more) => vectors.extend(more),
            Err(error) => {
                metrics.step_errors.add(1);
                let _ = reply.send(Err(error.to_string()));
                // One text is enough to show whether the device still computes.
                if let Err(again) = encoder.embed(&[vec![0]]) {
                    status.set(State::Failed(again.to_string()));
                }
                return;
            }
        }
    }
    metrics.prompt_tokens.add(texts.iter().map(Vec::len).sum());
    drop(permit);
    admission.took(begun.elapsed());
    let _ = reply.send(Ok(vectors));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_of_length_one_and_zeros_stay() {
        assert_eq!(normalised(&[3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(normalised(&[0.0, 0.0]), [0.0, 0.0]);
    }
}
