//! Reads a GGUF file and writes all of it again: `copy IN OUT`, or `copy IN OUT q4_k_m` with other types.

use std::error::Error;

use olivine_gguf::{Gguf, Preset, Writer, quantize};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (from, to) = match args.as_slice() {
        [from, to] | [from, to, _] => (from, to),
        _ => return Err("usage: copy IN OUT [PRESET]".into()),
    };
    let file = Gguf::open(from)?;
    if let Some(preset) = args.get(2) {
        return Ok(quantize(&file, preset.parse::<Preset>()?, to, |_, _| {})?);
    }
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter().filter(|(key, _)| *key != "general.alignment") {
        writer.metadata(key, value.clone())?;
    }
    for tensor in file.tensors() {
        writer.tensor(&tensor.name, tensor.kind, &tensor.shape, file.bytes(tensor).to_vec())?;
    }
    Ok(writer.save(to)?)
}
