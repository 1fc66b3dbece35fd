//! The configuration of a model from a `config.json`.

use olivine_ir::op::{Rope, RopeScaling, RopeStyle};
use serde_json::Value;

use super::architecture::{ARCHITECTURES, Activation, Architecture, Recurrence};
use super::config::{Config, Experts, LARGEST, LAYOUT, MOST_LAYERS, Recurrent};
use crate::Error;

/// Positions of a model whose configuration has no bound of them.
const UNBOUNDED_CONTEXT: usize = 1 << 20;

/// The entries of a configuration; `bad` makes an error of a problem.
struct Entries<'j> {
    json: &'j Value,
    bad: &'j dyn Fn(String) -> Error,
}

impl Entries<'_> {
    fn given(&self, key: &str) -> Option<&Value> {
        Some(&self.json[key]).filter(|value| !value.is_null())
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, Error> {
        match self.given(key) {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|v| (1..=LARGEST).contains(v)) {
                Some(v) => Ok(Some(v as usize)),
                None => Err((self.bad)(format!("`{key}` is {value}, which is not a size"))),
            },
        }
    }

    fn size(&self, key: &str) -> Result<usize, Error> {
        self.optional_size(key)?.ok_or_else(|| (self.bad)(format!("`{key}` is missing")))
    }

    fn size_or(&self, key: &str, other: usize) -> Result<usize, Error> {
        Ok(self.optional_size(key)?.unwrap_or(other))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.given(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(value) => Ok(Some(value)),
                None => Err((self.bad)(format!("`{key}` is {value}, which is not a number"))),
            },
        }
    }
}

impl Config {
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
        let entries = Entries { json, bad };
        let recurrent = architecture.recurrence.map(|kind| recurrent(&entries, kind)).transpose()?;
        let attends = architecture.recurrence != Some(Recurrence::Mamba2);
        let hidden = entries.size("hidden_size")?;
        let heads = if attends { entries.size("num_attention_heads")? } else { 0 };
        let layers = entries.size("num_hidden_layers")?;
        if layers > MOST_LAYERS {
            return Err(bad(format!("`num_hidden_layers` is {layers}, more than {MOST_LAYERS}")));
        }
        check_activation(&entries, architecture)?;
        let key_dim = match attends {
            true => entries.size_or("head_dim", hidden.checked_div(heads).unwrap_or(0))?,
            false => 0,
        };
        let context = match attends {
            true => entries.size("max_position_embeddings")?,
            false => entries.size_or("max_position_embeddings", UNBOUNDED_CONTEXT)?,
        };
        let original_context = entries.size_or("original_max_position_embeddings", context)?;
        let Rotation { rope, divisors, amplitude, local_base } =
            rotation(&entries, key_dim, context, original_context)?;
        let used = json["use_sliding_window"].as_bool() != Some(false);
        let window = entries.optional_size("sliding_window")?.filter(|_| used);
        let local = local_layers(&entries, architecture, layers)?;
        let count = match entries.optional_size("num_experts")? {
            Some(count) => Some(count),
            None => entries.optional_size("num_local_experts")?,
        };
        let experts = match count {
            Some(count) => {
                let renormalise = json["norm_topk_prob"].as_bool().unwrap_or(true);
                Some(Experts { count, used: entries.size("num_experts_per_tok")?, renormalise })
            }
            None => None,
        };
        let scale = entries.float("query_pre_attn_scalar")?;
        let eps = if attends { "rms_norm_eps" } else { "layer_norm_epsilon" };
        let config = Config {
            hidden,
            vocabulary: entries.optional_size("vocab_size")?,
            heads,
            kv_heads: if attends { entries.size_or("num_key_value_heads", heads)? } else { 0 },
            key_dim,
            value_dim: key_dim,
            context,
            eps: entries.float(eps)?.unwrap_or(1e-6),
            local_rope: architecture.local_rope(&rope, local_base),
            rope,
            rope_divisors: divisors,
            rope_amplitude: amplitude,
            original_context,
            extra_layers: false,
            mixers: local.into_iter().map(|local| architecture.mixer(local, window)).collect(),
            recurrent,
            gated_attention: architecture.gated_attention,
            scale: scale.map(|s| 1.0 / s.sqrt()),
            softcap: entries.float("attn_logit_softcapping")?,
            final_softcap: entries.float("final_logit_softcapping")?,
            embedding_scale: architecture.scaled_embedding.then(|| (hidden as f64).sqrt()),
            experts,
            activation: architecture.activation,
            ffn_norm: architecture.ffn_norm,
        };
        Ok((config.check(&|key, problem| bad(format!("`{}`: {problem}", key.json)))?, architecture))
    }
}

/// For every layer whether it is local: with a window, or recurrent.
fn local_layers(
    entries: &Entries<'_>,
    architecture: &Architecture,
    layers: usize,
) -> Result<Vec<bool>, Error> {
    let Some(types) = entries.given("layer_types") else {
        let every = match architecture.recurrence {
            Some(Recurrence::GatedDelta) => {
                entries.size_or("full_attention_interval", architecture.global_every)?
            }
            _ => architecture.global_every,
        };
        return Ok((0..layers).map(|layer| architecture.is_local(layer, every)).collect());
    };
    let bad = |problem: String| (entries.bad)(format!("`layer_types` {problem}"));
    let types = types.as_array().filter(|types| types.len() == layers);
    let types = types.ok_or_else(|| bad(format!("is no list of {layers} kinds of layers")))?;
    let local = match architecture.recurrence {
        Some(_) => "linear_attention",
        None => "sliding_attention",
    };
    let one = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some(kind) if kind == local => Ok(true),
        _ => Err(bad(format!("has {kind}, which cannot be run"))),
    };
    types.iter().map(one).collect()
}

/// A configuration that asks for another function than the architecture's is an error.
fn check_activation(entries: &Entries<'_>, architecture: &Architecture) -> Result<(), Error> {
    let key = if entries.given("hidden_activation").is_some() { "hidden_activation" } else { "hidden_act" };
    let Some(name) = entries.given(key) else { return Ok(()) };
    let fits = match architecture.activation {
        Activation::GeluTanh => name == "gelu_pytorch_tanh",
        Activation::Silu | Activation::ClampedSilu => matches!(name.as_str(), Some("silu" | "swish")),
    };
    if !fits {
        return Err((entries.bad)(format!("`{key}` is {name}, which this architecture cannot be run with")));
    }
    if let Some(limit) = entries.float("swiglu_limit")?.filter(|limit| *limit != 7.0) {
        return Err((entries.bad)(format!("`swiglu_limit` is {limit}; 7 alone can be run")));
    }
    Ok(())
}

/// Sizes of layers without attention.
fn recurrent(entries: &Entries<'_>, kind: Recurrence) -> Result<Recurrent, Error> {
    Ok(match kind {
        Recurrence::Mamba2 => Recurrent {
            kernel: entries.size_or("conv_kernel", 4)?,
            heads: entries.size("num_heads")?,
            dim: entries.size("head_dim")?,
            groups: entries.size_or("n_groups", 8)?,
            state: entries.size_or("state_size", 128)?,
            step_limits: step_limits(entries)?,
        },
        Recurrence::GatedDelta => Recurrent {
            kernel: entries.size_or("linear_conv_kernel_dim", 4)?,
            heads: entries.size("linear_num_value_heads")?,
            dim: entries.size("linear_value_head_dim")?,
            groups: entries.size("linear_num_key_heads")?,
            state: entries.size("linear_key_head_dim")?,
            step_limits: None,
        },
    })
}

/// Bounds of the time step: a number that JSON does not have stands for infinity.
fn step_limits(entries: &Entries<'_>) -> Result<Option<[f64; 2]>, Error> {
    let Some(limits) = entries.given("time_step_limit") else { return Ok(None) };
    let number = |value: &Value| if value.is_null() { Some(f64::INFINITY) } else { value.as_f64() };
    let limits = match limits.as_array().map(Vec::as_slice) {
        Some([low, high]) => number(low).zip(number(high)).filter(|(low, high)| low <= high),
        _ => None,
    };
    let (low, high) =
        limits.ok_or_else(|| (entries.bad)("`time_step_limit` is not a pair of bounds".into()))?;
    Ok((low > 0.0 || high < f64::INFINITY).then_some([low, high]))
}

/// How queries and keys rotate.
struct Rotation {
    rope: Rope,
    /// Divisors of frequencies, for short contexts and for long ones.
    divisors: Option<[Vec<f64>; 2]>,
    amplitude: f64,
    local_base: Option<f64>,
}

fn rotation(
    entries: &Entries<'_>,
    key_dim: usize,
    context: usize,
    original_context: usize,
) -> Result<Rotation, Error> {
    let all = entries.given("rope_scaling").or_else(|| entries.given("rope_parameters"));
    let all = all.unwrap_or(&Value::Null);
    // Later configurations have one for every kind of layer.
    let own = if all["full_attention"].is_object() { &all["full_attention"] } else { all };
    let part = entries.float("partial_rotary_factor")?.or_else(|| own["partial_rotary_factor"].as_f64());
    let base = entries.float("rope_theta")?.or_else(|| own["rope_theta"].as_f64()).unwrap_or(10_000.0);
    let local_base =
        entries.float("rope_local_base_freq")?.or_else(|| all["sliding_attention"]["rope_theta"].as_f64());
    let rotary = (part.unwrap_or(1.0) * key_dim as f64) as usize;
    let rope = Rope {
        layout: LAYOUT,
        style: RopeStyle::NeoX,
        rotary,
        base,
        scaling: RopeScaling::None,
        tables: false,
    };
    let scaled = scaling(own, &rope, context as f64, original_context as f64);
    let (scaling, divisors, amplitude) = scaled.map_err(entries.bad)?;
    Ok(Rotation { rope: Rope { scaling, ..rope }, divisors, amplitude, local_base })
}

type Scaling = (RopeScaling, Option<[Vec<f64>; 2]>, f64);

/// What `rope_scaling` says: a scaling, or divisors of frequencies and a factor on cos and sin.
fn scaling(json: &Value, rope: &Rope, context: f64, original: f64) -> Result<Scaling, String> {
    let kind = json["rope_type"].as_str().or_else(|| json["type"].as_str()).unwrap_or("default");
    let number =
        |key: &str| json[key].as_f64().ok_or_else(|| format!("`rope_scaling.{key}` is not a number"));
    let plain = |scaling: RopeScaling| Ok((scaling, None, 1.0));
    match kind {
        "default" => plain(RopeScaling::None),
        "linear" => plain(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => plain(RopeScaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: number("original_max_position_embeddings")?,
        }),
        "yarn" => {
            let original = json["original_max_position_embeddings"].as_f64().unwrap_or(original);
            let (factor, fast) = (number("factor")?, json["beta_fast"].as_f64().unwrap_or(32.0));
            let slow = json["beta_slow"].as_f64().unwrap_or(1.0);
            let scaling = RopeScaling::Yarn { factor, original, beta_fast: fast, beta_slow: slow };
            let exact = json["truncate"].as_bool() == Some(false);
            let amplitude = json["attention_factor"].as_f64();
            if !exact && amplitude.is_none() {
                return plain(scaling);
            }
            let divisors = yarn_divisors(rope, factor, original, [fast, slow], exact);
            let usual = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
            Ok((RopeScaling::None, Some([divisors.clone(), divisors]), amplitude.unwrap_or(usual)))
        }
        "longrope" | "su" => {
            let list = |key: &str| -> Result<Vec<f64>, String> {
                let values = json[key].as_array().map(|list| list.iter().map(Value::as_f64).collect());
                values.flatten().ok_or_else(|| format!("`rope_scaling.{key}` is not a list of numbers"))
            };
            let factor =
                if context > original { context / original } else { json["factor"].as_f64().unwrap_or(1.0) };
            let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
            let amplitude = json["attention_factor"].as_f64().unwrap_or(usual);
            Ok((RopeScaling::None, Some([list("short_factor")?, list("long_factor")?]), amplitude))
        }
        other => Err(format!("`rope_scaling` of type `{other}` cannot be run")),
    }
}

/// What YaRN divides frequencies by; `exact` where the ends of the ramp are not rounded to pairs.
fn yarn_divisors(rope: &Rope, factor: f64, original: f64, betas: [f64; 2], exact: bool) -> Vec<f64> {
    let size = rope.rotary as f64;
    let ends =
        betas.map(|turns| size * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * rope.base.ln()));
    let [low, high] = if exact { ends } else { [ends[0].floor(), ends[1].ceil()] };
    let (low, high) = (low.max(0.0), high.min(size - 1.0));
    let width = if high == low { 0.001 } else { high - low };
    let divisor = |pair: usize| {
        let interpolated = ((pair as f64 - low) / width).clamp(0.0, 1.0);
        1.0 / (interpolated / factor + 1.0 - interpolated)
    };
    (0..rope.rotary / 2).map(divisor).collect()
}
