//! What an operator's import sees of its node.

use olivine_ir::{DType, Dim, Graph, Op, Shape, Tensor, TensorType, ValueId};

use super::{Answer, Stop, TensorRef, Value, Walk};
use crate::ElementType;
use crate::error::Error;
use crate::model::location;
use crate::proto::attribute_proto::AttributeType;
use crate::proto::{AttributeProto, GraphProto, NodeProto};

/// A node and the graph that it goes into.
pub(crate) struct NodeContext<'w, 'm> {
    pub(crate) walk: &'w mut Walk<'m>,
    pub(crate) node: &'m NodeProto,
    inputs: Vec<Option<Value>>,
}

impl<'w, 'm> NodeContext<'w, 'm> {
    pub(super) fn new(walk: &'w mut Walk<'m>, node: &'m NodeProto, inputs: Vec<Option<Value>>) -> Self {
        NodeContext { walk, node, inputs }
    }

    /// The graph to add operations to.
    pub(crate) fn graph(&mut self) -> &mut Graph {
        self.walk.graph()
    }

    /// The version of the node's operator set.
    pub(crate) fn opset(&self) -> i64 {
        self.walk.opset(self.node.domain())
    }

    /// The node as messages call it.
    pub(crate) fn location(&self) -> String {
        location(self.node)
    }

    /// An error at this node.
    pub(crate) fn wrong(&self, problem: impl Into<String>) -> Stop {
        Stop::Error(Error::invalid(self.location(), problem))
    }

    /// What the graph says, or its error as one of this node.
    pub(crate) fn built<T>(&self, result: Result<T, olivine_ir::Error>) -> Answer<T> {
        result.map_err(|e| self.wrong(e.to_string()))
    }

    /// Builds with the graph; its errors become this node's.
    pub(crate) fn build<T>(
        &mut self,
        build: impl FnOnce(&mut Graph) -> Result<T, olivine_ir::Error>,
    ) -> Answer<T> {
        let result = build(self.walk.graph());
        self.built(result)
    }

    /// Adds an operation with one result.
    pub(crate) fn add(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Answer<ValueId> {
        let op = op.into();
        self.build(|g| g.add1(op, operands))
    }

    /// A constant.
    pub(crate) fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.graph().constant(tensor)
    }

    /// A scalar of a dtype.
    pub(crate) fn scalar(&mut self, dtype: DType, value: f64) -> ValueId {
        self.graph().constant(Tensor::scalar_of(dtype, value))
    }

    // Operands.

    /// How many inputs the node has, with those left out in between.
    pub(crate) fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// How many outputs are named.
    pub(crate) fn output_count(&self) -> usize {
        self.node.output.len()
    }

    /// Whether output `i` is named.
    pub(crate) fn wants(&self, i: usize) -> bool {
        self.node.output.get(i).is_some_and(|name| !name.is_empty())
    }

    /// Whether input `i` is given.
    pub(crate) fn has(&self, i: usize) -> bool {
        !matches!(self.inputs.get(i), None | Some(None | Some(Value::Nothing)))
    }

    /// Input `i`, whatever it is.
    pub(crate) fn value(&self, i: usize) -> Answer<Value> {
        match self.inputs.get(i) {
            Some(Some(value)) => Ok(value.clone()),
            _ => Err(self.wrong(format!("input {i} is missing"))),
        }
    }

    /// Input `i`, a tensor, where it stands.
    pub(crate) fn tensor_ref(&self, i: usize) -> Answer<TensorRef> {
        match self.value(i)? {
            Value::Tensor(held) => Ok(held),
            other => Err(self.wrong(format!("input {i} is {}, not a tensor", other.describe()))),
        }
    }

    /// Input `i`, a tensor, in the graph that is being built.
    pub(crate) fn tensor(&mut self, i: usize) -> Answer<ValueId> {
        let held = self.tensor_ref(i)?;
        self.walk.local(held)
    }

    /// Input `i` if it is given.
    pub(crate) fn optional(&mut self, i: usize) -> Answer<Option<ValueId>> {
        if self.has(i) { self.tensor(i).map(Some) } else { Ok(None) }
    }

    /// All inputs as tensors.
    pub(crate) fn tensors(&mut self) -> Answer<Vec<ValueId>> {
        (0..self.inputs.len()).map(|i| self.tensor(i)).collect()
    }

    /// The element type of input `i`.
    pub(crate) fn element(&self, i: usize) -> Answer<ElementType> {
        self.tensor_ref(i).map(|held| held.element)
    }

    /// A value's type in the graph.
    pub(crate) fn ty(&mut self, id: ValueId) -> Answer<TensorType> {
        let ty = self.graph().ty(id);
        self.built(ty)
    }

    /// The constant that a value of the graph is; its numbers are then those that the import holds for.
    pub(crate) fn constant_of(&mut self, id: ValueId) -> Option<Tensor> {
        let tensor = self.graph().as_const(id).cloned()?;
        self.walk.pin((self.walk.depth(), id));
        Some(tensor)
    }

    /// A value's shape.
    pub(crate) fn shape(&mut self, id: ValueId) -> Answer<Shape> {
        self.ty(id).map(|ty| ty.shape)
    }

    /// A value's dtype.
    pub(crate) fn dtype(&mut self, id: ValueId) -> Answer<DType> {
        self.ty(id).map(|ty| ty.dtype)
    }

    /// The elements of input `i`, which decides shapes.
    pub(crate) fn fixed(&mut self, i: usize) -> Answer<Tensor> {
        let held = self.tensor_ref(i)?;
        let location = format!("{}, input {i}", self.location());
        self.walk.fixed(held, &location)
    }

    /// The elements of input `i`, integers that decide shapes.
    pub(crate) fn fixed_ints(&mut self, i: usize) -> Answer<Vec<i64>> {
        let tensor = self.fixed(i)?;
        match tensor.data() {
            olivine_ir::Data::I64(v) => Ok(v.clone()),
            olivine_ir::Data::F32(_) | olivine_ir::Data::F64(_) | olivine_ir::Data::F16(_) => {
                Err(self.wrong(format!("input {i} should be integers, it is {}", tensor.ty())))
            }
            _ => Ok(tensor.to_f64().into_iter().map(|v| v as i64).collect()),
        }
    }

    /// The elements of input `i`, integers that decide shapes, as sizes that may be expressions.
    pub(crate) fn fixed_sizes(&mut self, i: usize) -> Answer<Vec<Dim>> {
        let held = self.tensor_ref(i)?;
        let location = format!("{}, input {i}", self.location());
        match self.walk.fixed_sizes(held, &location)? {
            Some(sizes) => Ok(sizes),
            None => Ok(self.fixed_ints(i)?.into_iter().map(Dim::from).collect()),
        }
    }

    /// The elements of input `i`, integers that decide shapes, if it is given.
    pub(crate) fn optional_ints(&mut self, i: usize) -> Answer<Option<Vec<i64>>> {
        if self.has(i) { self.fixed_ints(i).map(Some) } else { Ok(None) }
    }

    /// The one element of input `i`, an integer that decides shapes.
    pub(crate) fn fixed_int(&mut self, i: usize) -> Answer<i64> {
        let all = self.fixed_ints(i)?;
        match all.as_slice() {
            [one] => Ok(*one),
            _ => Err(self.wrong(format!("input {i} should be one integer, there are {}", all.len()))),
        }
    }

    // Attributes.

    /// An attribute, or what a function's caller gave for it.
    pub(crate) fn attribute(&self, name: &str) -> Option<&'m AttributeProto> {
        let own = self.node.attribute.iter().find(|a| a.name() == name)?;
        match own.ref_attr_name() {
            "" => Some(own),
            outer => self.walk.argument(outer),
        }
    }

    fn typed(&self, name: &str, expected: AttributeType) -> Answer<Option<&'m AttributeProto>> {
        let Some(found) = self.attribute(name) else { return Ok(None) };
        // Files of the first versions do not say the type.
        if found.r#type() == expected || found.r#type() == AttributeType::Undefined {
            return Ok(Some(found));
        }
        Err(self.wrong(format!("attribute `{name}` is of type {:?}, not {expected:?}", found.r#type())))
    }

    /// An integer attribute.
    pub(crate) fn int(&self, name: &str) -> Answer<Option<i64>> {
        Ok(self.typed(name, AttributeType::Int)?.map(|a| a.i()))
    }

    /// An integer attribute with a default.
    pub(crate) fn int_or(&self, name: &str, default: i64) -> Answer<i64> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer attribute that is 0 or 1.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Answer<bool> {
        match self.int(name)? {
            None => Ok(default),
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(other) => Err(self.wrong(format!("attribute `{name}` is {other}, not 0 or 1"))),
        }
    }

    /// A list of integers.
    pub(crate) fn ints(&self, name: &str) -> Answer<Option<Vec<i64>>> {
        Ok(self.typed(name, AttributeType::Ints)?.map(|a| a.ints.clone()))
    }

    /// A float attribute.
    pub(crate) fn float(&self, name: &str) -> Answer<Option<f32>> {
        Ok(self.typed(name, AttributeType::Float)?.map(|a| a.f()))
    }

    /// A float attribute with a default.
    pub(crate) fn float_or(&self, name: &str, default: f32) -> Answer<f32> {
        Ok(self.float(name)?.unwrap_or(default))
    }

    /// A list of floats.
    pub(crate) fn floats(&self, name: &str) -> Answer<Option<Vec<f32>>> {
        Ok(self.typed(name, AttributeType::Floats)?.map(|a| a.floats.clone()))
    }

    /// A string attribute.
    pub(crate) fn string(&self, name: &str) -> Answer<Option<String>> {
        Ok(self.typed(name, AttributeType::String)?.map(|a| String::from_utf8_lossy(a.s()).into_owned()))
    }

    /// A string attribute with a default.
    pub(crate) fn string_or(&self, name: &str, default: &str) -> Answer<String> {
        Ok(self.string(name)?.unwrap_or_else(|| default.to_string()))
    }

    /// A list of strings.
    pub(crate) fn strings(&self, name: &str) -> Answer<Option<Vec<String>>> {
        let found = self.typed(name, AttributeType::Strings)?;
        Ok(found.map(|a| a.strings.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect()))
    }

    /// A tensor attribute as a value of the graph.
    pub(crate) fn constant_attribute(&mut self, name: &str) -> Answer<Option<Value>> {
        let Some(found) = self.typed(name, AttributeType::Tensor)? else { return Ok(None) };
        let proto =
            found.t.as_ref().ok_or_else(|| self.wrong(format!("attribute `{name}` holds no tensor")))?;
        let value = self.walk.tensor(proto);
        value.map(Some).map_err(|stop| match stop {
            Stop::Error(e) => self.wrong(format!("attribute `{name}`: {e}")),
            other => other,
        })
    }

    /// A tensor attribute.
    pub(crate) fn tensor_attribute(&self, name: &str) -> Answer<Option<(ElementType, Tensor)>> {
        let Some(found) = self.typed(name, AttributeType::Tensor)? else { return Ok(None) };
        let proto =
            found.t.as_ref().ok_or_else(|| self.wrong(format!("attribute `{name}` holds no tensor")))?;
        let decoded = self.walk.model.decoded(proto);
        decoded.map(Some).map_err(|e| self.wrong(format!("attribute `{name}`: {e}")))
    }

    /// A sparse tensor attribute, all of its elements.
    pub(crate) fn sparse_attribute(&self, name: &str) -> Answer<Option<(ElementType, Tensor)>> {
        let Some(found) = self.typed(name, AttributeType::SparseTensor)? else { return Ok(None) };
        let proto = found
            .sparse_tensor
            .as_ref()
            .ok_or_else(|| self.wrong(format!("attribute `{name}` holds no tensor")))?;
        let decoded = self.walk.model.sparse(proto);
        decoded.map(Some).map_err(|e| self.wrong(format!("attribute `{name}`: {e}")))
    }

    /// A graph attribute.
    pub(crate) fn graph_attribute(&self, name: &str) -> Answer<&'m GraphProto> {
        let found = self.typed(name, AttributeType::Graph)?.and_then(|a| a.g.as_ref());
        found.ok_or_else(|| self.wrong(format!("attribute `{name}` is missing")))
    }

    // Results.

    /// A result in the graph that is being built.
    pub(crate) fn result(&self, id: ValueId, element: ElementType) -> Value {
        Value::Tensor(TensorRef { frame: self.walk.depth(), id, element })
    }

    /// A result whose elements are those of its dtype.
    pub(crate) fn native(&mut self, id: ValueId) -> Answer<Value> {
        let dtype = self.dtype(id)?;
        Ok(self.result(id, ElementType::of_dtype(dtype)))
    }

    /// One result with elements as input 0 has them.
    pub(crate) fn like_first(&mut self, id: ValueId) -> Answer<Vec<Value>> {
        let element = self.element(0)?;
        Ok(vec![self.result(id, element)])
    }

    /// An axis counted from the front, checked against a rank.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Answer<usize> {
        let counted = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
        match counted.and_then(|a| usize::try_from(a).ok()) {
            Some(a) if a < rank => Ok(a),
            _ => Err(self.wrong(format!("axis {axis} is outside rank {rank}"))),
        }
    }

    /// Axes counted from the front, checked against a rank.
    pub(crate) fn axes(&self, axes: &[i64], rank: usize) -> Answer<Vec<usize>> {
        axes.iter().map(|a| self.axis(*a, rank)).collect()
    }
}
