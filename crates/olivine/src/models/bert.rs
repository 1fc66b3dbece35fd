//! BERT encoders: the graph, and folders as Hugging Face writes them, with `config.json` and `model.safetensors`.

use std::fmt;
use std::path::Path;

use olivine_files::read_text;
use olivine_ir::op::{Attention, Binary, CumulativeKind, HeadLayout, MaskKind, ReduceKind};
use olivine_ir::{DType, Graph, Shape, Tensor, ValueId};
use olivine_safetensors::Weights;
use serde_json::Value;

use crate::Error;

/// A BERT encoder and its weights.
///
/// Inputs `input_ids`, `attention_mask` and `token_type_ids`, i64 `[batch, sequence]`; outputs `last_hidden_state`
/// `[batch, sequence, hidden]` and `sentence_embedding` `[batch, hidden]`: the mean over the positions that the mask
/// keeps, of length 1.
pub struct Bert {
    graph: Graph,
    params: Vec<(String, Tensor)>,
}

impl fmt::Debug for Bert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bert").field("graph", &self.graph.name()).finish_non_exhaustive()
    }
}

/// Bytes that a `config.json` may have.
const LARGEST_CONFIG: u64 = 1 << 24;

/// Sizes and constants of an encoder.
pub(super) struct Config {
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) eps: f64,
    /// Whether gelu is approximated by tanh.
    pub(super) tanh: bool,
    /// Rows that tables of embeddings have at least: the key that says so, the table and how many.
    pub(super) rows: Vec<(&'static str, &'static str, usize)>,
}

/// Keys of a `config.json` with numbers of rows, and the tables that have them.
const TABLES: [(&str, &str); 3] = [
    ("vocab_size", "embeddings.word_embeddings.weight"),
    ("max_position_embeddings", "embeddings.position_embeddings.weight"),
    ("type_vocab_size", "embeddings.token_type_embeddings.weight"),
];

/// Weights by their names in a folder.
pub(super) type Lookup<'w> = dyn Fn(&str) -> Result<Tensor, Error> + 'w;

impl Bert {
    /// Reads a folder.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let path = folder.join("config.json");
        let config = Config::read(&path)?;
        let weights = Weights::load(folder.join("model.safetensors"))?;
        Bert::build(&config, &|name| Ok(weights.tensor(name)?))?.checked(&config, &path)
    }

    /// Reads the text of a `config.json` and the bytes of a `model.safetensors`.
    pub fn from_bytes(config: &str, weights: Vec<u8>) -> Result<Self, Error> {
        let path = Path::new("config.json");
        let config = Config::parse(path, config)?;
        let weights = Weights::from_bytes(weights)?;
        Bert::build(&config, &|name| Ok(weights.tensor(name)?))?.checked(&config, path)
    }

    /// Refuses a configuration that names more tokens or positions than there are embeddings: an index beyond a table reads its last row.
    fn checked(self, config: &Config, path: &Path) -> Result<Self, Error> {
        for (key, table, claimed) in &config.rows {
            let rows =
                self.params.iter().find(|(name, _)| name == table).map_or(0, |(_, table)| table.shape()[0]);
            if *claimed > rows {
                let problem = format!("`{key}` is {claimed}, and `{table}` has {rows} rows");
                return Err(Error::Config { path: path.to_path_buf(), problem });
            }
        }
        Ok(self)
    }

    pub(super) fn build(config: &Config, weights: &Lookup<'_>) -> Result<Self, Error> {
        let mut built = Build { graph: Graph::new("bert"), weights, params: Vec::new() };
        built.encoder(config)?;
        Ok(Bert { graph: built.graph, params: built.params })
    }

    /// The graph; batch and sequence are free.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The weights, for [`crate::Executable::set_params`].
    pub fn params(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.params.iter().cloned()
    }
}

impl Config {
    fn read(path: &Path) -> Result<Self, Error> {
        let bad = |problem: String| Error::Config { path: path.to_path_buf(), problem };
        let text = read_text(path, LARGEST_CONFIG).map_err(|e| bad(e.to_string()))?;
        Config::parse(path, &text)
    }

    /// Reads what a file says; `path` is for errors.
    fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let bad = |problem: String| Error::Config { path: path.to_path_buf(), problem };
        let json: Value = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
        let number = |key: &str| {
            let value = json[key].as_u64().filter(|v| (1..=1 << 20).contains(v));
            value.map(|v| v as usize).ok_or_else(|| bad(format!("`{key}` is not a size")))
        };
        if json["model_type"] != "bert" {
            return Err(bad(format!("model_type {} is not bert", json["model_type"])));
        }
        let tanh = match json["hidden_act"].as_str() {
            Some("gelu") => false,
            Some("gelu_new" | "gelu_pytorch_tanh") => true,
            other => return Err(bad(format!("hidden_act {other:?} is unknown"))),
        };
        let given = TABLES.into_iter().filter(|(key, _)| !json[*key].is_null());
        let rows = given.map(|(key, table)| Ok((key, table, number(key)?))).collect::<Result<_, Error>>()?;
        let config = Config {
            layers: number("num_hidden_layers")?,
            hidden: number("hidden_size")?,
            heads: number("num_attention_heads")?,
            eps: json["layer_norm_eps"].as_f64().unwrap_or(1e-12),
            tanh,
            rows,
        };
        if !config.hidden.is_multiple_of(config.heads) {
            return Err(bad(format!("{} heads do not divide a width of {}", config.heads, config.hidden)));
        }
        Ok(config)
    }
}

/// A graph under construction.
struct Build<'w> {
    graph: Graph,
    weights: &'w Lookup<'w>,
    params: Vec<(String, Tensor)>,
}

impl Build<'_> {
    fn encoder(&mut self, config: &Config) -> Result<(), Error> {
        let shape = Shape::new(&[1, 8])?;
        let free = || vec![Some("batch".to_string()), Some("sequence".to_string())];
        let ids = self.graph.input_with_dims("input_ids", DType::I64, shape, free())?;
        let mask = self.graph.input_with_dims("attention_mask", DType::I64, shape, free())?;
        let kinds = self.graph.input_with_dims("token_type_ids", DType::I64, shape, free())?;
        let mut x = self.embeddings(config, ids, kinds)?;
        let keep = {
            let g = &mut self.graph;
            let keep = g.cast(mask, DType::Bool)?;
            g.reshape(keep, &[0, 1, 1, -1])?
        };
        for layer in 0..config.layers {
            x = self.layer(config, x, keep, &format!("encoder.layer.{layer}"))?;
        }
        let embedding = self.pooled(x, mask)?;
        self.graph.output("last_hidden_state", x)?;
        self.graph.output("sentence_embedding", embedding)?;
        Ok(())
    }

    fn param(&mut self, name: &str) -> Result<ValueId, Error> {
        let tensor = (self.weights)(name)?;
        let id = self.graph.param(name, tensor.dtype(), *tensor.shape())?;
        self.params.push((name.to_string(), tensor));
        Ok(id)
    }

    fn embeddings(&mut self, config: &Config, ids: ValueId, kinds: ValueId) -> Result<ValueId, Error> {
        let words = self.param("embeddings.word_embeddings.weight")?;
        let positions = self.param("embeddings.position_embeddings.weight")?;
        let types = self.param("embeddings.token_type_embeddings.weight")?;
        let g = &mut self.graph;
        // 0, 1, 2 and so on for any length: the sum of the ones before each position.
        let zeros = g.binary_scalar(Binary::Mul, ids, 0.0)?;
        let ones = g.binary_scalar(Binary::Add, zeros, 1.0)?;
        let place = g.cumulative(CumulativeKind::Sum, ones, 1, true, false)?;
        let word = g.gather(words, ids, 0)?;
        let position = g.gather(positions, place, 0)?;
        let kind = g.gather(types, kinds, 0)?;
        let sum = g.add(word, kind)?;
        let sum = g.add(sum, position)?;
        self.norm(config, sum, "embeddings.LayerNorm")
    }

    fn layer(&mut self, config: &Config, x: ValueId, keep: ValueId, name: &str) -> Result<ValueId, Error> {
        let dim = (config.hidden / config.heads) as i64;
        let mut heads = Vec::new();
        for part in ["query", "key", "value"] {
            let p = self.linear(x, &format!("{name}.attention.self.{part}"))?;
            heads.push(self.graph.reshape(p, &[0, 0, config.heads as i64, dim])?);
        }
        let attention = Attention { mask: MaskKind::Keep, ..Attention::new(HeadLayout::Bshd) };
        let context = self.graph.attention(attention, heads[0], heads[1], heads[2], &[keep])?;
        let context = self.graph.reshape(context, &[0, 0, config.hidden as i64])?;
        let attended = self.linear(context, &format!("{name}.attention.output.dense"))?;
        let h = self.graph.add(attended, x)?;
        let h = self.norm(config, h, &format!("{name}.attention.output.LayerNorm"))?;
        let up = self.linear(h, &format!("{name}.intermediate.dense"))?;
        let up = if config.tanh { self.graph.gelu_tanh(up)? } else { self.graph.gelu(up)? };
        let down = self.linear(up, &format!("{name}.output.dense"))?;
        let y = self.graph.add(down, h)?;
        self.norm(config, y, &format!("{name}.output.LayerNorm"))
    }

    fn linear(&mut self, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let (weight, bias) = (self.param(&format!("{name}.weight"))?, self.param(&format!("{name}.bias"))?);
        let product = self.graph.matmul_nt(x, weight)?;
        Ok(self.graph.add(product, bias)?)
    }

    fn norm(&mut self, config: &Config, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let (gamma, beta) = (self.param(&format!("{name}.weight"))?, self.param(&format!("{name}.bias"))?);
        Ok(self.graph.layer_norm(x, gamma, Some(beta), config.eps)?)
    }

    /// The mean of the positions that the mask keeps, scaled to length 1.
    fn pooled(&mut self, x: ValueId, mask: ValueId) -> Result<ValueId, Error> {
        let g = &mut self.graph;
        let dtype = g.ty(x)?.dtype;
        let weight = g.cast(mask, dtype)?;
        let weight = g.reshape(weight, &[0, 0, 1])?;
        let kept = g.mul(x, weight)?;
        let sum = g.reduce(ReduceKind::Sum, kept, &[1], false)?;
        let count = g.reduce(ReduceKind::Sum, weight, &[1], false)?;
        // A text whose every position is masked has no direction; zero over one says so without a NaN.
        let one = g.constant(Tensor::scalar_of(dtype, 1.0));
        let count = g.max(count, one)?;
        let mean = g.div(sum, count)?;
        Ok(g.l2_norm(mean, -1, 1e-12)?)
    }
}
