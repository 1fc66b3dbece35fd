//! Processes that are killed while they build pipelines: what they leave in the cache folder harms nobody.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use olivine_kernel::Elem;
use olivine_program::Driver;
use olivine_vulkan::{Device, Options, Select};

use crate::support::*;

/// The cache folder of the process that is to be killed.
const CHILD: &str = "OLIVINE_TEST_CACHE_FOLDER";

fn build(device: &Device, factor: f32) {
    let kernel = Arc::new(scale(&device.caps().target, Elem::F32, factor));
    device.pipelines(&[kernel], false).unwrap();
}

/// Opens devices and builds pipelines until it is killed.
fn build_without_end(dir: PathBuf) {
    let options = Options { cache_dir: Some(dir), ..Options::default() };
    for i in 0.. {
        let device = Device::open(&Select::Auto, &options).unwrap();
        (0..10).for_each(|j| build(&device, (i * 10 + j) as f32 / 7.0));
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn is_temporary(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "tmp")
}

#[test]
fn a_killed_process_leaves_a_cache_that_others_can_use() {
    if let Some(dir) = std::env::var_os(CHILD) {
        build_without_end(dir.into());
    }
    let dir = folder("killed");
    for round in 0..20u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::a_killed_process_leaves_a_cache_that_others_can_use"])
            .env(CHILD, &dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The first one has time to write the file; the others end anywhere from their start on.
        let waited = SystemTime::now();
        while round == 0 && files(&dir).is_empty() && waited.elapsed().unwrap() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_micros(40_000 + round * 7919 % 20 * 9_000));
        assert!(child.try_wait().unwrap().is_none(), "it runs until it is killed");
        child.kill().unwrap();
        child.wait().unwrap();
        for file in files(&dir).iter().filter(|f| !is_temporary(f)) {
            let bytes = std::fs::read(file).unwrap();
            let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            assert_eq!(
                bytes.len() as u64,
                olivine_files::SEAL_BYTES as u64 + length,
                "round {round}: the file is whole"
            );
        }
    }
    assert!(files(&dir).iter().any(|f| !is_temporary(f)), "they did write");
    let device = open_with(|o| o.cache_dir = Some(dir.clone()));
    build(&device, 0.5);
    drop(device);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn files_that_a_killed_process_left_half_written_are_cleared_away_later() {
    let dir = folder("leftovers");
    let open = || open_with(|o| o.cache_dir = Some(dir.clone()));
    build(&open(), 1.0);
    let whole = files(&dir).remove(0);
    let (old, fresh, foreign) =
        (whole.with_extension("7-0.tmp"), whole.with_extension("8-0.tmp"), dir.join("notes.tmp"));
    for file in [&old, &fresh, &foreign] {
        std::fs::write(file, b"half").unwrap();
    }
    for file in [&old, &foreign] {
        let long_ago = SystemTime::now() - Duration::from_secs(86_400);
        std::fs::File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    }
    build(&open(), 2.0);
    assert!(!old.exists(), "nobody writes for a day");
    assert!(fresh.exists(), "somebody may still be writing it");
    assert!(foreign.exists(), "it is not ours");
    std::fs::remove_dir_all(&dir).unwrap();
}
