//! A kernel together with what its arguments are bound to: declared in one breath, so that none can be forgotten.

use std::cell::RefCell;

use olivine_ir::{Dim, TensorType};
use olivine_kernel::{Access, Buf, Builder, Elem, Scalar, Val};

use crate::math;
use crate::site::{Memory, Operand, Target};

/// What a kernel's arguments are bound to, gathered while it is written.
pub struct Launch<'k> {
    k: &'k Builder,
    bound: RefCell<Bound>,
    /// Buffers that several parts of the kernel may read.
    read: RefCell<Vec<(Memory, Elem, Buf<'k>)>>,
}

/// Bindings of a finished launch.
#[derive(Clone, Default)]
pub struct Bound {
    /// What buffers are bound to, as they were declared.
    pub args: Vec<Memory>,
    /// Run-time numbers; a kernel sees the low 32 bits of each.
    pub params: Vec<Dim>,
}

impl Bound {
    /// Binds the i-th buffer, as they were declared, to other memory.
    pub fn set_arg(&mut self, i: usize, memory: Memory) {
        if let Some(arg) = self.args.get_mut(i) {
            *arg = memory;
        }
    }

    /// Replaces the value of the i-th run-time number, in the order of their declaration.
    pub fn set_param(&mut self, i: usize, word: u32) {
        if let Some(param) = self.params.get_mut(i) {
            *param = word.into();
        }
    }

    /// What buffers are bound to, and the run-time numbers.
    #[cfg(test)]
    pub fn parts(&self) -> (&[Memory], Vec<u32>) {
        (&self.args, self.words())
    }

    /// The run-time numbers in the current compile.
    pub fn words(&self) -> Vec<u32> {
        self.params.iter().map(|param| param.value().unwrap_or(0) as u32).collect()
    }

    /// Bindings of a kernel that was not written here: buffers and params in its order.
    pub fn new(args: Vec<Memory>, params: Vec<u32>) -> Self {
        Bound { args, params: params.into_iter().map(Dim::from).collect() }
    }
}

impl<'k> Launch<'k> {
    /// A launch of a kernel that is being written.
    pub fn new(k: &'k Builder) -> Self {
        Launch { k, bound: RefCell::default(), read: RefCell::default() }
    }

    /// The kernel.
    pub fn k(&self) -> &'k Builder {
        self.k
    }

    /// Declares a buffer that reads an operand's memory from its root's first element on: the operand's offset and
    /// strides are the kernel's matter.
    pub fn read(&self, name: &str, operand: &Operand) -> Buf<'k> {
        self.bind(name, math::elem(operand.ty.dtype), Access::Read, operand.memory)
    }

    /// Declares a buffer that a target is written to.
    pub fn write(&self, name: &str, target: &Target) -> Buf<'k> {
        self.bind(name, math::elem(target.ty.dtype), Access::Write, target.memory)
    }

    /// Declares a buffer over any memory, as elements of any type.
    pub fn bind(&self, name: &str, elem: Elem, access: Access, memory: Memory) -> Buf<'k> {
        self.bound.borrow_mut().args.push(memory);
        self.k.arg(name, elem, access)
    }

    /// Declares a size and returns its value; sizes were checked to fit before.
    pub fn size(&self, name: &str, value: impl Into<Dim>) -> Val<'k> {
        self.word(name, Scalar::U32, value.into())
    }

    /// Memory that parts of a kernel read each for itself: it becomes one buffer.
    pub(crate) fn common_read(&self, name: &str, elem: Elem, memory: Memory) -> Buf<'k> {
        let same = |(of, as_elem, _): &&(Memory, Elem, Buf<'k>)| (*of, *as_elem) == (memory, elem);
        let known = self.read.borrow().iter().find(same).map(|(.., buffer)| *buffer);
        known.unwrap_or_else(|| {
            let buffer = self.bind(name, elem, Access::Read, memory);
            self.read.borrow_mut().push((memory, elem, buffer));
            buffer
        })
    }

    /// Declares a stride: negative ones wrap, and so do sums with them, back into range.
    pub fn stride(&self, name: &str, value: impl Into<Dim>) -> Val<'k> {
        self.word(name, Scalar::U32, value.into())
    }

    /// Declares an i32.
    pub fn i32(&self, name: &str, value: i32) -> Val<'k> {
        self.word(name, Scalar::I32, value.into())
    }

    /// Declares an f32.
    pub fn f32(&self, name: &str, value: f32) -> Val<'k> {
        self.word(name, Scalar::F32, value.to_bits().into())
    }

    fn word(&self, name: &str, scalar: Scalar, value: Dim) -> Val<'k> {
        self.bound.borrow_mut().params.push(value);
        self.k.param(name, scalar)
    }

    /// The bindings; the kernel is finished apart.
    pub fn done(self) -> Bound {
        self.bound.into_inner()
    }
}

/// A size as a number: what is lowered then holds for this number alone.
#[track_caller]
pub(crate) fn number(size: Dim) -> usize {
    size.specialize().unwrap_or(0)
}

/// As [`number`], of what may be negative.
#[track_caller]
pub(crate) fn signed(size: Dim) -> i64 {
    size.specialize_signed().unwrap_or(0)
}

/// Bytes of a value; what profiles count.
pub(crate) fn bytes(ty: &TensorType) -> Dim {
    ty.size_bytes()
}
