//! Fused elementwise regions: alone, after a matmul or before a norm.

use olivine_ir::op::{Arg, Fused, InstrOp, Region};
use olivine_ir::{DType, Tensor, TensorType};

use super::Value;
use super::elementwise::{Scalar, collect, read, scalar};
use super::meanings;
use super::value::{broadcast_flat, each};
use crate::bound::round_to;

meanings! { |op, x, call|
    Fused => fused(op, x, call.results),
}

/// A stand-alone region.
pub(super) fn fused(op: &Fused, x: &[Value], results: &[TensorType]) -> Result<Vec<Value>, String> {
    apply(&op.region, x, results)
}

/// A region whose first input is another operation's result; it has one output.
pub(super) fn apply_region(
    region: &Option<Region>,
    main: Value,
    extra: &[Value],
    ty: TensorType,
) -> Result<Value, String> {
    let Some(region) = region else { return Ok(main) };
    let inputs: Vec<Value> = std::iter::once(main).chain(extra.iter().cloned()).collect();
    apply(region, &inputs, &[ty])?.pop().ok_or_else(|| "the region has no output".into())
}

fn apply(region: &Region, x: &[Value], results: &[TensorType]) -> Result<Vec<Value>, String> {
    let inputs: Vec<DType> = x.iter().map(|v| v.ty.dtype).collect();
    let dtypes = region.dtypes(&inputs)?;
    let Some(first) = results.first() else { return Ok(Vec::new()) };
    let mut columns: Vec<Vec<Scalar>> = vec![Vec::with_capacity(first.shape.numel()); results.len()];
    let mut failed = None;
    each(&first.shape, |at| {
        let given: Vec<Scalar> = x.iter().map(|v| read(v, broadcast_flat(v.shape(), at))).collect();
        match position(region, &given, &inputs, &dtypes) {
            Ok(outputs) => columns.iter_mut().zip(outputs).for_each(|(c, y)| c.push(y)),
            Err(e) => failed = Some(e),
        }
    });
    match failed {
        Some(e) => Err(e),
        None => Ok(results.iter().zip(columns).map(|(ty, c)| collect(*ty, c)).collect()),
    }
}

/// The program at one position.
fn position(
    region: &Region,
    given: &[Scalar],
    inputs: &[DType],
    dtypes: &[DType],
) -> Result<Vec<Scalar>, String> {
    let mut made: Vec<Scalar> = Vec::with_capacity(region.instrs.len());
    let fetch = |arg: &Arg, made: &[Scalar]| match arg {
        Arg::Input(i) => given.get(*i).copied().ok_or_else(|| format!("no input {i}")),
        Arg::Instr(i) => made.get(*i).copied().ok_or_else(|| format!("result {i} is not computed yet")),
    };
    for (i, instr) in region.instrs.iter().enumerate() {
        let args = instr.args.iter().map(|a| fetch(a, &made)).collect::<Result<Vec<_>, _>>()?;
        made.push(match instr.op {
            InstrOp::Splat(dtype, x) => read(&Value::of(&Tensor::scalar_of(dtype, x)), 0),
            InstrOp::Scalar(op) => {
                let dtype = match instr.args.last() {
                    Some(Arg::Input(i)) => inputs[*i],
                    Some(Arg::Instr(i)) => dtypes[*i],
                    None => return Err(format!("{op:?} without operands")),
                };
                match scalar(op, dtype, &args)? {
                    // Each instruction has its own dtype; only what comes out is left for the bound to round.
                    Scalar::F(x) if is_narrow(dtypes[i]) && !region.outputs.contains(&Arg::Instr(i)) => {
                        Scalar::F(round_to(dtypes[i], x))
                    }
                    made => made,
                }
            }
        });
    }
    region.outputs.iter().map(|a| fetch(a, &made)).collect()
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}
