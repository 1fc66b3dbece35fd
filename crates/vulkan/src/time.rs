//! When dispatches began and ended.

use std::time::Duration;

use ash::vk;
use olivine_program::Error;

use crate::Device;
use crate::error::{failed, refused};
use crate::record::{Recording, State};

impl Device {
    /// Bits of the compute queue's timestamps; 0 where it has none.
    fn timestamp_bits(&self) -> u32 {
        let family = self.context.facts.queues.get(self.context.compute.family as usize);
        family.map_or(0, |q| q.timestamp_valid_bits)
    }

    /// A pool with two timestamps to a span.
    pub(crate) fn query_pool(&self, spans: usize) -> Result<vk::QueryPool, Error> {
        if self.timestamp_bits() == 0 {
            return Err(refused("record", format!("{} takes no times", self.context.facts.name)));
        }
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(2 * spans as u32);
        // Safety: the device is alive; the recording destroys the pool.
        unsafe { self.context.raw.create_query_pool(&info, None) }.map_err(failed("vkCreateQueryPool"))
    }

    pub(crate) fn times(&self, recording: &mut Recording) -> Result<Vec<(Duration, Duration)>, Error> {
        if recording.state != State::Done {
            return Err(refused("times", "the recording was not run and waited for"));
        }
        let Some(queries) = recording.queries else {
            return match recording.steps.is_empty() {
                true => Ok(Vec::new()),
                false => Err(refused("times", "the recording is not a timed one")),
            };
        };
        let mut ticks = vec![0u64; 2 * recording.spans()];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // Safety: the run that wrote all queries is done.
        unsafe { self.context.raw.get_query_pool_results(queries, 0, &mut ticks, flags) }
            .map_err(failed("vkGetQueryPoolResults"))?;
        let period = f64::from(self.context.facts.properties.limits.timestamp_period);
        Ok(durations(&ticks, self.timestamp_bits(), period))
    }
}

/// Ticks as durations since the first; the counter may wrap at its width.
fn durations(ticks: &[u64], bits: u32, period: f64) -> Vec<(Duration, Duration)> {
    let first = ticks.first().copied().unwrap_or(0);
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    let since = |tick: u64| Duration::from_nanos(((tick.wrapping_sub(first) & mask) as f64 * period) as u64);
    ticks.chunks_exact(2).map(|pair| (since(pair[0]), since(pair[1]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_wraps_still_runs_forward() {
        let ns = Duration::from_nanos;
        let ticks = [0xfff0, 0xfffe, 0x0002, 0x0010];
        assert_eq!(durations(&ticks, 16, 2.0), [(ns(0), ns(28)), (ns(36), ns(64))]);
        assert_eq!(durations(&[5, 7], 64, 1.0), [(ns(0), ns(2))]);
    }
}
