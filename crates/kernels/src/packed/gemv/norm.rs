//! A norm whose result matmuls alone read: every workgroup normalises the rows of x that it makes digits of.
//!
//! Each of them reads all of x anyway. The sum of a row's squares costs a barrier; a dispatch of its own would cost more.

use olivine_ir::{DType, Op};
use olivine_kernel::{Access, Buf, Builder, Elem, Reduction, Val};

use crate::launch::Launch;
use crate::math;
use crate::norm::{Scaling, declare_eps};
use crate::packed::pool::Pool;
use crate::rows::sum;
use crate::site::Operand;

/// A norm in front of matmuls.
#[derive(Clone, Debug)]
pub(crate) struct RowNorm {
    /// Whether the mean is taken off.
    centred: bool,
    eps: f64,
    gamma: Operand,
    beta: Option<Operand>,
}

impl RowNorm {
    /// The norm of a node that reads `operands`; `None` of one that makes its input itself, or returns it too.
    pub(crate) fn of(op: &Op, operands: &[Operand]) -> Option<Self> {
        let (centred, eps, bias, is_plain) = match op {
            Op::RmsNorm(op) => (false, op.eps, op.bias, op.prologue.is_none() && !op.emit_input),
            Op::LayerNorm(op) => (true, op.eps, op.bias, op.prologue.is_none() && !op.emit_input),
            _ => return None,
        };
        let gamma = operands.get(1)?.clone();
        let beta = if bias { Some(operands.get(2)?.clone()) } else { None };
        let narrow = |operand: &Operand| matches!(operand.ty.dtype, DType::F32 | DType::F16 | DType::BF16);
        let fits = is_plain
            && operands.len() == 2 + usize::from(bias)
            && operands.iter().all(|operand| narrow(operand) && operand.is_contiguous())
            && operands[1..].iter().all(Operand::is_packed);
        fits.then_some(RowNorm { centred, eps, gamma, beta })
    }

    /// Buffers that a kernel binds for it.
    pub(crate) fn buffers(&self) -> usize {
        1 + usize::from(self.beta.is_some())
    }

    /// The kernels' name for it.
    pub(crate) fn name(&self) -> &'static str {
        if self.centred { "layer_norm" } else { "rms_norm" }
    }

    /// Declares it to a kernel; `k_size` is the number of a row's elements.
    pub(crate) fn declare<'k>(&self, l: &Launch<'k>, k_size: Val<'k>) -> DeclaredNorm<'k> {
        let k = l.k();
        let weights = |name: &str, operand: &Operand| {
            l.bind(name, math::elem(operand.ty.dtype), Access::Read, operand.memory)
        };
        let one = k.f32(1.0);
        DeclaredNorm {
            centred: self.centred,
            eps: declare_eps(l, DType::F32, self.eps),
            part: one / k_size.convert(one.scalar()),
            gamma: weights("gamma", &self.gamma),
            beta: self.beta.as_ref().map(|beta| weights("beta", beta)),
        }
    }
}

/// A norm that a kernel computes.
#[derive(Clone, Copy)]
pub(crate) struct DeclaredNorm<'k> {
    centred: bool,
    eps: Val<'k>,
    /// One over the number of a row's elements.
    part: Val<'k>,
    gamma: Buf<'k>,
    beta: Option<Buf<'k>>,
}

/// Weights of neighbouring elements.
pub(crate) struct NormWeights<'k> {
    gamma: Vec<Val<'k>>,
    beta: Option<Vec<Val<'k>>>,
}

/// What sums of a row are of: functions of the row and an element.
pub(crate) type Terms<'a, 'k> = &'a dyn Fn(usize, Val<'k>) -> Vec<Val<'k>>;

impl<'k> DeclaredNorm<'k> {
    /// Weights from an element of the row on.
    pub(crate) fn load(&self, at: Val<'k>, lanes: u32) -> NormWeights<'k> {
        NormWeights {
            gamma: self.gamma.load_vec(at, lanes as u8),
            beta: self.beta.map(|beta| beta.load_vec(at, lanes as u8)),
        }
    }

    /// How each of some rows is scaled; `totals` sums so many terms of every element, by rows.
    pub(crate) fn scalings(
        &self,
        totals: impl Fn(usize, Terms<'_, 'k>) -> Vec<Vec<Val<'k>>>,
    ) -> Vec<Scaling<'k>> {
        let (part, eps) = (self.part, self.eps);
        if !self.centred {
            let squares = totals(1, &|_, v| vec![v * v]);
            return squares.into_iter().map(|sums| Scaling::of_squares(sums[0], part, eps)).collect();
        }
        // Opaque, or a compiler puts the unrounded product where the mean is taken off.
        let means: Vec<Val<'k>> =
            totals(1, &|_, v| vec![v]).into_iter().map(|sums| (sums[0] * part).opaque()).collect();
        let deviations = totals(2, &|row, v| {
            let from_mean = v - means[row];
            vec![from_mean, from_mean * from_mean]
        });
        let each = deviations.into_iter().zip(&means);
        each.map(|(sums, mean)| Scaling::of_deviations(*mean, [sums[0], sums[1]], part, eps)).collect()
    }
}

impl<'k> NormWeights<'k> {
    /// The i-th element of the result.
    pub(crate) fn apply(&self, scaling: &Scaling<'k>, i: usize, value: Val<'k>) -> Val<'k> {
        let normalised = scaling.of(value);
        match &self.beta {
            Some(beta) => normalised.fma(self.gamma[i], beta[i]),
            None => normalised * self.gamma[i],
        }
    }
}

/// The scaling of the row with a number that is known at run time.
pub(crate) fn of_row<'k>(scalings: &[Scaling<'k>], row: Val<'k>) -> Scaling<'k> {
    let mut found = scalings[0];
    for (i, other) in (1u32..).zip(&scalings[1..]) {
        let is_other = row.eq(i);
        let pick = |of: Option<Val<'k>>, or: Option<Val<'k>>| Some(is_other.select(of?, or?));
        found = Scaling {
            shift: pick(other.shift, found.shift),
            scale: is_other.select(other.scale, found.scale),
            offset: pick(other.offset, found.offset),
        };
    }
    found
}

/// Sums over the workgroup, in clusters of `width` invocations first; all of it get them.
pub(crate) fn totals<'k>(k: &'k Builder, pool: &Pool<'k>, width: u32, values: Vec<Val<'k>>) -> Vec<Val<'k>> {
    let (count, clusters) = (values.len() as u32, k.group() / width);
    let near: Vec<Val<'k>> =
        values.iter().map(|value| k.cluster_reduce(width, *value, Reduction::Add)).collect();
    if clusters == 1 {
        return near;
    }
    let memory = pool.take("totals", Elem::F32, 1, count * clusters);
    let me = k.local_index();
    k.if_((me % width).eq(0u32), || {
        (0u32..).zip(&near).for_each(|(i, value)| memory.store(me / width * count + i, *value));
    });
    k.barrier();
    (0..count).map(|i| sum((0..clusters).map(|c| memory.load(k.u32(c * count + i))).collect())).collect()
}
