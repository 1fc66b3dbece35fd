//! The planner's contract: nothing that lives at one time overlaps, and the arena is near the largest live set.

use olivine_compile::plan::{
    ALIGNMENT, Lifetime, MemoryPlan, OutputLocation, PlanOptions, lower_bound, place, plan_graph,
    plan_graph_with,
};
use olivine_ir::op::{Binary, Concat, ScalarOp, View};
use olivine_ir::{DType, Graph, Op, Shape, Tensor, ValueId};

type Outcome = Result<(), Box<dyn std::error::Error>>;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 20) % n as u64) as usize
    }

    /// Between 2^low and 2^high, every power as likely as the other.
    fn log_uniform(&mut self, low: usize, high: usize) -> usize {
        let power = low + self.below(high - low);
        (1 << power) + self.below(1 << power)
    }
}

fn assert_no_overlap(lives: &[Lifetime], offsets: &[usize], peak: usize) {
    for (i, a) in lives.iter().enumerate() {
        assert_eq!(offsets[i] % ALIGNMENT, 0);
        assert!(offsets[i] + a.size <= peak);
        for (j, b) in lives.iter().enumerate().skip(i + 1) {
            let apart = offsets[i] + a.size <= offsets[j] || offsets[j] + b.size <= offsets[i];
            assert!(!a.overlaps(b) || apart || a.size == 0 || b.size == 0, "{a:?} and {b:?} overlap");
        }
    }
}

/// Lifetimes as a network makes them: a step writes one to three buffers; most die soon, some are long skips.
fn random_lifetimes(random: &mut Random, steps: usize) -> Vec<Lifetime> {
    let mut lives = Vec::new();
    for step in 0..steps {
        for _ in 0..1 + random.below(8) / 6 + random.below(8) / 7 {
            let length = match random.below(10) {
                0 => random.below(steps),
                1 | 2 => random.below(12),
                3 => 0,
                _ => 1 + random.below(3),
            };
            let size = if random.below(40) == 0 { 0 } else { random.log_uniform(6, 22) };
            lives.push(Lifetime { size, first: step, last: (step + length).min(steps) });
        }
    }
    lives
}

#[test]
fn random_lifetimes_never_overlap_and_stay_near_the_bound() -> Outcome {
    let mut random = Random(7);
    let mut worst: f64 = 1.0;
    for round in 0..1000 {
        let steps = 2 + random.below(if round % 50 == 0 { 400 } else { 90 });
        let lives = random_lifetimes(&mut random, steps);
        let placement = place(&lives, ALIGNMENT)?;
        assert_no_overlap(&lives, &placement.offsets, placement.peak);
        let bound = lower_bound(&lives, ALIGNMENT)?;
        assert!(placement.peak >= bound);
        let ratio = placement.peak as f64 / bound.max(1) as f64;
        worst = worst.max(ratio);
        assert!(ratio <= 1.15, "round {round}: {} buffers, {ratio:.3} of the bound", lives.len());
    }
    println!("worst ratio {worst:.3}");
    Ok(())
}

#[test]
fn placing_twice_gives_the_same_offsets() -> Outcome {
    let lives = random_lifetimes(&mut Random(99), 120);
    assert_eq!(place(&lives, ALIGNMENT)?, place(&lives, ALIGNMENT)?);
    Ok(())
}

/// A random graph of elementwise ops, products, views and joins over matrices of a few widths.
fn random_graph(random: &mut Random) -> Result<Graph, olivine_ir::Error> {
    let mut g = Graph::new("random");
    let rows = random.log_uniform(0, 7);
    let mut values = Vec::new();
    for i in 0..1 + random.below(3) {
        let columns = random.log_uniform(0, 8);
        values.push(g.input(&format!("x{i}"), DType::F32, [rows, columns])?);
    }
    for i in 0..5 + random.below(120) {
        // Mostly the newest value, sometimes one far back: chains with skips.
        let pick = |random: &mut Random, values: &[ValueId]| {
            let back = if random.below(4) == 0 { random.below(values.len()) } else { 0 };
            values[values.len() - 1 - back]
        };
        let x = pick(random, &values);
        let shape = g.ty(x)?.shape;
        let y = match random.below(8) {
            0 | 1 => g.relu(x)?,
            2 => g.binary_scalar(Binary::Mul, x, 0.5)?,
            3 | 4 => {
                let other =
                    values.iter().rev().find(|v| g.ty(**v).is_ok_and(|t| t.shape == shape) && **v != x);
                g.add(x, other.copied().unwrap_or(x))?
            }
            5 => {
                let n = random.log_uniform(0, 8);
                let w = g.param(&format!("w{i}"), DType::F32, [shape[1], n])?;
                g.matmul(x, w)?
            }
            6 => g.add1(View { shape, strides: vec![shape[1].into(), 1.into()], offset: 0.into() }, &[x])?,
            _ => {
                let transposed = Shape::new(&[shape[1], shape[0]])?;
                let t = g.add1(
                    View { shape: transposed, strides: vec![1.into(), shape[1].into()], offset: 0.into() },
                    &[x],
                )?;
                let back = View { shape, strides: vec![1.into(), shape[0].into()], offset: 0.into() };
                let packed = g.add1(ScalarOp::Binary(Binary::Max), &[t, t])?;
                g.add1(back, &[packed])?
            }
        };
        values.push(y);
    }
    let last = values[values.len() - 1];
    g.output("y", last)?;
    if random.below(2) == 0 {
        let back = random.below(values.len());
        g.output("z", values[back])?;
    }
    Ok(g)
}

/// Replays the plan: every byte remembers which value wrote it last, and every read must find its value.
fn assert_plan_holds(g: &Graph, plan: &MemoryPlan) {
    let mut owner: Vec<Option<ValueId>> = vec![None; plan.arena];
    let check = |owner: &[Option<ValueId>], id: ValueId, place: &str| {
        if let Some(slot) = plan.slots[id.index()] {
            let bytes = &owner[slot.offset..slot.offset + slot.bytes];
            assert!(bytes.iter().all(|o| *o == Some(slot.root)), "{id:?} was overwritten before {place}");
        }
    };
    for (step, node) in g.nodes().iter().enumerate() {
        if matches!(node.op, Op::View(_)) {
            continue;
        }
        for id in &node.inputs {
            check(&owner, *id, &node.name);
        }
        for (result, id) in node.outputs.iter().enumerate() {
            let Some(slot) = plan.slots[id.index()] else { continue };
            assert_eq!(slot.offset % ALIGNMENT, 0);
            for (operand, input) in node.inputs.iter().enumerate() {
                let Some(read) = plan.slots[input.index()] else { continue };
                let shared = read.offset < slot.offset + slot.bytes && slot.offset < read.offset + read.bytes;
                let allowed =
                    result == 0 && plan.in_place[step] == Some(operand) && read.offset == slot.offset;
                assert!(!shared || allowed, "{} writes over its operand {operand}", node.name);
            }
            owner[slot.offset..slot.offset + slot.bytes].fill(Some(*id));
        }
    }
    for (output, place) in g.outputs().iter().zip(&plan.outputs) {
        if *place == OutputLocation::Copied {
            check(&owner, output.value, "the end");
        }
    }
}

#[test]
fn random_graphs_keep_every_value_until_its_last_reader() -> Outcome {
    let mut random = Random(11);
    let mut reused = 0;
    for round in 0..1000 {
        let g = random_graph(&mut random)?;
        let plan = plan_graph(&g, &vec![false; g.nodes().len()])?;
        assert_plan_holds(&g, &plan);
        reused += plan.in_place.iter().flatten().count();
        let ratio = plan.arena as f64 / plan.largest_live_set.max(1) as f64;
        assert!(ratio <= 1.15, "round {round}: {ratio:.3} of the largest live set");
    }
    assert!(reused > 10_000, "only {reused} nodes were planned in place");
    Ok(())
}

#[test]
fn a_chain_of_elementwise_ops_runs_in_one_buffer() -> Outcome {
    let mut g = Graph::new("chain");
    let x = g.input("x", DType::F32, [100])?;
    let mut y = x;
    for _ in 0..6 {
        y = g.exp(y)?;
    }
    g.output("y", y)?;
    let plan = plan_graph(&g, &[false; 6])?;
    assert_eq!(plan.arena, 448);
    assert_eq!(plan.in_place, [None, Some(0), Some(0), Some(0), Some(0), None]);
    assert_eq!(plan.outputs, [OutputLocation::Written]);
    assert_eq!(plan.slots[y.index()], None);
    Ok(())
}

#[test]
fn a_value_that_is_read_later_or_twice_or_strided_is_not_overwritten() -> Outcome {
    let mut g = Graph::new("no");
    let x = g.input("x", DType::F32, [8, 8])?;
    let a = g.exp(x)?;
    let b = g.exp(a)?;
    let c = g.add(a, b)?;
    let square = g.mul(c, c)?;
    let turned = View { shape: Shape::new(&[8, 8])?, strides: vec![1.into(), 8.into()], offset: 0.into() };
    let t = g.add1(turned, &[square])?;
    let d = g.exp(t)?;
    let e = g.cast(d, DType::F16)?;
    let f = g.exp(e)?;
    g.output("f", f)?;
    let plan = plan_graph(&g, &[false; 8])?;
    assert_eq!(plan.in_place, [None, None, Some(0), None, None, None, None, None]);
    assert_eq!(plan.slots[t.index()], plan.slots[square.index()]);
    assert_eq!(plan.roots[t.index()], square);
    Ok(())
}

#[test]
fn what_a_later_node_finishes_is_kept_until_then() -> Outcome {
    let mut g = Graph::new("left");
    let x = g.input("x", DType::F32, [64])?;
    let a = g.exp(x)?; // step 0
    let b = g.neg(a)?; // step 1, finished by step 3
    let c = g.exp(x)?; // step 2
    let d = g.add(b, c)?; // step 3
    let e = g.exp(d)?;
    g.output("e", e)?;
    let scratch = [0, 1000, 0, 0, 0].map(olivine_ir::Dim::from);
    let plan = |until: &[usize], absent: &[bool]| {
        let options = PlanOptions { scratch: &scratch, until, absent, ..PlanOptions::default() };
        plan_graph_with(&g, &[false; 5], &options)
    };
    let range = |plan: &MemoryPlan, id: ValueId| plan.slots[id.index()].map(|s| s.offset..s.offset + s.bytes);
    let apart = |a: &std::ops::Range<usize>, b: &std::ops::Range<usize>| a.end <= b.start || b.end <= a.start;
    let left = plan(&[0, 3, 2, 3, 4], &[])?;
    let of = |id| range(&left, id).ok_or("no slot");
    let (operand, later) = (of(a)?, of(c)?);
    let own = left.scratch[1].map(|(at, _)| at..at + 1000).ok_or("no scratch")?;
    assert!(apart(&operand, &later) && apart(&own, &later), "{left:?}");
    // Step 3 may write over nothing that step 1 still reads.
    assert!(apart(&of(d)?, &operand), "{left:?}");
    assert_eq!(plan(&[], &[])?.in_place[1], Some(0), "nothing is kept without being asked for");
    // A value that nobody writes has no bytes.
    let mut absent = vec![false; g.values().len()];
    absent[b.index()] = true;
    assert_eq!(range(&plan(&[0, 3, 2, 3, 4], &absent)?, b), None);
    Ok(())
}

#[test]
fn outputs_that_no_node_writes_are_copied() -> Outcome {
    let mut g = Graph::new("outputs");
    let x = g.input("x", DType::F32, [4, 4])?;
    let c = g.constant(Tensor::scalar(1.0f32));
    let y = g.exp(x)?;
    let view = g.add1(View::packed(Shape::new(&[16])?), &[y])?;
    let z = g.exp(y)?;
    for (name, value) in [("x", x), ("c", c), ("view", view), ("z", z), ("again", z)] {
        g.output(name, value)?;
    }
    let plan = plan_graph(&g, &[false; 3])?;
    use OutputLocation::{Copied, Written};
    assert_eq!(plan.outputs, [Copied, Copied, Copied, Written, Copied]);
    assert_eq!(plan.slots[view.index()].map(|s| s.root), Some(y));
    assert_eq!(plan.in_place[2], None);
    Ok(())
}

#[test]
fn load_time_values_and_empty_ones_take_no_room() -> Outcome {
    let mut g = Graph::new("load");
    let x = g.input("x", DType::F32, [0, 4])?;
    let w = g.param("w", DType::F32, [4, 4])?;
    let w2 = g.exp(w)?;
    let y = g.matmul(x, w2)?;
    let z = g.add1(Concat { axis: 0 }, &[y, y])?;
    let z = g.exp(z)?;
    g.output("z", z)?;
    let plan = plan_graph(&g, &[true, false, false, false])?;
    assert_eq!(plan.arena, 0);
    assert_eq!(plan.slots[w2.index()], None);
    assert_eq!(plan.slots[y.index()].map(|s| s.bytes), Some(0));
    Ok(())
}

#[test]
fn a_schedule_of_another_graph_is_refused() {
    assert!(plan_graph(&Graph::new("empty"), &[true]).is_err());
}

#[test]
fn five_hundred_buffers_are_placed_quickly() -> Outcome {
    let lives: Vec<Lifetime> = random_lifetimes(&mut Random(5), 380).into_iter().take(500).collect();
    let begin = std::time::Instant::now();
    let placement = place(&lives, ALIGNMENT)?;
    let elapsed = begin.elapsed();
    println!("{} buffers in {elapsed:?}, peak {}", lives.len(), placement.peak);
    // A few milliseconds on an idle machine; the bound leaves room for a busy one and an unoptimised build.
    assert!(elapsed.as_millis() < 250, "{elapsed:?}");
    Ok(())
}
