//! Matmuls of which an elementwise operation reads even and odd columns: a gate and what it lets through, in one pass.

use olivine_ir::DType;
use olivine_ir::op::{Arg, Region};

use crate::elementwise;
use crate::matmul::problem::Problem;
use crate::matmul::{lower, matmul_of};
use crate::site::{Operand, Site};

/// Lowers a matmul and the region that alone reads it. Operands are those of the matmul and then the region's, targets
/// the matmul's and the region's.
pub(crate) fn gated(region: &Region, site: &mut Site<'_>) -> Result<(), String> {
    let (operands, targets) = (site.operands.clone(), site.targets.clone());
    let ([a, b, inputs @ ..], [product, target]) = (operands.as_slice(), targets.as_slice()) else {
        return Err("needs a matmul and the node that reads it".into());
    };
    let column = |offset: usize| inputs.iter().position(|o| o.memory == product.memory && o.offset == offset);
    let (even, odd) = (column(0), column(1));
    let (Some(even), Some(odd)) = (even, odd) else { return Err("needs even and odd columns".into()) };
    let others: Vec<usize> = (0..inputs.len()).filter(|i| ![even, odd].contains(i)).collect();
    let order: Vec<usize> = [even, odd].into_iter().chain(others.iter().copied()).collect();
    let extras: Vec<Operand> = others.iter().map(|i| inputs[*i].clone()).collect();
    let wanted: Vec<Operand> = [a, b].into_iter().chain(&extras).cloned().collect();
    let short = matches!(a.ty.dtype, DType::F32 | DType::F16 | DType::BF16);
    let in_order = reordered(region, &order);
    let problem = Problem::of_gated(&wanted, target, &in_order)?;
    if short && problem.batches() == 1 && problem.n > 1 && problem.k > 0 {
        return lower(problem, &extras, site);
    }
    matmul_of(&[a.clone(), b.clone()], product, None, site)?;
    elementwise::emit("elementwise", region, inputs, std::slice::from_ref(target), site)
}

/// The region with its inputs in another order: the i-th is what was the `order[i]`-th.
fn reordered(region: &Region, order: &[usize]) -> Region {
    let mut region = region.clone();
    let change = |arg: &mut Arg| {
        if let Arg::Input(i) = arg {
            *i = order.iter().position(|o| o == i).unwrap_or(*i);
        }
    };
    region.instrs.iter_mut().flat_map(|instr| &mut instr.args).for_each(change);
    region.outputs.iter_mut().for_each(change);
    region
}
