//! What a device was measured to do, and its JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::curve::Curve;

/// The format's name in the file.
const FORMAT: &str = "olivine-calibration";
/// Changes when rows change their meaning; files of other versions are not read.
const VERSION: u64 = 3;

/// Measured times of a device: of the library's own kernels at a few sizes, of launches, waits and transfers.
///
/// ```no_run
/// use olivine::cost::Calibration;
/// use olivine::prelude::*;
/// let session = Session::new(Device::auto()?)?;
/// let calibration = Calibration::load_or_measure(&session)?;
/// println!("{:.1} GB/s", calibration.copy_rate().unwrap_or(0.0) / 1e9);
/// # Ok::<(), olivine::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Calibration {
    /// The device's name.
    pub device: String,
    /// Its driver; on the CPU its instruction sets and threads.
    pub driver: String,
    /// The version and profile of the library whose kernels were measured.
    pub build: String,
    /// Whether runs contradicted an earlier measurement and this one, made again, agrees with it: runs alone then cause no
    /// third one.
    pub confirmed: bool,
    /// What was measured; on the CPU with one thread and with all.
    pub rates: Vec<Rates>,
}

/// Measured times, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Threads on the CPU; 0 on a GPU.
    pub threads: usize,
    /// What a run takes beside its steps and transfers: to submit and wait.
    pub run: f64,
    /// A step that waits for nothing, beside its work.
    pub dispatch: f64,
    /// What a step takes more that waits for the one before.
    pub barrier: f64,
    /// A byte from the host to the device.
    pub upload: f64,
    /// A byte from the device to the host.
    pub download: f64,
    /// Times beside that of the launch, by bytes moved or operations, row by row.
    pub rows: BTreeMap<String, Curve>,
}

impl Calibration {
    /// Bytes per second of copying memory on the device, at best.
    pub fn copy_rate(&self) -> Option<f64> {
        self.rate("copy")
    }

    /// The best rate of a row, in bytes or operations per second.
    pub fn rate(&self, row: &str) -> Option<f64> {
        let rates = self.rates.iter().filter_map(|rates| rates.rows.get(row)?.rate());
        rates.max_by(f64::total_cmp)
    }

    /// As a JSON document.
    pub fn to_json(&self) -> Value {
        let rates: Vec<Value> = self.rates.iter().map(Rates::to_json).collect();
        json!({
            "format": FORMAT, "version": VERSION, "device": self.device, "driver": self.driver,
            "build": self.build, "confirmed": self.confirmed, "rates": rates,
        })
    }

    /// Reads a JSON document; the error says why it cannot be used.
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        let json: Value = serde_json::from_slice(text).map_err(|e| format!("it is damaged: {e}"))?;
        if json["format"].as_str() != Some(FORMAT) {
            return Err("it is no calibration".into());
        }
        match json["version"].as_u64() {
            Some(VERSION) => {}
            Some(other) => return Err(format!("it is of version {other}, this is {VERSION}")),
            None => return Err("it has no version".into()),
        }
        let text = |key: &str| json[key].as_str().map(str::to_string).ok_or(format!("it has no {key}"));
        let rates = json["rates"].as_array().and_then(|all| all.iter().map(Rates::from_json).collect());
        let rates: Vec<Rates> = rates.ok_or("it is damaged: its rates cannot be read")?;
        if rates.is_empty() || rates.iter().any(|rates| !rates.rows.contains_key("copy")) {
            return Err("it is damaged: nothing was measured".into());
        }
        Ok(Calibration {
            device: text("device")?,
            driver: text("driver")?,
            build: text("build")?,
            confirmed: json["confirmed"].as_bool().unwrap_or(false),
            rates,
        })
    }

    /// Whether another measurement of the device says about the same: the launch and most rows within half as much again.
    pub(crate) fn agrees(&self, other: &Calibration) -> bool {
        let near = |a: f64, b: f64| a.max(b) <= 1.5 * a.min(b);
        let mut compared = Vec::new();
        for (a, b) in self.rates.iter().zip(&other.rates) {
            for (row, curve) in &a.rows {
                let rates = curve.rate().zip(b.rows.get(row).and_then(Curve::rate));
                compared.extend(rates.map(|(a, b)| near(a, b)));
            }
        }
        let same = compared.iter().filter(|same| **same).count();
        !compared.is_empty() && same * 4 >= compared.len() * 3
    }
}

impl Rates {
    fn to_json(&self) -> Value {
        let points = |curve: &Curve| -> Value { curve.points().iter().map(|(w, t)| json!([w, t])).collect() };
        let rows: Map<String, Value> =
            self.rows.iter().map(|(row, curve)| (row.clone(), points(curve))).collect();
        json!({
            "threads": self.threads, "run": self.run, "dispatch": self.dispatch, "barrier": self.barrier,
            "upload": self.upload, "download": self.download, "rows": rows,
        })
    }

    fn from_json(json: &Value) -> Option<Self> {
        let time = |key: &str| json[key].as_f64().filter(|t| t.is_finite() && *t >= 0.0);
        let point = |point: &Value| Some((point.get(0)?.as_f64()?, point.get(1)?.as_f64()?));
        let row = |(row, points): (&String, &Value)| {
            let points = points.as_array()?.iter().map(point).collect::<Option<Vec<_>>>()?;
            let curve = Curve::new(points.iter().copied());
            (curve.points().len() == points.len() && !points.is_empty()).then(|| (row.clone(), curve))
        };
        Some(Rates {
            threads: json["threads"].as_u64()? as usize,
            run: time("run")?,
            dispatch: time("dispatch")?,
            barrier: time("barrier")?,
            upload: time("upload")?,
            download: time("download")?,
            rows: json["rows"].as_object()?.iter().map(row).collect::<Option<_>>()?,
        })
    }
}

/// Gives numbers of threads between the first and the last the rows and sizes that they were not measured at, which lie
/// between those of the first and the last as the numbers of threads do.
pub(crate) fn complete(rates: &mut [Rates]) {
    let [first, between @ .., last] = rates else { return };
    let part = |threads: usize| 1.0 / threads.max(1) as f64;
    for rates in between {
        let share = (part(first.threads) - part(rates.threads))
            / (part(first.threads) - part(last.threads)).max(1e-9);
        for (row, most) in &last.rows {
            let Some(one) = first.rows.get(row) else { continue };
            let measured = rates.rows.entry(row.clone()).or_default();
            let largest = measured.points().last().map_or(0.0, |(work, _)| *work);
            let beyond = most.points().iter().filter(|(work, _)| *work > largest);
            let point = |(work, time): &(f64, f64)| {
                let one = one.time(*work)?;
                Some((*work, one + share * (time - one)))
            };
            let points = measured.points().iter().copied().chain(beyond.filter_map(point));
            *measured = Curve::new(points.collect::<Vec<_>>());
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A device that moves and computes so much in a second, in each row.
    pub(crate) fn synthetic(rate: f64) -> Calibration {
        let rows = ["copy", "rows", "movement", "gemv", "matmul f32", "conv", "arithmetic", "depthwise"];
        let row = |row: &str| (row.to_string(), Curve::new([(1e3, 1e3 / rate), (1e9, 1e9 / rate)]));
        let rates = Rates {
            threads: 0,
            run: 1e-5,
            dispatch: 1e-6,
            barrier: 2e-6,
            upload: 1e-10,
            download: 2e-10,
            rows: rows.into_iter().map(row).collect(),
        };
        let text = |text: &str| text.to_string();
        Calibration {
            device: text("a device"),
            driver: text("a driver"),
            build: text("1"),
            confirmed: false,
            rates: vec![rates],
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let calibration = synthetic(1e9);
        let text = calibration.to_json().to_string();
        assert_eq!(Calibration::from_json(text.as_bytes()), Ok(calibration));
    }

    #[test]
    fn damaged_foreign_and_older_files_are_refused_with_the_reason() {
        let text = synthetic(1e9).to_json().to_string();
        for end in 0..text.len() {
            assert!(Calibration::from_json(&text.as_bytes()[..end]).is_err(), "cut at {end}");
        }
        let changed = |from: &str, to: &str| Calibration::from_json(text.replacen(from, to, 1).as_bytes());
        for (from, to, reason) in [
            ("\"version\":3", "\"version\":2", "version 2"),
            ("\"version\":3", "\"version\":4", "version 4"),
            ("olivine-calibration", "something-else", "no calibration"),
            ("\"copy\"", "\"copi\"", "nothing was measured"),
            ("\"run\":", "\"run\":-", "damaged"),
            ("\"threads\":0", "\"threads\":\"x\"", "damaged"),
            ("[1000.0,", "[-5.0,", "damaged"),
            ("\"device\":\"a device\"", "\"device\":7", "no device"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = changed(from, to).map(drop).err().unwrap_or_default();
            assert!(error.contains(reason), "{from} as {to}: {error}");
        }
        for bytes in [&b""[..], b"null", b"[]", b"{}", b"\xff\xfe", &[0; 64]] {
            assert!(Calibration::from_json(bytes).is_err());
        }
    }

    #[test]
    fn threads_between_have_what_they_were_not_measured_at_from_those_around_them() {
        let of = |threads: usize, rate: f64| {
            let rates = synthetic(rate).rates.remove(0);
            Rates { threads, ..rates }
        };
        let mut rates = [of(1, 1e9), of(2, 2e9), of(4, 4e9)];
        rates[1].rows.remove("gemv");
        rates[1].rows.insert("copy".into(), Curve::new([(1e3, 7e-7)]));
        complete(&mut rates);
        let time =
            |row: &str, work: f64| rates[1].rows.get(row).and_then(|curve| curve.time(work)).unwrap_or(0.0);
        assert!((time("gemv", 1e9) - 0.5).abs() < 1e-6, "{}", time("gemv", 1e9));
        assert!((time("copy", 1e3) - 7e-7).abs() < 1e-12, "what was measured stays");
        assert!((time("copy", 1e9) - 0.5).abs() < 1e-6, "{}", time("copy", 1e9));
        assert_eq!((&rates[0], &rates[2]), (&of(1, 1e9), &of(4, 4e9)));
    }

    #[test]
    fn measurements_agree_while_most_rows_are_near() {
        let calibration = synthetic(1e9);
        assert!(calibration.agrees(&synthetic(1.4e9)) && calibration.agrees(&synthetic(0.7e9)));
        assert!(!calibration.agrees(&synthetic(3e9)));
    }
}
