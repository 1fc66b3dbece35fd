//! A known kernel, run as PTX before anything relies on it. A driver that refuses it, computes something else, loses the
//! device or never comes back is left alone from then on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use olivine_kernel::{Access, Builder, Elem, Kernel, Reduction, Scalar, Target};
use olivine_program::{
    BufferDecl, BufferId, Commands, Content, Dispatch, Driver, Error, KernelId, Program, Slice, Timing,
};

use crate::Device;
use crate::record::Recording;

/// Threads, and elements, of a workgroup.
const SIDE: u32 = 64;
const GROUPS: u32 = 3;

/// How long the kernel may take: it takes microseconds, and a driver that is busy with other work is not wrong.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of the trial.
pub(crate) enum Outcome {
    Right,
    /// What was wrong; the device can still be used.
    Wrong(String),
    /// The device was lost, or does not come back: it must be given up.
    Gone(String),
}

/// Adds the sum of the workgroup's numbers, through workgroup memory and subgroups, to each of them times a parameter.
fn kernel(target: &Target) -> Result<Kernel, olivine_kernel::Error> {
    let k = Builder::new("ptx_trial", SIDE, target);
    let (x, y) = (k.arg("x", Elem::F32, Access::Read), k.arg("y", Elem::F32, Access::Write));
    let factor = k.param("factor", Scalar::F32);
    let i = k.group_id(0) * SIDE + k.local_index();
    let sum = k.group_reduce(x.load(i), Reduction::Add);
    y.store(i, x.load(i) * factor + sum);
    k.finish()
}

/// Small integers, so that sums are exact in any order.
fn number(i: u32) -> f32 {
    (i * 7 % 31) as f32 - 11.0
}

fn expected() -> Vec<f32> {
    let sum = |group: u32| (group * SIDE..(group + 1) * SIDE).map(number).sum::<f32>();
    (0..SIDE * GROUPS).map(|i| number(i) * 2.5 + sum(i / SIDE)).collect()
}

/// Runs the trial on a device whose caps say that it takes PTX.
pub(crate) fn run(device: &Device) -> Outcome {
    match attempt(device) {
        Ok(found) if found == expected() => Outcome::Right,
        Ok(_) => Outcome::Wrong("a known kernel computes something else".into()),
        Err((Error::DeviceLost { .. }, _)) => Outcome::Gone("a known kernel loses the device".into()),
        Err((problem, true)) => Outcome::Gone(problem.to_string()),
        Err((problem, false)) => Outcome::Wrong(problem.to_string()),
    }
}

/// What the kernel computed; or an error, and whether the kernel is still running.
fn attempt(device: &Device) -> Result<Vec<f32>, (Error, bool)> {
    let idle = |error: Error| (error, false);
    let kernel = kernel(&device.caps().target)
        .map_err(|source| idle(Error::Kernel { kernel: "ptx_trial".into(), source }))?;
    let bytes = u64::from(SIDE * GROUPS * 4);
    let program = Program {
        kernels: vec![Arc::new(kernel)],
        buffers: [0, 1].map(|_| BufferDecl { content: Content::Arena, bytes }).to_vec(),
        ..Program::default()
    };
    let slice = |i| Slice { buffer: BufferId(i), offset: 0, bytes };
    let dispatch = Dispatch {
        kernel: KernelId(0),
        args: vec![slice(0), slice(1)],
        params: vec![2.5f32.to_bits()],
        groups: [GROUPS, 1, 1],
        indirect: None,
        op: "",
        node: String::new(),
        flops: 0,
        bytes,
    };
    let pipelines = device.pipelines(&program.kernels, false).map_err(idle)?;
    if pipelines.iter().any(|p| p.ptx.is_none()) {
        let problem = "the driver does not assemble a known kernel".into();
        return Err(idle(Error::Driver { call: "vkCreateCuModuleNVX", problem }));
    }
    let buffers = [device.allocate(bytes, "x").map_err(idle)?, device.allocate(bytes, "y").map_err(idle)?];
    let numbers: Vec<u8> = (0..SIDE * GROUPS).flat_map(|i| number(i).to_le_bytes()).collect();
    device.write(&buffers[0], 0, &numbers).map_err(idle)?;
    let mut recording = device
        .record(&Commands {
            program: &program,
            dispatches: &[dispatch],
            pipelines: &pipelines,
            buffers: &buffers.clone().map(Some),
            uploads: &[],
            downloads: &[],
            timing: Timing::Off,
            checked: false,
        })
        .map_err(idle)?;
    device.submit(&mut recording).map_err(idle)?;
    if let Err(error) = within(device, &recording, PATIENCE) {
        // What is in flight cannot be freed, and to wait for it is to hang.
        std::mem::forget(recording);
        std::mem::forget((buffers, pipelines));
        return Err((error, true));
    }
    device.wait(&mut recording).map_err(idle)?;
    let mut found = vec![0; bytes as usize];
    device.read(&buffers[1], 0, &mut found).map_err(idle)?;
    Ok(found.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// Waits for a recording, but not for ever.
fn within(device: &Device, recording: &Recording, patience: Duration) -> Result<(), Error> {
    let began = Instant::now();
    while !device.is_done(recording)? {
        if began.elapsed() > patience {
            let problem = format!("a known kernel does not end within {} s", patience.as_secs());
            return Err(Error::Driver { call: "vkCmdCuLaunchKernelNVX", problem });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
