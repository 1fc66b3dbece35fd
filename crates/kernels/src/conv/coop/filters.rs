//! Filters in the order of the new image's indices along K: taps, and within them channels in whole slots.

use olivine_ir::{Dim, Shape, TensorType};
use olivine_kernel::{Access, Elem, MatrixUse};

use crate::conv::coop::Plan;
use crate::launch::{Launch, number};
use crate::math;
use crate::matmul::coop::blocks::OperandPath;
use crate::matmul::coop::matrix;
use crate::matmul::coop::operands::PreparedOperand;
use crate::matmul::coop::packed::{PackSource, PackedShape, pack};
use crate::matmul::problem::{MatrixOperand, Problem};
use crate::site::{Memory, Operand, Site, linear_group};

/// The filters as a kernel is given them.
pub(crate) struct Filters {
    pub(crate) prepared: PreparedOperand,
    /// What is given, by strides.
    pub(crate) operand: MatrixOperand,
}

impl Filters {
    /// Brings filters into order, and packs them if they shall come so: at load what is stored, anything else in
    /// every run.
    pub(crate) fn new(
        problem: &Problem<'_>,
        plan: &Plan,
        way: OperandPath,
        site: &mut Site<'_>,
    ) -> Result<Self, String> {
        let w = &problem.a.operand;
        let (m, k_size) = (problem.rows(), plan.k_size());
        let shape = Shape::new(&[m, k_size]).map_err(|e| e.to_string())?;
        let ty = TensorType::new(w.ty.dtype, shape);
        let operand = |memory: Memory| MatrixOperand {
            operand: Operand {
                ty,
                strides: vec![k_size.into(), Dim::ONE],
                offset: Dim::ZERO,
                memory,
                stored: false,
            },
            outer: k_size.into(),
            k_stride: Dim::ONE,
        };
        let Plan { channels, padded, taps, .. } = plan;
        let how = format!("{way:?} filters of {taps} taps, {channels} channels in {padded}");
        let size = ty.bytes() as u64;
        match way {
            OperandPath::Staged => {
                let make = |site: &mut Site<'_>, to: Memory| reorder(problem, plan, to, site);
                let memory = made(how, w, size, make, site)?;
                Ok(Filters { prepared: PreparedOperand::Strided, operand: operand(memory) })
            }
            OperandPath::Packed => {
                let packed = PackedShape::new(m, k_size);
                let make = |site: &mut Site<'_>, to: Memory| {
                    let ordered = site.scratch(size);
                    reorder(problem, plan, ordered, site)?;
                    let ty = matrix(math::elem(w.ty.dtype), MatrixUse::A);
                    pack(&PackSource::Elements(&operand(ordered)), (m.into(), k_size.into()), ty, to, site)
                };
                let memory = made(how, w, number(packed.bytes()) as u64, make, site)?;
                Ok(Filters { prepared: PreparedOperand::Packed(memory, packed), operand: operand(memory) })
            }
        }
    }
}

/// Memory of so many bytes that is filled from an operand: once at load if it is stored, else in every run.
fn made(
    how: String,
    of: &Operand,
    bytes: u64,
    make: impl FnOnce(&mut Site<'_>, Memory) -> Result<(), String>,
    site: &mut Site<'_>,
) -> Result<Memory, String> {
    if of.stored {
        return site.at_load(how, of, bytes, make);
    }
    let memory = site.scratch(bytes);
    make(site, memory)?;
    Ok(memory)
}

/// Emits the ordering: an invocation to every two indices along K of a filter.
fn reorder(problem: &Problem<'_>, plan: &Plan, to: Memory, site: &mut Site<'_>) -> Result<(), String> {
    let pairs = problem.rows() * plan.k_size() / 2;
    let group = site.group_size(256);
    let k = site.builder("conv_filters", group);
    let l = Launch::new(&k);
    let w = l.bind("w", Elem::U16, Access::Read, problem.a.operand.memory);
    let out = l.bind("ordered", Elem::U32, Access::Write, to);
    let (channels, padded) = (l.size("channels", plan.channels), l.size("padded", plan.padded));
    let (taps, total) = (l.size("taps", plan.taps), l.size("pairs", pairs));
    let base = l.size("offset", problem.a.operand.offset);
    let id = linear_group(&k) * group + k.local_index();
    k.if_(id.lt(total), || {
        let element = id * 2u32;
        let line = element / padded;
        let channel = element - line * padded;
        let filter = line / taps;
        let tap = line - filter * taps;
        let one = |i: u32| {
            let inside = (channel + i).lt(channels);
            let at = base + (filter * channels + (channel + i).min(channels - 1u32)) * taps + tap;
            inside.select(w.load(at), k.u32(0))
        };
        out.store(id, one(0) | (one(1) << 16u32));
    });
    let bound = l.done();
    site.dispatch(k, bound, pairs.div_ceil(group as usize) as u64, (0, 8 * pairs as u64))
}
