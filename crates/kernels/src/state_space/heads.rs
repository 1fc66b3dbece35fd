//! Models with a matrix of state to a head, seen alike: S ← decay·S + key·changeᵀ, out = Sᵀ·query.

use olivine_ir::Dim;
use olivine_ir::op::{GatedDeltaNet, Mamba2};
use olivine_kernel::{Elem, Scalar, Val};
use olivine_program::Addressing;

use super::{carry, decay, delta, local, outputs, recurrent, sweep};
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::rows::{stored, wide};
use crate::site::{Operand, Site, Target};

kernels! { |op, site|
    Mamba2 => mamba2(op, site),
    GatedDeltaNet => gated_delta_net(op, site),
}

/// Invocations of a workgroup: what every device has.
pub(super) const GROUP: u32 = 128;
/// Steps of a chunk, best first.
const CHUNKS: [u32; 2] = [64, 32];
/// Sequences up to this length are walked step by step.
const SHORT: usize = 32;
/// Bytes of workgroup memory to stay within where the device has more, so that several workgroups share a core.
pub(super) const COMFORT: u32 = 24 << 10;

/// How a step changes the state.
pub(super) enum Kind {
    /// By dt·x under the decay e^(dt·rate), dt being the step; the result gets skip·x besides.
    Mamba { rates: Operand, skip: Option<Operand> },
    /// By β·(v − Sᵀk) under the decay e^step; the result is scaled.
    Delta { betas: Operand, scale: f64 },
}

/// What is asked for.
pub(super) struct Heads {
    pub(super) kind: Kind,
    pub(super) queries: Operand,
    pub(super) keys: Operand,
    pub(super) values: Operand,
    pub(super) steps: Operand,
    pub(super) state: Option<Operand>,
    pub(super) out: Target,
    pub(super) state_out: Target,
    pub(super) batch: usize,
    pub(super) length: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    /// Elements of a key.
    pub(super) dk: usize,
    /// Elements of a value.
    pub(super) dv: usize,
    /// What is computed in.
    pub(super) scalar: Scalar,
    /// What is stored between dispatches.
    pub(super) elem: Elem,
    pub(super) chunk: u32,
}

/// Lowers Mamba-2's scan.
pub(crate) fn mamba2(op: &Mamba2, site: &mut Site<'_>) -> Result<(), String> {
    let (skip, state) = op.optional_operands();
    let operand = |i: usize| operand(site, i);
    let (values, keys) = (operand(0)?, operand(3)?);
    let kind = Kind::Mamba { rates: operand(2)?, skip: skip.map(operand).transpose()? };
    let all = [operand(4)?, keys, values, operand(1)?];
    let state = state.map(operand).transpose()?;
    Heads::new(kind, all, state, site)?.lower(site)
}

/// Lowers the gated delta rule.
pub(crate) fn gated_delta_net(op: &GatedDeltaNet, site: &mut Site<'_>) -> Result<(), String> {
    let operand = |i: usize| operand(site, i);
    let queries = operand(0)?;
    let scale = op.scale_for(queries.dims().get(3).copied().unwrap_or(1));
    let kind = Kind::Delta { betas: operand(4)?, scale };
    let all = [queries, operand(1)?, operand(2)?, operand(3)?];
    let state = op.state.then(|| operand(5)).transpose()?;
    Heads::new(kind, all, state, site)?.lower(site)
}

fn operand(site: &Site<'_>, i: usize) -> Result<Operand, String> {
    site.operands.get(i).cloned().ok_or_else(|| format!("operand {i} is missing"))
}

impl Heads {
    fn new(
        kind: Kind,
        [queries, keys, values, steps]: [Operand; 4],
        state: Option<Operand>,
        site: &Site<'_>,
    ) -> Result<Self, String> {
        let [out, state_out] = site.targets.as_slice() else { return Err("has two results".into()) };
        let (&[_, _, key_heads, dk], &[batch, length, heads, dv]) = (keys.dims(), values.dims()) else {
            return Err("keys and values have rank 4".into());
        };
        let scalar = wide(values.ty.dtype);
        if !site.caps.target.has(scalar) {
            return Err(format!("the device has no {scalar}"));
        }
        Ok(Heads {
            kind,
            out: out.clone(),
            state_out: state_out.clone(),
            queries,
            keys,
            values,
            steps,
            state,
            batch,
            length,
            heads,
            key_heads,
            dk,
            dv,
            scalar,
            elem: stored(scalar),
            chunk: CHUNKS[0],
        })
    }

    fn lower(mut self, site: &mut Site<'_>) -> Result<(), String> {
        if self.batch * self.heads * self.dv == 0 {
            return Ok(());
        }
        if self.length == 0 {
            return carry::pass(self.state.as_ref(), &self.state_out, site);
        }
        if (self.length <= SHORT && recurrent::binds(&self, site)) || !self.choose_chunk(site) {
            return recurrent::emit(&self, site);
        }
        let exponents = decay::emit(&self, site)?;
        let (starts, changes) = match &self.kind {
            Kind::Mamba { .. } => {
                let states = local::emit(&self, exponents, site)?;
                carry::heads(&self, exponents, states, site)?;
                (states, None)
            }
            Kind::Delta { betas, .. } => {
                let solved = delta::emit(&self, betas, exponents, site)?;
                (sweep::emit(&self, exponents, solved, site)?, Some(solved))
            }
        };
        outputs::emit(&self, exponents, starts, changes, site)
    }

    /// Takes the best chunk whose workgroup memory and scratch the device has.
    fn choose_chunk(&mut self, site: &Site<'_>) -> bool {
        let shared = site.caps.target.shared_bytes;
        let most = match site.caps.addressing {
            Addressing::Bindings { max_bytes, .. } => max_bytes,
            Addressing::Pointers => u64::MAX,
        };
        for (chunk, budget) in [(CHUNKS[0], shared.min(COMFORT)), (CHUNKS[1], shared)] {
            self.chunk = chunk;
            let pairs = (self.batch * self.heads) as u64;
            let states = pairs * (self.chunks() * self.dk * self.dv) as u64;
            let solved = pairs * (self.padded() * (self.dk + self.dv)) as u64;
            let numbers = states.max(solved).max(pairs * 2 * self.padded() as u64);
            let bytes = numbers * u64::from(self.elem.size());
            let fits = outputs::shared_bytes(self).max(delta::shared_bytes(self)) <= budget
                && (matches!(self.kind, Kind::Mamba { .. }) || sweep::fits(self, site));
            if fits && numbers <= u64::from(u32::MAX) && bytes <= most {
                return true;
            }
        }
        false
    }

    /// Chunks of the sequence.
    pub(super) fn chunks(&self) -> usize {
        self.length.div_ceil(self.chunk as usize)
    }

    /// Steps of all chunks.
    pub(super) fn padded(&self) -> usize {
        self.chunks() * self.chunk as usize
    }

    /// Steps in a head's state from one key element, and one value element, to the next at the graph's surface.
    pub(super) fn state_strides(&self) -> (usize, usize) {
        match self.kind {
            Kind::Mamba { .. } => (1, self.dk),
            Kind::Delta { .. } => (self.dv, 1),
        }
    }

    /// Flops of products over a key's and a value's elements at every step, and bytes of the operands and the result.
    pub(super) fn cost(&self, products: usize) -> (Dim, Dim) {
        let steps = (self.batch * self.heads * self.length) as u64;
        let operands = [&self.queries, &self.keys, &self.values, &self.steps];
        let moved = operands.iter().map(|o| bytes(&o.ty)).sum::<Dim>() + bytes(&self.out.ty);
        ((2 * steps * products as u64 * (self.dk * self.dv) as u64).into(), moved)
    }
}

/// Sizes as run-time numbers, and the layout of rows.
#[derive(Clone, Copy)]
pub(super) struct Sizes<'k> {
    pub(super) length: Val<'k>,
    pub(super) heads: Val<'k>,
    pub(super) key_heads: Val<'k>,
    /// Heads that share keys.
    shared: Val<'k>,
    pub(super) dk: Val<'k>,
    pub(super) dv: Val<'k>,
}

impl<'k> Sizes<'k> {
    pub(super) fn declare(l: &Launch<'k>, p: &Heads) -> Self {
        Sizes {
            length: l.size("length", p.length),
            heads: l.size("heads", p.heads),
            key_heads: l.size("key_heads", p.key_heads),
            shared: l.size("shared", p.heads / p.key_heads.max(1)),
            dk: l.size("dk", p.dk),
            dv: l.size("dv", p.dv),
        }
    }

    /// A head of a batch, given as one number.
    pub(super) fn head(self, pair: Val<'k>) -> Head<'k> {
        let batch = pair / self.heads;
        let head = pair - batch * self.heads;
        Head { sizes: self, first: batch * self.length, head, key_head: head / self.shared }
    }
}

/// A head of a batch: finds its rows among the operands.
#[derive(Clone, Copy)]
pub(super) struct Head<'k> {
    sizes: Sizes<'k>,
    /// The batch's first step among those of all batches.
    first: Val<'k>,
    pub(super) head: Val<'k>,
    key_head: Val<'k>,
}

impl<'k> Head<'k> {
    /// The index of a step's number of this head.
    pub(super) fn step(self, t: Val<'k>) -> Val<'k> {
        (self.first + t) * self.sizes.heads + self.head
    }

    /// Where a step's value of this head begins.
    pub(super) fn value(self, t: Val<'k>) -> Val<'k> {
        self.step(t) * self.sizes.dv
    }

    /// Where a step's key, or query, of this head begins.
    pub(super) fn key(self, t: Val<'k>) -> Val<'k> {
        ((self.first + t) * self.sizes.key_heads + self.key_head) * self.sizes.dk
    }
}
