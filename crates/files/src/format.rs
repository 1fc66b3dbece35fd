//! What a file is, from its first bytes: the file of another program should be refused by name.

use std::fmt;

/// A file format that is often given where another is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Weights without a graph.
    Safetensors,
    /// Quantized weights for llama.cpp.
    Gguf,
    /// Old weights of llama.cpp.
    Ggml,
    /// A ZIP archive: what `torch.save`, `numpy.savez` and Keras write.
    Zip,
    /// A Python pickle: what old versions of `torch.save` write.
    Pickle,
    /// A TensorFlow Lite model.
    TfLite,
    /// An ONNX Runtime model in its own format.
    Ort,
    /// HDF5: weights of Keras.
    Hdf5,
    /// One NumPy array.
    Npy,
    /// Text in place of a large file that `git lfs` was to bring.
    GitLfs,
    /// A web page, mostly an error in place of a download.
    Html,
    /// JSON text.
    Json,
    /// Compressed by gzip, zstd, xz or bzip2.
    Compressed,
    /// A graph in Olivine's text form.
    GraphText,
}

impl Format {
    /// The format of a file that begins with these bytes; `None` if it is none of those known here.
    pub fn of(bytes: &[u8]) -> Option<Format> {
        Format::of_start(bytes, bytes.len() as u64)
    }

    /// As [`Format::of`], of a file of so many bytes whose first ones these are.
    pub fn of_start(bytes: &[u8], all: u64) -> Option<Format> {
        // First, because the length that such a file begins with can look like anything.
        if Format::is_safetensors(bytes, all) {
            return Some(Format::Safetensors);
        }
        let begins = |with: &[u8]| bytes.starts_with(with);
        let at_4 = bytes.get(4..8);
        if begins(b"GGUF") {
            return Some(Format::Gguf);
        }
        if [b"tjgg", b"lmgg", b"fmgg"].iter().any(|m| begins(*m)) {
            return Some(Format::Ggml);
        }
        if begins(b"PK\x03\x04") || begins(b"PK\x05\x06") {
            return Some(Format::Zip);
        }
        if begins(b"\x89HDF\r\n\x1a\n") {
            return Some(Format::Hdf5);
        }
        if begins(b"\x93NUMPY") {
            return Some(Format::Npy);
        }
        if [b"\x1f\x8b".as_slice(), b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh"].iter().any(|m| begins(m)) {
            return Some(Format::Compressed);
        }
        if at_4 == Some(b"TFL3") {
            return Some(Format::TfLite);
        }
        if at_4 == Some(b"ORTM") {
            return Some(Format::Ort);
        }
        // Protocols 2 to 5; what follows is an opcode of the pickles that PyTorch writes.
        if let [0x80, 2..=5, b'\x8a' | b'\x95' | b'}' | b']' | b'(' | b'c' | b'K' | b'M', ..] = bytes {
            return Some(Format::Pickle);
        }
        Format::of_text(bytes)
    }

    /// Whether there is the length of a JSON header, and its first bracket.
    fn is_safetensors(bytes: &[u8], all: u64) -> bool {
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return false };
        (2..=all.saturating_sub(8)).contains(&u64::from_le_bytes(*length)) && rest.starts_with(b"{")
    }

    fn of_text(bytes: &[u8]) -> Option<Format> {
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
        let begins = |with: &str| {
            text.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()))
        };
        if begins("version https://git-lfs") {
            Some(Format::GitLfs)
        } else if begins("<!doctype html") || begins("<html") || begins("<?xml") {
            Some(Format::Html)
        } else if begins("graph \"") {
            Some(Format::GraphText)
        } else {
            let member = text.strip_prefix(b"{")?.trim_ascii_start();
            member.starts_with(b"\"").then_some(Format::Json)
        }
    }

    /// What to do with such a file where a model is wanted.
    pub fn advice(self) -> &'static str {
        match self {
            Format::Safetensors => {
                "it has weights and no graph: load its folder, with the config.json, or export the model to ONNX"
            }
            Format::Gguf => "load it with `Model::load`",
            Format::Ggml => "convert the original model to GGUF",
            Format::Zip | Format::Pickle => "load it in Python and export it, e.g. with `torch.onnx.export`",
            Format::TfLite | Format::Hdf5 => "convert it with `tf2onnx`",
            Format::Ort => "use the .onnx file that it was made from",
            Format::Npy => "it is an input, not a model: give it as `--input NAME=FILE.npy`",
            Format::GitLfs => "run `git lfs pull` to bring the file itself",
            Format::Html => "download the file itself; this is a page, often that of an error",
            Format::Json => "it is text; a model is a binary file",
            Format::Compressed => "unpack it first",
            Format::GraphText => "load it with `Model::load`",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Safetensors => "a safetensors file",
            Format::Gguf => "a GGUF file",
            Format::Ggml => "a GGML file",
            Format::Zip => "a ZIP archive, as PyTorch, NumPy and Keras write",
            Format::Pickle => "a Python pickle, as PyTorch writes",
            Format::TfLite => "a TensorFlow Lite model",
            Format::Ort => "a model in ONNX Runtime's own format",
            Format::Hdf5 => "an HDF5 file, as Keras writes",
            Format::Npy => "a NumPy array",
            Format::GitLfs => "a git-lfs pointer, not the file it stands for",
            Format::Html => "a web page",
            Format::Json => "JSON text",
            Format::Compressed => "a compressed file",
            Format::GraphText => "a graph in Olivine's text form",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_their_first_bytes() {
        let safetensors = [&2u64.to_le_bytes(), b"{}".as_slice()].concat();
        for (bytes, format) in [
            (safetensors.as_slice(), Format::Safetensors),
            (b"GGUF\x03\0\0\0", Format::Gguf),
            (b"PK\x03\x04\0\0", Format::Zip),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", Format::Pickle),
            (b"\x1c\0\0\0TFL3\0\0", Format::TfLite),
            (b"\x89HDF\r\n\x1a\n\0", Format::Hdf5),
            (b"\x93NUMPY\x01\0", Format::Npy),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", Format::GitLfs),
            (b"\n <!DOCTYPE html><html>", Format::Html),
            (b"{ \"error\": 1 }", Format::Json),
            (b"graph \"x\" {", Format::GraphText),
        ] {
            assert_eq!(Format::of(bytes), Some(format));
            assert!(!format.advice().is_empty());
            // Every prefix is fine too: none of them panics, and none is another format.
            for end in 0..bytes.len() {
                assert!(Format::of(&bytes[..end]).is_none_or(|f| f == format), "{format} cut at {end}");
            }
        }
        // A header whose length reads like the beginning of JSON or of a gzip file.
        for length in [0x227bu64, 0x8b1f] {
            let header = format!("{{{}}}", " ".repeat(length as usize - 2));
            let file = [&length.to_le_bytes(), header.as_bytes()].concat();
            assert_eq!(Format::of(&file), Some(Format::Safetensors));
        }
        // A protobuf of an ONNX model: ir_version, producer.
        assert_eq!(Format::of(b"\x08\x08\x12\x07pytorch"), None);
    }
}
