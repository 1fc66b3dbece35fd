//! The sizes and numbers of a language model. `from_gguf.rs` and `from_json.rs` read them.

use olivine_ir::op::{HeadLayout, Rope, RopeScaling};

use super::architecture::{Activation, Architecture, Recurrence};
use crate::Error;

/// The layout of heads in queries, keys, values and caches.
pub(super) const LAYOUT: HeadLayout = HeadLayout::Bshd;

/// The largest size that is believed, and the largest number of layers.
pub(super) const LARGEST: u64 = 1 << 24;
pub(super) const MOST_LAYERS: usize = 1 << 16;

/// What a model is built from.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) hidden: usize,
    /// How many tokens there are, if the metadata say it.
    pub(super) vocabulary: Option<usize>,
    /// Sizes of attention; 0 in a model without.
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    /// Positions that the model was trained for.
    pub(super) context: usize,
    pub(super) eps: f64,
    /// The rotation of layers that attend to all positions, and of those with a window.
    pub(super) rope: Rope,
    pub(super) local_rope: Rope,
    /// What every frequency is divided by, where the configuration lists it: for short contexts and for long ones.
    pub(super) rope_divisors: Option<[Vec<f64>; 2]>,
    /// A factor on cos and sin beside the one of the scaling.
    pub(super) rope_amplitude: f64,
    /// Positions for which short factors of frequencies hold, where there are two lists.
    pub(super) original_context: usize,
    /// Whether there are layers after those, which predict later tokens and are not run.
    pub(super) extra_layers: bool,
    /// What each layer begins with.
    pub(super) mixers: Vec<Mixer>,
    /// Sizes of layers without attention.
    pub(super) recurrent: Option<Recurrent>,
    /// Whether projections of queries have gates too.
    pub(super) gated_attention: bool,
    /// Factor on q·k; dim^-1/2 if not given.
    pub(super) scale: Option<f64>,
    pub(super) softcap: Option<f64>,
    pub(super) final_softcap: Option<f64>,
    pub(super) embedding_scale: Option<f64>,
    pub(super) experts: Option<Experts>,
    pub(super) activation: Activation,
    pub(super) ffn_norm: &'static str,
}

/// What a layer begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixer {
    /// Attention, to the positions of a window if there is one.
    Attention { window: Option<usize> },
    /// A state of fixed size.
    Recurrent(Recurrence),
}

/// Sizes of layers whose memory is a state of fixed size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recurrent {
    /// Taps of the convolution.
    pub(super) kernel: usize,
    /// Heads, and elements of each.
    pub(super) heads: usize,
    pub(super) dim: usize,
    /// Groups of heads that share what is read and written, and the size of it.
    pub(super) groups: usize,
    pub(super) state: usize,
    /// Bounds of the time step.
    pub(super) step_limits: Option<[f64; 2]>,
}

impl Recurrent {
    /// Channels of all heads.
    pub(super) fn inner(&self) -> usize {
        self.heads * self.dim
    }

    /// Channels of the convolution: those of all heads, and twice those of all groups.
    pub(super) fn convolved(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }
}

/// Experts of which a token uses some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    pub(super) count: usize,
    pub(super) used: usize,
    /// Whether the weights of those used sum to 1.
    pub(super) renormalise: bool,
}

/// An entry of the metadata: its key in GGUF after the architecture's name, and in a `config.json`.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) gguf: &'static str,
    pub(super) json: &'static str,
}

const fn key(gguf: &'static str, json: &'static str) -> Key {
    Key { gguf, json }
}

impl Config {
    /// How many layers there are.
    pub(super) fn layers(&self) -> usize {
        self.mixers.len()
    }

    /// What no tensor would show to be wrong.
    pub(super) fn check(self, fail: &dyn Fn(Key, String) -> Error) -> Result<Self, Error> {
        if self.layers() > MOST_LAYERS {
            let problem = format!("{} layers are more than {MOST_LAYERS}", self.layers());
            return Err(fail(key("block_count", "num_hidden_layers"), problem));
        }
        if self.mixers.iter().any(|mixer| matches!(mixer, Mixer::Attention { .. })) {
            self.check_attention(fail)?;
        }
        if let Some(recurrent) = &self.recurrent {
            recurrent.check(fail)?;
        }
        if let Some(Experts { count, used, .. }) = self.experts.filter(|experts| experts.used > experts.count)
        {
            let problem = format!("{used} of {count} experts cannot be used");
            return Err(fail(key("expert_used_count", "num_experts_per_tok"), problem));
        }
        let positive = [
            (key("attention.layer_norm_rms_epsilon", "rms_norm_eps"), Some(self.eps)),
            (key("attn_logit_softcapping", "attn_logit_softcapping"), self.softcap),
            (key("final_logit_softcapping", "final_logit_softcapping"), self.final_softcap),
            (key("attention.scale", "query_pre_attn_scalar"), self.scale),
            (key("rope.freq_base", "rope_theta"), Some(self.rope.base)),
            (key("rope.freq_base_swa", "rope_local_base_freq"), Some(self.local_rope.base)),
            (key("rope.scaling.attn_factor", "rope_scaling.attention_factor"), Some(self.rope_amplitude)),
        ];
        for (key, value) in positive {
            if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
                return Err(fail(key, format!("{value} is not a positive number")));
            }
        }
        Ok(self)
    }

    fn check_attention(&self, fail: &dyn Fn(Key, String) -> Error) -> Result<(), Error> {
        let Config { hidden, heads, kv_heads, key_dim, value_dim, .. } = *self;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let problem = format!("{kv_heads} heads of keys do not divide {heads}");
            return Err(fail(key("attention.head_count_kv", "num_key_value_heads"), problem));
        }
        let most = LARGEST as usize;
        let fits = |dim: usize| dim > 0 && heads.checked_mul(dim).is_some_and(|all| all <= most);
        if !fits(key_dim) || !fits(value_dim) {
            let problem = format!("{heads} heads of {key_dim} and {value_dim} elements in {hidden}");
            return Err(fail(key("attention.head_count", "num_attention_heads"), problem));
        }
        if self.rope.rotary == 0 || !self.rope.rotary.is_multiple_of(2) || self.rope.rotary > key_dim {
            let problem = format!("{} of {key_dim} elements of a head cannot rotate", self.rope.rotary);
            let key = match self.rope.rotary == key_dim {
                true => key("attention.key_length", "head_dim"),
                false => key("rope.dimension_count", "partial_rotary_factor"),
            };
            return Err(fail(key, problem));
        }
        let factors: &[f64] = match &self.rope.scaling {
            RopeScaling::None => &[],
            RopeScaling::Linear { factor } | RopeScaling::Ntk { factor } => &[*factor],
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow } => {
                &[*factor, *original, *beta_fast, *beta_slow]
            }
            RopeScaling::Llama3 { factor, low, high, original } => &[*factor, *low, *high, *original],
        };
        let divisors = self.rope_divisors.iter().flatten().flatten();
        if let Some(factor) = factors.iter().chain(divisors).find(|f| !(f.is_finite() && **f > 0.0)) {
            let problem = format!("{factor} is not a positive number");
            return Err(fail(key("rope.scaling.factor", "rope_scaling"), problem));
        }
        let pairs = self.rope.rotary / 2;
        if let Some(list) = self.rope_divisors.iter().flatten().find(|list| list.len() != pairs) {
            let problem = format!("{} factors for {pairs} frequencies", list.len());
            return Err(fail(key("rope.scaling.factor", "rope_scaling"), problem));
        }
        Ok(())
    }
}

impl Recurrent {
    fn check(&self, fail: &dyn Fn(Key, String) -> Error) -> Result<(), Error> {
        let Recurrent { kernel, heads, dim, groups, state, .. } = *self;
        if kernel == 0 || kernel > 1 << 10 {
            let problem = format!("a convolution of {kernel} taps cannot be run");
            return Err(fail(key("ssm.conv_kernel", "conv_kernel"), problem));
        }
        if groups == 0 || !heads.is_multiple_of(groups) {
            let problem = format!("{groups} groups do not divide {heads} heads");
            return Err(fail(key("ssm.group_count", "n_groups"), problem));
        }
        let product = |sizes: [usize; 3]| sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
        let most = LARGEST as usize;
        let fits = |all: Option<usize>| all.is_some_and(|all| all > 0 && all <= most);
        if !fits(product([heads, dim, state])) || !fits(product([groups, state, 1])) {
            let problem = format!("{heads} heads of {dim} elements with {state} states each");
            return Err(fail(key("ssm.state_size", "state_size"), problem));
        }
        Ok(())
    }
}

impl Architecture {
    /// Whether a layer has the window, if there is one, or is recurrent in an architecture with such layers, where every nth
    /// attends to all positions.
    pub(super) fn is_local(&self, layer: usize, every: usize) -> bool {
        match self.recurrence {
            Some(Recurrence::Mamba2) => true,
            Some(Recurrence::GatedDelta) => !(layer + 1).is_multiple_of(every),
            // Without an interval all layers have the window.
            None => every == 1 || !(layer + 1).is_multiple_of(every),
        }
    }

    /// What a layer begins with.
    pub(super) fn mixer(&self, local: bool, window: Option<usize>) -> Mixer {
        match self.recurrence {
            Some(recurrence) if local => Mixer::Recurrent(recurrence),
            _ => Mixer::Attention { window: window.filter(|_| local) },
        }
    }

    /// The rotation of layers with a window.
    pub(super) fn local_rope(&self, rope: &Rope, base: Option<f64>) -> Rope {
        match base.or(self.local_base) {
            Some(base) => Rope { base, scaling: RopeScaling::None, ..rope.clone() },
            None => rope.clone(),
        }
    }
}
