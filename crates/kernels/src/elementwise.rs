//! Elementwise regions over operands with any broadcasting and strides.
//!
//! Every invocation computes `LANES` neighbouring positions where the layouts of all operands make these one vector load
//! (or one number), else one position. Sizes and strides are run-time numbers.

use olivine_ir::Dim;
use olivine_ir::op::{Arg, Binary, Instr, InstrOp, Region, ScalarOp};
use olivine_kernel::{Buf, Val};

use crate::kernels;
use crate::launch::{Launch, bytes};
use crate::math::{self, Typed};
use crate::matmul::is_heavy;
use crate::site::{Operand, Site, Target, linear_group};
use crate::walk::Walk;

kernels! { |op, site|
    ScalarOp => scalar(op, site),
    Fused => fused(&op.region, site),
}

/// Vectors that are very many: all of a large device works on them for a while.
const MANY: usize = 1 << 20;

/// The name of the kernel that copies all of a value; a copy of bytes onto themselves is left out.
pub const WHOLE_COPY: &str = "whole_copy";

/// Lowers one elementwise operation.
pub(crate) fn scalar(op: &ScalarOp, site: &mut Site<'_>) -> Result<(), String> {
    fused(&region_of(op, site.operands.len()), site)
}

/// The region of one operation on so many inputs.
pub(super) fn region_of(op: &ScalarOp, inputs: usize) -> Region {
    let args = (0..inputs).map(Arg::Input).collect();
    let instr = Instr { op: InstrOp::Scalar(*op), args };
    Region { inputs, instrs: vec![instr], outputs: vec![Arg::Instr(0)] }
}

/// Lowers a region.
pub(crate) fn fused(region: &Region, site: &mut Site<'_>) -> Result<(), String> {
    let (operands, targets) = (site.operands.clone(), site.targets.clone());
    let name = if region.instrs.is_empty() { "copy" } else { "elementwise" };
    emit(name, region, &operands, &targets, site)
}

/// Copies operand 0 to target 0, both of one type.
pub fn copy(site: &mut Site<'_>) -> Result<(), String> {
    let (operand, target) = (site.operands[0].clone(), site.targets[0].clone());
    whole_copy(&operand, &target, site)
}

/// Copies all of an operand to a target.
pub fn whole_copy(operand: &Operand, target: &Target, site: &mut Site<'_>) -> Result<(), String> {
    let name = if operand.is_packed() { WHOLE_COPY } else { "copy" };
    emit(name, &Region::identity(), std::slice::from_ref(operand), std::slice::from_ref(target), site)
}

/// Emits a region over operands and targets of one shape.
pub(crate) fn emit(
    name: &str,
    region: &Region,
    operands: &[Operand],
    targets: &[Target],
    site: &mut Site<'_>,
) -> Result<(), String> {
    if region.instrs.is_empty() {
        return super::copy::region(name, region, operands, targets, site);
    }
    let Some(first) = targets.first() else { return Ok(()) };
    let dims = first.ty.shape.sizes();
    let mut strides = Vec::with_capacity(operands.len() + 1);
    for (i, operand) in operands.iter().enumerate() {
        let over = operand
            .broadcast_to(&dims)
            .ok_or_else(|| format!("operand {i} {} does not broadcast to {}", operand.ty, first.ty.shape))?;
        strides.push(over);
    }
    strides.push(first.ty.shape.stride_sizes());
    let walk = Walk::new(&dims, &strides);
    let n = walk.numel();
    if n == 0 {
        return Ok(());
    }
    // A long region is written once where kernels are to be short.
    let long = site.caps.wants_short_kernels() && is_heavy(region);
    let lanes = if long { 1 } else { lanes(&walk, operands, targets) };

    let group = site.group_size(256);
    let k = site.builder(name, group);
    let l = Launch::new(&k);
    let sources: Vec<Buf<'_>> =
        operands.iter().enumerate().map(|(i, o)| l.read(&format!("x{i}"), o)).collect();
    let sinks: Vec<Buf<'_>> = targets.iter().enumerate().map(|(i, t)| l.write(&format!("y{i}"), t)).collect();
    let count = l.size("n", n.div_ceil(lanes));
    let mut offsets: Vec<Dim> = operands.iter().map(|o| o.offset).collect();
    offsets.push(Dim::ZERO);
    let walker = walk.declare(&l, &offsets);

    let load_at = |work| -> Vec<Vec<Val<'_>>> {
        let indices = walker.at(work * lanes);
        let each = sources.iter().zip(indices).enumerate();
        each.map(|(i, (buffer, index))| load(*buffer, index, walk.steps_by(i, 0), lanes)).collect()
    };
    let compute = |loaded: &[Vec<Val<'_>>], work| {
        let mut results: Vec<Vec<Val<'_>>> = vec![Vec::with_capacity(lanes); targets.len()];
        for lane in 0..lanes {
            let inputs: Vec<Typed<'_>> = loaded
                .iter()
                .zip(operands)
                .map(|(values, operand)| Typed { val: values[lane], dtype: operand.ty.dtype })
                .collect();
            for (to, result) in results.iter_mut().zip(math::region(region, &inputs)) {
                to.push(result.val);
            }
        }
        for (sink, values) in sinks.iter().zip(&results) {
            sink.store_vec(work * lanes, values);
        }
    };
    let rounds = rounds(region, n.div_ceil(lanes));
    let first = linear_group(&k) * (group * rounds) + k.local_index();
    if rounds == 1 {
        k.if_(first.lt(count), || compute(&load_at(first), first));
    } else {
        // What comes next is under way during the work; loads past the end repeat the last.
        let mut next = load_at(first.min(count - 1));
        for round in 0..rounds {
            let (work, loaded) = (first + round * group, next);
            next = if round + 1 < rounds { load_at((work + group).min(count - 1)) } else { Vec::new() };
            k.if_(work.lt(count), || compute(&loaded, work));
        }
    }

    let moved = operands.iter().map(|o| bytes(&o.ty)).sum::<Dim>()
        + targets.iter().map(|t| bytes(&t.ty)).sum::<Dim>();
    let flops = n * region.flops();
    let bound = l.done();
    site.dispatch(k, bound, n.div_ceil(lanes).div_ceil(group * rounds), (flops, moved))
}

/// Vectors of an invocation: several where there are very many and the work on each is as long as loading it.
fn rounds(region: &Region, vectors: Dim) -> u32 {
    let heavy = |instr: &Instr| {
        matches!(
            instr.op,
            InstrOp::Scalar(ScalarOp::Unary(_) | ScalarOp::Activation(_) | ScalarOp::Binary(Binary::Pow))
        )
    };
    if region.instrs.iter().any(heavy) && vectors >= MANY { 2 } else { 1 }
}

/// Positions for one invocation: as many as make 16 bytes of the narrower types and may be loaded as vectors. Memory
/// is padded, so the last vector of a flat walk may reach past the last element.
pub(super) fn lanes(walk: &Walk, operands: &[Operand], targets: &[Target]) -> usize {
    let widest = operands.iter().map(|o| o.ty.dtype).chain(targets.iter().map(|t| t.ty.dtype));
    let lanes = if widest.map(|d| d.size()).max().unwrap_or(4) > 4 { 2 } else { 4 };
    let flat = walk.dims.len() == 1;
    let whole_rows = || walk.dims.last().is_some_and(|d| d.is_multiple_of(lanes));
    let aligned = |i: usize, o: &Operand| match walk.inner(i).as_constant() {
        Some(0) => true,
        Some(1) => {
            let strides = &walk.strides[i];
            let outer = &strides[..strides.len() - 1];
            o.offset.is_multiple_of(lanes) && outer.iter().all(|s| s.is_multiple_of(lanes))
        }
        _ => false,
    };
    let vectors = operands.iter().enumerate().all(|(i, o)| aligned(i, o));
    if vectors && (flat || whole_rows()) { lanes } else { 1 }
}

/// `lanes` values of an operand: one vector, or one number for all where it `repeats`.
pub(super) fn load<'k>(buffer: Buf<'k>, index: Val<'k>, repeats: bool, lanes: usize) -> Vec<Val<'k>> {
    match (repeats, lanes) {
        (true, _) => vec![buffer.load(index); lanes],
        (_, 1) => vec![buffer.load(index)],
        _ => buffer.load_vec(index, lanes as u8),
    }
}
