//! Barriers stand where all invocations of the workgroup come by, subgroup operations where whole subgroups do.
//!
//! Every value has a level: the same in the workgroup, the same in each subgroup, or of each invocation. A variable
//! takes the highest level of what it is ever set to and of the control flow around it, so the walk is repeated
//! until no level rises; two or three rounds are the rule.

use super::Rules;
use crate::Error;
use crate::ir::*;
use crate::types::Target;
use crate::warpgroup::WarpgroupStmt;

/// Among whom a value, or the way through control flow, is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// The whole workgroup.
    Group,
    /// Each subgroup.
    Subgroup,
    /// Nobody.
    Invocation,
}

/// Control flow at a point.
#[derive(Clone, Copy)]
struct Flow {
    level: Level,
    /// The value that raised it.
    cause: Option<Value>,
}

pub(super) fn check(rules: &Rules<'_>) -> Result<(), Error> {
    walk(rules, Level::Subgroup)
}

/// Whether workgroup barriers could replace a valid kernel's subgroup barriers.
pub(crate) fn subgroup_barriers_reach_all(kernel: &Kernel) -> bool {
    walk(&Rules { kernel, target: &Target::plain() }, Level::Group).is_ok()
}

/// Follows the levels; subgroup barriers may stand in control flow up to `subgroup_barriers`.
fn walk(rules: &Rules<'_>, subgroup_barriers: Level) -> Result<(), Error> {
    let kernel = rules.kernel;
    let mut levels = Levels {
        rules,
        subgroup_barriers,
        values: vec![Level::Group; kernel.values.len()],
        vars: vec![Level::Group; kernel.vars.len()],
        risen: false,
    };
    for (i, def) in kernel.values.iter().enumerate() {
        if matches!(def.expr, Expr::Builtin(_)) {
            levels.values[i] = levels.expr(&def.expr);
        }
    }
    loop {
        levels.risen = false;
        levels.block(&kernel.body, Flow { level: Level::Group, cause: None })?;
        if !levels.risen {
            return Ok(());
        }
    }
}

struct Levels<'r, 'k> {
    rules: &'r Rules<'k>,
    subgroup_barriers: Level,
    values: Vec<Level>,
    vars: Vec<Level>,
    /// Whether a level rose that an earlier statement may depend on.
    risen: bool,
}

impl Levels<'_, '_> {
    fn of(&self, value: Value) -> Level {
        self.values.get(value.index()).copied().unwrap_or(Level::Invocation)
    }

    fn highest(&self, values: &[Value]) -> Level {
        values.iter().map(|v| self.of(*v)).max().unwrap_or(Level::Group)
    }

    /// Control flow under conditions.
    fn under(&self, flow: Flow, conditions: &[Value]) -> Flow {
        let raise = |flow: Flow, condition: &Value| match self.of(*condition) {
            level if level > flow.level => Flow { level, cause: Some(*condition) },
            _ => flow,
        };
        conditions.iter().fold(flow, raise)
    }

    fn raise(&mut self, value: Value, level: Level) {
        if let Some(old) = self.values.get_mut(value.index()) {
            *old = level.max(*old);
        }
    }

    fn divergent<T>(&self, what: &str, flow: Flow) -> Result<T, Error> {
        let cause = flow.cause.map_or(String::new(), |v| format!(" steered by %{}", v.0));
        Err(Error::Divergent(format!("{}: {what} in control flow{cause}", self.rules.kernel.name)))
    }

    fn block(&mut self, block: &Block, flow: Flow) -> Result<(), Error> {
        block.iter().try_for_each(|stmt| self.stmt(stmt, flow))
    }

    fn stmt(&mut self, stmt: &Stmt, flow: Flow) -> Result<(), Error> {
        match stmt {
            Stmt::Let(value) => {
                let Some(def) = self.rules.kernel.values.get(value.index()) else {
                    return Ok(());
                };
                self.place(*value, &def.expr, flow)?;
                let level = self.expr(&def.expr);
                self.raise(*value, level);
            }
            Stmt::Set(var, value) => {
                let level = self.of(*value).max(flow.level);
                if let Some(old) = self.vars.get_mut(var.index())
                    && level > *old
                {
                    *old = level;
                    self.risen = true;
                }
            }
            Stmt::StoreMatrix { index, layout, .. } => self.matrix(*index, layout, flow)?,
            Stmt::If { condition, then, otherwise } => {
                let inner = self.under(flow, &[*condition]);
                self.block(then, inner)?;
                self.block(otherwise, inner)?;
            }
            Stmt::For { counter, start, end, step, body } => {
                let inner = self.under(flow, &[*start, *end, *step]);
                let level = self.highest(&[*start, *end, *step]);
                self.raise(*counter, level);
                self.block(body, inner)?;
            }
            Stmt::While { head, condition, body } => {
                // The head runs again as often as the condition, a value of its own, held.
                let before = self.of(*condition);
                let inner = self.under(flow, &[*condition]);
                self.block(head, inner)?;
                self.risen |= self.of(*condition) > before;
                let inner = self.under(flow, &[*condition]);
                self.block(body, inner)?;
            }
            Stmt::Barrier if flow.level > Level::Group => return self.divergent("a barrier", flow),
            Stmt::SubgroupBarrier if flow.level > self.subgroup_barriers => {
                return self.divergent("a subgroup barrier", flow);
            }
            Stmt::Warpgroup(stmt) => self.warpgroup(stmt, flow)?,
            Stmt::Store { .. }
            | Stmt::StoreLane { .. }
            | Stmt::Barrier
            | Stmt::SubgroupBarrier
            | Stmt::DeviceFence
            | Stmt::Report { .. }
            | Stmt::CheckAccess { .. } => {}
        }
        Ok(())
    }

    fn warpgroup(&mut self, stmt: &WarpgroupStmt, flow: Flow) -> Result<(), Error> {
        match stmt {
            WarpgroupStmt::Roles(_) if flow.level > Level::Group => self.divergent("roles", flow),
            WarpgroupStmt::Roles(roles) => {
                let inner = Flow { level: Level::Subgroup, ..flow };
                roles.iter().try_for_each(|role| self.block(&role.body, inner))
            }
            WarpgroupStmt::Multiply { sums, right, adds, .. } => {
                if flow.level > Level::Subgroup || self.highest(&[right.index, *adds]) > Level::Subgroup {
                    return self.divergent("a warpgroup's multiply", flow);
                }
                for var in sums {
                    if let Some(old) = self.vars.get_mut(var.index()) {
                        self.risen |= *old < Level::Invocation;
                        *old = Level::Invocation;
                    }
                }
                Ok(())
            }
            WarpgroupStmt::Fence | WarpgroupStmt::Commit | WarpgroupStmt::Wait(_)
                if flow.level > Level::Subgroup =>
            {
                self.divergent("a statement of warpgroups", flow)
            }
            _ => Ok(()),
        }
    }

    /// Whether an expression may stand in this control flow.
    fn place(&self, at: Value, expr: &Expr, flow: Flow) -> Result<(), Error> {
        match expr {
            Expr::Subgroup(op, ..) if flow.level > Level::Subgroup => {
                self.divergent(&format!("%{}: subgroup {op:?}", at.0), flow)
            }
            Expr::MatrixLoad { index, layout, .. } => self.matrix(*index, layout, flow),
            Expr::MatrixSplat(..)
            | Expr::MatrixMulAdd(..)
            | Expr::MatrixBinary(..)
            | Expr::MatrixOfWords(..)
            | Expr::MatrixWord(..)
            | Expr::MatrixPart(..)
            | Expr::MatrixOf(..)
                if flow.level > Level::Subgroup =>
            {
                self.divergent(&format!("%{}: a cooperative matrix", at.0), flow)
            }
            Expr::LoadUniform { index, .. } => {
                if flow.level > Level::Group {
                    return self.divergent(&format!("%{}: a uniform load", at.0), flow);
                }
                if self.of(*index) > Level::Group {
                    return self.rules.invalid(format_args!(
                        "%{}: index %{} of a uniform load may differ between invocations",
                        at.0, index.0
                    ));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A matrix is loaded and stored by a whole subgroup from one address.
    fn matrix(&self, index: Value, layout: &MatrixLayout, flow: Flow) -> Result<(), Error> {
        if flow.level > Level::Subgroup {
            return self.divergent("a cooperative matrix", flow);
        }
        match [index, layout.stride].into_iter().find(|v| self.of(*v) > Level::Subgroup) {
            Some(value) => self.rules.invalid(format_args!(
                "%{}, the address of a cooperative matrix, may differ inside a subgroup",
                value.0
            )),
            None => Ok(()),
        }
    }

    fn expr(&self, expr: &Expr) -> Level {
        match expr {
            Expr::Const(..) | Expr::Param(_) | Expr::LoadUniform { .. } => Level::Group,
            Expr::Builtin(Builtin::GroupId(_) | Builtin::GroupCount(_)) => Level::Group,
            Expr::Builtin(Builtin::SubgroupId) => Level::Subgroup,
            Expr::Builtin(Builtin::LocalIndex | Builtin::Lane) => Level::Invocation,
            // Set by its loop.
            Expr::Counter => Level::Group,
            Expr::Get(var) => self.vars.get(var.index()).copied().unwrap_or(Level::Invocation),
            Expr::Binary(op, a, b) => match self.whole_subgroups(*op, *a, *b) {
                true => Level::Subgroup,
                false => self.highest(&[*a, *b]),
            },
            Expr::Unary(_, a)
            | Expr::Convert(_, a)
            | Expr::Bitcast(_, a)
            | Expr::Opaque(a)
            | Expr::UnpackHalf(a, _)
            | Expr::Extract(a, _)
            | Expr::MatrixSplat(_, a) => self.of(*a),
            Expr::Compare(_, a, b)
            | Expr::Join(a, b)
            | Expr::PackHalf(a, b)
            | Expr::MatrixBinary(_, a, b) => self.highest(&[*a, *b]),
            Expr::Fma(a, b, c) | Expr::Select(a, b, c) | Expr::MatrixMulAdd(a, b, c) => {
                self.highest(&[*a, *b, *c])
            }
            Expr::PackedDot { a, b, accumulator, .. } => self.highest(&[*a, *b, *accumulator]),
            Expr::Vector(parts) => self.highest(parts),
            // Nothing writes such a buffer meanwhile, but only a uniform load is printed so that every compiler sees
            // that the whole workgroup gets the same.
            Expr::Load { place: Storage::Arg(arg), index, .. } if self.constant(*arg) => {
                self.of(*index).max(Level::Subgroup)
            }
            Expr::Load { .. } | Expr::LoadLane { .. } | Expr::Atomic { .. } => Level::Invocation,
            Expr::Subgroup(op, a, lane) => match op {
                SubgroupOp::Add | SubgroupOp::Min | SubgroupOp::Max | SubgroupOp::Any | SubgroupOp::All => {
                    self.of(*a).min(Level::Subgroup)
                }
                SubgroupOp::InclusiveAdd | SubgroupOp::ExclusiveAdd => Level::Invocation,
                SubgroupOp::ShuffleXor => self.of(*a),
                // From one lane, all get the same.
                SubgroupOp::Shuffle => match lane.map_or(Level::Invocation, |l| self.of(l)) {
                    Level::Invocation => self.of(*a),
                    level => level.max(self.of(*a).min(Level::Subgroup)),
                },
            },
            Expr::MatrixLoad { .. } | Expr::MatrixOfWords(..) | Expr::MatrixOf(..) => Level::Subgroup,
            Expr::MatrixWord(..) | Expr::MatrixPart(..) => Level::Invocation,
        }
    }

    fn constant(&self, arg: ArgId) -> bool {
        self.rules.kernel.args.get(arg.index()).is_some_and(|a| a.access == Access::Read)
    }

    /// Whether this is the local index over a multiple of the subgroup's size: the number of a subgroup or of
    /// several, since subgroups are made of neighbours.
    fn whole_subgroups(&self, op: BinaryOp, a: Value, b: Value) -> bool {
        let get = |v: Value| self.rules.kernel.values.get(v.index()).map(|d| &d.expr);
        let (Some(Expr::Builtin(Builtin::LocalIndex)), Some(Expr::Const(_, by)), Some(size)) =
            (get(a), get(b), self.rules.target.subgroup)
        else {
            return false;
        };
        let by = match op {
            BinaryOp::Div => *by,
            BinaryOp::Shr => 1u64.checked_shl(*by as u32).unwrap_or(0),
            _ => return false,
        };
        by != 0 && size != 0 && by.is_multiple_of(u64::from(size))
    }
}
