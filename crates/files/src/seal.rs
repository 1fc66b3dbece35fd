//! Bytes with their length and BLAKE3 hash before them, so that a damaged file is recognised.

/// Bytes that a seal adds: name of the format, length, hash.
pub const SEAL_BYTES: usize = 8 + 8 + 32;

/// A file of bytes, under the format's name.
pub fn seal(format: &[u8; 8], bytes: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(SEAL_BYTES + bytes.len());
    file.extend_from_slice(format);
    file.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    file.extend_from_slice(blake3::hash(bytes).as_bytes());
    file.extend_from_slice(bytes);
    file
}

/// The bytes of a sealed file; `None` if it is damaged or of another format.
pub fn unseal<'a>(format: &[u8; 8], file: &'a [u8]) -> Option<&'a [u8]> {
    let (name, rest) = file.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (hash, bytes) = rest.split_first_chunk::<32>()?;
    let whole = name == format
        && u64::from_le_bytes(*length) == bytes.len() as u64
        && blake3::hash(bytes) == blake3::Hash::from_bytes(*hash);
    whole.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_files_are_unsealed() {
        let file = seal(b"OLVTEST1", b"some blob");
        assert_eq!(unseal(b"OLVTEST1", &file), Some(&b"some blob"[..]));
        assert_eq!(unseal(b"OLVTEST2", &file), None);
        for i in 0..file.len() {
            let mut damaged = file.clone();
            damaged[i] ^= 1;
            assert_eq!(unseal(b"OLVTEST1", &damaged), None, "byte {i}");
            assert_eq!(unseal(b"OLVTEST1", &file[..i]), None, "cut at {i}");
        }
    }
}
