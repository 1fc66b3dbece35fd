//! Arrays: handles of results that are computed when they are asked for.

use std::fmt;
use std::sync::Arc;

use olivine::DeviceTensor;
use olivine_ir::op::{Reshape, View};
use olivine_ir::{DType, Data, Element, IntoShape, Op, Shape, Tensor, TensorType, TensorView};

use crate::eval::{count_waiting, evaluate};
use crate::flight::Flight;
use crate::node::{Node, Value};
use crate::{Context, Error};

/// Elements of up to so many bytes stay on the host and go along with every run that needs them.
const SMALL: usize = 256;

/// A tensor whose operations wait until its elements are asked for; clones share it.
///
/// Elements never change: an operation makes another array. Operands broadcast as NumPy's do, but are never cast: dtypes
/// must agree.
#[derive(Clone)]
pub struct Array {
    context: Context,
    node: Arc<Node>,
    result: usize,
    ty: TensorType,
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({}{})", self.ty, if self.node.is_lazy() { ", waiting" } else { "" })
    }
}

impl Array {
    /// Elements of the host in row-major order.
    pub fn from_slice<T: Element>(
        context: &Context,
        shape: impl IntoShape,
        elements: &[T],
    ) -> Result<Self, Error> {
        Array::from_view(context, TensorView::new(shape, elements)?)
    }

    /// A tensor of the host.
    pub fn from_tensor(context: &Context, tensor: &Tensor) -> Result<Self, Error> {
        Array::from_view(context, tensor.view())
    }

    /// Packed bytes of a type, native endian; bools are bytes of 0 and 1.
    pub fn from_bytes(
        context: &Context,
        dtype: DType,
        shape: impl IntoShape,
        bytes: &[u8],
    ) -> Result<Self, Error> {
        let ty = TensorType::new(dtype, shape.into_shape()?);
        if bytes.len() != ty.bytes() {
            return Err(Error::size(format!("{ty} has {} bytes, got {}", ty.bytes(), bytes.len())));
        }
        match TensorView::from_bytes(ty, bytes) {
            Ok(view) => Array::from_view(context, view),
            // They are not aligned, or no bools.
            Err(_) => {
                let tensor = Tensor::from_data(ty.shape, Data::from_bytes(dtype, bytes)?)?;
                Array::from_tensor(context, &tensor)
            }
        }
    }

    /// One number, as a tensor of rank 0; it is cast to the dtype.
    pub fn scalar(context: &Context, dtype: DType, value: f64) -> Self {
        Array::of_host(context, Tensor::scalar_of(dtype, value))
    }

    /// A tensor that is on the context's device.
    pub fn from_device(context: &Context, tensor: DeviceTensor) -> Self {
        let ty = tensor.ty();
        Array::of_node(context, Node::ready(ty, Value::Device(tensor, None)), 0, ty)
    }

    /// A tensor that a run is writing to.
    pub(crate) fn in_flight(context: &Context, tensor: DeviceTensor, flight: Arc<Flight>) -> Self {
        let ty = tensor.ty();
        Array::of_node(context, Node::ready(ty, Value::Device(tensor, Some(flight))), 0, ty)
    }

    /// Its elements on the device in memory that nobody else holds: a copy, unless this is the only handle.
    pub(crate) fn own_tensor(&self) -> Result<DeviceTensor, Error> {
        self.eval()?;
        let on_device = matches!(self.node.value(self.result), Some(Value::Device(..)));
        let alone = Arc::strong_count(&self.node) == 1 && self.node.is_unshared(self.result);
        let tensor = self.device_tensor()?;
        if on_device && !alone { Ok(tensor.copy()?) } else { Ok(tensor) }
    }

    fn from_view(context: &Context, view: TensorView<'_>) -> Result<Self, Error> {
        if view.bytes().len() <= SMALL {
            return Ok(Array::of_host(context, view.to_tensor()?));
        }
        let tensor = context.with_memory(|| Ok(context.session().upload(view)?))?;
        Ok(Array::from_device(context, tensor))
    }

    fn of_host(context: &Context, tensor: Tensor) -> Self {
        let ty = tensor.ty();
        Array::of_node(context, Node::ready(ty, Value::Host(tensor)), 0, ty)
    }

    fn of_node(context: &Context, node: Arc<Node>, result: usize, ty: TensorType) -> Self {
        Array { context: context.clone(), node, result, ty }
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Element type and shape.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Sizes.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// Applies an operation to arrays; its results wait until they are asked for. The operation's own rule says which
    /// operands it takes.
    ///
    /// Custom operations (`Op::Custom`) may be used as well. An operation without operands needs [`Array::create`].
    pub fn apply(op: impl Into<Op>, inputs: &[&Array]) -> Result<Vec<Array>, Error> {
        let op = op.into();
        match inputs.first() {
            Some(first) => Array::apply_in(&first.context, op, inputs),
            None => Err(Error::bad(format!("{} without operands: use Array::create", op.name()))),
        }
    }

    /// The results of an operation without operands, such as `range`.
    pub fn create(context: &Context, op: impl Into<Op>) -> Result<Vec<Array>, Error> {
        Array::apply_in(context, op.into(), &[])
    }

    /// Applies an operation that has one result.
    pub fn apply1(op: impl Into<Op>, inputs: &[&Array]) -> Result<Array, Error> {
        let op = op.into();
        let name = op.name();
        let mut results = Array::apply(op, inputs)?;
        match results.pop() {
            Some(result) if results.is_empty() => Ok(result),
            _ => Err(Error::bad(format!("{name} has not one result"))),
        }
    }

    /// Applies an operation by its text, such as `reduce_sum {axes=[0], keepdims=false}`, to this array and others: its
    /// name and attributes as they stand in the text form of graphs.
    pub fn apply_text(&self, op: &str, others: &[&Array]) -> Result<Vec<Array>, Error> {
        let inputs: Vec<&Array> = std::iter::once(self).chain(others.iter().copied()).collect();
        Array::apply_in(&self.context, op.parse()?, &inputs)
    }

    /// Applies an operation by its text to any number of arrays of a context.
    pub fn apply_text_in(context: &Context, op: &str, inputs: &[&Array]) -> Result<Vec<Array>, Error> {
        Array::apply_in(context, op.parse()?, inputs)
    }

    fn apply_in(context: &Context, op: Op, inputs: &[&Array]) -> Result<Vec<Array>, Error> {
        if inputs.iter().any(|input| !input.context.same(context)) {
            return Err(Error::bad(format!("{}: the operands belong to different contexts", op.name())));
        }
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let results = op.infer(&types).map_err(|problem| {
            let operands: Vec<String> = types.iter().map(ToString::to_string).collect();
            Error::bad(format!("{}: {problem}; operands: {}", op.name(), operands.join(", ")))
        })?;
        let operands = inputs.iter().map(|input| (input.node.clone(), input.result)).collect();
        let node = Node::lazy(op, operands, results);
        if node.waiting() >= context.graph_nodes() {
            // An upper bound: what two operands share was counted twice.
            let counted = count_waiting(&node);
            node.set_waiting(counted);
            if counted >= context.graph_nodes() {
                evaluate(context, std::slice::from_ref(&node))?;
            }
        }
        let result = |(i, ty): (usize, &TensorType)| Array::of_node(context, node.clone(), i, *ty);
        Ok(node.types().iter().enumerate().map(result).collect())
    }

    /// Whether its operations have not been submitted.
    pub fn is_lazy(&self) -> bool {
        self.node.is_lazy()
    }

    /// How many operations wait until its elements are asked for. It may be more than there are: what two operands share
    /// counts twice.
    pub fn waiting(&self) -> usize {
        self.node.waiting()
    }

    /// Submits what computes it, as [`Array::eval`], if more than `most` operations wait. With contexts whose
    /// [`ContextOptions::graph_nodes`](crate::ContextOptions::graph_nodes) never run out, this is for threads that may build
    /// graphs but not run them.
    pub fn settle(&self, most: usize) -> Result<(), Error> {
        if self.waiting() <= most {
            return Ok(());
        }
        let counted = count_waiting(&self.node);
        self.node.set_waiting(counted);
        if counted > most { self.eval() } else { Ok(()) }
    }

    /// Submits what computes it, without waiting for the result.
    pub fn eval(&self) -> Result<(), Error> {
        evaluate(&self.context, std::slice::from_ref(&self.node))
    }

    /// Submits what computes several arrays as one graph, without waiting for the results.
    pub fn eval_all(arrays: &[&Array]) -> Result<(), Error> {
        let Some(first) = arrays.first() else { return Ok(()) };
        if arrays.iter().any(|array| !array.context.same(&first.context)) {
            return Err(Error::bad("arrays of different contexts cannot be one graph"));
        }
        let nodes: Vec<Arc<Node>> = arrays.iter().map(|array| array.node.clone()).collect();
        evaluate(&first.context, &nodes)
    }

    /// Waits until its elements are computed.
    pub fn wait(&self) -> Result<(), Error> {
        self.eval()?;
        match self.node.value(self.result) {
            Some(Value::Device(_, Some(flight)) | Value::Flying(flight, _)) => flight.wait(),
            _ => Ok(()),
        }
    }

    /// Whether its elements are computed, without waiting for them; never before [`Array::eval`].
    pub fn is_ready(&self) -> Result<bool, Error> {
        match self.node.value(self.result) {
            None => Ok(false),
            Some(Value::Device(_, Some(flight)) | Value::Flying(flight, _)) => flight.is_done(),
            Some(Value::Host(_) | Value::Device(_, None)) => Ok(true),
        }
    }

    /// Submits what computes it and calls back when that has ended, or failed, from a thread of the context's: at once, on
    /// this thread, where it has ended already.
    pub fn on_ready(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        self.eval()?;
        match self.node.value(self.result) {
            Some(Value::Device(_, Some(flight)) | Value::Flying(flight, _)) => {
                self.context.inner.notifier.when_done(flight, Box::new(callback))
            }
            _ => {
                callback(Ok(()));
                Ok(())
            }
        }
    }

    /// Its elements on the device, for runs of executables of the same session. On the CPU this waits for them.
    pub fn device_tensor(&self) -> Result<DeviceTensor, Error> {
        self.eval()?;
        match self.node.tensor(self.result)? {
            Some(tensor) => Ok(tensor),
            None => match self.node.value(self.result) {
                Some(Value::Host(tensor)) => {
                    self.context.with_memory(|| Ok(self.context.session().upload(&tensor)?))
                }
                _ => Err(Error::bad("the array was not computed")),
            },
        }
    }

    /// Brings its elements to the host.
    pub fn to_tensor(&self) -> Result<Tensor, Error> {
        self.wait()?;
        match self.node.value(self.result) {
            Some(Value::Host(tensor)) => Ok(tensor),
            _ => Ok(self.device_tensor()?.to_tensor()?),
        }
    }

    /// Brings its elements to the host as a vector of their Rust type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        Ok(self.to_tensor()?.as_slice::<T>()?.to_vec())
    }

    /// Brings its elements to the host as packed bytes, native endian.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = olivine_ir::memory::zeroed(self.ty.bytes())?;
        self.read_bytes(&mut bytes)?;
        Ok(bytes)
    }

    /// Copies its elements into bytes of the host, as many as it has.
    pub fn read_bytes(&self, into: &mut [u8]) -> Result<(), Error> {
        if into.len() != self.ty.bytes() {
            return Err(Error::size(format!(
                "{} has {} bytes, not {}",
                self.ty,
                self.ty.bytes(),
                into.len()
            )));
        }
        self.wait()?;
        match self.node.value(self.result) {
            Some(Value::Host(tensor)) => into.copy_from_slice(tensor.bytes()),
            _ => self.device_tensor()?.read_bytes(into)?,
        }
        Ok(())
    }

    /// The same elements under another shape: no operation where they are there already.
    pub(crate) fn reshaped(&self, shape: impl IntoShape) -> Result<Array, Error> {
        let shape = shape.into_shape()?;
        let ty = TensorType::new(self.ty.dtype, shape);
        if ty == self.ty {
            return Ok(self.clone());
        }
        if !self.is_lazy() && shape.numel() == self.ty.shape.numel() {
            return self.reinterpret(ty);
        }
        // A size of 0 would be read as the operand's own.
        if shape.has_zero() {
            return Array::apply1(View::packed(shape), &[self]);
        }
        let dims = shape.sizes().to_vec();
        Array::apply1(Reshape { dims }, &[self])
    }

    /// Its first bytes as another type, which is not larger; what computes it is submitted. On the CPU this waits.
    pub(crate) fn reinterpret(&self, ty: TensorType) -> Result<Array, Error> {
        self.eval()?;
        if let Some(Value::Host(tensor)) = self.node.value(self.result) {
            let bytes = tensor.bytes().get(..ty.bytes()).unwrap_or_default();
            return Ok(Array::of_host(
                &self.context,
                Tensor::from_data(ty.shape, Data::from_bytes(ty.dtype, bytes)?)?,
            ));
        }
        let tensor = self.device_tensor()?.reinterpret(ty)?;
        let flight = match self.node.value(self.result) {
            Some(Value::Device(_, flight)) => flight,
            _ => None,
        };
        let node = Node::ready(ty, Value::Device(tensor, flight));
        Ok(Array::of_node(&self.context, node, 0, ty))
    }

    /// Whether two are the same result of the same operation.
    pub(crate) fn is(&self, other: &Array) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.result == other.result
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }
}
