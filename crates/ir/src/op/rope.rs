//! Rotary position embedding.

use crate::attr::{Attr, AttrField, Attrs};
use crate::graph::{Graph, ValueId};
use crate::op::{HeadLayout, Rule, arity, float, index, of_shape, op, same_dtype};
use crate::{Dim, Error, TensorType, words};

words! {
    /// Which elements form a rotated pair.
    pub enum RopeStyle {
        /// i and i + half: the two halves.
        NeoX = "neox",
        /// 2i and 2i + 1: neighbours.
        GptJ = "gptj",
    }
}

/// How frequencies are stretched for longer contexts.
#[derive(Clone, Copy, Debug)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// The base raised so that the lowest frequency is stretched by the factor: base·factor^(d/(d−2)).
    Ntk {
        /// The factor.
        factor: f64,
    },
    /// YaRN: low frequencies interpolated, high ones kept, a ramp between; cos and sin scaled by 0.1·ln(factor) + 1.
    Yarn {
        /// The factor.
        factor: f64,
        /// Context length of the original model.
        original: f64,
        /// Rotations above which a frequency is kept (32).
        beta_fast: f64,
        /// Rotations below which a frequency is interpolated (1).
        beta_slow: f64,
    },
    /// Llama 3: wavelengths above original/low divided by the factor, below original/high kept, smooth between.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Low frequency factor.
        low: f64,
        /// High frequency factor.
        high: f64,
        /// Context length of the original model.
        original: f64,
    },
}

impl PartialEq for RopeScaling {
    fn eq(&self, other: &Self) -> bool {
        self.write() == other.write()
    }
}

impl AttrField for RopeScaling {
    fn write(&self) -> Attr {
        let record = |kind: &str, fields: &[(&str, f64)]| {
            let mut out = vec![("kind".to_string(), Attr::Word(kind.into()))];
            out.extend(fields.iter().map(|(n, x)| (n.to_string(), Attr::Float(*x))));
            Attr::Record(out)
        };
        match *self {
            RopeScaling::None => Attr::None,
            RopeScaling::Linear { factor } => record("linear", &[("factor", factor)]),
            RopeScaling::Ntk { factor } => record("ntk", &[("factor", factor)]),
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow } => record(
                "yarn",
                &[
                    ("factor", factor),
                    ("original", original),
                    ("beta_fast", beta_fast),
                    ("beta_slow", beta_slow),
                ],
            ),
            RopeScaling::Llama3 { factor, low, high, original } => {
                record("llama3", &[("factor", factor), ("low", low), ("high", high), ("original", original)])
            }
        }
    }

    fn read(attr: &Attr) -> Result<Self, String> {
        if *attr == Attr::None {
            return Ok(RopeScaling::None);
        }
        let Attr::Record(fields) = attr else {
            return Err(format!("expected a scaling record, found `{attr}`"));
        };
        let all = Attrs(fields.clone());
        let Some((_, Attr::Word(kind))) = fields.iter().find(|(n, _)| n == "kind") else {
            return Err("a scaling record needs `kind`".into());
        };
        let get = |name: &str| all.get::<f64>(name);
        match kind.as_str() {
            "linear" => all.only(&["kind", "factor"]).and(Ok(RopeScaling::Linear { factor: get("factor")? })),
            "ntk" => all.only(&["kind", "factor"]).and(Ok(RopeScaling::Ntk { factor: get("factor")? })),
            "yarn" => {
                all.only(&["kind", "factor", "original", "beta_fast", "beta_slow"])?;
                Ok(RopeScaling::Yarn {
                    factor: get("factor")?,
                    original: get("original")?,
                    beta_fast: get("beta_fast")?,
                    beta_slow: get("beta_slow")?,
                })
            }
            "llama3" => {
                all.only(&["kind", "factor", "low", "high", "original"])?;
                Ok(RopeScaling::Llama3 {
                    factor: get("factor")?,
                    low: get("low")?,
                    high: get("high")?,
                    original: get("original")?,
                })
            }
            other => Err(format!("unknown scaling `{other}`")),
        }
    }

    fn missing() -> Option<Self> {
        Some(RopeScaling::None)
    }
}

op! {
    /// Rotates pairs of the first `rotary` elements of each head by position-dependent angles; the rest passes.
    ///
    /// Operands: x (rank 4 in the layout), then positions (i32/i64 `[S]` or `[B, S]`); or, with `tables`, cos and sin
    /// `[S, rotary/2]` or `[B, S, rotary/2]` of x's dtype instead of positions, and base and scaling are not used.
    pub struct Rope = "rope" {
        /// Layout of x.
        pub layout: HeadLayout,
        /// Which elements pair up.
        pub style: RopeStyle,
        /// How many leading elements rotate: even, at most the head dim.
        pub rotary: usize,
        /// The base of the frequencies, usually 10000.
        pub base: f64,
        /// How frequencies are stretched.
        pub scaling: RopeScaling,
        /// Whether cos and sin are operands.
        pub tables: bool,
    }
}

impl Rope {
    /// The angle per position of each pair, and the factor on cos and sin.
    pub fn frequencies(&self) -> (Vec<f64>, f64) {
        let d = self.rotary as f64;
        let base = match self.scaling {
            RopeScaling::Ntk { factor } if d > 2.0 => self.base * factor.powf(d / (d - 2.0)),
            _ => self.base,
        };
        let plain = |i: usize| base.powf(-2.0 * i as f64 / d);
        let pairs = 0..self.rotary / 2;
        match self.scaling {
            RopeScaling::None | RopeScaling::Ntk { .. } => (pairs.map(plain).collect(), 1.0),
            RopeScaling::Linear { factor } => (pairs.map(|i| plain(i) / factor).collect(), 1.0),
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow } => {
                let pair_of = |rotations: f64| {
                    d * (original / (rotations * std::f64::consts::TAU)).ln() / (2.0 * self.base.ln())
                };
                let low = pair_of(beta_fast).floor().max(0.0);
                let high = pair_of(beta_slow).ceil().min(d - 1.0);
                let width = if high == low { 0.001 } else { high - low };
                let frequency = |i: usize| {
                    let interpolated = ((i as f64 - low) / width).clamp(0.0, 1.0);
                    plain(i) / factor * interpolated + plain(i) * (1.0 - interpolated)
                };
                let amplitude = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                (pairs.map(frequency).collect(), amplitude)
            }
            RopeScaling::Llama3 { factor, low, high, original } => {
                let frequency = |i: usize| {
                    let f = plain(i);
                    let wavelength = std::f64::consts::TAU / f;
                    if wavelength < original / high {
                        f
                    } else if wavelength > original / low {
                        f / factor
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (pairs.map(frequency).collect(), 1.0)
            }
        }
    }
}

impl Rule for Rope {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let count = if self.tables { 3 } else { 2 };
        arity(operands, count..=count)?;
        float(&operands[0])?;
        if operands[0].shape.rank() != 4 {
            return Err(format!("x must have rank 4, got {}", operands[0].shape));
        }
        let (b, _, s, d) = self.layout.sizes(&operands[0].shape);
        if !self.rotary.is_multiple_of(2) || self.rotary > d {
            return Err(format!("rotary size {} must be even and at most the head dim {d}", self.rotary));
        }
        let (tail, what) = if self.tables {
            (vec![Dim::from(self.rotary / 2)], "a table")
        } else {
            (Vec::new(), "positions")
        };
        for t in &operands[1..] {
            let full = [&[b, s], &tail[..]].concat();
            if t.shape.rank() == full.len() {
                of_shape(what, t, &full)?;
            } else {
                of_shape(what, t, &full[1..])?;
            }
            if self.tables { same_dtype(&[operands[0], *t])? } else { index(t)? }
        }
        if self.tables && operands[1].shape != operands[2].shape {
            return Err("the two tables differ in shape".into());
        }
        Ok(vec![operands[0]])
    }

    fn reads_strides(&self, operand: usize) -> bool {
        operand == 0
    }
}

impl Graph {
    /// Rotary embedding; `operands` are the positions, or the cos and sin tables. See [`Rope`].
    pub fn rope(&mut self, spec: Rope, x: ValueId, operands: &[ValueId]) -> Result<ValueId, Error> {
        let all: Vec<ValueId> = std::iter::once(x).chain(operands.iter().copied()).collect();
        self.add1(spec, &all)
    }
}
