//! Regions as the compiler makes them: alone, after products, before norms.

use olivine_ir::DType::{F16, F32, I32};
use olivine_ir::op::{
    Arg, Binary, Compare, Conv, Fused, Instr, InstrOp, LayerNorm, MatMul, Region, RmsNorm, ScalarOp, Unary,
    Window,
};

use super::{FLOATS, PAIR};
use crate::bound::Bound::{Exact, Near, Peak};
use crate::case::Table;
use crate::fill::{normal, whole};

fn instr(op: ScalarOp, args: &[Arg]) -> Instr {
    Instr { op: InstrOp::Scalar(op), args: args.to_vec() }
}

fn binary(op: Binary, a: Arg, b: Arg) -> Instr {
    instr(ScalarOp::Binary(op), &[a, b])
}

fn unary(op: Unary, a: Arg) -> Instr {
    instr(ScalarOp::Unary(op), &[a])
}

fn region(inputs: usize, instrs: Vec<Instr>) -> Region {
    let last = instrs.len().saturating_sub(1);
    Region { inputs, instrs, outputs: vec![Arg::Instr(last)] }
}

pub(super) fn rows(t: &mut Table) {
    use Arg::{Input, Instr as Made};
    alone(t);
    let gelu_residual = region(
        3,
        vec![
            binary(Binary::Add, Input(0), Input(1)),
            unary(Unary::Gelu, Made(0)),
            binary(Binary::Add, Made(1), Input(2)),
        ],
    );
    let after_product = gelu_residual.clone();
    t.case("matmul-epilogue", FLOATS, normal(), Peak(48.0), move |g| {
        let (x, w, b, r) = (g.x([2, 9, 24])?, g.w([24, 10])?, g.w([10])?, g.x([9, 1])?);
        g.add1(MatMul { epilogue: Some(after_product.clone()) }, &[x, w, b, r])
    });
    t.case("conv-epilogue", PAIR, normal(), Peak(48.0), move |g| {
        let (x, w, b) = (g.x([2, 3, 7, 6])?, g.w([5, 3, 3, 3])?, g.w([5])?);
        let (scale, r) = (g.w([5, 1, 1])?, g.x([2, 5, 7, 6])?);
        let op = Conv {
            window: Window::same(2, 1, 1),
            groups: 1,
            bias: true,
            epilogue: Some(gelu_residual.clone()),
        };
        g.add1(op, &[x, w, b, scale, r])
    });
    let cast = region(1, vec![unary(Unary::Relu, Input(0)), instr(ScalarOp::Cast(F16), &[Made(0)])]);
    t.case("matmul-epilogue-narrows", &[F32], whole(-4, 4), Exact, move |g| {
        let (x, w) = (g.x([9, 24])?, g.x([24, 10])?);
        g.add1(MatMul { epilogue: Some(cast.clone()) }, &[x, w])
    });
    let sum = region(2, vec![binary(Binary::Add, Input(0), Input(1))]);
    for emit_input in [false, true] {
        let tail = if emit_input { "-emitted" } else { "" };
        let prologue = Some(sum.clone());
        t.case(&format!("layer_norm-prologue{tail}"), FLOATS, normal(), Peak(48.0), move |g| {
            let (x, gamma, beta, r) = (g.x([2, 5, 33])?, g.w([33])?, g.w([33])?, g.x([5, 33])?);
            let op = LayerNorm { axis: 2, eps: 1e-5, bias: true, prologue: prologue.clone(), emit_input };
            g.add_op(op, &[x, gamma, beta, r])
        });
        let prologue = Some(sum.clone());
        t.case(&format!("rms_norm-prologue{tail}"), FLOATS, normal(), Peak(48.0), move |g| {
            let (x, gamma, r) = (g.x([2, 5, 33])?, g.w([33])?, g.x([2, 1, 33])?);
            let op = RmsNorm { axis: 2, eps: 1e-6, bias: false, prologue: prologue.clone(), emit_input };
            g.add_op(op, &[x, gamma, r])
        });
    }
}

fn alone(t: &mut Table) {
    use Arg::{Input, Instr as Made};
    t.case("identity", &[F32, F16, I32], normal(), Exact, |g| {
        let x = g.x([4, 5])?;
        g.add1(Fused { region: Region::identity() }, &[x])
    });
    t.case("identity-of-transpose", &[F32], normal(), Exact, |g| {
        let x = g.x([4, 5])?;
        let x = g.transpose(x, &[1, 0])?;
        g.add1(Fused { region: Region::identity() }, &[x])
    });
    let lost = region(
        1,
        vec![
            instr(ScalarOp::Cast(F16), &[Input(0)]),
            instr(ScalarOp::Cast(F32), &[Made(0)]),
            binary(Binary::Sub, Input(0), Made(1)),
        ],
    );
    t.case("what-a-half-loses", &[F32], normal(), Exact, move |g| {
        let x = g.x([9, 37])?;
        g.add1(Fused { region: lost.clone() }, &[x])
    });
    let several = Region {
        inputs: 3,
        instrs: vec![
            Instr { op: InstrOp::Splat(F32, 0.5), args: Vec::new() },
            binary(Binary::Mul, Input(0), Made(0)),
            binary(Binary::Add, Made(1), Input(1)),
            instr(ScalarOp::Compare(Compare::Lt), &[Made(2), Input(2)]),
            instr(ScalarOp::Where, &[Made(3), Made(2), Input(0)]),
            instr(ScalarOp::Cast(I32), &[Made(4)]),
        ],
        outputs: vec![Made(4), Made(3), Made(5), Input(1)],
    };
    t.case("several-outputs", &[F32], whole(-9, 9), Exact, move |g| {
        let (a, b, c) = (g.x([3, 1, 5])?, g.x([4, 1])?, g.x([5])?);
        g.add_op(Fused { region: several.clone() }, &[a, b, c])
    });
    let twice = region(
        2,
        vec![
            unary(Unary::Exp, Input(0)),
            binary(Binary::Add, Made(0), Input(1)),
            binary(Binary::Div, Made(0), Made(1)),
            unary(Unary::Tanh, Made(2)),
        ],
    );
    t.case("mid-axis", FLOATS, crate::fill::uniform(0.1, 2.0), Near(32.0, 4.0), move |g| {
        let (x, y) = (g.x([2, 1, 7, 1])?, g.x([3, 1, 5])?);
        g.add1(Fused { region: twice.clone() }, &[x, y])
    });
}
