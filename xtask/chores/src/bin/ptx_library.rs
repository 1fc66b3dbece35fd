//! Writes the PTX of the kernels that the table of cases lowers to on a large NVIDIA card: `cargo xtask ptx` assembles it.
//!
//! `ptx_library FOLDER ONE_IN CAPABILITY…`: into FOLDER, modules of many kernels each, of every kernel's name once and of one
//! kernel in ONE_IN besides, for compute capabilities such as 9.0; for that one, the matmuls by warpgroups too.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use olivine::internals::compile::{Options, compile};
use olivine::internals::gpu::{Addressing, DeviceCaps, DeviceKind, Program, Record, lower};
use olivine::ir::op::{Attention, HeadLayout};
use olivine::ir::{self, DType, Graph};
use olivine_cases::{attention_cases, table};
use olivine_kernel::ptx::{self, Capability, PtxOptions};
use olivine_kernel::{Elem, Fragments, Kernel, MatrixShape, Target};

/// Kernels of one module: enough that starting the assembler costs little, few enough that two processes share the work.
const MODULE: usize = 24;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, one_in, capabilities @ ..] = args.as_slice() else {
        eprintln!("ptx_library FOLDER ONE_IN CAPABILITY…");
        return ExitCode::from(2);
    };
    match write(Path::new(folder), one_in, capabilities) {
        Ok(count) => {
            println!("{count} kernels printed");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// A card with 132 multiprocessors, as its driver describes it.
fn large_card() -> DeviceCaps {
    let shape = |operand, accumulator, n, k| MatrixShape { operand, accumulator, m: 16, n, k };
    let target = Target {
        subgroup: Some(32),
        f16: true,
        exact_f16: true,
        f64: true,
        i64: true,
        packed_dot: true,
        device_fences: true,
        shared_bytes: 48 << 10,
        max_invocations: 1024,
        matrices: vec![
            shape(Elem::F16, Elem::F32, 16, 16),
            shape(Elem::F16, Elem::F16, 16, 16),
            shape(Elem::F16, Elem::F32, 8, 16),
            shape(Elem::BF16, Elem::F32, 16, 16),
            shape(Elem::I8, Elem::I32, 16, 32),
            shape(Elem::U8, Elem::U32, 16, 32),
        ],
        fragments: Some(Fragments::Quads),
        ..Target::plain()
    };
    DeviceCaps {
        name: "a large card".into(),
        driver: "none".into(),
        kind: DeviceKind::Discrete,
        target,
        addressing: Addressing::Pointers,
        max_groups: [65535; 3],
        max_buffer_bytes: 1 << 32,
        memory_bytes: 1 << 37,
        processors: Some(132),
        keeps_denormals: true,
        ptx: None,
    }
}

/// The kernels of all cases, each once, in the order of the table.
fn kernels(one_in: usize) -> Result<Vec<Arc<Kernel>>, String> {
    let caps = large_card();
    let (mut seen, mut names, mut chosen) = (HashSet::new(), HashSet::new(), Vec::new());
    for case in table().into_iter().chain(attention_cases(60, 7)) {
        let graph = case.graph().map_err(|e| format!("{}: {e}", case.name))?;
        let compiled = compile(&graph, &Options::default()).map_err(|e| format!("{}: {e}", case.name))?;
        // Some cases are refused on purpose.
        let Ok(program) = lower(&compiled, &caps, &Record::new(), &[]) else { continue };
        for kernel in program.kernels {
            let fresh = seen.insert(kernel.content_hash());
            if fresh && (names.insert(kernel.name.clone()) || seen.len() % one_in == 0) {
                chosen.push(kernel);
            }
        }
    }
    Ok(chosen)
}

/// The program where a record of the tuner has a configuration wherever it is a candidate and warpgroups are not the default.
fn preferring(config: &str, graph: &Graph, caps: &DeviceCaps) -> Result<Program, String> {
    let compiled = compile(graph, &Options::default()).map_err(|e| e.to_string())?;
    let lowered = |record: &Record| lower(&compiled, caps, record, &[]).map_err(|e| e.to_string());
    let mut record = Record::new();
    for decision in lowered(&record)?.decisions {
        let other = !decision.default.starts_with("warpgroup");
        if other && decision.candidates.iter().any(|candidate| candidate == config) {
            record.set(decision.family, &decision.class, config);
        }
    }
    lowered(&record)
}

/// Matmuls that are by warpgroups: all types, both ways of A, every kind of epilogue, and zero points.
fn warpgroup_kernels() -> Result<Vec<Arc<Kernel>>, String> {
    let mut caps = large_card();
    caps.target.warpgroups = true;
    caps.target.int8_warpgroups = true;
    caps.ptx = Some(Capability::HOPPER);
    let (mut seen, mut chosen) = (HashSet::new(), Vec::new());
    let mut take = |graph: Graph, what: String| -> Result<(), String> {
        let program = preferring("warpgroup packed", &graph, &caps)?;
        if !program.kernels.iter().any(|kernel| kernel.has_warpgroups()) {
            return Err(format!("{what} is not by warpgroups"));
        }
        let fresh = program.kernels.into_iter().filter(|k| seen.insert(k.content_hash()));
        chosen.extend(fresh.filter(|kernel| kernel.name.starts_with("matmul_warpgroup")));
        Ok(())
    };
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        // Rows in aligned blocks, rows that are packed in every run, and results that no vector holds.
        for [m, n, k] in [[4096, 4096, 4096], [4096, 4096, 4001], [4096, 4097, 1024]] {
            for end in ["plain", "bias", "gelu", "residual", "batches"] {
                let graph = matmul(dtype, [m, n, k], end).map_err(|e| e.to_string())?;
                take(graph, format!("{end} of {dtype} {m}x{n}x{k}"))?;
            }
        }
    }
    use DType::{I8, U8};
    for dtypes in [[I8, I8], [U8, I8], [I8, U8], [U8, U8]] {
        for [m, n, k] in [[4096, 4096, 4096], [4096, 4097, 768]] {
            for zeros in [[None, None], [Some(false), None], [None, Some(false)], [Some(true), Some(true)]] {
                let graph = integers(dtypes, [m, n, k], zeros).map_err(|e| e.to_string())?;
                take(graph, format!("{dtypes:?} {m}x{n}x{k} with {zeros:?}"))?;
            }
        }
    }
    Ok(chosen)
}

/// Attentions that are by warpgroups where the device's record says so: both types, narrow and wide heads, and every kind of score.
fn attention_kernels() -> Result<Vec<Arc<Kernel>>, String> {
    let mut caps = large_card();
    caps.target.warpgroups = true;
    caps.ptx = Some(Capability::HOPPER);
    let plain = Attention::new(HeadLayout::Bhsd);
    let specs = [
        plain.clone(),
        Attention { causal: true, ..plain.clone() },
        Attention { softcap: Some(20.0), window: Some(1000), ..plain },
    ];
    let mut chosen = Vec::new();
    for (dtype, dim) in [(DType::F16, 64), (DType::F16, 128), (DType::BF16, 128), (DType::F16, 72)] {
        for spec in &specs {
            let graph = attention(dtype, dim, spec).map_err(|e| e.to_string())?;
            let kernels = preferring("warpgroups", &graph, &caps)?.kernels;
            if !kernels.iter().any(|kernel| kernel.has_warpgroups()) {
                return Err(format!("attention of {dtype} with heads of {dim} is not by warpgroups"));
            }
            chosen.extend(kernels.into_iter().filter(|k| k.name.starts_with("attention_warpgroup")));
        }
    }
    Ok(chosen)
}

fn attention(dtype: DType, dim: usize, spec: &Attention) -> Result<Graph, ir::Error> {
    let mut g = Graph::new("attention");
    let q = g.input("q", dtype, [1, 32, 4096, dim])?;
    let (k, v) = (g.input("k", dtype, [1, 8, 4096, dim])?, g.input("v", dtype, [1, 8, 4096, dim])?);
    let y = g.attention(spec.clone(), q, k, v, &[])?;
    g.output("y", y)?;
    Ok(g)
}

/// `x · w` of integers; zero points are one for all, or one to a row and column.
fn integers(dtypes: [DType; 2], [m, n, k]: [usize; 3], zeros: [Option<bool>; 2]) -> Result<Graph, ir::Error> {
    let mut g = Graph::new("integers");
    let (x, w) = (g.input("x", dtypes[0], [m, k])?, g.param("w", dtypes[1], [k, n])?);
    let mut zero = |name: &str, i: usize, count: usize| {
        let dims = |each: bool| if each { vec![count] } else { Vec::new() };
        zeros[i].map(|each| g.input(name, dtypes[i], dims(each).as_slice())).transpose()
    };
    let (p, q) = (zero("p", 0, m)?, zero("q", 1, n)?);
    let y = g.qmatmul(x, w, p, q)?;
    g.output("y", y)?;
    Ok(g)
}

/// `x · w` and what becomes of it.
fn matmul(dtype: DType, [m, n, k]: [usize; 3], end: &str) -> Result<Graph, ir::Error> {
    let mut g = Graph::new(end);
    let y = if end == "batches" {
        let (x, w) = (g.input("x", dtype, [3, m, k])?, g.input("w", dtype, [3, k, n])?);
        g.matmul(x, w)?
    } else {
        let (x, w) = (g.input("x", dtype, [m, k])?, g.param("w", dtype, [k, n])?);
        g.matmul(x, w)?
    };
    let bias = g.param("b", dtype, [n])?;
    let y = match end {
        "bias" => g.add(y, bias)?,
        "gelu" => {
            let y = g.add(y, bias)?;
            g.gelu(y)?
        }
        "residual" => {
            let z = g.input("z", dtype, [m, n])?;
            let y = g.add(y, bias)?;
            g.add(y, z)?
        }
        _ => y,
    };
    g.output("y", y)?;
    Ok(g)
}

fn write(folder: &Path, one_in: &str, capabilities: &[String]) -> Result<usize, String> {
    let one_in = one_in.parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("`{one_in}` is no number"))?;
    let kernels = kernels(one_in)?;
    for capability in capabilities {
        let parsed = capability.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (major, minor) = parsed.ok_or_else(|| format!("`{capability}` is no compute capability"))?;
        let options = PtxOptions { capability: Capability { major, minor } };
        if options.capability == Capability::HOPPER {
            // A module each: the assembler takes long for them, and says of a module what it does not like.
            let kernels = warpgroup_kernels()?.into_iter().chain(attention_kernels()?);
            for (i, kernel) in kernels.enumerate() {
                let file = folder.join(format!("sm_{major}{minor}a-{i:03}.ptx"));
                let text = module(&[kernel], &options)?;
                std::fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
            }
        }
        for (i, some) in kernels.chunks(MODULE).enumerate() {
            let file = folder.join(format!("sm_{major}{minor}-{i:03}.ptx"));
            let text = module(some, &options)?;
            std::fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        }
    }
    Ok(kernels.len())
}

/// Several kernels as one module, the entry point of each named after it.
fn module(kernels: &[Arc<Kernel>], options: &PtxOptions) -> Result<String, String> {
    let mut text = String::new();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for kernel in kernels {
        let printed = ptx::print(kernel, options).map_err(|e| format!("{}: {e}", kernel.name))?;
        let name: String =
            kernel.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let count = counts.entry(name.clone()).or_insert(0);
        *count += 1;
        let entry = format!(".entry {}(", ptx::ENTRY);
        let (head, body) = printed.split_once("\n\n").ok_or("a module without a head")?;
        if text.is_empty() {
            text.push_str(head);
        }
        text.push_str("\n\n");
        text.push_str(&body.replacen(&entry, &format!(".entry {name}_{count}("), 1));
    }
    Ok(text)
}
