//! Weights that stay packed: matmuls with them and rows of them.

use crate::graph::{Graph, ValueId};
use crate::op::contraction::epilogue_type;
use crate::op::fused::Region;
use crate::op::{Rule, arity, find_index, index, indices_within, of_shape, op, shape};
use crate::{DType, Error, Shape, Tensor, TensorType};

/// What a packed weight's elements are multiplied by: `(element − zero)·scale`, in f32.
///
/// Formats of GGUF have their scales inside their blocks and need neither. Integers and 8-bit floats have them in
/// operands of their own, one for each `block` elements along K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// Elements along K that share a scale; 0 without scales.
    pub block: usize,
    /// Whether zero points are given.
    pub zero: bool,
    /// The zero point of all blocks where none are given.
    pub offset: usize,
}

impl Scaling {
    /// Elements are what the format says.
    pub const NONE: Scaling = Scaling { block: 0, zero: false, offset: 0 };

    /// How many operands it takes.
    fn operands(self) -> usize {
        usize::from(self.block > 0) + usize::from(self.zero)
    }

    /// Checks the scales and zero points of a weight, and returns its sizes in elements.
    fn check(self, weight: &TensorType, operands: &[TensorType]) -> Result<Shape, String> {
        let elements = weight.elements();
        let float = matches!(weight.dtype, DType::F32 | DType::F16 | DType::BF16);
        if weight.packed.is_none() && !float && !matches!(weight.dtype, DType::U8 | DType::I8) {
            return Err(format!("weights must be packed, u8, i8, f32, f16 or bf16, got {weight}"));
        }
        if self.block == 0 {
            return match self {
                Scaling::NONE if weight.packed.is_some() || float => Ok(elements),
                Scaling::NONE => Err(format!("weights of {} need scales", weight.dtype)),
                _ => Err("zero points need scales".into()),
            };
        }
        if float {
            return Err(format!("weights of {} take no scales", weight.dtype));
        }
        if self.zero && self.offset != 0 {
            return Err("zero points and an offset cannot both be given".into());
        }
        let [rows @ .., columns] = elements.dims() else { return Err("weights need an axis".into()) };
        let blocks = columns.div_ceil(self.block);
        let expected = [rows, &[blocks]].concat();
        let scales = &operands[0];
        if !matches!(scales.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(format!("scales must be f32, f16 or bf16, got {scales}"));
        }
        of_shape("scales", scales, &expected)?;
        let Some(zero) = operands.get(1).filter(|_| self.zero) else { return Ok(elements) };
        let found = zero.elements();
        match zero.packed {
            // Rows of packed zero points are whole bytes.
            Some(format) if Some(format) == weight.packed => {
                let [zero_rows @ .., zero_blocks] = found.dims() else {
                    return Err("zero points need an axis".into());
                };
                if zero_rows != rows || blocks.next_multiple_of(format.elements()) != *zero_blocks {
                    return Err(format!("zero points must cover {expected:?}, got {zero}"));
                }
            }
            None if zero.dtype == scales.dtype || matches!(zero.dtype, DType::U8 | DType::I8) => {
                of_shape("zero points", zero, &expected)?;
            }
            _ => {
                return Err(format!(
                    "zero points must be packed as the weights, u8, i8 or {}, got {zero}",
                    scales.dtype
                ));
            }
        }
        Ok(elements)
    }
}

op! {
    /// `x · wᵀ` with a packed weight: x `[.., M, K]`, w `[N, K]`, result `[.., M, N]` of x's dtype, accumulated in f32.
    /// A weight may also be of a float dtype of its own, such as f16 with x in f32.
    ///
    /// Grouped, w is `[E, N, K]` and every row of x `[M, K]` has its expert, as in [`GroupedMatMul`](crate::op::GroupedMatMul). A weight may
    /// have more columns than K, to a whole block; they are not read. Operands: x, w, the expert ids `[M]` if grouped,
    /// scales and zero points as [`Scaling`] says, then those of the epilogue, whose input 0 is the matmul.
    pub struct DequantMatMul = "dequant_matmul" {
        /// Elements along K that share a scale; 0 without scales.
        pub block: usize,
        /// Whether zero points are given.
        pub zero: bool,
        /// The zero point of all blocks where none are given.
        pub offset: usize,
        /// Whether every row has its own matrix.
        pub grouped: bool,
        /// Whether x in f32 may be rounded to f16, or to as many bits, before it is multiplied: a device does so where it is faster.
        /// The result is not rounded.
        pub fast: bool,
        /// What happens to the matmul before it is stored.
        pub epilogue: Option<Region>,
    }
}

impl DequantMatMul {
    /// A matmul with a weight whose format has its scales inside.
    pub fn new() -> Self {
        Self::scaled(Scaling::NONE)
    }

    /// A matmul with scales and zero points in operands of their own.
    pub fn scaled(scaling: Scaling) -> Self {
        let Scaling { block, zero, offset } = scaling;
        DequantMatMul { block, zero, offset, grouped: false, fast: false, epilogue: None }
    }

    /// How elements become weights.
    pub fn scaling(&self) -> Scaling {
        Scaling { block: self.block, zero: self.zero, offset: self.offset }
    }

    /// The position of the scales among the operands; zero points follow them.
    pub fn first_scale(&self) -> usize {
        2 + usize::from(self.grouped)
    }

    /// The position of the epilogue's first operand.
    pub fn first_extra(&self) -> usize {
        self.first_scale() + self.scaling().operands()
    }
}

impl Default for DequantMatMul {
    fn default() -> Self {
        Self::new()
    }
}

/// x of a matmul with packed weights is one of the floats that accumulate in f32.
pub(super) fn narrow_float(dtype: DType) -> Result<(), String> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        other => Err(format!("needs f32, f16 or bf16, got {other}")),
    }
}

impl Rule for DequantMatMul {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, self.first_extra()..=usize::MAX)?;
        let x = &operands[0];
        narrow_float(x.dtype)?;
        let w = self.scaling().check(&operands[1], &operands[self.first_scale()..])?;
        if self.grouped {
            index(&operands[2])?;
            if x.shape.rank() != 2 || w.rank() != 3 {
                return Err(format!("x must be [M, K] and w [E, N, K], got {} and {w}", x.shape));
            }
            of_shape("expert ids", &operands[2], &[x.shape.size(0)])?;
        } else if x.shape.rank() < 1 || w.rank() != 2 {
            return Err(format!("x must be [.., K] and w [N, K], got {} and {w}", x.shape));
        }
        let k = x.shape.size(x.shape.rank() - 1);
        let (n, columns) = (w.size(w.rank() - 2), w.size(w.rank() - 1));
        let whole = k.next_multiple_of(self.block.max(1));
        let format = operands[1].packed.map_or(1, |format| format.elements());
        if columns != k && columns != whole.next_multiple_of(format) {
            return Err(format!("inner sizes differ: {k} and {columns}"));
        }
        let mut dims = x.shape.sizes().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = n;
        }
        epilogue_type(&self.epilogue, x.dtype, shape(&dims)?, &operands[self.first_extra()..])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        if !self.grouped {
            return Ok(());
        }
        indices_within(values[2], operands[1].shape[0])?;
        match find_index(values[2], |_, i| i < 0) {
            Some((_, i)) => Err(format!("expert id {i} is negative")),
            None => Ok(()),
        }
    }

    fn reads_packed(&self, operand: usize) -> bool {
        operand == 1 || (self.zero && operand + 1 == self.first_extra())
    }
}

op! {
    /// Rows of a packed weight `[N, K]` as floats: the result is the indices' shape with K behind it.
    ///
    /// Operands: w, indices, then scales and zero points as [`Scaling`] says. Computed in f32 and rounded to `dtype`.
    pub struct DequantGather = "dequant_gather" {
        /// The result's dtype: f32, f16 or bf16.
        pub dtype: DType,
        /// Elements along K that share a scale; 0 without scales.
        pub block: usize,
        /// Whether zero points are given.
        pub zero: bool,
        /// The zero point of all blocks where none are given.
        pub offset: usize,
    }
}

impl DequantGather {
    /// Rows as floats of a dtype.
    pub fn new(dtype: DType, scaling: Scaling) -> Self {
        let Scaling { block, zero, offset } = scaling;
        DequantGather { dtype, block, zero, offset }
    }

    /// How elements become weights.
    pub fn scaling(&self) -> Scaling {
        Scaling { block: self.block, zero: self.zero, offset: self.offset }
    }
}

impl Rule for DequantGather {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let count = 2 + self.scaling().operands();
        arity(operands, count..=count)?;
        narrow_float(self.dtype)?;
        index(&operands[1])?;
        let w = self.scaling().check(&operands[0], &operands[2..])?;
        let [rows, columns] = *w.dims() else { return Err(format!("w must be [N, K], got {w}")) };
        let indices = &operands[1].shape;
        if rows == 0 && indices.sizes().numel() > 0 {
            return Err("the weight has no rows: no index is in range".into());
        }
        let dims = [&indices.sizes()[..], &[columns.into()]].concat();
        Ok(vec![TensorType::new(self.dtype, shape(&dims)?)])
    }

    fn check_constants(&self, operands: &[TensorType], values: &[Option<&Tensor>]) -> Result<(), String> {
        indices_within(values[1], operands[0].shape[0])
    }

    fn reads_packed(&self, operand: usize) -> bool {
        operand == 0 || (self.zero && operand == 3)
    }
}

impl Graph {
    /// `x · wᵀ` with a packed weight; see [`DequantMatMul`].
    pub fn dequant_matmul(&mut self, x: ValueId, w: ValueId) -> Result<ValueId, Error> {
        self.add1(DequantMatMul::new(), &[x, w])
    }

    /// The same with a matrix per row, `w` being `[E, N, K]`.
    pub fn dequant_grouped_matmul(
        &mut self,
        x: ValueId,
        w: ValueId,
        expert: ValueId,
    ) -> Result<ValueId, Error> {
        self.add1(DequantMatMul { grouped: true, ..DequantMatMul::new() }, &[x, w, expert])
    }

    /// `x · wᵀ` with weights of few bits and their scales, one for each `block` elements of a row; without zero points the
    /// zero point of all is `offset`.
    pub fn dequant_matmul_scaled(
        &mut self,
        x: ValueId,
        w: ValueId,
        (scales, zero): (ValueId, Option<ValueId>),
        (block, offset): (usize, usize),
    ) -> Result<ValueId, Error> {
        let scaling = Scaling { block, zero: zero.is_some(), offset };
        let operands: Vec<ValueId> = [x, w, scales].into_iter().chain(zero).collect();
        self.add1(DequantMatMul::scaled(scaling), &operands)
    }

    /// Rows of a packed weight as floats, such as an embedding's; see [`DequantGather`].
    pub fn dequant_gather(&mut self, w: ValueId, indices: ValueId, dtype: DType) -> Result<ValueId, Error> {
        self.add1(DequantGather::new(dtype, Scaling::NONE), &[w, indices])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockFormat;

    fn f32s(dims: &[usize]) -> Result<TensorType, Error> {
        Ok(TensorType::new(DType::F32, Shape::new(dims)?))
    }

    #[test]
    fn packed_types_print_what_they_encode_and_parse_back() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let x = g.input("x", DType::F32, [3, 512])?;
        let w = g.param_of("w", TensorType::packed(BlockFormat::Q4_K, [7, 512])?)?;
        let small = g.constant(Tensor::packed(BlockFormat::U4, [1, 4], vec![0x21, 0x43])?);
        let large = g.constant(Tensor::packed(BlockFormat::Q8_0, [4, 32], vec![1; 4 * 34])?);
        let i = g.constant(Tensor::new([2], vec![0i32, 3])?);
        let rows = g.dequant_gather(large, i, DType::F16)?;
        let y = g.dequant_matmul(x, w)?;
        g.output("y", y)?;
        g.output("rows", rows)?;
        g.output("small", small)?;
        let text = g.to_string();
        assert!(text.contains("q4_k[7, 512]") && text.contains("u4[1, 4] [33, 67]"), "{text}");
        assert_eq!(text.parse::<Graph>()?, g);
        assert_eq!(g.ty(w)?.bytes(), 7 * 2 * 144);
        let wrong = |text: &str| text.parse::<Graph>().map(drop).unwrap_err().to_string();
        assert!(wrong("graph \"g\" {\n  %0 = param \"w\": q4_k[2, 100]\n}").contains("not whole blocks"));
        assert!(wrong("graph \"g\" {\n  %0 = input \"w\": q4_k[2, 256]\n}").contains("cannot be packed"));
        Ok(())
    }

    #[test]
    fn an_input_may_be_a_packed_cache_of_any_number_of_pages() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let ty = TensorType::packed(BlockFormat::Q8_0, [4, 32, 2, 64])?;
        let dims =
            |last: &str| ["pool", "", "", last].map(|d| (!d.is_empty()).then(|| d.to_string())).to_vec();
        let pool = g.input_of("keys", ty, dims(""))?;
        g.output("keys", pool)?;
        let text = g.to_string();
        assert!(text.contains("q8_0[pool=4, 32, 2, 64]"), "{text}");
        assert_eq!(text.parse::<Graph>()?, g);
        g.verify()?;
        let more = g.specialise_symbolic(&[("keys", Shape::new(&[9, 32, 2, 68])?)])?;
        let ty = more.ty(more.outputs()[0].value)?;
        assert_eq!(ty.to_string(), "q8_0[pool, 32, 2, 64]");
        assert!(ty.shape.size(0).as_constant().is_none() && ty.elements().size(0).as_constant().is_none());
        let problem = g.input_of("other", ty, dims("dim")).map(drop).unwrap_err().to_string();
        assert!(problem.contains("whole blocks"), "{problem}");
        Ok(())
    }

    #[test]
    fn other_operations_refuse_packed_operands() -> Result<(), Error> {
        let mut g = Graph::new("g");
        let w = g.param_of("w", TensorType::packed(BlockFormat::Q8_0, [4, 32])?)?;
        let problem = g.add(w, w).map(drop).unwrap_err().to_string();
        assert!(problem.contains("q8_0[4, 32]") && problem.contains("packed"), "{problem}");
        assert!(g.swap_last_axes(w).is_err() && g.reshape(w, &[-1]).is_err());
        Ok(())
    }

    #[test]
    fn scales_and_zero_points_cover_the_weight() -> Result<(), Error> {
        let (x, w) = (f32s(&[2, 100])?, TensorType::packed(BlockFormat::U4, [5, 128])?);
        let op = |zero, offset| DequantMatMul::scaled(Scaling { block: 32, zero, offset });
        let (scales, zero) = (f32s(&[5, 4])?, TensorType::packed(BlockFormat::U4, [5, 4])?);
        let infer = |op: DequantMatMul, operands: &[TensorType]| op.infer(operands).map(|t| t[0].to_string());
        assert_eq!(infer(op(true, 0), &[x, w, scales, zero]), Ok("f32[2, 5]".into()));
        assert_eq!(infer(op(true, 0), &[x, w, scales, scales]), Ok("f32[2, 5]".into()));
        assert_eq!(infer(op(false, 8), &[x, w, scales]), Ok("f32[2, 5]".into()));
        assert!(infer(op(true, 8), &[x, w, scales, zero]).is_err());
        assert!(infer(op(false, 8), &[x, w, f32s(&[5, 3])?]).is_err());
        assert!(infer(op(false, 8), &[f32s(&[2, 64])?, w, scales]).is_err());
        assert!(infer(DequantMatMul::new(), &[f32s(&[2, 128])?, w]).is_ok());
        let plain = |dtype| Ok::<_, Error>(TensorType::new(dtype, Shape::new(&[5, 100])?));
        assert_eq!(infer(DequantMatMul::new(), &[x, plain(DType::F16)?]), Ok("f32[2, 5]".into()));
        assert!(infer(DequantMatMul::new(), &[x, plain(DType::U8)?]).is_err());
        let grouped = DequantMatMul { grouped: true, ..DequantMatMul::new() };
        let experts = TensorType::new(DType::I32, Shape::new(&[2])?);
        let w = TensorType::packed(BlockFormat::Q4_0, [8, 5, 96])?;
        assert_eq!(infer(grouped, &[f32s(&[2, 96])?, w, experts]), Ok("f32[2, 5]".into()));
        Ok(())
    }
}
