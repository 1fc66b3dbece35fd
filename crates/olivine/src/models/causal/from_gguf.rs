//! The configuration of a model from the metadata of a GGUF file.

use olivine_gguf::{Gguf, Value as Entry};
use olivine_ir::op::{Rope, RopeScaling};

use super::architecture::{ARCHITECTURES, Architecture, Recurrence};
use super::config::{Config, Experts, Key, LARGEST, LAYOUT, MOST_LAYERS, Recurrent};
use crate::Error;

impl Config {
    /// Reads the metadata of a file.
    pub(super) fn of_gguf(file: &Gguf) -> Result<Self, Error> {
        let name = file.metadata().string("general.architecture")?;
        let known = ARCHITECTURES.iter().find(|architecture| architecture.name == name);
        let architecture = known.ok_or_else(|| {
            let names = ARCHITECTURES.map(|architecture| architecture.name).join(", ");
            wrong("general.architecture", format!("`{name}` cannot be run yet; those that can are {names}"))
        })?;
        let keys = Keys { file, prefix: name };
        let hidden = keys.size("embedding_length")?;
        // A model without attention has 0 heads, or does not say.
        let heads = match architecture.recurrence {
            Some(Recurrence::Mamba2) => 0,
            _ => keys.size("attention.head_count")?,
        };
        let key_dim = keys.size_or("attention.key_length", hidden.checked_div(heads).unwrap_or(0))?;
        let layers = keys.layers()?;
        let rope = Rope {
            layout: LAYOUT,
            style: architecture.style,
            rotary: keys.size_or("rope.dimension_count", key_dim)?,
            base: keys.float_or("rope.freq_base", 10_000.0)?,
            scaling: keys.scaling()?,
            tables: false,
        };
        let window = keys.optional_size("attention.sliding_window")?;
        let experts = match keys.optional_size("expert_count")? {
            Some(count) => Some(Experts { count, used: keys.size("expert_used_count")?, renormalise: true }),
            None => None,
        };
        let wide = architecture.width_scale_layers == Some(layers);
        let context = keys.size_or("context_length", 2048)?;
        let local = keys.local_layers(architecture, layers)?;
        let config = Config {
            hidden,
            // Files whose embedding was cut or padded keep the number of the original.
            vocabulary: None,
            heads,
            kv_heads: if heads == 0 { 0 } else { keys.size_or("attention.head_count_kv", heads)? },
            key_dim,
            value_dim: keys.size_or("attention.value_length", key_dim)?,
            context,
            eps: keys.float_or("attention.layer_norm_rms_epsilon", 1e-5)?,
            local_rope: architecture.local_rope(&rope, keys.optional_float("rope.freq_base_swa")?),
            rope,
            rope_divisors: None,
            rope_amplitude: keys.float_or("rope.scaling.attn_factor", 1.0)?,
            original_context: keys.size_or("rope.scaling.original_context_length", context)?,
            extra_layers: keys.optional_size("nextn_predict_layers")?.is_some(),
            mixers: local.into_iter().map(|local| architecture.mixer(local, window)).collect(),
            recurrent: keys.recurrent(architecture)?,
            gated_attention: architecture.gated_attention,
            scale: wide.then(|| 1.0 / ((hidden / heads.max(1)) as f64).sqrt()),
            softcap: keys.optional_float("attn_logit_softcapping")?,
            final_softcap: keys.optional_float("final_logit_softcapping")?,
            embedding_scale: architecture.scaled_embedding.then(|| (hidden as f64).sqrt()),
            experts,
            activation: architecture.activation,
            ffn_norm: architecture.ffn_norm,
        };
        config.check(&|key, problem| wrong(&keys.key(key.gguf), problem))
    }
}

/// An error that names a key of the metadata.
fn wrong(key: &str, problem: String) -> Error {
    olivine_gguf::Error::Metadata { key: key.to_string(), problem }.into()
}

/// An error that names an entry of the metadata.
pub(super) fn bad_key(file: &Gguf, key: Key, problem: String) -> Error {
    let name = file.metadata().string("general.architecture").unwrap_or_default();
    wrong(&Keys { file, prefix: name }.key(key.gguf), problem)
}

/// The metadata of an architecture.
struct Keys<'f> {
    file: &'f Gguf,
    prefix: &'f str,
}

impl Keys<'_> {
    fn key(&self, at: &str) -> String {
        format!("{}.{at}", self.prefix)
    }

    fn get(&self, at: &str) -> Option<&Entry> {
        self.file.metadata().get(&self.key(at))
    }

    fn size(&self, at: &str) -> Result<usize, Error> {
        let value = self.file.metadata().integer(&self.key(at))?;
        let fits = (1..=LARGEST).contains(&value);
        if fits { Ok(value as usize) } else { Err(wrong(&self.key(at), format!("{value} is not a size"))) }
    }

    /// A size that may be missing; 0 is as if it were.
    fn optional_size(&self, at: &str) -> Result<Option<usize>, Error> {
        match self.get(at) {
            Some(value) if value.as_u64() == Some(0) => Ok(None),
            Some(_) => self.size(at).map(Some),
            None => Ok(None),
        }
    }

    fn size_or(&self, at: &str, other: usize) -> Result<usize, Error> {
        if self.get(at).is_some() { self.size(at) } else { Ok(other) }
    }

    fn optional_float(&self, at: &str) -> Result<Option<f64>, Error> {
        self.get(at).map(|_| self.file.metadata().float(&self.key(at))).transpose().map_err(Error::from)
    }

    fn float_or(&self, at: &str, other: f64) -> Result<f64, Error> {
        Ok(self.optional_float(at)?.unwrap_or(other))
    }

    /// How many layers predict the next token: those that predict later ones are not run.
    fn layers(&self) -> Result<usize, Error> {
        let all = self.size("block_count")?;
        let later = self.optional_size("nextn_predict_layers")?.unwrap_or(0);
        let left = all.checked_sub(later).filter(|left| (1..=MOST_LAYERS).contains(left));
        left.ok_or_else(|| wrong(&self.key("block_count"), format!("{all} layers, {later} of them extra")))
    }

    /// For every layer whether it is local: with a window, or recurrent.
    fn local_layers(&self, architecture: &Architecture, layers: usize) -> Result<Vec<bool>, Error> {
        let every = match architecture.recurrence {
            Some(Recurrence::GatedDelta) => {
                self.size_or("full_attention_interval", architecture.global_every)?
            }
            _ => architecture.global_every,
        };
        let listed = self.get("attention.recurrent_layers");
        let listed = listed.filter(|_| architecture.recurrence == Some(Recurrence::GatedDelta));
        let Some(list) = listed else {
            return Ok((0..layers).map(|layer| architecture.is_local(layer, every)).collect());
        };
        let one = |layer: usize| match list.element(layer) {
            Some(Entry::Bool(recurrent)) => Some(recurrent),
            other => other.and_then(|value| value.as_u64()).map(|value| value != 0),
        };
        (0..layers).map(one).collect::<Option<_>>().ok_or_else(|| {
            wrong(&self.key("attention.recurrent_layers"), format!("it is no list of {layers} flags"))
        })
    }

    fn recurrent(&self, architecture: &Architecture) -> Result<Option<Recurrent>, Error> {
        if architecture.recurrence.is_none() {
            return Ok(None);
        }
        let (inner, heads) = (self.size("ssm.inner_size")?, self.size("ssm.time_step_rank")?);
        if !inner.is_multiple_of(heads) {
            let problem = format!("{heads} heads do not divide {inner} channels");
            return Err(wrong(&self.key("ssm.time_step_rank"), problem));
        }
        Ok(Some(Recurrent {
            kernel: self.size("ssm.conv_kernel")?,
            heads,
            dim: inner / heads,
            groups: self.size_or("ssm.group_count", 1)?,
            state: self.size("ssm.state_size")?,
            step_limits: None,
        }))
    }

    fn scaling(&self) -> Result<RopeScaling, Error> {
        let at = "rope.scaling.type";
        if self.get(at).is_none() {
            return Ok(RopeScaling::None);
        }
        Ok(match self.file.metadata().string(&self.key(at))? {
            // The factors of `longrope` are tensors.
            "none" | "longrope" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: self.float_or("rope.scaling.factor", 1.0)? },
            "yarn" => RopeScaling::Yarn {
                factor: self.float_or("rope.scaling.factor", 1.0)?,
                original: self.size("rope.scaling.original_context_length")? as f64,
                beta_fast: self.float_or("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: self.float_or("rope.scaling.yarn_beta_slow", 1.0)?,
            },
            other => return Err(wrong(&self.key(at), format!("`{other}` is unknown"))),
        })
    }
}
