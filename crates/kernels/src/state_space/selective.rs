//! Mamba's scan. An invocation, or a few neighbours where a channel has many states, walks a channel with its states in
//! registers. Where channels alone do not fill the device the sequence is cut:
//!
//! ```text
//!   own      every chunk from zeros: the state it ends with, and the sum of its steps
//!   carry    over the chunks: the state that each begins with
//!   results  every chunk again, from there
//! ```

use olivine_ir::Dim;
use olivine_ir::op::SelectiveScan;
use olivine_kernel::{Access, Buf, Elem, Reduction, Scalar, Val, Var};
use olivine_program::Addressing;

use super::carry;
use super::decay::exp2;
use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::rows::{GROUP, stored, wide};
use crate::site::{Memory, Operand, Site, Target, linear_group};

kernels! { |op, site|
    SelectiveScan => selective_scan(op, site),
}

/// States that an invocation keeps.
const HELD: usize = 16;
/// Steps of a chunk at least.
const LEAST: usize = 64;
/// Invocations that fill a large device; with fewer, sequences are cut.
const BUSY: usize = 1 << 18;

/// What is asked for.
pub(super) struct Scan {
    pub(super) batch: usize,
    pub(super) length: usize,
    pub(super) channels: usize,
    /// States of a channel.
    pub(super) states: usize,
    pub(super) chunks: usize,
    pub(super) scalar: Scalar,
    /// What is stored between dispatches.
    pub(super) elem: Elem,
    pub(super) state: Option<Operand>,
    pub(super) state_out: Target,
    out: Target,
    x: Operand,
    delta: Operand,
    b: Operand,
    c: Operand,
    gate: Option<Operand>,
    softplus: bool,
    /// Invocations that share a channel.
    lanes: u32,
}

/// Numbers of the channels.
pub(super) enum Weights {
    /// As they are given.
    PerChannel(Box<ChannelParams>),
    /// Together, `[channel, rates then skip and bias]`: fewer buffers to bind.
    Table { memory: Memory, skip: bool, bias: bool },
}

/// The operands that numbers of the channels are given in.
pub(super) struct ChannelParams {
    a: Operand,
    skip: Option<Operand>,
    bias: Option<Operand>,
}

/// Lowers Mamba's scan.
pub(crate) fn selective_scan(op: &SelectiveScan, site: &mut Site<'_>) -> Result<(), String> {
    let at = op.optional_operands();
    let operand = |i: usize| site.operands.get(i).cloned().ok_or_else(|| format!("operand {i} is missing"));
    let optional = |i: Option<usize>| i.map(operand).transpose();
    let (x, a) = (operand(0)?, operand(2)?);
    let [out, state_out] = site.targets.as_slice() else { return Err("has two results".into()) };
    let (&[batch, length, channels], &[_, states]) = (x.dims(), a.dims()) else {
        return Err("x has rank 3 and A rank 2".into());
    };
    let scalar = wide(x.ty.dtype);
    if !site.caps.target.has(scalar) {
        return Err(format!("the device has no {scalar}"));
    }
    let lanes = states.div_ceil(HELD).next_power_of_two();
    if lanes > site.group_size(GROUP) as usize {
        return Err(format!("{states} states of a channel are more than a workgroup holds"));
    }
    let apart = ChannelParams { a, skip: optional(at.skip)?, bias: optional(at.delta_bias)? };
    let weights = Weights::PerChannel(Box::new(apart));
    let mut scan = Scan {
        batch,
        length,
        channels,
        states,
        chunks: 1,
        scalar,
        elem: stored(scalar),
        state: optional(at.state)?,
        state_out: state_out.clone(),
        out: out.clone(),
        delta: operand(1)?,
        b: operand(3)?,
        c: operand(4)?,
        gate: optional(at.gate)?,
        softplus: op.softplus,
        lanes: lanes as u32,
        x,
    };
    if batch * channels == 0 {
        return Ok(());
    }
    if length == 0 {
        return carry::pass(scan.state.as_ref(), &scan.state_out, site);
    }
    scan.chunks = scan.wanted_chunks().min(scan.most_chunks(site)).max(1);
    let bindable = scan.binds(&weights, site);
    if scan.chunks == 1 && bindable {
        return scan.walk(&weights, Pass::Whole, site);
    }
    let weights = if bindable { weights } else { scan.table(&weights, site)? };
    let size = u64::from(scan.elem.size());
    let sums = site.scratch((batch * scan.chunks * channels) as u64 * size);
    let own = site.scratch((batch * scan.chunks * channels * states) as u64 * size);
    scan.walk(&weights, Pass::Local { own, sums }, site)?;
    carry::channels(&scan, &weights, own, sums, site)?;
    scan.walk(&weights, Pass::Results { starts: own }, site)
}

/// Which of the walks it is.
#[derive(Clone, Copy)]
enum Pass {
    /// The only one.
    Whole,
    /// Chunks from zeros, for their states and sums of steps.
    Local { own: Memory, sums: Memory },
    /// Chunks from where they begin, for results.
    Results { starts: Memory },
}

impl Scan {
    /// Chunks that the device would like.
    fn wanted_chunks(&self) -> usize {
        let there = self.batch * self.channels * self.lanes as usize;
        BUSY.div_ceil(there).min(self.length.div_ceil(LEAST))
    }

    /// Chunks whose states can be counted and bound.
    fn most_chunks(&self, site: &Site<'_>) -> usize {
        let numbers = match site.caps.addressing {
            Addressing::Bindings { max_bytes, .. } => max_bytes / u64::from(self.elem.size()),
            Addressing::Pointers => u64::MAX,
        };
        (numbers.min(u64::from(u32::MAX)) / (self.batch * self.channels * self.states) as u64) as usize
    }

    /// Whether a walk over the whole sequence has few enough buffers.
    fn binds(&self, weights: &Weights, site: &Site<'_>) -> bool {
        let Addressing::Bindings { max_count, .. } = site.caps.addressing else { return true };
        let Weights::PerChannel(apart) = weights else { return true };
        let optional =
            [apart.skip.is_some(), apart.bias.is_some(), self.gate.is_some(), self.state.is_some()];
        7 + optional.iter().filter(|given| **given).count() <= max_count as usize
    }

    /// Emits the channels' numbers as one table.
    fn table(&self, weights: &Weights, site: &mut Site<'_>) -> Result<Weights, String> {
        let pitch = self.states + 2;
        let count = self.channels * pitch;
        let memory = site.scratch(count as u64 * u64::from(self.elem.size()));
        let group = site.group_size(GROUP);
        let k = site.builder("scan_table", group);
        let l = Launch::new(&k);
        let weights = weights.declare(&l, self, true);
        let given = (weights.skip.is_some(), weights.bias.is_some());
        let out = l.bind("table", self.elem, Access::Write, memory);
        let (numbers, pitch) = (l.size("numbers", count), l.size("pitch", pitch));
        let work = linear_group(&k) * group + k.local_index();
        k.if_(work.lt(numbers), || {
            let (d, n) = (work / pitch, work % pitch);
            let zero = k.number(self.scalar, 0.0);
            let value = k.if_value(
                n.lt(pitch - 2),
                || weights.rate(d, n),
                || {
                    let (skip, bias) = (weights.skip(d), weights.bias(d));
                    n.eq(pitch - 2).select(skip.unwrap_or(zero), bias.unwrap_or(zero))
                },
            );
            out.store(work, value);
        });
        let bound = l.done();
        site.dispatch(k, bound, (count as u64).div_ceil(u64::from(group)), (0, 8 * count as u64))?;
        Ok(Weights::Table { memory, skip: given.0, bias: given.1 })
    }

    /// Emits a walk: every channel of every chunk, step by step.
    fn walk(&self, weights: &Weights, pass: Pass, site: &mut Site<'_>) -> Result<(), String> {
        let group = site.group_size(GROUP);
        let across = group / self.lanes;
        let blocks = self.channels.div_ceil(across as usize);
        let groups = self.batch * self.chunks * blocks;
        let (name, results) = match pass {
            Pass::Whole => ("scan_whole", true),
            Pass::Local { .. } => ("scan_own", false),
            Pass::Results { .. } => ("scan_results", true),
        };
        let k = site.builder(name, group);
        let l = Launch::new(&k);
        let (x, delta, b) = (l.read("x", &self.x), l.read("delta", &self.delta), l.read("b", &self.b));
        let weights = weights.declare(&l, self, results);
        let read = results.then(|| (l.read("c", &self.c), l.write("y", &self.out)));
        let gate = self.gate.as_ref().filter(|_| results).map(|z| l.read("z", z));
        let (length, channels) = (l.size("length", self.length), l.size("channels", self.channels));
        let states = l.size("states", self.states);
        let (count, blocks) = (l.size("groups", groups), l.size("blocks", blocks));
        let (chunks, chunk) =
            (l.size("chunks", self.chunks), l.size("chunk", self.length.div_ceil(self.chunks)));
        let initial = match pass {
            Pass::Whole => self.state.as_ref().map(|s| l.read("state", s)),
            Pass::Local { .. } => None,
            Pass::Results { starts } => Some(l.bind("starts", self.elem, Access::Read, starts)),
        };
        let end = match pass {
            Pass::Whole => Some((l.write("state_out", &self.state_out), None)),
            Pass::Local { own, sums } => {
                let own = l.bind("own", self.elem, Access::Write, own);
                Some((own, Some(l.bind("sums", self.elem, Access::Write, sums))))
            }
            Pass::Results { .. } => None,
        };

        let number = linear_group(&k);
        k.if_(number.lt(count), || {
            let (rest, block) = (number / blocks, number % blocks);
            let (batch, part) = (rest / chunks, rest % chunks);
            let me = k.local_index();
            let (d, lane) = (block * across + me / self.lanes, me % self.lanes);
            let live = d.lt(channels);
            let d = d.min(channels - 1);
            let own = self.own_states(lane, states);
            let zero = k.number(self.scalar, 0.0);
            let rates = own.rates(&weights, d, zero);
            let cells = (rest * channels + d) * states;
            let h: Vec<Var<'_>> = match initial {
                Some(from) => own.load(from, cells, zero).into_iter().map(|v| k.var(v)).collect(),
                None => rates.iter().map(|_| k.var(zero)).collect(),
            };
            let (skip, bias) = (weights.skip(d), weights.bias(d));
            let total = k.var(zero);
            let first = length.min(part * chunk);
            k.for_(first, length.min(first + chunk), k.u32(1), |t| {
                let row = batch * length + t;
                let at = row * channels + d;
                let (input, mut step) = (x.load(at), delta.load(at));
                if let Some(bias) = bias {
                    step = step + bias;
                }
                if self.softplus {
                    step = math::softplus(step);
                }
                if !results {
                    total.set(total.get() + step);
                }
                let fed = step * input;
                let keys = own.load(b, row * states, zero);
                let mut now = Vec::with_capacity(h.len());
                for ((h, rate), key) in h.iter().zip(&rates).zip(&keys) {
                    let value = exp2(step * *rate).fma(h.get(), fed * *key);
                    h.set(value);
                    now.push(value);
                }
                let Some((c, y)) = read else { return };
                let queries = own.load(c, row * states, zero);
                let terms = now.iter().zip(queries).map(|(h, c)| *h * c).collect();
                let mut sum = crate::rows::sum(terms);
                if self.lanes > 1 {
                    sum = k.cluster_reduce(self.lanes, sum, Reduction::Add);
                }
                if let Some(skip) = skip {
                    sum = skip.fma(input, sum);
                }
                if let Some(gate) = gate {
                    sum = sum * math::silu(gate.load(at));
                }
                k.if_(live & lane.eq(0), || y.store(at, sum));
            });
            if let Some((to, sums)) = end {
                k.if_(live, || own.store(to, cells, &h));
                if let Some(sums) = sums {
                    k.if_(live & lane.eq(0), || sums.store(rest * channels + d, total.get()));
                }
            }
        });
        let bound = l.done();
        let cells = (self.batch * self.length * self.channels) as u64 * self.states as u64;
        let moved = [&self.x, &self.delta, &self.b, &self.c].iter().map(|o| bytes(&o.ty)).sum::<Dim>();
        let written = if results { bytes(&self.out.ty) } else { Dim::ZERO };
        let carried = self.chunks as u64 * bytes(&self.state_out.ty);
        site.dispatch(k, bound, groups as u64, (16 * cells, moved + written + carried))
    }

    /// The states of a channel that a lane keeps: neighbours, so that they load as vectors where they may.
    fn own_states<'k>(&self, lane: Val<'k>, states: Val<'k>) -> LaneStates<'k> {
        let held = self.states.div_ceil(self.lanes as usize);
        let vectors = self.states.is_multiple_of(4) && held.is_multiple_of(4) && self.elem != Elem::F64;
        let whole = held * self.lanes as usize == self.states;
        LaneStates { first: lane * held as u32, held, states, vectors: vectors && whole, whole }
    }
}

/// A lane's states.
struct LaneStates<'k> {
    first: Val<'k>,
    held: usize,
    states: Val<'k>,
    vectors: bool,
    /// Whether no lane reaches past the last.
    whole: bool,
}

impl<'k> LaneStates<'k> {
    /// Each state's number, and whether it exists.
    fn each(&self) -> impl Iterator<Item = (Val<'k>, Option<Val<'k>>)> + '_ {
        (0..self.held).map(|i| {
            let n = self.first + i;
            if self.whole { (n, None) } else { (n.min(self.states - 1), Some(n.lt(self.states))) }
        })
    }

    /// Numbers of a buffer from a row's beginning on; zeros past the last.
    fn load(&self, from: Buf<'k>, row: Val<'k>, zero: Val<'k>) -> Vec<Val<'k>> {
        if self.vectors {
            return (0..self.held).step_by(4).flat_map(|i| from.load_vec(row + self.first + i, 4)).collect();
        }
        let one = |(n, exists): (Val<'k>, Option<Val<'k>>)| {
            let number = from.load(row + n);
            exists.map_or(number, |e| e.select(number, zero))
        };
        self.each().map(one).collect()
    }

    fn rates(&self, weights: &Declared<'k, '_>, d: Val<'k>, zero: Val<'k>) -> Vec<Val<'k>> {
        let one = |(n, exists): (Val<'k>, Option<Val<'k>>)| {
            let rate = weights.rate(d, n);
            exists.map_or(rate, |e| e.select(rate, zero))
        };
        self.each().map(one).collect()
    }

    fn store(&self, to: Buf<'k>, row: Val<'k>, h: &[Var<'k>]) {
        if self.vectors {
            for (i, four) in h.chunks(4).enumerate() {
                let values: Vec<Val<'k>> = four.iter().map(|h| h.get()).collect();
                to.store_vec(row + self.first + 4 * i, &values);
            }
            return;
        }
        let k = row.builder();
        for ((n, exists), h) in self.each().zip(h) {
            k.if_(exists.unwrap_or(k.bool(true)), || to.store(row + n, h.get()));
        }
    }
}

impl Weights {
    /// Declares what holds them; skip and bias only where a kernel needs them.
    pub(super) fn declare<'k, 'w>(&'w self, l: &Launch<'k>, p: &Scan, all: bool) -> Declared<'k, 'w> {
        let states = l.size("of_channel", p.states);
        match self {
            Weights::PerChannel(apart) => Declared {
                of: self,
                states,
                rates: l.read("a", &apart.a),
                skip: apart.skip.as_ref().filter(|_| all).map(|s| l.read("skip", s)),
                bias: apart.bias.as_ref().map(|s| l.read("bias", s)),
            },
            Weights::Table { memory, skip, bias } => {
                let table = l.bind("weights", p.elem, Access::Read, *memory);
                let (skip, bias) = ((*skip && all).then_some(table), bias.then_some(table));
                Declared { of: self, states, rates: table, skip, bias }
            }
        }
    }
}

/// The channels' numbers in a kernel.
pub(super) struct Declared<'k, 'w> {
    of: &'w Weights,
    states: Val<'k>,
    rates: Buf<'k>,
    skip: Option<Buf<'k>>,
    bias: Option<Buf<'k>>,
}

impl<'k> Declared<'k, '_> {
    fn is_table(&self) -> bool {
        matches!(self.of, Weights::Table { .. })
    }

    /// A of a channel's state, for powers of two.
    pub(super) fn rate(&self, d: Val<'k>, n: Val<'k>) -> Val<'k> {
        if self.is_table() {
            return self.rates.load(d * (self.states + 2) + n);
        }
        self.rates.load(d * self.states + n) * std::f64::consts::LOG2_E
    }

    fn of_channel(&self, from: Option<Buf<'k>>, d: Val<'k>, place: u32) -> Option<Val<'k>> {
        let at = if self.is_table() { d * (self.states + 2) + self.states + place } else { d };
        from.map(|buffer| buffer.load(at))
    }

    fn skip(&self, d: Val<'k>) -> Option<Val<'k>> {
        self.of_channel(self.skip, d, 0)
    }

    fn bias(&self, d: Val<'k>) -> Option<Val<'k>> {
        self.of_channel(self.bias, d, 1)
    }
}
