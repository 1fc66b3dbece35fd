//! From f32 to packed blocks: scales are searched for the least squared error, weighted by importance where it is known.

mod fit;
mod fp4;
mod k;
mod simple;
mod ternary;

use crate::{BlockFormat, Error};

/// One block to encode.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// The elements.
    x: &'a [f32],
    /// How much the square of each element's error counts.
    weight: &'a [f32],
}

type Encoder = fn(Block<'_>, &mut [u8]);

/// Whether blocks of the format can be made; the formats with large code books and those of activations are only read.
pub fn can_encode(format: BlockFormat) -> bool {
    encoder(format).is_some()
}

/// Encodes rows, whose lengths are whole blocks, one after another. Importance weights, one for each column of a row, say how
/// much the error of a column counts; without them all count the same.
pub fn encode(format: BlockFormat, x: &[f32], importance: Option<&[f32]>) -> Result<Vec<u8>, Error> {
    let encoder = encoder(format).ok_or(Error::CannotEncode { format })?;
    let bytes = format.bytes_of(x.len()).ok_or(Error::NotWholeBlocks { format, elements: x.len() })?;
    if let Some(columns) = importance.map(<[f32]>::len)
        && (columns == 0 || !x.len().is_multiple_of(columns) || format.bytes_of(columns).is_none())
    {
        return Err(Error::WrongImportance { expected: x.len(), found: columns });
    }
    if let Some(index) = x.iter().position(|x| !x.is_finite()) {
        return Err(Error::NotFinite { format, index, value: x[index].to_string() });
    }
    let mut packed = Vec::new();
    packed.try_reserve_exact(bytes).map_err(|_| Error::OutOfMemory { bytes })?;
    packed.resize(bytes, 0);
    let (n, ones) = (format.elements(), [1.0; 256]);
    let mut weight = [1.0; 256];
    for (i, (x, into)) in x.chunks_exact(n).zip(packed.chunks_exact_mut(format.bytes())).enumerate() {
        let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        if largest > largest_of(format) {
            return Err(Error::TooLarge { format, index: i * n, value: largest.to_string() });
        }
        let weight = match importance {
            None => &ones[..n],
            Some(columns) => {
                let from = i * n % columns.len();
                for (w, given) in weight.iter_mut().zip(&columns[from..from + n]) {
                    *w = if given.is_finite() { given.max(0.0) } else { 0.0 };
                }
                // A block that nothing counts in is encoded as if all did.
                if weight[..n].iter().sum::<f32>() > 0.0 { &weight[..n] } else { &ones[..n] }
            }
        };
        encoder(Block { x, weight }, into);
    }
    Ok(packed)
}

/// Encodes whole blocks of [`BlockFormat::Q8_0`], `into` having their bytes: rows of any numbers, as [`encode`] does where it does not
/// refuse them. A block with an infinity or a NaN decodes to NaN; one whose scale exceeds f16's range has an infinite scale.
#[inline(always)]
pub fn encode_q8_0(x: &[f32], into: &mut [u8]) {
    let format = BlockFormat::Q8_0;
    for (x, into) in x.chunks_exact(format.elements()).zip(into.chunks_exact_mut(format.bytes())) {
        simple::q8_0_block(x, into);
    }
}

fn encoder(format: BlockFormat) -> Option<Encoder> {
    Some(match format {
        BlockFormat::Q1_0 => simple::q1_0,
        BlockFormat::Q4_0 => simple::q4_0,
        BlockFormat::Q4_1 => simple::q4_1,
        BlockFormat::Q5_0 => simple::q5_0,
        BlockFormat::Q5_1 => simple::q5_1,
        BlockFormat::Q8_0 => simple::q8_0,
        BlockFormat::IQ4_NL => simple::iq4_nl,
        BlockFormat::Q2_K => k::q2_k,
        BlockFormat::Q3_K => k::q3_k,
        BlockFormat::Q4_K => k::q4_k,
        BlockFormat::Q5_K => k::q5_k,
        BlockFormat::Q6_K => k::q6_k,
        BlockFormat::IQ4_XS => k::iq4_xs,
        BlockFormat::TQ1_0 => ternary::tq1_0,
        BlockFormat::TQ2_0 => ternary::tq2_0,
        BlockFormat::MXFP4 => fp4::mxfp4,
        BlockFormat::NVFP4 => fp4::nvfp4,
        BlockFormat::Q8_1
        | BlockFormat::Q8_K
        | BlockFormat::IQ2_XXS
        | BlockFormat::IQ2_XS
        | BlockFormat::IQ2_S
        | BlockFormat::IQ3_XXS
        | BlockFormat::IQ3_S
        | BlockFormat::IQ1_S
        | BlockFormat::IQ1_M
        | BlockFormat::U2
        | BlockFormat::U4
        | BlockFormat::I4
        | BlockFormat::F8_E4M3
        | BlockFormat::F8_E5M2 => return None,
    })
}

/// Elements up to this have a scale in range; f16 scales end at 65,504, an NVFP4 block at 6 · 448.
fn largest_of(format: BlockFormat) -> f32 {
    match format {
        BlockFormat::MXFP4 => f32::MAX,
        BlockFormat::NVFP4 => 2688.0,
        _ => 65504.0,
    }
}

fn put_f16(into: &mut [u8], at: usize, x: f32) -> f32 {
    let x = half::f16::from_f32(x);
    into[at..at + 2].copy_from_slice(&x.to_le_bytes());
    x.to_f32()
}

/// `1 / x`, and 0 for 0 and for what has no finite inverse.
fn inverse(x: f32) -> f32 {
    let inverse = 1.0 / x;
    if inverse.is_finite() { inverse } else { 0.0 }
}
