//! A known kernel, run as PTX before anything relies on it. A driver that refuses it, computes something else, loses the
//! device or never comes back is left alone from then on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use olivine_kernel::{Access, Builder, Elem, Kernel, Reduction, Scalar, Target};
use olivine_program::{
    BufferDecl, BufferId, Commands, Content, Dispatch, Driver, Error, Program, Slice, Timing,
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

/// A kernel to be run once, and what it computes.
pub(super) struct Trial {
    pub(super) kernel: Kernel,
    pub(super) inputs: Vec<Vec<u8>>,
    /// The bytes of its last buffer.
    pub(super) expected: Vec<u8>,
    pub(super) params: Vec<u32>,
    pub(super) groups: u32,
}

/// Runs the trial on a device whose caps say that it takes PTX.
pub(crate) fn run(device: &Device) -> Outcome {
    let kernel = match kernel(&device.caps().target) {
        Ok(kernel) => kernel,
        Err(problem) => return Outcome::Wrong(problem.to_string()),
    };
    let numbers = |all: Vec<f32>| all.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    Trial {
        kernel,
        inputs: vec![numbers((0..SIDE * GROUPS).map(number).collect())],
        expected: numbers(expected()),
        params: vec![2.5f32.to_bits()],
        groups: GROUPS,
    }
    .run(device)
}

impl Trial {
    /// Runs it, with a bounded wait.
    pub(super) fn run(self, device: &Device) -> Outcome {
        match self.attempt(device) {
            Ok(found) if found == self.expected => Outcome::Right,
            Ok(_) => Outcome::Wrong("a known kernel computes something else".into()),
            Err((Error::DeviceLost { .. }, _)) => Outcome::Gone("a known kernel loses the device".into()),
            Err((problem, true)) => Outcome::Gone(problem.to_string()),
            Err((problem, false)) => Outcome::Wrong(problem.to_string()),
        }
    }

    /// What the kernel computed; or an error, and whether the kernel is still running.
    fn attempt(&self, device: &Device) -> Result<Vec<u8>, (Error, bool)> {
        let idle = |error: Error| (error, false);
        let sizes: Vec<u64> =
            self.inputs.iter().chain([&self.expected]).map(|bytes| bytes.len() as u64).collect();
        let program = Program {
            kernels: vec![Arc::new(self.kernel.clone())],
            buffers: sizes.iter().map(|b| BufferDecl { content: Content::Arena, bytes: *b }).collect(),
            ..Program::default()
        };
        let slice = |(i, bytes): (u32, &u64)| Slice { buffer: BufferId(i), offset: 0, bytes: *bytes };
        let dispatch = Dispatch {
            args: (0..).zip(&sizes).map(slice).collect(),
            params: self.params.clone().into(),
            groups: [self.groups, 1, 1],
            bytes: sizes.iter().sum(),
            ..Dispatch::default()
        };
        let pipelines = device.pipelines(&program.kernels, false).map_err(idle)?;
        if pipelines.iter().any(|p| p.ptx.is_none()) {
            let problem = "the driver does not assemble a known kernel".into();
            return Err(idle(Error::Driver { call: "vkCreateCuModuleNVX", problem }));
        }
        let allocate = |bytes: &u64| device.allocate(*bytes, "trial");
        let buffers = sizes.iter().map(allocate).collect::<Result<Vec<_>, _>>().map_err(idle)?;
        for (buffer, bytes) in buffers.iter().zip(&self.inputs) {
            device.write(buffer, 0, bytes).map_err(idle)?;
        }
        let bound: Vec<_> = buffers.iter().cloned().map(Some).collect();
        let mut recording = device
            .record(&Commands {
                program: &program,
                dispatches: &[dispatch],
                pipelines: &pipelines,
                buffers: &bound,
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
            std::mem::forget((buffers, bound, pipelines));
            return Err((error, true));
        }
        device.wait(&mut recording).map_err(idle)?;
        let mut found = vec![0; self.expected.len()];
        if let Some(last) = buffers.last() {
            device.read(last, 0, &mut found).map_err(idle)?;
        }
        Ok(found)
    }
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
