//! How many threads, workgroups and dispatches a run takes.

use olivine::custom::Call;
use olivine_ir::DType;
use olivine_kernel::{Access, Elem, Scalar};
use olivine_kernels::linear_group;

use super::chain::Writer;
use super::memory::{Io, Memory, Rows, WorkSizes, sums_in_memory};
use crate::data::Layout;
use crate::expr::{Axes, DataKind, Function, Id, Node};
use crate::plan::Plan;

/// What a run is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) chains: usize,
    pub(crate) steps: usize,
    pub(crate) dtype: DType,
    /// Instructions that an invocation may run in one dispatch.
    pub(crate) budget: u64,
}

/// Threads of a workgroup.
const THREADS: usize = 256;
/// Threads of one that goes through many coordinates.
const MANY_THREADS: usize = 1024;
/// Workgroups that fill a large GPU; more of one chain only cost.
const GROUPS: usize = 256;
/// Elements that every workgroup of a chain adds up of the others' sums for each coordinate.
const SHARED_SUMS: usize = 1 << 18;
/// A budget of some ten milliseconds.
pub(crate) const BUDGET: u64 = 1 << 24;

/// Threads of a workgroup and workgroups of a chain.
fn groups(plan: &Plan, layout: &Layout, shape: &Shape, most: u32) -> (u32, u32) {
    // Coordinates are not shared by workgroups: many of them get all threads that a workgroup can have.
    let limit = if layout.d > layout.n_obs { MANY_THREADS } else { THREADS };
    let wanted = layout.n_obs.max(layout.d).next_power_of_two().clamp(32, limit) as u32;
    let threads = wanted.min(1 << most.max(1).ilog2());
    let mut groups = layout.n_obs.div_ceil(threads as usize).min(GROUPS / shape.chains.min(GROUPS));
    if !sums_in_memory(plan).is_empty() {
        groups = groups.min(SHARED_SUMS / layout.d.max(1));
    }
    // Workgroups meet at the end of a dispatch only, so that one that needs several passes does them alone.
    if plan.passes() != 1 || groups < 3 {
        groups = 1;
    }
    (threads, groups as u32)
}

/// About how many instructions an invocation runs in one iteration.
fn instructions(plan: &Plan, layout: &Layout, threads: u32, groups: u32) -> u64 {
    let cost = |node: &Node| match node {
        Node::Unary(Function::Lgamma | Function::Digamma | Function::Trigamma, _) => 300,
        Node::Unary(Function::Neg | Function::Abs | Function::Square, _) => 1,
        Node::Unary(..) => 30,
        Node::Binary(crate::expr::Operator::Pow, ..) => 80,
        _ => 2,
    };
    let body: u64 = plan.graph.nodes().iter().map(cost).sum();
    let both = (0..plan.graph.nodes().len() as u32).any(|i| plan.graph.axes(Id(i)) == Axes::BOTH);
    let inner = if both { layout.d as u64 } else { 1 };
    let obs = (layout.n_obs as u64).div_ceil(u64::from(threads) * u64::from(groups));
    let coords = (layout.d as u64).div_ceil(u64::from(threads));
    body.saturating_mul(obs.saturating_mul(inner) + coords + 1)
}

/// Writes the kernel and dispatches the run.
pub(super) fn dispatch(
    plan: &Plan,
    layout: &Layout,
    shape: &Shape,
    call: &mut Call<'_, '_>,
) -> Result<(), String> {
    let (threads, groups) = groups(plan, layout, shape, call.group_size(MANY_THREADS as u32));
    let threads = match call.target().subgroup {
        Some(size) => threads.max(size),
        None => threads,
    };
    let (elem, scalar) = match shape.dtype {
        DType::F64 => (Elem::F64, Scalar::F64),
        _ => (Elem::F32, Scalar::F32),
    };
    let sizes = WorkSizes::new(plan, groups, layout.n_obs, layout.d);
    let work = sizes.total().saturating_mul(shape.chains as u64).max(1);
    let rows = (shape.chains * shape.d_steps(layout)) as u64;
    if work >= 1 << 31 || rows >= 1 << 31 {
        return Err(format!(
            "{} chains of {} steps and {} coordinates are too many",
            shape.chains, shape.steps, layout.d
        ));
    }
    let scratch = call.scratch(work * u64::from(elem.size()));
    let iterations = shape.steps as u64 + 2;
    let each = instructions(plan, layout, threads, groups).max(1);
    // Chains beyond what runs at once wait for the others.
    let waves = (shape.chains as u64 * u64::from(groups)).div_ceil(512);
    let most = if groups > 1 { 1 } else { (shape.budget / each.saturating_mul(waves)).clamp(1, iterations) };
    let flops = each * u64::from(threads) * u64::from(groups) * shape.chains as u64 * most;
    let all = shape.chains as u64 * u64::from(groups);
    let per_group = layout.n_obs.div_ceil(groups as usize);
    call.dispatch("chain", threads, all, (flops, 0), |args| {
        let k = args.k();
        let (first, end) = (args.size("first", 0), args.size("end", most as usize));
        let start = args.operand(0)?;
        let numbers = args.operand(1)?;
        let reads_indices = plan.graph.data().iter().any(|d| d.kind == DataKind::Index);
        let indices = if reads_indices { Some(args.operand(2)?) } else { None };
        let (q, p) = (args.result(0)?, args.result(1)?);
        let (gradient, density) = (args.result(2)?, args.result(3)?);
        let buf = args.scratch("work", elem, Access::ReadWrite, scratch);
        let size = |name: &str, value: u64| args.size(name, value as usize);
        let (steps, d) = (args.size("steps", shape.steps), args.size("d", layout.d));
        let n_obs = args.size("n_obs", layout.n_obs);
        let chains = args.size("chains", shape.chains);
        let data = 0..plan.graph.data().len();
        let offsets = data.map(|i| args.size(&format!("data{i}"), layout.offset(i))).collect();
        let number = linear_group(k);
        let (chain, group) = match groups {
            1 => (number, k.u32(0)),
            _ => (number / groups, number % groups),
        };
        let per_group = args.size("per_group", per_group);
        let begin = group * per_group;
        let work = sizes.bind(buf, chain * size("work_chain", sizes.total()), group, size);
        k.if_(chain.lt(chains), || {
            let state = d + 1 + chain * d * 2;
            let io = Io {
                steps,
                n_obs,
                d,
                step_size: start.load(k.u32(0)),
                numbers,
                indices,
                offsets,
                inverse_mass: (start, k.u32(1)),
                q: (start, state),
                p: (start, state + d),
                rows: Rows {
                    q,
                    p,
                    gradient,
                    first: chain * steps * d,
                    density,
                    first_density: chain * steps,
                },
                memory: Memory::Work(work),
                obs: (begin.min(n_obs), (begin + per_group).min(n_obs)),
                writes: group.eq(0),
            };
            Writer::new(k, plan, scalar, io).for_coords(layout.d).write(first, end);
        });
        Ok(())
    })?;
    let mut first = most;
    while first < iterations {
        let end = iterations.min(first + most);
        call.dispatch_again(&[(0, first as u32), (1, end as u32)]);
        first = end;
    }
    Ok(())
}

impl Shape {
    fn d_steps(&self, layout: &Layout) -> usize {
        self.steps.saturating_mul(layout.d)
    }
}
