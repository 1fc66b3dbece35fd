//! Where a chain's kernel finds its data, its state and its intermediate values.

use std::collections::HashMap;

use olivine_kernel::{Buf, Builder, Val};

use crate::expr::{Axis, Id};
use crate::gpu::Writer;
use crate::plan::Plan;

/// Arguments of the kernel. Buffers come with the element that the chain's part begins at.
pub(crate) struct Io<'k> {
    pub(crate) steps: Val<'k>,
    pub(crate) n_obs: Val<'k>,
    pub(crate) d: Val<'k>,
    pub(crate) step_size: Val<'k>,
    pub(crate) numbers: Buf<'k>,
    pub(crate) indices: Option<Buf<'k>>,
    /// The first element of each piece of data.
    pub(crate) offsets: Vec<Val<'k>>,
    pub(crate) inverse_mass: (Buf<'k>, Val<'k>),
    pub(crate) q: (Buf<'k>, Val<'k>),
    pub(crate) p: (Buf<'k>, Val<'k>),
    pub(crate) rows: Rows<'k>,
    pub(crate) memory: Memory<'k>,
    /// The workgroup's observations.
    pub(crate) obs: (Val<'k>, Val<'k>),
    /// Whether this workgroup writes the results.
    pub(crate) writes: Val<'k>,
}

/// The results.
pub(crate) struct Rows<'k> {
    pub(crate) q: Buf<'k>,
    pub(crate) p: Buf<'k>,
    pub(crate) gradient: Buf<'k>,
    /// The chain's first element in these three.
    pub(crate) first: Val<'k>,
    pub(crate) density: Buf<'k>,
    pub(crate) first_density: Val<'k>,
}

/// Where the state is between evaluations.
pub(crate) enum Memory<'k> {
    /// In the results: the row that the next step overwrites. There is no memory for anything else.
    Rows,
    /// In scratch memory.
    Work(Work<'k>),
}

/// Scratch memory of a chain: state and values of coordinates of each workgroup, and what workgroups hand each other.
pub(crate) struct Work<'k> {
    pub(super) buf: Buf<'k>,
    /// Workgroups of a chain.
    pub(super) groups: u32,
    /// The workgroup's number among them.
    pub(super) group: Val<'k>,
    /// First elements: the workgroup's state and coordinate stores, the chain's others.
    pub(super) state: Val<'k>,
    pub(super) coord_stores: Val<'k>,
    pub(super) coord_sums: Val<'k>,
    pub(super) obs_stores: Val<'k>,
    pub(super) partials: Val<'k>,
    /// Elements that a second copy of these three is away, by the parity of the evaluation.
    pub(super) copies: Option<[Val<'k>; 3]>,
}

/// Elements of a chain's scratch memory.
pub(super) struct WorkSizes {
    pub(super) groups: u64,
    pub(super) state: u64,
    pub(super) coord_stores: u64,
    pub(super) coord_sums: u64,
    pub(super) obs_stores: u64,
    pub(super) partials: u64,
}

impl WorkSizes {
    pub(super) fn new(plan: &Plan, groups: u32, n_obs: usize, d: usize) -> Self {
        let (groups, n_obs, d) = (u64::from(groups), n_obs as u64, d as u64);
        WorkSizes {
            groups,
            state: 2 * d,
            coord_stores: plan.stores(Axis::Coord).len() as u64 * d,
            coord_sums: groups * sums_in_memory(plan).len() as u64 * d,
            obs_stores: plan.stores(Axis::Obs).len() as u64 * n_obs,
            partials: groups * reductions(plan).len() as u64,
        }
    }

    /// What workgroups hand each other is there twice where there are several: one reads while another writes anew.
    fn copies(&self) -> u64 {
        if self.groups > 1 { 2 } else { 1 }
    }

    /// Elements of one chain.
    pub(super) fn total(&self) -> u64 {
        self.groups * (self.state + self.coord_stores)
            + self.copies() * (self.coord_sums + self.obs_stores + self.partials)
    }

    /// The memory of a chain whose elements begin at `first`; `size` declares a number.
    pub(super) fn bind<'k>(
        &self,
        buf: Buf<'k>,
        first: Val<'k>,
        group: Val<'k>,
        size: impl Fn(&str, u64) -> Val<'k>,
    ) -> Work<'k> {
        let state = first + group * size("state", self.state);
        let after = self.groups * self.state;
        let coord_stores =
            first + size("coord_stores", after) + group * size("coord_store", self.coord_stores);
        let after = after + self.groups * self.coord_stores;
        let coord_sums = first + size("coord_sums", after);
        let after = after + self.copies() * self.coord_sums;
        let obs_stores = first + size("obs_stores", after);
        let after = after + self.copies() * self.obs_stores;
        let partials = first + size("partials", after);
        let copies = (self.groups > 1).then(|| {
            [
                size("sums_copy", self.coord_sums),
                size("stores_copy", self.obs_stores),
                size("partials_copy", self.partials),
            ]
        });
        let groups = self.groups as u32;
        Work { buf, groups, group, state, coord_stores, coord_sums, obs_stores, partials, copies }
    }
}

/// Scalar reductions over observations and over coordinates, in the order of their stages.
pub(super) fn reductions(plan: &Plan) -> Vec<(Id, Axis)> {
    let of = |s: &crate::plan::Stage| {
        let coords = s.coord_reductions.iter().map(|id| (*id, Axis::Coord));
        coords.chain(s.obs_reductions.iter().map(|id| (*id, Axis::Obs))).collect::<Vec<_>>()
    };
    plan.stages.iter().flat_map(of).collect()
}

/// Sums for each coordinate that are kept in memory; scatters are summed where they are read.
pub(super) fn sums_in_memory(plan: &Plan) -> Vec<Id> {
    let is_reduction = |id: &Id| matches!(plan.graph.node(*id), crate::expr::Node::Reduce(..));
    plan.coord_sums().into_iter().filter(is_reduction).collect()
}

/// Computed values by node.
pub(super) type Values<'k> = HashMap<Id, Val<'k>>;

impl<'k> Writer<'k, '_> {
    pub(super) fn k(&self) -> &'k Builder {
        self.k
    }

    /// Where a coordinate of the state is at an evaluation: positions (0) or momenta (1).
    fn state_place(&self, which: u32, evaluation: Val<'k>, c: Val<'k>) -> (Buf<'k>, Val<'k>) {
        match &self.io.memory {
            Memory::Work(work) => (work.buf, work.state + self.io.d * which + c),
            Memory::Rows => {
                let first = self.io.rows.first;
                let row = evaluation.eq(0).select(evaluation, evaluation - 1);
                let buf = if which == 0 { self.io.rows.q } else { self.io.rows.p };
                (buf, first + row * self.io.d + c)
            }
        }
    }

    pub(super) fn load_state(&self, which: u32, evaluation: Val<'k>, c: Val<'k>) -> Val<'k> {
        let (buf, at) = self.state_place(which, evaluation, c);
        buf.load(at)
    }

    pub(super) fn store_state(&self, which: u32, evaluation: Val<'k>, c: Val<'k>, value: Val<'k>) {
        let (buf, at) = self.state_place(which, evaluation, c);
        buf.store(at, value);
    }
}

impl<'k> Work<'k> {
    /// The first element of the `which`-th of what there may be two copies of, at an evaluation.
    fn copy(&self, which: usize, first: Val<'k>, evaluation: Val<'k>) -> Val<'k> {
        match self.copies {
            Some(copies) => first + (evaluation % 2) * copies[which],
            None => first,
        }
    }

    pub(super) fn sums_at(&self, evaluation: Val<'k>) -> Val<'k> {
        self.copy(0, self.coord_sums, evaluation)
    }

    pub(super) fn stores_at(&self, evaluation: Val<'k>) -> Val<'k> {
        self.copy(1, self.obs_stores, evaluation)
    }

    pub(super) fn partials_at(&self, evaluation: Val<'k>) -> Val<'k> {
        self.copy(2, self.partials, evaluation)
    }
}
