//! Writing kernels in Rust: a [`Builder`] that records, and [`Val`]s that know it.
//!
//! Values are handles; arithmetic on them records instructions. A Rust loop unrolls, [`Builder::for_`] does not.
//! A mistake of the author (types that do not fit) is remembered and comes out of [`Builder::finish`].

mod group;
mod memory;
mod value;
mod warpgroup;

use std::cell::RefCell;
use std::collections::HashMap;

use crate::Error;
use crate::ir::*;
use crate::types::{Elem, MatrixType, Scalar, Target, Type};

pub use group::Reduction;
pub use memory::{Buf, Shared, Var};
pub use value::{Number, Val};
pub(crate) use value::{bits_of, half_bits};
pub use warpgroup::RoleWork;

/// Records a kernel.
pub struct Builder {
    target: Target,
    inner: RefCell<Inner>,
}

struct Inner {
    kernel: Kernel,
    /// The blocks being written, innermost last.
    blocks: Vec<Block>,
    /// Constants, params and builtins, each once.
    known: HashMap<Expr, Value>,
    error: Option<String>,
    /// Workgroup memory for reductions, by scalar type; shared by all of them.
    scratch: HashMap<Scalar, SharedId>,
}

impl Builder {
    /// A new kernel with `group` invocations to a workgroup.
    pub fn new(name: impl Into<String>, group: u32, target: &Target) -> Self {
        let kernel = Kernel {
            name: name.into(),
            group,
            args: Vec::new(),
            params: Vec::new(),
            shared: Vec::new(),
            vars: Vec::new(),
            values: Vec::new(),
            body: Vec::new(),
            foreign: None,
        };
        let inner = Inner {
            kernel,
            blocks: vec![Vec::new()],
            known: HashMap::new(),
            error: None,
            scratch: HashMap::new(),
        };
        Builder { target: target.clone(), inner: RefCell::new(inner) }
    }

    /// What the kernel may use.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Invocations of a workgroup.
    pub fn group(&self) -> u32 {
        self.inner.borrow().kernel.group
    }

    /// The finished kernel, validated.
    pub fn finish(self) -> Result<Kernel, Error> {
        let mut inner = self.inner.into_inner();
        if let Some(problem) = inner.error {
            return Err(Error::Invalid(format!("{}: {problem}", inner.kernel.name)));
        }
        inner.kernel.body = inner.blocks.pop().unwrap_or_default();
        crate::validate(&inner.kernel, &self.target)?;
        Ok(inner.kernel)
    }

    /// Remembers the author's first mistake.
    pub fn fail(&self, problem: impl Into<String>) {
        self.inner.borrow_mut().error.get_or_insert(problem.into());
    }

    // Declarations.

    /// Declares a buffer.
    pub fn arg(&self, name: impl Into<String>, elem: Elem, access: Access) -> Buf<'_> {
        let mut inner = self.inner.borrow_mut();
        inner.kernel.args.push(ArgDecl { name: name.into(), elem, access, streaming: false });
        Buf { k: self, id: ArgId(inner.kernel.args.len() as u32 - 1), elem }
    }

    /// Declares a run-time number: u32, i32 or f32.
    pub fn param(&self, name: impl Into<String>, scalar: Scalar) -> Val<'_> {
        let id = {
            let mut inner = self.inner.borrow_mut();
            inner.kernel.params.push(ParamDecl { name: name.into(), scalar });
            ParamId(inner.kernel.params.len() as u32 - 1)
        };
        self.global(Expr::Param(id), Type::Scalar(scalar))
    }

    /// Declares a workgroup array of `len` elements of `lanes` scalars.
    pub fn shared(&self, elem: Elem, lanes: u8, len: u32) -> Shared<'_> {
        let mut inner = self.inner.borrow_mut();
        inner.kernel.shared.push(SharedDecl { elem, lanes, len });
        Shared { k: self, id: SharedId(inner.kernel.shared.len() as u32 - 1), elem, lanes }
    }

    /// Declares a variable and sets it.
    pub fn var<'k>(&'k self, init: Val<'k>) -> Var<'k> {
        let id = {
            let mut inner = self.inner.borrow_mut();
            let ty = inner.kernel.ty(init.id);
            inner.kernel.vars.push(ty);
            VarId(inner.kernel.vars.len() as u32 - 1)
        };
        let var = Var { k: self, id };
        var.set(init);
        var
    }

    // Numbers.

    /// A u32.
    pub fn u32(&self, x: u32) -> Val<'_> {
        self.constant(Scalar::U32, u64::from(x))
    }

    /// An i32.
    pub fn i32(&self, x: i32) -> Val<'_> {
        self.constant(Scalar::I32, u64::from(x as u32))
    }

    /// An f32.
    pub fn f32(&self, x: f32) -> Val<'_> {
        self.constant(Scalar::F32, u64::from(x.to_bits()))
    }

    /// An f64.
    pub fn f64(&self, x: f64) -> Val<'_> {
        self.constant(Scalar::F64, x.to_bits())
    }

    /// A bool.
    pub fn bool(&self, x: bool) -> Val<'_> {
        self.constant(Scalar::Bool, u64::from(x))
    }

    /// A number of a type from its bits.
    pub fn constant(&self, scalar: Scalar, bits: u64) -> Val<'_> {
        self.global(Expr::Const(scalar, bits), Type::Scalar(scalar))
    }

    /// A number of any type; floats are rounded to it, integers truncated.
    pub fn number(&self, scalar: Scalar, x: f64) -> Val<'_> {
        self.constant(scalar, bits_of(scalar, x))
    }

    // Where the invocation stands.

    /// The workgroup's position in dimension `d`.
    pub fn group_id(&self, d: u8) -> Val<'_> {
        self.builtin(Builtin::GroupId(d))
    }

    /// The number of workgroups in dimension `d`.
    pub fn group_count(&self, d: u8) -> Val<'_> {
        self.builtin(Builtin::GroupCount(d))
    }

    /// The invocation's position in its workgroup.
    pub fn local_index(&self) -> Val<'_> {
        self.builtin(Builtin::LocalIndex)
    }

    /// The invocation's position in its subgroup; only where the target has subgroups.
    pub fn lane(&self) -> Val<'_> {
        self.builtin(Builtin::Lane)
    }

    /// The subgroup's position in its workgroup; only where the target has subgroups.
    pub fn subgroup_id(&self) -> Val<'_> {
        self.builtin(Builtin::SubgroupId)
    }

    fn builtin(&self, builtin: Builtin) -> Val<'_> {
        self.global(Expr::Builtin(builtin), Type::Scalar(Scalar::U32))
    }

    // Control flow.

    /// Runs `then` where `condition` holds.
    pub fn if_<'k>(&'k self, condition: Val<'k>, then: impl FnOnce()) {
        self.if_else(condition, then, || {});
    }

    /// Runs one of two.
    pub fn if_else<'k>(&'k self, condition: Val<'k>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        match condition.as_const() {
            Some(1) => return then(),
            Some(_) => return otherwise(),
            None => {}
        }
        let then = self.block(then);
        let otherwise = self.block(otherwise);
        self.push(Stmt::If { condition: condition.id, then, otherwise });
    }

    /// The value of one of two computations, of which only that one runs.
    pub fn if_value<'k>(
        &'k self,
        condition: Val<'k>,
        then: impl FnOnce() -> Val<'k>,
        otherwise: impl FnOnce() -> Val<'k>,
    ) -> Val<'k> {
        let result: RefCell<Option<Var<'k>>> = RefCell::new(None);
        match condition.as_const() {
            Some(1) => return then(),
            Some(_) => return otherwise(),
            None => {}
        }
        let set = |v: Val<'k>| {
            let mut result = result.borrow_mut();
            match *result {
                Some(var) => var.set(v),
                None => {
                    let mut inner = self.inner.borrow_mut();
                    let ty = inner.kernel.ty(v.id);
                    inner.kernel.vars.push(ty);
                    let var = Var { k: self, id: VarId(inner.kernel.vars.len() as u32 - 1) };
                    drop(inner);
                    var.set(v);
                    *result = Some(var);
                }
            }
        };
        let then = self.block(|| set(then()));
        let otherwise = self.block(|| set(otherwise()));
        self.push(Stmt::If { condition: condition.id, then, otherwise });
        let var = result.into_inner();
        var.map_or_else(|| condition, |v| v.get())
    }

    /// Counts from `start` below `end` by `step`, at run time.
    pub fn for_<'k>(&'k self, start: Val<'k>, end: Val<'k>, step: Val<'k>, body: impl FnOnce(Val<'k>)) {
        let ty = start.ty();
        let counter = self.value(Expr::Counter, ty);
        let body = self.block(|| body(counter));
        self.push(Stmt::For { counter: counter.id, start: start.id, end: end.id, step: step.id, body });
    }

    /// Runs `body` as long as `condition` (computed anew before every round) holds.
    pub fn while_<'k>(&'k self, condition: impl FnOnce() -> Val<'k>, body: impl FnOnce()) {
        let mut holds = None;
        let head = self.block(|| holds = Some(condition()));
        let body = self.block(body);
        if let Some(condition) = holds {
            self.push(Stmt::While { head, condition: condition.id, body });
        }
    }

    /// A cooperative matrix of the elements that the invocations hold, in the order of [`Val::matrix_parts`].
    pub fn matrix_of<'k>(&'k self, ty: MatrixType, parts: &[Val<'k>]) -> Val<'k> {
        let ids = parts.iter().map(|p| p.id).collect();
        self.compute(Expr::MatrixOf(ty, ids), Type::Matrix(ty))
    }

    /// Waits for the whole workgroup; its stores before are seen after.
    pub fn barrier(&self) {
        self.push(Stmt::Barrier);
    }

    /// Waits for the subgroup; its stores before are seen after.
    pub fn subgroup_barrier(&self) {
        self.push(Stmt::SubgroupBarrier);
    }

    /// Orders this invocation's accesses to buffers that the kernel reads and writes before those after it, for all workgroups: one
    /// stores, passes a fence and adds to an atomic counter; another that finds the sum there passes a fence and reads. Only where the
    /// target has [`Target::device_fences`].
    pub fn device_fence(&self) {
        self.push(Stmt::DeviceFence);
    }

    /// In checked kernels, reports an index of the user's data that is out of range.
    pub fn report<'k>(&'k self, position: Val<'k>, value: Val<'k>, size: Val<'k>) {
        self.push(Stmt::Report { position: position.id, value: value.id, size: size.id });
    }

    // Recording.

    fn block(&self, write: impl FnOnce()) -> Block {
        self.inner.borrow_mut().blocks.push(Vec::new());
        write();
        self.inner.borrow_mut().blocks.pop().unwrap_or_default()
    }

    fn push(&self, stmt: Stmt) {
        if let Some(block) = self.inner.borrow_mut().blocks.last_mut() {
            block.push(stmt);
        }
    }

    /// A value without a statement.
    fn value(&self, expr: Expr, ty: Type) -> Val<'_> {
        let mut inner = self.inner.borrow_mut();
        inner.kernel.values.push(Def { expr, ty });
        Val { k: self, id: Value(inner.kernel.values.len() as u32 - 1) }
    }

    /// A value that is the same everywhere in the kernel and needs no statement.
    fn global(&self, expr: Expr, ty: Type) -> Val<'_> {
        if let Some(id) = self.inner.borrow().known.get(&expr) {
            return Val { k: self, id: *id };
        }
        let val = self.value(expr.clone(), ty);
        self.inner.borrow_mut().known.insert(expr, val.id);
        val
    }

    /// A value computed here.
    fn compute(&self, expr: Expr, ty: Type) -> Val<'_> {
        let val = self.value(expr, ty);
        self.push(Stmt::Let(val.id));
        val
    }
}
