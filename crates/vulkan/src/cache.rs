//! Built pipelines on disk. A file that is damaged, of another device, driver or version is as good as none, and so is
//! one that another user could have written.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ash::vk;
use olivine_files::{CacheFolder, seal, unseal};
use olivine_program::Error;

use crate::context::Context;
use crate::error::failed;

/// The format of the file.
const FORMAT: &[u8; 8] = b"OLVPIPE2";
/// Every kernel ever built adds to the file; one above this many bytes is begun anew.
const LARGEST: u64 = 512 << 20;

/// Vulkan's pipeline cache and its file.
pub(crate) struct Cache {
    context: Arc<Context>,
    pub(crate) raw: vk::PipelineCache,
    file: Option<(CacheFolder, String)>,
    /// Pipelines built that the file does not have.
    news: AtomicU64,
}

/// Whether a blob's own header names this device: length, version, vendor, device, UUID of its pipeline caches.
fn belongs(blob: &[u8], properties: &vk::PhysicalDeviceProperties) -> bool {
    let word = |at: usize| Some(u32::from_le_bytes(blob.get(at..at + 4)?.try_into().ok()?));
    word(0).is_some_and(|length| length >= 32)
        && word(4) == Some(vk::PipelineCacheHeaderVersion::ONE.as_raw() as u32)
        && word(8) == Some(properties.vendor_id)
        && word(12) == Some(properties.device_id)
        && blob.get(16..32) == Some(&properties.pipeline_cache_uuid)
}

impl Cache {
    pub(crate) fn open(context: &Arc<Context>, dir: Option<&Path>) -> Result<Self, Error> {
        let facts = &context.facts;
        // The caller checks the folder first and reports if it cannot be used.
        let file = dir.and_then(|dir| CacheFolder::open(dir).ok()).map(|folder| {
            let uuid: String = facts.uuid.iter().map(|b| format!("{b:02x}")).collect();
            let (driver, version) = (facts.properties.driver_version, env!("CARGO_PKG_VERSION"));
            (folder, format!("pipelines-{uuid}-{driver:x}-{version}.bin"))
        });
        let read = file.as_ref().and_then(|(folder, name)| {
            folder.clear_leftovers(name);
            folder.read(name, LARGEST).ok()
        });
        let read = read.unwrap_or_default();
        let blob = unseal(FORMAT, &read).filter(|b| belongs(b, &facts.properties)).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(blob);
        // Safety: the device is alive; the blob is whole and was written by this driver for this device.
        let raw = unsafe { context.raw.create_pipeline_cache(&info, None) }
            .map_err(failed("vkCreatePipelineCache"))?;
        Ok(Cache { context: context.clone(), raw, file, news: AtomicU64::new(0) })
    }

    /// Notes a pipeline that was built.
    pub(crate) fn built(&self) {
        self.news.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the file if there is news. A disk that is full or read-only costs the next start time, no more.
    pub(crate) fn save(&self) {
        let Some((folder, name)) = &self.file else { return };
        if self.news.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        // Safety: the cache is of this device and synchronised by the driver.
        if let Ok(blob) = unsafe { self.context.raw.get_pipeline_cache_data(self.raw) } {
            let _ = folder.replace(name, &seal(FORMAT, &blob));
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.save();
        // Safety: no pipeline is being built any more.
        unsafe { self.context.raw.destroy_pipeline_cache(self.raw, None) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_belongs_to_one_device_and_driver() {
        let properties = vk::PhysicalDeviceProperties { vendor_id: 7, device_id: 9, ..Default::default() };
        let mut blob: Vec<u8> = [32u32, 1, 7, 9].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert!(!belongs(&blob, &properties), "no UUID");
        blob.extend_from_slice(&[0; 16]);
        assert!(belongs(&blob, &properties));
        assert!(!belongs(&blob, &vk::PhysicalDeviceProperties { device_id: 8, ..properties }));
        assert!(!belongs(
            &blob,
            &vk::PhysicalDeviceProperties { pipeline_cache_uuid: [1; 16], ..properties }
        ));
    }
}
