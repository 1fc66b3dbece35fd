//! Calibrations between processes: a JSON file for each device and driver in the user's cache folder.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use olivine_files::{CacheFolder, cache_file_name};

use super::calibration::Calibration;
use super::measure::{self, Bench, Progress, SessionBench};
use crate::{Backend, Device, Error, Session};

/// The part of the CPU's measurement for numbers of threads between one and all.
const BETWEEN: f64 = 0.4;

/// A larger file is none of ours.
const LARGEST: u64 = 1 << 20;

/// What this process has measured or read, so that it does so once even where nothing can be written. Sessions with cache
/// folders of their own share nothing.
static KNOWN: Mutex<Option<HashMap<Key, Arc<Calibration>>>> = Mutex::new(None);

/// The cache folder, if there is one, and the device.
type Key = (Option<PathBuf>, Identity);

/// Calls `f` with what this process knows.
fn with_known<R>(f: impl FnOnce(&mut HashMap<Key, Arc<Calibration>>) -> R) -> R {
    f(KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Whose calibration it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: String,
    pub(crate) driver: String,
    pub(crate) build: String,
}

impl Identity {
    fn of(session: &Session) -> Self {
        let caps = session.inner.engine.caps();
        let (device, mut driver) = match caps {
            None => {
                let features = olivine_cpu::features().join(" ");
                (
                    olivine_cpu::processor_name(),
                    format!("{} threads, {features}", olivine_cpu::default_threads()),
                )
            }
            Some(caps) => {
                let way = if caps.addressing == olivine_gpu::Addressing::Pointers {
                    "pointers"
                } else {
                    "bindings"
                };
                (caps.name.clone(), format!("{} ({way})", caps.driver))
            }
        };
        driver += &session.inner.options.measured_as();
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        Identity { device, driver, build: format!("{} {profile}", env!("CARGO_PKG_VERSION")) }
    }

    fn key(self, folder: Option<&CacheFolder>) -> Key {
        (folder.map(|folder| folder.path().to_path_buf()), self)
    }

    fn file(&self, extension: &str) -> String {
        cache_file_name("calibration", &self.device, &format!("{}\n{}", self.driver, self.build), extension)
    }
}

/// What a file of the folder says; the error why it is not used.
fn read(folder: &CacheFolder, identity: &Identity) -> Result<Option<(Calibration, bool)>, String> {
    let bytes = match folder.read(&identity.file("json"), LARGEST) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    let calibration = Calibration::from_json(&bytes)?;
    let Identity { device, driver, build } = identity;
    if (&calibration.device, &calibration.driver) != (device, driver) {
        return Err(format!("it is of {}, {}", calibration.device, calibration.driver));
    }
    if calibration.build != *build {
        return Err(format!("it was measured by olivine {}, this is {build}", calibration.build));
    }
    let doubted = serde_json::from_slice::<serde_json::Value>(&bytes)
        .is_ok_and(|json| json["doubted"].as_bool() == Some(true));
    Ok(Some((calibration, doubted)))
}

fn write(
    folder: &CacheFolder,
    identity: &Identity,
    calibration: &Calibration,
    doubted: bool,
) -> std::io::Result<()> {
    let mut json = calibration.to_json();
    if doubted {
        json["doubted"] = true.into();
    }
    let name = identity.file("json");
    folder.clear_leftovers(&name);
    folder.replace(&name, json.to_string().as_bytes())
}

/// Reads what is stored for a device, or measures and stores it. Processes that do so at once wait for each other, and the
/// second reads what the first measured. Where nothing can be written, what was measured serves this process.
pub(crate) fn load_or(
    folder: Option<&CacheFolder>,
    identity: &Identity,
    measure: &mut dyn FnMut() -> Result<Calibration, Error>,
) -> Result<Calibration, Error> {
    let Some(folder) = folder else { return measure() };
    let place = || folder.path().join(identity.file("json")).display().to_string();
    let stored = |first: bool| match read(folder, identity) {
        Ok(found) => found,
        Err(problem) => {
            if first {
                tracing::warn!("{} is ignored and the device measured again: {problem}", place());
            }
            None
        }
    };
    if let Some((calibration, false)) = stored(true) {
        return Ok(calibration);
    }
    let lock = folder.lock(&identity.file("lock"));
    let earlier = match stored(false) {
        Some((calibration, false)) => return Ok(calibration),
        Some((calibration, true)) => Some(calibration),
        None => None,
    };
    let mut calibration = measure()?;
    // Runs doubted an earlier measurement. If it was right, the cost model is wrong about these runs, and another
    // measurement would not help.
    calibration.confirmed = earlier.is_some_and(|earlier| earlier.agrees(&calibration));
    let written = lock.and_then(|_lock| write(folder, identity, &calibration, false));
    if let Err(problem) = written {
        tracing::warn!(
            "{} cannot be written, so the device is measured again by the next process: {problem}",
            place()
        );
    }
    Ok(calibration)
}

/// Has the next process measure again, unless that has been done before without another result.
pub(crate) fn doubt(session: &Session, calibration: &Calibration) {
    let (Some(folder), false) = (session.inner.options.folder(), calibration.confirmed) else { return };
    let identity = Identity::of(session);
    let written =
        folder.lock(&identity.file("lock")).and_then(|_lock| write(&folder, &identity, calibration, true));
    if let Err(problem) = written {
        tracing::debug!(%problem, "the calibration cannot be marked as doubted");
    }
    with_known(|known| known.remove(&identity.key(Some(&folder))));
}

impl Calibration {
    /// The calibration of a session's device: from the user's cache folder, or measured now, in under two seconds, and stored
    /// there. A file that is damaged, of another device, driver or version is ignored, with a
    /// [warning](crate#warnings-and-progress).
    pub fn load_or_measure(session: &Session) -> Result<Arc<Calibration>, Error> {
        Calibration::load_or_measure_with(session, &mut |_, _, _| {})
    }

    /// As [`Calibration::load_or_measure`]; `progress` is called before every row that is measured.
    pub fn load_or_measure_with(
        session: &Session,
        progress: Progress<'_>,
    ) -> Result<Arc<Calibration>, Error> {
        session.inner.check()?;
        let inner = &session.inner;
        if let Some(calibration) = inner.calibration.get() {
            return Ok(calibration.clone());
        }
        let identity = Identity::of(session);
        let folder = inner.options.folder();
        let key = identity.clone().key(folder.as_ref());
        let calibration = match with_known(|known| known.get(&key).cloned()) {
            Some(calibration) => calibration,
            None => {
                let mut measure = || Calibration::measure(session, &identity, progress);
                let calibration = Arc::new(load_or(folder.as_ref(), &identity, &mut measure)?);
                // Another thread may have been quicker; all sessions go by the same numbers.
                with_known(|known| known.entry(key).or_insert(calibration).clone())
            }
        };
        Ok(inner.calibration.get_or_init(|| calibration).clone())
    }

    /// Measures a session's device, whatever is stored, and stores it.
    pub fn measure_again(session: &Session, progress: Progress<'_>) -> Result<Arc<Calibration>, Error> {
        session.inner.check()?;
        let identity = Identity::of(session);
        let calibration = Calibration::measure(session, &identity, progress)?;
        let folder = session.inner.options.folder();
        if let Some(folder) = &folder
            && let Err(problem) = folder
                .lock(&identity.file("lock"))
                .and_then(|_lock| write(folder, &identity, &calibration, false))
        {
            tracing::warn!("the calibration cannot be written: {problem}");
        }
        let calibration = Arc::new(calibration);
        with_known(|known| known.insert(identity.key(folder.as_ref()), calibration.clone()));
        Ok(calibration)
    }

    fn measure(session: &Session, identity: &Identity, progress: Progress<'_>) -> Result<Calibration, Error> {
        let begun = web_time::Instant::now();
        let options = &session.inner.options;
        let rates = if session.device().backend() == Backend::Cpu {
            let counts = thread_counts(olivine_cpu::default_threads());
            let of = |(threads, share): &(usize, f64)| {
                let session = Session::with_options(Device::Cpu, options.clone().threads(*threads))?;
                run(&mut SessionBench(&session), *threads, measure::limit().mul_f64(*share), progress)
            };
            let mut rates = counts.iter().map(of).collect::<Result<Vec<_>, Error>>()?;
            super::calibration::complete(&mut rates);
            rates
        } else {
            vec![run(&mut SessionBench(session), 0, measure::limit(), progress)?]
        };
        let Identity { device, driver, build } = identity.clone();
        tracing::debug!(device, took = ?begun.elapsed(), "calibrated");
        Ok(Calibration { device, driver, build, confirmed: false, rates })
    }
}

/// The numbers of threads that the CPU is measured with, and the part of the time for each: most of it for one and for all.
fn thread_counts(all: usize) -> Vec<(usize, f64)> {
    let between: Vec<usize> = [2, 4, 8].into_iter().filter(|count| *count < all).collect();
    let share = BETWEEN / between.len().max(1) as f64;
    let ends = if between.is_empty() { 1.0 } else { 1.0 - BETWEEN };
    let mut counts = vec![(1, if all > 1 { ends / 2.0 } else { 1.0 })];
    counts.extend(between.into_iter().map(|count| (count, share)));
    counts.extend((all > 1).then_some((all, ends / 2.0)));
    counts
}

fn run(
    bench: &mut dyn Bench,
    threads: usize,
    limit: Duration,
    progress: Progress<'_>,
) -> Result<super::Rates, Error> {
    measure::measure(bench, threads, limit, progress)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::calibration::tests::synthetic;
    use super::super::measure::tests::Synthetic;
    use super::*;

    /// A folder of this test, empty.
    fn folder(name: &str) -> CacheFolder {
        let path = std::env::temp_dir().join(format!("olivine-calibration-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        CacheFolder::open(path).unwrap()
    }

    fn identity() -> Identity {
        let Calibration { device, driver, build, .. } = synthetic(1e9);
        Identity { device, driver, build }
    }

    /// Calls `load_or` with a device of a rate, and says how often it was measured.
    fn load(folder: Option<&CacheFolder>, identity: &Identity, rate: f64) -> (Calibration, usize) {
        let mut measured = 0;
        let loaded = load_or(folder, identity, &mut || {
            measured += 1;
            let Identity { device, driver, build } = identity.clone();
            Ok(Calibration { device, driver, build, ..synthetic(rate) })
        });
        (loaded.unwrap(), measured)
    }

    #[test]
    fn the_processor_is_measured_with_one_thread_two_four_eight_and_all() {
        for (all, expected) in [
            (1, vec![1]),
            (2, vec![1, 2]),
            (4, vec![1, 2, 4]),
            (6, vec![1, 2, 4, 6]),
            (16, vec![1, 2, 4, 8, 16]),
        ] {
            let counts = thread_counts(all);
            assert_eq!(counts.iter().map(|(count, _)| *count).collect::<Vec<_>>(), expected);
            let time: f64 = counts.iter().map(|(_, share)| share).sum();
            assert!((time - 1.0).abs() < 1e-9, "{all} threads: {time} of the time");
        }
    }

    #[test]
    fn a_device_is_measured_once_and_read_from_then_on() {
        let folder = folder("once");
        let identity = identity();
        assert_eq!(load(Some(&folder), &identity, 1e9), (synthetic(1e9), 1));
        assert_eq!(load(Some(&folder), &identity, 2e9), (synthetic(1e9), 0));
        let other = Identity { driver: "another".into(), ..identity };
        assert_eq!(load(Some(&folder), &other, 2e9).1, 1, "another driver is measured by itself");
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn files_that_cannot_be_used_are_measured_over() {
        let folder = folder("damaged");
        let identity = identity();
        let good = synthetic(5e9).to_json().to_string();
        for text in [
            "",
            "{",
            "[1, 2, 3]",
            &good[..good.len() / 2],
            &good.replace("\"version\":3", "\"version\":2"),
            &good.replace("a device", "another device"),
            &good.replace("\"build\":\"1\"", "\"build\":\"0\""),
        ] {
            folder.replace(&identity.file("json"), text.as_bytes()).unwrap();
            assert!(read(&folder, &identity).is_err(), "{text}");
            assert_eq!(load(Some(&folder), &identity, 1e9), (synthetic(1e9), 1), "{text}");
            assert_eq!(load(Some(&folder), &identity, 2e9).1, 0, "the new one is used");
        }
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn of_many_at_once_one_measures_and_all_read_the_same() {
        let folder = folder("at-once");
        let identity = identity();
        let measured = AtomicUsize::new(0);
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let loaded = load_or(Some(&folder), &identity, &mut || {
                        measured.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(50));
                        Ok(synthetic(1e9))
                    });
                    assert_eq!(loaded.unwrap(), synthetic(1e9));
                });
            }
        });
        assert_eq!(measured.load(Ordering::SeqCst), 1);
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn where_nothing_can_be_written_the_device_is_measured_all_the_same() {
        // Not even the administrator can make a folder here.
        let folder = CacheFolder::open("/proc/olivine-no-such-folder").unwrap();
        let identity = identity();
        assert_eq!(load(Some(&folder), &identity, 1e9), (synthetic(1e9), 1));
        assert_eq!(load(Some(&folder), &identity, 1e9).1, 1);
        assert_eq!(load(None, &identity, 1e9).1, 1);
    }

    #[test]
    fn a_measurement_that_fails_leaves_nothing_behind() {
        let folder = folder("failed");
        let identity = identity();
        let lost = load_or(Some(&folder), &identity, &mut || Err(Error::WorkerDied));
        assert!(matches!(lost, Err(Error::WorkerDied)));
        assert_eq!(read(&folder, &identity).unwrap(), None);
        assert_eq!(load(Some(&folder), &identity, 1e9).1, 1, "the next one measures");
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn a_device_that_is_lost_in_the_middle_of_a_measurement_leaves_nothing_behind() {
        let folder = folder("lost");
        let identity = identity();
        let Identity { device, driver, build } = identity.clone();
        for left in (0..200).step_by(7) {
            let lost = load_or(Some(&folder), &identity, &mut || {
                let mut bench = Synthetic::new(left);
                let rates = run(&mut bench, 0, Duration::from_secs(1), &mut |_, _, _| {})?;
                let (device, driver, build) = (device.clone(), driver.clone(), build.clone());
                Ok(Calibration { device, driver, build, confirmed: false, rates: vec![rates] })
            });
            assert!(matches!(lost, Err(Error::Gpu(olivine_gpu::Error::DeviceLost { .. }))), "after {left}");
            assert_eq!(read(&folder, &identity).unwrap(), None);
        }
        assert_eq!(load(Some(&folder), &identity, 1e9).1, 1, "the next one measures");
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn what_runs_doubt_is_measured_again_and_confirmed_if_it_was_right() {
        let folder = folder("doubted");
        let identity = identity();
        for (now, confirmed) in [(1.1e9, true), (9e9, false)] {
            write(&folder, &identity, &synthetic(1e9), true).unwrap();
            let (loaded, measured) = load(Some(&folder), &identity, now);
            assert_eq!((loaded.confirmed, measured), (confirmed, 1), "{now}");
            let (again, measured) = load(Some(&folder), &identity, 5e9);
            assert_eq!((again.confirmed, measured), (confirmed, 0), "it is no longer doubted");
            assert!(again.agrees(&loaded), "numbers may differ in their last digit");
        }
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}
