//! Control flow: operations with graphs inside.
//!
//! An inner graph sees nothing of the outer one but its inputs. What it captures is an operand of the operation, given
//! after those that the operation is about, and an input of the inner graph, declared after the others.

use crate::graph::{Graph, ValueId};
use crate::op::{Op, Rule, arity, axis_in, op};
use crate::{DType, Error, Shape, SubGraph, TensorType};

op! {
    /// One of two graphs. Operands: a bool of one element, then what both graphs take as inputs. Results: the outputs
    /// of the graph that was chosen; both have outputs of the same types.
    pub struct If = "if" {
        /// What is computed where the condition is true.
        pub then_branch: SubGraph,
        /// What is computed where it is false.
        pub else_branch: SubGraph,
    }
}

op! {
    /// A graph computed again and again.
    ///
    /// Operands: the most iterations as an i64 of one element, whether to begin as a bool of one element, the first
    /// `carried` values, captures. The body takes the iteration's number as an i64 scalar from 0 on, the carried values and
    /// the captures; it gives whether to go on as a bool of one element, the next carried values (of the same types) and
    /// any number of rows.
    ///
    /// Results: the carried values after the last iteration; for each row of the body the rows of all iterations, stacked along a
    /// new first axis of `max_iterations`, whose rows past the last iteration are zero; and the number of iterations as an
    /// i64 scalar.
    pub struct Loop = "loop" {
        /// How many values one iteration hands to the next.
        pub carried: usize,
        /// An upper bound of the iterations that is known now: the loop ends there whatever the operands say. A body with
        /// rows needs one, and so do GPUs.
        pub max_iterations: Option<usize>,
        /// What one iteration computes.
        pub body: SubGraph,
    }
}

op! {
    /// A graph computed for every slice of some operands, along an axis of each.
    ///
    /// Operands: the first states, then the operands that are sliced (one for each of `axes`), then captures. The body
    /// takes the states, a slice of each without its axis, and the captures; it gives the next states and any number
    /// of rows. Results: the last states, then the rows of each kind stacked along an axis of their own.
    pub struct Scan = "scan" {
        /// How many values one iteration hands to the next.
        pub states: usize,
        /// For every operand that is sliced the axis; all have one length.
        pub axes: Vec<usize>,
        /// For every operand that is sliced whether it is read from the back; empty means from the front.
        pub reverse: Vec<bool>,
        /// For every kind of rows the result's axis that they are stacked along; empty means the first.
        pub out_axes: Vec<usize>,
        /// For every kind of rows whether they are stacked from the back; empty means from the front.
        pub out_reverse: Vec<bool>,
        /// What one iteration computes.
        pub body: SubGraph,
    }
}

/// An operand of one element, of any shape.
fn one_element(what: &str, operand: &TensorType, dtype: DType) -> Result<(), String> {
    if operand.dtype == dtype && operand.shape.sizes().numel() == 1 {
        Ok(())
    } else {
        Err(format!("{what} must be one {dtype}, got {operand}"))
    }
}

/// Values that one iteration hands to the next have the types they began with.
fn invariant(what: &str, begun: &[TensorType], next: &[TensorType]) -> Result<(), String> {
    match (0..begun.len()).find(|i| begun.get(*i) != next.get(*i)) {
        None => Ok(()),
        Some(i) => match next.get(i) {
            Some(next) => Err(format!("{what} {i} begins as {} and comes out as {next}", begun[i])),
            None => Err(format!("the body has no output for {what} {i}")),
        },
    }
}

/// A type with another axis put in.
fn stacked(row: &TensorType, axis: usize, count: usize) -> Result<TensorType, String> {
    let mut sizes = row.shape.sizes().to_vec();
    if axis > sizes.len() {
        return Err(format!("axis {axis} is outside rank {}", sizes.len() + 1));
    }
    sizes.insert(axis, count.into());
    Ok(TensorType::new(row.dtype, Shape::of_sizes(&sizes).map_err(|e| e.to_string())?))
}

impl If {
    fn body_types<'a>(&self, operands: &'a [TensorType]) -> Result<&'a [TensorType], String> {
        arity(operands, 1..=usize::MAX)?;
        one_element("the condition", &operands[0], DType::Bool)?;
        Ok(&operands[1..])
    }
}

impl Rule for If {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let types = self.body_types(operands)?;
        self.then_branch.takes("then_branch", types)?;
        self.else_branch.takes("else_branch", types)?;
        let (then, other) = (self.then_branch.outputs(), self.else_branch.outputs());
        if then.is_empty() {
            return Err("the branches have no outputs".into());
        }
        if then.len() != other.len() {
            return Err(format!("then_branch has {} outputs, else_branch {}", then.len(), other.len()));
        }
        match (0..then.len()).find(|i| then[*i] != other[*i]) {
            None => Ok(then),
            Some(i) => {
                Err(format!("output {i} is {} in then_branch and {} in else_branch", then[i], other[i]))
            }
        }
    }
}

impl Loop {
    fn body_types(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, self.carried.saturating_add(2)..=usize::MAX)?;
        one_element("the number of iterations", &operands[0], DType::I64)?;
        one_element("the condition", &operands[1], DType::Bool)?;
        let iteration = TensorType::new(DType::I64, Shape::SCALAR);
        Ok(std::iter::once(iteration).chain(operands[2..].iter().copied()).collect())
    }
}

impl Rule for Loop {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let types = self.body_types(operands)?;
        self.body.takes("the body", &types)?;
        let outputs = self.body.outputs();
        let Some((going, outputs)) = outputs.split_first() else {
            return Err("the body does not say whether to go on: it has no outputs".into());
        };
        one_element("the body's first output", going, DType::Bool)?;
        let carried = &operands[2..2 + self.carried];
        invariant("carried value", carried, outputs)?;
        let mut results = carried.to_vec();
        for row in &outputs[self.carried..] {
            let most =
                self.max_iterations.ok_or("a body with rows needs max_iterations: their results' length")?;
            results.push(stacked(row, 0, most)?);
        }
        results.push(TensorType::new(DType::I64, Shape::SCALAR));
        Ok(results)
    }
}

impl Scan {
    /// The iterations, and what the body takes.
    fn body_types(&self, operands: &[TensorType]) -> Result<(usize, Vec<TensorType>), String> {
        let sliced = self.axes.len();
        if sliced == 0 {
            return Err("nothing is sliced: a scan needs at least one axis".into());
        }
        arity(operands, self.states.saturating_add(sliced)..=usize::MAX)?;
        if !self.reverse.is_empty() && self.reverse.len() != sliced {
            return Err(format!("{} directions for {sliced} sliced operands", self.reverse.len()));
        }
        let mut types = operands[..self.states].to_vec();
        let mut iterations = None;
        for (i, (x, axis)) in operands[self.states..].iter().zip(&self.axes).enumerate() {
            axis_in(*axis, &x.shape)?;
            let length = x.shape.size(*axis).specialize().map_err(|e| e.to_string())?;
            let known = *iterations.get_or_insert(length);
            if known != length {
                return Err(format!("sliced operand {i} has {length} slices, the first {known}"));
            }
            let mut sizes = x.shape.sizes().to_vec();
            sizes.remove(*axis);
            types.push(TensorType::new(x.dtype, Shape::of_sizes(&sizes).map_err(|e| e.to_string())?));
        }
        types.extend_from_slice(&operands[self.states + sliced..]);
        Ok((iterations.unwrap_or(0), types))
    }

    /// The axis that rows of kind `i` are stacked along.
    pub fn out_axis(&self, i: usize) -> usize {
        self.out_axes.get(i).copied().unwrap_or(0)
    }
}

impl Rule for Scan {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (iterations, types) = self.body_types(operands)?;
        self.body.takes("the body", &types)?;
        let outputs = self.body.outputs();
        let states = &operands[..self.states];
        invariant("state", states, &outputs)?;
        let rows = &outputs[self.states..];
        for (what, given) in [("axes", self.out_axes.len()), ("directions", self.out_reverse.len())] {
            if given != 0 && given != rows.len() {
                return Err(format!("{given} {what} for {} kinds of rows", rows.len()));
            }
        }
        let mut results = states.to_vec();
        for (i, row) in rows.iter().enumerate() {
            results.push(stacked(row, self.out_axis(i), iterations)?);
        }
        if results.is_empty() { Err("the body has no outputs".into()) } else { Ok(results) }
    }
}

impl Op {
    /// The graphs inside the operation.
    pub fn bodies(&self) -> Vec<&SubGraph> {
        match self {
            Op::If(op) => vec![&op.then_branch, &op.else_branch],
            Op::Loop(op) => vec![&op.body],
            Op::Scan(op) => vec![&op.body],
            _ => Vec::new(),
        }
    }

    /// The operation with each of its graphs replaced.
    pub fn map_bodies<E>(&self, mut map: impl FnMut(&SubGraph) -> Result<SubGraph, E>) -> Result<Op, E> {
        Ok(match self {
            Op::If(op) => {
                If { then_branch: map(&op.then_branch)?, else_branch: map(&op.else_branch)? }.into()
            }
            Op::Loop(op) => Loop { body: map(&op.body)?, ..op.clone() }.into(),
            Op::Scan(op) => Scan { body: map(&op.body)?, ..op.clone() }.into(),
            other => other.clone(),
        })
    }

    /// The operation for operands of other types: its graphs' types are inferred anew.
    pub(crate) fn for_operands(&self, operands: &[TensorType]) -> Result<Op, Error> {
        let types = match self {
            Op::If(op) => op.body_types(operands).map(<[TensorType]>::to_vec),
            Op::Loop(op) => op.body_types(operands),
            Op::Scan(op) => op.body_types(operands).map(|(_, types)| types),
            _ => return Ok(self.clone()),
        };
        match types {
            Ok(types) => self.map_bodies(|body| body.for_inputs(&types)),
            // The rule says it better, with the node's name.
            Err(_) => Ok(self.clone()),
        }
    }
}

impl Graph {
    /// One of two graphs, which both take `captures`; see [`If`].
    pub fn if_(
        &mut self,
        condition: ValueId,
        then_branch: Graph,
        else_branch: Graph,
        captures: &[ValueId],
    ) -> Result<Vec<ValueId>, Error> {
        let op = If { then_branch: SubGraph::new(then_branch)?, else_branch: SubGraph::new(else_branch)? };
        self.add_op(op, &[&[condition], captures].concat())
    }

    /// A graph again and again; see [`Loop`].
    pub fn loop_(
        &mut self,
        iterations: ValueId,
        condition: ValueId,
        carried: &[ValueId],
        captures: &[ValueId],
        max_iterations: Option<usize>,
        body: Graph,
    ) -> Result<Vec<ValueId>, Error> {
        let op = Loop { carried: carried.len(), max_iterations, body: SubGraph::new(body)? };
        self.add_op(op, &[&[iterations, condition], carried, captures].concat())
    }

    /// A graph for every slice along the first axis of `sliced`; see [`Scan`], whose other ways [`Graph::add_op`] takes.
    pub fn scan(
        &mut self,
        states: &[ValueId],
        sliced: &[ValueId],
        captures: &[ValueId],
        body: Graph,
    ) -> Result<Vec<ValueId>, Error> {
        let op = Scan {
            states: states.len(),
            axes: vec![0; sliced.len()],
            reverse: Vec::new(),
            out_axes: Vec::new(),
            out_reverse: Vec::new(),
            body: SubGraph::new(body)?,
        };
        self.add_op(op, &[states, sliced, captures].concat())
    }
}
