//! One evaluation: the density and its gradient at a position.
//!
//! Observations are gone through in chunks of fixed size, on all threads, and the chunks' sums are added in order: the
//! result does not depend on the number of threads.

use std::sync::{Mutex, PoisonError};

use super::block::{self, BLOCK};
use super::program::{CoordSum, Program};
use super::real::Real;
use super::tape::{Env, Files, Span};
use crate::expr::{Axis, Id, Node, Operator, Reduction, Vector};

/// Observations of a chunk, at least; of more than [`MAX_CHUNKS`] each has more.
const CHUNK: usize = 4096;
const MAX_CHUNKS: usize = 64;

/// Memory of one chain's evaluations.
pub(super) struct Evaluator<'p, T> {
    program: &'p Program,
    numbers: &'p [T],
    indices: &'p [u32],
    /// Whether chunks go to several threads.
    parallel: bool,
    scalars: Vec<T>,
    coord_stores: Vec<Vec<T>>,
    coord_sums: Vec<Vec<T>>,
    files: Files<T>,
    chunks: Vec<Mutex<Chunk<T>>>,
    pub(super) gradient: Vec<T>,
}

/// A part of the observations.
struct Chunk<T> {
    start: usize,
    end: usize,
    files: Files<T>,
    stores: Vec<Vec<T>>,
    reductions: Vec<f64>,
    sums: Vec<Vec<f64>>,
}

impl<'p, T: Real> Evaluator<'p, T> {
    pub(super) fn new(program: &'p Program, numbers: &'p [T], indices: &'p [u32], parallel: bool) -> Self {
        let (n_obs, d) = (program.layout.n_obs, program.layout.d);
        let files =
            || -> Files<T> { program.files.iter().map(|n| vec![[T::default(); BLOCK]; *n]).collect() };
        let size = CHUNK.max(n_obs.div_ceil(MAX_CHUNKS)).next_multiple_of(BLOCK);
        let obs_stores = program.plan.stores(Axis::Obs).len();
        let chunk = |start: usize| {
            let end = n_obs.min(start + size);
            Mutex::new(Chunk {
                start,
                end,
                files: files(),
                stores: vec![vec![T::default(); end - start]; obs_stores],
                reductions: Vec::new(),
                sums: Vec::new(),
            })
        };
        Evaluator {
            program,
            numbers,
            indices,
            parallel,
            scalars: vec![T::default(); program.plan.graph.nodes().len()],
            coord_stores: vec![vec![T::default(); d]; program.plan.stores(Axis::Coord).len()],
            coord_sums: vec![vec![T::default(); d]; program.plan.coord_sums().len()],
            files: files(),
            chunks: (0..n_obs).step_by(size).map(chunk).collect(),
            gradient: vec![T::default(); d],
        }
    }

    /// The density; the gradient is in [`Evaluator::gradient`].
    pub(super) fn evaluate(&mut self, q: &[T]) -> T {
        let program = self.program;
        let plan = &program.plan;
        let mut sums_done = 0;
        for (i, stage) in program.stages.iter().enumerate() {
            self.compute_scalars(&plan.stages[i].scalars, q);
            if stage.coords.is_some() {
                self.coords(i, q);
            }
            if plan.stages[i].is_pass() {
                self.observations(i, q, sums_done);
                sums_done += stage.sums.len();
            }
        }
        self.compute_scalars(&plan.last_scalars, q);
        self.write_gradient(q);
        self.scalars[plan.value.index()]
    }

    fn compute_scalars(&mut self, ids: &[Id], q: &[T]) {
        let plan = &self.program.plan;
        let layout = &self.program.layout;
        for id in ids {
            let get = |x: &Id| self.scalars[x.index()];
            let value = match plan.graph.node(*id) {
                Node::Const(bits) => T::from_f64(f64::from_bits(*bits)),
                Node::Count(Axis::Obs) => T::from_f64(layout.n_obs as f64),
                Node::Count(Axis::Coord) => T::from_f64(layout.d as f64),
                Node::At(Vector::Position, i) => q[*i as usize],
                Node::At(Vector::Data(v), i) => self.numbers[layout.offset(*v as usize) + *i as usize],
                Node::Data(i) => self.numbers[layout.offset(*i as usize)],
                Node::Unary(f, x) => T::unary(*f, get(x)),
                Node::Binary(op, a, b) => T::binary(*op, get(a), get(b)),
                Node::Compare(op, a, b) => T::compare(*op, get(a), get(b)),
                Node::Select(c, a, _) if get(c) != T::from_f64(0.0) => get(a),
                Node::Select(_, _, b) => get(b),
                // Reductions are set by their stage, and nothing else is a scalar.
                _ => continue,
            };
            self.scalars[id.index()] = value;
        }
    }

    fn coords(&mut self, stage: usize, q: &[T]) {
        let stage = &self.program.stages[stage];
        let Some(tape) = &stage.coords else { return };
        tape.splat(&mut self.files, &self.scalars);
        let mut totals: Vec<f64> = stage.coord_reductions.iter().map(|(_, how, _)| first(*how)).collect();
        let d = q.len();
        for start in (0..d).step_by(BLOCK) {
            let len = BLOCK.min(d - start);
            let env = Env {
                numbers: self.numbers,
                indices: self.indices,
                q,
                coord_stores: &self.coord_stores,
                coord_sums: &self.coord_sums,
                d,
            };
            tape.run(&mut self.files, &env, &[], Span { start, len, row: 0, base: 0 });
            let regs = &self.files[tape.file()];
            for (total, (_, how, x)) in totals.iter_mut().zip(&stage.coord_reductions) {
                add(*how, total, &regs[tape.output(*x)], len);
            }
            for (store, id) in &stage.coord_stores {
                self.coord_stores[*store][start..start + len].copy_from_slice(&regs[tape.output(*id)][..len]);
            }
        }
        for (total, (id, ..)) in totals.iter().zip(&stage.coord_reductions) {
            self.scalars[id.index()] = T::from_f64(*total);
        }
    }

    fn observations(&mut self, number: usize, q: &[T], sums_done: usize) {
        let program = self.program;
        let stage = &program.stages[number];
        let env = Env {
            numbers: self.numbers,
            indices: self.indices,
            q,
            coord_stores: &self.coord_stores,
            coord_sums: &self.coord_sums,
            d: q.len(),
        };
        let scalars = &self.scalars;
        let task = |i: usize| {
            let mut chunk = self.chunks[i].lock().unwrap_or_else(PoisonError::into_inner);
            chunk.run(program, number, &env, scalars);
        };
        if self.parallel && self.chunks.len() > 1 {
            olivine_cpu::share(self.chunks.len(), &task);
        } else {
            (0..self.chunks.len()).for_each(task);
        }
        let mut totals: Vec<f64> = stage.obs_reductions.iter().map(|(_, how, _)| first(*how)).collect();
        let hows: Vec<Reduction> = stage.sums.iter().map(CoordSum::how).collect();
        let mut sums: Vec<Vec<f64>> = hows.iter().map(|how| vec![first(*how); q.len()]).collect();
        for chunk in &mut self.chunks {
            let chunk = chunk.get_mut().unwrap_or_else(PoisonError::into_inner);
            for ((total, part), (_, how, _)) in
                totals.iter_mut().zip(&chunk.reductions).zip(&stage.obs_reductions)
            {
                *total = combine(*how, *total, *part);
            }
            for ((sum, part), how) in sums.iter_mut().zip(&chunk.sums).zip(&hows) {
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum = combine(*how, *sum, *part));
            }
        }
        for (total, (id, ..)) in totals.iter().zip(&stage.obs_reductions) {
            self.scalars[id.index()] = T::from_f64(*total);
        }
        for (k, sum) in sums.iter().enumerate() {
            let to = &mut self.coord_sums[sums_done + k];
            to.iter_mut().zip(sum).for_each(|(to, sum)| *to = T::from_f64(*sum));
        }
    }

    fn write_gradient(&mut self, q: &[T]) {
        let plan = &self.program.plan;
        match (&self.program.dense, plan.dense) {
            (Some(tape), Some(id)) => {
                tape.splat(&mut self.files, &self.scalars);
                let d = q.len();
                for start in (0..d).step_by(BLOCK) {
                    let len = BLOCK.min(d - start);
                    let env = Env {
                        numbers: self.numbers,
                        indices: self.indices,
                        q,
                        coord_stores: &self.coord_stores,
                        coord_sums: &self.coord_sums,
                        d,
                    };
                    tape.run(&mut self.files, &env, &[], Span { start, len, row: 0, base: 0 });
                    let value = &self.files[tape.file()][tape.output(id)];
                    self.gradient[start..start + len].copy_from_slice(&value[..len]);
                }
            }
            _ => self.gradient.fill(T::default()),
        }
        for (i, id) in &plan.at {
            let to = &mut self.gradient[*i as usize];
            *to = T::binary(Operator::Add, *to, self.scalars[id.index()]);
        }
    }
}

impl<T: Real> Chunk<T> {
    fn run(&mut self, program: &Program, number: usize, env: &Env<'_, T>, scalars: &[T]) {
        let stage = &program.stages[number];
        let Some(tape) = &stage.obs else { return };
        tape.splat(&mut self.files, scalars);
        self.reductions.clear();
        self.reductions.extend(stage.obs_reductions.iter().map(|(_, how, _)| first(*how)));
        self.sums.resize_with(stage.sums.len(), Vec::new);
        for (values, sum) in self.sums.iter_mut().zip(&stage.sums) {
            values.clear();
            values.resize(env.d, first(sum.how()));
            if let CoordSum::Terms(_, body) = sum {
                body.splat(&mut self.files, scalars);
            }
        }
        for start in (self.start..self.end).step_by(BLOCK) {
            let span = Span { start, len: BLOCK.min(self.end - start), row: 0, base: self.start };
            tape.run(&mut self.files, env, &self.stores, span);
            self.take(program, number, env, span);
        }
    }

    /// Adds a block's results to the sums, and stores what later stages need.
    fn take(&mut self, program: &Program, number: usize, env: &Env<'_, T>, span: Span) {
        let stage = &program.stages[number];
        let Some(tape) = &stage.obs else { return };
        let Span { start, len, base, .. } = span;
        let regs = std::mem::take(&mut self.files[tape.file()]);
        for (total, (_, how, x)) in self.reductions.iter_mut().zip(&stage.obs_reductions) {
            add(*how, total, &regs[tape.output(*x)], len);
        }
        for (store, id) in &stage.obs_stores {
            self.stores[*store][start - base..][..len].copy_from_slice(&regs[tape.output(*id)][..len]);
        }
        for (values, sum) in self.sums.iter_mut().zip(&stage.sums) {
            match sum {
                CoordSum::Scatter(x, index) => {
                    let x = &regs[tape.output(*x)];
                    for i in 0..len {
                        values[env.indices[index + start + i] as usize] += x[i].to_f64();
                    }
                }
                CoordSum::Terms(how, body) => {
                    for i in 0..len {
                        body.run(&mut self.files, env, &self.stores, &regs, i, span, |terms, at, len| {
                            let to = &mut values[at..at + len];
                            match how {
                                Reduction::Sum => {
                                    to.iter_mut().zip(terms).for_each(|(to, x)| *to += x.to_f64());
                                }
                                Reduction::Max => to
                                    .iter_mut()
                                    .zip(terms)
                                    .for_each(|(to, x)| *to = combine(Reduction::Max, *to, x.to_f64())),
                            }
                        });
                    }
                }
            }
        }
        self.files[tape.file()] = regs;
    }
}

impl CoordSum {
    fn how(&self) -> Reduction {
        match self {
            CoordSum::Terms(how, _) => *how,
            CoordSum::Scatter(..) => Reduction::Sum,
        }
    }
}

fn first(how: Reduction) -> f64 {
    match how {
        Reduction::Sum => 0.0,
        Reduction::Max => f64::NEG_INFINITY,
    }
}

fn combine(how: Reduction, a: f64, b: f64) -> f64 {
    match how {
        Reduction::Sum => a + b,
        Reduction::Max => f64::binary(Operator::Max, a, b),
    }
}

fn add<T: Real>(how: Reduction, total: &mut f64, values: &[T; BLOCK], len: usize) {
    match how {
        Reduction::Sum => *total += block::sum(values, len),
        Reduction::Max => *total = block::max(*total, values, len),
    }
}
