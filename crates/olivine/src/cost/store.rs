//! Calibrations between processes: a JSON file for each device and driver in the user's cache folder.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
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
static KNOWN: Mutex<Option<HashMap<Key, Known>>> = Mutex::new(None);

/// A calibration of this process.
#[derive(Clone)]
struct Known {
    calibration: Arc<Calibration>,
    /// Whether runs were far from its predictions. Where nothing can be written, only this says so.
    doubted: bool,
}

/// The cache folder, if there is one, and the device.
type Key = (Option<PathBuf>, Identity);

/// Calls `f` with what this process knows.
fn with_known<R>(f: impl FnOnce(&mut HashMap<Key, Known>) -> R) -> R {
    f(KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Makes a calibration known, unless another is that nobody doubts: all sessions go by the same numbers.
fn known_or(key: Key, calibration: Arc<Calibration>) -> Arc<Calibration> {
    with_known(|known| {
        let new = Known { calibration, doubted: false };
        let entry = known.entry(key).or_insert_with(|| new.clone());
        if entry.doubted {
            *entry = new;
        }
        entry.calibration.clone()
    })
}

/// The calibration of a session's device, once it is loaded or measured.
#[derive(Default)]
pub(crate) struct OfSession {
    /// What is known of `calibration`, for runs that ask every time.
    state: AtomicU8,
    calibration: Mutex<Option<Arc<Calibration>>>,
}

/// Nobody has looked yet; nothing is stored, or it is doubted; there is one.
const UNKNOWN: u8 = 0;
const ABSENT: u8 = 1;
const PRESENT: u8 = 2;

impl OfSession {
    /// The calibration, if the session has one.
    pub(crate) fn get(&self) -> Option<Arc<Calibration>> {
        if self.state.load(Ordering::Acquire) != PRESENT {
            return None;
        }
        self.calibration.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets or removes it; what is stored is not looked up after that.
    fn set(&self, calibration: Option<Arc<Calibration>>) {
        let mut own = self.calibration.lock().unwrap_or_else(PoisonError::into_inner);
        *own = calibration;
        self.state.store(if own.is_some() { PRESENT } else { ABSENT }, Ordering::Release);
    }
}

/// The calibration of a session's device if there is one already: its own, this process's or one that is stored. Nothing is
/// measured.
pub(crate) fn stored(session: &Session) -> Option<Arc<Calibration>> {
    let own = &session.inner.calibration;
    if own.state.load(Ordering::Acquire) == UNKNOWN {
        let identity = Identity::of(session);
        let folder = session.inner.options.folder();
        let key = identity.clone().key(folder.as_ref());
        let found = match with_known(|known| known.get(&key).cloned()) {
            Some(known) => Some(known).filter(|known| !known.doubted).map(|known| known.calibration),
            None => match folder.as_ref().and_then(|folder| read(folder, &identity).ok().flatten()) {
                Some((calibration, false)) => Some(known_or(key, Arc::new(calibration))),
                _ => None,
            },
        };
        own.set(found);
    }
    own.get()
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
        let inner = &session.inner;
        driver += &inner.options.measured_as();
        // Kernels are chosen by the record.
        if let Some(record) = inner.engine.tuning().filter(|record| !record.is_empty()) {
            driver += &format!(" tuned {:016x}", hash(record.iter().flat_map(|(a, b, c)| [a, b, c])));
        }
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        let build = format!("{} {profile}{CODE}{}", env!("CARGO_PKG_VERSION"), env!("OLIVINE_CODE"));
        Identity { device, driver, build }
    }

    fn key(self, folder: Option<&CacheFolder>) -> Key {
        (folder.map(|folder| folder.path().to_path_buf()), self)
    }

    /// The name of the file. Other code of the same version has the same, so that it does not leave files behind.
    fn file(&self, extension: &str) -> String {
        let version = self.build.split_once(CODE).map_or(self.build.as_str(), |(version, _)| version);
        cache_file_name("calibration", &self.device, &format!("{}\n{version}", self.driver), extension)
    }
}

/// What stands between a version and the hash of its code.
const CODE: &str = ", code ";

/// A hash that is the same in every process.
fn hash<'a>(texts: impl Iterator<Item = &'a str>) -> u64 {
    let bytes = texts.flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
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
/// second reads what the first measured. Where nothing can be written, what was measured serves this process. What is stored
/// does not count where it is what this process doubts.
pub(crate) fn load_or(
    folder: Option<&CacheFolder>,
    identity: &Identity,
    doubted: Option<&Calibration>,
    measure: &mut dyn FnMut() -> Result<Calibration, Error>,
) -> Result<Calibration, Error> {
    // Runs doubted an earlier measurement. If it was right, the cost model is wrong about these runs, and another
    // measurement would not help.
    let mut measured = |earlier: Option<&Calibration>| {
        let calibration = measure()?;
        let confirmed = earlier.or(doubted).is_some_and(|earlier| earlier.agrees(&calibration));
        Ok(Calibration { confirmed, ..calibration })
    };
    let Some(folder) = folder else { return measured(None) };
    let place = || folder.path().join(identity.file("json")).display().to_string();
    let stored = |first: bool| match read(folder, identity) {
        Ok(found) => found.map(|(found, is_doubted)| {
            let is_doubted = is_doubted || doubted == Some(&found);
            (found, is_doubted)
        }),
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
    let calibration = measured(earlier.as_ref())?;
    let written = lock.and_then(|_lock| write(folder, identity, &calibration, false));
    if let Err(problem) = written {
        tracing::warn!(
            "{} cannot be written, so the device is measured again by the next process: {problem}",
            place()
        );
    }
    Ok(calibration)
}

/// Has the device measured again when a prediction is next needed, in this process or another, unless that has been done before
/// without another result.
pub(crate) fn doubt(session: &Session, calibration: &Arc<Calibration>) {
    if calibration.confirmed {
        return;
    }
    let folder = session.inner.options.folder();
    let identity = Identity::of(session);
    if let Some(folder) = &folder {
        let lock = folder.lock(&identity.file("lock"));
        if let Err(problem) = lock.and_then(|_lock| write(folder, &identity, calibration, true)) {
            tracing::debug!(%problem, "the calibration cannot be marked as doubted");
        }
    }
    let doubted = Known { calibration: calibration.clone(), doubted: true };
    with_known(|known| known.insert(identity.key(folder.as_ref()), doubted));
    session.inner.calibration.set(None);
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
            Some(Known { calibration, doubted: false }) => calibration,
            known => {
                let doubted = known.as_ref().map(|known| known.calibration.as_ref());
                let mut measure = || Calibration::measure(session, &identity, progress);
                let calibration = load_or(folder.as_ref(), &identity, doubted, &mut measure)?;
                // Another thread may have been quicker.
                known_or(key, Arc::new(calibration))
            }
        };
        inner.calibration.set(Some(calibration.clone()));
        Ok(calibration)
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
        let known = Known { calibration: calibration.clone(), doubted: false };
        with_known(|all| all.insert(identity.key(folder.as_ref()), known));
        session.inner.calibration.set(Some(calibration.clone()));
        Ok(calibration)
    }

    fn measure(session: &Session, identity: &Identity, progress: Progress<'_>) -> Result<Calibration, Error> {
        let begun = web_time::Instant::now();
        let options = &session.inner.options;
        // Runs of a measurement are not held against an earlier one.
        session.inner.calibration.set(None);
        let rates = if session.device().backend() == Backend::Cpu {
            let counts = thread_counts(olivine_cpu::default_threads());
            let of = |(threads, share): &(usize, f64)| {
                let session = Session::with_options(Device::Cpu, options.clone().threads(*threads))?;
                session.inner.calibration.set(None);
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
        let loaded = load_or(folder, identity, None, &mut || {
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
                    let loaded = load_or(Some(&folder), &identity, None, &mut || {
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
        let lost = load_or(Some(&folder), &identity, None, &mut || Err(Error::WorkerDied));
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
            let lost = load_or(Some(&folder), &identity, None, &mut || {
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
    fn what_this_process_doubts_does_not_count_where_no_file_can_say_so() {
        let folder = folder("unmarked");
        let (identity, old) = (identity(), synthetic(1e9));
        write(&folder, &identity, &old, false).unwrap();
        let old = read(&folder, &identity).unwrap().map(|(old, _)| old).unwrap();
        for (folder, rate, confirmed) in
            [(Some(&folder), 1.1e9, true), (None, 1.1e9, true), (None, 9e9, false)]
        {
            let again = load_or(folder, &identity, Some(&old), &mut || Ok(synthetic(rate))).unwrap();
            assert_eq!(again, Calibration { confirmed, ..synthetic(rate) });
        }
        // Another process has measured again since.
        let newer = load_or(Some(&folder), &identity, Some(&old), &mut || Err(Error::WorkerDied)).unwrap();
        assert!(newer.confirmed && newer.agrees(&synthetic(1.1e9)));
        std::fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn other_code_of_a_version_takes_the_place_of_the_file() {
        let of = |code: &str| Identity { build: format!("1 debug{CODE}{code}"), ..identity() };
        assert_eq!(of("a").file("json"), of("b").file("json"));
        assert_ne!(of("a").file("json"), Identity { build: "2 debug".into(), ..identity() }.file("json"));
        let folder = folder("code");
        assert_eq!(load(Some(&folder), &of("a"), 1e9).1, 1);
        assert_eq!(load(Some(&folder), &of("b"), 2e9).1, 1);
        assert_eq!(load(Some(&folder), &of("b"), 2e9).1, 0);
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
