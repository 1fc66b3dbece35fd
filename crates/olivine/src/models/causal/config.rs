//! The sizes and numbers of a language model, from the metadata of a GGUF file or from a `config.json`.

use olivine_gguf::{Gguf, Value as Entry};
use olivine_ir::op::{HeadLayout, Rope, RopeScaling, RopeStyle};
use serde_json::Value;

use super::architecture::{ARCHITECTURES, Activation, Architecture};
use crate::Error;

/// The layout of heads in queries, keys, values and caches.
pub(super) const LAYOUT: HeadLayout = HeadLayout::Bshd;

/// The largest size that is believed.
const LARGEST: u64 = 1 << 24;

/// What a model is built from.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) hidden: usize,
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
    /// A factor on cos and sin beside the one of the scaling.
    pub(super) rope_amplitude: f64,
    /// Positions for which short factors of frequencies hold, where a file has two lists.
    pub(super) original_context: usize,
    /// For every layer its window.
    pub(super) windows: Vec<Option<usize>>,
    /// Factor on q·k; dim^-1/2 if not given.
    pub(super) scale: Option<f64>,
    pub(super) softcap: Option<f64>,
    pub(super) final_softcap: Option<f64>,
    pub(super) embedding_scale: Option<f64>,
    pub(super) experts: Option<Experts>,
    pub(super) activation: Activation,
    pub(super) ffn_norm: &'static str,
}

/// Experts of which a token uses some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    pub(super) count: usize,
    pub(super) used: usize,
    /// Whether the weights of those used sum to 1.
    pub(super) renormalise: bool,
}

impl Config {
    /// How many layers there are.
    pub(super) fn layers(&self) -> usize {
        self.windows.len()
    }

    /// Reads the metadata of a file.
    pub(super) fn of_gguf(file: &Gguf) -> Result<Self, Error> {
        let name = file.metadata().string("general.architecture")?;
        let known = ARCHITECTURES.iter().find(|architecture| architecture.name == name);
        let architecture = known.ok_or_else(|| {
            let names = ARCHITECTURES.map(|architecture| architecture.name).join(", ");
            wrong("general.architecture", format!("`{name}` cannot be run yet; those that can are {names}"))
        })?;
        let keys = Keys { file, prefix: name };
        let (hidden, heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
        let key_dim = keys.size_or("attention.key_length", hidden / heads)?;
        let layers = keys.size("block_count")?;
        let base = keys.float_or("rope.freq_base", 10_000.0)?;
        let rotary = keys.size_or("rope.dimension_count", key_dim)?;
        let rope = Rope {
            layout: LAYOUT,
            style: architecture.style,
            rotary,
            base,
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
        let config = Config {
            hidden,
            heads,
            kv_heads: keys.size_or("attention.head_count_kv", heads)?,
            key_dim,
            value_dim: keys.size_or("attention.value_length", key_dim)?,
            context,
            eps: keys.float_or("attention.layer_norm_rms_epsilon", 1e-5)?,
            local_rope: architecture.local_rope(&rope, keys.optional_float("rope.freq_base_swa")?),
            rope,
            rope_amplitude: keys.float_or("rope.scaling.attn_factor", 1.0)?,
            original_context: keys.size_or("rope.scaling.original_context_length", context)?,
            windows: (0..layers).map(|layer| window.filter(|_| architecture.has_window(layer))).collect(),
            scale: wide.then(|| 1.0 / ((hidden / heads) as f64).sqrt()),
            softcap: keys.optional_float("attn_logit_softcapping")?,
            final_softcap: keys.optional_float("final_logit_softcapping")?,
            embedding_scale: architecture.scaled_embedding.then(|| (hidden as f64).sqrt()),
            experts,
            activation: architecture.activation,
            ffn_norm: architecture.ffn_norm,
        };
        config.check(&|key, problem| wrong(&format!("{name}.{key}"), problem))
    }

    /// Reads what a `config.json` says; `bad` makes an error of a problem.
    pub(super) fn of_json(
        json: &Value,
        bad: &dyn Fn(String) -> Error,
    ) -> Result<(Self, &'static Architecture), Error> {
        let model_type = json["model_type"].as_str().unwrap_or_default();
        let known = ARCHITECTURES.iter().find(|known| known.model_types.contains(&model_type));
        let architecture = known.ok_or_else(|| {
            let names =
                ARCHITECTURES.iter().flat_map(|a| a.model_types).copied().collect::<Vec<_>>().join(", ");
            bad(format!("model_type `{model_type}` cannot be run; those that can are bert, {names}"))
        })?;
        let given = |key: &str| Some(&json[key]).filter(|value| !value.is_null());
        let optional_size = |key: &str| match given(key) {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|v| (1..=LARGEST).contains(v)) {
                Some(v) => Ok(Some(v as usize)),
                None => Err(bad(format!("`{key}` is not a size"))),
            },
        };
        let size = |key: &str| optional_size(key)?.ok_or_else(|| bad(format!("`{key}` is missing")));
        let float = |key: &str| given(key).and_then(Value::as_f64);
        let (hidden, heads) = (size("hidden_size")?, size("num_attention_heads")?);
        let layers = size("num_hidden_layers")?;
        let key_dim = optional_size("head_dim")?.unwrap_or(hidden / heads);
        let rotary = (float("partial_rotary_factor").unwrap_or(1.0) * key_dim as f64) as usize;
        let rotation = given("rope_scaling").or_else(|| given("rope_parameters")).unwrap_or(&Value::Null);
        let base = float("rope_theta").or_else(|| rotation["rope_theta"].as_f64()).unwrap_or(10_000.0);
        let context = size("max_position_embeddings")?;
        let scaling = scaling_of(rotation, context).map_err(bad)?;
        let rope = Rope { layout: LAYOUT, style: RopeStyle::NeoX, rotary, base, scaling, tables: false };
        let used = json["use_sliding_window"].as_bool() != Some(false);
        let window = optional_size("sliding_window")?.filter(|_| used);
        let types = json["layer_types"].as_array();
        let windowed = |layer: usize| match types.and_then(|types| types.get(layer)) {
            Some(kind) => kind == "sliding_attention",
            None => architecture.has_window(layer),
        };
        let experts = match optional_size("num_experts")? {
            Some(count) => {
                let renormalise = json["norm_topk_prob"].as_bool().unwrap_or(true);
                Some(Experts { count, used: size("num_experts_per_tok")?, renormalise })
            }
            None => None,
        };
        let scale = float("query_pre_attn_scalar");
        let config = Config {
            hidden,
            heads,
            kv_heads: optional_size("num_key_value_heads")?.unwrap_or(heads),
            key_dim,
            value_dim: key_dim,
            context,
            eps: float("rms_norm_eps").unwrap_or(1e-6),
            local_rope: architecture.local_rope(&rope, float("rope_local_base_freq")),
            rope,
            rope_amplitude: 1.0,
            original_context: context,
            windows: (0..layers).map(|layer| window.filter(|_| windowed(layer))).collect(),
            scale: scale.filter(|s| *s > 0.0).map(|s| 1.0 / s.sqrt()),
            softcap: float("attn_logit_softcapping"),
            final_softcap: float("final_logit_softcapping"),
            embedding_scale: architecture.scaled_embedding.then(|| (hidden as f64).sqrt()),
            experts,
            activation: architecture.activation,
            ffn_norm: architecture.ffn_norm,
        };
        Ok((config.check(&|key, problem| bad(format!("`{key}`: {problem}")))?, architecture))
    }

    /// What no tensor would show to be wrong.
    fn check(self, fail: &dyn Fn(&str, String) -> Error) -> Result<Self, Error> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            let problem = format!("{} heads of keys do not divide {}", self.kv_heads, self.heads);
            return Err(fail("attention.head_count_kv", problem));
        }
        if self.key_dim == 0 || !self.rope.rotary.is_multiple_of(2) || self.rope.rotary > self.key_dim {
            let problem = format!("{} of {} elements cannot rotate", self.rope.rotary, self.key_dim);
            return Err(fail("rope.dimension_count", problem));
        }
        if let Some(Experts { count, used, .. }) = self.experts.filter(|experts| experts.used > experts.count)
        {
            return Err(fail("expert_used_count", format!("{used} of {count} experts cannot be used")));
        }
        let caps = [self.softcap, self.final_softcap].into_iter().flatten();
        if let Some(cap) = caps.into_iter().find(|cap| !(cap.is_finite() && *cap > 0.0)) {
            return Err(fail("logit_softcapping", format!("{cap} is no bound")));
        }
        Ok(self)
    }
}

impl Architecture {
    /// Whether a layer has the window, if there is one.
    fn has_window(&self, layer: usize) -> bool {
        self.global_every == 1 || !(layer + 1).is_multiple_of(self.global_every)
    }

    /// The rotation of layers with a window.
    fn local_rope(&self, rope: &Rope, base: Option<f64>) -> Rope {
        match base.or(self.local_base) {
            Some(base) => Rope { base, scaling: RopeScaling::None, ..rope.clone() },
            None => rope.clone(),
        }
    }
}

/// An error that names a key of the metadata.
fn wrong(key: &str, problem: String) -> Error {
    olivine_gguf::Error::Metadata { key: key.to_string(), problem }.into()
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

/// What `rope_scaling` of a `config.json` says.
fn scaling_of(json: &Value, context: usize) -> Result<RopeScaling, String> {
    let kind = json["rope_type"].as_str().or_else(|| json["type"].as_str()).unwrap_or("default");
    let number =
        |key: &str| json[key].as_f64().ok_or_else(|| format!("`rope_scaling.{key}` is not a number"));
    let original = || json["original_max_position_embeddings"].as_f64().unwrap_or(context as f64);
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: number("original_max_position_embeddings")?,
        }),
        "yarn" => Ok(RopeScaling::Yarn {
            factor: number("factor")?,
            original: original(),
            beta_fast: json["beta_fast"].as_f64().unwrap_or(32.0),
            beta_slow: json["beta_slow"].as_f64().unwrap_or(1.0),
        }),
        other => Err(format!("`rope_scaling` of type `{other}` cannot be run")),
    }
}
