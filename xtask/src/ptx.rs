//! The kernel library as PTX through NVIDIA's assembler, which pip puts under `target`: no card is needed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Generations that the library is assembled for; the first has all of it, the others a sample.
const CAPABILITIES: [&str; 4] = ["9.0", "8.0", "8.9", "10.0"];

/// Of how many kernels one is in the sample, beside one of every name.
const SAMPLE: &str = "16";

/// Bytes of spills that are worth a line.
const LARGE_SPILL: u32 = 64;

/// What the assembler says of one kernel.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usage {
    kernel: String,
    registers: u32,
    shared: u32,
    spills: u32,
}

/// Fails if a kernel does not print or assemble; a sample, or all kernels.
pub(crate) fn check(all: bool) -> Result<(), String> {
    let ptxas = assembler()?;
    let folder = crate::root().join("target/ptx");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    // With the features of the whole workspace, as the tests are built.
    crate::run(crate::cargo().args(["build", "-q", "--workspace", "--bin", "ptx_library"]))?;
    let one_in = if all { "1" } else { SAMPLE };
    print(&folder, one_in, &CAPABILITIES[..1])?;
    print(&folder, SAMPLE, &CAPABILITIES[1..])?;
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map_err(|e| format!("cannot list {}: {e}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    let (queue, results) = (Mutex::new(files), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(file) = queue.lock().ok().and_then(|mut q| q.pop()) {
                    let result = assemble(&ptxas, &file);
                    if let Ok(mut results) = results.lock() {
                        results.push((file, result));
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().map_err(|e| e.to_string())?;
    results.sort_by(|a, b| a.0.cmp(&b.0));
    report(results)
}

fn print(folder: &Path, one_in: &str, capabilities: &[&str]) -> Result<(), String> {
    let program = crate::root().join("target/debug/ptx_library");
    crate::run(Command::new(program).arg(folder).arg(one_in).args(capabilities))
}

/// The assembler of NVIDIA's package.
fn assembler() -> Result<PathBuf, String> {
    let target = crate::root().join("target/ptxas");
    let find = || {
        let folders = std::fs::read_dir(target.join("nvidia")).ok()?;
        folders.filter_map(|f| Some(f.ok()?.path().join("bin/ptxas"))).find(|p| p.is_file())
    };
    if let Some(found) = find() {
        return Ok(found);
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arg(&target)
        .arg("nvidia-cuda-nvcc");
    crate::run(&mut pip)?;
    find().ok_or_else(|| format!("no ptxas under {}", target.display()))
}

/// Assembles a module for the generation that its name begins with.
fn assemble(ptxas: &Path, file: &Path) -> Result<Vec<Usage>, String> {
    let name = file.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let (capability, _) = name.split_once('-').ok_or_else(|| format!("{name} names no generation"))?;
    // A file for each: two processes may not write `/dev/null` as an object file.
    let object = file.with_extension("cubin");
    let output = Command::new(ptxas)
        .args(["-v", "-arch", capability, "-o"])
        .arg(&object)
        .arg(file)
        .output()
        .map_err(|e| format!("cannot run {}: {e}", ptxas.display()))?;
    let _ = std::fs::remove_file(object);
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors: Vec<&str> = text.lines().filter(|l| !l.starts_with("ptxas info")).take(10).collect();
        return Err(format!("{}: {}\n{}", file.display(), output.status, errors.join("\n")));
    }
    let usages = usages(&text);
    if capability.ends_with('a') {
        full_rate(&text, &usages).map_err(|problem| format!("{}: {problem}", file.display()))?;
    }
    Ok(usages)
}

/// What keeps a kernel of warpgroups from the tensor cores' full rate: multiplies that wait for each other (C7510 and its
/// like), registers that roles asked for and did not get, spills.
fn full_rate(text: &str, usages: &[Usage]) -> Result<(), String> {
    let said = |line: &&str| ["wgmma", "setmaxnreg", "warning"].iter().any(|word| line.contains(word));
    if let Some(line) = text.lines().find(said) {
        return Err(line.to_string());
    }
    match usages.iter().find(|usage| usage.spills > 0) {
        Some(usage) => Err(format!("{} spills {} bytes", usage.kernel, usage.spills)),
        None => Ok(()),
    }
}

/// Reads what `ptxas -v` prints: for every entry point its name, spills, then registers and memory.
fn usages(text: &str) -> Vec<Usage> {
    let mut found: Vec<Usage> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            found.push(Usage { kernel: rest.split('\'').next().unwrap_or("").into(), ..Usage::default() });
        }
        let Some(last) = found.last_mut() else { continue };
        let before = |what: &str| -> u32 {
            let number = line.split(what).next().filter(|before| before.len() < line.len());
            number.and_then(|b| b.split_whitespace().last()).and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        last.spills = last.spills.max(before(" bytes spill stores"));
        last.registers = last.registers.max(before(" registers"));
        last.shared = last.shared.max(before(" bytes smem"));
    }
    found
}

fn report(results: Vec<(PathBuf, Result<Vec<Usage>, String>)>) -> Result<(), String> {
    let (mut wrong, mut usages) = (Vec::new(), Vec::new());
    for (file, result) in results {
        let name = file.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let generation = name.split('-').next().unwrap_or_default().to_string();
        match result {
            Ok(found) => usages.extend(found.into_iter().map(|usage| (generation.clone(), usage))),
            Err(problem) => wrong.push(problem),
        }
    }
    let most = |of: fn(&Usage) -> u32| usages.iter().max_by_key(|(_, u)| of(u));
    println!("{} kernels assembled", usages.len());
    if let Some((generation, u)) = most(|u| u.registers) {
        println!("most registers: {} of {} on {generation}", u.registers, u.kernel);
    }
    if let Some((generation, u)) = most(|u| u.shared) {
        println!("most workgroup memory: {} bytes of {} on {generation}", u.shared, u.kernel);
    }
    println!(
        "{} spill registers; those of {LARGE_SPILL} bytes and more:",
        usages.iter().filter(|(_, u)| u.spills > 0).count()
    );
    for (generation, u) in usages.iter().filter(|(_, u)| u.spills >= LARGE_SPILL) {
        println!("spills: {} bytes of {} on {generation}, {} registers", u.spills, u.kernel, u.registers);
    }
    match wrong.as_slice() {
        [] if usages.is_empty() => Err("no kernel was assembled".into()),
        [] => Ok(()),
        problems => Err(format!("{} modules do not assemble:\n{}", problems.len(), problems.join("\n"))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Usage, usages};

    #[test]
    fn registers_memory_and_spills_are_read_for_every_kernel() {
        let text = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'a_1' for 'sm_90'\n\
            ptxas info    : Function properties for a_1\n    \
            8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n\
            ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem\n\
            ptxas info    : Compiling entry function 'b_1' for 'sm_90'\n    \
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 12 registers, used 0 barriers\n";
        let usage = |kernel: &str, registers, shared, spills| Usage {
            kernel: kernel.into(),
            registers,
            shared,
            spills,
        };
        assert_eq!(usages(text), [usage("a_1", 255, 4096, 16), usage("b_1", 12, 0, 0)]);
    }
}
