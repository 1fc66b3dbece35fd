//! Built pipelines on disk. A file that is damaged, of another device, driver or version is as good as none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ash::vk;
use olivine_gpu::Error;

use crate::context::Context;
use crate::error::failed;

const MAGIC: &[u8; 8] = b"OLVPIPE1";
/// Magic, length, checksum.
const HEADER: usize = 24;
/// Every kernel ever built adds to the file; one above this many bytes is begun anew.
const LARGEST: u64 = 512 << 20;
/// What lies beside the file for longer was left by a process that was killed.
const STALE: Duration = Duration::from_secs(3600);

/// Vulkan's pipeline cache and the file it is kept in.
pub(crate) struct Cache {
    context: Arc<Context>,
    pub(crate) raw: vk::PipelineCache,
    path: Option<PathBuf>,
    /// Pipelines built that the file does not have.
    news: AtomicU64,
}

/// The folder of built pipelines: `$XDG_CACHE_HOME/olivine`, or `~/.cache/olivine`; `None` where there is no such place.
pub fn default_cache_dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    base.is_absolute().then(|| base.join("olivine"))
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A blob as a file.
fn seal(blob: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER + blob.len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&(blob.len() as u64).to_le_bytes());
    file.extend_from_slice(&checksum(blob).to_le_bytes());
    file.extend_from_slice(blob);
    file
}

/// The blob of a file that is whole.
fn unseal(file: &[u8]) -> Option<&[u8]> {
    let (header, blob) = file.split_at_checked(HEADER)?;
    let word = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
    let whole = header.get(..8)? == MAGIC && word(8)? == blob.len() as u64 && word(16)? == checksum(blob);
    whole.then_some(blob)
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
        let path = dir.map(|dir| {
            let uuid: String = facts.uuid.iter().map(|b| format!("{b:02x}")).collect();
            let (driver, version) = (facts.properties.driver_version, env!("CARGO_PKG_VERSION"));
            dir.join(format!("pipelines-{uuid}-{driver:x}-{version}.bin"))
        });
        let file = path.as_ref().and_then(|p| read(p)).unwrap_or_default();
        let blob = unseal(&file).filter(|b| belongs(b, &facts.properties)).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(blob);
        // Safety: the device is alive; the blob is whole and was written by this driver for this device.
        let raw = unsafe { context.raw.create_pipeline_cache(&info, None) }
            .map_err(failed("vkCreatePipelineCache"))?;
        Ok(Cache { context: context.clone(), raw, path, news: AtomicU64::new(0) })
    }

    /// Notes a pipeline that was built.
    pub(crate) fn built(&self) {
        self.news.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the file if there is news. A disk that is full or read-only costs the next start time, no more.
    pub(crate) fn save(&self) {
        let Some(path) = &self.path else { return };
        if self.news.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        // Safety: the cache is of this device and synchronised by the driver.
        if let Ok(blob) = unsafe { self.context.raw.get_pipeline_cache_data(self.raw) } {
            let _ = replace(path, &seal(&blob));
        }
    }
}

/// The file's bytes, if it is there and not too large.
fn read(path: &Path) -> Option<Vec<u8>> {
    clear_leftovers(path);
    let length = std::fs::metadata(path).ok()?.len();
    if length > LARGEST { None } else { std::fs::read(path).ok() }
}

/// Removes what processes that were killed left beside the file.
fn clear_leftovers(path: &Path) {
    let Some((dir, stem)) = path.parent().zip(path.file_stem()) else { return };
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for beside in entries.flatten().map(|entry| entry.path()) {
        let ours = beside.extension().is_some_and(|e| e == "tmp")
            && beside
                .file_name()
                .zip(stem.to_str())
                .is_some_and(|(name, stem)| name.to_str().is_some_and(|name| name.starts_with(stem)));
        let age = || std::fs::metadata(&beside).ok()?.modified().ok()?.elapsed().ok();
        if ours && age().is_some_and(|age| age > STALE) {
            let _ = std::fs::remove_file(&beside);
        }
    }
}

/// Writes beside the file and renames, so that readers see the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
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
    fn only_whole_files_are_unsealed() {
        let file = seal(b"some blob");
        assert_eq!(unseal(&file), Some(&b"some blob"[..]));
        for i in 0..file.len() {
            let mut damaged = file.clone();
            damaged[i] ^= 1;
            assert_eq!(unseal(&damaged), None, "byte {i}");
            assert_eq!(unseal(&file[..i]), None, "cut at {i}");
        }
    }

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
