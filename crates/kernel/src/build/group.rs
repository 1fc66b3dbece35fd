//! Reductions over a subgroup and a workgroup: by subgroup operations where the target has them, else through
//! workgroup memory.

use super::{Builder, Shared, Val};
use crate::ir::{SharedDecl, SharedId, SubgroupOp};
use crate::types::{Elem, Scalar};

/// How values are combined. Max and min of floats are taken by comparison: a NaN never replaces a number, nor is one
/// replaced; combine NaN apart where it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the operations")]
pub enum Reduction {
    Add,
    Min,
    Max,
}

impl Reduction {
    /// Combines two.
    pub fn apply<'k>(self, a: Val<'k>, b: Val<'k>) -> Val<'k> {
        match self {
            Reduction::Add => a + b,
            Reduction::Min => a.min(b),
            Reduction::Max => a.max(b),
        }
    }
}

impl Builder {
    /// Combines the values of each cluster of `width` (a power of two) neighbouring invocations; all of them get the
    /// result. Every invocation of the workgroup must take part.
    pub fn cluster_reduce<'k>(&'k self, width: u32, value: Val<'k>, op: Reduction) -> Val<'k> {
        self.cluster_reduce_with(width, value, |a, b| op.apply(a, b))
    }

    /// The same with any associative and commutative operation.
    pub fn cluster_reduce_with<'k>(
        &'k self,
        width: u32,
        value: Val<'k>,
        combine: impl Fn(Val<'k>, Val<'k>) -> Val<'k>,
    ) -> Val<'k> {
        if !width.is_power_of_two() || width > self.group() {
            self.fail(format!("a reduction over clusters of {width} in a workgroup of {}", self.group()));
            return value;
        }
        let within = self.target().subgroup.map_or(1, |s| s.min(width));
        let mut result = value;
        let mut step = 1;
        while step < within {
            result = combine(result, result.shuffle_xor(step));
            step *= 2;
        }
        if width > within {
            result = self.combine_through_memory(width, within, result, combine);
        }
        result
    }

    /// Combines the values of the whole workgroup; every invocation gets the result.
    pub fn group_reduce<'k>(&'k self, value: Val<'k>, op: Reduction) -> Val<'k> {
        self.cluster_reduce(self.group(), value, op)
    }

    /// The same with any associative and commutative operation.
    pub fn group_reduce_with<'k>(
        &'k self,
        value: Val<'k>,
        combine: impl Fn(Val<'k>, Val<'k>) -> Val<'k>,
    ) -> Val<'k> {
        self.cluster_reduce_with(self.group(), value, combine)
    }

    /// Every `within` invocations hold one partial result; the cluster's partial results meet in workgroup memory.
    fn combine_through_memory<'k>(
        &'k self,
        width: u32,
        within: u32,
        value: Val<'k>,
        combine: impl Fn(Val<'k>, Val<'k>) -> Val<'k>,
    ) -> Val<'k> {
        let memory = self.reduction_memory(value.scalar());
        let me = self.local_index();
        let (parts, all) = (width / within, self.group() / within);
        self.barrier();
        if within == 1 {
            memory.store(me, value);
        } else {
            self.if_((me % within).eq(0), || memory.store(me / within, value));
        }
        self.barrier();
        let first = if parts == all { self.u32(0) } else { me / width * parts };
        if parts <= 8 {
            let mut result = memory.load(first);
            for i in 1..parts {
                result = combine(result, memory.load(first + i));
            }
            return result;
        }
        // A tree in place: parts are few where there are subgroups and as many as invocations where there are none.
        let part = me % width;
        let mut half = parts / 2;
        while half > 0 {
            self.if_(part.lt(half), || {
                let at = first + part;
                let sum = combine(memory.load(at), memory.load(at + half));
                memory.store(at, sum);
            });
            self.barrier();
            half /= 2;
        }
        memory.load(first)
    }

    fn reduction_memory(&self, scalar: Scalar) -> Shared<'_> {
        let group = self.group();
        let mut inner = self.inner.borrow_mut();
        let elem = match scalar {
            Scalar::I32 => Elem::I32,
            Scalar::I64 => Elem::I64,
            Scalar::U64 => Elem::U64,
            Scalar::F64 => Elem::F64,
            Scalar::F32 | Scalar::F16 => Elem::F32,
            Scalar::U32 | Scalar::Bool => Elem::U32,
        };
        let len = group / self.target.subgroup.unwrap_or(1).min(group);
        let kernel = &mut inner.kernel;
        let next = SharedId(kernel.shared.len() as u32);
        let id = match inner.scratch.get(&scalar) {
            Some(id) => *id,
            None => {
                inner.kernel.shared.push(SharedDecl { elem, lanes: 1, len });
                inner.scratch.insert(scalar, next);
                next
            }
        };
        Shared { k: self, id, elem, lanes: 1 }
    }

    /// Sum of the subgroup's values by the device's own instruction; only where the target has subgroups.
    pub fn subgroup_sum<'k>(&'k self, value: Val<'k>) -> Val<'k> {
        value.subgroup(SubgroupOp::Add)
    }
}
