//! Buffers, workgroup arrays and variables of a kernel being written.

use super::{Builder, Number, Val};
use crate::ir::*;
use crate::types::{Elem, MatrixType, Scalar, Type};

/// A buffer argument.
#[derive(Clone, Copy)]
pub struct Buf<'k> {
    pub(super) k: &'k Builder,
    pub(super) id: ArgId,
    pub(super) elem: Elem,
}

impl<'k> Buf<'k> {
    /// Its element type.
    pub fn elem(self) -> Elem {
        self.elem
    }

    /// The same buffer, marked as one that caches need not keep ([`ArgDecl::streaming`]).
    pub fn streaming(self) -> Self {
        if let Some(decl) = self.k.inner.borrow_mut().kernel.args.get_mut(self.id.index()) {
            decl.streaming = true;
        }
        self
    }

    /// Element `index`, widened to its register type.
    pub fn load(self, index: Val<'k>) -> Val<'k> {
        load(self.k, Storage::Arg(self.id), self.elem, 1, index)
    }

    /// `lanes` (1, 2 or 4) elements from `index` on, which must be a multiple of `lanes`.
    pub fn load_vec(self, index: Val<'k>, lanes: u8) -> Vec<Val<'k>> {
        load(self.k, Storage::Arg(self.id), self.elem, lanes, index).components()
    }

    /// Element `index`, which is the same in the whole workgroup, of a buffer that nothing writes meanwhile.
    pub fn load_uniform(self, index: impl Number<'k>) -> Val<'k> {
        let index = index.val(self.k.u32(0));
        let expr = Expr::LoadUniform { arg: self.id, index: index.id };
        self.k.compute(expr, Type::Scalar(self.elem.scalar()))
    }

    /// Stores a register value, narrowed to the element type.
    pub fn store(self, index: Val<'k>, value: Val<'k>) {
        store(self.k, Storage::Arg(self.id), self.elem, index, &[value]);
    }

    /// Stores 1, 2 or 4 values from `index` on, which must be a multiple of their number.
    pub fn store_vec(self, index: Val<'k>, values: &[Val<'k>]) {
        store(self.k, Storage::Arg(self.id), self.elem, index, values);
    }

    /// Read-modify-write of a u32 or i32 element; returns the value before.
    pub fn atomic(self, op: AtomicOp, index: Val<'k>, value: Val<'k>) -> Val<'k> {
        atomic(self.k, Storage::Arg(self.id), self.elem, op, index, value, None)
    }

    /// Stores `value` if the element equals `comparand`; returns the value before.
    pub fn compare_exchange(self, index: Val<'k>, comparand: Val<'k>, value: Val<'k>) -> Val<'k> {
        let op = AtomicOp::CompareExchange;
        atomic(self.k, Storage::Arg(self.id), self.elem, op, index, value, Some(comparand))
    }

    /// A cooperative matrix whose first element is at `index`; rows, or columns, are `stride` apart.
    pub fn load_matrix(self, ty: MatrixType, index: Val<'k>, stride: Val<'k>, column_major: bool) -> Val<'k> {
        load_matrix(self.k, Storage::Arg(self.id), ty, index, stride, column_major)
    }

    /// Stores a cooperative matrix.
    pub fn store_matrix(self, index: Val<'k>, stride: Val<'k>, column_major: bool, value: Val<'k>) {
        store_matrix(self.k, Storage::Arg(self.id), index, stride, column_major, value);
    }
}

/// A workgroup array.
#[derive(Clone, Copy)]
pub struct Shared<'k> {
    pub(super) k: &'k Builder,
    pub(super) id: SharedId,
    pub(super) elem: Elem,
    pub(super) lanes: u8,
}

impl<'k> Shared<'k> {
    /// The element type of its scalars.
    pub fn elem(self) -> Elem {
        self.elem
    }

    /// Scalars of one element.
    pub fn lanes(self) -> u8 {
        self.lanes
    }

    /// The same array, with room for at least so many elements.
    pub fn reserve(self, len: u32) -> Self {
        if let Some(decl) = self.k.inner.borrow_mut().kernel.shared.get_mut(self.id.index()) {
            decl.len = decl.len.max(len);
        }
        self
    }

    /// Element `index` of an array of scalars.
    pub fn load(self, index: Val<'k>) -> Val<'k> {
        if self.lanes != 1 {
            self.k.fail("a scalar load of a shared array of vectors");
        }
        load(self.k, Storage::Shared(self.id), self.elem, self.lanes, index)
    }

    /// The scalars of element `index`.
    pub fn load_vec(self, index: Val<'k>) -> Vec<Val<'k>> {
        load(self.k, Storage::Shared(self.id), self.elem, self.lanes, index).components()
    }

    /// One scalar of element `index`.
    pub fn load_lane(self, index: Val<'k>, lane: u8) -> Val<'k> {
        let expr = Expr::LoadLane { shared: self.id, index: index.id, lane };
        self.k.compute(expr, Type::Scalar(self.elem.scalar()))
    }

    /// Stores an element of an array of scalars.
    pub fn store(self, index: Val<'k>, value: Val<'k>) {
        self.store_vec(index, &[value]);
    }

    /// Stores all scalars of an element.
    pub fn store_vec(self, index: Val<'k>, values: &[Val<'k>]) {
        if values.len() != self.lanes as usize {
            self.k.fail(format!("{} scalars for a shared element of {}", values.len(), self.lanes));
        }
        store(self.k, Storage::Shared(self.id), self.elem, index, values);
    }

    /// Stores one scalar of element `index`.
    pub fn store_lane(self, index: Val<'k>, lane: u8, value: Val<'k>) {
        self.k.push(Stmt::StoreLane { shared: self.id, index: index.id, lane, value: value.id });
    }

    /// Read-modify-write of a u32 or i32; returns the value before.
    pub fn atomic(self, op: AtomicOp, index: Val<'k>, value: Val<'k>) -> Val<'k> {
        atomic(self.k, Storage::Shared(self.id), self.elem, op, index, value, None)
    }

    /// A cooperative matrix whose first element is at `index`; rows, or columns, are `stride` elements apart.
    pub fn load_matrix(self, ty: MatrixType, index: Val<'k>, stride: Val<'k>, column_major: bool) -> Val<'k> {
        load_matrix(self.k, Storage::Shared(self.id), ty, index, stride, column_major)
    }

    /// Stores a cooperative matrix.
    pub fn store_matrix(self, index: Val<'k>, stride: Val<'k>, column_major: bool, value: Val<'k>) {
        store_matrix(self.k, Storage::Shared(self.id), index, stride, column_major, value);
    }
}

/// A variable of each invocation.
#[derive(Clone, Copy)]
pub struct Var<'k> {
    pub(super) k: &'k Builder,
    pub(super) id: VarId,
}

impl<'k> Var<'k> {
    /// Its value now.
    pub fn get(self) -> Val<'k> {
        let ty = self.k.inner.borrow().kernel.vars[self.id.index()];
        self.k.compute(Expr::Get(self.id), ty)
    }

    /// Sets it.
    pub fn set(self, value: Val<'k>) {
        let ty = self.k.inner.borrow().kernel.vars[self.id.index()];
        if ty != value.ty() {
            self.k.fail(format!("a variable of {ty} set to {}", value.ty()));
        }
        self.k.push(Stmt::Set(self.id, value.id));
    }
}

fn load<'k>(k: &'k Builder, place: Storage, elem: Elem, lanes: u8, index: Val<'k>) -> Val<'k> {
    let ty = match lanes {
        1 => Type::Scalar(elem.scalar()),
        n => Type::Vector(elem.scalar(), n),
    };
    k.compute(Expr::Load { place, index: index.id, lanes }, ty)
}

fn store<'k>(k: &'k Builder, place: Storage, elem: Elem, index: Val<'k>, values: &[Val<'k>]) {
    if let Some(wrong) = values.iter().find(|v| v.ty() != Type::Scalar(elem.scalar())) {
        k.fail(format!("{} stored as {elem}", wrong.ty()));
    }
    let value = match values {
        [one] => one.id,
        many => {
            let ids = many.iter().map(|v| v.id).collect();
            k.compute(Expr::Vector(ids), Type::Vector(elem.scalar(), many.len() as u8)).id
        }
    };
    k.push(Stmt::Store { place, index: index.id, value });
}

fn atomic<'k>(
    k: &'k Builder,
    place: Storage,
    elem: Elem,
    op: AtomicOp,
    index: Val<'k>,
    value: Val<'k>,
    comparand: Option<Val<'k>>,
) -> Val<'k> {
    if !matches!(elem, Elem::U32 | Elem::I32) || value.ty() != Type::Scalar(elem.scalar()) {
        k.fail(format!("an atomic operation with {} on {elem}", value.ty()));
    }
    let comparand = comparand.map(|c| c.id);
    let expr = Expr::Atomic { place, index: index.id, op, value: value.id, comparand };
    k.compute(expr, Type::Scalar(if elem == Elem::I32 { Scalar::I32 } else { Scalar::U32 }))
}

impl Builder {
    /// A cooperative matrix of 16-bit elements from the words of its lanes, as [`Val::matrix_words`] returns them for
    /// one of the same type.
    pub fn matrix_of_words<'k>(&'k self, ty: MatrixType, words: &[Val<'k>]) -> Val<'k> {
        let words = words.iter().map(|w| w.id).collect();
        self.compute(Expr::MatrixOfWords(ty, words), Type::Matrix(ty))
    }
}

fn load_matrix<'k>(
    k: &'k Builder,
    place: Storage,
    ty: MatrixType,
    index: Val<'k>,
    stride: Val<'k>,
    column_major: bool,
) -> Val<'k> {
    let layout = MatrixLayout { stride: stride.id, column_major };
    k.compute(Expr::MatrixLoad { ty, place, index: index.id, layout }, Type::Matrix(ty))
}

fn store_matrix<'k>(
    k: &'k Builder,
    place: Storage,
    index: Val<'k>,
    stride: Val<'k>,
    column_major: bool,
    value: Val<'k>,
) {
    let layout = MatrixLayout { stride: stride.id, column_major };
    k.push(Stmt::StoreMatrix { place, index: index.id, layout, value: value.id });
}
