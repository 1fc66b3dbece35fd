//! The sum of a split matmul's parts, in their order, and its epilogue: by a kernel of its own, or by the kernel that
//! reads the matmul.

use olivine_ir::op::Region;
use olivine_ir::{DType, Dim};
use olivine_kernel::{Access, Buf, Elem, Val};

use crate::elementwise;
use crate::launch::{Launch, bytes};
use crate::math::{self, Typed};
use crate::matmul::epilogue::{accumulator_elem, rounded_sum};
use crate::matmul::problem::Problem;
use crate::site::{Memory, Operand, Site, Target, linear_group};
use crate::walk::{Walk, Walker};

/// Parts that are loaded together.
const AT_ONCE: u32 = 4;

/// A matmul that is still in parts: what they are, and what is to be done to their sum.
#[derive(Clone, Debug)]
pub struct SplitKPartials {
    /// Parts one after another, each as large as the target and in the same layout.
    parts: Memory,
    /// How many; none makes zeros.
    count: usize,
    /// Further operands of the epilogue, as they broadcast to the target.
    extras: Vec<Operand>,
    /// Whether the last of them is added before the sum is rounded; the epilogue does not see it.
    bias: bool,
    region: Option<Region>,
    /// The operands' type.
    dtype: DType,
    /// Where the matmul goes.
    target: Target,
    /// Whether anybody reads it there, other than the kernel that sums it.
    pub(crate) is_stored: bool,
}

/// Emits the sum of `count` parts, each as large as the target and in the same layout, or leaves it to the node that
/// reads the matmul; no part makes zeros. `extras` are those of the problem, as they broadcast to the target.
pub(crate) fn emit(
    problem: &Problem<'_>,
    parts: Memory,
    count: usize,
    extras: &[Operand],
    site: &mut Site<'_>,
) -> Result<(), String> {
    let partials = SplitKPartials::new(problem, parts, count, extras);
    // What belongs to this node alone is not there any more when another one runs.
    let lasting = extras.iter().all(|o| matches!(o.memory, Memory::Value(_)));
    if site.may_defer_sum && lasting && count > 0 {
        site.deferred = Some(partials);
        return Ok(());
    }
    partials.emit(site)
}

impl SplitKPartials {
    fn new(problem: &Problem<'_>, parts: Memory, count: usize, extras: &[Operand]) -> Self {
        SplitKPartials {
            parts,
            count,
            extras: extras.to_vec(),
            bias: problem.bias,
            region: problem.region.cloned(),
            dtype: problem.result,
            target: problem.target.clone(),
            is_stored: true,
        }
    }

    /// The same parts as a later node than the `step`-th, which made them, knows them.
    pub fn deferred_from(mut self, step: usize, is_stored: bool) -> Self {
        if let Memory::Scratch { offset, bytes } = self.parts {
            self.parts = Memory::Deferred { step, offset, bytes };
        }
        SplitKPartials { is_stored, ..self }
    }

    /// Whether others are the same parts, of the same operands, for all sizes.
    pub(crate) fn reads_like(&self, other: &Self) -> bool {
        (self.parts, self.count, self.bias, &self.region, self.dtype, self.is_stored)
            == (other.parts, other.count, other.bias, &other.region, other.dtype, other.is_stored)
            && self.target.is_like(&other.target)
            && self.extras.len() == other.extras.len()
            && self.extras.iter().zip(&other.extras).all(|(a, b)| a.reads_like(b))
    }

    /// Changes all memory that it names.
    pub fn rebind(&mut self, mut to: impl FnMut(Memory) -> Memory) {
        let extras = self.extras.iter_mut().map(|o| &mut o.memory);
        let own = [&mut self.parts, &mut self.target.memory];
        extras.chain(own).for_each(|memory| *memory = to(*memory));
    }

    /// Where the matmul goes.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Bytes that a kernel reads to sum and finish it.
    pub(crate) fn bytes(&self) -> Dim {
        let parts = self.target.ty.shape.sizes().numel() * self.count * self.elem().size();
        parts + self.extras.iter().map(|o| bytes(&o.ty)).sum::<Dim>()
    }

    fn elem(&self) -> Elem {
        accumulator_elem(math::elem(self.dtype))
    }

    fn walk(&self) -> Result<Walk, String> {
        let dims = self.target.ty.shape.sizes();
        let mut strides = Vec::with_capacity(self.extras.len() + 1);
        for operand in &self.extras {
            let over = operand.broadcast_to(&dims);
            strides.push(over.ok_or_else(|| format!("{} does not broadcast", operand.ty))?);
        }
        strides.push(self.target.ty.shape.stride_sizes());
        Ok(Walk::new(&dims, &strides))
    }

    /// Neighbouring elements that can be summed as one vector.
    pub(crate) fn lanes(&self) -> Result<usize, String> {
        let walk = self.walk()?;
        let lanes = elementwise::lanes(&walk, &self.extras, std::slice::from_ref(&self.target));
        let fits = self.elem().size() as usize * lanes <= 16 && walk.numel().is_multiple_of(lanes);
        Ok(if fits { lanes } else { 1 })
    }

    /// Declares what a kernel reads to make the matmul's elements.
    pub(crate) fn declare<'k, 's>(&'s self, l: &Launch<'k>) -> Result<DeclaredPartials<'k, 's>, String> {
        let walk = self.walk()?;
        let parts = l.bind("parts", self.elem(), Access::Read, self.parts);
        let input = |(i, operand): (usize, &Operand)| l.read(&format!("extra{i}"), operand);
        let extras = self.extras.iter().enumerate().map(input).collect();
        let (count, size) = (l.size("parts_count", self.count), l.size("parts_size", walk.numel()));
        let offsets: Vec<Dim> = self.extras.iter().map(|o| o.offset).chain([Dim::ZERO]).collect();
        let walker = walk.declare(l, &offsets);
        Ok(DeclaredPartials { of: self, walk, walker, parts, extras, count, size })
    }

    /// Emits a kernel that does nothing else.
    pub(crate) fn emit(&self, site: &mut Site<'_>) -> Result<(), String> {
        let size = self.target.ty.shape.sizes().numel();
        let lanes = self.lanes()?;
        let group = site.group_size(256);
        let k = site.builder("matmul_split_k_sum", group);
        let l = Launch::new(&k);
        let sums = self.declare(&l)?;
        let out = l.write("out", &self.target);
        let at = (linear_group(&k) * group + k.local_index()) * lanes;
        k.if_(at.lt(sums.size), || {
            if let Some(results) = sums.at(&[at], lanes).first() {
                out.store_vec(at, results);
            }
        });
        let bound = l.done();
        let groups = size.div_ceil(lanes).div_ceil(group);
        let cost = (size * self.count, self.bytes() + bytes(&self.target.ty));
        site.dispatch(k, bound, groups, cost)
    }
}

/// Declared parts.
pub(crate) struct DeclaredPartials<'k, 's> {
    of: &'s SplitKPartials,
    walk: Walk,
    walker: Walker<'k>,
    parts: Buf<'k>,
    extras: Vec<Buf<'k>>,
    count: Val<'k>,
    size: Val<'k>,
}

impl<'k> DeclaredPartials<'k, '_> {
    /// For every position in the packed matmul, `lanes` neighbouring finished elements. Loads of all positions are
    /// in flight together.
    pub(crate) fn at(&self, positions: &[Val<'k>], lanes: usize) -> Vec<Vec<Val<'k>>> {
        let k = self.count.builder();
        let zero = k.number(self.parts.elem().scalar(), 0.0);
        let sums: Vec<Vec<_>> = positions.iter().map(|_| (0..lanes).map(|_| k.var(zero)).collect()).collect();
        let extras: Vec<Vec<Vec<Val<'k>>>> = positions.iter().map(|at| self.extras_at(*at, lanes)).collect();
        let last = self.count - 1u32;
        k.for_(k.u32(0), self.count, k.u32(AT_ONCE), |first| {
            // Loads past the last part repeat it and count for nothing, so that none waits for a branch.
            let load = |i: u32| {
                let part = first + i;
                let start = part.min(last) * self.size;
                let values = positions.iter().map(|at| self.parts.load_vec(start + *at, lanes as u8));
                (part.lt(self.count), values.collect::<Vec<_>>().concat())
            };
            let loaded: Vec<(Val<'k>, Vec<Val<'k>>)> = (0..AT_ONCE).map(load).collect();
            for (i, sum) in sums.iter().flatten().enumerate() {
                let add = |sum: Val<'k>, (counts, values): &(Val<'k>, Vec<Val<'k>>)| {
                    counts.select(sum + values[i], sum)
                };
                sum.set(loaded.iter().fold(sum.get(), add));
            }
        });
        sums.iter()
            .zip(&extras)
            .map(|(sums, extras)| {
                sums.iter().enumerate().map(|(lane, sum)| self.finished(sum.get(), extras, lane)).collect()
            })
            .collect()
    }

    fn extras_at(&self, at: Val<'k>, lanes: usize) -> Vec<Vec<Val<'k>>> {
        let indices = self.walker.at(at);
        let load = |(i, buffer): (usize, &Buf<'k>)| {
            elementwise::load(*buffer, indices[i], self.walk.steps_by(i, 0), lanes)
        };
        self.extras.iter().enumerate().map(load).collect()
    }

    fn finished(&self, sum: Val<'k>, extras: &[Vec<Val<'k>>], lane: usize) -> Val<'k> {
        let of = self.of;
        let (bias, further) = if of.bias { extras.split_last().unzip() } else { (None, None) };
        let sum = bias.map_or(sum, |bias: &Vec<Val<'k>>| sum + bias[lane]);
        let sum = rounded_sum(sum, of.dtype);
        let Some(region) = &of.region else { return sum.val };
        let mut inputs = vec![sum];
        for (values, operand) in further.unwrap_or(extras).iter().zip(&of.extras) {
            inputs.push(Typed { val: values[lane], dtype: operand.ty.dtype });
        }
        math::region(region, &inputs).first().map_or(sum.val, |result| result.val)
    }
}

/// A matmul's elements, wherever they come from.
pub(crate) enum MatmulElements<'k, 's> {
    /// From memory.
    Stored(Buf<'k>),
    /// From its parts.
    Summed(DeclaredPartials<'k, 's>),
}

impl<'k> MatmulElements<'k, '_> {
    /// `lanes` neighbouring ones from an index on, counted from the first in memory.
    pub(crate) fn load(&self, index: Val<'k>, lanes: usize) -> Vec<Val<'k>> {
        match self {
            MatmulElements::Stored(buffer) => buffer.load_vec(index, lanes as u8),
            MatmulElements::Summed(sums) => sums.at(&[index], lanes).pop().unwrap_or_default(),
        }
    }
}
