//! Runs of a recording: bytes in, submission, wait, bytes out, and what checked kernels report.

use std::time::Instant;

use olivine_kernel::{REPORT_WORDS, Report, Violation};
use olivine_program::Error;

use crate::Device;
use crate::error::refused;
use crate::record::{Recording, State, Step, Transfer};

/// A transfer, if its bytes are as many as were recorded.
fn transfer<'a>(
    call: &'static str,
    transfers: &'a [Transfer],
    i: usize,
    bytes: usize,
) -> Result<&'a Transfer, Error> {
    let found = transfers.get(i).ok_or_else(|| refused(call, format!("there is no transfer {i}")))?;
    if found.bytes != bytes as u64 {
        let expected = usize::try_from(found.bytes).unwrap_or(usize::MAX);
        return Err(Error::WrongCount { what: format!("bytes of {call} {i}"), expected, got: bytes });
    }
    Ok(found)
}

/// First and last dispatch of the part after those that are done; `ends` are the parts' ends.
fn suspects(ends: &[usize], done: u64) -> Option<(usize, usize)> {
    let part = usize::try_from(done).unwrap_or(usize::MAX).min(ends.len().checked_sub(1)?);
    let start = part.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    let last = ends.get(part)?.checked_sub(1)?;
    (start <= last).then_some((start, last))
}

impl Recording {
    /// What a dispatch is, in words.
    fn step(&self, i: usize) -> Option<String> {
        self.steps.get(i).map(|s| format!("{} `{}` (kernel `{}`)", s.op, s.node, s.kernel.name))
    }

    /// The dispatches of the first part that was not done when the device was lost.
    fn unfinished(&self, first: u64) -> Option<String> {
        let reached = self.context.compute.reached(&self.context.raw).unwrap_or(0);
        let ends: Vec<usize> = self.parts.iter().map(|p| p.end).collect();
        let (start, last) = suspects(&ends, (reached + 1).saturating_sub(first))?;
        match (self.step(start)?, self.step(last)?) {
            (a, _) if start == last => Some(a),
            (a, b) => Some(format!("one of the dispatches from {a} to {b}")),
        }
    }

    /// The error of what checked kernels reported.
    fn violation(&self) -> Option<Error> {
        let (at, staging) = (self.report?, self.staging.as_ref()?);
        let mut bytes = [0; 4 * REPORT_WORDS];
        staging.read(at, &mut bytes);
        let mut words = [0; REPORT_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let report = Report::read(&words)?;
        let Some(Step { op, node, kernel }) = self.steps.get(report.dispatch as usize) else {
            return Some(refused(
                "wait",
                format!("a report of dispatch {}, which is not there", report.dispatch),
            ));
        };
        let (op, node) = (*op, node.to_string());
        Some(match report.what {
            Violation::OutOfBounds { arg, index, size } => {
                let name = kernel.args.get(arg as usize).map_or_else(|| arg.to_string(), |a| a.name.clone());
                let (index, size) = (u64::from(index), u64::from(size));
                Error::OutOfBounds { op, node, kernel: kernel.name.clone(), arg: name, index, size }
            }
            Violation::BadIndex { position, value, size } => {
                Error::IndexOutOfRange { op, node, position: position as usize, value, size: size as usize }
            }
        })
    }

    fn not_in_flight(&self, call: &'static str) -> Result<(), Error> {
        match self.state {
            State::InFlight(..) => Err(refused(call, "the recording is in flight")),
            _ => Ok(()),
        }
    }
}

impl Device {
    pub(crate) fn upload(&self, recording: &mut Recording, i: usize, bytes: &[u8]) -> Result<(), Error> {
        recording.not_in_flight("upload")?;
        let upload = transfer("upload", &recording.uploads, i, bytes.len())?;
        match (upload.staged, &recording.staging) {
            (Some(at), Some(staging)) => {
                staging.write(at, bytes);
                Ok(())
            }
            _ => self.transfers.write(&upload.buffer, 0, bytes),
        }
    }

    pub(crate) fn submit(&self, recording: &mut Recording) -> Result<(), Error> {
        recording.not_in_flight("submit")?;
        let buffers: Vec<_> = recording.parts.iter().map(|p| p.commands).collect();
        let after: Vec<_> = self.transfers.written().into_iter().collect();
        let (first, last) = self.context.compute.submit(&self.context.raw, &buffers, &after)?;
        recording.state = State::InFlight(first, last);
        recording.began = Instant::now();
        Ok(())
    }

    pub(crate) fn is_done(&self, recording: &Recording) -> Result<bool, Error> {
        match recording.state {
            State::InFlight(_, last) => Ok(self.context.compute.reached(&self.context.raw)? >= last),
            _ => Ok(true),
        }
    }

    pub(crate) fn wait(&self, recording: &mut Recording) -> Result<(), Error> {
        let State::InFlight(first, last) = recording.state else {
            return match recording.state {
                State::Fresh => Err(refused("wait", "the recording was not submitted")),
                _ => Ok(()),
            };
        };
        let (queue, device) = (&self.context.compute, &self.context.raw);
        // Runs of one recording take about the same time.
        let waited = match recording.took {
            Some(took) => queue.wait_until_due(device, last, recording.began + took),
            None => queue.wait(device, last),
        };
        waited.map_err(|e| match e {
            Error::DeviceLost { .. } => Error::DeviceLost { during: recording.unfinished(first) },
            other => other,
        })?;
        // A wait that came late says nothing, and one behind other runs too much: the shortest of two is kept.
        let took = recording.began.elapsed();
        recording.took = Some(recording.took.map_or(took, |before| took.min(before + before / 8)));
        recording.state = State::Done;
        recording.violation().map_or(Ok(()), Err)
    }

    pub(crate) fn download(&self, recording: &mut Recording, i: usize, into: &mut [u8]) -> Result<(), Error> {
        if recording.state != State::Done {
            return Err(refused("download", "the recording was not run and waited for"));
        }
        let download = transfer("download", &recording.downloads, i, into.len())?;
        match (download.staged, &recording.staging) {
            (Some(at), Some(staging)) => {
                staging.read(at, into);
                Ok(())
            }
            _ => self.transfers.read(&download.buffer, 0, into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_is_blamed_on_the_part_that_ran() {
        assert_eq!(suspects(&[3, 4, 9], 0), Some((0, 2)));
        assert_eq!(suspects(&[3, 4, 9], 1), Some((3, 3)));
        assert_eq!(suspects(&[3, 4, 9], 2), Some((4, 8)));
        assert_eq!(
            suspects(&[3, 4, 9], u64::MAX),
            Some((4, 8)),
            "the counter of a lost device says anything"
        );
        assert_eq!(suspects(&[0], 0), None, "nothing but copies");
        assert_eq!(suspects(&[], 0), None);
    }
}
