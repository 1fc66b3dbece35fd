//! Converts raw little-endian f32 to blocks and back: `convert encode q4_k IN OUT`, `convert decode q4_k IN OUT`.

use std::error::Error;

use olivine_quant::{BlockFormat, decode, encode};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, format, from, to] = args.as_slice() else {
        return Err("usage: convert encode|decode FORMAT IN OUT".into());
    };
    let (format, bytes): (BlockFormat, _) = (format.parse()?, std::fs::read(from)?);
    let out = match what.as_str() {
        "encode" => {
            let x: Vec<f32> =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            encode(format, &x, None)?
        }
        "decode" => {
            let mut x = vec![0.0f32; bytes.len() / format.bytes() * format.elements()];
            decode(format, &bytes, &mut x)?;
            x.iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        _ => return Err(format!("`{what}` is neither encode nor decode").into()),
    };
    Ok(std::fs::write(to, out)?)
}
