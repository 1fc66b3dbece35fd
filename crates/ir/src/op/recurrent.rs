//! Recurrent layers: rnn, gru and lstm as ONNX lays them out, and the recurrence that is left when the products with
//! the input are made for all steps at once.

use crate::attr::{Attr, AttrField, Attrs};
use crate::graph::{Graph, ValueId};
use crate::op::{
    Rule, Spelled, arity, find_index, float, index, kind_op, of_shape, op, product, product_of, shape,
};
use crate::{DType, Dim, Error, Tensor, TensorType, words};

words! {
    /// Which recurrent cell.
    pub enum RecurrentKind {
        /// h = f(x·Wᵀ + h·Rᵀ + b).
        Rnn = "rnn",
        /// Gates z, r and the candidate h, in this order.
        Gru = "gru",
        /// Gates i, o, f and the candidate c, in this order.
        Lstm = "lstm",
    }
}

words! {
    /// The order in which a sequence is read.
    pub enum Direction {
        /// From the first step.
        Forward = "forward",
        /// From the last valid step of each sequence.
        Reverse = "reverse",
        /// Both, with weights of their own; the first direction is forward.
        Bidirectional = "bidirectional",
    }
}

words! {
    /// A function of a gate or of a cell.
    pub enum GateFunction {
        /// tanh x.
        Tanh = "tanh",
        /// 1 / (1 + e⁻ˣ).
        Sigmoid = "sigmoid",
        /// max(x, 0).
        Relu = "relu",
        /// max(0, min(1, 0.2·x + 0.5)).
        HardSigmoid = "hard_sigmoid",
        /// x / (1 + |x|).
        Softsign = "softsign",
        /// ln(1 + eˣ).
        Softplus = "softplus",
    }
}

impl RecurrentKind {
    /// Blocks of rows in the weights.
    pub fn gates(self) -> usize {
        match self {
            RecurrentKind::Rnn => 1,
            RecurrentKind::Gru => 3,
            RecurrentKind::Lstm => 4,
        }
    }

    /// The usual functions of one direction: those of the gates (f), then of the candidate (g), then of the cell (h).
    pub fn functions(self) -> &'static [GateFunction] {
        match self {
            RecurrentKind::Rnn => &[GateFunction::Tanh],
            RecurrentKind::Gru => &[GateFunction::Sigmoid, GateFunction::Tanh],
            RecurrentKind::Lstm => &[GateFunction::Sigmoid, GateFunction::Tanh, GateFunction::Tanh],
        }
    }

    /// Tensors of state: h, and c for an lstm.
    pub fn states(self) -> usize {
        if self == RecurrentKind::Lstm { 2 } else { 1 }
    }
}

impl Direction {
    /// 1, or 2 for both.
    pub fn count(self) -> usize {
        if self == Direction::Bidirectional { 2 } else { 1 }
    }

    /// Whether the d-th direction reads from the end.
    pub fn is_reverse(self, d: usize) -> bool {
        self == Direction::Reverse || d == 1
    }
}

kind_op! {
    /// A recurrent layer over a sequence, as in ONNX.
    ///
    /// Operands: x `[seq, batch, input]`, w `[dirs, gates·hidden, input]`, r `[dirs, gates·hidden, hidden]`, then in
    /// this order those announced: bias `[dirs, 2·gates·hidden]` (w's, then r's), lengths (i32/i64 `[batch]`: how many
    /// leading steps count; clamped to the sequence at run time), the initial h and the initial c `[dirs, batch,
    /// hidden]`, peepholes `[dirs, 3·hidden]` (of i, o, f).
    /// Results: y `[seq, dirs, batch, hidden]`, the final h and for an lstm the final c `[dirs, batch, hidden]`.
    /// With `batch_first`: x `[batch, seq, input]`, y `[batch, seq, dirs, hidden]`, states `[batch, dirs, hidden]`.
    ///
    /// Steps from a sequence's length on give zeros, and its final state is that after its last valid step; the
    /// reverse direction begins there. A missing initial state is zeros, and a sequence of length 0 keeps its own.
    /// State is carried in f32 where the dtype is narrower.
    pub struct Recurrent by RecurrentKind {
        /// The order of steps.
        pub direction: Direction,
        /// Whether the batch comes before the sequence.
        pub batch_first: bool,
        /// For each direction, as many functions as [`RecurrentKind::functions`] has, in its order.
        pub functions: Vec<GateFunction>,
        /// What every function is given is held within −clip and clip.
        pub clip: Option<f64>,
        /// A gru's reset gate acts after the product with r: `linear_before_reset`.
        pub reset_after: bool,
        /// An lstm's forget gate is 1 − i.
        pub input_forget: bool,
        /// Whether biases are given.
        pub bias: bool,
        /// Whether lengths are given.
        pub lengths: bool,
        /// Whether the initial h is given.
        pub initial_h: bool,
        /// Whether an lstm's initial c is given.
        pub initial_c: bool,
        /// Whether an lstm's peepholes are given.
        pub peepholes: bool,
    }
}

/// Positions among the operands of those that may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the operands'")]
pub struct RecurrentOperands {
    pub bias: Option<usize>,
    pub lengths: Option<usize>,
    pub initial_h: Option<usize>,
    pub initial_c: Option<usize>,
    pub peepholes: Option<usize>,
    /// How many operands there are.
    pub count: usize,
}

/// Sizes of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the axes'")]
pub struct RecurrentSizes {
    pub sequence: usize,
    pub batch: usize,
    pub hidden: usize,
}

impl Recurrent {
    /// A layer with the usual functions and no optional operand.
    pub fn new(kind: RecurrentKind, direction: Direction) -> Self {
        Recurrent {
            kind,
            direction,
            batch_first: false,
            functions: kind.functions().repeat(direction.count()),
            clip: None,
            reset_after: false,
            input_forget: false,
            bias: false,
            lengths: false,
            initial_h: false,
            initial_c: false,
            peepholes: false,
        }
    }

    /// Positions of the optional operands after x, w and r.
    pub fn optional_operands(&self) -> RecurrentOperands {
        self.positions(3, self.bias)
    }

    fn positions(&self, first: usize, bias: bool) -> RecurrentOperands {
        let mut count = first;
        let mut take = |given: bool| {
            given.then(|| {
                count += 1;
                count - 1
            })
        };
        let [bias, lengths, initial_h, initial_c, peepholes] =
            [bias, self.lengths, self.initial_h, self.initial_c, self.peepholes].map(&mut take);
        RecurrentOperands { bias, lengths, initial_h, initial_c, peepholes, count }
    }

    /// The functions of a direction.
    pub fn functions_of(&self, direction: usize) -> &[GateFunction] {
        let each = self.kind.functions().len();
        self.functions.get(direction * each..(direction + 1) * each).unwrap_or(&[])
    }

    /// Refuses attributes that do not belong together.
    fn check(&self) -> Result<(), String> {
        let name = self.kind.name();
        let wanted = self.kind.functions().len() * self.direction.count();
        if self.functions.len() != wanted {
            return Err(format!(
                "{name} of direction {} has {wanted} functions, got {}",
                self.direction.name(),
                self.functions.len()
            ));
        }
        if self.clip.is_some_and(|c| c.is_nan() || c <= 0.0) {
            return Err("a clip must be positive".into());
        }
        if self.reset_after && self.kind != RecurrentKind::Gru {
            return Err(format!("reset_after belongs to gru, not to {name}"));
        }
        let only_lstm = [
            (self.input_forget, "input_forget"),
            (self.initial_c, "initial_c"),
            (self.peepholes, "peepholes"),
        ];
        match only_lstm.iter().find(|(given, _)| *given && self.kind != RecurrentKind::Lstm) {
            Some((_, what)) => Err(format!("{what} belongs to lstm, not to {name}")),
            None => Ok(()),
        }
    }

    /// Sequence and batch of a rank-3 operand.
    #[track_caller]
    fn steps(&self, x: &TensorType) -> Result<(Dim, Dim), String> {
        if x.shape.rank() != 3 {
            return Err(format!("x must have rank 3, got {}", x.shape));
        }
        let (first, second) = (x.shape.size(0), x.shape.size(1));
        Ok(if self.batch_first { (second, first) } else { (first, second) })
    }

    /// The hidden size, from r.
    fn hidden(&self, r: &TensorType) -> Result<usize, String> {
        if r.shape.rank() != 3 {
            return Err(format!("r must have rank 3, got {}", r.shape));
        }
        let hidden = r.shape[2];
        of_shape("r", r, &[self.direction.count(), product(&[self.kind.gates(), hidden])?, hidden])?;
        Ok(hidden)
    }

    /// Holds lengths, states and peepholes against the sizes.
    fn check_optional(
        &self,
        operands: &[TensorType],
        at: &RecurrentOperands,
        dtype: DType,
        batch: Dim,
        state: &[Dim; 3],
    ) -> Result<(), String> {
        if let Some(l) = at.lengths {
            index(&operands[l])?;
            of_shape("lengths", &operands[l], &[batch])?;
        }
        let peepholes = [self.direction.count().into(), product_of(&[3.into(), state[2]])?];
        let floats = [
            ("the initial h", at.initial_h, state.as_slice()),
            ("the initial c", at.initial_c, state.as_slice()),
            ("peepholes", at.peepholes, peepholes.as_slice()),
        ];
        for (what, position, dims) in floats {
            if let Some(i) = position {
                of_shape(what, &operands[i], dims)?;
                of_dtype(what, &operands[i], dtype)?;
            }
        }
        Ok(())
    }

    /// Refuses constant lengths outside the sequence.
    fn check_lengths(&self, value: Option<&Tensor>, sequence: Dim) -> Result<(), String> {
        match find_index(value, |_, length| length < 0 || sequence < length) {
            None => Ok(()),
            Some((position, length)) => {
                Err(format!("length {length} at position {position} is outside a sequence of {sequence}"))
            }
        }
    }
}

fn of_dtype(what: &str, operand: &TensorType, dtype: DType) -> Result<(), String> {
    if operand.dtype == dtype {
        Ok(())
    } else {
        Err(format!("{what} must be {dtype}, got {}", operand.dtype))
    }
}

impl Rule for Recurrent {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        self.check()?;
        let at = self.optional_operands();
        arity(operands, at.count..=at.count)?;
        let (x, w, r) = (&operands[0], &operands[1], &operands[2]);
        float(x)?;
        let (sequence, batch) = self.steps(x)?;
        let hidden = self.hidden(r)?;
        let (dirs, rows) = (self.direction.count(), product(&[self.kind.gates(), hidden])?);
        of_shape("w", w, &[dirs.into(), rows.into(), x.shape.size(2)])?;
        of_dtype("w", w, x.dtype)?;
        of_dtype("r", r, x.dtype)?;
        if let Some(b) = at.bias {
            of_shape("the bias", &operands[b], &[dirs, product(&[2, rows])?])?;
            of_dtype("the bias", &operands[b], x.dtype)?;
        }
        let (dirs, hidden) = (Dim::from(dirs), Dim::from(hidden));
        let state = if self.batch_first { [batch, dirs, hidden] } else { [dirs, batch, hidden] };
        self.check_optional(operands, &at, x.dtype, batch, &state)?;
        let y =
            if self.batch_first { [batch, sequence, dirs, hidden] } else { [sequence, dirs, batch, hidden] };
        let mut results = vec![TensorType::new(x.dtype, shape(&y)?)];
        results.resize(1 + self.kind.states(), TensorType::new(x.dtype, shape(&state)?));
        Ok(results)
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        let Some(l) = self.optional_operands().lengths else { return Ok(()) };
        self.check_lengths(values.get(l).copied().flatten(), self.steps(&operands[0])?.0)
    }
}

/// In an attribute, a record of the kind and the layer's attributes.
impl AttrField for Recurrent {
    fn write(&self) -> Attr {
        let mut fields = vec![("kind".to_string(), self.kind.write())];
        fields.extend(self.attrs().0);
        Attr::Record(fields)
    }

    fn read(attr: &Attr) -> Result<Self, String> {
        let Attr::Record(fields) = attr else {
            return Err(format!("expected the record of a layer, found `{attr}`"));
        };
        let kind: RecurrentKind = Attrs(fields.clone()).get("kind")?;
        let rest = Attrs(fields.iter().filter(|(name, _)| name != "kind").cloned().collect());
        <Recurrent as Spelled>::read(kind.name(), &rest).unwrap_or_else(|| Err("no such layer".into()))
    }

    fn same(&self, other: &Self) -> bool {
        self == other
    }
}

op! {
    /// What is left of a [`Recurrent`] layer when x·Wᵀ and the biases that may join it are known for every step.
    ///
    /// Operands: projections `[seq, batch, dirs·gates·hidden]`, r `[dirs, gates·hidden, hidden]`, then those of the layer that are
    /// announced, in its order; the bias, which only a gru with `reset_after` has, is r's of the candidate, `[dirs,
    /// hidden]`. All but r are in the dtype that state is carried in: f32 for r of f16 or bf16, else r's own.
    /// Results: y `[seq, batch, dirs, hidden]` in r's dtype, the final h and c `[dirs, batch, hidden]` in that of state.
    /// With `batch_first` the projections and y begin with `[batch, seq]`; states do not change.
    pub struct Recurrence = "recurrence" {
        /// The layer.
        pub of: Recurrent,
    }
}

impl Recurrence {
    /// The dtype that state is carried in.
    pub fn state_dtype(dtype: DType) -> DType {
        if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
    }

    /// Positions of the optional operands after the projections and r.
    pub fn optional_operands(&self) -> RecurrentOperands {
        self.of.positions(2, self.has_bias())
    }

    /// Whether there is a bias that could not join the projections.
    pub fn has_bias(&self) -> bool {
        self.of.bias && self.of.reset_after
    }

    /// Sizes as numbers, from the types of operands that the rule accepts.
    #[track_caller]
    pub fn sizes(&self, projections: &TensorType, r: &TensorType) -> Result<RecurrentSizes, String> {
        let (sequence, batch, hidden) = self.open_sizes(projections, r)?;
        let sequence = sequence.specialize().map_err(|e| e.to_string())?;
        let batch = batch.specialize().map_err(|e| e.to_string())?;
        Ok(RecurrentSizes { sequence, batch, hidden })
    }

    /// Steps and batch entries, which may be expressions, and units.
    pub fn open_sizes(&self, projections: &TensorType, r: &TensorType) -> Result<(Dim, Dim, usize), String> {
        let (sequence, batch) = self.of.steps(projections)?;
        Ok((sequence, batch, self.of.hidden(r)?))
    }
}

impl Rule for Recurrence {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        self.of.check()?;
        let at = self.optional_operands();
        arity(operands, at.count..=at.count)?;
        let (x, r) = (&operands[0], &operands[1]);
        float(r)?;
        let ((sequence, batch), hidden) = (self.of.steps(x)?, self.of.hidden(r)?);
        let dirs = self.of.direction.count();
        let dtype = Recurrence::state_dtype(r.dtype);
        let columns = product(&[dirs, self.of.kind.gates(), hidden])?;
        let steps = if self.of.batch_first { [batch, sequence] } else { [sequence, batch] };
        of_shape("the projections", x, &[steps[0], steps[1], columns.into()])?;
        of_dtype("the projections", x, dtype)?;
        if let Some(b) = at.bias {
            of_shape("the bias", &operands[b], &[dirs, hidden])?;
            of_dtype("the bias", &operands[b], dtype)?;
        }
        let (dirs, hidden) = (Dim::from(dirs), Dim::from(hidden));
        let state = [dirs, batch, hidden];
        self.of.check_optional(operands, &at, dtype, batch, &state)?;
        let mut results = vec![TensorType::new(r.dtype, shape(&[steps[0], steps[1], dirs, hidden])?)];
        results.resize(1 + self.of.kind.states(), TensorType::new(dtype, shape(&state)?));
        Ok(results)
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        let Some(l) = self.optional_operands().lengths else { return Ok(()) };
        self.of.check_lengths(values.get(l).copied().flatten(), self.of.steps(&operands[0])?.0)
    }
}

/// The operands of one layer that belong to it alone; see [`Recurrent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the operands'")]
pub struct RecurrentLayer {
    pub w: ValueId,
    pub r: ValueId,
    pub bias: Option<ValueId>,
    pub initial_h: Option<ValueId>,
    pub initial_c: Option<ValueId>,
    pub peepholes: Option<ValueId>,
}

impl RecurrentLayer {
    /// A layer of weights alone.
    pub fn new(w: ValueId, r: ValueId) -> Self {
        RecurrentLayer { w, r, bias: None, initial_h: None, initial_c: None, peepholes: None }
    }
}

impl Graph {
    /// One recurrent layer: y, the final h and, for an lstm, the final c. Which optional operands there are is taken
    /// from `layer` and `lengths`, not from `spec`. See [`Recurrent`].
    pub fn recurrent(
        &mut self,
        spec: Recurrent,
        x: ValueId,
        layer: &RecurrentLayer,
        lengths: Option<ValueId>,
    ) -> Result<Vec<ValueId>, Error> {
        let spec = Recurrent {
            bias: layer.bias.is_some(),
            lengths: lengths.is_some(),
            initial_h: layer.initial_h.is_some(),
            initial_c: layer.initial_c.is_some(),
            peepholes: layer.peepholes.is_some(),
            ..spec
        };
        let optional = [layer.bias, lengths, layer.initial_h, layer.initial_c, layer.peepholes];
        let operands: Vec<ValueId> =
            [x, layer.w, layer.r].into_iter().chain(optional.into_iter().flatten()).collect();
        self.add_op(spec, &operands)
    }

    /// Several layers, each reading what the one before gives, its directions side by side. Results: the last layer's
    /// y, then the final states of the first layer, of the second, and so on. At least one layer.
    pub fn recurrent_layers(
        &mut self,
        spec: Recurrent,
        x: ValueId,
        layers: &[RecurrentLayer],
        lengths: Option<ValueId>,
    ) -> Result<(ValueId, Vec<Vec<ValueId>>), Error> {
        let mut states = Vec::with_capacity(layers.len());
        let (mut input, mut last) = (x, None);
        for layer in layers {
            if let Some(y) = last {
                input = self.joined_directions(&spec, y)?;
            }
            let mut results = self.recurrent(spec.clone(), input, layer, lengths)?;
            states.push(results.split_off(1));
            last = results.pop();
        }
        let none = || Error::Op {
            op: spec.kind.name().into(),
            node: format!("{}_{}", spec.kind.name(), self.nodes().len()),
            problem: "needs at least one layer".into(),
            operands: Vec::new(),
        };
        Ok((last.ok_or_else(none)?, states))
    }

    /// A layer's y as the next layer's x.
    fn joined_directions(&mut self, spec: &Recurrent, y: ValueId) -> Result<ValueId, Error> {
        let dims = self.ty(y)?.shape.to_vec();
        let (y, [a, b, dirs, hidden]) = match (spec.batch_first, dims.as_slice()) {
            (true, [b, s, d, h]) => (y, [*b, *s, *d, *h]),
            (false, [s, d, b, h]) => (self.transpose(y, &[0, 2, 1, 3])?, [*s, *b, *d, *h]),
            _ => return Ok(y),
        };
        let joined = shape(&[a, b, dirs * hidden]).map_err(|problem| Error::BadData { problem })?;
        if joined.has_zero() {
            // In a reshape a 0 means "copy the operand's size".
            return self.add1(crate::op::View::packed(joined), &[y]);
        }
        let dims: Vec<i64> = joined.iter().map(|d| *d as i64).collect();
        self.reshape(y, &dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Shape};

    fn ty(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType::new(dtype, Shape::new(dims).unwrap_or_default())
    }

    fn lstm() -> Recurrent {
        Recurrent::new(RecurrentKind::Lstm, Direction::Bidirectional)
    }

    fn weights(dtype: DType) -> Vec<TensorType> {
        vec![ty(dtype, &[5, 3, 4]), ty(dtype, &[2, 24, 4]), ty(dtype, &[2, 24, 6])]
    }

    #[test]
    fn results_have_the_shapes_of_onnx_in_both_layouts() {
        let types = lstm().infer(&weights(DType::F16)).unwrap_or_default();
        let dims: Vec<Vec<usize>> = types.iter().map(|t| t.shape.to_vec()).collect();
        assert_eq!(dims, [vec![5, 2, 3, 6], vec![2, 3, 6], vec![2, 3, 6]]);
        let spec = Recurrent { batch_first: true, ..lstm() };
        let types = spec.infer(&weights(DType::F16)).unwrap_or_default();
        let dims: Vec<Vec<usize>> = types.iter().map(|t| t.shape.to_vec()).collect();
        assert_eq!(dims, [vec![5, 3, 2, 6], vec![5, 2, 6], vec![5, 2, 6]]);
        let gru = Recurrent::new(RecurrentKind::Gru, Direction::Reverse);
        let x = [ty(DType::F32, &[5, 0, 4]), ty(DType::F32, &[1, 18, 4]), ty(DType::F32, &[1, 18, 6])];
        assert_eq!(gru.infer(&x).map(|t| t.len()), Ok(2));
    }

    #[test]
    fn what_does_not_belong_together_is_refused_in_words() {
        let refusal =
            |spec: Recurrent, operands: &[TensorType]| spec.infer(operands).err().unwrap_or_default();
        let x = weights(DType::F32);
        let gru = || Recurrent::new(RecurrentKind::Gru, Direction::Bidirectional);
        assert_eq!(
            refusal(Recurrent { peepholes: true, ..gru() }, &x),
            "peepholes belongs to lstm, not to gru"
        );
        assert_eq!(
            refusal(Recurrent { reset_after: true, ..lstm() }, &x),
            "reset_after belongs to gru, not to lstm"
        );
        assert_eq!(refusal(Recurrent { clip: Some(0.0), ..lstm() }, &x), "a clip must be positive");
        assert_eq!(
            refusal(Recurrent { functions: vec![GateFunction::Relu], ..lstm() }, &x),
            "lstm of direction bidirectional has 6 functions, got 1"
        );
        assert_eq!(refusal(gru(), &x), "r must have shape [2, 18, 6], got [2, 24, 6]");
        assert_eq!(refusal(Recurrent { bias: true, ..lstm() }, &x), "takes 4 operands, got 3");
    }

    #[test]
    fn constant_lengths_must_lie_within_the_sequence() {
        let spec = Recurrent { lengths: true, ..lstm() };
        let mut types = weights(DType::F32);
        types.push(ty(DType::I32, &[3]));
        let check = |lengths: [i32; 3]| {
            let tensor = Tensor::new([3], lengths.to_vec()).ok();
            spec.check_constants(&types, &[None, None, None, tensor.as_ref()])
        };
        assert_eq!(check([0, 5, 3]), Ok(()));
        assert_eq!(check([0, 6, 3]), Err("length 6 at position 1 is outside a sequence of 5".into()));
    }

    #[test]
    fn a_recurrence_is_read_back_from_its_record() {
        let spec = Recurrent { clip: Some(0.5), lengths: true, ..lstm() };
        let op = Op::from(Recurrence { of: spec });
        assert_eq!(Op::read(op.name(), &op.attrs()), Ok(op.clone()));
        let wrong = Attrs(vec![("of".into(), Attr::Record(vec![("kind".into(), Attr::Word("mlp".into()))]))]);
        assert!(Op::read("recurrence", &wrong).is_err_and(|e| e.contains("expected one of rnn, gru, lstm")));
    }
}
