//! Buffers and workgroup memory. Every access is checked for bounds and alignment.

/// Bits of an address below a buffer's number.
const SHIFT: u32 = 40;

/// The address of a buffer.
pub(crate) fn base(buffer: usize) -> u64 {
    (buffer as u64 + 1) << SHIFT
}

/// What a workgroup sees.
pub(crate) struct Memory<'a> {
    pub(crate) buffers: &'a mut [Vec<u8>],
    pub(crate) shared: Vec<u8>,
}

impl Memory<'_> {
    /// The bytes of an access.
    pub(crate) fn bytes(&mut self, shared: bool, address: u64, count: usize) -> Result<&mut [u8], String> {
        if !address.is_multiple_of(count as u64) {
            return Err(format!("{count} bytes at {address:#x}, which is not aligned"));
        }
        let (bytes, at, what) = if shared {
            (&mut self.shared, address as usize, "workgroup memory".to_string())
        } else {
            let number = (address >> SHIFT) as usize;
            let found = number.checked_sub(1).and_then(|i| self.buffers.get_mut(i));
            let at = (address & ((1 << SHIFT) - 1)) as usize;
            (
                found.ok_or_else(|| format!("an access to {address:#x}, where no buffer is"))?,
                at,
                format!("buffer {}", number - 1),
            )
        };
        let length = bytes.len();
        let end = at.saturating_add(count);
        bytes.get_mut(at..end).ok_or_else(|| format!("bytes {at} to {end} of {what}, which has {length}"))
    }
}

/// An integer of up to 8 bytes.
pub(crate) fn read(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, b| (sum << 8) | u64::from(*b))
}

pub(crate) fn write(bytes: &mut [u8], value: u64) {
    let all = value.to_le_bytes();
    bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
}
