//! A case: a small graph, its inputs' distribution and its bound. No data exists until a case is prepared.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use olivine_ir::attr::Attr;
use olivine_ir::op::RUN_COUNTER;
use olivine_ir::{BlockFormat, DType, Error, Graph, IntoShape, Op, Tensor, TensorType, ValueId};

use crate::bound::Bound;
use crate::fill::{Fill, Rng, normal};
use crate::oracle::Between;

/// A graph under construction whose inputs know how they are filled; otherwise it is the [`Graph`].
pub struct Build {
    graph: Graph,
    dtype: DType,
    fill: Fill,
    feeds: Vec<(String, Fill, bool)>,
}

impl Deref for Build {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        &self.graph
    }
}

impl DerefMut for Build {
    fn deref_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }
}

impl Build {
    /// The case's dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// An input of the case's dtype and distribution.
    pub fn x(&mut self, shape: impl IntoShape) -> Result<ValueId, Error> {
        self.of(self.dtype, shape, self.fill.clone())
    }

    /// An input of the case's dtype and another distribution.
    pub fn like(&mut self, shape: impl IntoShape, fill: Fill) -> Result<ValueId, Error> {
        self.of(self.dtype, shape, fill)
    }

    /// An input of any dtype and distribution.
    pub fn of(&mut self, dtype: DType, shape: impl IntoShape, fill: Fill) -> Result<ValueId, Error> {
        let name = format!("x{}", self.feeds.len());
        self.feeds.push((name.clone(), fill, false));
        self.graph.input(&name, dtype, shape)
    }

    /// A weight of the case's dtype, normally distributed.
    pub fn w(&mut self, shape: impl IntoShape) -> Result<ValueId, Error> {
        self.weight(shape, normal())
    }

    /// A weight of the case's dtype and another distribution.
    pub fn weight(&mut self, shape: impl IntoShape, fill: Fill) -> Result<ValueId, Error> {
        let name = format!("w{}", self.feeds.len());
        self.feeds.push((name.clone(), fill, true));
        self.graph.param(&name, self.dtype, shape)
    }

    /// A packed weight; its blocks are those of normally distributed elements where the format can encode them.
    pub fn packed(&mut self, format: BlockFormat, elements: impl IntoShape) -> Result<ValueId, Error> {
        let name = format!("w{}", self.feeds.len());
        self.feeds.push((name.clone(), normal(), true));
        self.graph.param_of(&name, TensorType::packed(format, elements)?)
    }

    /// A packed input, filled as packed weights are.
    pub fn packed_input(&mut self, format: BlockFormat, elements: impl IntoShape) -> Result<ValueId, Error> {
        let name = format!("x{}", self.feeds.len());
        self.feeds.push((name.clone(), normal(), false));
        let ty = TensorType::packed(format, elements)?;
        self.graph.input_of(&name, ty, vec![None; ty.shape.rank()])
    }

    /// A weight of any dtype and distribution.
    pub fn weight_of(&mut self, dtype: DType, shape: impl IntoShape, fill: Fill) -> Result<ValueId, Error> {
        let name = format!("w{}", self.feeds.len());
        self.feeds.push((name.clone(), fill, true));
        self.graph.param(&name, dtype, shape)
    }

    /// An i64 input of indices below `n`, negative ones among them.
    pub fn index(&mut self, shape: impl IntoShape, n: usize) -> Result<ValueId, Error> {
        self.of(DType::I64, shape, Fill::Index(n, true))
    }

    /// An integer input of the given numbers.
    pub fn ints(&mut self, dtype: DType, shape: impl IntoShape, numbers: &[i64]) -> Result<ValueId, Error> {
        self.of(dtype, shape, Fill::These(numbers.iter().map(|n| *n as f64).collect()))
    }

    /// The number of the run that random numbers see; it is 0 where a case says nothing.
    pub fn at_run(&mut self, run: u64) -> Result<(), Error> {
        let words = vec![f64::from(run as u32), f64::from((run >> 32) as u32)];
        self.feeds.push((RUN_COUNTER.into(), Fill::These(words), false));
        self.graph.run_counter().map(drop)
    }

    /// A bool input, mostly true.
    pub fn keep(&mut self, shape: impl IntoShape) -> Result<ValueId, Error> {
        self.of(DType::Bool, shape, Fill::Chance(0.7))
    }

    /// A constant of the case's dtype with the given numbers.
    pub fn numbers(&mut self, shape: impl IntoShape, numbers: &[f64]) -> Result<ValueId, Error> {
        let ty = TensorType::new(self.dtype, shape.into_shape()?);
        let tensor = Fill::These(numbers.to_vec())
            .tensor(ty, &mut Rng::new(0))
            .map_err(|problem| Error::BadData { problem })?;
        Ok(self.graph.constant(tensor))
    }
}

/// What a case's builder may return as the graph's outputs.
pub trait Outputs {
    /// The output values, in order.
    fn ids(self) -> Vec<ValueId>;
}

impl Outputs for ValueId {
    fn ids(self) -> Vec<ValueId> {
        vec![self]
    }
}

impl Outputs for Vec<ValueId> {
    fn ids(self) -> Vec<ValueId> {
        self
    }
}

impl Outputs for (ValueId, ValueId) {
    fn ids(self) -> Vec<ValueId> {
        vec![self.0, self.1]
    }
}

type Builder = dyn Fn(&mut Build) -> Result<Vec<ValueId>, Error> + Send + Sync;

/// One row of the table.
#[derive(Clone)]
pub struct Case {
    /// The family of operations it belongs to.
    pub family: &'static str,
    /// Unique in the table: `family/what/dtype`.
    pub name: String,
    /// The dtype most inputs have.
    pub dtype: DType,
    /// How inputs are filled unless they say otherwise.
    pub fill: Fill,
    /// How far results may be from the oracle's.
    pub bound: Bound,
    /// How the oracle holds results between operations.
    pub between: Between,
    build: Arc<Builder>,
}

/// A case's graph with its data.
pub struct Prepared {
    /// The graph.
    pub graph: Graph,
    /// Inputs by name.
    pub inputs: Vec<(String, Tensor)>,
    /// Params by name.
    pub params: Vec<(String, Tensor)>,
}

impl Case {
    /// A case from its parts.
    pub fn new<O: Outputs>(
        family: &'static str,
        name: impl Into<String>,
        dtype: DType,
        fill: Fill,
        bound: Bound,
        build: impl Fn(&mut Build) -> Result<O, Error> + Send + Sync + 'static,
    ) -> Case {
        let build: Arc<Builder> = Arc::new(move |g| build(g).map(Outputs::ids));
        Case { family, name: name.into(), dtype, fill, bound, between: Between::Unrounded, build }
    }

    fn built(&self) -> Result<Build, String> {
        let mut g = Build {
            graph: Graph::new(self.name.clone()),
            dtype: self.dtype,
            fill: self.fill.clone(),
            feeds: Vec::new(),
        };
        let outputs = (self.build)(&mut g).map_err(|e| e.to_string())?;
        let counts = g.inputs().any(|(name, _)| name == RUN_COUNTER);
        if counts && !g.feeds.iter().any(|(name, _, _)| name == RUN_COUNTER) {
            g.at_run(0).map_err(|e| e.to_string())?;
        }
        for (i, id) in outputs.into_iter().enumerate() {
            g.graph.output(&format!("y{i}"), id).map_err(|e| e.to_string())?;
        }
        Ok(g)
    }

    /// The graph alone.
    pub fn graph(&self) -> Result<Graph, String> {
        self.built().map(|g| g.graph)
    }

    /// The graph and its data; the same every time.
    pub fn prepare(&self) -> Result<Prepared, String> {
        let g = self.built()?;
        let (mut inputs, mut params) = (Vec::new(), Vec::new());
        for (name, fill, is_param) in &g.feeds {
            let id = g.graph.inputs().chain(g.graph.params()).find(|(n, _)| n == name).map(|(_, id)| id);
            let id = id.ok_or_else(|| format!("`{name}` is not in the graph"))?;
            let ty = g.graph.ty(id).map_err(|e| e.to_string())?;
            let tensor = fill.tensor(ty, &mut Rng::named(&format!("{}:{name}", self.name)))?;
            if *is_param { &mut params } else { &mut inputs }.push((name.clone(), tensor));
        }
        Ok(Prepared { graph: g.graph, inputs, params })
    }

    /// The operations and the dtypes they work on: that of the last operand of a scalar operation, else of the first,
    /// or of the result where there is none.
    pub fn uses(&self) -> Result<Vec<(&'static str, DType)>, String> {
        let graph = self.graph()?;
        let mut uses = Vec::new();
        for node in graph.nodes() {
            let operands = types(&graph, &node.inputs)?;
            let results = types(&graph, &node.outputs)?;
            let Some(ty) = principal(&node.op, &operands).map(|i| operands[i]).or(results.first().copied())
            else {
                continue;
            };
            let pair = (node.op.name(), ty.dtype);
            if !uses.contains(&pair) {
                uses.push(pair);
            }
        }
        Ok(uses)
    }

    /// The operations and all dtypes that their rules would let them work on in this case's place: each in turn stands
    /// for the dtype of [`Case::uses`], in that operand alone or in all that share it.
    pub fn admits(&self) -> Result<Vec<(&'static str, DType)>, String> {
        let graph = self.graph()?;
        let mut admits = Vec::new();
        for node in graph.nodes() {
            let operands = types(&graph, &node.inputs)?;
            let main = principal(&node.op, &operands);
            for dtype in DType::ALL {
                let pair = (node.op.name(), dtype);
                let fits = match main {
                    None => with_dtype(&node.op, dtype).is_some_and(|op| op.infer(&[]).is_ok()),
                    Some(main) => [true, false].into_iter().any(|all| {
                        let mut others = operands.clone();
                        for (i, ty) in others.iter_mut().enumerate() {
                            if i == main || (all && ty.dtype == operands[main].dtype) {
                                ty.dtype = dtype;
                            }
                        }
                        node.op.infer(&others).is_ok()
                    }),
                };
                if fits && !admits.contains(&pair) {
                    admits.push(pair);
                }
            }
        }
        Ok(admits)
    }
}

fn types(graph: &Graph, ids: &[ValueId]) -> Result<Vec<TensorType>, String> {
    ids.iter().map(|id| graph.ty(*id).map_err(|e| e.to_string())).collect()
}

/// The operand whose dtype an operation is said to work on.
fn principal(op: &Op, operands: &[TensorType]) -> Option<usize> {
    match op {
        Op::ScalarOp(_) => operands.len().checked_sub(1),
        // What these work on is what comes out: the first operand decides, or counts runs.
        Op::If(_) | Op::Loop(_) | Op::RngUniform(_) | Op::RngNormal(_) => None,
        _ if operands.is_empty() => None,
        _ => Some(0),
    }
}

/// An operation without operands, made for another dtype.
fn with_dtype(op: &Op, dtype: DType) -> Option<Op> {
    let mut attrs = op.attrs();
    let (_, value) = attrs.0.iter_mut().find(|(name, _)| name == "dtype")?;
    *value = Attr::Word(dtype.name().to_string());
    Op::read(op.name(), &attrs).ok()
}

/// Collects the cases of one family, a line each.
pub struct Table {
    family: &'static str,
    /// What was collected.
    pub cases: Vec<Case>,
}

impl Table {
    /// An empty table of a family.
    pub fn new(family: &'static str) -> Self {
        Table { family, cases: Vec::new() }
    }

    /// One case for each dtype.
    pub fn case<O: Outputs>(
        &mut self,
        what: &str,
        dtypes: &[DType],
        fill: Fill,
        bound: Bound,
        build: impl Fn(&mut Build) -> Result<O, Error> + Send + Sync + Clone + 'static,
    ) {
        for dtype in dtypes {
            let name = format!("{}/{what}/{dtype}", self.family);
            self.cases.push(Case::new(self.family, name, *dtype, fill.clone(), bound, build.clone()));
        }
    }

    /// As [`Table::case`], for graphs in which one step decides by the last bit of another.
    pub fn rounded<O: Outputs>(
        &mut self,
        what: &str,
        dtypes: &[DType],
        fill: Fill,
        bound: Bound,
        build: impl Fn(&mut Build) -> Result<O, Error> + Send + Sync + Clone + 'static,
    ) {
        let from = self.cases.len();
        self.case(what, dtypes, fill, bound, build);
        for case in &mut self.cases[from..] {
            case.between = Between::Rounded;
        }
    }
}
