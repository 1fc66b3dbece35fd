//! Elementwise operations, regions, reductions and scans.

use olivine_ir::DType;
use olivine_ir::op::{
    Activation, Arg, ArgReduce, ArgReduceKind, ArgSort, Binary, Compare, Cumulative, CumulativeKind, Fused,
    Instr, InstrOp, LogSoftmax, Reduce, ReduceKind, Region, ScalarOp, Softmax, Sort, TopK, Unary,
};

use super::{Made, Rng, ty};

pub(crate) const MAKERS: &[fn(&mut Rng) -> Made] = &[
    scalar,
    scalar,
    scalar,
    fused,
    reduce,
    softmax,
    log_softmax,
    arg_reduce,
    cumulative,
    top_k,
    sort,
    argsort,
];

pub(crate) fn scalar_op(rng: &mut Rng) -> ScalarOp {
    match rng.below(10) {
        0..=3 => ScalarOp::Unary(rng.pick(Unary::ALL)),
        4..=5 => ScalarOp::Binary(rng.pick(Binary::ALL)),
        6 => ScalarOp::Compare(rng.pick(Compare::ALL)),
        7 => match rng.dtype() {
            to if to != DType::Bool && rng.chance(30) => ScalarOp::Bitcast(to),
            to => ScalarOp::Cast(to),
        },
        8 => rng.pick(&[ScalarOp::Where, ScalarOp::Fma, ScalarOp::Clamp]),
        _ => {
            let all = Activation::each(|| rng.real());
            ScalarOp::Activation(rng.pick(&all))
        }
    }
}

fn scalar(rng: &mut Rng) -> Made {
    let op = scalar_op(rng);
    let dtypes = loop {
        let dtype = rng.dtype();
        let mut dtypes = vec![dtype; op.arity()];
        if op == ScalarOp::Where {
            dtypes[0] = DType::Bool;
        }
        if op.result_dtype(&dtypes).is_ok() {
            break dtypes;
        }
    };
    let dims = rng.shape(0, 8);
    (op.into(), dtypes.into_iter().map(|d| ty(d, &rng.broadcast_to(&dims))).collect())
}

/// A region over inputs of given dtypes, and its outputs' dtypes; with `epilogue` one output, of a float dtype.
pub(crate) fn region(rng: &mut Rng, inputs: &[DType], epilogue: bool) -> (Region, Vec<DType>) {
    let mut region = Region { inputs: inputs.len(), instrs: Vec::new(), outputs: vec![Arg::Input(0)] };
    let mut known: Vec<(Arg, DType)> = inputs.iter().enumerate().map(|(i, d)| (Arg::Input(i), *d)).collect();
    for _ in 0..rng.below(8) {
        let (op, args, dtype) = if known.is_empty() || rng.chance(20) {
            let dtype = rng.dtype();
            (InstrOp::Splat(dtype, rng.real()), Vec::new(), dtype)
        } else {
            let op = scalar_op(rng);
            let args: Vec<(Arg, DType)> = (0..op.arity()).map(|_| rng.pick(&known)).collect();
            let Ok(dtype) = op.result_dtype(&args.iter().map(|a| a.1).collect::<Vec<_>>()) else { continue };
            (InstrOp::Scalar(op), args.into_iter().map(|a| a.0).collect(), dtype)
        };
        known.push((Arg::Instr(region.instrs.len()), dtype));
        region.instrs.push(Instr { op, args });
    }
    let outputs: Vec<(Arg, DType)> = if epilogue {
        let floats: Vec<(Arg, DType)> = known.into_iter().filter(|k| k.1.is_float()).collect();
        vec![rng.pick(&floats)]
    } else {
        (0..=rng.below(3)).map(|_| rng.pick(&known)).collect()
    };
    region.outputs = outputs.iter().map(|o| o.0).collect();
    (region, outputs.into_iter().map(|o| o.1).collect())
}

fn fused(rng: &mut Rng) -> Made {
    let dims = rng.shape(0, 8);
    let dtypes: Vec<DType> = (0..rng.within(1, 4)).map(|_| rng.dtype()).collect();
    let (region, _) = region(rng, &dtypes, false);
    (Fused { region }.into(), dtypes.into_iter().map(|d| ty(d, &rng.broadcast_to(&dims))).collect())
}

fn reduce(rng: &mut Rng) -> Made {
    let kind = rng.pick(ReduceKind::ALL);
    let dtype = match kind {
        ReduceKind::Any | ReduceKind::All => DType::Bool,
        ReduceKind::Mean | ReduceKind::L2 | ReduceKind::LogSum | ReduceKind::LogSumExp => rng.float(),
        _ => rng.number(),
    };
    let dims = rng.shape(0, 8);
    let op = Reduce { kind, axes: rng.subset(dims.len()), keepdims: rng.chance(50) };
    (op.into(), vec![ty(dtype, &dims)])
}

fn softmax(rng: &mut Rng) -> Made {
    let dims = rng.shape(1, 8);
    (Softmax { axis: rng.below(dims.len()) }.into(), vec![ty(rng.float(), &dims)])
}

fn log_softmax(rng: &mut Rng) -> Made {
    let dims = rng.shape(1, 8);
    (LogSoftmax { axis: rng.below(dims.len()) }.into(), vec![ty(rng.float(), &dims)])
}

fn arg_reduce(rng: &mut Rng) -> Made {
    let mut dims = rng.shape(1, 8);
    let axis = rng.below(dims.len());
    dims[axis] = rng.within(1, 4);
    let kind = rng.pick(ArgReduceKind::ALL);
    let op = ArgReduce { kind, axis, keepdims: rng.chance(50), last: rng.chance(50) };
    (op.into(), vec![ty(rng.number(), &dims)])
}

fn cumulative(rng: &mut Rng) -> Made {
    let dims = rng.shape(1, 8);
    let kind = rng.pick(CumulativeKind::ALL);
    let op =
        Cumulative { kind, axis: rng.below(dims.len()), exclusive: rng.chance(50), reverse: rng.chance(50) };
    (op.into(), vec![ty(rng.number(), &dims)])
}

fn top_k(rng: &mut Rng) -> Made {
    let dims = rng.shape(1, 8);
    let axis = rng.below(dims.len());
    let op = TopK { k: rng.below(dims[axis] + 1), axis, largest: rng.chance(50) };
    (op.into(), vec![ty(rng.number(), &dims)])
}

fn sort(rng: &mut Rng) -> Made {
    let dims = rng.shape(1, 8);
    (Sort { axis: rng.below(dims.len()), descending: rng.chance(50) }.into(), vec![ty(rng.number(), &dims)])
}

fn argsort(rng: &mut Rng) -> Made {
    let dims = rng.shape(1, 8);
    (
        ArgSort { axis: rng.below(dims.len()), descending: rng.chance(50) }.into(),
        vec![ty(rng.number(), &dims)],
    )
}
