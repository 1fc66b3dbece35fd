//! Pools: one number from each window, channel by channel.

use crate::graph::{Graph, ValueId};
use crate::op::conv::Window;
use crate::op::{Rule, arity, float, op, shape};
use crate::{DType, Dim, Error, TensorType, words};

words! {
    /// What a pool keeps of a window.
    pub enum PoolKind {
        /// The largest; padding never wins, NaN does.
        Max = "max",
        /// The mean.
        Average = "average",
        /// (Σ|x|ᵖ)^(1/p).
        Lp = "lp",
    }
}

op! {
    /// A pool over the spatial axes of x `[N, C, ..]`.
    pub struct Pool = "pool" {
        /// What is kept.
        pub kind: PoolKind,
        /// Window sizes.
        pub kernel: Vec<usize>,
        /// How the window moves.
        pub window: Window,
        /// Whether a last, overhanging window counts.
        pub ceil: bool,
        /// Whether an average divides by the padded window (never by what hangs over the padding).
        pub count_include_pad: bool,
        /// The p of `lp`.
        pub p: usize,
        /// Whether positions of the maxima (i64, flat over the whole operand, as ONNX) are a second result.
        pub indices: bool,
    }
}

impl Rule for Pool {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        let x = &operands[0];
        if self.kind != PoolKind::Max {
            float(x)?;
        } else if x.dtype == DType::Bool {
            return Err("needs a number dtype, got bool".into());
        }
        if self.indices && self.kind != PoolKind::Max {
            return Err("only a max pool has positions".into());
        }
        if self.kind == PoolKind::Lp && self.p == 0 {
            return Err("p must be at least 1".into());
        }
        let spatial = self.kernel.len();
        if !(1..=3).contains(&spatial) || x.shape.rank() != spatial + 2 {
            return Err(format!("a kernel of {spatial} axes does not fit {}", x.shape));
        }
        self.window.check(spatial)?;
        let sizes = x.shape.sizes();
        let mut dims = sizes[..2].to_vec();
        for i in 0..spatial {
            let span = self.window.span(i, self.kernel[i])?;
            let (before, after) = self.window.pads[i];
            if before >= span || after >= span || sizes[2 + i] == 0 {
                return Err(format!(
                    "kernel {} over {} with padding {before} and {after} has windows of padding alone",
                    self.kernel[i],
                    sizes[2 + i]
                ));
            }
            dims.push(self.window.count_over(i, sizes[2 + i], self.kernel[i], self.ceil)?);
        }
        let out = shape(&dims)?;
        let mut results = vec![TensorType::new(x.dtype, out)];
        if self.indices {
            results.push(TensorType::new(DType::I64, out));
        }
        Ok(results)
    }
}

op! {
    /// A pool over all spatial positions of `[N, C, ..]`; spatial axes stay with size 1.
    pub struct GlobalPool = "global_pool" {
        /// What is kept.
        pub kind: PoolKind,
        /// The p of `lp`.
        pub p: usize,
    }
}

impl Rule for GlobalPool {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        float(&operands[0])?;
        let x = &operands[0].shape;
        if x.rank() < 3 || x.sizes()[2..].iter().any(|d| *d == 0) {
            return Err(format!("x must be [N, C, ..] with positions, got {x}"));
        }
        if self.kind == PoolKind::Lp && self.p == 0 {
            return Err("p must be at least 1".into());
        }
        let dims: Vec<Dim> = (0..x.rank()).map(|i| if i < 2 { x.size(i) } else { Dim::ONE }).collect();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }
}

op! {
    /// A pool whose windows divide the axes into given counts: window i of n spans ⌊i·S/n⌋ to ⌈(i+1)·S/n⌉.
    pub struct AdaptivePool = "adaptive_pool" {
        /// Max or average.
        pub kind: PoolKind,
        /// Result sizes.
        pub output: Vec<usize>,
    }
}

impl Rule for AdaptivePool {
    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(operands, 1..=1)?;
        float(&operands[0])?;
        if self.kind == PoolKind::Lp {
            return Err("an adaptive pool is max or average".into());
        }
        let x = &operands[0].shape;
        if x.rank() != self.output.len() + 2 || !(1..=3).contains(&self.output.len()) {
            return Err(format!("{} result sizes do not fit {x}", self.output.len()));
        }
        let x = x.sizes();
        if x[2..].iter().any(|d| *d == 0) || self.output.contains(&0) {
            return Err("sizes must be at least 1".into());
        }
        let dims: Vec<Dim> = x[..2].iter().copied().chain(self.output.iter().map(|d| (*d).into())).collect();
        Ok(vec![TensorType::new(operands[0].dtype, shape(&dims)?)])
    }
}

impl Graph {
    /// Max pool.
    pub fn max_pool(
        &mut self,
        x: ValueId,
        kernel: &[usize],
        window: Window,
        ceil: bool,
    ) -> Result<ValueId, Error> {
        self.add1(
            Pool {
                kind: PoolKind::Max,
                kernel: kernel.to_vec(),
                window,
                ceil,
                count_include_pad: false,
                p: 2,
                indices: false,
            },
            &[x],
        )
    }

    /// Average pool.
    pub fn avg_pool(
        &mut self,
        x: ValueId,
        kernel: &[usize],
        window: Window,
        ceil: bool,
        count_include_pad: bool,
    ) -> Result<ValueId, Error> {
        self.add1(
            Pool {
                kind: PoolKind::Average,
                kernel: kernel.to_vec(),
                window,
                ceil,
                count_include_pad,
                p: 2,
                indices: false,
            },
            &[x],
        )
    }

    /// Pool over all positions.
    pub fn global_pool(&mut self, kind: PoolKind, x: ValueId) -> Result<ValueId, Error> {
        self.add1(GlobalPool { kind, p: 2 }, &[x])
    }

    /// Pool to given sizes.
    pub fn adaptive_pool(&mut self, kind: PoolKind, x: ValueId, output: &[usize]) -> Result<ValueId, Error> {
        self.add1(AdaptivePool { kind, output: output.to_vec() }, &[x])
    }
}
