//! Mnemonics.

/// The type of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    Pred,
    U8,
    S8,
    B8,
    U16,
    S16,
    B16,
    U32,
    S32,
    B32,
    U64,
    S64,
    B64,
    F16,
    BF16,
    F32,
    F64,
    F16x2,
    BF16x2,
}

impl Ty {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Ty::Pred,
            "u8" => Ty::U8,
            "s8" => Ty::S8,
            "b8" => Ty::B8,
            "u16" => Ty::U16,
            "s16" => Ty::S16,
            "b16" => Ty::B16,
            "u32" => Ty::U32,
            "s32" => Ty::S32,
            "b32" => Ty::B32,
            "u64" => Ty::U64,
            "s64" => Ty::S64,
            "b64" => Ty::B64,
            "f16" => Ty::F16,
            "bf16" => Ty::BF16,
            "f32" => Ty::F32,
            "f64" => Ty::F64,
            "f16x2" => Ty::F16x2,
            "bf16x2" => Ty::BF16x2,
            _ => return None,
        })
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Ty::Pred => 1,
            Ty::U8 | Ty::S8 | Ty::B8 => 8,
            Ty::U16 | Ty::S16 | Ty::B16 | Ty::F16 | Ty::BF16 => 16,
            Ty::U32 | Ty::S32 | Ty::B32 | Ty::F32 | Ty::F16x2 | Ty::BF16x2 => 32,
            Ty::U64 | Ty::S64 | Ty::B64 | Ty::F64 => 64,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Ty::F16 | Ty::BF16 | Ty::F32 | Ty::F64 | Ty::F16x2 | Ty::BF16x2)
    }

    fn is_int(self) -> bool {
        matches!(self, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64)
    }
}

/// One operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Neg,
    Abs,
    Not,
    CountOnes,
    LeadingZeros,
    Sqrt,
    InverseSqrt,
    Reciprocal,
    Exp2,
    Log2,
    Sin,
    Cos,
}

/// Two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Sub,
    Mul,
    MulHigh,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    Shr,
}

/// A comparison; `Ne` is true for NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// How a conversion rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Not: the result is exact, or an integer's low bits.
    Exact,
    /// To the nearest float.
    Nearest,
    /// To an integer: `m` down, `p` up, `z` towards zero, `n` to nearest even.
    Integer(u8),
}

/// Where a lane reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Index,
    Butterfly,
    Up,
}

/// A read-modify-write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    By(Arithmetic),
    Exchange,
    CompareExchange,
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Bits from one register to another, between halves and wholes too.
    Move(Ty),
    LoadParam(Ty),
    Load {
        shared: bool,
        ty: Ty,
    },
    Store {
        shared: bool,
        ty: Ty,
    },
    Atomic {
        shared: bool,
        op: Atomic,
        ty: Ty,
    },
    Unary(Unary, Ty),
    Binary(Arithmetic, Ty),
    MulWide,
    MadLow(Ty),
    MadWide,
    Fma(Ty),
    Select(Ty),
    Test(Test, Ty),
    Convert {
        round: Round,
        to: Ty,
        from: Ty,
    },
    /// Two f32 to a word, the first in its upper half.
    ConvertPair(Ty),
    Dot {
        signed: bool,
    },
    Branch,
    Return,
    // What several threads do together.
    Barrier,
    WarpBarrier,
    Vote {
        any: bool,
    },
    Shuffle(Shuffle),
    Reduce(Arithmetic, Ty),
    LoadMatrix {
        count: usize,
        transposed: bool,
    },
    Multiply {
        k: usize,
        operand: Ty,
        accumulator: Ty,
    },
    /// Fences, and numbers of registers: nothing to see.
    Nothing,
    // Barriers in workgroup memory, copies beside the threads, multiplies of warpgroups.
    BarrierInit,
    BarrierArrive {
        expects: bool,
    },
    BarrierTest,
    CopyBulk,
    PrefetchBulk,
    GroupMultiply {
        columns: usize,
        operands: [Ty; 2],
    },
    GroupCommit,
    GroupWait,
}

impl Op {
    /// Whether the threads of a warpgroup do it together.
    pub(crate) fn is_warpgroup(self) -> bool {
        matches!(self, Op::GroupMultiply { .. } | Op::GroupCommit | Op::GroupWait)
    }

    /// Whether the threads of a warp do it together.
    pub(crate) fn is_warp(self) -> bool {
        matches!(
            self,
            Op::WarpBarrier
                | Op::Vote { .. }
                | Op::Shuffle(_)
                | Op::Reduce(..)
                | Op::LoadMatrix { .. }
                | Op::Multiply { .. }
        )
    }
}

/// The operation of a mnemonic; `None` for one that is not printed.
pub(crate) fn op(name: &str) -> Option<Op> {
    let parts: Vec<&str> = name.split('.').collect();
    let ty = |i: usize| parts.get(i).and_then(|s| Ty::of(s));
    let last = Ty::of(parts.last()?);
    Some(match parts.as_slice() {
        ["mov", _] => Op::Move(ty(1).filter(|t| !t.is_float())?),
        ["ld", "param", _] => Op::LoadParam(ty(2)?),
        ["ld", space, _] | ["ld", space, "v2" | "v4", _] => Op::Load { shared: shared(space)?, ty: last? },
        ["ld", "global", "L1::no_allocate", "L2::128B", _]
        | ["ld", "global", "L1::no_allocate", "L2::128B", "v2" | "v4", _] => {
            Op::Load { shared: false, ty: last? }
        }
        ["st", "global", "cs", _] | ["st", "global", "cs", "v2" | "v4", _] => {
            Op::Store { shared: false, ty: last? }
        }
        ["st", space, _] | ["st", space, "v2" | "v4", _] => Op::Store { shared: shared(space)?, ty: last? },
        ["atom", space, what, _] => {
            let (op, ty) = (atomic(what)?, ty(3).filter(|t| t.bits() == 32 && !t.is_float())?);
            Op::Atomic { shared: shared(space)?, op, ty }
        }
        ["neg", _] => Op::Unary(Unary::Neg, ty(1)?),
        ["abs", _] => Op::Unary(Unary::Abs, ty(1)?),
        ["not", "pred" | "b32" | "b64"] => Op::Unary(Unary::Not, ty(1)?),
        ["popc", "b32"] => Op::Unary(Unary::CountOnes, Ty::B32),
        ["clz", "b32"] => Op::Unary(Unary::LeadingZeros, Ty::B32),
        ["sqrt", "rn", "f32" | "f64"] => Op::Unary(Unary::Sqrt, ty(2)?),
        ["rcp", "rn", "f64"] => Op::Unary(Unary::Reciprocal, Ty::F64),
        ["rsqrt", "approx", "f32"] => Op::Unary(Unary::InverseSqrt, Ty::F32),
        ["ex2", "approx", "f32"] => Op::Unary(Unary::Exp2, Ty::F32),
        ["lg2", "approx", "f32"] => Op::Unary(Unary::Log2, Ty::F32),
        ["sin", "approx", "f32"] => Op::Unary(Unary::Sin, Ty::F32),
        ["cos", "approx", "f32"] => Op::Unary(Unary::Cos, Ty::F32),
        // Without a rounding mode the assembler may contract: not what kernels want.
        [what @ ("add" | "sub" | "mul" | "div"), "rn", _] => Op::Binary(
            arithmetic(what)?,
            ty(2).filter(|t| t.is_float() && !(*what == "div" && t.bits() == 16))?,
        ),
        [what @ ("min" | "max"), _] => Op::Binary(arithmetic(what)?, ty(1)?),
        [what @ ("add" | "sub" | "div" | "rem"), _] => {
            Op::Binary(arithmetic(what)?, ty(1).filter(|t| t.is_int())?)
        }
        ["mul", "lo", _] => Op::Binary(Arithmetic::Mul, ty(2).filter(|t| t.is_int())?),
        ["mul", "hi", "u32"] => Op::Binary(Arithmetic::MulHigh, Ty::U32),
        ["mul", "wide", "u32"] => Op::MulWide,
        ["mad", "lo", _] => Op::MadLow(ty(2).filter(|t| t.is_int())?),
        ["mad", "wide", "u32"] => Op::MadWide,
        [what @ ("and" | "or" | "xor"), "pred" | "b32" | "b64"] => Op::Binary(arithmetic(what)?, ty(1)?),
        ["shl", "b32" | "b64"] => Op::Binary(Arithmetic::Shl, ty(1)?),
        ["shr", _] => Op::Binary(Arithmetic::Shr, ty(1).filter(|t| t.is_int())?),
        ["fma", "rn", "f16" | "f32" | "f64"] => Op::Fma(ty(2)?),
        ["selp", "b16" | "b32" | "b64"] => Op::Select(ty(1)?),
        ["setp", what, _] => Op::Test(test(what, ty(2)?.is_float())?, ty(2)?),
        ["cvt", _, _] => Op::Convert { round: Round::Exact, to: ty(1)?, from: exact(ty(1)?, ty(2)?)? },
        ["cvt", "rn", "f16x2" | "bf16x2", "f32"] => Op::ConvertPair(ty(2)?),
        ["cvt", "rn", _, _] => {
            Op::Convert { round: Round::Nearest, to: ty(2).filter(|t| t.is_float())?, from: ty(3)? }
        }
        ["cvt", how @ ("rmi" | "rpi" | "rzi" | "rni"), _, _] => {
            let round = Round::Integer(how.as_bytes()[1]);
            Op::Convert { round, to: ty(2)?, from: ty(3).filter(|t| t.is_float())? }
        }
        ["dp4a", "s32", "s32"] => Op::Dot { signed: true },
        ["dp4a", "u32", "u32"] => Op::Dot { signed: false },
        ["bra"] => Op::Branch,
        ["ret"] => Op::Return,
        ["bar", "sync"] => Op::Barrier,
        ["bar", "warp", "sync"] => Op::WarpBarrier,
        ["vote", "sync", what @ ("any" | "all"), "pred"] => Op::Vote { any: *what == "any" },
        ["shfl", "sync", "idx", "b32"] => Op::Shuffle(Shuffle::Index),
        ["shfl", "sync", "bfly", "b32"] => Op::Shuffle(Shuffle::Butterfly),
        ["shfl", "sync", "up", "b32"] => Op::Shuffle(Shuffle::Up),
        ["redux", "sync", what @ ("add" | "min" | "max"), "u32" | "s32"] => {
            Op::Reduce(arithmetic(what)?, last?)
        }
        ["ldmatrix", "sync", "aligned", "m8n8", count, rest @ ..] => {
            let count = count.strip_prefix('x')?.parse().ok().filter(|n| matches!(n, 1 | 2 | 4))?;
            let transposed = match rest {
                ["shared", "b16"] => false,
                ["trans", "shared", "b16"] => true,
                _ => return None,
            };
            Op::LoadMatrix { count, transposed }
        }
        ["mma", "sync", "aligned", shape, "row", "col", d, a, b, c] if d == c && a == b => {
            let k: usize = shape.strip_prefix("m16n8k")?.parse().ok()?;
            let (operand, accumulator) = (Ty::of(a)?, Ty::of(d)?);
            let known = matches!(
                (operand, accumulator, k),
                (Ty::F16, Ty::F16 | Ty::F32, 8 | 16)
                    | (Ty::BF16, Ty::F32, 8 | 16)
                    | (Ty::S8 | Ty::U8, Ty::S32, 16 | 32)
            );
            known.then_some(Op::Multiply { k, operand, accumulator })?
        }
        // Workgroups run one after another.
        ["fence", "acq_rel", "gpu"] => Op::Nothing,
        ["fence", "mbarrier_init", "release", "cluster"] | ["fence", "proxy", "async"] => Op::Nothing,
        ["setmaxnreg", "inc" | "dec", "sync", "aligned", "u32"] => Op::Nothing,
        ["wgmma", "fence", "sync", "aligned"] => Op::Nothing,
        ["mbarrier", "init", "shared::cta", "b64"] => Op::BarrierInit,
        ["mbarrier", "arrive", "shared::cta", "b64"] => Op::BarrierArrive { expects: false },
        ["mbarrier", "arrive", "expect_tx", "shared::cta", "b64"] => Op::BarrierArrive { expects: true },
        ["mbarrier", "try_wait", "parity", "shared::cta", "b64"] => Op::BarrierTest,
        ["cp", "async", "bulk", "shared::cluster", "global", "mbarrier::complete_tx::bytes"] => Op::CopyBulk,
        ["cp", "async", "bulk", "prefetch", "L2", "global"] => Op::PrefetchBulk,
        ["wgmma", "commit_group", "sync", "aligned"] => Op::GroupCommit,
        ["wgmma", "wait_group", "sync", "aligned"] => Op::GroupWait,
        ["wgmma", "mma_async", "sync", "aligned", shape, "f32", a @ ("f16" | "bf16"), b] if a == b => {
            let columns: usize = shape.strip_prefix("m64n")?.strip_suffix("k16")?.parse().ok()?;
            let known = (8..=256).contains(&columns) && columns.is_multiple_of(8);
            known.then_some(Op::GroupMultiply { columns, operands: [Ty::of(a)?; 2] })?
        }
        ["wgmma", "mma_async", "sync", "aligned", shape, "s32", a @ ("s8" | "u8"), b @ ("s8" | "u8")] => {
            let columns: usize = shape.strip_prefix("m64n")?.strip_suffix("k32")?.parse().ok()?;
            let step = if columns > 32 { 16 } else { 8 };
            let known = (8..=256).contains(&columns) && columns.is_multiple_of(step);
            known.then_some(Op::GroupMultiply { columns, operands: [Ty::of(a)?, Ty::of(b)?] })?
        }
        _ => return None,
    })
}

fn shared(space: &str) -> Option<bool> {
    match space {
        "shared" => Some(true),
        "global" => Some(false),
        _ => None,
    }
}

/// Conversions that need no rounding mode: to wider floats, and among integers.
fn exact(to: Ty, from: Ty) -> Option<Ty> {
    let fine = match (to.is_float(), from.is_float()) {
        (true, true) => to.bits() > from.bits(),
        (false, false) => true,
        _ => false,
    };
    fine.then_some(from)
}

fn arithmetic(name: &str) -> Option<Arithmetic> {
    Some(match name {
        "add" => Arithmetic::Add,
        "sub" => Arithmetic::Sub,
        "mul" => Arithmetic::Mul,
        "div" => Arithmetic::Div,
        "rem" => Arithmetic::Rem,
        "min" => Arithmetic::Min,
        "max" => Arithmetic::Max,
        "and" => Arithmetic::And,
        "or" => Arithmetic::Or,
        "xor" => Arithmetic::Xor,
        _ => return None,
    })
}

fn atomic(name: &str) -> Option<Atomic> {
    Some(match name {
        "exch" => Atomic::Exchange,
        "cas" => Atomic::CompareExchange,
        "add" | "min" | "max" | "and" | "or" | "xor" => Atomic::By(arithmetic(name)?),
        _ => return None,
    })
}

/// Of floats, `ne` is false for NaN, and nothing that kernels mean.
fn test(name: &str, float: bool) -> Option<Test> {
    Some(match name {
        "eq" => Test::Eq,
        "ne" if !float => Test::Ne,
        "neu" if float => Test::Ne,
        "lt" => Test::Lt,
        "le" => Test::Le,
        "gt" => Test::Gt,
        "ge" => Test::Ge,
        _ => return None,
    })
}
