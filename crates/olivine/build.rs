//! Names the code whose speed calibrations measure: a change of a kernel makes stored ones those of other code.

use std::io;
use std::path::{Path, PathBuf};

/// The crates that decide how fast a graph runs. A published package has none of them beside it; its version stands for them.
const SOURCES: &[&str] = &[
    "src/cost",
    "../compile/src",
    "../cpu/src",
    "../gpu/src",
    "../kernel/src",
    "../kernels/src",
    "../numerics/src",
    "../program/src",
    "../vulkan/src",
    "../wgpu/src",
];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for folder in SOURCES.iter().map(Path::new).filter(|folder| folder.is_dir()) {
        println!("cargo:rerun-if-changed={}", folder.display());
        add(folder, &mut hash)?;
    }
    println!("cargo:rustc-env=OLIVINE_CODE={hash:016x}");
    Ok(())
}

/// Adds the files of a folder to a hash, in the order of their names.
fn add(folder: &Path, hash: &mut u64) -> io::Result<()> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            add(&path, hash)?;
            continue;
        }
        for byte in std::fs::read(path)? {
            *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    Ok(())
}
