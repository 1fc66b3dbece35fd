//! Calibrations between processes: a JSON file for each device and driver in the user's cache folder.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use olivine_files::{CacheFolder, cache_file_name};

use super::calibration::Calibration;
use super::measure::{self, Bench, Progress, SessionBench};
use crate::{Backend, Device, Error, Session};

/// A larger file is none of ours.
const LARGEST: u64 = 1 << 20;

/// What this process has measured or read, so that it does so once even where nothing can be written.
static KNOWN: Mutex<Option<HashMap<Identity, Arc<Calibration>>>> = Mutex::new(None);

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
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.get_or_insert_default().remove(&identity);
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
        let found = {
            let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
            known.as_ref().and_then(|known| known.get(&identity).cloned())
        };
        let calibration = match found {
            Some(calibration) => calibration,
            None => {
                let folder = inner.options.folder();
                let mut measure = || Calibration::measure(session, &identity, progress);
                let calibration = Arc::new(load_or(folder.as_ref(), &identity, &mut measure)?);
                let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
                known.get_or_insert_default().insert(identity, calibration.clone());
                calibration
            }
        };
        Ok(inner.calibration.get_or_init(|| calibration).clone())
    }

    /// Measures a session's device, whatever is stored, and stores it.
    pub fn measure_again(session: &Session, progress: Progress<'_>) -> Result<Arc<Calibration>, Error> {
        session.inner.check()?;
        let identity = Identity::of(session);
        let calibration = Calibration::measure(session, &identity, progress)?;
        if let Some(folder) = session.inner.options.folder()
            && let Err(problem) = folder
                .lock(&identity.file("lock"))
                .and_then(|_lock| write(&folder, &identity, &calibration, false))
        {
            tracing::warn!("the calibration cannot be written: {problem}");
        }
        let calibration = Arc::new(calibration);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_default().insert(identity, calibration.clone());
        Ok(calibration)
    }

    fn measure(session: &Session, identity: &Identity, progress: Progress<'_>) -> Result<Calibration, Error> {
        let begun = web_time::Instant::now();
        let options = &session.inner.options;
        let rates = if session.device().backend() == Backend::Cpu {
            let all = olivine_cpu::default_threads();
            let counts = if all > 1 { vec![1, all] } else { vec![1] };
            let limit = measure::limit() / counts.len() as u32;
            let of = |threads: usize| {
                let session = Session::with_options(Device::Cpu, options.clone().threads(threads))?;
                run(&mut SessionBench(&session), threads, limit, progress)
            };
            counts.into_iter().map(of).collect::<Result<_, Error>>()?
        } else {
            vec![run(&mut SessionBench(session), 0, measure::limit(), progress)?]
        };
        let Identity { device, driver, build } = identity.clone();
        tracing::debug!(device, took = ?begun.elapsed(), "calibrated");
        Ok(Calibration { device, driver, build, confirmed: false, rates })
    }
}

fn run(
    bench: &mut dyn Bench,
    threads: usize,
    limit: Duration,
    progress: Progress<'_>,
) -> Result<super::Rates, Error> {
    measure::measure(bench, threads, limit, progress)
}
