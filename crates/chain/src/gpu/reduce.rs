//! Sums of several values over a workgroup at once, so that they share barriers.

use olivine_kernel::{Shared, Val};
use olivine_kernels::float;

use crate::expr::Reduction;
use crate::gpu::Writer;

/// Bytes of workgroup memory for values that are reduced together without subgroups.
const TREE_BYTES: u32 = 8192;

impl<'k> Writer<'k, '_> {
    pub(super) fn combine(&self, how: Reduction, a: Val<'k>, b: Val<'k>) -> Val<'k> {
        match how {
            Reduction::Sum => a + b,
            Reduction::Max => float::binary(olivine_ir::op::Binary::Max, a, b),
        }
    }

    /// What a reduction of nothing is.
    pub(super) fn identity(&self, how: Reduction) -> Val<'k> {
        match how {
            Reduction::Sum => self.number(0.0),
            Reduction::Max => self.number(f64::NEG_INFINITY),
        }
    }

    /// The workgroup memory that reductions need, for at most so many values at once.
    pub(super) fn reduction_memory(&self, values: u32) -> Option<Shared<'k>> {
        let (group, elem) = (self.k.group(), self.elem());
        let len = match self.k.target().subgroup {
            Some(size) if size >= group => return None,
            Some(size) => values * (group / size),
            None => values.min(self.tree_width()) * group,
        };
        (len > 0).then(|| self.k.shared(elem, 1, len))
    }

    fn tree_width(&self) -> u32 {
        (TREE_BYTES / (self.k.group() * self.elem().size())).max(1)
    }

    /// Combines each value over the whole workgroup; every invocation gets the results.
    pub(super) fn reduce(&self, values: &[(Reduction, Val<'k>)]) -> Vec<Val<'k>> {
        if values.is_empty() {
            return Vec::new();
        }
        match self.k.target().subgroup {
            Some(size) => self.reduce_by_subgroups(values, size),
            None => {
                values.chunks(self.tree_width() as usize).flat_map(|part| self.reduce_by_tree(part)).collect()
            }
        }
    }

    /// Combines over each `width` neighbouring lanes of a subgroup.
    pub(super) fn across(&self, how: Reduction, value: Val<'k>, width: u32) -> Val<'k> {
        let (mut value, mut step) = (value, 1);
        while step < width {
            value = self.combine(how, value, value.shuffle_xor(step));
            step *= 2;
        }
        value
    }

    fn reduce_by_subgroups(&self, values: &[(Reduction, Val<'k>)], size: u32) -> Vec<Val<'k>> {
        let k = self.k;
        let within = size.min(k.group());
        let parts: Vec<Val<'k>> = values.iter().map(|(how, v)| self.across(*how, *v, within)).collect();
        let Some(shared) = self.shared else { return parts };
        let subgroups = k.group() / size;
        k.barrier();
        k.if_(k.lane().eq(0), || {
            for (i, part) in (0u32..).zip(&parts) {
                shared.store(k.subgroup_id() + i * subgroups, *part);
            }
        });
        k.barrier();
        // Every subgroup combines the parts again, its lanes one or more of them.
        let mut results = Vec::new();
        for (i, (how, _)) in (0u32..).zip(values) {
            let (first, lane) = (k.u32(i * subgroups), k.lane());
            let width = size.min(subgroups);
            let mut part = shared.load(first + lane % width);
            for more in 1..subgroups / width {
                part = self.combine(*how, part, shared.load(first + more * width + lane % width));
            }
            results.push(self.across(*how, part, width));
        }
        results
    }

    fn reduce_by_tree(&self, values: &[(Reduction, Val<'k>)]) -> Vec<Val<'k>> {
        let k = self.k;
        let Some(shared) = self.shared else { return values.iter().map(|(_, v)| *v).collect() };
        let (me, group) = (k.local_index(), k.group());
        k.barrier();
        for (i, (_, value)) in (0u32..).zip(values) {
            shared.store(me + i * group, *value);
        }
        k.barrier();
        let mut half = group / 2;
        while half > 0 {
            k.if_(me.lt(half), || {
                for (i, (how, _)) in (0u32..).zip(values) {
                    let at = me + i * group;
                    shared.store(at, self.combine(*how, shared.load(at), shared.load(at + half)));
                }
            });
            k.barrier();
            half /= 2;
        }
        (0u32..).zip(values).map(|(i, _)| shared.load(k.u32(i * group))).collect()
    }
}
