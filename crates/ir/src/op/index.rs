//! Reading and writing at computed positions.
//!
//! A negative index counts from the back. A constant index out of range is refused when the graph is built; at run
//! time the default mode clamps reads into range and drops writes outside it.

use crate::graph::{Graph, ValueId};
use crate::op::{Rule, arity, axis_in, find_index, index, indices_within, number, op, same_dtype, shape};
use crate::{Dim, Error, Tensor, TensorType, product, words};

op! {
    /// Whole slices along an axis: the axis is replaced by the indices' shape. Operands: x, indices.
    pub struct Gather = "gather" {
        /// The axis.
        pub axis: usize,
    }
}

impl Rule for Gather {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=2)?;
        index(&operands[1])?;
        let (x, i) = (&operands[0].shape, &operands[1].shape);
        axis_in(self.axis, x)?;
        let (x, i) = (x.sizes(), i.sizes());
        if x[self.axis] == 0 && i.numel() > 0 {
            return Err(format!("axis {} is empty: no index is in range", self.axis));
        }
        let dims = [&x[..self.axis], &i[..], &x[self.axis + 1..]].concat();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        indices_within(values[1], operands[0].shape.size(self.axis))
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// `out[i][j] = x[index[i][j]][j]` for axis 0, and likewise for any axis. Operands: x, indices of x's rank, whose
    /// other sizes are at most x's.
    pub struct GatherElements = "gather_elements" {
        /// The axis.
        pub axis: usize,
    }
}

fn elements_fit(axis: usize, x: &TensorType, indices: &TensorType) -> Result<(), String> {
    index(indices)?;
    axis_in(axis, &x.shape)?;
    let fits = x.shape.rank() == indices.shape.rank()
        && (0..x.shape.rank()).all(|i| i == axis || indices.shape.size(i) <= x.shape.size(i));
    if !fits {
        return Err(format!("indices {} are not within {} beside axis {axis}", indices.shape, x.shape));
    }
    if x.shape.size(axis) == 0 && indices.shape.sizes().numel() > 0 {
        return Err(format!("axis {axis} is empty: no index is in range"));
    }
    Ok(())
}

impl Rule for GatherElements {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=2)?;
        elements_fit(self.axis, &operands[0], &operands[1])?;
        Ok(vec![TensorType::new(operands[0].dtype, operands[1].shape)])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        indices_within(values[1], operands[0].shape.size(self.axis))
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

op! {
    /// Slices at index tuples: the last axis of the indices is a tuple into x's axes after the batch ones.
    pub struct GatherNd = "gather_nd" {
        /// Leading axes shared by x and the indices.
        pub batch_dims: usize,
    }
}

/// Splits shapes at an index tuple: `(outer axes of the indices, tuple length)`.
fn tuple_of(x: &TensorType, indices: &TensorType, batch: usize) -> Result<usize, String> {
    index(indices)?;
    let (of_x, of_i) = (x.shape.sizes(), indices.shape.sizes());
    let fits = !of_i.is_empty() && batch < of_i.len() && batch <= of_x.len();
    if !fits || of_x[..batch] != of_i[..batch] {
        return Err(format!("{batch} batch axes do not fit {} and indices {}", x.shape, indices.shape));
    }
    let tuple = of_i[of_i.len() - 1].specialize().map_err(|e| e.to_string())?;
    if batch + tuple > of_x.len() {
        return Err(format!("tuples of {tuple} after {batch} batch axes exceed rank {}", of_x.len()));
    }
    let is_empty = of_x[batch..batch + tuple].iter().any(|size| *size == 0);
    if is_empty && product(&of_i[..of_i.len() - 1]) > 0 {
        return Err("an indexed axis is empty: no index is in range".into());
    }
    Ok(tuple)
}

/// Refuses constant tuples out of range.
fn tuples_within(
    x: &TensorType,
    indices: &TensorType,
    batch: usize,
    value: Option<&Tensor>,
) -> Result<(), String> {
    if value.is_none() {
        return Ok(());
    }
    let tuple = tuple_of(x, indices, batch)?;
    let size_at = |position: usize| x.shape[batch + position % tuple.max(1)] as i64;
    match find_index(value.filter(|_| tuple > 0), |position, i| {
        let size = size_at(position);
        !(-size..size).contains(&i)
    }) {
        None => Ok(()),
        Some((position, i)) => {
            Err(format!("index {i} at position {position} is out of range for size {}", size_at(position)))
        }
    }
}

impl Rule for GatherNd {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=2)?;
        let tuple = tuple_of(&operands[0], &operands[1], self.batch_dims)?;
        let (x, i) = (operands[0].shape.sizes(), operands[1].shape.sizes());
        let dims = [&i[..i.len() - 1], &x[self.batch_dims + tuple..]].concat();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        tuples_within(&operands[0], &operands[1], self.batch_dims, values[1])
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

words! {
    /// How an update meets what is there; updates of one element apply in their order.
    pub enum ScatterMode {
        /// Replaces it.
        Replace = "replace",
        /// Is added.
        Add = "add",
        /// Multiplies.
        Mul = "mul",
        /// The larger stays.
        Max = "max",
        /// The smaller stays.
        Min = "min",
    }
}

fn updates_fit(
    mode: ScatterMode,
    x: &TensorType,
    updates: &TensorType,
    expected: &[Dim],
) -> Result<(), String> {
    same_dtype(&[*x, *updates])?;
    if mode != ScatterMode::Replace {
        number(x)?;
    }
    crate::op::of_shape("updates", updates, expected)
}

op! {
    /// `out[index[i][j]][j] = updates[i][j]` for axis 0, and likewise for any axis; operands: x, indices, updates.
    pub struct ScatterElements = "scatter_elements" {
        /// The axis.
        pub axis: usize,
        /// How updates combine.
        pub mode: ScatterMode,
    }
}

impl Rule for ScatterElements {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 3..=3)?;
        elements_fit(self.axis, &operands[0], &operands[1])?;
        updates_fit(self.mode, &operands[0], &operands[2], &operands[1].shape.sizes())?;
        Ok(vec![operands[0]])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        indices_within(values[1], operands[0].shape.size(self.axis))
    }

    fn moves_elements(&self) -> bool {
        self.mode == ScatterMode::Replace
    }
}

op! {
    /// Slices written at index tuples; operands: x, indices, updates.
    pub struct ScatterNd = "scatter_nd" {
        /// How updates combine.
        pub mode: ScatterMode,
    }
}

impl Rule for ScatterNd {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 3..=3)?;
        let tuple = tuple_of(&operands[0], &operands[1], 0)?;
        let (x, i) = (operands[0].shape.sizes(), operands[1].shape.sizes());
        let expected = [&i[..i.len() - 1], &x[tuple..]].concat();
        updates_fit(self.mode, &operands[0], &operands[2], &expected)?;
        Ok(vec![operands[0]])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        tuples_within(&operands[0], &operands[1], 0, values[1])
    }

    fn moves_elements(&self) -> bool {
        self.mode == ScatterMode::Replace
    }
}

impl Graph {
    /// Slices along an axis at indices; see [`Gather`].
    pub fn gather(&mut self, x: ValueId, indices: ValueId, axis: isize) -> Result<ValueId, Error> {
        let axis = self.axis_of("gather", x, axis)?;
        self.add1(Gather { axis }, &[x, indices])
    }

    /// Elements along an axis at indices; see [`GatherElements`].
    pub fn gather_elements(&mut self, x: ValueId, indices: ValueId, axis: isize) -> Result<ValueId, Error> {
        let axis = self.axis_of("gather_elements", x, axis)?;
        self.add1(GatherElements { axis }, &[x, indices])
    }

    /// Slices at index tuples; see [`GatherNd`].
    pub fn gather_nd(&mut self, x: ValueId, indices: ValueId, batch_dims: usize) -> Result<ValueId, Error> {
        self.add1(GatherNd { batch_dims }, &[x, indices])
    }

    /// Elements written along an axis; see [`ScatterElements`].
    pub fn scatter_elements(
        &mut self,
        x: ValueId,
        indices: ValueId,
        updates: ValueId,
        axis: isize,
        mode: ScatterMode,
    ) -> Result<ValueId, Error> {
        let axis = self.axis_of("scatter_elements", x, axis)?;
        self.add1(ScatterElements { axis, mode }, &[x, indices, updates])
    }

    /// Elements added along an axis: [`Graph::scatter_elements`] with [`ScatterMode::Add`].
    pub fn scatter_add(
        &mut self,
        x: ValueId,
        indices: ValueId,
        updates: ValueId,
        axis: isize,
    ) -> Result<ValueId, Error> {
        self.scatter_elements(x, indices, updates, axis, ScatterMode::Add)
    }

    /// Slices written at index tuples; see [`ScatterNd`].
    pub fn scatter_nd(
        &mut self,
        x: ValueId,
        indices: ValueId,
        updates: ValueId,
        mode: ScatterMode,
    ) -> Result<ValueId, Error> {
        self.add1(ScatterNd { mode }, &[x, indices, updates])
    }
}
