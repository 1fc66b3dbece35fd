//! Layer and RMS norms over trailing axes, with what makes their input; and the row kernels that all norms share.
//!
//! Rows that fit in registers are read once: mean first, then deviations from it, so that a mean far from zero costs no
//! digits. Longer rows have their moments folded by other kernels.

use olivine_ir::DType;
use olivine_ir::op::{LayerNorm, ReduceKind, Region, RmsNorm};
use olivine_kernel::{Access, Buf, Scalar, Val};

use super::elementwise;
use super::reduce::{self, Folded, Kind, Moments};
use super::rows::{Clusters, GROUP, RowTile, State, sum, vector, wide};
use crate::lower::launch::{Launch, bytes};
use crate::lower::site::{Operand, Site, Target, linear_group};
use crate::lower::walk::{Walk, Walker};
use crate::math::{self, Typed};

/// Lowers a layer norm.
pub(crate) fn layer_norm(op: &LayerNorm, site: &mut Site<'_>) -> Result<(), String> {
    let weights = Weights::Elements { beta: op.bias };
    Norm { name: "layer_norm", centred: true, eps: op.eps, weights, prologue: op.prologue.as_ref() }
        .lower(op.axis, site)
}

/// Lowers an RMS norm.
pub(crate) fn rms_norm(op: &RmsNorm, site: &mut Site<'_>) -> Result<(), String> {
    let weights = Weights::Elements { beta: op.bias };
    Norm { name: "rms_norm", centred: false, eps: op.eps, weights, prologue: op.prologue.as_ref() }
        .lower(op.axis, site)
}

/// What scales and shifts the normalised row; operands 1 and 2.
#[derive(Clone, Copy)]
pub(super) enum Weights {
    /// A gamma, and perhaps a beta, for every element of a row.
    Elements { beta: bool },
    /// A gamma and a beta for every channel; a row is `channels` of `groups · channels`, each with `positions`.
    Channels { groups: usize, channels: usize, positions: usize },
}

/// A norm of packed rows.
pub(super) struct Norm<'a> {
    pub(super) name: &'static str,
    /// Whether the mean is taken off.
    pub(super) centred: bool,
    pub(super) eps: f64,
    pub(super) weights: Weights,
    pub(super) prologue: Option<&'a Region>,
}

/// Operands and targets by what they are.
struct Parts {
    /// Operand 0 and what else the prologue reads.
    inputs: Vec<Operand>,
    gamma: Operand,
    beta: Option<Operand>,
    y: Target,
    /// Where the row's input goes, if anywhere.
    emitted: Option<Target>,
    rows: usize,
    n: usize,
}

impl Norm<'_> {
    fn lower(&self, axis: usize, site: &mut Site<'_>) -> Result<(), String> {
        let dims = site.targets[0].ty.shape.dims();
        let row = dims.get(axis..).ok_or_else(|| format!("there is no axis {axis}"))?;
        self.rows(row.iter().product(), site)
    }

    /// Lowers a norm over rows of `n` elements.
    pub(super) fn rows(&self, n: usize, site: &mut Site<'_>) -> Result<(), String> {
        let y = site.targets[0].clone();
        let numel = y.ty.shape.numel();
        if numel == 0 {
            return Ok(());
        }
        reduce::admit(y.ty.dtype, site)?;
        let has_beta = !matches!(self.weights, Weights::Elements { beta: false });
        let own = 2 + usize::from(has_beta);
        let operand =
            |i: usize| site.operands.get(i).cloned().ok_or_else(|| format!("operand {i} is missing"));
        let parts = Parts {
            inputs: std::iter::once(operand(0)?).chain(site.operands[own..].iter().cloned()).collect(),
            gamma: operand(1)?,
            beta: if has_beta { Some(operand(2)?) } else { None },
            emitted: site.targets.get(1).cloned(),
            rows: numel / n,
            n,
            y,
        };
        let input = Input::new(self.prologue, &parts)?;
        let (dtype, most) = (parts.y.ty.dtype, site.group_size(1024));
        match RowTile::with_lanes(n, input.lanes, dtype.size() > 4, most) {
            Some(tile) => self.in_registers(tile, input, &parts, site),
            None => self.in_two_steps(&parts, site),
        }
    }

    fn cost(&self, parts: &Parts) -> (u64, u64) {
        let operands = parts.inputs.iter().chain([&parts.gamma]).chain(&parts.beta);
        let targets = std::iter::once(&parts.y).chain(&parts.emitted);
        let moved = operands.map(|o| bytes(&o.ty)).sum::<u64>() + targets.map(|t| bytes(&t.ty)).sum::<u64>();
        let each = 6 + self.prologue.map_or(0, |r| r.instrs.len());
        ((parts.rows * parts.n * each) as u64, moved)
    }

    fn in_registers(
        &self,
        tile: RowTile,
        input: Input<'_>,
        parts: &Parts,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let k = site.builder(&format!("{}_rows", self.name), tile.group);
        let l = Launch::new(&k);
        let dtype = parts.y.ty.dtype;
        let source = input.declare(&l);
        let weights = self.weights.declare(&l, parts);
        let sink = l.write("y", &parts.y);
        let emitted = parts.emitted.as_ref().map(|t| l.write("input", t));
        let (rows, n) = (l.size("rows", parts.rows), l.size("n", parts.n));
        let eps = declare_eps(&l, dtype, self.eps);
        let (row, lane) = tile.place(linear_group(&k));
        let here = row.min(rows - 1);
        let base = here * n;
        let lanes = tile.lanes as usize;

        let zero = k.number(wide(dtype), 0.0);
        let count = n.convert(wide(dtype));
        let held: Vec<(Val<'_>, Vec<Val<'_>>)> = (0..tile.loads)
            .map(|i| {
                let at = tile.position(lane, i);
                // Loads past the end repeat the row's last vector, so that none waits for a branch.
                let values = source.load(base + at.min(n - tile.lanes), lanes);
                (at, values)
            })
            .collect();
        let clusters = Clusters::new(&k, tile.width);
        let moments = if self.centred {
            let mean = clusters.join_one(sum_inside(&held, n, zero, |v| v), |a, b| a + b) / count;
            let first = sum_inside(&held, n, zero, |v| v - mean);
            let second = sum_inside(&held, n, zero, |v| (v - mean) * (v - mean));
            let joined = clusters.join(vec![first, second], |a, b| vec![a[0] + b[0], a[1] + b[1]]);
            // What the rounding of the mean left over.
            let rest = joined[0] / count;
            let variance = joined[1] / count - rest * rest;
            let variance = variance.lt(zero).select(zero, variance);
            let scale = inverse_root(variance + eps);
            Scaling { shift: Some(mean), scale, offset: Some(-(rest * scale)) }
        } else {
            let squares = clusters.join_one(sum_inside(&held, n, zero, |v| v * v), |a, b| a + b);
            Scaling { shift: None, scale: inverse_root(squares / count + eps), offset: None }
        };
        let live = row.lt(rows);
        for (at, values) in &held {
            k.if_(live & at.lt(n), || {
                let results = weights.apply(here, *at, values.iter().map(|v| moments.of(*v)).collect());
                sink.store_vec(base + *at, &results);
                if let Some(emitted) = emitted {
                    emitted.store_vec(base + *at, values);
                }
            });
        }
        let bound = l.done();
        site.dispatch(k, bound, tile.groups(parts.rows), self.cost(parts))
    }

    fn in_two_steps(&self, parts: &Parts, site: &mut Site<'_>) -> Result<(), String> {
        let dtype = parts.y.ty.dtype;
        // The row's input is needed twice: it is made once.
        let x = match (&parts.emitted, self.prologue) {
            (None, None) => parts.inputs[0].clone(),
            (Some(target), None) => {
                elementwise::whole_copy(&parts.inputs[0], target, site)?;
                parts.inputs[0].clone()
            }
            (target, Some(region)) => {
                let memory = match target {
                    Some(target) => target.memory,
                    None => site.scratch(bytes(&parts.y.ty)),
                };
                let made = Target { ty: parts.y.ty, memory };
                elementwise::emit("elementwise", region, &parts.inputs, std::slice::from_ref(&made), site)?;
                made.as_operand()
            }
        };
        let folded = Folded::packed(&[parts.rows, parts.n], &[1]);
        let states = if self.centred {
            reduce::states(&Moments(dtype), &x, folded, site)?
        } else {
            reduce::states(&Kind { kind: ReduceKind::SumSquare, dtype }, &x, folded, site)?
        };

        let vector = vector(dtype);
        let lanes = if parts.n.is_multiple_of(vector) { vector } else { 1 };
        let vectors = parts.rows * parts.n / lanes;
        let group = site.group_size(GROUP);
        let k = site.builder(&format!("{}_apply", self.name), group);
        let l = Launch::new(&k);
        let source = l.read("x", &x);
        let arrays = states.bind(&l, Access::Read);
        let weights = self.weights.declare(&l, parts);
        let sink = l.write("y", &parts.y);
        let (all, n) = (l.size("vectors", vectors), l.size("n", parts.n));
        let eps = declare_eps(&l, dtype, self.eps);
        let work = linear_group(&k) * group + k.local_index();
        k.if_(work.lt(all), || {
            let at = work * lanes;
            let row = at / n;
            let values = source.load_vec(at, lanes as u8);
            let count = n.convert(wide(dtype));
            let state: State<'_> = arrays.iter().map(|a| a.load(row)).collect();
            let moments = match state.as_slice() {
                [_, mean, squares] => {
                    let scale = inverse_root(*squares / count + eps);
                    Scaling { shift: Some(*mean), scale, offset: None }
                }
                _ => Scaling { shift: None, scale: inverse_root(state[0] / count + eps), offset: None },
            };
            let normalised = values.iter().map(|v| moments.of(*v)).collect();
            sink.store_vec(at, &weights.apply(row, at - row * n, normalised));
        });
        let bound = l.done();
        site.dispatch(k, bound, vectors.div_ceil(group as usize) as u64, self.cost(parts))
    }
}

/// Pairwise sum of a function of the held values that lie inside the row.
fn sum_inside<'k>(
    held: &[(Val<'k>, Vec<Val<'k>>)],
    n: Val<'k>,
    zero: Val<'k>,
    of: impl Fn(Val<'k>) -> Val<'k>,
) -> Val<'k> {
    let each = |(at, values): &(Val<'k>, Vec<Val<'k>>)| {
        at.lt(n).select(sum(values.iter().map(|v| of(*v)).collect()), zero)
    };
    sum(held.iter().map(each).collect())
}

/// `(x − shift) · scale + offset` has mean 0 and variance 1.
struct Scaling<'k> {
    shift: Option<Val<'k>>,
    scale: Val<'k>,
    offset: Option<Val<'k>>,
}

impl<'k> Scaling<'k> {
    fn of(&self, x: Val<'k>) -> Val<'k> {
        let x = self.shift.map_or(x, |shift| x - shift);
        match self.offset {
            Some(offset) => x.fma(self.scale, offset),
            None => x * self.scale,
        }
    }
}

fn inverse_root(x: Val<'_>) -> Val<'_> {
    if x.scalar() == Scalar::F64 { x.like(1.0) / math::sqrt(x) } else { x.inverse_sqrt() }
}

/// Epsilon as a run-time number; an f64 in two parts, since params have 32 bits.
fn declare_eps<'k>(l: &Launch<'k>, dtype: DType, eps: f64) -> Val<'k> {
    let high = l.f32("eps", eps as f32);
    if dtype != DType::F64 {
        return high;
    }
    let low = l.f32("eps_low", (eps - f64::from(eps as f32)) as f32);
    high.convert(Scalar::F64) + low.convert(Scalar::F64)
}

/// What a row's elements are made of.
struct Input<'a> {
    prologue: Option<&'a Region>,
    operands: &'a [Operand],
    walk: Walk,
    lanes: usize,
}

impl<'a> Input<'a> {
    fn new(prologue: Option<&'a Region>, parts: &'a Parts) -> Result<Self, String> {
        let operands = parts.inputs.as_slice();
        let shape = &parts.y.ty.shape;
        let mut strides = Vec::with_capacity(operands.len() + 1);
        for (i, operand) in operands.iter().enumerate() {
            let over = operand.broadcast_to(shape.dims());
            strides.push(over.ok_or_else(|| format!("{} of input {i} does not broadcast", operand.ty))?);
        }
        strides.push(shape.strides().iter().map(|s| *s as i64).collect());
        let walk = Walk::new(shape.dims(), &strides);
        let lanes = elementwise::lanes(&walk, operands, std::slice::from_ref(&parts.y));
        let lanes = if parts.n.is_multiple_of(lanes) { lanes } else { 1 };
        Ok(Input { prologue, operands, walk, lanes })
    }

    fn declare<'k>(self, l: &Launch<'k>) -> Source<'a, 'k> {
        let buffers = self.operands.iter().enumerate().map(|(i, o)| l.read(&format!("x{i}"), o)).collect();
        let mut offsets: Vec<usize> = self.operands.iter().map(|o| o.offset).collect();
        offsets.push(0);
        let walker = self.walk.declare(l, &offsets);
        Source { input: self, buffers, walker }
    }
}

/// A declared input.
struct Source<'a, 'k> {
    input: Input<'a>,
    buffers: Vec<Buf<'k>>,
    walker: Walker<'k>,
}

impl<'k> Source<'_, 'k> {
    /// `lanes` neighbouring elements of the rows' input.
    fn load(&self, position: Val<'k>, lanes: usize) -> Vec<Val<'k>> {
        let indices = self.walker.at(position);
        let inner = |i: usize| self.input.walk.inner(i);
        let loaded: Vec<Vec<Val<'k>>> = (self.buffers.iter().enumerate())
            .map(|(i, buffer)| elementwise::load(*buffer, indices[i], inner(i), lanes))
            .collect();
        let Some(region) = self.input.prologue else { return loaded.concat() };
        (0..lanes)
            .filter_map(|lane| {
                let typed = |(values, operand): (&Vec<Val<'k>>, &Operand)| Typed {
                    val: values[lane],
                    dtype: operand.ty.dtype,
                };
                let inputs: Vec<Typed<'k>> = loaded.iter().zip(self.input.operands).map(typed).collect();
                math::region(region, &inputs).first().map(|r| r.val)
            })
            .collect()
    }
}

impl Weights {
    fn declare<'k>(self, l: &Launch<'k>, parts: &Parts) -> BoundWeights<'k> {
        let gamma = l.read("gamma", &parts.gamma);
        let beta = parts.beta.as_ref().map(|b| l.read("beta", b));
        let channels = match self {
            Weights::Elements { .. } => None,
            Weights::Channels { groups, channels, positions } => Some(Channels {
                groups: l.size("groups", groups),
                channels: l.size("channels", channels),
                positions: l.size("positions", positions),
                together: positions.is_multiple_of(vector(parts.y.ty.dtype)),
            }),
        };
        BoundWeights { gamma, beta, channels }
    }
}

/// Declared weights.
struct BoundWeights<'k> {
    gamma: Buf<'k>,
    beta: Option<Buf<'k>>,
    channels: Option<Channels<'k>>,
}

struct Channels<'k> {
    groups: Val<'k>,
    channels: Val<'k>,
    positions: Val<'k>,
    /// Whether the elements of a vector belong to one channel.
    together: bool,
}

impl<'k> BoundWeights<'k> {
    /// Scales and shifts neighbouring normalised elements, the first of which stands at `at` in its row.
    fn apply(&self, row: Val<'k>, at: Val<'k>, values: Vec<Val<'k>>) -> Vec<Val<'k>> {
        let lanes = values.len();
        let load = |buffer: Buf<'k>| match &self.channels {
            None => buffer.load_vec(at, lanes as u8),
            Some(c) => {
                let first = row % c.groups * c.channels;
                let of = |i: usize| buffer.load(first + (at + i) / c.positions);
                if c.together { vec![of(0); lanes] } else { (0..lanes).map(of).collect() }
            }
        };
        let gamma = load(self.gamma);
        let beta = self.beta.map(load);
        (values.into_iter().enumerate())
            .map(|(i, v)| match &beta {
                Some(beta) => v.fma(gamma[i], beta[i]),
                None => v * gamma[i],
            })
            .collect()
    }
}
