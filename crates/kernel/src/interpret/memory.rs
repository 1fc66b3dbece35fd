//! Loads that widen and stores that narrow, all of them checked.

use super::{Register, Run, arithmetic, invalid};
use crate::Error;
use crate::ir::Storage;
use crate::types::Elem;

impl Run<'_> {
    /// The bytes of a storage, its element type and the scalars of one of its elements.
    pub(super) fn memory(&mut self, place: Storage) -> Result<(&mut Vec<u8>, Elem, usize), Error> {
        let missing = || invalid("no such memory");
        match place {
            Storage::Arg(id) => {
                let elem = self.kernel.args.get(id.index()).ok_or_else(missing)?.elem;
                Ok((self.buffers.get_mut(id.index()).ok_or_else(missing)?, elem, 1))
            }
            Storage::Shared(id) => {
                let decl = self.kernel.shared.get(id.index()).ok_or_else(missing)?;
                let lanes = usize::from(decl.lanes);
                Ok((self.shared.get_mut(id.index()).ok_or_else(missing)?, decl.elem, lanes))
            }
        }
    }

    fn range(
        &mut self,
        place: Storage,
        index: u64,
        part: Option<u8>,
        count: usize,
    ) -> Result<(&mut [u8], Elem), Error> {
        let name = self.kernel.name.clone();
        let (bytes, elem, lanes) = self.memory(place)?;
        let size = elem.size() as usize;
        if part.is_none() && matches!(place, Storage::Arg(_)) && !index.is_multiple_of(count as u64) {
            return Err(invalid(format!("{name}: {count} elements from {index}, which is not aligned")));
        }
        let length = bytes.len() / size;
        let first = (index as usize).saturating_mul(lanes).saturating_add(usize::from(part.unwrap_or(0)));
        bytes
            .get_mut(first.saturating_mul(size)..first.saturating_add(count).saturating_mul(size))
            .map(|b| (b, elem))
            .ok_or_else(|| invalid(format!("{name}: element {index} of {place:?}, which has {length}")))
    }

    pub(super) fn load(
        &mut self,
        place: Storage,
        index: u64,
        part: Option<u8>,
        lanes: u8,
    ) -> Result<Register, Error> {
        let (bytes, elem) = self.range(place, index, part, usize::from(lanes))?;
        let mut register = [0; 4];
        for (to, bytes) in register.iter_mut().zip(bytes.chunks(elem.size() as usize)) {
            let raw = bytes.iter().rev().fold(0u64, |acc, b| (acc << 8) | u64::from(*b));
            *to = widen(elem, raw);
        }
        Ok(register)
    }

    pub(super) fn store(
        &mut self,
        place: Storage,
        index: u64,
        part: Option<u8>,
        what: &[u64],
    ) -> Result<(), Error> {
        let (bytes, elem) = self.range(place, index, part, what.len())?;
        for (to, bits) in bytes.chunks_mut(elem.size() as usize).zip(what) {
            let raw = narrow(elem, *bits).to_le_bytes();
            to.copy_from_slice(&raw[..elem.size() as usize]);
        }
        Ok(())
    }
}

pub(super) fn widen(elem: Elem, raw: u64) -> u64 {
    match elem {
        Elem::F16 => u64::from(arithmetic::half(raw as u16).to_bits()),
        Elem::BF16 => raw << 16,
        Elem::I8 => u64::from(raw as i8 as u32),
        Elem::I16 => u64::from(raw as i16 as u32),
        Elem::Bool => u64::from(raw != 0),
        _ => raw,
    }
}

pub(super) fn narrow(elem: Elem, bits: u64) -> u64 {
    match elem {
        Elem::F16 => u64::from(crate::build::half_bits(f32::from_bits(bits as u32))),
        Elem::BF16 => {
            let x = bits as u32;
            let nan = x & 0x7fff_ffff > 0x7f80_0000;
            u64::from(if nan { (x >> 16) | 0x40 } else { x.wrapping_add(0x7fff + ((x >> 16) & 1)) >> 16 })
        }
        _ => bits,
    }
}
