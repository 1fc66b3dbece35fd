//! Warpgroups, asynchronous copies and their barriers; only where the target has them.

use super::{Buf, Builder, Shared, Val, Var};
use crate::ir::Stmt;
use crate::types::Elem;
use crate::warpgroup::{AsyncBarrier, Role, WarpgroupOperand, WarpgroupStmt};

/// A role as it is written: the number of its subgroups, the registers of each invocation, and what they do.
pub type RoleWork<'w> = (u32, u32, Box<dyn FnOnce() + 'w>);

impl Builder {
    fn warpgroup(&self, stmt: WarpgroupStmt) {
        self.push(Stmt::Warpgroup(stmt));
    }

    /// Runs each block on subgroups of its own.
    pub fn roles(&self, roles: Vec<RoleWork<'_>>) {
        let of = |(subgroups, registers, write): RoleWork<'_>| Role {
            subgroups,
            registers,
            body: self.block(write),
        };
        let roles = roles.into_iter().map(of).collect();
        self.warpgroup(WarpgroupStmt::Roles(roles));
    }

    /// An element of an array of u64 as a barrier.
    pub fn async_barrier<'k>(&'k self, array: Shared<'k>, index: Val<'k>) -> AsyncBarrier {
        AsyncBarrier { shared: array.id, index: index.id }
    }

    /// Makes a barrier for so many arrivals.
    pub fn init_barrier(&self, barrier: AsyncBarrier, arrivals: u32) {
        self.warpgroup(WarpgroupStmt::Init(barrier, arrivals));
    }

    /// Arrives at a barrier, which waits for so many bytes besides.
    pub fn arrive(&self, barrier: AsyncBarrier, bytes: u32) {
        self.warpgroup(WarpgroupStmt::Arrive(barrier, bytes));
    }

    /// Waits until the barrier's phase of a parity is complete.
    pub fn await_phase<'k>(&'k self, barrier: AsyncBarrier, parity: Val<'k>) {
        self.warpgroup(WarpgroupStmt::Await(barrier, parity.id));
    }

    /// Copies bytes of a buffer to an array beside the kernel; the barrier counts them.
    pub fn copy_async<'k>(
        &'k self,
        (array, to): (Shared<'k>, Val<'k>),
        (buffer, from): (Buf<'k>, Val<'k>),
        bytes: u32,
        barrier: AsyncBarrier,
    ) {
        let (shared, to, arg, from) = (array.id, to.id, buffer.id, from.id);
        self.warpgroup(WarpgroupStmt::Copy { shared, to, arg, from, bytes, barrier });
    }

    /// Asks for bytes of a buffer in the cache that all cores share.
    pub fn prefetch<'k>(&'k self, buffer: Buf<'k>, from: Val<'k>, bytes: u32) {
        self.warpgroup(WarpgroupStmt::Prefetch { arg: buffer.id, from: from.id, bytes });
    }

    /// Stands before the first multiply, and before one that follows other uses of its variables.
    pub fn warpgroup_fence(&self) {
        self.warpgroup(WarpgroupStmt::Fence);
    }

    /// Begins a warpgroup's multiply, into variables; see [`WarpgroupStmt::Multiply`].
    pub fn warpgroup_multiply<'k>(
        &'k self,
        elems: [Elem; 2],
        sums: &[Var<'k>],
        left: [Var<'k>; 4],
        right: WarpgroupOperand,
        adds: Val<'k>,
    ) {
        let sums = sums.iter().map(|v| v.id).collect();
        let left = left.map(|v| v.id);
        self.warpgroup(WarpgroupStmt::Multiply { elems, sums, left, right, adds: adds.id });
    }

    /// The right operand of a multiply, whose blocks are so many bytes apart along k and along n.
    pub fn warpgroup_operand<'k>(
        &'k self,
        array: Shared<'k>,
        index: Val<'k>,
        [k_stride, n_stride]: [u32; 2],
    ) -> WarpgroupOperand {
        WarpgroupOperand { shared: array.id, index: index.id, k_stride, n_stride }
    }

    /// Makes the multiplies since the last call a group.
    pub fn warpgroup_commit(&self) {
        self.warpgroup(WarpgroupStmt::Commit);
    }

    /// Waits until so many groups of multiplies, and no more, are still running.
    pub fn warpgroup_wait(&self, running: u32) {
        self.warpgroup(WarpgroupStmt::Wait(running));
    }
}
