//! Strips of an integer GEMM: many rows by a few panels of columns, in registers.
//!
//! The left side is unsigned bytes, the right side signed ones, so that one instruction multiplies and adds four
//! pairs. Zero points are corrected by the sums of rows and columns, with which the accumulators begin; sums wrap, so
//! the result is exact whatever is between.

#[cfg(target_arch = "x86_64")]
use super::x86;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Vectors, has_dot_products, vectors};

/// Columns of a panel.
pub(super) const PANEL: usize = 16;
/// Steps of the summed axis that are contiguous in a panel, column after column.
pub(super) const STEP: usize = 4;
/// Panels of a strip at most.
pub(super) const STRIP: usize = 4;

/// What a row adds to every column of its line: its zero point times the columns' sums, and its sum times their zero
/// points, both negative.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowTerms {
    pub(super) zero: i32,
    pub(super) sum: i32,
}

/// What a strip's columns are multiplied with to correct a row.
#[derive(Clone, Copy)]
pub(super) struct ColumnTerms {
    /// Sums of the columns less their zero points.
    pub(super) sums: [i32; STRIP * PANEL],
    /// Zero points.
    pub(super) zeros: [i32; STRIP * PANEL],
}

/// Rows of the left side times the panels of a strip.
pub(super) struct Strip<'a> {
    /// Steps of four along the summed axis.
    pub(super) steps: usize,
    /// Rows of bytes, `pitch` apart.
    pub(super) left: &'a [u8],
    pub(super) pitch: usize,
    /// One per row.
    pub(super) rows: &'a [RowTerms],
    /// At most [`STRIP`] panels.
    pub(super) panels: &'a [u8],
    pub(super) columns: &'a ColumnTerms,
    /// Columns to write; the last panel may have more.
    pub(super) width: usize,
}

impl Strip<'_> {
    /// Bytes of a panel.
    pub(super) fn panel(&self) -> usize {
        self.steps * STEP * PANEL
    }

    /// Computes the strip into rows `pitch` apart from `out` on.
    ///
    /// # Safety
    /// `out` must be valid for writing `width` elements in each of the rows, and nobody else may hold them.
    pub(super) unsafe fn multiply(&self, out: *mut i32, pitch: usize) {
        if self.rows.is_empty() || self.width == 0 {
            return;
        }
        let panels = self.width.div_ceil(PANEL);
        let reach = (self.rows.len() - 1) * self.pitch + self.steps * STEP;
        assert!(panels <= STRIP && reach <= self.left.len() && panels * self.panel() <= self.panels.len());
        #[cfg(target_arch = "x86_64")]
        match vectors() {
            Vectors::Avx512 if has_dot_products() => {
                // Safety: the processor has the instructions; the operands are whole as asserted, the result by promise.
                unsafe { x86::dot_products(self, panels, out, pitch) };
            }
            Vectors::Avx512 | Vectors::Avx2 => {
                // Safety: as above.
                unsafe { x86::pairs(self, panels, out, pitch) };
            }
            Vectors::Base => {
                // Safety: as above.
                unsafe { x86::narrow_pairs(self, panels, out, pitch) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        // Safety: the result is whole and exclusive by promise.
        unsafe {
            self.portable(panels, out, pitch);
        }
    }

    /// What an accumulator begins with.
    fn start(&self, row: usize, column: usize) -> i32 {
        let terms = self.rows[row];
        let by_zero = terms.zero.wrapping_mul(self.columns.sums[column]);
        by_zero.wrapping_add(terms.sum.wrapping_mul(self.columns.zeros[column]))
    }

    /// As [`Strip::multiply`], with what every processor has.
    ///
    /// # Safety
    /// As there.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    pub(super) unsafe fn portable(&self, panels: usize, out: *mut i32, pitch: usize) {
        let (k_len, size) = (self.steps * STEP, self.panel());
        for p in 0..panels {
            let panel = &self.panels[p * size..][..size];
            for row in 0..self.rows.len() {
                let left = &self.left[row * self.pitch..][..k_len];
                let mut parts = [0i32; STEP * PANEL];
                for (a, b) in left.as_chunks::<STEP>().0.iter().zip(panel.as_chunks::<{ STEP * PANEL }>().0) {
                    let mut repeated = [0i16; STEP * PANEL];
                    for to in repeated.as_chunks_mut::<STEP>().0 {
                        *to = [i16::from(a[0]), i16::from(a[1]), i16::from(a[2]), i16::from(a[3])];
                    }
                    // A product of two bytes of these signs fits 16 bits.
                    for i in 0..STEP * PANEL {
                        let product = repeated[i].wrapping_mul(i16::from(b[i] as i8));
                        parts[i] = parts[i].wrapping_add(i32::from(product));
                    }
                }
                let parts = parts.as_chunks::<STEP>().0;
                let sums = std::array::from_fn(|c| parts[c].iter().fold(0i32, |sum, p| sum.wrapping_add(*p)));
                // Safety: the caller's promise.
                unsafe { self.store(row, p, &sums, out, pitch) };
            }
        }
    }

    /// Writes a row's sums of a panel with what corrects them.
    ///
    /// # Safety
    /// As [`Strip::multiply`].
    pub(super) unsafe fn store(
        &self,
        row: usize,
        panel: usize,
        sums: &[i32; PANEL],
        out: *mut i32,
        pitch: usize,
    ) {
        let column = panel * PANEL;
        let width = (self.width - column).min(PANEL);
        // Safety: valid and exclusive by the caller's promise.
        let to = unsafe { std::slice::from_raw_parts_mut(out.add(row * pitch + column), width) };
        for (c, (to, sum)) in to.iter_mut().zip(sums).enumerate() {
            *to = sum.wrapping_add(self.start(row, column + c));
        }
    }
}
