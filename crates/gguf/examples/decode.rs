//! Writes every tensor of a GGUF file, decoded to little-endian f32, one after the other: `decode IN OUT`.

use std::error::Error;
use std::io::{BufWriter, Write};

use olivine_gguf::Gguf;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = args.as_slice() else { return Err("usage: decode IN OUT".into()) };
    let file = Gguf::open(from)?;
    let mut out = BufWriter::new(std::fs::File::create(to)?);
    for tensor in file.tensors() {
        for x in file.decode(tensor)? {
            out.write_all(&x.to_le_bytes())?;
        }
    }
    Ok(out.flush()?)
}
