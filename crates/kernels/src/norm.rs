//! Layer and RMS norms over trailing axes, with what makes their input; and the row kernels that all norms share.
//!
//! Rows that fit in registers are read once: mean first, then deviations from it, so that a mean far from zero costs no
//! digits. Longer rows have their moments folded by other kernels.

use olivine_ir::op::{LayerNorm, ReduceKind, Region, RmsNorm};
use olivine_ir::{DType, Dim, product};
use olivine_kernel::{Access, Buf, Scalar, Val};

use super::elementwise;
use super::matmul::{DeclaredPartials, SplitKPartials};
use super::reduce::{self, Folded, Kind, Moments};
use super::rows::{Clusters, GROUP, RowTile, State, pairs, sum, vector, wide};
use crate::kernels;
use crate::launch::{Launch, bytes, number};
use crate::math::{self, Typed};
use crate::site::{Operand, Site, Target, linear_group, reversed_group};
use crate::walk::{Walk, Walker};

kernels! { |op, site|
    LayerNorm => layer_norm(op, site),
    RmsNorm => rms_norm(op, site),
}

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
struct NormOperands {
    /// Operand 0 and what else the prologue reads.
    inputs: Vec<Operand>,
    gamma: Operand,
    beta: Option<Operand>,
    y: Target,
    /// Where the row's input goes, if anywhere.
    emitted: Option<Target>,
    /// What the first input is, if it is a product whose parts wait to be summed.
    partials: Option<SplitKPartials>,
    rows: Dim,
    n: usize,
}

impl Norm<'_> {
    fn lower(&self, axis: usize, site: &mut Site<'_>) -> Result<(), String> {
        let dims = site.targets[0].ty.shape.sizes();
        let row = dims.get(axis..).ok_or_else(|| format!("there is no axis {axis}"))?;
        // How a row is held in registers is a number.
        self.rows(number(product(row)), site)
    }

    /// Lowers a norm over rows of `n` elements.
    pub(super) fn rows(&self, n: usize, site: &mut Site<'_>) -> Result<(), String> {
        let y = site.targets[0].clone();
        let numel = y.ty.shape.sizes().numel();
        if n == 0 || numel == 0 {
            return Ok(());
        }
        reduce::admit(y.ty.dtype, site)?;
        let has_beta = !matches!(self.weights, Weights::Elements { beta: false });
        let own = 2 + usize::from(has_beta);
        let operand =
            |i: usize| site.operands.get(i).cloned().ok_or_else(|| format!("operand {i} is missing"));
        let parts = NormOperands {
            inputs: std::iter::once(operand(0)?).chain(site.operands[own..].iter().cloned()).collect(),
            gamma: operand(1)?,
            beta: if has_beta { Some(operand(2)?) } else { None },
            emitted: site.targets.get(1).cloned(),
            partials: site.partials.take(),
            rows: numel.div_floor(n),
            n,
            y,
        };
        let input = Input::new(self.prologue, &parts)?;
        let (dtype, most) = (parts.y.ty.dtype, site.group_size(1024));
        match RowTile::with_lanes(n, input.lanes, dtype.size() > 4, most) {
            Some(tile) => {
                let tile = spread(tile, parts.rows, most).for_rows(parts.rows, &site.caps.target);
                self.in_registers(tile, input, &parts, site)
            }
            None => self.in_two_steps(&parts, site),
        }
    }

    fn cost(&self, parts: &NormOperands) -> (Dim, Dim) {
        let operands = parts.inputs.iter().chain([&parts.gamma]).chain(&parts.beta);
        let targets = std::iter::once(&parts.y).chain(&parts.emitted);
        let moved = operands.map(|o| bytes(&o.ty)).sum::<Dim>() + targets.map(|t| bytes(&t.ty)).sum::<Dim>();
        let moved = moved + parts.partials.as_ref().map_or(Dim::ZERO, SplitKPartials::bytes);
        let each = 6 + self.prologue.map_or(0, |r| r.instrs.len());
        (parts.rows * parts.n * each, moved)
    }

    fn in_registers(
        &self,
        tile: RowTile,
        input: Input<'_>,
        parts: &NormOperands,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let of = if parts.partials.is_some() { "parts" } else { "rows" };
        let k = site.builder(&format!("{}_{of}", self.name), tile.group);
        let l = Launch::new(&k);
        let dtype = parts.y.ty.dtype;
        let source = input.declare(&l)?;
        let weights = self.weights.declare(&l, parts);
        let sink = l.write("y", &parts.y);
        let emitted = parts.emitted.as_ref().map(|t| l.write("input", t));
        let stored = parts.partials.as_ref().filter(|u| u.is_stored).map(|u| l.write("matmul", u.target()));
        let (rows, n) = (l.size("rows", parts.rows), l.size("n", parts.n));
        let eps = declare_eps(&l, dtype, self.eps);
        let (numbers, lane) = tile.rows_of(linear_group(&k));
        let lanes = tile.lanes as usize;
        let few = tile.groups(parts.rows) <= 2 * FEW;

        let zero = k.number(wide(dtype), 0.0);
        // Means by the reciprocal: a quotient's last bit is not worth its time, and what the mean lacks is taken off.
        let part = k.number(wide(dtype), 1.0) / n.convert(wide(dtype));
        let held: Vec<RowRegisters<'_>> = (numbers.into_iter())
            .map(|number| {
                let row = number.min(rows - 1);
                let places: Vec<Val<'_>> = (0..tile.loads).map(|i| tile.position(lane, i)).collect();
                // Loads past the end repeat the row's last vector, so that none waits for a branch.
                let positions: Vec<Val<'_>> =
                    places.iter().map(|at| row * n + at.min(n - tile.lanes)).collect();
                let (values, firsts) = source.load(&positions, lanes);
                // Where memory is not the bound, its latency is: weights come beside the rows then.
                let early = places.iter();
                let early = early.map(|at| few.then(|| weights.load(row, at.min(n - tile.lanes), lanes)));
                let early = early.collect();
                let inside = (0u32..).zip(&places).map(|(i, at)| (*at, tile.inside(i, *at, n)));
                let values = inside.zip(values).map(|((at, inside), values)| (at, inside, values)).collect();
                RowRegisters { live: number.lt(rows), row, values, firsts, early }
            })
            .collect();
        let clusters = Clusters::once(&k, tile.width);
        let scalings: Vec<Scaling<'_>> = if self.centred {
            let sums = held.iter().map(|h| h.sum(zero, |v| v)).collect();
            // Opaque, or a compiler puts the unrounded product where the mean is taken off.
            let means = clusters.join(sums, added).into_iter().map(|sum| (sum * part).opaque());
            let means: State<'_> = means.collect();
            let deviations = held.iter().zip(&means).flat_map(|(h, mean)| {
                let first = h.sum(zero, |v| v - *mean);
                [first, h.sum(zero, |v| (v - *mean) * (v - *mean))]
            });
            let joined = clusters.join(deviations.collect(), added);
            let each = joined.chunks(2).zip(&means);
            each.map(|(sums, mean)| Scaling::of_deviations(*mean, [sums[0], sums[1]], part, eps)).collect()
        } else {
            let squares = held.iter().map(|h| h.sum(zero, |v| v * v)).collect();
            let sums = clusters.join(squares, added).into_iter();
            sums.map(|sum| Scaling::of_squares(sum, part, eps)).collect()
        };
        for (held, scaling) in held.iter().zip(&scalings) {
            let places = held.values.iter().zip(&held.firsts).zip(&held.early);
            for (((at, inside, values), first), early) in places {
                k.if_(held.live & *inside, || {
                    let normalised = values.iter().map(|v| scaling.of(*v));
                    let place = held.row * n + *at;
                    let late = || weights.load(held.row, *at, lanes);
                    sink.store_vec(place, &early.clone().unwrap_or_else(late).apply(normalised));
                    if let Some(emitted) = emitted {
                        emitted.store_vec(place, values);
                    }
                    if let Some(stored) = stored {
                        stored.store_vec(place, first);
                    }
                });
            }
        }
        let bound = l.done();
        site.dispatch(k, bound, tile.groups(parts.rows), self.cost(parts))
    }

    fn in_two_steps(&self, parts: &NormOperands, site: &mut Site<'_>) -> Result<(), String> {
        let dtype = parts.y.ty.dtype;
        if let Some(partials) = &parts.partials {
            partials.emit(site)?;
        }
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
        let folded = Folded::packed(&[parts.rows, parts.n.into()], &[1]);
        let states = if self.centred {
            reduce::states(&Moments(dtype), &x, folded, site)?
        } else {
            reduce::states(&Kind { kind: ReduceKind::SumSquare, dtype }, &x, folded, site)?
        };

        let vector = vector(dtype);
        let lanes = if parts.n.is_multiple_of(vector) { vector } else { 1 };
        let vectors = (parts.rows * parts.n).div_floor(lanes);
        let group = site.group_size(GROUP);
        let k = site.builder(&format!("{}_apply", self.name), group);
        let l = Launch::new(&k);
        let source = l.read("x", &x);
        let arrays = states.bind(&l, Access::Read);
        let weights = self.weights.declare(&l, parts);
        let sink = l.write("y", &parts.y);
        let (all, n) = (l.size("vectors", vectors), l.size("n", parts.n));
        let eps = declare_eps(&l, dtype, self.eps);
        let work = reversed_group(&l, vectors.div_ceil(group)) * group + k.local_index();
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
            let normalised = values.iter().map(|v| moments.of(*v));
            sink.store_vec(at, &weights.load(row, at - row * n, lanes).apply(normalised));
        });
        let bound = l.done();
        site.dispatch(k, bound, vectors.div_ceil(group), self.cost(parts))
    }
}

/// Lists of sums, added one by one.
fn added<'k>(a: &[Val<'k>], b: &[Val<'k>]) -> State<'k> {
    pairs(a, b, |a, b| a + b)
}

/// What an invocation holds of a row.
struct RowRegisters<'k> {
    /// Whether there is such a row.
    live: Val<'k>,
    row: Val<'k>,
    /// Positions, whether they are in the row, and the elements from there on.
    values: Vec<(Val<'k>, Val<'k>, Vec<Val<'k>>)>,
    /// What operand 0 has there.
    firsts: Vec<Vec<Val<'k>>>,
    /// The weights of those positions, where they are loaded beside the row.
    early: Vec<Option<LoadedWeights<'k>>>,
}

impl<'k> RowRegisters<'k> {
    /// Pairwise sum of a function of the elements inside the row.
    fn sum(&self, zero: Val<'k>, of: impl Fn(Val<'k>) -> Val<'k>) -> Val<'k> {
        let each = |(_, inside, values): &(Val<'k>, Val<'k>, Vec<Val<'k>>)| {
            inside.select(sum(values.iter().map(|v| of(*v)).collect()), zero)
        };
        sum(self.values.iter().map(each).collect())
    }
}

/// Workgroups below which rows are dealt out among more invocations.
const FEW: u32 = 128;

/// A tile with more invocations to a row, each with fewer elements, where there are few rows.
fn spread(tile: RowTile, rows: Dim, most: u32) -> RowTile {
    let mut tile = tile;
    while tile.groups(rows) < FEW && tile.loads > 1 && tile.width * 2 <= most {
        tile = RowTile { width: tile.width * 2, loads: tile.loads.div_ceil(2), ..tile };
        tile.group = tile.group.max(tile.width);
    }
    tile
}

/// `(x − shift) · scale + offset` has mean 0 and variance 1.
#[derive(Clone, Copy)]
pub(crate) struct Scaling<'k> {
    pub(crate) shift: Option<Val<'k>>,
    pub(crate) scale: Val<'k>,
    pub(crate) offset: Option<Val<'k>>,
}

impl<'k> Scaling<'k> {
    /// That of a row by the sum of its squares; `part` is one over their number.
    pub(crate) fn of_squares(sum: Val<'k>, part: Val<'k>, eps: Val<'k>) -> Self {
        Scaling { shift: None, scale: inverse_root(sum * part + eps), offset: None }
    }

    /// That of a row by its mean, the sum of what its elements differ from it by, and of the squares of that.
    pub(crate) fn of_deviations(mean: Val<'k>, sums: [Val<'k>; 2], part: Val<'k>, eps: Val<'k>) -> Self {
        // What the rounding of the mean left over.
        let rest = sums[0] * part;
        let variance = sums[1] * part - rest * rest;
        let zero = variance.like(0.0);
        let variance = variance.lt(zero).select(zero, variance);
        let scale = inverse_root(variance + eps);
        Scaling { shift: Some(mean), scale, offset: Some(-(rest * scale)) }
    }

    pub(crate) fn of(&self, x: Val<'k>) -> Val<'k> {
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
pub(crate) fn declare_eps<'k>(l: &Launch<'k>, dtype: DType, eps: f64) -> Val<'k> {
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
    partials: Option<&'a SplitKPartials>,
    walk: Walk,
    lanes: usize,
}

impl<'a> Input<'a> {
    fn new(prologue: Option<&'a Region>, parts: &'a NormOperands) -> Result<Self, String> {
        let operands = parts.inputs.as_slice();
        let shape = &parts.y.ty.shape;
        let mut strides = Vec::with_capacity(operands.len() + 1);
        for (i, operand) in operands.iter().enumerate() {
            let over = operand.broadcast_to(&shape.sizes());
            strides.push(over.ok_or_else(|| format!("{} of input {i} does not broadcast", operand.ty))?);
        }
        strides.push(shape.stride_sizes());
        let walk = Walk::new(&shape.sizes(), &strides);
        let lanes = elementwise::lanes(&walk, operands, std::slice::from_ref(&parts.y));
        let partials = parts.partials.as_ref();
        let lanes = partials.map_or(Ok(lanes), |u| u.lanes().map(|of_parts| lanes.min(of_parts)))?;
        let lanes = if parts.n.is_multiple_of(lanes) { lanes } else { 1 };
        Ok(Input { prologue, operands, partials, walk, lanes })
    }

    fn declare<'k>(self, l: &Launch<'k>) -> Result<DeclaredRows<'a, 'k>, String> {
        let first = match (self.partials, self.operands.first()) {
            (Some(partials), _) => RowInput::Partials(partials.declare(l)?),
            (None, Some(operand)) => RowInput::Elements(l.read("x0", operand)),
            (None, None) => return Err("a norm needs an operand".into()),
        };
        let others = self.operands.iter().enumerate().skip(1);
        let others = others.map(|(i, o)| l.read(&format!("x{i}"), o)).collect();
        let mut offsets: Vec<Dim> = self.operands.iter().map(|o| o.offset).collect();
        offsets.push(Dim::ZERO);
        let walker = self.walk.declare(l, &offsets);
        Ok(DeclaredRows { input: self, first, others, walker })
    }
}

/// A declared input.
struct DeclaredRows<'a, 'k> {
    input: Input<'a>,
    first: RowInput<'a, 'k>,
    /// What else the prologue reads.
    others: Vec<Buf<'k>>,
    walker: Walker<'k>,
}

/// Where operand 0 comes from.
enum RowInput<'a, 'k> {
    Elements(Buf<'k>),
    Partials(DeclaredPartials<'k, 'a>),
}

impl<'k> DeclaredRows<'_, 'k> {
    /// At every position `lanes` neighbouring elements of the rows' input, and those of operand 0.
    fn load(&self, positions: &[Val<'k>], lanes: usize) -> (Vec<Vec<Val<'k>>>, Vec<Vec<Val<'k>>>) {
        let repeats = |i: usize| self.input.walk.steps_by(i, 0);
        let indices: Vec<Vec<Val<'k>>> = positions.iter().map(|at| self.walker.at(*at)).collect();
        let firsts: Vec<Vec<Val<'k>>> = match &self.first {
            RowInput::Elements(buffer) => {
                indices.iter().map(|i| elementwise::load(*buffer, i[0], repeats(0), lanes)).collect()
            }
            RowInput::Partials(sums) => sums.at(positions, lanes),
        };
        let Some(region) = self.input.prologue else { return (firsts.clone(), firsts) };
        let made = indices.iter().zip(&firsts).map(|(indices, first)| {
            let other = |(i, buffer): (usize, &Buf<'k>)| {
                elementwise::load(*buffer, indices[i + 1], repeats(i + 1), lanes)
            };
            let others: Vec<Vec<Val<'k>>> = self.others.iter().enumerate().map(other).collect();
            let lane = |lane: usize| {
                let loaded = std::iter::once(first).chain(&others).zip(self.input.operands);
                let inputs: Vec<Typed<'k>> =
                    loaded.map(|(v, operand)| Typed { val: v[lane], dtype: operand.ty.dtype }).collect();
                math::region(region, &inputs).first().map(|r| r.val)
            };
            (0..lanes).filter_map(lane).collect()
        });
        (made.collect(), firsts)
    }
}

impl Weights {
    fn declare<'k>(self, l: &Launch<'k>, parts: &NormOperands) -> BoundWeights<'k> {
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
    /// The weights of neighbouring elements, the first of which stands at `at` in its row.
    fn load(&self, row: Val<'k>, at: Val<'k>, lanes: usize) -> LoadedWeights<'k> {
        let load = |buffer: Buf<'k>| match &self.channels {
            None => buffer.load_vec(at, lanes as u8),
            Some(c) => {
                let first = row % c.groups * c.channels;
                let of = |i: usize| buffer.load(first + (at + i) / c.positions);
                if c.together { vec![of(0); lanes] } else { (0..lanes).map(of).collect() }
            }
        };
        LoadedWeights { gamma: load(self.gamma), beta: self.beta.map(load) }
    }
}

/// The weights of neighbouring elements.
#[derive(Clone)]
struct LoadedWeights<'k> {
    gamma: Vec<Val<'k>>,
    beta: Option<Vec<Val<'k>>>,
}

impl<'k> LoadedWeights<'k> {
    /// Scales and shifts as many normalised elements.
    fn apply(&self, values: impl Iterator<Item = Val<'k>>) -> Vec<Val<'k>> {
        (values.enumerate())
            .map(|(i, v)| match &self.beta {
                Some(beta) => v.fma(self.gamma[i], beta[i]),
                None => v * self.gamma[i],
            })
            .collect()
    }
}
