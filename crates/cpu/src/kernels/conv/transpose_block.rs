//! Transposing squares of vectors on the way to other places.

use super::vector::ConvVector;
use crate::operand::Number;

/// At most as many rows as lanes, each of at most as many elements.
pub(crate) struct Block<T> {
    pub(crate) from: *const T,
    /// Elements from a row to the next.
    pub(crate) pitch: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl<T: Number> Block<T> {
    /// Writes column c as a run of `keep` elements from `base + to[c]` on, rows that are missing as zeros.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`; the block may be read, and its columns may be written.
    #[inline(always)]
    pub(crate) unsafe fn transpose_to<L: ConvVector<Elem = T>>(
        &self,
        keep: usize,
        base: *mut T,
        to: &[usize; 16],
    ) {
        assert!(self.rows <= L::N && self.columns <= L::N && keep <= L::N);
        // Safety: the caller's promise.
        unsafe { L::transpose_block(self, keep, base, to) }
    }
}

/// Where rows `pitch` apart begin.
#[inline(always)]
pub(crate) fn rows_of(pitch: usize) -> [usize; 16] {
    let mut places = [0; 16];
    for (i, place) in places.iter_mut().enumerate() {
        *place = i * pitch;
    }
    places
}

/// The body of [`ConvVector::transpose_block`].
///
/// # Safety
/// As [`Block::transpose_to`].
#[inline(always)]
pub(crate) unsafe fn transpose_block<L: ConvVector>(
    block: &Block<L::Elem>,
    keep: usize,
    base: *mut L::Elem,
    to: &[usize; 16],
) {
    let Block { from, pitch, rows, columns } = *block;
    // Safety: the caller's promise; what is missing is neither read nor written.
    unsafe {
        let mut vectors = [L::splat(L::Elem::ZERO); 16];
        if columns == L::N {
            for r in 0..L::N {
                if r < rows {
                    vectors[r] = L::load(from.wrapping_add(r * pitch));
                }
            }
        } else {
            let mask = (1 << columns) - 1;
            for r in 0..L::N {
                if r < rows {
                    vectors[r] = L::load_masked(from.wrapping_add(r * pitch), mask);
                }
            }
        }
        L::transpose(&mut vectors);
        if keep == L::N {
            for c in 0..L::N {
                if c < columns {
                    vectors[c].store(base.wrapping_add(to[c]));
                }
            }
        } else {
            for c in 0..L::N {
                if c < columns {
                    vectors[c].store_first(base.wrapping_add(to[c]), keep);
                }
            }
        }
    }
}
