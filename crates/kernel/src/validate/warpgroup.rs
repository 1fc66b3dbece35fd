//! Statements of devices with warpgroups.

use super::scope::Scope;
use crate::Error;
use crate::ir::*;
use crate::types::{Elem, Scalar, Type};
use crate::warpgroup::{AsyncBarrier, Role, WARPGROUP, WarpgroupStmt, accumulator};

const U32: Type = Type::Scalar(Scalar::U32);

impl Scope<'_, '_> {
    pub(super) fn warpgroup(&mut self, stmt: &WarpgroupStmt) -> Result<(), Error> {
        if !self.rules.target.warpgroups || self.rules.target.subgroup != Some(WARPGROUP / 4) {
            return self.rules.missing("warpgroups");
        }
        match stmt {
            WarpgroupStmt::Roles(roles) => self.roles(roles),
            WarpgroupStmt::Init(barrier, arrivals) => {
                if !(1..1 << 20).contains(arrivals) {
                    return self.rules.invalid(format_args!("a barrier of {arrivals} arrivals"));
                }
                self.barrier(*barrier)
            }
            WarpgroupStmt::Arrive(barrier, bytes) => {
                if *bytes >= 1 << 20 {
                    return self.rules.invalid(format_args!("{bytes} bytes expected"));
                }
                self.barrier(*barrier)
            }
            WarpgroupStmt::Await(barrier, parity) => {
                self.barrier(*barrier)?;
                self.expect(*parity, U32, "parity of a phase")
            }
            WarpgroupStmt::Copy { shared, to, arg, from, bytes, barrier } => {
                self.barrier(*barrier)?;
                self.array(*shared)?;
                self.expect(*to, U32, "where a copy goes")?;
                self.copied(*arg, *from, *bytes)
            }
            WarpgroupStmt::Prefetch { arg, from, bytes } => self.copied(*arg, *from, *bytes),
            WarpgroupStmt::Multiply { elems, sums, left, right, adds } => {
                let Some(accumulator) = accumulator(*elems) else {
                    let [a, b] = elems;
                    return self.rules.missing(format_args!("warpgroups' multiplies of {a} and {b}"));
                };
                if accumulator == Scalar::I32 && !self.rules.target.int8_warpgroups {
                    return self.rules.missing("warpgroups that multiply integers");
                }
                // From 32 columns on, integers come in sixteens of them.
                let step = if accumulator == Scalar::I32 && sums.len() > 16 { 8 } else { 4 };
                if sums.is_empty() || sums.len() > 128 || !sums.len().is_multiple_of(step) {
                    return self.rules.invalid(format_args!("a multiply into {} variables", sums.len()));
                }
                self.variables(sums, accumulator)?;
                self.variables(left, Scalar::U32)?;
                self.array(right.shared)?;
                self.expect(right.index, U32, "where an operand begins")?;
                let strides = [right.k_stride, right.n_stride];
                if strides.iter().any(|s| !s.is_multiple_of(16) || *s >= 1 << 18) {
                    return self.rules.invalid(format_args!("an operand of strides {strides:?}"));
                }
                self.expect(*adds, Type::Scalar(Scalar::Bool), "whether a multiply adds")
            }
            WarpgroupStmt::Wait(running) if *running > 7 => {
                self.rules.invalid(format_args!("{running} groups of multiplies at once"))
            }
            WarpgroupStmt::Fence | WarpgroupStmt::Commit | WarpgroupStmt::Wait(_) => Ok(()),
        }
    }

    fn roles(&mut self, roles: &[Role]) -> Result<(), Error> {
        let subgroups: u64 = roles.iter().map(|r| u64::from(r.subgroups)).sum();
        if subgroups * u64::from(WARPGROUP / 4) != u64::from(self.rules.kernel.group) {
            return self.rules.invalid(format_args!("roles of {subgroups} subgroups"));
        }
        let mut registers = 0;
        for role in roles {
            if role.subgroups == 0 || !role.subgroups.is_multiple_of(4) {
                return self.rules.invalid(format_args!("a role of {} subgroups", role.subgroups));
            }
            if !(24..=240).contains(&role.registers) || !role.registers.is_multiple_of(8) {
                return self.rules.invalid(format_args!("a role of {} registers", role.registers));
            }
            registers += u64::from(role.registers) * u64::from(role.subgroups) * u64::from(WARPGROUP / 4);
            self.block(&role.body)?;
        }
        // More than the launch has is waited for, for ever.
        let launched = u64::from(self.rules.kernel.launch_registers()) * u64::from(self.rules.kernel.group);
        if registers > launched {
            return self
                .rules
                .invalid(format_args!("roles of {registers} registers, launched with {launched}"));
        }
        Ok(())
    }

    /// Bytes of a buffer that are copied, or asked for.
    fn copied(&self, arg: ArgId, from: Value, bytes: u32) -> Result<(), Error> {
        if !matches!(self.ty(from)?, Type::Scalar(Scalar::U32 | Scalar::U64)) {
            return self.rules.invalid(format_args!("a copy from %{}", from.0));
        }
        match self.rules.kernel.args.get(arg.index()) {
            Some(decl) if decl.access.reads() => {}
            _ => return self.rules.invalid(format_args!("a copy out of buffer {}", arg.0)),
        }
        if bytes == 0 || !bytes.is_multiple_of(16) {
            return self.rules.invalid(format_args!("a copy of {bytes} bytes"));
        }
        Ok(())
    }

    fn barrier(&self, barrier: AsyncBarrier) -> Result<(), Error> {
        let decl = self.rules.kernel.shared.get(barrier.shared.index());
        if decl.is_none_or(|d| (d.elem, d.lanes) != (Elem::U64, 1)) {
            return self.rules.invalid(format_args!("a barrier in shared array {}", barrier.shared.0));
        }
        self.expect(barrier.index, U32, "which barrier")
    }

    fn array(&self, shared: SharedId) -> Result<(), Error> {
        match self.rules.kernel.shared.get(shared.index()) {
            Some(_) => Ok(()),
            None => self.rules.invalid(format_args!("there is no shared array {}", shared.0)),
        }
    }

    fn variables(&self, vars: &[VarId], scalar: Scalar) -> Result<(), Error> {
        for (i, var) in vars.iter().enumerate() {
            match self.rules.kernel.vars.get(var.index()) {
                Some(ty) if *ty == Type::Scalar(scalar) => {}
                Some(ty) => {
                    return self.rules.invalid(format_args!("variable {} of {ty}, not {scalar}", var.0));
                }
                None => return self.rules.invalid(format_args!("there is no variable {}", var.0)),
            }
            if vars.iter().take(i).any(|other| other == var) {
                return self.rules.invalid(format_args!("variable {} twice in one multiply", var.0));
            }
        }
        Ok(())
    }
}
