//! Llama-style decoders from GGUF files: the graph from the file's metadata, the weights as the file packs them.

use std::path::Path;

use olivine_gguf::{Gguf, TensorKind};
use olivine_ir::op::{Attention, Binary, CumulativeKind, HeadLayout, Rope, RopeScaling, RopeStyle};
use olivine_ir::{DType, Data, Graph, Shape, Tensor, TensorType, ValueId};

use crate::Error;

/// A decoder and its weights.
///
/// Input `tokens`, i64 `[batch, sequence]`; output `logits`, f32 `[batch, sequence, vocabulary]`: for every position the
/// scores of the token after it. Architectures are `llama` (Mistral, SmolLM and TinyLlama among them), `qwen2` and `qwen3`.
pub struct Llama {
    graph: Graph,
    params: Vec<(String, Tensor)>,
}

/// The layout of heads.
const LAYOUT: HeadLayout = HeadLayout::Bshd;

/// What the metadata say.
struct Config {
    layers: usize,
    heads: usize,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    eps: f64,
    rope: Rope,
}

/// What differs between architectures.
struct Architecture {
    name: &'static str,
    style: RopeStyle,
}

const ARCHITECTURES: [Architecture; 3] = [
    // llama.cpp's converter orders rows of q and k so that neighbours are pairs.
    Architecture { name: "llama", style: RopeStyle::GptJ },
    Architecture { name: "qwen2", style: RopeStyle::NeoX },
    Architecture { name: "qwen3", style: RopeStyle::NeoX },
];

impl Llama {
    /// Reads a file, or all parts of a model in several.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let file = Gguf::open(&path)?;
        Llama::of(&file)
    }

    /// The model of an open file.
    pub fn of(file: &Gguf) -> Result<Self, Error> {
        let config = Config::read(file)?;
        let mut built = Build { graph: Graph::new("llama"), file, config, params: Vec::new() };
        built.decoder()?;
        Ok(Llama { graph: built.graph, params: built.params })
    }

    /// The graph; batch and sequence are free.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The weights, for [`crate::Executable::set_params`]. Packed ones stay in the mapped file.
    pub fn params(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.params.iter().cloned()
    }
}

fn wrong(key: &str, problem: String) -> Error {
    olivine_gguf::Error::Metadata { key: key.to_string(), problem }.into()
}

impl Config {
    fn read(file: &Gguf) -> Result<Self, Error> {
        let metadata = file.metadata();
        let name = metadata.string("general.architecture")?;
        let known = ARCHITECTURES.iter().find(|architecture| architecture.name == name);
        let architecture = known.ok_or_else(|| {
            let names = ARCHITECTURES.map(|architecture| architecture.name).join(", ");
            wrong("general.architecture", format!("`{name}` cannot be run yet; those that can are {names}"))
        })?;
        let key = |key: &str| format!("{name}.{key}");
        let size = |at: &str| {
            let value = metadata.integer(&key(at))?;
            let fits = (1..=1 << 20).contains(&value);
            if fits { Ok(value as usize) } else { Err(wrong(&key(at), format!("{value} is not a size"))) }
        };
        let or = |at: &str, other: usize| if metadata.get(&key(at)).is_some() { size(at) } else { Ok(other) };
        let float = |at: &str, other: f64| match metadata.get(&key(at)) {
            Some(_) => metadata.float(&key(at)),
            None => Ok(other),
        };
        let (hidden, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let key_dim = or("attention.key_length", hidden / heads)?;
        let rotary = or("rope.dimension_count", key_dim)?;
        let scaling = match metadata.get(&key("rope.scaling.type")) {
            None => RopeScaling::None,
            Some(_) => match metadata.string(&key("rope.scaling.type"))? {
                "none" => RopeScaling::None,
                "linear" => RopeScaling::Linear { factor: float("rope.scaling.factor", 1.0)? },
                "yarn" => RopeScaling::Yarn {
                    factor: float("rope.scaling.factor", 1.0)?,
                    original: size("rope.scaling.original_context_length")? as f64,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                },
                other => return Err(wrong(&key("rope.scaling.type"), format!("`{other}` is unknown"))),
            },
        };
        let base = float("rope.freq_base", 10_000.0)?;
        let rope = Rope { layout: LAYOUT, style: architecture.style, rotary, base, scaling, tables: false };
        let config = Config {
            layers: size("block_count")?,

            heads,
            kv_heads: or("attention.head_count_kv", heads)?,
            key_dim,
            value_dim: or("attention.value_length", key_dim)?,
            eps: float("attention.layer_norm_rms_epsilon", 1e-5)?,
            rope,
        };
        if !heads.is_multiple_of(config.kv_heads) {
            let problem = format!("{} heads of keys do not divide {heads}", config.kv_heads);
            return Err(wrong(&key("attention.head_count_kv"), problem));
        }
        Ok(config)
    }
}

/// A graph under construction.
struct Build<'f> {
    graph: Graph,
    file: &'f Gguf,
    config: Config,
    params: Vec<(String, Tensor)>,
}

impl Build<'_> {
    fn decoder(&mut self) -> Result<(), Error> {
        let free = vec![Some("batch".to_string()), Some("sequence".to_string())];
        let tokens = self.graph.input_with_dims("tokens", DType::I64, Shape::new(&[1, 8])?, free)?;
        let embedding = self.param("token_embd.weight")?;
        let mut x = match self.graph.ty(embedding)? {
            TensorType { dtype: DType::F32, .. } => self.graph.gather(embedding, tokens, 0)?,
            _ => self.graph.dequant_gather(embedding, tokens, DType::F32)?,
        };
        let positions = self.positions(tokens)?;
        for layer in 0..self.config.layers {
            x = self.layer(x, &positions, &format!("blk.{layer}"))?;
        }
        let x = self.norm(x, "output_norm")?;
        // Without an output matrix the embedding serves.
        let output = if self.has("output.weight") { self.param("output.weight")? } else { embedding };
        let logits = self.matmul(x, output)?;
        Ok(self.graph.output("logits", logits)?)
    }

    /// The operands of a rotation: positions from 0 on, or tables where the file scales every frequency on its own.
    fn positions(&mut self, tokens: ValueId) -> Result<Vec<ValueId>, Error> {
        let g = &mut self.graph;
        let zeros = g.binary_scalar(Binary::Mul, tokens, 0.0)?;
        let ones = g.binary_scalar(Binary::Add, zeros, 1.0)?;
        let positions = g.cumulative(CumulativeKind::Sum, ones, 1, true, false)?;
        let Some(tensor) = self.file.tensor("rope_freqs.weight") else { return Ok(vec![positions]) };
        let divisors = self.file.decode(tensor)?;
        let (frequencies, amplitude) = self.config.rope.frequencies();
        if divisors.len() != frequencies.len() || amplitude != 1.0 {
            let problem = format!("it has {} frequencies for {}", divisors.len(), frequencies.len());
            return Err(olivine_gguf::Error::Tensor { name: tensor.name.clone(), problem }.into());
        }
        let scaled = frequencies.iter().zip(&divisors).map(|(f, d)| (f / f64::from(*d)) as f32).collect();
        self.config.rope.tables = true;
        let g = &mut self.graph;
        let frequencies = g.constant(Tensor::new([divisors.len()], scaled)?);
        let positions = g.cast(positions, DType::F32)?;
        let positions = g.reshape(positions, &[0, 0, 1])?;
        let angles = g.mul(positions, frequencies)?;
        Ok(vec![g.cos(angles)?, g.sin(angles)?])
    }

    fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// A weight as the file stores it.
    fn param(&mut self, name: &str) -> Result<ValueId, Error> {
        let fail = |problem: String| olivine_gguf::Error::Tensor { name: name.to_string(), problem };
        let tensor = self.file.tensor(name).ok_or_else(|| fail("it is missing".into()))?;
        let plain = |dtype| Shape::new(&tensor.shape).map(|shape| TensorType::new(dtype, shape));
        let ty = match tensor.kind {
            TensorKind::Blocks(format) => TensorType::packed(format, &tensor.shape),
            TensorKind::F32 => plain(DType::F32),
            TensorKind::F16 => plain(DType::F16),
            TensorKind::BF16 => plain(DType::BF16),
            other => return Err(fail(format!("weights of {other} cannot be run")).into()),
        };
        let ty = ty.map_err(|e| fail(e.to_string()))?;
        let bytes = self.file.shared_bytes(tensor);
        // A file whose alignment is too small for its elements is copied.
        let shared = Tensor::from_shared(ty, bytes.clone());
        let copied = |_| Tensor::from_data(ty.shape, Data::from_bytes(ty.dtype, &bytes)?);
        let value = shared.or_else(copied).map_err(|e| fail(e.to_string()))?;
        let id = self.graph.param_of(name, ty)?;
        self.params.push((name.to_string(), value));
        Ok(id)
    }

    /// A small weight, such as a norm's, in f32.
    fn vector(&mut self, name: &str) -> Result<ValueId, Error> {
        let fail = |problem: String| olivine_gguf::Error::Tensor { name: name.to_string(), problem };
        let tensor = self.file.tensor(name).ok_or_else(|| fail("it is missing".into()))?;
        let [size] = tensor.shape[..] else { return Err(fail("it is not a vector".into()).into()) };
        let value = Tensor::new([size], self.file.decode(tensor)?)?;
        let id = self.graph.param(name, DType::F32, [size])?;
        self.params.push((name.to_string(), value));
        Ok(id)
    }

    fn norm(&mut self, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let gamma = self.vector(&format!("{name}.weight"))?;
        Ok(self.graph.rms_norm(x, gamma, None, self.config.eps)?)
    }

    /// `x · wᵀ`.
    fn matmul(&mut self, x: ValueId, weight: ValueId) -> Result<ValueId, Error> {
        Ok(match self.graph.ty(weight)? {
            TensorType { dtype: DType::F32, .. } => self.graph.matmul_nt(x, weight)?,
            _ => self.graph.dequant_matmul(x, weight)?,
        })
    }

    /// `x · wᵀ`, and the bias if there is one.
    fn linear(&mut self, x: ValueId, name: &str) -> Result<ValueId, Error> {
        let weight = self.param(&format!("{name}.weight"))?;
        let y = self.matmul(x, weight)?;
        let bias = format!("{name}.bias");
        if !self.has(&bias) {
            return Ok(y);
        }
        let bias = self.vector(&bias)?;
        Ok(self.graph.add(y, bias)?)
    }

    fn layer(&mut self, x: ValueId, positions: &[ValueId], name: &str) -> Result<ValueId, Error> {
        let h = self.norm(x, &format!("{name}.attn_norm"))?;
        let attended = self.attention(h, positions, name)?;
        let x = self.graph.add(attended, x)?;
        let h = self.norm(x, &format!("{name}.ffn_norm"))?;
        let gate = self.linear(h, &format!("{name}.ffn_gate"))?;
        let up = self.linear(h, &format!("{name}.ffn_up"))?;
        let gate = self.graph.silu(gate)?;
        let h = self.graph.mul(gate, up)?;
        let down = self.linear(h, &format!("{name}.ffn_down"))?;
        Ok(self.graph.add(down, x)?)
    }

    fn attention(&mut self, x: ValueId, positions: &[ValueId], name: &str) -> Result<ValueId, Error> {
        let Config { heads, kv_heads, key_dim, value_dim, .. } = self.config;
        let mut split = |part: &str, heads: usize, dim: usize| -> Result<ValueId, Error> {
            let y = self.linear(x, &format!("{name}.attn_{part}"))?;
            let y = self.graph.reshape(y, &[0, 0, heads as i64, dim as i64])?;
            // Qwen 3 norms every head of queries and keys.
            let norm = format!("{name}.attn_{part}_norm");
            if self.has(&format!("{norm}.weight")) { self.norm(y, &norm) } else { Ok(y) }
        };
        let (q, k) = (split("q", heads, key_dim)?, split("k", kv_heads, key_dim)?);
        let v = split("v", kv_heads, value_dim)?;
        let rope = self.config.rope.clone();
        let g = &mut self.graph;
        let (q, k) = (g.rope(rope.clone(), q, positions)?, g.rope(rope, k, positions)?);
        let spec = Attention { causal: true, ..Attention::new(LAYOUT) };
        let context = g.attention(spec, q, k, v, &[])?;
        let context = g.reshape(context, &[0, 0, (heads * value_dim) as i64])?;
        self.linear(context, &format!("{name}.attn_output"))
    }
}
