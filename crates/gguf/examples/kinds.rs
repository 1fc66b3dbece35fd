//! Prints the type that every preset gives to each tensor of a file: preset, number of the file's type, tensor, type.

use olivine_gguf::{Gguf, Preset};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: kinds FILE")?;
    let file = Gguf::open(path)?;
    for preset in Preset::all() {
        for (tensor, kind) in file.tensors().iter().zip(preset.kinds(&file)) {
            println!("{preset} {} {} {}", preset.file_type(), tensor.name, kind.name());
        }
    }
    Ok(())
}
