//! Attention and the key-value cache.

use crate::graph::{Graph, ValueId};
use crate::op::packed::narrow_float;
use crate::op::{Rule, arity, float, index, of_shape, op, same_dtype, shape};
use crate::{BlockFormat, DType, Dim, Error, Shape, TensorType, words};

words! {
    /// Where heads stand in q, k and v; never guessed from sizes.
    pub enum HeadLayout {
        /// `[batch, sequence, heads, dim]`.
        Bshd = "bshd",
        /// `[batch, heads, sequence, dim]`.
        Bhsd = "bhsd",
    }
}

impl HeadLayout {
    /// Batch, heads, sequence and head dim of a shape, as numbers.
    #[track_caller]
    pub fn numbers(self, s: &Shape) -> (usize, usize, usize, usize) {
        match self {
            HeadLayout::Bshd => (s.number(0), s.number(2), s.number(1), s.number(3)),
            HeadLayout::Bhsd => (s.number(0), s.number(1), s.number(2), s.number(3)),
        }
    }

    /// `(batch, heads, sequence, dim)` of a rank-4 shape.
    pub fn sizes(self, s: &Shape) -> (Dim, Dim, Dim, Dim) {
        match self {
            HeadLayout::Bshd => (s.size(0), s.size(2), s.size(1), s.size(3)),
            HeadLayout::Bhsd => (s.size(0), s.size(1), s.size(2), s.size(3)),
        }
    }

    /// Dimensions in this layout.
    pub fn dims<T>(self, batch: T, heads: T, sequence: T, dim: T) -> [T; 4] {
        match self {
            HeadLayout::Bshd => [batch, sequence, heads, dim],
            HeadLayout::Bhsd => [batch, heads, sequence, dim],
        }
    }
}

words! {
    /// What the mask operand is.
    pub enum MaskKind {
        /// There is none.
        None = "nomask",
        /// bool: true keeps the score.
        Keep = "keep",
        /// Added to the score.
        Bias = "bias",
    }
}

op! {
    /// `softmax(scale·q·kᵀ masked)·v` per head.
    ///
    /// Operands: q, k, v, then in this order those announced: the mask (broadcast to `[B, H, Sq, Sk]`), sinks `[H]`
    /// (an extra logit per head that takes weight and adds nothing), lengths (i32/i64 `[B]` or scalar: how many
    /// leading keys of k and v count; clamped to Sk at run time), pages (i32/i64 `[B, P]`).
    ///
    /// With pages, k and v are pools that sequences share: their batch axis counts pages, and their sequence axis the positions S of
    /// a page. Key j of sequence b is row j mod S of page `pages[b, j / S]`, and Sk is P·S. Numbers of pages are clamped to
    /// those there are; those of keys that no query sees are not read.
    ///
    /// k and v may be packed as [`KvAppend::FORMAT`], both of them: their elements are what the blocks decode to in f32, and q is f32,
    /// f16 or bf16.
    ///
    /// kv heads divide heads. Query i of Sq sits at position L−Sq+i, L being the length or Sk.
    /// The order of the score's steps is scale, softcap, bias, masks. A fully masked row gives zeros.
    pub struct Attention = "attention" {
        /// Layout of q, k, v and the result.
        pub layout: HeadLayout,
        /// Factor on q·k; d^-1/2 when not given.
        pub scale: Option<f64>,
        /// Keys after the query's position do not count.
        pub causal: bool,
        /// Only keys in (position − window, position] count.
        pub window: Option<usize>,
        /// Scores become c·tanh(s/c).
        pub softcap: Option<f64>,
        /// What the mask operand is.
        pub mask: MaskKind,
        /// Whether sinks are given.
        pub sinks: bool,
        /// Whether lengths are given.
        pub lengths: bool,
        /// Whether k and v are pools of pages.
        pub pages: bool,
    }
}

/// Positions of [`Attention`]'s optional operands, of those that are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionOperands {
    /// The mask.
    pub mask: Option<usize>,
    /// One logit for each head.
    pub sinks: Option<usize>,
    /// How many keys count.
    pub lengths: Option<usize>,
    /// Where keys are.
    pub pages: Option<usize>,
}

/// The largest head dim a backend must support.
const MAX_HEAD_DIM: usize = 512;

impl Attention {
    /// Plain attention in a layout: default scale, no masks.
    pub fn new(layout: HeadLayout) -> Self {
        Attention {
            layout,
            scale: None,
            causal: false,
            window: None,
            softcap: None,
            mask: MaskKind::None,
            sinks: false,
            lengths: false,
            pages: false,
        }
    }

    /// The factor on q·k for a head dim.
    pub fn scale_for(&self, dim: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (dim as f64).sqrt())
    }

    /// Where the optional operands stand.
    pub fn optional_operands(&self) -> AttentionOperands {
        let mut next = 3;
        let mut take = |given: bool| {
            given.then(|| {
                next += 1;
                next - 1
            })
        };
        AttentionOperands {
            mask: take(self.mask != MaskKind::None),
            sinks: take(self.sinks),
            lengths: take(self.lengths),
            pages: take(self.pages),
        }
    }
}

impl Rule for Attention {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let AttentionOperands { mask, sinks, lengths, pages } = self.optional_operands();
        let count = 3 + [mask, sinks, lengths, pages].iter().flatten().count();
        arity(operands, count..=count)?;
        match (operands[1].packed, operands[2].packed) {
            (None, None) => same_dtype(&operands[..3])?,
            (Some(_), Some(_)) => {
                packed_cache(&operands[1])?;
                packed_cache(&operands[2])?;
                narrow_float(operands[0].dtype).map_err(|e| format!("q beside packed k and v {e}"))?;
            }
            _ => return Err(format!("both k and v must be packed, got {} and {}", operands[1], operands[2])),
        }
        float(&operands[0])?;
        if let Some(t) = operands[..3].iter().find(|t| t.shape.rank() != 4) {
            return Err(format!("q, k and v must have rank 4, got {}", t.shape));
        }
        let (b, h, sq, d) = self.layout.sizes(&operands[0].shape);
        let (bk, hk, sk, dk) = self.layout.sizes(&operands[1].elements());
        let (bv, hv, sv, dv) = self.layout.sizes(&operands[2].elements());
        if bk != bv || (b != bk && !self.pages) {
            return Err(format!("batches differ: q {b}, k {bk}, v {bv}"));
        }
        if d != dk {
            return Err(format!("head dims of q and k differ: {d} and {dk}"));
        }
        if hk != hv || sk != sv {
            return Err(format!("k and v differ: heads {hk} and {hv}, sequence {sk} and {sv}"));
        }
        let sk = match pages {
            Some(p) => paged_keys(&operands[p], b, bk, sk)?,
            None => sk,
        };
        if (hk == 0 && h != 0) || (hk != 0 && !h.is_multiple_of(hk)) {
            return Err(format!("{hk} kv heads do not divide {h} heads"));
        }
        if d > MAX_HEAD_DIM || dv > MAX_HEAD_DIM || d == 0 {
            return Err(format!("head dims must be 1 to {MAX_HEAD_DIM}, got {d} and {dv}"));
        }
        if self.window == Some(0) {
            return Err("a window must hold at least one key".into());
        }
        if self.softcap.is_some_and(|c| c.is_nan() || c <= 0.0) {
            return Err("a softcap must be positive".into());
        }
        if let Some(m) = mask {
            let t = &operands[m];
            let full = shape(&[b, h, sq, sk])?;
            if t.shape.broadcast(&full) != Some(full) {
                return Err(format!("mask {} does not broadcast to {full}", t.shape));
            }
            let want = if self.mask == MaskKind::Keep { DType::Bool } else { operands[0].dtype };
            if t.dtype != want {
                return Err(format!("the mask must be {want}, got {}", t.dtype));
            }
        }
        if let Some(s) = sinks {
            of_shape("sinks", &operands[s], &[h])?;
            same_dtype(&[operands[0], operands[s]])?;
        }
        if let Some(l) = lengths {
            index(&operands[l])?;
            if operands[l].shape.rank() != 0 {
                of_shape("lengths", &operands[l], &[b])?;
            }
        }
        Ok(vec![TensorType::new(operands[0].dtype, shape(&self.layout.dims(b, h, sq, dv))?)])
    }

    fn reads_strides(&self, operand: usize) -> bool {
        operand < 3 || self.optional_operands().mask == Some(operand)
    }

    fn reads_packed(&self, operand: usize) -> bool {
        matches!(operand, 1 | 2)
    }
}

/// Checks the block format of a packed cache.
fn packed_cache(cache: &TensorType) -> Result<(), String> {
    match cache.packed {
        Some(format) if format != KvAppend::FORMAT => {
            Err(format!("caches can be packed as {} only, got {cache}", KvAppend::FORMAT))
        }
        _ => Ok(()),
    }
}

/// Checks numbers of pages for a batch; the positions that they hold.
fn paged_keys(pages: &TensorType, batch: Dim, pool: Dim, positions: Dim) -> Result<Dim, String> {
    index(pages)?;
    match pages.shape.rank() {
        2 if pages.shape.size(0) == batch => {}
        _ => return Err(format!("pages must have shape [{batch}, P], got {}", pages.shape)),
    }
    let keys = pages.shape.size(1) * positions;
    if pool == 0 && keys != 0 {
        return Err("there must be a page".into());
    }
    Ok(keys)
}

op! {
    /// Writes rows into a cache at a run-time position; operands: cache, rows, position (i32/i64 scalar, or `[B]`: one for
    /// each sequence of the batch).
    ///
    /// The result is the cache with `rows` at `position ..` along the sequence axis; rows that fall outside are
    /// dropped. The buffer is reused when nothing else reads the old cache.
    ///
    /// With pages, a further operand (i32/i64 `[B, P]`), the cache is a pool as [`Attention`] reads it: a row goes to its position
    /// in the pages of its sequence, and is dropped if that is in none of them or in a page that does not exist. No two rows
    /// may go to one place.
    ///
    /// The cache may be packed as [`KvAppend::FORMAT`]: the rows are f32, f16 or bf16, and every 32 elements of a row become a block as
    /// `olivine_quant::encode_q8_0` says.
    pub struct KvAppend = "kv_append" {
        /// Layout of cache and rows.
        pub layout: HeadLayout,
        /// Whether the cache is a pool of pages.
        pub pages: bool,
    }
}

impl KvAppend {
    /// The block format that caches may be packed in: 8 bits for an element and an f16 scale for every 32 of a row.
    pub const FORMAT: BlockFormat = BlockFormat::Q8_0;
}

impl Rule for KvAppend {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let count = 3 + usize::from(self.pages);
        arity(operands, count..=count)?;
        match operands[0].packed {
            None => same_dtype(&operands[..2])?,
            Some(_) => {
                packed_cache(&operands[0])?;
                narrow_float(operands[1].dtype).map_err(|e| format!("rows of a packed cache: {e}"))?;
            }
        }
        index(&operands[2])?;
        if operands[..2].iter().any(|t| t.shape.rank() != 4) {
            return Err("cache and rows must have rank 4".into());
        }
        let (b, h, capacity, d) = self.layout.sizes(&operands[0].elements());
        let (br, hr, rows, dr) = self.layout.sizes(&operands[1].shape);
        if (h, d) != (hr, dr) || (b != br && !self.pages) {
            return Err("cache and rows differ in batch, heads or dim".into());
        }
        if operands[2].shape.rank() != 0 {
            of_shape("the position", &operands[2], &[br])?;
        }
        if self.pages {
            paged_keys(&operands[3], br, b, capacity)?;
        } else if rows > capacity {
            return Err(format!("{rows} rows do not fit a cache of {capacity}"));
        }
        Ok(vec![operands[0]])
    }

    fn reads_strides(&self, operand: usize) -> bool {
        operand == 1
    }

    fn reads_packed(&self, operand: usize) -> bool {
        operand == 0
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

impl Graph {
    /// Attention; `extra` holds the mask, sinks, lengths and pages that `spec` announces. See [`Attention`].
    pub fn attention(
        &mut self,
        spec: Attention,
        q: ValueId,
        k: ValueId,
        v: ValueId,
        extra: &[ValueId],
    ) -> Result<ValueId, Error> {
        let operands: Vec<ValueId> = [q, k, v].iter().chain(extra).copied().collect();
        self.add1(spec, &operands)
    }

    /// Writes rows into a cache; see [`KvAppend`].
    pub fn kv_append(
        &mut self,
        layout: HeadLayout,
        cache: ValueId,
        rows: ValueId,
        position: ValueId,
    ) -> Result<ValueId, Error> {
        self.add1(KvAppend { layout, pages: false }, &[cache, rows, position])
    }

    /// Writes rows into the pages of their sequences; see [`KvAppend`].
    pub fn kv_append_pages(
        &mut self,
        layout: HeadLayout,
        pool: ValueId,
        rows: ValueId,
        position: ValueId,
        pages: ValueId,
    ) -> Result<ValueId, Error> {
        self.add1(KvAppend { layout, pages: true }, &[pool, rows, position, pages])
    }
}
