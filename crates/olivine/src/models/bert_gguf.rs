//! BERT encoders from GGUF files, by the names of llama.cpp.

use olivine_gguf::Gguf;
use olivine_ir::{Shape, Tensor};

use super::bert::{Bert, Config};
use crate::Error;

/// How the hidden states of a text become one vector, by a file's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first token.
    First,
}

/// What a server has to know of an encoder in a GGUF file.
#[derive(Clone, Copy, Debug)]
pub struct BertSizes {
    /// Tokens of a text at most.
    pub context: usize,
    /// Elements of a hidden state.
    pub hidden: usize,
    /// Tokens that it knows.
    pub vocabulary: usize,
    /// How its vectors are made.
    pub pooling: Pooling,
}

fn wrong(key: &str, problem: String) -> Error {
    olivine_gguf::Error::Metadata { key: key.to_string(), problem }.into()
}

fn size(file: &Gguf, key: &str) -> Result<usize, Error> {
    let value = file.metadata().integer(key)?;
    let size = usize::try_from(value).ok().filter(|size| (1..=1 << 20).contains(size));
    size.ok_or_else(|| wrong(key, format!("{value} is not a size")))
}

impl Bert {
    /// Whether a GGUF file is for [`Bert::of_gguf`].
    pub fn is_in(file: &Gguf) -> bool {
        file.metadata().string("general.architecture").is_ok_and(|name| name == "bert")
    }

    /// The encoder of a GGUF file of the architecture `bert`. Its weights become f32.
    pub fn of_gguf(file: &Gguf) -> Result<Self, Error> {
        let config = Config {
            layers: size(file, "bert.block_count")?,
            hidden: size(file, "bert.embedding_length")?,
            heads: size(file, "bert.attention.head_count")?,
            eps: file.metadata().float("bert.attention.layer_norm_epsilon")?,
            // Files do not say which approximation the model was trained with; it is exact in nearly all.
            tanh: false,
            rows: Vec::new(),
        };
        if !config.hidden.is_multiple_of(config.heads) {
            let problem = format!("{} heads do not divide a width of {}", config.heads, config.hidden);
            return Err(wrong("bert.attention.head_count", problem));
        }
        Bert::build(&config, &|name| tensor(file, name))
    }

    /// The sizes of the encoder in a GGUF file.
    pub fn sizes(file: &Gguf) -> Result<BertSizes, Error> {
        const POOLING: &str = "bert.pooling_type";
        let pooling = match file.metadata().get(POOLING) {
            None => Pooling::Mean,
            Some(value) => match value.as_u64() {
                Some(1) => Pooling::Mean,
                Some(2) => Pooling::First,
                _ => {
                    return Err(wrong(POOLING, "only the mean (1) and the first token (2) are known".into()));
                }
            },
        };
        let rows = |name: &str| {
            let rows = file.tensor(name).and_then(|tensor| tensor.shape.first().copied());
            rows.ok_or_else(|| wrong(name, "there is no such tensor".into()))
        };
        const CONTEXT: &str = "bert.context_length";
        let (context, positions) = (size(file, CONTEXT)?, rows("position_embd.weight")?);
        if context > positions {
            return Err(wrong(CONTEXT, format!("it is {context}, and there are {positions} positions")));
        }
        let (hidden, vocabulary) = (size(file, "bert.embedding_length")?, rows("token_embd.weight")?);
        Ok(BertSizes { context, hidden, vocabulary, pooling })
    }
}

/// A weight by its name in a folder.
fn tensor(file: &Gguf, name: &str) -> Result<Tensor, Error> {
    let there = name_of(name);
    let found = there.as_deref().and_then(|there| file.tensor(there));
    let missing = || wrong(there.as_deref().unwrap_or(name), "there is no such tensor".into());
    let found = found.ok_or_else(missing)?;
    Ok(Tensor::new(Shape::new(&found.shape)?, file.decode(found)?)?)
}

/// What GGUF calls a weight of a folder.
fn name_of(name: &str) -> Option<String> {
    let parts = [
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
        ("attention.output.dense", "attn_output"),
        ("attention.output.LayerNorm", "attn_output_norm"),
        ("intermediate.dense", "ffn_up"),
        ("output.dense", "ffn_down"),
        ("output.LayerNorm", "layer_output_norm"),
    ];
    let (path, kind) = name.rsplit_once('.')?;
    let there = match path {
        "embeddings.word_embeddings" => "token_embd".to_string(),
        "embeddings.position_embeddings" => "position_embd".to_string(),
        "embeddings.token_type_embeddings" => "token_types".to_string(),
        "embeddings.LayerNorm" => "token_embd_norm".to_string(),
        _ => {
            let (layer, part) = path.strip_prefix("encoder.layer.")?.split_once('.')?;
            let (_, there) = parts.iter().find(|(known, _)| *known == part)?;
            format!("blk.{layer}.{there}")
        }
    };
    Some(format!("{there}.{kind}"))
}
