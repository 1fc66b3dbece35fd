//! Choosing tokens from logits.

use crate::graph::{Graph, ValueId};
use crate::op::random::drawn;
use crate::op::{Rule, arity, find_index, float, index, op, shape};
use crate::{DType, Dim, Error, Tensor, TensorType};

/// The rows of logits `[B, V]` or `[V]`: their dims before the last, and V.
fn rows(logits: &TensorType) -> Result<(Vec<Dim>, usize), String> {
    match &logits.shape.sizes()[..] {
        [rows @ .., v] if rows.len() <= 1 => Ok((rows.to_vec(), v.specialize().map_err(|e| e.to_string())?)),
        _ => Err(format!("logits must be [B, V] or [V], got {}", logits.shape)),
    }
}

/// A number for all rows, or one each.
fn per_row(what: &str, operand: &TensorType, dtype: DType, rows: &[Dim]) -> Result<(), String> {
    let dims = operand.shape.sizes();
    if operand.dtype == dtype && (dims.is_empty() || dims[..] == *rows) {
        return Ok(());
    }
    Err(format!("{what} must be a scalar or a {dtype} for each of {rows:?} rows, got {operand}"))
}

op! {
    /// Draws a token from each row of logits, as i32; operands: logits `[B, V]` or `[V]`, temperature (f32), top_k (i32), top_p
    /// (f32), min_p (f32), each a scalar or `[B]`, and the run counter; or instead of that u32 `[B, 4]`, for each row a key and the
    /// number of its draw, low words first, so that what a row draws depends on no other; or u32 `[0, 4]`, with which no row draws: each
    /// takes its largest logit, whatever the filters are.
    ///
    /// The filters, in this order: the temperature divides the logits; top_k keeps the k largest (all if k < 1); top_p the
    /// fewest of the largest whose probabilities, among what top_k kept, reach p (all if p ≥ 1); min_p those at least min_p
    /// times as probable as the likeliest. Of equal logits lower positions come first. A temperature below 2⁻¹⁰⁰ or NaN
    /// takes the largest logit. One always remains. NaN counts as −∞; a row without anything above −∞ counts as
    /// one of equal logits.
    ///
    /// A token's weight is an integer, ⌊2³⁰·e^((x − max)/temperature)⌋, computed by the same steps on every backend; so sums
    /// are exact, and the first position whose running sum of kept weights exceeds ⌊total·w / 2³²⌋ is the same
    /// everywhere. w is the first word of Philox block `row`; see [`RngUniform`](crate::op::RngUniform). With a key of its own a row takes block 0
    /// under that key, with its number in place of the run counter.
    pub struct Sample = "sample" {
        /// The key.
        pub seed: u64,
        /// Nodes with one seed and different streams draw independently.
        pub stream: usize,
    }
}

impl Rule for Sample {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 6..=6)?;
        float(&operands[0])?;
        if operands[0].dtype == DType::F64 {
            return Err("logits must be f32, f16 or bf16, got f64".into());
        }
        let (rows, v) = rows(&operands[0])?;
        if v == 0 || v > i32::MAX as usize {
            return Err(format!("a token of {v} cannot be chosen"));
        }
        per_row("temperature", &operands[1], DType::F32, &rows)?;
        per_row("top_k", &operands[2], DType::I32, &rows)?;
        per_row("top_p", &operands[3], DType::F32, &rows)?;
        per_row("min_p", &operands[4], DType::F32, &rows)?;
        match &operands[5].shape.sizes()[..] {
            [count, words]
                if *words == 4
                    && operands[5].dtype == DType::U32
                    && rows.len() == 1
                    && (*count == 0 || rows[0] == *count) => {}
            _ => drawn(&operands[5], self.stream)?,
        }
        Ok(vec![TensorType::new(DType::I32, shape(&rows)?)])
    }
}

op! {
    /// Logits of tokens that came before, made less (or more) likely; operands: logits `[B, V]` or `[V]`, tokens `[B, T]` or `[T]`,
    /// and the repetition, frequency and presence penalties (f32), each a scalar or `[B]`.
    ///
    /// The logit x of a token that stands c ≥ 1 times among its row's tokens becomes x / repetition if x is positive, else x ·
    /// repetition; then frequency·c and presence are subtracted. Negative tokens are padding and do not count; a token not
    /// below V is dropped, and reported in checked mode. Computed in f32 (f64 for f64).
    pub struct Penalties = "penalties" {}
}

impl Rule for Penalties {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 5..=5)?;
        float(&operands[0])?;
        index(&operands[1])?;
        let (rows, v) = rows(&operands[0])?;
        if v > i32::MAX as usize {
            return Err(format!("{v} tokens are more than can be counted"));
        }
        match &operands[1].shape.sizes()[..] {
            [before @ .., _] if *before == rows[..] => {}
            _ => return Err(format!("tokens must be {rows:?} rows, got {}", operands[1].shape)),
        }
        for (what, operand) in ["repetition", "frequency", "presence"].into_iter().zip(&operands[2..]) {
            per_row(what, operand, DType::F32, &rows)?;
        }
        Ok(vec![operands[0]])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        if values[1].is_none() {
            return Ok(());
        }
        let v = operands[0].shape.dims().last().copied().unwrap_or(0) as i64;
        match find_index(values[1], |_, i| i >= v) {
            Some((position, i)) => Err(format!("token {i} at position {position} is out of range for {v}")),
            None => Ok(()),
        }
    }
}

/// How tokens are drawn; the default draws from the logits as they are.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Scalar f32 or one per row; 1 if absent.
    pub temperature: Option<ValueId>,
    /// Scalar i32 or one per row; all tokens if absent.
    pub top_k: Option<ValueId>,
    /// Scalar f32 or one per row; 1 if absent.
    pub top_p: Option<ValueId>,
    /// Scalar f32 or one per row; 0 if absent.
    pub min_p: Option<ValueId>,
    /// The key.
    pub seed: u64,
    /// u32 `[B, 4]`: a key and a number for each row, instead of the seed and the run counter; `[0, 4]` takes the largest logits.
    pub draws: Option<ValueId>,
}

impl Sampling {
    /// Draws from the logits as they are.
    pub fn new(seed: u64) -> Self {
        Sampling { temperature: None, top_k: None, top_p: None, min_p: None, seed, draws: None }
    }
}

impl Graph {
    /// Draws a token from each row, in a stream of its own; see [`Sample`].
    pub fn sample(&mut self, logits: ValueId, how: Sampling) -> Result<ValueId, Error> {
        let number = |g: &mut Graph, given: Option<ValueId>, default: f32| {
            given.unwrap_or_else(|| g.constant(Tensor::scalar(default)))
        };
        let temperature = number(self, how.temperature, 1.0);
        let top_k = how.top_k.unwrap_or_else(|| self.constant(Tensor::scalar(0i32)));
        let (top_p, min_p) = (number(self, how.top_p, 1.0), number(self, how.min_p, 0.0));
        let counter = how.draws.map_or_else(|| self.run_counter(), Ok)?;
        let stream = self.next_stream();
        let operands = [logits, temperature, top_k, top_p, min_p, counter];
        self.add1(Sample { seed: how.seed, stream }, &operands)
    }

    /// Logits with repeated tokens penalised; penalties that are absent do nothing. See [`Penalties`].
    pub fn penalties(
        &mut self,
        logits: ValueId,
        tokens: ValueId,
        repetition: Option<ValueId>,
        frequency: Option<ValueId>,
        presence: Option<ValueId>,
    ) -> Result<ValueId, Error> {
        let [repetition, frequency, presence] = [(repetition, 1.0f32), (frequency, 0.0), (presence, 0.0)]
            .map(|(given, default)| given.unwrap_or_else(|| self.constant(Tensor::scalar(default))));
        self.add1(Penalties {}, &[logits, tokens, repetition, frequency, presence])
    }
}
