//! Strips on x86-64: four products at once where the processor has VNNI, pairs of 16-bit products elsewhere.

use std::arch::x86_64::*;

use super::micro::{PANEL, STEP, Strip};

/// Rows of a block of registers with 512 bits.
const ROWS: usize = 6;
/// Rows of a block of registers with 256 bits.
const BLOCK_ROWS: usize = 3;
/// Bytes of a panel's step.
const GROUP: usize = STEP * PANEL;

/// Rows `first..` in equal blocks of at most `most`: calls `block` with a block's first row and rows.
fn blocks(rows: usize, most: usize, mut block: impl FnMut(usize, usize)) {
    let count = rows.div_ceil(most);
    let (size, larger) = (rows / count, rows % count);
    let mut first = 0;
    for i in 0..count {
        let size = size + usize::from(i < larger);
        block(first, size);
        first += size;
    }
}

/// As [`Strip::multiply`] with AVX-512 VNNI.
///
/// # Safety
/// The processor must have AVX-512 F, BW and VNNI; operands and result as `Strip::multiply` has checked and asks for.
pub(super) unsafe fn dot_products(strip: &Strip<'_>, panels: usize, out: *mut i32, pitch: usize) {
    let mut panel = 0;
    while panel < panels {
        let take = match panels - panel {
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        blocks(strip.rows.len(), ROWS, |row, rows| {
            // Safety: inside the strip; the caller's promises.
            unsafe {
                match (rows, take) {
                    (6, 4) => dot_block::<6, 4>(strip, row, panel, out, pitch),
                    (5, 4) => dot_block::<5, 4>(strip, row, panel, out, pitch),
                    (4, 4) => dot_block::<4, 4>(strip, row, panel, out, pitch),
                    (3, 4) => dot_block::<3, 4>(strip, row, panel, out, pitch),
                    (2, 4) => dot_block::<2, 4>(strip, row, panel, out, pitch),
                    (_, 4) => dot_block::<1, 4>(strip, row, panel, out, pitch),
                    (6, 2) => dot_block::<6, 2>(strip, row, panel, out, pitch),
                    (5, 2) => dot_block::<5, 2>(strip, row, panel, out, pitch),
                    (4, 2) => dot_block::<4, 2>(strip, row, panel, out, pitch),
                    (3, 2) => dot_block::<3, 2>(strip, row, panel, out, pitch),
                    (2, 2) => dot_block::<2, 2>(strip, row, panel, out, pitch),
                    (_, 2) => dot_block::<1, 2>(strip, row, panel, out, pitch),
                    (6, _) => dot_block::<6, 1>(strip, row, panel, out, pitch),
                    (5, _) => dot_block::<5, 1>(strip, row, panel, out, pitch),
                    (4, _) => dot_block::<4, 1>(strip, row, panel, out, pitch),
                    (3, _) => dot_block::<3, 1>(strip, row, panel, out, pitch),
                    (2, _) => dot_block::<2, 1>(strip, row, panel, out, pitch),
                    _ => dot_block::<1, 1>(strip, row, panel, out, pitch),
                }
            }
        });
        panel += take;
    }
}

/// `R` rows times `P` panels.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn dot_block<const R: usize, const P: usize>(
    strip: &Strip<'_>,
    row: usize,
    panel: usize,
    out: *mut i32,
    pitch: usize,
) {
    let stride = strip.panel();
    let mut sums = [[_mm512_setzero_si512(); P]; R];
    // Safety: rows and panels are in the strip, whose operands and result are whole by the caller's promise.
    unsafe {
        for p in 0..P {
            let column = (panel + p) * PANEL;
            let by_zero = _mm512_loadu_si512(strip.columns.sums[column..].as_ptr().cast());
            let by_sum = _mm512_loadu_si512(strip.columns.zeros[column..].as_ptr().cast());
            for r in 0..R {
                let terms = strip.rows[row + r];
                let zero = _mm512_mullo_epi32(_mm512_set1_epi32(terms.zero), by_zero);
                let sum = _mm512_mullo_epi32(_mm512_set1_epi32(terms.sum), by_sum);
                sums[r][p] = _mm512_add_epi32(zero, sum);
            }
        }
        let left = strip.left.as_ptr().add(row * strip.pitch);
        let right = strip.panels.as_ptr().add(panel * stride);
        for step in 0..strip.steps {
            let mut b = [_mm512_setzero_si512(); P];
            for p in 0..P {
                b[p] = _mm512_loadu_si512(right.add(p * stride + step * GROUP).cast());
            }
            for r in 0..R {
                let a = left.add(r * strip.pitch + step * STEP).cast::<i32>().read_unaligned();
                let a = _mm512_set1_epi32(a);
                for p in 0..P {
                    sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], a, b[p]);
                }
            }
        }
        for p in 0..P {
            let column = (panel + p) * PANEL;
            let width = strip.width - column;
            for r in 0..R {
                let to = out.add((row + r) * pitch + column);
                if width >= PANEL {
                    _mm512_storeu_si512(to.cast(), sums[r][p]);
                } else {
                    _mm512_mask_storeu_epi32(to, (1 << width) - 1, sums[r][p]);
                }
            }
        }
    }
}

/// As [`Strip::multiply`] with AVX2.
///
/// # Safety
/// The processor must have AVX2; operands and result as `Strip::multiply` has checked and asks for.
pub(super) unsafe fn pairs(strip: &Strip<'_>, panels: usize, out: *mut i32, pitch: usize) {
    for panel in 0..panels {
        blocks(strip.rows.len(), BLOCK_ROWS, |row, rows| {
            // Safety: inside the strip; the caller's promises.
            unsafe {
                match rows {
                    3 => pairs_block::<3>(strip, row, panel, out, pitch),
                    2 => pairs_block::<2>(strip, row, panel, out, pitch),
                    _ => pairs_block::<1>(strip, row, panel, out, pitch),
                }
            }
        });
    }
}

/// `R` rows times a panel: bytes widen to 16 bits, of which pairs are multiplied and added without loss.
#[target_feature(enable = "avx2")]
unsafe fn pairs_block<const R: usize>(
    strip: &Strip<'_>,
    row: usize,
    panel: usize,
    out: *mut i32,
    pitch: usize,
) {
    /// Registers of a panel, each with two sums for each of four columns.
    const PARTS: usize = PANEL / 4;
    let mut sums = [[_mm256_setzero_si256(); PARTS]; R];
    // Safety: rows and the panel are in the strip, whose operands and result are whole by the caller's promise.
    unsafe {
        let left = strip.left.as_ptr().add(row * strip.pitch);
        let right = strip.panels.as_ptr().add(panel * strip.panel());
        for step in 0..strip.steps {
            let mut a = [_mm256_setzero_si256(); R];
            for r in 0..R {
                let bytes = left.add(r * strip.pitch + step * STEP).cast::<i32>().read_unaligned();
                a[r] = _mm256_cvtepu8_epi16(_mm_set1_epi32(bytes));
            }
            for q in 0..PARTS {
                let bytes = _mm_loadu_si128(right.add(step * GROUP + q * 16).cast());
                let b = _mm256_cvtepi8_epi16(bytes);
                for r in 0..R {
                    sums[r][q] = _mm256_add_epi32(sums[r][q], _mm256_madd_epi16(a[r], b));
                }
            }
        }
        for half in 0..2 {
            let column = panel * PANEL + half * 8;
            if column >= strip.width {
                break;
            }
            let by_zero = _mm256_loadu_si256(strip.columns.sums[column..].as_ptr().cast());
            let by_sum = _mm256_loadu_si256(strip.columns.zeros[column..].as_ptr().cast());
            for r in 0..R {
                let terms = strip.rows[row + r];
                let zero = _mm256_mullo_epi32(_mm256_set1_epi32(terms.zero), by_zero);
                let sum = _mm256_mullo_epi32(_mm256_set1_epi32(terms.sum), by_sum);
                // Columns 0 1 4 5, then 2 3 6 7.
                let joined = _mm256_hadd_epi32(sums[r][half * 2], sums[r][half * 2 + 1]);
                let ordered = _mm256_permute4x64_epi64(joined, 0b11_01_10_00);
                let all = _mm256_add_epi32(ordered, _mm256_add_epi32(zero, sum));
                let to = out.add((row + r) * pitch + column);
                if strip.width >= column + 8 {
                    _mm256_storeu_si256(to.cast(), all);
                } else {
                    let mut some = [0i32; 8];
                    _mm256_storeu_si256(some.as_mut_ptr().cast(), all);
                    std::ptr::copy_nonoverlapping(some.as_ptr(), to, strip.width - column);
                }
            }
        }
    }
}

/// As [`Strip::multiply`] with what every x86-64 has.
///
/// # Safety
/// Operands and result as `Strip::multiply` has checked and asks for.
pub(super) unsafe fn narrow_pairs(strip: &Strip<'_>, panels: usize, out: *mut i32, pitch: usize) {
    /// Registers of a panel, each with two sums for each of two columns.
    const PARTS: usize = PANEL / 2;
    for (panel, row) in (0..panels).flat_map(|p| (0..strip.rows.len()).map(move |r| (p, r))) {
        let mut sums = [0i32; PANEL];
        // Safety: the row and the panel are in the strip, whose operands and result are whole by the caller's promise.
        unsafe {
            let mut parts = [_mm_setzero_si128(); PARTS];
            let left = strip.left.as_ptr().add(row * strip.pitch);
            let right = strip.panels.as_ptr().add(panel * strip.panel());
            for step in 0..strip.steps {
                let bytes = left.add(step * STEP).cast::<i32>().read_unaligned();
                let a = _mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), _mm_setzero_si128());
                let a = _mm_unpacklo_epi64(a, a);
                for q in 0..PARTS / 2 {
                    let b = _mm_loadu_si128(right.add(step * GROUP + q * 16).cast());
                    // Bytes in the upper halves of 16 bits, brought down with their sign.
                    let low = _mm_srai_epi16(_mm_unpacklo_epi8(b, b), 8);
                    let high = _mm_srai_epi16(_mm_unpackhi_epi8(b, b), 8);
                    parts[2 * q] = _mm_add_epi32(parts[2 * q], _mm_madd_epi16(a, low));
                    parts[2 * q + 1] = _mm_add_epi32(parts[2 * q + 1], _mm_madd_epi16(a, high));
                }
            }
            for q in 0..PARTS / 2 {
                let (low, high) = (_mm_castsi128_ps(parts[2 * q]), _mm_castsi128_ps(parts[2 * q + 1]));
                let even = _mm_castps_si128(_mm_shuffle_ps(low, high, 0b10_00_10_00));
                let odd = _mm_castps_si128(_mm_shuffle_ps(low, high, 0b11_01_11_01));
                _mm_storeu_si128(sums[4 * q..].as_mut_ptr().cast(), _mm_add_epi32(even, odd));
            }
            strip.store(row, panel, &sums, out, pitch);
        }
    }
}
