//! Built-in models and the flags that size them.

use clap::{Args, ValueEnum};
use olivine::internals::models::{Encoder, seeded_input, seeded_params};
use olivine::ir::{DType, Graph, Shape, Tensor};

use crate::answer::Failure;
use crate::memory;
use crate::onnx::inputs::DimArgs;

/// The seed of all built-in weights and of the input whose output is shown.
pub(crate) const SEED: u64 = 0;

/// A model that needs no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BuiltIn {
    /// BERT-base: 12 layers of width 768.
    BertBase,
    /// A small encoder: 4 layers of width 256.
    Encoder,
}

impl BuiltIn {
    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BuiltIn::BertBase => "bert-base",
            BuiltIn::Encoder => "encoder",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [BuiltIn::BertBase, BuiltIn::Encoder].into_iter().find(|m| m.name() == name)
    }

    /// The model's own sizes.
    fn sizes(self) -> Encoder {
        match self {
            BuiltIn::BertBase => Encoder::bert_base(1, 128),
            BuiltIn::Encoder => Encoder::small(),
        }
    }
}

/// Sizes that replace a built-in model's own.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Sizes {
    /// Number of layers.
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<usize>,
    /// Width of the hidden states; the feed-forward block is four times as wide.
    #[arg(long, value_name = "N")]
    pub(crate) hidden: Option<usize>,
    /// Attention heads; they divide the width.
    #[arg(long, value_name = "N")]
    pub(crate) heads: Option<usize>,
    /// Batch size.
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<usize>,
    /// Positions.
    #[arg(long, value_name = "N")]
    pub(crate) sequence: Option<usize>,
    /// Element type of weights and hidden states: f32, f16 or bf16.
    #[arg(long, value_name = "DTYPE")]
    pub(crate) dtype: Option<DType>,
    #[command(flatten)]
    pub(crate) dims: DimArgs,
}

impl Sizes {
    /// Whether any size is given.
    pub(crate) fn any(&self) -> bool {
        [self.layers, self.hidden, self.heads, self.batch, self.sequence].iter().any(Option::is_some)
            || self.dtype.is_some()
    }

    /// A built-in model in these sizes.
    pub(crate) fn of(&self, model: BuiltIn) -> Result<Encoder, Failure> {
        self.dims.none()?;
        let own = model.sizes();
        let encoder = Encoder {
            layers: self.layers.unwrap_or(own.layers),
            hidden: self.hidden.unwrap_or(own.hidden),
            heads: self.heads.unwrap_or(own.heads),
            feed_forward: self.hidden.map_or(own.feed_forward, |h| h.saturating_mul(4)),
            batch: self.batch.unwrap_or(own.batch),
            sequence: self.sequence.unwrap_or(own.sequence),
            dtype: self.dtype.unwrap_or(own.dtype),
        };
        let Encoder { hidden, heads, .. } = encoder;
        if heads == 0 || hidden == 0 || !hidden.is_multiple_of(heads) {
            return Err(Failure::new(format!("{heads} heads do not divide a width of {hidden}"))
                .hint("give --hidden and --heads such that the width is a multiple of the heads"));
        }
        if encoder.layers > 4096 {
            return Err(Failure::new(format!("{} layers are more than 4096", encoder.layers)));
        }
        Ok(encoder)
    }
}

/// A built-in model ready to be compiled.
pub(crate) struct Model {
    pub(crate) encoder: Encoder,
    pub(crate) graph: Graph,
    pub(crate) params: Vec<(String, Tensor)>,
}

impl Model {
    /// Builds the graph and its seeded weights.
    pub(crate) fn new(encoder: Encoder) -> Result<Self, Failure> {
        let graph = encoder.graph()?;
        memory::check_fits(&graph)?;
        let params = seeded_params(&graph, SEED)?;
        Ok(Model { encoder, graph, params })
    }

    /// An input; another seed makes another one.
    pub(crate) fn input(&self, seed: u64) -> Result<Tensor, Failure> {
        let Encoder { batch, sequence, hidden, .. } = self.encoder;
        Ok(seeded_input("x", Shape::new(&[batch, sequence, hidden])?, seed)?)
    }

    /// The sizes in words.
    pub(crate) fn describe(&self) -> String {
        let Encoder { layers, hidden, heads, batch, sequence, .. } = self.encoder;
        format!("{layers} layers of width {hidden}, {heads} heads, batch {batch}, {sequence} positions")
    }

    /// The sizes as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        let Encoder { layers, hidden, heads, feed_forward, batch, sequence, .. } = self.encoder;
        serde_json::json!({
            "layers": layers, "hidden": hidden, "heads": heads, "feed_forward": feed_forward,
            "batch": batch, "sequence": sequence, "flops": self.encoder.flops(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_sizes_replace_the_models_own() {
        let sizes = Sizes { hidden: Some(96), heads: Some(3), layers: Some(2), ..Sizes::default() };
        let encoder = sizes.of(BuiltIn::BertBase).unwrap();
        assert_eq!((encoder.layers, encoder.hidden, encoder.heads, encoder.feed_forward), (2, 96, 3, 384));
        assert_eq!(encoder.sequence, 128);
    }

    #[test]
    fn heads_that_do_not_divide_the_width_are_refused() {
        for (hidden, heads) in [(10, 3), (8, 0), (0, 1)] {
            let sizes = Sizes { hidden: Some(hidden), heads: Some(heads), ..Sizes::default() };
            assert!(sizes.of(BuiltIn::Encoder).is_err(), "{hidden} {heads}");
        }
    }
}
