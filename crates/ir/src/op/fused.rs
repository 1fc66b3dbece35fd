//! Fused elementwise regions: a small straight-line program applied at every position.
//!
//! A region is what fusion makes of elementwise nodes. It stands alone as [`Fused`], or rides on a larger operation:
//! after a matmul's accumulator ([`MatMul`](crate::op::MatMul), [`Conv`](crate::op::Conv)) or before a norm's row.

use crate::attr::{Attr, AttrField, Attrs, same_float};
use crate::op::elementwise::broadcast_all;
use crate::op::{Rule, ScalarOp, Spelled, op};
use crate::{DType, TensorType};

/// An operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// The region's i-th input.
    Input(usize),
    /// The i-th instruction's result.
    Instr(usize),
}

/// What an instruction does.
#[derive(Clone, Copy, Debug)]
pub enum InstrOp {
    /// An elementwise operation on earlier results.
    Scalar(ScalarOp),
    /// A number of a dtype, the same at every position.
    Splat(DType, f64),
}

impl PartialEq for InstrOp {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (InstrOp::Scalar(a), InstrOp::Scalar(b)) => a == b,
            (InstrOp::Splat(d, x), InstrOp::Splat(e, y)) => d == e && same_float(*x, *y),
            _ => false,
        }
    }
}

/// One instruction of a region.
#[derive(Clone, Debug, PartialEq)]
pub struct Instr {
    /// What it does.
    pub op: InstrOp,
    /// Its operands.
    pub args: Vec<Arg>,
}

/// A straight-line elementwise program: inputs, instructions in order, results.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Number of inputs.
    pub inputs: usize,
    /// Instructions, each using inputs and earlier instructions.
    pub instrs: Vec<Instr>,
    /// What comes out.
    pub outputs: Vec<Arg>,
}

impl Region {
    /// The region that returns its first input.
    pub fn identity() -> Self {
        Region { inputs: 1, instrs: Vec::new(), outputs: vec![Arg::Input(0)] }
    }

    /// Floating-point operations of one element; see [`ScalarOp::flops`].
    pub fn flops(&self) -> usize {
        let of = |instr: &Instr| match instr.op {
            InstrOp::Scalar(op) => op.flops(),
            InstrOp::Splat(..) => 0,
        };
        self.instrs.iter().map(of).sum()
    }

    /// Of [`Region::flops`], those in functions such as exp.
    pub fn function_flops(&self) -> usize {
        let of = |instr: &Instr| match instr.op {
            InstrOp::Scalar(op) if op.is_function() => op.flops(),
            _ => 0,
        };
        self.instrs.iter().map(of).sum()
    }

    /// The dtypes of all instructions' results, given the inputs' dtypes.
    pub fn dtypes(&self, inputs: &[DType]) -> Result<Vec<DType>, String> {
        if inputs.len() != self.inputs {
            return Err(format!("the region takes {} operands, got {}", self.inputs, inputs.len()));
        }
        let mut results: Vec<DType> = Vec::with_capacity(self.instrs.len());
        for (i, instr) in self.instrs.iter().enumerate() {
            let operands = instr
                .args
                .iter()
                .map(|a| lookup(*a, inputs, &results))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| format!("region instruction {i}: {e}"))?;
            results.push(match instr.op {
                InstrOp::Splat(dtype, _) if operands.is_empty() => dtype,
                InstrOp::Splat(..) => {
                    return Err(format!("region instruction {i}: a number takes no operands"));
                }
                InstrOp::Scalar(op) => op
                    .result_dtype(&operands)
                    .map_err(|e| format!("region instruction {i} ({}): {e}", op.name()))?,
            });
        }
        Ok(results)
    }

    /// The dtypes of the outputs, given the inputs' dtypes.
    pub fn output_dtypes(&self, inputs: &[DType]) -> Result<Vec<DType>, String> {
        let results = self.dtypes(inputs)?;
        if self.outputs.is_empty() {
            return Err("the region has no output".into());
        }
        self.outputs.iter().map(|a| lookup(*a, inputs, &results)).collect()
    }

    /// The single output's dtype, for regions that ride on another operation.
    pub(crate) fn region_dtype(&self, main: DType, extra: &[TensorType]) -> Result<DType, String> {
        let inputs: Vec<DType> = std::iter::once(main).chain(extra.iter().map(|t| t.dtype)).collect();
        match self.output_dtypes(&inputs)?.as_slice() {
            [dtype] => Ok(*dtype),
            many => Err(format!("the region must have one output, has {}", many.len())),
        }
    }
}

fn lookup(arg: Arg, inputs: &[DType], results: &[DType]) -> Result<DType, String> {
    match arg {
        Arg::Input(i) => inputs.get(i).copied().ok_or_else(|| format!("no input {i}")),
        Arg::Instr(i) => results.get(i).copied().ok_or_else(|| format!("result {i} is not computed yet")),
    }
}

impl AttrField for Arg {
    fn write(&self) -> Attr {
        Attr::Word(match self {
            Arg::Input(i) => format!("in{i}"),
            Arg::Instr(i) => format!("t{i}"),
        })
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        let Attr::Word(w) = attr else { return Err(format!("expected in0 or t0, found `{attr}`")) };
        let number = |digits: &str| digits.parse::<u32>().ok().map(|n| n as usize);
        w.strip_prefix("in")
            .and_then(number)
            .map(Arg::Input)
            .or_else(|| w.strip_prefix('t').and_then(number).map(Arg::Instr))
            .ok_or_else(|| format!("expected in0 or t0, found `{w}`"))
    }
}

impl AttrField for Instr {
    fn write(&self) -> Attr {
        let mut fields = match &self.op {
            InstrOp::Splat(dtype, x) => {
                vec![
                    ("op".into(), Attr::Word("splat".into())),
                    ("dtype".into(), dtype.write()),
                    ("value".into(), x.write()),
                ]
            }
            InstrOp::Scalar(op) => {
                let mut fields = vec![("op".to_string(), Attr::Word(op.name().into()))];
                fields.extend(op.attrs().0);
                fields
            }
        };
        if !self.args.is_empty() {
            fields.push(("args".into(), self.args.write()));
        }
        Attr::Record(fields)
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        let Attr::Record(fields) = attr else {
            return Err(format!("expected an instruction, found `{attr}`"));
        };
        let all = Attrs(fields.clone());
        let Some((_, Attr::Word(name))) = fields.iter().find(|(n, _)| n == "op") else {
            return Err("an instruction needs `op`".into());
        };
        let args =
            fields.iter().find(|(n, _)| n == "args").map_or(Ok(Vec::new()), |(_, a)| AttrField::read(a))?;
        if name == "splat" {
            all.only(&["op", "dtype", "value"])?;
            return Ok(Instr { op: InstrOp::Splat(all.get("dtype")?, all.get("value")?), args });
        }
        for reserved in ["op", "args"] {
            if fields.iter().filter(|(n, _)| n == reserved).count() > 1 {
                return Err(format!("attribute `{reserved}` is given twice"));
            }
        }
        let own = Attrs(fields.iter().filter(|(n, _)| n != "op" && n != "args").cloned().collect());
        let op = ScalarOp::read(name, &own)
            .ok_or_else(|| format!("`{name}` is not an elementwise operation"))??;
        Ok(Instr { op: InstrOp::Scalar(op), args })
    }
}

impl AttrField for Region {
    fn write(&self) -> Attr {
        Attr::Record(vec![
            ("inputs".into(), self.inputs.write()),
            ("instrs".into(), self.instrs.write()),
            ("outputs".into(), self.outputs.write()),
        ])
    }
    fn same(&self, other: &Self) -> bool {
        self == other
    }
    fn read(attr: &Attr) -> Result<Self, String> {
        let Attr::Record(fields) = attr else { return Err(format!("expected a region, found `{attr}`")) };
        let all = Attrs(fields.clone());
        all.only(&["inputs", "instrs", "outputs"])?;
        Ok(Region { inputs: all.get("inputs")?, instrs: all.get("instrs")?, outputs: all.get("outputs")? })
    }
}

op! {
    /// An elementwise region over operands that broadcast together; every result has the common shape.
    pub struct Fused = "fused" {
        /// The program.
        pub region: Region,
    }
}

impl Rule for Fused {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let dtypes: Vec<DType> = operands.iter().map(|t| t.dtype).collect();
        let outputs = self.region.output_dtypes(&dtypes)?;
        let shape = broadcast_all(operands)?;
        Ok(outputs.into_iter().map(|d| TensorType::new(d, shape)).collect())
    }

    fn reads_strides(&self, _operand: usize) -> bool {
        true
    }
}
