//! Workgroup memory of kernels whose workgroups do one of several things: all of these use the same arrays.

use std::cell::RefCell;

use olivine_kernel::{Builder, Elem, Shared};

/// Arrays of a kernel, handed out anew to each of the things that a workgroup may do.
pub(crate) struct Pool<'k> {
    k: &'k Builder,
    arrays: RefCell<Vec<Array<'k>>>,
}

struct Array<'k> {
    role: &'static str,
    shared: Shared<'k>,
    /// Whether what is written now has it already.
    is_taken: bool,
}

impl<'k> Pool<'k> {
    pub(crate) fn new(k: &'k Builder) -> Self {
        Pool { k, arrays: RefCell::default() }
    }

    /// An array of at least `len` elements of `lanes` scalars: the one that others had in the same role.
    pub(crate) fn take(&self, role: &'static str, elem: Elem, lanes: u8, len: u32) -> Shared<'k> {
        let mut arrays = self.arrays.borrow_mut();
        let free = |array: &&mut Array<'k>| {
            let (Array { shared, .. }, wanted) = (&**array, (role, elem, lanes));
            !array.is_taken && (array.role, shared.elem(), shared.lanes()) == wanted
        };
        if let Some(array) = arrays.iter_mut().find(free) {
            array.is_taken = true;
            return array.shared.reserve(len);
        }
        let shared = self.k.shared(elem, lanes, len);
        arrays.push(Array { role, shared, is_taken: true });
        shared
    }

    /// All arrays are free again: the next that takes some runs in other workgroups.
    pub(crate) fn release(&self) {
        self.arrays.borrow_mut().iter_mut().for_each(|array| array.is_taken = false);
    }
}
