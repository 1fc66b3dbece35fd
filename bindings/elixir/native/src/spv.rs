//! Which kernel a call names.

use olivine_array::{DType, ErrorKind};
use rustler::{Atom, Binary, Term};

use crate::call::Failure;
use crate::model::path_of;

mod atoms {
    rustler::atoms! { builtin, density, f32, f64, s32 }
}

/// The first word of a module.
const MAGIC: [u8; 4] = 0x0723_0203_u32.to_le_bytes();
/// No module is longer.
const LONGEST: u64 = 64 << 20;

/// The kernel of a call.
pub(crate) enum Kernel {
    /// Olivine's own, for a dtype.
    Builtin(DType),
    /// A density in text form, for chains.
    Density(String),
    /// A caller's module.
    Module(Vec<u8>),
}

impl Kernel {
    /// `:builtin`, `{:builtin, dtype}`, `{:density, text}`, a module's bytes or the path of its file.
    pub(crate) fn of(term: Term<'_>) -> Result<Kernel, Failure> {
        if let Ok(bytes) = term.decode::<Binary<'_>>() {
            return module(&bytes).map(Kernel::Module);
        }
        if let Ok(word) = term.decode::<Atom>() {
            return if word == atoms::builtin() {
                Ok(Kernel::Builtin(DType::F32))
            } else {
                Err(Failure::BadArgument)
            };
        }
        match term.decode::<(Atom, Term<'_>)>()? {
            (word, dtype) if word == atoms::builtin() => {
                let dtype: Atom = dtype.decode()?;
                let known =
                    [(atoms::f32(), DType::F32), (atoms::f64(), DType::F64), (atoms::s32(), DType::I32)];
                match known.into_iter().find(|(name, _)| *name == dtype) {
                    Some((_, dtype)) => Ok(Kernel::Builtin(dtype)),
                    None => Err(Failure::bad("built-in kernels are for :f32, :f64 and :s32")),
                }
            }
            (word, text) if word == atoms::density() => Ok(Kernel::Density(text.decode()?)),
            _ => Err(Failure::BadArgument),
        }
    }
}

/// What begins like a module is one; anything else is a path.
fn module(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    if bytes.starts_with(&MAGIC) {
        return Ok(bytes.to_vec());
    }
    let path = path_of(bytes)?;
    let failed =
        |problem: String| Failure::Error(ErrorKind::SpvReadFailed, format!("{}: {problem}", path.display()));
    let info = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?;
    // A pipe or a device may never end.
    if !info.is_file() {
        return Err(failed("not a plain file".into()));
    }
    if info.len() > LONGEST {
        return Err(failed(format!("{} bytes are more than any module has", info.len())));
    }
    std::fs::read(path).map_err(|e| failed(e.to_string()))
}
