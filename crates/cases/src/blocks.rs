//! Packed blocks for cases: encoded numbers where a format has an encoder, random codes with sane scales elsewhere.

use olivine_ir::half::f16;
use olivine_ir::{BlockFormat, Tensor, TensorType};

use crate::fill::Rng;

/// A packed tensor.
pub(crate) fn tensor(format: BlockFormat, ty: TensorType, rng: &mut Rng) -> Result<Tensor, String> {
    let elements = ty.elements();
    let bytes = if olivine_quant::can_encode(format) {
        let numbers: Vec<f32> = (0..elements.numel()).map(|_| rng.normal() as f32).collect();
        olivine_quant::encode(format, &numbers, None).map_err(|e| e.to_string())?
    } else {
        let mut bytes: Vec<u8> = (0..ty.bytes()).map(|_| rng.bits() as u8).collect();
        bytes.chunks_exact_mut(format.bytes()).for_each(|block| set_scale(format, block, rng));
        bytes
    };
    Tensor::packed(format, elements, bytes).map_err(|e| e.to_string())
}

/// Scales of random bits would be huge or NaN; these are near a tenth.
fn set_scale(format: BlockFormat, block: &mut [u8], rng: &mut Rng) {
    let scale = (0.05 + 0.1 * rng.unit()) as f32;
    let bits = f16::from_f32(scale).to_le_bytes();
    match format {
        BlockFormat::Q8_K => block[..4].copy_from_slice(&scale.to_le_bytes()),
        BlockFormat::Q8_1 => {
            block[..2].copy_from_slice(&bits);
            block[2..4].copy_from_slice(&bits);
        }
        // Four bits of the scale in each of four words.
        BlockFormat::IQ1_M => {
            let scale = u16::from_le_bytes(bits);
            for i in 0..4 {
                let high = (scale >> (4 * i) & 15) as u8;
                block[49 + 2 * i] = block[49 + 2 * i] & 15 | high << 4;
            }
        }
        BlockFormat::U2 | BlockFormat::U4 | BlockFormat::I4 => {}
        // Without the exponent's highest bit there are no NaN, infinities or huge numbers.
        BlockFormat::F8_E4M3 | BlockFormat::F8_E5M2 => block[0] &= 0xbf,
        _ => block[..2].copy_from_slice(&bits),
    }
}
