//! From packed blocks to f32, in ggml's order of operations, so that every bit is the same.

mod bare;
mod codebook;
mod fp4;
mod k;
mod simple;
mod ternary;

use crate::{BlockFormat, Error};

pub use codebook::code_book;
pub(crate) use fp4::{E2M1_DOUBLED, e4m3_half, e8m0_half};
pub use simple::IQ4_VALUES;

/// Decodes whole blocks. `into` has exactly the elements that the bytes hold.
pub fn decode(format: BlockFormat, bytes: &[u8], into: &mut [f32]) -> Result<(), Error> {
    let elements = into.len();
    let expected = format.bytes_of(elements).ok_or(Error::NotWholeBlocks { format, elements })?;
    if bytes.len() != expected {
        return Err(Error::WrongLength { format, elements, expected, found: bytes.len() });
    }
    let block = block_decoder(format);
    for (bytes, into) in bytes.chunks_exact(format.bytes()).zip(into.chunks_exact_mut(format.elements())) {
        block(bytes, into);
    }
    Ok(())
}

/// The function that decodes one block of a format.
fn block_decoder(format: BlockFormat) -> fn(&[u8], &mut [f32]) {
    match format {
        BlockFormat::Q1_0 => simple::q1_0,
        BlockFormat::Q4_0 => simple::q4_0,
        BlockFormat::Q4_1 => simple::q4_1,
        BlockFormat::Q5_0 => simple::q5_0,
        BlockFormat::Q5_1 => simple::q5_1,
        BlockFormat::Q8_0 => simple::q8_0,
        BlockFormat::Q8_1 => simple::q8_1,
        BlockFormat::IQ4_NL => simple::iq4_nl,
        BlockFormat::Q2_K => k::q2_k,
        BlockFormat::Q3_K => k::q3_k,
        BlockFormat::Q4_K => k::q4_k,
        BlockFormat::Q5_K => k::q5_k,
        BlockFormat::Q6_K => k::q6_k,
        BlockFormat::Q8_K => k::q8_k,
        BlockFormat::IQ4_XS => k::iq4_xs,
        BlockFormat::IQ2_XXS => codebook::iq2_xxs,
        BlockFormat::IQ2_XS => codebook::iq2_xs,
        BlockFormat::IQ2_S => codebook::iq2_s,
        BlockFormat::IQ3_XXS => codebook::iq3_xxs,
        BlockFormat::IQ3_S => codebook::iq3_s,
        BlockFormat::IQ1_S => codebook::iq1_s,
        BlockFormat::IQ1_M => codebook::iq1_m,
        BlockFormat::TQ1_0 => ternary::tq1_0,
        BlockFormat::TQ2_0 => ternary::tq2_0,
        BlockFormat::MXFP4 => fp4::mxfp4,
        BlockFormat::NVFP4 => fp4::nvfp4,
        BlockFormat::U2 => bare::u2,
        BlockFormat::U4 => bare::u4,
        BlockFormat::I4 => bare::i4,
        BlockFormat::F8_E4M3 => bare::f8_e4m3,
        BlockFormat::F8_E5M2 => bare::f8_e5m2,
    }
}

/// The f16 at a byte offset, as f32.
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
