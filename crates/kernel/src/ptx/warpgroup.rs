//! Hopper's instructions: `wgmma`, `mbarrier`, `cp.async.bulk`, `setmaxnreg`.

use super::{Braced, Capability, Class, Printer, Reg, WARP, line};
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, Scalar};
use crate::warpgroup::{AsyncBarrier, Role, WarpgroupStmt, accumulator};

impl Printer<'_> {
    pub(super) fn warpgroup(&mut self, stmt: &WarpgroupStmt) -> Result<(), Error> {
        if self.options.capability != Capability::HOPPER {
            return Err(Error::Missing(format!(
                "warpgroups on compute capability {}",
                self.options.capability
            )));
        }
        match stmt {
            WarpgroupStmt::Roles(roles) => self.roles(roles)?,
            WarpgroupStmt::Init(barrier, arrivals) => {
                let at = self.barrier_address(*barrier)?;
                self.put(format_args!("mbarrier.init.shared::cta.b64 {at}, {arrivals}"));
                // Copies, which see memory by another way, see it too.
                self.put(format_args!("fence.mbarrier_init.release.cluster"));
                self.put(format_args!("fence.proxy.async"));
            }
            WarpgroupStmt::Arrive(barrier, 0) => {
                let at = self.barrier_address(*barrier)?;
                self.put(format_args!("mbarrier.arrive.shared::cta.b64 _, {at}"));
            }
            WarpgroupStmt::Arrive(barrier, bytes) => {
                let at = self.barrier_address(*barrier)?;
                self.put(format_args!("mbarrier.arrive.expect_tx.shared::cta.b64 _, {at}, {bytes}"));
            }
            WarpgroupStmt::Await(barrier, parity) => {
                let (at, parity) = (self.barrier_address(*barrier)?, self.single(*parity)?);
                let (again, done) = (self.label(), self.reg(Class::Predicate));
                line(&mut self.code, format_args!("L{again}:"));
                self.put(format_args!("mbarrier.try_wait.parity.shared::cta.b64 {done}, {at}, {parity}"));
                line(&mut self.code, format_args!("    @!{done} bra L{again};"));
            }
            WarpgroupStmt::Copy { shared, to, arg, from, bytes, barrier } => {
                let to = self.shared_address(*shared, *to, None)?;
                let from = self.arg_address(*arg, *from)?;
                let at = self.barrier_address(*barrier)?;
                self.put(format_args!(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes {to}, {from}, {bytes}, {at}"
                ));
            }
            WarpgroupStmt::Prefetch { arg, from, bytes } => {
                let from = self.arg_address(*arg, *from)?;
                self.put(format_args!("cp.async.bulk.prefetch.L2.global {from}, {bytes}"));
            }
            WarpgroupStmt::Fence => self.put(format_args!("wgmma.fence.sync.aligned")),
            WarpgroupStmt::Commit => self.put(format_args!("wgmma.commit_group.sync.aligned")),
            WarpgroupStmt::Wait(running) => self.put(format_args!("wgmma.wait_group.sync.aligned {running}")),
            WarpgroupStmt::Multiply { elems, sums, left, right, adds } => {
                let names = elems.map(|elem| match elem {
                    Elem::F16 => "f16",
                    Elem::BF16 => "bf16",
                    Elem::I8 => "s8",
                    _ => "u8",
                });
                // Floats may be negated and transposed on the way, integers not.
                let (k, to, modifiers) = match accumulator(*elems) {
                    Some(Scalar::F32) => (16, "f32", ", 1, 1, 0"),
                    Some(_) => (32, "s32", ""),
                    None => {
                        let [a, b] = elems;
                        return Err(Error::Missing(format!("warpgroups' multiplies of {a} and {b}")));
                    }
                };
                if elems[0] != elems[1] {
                    self.version = self.version.max((8, 4));
                }
                let adds = self.single(*adds)?;
                let start = self.shared_address(right.shared, right.index, None)?;
                let start = self.address_register(start);
                let descriptor = self.descriptor(start, right.k_stride, right.n_stride);
                let sums = self.all_of(sums)?;
                let left = self.all_of(left)?;
                self.put(format_args!(
                    "wgmma.mma_async.sync.aligned.m64n{}k{k}.{to}.{}.{} {}, {}, {descriptor}, {adds}{modifiers}",
                    2 * sums.len(),
                    names[0],
                    names[1],
                    Braced(&sums),
                    Braced(&left)
                ));
            }
        }
        Ok(())
    }

    /// The registers of variables.
    fn all_of(&self, vars: &[VarId]) -> Result<Vec<Reg>, Error> {
        let regs = vars.iter().map(|v| self.variable(*v)).collect::<Result<Vec<_>, _>>()?;
        Ok(regs.concat())
    }

    fn barrier_address(&mut self, barrier: AsyncBarrier) -> Result<super::memory::Address, Error> {
        self.shared_address(barrier.shared, barrier.index, None)
    }

    /// Where an operand is, in units of 16 bytes: its start, and the strides along k and along n; not swizzled.
    fn descriptor(&mut self, start: Reg, k_stride: u32, n_stride: u32) -> Reg {
        let start = self.op_const("shr.u32", Class::B32, start, 4);
        let start = self.op_const("and.b32", Class::B32, start, 0x3fff);
        let start = self.op("cvt.u64.u32", Class::B64, &[start]);
        let strides = (u64::from(k_stride >> 4) << 16) | (u64::from(n_stride >> 4) << 32);
        let strides = self.constant(Class::B64, strides);
        self.op("or.b64", Class::B64, &[start, strides])
    }

    fn roles(&mut self, roles: &[Role]) -> Result<(), Error> {
        let warp = self.builtin(Builtin::SubgroupId)?;
        let (join, launched) = (self.label(), self.kernel.launch_registers());
        let mut end = 0;
        for role in roles {
            end += role.subgroups;
            let next = self.label();
            let mine = self.op_const("setp.lt.u32", Class::Predicate, warp, end);
            line(&mut self.code, format_args!("    @!{mine} bra L{next};"));
            let way = if role.registers > launched { "inc" } else { "dec" };
            self.put(format_args!("setmaxnreg.{way}.sync.aligned.u32 {}", role.registers));
            self.block(&role.body)?;
            self.put(format_args!("bra L{join}"));
            line(&mut self.code, format_args!("L{next}:"));
        }
        line(&mut self.code, format_args!("L{join}:"));
        Ok(())
    }
}

/// Whether statements, or those inside of them, are of warpgroups.
fn has_warpgroups(block: &Block) -> bool {
    block.iter().any(|stmt| match stmt {
        Stmt::Warpgroup(_) => true,
        Stmt::If { then, otherwise, .. } => has_warpgroups(then) || has_warpgroups(otherwise),
        Stmt::For { body, .. } => has_warpgroups(body),
        Stmt::While { head, body, .. } => has_warpgroups(head) || has_warpgroups(body),
        _ => false,
    })
}

impl Kernel {
    /// Whether it has statements of warpgroups: it prints as PTX for Hopper and as nothing else.
    pub fn has_warpgroups(&self) -> bool {
        has_warpgroups(&self.body)
    }

    /// Registers that each invocation of a kernel with roles starts with: a core's, divided.
    pub fn launch_registers(&self) -> u32 {
        const CORE: u32 = 65536;
        let threads = self.group.next_multiple_of(4 * WARP).max(1);
        (CORE / threads / 8 * 8).min(248)
    }
}
