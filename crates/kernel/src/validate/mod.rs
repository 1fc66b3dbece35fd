//! The validator: what printers and drivers may rely on.
//!
//! ```text
//!   declarations ─► every statement in order: scope, types, access ─► control flow around barriers
//!    (here)             (scope, types)                                    (uniform)
//! ```

mod scope;
mod types;
mod uniform;
mod warpgroup;

#[cfg(test)]
mod tests;

pub(crate) use uniform::subgroup_barriers_reach_all;

use crate::Error;
use crate::ir::{Kernel, SharedDecl};
use crate::types::{Elem, MatrixType, MatrixUse, Scalar, Target, Type};

/// Checks a kernel against the language's rules and a target. The time is linear in the size of the kernel.
pub fn validate(kernel: &Kernel, target: &Target) -> Result<(), Error> {
    let rules = Rules { kernel, target };
    rules.limits()?;
    rules.declarations()?;
    scope::check(&rules)?;
    uniform::check(&rules)
}

/// A kernel and what it is held to.
struct Rules<'k> {
    kernel: &'k Kernel,
    target: &'k Target,
}

impl Rules<'_> {
    fn invalid<T>(&self, problem: impl std::fmt::Display) -> Result<T, Error> {
        Err(Error::Invalid(format!("{}: {problem}", self.kernel.name)))
    }

    fn missing<T>(&self, what: impl std::fmt::Display) -> Result<T, Error> {
        Err(Error::Missing(format!("{what}, which `{}` uses", self.kernel.name)))
    }

    fn limits(&self) -> Result<(), Error> {
        let limit = |what, needed: u64, limit: u32| {
            if needed > u64::from(limit) {
                let needed = u32::try_from(needed).unwrap_or(u32::MAX);
                return Err(Error::Limit { what, needed, limit });
            }
            Ok(())
        };
        // Not by `Kernel::shared_bytes`, which counts in 32 bits.
        let bytes = |s: &SharedDecl| {
            let bytes = u64::from(s.elem.size()) * u64::from(s.lanes) * u64::from(s.len);
            bytes.next_multiple_of(16)
        };
        let shared = self.kernel.shared.iter().map(bytes).fold(0u64, u64::saturating_add);
        limit("invocations of a workgroup", u64::from(self.kernel.group), self.target.max_invocations)?;
        limit("bytes of workgroup memory", shared, self.target.shared_bytes)
    }

    fn declarations(&self) -> Result<(), Error> {
        let kernel = self.kernel;
        if kernel.group == 0 {
            return self.invalid("a workgroup without invocations");
        }
        if kernel.body.is_empty() {
            return self.invalid("no statement");
        }
        for arg in &kernel.args {
            self.register(arg.elem.scalar(), format_args!("buffer `{}`", arg.name))?;
        }
        for param in &kernel.params {
            if !matches!(param.scalar, Scalar::U32 | Scalar::I32 | Scalar::F32) {
                return self.invalid(format_args!("param `{}` of {}", param.name, param.scalar));
            }
        }
        for (i, shared) in kernel.shared.iter().enumerate() {
            self.shared(i, shared)?;
        }
        for (i, ty) in kernel.vars.iter().enumerate() {
            self.variable(i, *ty)?;
        }
        Ok(())
    }

    fn shared(&self, i: usize, shared: &SharedDecl) -> Result<(), Error> {
        let name = format_args!("shared array {i}").to_string();
        match shared.elem {
            Elem::F16 => self.register(Scalar::F16, &name)?,
            elem if elem.size() >= 4 => self.register(elem.scalar(), &name)?,
            elem => return self.invalid(format_args!("{name} of {elem}")),
        }
        if !matches!(shared.lanes, 1 | 2 | 4) {
            return self.invalid(format_args!("{name} of {} scalars to an element", shared.lanes));
        }
        if shared.len == 0 {
            return self.invalid(format_args!("{name} is empty"));
        }
        Ok(())
    }

    fn variable(&self, i: usize, ty: Type) -> Result<(), Error> {
        match ty {
            Type::Scalar(s) | Type::Vector(s, 2 | 4) => self.register(s, format_args!("variable {i}")),
            Type::Vector(..) => self.invalid(format_args!("variable {i} of {ty}")),
            Type::Matrix(m) => self.matrix(m),
        }
    }

    /// Whether the target has registers of a type.
    fn register(&self, scalar: Scalar, what: impl std::fmt::Display) -> Result<(), Error> {
        if self.target.has(scalar) {
            Ok(())
        } else {
            self.missing(format_args!("{scalar} registers for {what}"))
        }
    }

    /// Whether the target has subgroups, and the workgroup is made of whole ones.
    fn subgroups(&self, what: impl std::fmt::Display) -> Result<(), Error> {
        let group = self.kernel.group;
        match self.target.subgroup {
            None => self.missing(format_args!("subgroups of a fixed size for {what}")),
            Some(size) if size == 0 || !group.is_multiple_of(size) => self.invalid(format_args!(
                "{what} in a workgroup of {group}, which is not made of whole subgroups of {size}"
            )),
            Some(_) => Ok(()),
        }
    }

    /// Whether a cooperative matrix is an operand of a multiply that the target offers.
    fn matrix(&self, m: MatrixType) -> Result<(), Error> {
        self.subgroups(Type::Matrix(m))?;
        let offered = self.target.matrices.iter().any(|s| match m.role {
            MatrixUse::A => (s.operand, s.m, s.k) == (m.elem, m.rows, m.columns),
            MatrixUse::B => (s.operand, s.k, s.n) == (m.elem, m.rows, m.columns),
            MatrixUse::Accumulator => (s.accumulator, s.m, s.n) == (m.elem, m.rows, m.columns),
        });
        if offered { Ok(()) } else { self.missing(format_args!("cooperative matrix {}", Type::Matrix(m))) }
    }
}
