//! SPIR-V as text, for people who look at what a kernel became.

use rspirv::binary::Disassemble;

use crate::Error;

/// The assembly text of a module's words.
///
/// ```
/// use olivine_kernel::spirv::{SpirvOptions, disassemble, print};
/// use olivine_kernel::{Access, Builder, Elem, Target};
/// let k = Builder::new("fill", 64, &Target::plain());
/// k.arg("y", Elem::F32, Access::Write).store(k.local_index(), k.f32(1.0));
/// let words = print(&k.finish()?, &SpirvOptions::default())?;
/// assert!(disassemble(&words)?.contains("OpEntryPoint GLCompute"));
/// # Ok::<(), olivine_kernel::Error>(())
/// ```
pub fn disassemble(words: &[u32]) -> Result<String, Error> {
    let module = rspirv::dr::load_words(words).map_err(|e| Error::Invalid(format!("SPIR-V: {e}")))?;
    Ok(module.disassemble())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_module_are_refused() {
        assert!(disassemble(&[]).is_err());
        assert!(disassemble(&[1, 2, 3]).is_err());
    }
}
