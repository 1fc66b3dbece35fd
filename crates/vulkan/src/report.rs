//! Which devices there are, which of them can be used, and the choice of one.

use std::fmt;

use ash::vk;
use olivine_kernel::{Elem, MatrixSupport, Target};
use olivine_program::{Addressing, DeviceCaps, Error, device_order};

use crate::error::INSTALL;
use crate::facts::{self, Facts};
use crate::instance::{self, Instance};

/// A heap of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Bytes.
    pub bytes: u64,
    /// Free bytes, if the driver reports it (`VK_EXT_memory_budget`).
    pub free: Option<u64>,
    /// Whether it is the device's own.
    pub device_local: bool,
}

/// What is known about a device before it is opened.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// Its index in the loader's list, which may change between boots; the UUID does not.
    pub index: usize,
    /// Identifies the device.
    pub uuid: [u8; 16],
    /// The Vulkan version it implements.
    pub api: String,
    /// Name, driver, kind and what kernels may use.
    pub caps: DeviceCaps,
    /// Its memory.
    pub heaps: Vec<Heap>,
    /// What it lacks to be used; empty for usable devices.
    pub missing: Vec<String>,
}

impl DeviceReport {
    /// Whether the device can be opened.
    pub fn usable(&self) -> bool {
        self.missing.is_empty()
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.caps;
        write!(f, "{}: {} ({:?}, Vulkan {}, {})", self.index, c.name, c.kind, self.api, c.driver)?;
        if !self.usable() {
            write!(f, ": cannot be used, it lacks {}", self.missing.join(", "))?;
        }
        Ok(())
    }
}

/// Which device to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Select {
    /// The first usable one in [`device_order`].
    #[default]
    Auto,
    /// By index in the loader's list.
    Index(usize),
    /// The first whose name contains this, whatever the case.
    Name(String),
    /// By UUID, which stays when cards are added.
    Uuid([u8; 16]),
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Select::Auto => f.write_str("any device"),
            Select::Index(i) => write!(f, "device {i}"),
            Select::Name(name) => write!(f, "a device named `{name}`"),
            Select::Uuid(uuid) => {
                f.write_str("device uuid ")?;
                uuid.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
    }
}

/// Every physical device, usable or not. No loader and no driver are errors; a loader without devices is not.
pub fn devices() -> Result<Vec<DeviceReport>, Error> {
    let instance = instance::plain()?;
    let all = facts::all(&instance)?;
    Ok(all.iter().enumerate().map(|(i, facts)| report(&instance, i, facts)).collect())
}

fn report(instance: &Instance, index: usize, facts: &Facts) -> DeviceReport {
    let free = facts.free(instance);
    let heap = |(i, heap): (usize, &vk::MemoryHeap)| Heap {
        bytes: heap.size,
        free: free.as_ref().and_then(|f| f.get(i).copied()),
        device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
    };
    DeviceReport {
        index,
        uuid: facts.uuid,
        api: facts::version(facts.properties.api_version),
        caps: caps(facts),
        heaps: facts.memory.memory_heaps_as_slice().iter().enumerate().map(heap).collect(),
        missing: facts.missing.clone(),
    }
}

/// Chooses among the devices.
pub(crate) fn choose(instance: &Instance, select: &Select) -> Result<Facts, Error> {
    let all = facts::all(instance)?;
    if all.is_empty() {
        return Err(Error::Unavailable(format!("Vulkan offers no device: {INSTALL}")));
    }
    let list: Vec<String> = all.iter().enumerate().map(|(i, f)| report(instance, i, f).to_string()).collect();
    let chosen = match select {
        Select::Auto => {
            let order = |f: &Facts| device_order(f.kind(), memory_bytes(f));
            all.into_iter().filter(|f| f.missing.is_empty()).min_by_key(order)
        }
        Select::Index(i) => all.into_iter().nth(*i),
        Select::Name(name) => {
            let name = name.to_lowercase();
            all.into_iter().find(|f| f.name.to_lowercase().contains(&name))
        }
        Select::Uuid(uuid) => all.into_iter().find(|f| f.uuid == *uuid),
    };
    let there = list.join("; ");
    match chosen {
        Some(facts) if facts.missing.is_empty() => Ok(facts),
        Some(facts) => Err(Error::Unavailable(format!(
            "{} cannot be used, it lacks {}; there are: {there}",
            facts.name,
            facts.missing.join(", ")
        ))),
        None => Err(Error::Unavailable(format!("{select} was not found among: {there}"))),
    }
}

/// Bytes of the largest heap that is the device's own.
fn memory_bytes(facts: &Facts) -> u64 {
    let heaps = facts.memory.memory_heaps_as_slice();
    let local = |h: &&vk::MemoryHeap| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    heaps.iter().filter(local).map(|h| h.size).max().unwrap_or(0)
}

/// What lowering may count on.
pub(crate) fn caps(facts: &Facts) -> DeviceCaps {
    let limits = &facts.properties.limits;
    let subgroups = facts.subgroups;
    let f = facts.features;
    let fixed = subgroups.min == subgroups.max || (subgroups.choosable && f.subgroup_size_control);
    let complete = subgroups.complete && f.subgroup_extended_types && f.full_subgroups;
    let subgroup = (complete && fixed && subgroups.size > 0).then_some(subgroups.size);
    let mut max_invocations =
        limits.max_compute_work_group_invocations.min(limits.max_compute_work_group_size[0]);
    if let Some(size) = subgroup {
        max_invocations = max_invocations.min(size.saturating_mul(subgroups.most));
    }
    let mut matrices = facts.matrices.clone();
    let has = |elem| match elem {
        Elem::F16 => f.f16,
        Elem::BF16 => f.bf16_matrices,
        Elem::I8 | Elem::U8 => f.int8,
        _ => true,
    };
    matrices.retain(|m| has(m.operand) && has(m.accumulator));
    if subgroup.is_none() {
        matrices.clear();
    }
    let memory_bytes = memory_bytes(facts);
    let most =
        if f.sparse { facts.max_buffer.max(limits.sparse_address_space_size) } else { facts.max_buffer };
    DeviceCaps {
        name: facts.name.clone(),
        driver: facts.driver.clone(),
        kind: facts.kind(),
        target: Target {
            subgroup,
            f16: f.f16,
            exact_f16: f.f16 && facts.floats.rte[0] && facts.floats.denormals[0],
            f64: f.f64,
            i64: true,
            i64_pairs: false,
            packed_dot: f.packed_dot,
            matrices,
            matrix_support: MatrixSupport::Full,
            fragments: None,
            warpgroups: false,
            int8_warpgroups: false,
            // Of Vulkan's memory model, which devices have.
            device_fences: true,
            max_invocations,
            shared_bytes: limits.max_compute_shared_memory_size,
        },
        addressing: Addressing::Pointers,
        max_groups: limits.max_compute_work_group_count,
        max_buffer_bytes: most.min(memory_bytes),
        memory_bytes,
        processors: facts.processors,
        keeps_denormals: facts.floats.denormals[1],
        ptx: None,
    }
}
