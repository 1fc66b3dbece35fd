//! How many kernels and dispatches a layer becomes.

use olivine_compile::{Options, compile};
use olivine_ir::op::{Direction, Recurrent, RecurrentKind, RecurrentLayer};
use olivine_ir::{DType, Graph};
use olivine_kernel::Target;

use olivine_gpu::{Addressing, DeviceCaps, DeviceKind, Program, Record, lower};

type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn program(spec: Recurrent, sequence: usize) -> Fallible<Program> {
    let target = Target { subgroup: Some(32), max_invocations: 1024, shared_bytes: 49152, ..Target::plain() };
    let caps = DeviceCaps {
        name: "a device".into(),
        driver: "a driver".into(),
        kind: DeviceKind::Discrete,
        target,
        addressing: Addressing::Pointers,
        max_groups: [65535; 3],
        max_buffer_bytes: 1 << 32,
        memory_bytes: 1 << 34,
        processors: None,
        keeps_denormals: true,
        ptx: None,
    };
    let (hidden, dirs) = (512, spec.direction.count());
    let rows = spec.kind.gates() * hidden;
    let mut g = Graph::new("layer");
    let x = g.input("x", DType::F32, [sequence, 16, hidden])?;
    let w = g.param("w", DType::F32, [dirs, rows, hidden])?;
    let r = g.param("r", DType::F32, [dirs, rows, hidden])?;
    let bias = Some(g.param("b", DType::F32, [dirs, 2 * rows])?);
    let results = g.recurrent(spec, x, &RecurrentLayer { bias, ..RecurrentLayer::new(w, r) }, None)?;
    for (i, id) in results.iter().enumerate() {
        g.output(&format!("y{i}"), *id)?;
    }
    Ok(lower(&compile(&g, &Options::default())?, &caps, &Record::new(), &[])?)
}

/// Dispatches of a run and the kernels among them, by operation.
fn count(program: &Program, op: &str) -> (usize, usize) {
    let all: Vec<_> = program.run.iter().filter(|d| d.op == op).collect();
    let mut kernels: Vec<_> = all.iter().map(|d| d.kernel).collect();
    kernels.sort();
    kernels.dedup();
    (all.len(), kernels.len())
}

#[test]
fn every_step_is_one_dispatch_of_one_kernel_after_one_matmul() -> Fallible {
    for direction in [Direction::Forward, Direction::Bidirectional] {
        let program = program(Recurrent::new(RecurrentKind::Lstm, direction), 256)?;
        assert_eq!(count(&program, "recurrence"), (256, 1));
        assert_eq!(count(&program, "matmul").0, 1);
        let steps: Vec<u32> =
            program.run.iter().filter(|d| d.op == "recurrence").map(|d| d.params[0]).collect();
        assert_eq!(steps, (0..256).collect::<Vec<u32>>());
    }
    Ok(())
}

#[test]
fn a_gru_that_resets_before_its_matmul_takes_two_dispatches_to_a_step() -> Fallible {
    let before = Recurrent::new(RecurrentKind::Gru, Direction::Forward);
    let after = Recurrent { reset_after: true, ..before.clone() };
    assert_eq!(count(&program(before, 7)?, "recurrence"), (14, 2));
    // The bias that the reset gate acts on is copied out of the midst of the others, once, at load.
    let after = program(after, 7)?;
    assert_eq!(count(&after, "recurrence"), (7, 1));
    assert_eq!(after.load.iter().filter(|d| d.op == "recurrence").count(), 1);
    Ok(())
}

#[test]
fn another_length_of_sequence_needs_no_other_kernel() -> Fallible {
    let kernels = |sequence| -> Fallible<Vec<u128>> {
        let program = program(Recurrent::new(RecurrentKind::Lstm, Direction::Reverse), sequence)?;
        let all = program.run.iter().filter(|d| d.op == "recurrence");
        let mut hashes: Vec<u128> = all.map(|d| program.kernel(d).content_hash()).collect();
        hashes.dedup();
        Ok(hashes)
    };
    assert_eq!(kernels(5)?, kernels(64)?);
    Ok(())
}
