//! What a device can do, as plain data: lowering reads nothing else of it.

use olivine_ir::Dim;
use olivine_kernel::Target;
use olivine_kernel::ptx::Capability;

/// What every value in device memory is aligned to, whatever the device asks: wide loads never straddle cache lines.
pub const ALIGNMENT: usize = 64;

/// How kernels reach their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// By 64-bit address: any number of buffers of any size, at any offset.
    Pointers,
    /// By bindings of ranges.
    Bindings {
        /// Offsets are multiples of this.
        alignment: u32,
        /// Bytes of one binding.
        max_bytes: u64,
        /// Bindings of one kernel.
        max_count: u32,
        /// Whether ranges bound in one dispatch may overlap when one is written (not in browsers).
        overlap: bool,
    },
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DeviceKind {
    Discrete,
    Integrated,
    Virtual,
    /// A software GPU.
    Cpu,
    Other,
}

/// A GPU's position in the order of devices; the least is the best. The class is 0 for discrete GPUs, then integrated,
/// virtual and other ones, and [`SOFTWARE_CLASS`] for software GPUs; of one class, more memory is better.
pub type DeviceOrder = (u8, std::cmp::Reverse<u64>);

/// The class of software GPUs, after that of the processor itself.
pub const SOFTWARE_CLASS: u8 = 5;

/// The class of the processor itself: after every GPU that is one, before those in software.
pub const PROCESSOR_CLASS: u8 = 4;

/// Where a GPU comes in the order that all lists of devices and all choices of one use.
pub fn device_order(kind: DeviceKind, memory_bytes: u64) -> DeviceOrder {
    let class = match kind {
        DeviceKind::Discrete => 0,
        DeviceKind::Integrated => 1,
        DeviceKind::Virtual => 2,
        DeviceKind::Other => 3,
        DeviceKind::Cpu => SOFTWARE_CLASS,
    };
    // Drivers that do not say how much there is report more than any card has.
    let known = if memory_bytes < u64::MAX / 2 { memory_bytes } else { 0 };
    (class, std::cmp::Reverse(known))
}

/// Everything that lowering and the executors ask of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceCaps {
    /// The device's name, as the driver reports it.
    pub name: String,
    /// Driver name and version.
    pub driver: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// What kernels may use.
    pub target: Target,
    /// How kernels reach buffers.
    pub addressing: Addressing,
    /// Most workgroups of a dispatch, by dimension.
    pub max_groups: [u32; 3],
    /// Bytes of the largest buffer.
    pub max_buffer_bytes: u64,
    /// Bytes of device-local memory.
    pub memory_bytes: u64,
    /// Streaming multiprocessors, compute units or shader cores, if the driver says.
    pub processors: Option<u32>,
    /// Whether the driver keeps f32 numbers below 2^-126 in additions and multiplications; others may take them for zeros.
    pub keeps_denormals: bool,
    /// The card's generation where kernels are launched as PTX; `None` where they are not.
    pub ptx: Option<Capability>,
}

/// Which kernels are launched as PTX where NVIDIA's driver takes it (`VK_NVX_binary_import`); none under validation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ptx {
    /// None.
    Off,
    /// Those that have no other form: matmuls by warpgroups, on Hopper.
    #[default]
    Warpgroups,
    /// All that can be, to try them: most are slower than as SPIR-V.
    All,
}

/// Features that a session can leave out, so that every path is exercised on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    /// No subgroup operations.
    pub subgroups: bool,
    /// No 16-bit float registers.
    pub f16: bool,
    /// No cooperative matrices.
    pub matrices: bool,
}

impl DeviceCaps {
    /// Workgroups that run side by side, one to a processor: a guess where the driver does not say.
    pub fn processor_count(&self) -> u32 {
        self.processors.filter(|count| *count > 0).unwrap_or(match self.kind {
            DeviceKind::Cpu => 8,
            DeviceKind::Integrated => 32,
            _ => 128,
        })
    }

    /// The same device with features masked off.
    #[must_use]
    pub fn without(mut self, mask: Mask) -> Self {
        if mask.subgroups {
            self.target.subgroup = None;
        }
        if mask.f16 {
            self.target.f16 = false;
            self.target.exact_f16 = false;
            self.target.matrices.retain(|m| m.operand != olivine_kernel::Elem::F16);
        }
        // A cooperative matrix belongs to a subgroup.
        if mask.matrices || mask.subgroups {
            self.target.matrices.clear();
            self.target.fragments = None;
            self.target.warpgroups = false;
            self.target.int8_warpgroups = false;
        }
        self
    }

    /// Whether kernels should be short: a software GPU compiles them slowly and gains little by
    /// straight-line code.
    pub fn wants_short_kernels(&self) -> bool {
        self.kind == DeviceKind::Cpu
    }

    /// The same of kernels that run faster when they are long: not where so many multiply-adds make up for the wait.
    #[track_caller]
    pub fn wants_short_kernels_for(&self, work: impl Into<Dim>) -> bool {
        // What is more than sizes can count compares as neither less nor more.
        self.wants_short_kernels() && work.into() < 1 << 22
    }

    /// What every slot and range that is bound must be aligned to.
    pub fn alignment(&self) -> usize {
        match self.addressing {
            Addressing::Pointers => ALIGNMENT,
            Addressing::Bindings { alignment, .. } => (alignment as usize).max(ALIGNMENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_come_by_kind_and_then_by_memory_and_software_comes_after_the_processor() {
        let gib = |n: u64| n << 30;
        let mut all = [
            ("software", DeviceKind::Cpu, gib(64)),
            ("small card", DeviceKind::Discrete, gib(8)),
            ("unknown", DeviceKind::Other, u64::MAX),
            ("laptop", DeviceKind::Integrated, gib(32)),
            ("large card", DeviceKind::Discrete, gib(24)),
            ("card that does not say", DeviceKind::Discrete, u64::MAX),
            ("virtual", DeviceKind::Virtual, gib(80)),
        ];
        all.sort_by_key(|(_, kind, memory)| device_order(*kind, *memory));
        let names = all.map(|(name, ..)| name);
        let order = ["large card", "small card", "card that does not say", "laptop", "virtual", "unknown"];
        assert_eq!(names[..6], order);
        assert!(device_order(DeviceKind::Cpu, gib(64)).0 > PROCESSOR_CLASS);
        assert!(device_order(DeviceKind::Other, 0).0 < PROCESSOR_CLASS);
    }
}
