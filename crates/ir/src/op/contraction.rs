//! Operations that multiply and sum over an axis: matmul and its generalisations.

use crate::graph::{Graph, ValueId};
use crate::op::fused::Region;
use crate::op::{
    Rule, arity, axis_in, find_index, float, index, indices_within, number, of_shape, op, same_dtype, shape,
};
use crate::{DType, Dim, Error, Shape, Tensor, TensorType};

op! {
    /// `[.., M, K] x [.., K, N]`, batch dims broadcast; rank 1 operands act as a row or a column, as in NumPy.
    ///
    /// Floats narrower than f32 accumulate in f32; integers wrap. Transposed operands are views.
    /// With an epilogue, its input 0 is the matmul and its other inputs are the operands after the first two,
    /// broadcast to the matmul's shape.
    pub struct MatMul = "matmul" {
        /// What happens to the matmul before it is stored.
        pub epilogue: Option<Region>,
    }
}

/// Shape of a batched matmul, or why the inner sizes or batches do not fit.
pub(crate) fn matmul_shape(a: &Shape, b: &Shape) -> Result<Shape, String> {
    if a.rank() == 0 || b.rank() == 0 {
        return Err("operands need rank 1 or more".into());
    }
    let (a, b) = (a.sizes(), b.sizes());
    let (m, ka) = if a.len() == 1 { (None, a[0]) } else { (Some(a[a.len() - 2]), a[a.len() - 1]) };
    let (kb, n) = if b.len() == 1 { (b[0], None) } else { (b[b.len() - 2], Some(b[b.len() - 1])) };
    if ka != kb {
        return Err(format!("inner sizes differ: {ka} and {kb}"));
    }
    let batch = |s: &[Dim]| shape(&s[..s.len().saturating_sub(2)]);
    let (ba, bb) = (batch(&a)?, batch(&b)?);
    let batch = ba.broadcast(&bb).ok_or_else(|| format!("batch sizes do not broadcast: {ba} with {bb}"))?;
    let dims: Vec<Dim> = batch.sizes().iter().copied().chain(m).chain(n).collect();
    shape(&dims)
}

impl Rule for MatMul {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=usize::MAX)?;
        same_dtype(&operands[..2])?;
        number(&operands[0])?;
        let out = matmul_shape(&operands[0].shape, &operands[1].shape)?;
        epilogue_type(&self.epilogue, operands[0].dtype, out, &operands[2..])
    }

    fn reads_strides(&self, _operand: usize) -> bool {
        true
    }
}

/// The result of an operation whose main result then goes through an optional region.
pub(crate) fn epilogue_type(
    region: &Option<Region>,
    dtype: DType,
    shape: Shape,
    extra: &[TensorType],
) -> Result<Vec<TensorType>, String> {
    let Some(region) = region else {
        if extra.is_empty() {
            return Ok(vec![TensorType::new(dtype, shape)]);
        }
        return Err(format!("{} operands too many", extra.len()));
    };
    for t in extra {
        if t.shape.broadcast(&shape) != Some(shape) {
            return Err(format!("region operand {t} does not broadcast to {shape}"));
        }
    }
    Ok(vec![TensorType::new(region.region_dtype(dtype, extra)?, shape)])
}

op! {
    /// The general product: result axes are batch axes, then free axes of the left, then of the right.
    pub struct DotGeneral = "dot_general" {
        /// Batch axes of the left operand, pairwise equal to those of the right.
        pub lhs_batch: Vec<usize>,
        /// Batch axes of the right operand.
        pub rhs_batch: Vec<usize>,
        /// Axes of the left operand that are summed over.
        pub lhs_contract: Vec<usize>,
        /// Axes of the right operand that are summed over.
        pub rhs_contract: Vec<usize>,
    }
}

impl DotGeneral {
    /// The axes of a rank that are neither batch nor contracted.
    pub fn free_axes(rank: usize, batch: &[usize], contract: &[usize]) -> Vec<usize> {
        (0..rank).filter(|a| !batch.contains(a) && !contract.contains(a)).collect()
    }
}

impl Rule for DotGeneral {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 2..=2)?;
        same_dtype(operands)?;
        number(&operands[0])?;
        let (a, b) = (&operands[0].shape, &operands[1].shape);
        let check = |side: &str, shape: &Shape, batch: &[usize], contract: &[usize]| {
            let all: Vec<usize> = batch.iter().chain(contract).copied().collect();
            for (i, axis) in all.iter().enumerate() {
                axis_in(*axis, shape)?;
                if all[..i].contains(axis) {
                    return Err(format!("{side} axis {axis} is named twice"));
                }
            }
            Ok(())
        };
        check("left", a, &self.lhs_batch, &self.lhs_contract)?;
        check("right", b, &self.rhs_batch, &self.rhs_contract)?;
        let pairs = |kind: &str, l: &[usize], r: &[usize]| {
            if l.len() != r.len() {
                return Err(format!("{} left {kind} axes for {} right ones", l.len(), r.len()));
            }
            match l.iter().zip(r).find(|(i, j)| a.size(**i) != b.size(**j)) {
                Some((i, j)) => Err(format!(
                    "{kind} sizes differ: left axis {i} is {}, right axis {j} is {}",
                    a.size(*i),
                    b.size(*j)
                )),
                None => Ok(()),
            }
        };
        pairs("batch", &self.lhs_batch, &self.rhs_batch)?;
        pairs("contracted", &self.lhs_contract, &self.rhs_contract)?;
        let free_a = Self::free_axes(a.rank(), &self.lhs_batch, &self.lhs_contract).into_iter();
        let free_b = Self::free_axes(b.rank(), &self.rhs_batch, &self.rhs_contract).into_iter();
        let batch = self.lhs_batch.iter().map(|i| a.size(*i));
        let dims: Vec<Dim> =
            batch.chain(free_a.map(|i| a.size(i))).chain(free_b.map(|i| b.size(i))).collect();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }
}

op! {
    /// Einstein summation over one or more operands, with `...` for broadcast batch axes; without `->` the result
    /// axes are the letters that occur once, in alphabetical order.
    pub struct Einsum = "einsum" {
        /// For example `bhqd,bhkd->bhqk`.
        pub equation: String,
    }
}

/// An equation resolved against operand shapes: each axis of each operand and of the result as a label number.
#[derive(Clone, Debug, PartialEq)]
pub struct EinsumPlan {
    /// For each operand, the label of each axis.
    pub operands: Vec<Vec<usize>>,
    /// The label of each result axis.
    pub result: Vec<usize>,
    /// The size behind each label.
    pub sizes: Vec<Dim>,
}

impl Einsum {
    /// Resolves the equation, or says what is wrong with it.
    pub fn plan(&self, shapes: &[Shape]) -> Result<EinsumPlan, String> {
        let text: String = self.equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((l, r)) => (l.to_string(), Some(r.to_string())),
            None => (text.clone(), None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != shapes.len() {
            return Err(format!(
                "equation `{}` names {} operands, got {}",
                self.equation,
                terms.len(),
                shapes.len()
            ));
        }
        let mut labels = Labels::default();
        let parsed = terms.iter().map(|t| split_term(t)).collect::<Result<Vec<_>, _>>()?;
        let mut width = 0;
        for ((letters, dots), shape) in parsed.iter().zip(shapes) {
            match dots {
                None if letters.len() != shape.rank() => {
                    return Err(format!(
                        "term of {} letters for an operand of rank {}",
                        letters.len(),
                        shape.rank()
                    ));
                }
                Some(_) if letters.len() > shape.rank() => {
                    return Err(format!(
                        "term of {} letters for an operand of rank {}",
                        letters.len(),
                        shape.rank()
                    ));
                }
                None => {}
                Some(_) => width = width.max(shape.rank() - letters.len()),
            }
        }
        // The axes under `...`, aligned to the right, come first: labels 0..width.
        labels.sizes = vec![Dim::ONE; width];
        labels.letters = vec!['.'; width];
        let mut operands = Vec::new();
        for ((letters, dots), shape) in parsed.iter().zip(shapes) {
            let hidden = if dots.is_some() { shape.rank() - letters.len() } else { 0 };
            let mut axes = Vec::new();
            for axis in 0..shape.rank() {
                let at = dots.unwrap_or(0);
                let label = if dots.is_some() && axis >= at && axis < at + hidden {
                    width - hidden + (axis - at)
                } else {
                    let i = if dots.is_some() && axis >= at + hidden { axis - hidden } else { axis };
                    labels.intern(letters[i])
                };
                labels.size(label, shape.size(axis))?;
                let twin = axes.iter().position(|l| *l == label);
                if let Some(twin) = twin.filter(|twin| shape.size(*twin) != shape.size(axis)) {
                    return Err(format!(
                        "a diagonal of {shape} needs equal sizes, axes {twin} and {axis} differ"
                    ));
                }
                axes.push(label);
            }
            operands.push(axes);
        }
        let result = match right {
            Some(r) => {
                let (letters, dots) = split_term(&r)?;
                let mut out = Vec::new();
                for (i, c) in letters.iter().enumerate() {
                    if dots == Some(i) {
                        out.extend(0..width);
                    }
                    let label =
                        labels.find(*c).ok_or_else(|| format!("result letter `{c}` is in no operand"))?;
                    if out.contains(&label) {
                        return Err(format!("result letter `{c}` is named twice"));
                    }
                    out.push(label);
                }
                if dots == Some(letters.len()) {
                    out.extend(0..width);
                }
                out
            }
            None => {
                let mut once: Vec<char> = labels.letters[width..]
                    .iter()
                    .copied()
                    .filter(|c| parsed.iter().flat_map(|(l, _)| l).filter(|x| *x == c).count() == 1)
                    .collect();
                once.sort_unstable();
                (0..width).chain(once.into_iter().filter_map(|c| labels.find(c))).collect()
            }
        };
        Ok(EinsumPlan { operands, result, sizes: labels.sizes })
    }
}

/// Letters seen so far and their sizes.
#[derive(Default)]
struct Labels {
    letters: Vec<char>,
    sizes: Vec<Dim>,
}

impl Labels {
    fn find(&self, c: char) -> Option<usize> {
        self.letters.iter().position(|l| *l == c)
    }

    fn intern(&mut self, c: char) -> usize {
        self.find(c).unwrap_or_else(|| {
            self.letters.push(c);
            self.sizes.push(Dim::ONE);
            self.letters.len() - 1
        })
    }

    /// A size of 1 broadcasts against any other, as `torch.einsum` allows.
    #[track_caller]
    fn size(&mut self, label: usize, size: Dim) -> Result<(), String> {
        let known = &mut self.sizes[label];
        if *known == 1 {
            *known = size;
        } else if size != 1 && size != *known {
            return Err(format!("label `{}` has sizes {known} and {size}", self.letters[label]));
        }
        Ok(())
    }
}

/// The letters of a term and where its `...` stands among them.
fn split_term(term: &str) -> Result<(Vec<char>, Option<usize>), String> {
    let mut dots = None;
    let mut letters = Vec::new();
    let mut rest = term;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            if dots.replace(letters.len()).is_some() {
                return Err(format!("`...` stands twice in `{term}`"));
            }
            rest = after;
        } else if c.is_ascii_alphabetic() {
            letters.push(c);
            rest = &rest[1..];
        } else {
            return Err(format!("`{c}` in `{term}` is not a letter"));
        }
    }
    Ok((letters, dots))
}

impl Rule for Einsum {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=usize::MAX)?;
        same_dtype(operands)?;
        number(&operands[0])?;
        let shapes: Vec<Shape> = operands.iter().map(|t| t.shape).collect();
        let plan = self.plan(&shapes)?;
        let dims: Vec<Dim> = plan.result.iter().map(|l| plan.sizes[*l]).collect();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }
}

op! {
    /// `x·W + scale·(x·A)·B` for x `[.., K]`, W `[K, N]`, A `[K, R]`, B `[R, N]`.
    pub struct LoraMatMul = "lora_matmul" {
        /// The adapter's weight.
        pub scale: f64,
    }
}

impl Rule for LoraMatMul {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 4..=4)?;
        same_dtype(operands)?;
        float(&operands[0])?;
        let [x, w, a, b] = [0, 1, 2, 3].map(|i| &operands[i].shape);
        if w.rank() != 2 || a.rank() != 2 || b.rank() != 2 {
            return Err("W, A and B must have rank 2".into());
        }
        of_shape("B", &operands[3], &[a.size(1), w.size(1)])?;
        of_shape("A", &operands[2], &[w.size(0), a.size(1)])?;
        Ok(vec![TensorType::new(operands[0].dtype, matmul_shape(x, w)?)])
    }
}

op! {
    /// Mixture of experts: x `[M, K]`, W `[E, K, N]`, expert `[M]` gives `out[i] = x[i]·W[expert[i]]`.
    ///
    /// A run-time expert id out of range gives a row of zeros.
    pub struct GroupedMatMul = "grouped_matmul" {}
}

impl Rule for GroupedMatMul {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 3..=3)?;
        same_dtype(&operands[..2])?;
        float(&operands[0])?;
        index(&operands[2])?;
        let (x, w) = (&operands[0].shape, &operands[1].shape);
        if x.rank() != 2 || w.rank() != 3 {
            return Err("x must be [M, K] and W [E, K, N]".into());
        }
        if x.size(1) != w.size(1) {
            return Err(format!("inner sizes differ: {} and {}", x.size(1), w.size(1)));
        }
        of_shape("expert ids", &operands[2], &[x.size(0)])?;
        Ok(vec![TensorType::new(operands[0].dtype, shape(&[x.size(0), w.size(2)])?)])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        indices_within(values[2], operands[1].shape[0])?;
        match find_index(values[2], |_, i| i < 0) {
            Some((_, i)) => Err(format!("expert id {i} is negative")),
            None => Ok(()),
        }
    }
}

impl Graph {
    /// Matrix multiplication; see [`MatMul`].
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Error> {
        self.add1(MatMul { epilogue: None }, &[a, b])
    }

    /// Matrix multiplication with the rhs transposed: `a · bᵀ`.
    pub fn matmul_nt(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, Error> {
        let bt = self.swap_last_axes(b)?;
        self.matmul(a, bt)
    }

    /// `x · w + b`.
    pub fn linear(&mut self, x: ValueId, w: ValueId, b: ValueId) -> Result<ValueId, Error> {
        let y = self.matmul(x, w)?;
        self.add(y, b)
    }

    /// General product; see [`DotGeneral`].
    pub fn dot_general(&mut self, a: ValueId, b: ValueId, dims: DotGeneral) -> Result<ValueId, Error> {
        self.add1(dims, &[a, b])
    }

    /// Einstein summation; see [`Einsum`].
    pub fn einsum(&mut self, equation: &str, operands: &[ValueId]) -> Result<ValueId, Error> {
        self.add1(Einsum { equation: equation.into() }, operands)
    }

    /// Matmul with a low-rank adapter; see [`LoraMatMul`].
    pub fn lora_matmul(
        &mut self,
        x: ValueId,
        w: ValueId,
        a: ValueId,
        b: ValueId,
        scale: f64,
    ) -> Result<ValueId, Error> {
        self.add1(LoraMatMul { scale }, &[x, w, a, b])
    }

    /// Matmul with one of several matrices per row; see [`GroupedMatMul`].
    pub fn grouped_matmul(&mut self, x: ValueId, w: ValueId, expert: ValueId) -> Result<ValueId, Error> {
        self.add1(GroupedMatMul {}, &[x, w, expert])
    }
}
