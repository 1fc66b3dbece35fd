//! Branches and loops without the host.
//!
//! All dispatches are recorded: both branches, and every iteration that a loop may make. They are *gated*: their
//! numbers of workgroups are read from memory, where a gate kernel has written them, or zeros where the branch is not
//! taken or the loop has ended. A gate inside another graph's dispatches asks that graph's `alive` word first, and
//! always runs itself.
//!
//! ```text
//!   if:    gate(condition) ─ then branch, gated ─ else branch, gated       both write the node's results
//!   loop:  gate(iteration 0) ─ body, gated ─ gate(iteration 1) ─ body, gated ─ …      carried values alternate between two buffers
//! ```
//! A loop whose iterations are certain needs no gates: its body is recorded as often as it runs.

use std::collections::HashMap;

use olivine_ir::op::{If, Loop};
use olivine_ir::{DType, Data, Dim, Shape, Tensor, TensorType};
use olivine_kernel::{Access, Elem, Scalar};
use olivine_kernels::{
    CopyLayout, Emitted, Gating, Launch, Memory, Site, StridedCopy, copy_strided, linear_group,
};

use super::body::{AllocatedBody, Body, Pass, Unread};

/// Dispatches that a node may record at most, over all branches and iterations.
const MOST_DISPATCHES: usize = 100_000;

/// Lowers an `if`.
pub(crate) fn if_(op: &If, site: &mut Site<'_>) -> Result<(), String> {
    let then = Body::new(op.then_branch.graph(), site.caps, site.tuning)?;
    let other = Body::new(op.else_branch.graph(), site.caps, site.tuning)?;
    let inputs = site.operands.iter().skip(1).map(|o| o.memory).collect::<Vec<_>>();
    let condition = site.operands.first().ok_or("no condition")?.memory;
    let outputs: Vec<Memory> = site.targets.iter().map(|t| t.memory).collect();
    let alive = [flag(site), flag(site)];
    let mut branches = Vec::new();
    for (body, alive) in [&then, &other].into_iter().zip(alive) {
        let body = body.allocate(site);
        let pass = Pass { inputs: &inputs, outputs: &outputs, alive, unread: Unread::default() };
        branches.push(body.emit(&pass)?);
    }
    choose(condition, alive, branches, site)
}

/// Emits a gate and two lists of dispatches: the first runs where the condition's lowest bit is set, else the second.
fn choose(
    condition: Memory,
    alive: [Memory; 2],
    mut branches: Vec<Vec<Emitted>>,
    site: &mut Site<'_>,
) -> Result<(), String> {
    if branches.iter().all(Vec::is_empty) {
        return Ok(());
    }
    let mut region = Region::default();
    let mut firsts = Vec::new();
    for branch in &mut branches {
        region.take(branch);
        firsts.push(region.words.len());
    }
    let args = site.gate(4 * region.words.len() as u64);
    let words = region.words.len();
    let table = region.table(site)?;
    for branch in &mut branches {
        gate(branch, args, &mut region.next)?;
    }

    let group = site.group_size(64);
    let k = site.builder("branch_gate", group);
    let l = Launch::new(&k);
    let before = l.bind("before", Elem::U32, Access::Read, Memory::Alive);
    let condition = l.bind("condition", Elem::U8, Access::Read, condition);
    let table = l.bind("table", Elem::U32, Access::Read, table);
    let to = l.bind("args", Elem::U32, Access::Write, args);
    let [then, other] = [("then", alive[0]), ("else", alive[1])]
        .map(|(name, memory)| l.bind(name, Elem::U32, Access::Write, memory));
    let first = l.size("first", firsts.first().copied().unwrap_or(0));
    let all = l.size("words", words);

    let zero = k.u32(0);
    let running = before.load(zero).ne(0u32);
    let set = (condition.load(zero).convert(Scalar::U32) & 1u32).ne(0u32);
    let at = linear_group(&k) * group + k.local_index();
    k.if_(at.lt(all), || {
        let mine = running & at.lt(first).select(set, !set);
        to.store(at, mine.select(table.load(at), zero));
    });
    k.if_(at.eq(0u32), || {
        then.store(zero, (running & set).select(k.u32(1), zero));
        other.store(zero, (running & !set).select(k.u32(1), zero));
    });
    let bound = l.done();
    site.dispatch(k, bound, words.div_ceil(group as usize).max(1) as u64, (0, 8 * words as u64))?;
    always(site);
    site.emitted.extend(branches.into_iter().flatten());
    count(site)
}

/// Lowers a loop.
pub(crate) fn loop_(op: &Loop, site: &mut Site<'_>) -> Result<(), String> {
    let most = op
        .max_iterations
        .ok_or("a GPU records every iteration, so the loop needs a bound: set max_iterations")?;
    let body = Body::new(op.body.graph(), site.caps, site.tuning)?;
    if most.saturating_mul(body.dispatches().max(1)) > MOST_DISPATCHES {
        return Err(too_many());
    }
    let given = site.operands.iter().skip(2).map(|o| o.memory).collect::<Vec<_>>();
    let go_on = body.constant_output(0).map(|(t, unread)| (is_true(Some(t)), unread));
    let iterations = whole(site.known.first()).map(|t| usize::try_from(t.max(0)).unwrap_or(usize::MAX));
    let begins = is_true(site.known.get(1).and_then(Option::as_ref));
    let certain = most == 0
        || (iterations.is_some_and(|t| t >= most) && begins && go_on.is_some_and(|(always, _)| always));
    let unread = go_on.filter(|(always, _)| *always).map(|(_, unread)| unread);
    let repeated = Repeated::new(op, &body, given, most, unread, site)?;
    if certain { repeated.straight(site) } else { repeated.gated(site) }
}

/// A loop with its memory.
struct Repeated<'b, 'g> {
    body: AllocatedBody<'b, 'g>,
    most: usize,
    carried: Vec<TensorType>,
    /// The first carried values.
    first: Vec<Memory>,
    captures: Vec<Memory>,
    /// Two buffers for every carried value.
    places: Vec<[Memory; 2]>,
    /// One row of each kind.
    rows: Vec<(TensorType, Memory)>,
    /// Whether the body says to go on, and the node that need not run if it always does.
    go_on: Memory,
    unread: Unread,
    /// The iterations' numbers, and bytes from one to the next.
    numbers: Memory,
    stride: u64,
}

impl<'b, 'g> Repeated<'b, 'g> {
    fn new(
        op: &Loop,
        body: &'b Body<'g>,
        given: Vec<Memory>,
        most: usize,
        unread: Option<Unread>,
        site: &mut Site<'_>,
    ) -> Result<Self, String> {
        let outputs = op.body.outputs();
        let carried = outputs.iter().skip(1).take(op.carried).copied().collect::<Vec<_>>();
        let places = carried.iter().map(|ty| [0; 2].map(|_| site.scratch(ty.bytes() as u64))).collect();
        let rows = outputs.iter().skip(1 + op.carried);
        let rows = rows.map(|ty| (*ty, site.scratch(ty.bytes() as u64))).collect();
        let go_on = match unread {
            Some(_) => site.constant(Tensor::scalar(true)),
            None => site.scratch(1),
        };
        // A number for every iteration, each where a range may begin.
        let stride = if body.reads_input(0) { site.caps.alignment() as u64 } else { 0 };
        let mut numbers = vec![0i64; (stride as usize / 8 * most).max(2)];
        for iteration in 0..most {
            if let Some(number) = numbers.get_mut(iteration * stride as usize / 8) {
                *number = if stride > 0 { iteration as i64 } else { 0 };
            }
        }
        let numbers = Tensor::new([numbers.len()], numbers).map_err(|e| e.to_string())?;
        let (first, captures) = given.split_at(op.carried);
        Ok(Repeated {
            body: body.allocate(site),
            most,
            carried,
            first: first.to_vec(),
            captures: captures.to_vec(),
            places,
            rows,
            go_on,
            unread: unread.unwrap_or_default(),
            numbers: site.constant(numbers),
            stride,
        })
    }

    /// The dispatches of one iteration, from carried values at `now` to `next`, with its rows put where they belong.
    fn iteration(
        &self,
        iteration: usize,
        now: &[Memory],
        next: &[Memory],
        alive: Memory,
        site: &Site<'_>,
    ) -> Result<Vec<Emitted>, String> {
        let number = match self.numbers {
            Memory::Constant(table) => {
                Memory::Row { table, offset: iteration as u64 * self.stride, bytes: 16 }
            }
            other => other,
        };
        let inputs = [&[number], now, &self.captures].concat();
        let rows: Vec<Memory> = self.rows.iter().map(|(_, memory)| *memory).collect();
        let outputs = [&[self.go_on], next, &rows].concat();
        let pass = Pass { inputs: &inputs, outputs: &outputs, alive, unread: self.unread };
        let mut emitted = self.body.emit(&pass)?;
        let targets = site.targets.iter().skip(self.carried.len());
        for ((ty, row), target) in self.rows.iter().zip(targets) {
            emitted.extend(copied(ty, *row, target.memory, iteration * ty.shape.numel(), site)?);
        }
        Ok(emitted)
    }

    /// Every iteration, one after another; the last writes the results.
    fn straight(&self, site: &mut Site<'_>) -> Result<(), String> {
        let results: Vec<Memory> = site.targets.iter().take(self.carried.len()).map(|t| t.memory).collect();
        for iteration in 0..self.most {
            let now = if iteration == 0 { self.first.clone() } else { self.at(iteration) };
            let next = if iteration + 1 == self.most { results.clone() } else { self.at(iteration + 1) };
            let emitted = self.iteration(iteration, &now, &next, Memory::Alive, site)?;
            site.emitted.extend(emitted);
            count(site)?;
        }
        if self.most == 0 {
            for ((ty, from), to) in self.carried.iter().zip(&self.first).zip(&results) {
                let copies = copied(ty, *from, *to, 0, site)?;
                site.emitted.extend(copies);
            }
        }
        let total = site.constant(Tensor::scalar(self.most as i64));
        let Some(to) = site.targets.last().cloned() else { return Ok(()) };
        let copies = copied(&to.ty, total, to.memory, 0, site)?;
        site.emitted.extend(copies);
        Ok(())
    }

    /// Every iteration behind a gate; then the carried values from where the last iteration left them.
    fn gated(&self, site: &mut Site<'_>) -> Result<(), String> {
        for ((ty, from), to) in self.carried.iter().zip(&self.first).zip(&self.places) {
            let copies = copied(ty, *from, to[0], 0, site)?;
            site.emitted.extend(copies);
        }
        for target in site.targets.clone().iter().skip(self.carried.len()).take(self.rows.len()) {
            zeros(&target.ty, target.memory, site)?;
        }
        let alive = [flag(site), flag(site)];
        let mut args = None;
        let mut tables: HashMap<Vec<u32>, Memory> = HashMap::new();
        for iteration in 0..self.most {
            let mut emitted = self.iteration(
                iteration,
                &self.at(iteration),
                &self.at(iteration + 1),
                alive[iteration % 2],
                site,
            )?;
            let mut region = Region::default();
            region.take(&emitted);
            let args = *args.get_or_insert_with(|| site.gate(4 * region.words.len() as u64));
            gate(&mut emitted, args, &mut region.next)?;
            let words = region.words.len();
            let table = match tables.get(&region.words) {
                Some(table) => *table,
                None => {
                    let table = region.table(site)?;
                    tables.insert(region.words, table);
                    table
                }
            };
            let before = if iteration == 0 { Memory::Alive } else { alive[(iteration + 1) % 2] };
            self.loop_gate(iteration, before, alive[iteration % 2], table, args, words, site)?;
            site.emitted.extend(emitted);
            count(site)?;
        }
        // An odd number of iterations ends in the second buffer. The number's lowest bit says so.
        let Some(total) = site.targets.last().map(|t| t.memory) else { return Ok(()) };
        let mut branches = Vec::new();
        for odd in [1, 0] {
            let mut copies = Vec::new();
            for ((ty, from), to) in self.carried.iter().zip(&self.places).zip(&site.targets) {
                copies.extend(copied(ty, from[odd], to.memory, 0, site)?);
            }
            branches.push(copies);
        }
        let alive = [flag(site), flag(site)];
        choose(total, alive, branches, site)
    }

    /// Where the carried values are before a iteration.
    fn at(&self, iteration: usize) -> Vec<Memory> {
        self.places.iter().map(|two| two[iteration % 2]).collect()
    }

    /// Opens or closes a iteration, and counts it.
    #[allow(clippy::too_many_arguments, reason = "everything that one gate is bound to")]
    fn loop_gate(
        &self,
        iteration: usize,
        before: Memory,
        alive: Memory,
        table: Memory,
        args: Memory,
        words: usize,
        site: &mut Site<'_>,
    ) -> Result<(), String> {
        let [iterations, begin, ..] = site.operands.as_slice() else { return Err("no condition".into()) };
        let (iterations, begin) = (iterations.memory, begin.memory);
        let total = site.targets.last().ok_or("no results")?.memory;
        let group = site.group_size(64);
        let k = site.builder("loop_gate", group);
        let l = Launch::new(&k);
        let before = l.bind("before", Elem::U32, Access::Read, before);
        let go_on = if iteration == 0 { begin } else { self.go_on };
        let go_on = l.bind("go_on", Elem::U8, Access::Read, go_on);
        let iterations = l.bind("iterations", Elem::U32, Access::Read, iterations);
        let table = l.bind("table", Elem::U32, Access::Read, table);
        let to = l.bind("args", Elem::U32, Access::Write, args);
        let alive = l.bind("alive", Elem::U32, Access::Write, alive);
        let total = l.bind("count", Elem::U32, Access::Write, total);
        let number = l.size("iteration", iteration);
        let all = l.size("words", words);

        let (zero, one) = (k.u32(0), k.u32(1));
        let running = before.load(zero).ne(0u32);
        let (low, high) = (iterations.load(zero), iterations.load(one));
        let fits = high.bitcast(Scalar::I32).gt(0) | (high.eq(0u32) & number.lt(low));
        let open = running & go_on.load(zero).ne(0u32) & fits;
        let at = linear_group(&k) * group + k.local_index();
        k.if_(at.lt(all), || to.store(at, open.select(table.load(at), zero)));
        k.if_(at.eq(0u32), || {
            alive.store(zero, open.select(one, zero));
            k.if_(open | (running & number.eq(0u32)), || {
                total.store(zero, open.select(number + 1u32, zero));
                total.store(one, zero);
            });
        });
        let bound = l.done();
        site.dispatch(k, bound, words.div_ceil(group as usize).max(1) as u64, (0, 8 * words as u64))?;
        always(site);
        Ok(())
    }
}

/// The numbers of workgroups of dispatches that one gate opens and closes.
#[derive(Default)]
struct Region {
    words: Vec<u32>,
    /// The next dispatch to be gated.
    next: usize,
}

impl Region {
    /// Counts the dispatches of a list that have no gate of their own.
    fn take(&mut self, emitted: &[Emitted]) {
        let free = emitted.iter().filter(|e| e.gating == Gating::Free);
        self.words.extend(free.flat_map(|e| e.groups).map(|count| count.specialize().unwrap_or(0) as u32));
    }

    fn table(&self, site: &mut Site<'_>) -> Result<Memory, String> {
        let mut words = self.words.clone();
        words.resize(words.len().max(4), 0);
        Tensor::new([words.len()], words).map(|t| site.constant(t)).map_err(|e| e.to_string())
    }
}

/// Puts dispatches that have no gate yet behind one, in the order of its words.
fn gate(emitted: &mut [Emitted], args: Memory, next: &mut usize) -> Result<(), String> {
    let Memory::Gate { offset, .. } = args else { return Err("a gate without memory".into()) };
    for free in emitted.iter_mut().filter(|e| e.gating == Gating::Free) {
        free.gating = Gating::By(Memory::Gate { offset: offset + 12 * *next as u64, bytes: 12 });
        *next += 1;
    }
    Ok(())
}

/// The last dispatch runs whatever is gated around it.
fn always(site: &mut Site<'_>) {
    if let Some(last) = site.emitted.last_mut() {
        last.gating = Gating::Always;
    }
}

fn count(site: &Site<'_>) -> Result<(), String> {
    if site.emitted.len() > MOST_DISPATCHES { Err(too_many()) } else { Ok(()) }
}

fn too_many() -> String {
    format!("its branches and iterations are more than {MOST_DISPATCHES} dispatches: lower max_iterations")
}

/// Memory for one word.
fn flag(site: &mut Site<'_>) -> Memory {
    site.scratch(4)
}

/// A packed value copied to an element of some memory on.
fn copied(
    ty: &TensorType,
    from: Memory,
    to: Memory,
    offset: usize,
    site: &Site<'_>,
) -> Result<Vec<Emitted>, String> {
    let side = |memory, offset| CopyLayout { memory, strides: vec![Dim::ONE], offset };
    let whole = offset == 0 && to_whole(to, site) == Some(*ty);
    let one = StridedCopy {
        dims: vec![ty.shape.sizes().numel()],
        from: side(from, Dim::ZERO),
        to: side(to, offset.into()),
        whole,
    };
    let mut scratch = Site::new(site.caps, Vec::new(), Vec::new());
    copy_strided("carry", ty.dtype.size(), &[one], &mut scratch)?;
    Ok(scratch.emitted)
}

/// The type of the result in some memory.
fn to_whole(memory: Memory, site: &Site<'_>) -> Option<TensorType> {
    site.targets.iter().find(|t| t.memory == memory).map(|t| t.ty)
}

/// Fills a result with zeros.
fn zeros(ty: &TensorType, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let zero = Tensor::zeros(ty.dtype, Shape::SCALAR).map_err(|e| e.to_string())?;
    let from = CopyLayout { memory: site.constant(zero), strides: vec![Dim::ZERO], offset: Dim::ZERO };
    let to = CopyLayout { memory: to, strides: vec![Dim::ONE], offset: Dim::ZERO };
    let fill = StridedCopy { dims: vec![ty.shape.sizes().numel()], from, to, whole: true };
    copy_strided("zeros", ty.dtype.size(), &[fill], site)
}

fn is_true(tensor: Option<&Tensor>) -> bool {
    matches!(tensor.map(Tensor::data), Some(Data::Bool(v)) if v.first() == Some(&true))
}

fn whole(tensor: Option<&Option<Tensor>>) -> Option<i64> {
    let tensor = tensor?.as_ref().filter(|t| t.dtype() == DType::I64)?;
    tensor.as_slice::<i64>().ok()?.first().copied()
}
