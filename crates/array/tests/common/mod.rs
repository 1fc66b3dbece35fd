//! What the tests share: the devices that there are, and bytes of numbers.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

use std::ops::Deref;

use olivine::{Backend, PipelineCache};
use olivine_array::{Context, ContextOptions, DType, Device, SessionOptions};

/// A context, Vulkan's under validation; the layer must have nothing to say.
pub(crate) struct Opened(Context);

impl Opened {
    pub(crate) fn new(device: Device) -> Self {
        Opened::with(device, ContextOptions::new())
    }

    /// Opens a device, or says what to install.
    pub(crate) fn with(device: Device, options: ContextOptions) -> Self {
        let validation = device.backend() == Backend::Vulkan;
        let session = SessionOptions::new().validation(validation).pipeline_cache(PipelineCache::Off);
        Opened(Context::with_options(device, options.session(session)).unwrap_or_else(|e| {
            panic!("{e}\ninstall: apt-get install mesa-vulkan-drivers libvulkan1 vulkan-validationlayers")
        }))
    }
}

impl Deref for Opened {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.0
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.0.session().validation_messages(), Vec::<String>::new());
        }
    }
}

/// All devices.
pub(crate) const DEVICES: [Device; 3] = [Device::Cpu, Device::Vulkan, Device::Wgpu];

/// A context on each device.
pub(crate) fn contexts() -> impl Iterator<Item = Opened> {
    DEVICES.into_iter().map(|device| {
        println!("{device}");
        Opened::new(device)
    })
}

pub(crate) fn f32s(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

pub(crate) fn to_f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

/// Numbers as elements of a dtype.
pub(crate) fn bytes_of(dtype: DType, numbers: &[f64]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|n| match dtype {
            DType::F32 => (*n as f32).to_ne_bytes().to_vec(),
            DType::F64 => n.to_ne_bytes().to_vec(),
            DType::I32 => (*n as i32).to_ne_bytes().to_vec(),
            other => panic!("{other}"),
        })
        .collect()
}

/// Elements of a dtype as numbers.
pub(crate) fn numbers_of(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_ne_bytes(*b))).collect(),
        DType::F64 => bytes.as_chunks::<8>().0.iter().map(|b| f64::from_ne_bytes(*b)).collect(),
        DType::I32 => bytes.as_chunks::<4>().0.iter().map(|b| f64::from(i32::from_ne_bytes(*b))).collect(),
        other => panic!("{other}"),
    }
}

/// Numbers that repeat in every process.
pub(crate) fn seeded(seed: u64, count: usize, low: f64, high: f64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            low + (high - low) * (state >> 11) as f64 / (1u64 << 53) as f64
        })
        .collect()
}
