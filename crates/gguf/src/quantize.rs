//! A model in other types: every tensor decoded, encoded and written, one at a time.

use std::num::NonZero;
use std::path::Path;

use olivine_quant::encode;

use crate::error::shortened;
use crate::{Error, Gguf, Preset, Tensor, TensorKind, Value, Writer};

/// Elements that one thread encodes at a time.
const PIECE: usize = 1 << 16;

/// Writes the model of a file with the types of a preset. `progress` is called with every tensor before it is encoded, and its
/// new type.
pub fn quantize(
    file: &Gguf,
    preset: Preset,
    to: impl AsRef<Path>,
    mut progress: impl FnMut(&Tensor, TensorKind),
) -> Result<(), Error> {
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        // The parts of a split model become one file, with an alignment of its own.
        let dropped = key.starts_with("split.") || key == "general.alignment";
        if !dropped && key != "general.file_type" && key != "general.quantization_version" {
            writer.metadata(key, value.clone())?;
        }
    }
    writer.metadata("general.quantization_version", Value::from(2u32))?;
    writer.metadata("general.file_type", Value::from(preset.file_type()))?;
    let kinds = preset.kinds(file);
    for (tensor, kind) in file.tensors().iter().zip(&kinds) {
        writer.declare(&tensor.name, *kind, &tensor.shape)?;
    }
    writer.save_with(to, |i| {
        let tensor = &file.tensors()[i];
        progress(tensor, kinds[i]);
        convert(file, tensor, kinds[i])
    })
}

/// A tensor's bytes in another type.
fn convert(file: &Gguf, tensor: &Tensor, kind: TensorKind) -> Result<Vec<u8>, Error> {
    let wrong = |problem: String| Error::Tensor { name: shortened(&tensor.name), problem };
    if tensor.kind == kind {
        return Ok(file.bytes(tensor).to_vec());
    }
    let elements = file.decode(tensor)?;
    match kind {
        TensorKind::F32 => Ok(elements.iter().flat_map(|x| x.to_le_bytes()).collect()),
        TensorKind::F16 => {
            if let Some(x) = elements.iter().find(|x| x.is_finite() && half::f16::from_f32(**x).is_infinite())
            {
                return Err(wrong(format!("{x} is beyond what f16 holds")));
            }
            Ok(elements.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect())
        }
        TensorKind::BF16 => {
            Ok(elements.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect())
        }
        TensorKind::Blocks(format) => {
            let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
            let pieces: Vec<&[f32]> = elements.chunks(PIECE).collect();
            let share = pieces.len().div_ceil(threads).max(1);
            let encoded: Vec<Result<Vec<u8>, String>> = std::thread::scope(|scope| {
                let spawned: Vec<_> = pieces
                    .chunks(share)
                    .map(|pieces| {
                        scope.spawn(move || {
                            let mut bytes = Vec::new();
                            for piece in pieces {
                                bytes.extend(encode(format, piece, None).map_err(|e| e.to_string())?);
                            }
                            Ok(bytes)
                        })
                    })
                    .collect();
                let lost = || Err("a thread ended early".to_string());
                spawned.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
            });
            let parts = encoded.into_iter().collect::<Result<Vec<_>, _>>().map_err(wrong)?;
            Ok(parts.concat())
        }
        other => Err(wrong(format!("{} is not converted to {other}", tensor.kind))),
    }
}
