//! The graph of a language model: embedding, layers, logits.

use olivine_ir::op::{Binary, CumulativeKind, ReduceKind, Rope};
use olivine_ir::{DType, Graph, Shape, Tensor, TensorType, ValueId};

use super::config::Config;
use super::source::Source;
use super::{DecoderGraph, DecoderOptions, RecurrentState};
use crate::Error;

/// A graph under construction.
pub(super) struct Build<'m> {
    pub(super) graph: Graph,
    pub(super) source: &'m Source,
    pub(super) config: &'m Config,
    pub(super) options: DecoderOptions,
    params: Vec<(String, Tensor)>,
    pub(super) states: Vec<(String, String)>,
    pub(super) recurrent: Vec<RecurrentState>,
}

/// Where the tokens of a run stand.
pub(super) struct Positions {
    /// Rotations of layers that attend to all positions, and of those with a window.
    pub(super) global: Rotation,
    pub(super) local: Rotation,
    /// For every token its number in row-major order, which only experts need.
    pub(super) row_numbers: ValueId,
    /// With caches: where tokens go in them, and what counts.
    pub(super) cache: Option<CacheInputs>,
    /// With caches of a model that has such: where states of fixed size are.
    pub(super) states: Option<StateInputs>,
}

/// Where the tokens of a run go in key-value caches.
#[derive(Clone, Copy)]
pub(super) struct CacheInputs {
    /// The position of each sequence's first token.
    pub(super) starts: ValueId,
    /// Positions that count.
    pub(super) lengths: ValueId,
    /// The pages of each sequence.
    pub(super) pages: ValueId,
}

/// Where the states of a run's sequences are.
#[derive(Clone, Copy)]
pub(super) struct StateInputs {
    /// The slot of each sequence, i32 `[batch, 1]`.
    pub(super) slots: ValueId,
    /// Whether this is not its first run, bool `[batch]`.
    pub(super) continues: ValueId,
    /// 0 for each sequence, i64 `[batch]`.
    pub(super) zeros: ValueId,
}

/// A rotation and its operands: positions, or tables.
#[derive(Clone)]
pub(super) struct Rotation {
    pub(super) rope: Rope,
    pub(super) operands: Vec<ValueId>,
}

/// The names of open sizes.
fn open(names: &[&str]) -> Vec<Option<String>> {
    names.iter().map(|name| (!name.is_empty()).then(|| name.to_string())).collect()
}

impl<'m> Build<'m> {
    pub(super) fn new(source: &'m Source, config: &'m Config, options: DecoderOptions) -> Self {
        let graph = Graph::new("language model");
        Build {
            graph,
            source,
            config,
            options,
            params: Vec::new(),
            states: Vec::new(),
            recurrent: Vec::new(),
        }
    }

    pub(super) fn decoder(mut self) -> Result<DecoderGraph, Error> {
        // Fewer layers than there are would compute something else.
        let next = format!("blk.{}.attn_norm.weight", self.config.layers());
        if !self.config.extra_layers && self.has(&next) {
            let problem = format!("the metadata have {} layers alone", self.config.layers());
            return Err(self.source.bad(&next, problem));
        }
        let dims = open(&["batch", "sequence"]);
        let tokens = self.graph.input_with_dims("tokens", DType::I64, Shape::new(&[1, 8])?, dims)?;
        let (embedding, vocabulary) = self.embedding()?;
        let mut x = match self.graph.ty(embedding)? {
            TensorType { dtype: DType::F32, packed: None, .. } => self.graph.gather(embedding, tokens, 0)?,
            _ => self.graph.dequant_gather(embedding, tokens, DType::F32)?,
        };
        if let Some(scale) = self.config.embedding_scale {
            x = self.graph.binary_scalar(Binary::Mul, x, scale)?;
        }
        let positions = self.positions(tokens)?;
        for layer in 0..self.config.layers() {
            x = self.layer(x, &positions, layer)?;
        }
        if self.options.picked {
            let picked = self.graph.input_with_dims("picked", DType::I64, [1], open(&["rows"]))?;
            x = self.graph.reshape(x, &[-1, self.config.hidden as i64])?;
            x = self.graph.gather(x, picked, 0)?;
        }
        let x = self.norm(x, "output_norm", self.config.hidden)?;
        // Without an output matrix the embedding serves.
        let output = match self.has("output.weight") {
            true => self.matrix("output.weight", [Some(vocabulary), Some(self.config.hidden)])?,
            false => embedding,
        };
        let mut logits = self.matmul(x, output)?;
        if let Some(cap) = self.config.final_softcap {
            let scaled = self.graph.binary_scalar(Binary::Mul, logits, 1.0 / cap)?;
            let bounded = self.graph.tanh(scaled)?;
            logits = self.graph.binary_scalar(Binary::Mul, bounded, cap)?;
        }
        let Build { graph, params, states, recurrent, .. } = self;
        Ok(DecoderGraph { graph, params, logits, states, recurrent, vocabulary })
    }

    fn embedding(&mut self) -> Result<(ValueId, usize), Error> {
        let id = self.matrix("token_embd.weight", [self.config.vocabulary, Some(self.config.hidden)])?;
        Ok((id, self.graph.ty(id)?.elements()[0]))
    }

    fn positions(&mut self, tokens: ValueId) -> Result<Positions, Error> {
        let g = &mut self.graph;
        let zeros = g.binary_scalar(Binary::Mul, tokens, 0.0)?;
        let ones = g.binary_scalar(Binary::Add, zeros, 1.0)?;
        let (positions, cache) = match self.options.cache {
            Some(_) => {
                let dims = open(&["batch", "sequence"]);
                let positions =
                    self.graph.input_with_dims("positions", DType::I64, Shape::new(&[1, 8])?, dims)?;
                let [starts, lengths] = ["starts", "lengths"]
                    .map(|name| self.graph.input_with_dims(name, DType::I64, [1], open(&["batch"])));
                let table = Shape::new(&[1, 4])?;
                let pages =
                    self.graph.input_with_dims("pages", DType::I32, table, open(&["batch", "table"]))?;
                (positions, Some(CacheInputs { starts: starts?, lengths: lengths?, pages }))
            }
            None => {
                let positions = self.graph.cumulative(CumulativeKind::Sum, ones, 1, true, false)?;
                (positions, None)
            }
        };
        let global = self.rotation(&self.config.rope, positions)?;
        let same = self.config.local_rope == self.config.rope;
        let plain = Rotation { rope: self.config.local_rope.clone(), operands: vec![positions] };
        let local = if same { global.clone() } else { plain };
        let g = &mut self.graph;
        let columns = g.cumulative(CumulativeKind::Sum, ones, 1, true, false)?;
        let sizes = g.reduce(ReduceKind::Sum, ones, &[1], true)?;
        let before = g.cumulative(CumulativeKind::Sum, sizes, 0, true, false)?;
        let row_numbers = g.add(columns, before)?;
        let states = match cache {
            Some(CacheInputs { starts, .. }) if self.config.recurrent.is_some() => {
                let zeros = g.binary_scalar(Binary::Mul, starts, 0.0)?;
                let continues = g.gt(starts, zeros)?;
                let slots =
                    g.input_with_dims("slots", DType::I32, Shape::new(&[1, 1])?, open(&["batch", ""]))?;
                Some(StateInputs { slots, continues, zeros })
            }
            _ => None,
        };
        Ok(Positions { global, local, row_numbers, cache, states })
    }

    /// A rotation by positions, or by tables where the model scales every frequency on its own.
    fn rotation(&mut self, rope: &Rope, positions: ValueId) -> Result<Rotation, Error> {
        let long =
            self.options.context.unwrap_or(self.config.original_context) > self.config.original_context;
        let (frequencies, amplitude) = rope.frequencies();
        let divisors = match &self.config.rope_divisors {
            Some([short, longer]) => if long { longer } else { short }.clone(),
            None => {
                let factors = if long { "rope_factors_long.weight" } else { "rope_factors_short.weight" };
                let name = ["rope_freqs.weight", factors].into_iter().find(|name| self.has(name));
                let Some(name) = name else {
                    return Ok(Rotation { rope: rope.clone(), operands: vec![positions] });
                };
                let divisors = self.source.floats(name)?.to_f64();
                if divisors.len() != frequencies.len() || divisors.contains(&0.0) {
                    let problem = format!("it has {} frequencies for {}", divisors.len(), frequencies.len());
                    return Err(self.source.bad(name, problem));
                }
                divisors
            }
        };
        let scaled = frequencies.iter().zip(&divisors).map(|(f, d)| (f / d) as f32).collect();
        let amplitude = amplitude * self.config.rope_amplitude;
        let g = &mut self.graph;
        let frequencies = g.constant(Tensor::new([divisors.len()], scaled)?);
        let positions = g.cast(positions, DType::F32)?;
        let positions = g.reshape(positions, &[0, 0, 1])?;
        let angles = g.mul(positions, frequencies)?;
        let mut operands = vec![g.cos(angles)?, g.sin(angles)?];
        if amplitude != 1.0 {
            for table in &mut operands {
                *table = g.binary_scalar(Binary::Mul, *table, amplitude)?;
            }
        }
        Ok(Rotation { rope: Rope { tables: true, ..rope.clone() }, operands })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.source.has(name)
    }

    pub(super) fn add(&mut self, name: &str, value: Tensor) -> Result<ValueId, Error> {
        let id = self.graph.param_of(name, value.ty())?;
        self.params.push((name.to_string(), value));
        Ok(id)
    }

    /// A matrix `[rows, columns]` as it is stored; sizes that are known are checked.
    pub(super) fn matrix(&mut self, name: &str, sizes: [Option<usize>; 2]) -> Result<ValueId, Error> {
        self.stored(name, &sizes, 1)
    }

    /// A weight as it is stored; sizes that are known are checked.
    pub(super) fn stored(
        &mut self,
        name: &str,
        sizes: &[Option<usize>],
        experts: usize,
    ) -> Result<ValueId, Error> {
        let value = self.source.tensor(name, experts)?;
        let found = value.ty().elements();
        let fits = |(found, known): (&usize, &Option<usize>)| known.is_none_or(|known| known == *found);
        if found.rank() != sizes.len() || !found.dims().iter().zip(sizes).all(fits) {
            let size = |known: &Option<usize>| known.map_or("any".to_string(), |size| size.to_string());
            let expected = sizes.iter().map(size).collect::<Vec<_>>().join(", ");
            let problem = format!("it is {found}, and the metadata ask for [{expected}]");
            return Err(self.source.bad(name, problem));
        }
        // Shapes that only the tensor knows may still be of nothing.
        if found.dims().contains(&0) {
            return Err(self.source.bad(name, format!("it is {found}, which has no elements")));
        }
        self.add(name, value)
    }

    /// A small weight, such as a norm's, in f32.
    pub(super) fn vector(&mut self, name: &str, size: usize) -> Result<ValueId, Error> {
        self.floats(name, &[size])
    }

    /// Small weights of a shape in f32.
    pub(super) fn floats(&mut self, name: &str, dims: &[usize]) -> Result<ValueId, Error> {
        let value = self.source.floats(name)?;
        if value.shape().dims() != dims {
            return Err(self
                .source
                .bad(name, format!("it is {}, and the metadata ask for {dims:?}", value.shape())));
        }
        self.add(name, value)
    }

    pub(super) fn norm(&mut self, x: ValueId, name: &str, size: usize) -> Result<ValueId, Error> {
        let gamma = self.vector(&format!("{name}.weight"), size)?;
        Ok(self.graph.rms_norm(x, gamma, None, self.config.eps)?)
    }

    /// A value as another dtype; itself if it is one.
    pub(super) fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, Error> {
        if self.graph.ty(x)?.dtype == to { Ok(x) } else { Ok(self.graph.cast(x, to)?) }
    }

    /// `x · wᵀ`, in f32.
    pub(super) fn matmul(&mut self, x: ValueId, weight: ValueId) -> Result<ValueId, Error> {
        let y = match self.graph.ty(weight)? {
            TensorType { dtype: DType::F32, packed: None, .. } => {
                let x = self.cast(x, DType::F32)?;
                self.graph.matmul_nt(x, weight)?
            }
            _ => self.graph.dequant_matmul(x, weight)?,
        };
        self.cast(y, DType::F32)
    }

    /// `x · wᵀ`, and the bias if there is one; `from` and `to` are the sizes that are known.
    pub(super) fn linear(
        &mut self,
        x: ValueId,
        name: &str,
        from: Option<usize>,
        to: Option<usize>,
    ) -> Result<ValueId, Error> {
        let weight = self.matrix(&format!("{name}.weight"), [to, from])?;
        let y = self.matmul(x, weight)?;
        let bias = format!("{name}.bias");
        if !self.has(&bias) {
            return Ok(y);
        }
        let size = self.graph.ty(weight)?.elements()[0];
        let bias = self.vector(&bias, size)?;
        Ok(self.graph.add(y, bias)?)
    }
}
