//! Printed kernels against `spirv-val`, against snapshots, and against the clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "spirv/kernels.rs"]
mod kernels;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use olivine_kernel::spirv::{Addressing, FloatControls, SpirvOptions, print};
use olivine_kernel::*;

const EVERYTHING: FloatControls =
    FloatControls { rounding_rte: true, preserve_nan: true, denorm_preserve: true };

/// Devices and modes with pointers: what each leaves out or asks for changes what is printed.
fn options() -> Vec<(&'static str, SpirvOptions)> {
    let plain = SpirvOptions {
        addressing: Addressing::Pointers { push_bytes: 256 },
        f16_registers: true,
        ..SpirvOptions::default()
    };
    let in_memory = Addressing::Pointers { push_bytes: 8 };
    let exact =
        SpirvOptions { float16: EVERYTHING, float32: EVERYTHING, float64: EVERYTHING, ..plain.clone() };
    vec![
        ("plain", plain.clone()),
        ("exact", exact.clone()),
        ("arguments in memory", SpirvOptions { addressing: in_memory, ..exact.clone() }),
        ("checked", SpirvOptions { checked: true, ..plain.clone() }),
        ("checked, arguments in memory", SpirvOptions { checked: true, addressing: in_memory, ..exact }),
    ]
}

/// The same with bindings.
fn bindings() -> Vec<(&'static str, SpirvOptions)> {
    let narrow = |immediate_bytes, storage16| Addressing::Bindings { immediate_bytes, storage16 };
    let exact = SpirvOptions {
        addressing: narrow(128, true),
        f16_registers: true,
        float16: EVERYTHING,
        float32: EVERYTHING,
        float64: EVERYTHING,
        ..SpirvOptions::default()
    };
    let bare =
        SpirvOptions { addressing: narrow(128, false), f16_registers: true, ..SpirvOptions::default() };
    vec![
        ("bound, exact", exact.clone()),
        ("bound, no 16-bit storage", bare.clone()),
        ("bound, params in a buffer", SpirvOptions { addressing: narrow(0, true), ..exact.clone() }),
        ("bound, checked", SpirvOptions { checked: true, ..exact }),
        (
            "bound, checked, params in a buffer",
            SpirvOptions { checked: true, addressing: narrow(0, false), ..bare },
        ),
    ]
}

/// What `spirv-val` finds wrong with a module; an empty string when nothing is.
fn complaint(words: &[u32]) -> String {
    complaint_for("vulkan1.3", words)
}

fn complaint_for(environment: &str, words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut child = Command::new("spirv-val")
        .args(["--target-env", environment, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("spirv-val: {e}; it comes with `apt install spirv-tools`"));
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.success() {
        true => String::new(),
        false => format!("{}: {text}", output.status),
    }
}

fn disassemble(words: &[u32]) -> String {
    use rspirv::binary::Disassemble;
    rspirv::dr::load_words(words).unwrap_or_else(|e| panic!("the module does not parse: {e}")).disassemble()
}

#[test]
fn every_kernel_is_valid_in_every_mode() {
    for (name, options) in options() {
        for kernel in kernels::all() {
            let words = print(&kernel, &options).unwrap_or_else(|e| panic!("{}, {name}: {e}", kernel.name));
            let complaint = complaint(&words);
            assert!(complaint.is_empty(), "{}, {name}: {complaint}\n{}", kernel.name, disassemble(&words));
        }
    }
}

#[test]
fn every_kernel_is_valid_with_bounds() {
    let [plain, checked] = [options().swap_remove(0), options().swap_remove(3)];
    for (name, options) in [plain, checked, bindings().swap_remove(0), bindings().swap_remove(3)] {
        let pointers = matches!(options.addressing, Addressing::Pointers { .. });
        let of = if validator_knows_matrices() && pointers { kernels::rich().matrices } else { Vec::new() };
        for kernel in kernels::all().into_iter().chain(of.into_iter().map(kernels::matrices)) {
            let kernel = bounded(kernel, &kernels::rich()).expect("bounds");
            let words = match print(&kernel, &options) {
                Ok(words) => words,
                Err(Error::Missing(_)) if is_wide_subgroup(&kernel) => continue,
                Err(problem) => panic!("{}, {name}: {problem}", kernel.name),
            };
            let complaint = complaint(&words);
            assert!(complaint.is_empty(), "{}, {name}: {complaint}\n{}", kernel.name, disassemble(&words));
        }
    }
}

/// Arithmetic among the lanes of a subgroup on types that wgpu does not enable it for.
fn is_wide_subgroup(kernel: &Kernel) -> bool {
    kernel.values.iter().any(|d| {
        let wide = d.ty.scalar().is_some_and(|s| matches!(s.bits(), 16 | 64));
        wide && matches!(d.expr, Expr::Subgroup(op, ..) if !matches!(op, SubgroupOp::Shuffle | SubgroupOp::ShuffleXor))
    })
}

#[test]
fn every_kernel_is_valid_with_bindings() {
    for (name, options) in bindings() {
        let (wide, kernels): (Vec<_>, Vec<_>) = kernels::all().into_iter().partition(is_wide_subgroup);
        for kernel in kernels {
            let words = print(&kernel, &options).unwrap_or_else(|e| panic!("{}, {name}: {e}", kernel.name));
            // The first Vulkan with this version of SPIR-V, and the one whose rules wgpu's devices follow.
            for environment in ["vulkan1.1", "vulkan1.3"] {
                let complaint = complaint_for(environment, &words);
                let text = || disassemble(&words);
                assert!(
                    complaint.is_empty(),
                    "{}, {name}, {environment}: {complaint}\n{}",
                    kernel.name,
                    text()
                );
            }
        }
        assert_eq!(wide.len(), 4);
        for kernel in wide {
            assert!(matches!(print(&kernel, &options), Err(Error::Missing(_))), "{}", kernel.name);
        }
        // Matrices of halves bring Vulkan's memory model along; of others wgpu knows nothing.
        let storage16 = matches!(options.addressing, Addressing::Bindings { storage16: true, .. });
        for shape in kernels::rich().matrices {
            let kernel = kernels::matrices(shape);
            if shape.operand != Elem::F16 || !storage16 {
                assert!(matches!(print(&kernel, &options), Err(Error::Missing(_))), "{}", kernel.name);
                continue;
            }
            let words = print(&kernel, &options).unwrap_or_else(|e| panic!("{}, {name}: {e}", kernel.name));
            let text = disassemble(&words);
            assert!(text.contains("OpMemoryModel Logical Vulkan"), "{text}");
            if validator_knows_matrices() {
                let complaint = complaint(&words);
                assert!(complaint.is_empty(), "{}, {name}: {complaint}\n{text}", kernel.name);
            }
        }
    }
}

#[test]
fn bindings_ask_only_for_what_wgpu_enables() {
    for (name, options) in bindings() {
        for kernel in kernels::all().into_iter().filter(|k| !is_wide_subgroup(k)) {
            let text = disassemble(&print(&kernel, &options).unwrap());
            let never = ["VulkanMemoryModel", "PhysicalStorage", "8BitAccess", "Int8\n", "Int16\n"];
            for word in never {
                assert!(!text.contains(word), "{}, {name}: {word}\n{text}", kernel.name);
            }
            let storage16 = matches!(options.addressing, Addressing::Bindings { storage16: true, .. });
            assert!(storage16 || !text.contains("16BitAccess"), "{}, {name}\n{text}", kernel.name);
            let wide = kernel.values.iter().map(|d| d.ty).chain(kernel.vars.iter().copied());
            let wide = wide.filter_map(Type::scalar).any(|s| matches!(s, Scalar::I64 | Scalar::U64));
            assert!(wide || !text.contains("Int64"), "{}, {name}\n{text}", kernel.name);
        }
    }
}

#[test]
fn what_invocations_hand_each_other_through_bindings_is_coherent() {
    let (_, exact) = bindings().swap_remove(0);
    let printed = |kernel: &Kernel| disassemble(&print(kernel, &exact).unwrap());
    // AcquireRelease, WorkgroupMemory; and UniformMemory.
    let (arrays, buffers) = (0x108, 0x148);
    let both = printed(&kernels::shared(Elem::F32));
    assert!(both.contains(&format!(" {buffers}\n")) && !both.contains(&format!(" {arrays}\n")), "{both}");
    assert!(both.contains(" Coherent"), "{both}");
    let apart = printed(&kernels::reduce(&Target::plain()));
    assert!(apart.contains(&format!(" {arrays}\n")) && !apart.contains(&format!(" {buffers}\n")), "{apart}");
    assert!(!apart.contains(" Coherent"), "{apart}");
}

#[test]
fn the_validator_finds_what_is_wrong() {
    let (_, plain) = options().swap_remove(0);
    let mut words = print(&kernels::double(), &plain).unwrap();
    words.pop();
    assert!(!complaint(&words).is_empty());
}

/// Whether the installed `spirv-val` is of a year that knows cooperative f16 matrices and integers.
fn validator_knows_matrices() -> bool {
    let output = Command::new("spirv-val").arg("--version").output().expect("apt install spirv-tools");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let year = text.split_once("SPIRV-Tools v").and_then(|(_, rest)| rest.get(..4)?.parse::<u32>().ok());
    year.unwrap_or_else(|| panic!("no version in {text:?}")) >= 2024
}

#[test]
fn cooperative_matrices_are_of_the_shapes_that_kernels_ask_for() {
    for shape in kernels::rich().matrices {
        for (name, options) in options() {
            let kernel = kernels::matrices(shape);
            let words = print(&kernel, &options).unwrap_or_else(|e| panic!("{}, {name}: {e}", kernel.name));
            let text = disassemble(&words);
            let count = |what: &str| text.matches(what).count();
            assert!(count("OpCapability CooperativeMatrixKHR") == 1, "{text}");
            assert_eq!(count("OpTypeCooperativeMatrixKHR"), 3, "{text}");
            assert_eq!(count("OpCooperativeMatrixLoadKHR"), 4, "{text}");
            assert_eq!(count("OpCooperativeMatrixStoreKHR"), 2, "{text}");
            assert_eq!(count("OpCooperativeMatrixMulAddKHR"), 3, "{text}");
            let signed = count("MATRIX_A_SIGNED_COMPONENTS_KHR | MATRIX_B_SIGNED_COMPONENTS_KHR | MATRIX_C");
            assert_eq!(signed, if shape.operand == Elem::I8 { 3 } else { 0 }, "{text}");
            let bfloat = count("OpCapability BFloat16CooperativeMatrixKHR");
            assert_eq!(bfloat, usize::from(shape.operand == Elem::BF16), "{text}");
            if validator_knows_matrices() && shape.operand != Elem::BF16 {
                let complaint = complaint(&words);
                assert!(complaint.is_empty(), "{}, {name}: {complaint}\n{text}", kernel.name);
            }
        }
    }
}

#[test]
fn only_what_a_kernel_uses_is_asked_of_the_device() {
    let (_, plain) = options().swap_remove(0);
    let capabilities = |kernel: &Kernel, options: &SpirvOptions| -> Vec<String> {
        let text = disassemble(&print(kernel, options).unwrap());
        let base = ["Shader", "Int64", "VulkanMemoryModel", "PhysicalStorageBufferAddresses"];
        let all = text.lines().filter_map(|l| l.strip_prefix("OpCapability "));
        all.filter(|c| !base.contains(c)).map(str::to_owned).collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(capabilities(&kernels::copy(Elem::F32), &plain), none);
    assert_eq!(capabilities(&kernels::copy(Elem::F16), &plain), ["StorageBuffer16BitAccess"]);
    assert_eq!(
        capabilities(&kernels::copy(Elem::I8), &plain),
        ["StorageBuffer16BitAccess", "StorageBuffer8BitAccess"]
    );
    let exact = SpirvOptions { float16: EVERYTHING, ..plain.clone() };
    assert!(capabilities(&kernels::copy(Elem::F16), &exact).contains(&"Float16".to_owned()));
    let bare = SpirvOptions { f16_registers: false, ..exact };
    assert_eq!(capabilities(&kernels::copy(Elem::F16), &bare), ["StorageBuffer16BitAccess"]);
    assert_eq!(capabilities(&kernels::arithmetic(Scalar::U32), &plain), ["Float16", "Float64"]);
}

#[test]
fn barriers_order_buffers_that_are_read_and_written_and_no_others() {
    let (_, plain) = options().swap_remove(0);
    // AcquireRelease, WorkgroupMemory, MakeAvailable, MakeVisible; and UniformMemory.
    let (arrays, buffers) = (0x6108, 0x6148);
    let printed = |kernel: &Kernel| disassemble(&print(kernel, &plain).unwrap());
    let both = printed(&kernels::shared(Elem::F32));
    assert!(both.contains(&format!(" {buffers}\n")) && !both.contains(&format!(" {arrays}\n")), "{both}");
    assert!(both.contains("Aligned|NonPrivatePointer"), "{both}");
    let apart = printed(&kernels::reduce(&Target::plain()));
    assert!(apart.contains(&format!(" {arrays}\n")) && !apart.contains(&format!(" {buffers}\n")), "{apart}");
    assert!(!apart.contains("Aligned|NonPrivatePointer"), "{apart}");
}

#[test]
fn fences_release_and_acquire_buffers_for_the_device() {
    let (_, plain) = options().swap_remove(0);
    let printed = disassemble(&print(&kernels::last_arrival(), &plain).unwrap());
    // AcquireRelease, UniformMemory, MakeAvailable, MakeVisible.
    assert!(printed.contains(&format!(" {}\n", 0x6048)), "{printed}");
    assert_eq!(printed.matches("OpMemoryBarrier").count(), 4, "{printed}");
    assert!(printed.contains("Aligned|NonPrivatePointer"), "{printed}");
}

#[test]
fn what_a_device_lacks_is_refused() {
    let (_, plain) = options().swap_remove(0);
    let bare = SpirvOptions { f16_registers: false, ..plain.clone() };
    let refused = |kernel: &Kernel, options: &SpirvOptions| print(kernel, options).expect_err("a refusal");
    let missing = refused(&kernels::shared(Elem::F16), &bare);
    assert_eq!(missing, Error::Missing("workgroup memory of f16".into()));
    // The builder refuses what follows too; kernels can also be made by hand.
    let mut kernel = kernels::shared(Elem::U32);
    kernel.shared[0].elem = Elem::U8;
    assert_eq!(refused(&kernel, &plain), Error::Missing("workgroup memory of u8".into()));
    let mut kernel = kernels::arithmetic(Scalar::F64);
    let sqrt = |d: &&mut Def| matches!(d.expr, Expr::Unary(UnaryOp::Sqrt, _));
    let def = kernel.values.iter_mut().find(sqrt).unwrap();
    if let Expr::Unary(op, _) = &mut def.expr {
        *op = UnaryOp::Exp2;
    }
    assert_eq!(refused(&kernel, &plain), Error::Missing("Exp2 of f64".into()));
}

#[test]
fn kernels_that_refer_to_nothing_are_errors() {
    let (_, plain) = options().swap_remove(0);
    let broken = |break_it: &dyn Fn(&mut Kernel)| {
        let mut kernel = kernels::double();
        break_it(&mut kernel);
        assert!(matches!(print(&kernel, &plain), Err(Error::Invalid(_))));
    };
    broken(&|k| k.args.clear());
    broken(&|k| k.params.clear());
    broken(&|k| k.values.truncate(3));
    broken(&|k| k.body.push(Stmt::Set(VarId(9), Value(0))));
    broken(&|k| k.body.insert(0, Stmt::Let(Value(k.values.len() as u32 - 1))));
    broken(&|k| k.params[0].scalar = Scalar::F64);
    broken(&|k| {
        let load = k.values.iter_mut().find(|d| matches!(d.expr, Expr::Load { .. })).unwrap();
        if let Expr::Load { lanes, .. } = &mut load.expr {
            *lanes = 3;
        }
    });
}

/// Compares with a file under `tests/snapshots`; `UPDATE_SNAPSHOTS=1` writes it.
fn snapshot(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).expect("a writable snapshot");
    }
    let stored = std::fs::read_to_string(&path).expect("a snapshot; UPDATE_SNAPSHOTS=1 writes it");
    assert_eq!(stored, text, "{name} changed; UPDATE_SNAPSHOTS=1 accepts it");
}

#[test]
fn printed_kernels_stay_as_they_are() {
    let options = options();
    let text = |i: usize| disassemble(&print(&kernels::double(), &options[i].1).unwrap()) + "\n";
    snapshot("double.exact.spirv.txt", &text(1));
    snapshot("double.checked.spirv.txt", &text(3));
    let (_, checked) = bindings().swap_remove(3);
    let bound = disassemble(&print(&kernels::double(), &checked).unwrap()) + "\n";
    snapshot("double.bound.checked.spirv.txt", &bound);
}

#[test]
fn a_large_kernel_is_built_and_printed_in_no_time() {
    let (_, plain) = options().swap_remove(1);
    let mut best = f64::INFINITY;
    let mut words = 0;
    for _ in 0..10 {
        let start = Instant::now();
        let kernel = kernels::tile();
        words = print(&kernel, &plain).unwrap().len();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{words} words in {:.3} ms", best * 1e3);
    assert!(best < 10e-3, "{words} words in {:.3} ms", best * 1e3);
}
