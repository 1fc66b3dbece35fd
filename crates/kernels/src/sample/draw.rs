//! The draw itself: a workgroup for every row finds the chunk that holds the mark, then the token in it.

use olivine_ir::op::Sample;
use olivine_kernel::{Access, Elem, Scalar, Val};

use super::thresholds::State;
use super::wide::{Wide, scan};
use super::{Chunk, Plan, Scale, ScaleArgs};
use crate::launch::Launch;
use crate::random::Stream;
use crate::site::{Site, linear_group};

/// Logits equal to the threshold.
#[derive(Clone, Copy)]
struct Ties<'k> {
    /// How many are kept, in the order of their positions.
    most: Val<'k>,
    weight: Val<'k>,
}

impl<'k> Ties<'k> {
    /// Kept weight of so many ties and of so much above the threshold.
    fn weight(self, tied: Val<'k>, above: Wide<'k>) -> Wide<'k> {
        Wide::product(tied.min(self.most), self.weight).plus(above)
    }
}

/// Emits the draw.
pub(super) fn emit(op: &Sample, plan: &Plan, site: &mut Site<'_>) -> Result<(), String> {
    let (counter, target) = (site.operands[5].clone(), site.targets[0].clone());
    let state = plan.states.last().copied().ok_or("a draw without thresholds")?;
    let k = site.builder("sample_draw", plan.group);
    let l = Launch::new(&k);
    let logits = l.read("logits", &plan.logits);
    let args = ScaleArgs::declare(&l, plan);
    let state = State::bind(&l, "state", Access::Read, state);
    let parts = l.bind("parts", Elem::U32, Access::Read, plan.parts);
    let to = l.write("token", &target);
    // What every row draws with: a stream for all, or a key and a number of its own.
    let (stream, draws) = match counter.ty.shape.rank() {
        2 => (
            None,
            Some((l.size("stream", op.stream), l.bind("draws", Elem::U32, Access::Read, counter.memory))),
        ),
        _ => (Some(Stream::declare(&l, op.seed, op.stream, &counter)), None),
    };
    let (v, chunks, size) = (l.size("v", plan.v), l.size("chunks", plan.chunks), l.size("chunk", plan.chunk));
    let (rows, run) = (l.size("rows", plan.rows), l.size("run", plan.chunk.div_ceil(plan.group as usize)));
    let memory = k.shared(Elem::U32, 1, 3 * plan.group);
    let found = k.shared(Elem::U32, 1, 4);

    let row = linear_group(&k);
    k.if_(row.lt(rows), || {
        let me = k.local_index();
        let chunk = Chunk { row, number: k.u32(0), first: k.u32(0), end: v, v, chunks, logits };
        let scale = Scale::read(&args, &chunk);
        let [threshold, ties, tie_weight, least] = state.load(row);
        let ties = Ties { most: ties, weight: tie_weight };
        let tell = |words: [Val<'_>; 4]| {
            words.into_iter().enumerate().for_each(|(i, word)| found.store(k.u32(i as u32), word));
        };
        let told = || [0u32, 1, 2, 3].map(|i| found.load(k.u32(i)));

        let part =
            |word: u32| k.if_value(me.lt(chunks), || parts.load((row * chunks + me) * 3 + word), || k.u32(0));
        let (own_tied, own) = (part(0), Wide { low: part(1), high: part(2) });
        let (tied, above) = scan(memory, own_tied, own);
        let to_here = ties.weight(tied, above);
        k.if_(me.eq(plan.group - 1), || tell([to_here.low, to_here.high, k.u32(0), k.u32(0)]));
        k.barrier();
        let [low, high, _, _] = told();
        let word = match (&stream, draws) {
            (Some(stream), _) => stream.block(row)[0],
            (None, Some((stream, draws))) => Stream::of_row(stream, draws, row).block(k.u32(0))[0],
            (None, None) => k.u32(0),
        };
        let (mark, _) = Wide { low, high }.scaled(word);
        let (tied, above) = (tied - own_tied, above.minus(own));
        let holds = !mark.below(ties.weight(tied, above)) & mark.below(to_here);
        k.barrier();
        k.if_(holds, || tell([me, tied, above.low, above.high]));
        k.barrier();
        let [number, tied_before, low, high] = told();
        let above_before = Wide { low, high };

        // Every invocation has a run of neighbours.
        let end = ((number + 1) * size).min(v);
        let first = number * size + me * run;
        let last = (first + run).min(end);
        let (tied, low, high) = (k.var(k.u32(0)), k.var(k.u32(0)), k.var(k.u32(0)));
        let count = |key: Val<'_>| {
            let one = key.eq(threshold).select(k.u32(1), k.u32(0));
            tied.set(tied.get() + one);
            k.if_(key.gt(threshold), || {
                let weight = scale.weigh(key);
                k.if_(weight.ge(least), || {
                    let sum = Wide { low: low.get(), high: high.get() }.plus(Wide::of(weight));
                    low.set(sum.low);
                    high.set(sum.high);
                });
            });
        };
        k.for_(first, last, k.u32(1), |i| count(chunk.key(i)));
        let (own_tied, own) = (tied.get(), Wide { low: low.get(), high: high.get() });
        let (all_tied, all) = scan(memory, own_tied, own);
        let (all_tied, all) = (all_tied + tied_before, all.plus(above_before));
        let (before_tied, before) = (all_tied - own_tied, all.minus(own));
        let holds = !mark.below(ties.weight(before_tied, before)) & mark.below(ties.weight(all_tied, all));
        k.if_(holds, || {
            tied.set(before_tied);
            low.set(before.low);
            high.set(before.high);
            let token = k.var(k.u32(u32::MAX));
            k.for_(first, last, k.u32(1), |i| {
                count(chunk.key(i));
                let past = mark.below(ties.weight(tied.get(), Wide { low: low.get(), high: high.get() }));
                k.if_(past, || token.set(token.get().min(i)));
            });
            to.store(row, token.get().bitcast(Scalar::I32));
        });
    });
    let bound = l.done();
    let cost = (0, plan.rows * plan.chunk * 4);
    site.dispatch(k, bound, plan.rows, cost)
}
