//! The kernel of one time step: the matmul of the state with rows of r, then the gates.
//!
//! A workgroup has all gates of some units for some batch entries. Neighbouring invocations read neighbouring vectors
//! of a row of r and of h, each used for all rows and entries of the invocation; nothing is staged, so all loads of r
//! of an iteration are in flight at once. Partial sums are reduced across lanes: in each step a lane keeps one half of
//! them and hands over the other. The results meet in workgroup memory, where one invocation for each unit and entry
//! computes the gates, whose inputs it loaded before.

use olivine_ir::Dim;
use olivine_ir::op::RecurrentKind;
use olivine_kernel::{Access, Buf, Builder, Shared, Val, Var};

use super::cell::{self, Functions};
use super::tile::{Shape, Tile};
use super::{NO_C, NO_H, Pass, Problem};
use crate::integers::Integers;
use crate::launch::{Launch, bytes};
use crate::math;
use crate::rows::stored;
use crate::site::{Memory, Site, linear_group};

/// The buffer that h is read from.
pub(super) const HIDDEN_IN: usize = 0;
/// The buffer that h is written to, in passes that do.
pub(super) const HIDDEN_OUT: usize = 1;
/// The run-time number that is the step.
pub(super) const STEP: usize = 0;
/// The run-time number that holds the step's flags.
pub(super) const FLAGS: usize = 1;

/// Loads of r that an invocation has in flight, at most.
const UNDER_WAY: u32 = 16;
/// Dot products of vectors between loads of h, at most.
const AT_ONCE: u32 = 64;

/// The units and entries of a workgroup.
struct StepCoord<'k> {
    direction: Val<'k>,
    /// First unit and batch entry.
    unit: Val<'k>,
    entry: Val<'k>,
}

/// The numbers of a dispatch.
#[derive(Clone, Copy)]
struct Numbers<'k> {
    step: Val<'k>,
    flags: Val<'k>,
    hidden: Val<'k>,
    batch: Val<'k>,
    sequence: Val<'k>,
}

/// Emits the dispatch of the first step; `hidden` is where h is read from and written to.
pub(super) fn emit(
    problem: &Problem<'_>,
    pass: Pass,
    hidden: [Memory; 2],
    flags: u32,
    site: &mut Site<'_>,
) -> Result<(), String> {
    let gates = problem.gates(pass);
    let dtype = problem.dtype();
    let vector = crate::rows::vector(dtype);
    let lanes = if problem.hidden.is_multiple_of(vector) { vector as u32 } else { 1 };
    let shape = Shape {
        gates: gates.len() as u32,
        hidden: problem.hidden,
        batch: problem.batch,
        dirs: problem.dirs(),
        lanes,
        size: dtype.size() as u32,
    };
    let tile = Tile::choose(&shape, site.caps);
    let (across, down) = tile.blocks(&shape);

    let name = match pass {
        Pass::Whole => format!("{}_step", problem.op.of.kind.name()),
        Pass::Gates => "gru_gates".into(),
        Pass::Candidate => "gru_candidate".into(),
    };
    let k = site.builder(&name, tile.group());
    let l = Launch::new(&k);
    let elem = math::elem(dtype);
    // The order of these is what `HIDDEN_IN` and its like name.
    let h_in = l.bind("h", elem, Access::Read, hidden[0]);
    let h_out = (pass != Pass::Gates).then(|| l.bind("next", elem, Access::Write, hidden[1]));
    let (step, flags) = (l.size("step", 0), l.size("flags", flags as usize));

    let (x, r) = (l.read("x", &problem.projections), l.read("r", &problem.r));
    let between = problem.between.map(|[z, held]| {
        let access = if pass == Pass::Gates { Access::Write } else { Access::Read };
        [l.bind("z", elem, access, z), l.bind("held", elem, access, held)]
    });
    let numbers = Numbers {
        step,
        flags,
        hidden: l.size("hidden", problem.hidden),
        batch: l.size("batch", problem.batch),
        sequence: l.size("sequence", problem.sequence),
    };
    let (across_n, per_direction) = (l.size("across", across), l.size("per_direction", down * across));
    let last = l.size("last_direction", problem.dirs() - 1);
    let number = linear_group(&k);
    let direction = (number / per_direction).min(last);
    let rest = number - direction * per_direction;
    let down_at = rest / across_n;
    let place = StepCoord {
        direction,
        unit: (rest - down_at * across_n) * tile.all_units(),
        entry: down_at * tile.all_entries(),
    };

    let cells = Cells::declare(&l, problem, pass, &tile, numbers, &place, x, h_in);
    let source = match (&between, pass) {
        (Some(between), Pass::Candidate) => between[1],
        _ => h_in,
    };
    let rows: Vec<Val<'_>> = gates.iter().map(|g| k.u32(*g as u32)).collect();
    let all = k.u32(problem.op.of.kind.gates() as u32);
    let sums = dot_products(&k, &tile, &rows, all, lanes, numbers, &place, r, source);
    let memory = k.shared(stored(elem.scalar()), 1, tile.parts() * tile.positions() * sums.len() as u32);
    deposit(&k, &tile, sums.clone(), memory);
    k.barrier();
    cells.finish(&k, &tile, memory, h_out, between);

    let flops = 2 * problem.batch * (gates.len() * problem.hidden * problem.hidden * problem.dirs());
    let weights = bytes(&problem.r.ty) / problem.op.of.kind.gates() * gates.len();
    let groups = down * across * problem.dirs();
    let bound = l.done();
    site.dispatch(k, bound, groups, (flops, weights + 2 * bytes(&problem.h.ty)))
}

/// Partial dot products of rows of r with batch entries of `source`, over this invocation's slice: by unit, gate and entry.
#[allow(clippy::too_many_arguments, reason = "the parts of a matmul")]
fn dot_products<'k>(
    k: &'k Builder,
    tile: &Tile,
    gates: &[Val<'k>],
    all_gates: Val<'k>,
    lanes: u32,
    n: Numbers<'k>,
    place: &StepCoord<'k>,
    r: Buf<'k>,
    source: Buf<'k>,
) -> Vec<Val<'k>> {
    let me = k.local_index();
    let (slice, position) = (me % tile.slices, me / tile.slices);
    let unit = place.unit + position % tile.unit_groups * tile.units;
    let entry = place.entry + position / tile.unit_groups * tile.entries;
    // Units and entries past the last repeat it, so that no load waits for a branch.
    let mut row_at = Vec::new();
    for u in 0..tile.units {
        let unit = (unit + u).min(n.hidden - 1u32);
        row_at
            .extend(gates.iter().map(|g| ((place.direction * all_gates + *g) * n.hidden + unit) * n.hidden));
    }
    let entry_at: Vec<Val<'k>> = (0..tile.entries)
        .map(|i| (place.direction * n.batch + (entry + i).min(n.batch - 1u32)) * n.hidden)
        .collect();
    let zero = k.number(source.elem().scalar(), 0.0);
    let sums: Vec<Var<'k>> = (0..row_at.len() * entry_at.len()).map(|_| k.var(zero)).collect();
    let load = |buffer: Buf<'k>, at: &[Val<'k>], vector: Val<'k>| -> Vec<Vec<Val<'k>>> {
        at.iter().map(|a| buffer.load_vec(*a + vector * lanes, lanes as u8)).collect()
    };
    let (rows, entries) = (row_at.len() as u32, entry_at.len() as u32);
    let at_once = (AT_ONCE / (rows * entries)).max(1) as usize;
    let round = |vectors: &[Val<'k>]| {
        let weights: Vec<_> = vectors.iter().map(|v| load(r, &row_at, *v)).collect();
        let mut running: Vec<Val<'k>> = sums.iter().map(|s| s.get()).collect();
        for (vectors, weights) in vectors.chunks(at_once).zip(weights.chunks(at_once)) {
            let states: Vec<_> = vectors.iter().map(|v| load(source, &entry_at, *v)).collect();
            for (weights, states) in weights.iter().zip(&states) {
                let pairs = weights.iter().flat_map(|w| states.iter().map(move |s| (w, s)));
                for (sum, (w, s)) in running.iter_mut().zip(pairs) {
                    *sum = w.iter().zip(s).fold(*sum, |sum, (w, s)| w.fma(*s, sum));
                }
            }
        }
        sums.iter().zip(running).for_each(|(var, value)| var.set(value));
    };
    // A state of zeros needs no matmul.
    let end = (n.flags & NO_H).ne(0u32).select(k.u32(0), n.hidden / lanes);
    let under_way = (UNDER_WAY / rows).min(tile.each).max(1);
    let stride = tile.slices * under_way;
    let whole = if under_way == 1 { end } else { end / stride * stride };
    k.for_(slice, whole, k.u32(stride), |v| {
        let vectors: Vec<Val<'k>> = (0..under_way).map(|i| v + i * tile.slices).collect();
        round(&vectors);
    });
    if under_way > 1 {
        k.for_(slice + whole, end, k.u32(tile.slices), |v| round(&[v]));
    }
    sums.iter().map(|s| s.get()).collect()
}

/// Reduces partial sums across neighbouring lanes and stores them in workgroup memory, by part, position and sum.
fn deposit<'k>(k: &'k Builder, tile: &Tile, sums: Vec<Val<'k>>, memory: Shared<'k>) {
    let me = k.local_index();
    let (slice, position) = (me % tile.slices, me / tile.slices);
    let count = sums.len() as u32;
    let mut held = sums;
    let mut first = k.u32(0);
    let mut keeps = k.bool(true);
    let mut step = tile.within / 2;
    while step > 0 {
        let upper = (me & step).ne(0u32);
        if held.len().is_multiple_of(2) {
            let (low, high) = held.split_at(held.len() / 2);
            held = low
                .iter()
                .zip(high)
                .map(|(l, h)| upper.select(*h, *l) + upper.select(*l, *h).shuffle_xor(step))
                .collect();
            first = first + upper.select(k.u32(held.len() as u32), k.u32(0));
        } else {
            held = held.iter().map(|v| *v + v.shuffle_xor(step)).collect();
            keeps = if keeps.as_const().is_some() { !upper } else { keeps & !upper };
        }
        step /= 2;
    }
    let part = if tile.parts() == 1 { k.u32(0) } else { slice / tile.within };
    let at = (part * tile.positions() + position) * count + first;
    k.if_(keeps, || held.iter().enumerate().for_each(|(i, v)| memory.store(at + i, *v)));
}

/// A unit and batch entry of this invocation, and what its gates need beside the sums.
struct Cell<'k> {
    /// Position of its first sum in a part of workgroup memory.
    sums: Val<'k>,
    live: Val<'k>,
    /// Whether its sequence is not over.
    active: Val<'k>,
    /// Its index in a state and in y.
    state: Val<'k>,
    y: Val<'k>,
    x: Vec<Val<'k>>,
    h: Val<'k>,
    c: Option<Val<'k>>,
    bias: Option<Val<'k>>,
    peepholes: Option<[Val<'k>; 3]>,
}

struct Cells<'k> {
    kind: RecurrentKind,
    pass: Pass,
    functions: Functions<'k>,
    c: Option<Buf<'k>>,
    y: Option<Buf<'k>>,
    all: Vec<Cell<'k>>,
}

impl<'k> Cells<'k> {
    /// Declares what gates read and loads it for the cells of this invocation.
    #[allow(clippy::too_many_arguments, reason = "what the gates of a step read")]
    fn declare(
        l: &Launch<'k>,
        problem: &Problem<'_>,
        pass: Pass,
        tile: &Tile,
        n: Numbers<'k>,
        place: &StepCoord<'k>,
        x: Buf<'k>,
        h_in: Buf<'k>,
    ) -> Self {
        let k = l.k();
        let of = &problem.op.of;
        let elem = math::elem(problem.dtype());
        let c = problem.c.as_ref().map(|c| l.bind("c", elem, Access::ReadWrite, c.memory));
        let y = (pass != Pass::Gates).then(|| l.write("y", &problem.y));
        let lengths = problem.lengths.as_ref().map(|o| Integers::read(l, "lengths", o));
        let bias = problem.bias.as_ref().map(|o| l.read("bias", o));
        let peepholes = problem.peepholes.as_ref().map(|o| l.read("peepholes", o));
        let dirs = problem.dirs();
        let reversed = (0..dirs).fold(0, |mask, d| mask | usize::from(of.direction.is_reverse(d)) << d);
        let reversed = l.size("reversed", reversed);
        let columns = dirs * of.kind.gates() * problem.hidden;
        let (by_step, by_entry) = match of.batch_first {
            true => (Dim::ONE, problem.sequence),
            false => (problem.batch, Dim::ONE),
        };
        let (x_step, x_entry) = (l.size("x_step", by_step * columns), l.size("x_entry", by_entry * columns));
        let row = dirs * problem.hidden;
        let (y_step, y_entry) = (l.size("y_step", by_step * row), l.size("y_entry", by_entry * row));
        let clip = of.clip.map(|c| match problem.dtype().size() {
            8 => k.f64(c),
            _ => l.f32("clip", c as f32),
        });
        let lists = (0..dirs).map(|d| of.functions_of(d).to_vec()).collect();
        let functions = Functions::new(lists, place.direction.ne(0u32), clip, problem.dtype());
        let backward = ((reversed >> place.direction) & 1u32).ne(0u32);
        let (no_h, no_c) = ((n.flags & NO_H).ne(0u32), (n.flags & NO_C).ne(0u32));
        let zero = k.number(elem.scalar(), 0.0);

        let me = k.local_index();
        let count = tile.all_units() * tile.all_entries();
        let gates = problem.gates(pass);
        let per_position = tile.units * gates.len() as u32 * tile.entries;
        let cell = |round: u32| {
            let number = me + round * tile.group();
            let (unit_in, entry_in) = (number % tile.all_units(), number / tile.all_units());
            let (unit, entry) = (place.unit + unit_in, place.entry + entry_in);
            let live = number.lt(count) & unit.lt(n.hidden) & entry.lt(n.batch);
            let (unit, entry) = (unit.min(n.hidden - 1u32), entry.min(n.batch - 1u32));
            let (length, active) = match lengths {
                Some(lengths) => {
                    let length = lengths.at(entry).clamp(n.sequence);
                    (length, n.step.lt(length))
                }
                None => (n.sequence, k.bool(true)),
            };
            let time = (backward & active).select(length - 1u32 - n.step, n.step);
            let state = (place.direction * n.batch + entry) * n.hidden + unit;
            let x_at =
                time * x_step + entry * x_entry + place.direction * (n.hidden * of.kind.gates()) + unit;
            let position = entry_in / tile.entries * tile.unit_groups + unit_in / tile.units;
            let within = unit_in % tile.units * (gates.len() as u32 * tile.entries) + entry_in % tile.entries;
            Cell {
                sums: position * per_position + within,
                live,
                active,
                state,
                y: time * y_step + entry * y_entry + place.direction * n.hidden + unit,
                x: gates.iter().map(|g| x.load(x_at + n.hidden * *g)).collect(),
                h: no_h.select(zero, h_in.load(state)),
                c: c.map(|c| no_c.select(zero, c.load(state))),
                bias: bias.map(|b| b.load(place.direction * n.hidden + unit)),
                peepholes: peepholes
                    .map(|p| [0, 1, 2].map(|g| p.load((place.direction * 3 + g) * n.hidden + unit))),
            }
        };
        let all = (0..count.div_ceil(tile.group())).map(cell).collect();
        Cells { kind: of.kind, pass, functions, c, y, all }
    }

    /// Computes and stores every cell, its sums being in workgroup memory.
    fn finish(
        &self,
        k: &'k Builder,
        tile: &Tile,
        memory: Shared<'k>,
        h_out: Option<Buf<'k>>,
        between: Option<[Buf<'k>; 2]>,
    ) {
        for cell in &self.all {
            k.if_(cell.live, || {
                let gates = cell.x.len() as u32;
                let all = tile.positions() * tile.units * gates * tile.entries;
                let sum = |gate: u32| {
                    let at = cell.sums + gate * tile.entries;
                    (1..tile.parts()).fold(memory.load(at), |sum, part| sum + memory.load(at + part * all))
                };
                let sums: Vec<Val<'k>> = (0..gates).map(sum).collect();
                self.one(k, cell, &sums, h_out, between);
            });
        }
    }

    fn one(
        &self,
        k: &'k Builder,
        cell: &Cell<'k>,
        sums: &[Val<'k>],
        h_out: Option<Buf<'k>>,
        between: Option<[Buf<'k>; 2]>,
    ) {
        let f = &self.functions;
        let full: Vec<Val<'k>> = cell.x.iter().zip(sums).map(|(x, s)| *x + *s).collect();
        let h = match (self.pass, self.kind, between) {
            (Pass::Gates, _, Some([z, held])) => {
                z.store(cell.state, f.apply(k, 0, full[0]));
                held.store(cell.state, f.apply(k, 0, full[1]) * cell.h);
                return;
            }
            (Pass::Candidate, _, Some([z, _])) => {
                cell::mix(z.load(cell.state), f.apply(k, 1, full[0]), cell.h)
            }
            (_, RecurrentKind::Rnn, _) => cell::rnn(k, f, full[0]),
            (_, RecurrentKind::Gru, _) => cell::gru(k, f, &cell.x, sums, cell.bias, cell.h),
            (_, RecurrentKind::Lstm, _) => match (self.c, cell.c) {
                (Some(buffer), Some(c)) => {
                    let (h, new) = cell::lstm(k, f, &full, cell.peepholes, c);
                    buffer.store(cell.state, cell.active.select(new, c));
                    h
                }
                _ => {
                    k.fail("an lstm needs a cell state");
                    full[0]
                }
            },
        };
        if let Some(out) = h_out {
            out.store(cell.state, cell.active.select(h, cell.h));
        }
        if let Some(y) = self.y {
            y.store(cell.y, cell.active.select(h, h.like(0.0)));
        }
    }
}
