//! Cooperative matrices of drivers that get them wrong, each in its own way: programs do without them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use olivine_gpu::{
    Commands, DeviceCaps, Dispatch, Driver, Error, KernelSource, Program, Record, lower, proven, try_matrices,
};
use olivine_ir::{DType, Graph};
use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::{Def, Elem, Expr, Kernel, MatrixShape, MatrixSupport, Scalar, Stmt, Target, Type};

use crate::mock::{caps, compiled};

/// What a driver makes of matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Factors are read in the other order.
    LoadsTurned,
    /// Results are written in the other order.
    StoresTurned,
    /// B·A, where both are square.
    Swaps,
    /// Every product is zero.
    Zero,
    /// What was there is forgotten.
    Forgets,
    /// What was there is added by itself, and never the product.
    Skips,
    /// Bytes have the other sign.
    Signs,
}

/// A driver that runs kernels by the interpreter.
struct Played {
    caps: DeviceCaps,
    fault: Fault,
    /// Whether the next wait finds the device gone.
    lost: AtomicBool,
    submitted: AtomicUsize,
}

type Bytes = Arc<Mutex<Vec<u8>>>;

struct Recorded {
    kernels: Vec<Arc<Kernel>>,
    dispatches: Vec<Dispatch>,
    buffers: Vec<Option<Bytes>>,
    downloads: Vec<usize>,
}

fn card(name: &str, fault: Fault, matrices: &[MatrixShape]) -> Arc<Played> {
    let mut caps = caps(1 << 40);
    caps.name = name.into();
    caps.target = Target {
        subgroup: Some(32),
        f16: true,
        matrices: matrices.to_vec(),
        max_invocations: 1024,
        shared_bytes: 49152,
        ..Target::plain()
    };
    Arc::new(Played { caps, fault, lost: AtomicBool::new(false), submitted: AtomicUsize::new(0) })
}

impl Fault {
    /// The kernel as such a driver understands it.
    fn of(self, kernel: &Kernel) -> Kernel {
        let mut kernel = kernel.clone();
        if self == Fault::StoresTurned {
            for stmt in &mut kernel.body {
                if let Stmt::StoreMatrix { layout, .. } = stmt {
                    layout.column_major = !layout.column_major;
                }
            }
        }
        let zero = kernel.values.iter().position(|d| d.expr == Expr::Const(Scalar::U32, 0));
        let side = |d: &Def| match d.ty {
            Type::Matrix(m) => (m.rows == m.columns).then_some(m.rows),
            _ => None,
        };
        let matrices = kernel.values.iter().filter(|d| matches!(d.ty, Type::Matrix(_)));
        let square = matrices.map(side).reduce(|a, b| a.filter(|_| a == b)).flatten().is_some();
        for i in 0..kernel.values.len() {
            let ty = kernel.values[i].ty;
            let starts = kernel.values.iter().position(|d| matches!(d.expr, Expr::MatrixSplat(..)));
            match &mut kernel.values[i].expr {
                Expr::MatrixLoad { layout, .. } if self == Fault::LoadsTurned => {
                    layout.column_major = !layout.column_major;
                }
                Expr::MatrixLoad { ty, .. } if self == Fault::Signs => {
                    ty.elem = match ty.elem {
                        Elem::I8 => Elem::U8,
                        Elem::U8 => Elem::I8,
                        other => other,
                    };
                    let now = *ty;
                    kernel.values[i].ty = Type::Matrix(now);
                }
                Expr::MatrixMulAdd(a, b, _) if self == Fault::Swaps && square => std::mem::swap(a, b),
                Expr::MatrixMulAdd(_, _, c) if self == Fault::Forgets => {
                    *c = olivine_kernel::Value(starts.unwrap() as u32);
                }
                expr @ Expr::MatrixMulAdd(..) => {
                    let (Expr::MatrixMulAdd(_, _, c), Type::Matrix(m)) = (expr.clone(), ty) else { continue };
                    match self {
                        // 0 as an integer is 0 as a float.
                        Fault::Zero => {
                            *expr = Expr::MatrixSplat(m, olivine_kernel::Value(zero.unwrap() as u32));
                        }
                        Fault::Skips => *expr = Expr::MatrixBinary(olivine_kernel::BinaryOp::Add, c, c),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        kernel
    }
}

impl Driver for Played {
    type Buffer = Mutex<Vec<u8>>;
    type Pipeline = ();
    type Recording = Recorded;

    fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    fn allocate(&self, bytes: u64, _: &str) -> Result<Bytes, Error> {
        Ok(Arc::new(Mutex::new(vec![0xff; bytes as usize])))
    }

    fn write(&self, buffer: &Bytes, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        buffer.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, buffer: &Bytes, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        into.copy_from_slice(&buffer.lock().unwrap()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn copy(&self, from: &Bytes, to: &Bytes, bytes: u64) -> Result<(), Error> {
        let copied = from.lock().unwrap()[..bytes as usize].to_vec();
        self.write(to, 0, &copied)
    }

    fn pipelines(&self, kernels: &[Arc<Kernel>], _: bool) -> Result<Vec<Arc<()>>, Error> {
        Ok(kernels.iter().map(|_| Arc::new(())).collect())
    }

    fn record(&self, commands: Commands<'_, Self>) -> Result<Recorded, Error> {
        Ok(Recorded {
            kernels: commands.program.kernels.clone(),
            dispatches: commands.dispatches.to_vec(),
            buffers: commands.buffers.to_vec(),
            downloads: commands.downloads.iter().map(|(id, _)| id.0 as usize).collect(),
        })
    }

    fn upload(&self, _: &mut Recorded, _: usize, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn submit(&self, recording: &mut Recorded) -> Result<(), Error> {
        self.submitted.fetch_add(1, SeqCst);
        for d in &recording.dispatches {
            let kernel = self.fault.of(&recording.kernels[d.kernel.0 as usize]);
            let memory = |i: usize| recording.buffers[i].as_ref().unwrap();
            let mut buffers: Vec<Vec<u8>> = (d.args.iter())
                .map(|s| {
                    memory(s.buffer.0 as usize).lock().unwrap()[s.offset as usize..][..s.bytes as usize]
                        .to_vec()
                })
                .collect();
            let ran = interpret(&kernel, 32, d.groups, &mut buffers, &d.params, Device::EXACT);
            // A driver that is so wrong that it reads past the end gives whatever is there.
            match ran {
                Err(problem) if self.fault == Fault::None => panic!("{problem}"),
                _ => {}
            }
            for (slice, bytes) in d.args.iter().zip(buffers) {
                self.write(memory(slice.buffer.0 as usize), slice.offset, &bytes)?;
            }
        }
        Ok(())
    }

    fn is_done(&self, _: &Recorded) -> Result<bool, Error> {
        Ok(true)
    }

    fn wait(&self, _: &mut Recorded) -> Result<(), Error> {
        if self.lost.swap(false, SeqCst) { Err(Error::DeviceLost { during: None }) } else { Ok(()) }
    }

    fn download(&self, recording: &mut Recorded, i: usize, into: &mut [u8]) -> Result<(), Error> {
        self.read(recording.buffers[recording.downloads[i]].as_ref().unwrap(), 0, into)
    }

    fn times(&self, _: &mut Recorded) -> Result<Vec<(Duration, Duration)>, Error> {
        Ok(Vec::new())
    }

    fn source(&self, kernel: &Kernel, _: bool) -> Result<KernelSource, Error> {
        let words = olivine_kernel::spirv::print(kernel, &Default::default());
        words.map(KernelSource::Spirv).map_err(|source| Error::Kernel { kernel: kernel.name.clone(), source })
    }
}

const F16_SHAPE: MatrixShape =
    MatrixShape { operand: Elem::F16, accumulator: Elem::F32, m: 16, n: 16, k: 16 };

/// Every shape that devices are known to offer.
fn offered() -> Vec<MatrixShape> {
    let shape = |operand, accumulator, [m, n, k]: [u32; 3]| MatrixShape { operand, accumulator, m, n, k };
    let mut shapes = vec![shape(Elem::BF16, Elem::F32, [16, 16, 16])];
    for accumulator in [Elem::F16, Elem::F32] {
        for sizes in [[16, 16, 16], [16, 8, 16], [16, 8, 8], [8, 16, 16], [8, 8, 8], [32, 8, 16]] {
            shapes.push(shape(Elem::F16, accumulator, sizes));
        }
    }
    for (operand, accumulator) in [(Elem::I8, Elem::I32), (Elem::U8, Elem::U32), (Elem::U8, Elem::I32)] {
        for sizes in [[16, 16, 32], [16, 8, 32], [16, 16, 16]] {
            shapes.push(shape(operand, accumulator, sizes));
        }
    }
    shapes
}

fn matmul(driver: &Arc<Played>) -> Result<Program, Error> {
    matmul_of(driver, DType::F16)
}

fn matmul_of(driver: &Arc<Played>, dtype: DType) -> Result<Program, Error> {
    let mut g = Graph::new("product");
    let x = g.input("x", dtype, [512, 512]).unwrap();
    let w = g.input("w", dtype, [512, 512]).unwrap();
    let y = g.matmul(x, w).unwrap();
    g.output("y", y).unwrap();
    let compiled = compiled(&g);
    proven(driver, |caps| lower(&compiled, caps, &Record::new(), &[]))
}

fn multiplies_matrices(program: &Program) -> bool {
    let of = |k: &Arc<Kernel>| k.values.iter().any(|d| matches!(d.expr, Expr::MatrixMulAdd(..)));
    program.kernels.iter().any(of)
}

#[test]
fn every_offered_shape_passes_on_a_driver_that_is_right() {
    let driver = card("a right driver", Fault::None, &offered());
    let findings = try_matrices(&driver).unwrap();
    assert_eq!(findings.len(), offered().len());
    assert!(findings.iter().all(|f| f.problem.is_none()), "{findings:?}");
}

#[test]
fn every_way_of_being_wrong_is_noticed_for_every_shape() {
    use Fault::*;
    for fault in [LoadsTurned, StoresTurned, Swaps, Zero, Forgets, Skips, Signs] {
        let driver = card(&format!("a driver that has {fault:?}"), fault, &offered());
        for finding in try_matrices(&driver).unwrap() {
            let byte = matches!(finding.shape.operand, Elem::I8 | Elem::U8);
            let MatrixShape { m, n, k, .. } = finding.shape;
            let affected = match fault {
                Signs => byte,
                Swaps => m == n && n == k,
                _ => true,
            };
            assert_eq!(finding.problem.is_some(), affected, "{fault:?}: {finding}");
        }
    }
}

/// What Metal offers through wgpu.
fn metal(name: &str, fault: Fault) -> Arc<Played> {
    let shapes = [(Elem::F32, Elem::F32), (Elem::F16, Elem::F16), (Elem::F16, Elem::F32)]
        .map(|(operand, accumulator)| MatrixShape { operand, accumulator, m: 8, n: 8, k: 8 });
    let mut device = card(name, fault, &shapes);
    let played = Arc::get_mut(&mut device).unwrap();
    played.caps.target.matrix_support = MatrixSupport::Basic;
    played.caps.target.shared_bytes = 32768;
    device
}

#[test]
fn basic_matrices_pass_and_every_way_of_being_wrong_is_noticed() {
    use Fault::*;
    let findings = try_matrices(&metal("a right Metal", None)).unwrap();
    assert_eq!(findings.len(), 3);
    assert!(findings.iter().all(|f| f.problem.is_none()), "{findings:?}");
    for fault in [LoadsTurned, StoresTurned, Swaps, Zero, Forgets, Skips] {
        let driver = metal(&format!("a Metal that has {fault:?}"), fault);
        for finding in try_matrices(&driver).unwrap() {
            assert!(finding.problem.is_some(), "{fault:?}: {finding}");
        }
    }
}

#[test]
fn matmuls_of_f32_and_f16_use_basic_matrices_until_they_are_wrong() {
    for dtype in [DType::F16, DType::F32] {
        let right = metal("a Metal that multiplies", Fault::None);
        assert!(multiplies_matrices(&matmul_of(&right, dtype).unwrap()), "{dtype}");
        let wrong = metal("a Metal that is wrong", Fault::LoadsTurned);
        assert!(!multiplies_matrices(&matmul_of(&wrong, dtype).unwrap()), "{dtype}");
    }
}

#[test]
fn a_wrong_shape_is_left_out_and_the_program_lowered_again() {
    olivine_cases::warnings();
    let right = card("a right card", Fault::None, &[F16_SHAPE]);
    assert!(multiplies_matrices(&matmul(&right).unwrap()));
    let wrong = card("a wrong card", Fault::LoadsTurned, &[F16_SHAPE]);
    assert!(!multiplies_matrices(&matmul(&wrong).unwrap()));
    let warned: Vec<String> =
        olivine_cases::warnings().into_iter().filter(|w| w.contains("wrong card")).collect();
    assert_eq!(warned.len(), 1);
    assert!(warned[0].contains("f16 16x16x16 into f32 are not used"), "{warned:?}");
}

#[test]
fn a_shape_is_tried_once_in_a_process_and_only_when_a_program_has_it() {
    let driver = card("a card asked twice", Fault::None, &offered());
    let mut g = Graph::new("sum");
    let x = g.input("x", DType::F16, [8]).unwrap();
    let y = g.add(x, x).unwrap();
    g.output("y", y).unwrap();
    proven(&driver, |caps| lower(&compiled(&g), caps, &Record::new(), &[])).unwrap();
    assert_eq!(driver.submitted.load(SeqCst), 0);
    matmul(&driver).unwrap();
    matmul(&driver).unwrap();
    assert_eq!(driver.submitted.load(SeqCst), 1);
}

#[test]
fn a_lost_device_is_an_error_and_no_verdict() {
    let driver = card("a card that is lost", Fault::None, &[F16_SHAPE]);
    driver.lost.store(true, SeqCst);
    assert!(matches!(matmul(&driver), Err(Error::DeviceLost { .. })));
    assert!(multiplies_matrices(&matmul(&driver).unwrap()));
}
