//! Sequence models whose memory is a state of fixed size: Mamba, Mamba-2, the gated delta net, and the short
//! convolution in front of them. Each takes the state that an earlier call left and gives the one it leaves itself.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, float, of_shape, op, shape};
use crate::{DType, Error, TensorType};

/// The dtype of a recurrent state: f32 where x is f16 or bf16, so that carrying it on loses nothing, else x's own.
pub fn state_dtype(x: DType) -> DType {
    if matches!(x, DType::F16 | DType::BF16) { DType::F32 } else { x }
}

/// Hands out positions of optional operands in order.
fn positions<const N: usize>(first: usize, given: [bool; N]) -> [Option<usize>; N] {
    let mut next = first;
    given.map(|given| {
        given.then(|| {
            next += 1;
            next - 1
        })
    })
}

/// Holds operands against their names, shapes and x's dtype; those marked `wide` may be f32 where that is narrower.
fn check(
    dtype: DType,
    operands: &[TensorType],
    expected: &[(Option<usize>, &str, bool, &[usize])],
) -> Result<(), String> {
    for (position, what, wide, dims) in expected {
        let Some(operand) = position.and_then(|p| operands.get(p)) else { continue };
        of_shape(what, operand, dims)?;
        let admitted = operand.dtype == dtype || (*wide && operand.dtype == state_dtype(dtype));
        if !admitted {
            return Err(format!("{what} must be {dtype}, got {}", operand.dtype));
        }
    }
    Ok(())
}

/// Holds a carried state against its shape and the dtype that states have.
fn check_state(operands: &[TensorType], position: Option<usize>, state: &TensorType) -> Result<(), String> {
    let Some(given) = position.and_then(|p| operands.get(p)) else { return Ok(()) };
    of_shape("the state", given, &state.shape.sizes())?;
    if given.dtype != state.dtype {
        return Err(format!("the state must be {}, got {}", state.dtype, given.dtype));
    }
    Ok(())
}

fn rank(what: &str, operand: &TensorType, rank: usize) -> Result<(), String> {
    if operand.shape.rank() == rank {
        Ok(())
    } else {
        Err(format!("{what} must have rank {rank}, got {}", operand.shape))
    }
}

op! {
    /// Mamba's scan: h ← exp(Δ·A)·h + Δ·B·x, y = C·h + D·x, times silu(z) where a gate is given.
    ///
    /// Operands: x and Δ `[B, L, D]`, A `[D, N]` (negative for a decay; not its logarithm), B and C `[B, L, N]`, then
    /// as announced D `[D]`, z `[B, L, D]`, the bias of Δ `[D]` and the state `[B, D, N]`, zeros without one. Results:
    /// y as x, and the state after the last step. A, D, Δ and its bias may be f32 where x is f16 or bf16.
    pub struct SelectiveScan = "selective_scan" {
        /// Whether D is given.
        pub skip: bool,
        /// Whether z is given.
        pub gate: bool,
        /// Whether a bias of Δ is given; it is added first.
        pub delta_bias: bool,
        /// Whether Δ goes through softplus.
        pub softplus: bool,
        /// Whether a state is given.
        pub state: bool,
    }
}

/// Positions of the optional operands of a [`SelectiveScan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the operands are")]
pub struct SelectiveScanOperands {
    pub skip: Option<usize>,
    pub gate: Option<usize>,
    pub delta_bias: Option<usize>,
    pub state: Option<usize>,
}

impl SelectiveScan {
    /// The scan of five operands alone.
    pub fn new() -> Self {
        SelectiveScan { skip: false, gate: false, delta_bias: false, softplus: false, state: false }
    }

    /// Where the optional operands stand.
    pub fn optional_operands(&self) -> SelectiveScanOperands {
        let [skip, gate, delta_bias, state] =
            positions(5, [self.skip, self.gate, self.delta_bias, self.state]);
        SelectiveScanOperands { skip, gate, delta_bias, state }
    }
}

impl Default for SelectiveScan {
    fn default() -> Self {
        SelectiveScan::new()
    }
}

impl Rule for SelectiveScan {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let given = [self.skip, self.gate, self.delta_bias, self.state];
        let count = 5 + given.iter().filter(|g| **g).count();
        arity(operands, count..=count)?;
        float(&operands[0])?;
        rank("x", &operands[0], 3)?;
        rank("A", &operands[2], 2)?;
        let (x, at) = (operands[0].shape, self.optional_operands());
        let (b, l, d, n) = (x[0], x[1], x[2], operands[2].shape[1]);
        if n == 0 {
            return Err("a channel must have at least one state".into());
        }
        let expected: [(Option<usize>, &str, bool, &[usize]); 7] = [
            (Some(1), "delta", true, &[b, l, d]),
            (Some(2), "A", true, &[d, n]),
            (Some(3), "B", false, &[b, l, n]),
            (Some(4), "C", false, &[b, l, n]),
            (at.skip, "D", true, &[d]),
            (at.gate, "z", false, &[b, l, d]),
            (at.delta_bias, "the bias of delta", true, &[d]),
        ];
        check(operands[0].dtype, operands, &expected)?;
        let state = TensorType::new(state_dtype(operands[0].dtype), shape(&[b, d, n])?);
        check_state(operands, at.state, &state)?;
        Ok(vec![operands[0], state])
    }
}

op! {
    /// Mamba-2's scan, one decay for a head: h ← exp(dt·A)·h + dt·x·Bᵀ, y = h·C + D·x.
    ///
    /// Operands: x `[B, L, H, P]`, dt `[B, L, H]`, A `[H]` (negative for a decay), B and C `[B, L, G, N]` whose G groups
    /// each serve H/G neighbouring heads, then as announced D `[H]` and the state `[B, H, P, N]`, zeros without one.
    /// Results: y as x, and the state after the last step. dt, A and D may be f32 where x is f16 or bf16.
    pub struct Mamba2 = "mamba2" {
        /// Whether D is given.
        pub skip: bool,
        /// Whether a state is given.
        pub state: bool,
    }
}

impl Mamba2 {
    /// Where D and the state stand.
    pub fn optional_operands(&self) -> (Option<usize>, Option<usize>) {
        let [skip, state] = positions(5, [self.skip, self.state]);
        (skip, state)
    }
}

impl Rule for Mamba2 {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (skip, carried) = self.optional_operands();
        let count = 5 + usize::from(self.skip) + usize::from(self.state);
        arity(operands, count..=count)?;
        float(&operands[0])?;
        rank("x", &operands[0], 4)?;
        rank("B", &operands[3], 4)?;
        let (x, keys) = (operands[0].shape, operands[3].shape);
        let (b, l, h, p, g, n) = (x[0], x[1], x[2], x[3], keys[2], keys[3]);
        divides("groups", g, h)?;
        if n == 0 {
            return Err("a head must have at least one state".into());
        }
        let expected: [(Option<usize>, &str, bool, &[usize]); 5] = [
            (Some(1), "dt", true, &[b, l, h]),
            (Some(2), "A", true, &[h]),
            (Some(3), "B", false, &[b, l, g, n]),
            (Some(4), "C", false, &[b, l, g, n]),
            (skip, "D", true, &[h]),
        ];
        check(operands[0].dtype, operands, &expected)?;
        let state = TensorType::new(state_dtype(operands[0].dtype), shape(&[b, h, p, n])?);
        check_state(operands, carried, &state)?;
        Ok(vec![operands[0], state])
    }
}

fn divides(what: &str, parts: usize, heads: usize) -> Result<(), String> {
    let fits = if parts == 0 { heads == 0 } else { heads.is_multiple_of(parts) };
    if fits { Ok(()) } else { Err(format!("{parts} {what} do not divide {heads} heads")) }
}

op! {
    /// The gated delta rule: S ← e^g·S, d = (v − Sᵀk)·β, S ← S + k·dᵀ, o = Sᵀq·scale.
    ///
    /// Operands: q and k `[B, L, Hk, Dk]`, v `[B, L, H, Dv]`, g and β `[B, L, H]`, then as announced the state
    /// `[B, H, Dk, Dv]`, zeros without one; Hk divides H, and each q and k serves H/Hk neighbouring heads. Results: o
    /// `[B, L, H, Dv]`, and the state after the last step. All but v may be f32 where v
    /// is f16 or bf16.
    pub struct GatedDeltaNet = "gated_delta_net" {
        /// The factor on o; none means Dk^-1/2.
        pub scale: Option<f64>,
        /// Divides q and k by their lengths first; the number is added to the sum of squares under the root.
        pub normalise: Option<f64>,
        /// Whether a state is given.
        pub state: bool,
    }
}

impl GatedDeltaNet {
    /// The rule of five operands alone, default scale.
    pub fn new() -> Self {
        GatedDeltaNet { scale: None, normalise: None, state: false }
    }

    /// The factor on o for a key dim.
    pub fn scale_for(&self, dim: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (dim as f64).sqrt())
    }
}

impl Default for GatedDeltaNet {
    fn default() -> Self {
        GatedDeltaNet::new()
    }
}

impl Rule for GatedDeltaNet {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let count = 5 + usize::from(self.state);
        arity(operands, count..=count)?;
        float(&operands[2])?;
        rank("q", &operands[0], 4)?;
        rank("v", &operands[2], 4)?;
        let (q, v) = (operands[0].shape, operands[2].shape);
        let (b, l, hk, dk, h, dv) = (q[0], q[1], q[2], q[3], v[2], v[3]);
        divides("key heads", hk, h)?;
        if dk == 0 {
            return Err("keys must have at least one element".into());
        }
        if self.normalise.is_some_and(|eps| eps.is_nan() || eps < 0.0) {
            return Err("the number added to a sum of squares must not be negative".into());
        }
        let expected: [(Option<usize>, &str, bool, &[usize]); 5] = [
            (Some(0), "q", true, &[b, l, hk, dk]),
            (Some(1), "k", true, &[b, l, hk, dk]),
            (Some(2), "v", false, &[b, l, h, dv]),
            (Some(3), "g", true, &[b, l, h]),
            (Some(4), "beta", true, &[b, l, h]),
        ];
        check(operands[2].dtype, operands, &expected)?;
        let state = TensorType::new(state_dtype(operands[2].dtype), shape(&[b, h, dk, dv])?);
        check_state(operands, self.state.then_some(5), &state)?;
        Ok(vec![operands[2], state])
    }
}

op! {
    /// A convolution of every channel with its own taps over the past: y_t = Σ_j weight_j·x_(t−w+1+j) + bias.
    ///
    /// Operands: x `[B, L, D]`, weight `[D, w]` whose last tap meets the present, then as announced bias `[D]` and the
    /// state `[B, w − 1, D]`: the inputs before the first, oldest first; zeros without one. Results: y as x, and the
    /// last w − 1 inputs, which may reach back into the given state. All are of x's dtype.
    pub struct CausalConv1d = "causal_conv1d" {
        /// Whether a bias is given.
        pub bias: bool,
        /// Whether y goes through silu.
        pub silu: bool,
        /// Whether a state is given.
        pub state: bool,
    }
}

impl CausalConv1d {
    /// Where bias and state stand.
    pub fn optional_operands(&self) -> (Option<usize>, Option<usize>) {
        let [bias, state] = positions(2, [self.bias, self.state]);
        (bias, state)
    }
}

impl Rule for CausalConv1d {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (bias, carried) = self.optional_operands();
        let count = 2 + usize::from(self.bias) + usize::from(self.state);
        arity(operands, count..=count)?;
        float(&operands[0])?;
        rank("x", &operands[0], 3)?;
        rank("the weight", &operands[1], 2)?;
        let x = operands[0].shape;
        let (b, d, w) = (x[0], x[2], operands[1].shape[1]);
        if w == 0 {
            return Err("a convolution needs at least one tap".into());
        }
        let expected: [(Option<usize>, &str, bool, &[usize]); 2] =
            [(Some(1), "the weight", false, &[d, w]), (bias, "the bias", false, &[d])];
        check(operands[0].dtype, operands, &expected)?;
        let state = TensorType::new(operands[0].dtype, shape(&[b, w - 1, d])?);
        check_state(operands, carried, &state)?;
        Ok(vec![operands[0], state])
    }
}

impl Graph {
    /// Mamba's scan: y and the state; `operands` are x, Δ, A, B and C, `extra` what `spec` announces. See
    /// [`SelectiveScan`].
    pub fn selective_scan(
        &mut self,
        spec: SelectiveScan,
        operands: [ValueId; 5],
        extra: &[ValueId],
    ) -> Result<(ValueId, ValueId), Error> {
        self.with_state(spec, &operands, extra)
    }

    /// Mamba-2's scan: y and the state; `operands` are x, dt, A, B and C, `extra` what `spec` announces. See [`Mamba2`].
    pub fn mamba2(
        &mut self,
        spec: Mamba2,
        operands: [ValueId; 5],
        extra: &[ValueId],
    ) -> Result<(ValueId, ValueId), Error> {
        self.with_state(spec, &operands, extra)
    }

    /// The gated delta rule: o and the state; `operands` are q, k, v, g and β. See [`GatedDeltaNet`].
    pub fn gated_delta_net(
        &mut self,
        spec: GatedDeltaNet,
        operands: [ValueId; 5],
        state: Option<ValueId>,
    ) -> Result<(ValueId, ValueId), Error> {
        self.with_state(spec, &operands, state.as_slice())
    }

    /// A causal convolution: y and the state; `extra` is what `spec` announces. See [`CausalConv1d`].
    pub fn causal_conv1d(
        &mut self,
        spec: CausalConv1d,
        x: ValueId,
        weight: ValueId,
        extra: &[ValueId],
    ) -> Result<(ValueId, ValueId), Error> {
        self.with_state(spec, &[x, weight], extra)
    }

    fn with_state(
        &mut self,
        op: impl Into<crate::Op>,
        operands: &[ValueId],
        extra: &[ValueId],
    ) -> Result<(ValueId, ValueId), Error> {
        let op = op.into();
        let name = op.name();
        match self.add_op(op, &[operands, extra].concat())?.as_slice() {
            [y, state] => Ok((*y, *state)),
            _ => Err(Error::Invalid { location: name.into(), problem: "has two results".into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Shape};

    fn ty(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType::new(dtype, Shape::new(dims).unwrap())
    }

    fn refused(op: impl Into<Op>, operands: &[TensorType], words: &str) {
        let problem = op.into().infer(operands).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }

    #[test]
    fn states_of_narrow_inputs_are_f32_and_parameters_may_be() {
        use DType::{BF16, F16, F32, F64};
        for (x, state) in [(F32, F32), (F16, F32), (BF16, F32), (F64, F64)] {
            for wide in [x, state] {
                let operands = [
                    ty(x, &[2, 7, 4, 5]),
                    ty(wide, &[2, 7, 4]),
                    ty(wide, &[4]),
                    ty(x, &[2, 7, 2, 3]),
                    ty(x, &[2, 7, 2, 3]),
                    ty(wide, &[4]),
                    ty(state, &[2, 4, 5, 3]),
                ];
                let out = Op::from(Mamba2 { skip: true, state: true }).infer(&operands).unwrap();
                assert_eq!(out, [ty(x, &[2, 7, 4, 5]), ty(state, &[2, 4, 5, 3])]);
            }
        }
        let narrow = [ty(F16, &[1, 2, 3]), ty(F16, &[3, 4]), ty(F32, &[1, 3, 3])];
        refused(CausalConv1d { bias: false, silu: false, state: true }, &narrow, "the state must be f16");
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused_by_name() {
        let f = |dims: &[usize]| ty(DType::F32, dims);
        let scan = [f(&[2, 7, 4]), f(&[2, 7, 4]), f(&[4, 3]), f(&[2, 7, 3]), f(&[2, 7, 3])];
        assert_eq!(Op::from(SelectiveScan::new()).infer(&scan).unwrap()[1], f(&[2, 4, 3]));
        let mut wrong = scan;
        wrong[4] = f(&[2, 6, 3]);
        refused(SelectiveScan::new(), &wrong, "C must have shape [2, 7, 3]");
        refused(SelectiveScan { gate: true, ..SelectiveScan::new() }, &scan, "takes 6 operands");
        let net = [f(&[1, 2, 2, 3]), f(&[1, 2, 2, 3]), f(&[1, 2, 3, 3]), f(&[1, 2, 3]), f(&[1, 2, 3])];
        refused(GatedDeltaNet::new(), &net, "2 key heads do not divide 3 heads");
        let conv = [f(&[1, 2, 3]), f(&[3, 0])];
        refused(CausalConv1d { bias: false, silu: false, state: false }, &conv, "at least one tap");
    }

    #[test]
    fn optional_operands_stand_in_the_order_of_their_attributes() {
        let spec = SelectiveScan { gate: true, state: true, ..SelectiveScan::new() };
        let at = spec.optional_operands();
        assert_eq!((at.skip, at.gate, at.delta_bias, at.state), (None, Some(5), None, Some(6)));
        assert_eq!(Mamba2 { skip: false, state: true }.optional_operands(), (None, Some(5)));
    }
}
