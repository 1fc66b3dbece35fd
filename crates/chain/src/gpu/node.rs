//! Expressions at one observation and coordinate, as values of a kernel.

use olivine_ir::op::{Binary, Unary};
use olivine_kernel::{CompareOp, Val};
use olivine_kernels::float;

use super::memory::{Memory, Values, sums_in_memory};
use super::special;
use crate::expr::{Axis, Comparison, DataKind, Function, Id, Node, Operator, Reduction, Vector};
use crate::gpu::Writer;

/// Where an expression is computed.
#[derive(Clone, Copy)]
pub(super) struct At<'k> {
    /// The number of the evaluation.
    pub(super) evaluation: Val<'k>,
    pub(super) obs: Option<Val<'k>>,
    pub(super) coord: Option<Val<'k>>,
}

impl<'k> Writer<'k, '_> {
    pub(super) fn number(&self, x: f64) -> Val<'k> {
        self.k.number(self.scalar, x)
    }

    /// Computes nodes in order.
    pub(super) fn compute(&self, nodes: &[Id], at: At<'k>, values: &mut Values<'k>) {
        for id in nodes {
            if values.contains_key(id) {
                continue;
            }
            let value = match *self.plan.graph.node(*id) {
                Node::Unary(f, x) => unary(f, self.value(x, at, values)),
                Node::Binary(op, a, b) => {
                    let (a, b) = (self.value(a, at, values), self.value(b, at, values));
                    binary(op, a, b)
                }
                Node::Compare(..) => {
                    let holds = self.condition(*id, at, values);
                    holds.select(self.number(1.0), self.number(0.0))
                }
                Node::Select(c, a, b) => {
                    let holds = self.condition(c, at, values);
                    let (a, b) = (self.value(a, at, values), self.value(b, at, values));
                    float::pick(holds, a, b)
                }
                Node::Reduce(how, Axis::Coord, x) => self.inner(how, x, at, values),
                _ => self.value(*id, at, values),
            };
            values.insert(*id, value);
        }
    }

    fn condition(&self, id: Id, at: At<'k>, values: &mut Values<'k>) -> Val<'k> {
        match *self.plan.graph.node(id) {
            Node::Compare(op, a, b) => {
                let op = match op {
                    Comparison::Lt => CompareOp::Lt,
                    Comparison::Le => CompareOp::Le,
                    Comparison::Gt => CompareOp::Gt,
                    Comparison::Ge => CompareOp::Ge,
                    Comparison::Eq => CompareOp::Eq,
                    Comparison::Ne => CompareOp::Ne,
                };
                let (a, b) = (self.value(a, at, values), self.value(b, at, values));
                float::compare(op, a, b)
            }
            _ => float::compare(CompareOp::Ne, self.value(id, at, values), self.number(0.0)),
        }
    }

    /// A value that was computed, or that can be loaded.
    pub(super) fn value(&self, id: Id, at: At<'k>, values: &mut Values<'k>) -> Val<'k> {
        if let Some(value) = values.get(&id) {
            return *value;
        }
        let value = self.load(id, at);
        values.insert(id, value);
        value
    }

    fn load(&self, id: Id, at: At<'k>) -> Val<'k> {
        let (k, io) = (self.k, &self.io);
        let zero = k.u32(0);
        let (n, c) = (at.obs.unwrap_or(zero), at.coord.unwrap_or(zero));
        if let (true, Memory::Work(work)) = (self.plan.is_stored(id), &io.memory) {
            let place = |axis| self.plan.stores(axis).iter().position(|x| *x == id);
            if let Some(i) = place(Axis::Obs) {
                return work.buf.load(work.stores_at(at.evaluation) + io.n_obs * i + n);
            }
            if let Some(i) = place(Axis::Coord) {
                return work.buf.load(work.coord_stores + io.d * i + c);
            }
        }
        let offset = |i: u32| io.offsets.get(i as usize).copied().unwrap_or(zero);
        let indexed = |vector: Vector, i: Val<'k>| match vector {
            Vector::Position => self.load_state(0, at.evaluation, i),
            Vector::Data(v) => io.numbers.load(offset(v) + i),
        };
        match *self.plan.graph.node(id) {
            Node::Const(bits) => self.number(f64::from_bits(bits)),
            Node::Count(Axis::Obs) => io.n_obs.convert(self.scalar),
            Node::Count(Axis::Coord) => io.d.convert(self.scalar),
            Node::Obs => io.numbers.load(n),
            Node::Position => self.load_state(0, at.evaluation, c),
            Node::Coord => c.convert(self.scalar),
            Node::Data(i) => io.numbers.load(match self.plan.graph.data()[i as usize].kind {
                DataKind::Scalar | DataKind::Index => offset(i),
                DataKind::Column => offset(i) + n,
                DataKind::Vector => offset(i) + c,
                DataKind::Matrix => offset(i) + n * io.d + c,
            }),
            Node::At(vector, i) => indexed(vector, k.u32(i)),
            Node::Gather(vector, index) => match io.indices {
                Some(indices) => indexed(vector, indices.load(offset(index) + n)),
                None => self.lost(id),
            },
            Node::Scatter(x, index) => self.scattered(x, offset(index), c, at),
            Node::Reduce(how, ..) => match self.sums.get(&id) {
                Some(sum) => sum.get(),
                None => self.summed(id, how, c, at),
            },
            _ => self.lost(id),
        }
    }

    /// A node that the plan does not let come here.
    fn lost(&self, id: Id) -> Val<'k> {
        self.k.fail(format!("node {} is not there yet", id.0));
        self.number(0.0)
    }

    /// A sum for each coordinate: the workgroups' parts together.
    fn summed(&self, id: Id, how: Reduction, c: Val<'k>, at: At<'k>) -> Val<'k> {
        let (k, d) = (self.k, self.io.d);
        let all = sums_in_memory(self.plan);
        let (Memory::Work(work), Some(i)) = (&self.io.memory, all.iter().position(|x| *x == id)) else {
            return self.lost(id);
        };
        let first = work.sums_at(at.evaluation) + d * i + c;
        if work.groups == 1 {
            return work.buf.load(first);
        }
        let total = k.var(self.identity(how));
        let stride = d * all.len();
        k.for_(k.u32(0), k.u32(work.groups), k.u32(1), |group| {
            total.set(self.combine(how, total.get(), work.buf.load(first + group * stride)));
        });
        total.get()
    }

    /// The sum of the values of the observations whose index names a coordinate.
    fn scattered(&self, x: Id, index: Val<'k>, c: Val<'k>, at: At<'k>) -> Val<'k> {
        let (k, io) = (self.k, &self.io);
        let Some(indices) = io.indices else { return self.lost(x) };
        let begins = index + io.n_obs;
        let order = begins + io.d + 1;
        let total = k.var(self.number(0.0));
        let (first, end) = (indices.load(begins + c), indices.load(begins + c + 1));
        k.for_(first, end, k.u32(1), |i| {
            let n = indices.load(order + i);
            let value = self.load(x, At { obs: Some(n), ..at });
            total.set(total.get() + value);
        });
        total.get()
    }

    /// A reduction over the coordinates at one observation.
    fn inner(&self, how: Reduction, body: Id, at: At<'k>, values: &Values<'k>) -> Val<'k> {
        let k = self.k;
        let total = k.var(self.identity(how));
        let (first, step) = if self.lanes > 1 { (k.lane(), self.lanes) } else { (k.u32(0), 1) };
        k.for_(first, self.io.d, k.u32(step), |c| {
            let mut inner = values.clone();
            let at = At { coord: Some(c), ..at };
            self.compute(&self.plan.body(body), at, &mut inner);
            let term = self.value(body, at, &mut inner);
            total.set(self.combine(how, total.get(), term));
        });
        self.across(how, total.get(), self.lanes)
    }
}

fn unary(f: Function, x: Val<'_>) -> Val<'_> {
    let f = match f {
        Function::Neg => Unary::Neg,
        Function::Abs => Unary::Abs,
        Function::Sign => Unary::Sign,
        Function::Detach => return x,
        Function::Square => Unary::Square,
        Function::Reciprocal => Unary::Reciprocal,
        Function::Sqrt => Unary::Sqrt,
        Function::Exp => Unary::Exp,
        Function::Expm1 => Unary::Expm1,
        Function::Log => Unary::Log,
        Function::Log1p => Unary::Log1p,
        Function::Sin => Unary::Sin,
        Function::Cos => Unary::Cos,
        Function::Atan => Unary::Atan,
        Function::Tanh => Unary::Tanh,
        Function::Sigmoid => Unary::Sigmoid,
        Function::Softplus => Unary::Softplus,
        Function::Erf => Unary::Erf,
        Function::Lgamma => return special::lgamma(x),
        Function::Digamma => return special::digamma(x),
        Function::Trigamma => return special::trigamma(x),
    };
    float::unary(f, x)
}

fn binary<'k>(op: Operator, a: Val<'k>, b: Val<'k>) -> Val<'k> {
    let op = match op {
        Operator::Add => Binary::Add,
        Operator::Sub => Binary::Sub,
        Operator::Mul => Binary::Mul,
        Operator::Div => Binary::Div,
        Operator::Pow => Binary::Pow,
        Operator::Max => Binary::Max,
        Operator::Min => Binary::Min,
    };
    float::binary(op, a, b)
}
