//! Which device runs a model the fastest.

use std::fmt;
use std::time::Duration;

use olivine_ir::Graph;

use super::calibration::Calibration;
use super::measure::Progress;
use super::predict::Prediction;
use crate::device::devices;
use crate::executable::HostOps;
use crate::{
    Compile, CompileOptions, Device, DeviceClass, DeviceInfo, Error, Executable, Input, Session,
    SessionOptions,
};

/// A device with what it would take for a run of a model.
#[derive(Debug)]
#[non_exhaustive]
pub struct RankedDevice {
    /// The device.
    pub info: DeviceInfo,
    /// What a run would take, or why it would not run.
    pub prediction: Result<Prediction, String>,
}

impl RankedDevice {
    /// The predicted time of a run.
    pub fn time(&self) -> Option<Duration> {
        self.prediction.as_ref().ok().map(|prediction| prediction.total)
    }
}

/// Every device of this machine by the predicted time of a run of a graph or model, the fastest first; those that cannot run
/// it come last, with the reason. Sizes are those of `options`, and 1 where they are open. Devices that have no calibration
/// are measured.
pub fn rank<C: Compile>(
    model: &C,
    options: &CompileOptions,
    how: &SessionOptions,
    progress: Progress<'_>,
) -> Vec<RankedDevice> {
    rank_devices(devices(), model, options, how, progress)
}

/// As [`rank`], of some devices; the others are not opened.
pub fn rank_devices<C: Compile>(
    devices: Vec<DeviceInfo>,
    model: &C,
    options: &CompileOptions,
    how: &SessionOptions,
    progress: Progress<'_>,
) -> Vec<RankedDevice> {
    let mut predict =
        |info: &DeviceInfo| predict(model, options, info, how, progress).map(|(_, prediction)| prediction);
    let mut all = ranked(devices, &mut predict);
    all.sort_by_key(|ranked| ranked.time().unwrap_or(Duration::MAX));
    all
}

fn ranked(
    all: Vec<DeviceInfo>,
    predict: &mut dyn FnMut(&DeviceInfo) -> Result<Prediction, Error>,
) -> Vec<RankedDevice> {
    let one = |info: DeviceInfo| {
        let prediction = match &info.unavailable {
            Some(reason) => Err(reason.clone()),
            None => predict(&info).map_err(|error| error.to_string()),
        };
        RankedDevice { info, prediction }
    };
    all.into_iter().map(one).collect()
}

fn predict<C: Compile>(
    model: &C,
    options: &CompileOptions,
    info: &DeviceInfo,
    how: &SessionOptions,
    progress: Progress<'_>,
) -> Result<(Session, Prediction), Error> {
    let session = Session::with_options(info.device.clone(), how.clone())?;
    Calibration::load_or_measure_with(&session, progress)?;
    let prediction = session.predict(model, options)?;
    Ok((session, prediction))
}

/// The fastest of ranked devices that is no software GPU.
fn fastest(all: &[RankedDevice]) -> Option<&RankedDevice> {
    let candidates = all.iter().filter(|ranked| ranked.info.class != DeviceClass::Software);
    candidates.filter(|ranked| ranked.time().is_some()).min_by_key(|ranked| ranked.time())
}

impl Device {
    /// The device on which a run of a graph or model is predicted to be the fastest, for the sizes of `options`. Software GPUs
    /// are not candidates. Where there is one candidate it is chosen without measuring anything.
    pub fn auto_for<C: Compile>(model: &C, options: &CompileOptions) -> Result<Device, Error> {
        Ok(chosen(model, options, &SessionOptions::default())?.0)
    }
}

/// The device that is predicted to be the fastest, and the session that it was ranked in, if there was a choice.
fn chosen<C: Compile>(
    model: &C,
    options: &CompileOptions,
    how: &SessionOptions,
) -> Result<(Device, Option<Session>), Error> {
    let usable = |info: &DeviceInfo| info.unavailable.is_none() && info.class != DeviceClass::Software;
    let candidates: Vec<DeviceInfo> = devices().into_iter().filter(usable).collect();
    if let [only] = candidates.as_slice() {
        return Ok((only.device.clone(), None));
    }
    // Only the fastest so far stays open.
    let mut best: Option<(Duration, Session)> = None;
    let all = ranked(candidates, &mut |info| {
        let (session, prediction) = predict(model, options, info, how, &mut |_, _, _| {})?;
        if best.as_ref().is_none_or(|(time, _)| prediction.total < *time) {
            best = Some((prediction.total, session));
        }
        Ok(prediction)
    });
    for ranked in &all {
        if let Err(reason) = &ranked.prediction {
            tracing::info!("{} is left out: {reason}", ranked.info.device);
        }
    }
    if let Some(fastest) = fastest(&all) {
        let device = fastest.info.device.clone();
        let session = best.map(|(_, session)| session).filter(|session| *session.device() == device);
        return Ok((device, session));
    }
    let reason = |ranked: &RankedDevice| {
        Some(format!("{}: {}", ranked.info.device, ranked.prediction.as_ref().err()?))
    };
    let reason = all.iter().filter_map(reason).collect::<Vec<_>>().join("; ");
    Err(Error::Unavailable { device: "auto".into(), reason })
}

/// A session that was opened after others could not be.
#[derive(Debug)]
pub struct Fallback {
    /// The session.
    pub session: Session,
    /// The devices that were tried before, with what was wrong.
    pub refused: Vec<(Device, Error)>,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "took {}", self.session.device())?;
        if self.refused.is_empty() {
            return f.write_str(", the first asked for");
        }
        self.refused.iter().try_for_each(|(_, error)| write!(f, "; {error}"))
    }
}

impl Session {
    /// Opens the device on which a run of a graph or model is predicted to be the fastest; see [`Device::auto_for`].
    pub fn auto<C: Compile>(model: &C, options: &CompileOptions) -> Result<Session, Error> {
        Session::auto_with_options(model, options, SessionOptions::default())
    }

    /// As [`Session::auto`], with options of the session.
    pub fn auto_with_options<C: Compile>(
        model: &C,
        options: &CompileOptions,
        how: SessionOptions,
    ) -> Result<Session, Error> {
        match chosen(model, options, &how)? {
            (_, Some(session)) => Ok(session),
            (device, None) => Session::with_options(device, how),
        }
    }

    /// Opens the first of some devices that can be opened, and says which were refused and why. Nothing else is tried: a list
    /// without `cpu` does not end on the CPU.
    ///
    /// ```
    /// use olivine::prelude::*;
    /// let opened = Session::fallback(["vulkan:99".parse()?, Device::Cpu], SessionOptions::new())?;
    /// assert_eq!(opened.session.device(), &Device::Cpu);
    /// assert!(opened.to_string().starts_with("took cpu; device `vulkan:99` is not available"));
    /// # Ok::<(), olivine::Error>(())
    /// ```
    pub fn fallback(
        devices: impl IntoIterator<Item = Device>,
        options: SessionOptions,
    ) -> Result<Fallback, Error> {
        let mut refused: Vec<(Device, Error)> = Vec::new();
        for device in devices {
            match Session::with_options(device.clone(), options.clone()) {
                Ok(session) => {
                    for (_, error) in &refused {
                        tracing::warn!("{error}; {device} is used instead");
                    }
                    return Ok(Fallback { session, refused });
                }
                Err(error) => refused.push((device, error)),
            }
        }
        let reasons: Vec<String> = refused.iter().map(|(_, error)| error.to_string()).collect();
        let reason = if reasons.is_empty() { "no device was named".into() } else { reasons.join("; ") };
        let names: Vec<String> = refused.iter().map(|(device, _)| device.to_string()).collect();
        Err(Error::Unavailable { device: names.join(", "), reason })
    }

    /// What a run of a graph or model will take on the session's device, without building its kernels. Sizes are those of
    /// `options`, and 1 where they are open. A device that has no calibration is measured.
    pub fn predict<C: Compile>(&self, model: &C, options: &CompileOptions) -> Result<Prediction, Error> {
        self.inner.check()?;
        let calibration = Calibration::load_or_measure(self)?;
        let host = HostOps::new(self, &options.host_ops)?;
        let of_host = host.as_ref().map(|host| Calibration::load_or_measure(host.session())).transpose()?;
        let mut all = Prediction::default();
        let mut last: Option<(Graph, Prediction)> = None;
        for graph in model.graphs_for(self, options)? {
            // The iterations of a loop are one graph, again and again.
            let known = last.as_ref().filter(|(known, _)| known.shares_with(&graph));
            let prediction = match known {
                Some((_, prediction)) => prediction.clone(),
                None => {
                    let in_parts =
                        host.as_ref().map(|host| host.lowered(self, &graph)).transpose()?.flatten();
                    let lowered = match in_parts {
                        Some(lowered) => lowered,
                        None => self.inner.engine.lowered(&self.inner.compile(&graph, false)?)?,
                    };
                    calibration.predict(&lowered, of_host.as_deref())
                }
            };
            all.add(prediction.clone());
            last = Some((graph, prediction));
        }
        Ok(all)
    }
}

impl Executable {
    /// What a run on such inputs will take, with all graphs that it goes through: those before the last, which find out sizes
    /// or are iterations of a loop, run for it. A device that has no calibration is measured.
    pub fn predict<'a, V: Into<Input<'a>>>(
        &self,
        inputs: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<Prediction, Error> {
        let calibration = Calibration::load_or_measure(self.session())?;
        let host = self.host_session().map(Calibration::load_or_measure).transpose()?;
        let mut all = Prediction::default();
        for lowered in self.lowered_for(inputs)? {
            all.add(calibration.predict(&lowered, host.as_deref()));
        }
        Ok(all)
    }
}
