//! When dispatches began and ended, from timestamps that the device writes around them.

use std::time::Duration;

use olivine_program::Error;

use crate::Device;
use crate::memory::{copy_mapped, readback};
use crate::record::Recording;

/// Spans whose two timestamps fit in one query set.
const PER_SET: usize = wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

/// Query sets of a recording, and where their results go.
#[derive(Debug)]
pub(crate) struct Timer {
    sets: Vec<(wgpu::QuerySet, u32)>,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
    spans: usize,
}

impl Timer {
    pub(crate) fn new(device: &wgpu::Device, spans: usize) -> Self {
        let set = |i: usize| {
            let count = 2 * (spans - i * PER_SET).min(PER_SET) as u32;
            let descriptor =
                wgpu::QuerySetDescriptor { label: Some("times"), ty: wgpu::QueryType::Timestamp, count };
            (device.create_query_set(&descriptor), count)
        };
        let sets: Vec<_> = (0..spans.div_ceil(PER_SET)).map(set).collect();
        let bytes = (2 * 8 * spans as u64).max(16);
        let resolved = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("times"),
            size: bytes,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Timer { sets, resolved, staging: readback(device, bytes, "times"), spans }
    }

    /// What the pass of a span writes: a dispatch, or a submission's all.
    pub(crate) fn writes(&self, span: usize) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let (query_set, _) = self.sets.get(span / PER_SET)?;
        let first = 2 * (span % PER_SET) as u32;
        Some(wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        })
    }

    /// Copies the results to where the host can map them.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        for (i, (set, count)) in self.sets.iter().enumerate() {
            encoder.resolve_query_set(set, 0..*count, &self.resolved, (i * PER_SET * 16) as u64);
        }
        if !self.sets.is_empty() {
            encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.staging, 0, self.staging.size());
        }
    }

    pub(crate) fn staging(&self) -> &wgpu::Buffer {
        &self.staging
    }
}

impl Device {
    pub(crate) fn times(&self, recording: &mut Recording) -> Result<Vec<(Duration, Duration)>, Error> {
        recording.must_have_landed("times")?;
        let Some(timer) = &recording.timer else {
            return Err(Error::Driver { call: "times", problem: "the recording is not a timed one".into() });
        };
        let mut bytes = vec![0; 16 * timer.spans];
        copy_mapped(&timer.staging, 0, &mut bytes)?;
        let ticks: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
        Ok(spans(&ticks, f64::from(self.queue.get_timestamp_period())))
    }
}

/// Begin and end of every dispatch from the first one's begin; `period` is nanoseconds to a tick.
fn spans(ticks: &[u64], period: f64) -> Vec<(Duration, Duration)> {
    let first = ticks.first().copied().unwrap_or(0);
    let since = |tick: u64| Duration::from_nanos((tick.saturating_sub(first) as f64 * period) as u64);
    ticks.as_chunks::<2>().0.iter().map(|[begin, end]| (since(*begin), since(*end.max(begin)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_durations_from_the_first_dispatch_on() {
        let ns = Duration::from_nanos;
        assert_eq!(spans(&[100, 103, 103, 110], 10.0), [(ns(0), ns(30)), (ns(30), ns(100))]);
        assert_eq!(spans(&[100, 90], 1.0), [(ns(0), ns(0))], "a clock that went back takes no time");
        assert_eq!(spans(&[], 1.0), []);
    }
}
