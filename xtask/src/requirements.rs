//! What the tests need on the machine besides Rust, and how it gets there.

use std::path::Path;
use std::process::Command;

/// Something the tests cannot do without.
#[derive(Clone, Copy)]
pub(crate) struct Requirement {
    /// Its name, for messages.
    what: &'static str,
    /// Whether it is there.
    present: fn() -> bool,
    /// The Debian package that brings it.
    package: &'static str,
    /// The line a person can type where this program may not install.
    install: &'static str,
}

/// Everything that `cargo test` needs. A linker comes first: without one no test can be built.
pub(crate) const TESTS: &[Requirement] = &[
    Requirement {
        what: "a C linker, for cargo",
        present: || runs("cc", &["--version"]),
        package: "gcc",
        install: "sudo apt-get install -y gcc",
    },
    Requirement {
        what: "the Vulkan loader",
        present: || library("libvulkan.so.1"),
        package: "libvulkan1",
        install: "sudo apt-get install -y libvulkan1",
    },
    Requirement {
        what: "a Vulkan driver that runs on the processor",
        present: || manifest("icd.d", "lvp_icd"),
        package: "mesa-vulkan-drivers",
        install: "sudo apt-get install -y mesa-vulkan-drivers",
    },
    Requirement {
        what: "the Vulkan validation layer",
        present: || manifest("explicit_layer.d", "VkLayer_khronos_validation"),
        package: "vulkan-validationlayers",
        install: "sudo apt-get install -y vulkan-validationlayers",
    },
    Requirement {
        what: "the SPIR-V validator",
        present: || runs("spirv-val", &["--version"]),
        package: "spirv-tools",
        install: "sudo apt-get install -y spirv-tools",
    },
];

/// What the Elixir package's tests need besides.
pub(crate) const ELIXIR: &[Requirement] = &[Requirement {
    what: "Elixir",
    present: || runs("mix", &["--version"]),
    package: "elixir",
    install: "sudo apt-get install -y elixir",
}];

/// What the browser's tests need.
pub(crate) const WEB: &[Requirement] = &[
    Requirement {
        what: "Chromium",
        present: || runs("chromium", &["--version"]),
        package: "chromium",
        install: "sudo apt-get install -y chromium",
    },
    Requirement {
        what: "Node.js",
        present: || runs("node", &["--version"]),
        package: "nodejs",
        install: "sudo apt-get install -y nodejs",
    },
    Requirement {
        what: "npm",
        present: || runs("npm", &["--version"]),
        package: "npm",
        install: "sudo apt-get install -y npm",
    },
];

/// Debian's Rust with the standard library's source: for targets whose library is in no package here.
pub(crate) const RUST_SOURCE: &[Requirement] = &[
    Requirement {
        what: "Rust for the target (`rustup target add`), or Debian's",
        present: || runs("dpkg", &["-s", "rustc-web"]),
        package: "rustc-web",
        install: "sudo apt-get install -y rustc-web",
    },
    Requirement {
        what: "Debian's Cargo",
        present: || runs("dpkg", &["-s", "cargo-web"]),
        package: "cargo-web",
        install: "sudo apt-get install -y cargo-web",
    },
    Requirement {
        what: "the standard library's source",
        present: || Path::new("/usr/lib/rustlib/src/rust/library/std").is_dir(),
        package: "rust-web-src",
        install: "sudo apt-get install -y rust-web-src",
    },
];

/// What Debian's Rust needs besides for WebAssembly.
pub(crate) const WEB_LINKER: &[Requirement] = &[Requirement {
    what: "a linker for WebAssembly",
    present: || runs("wasm-ld-22", &["--version"]),
    package: "lld-22",
    install: "sudo apt-get install -y lld-22",
}];

/// Checks all of them, installs what is missing where that is possible, and names the rest all at once.
pub(crate) fn meet(requirements: &[Requirement]) -> Result<(), String> {
    let missing = || requirements.iter().filter(|r| !(r.present)());
    let packages: Vec<&str> = missing().map(|r| r.package).collect();
    if !packages.is_empty() && may_install() {
        println!("installing {}", packages.join(", "));
        let install = ["install", "-y", "--no-install-recommends"];
        // A stale list of packages is the usual reason why an install fails.
        crate::run(Command::new("apt-get").arg("update"))?;
        crate::run(Command::new("apt-get").args(install).args(&packages))?;
    }
    let lines: Vec<String> =
        missing().map(|r| format!("{} is missing; run: {}", r.what, r.install)).collect();
    if lines.is_empty() { Ok(()) } else { Err(lines.join("\n       ")) }
}

/// Root on Debian or a system like it.
fn may_install() -> bool {
    let root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    root && Path::new("/etc/debian_version").exists()
}

/// Whether the dynamic linker knows a library.
fn library(name: &str) -> bool {
    let known = Command::new("/sbin/ldconfig").arg("-p").output();
    known.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains(name))
}

/// Whether a Vulkan manifest whose name begins so is installed.
fn manifest(folder: &str, name: &str) -> bool {
    ["/usr/share/vulkan", "/etc/vulkan", "/usr/local/share/vulkan"].iter().any(|base| {
        let entries = std::fs::read_dir(Path::new(base).join(folder));
        entries.is_ok_and(|mut all| {
            all.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(name)))
        })
    })
}

fn runs(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_names_its_package_in_the_line_that_installs_it() {
        for requirement in TESTS.iter().chain(ELIXIR).chain(WEB).chain(RUST_SOURCE).chain(WEB_LINKER) {
            assert!(requirement.install.ends_with(requirement.package), "{}", requirement.what);
        }
    }

    #[test]
    fn a_program_that_is_not_there_does_not_run() {
        assert!(!runs("no-such-program-anywhere", &[]));
        assert!(runs("cargo", &["--version"]));
    }
}
