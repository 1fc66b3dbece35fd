//! Counters, gauges and histograms, in the text form of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// A number that goes up, or up and down.
#[derive(Default)]
pub(crate) struct Number(AtomicU64);

impl Number {
    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: usize) {
        self.0.fetch_sub(less as u64, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often times were in which range.
#[derive(Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn record(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        head(out, name, help, "histogram");
        let mut below = 0;
        for (i, count) in self.counts.iter().enumerate() {
            below += count.load(Ordering::Relaxed);
            let bound = BOUNDS.get(i).map_or("+Inf".to_string(), f64::to_string);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(out, "{name}_sum {}", self.micros.load(Ordering::Relaxed) as f64 / 1e6);
        let _ = writeln!(out, "{name}_count {below}");
    }
}

/// Everything that is counted.
#[derive(Default)]
pub(crate) struct Metrics {
    /// Responses by route and status.
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
    pub(crate) prompt_tokens: Number,
    pub(crate) generated_tokens: Number,
    pub(crate) cancelled: Number,
    pub(crate) shared_tokens: Number,
    pub(crate) preempted: Number,
    pub(crate) steps: Number,
    pub(crate) step_errors: Number,
    pub(crate) slots: Number,
    pub(crate) busy: Number,
    pub(crate) waiting: Number,
    pub(crate) cache_bytes: Number,
    pub(crate) plans: Number,
    pub(crate) connections: Number,
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
    pub(crate) step: Histogram,
    pub(crate) request: Histogram,
}

impl Metrics {
    /// A response to a request of a route.
    pub(crate) fn responded(&self, route: &'static str, status: u16) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry((route, status)).or_default() += 1;
    }

    /// All of it as text.
    pub(crate) fn text(&self, healthy: bool) -> String {
        let mut out = String::new();
        let name = "olivine_http_responses_total";
        head(&mut out, name, "Responses by route and status.", "counter");
        for ((route, status), count) in self.responses.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "{name}{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        let counters = [
            ("olivine_prompt_tokens_total", "Tokens of prompts that were accepted.", &self.prompt_tokens),
            (
                "olivine_shared_prompt_tokens_total",
                "Tokens of prompts that were cached.",
                &self.shared_tokens,
            ),
            ("olivine_preempted_sequences_total", "Times that a sequence waited for pages.", &self.preempted),
            ("olivine_generated_tokens_total", "Tokens that were generated.", &self.generated_tokens),
            ("olivine_cancelled_sequences_total", "Sequences whose client left.", &self.cancelled),
            ("olivine_steps_total", "Steps of the engine.", &self.steps),
            ("olivine_step_errors_total", "Steps that failed.", &self.step_errors),
        ];
        for (name, help, number) in counters {
            head(&mut out, name, help, "counter");
            let _ = writeln!(out, "{name} {}", number.get());
        }
        let gauges = [
            ("olivine_slots", "Sequences that are decoded at once.", &self.slots),
            ("olivine_slots_busy", "Slots with a sequence.", &self.busy),
            ("olivine_queue_length", "Sequences that wait for a slot.", &self.waiting),
            ("olivine_cache_bytes", "Bytes of key-value caches on the device.", &self.cache_bytes),
            ("olivine_plans", "Plans that the model is compiled to.", &self.plans),
            ("olivine_connections", "Open connections.", &self.connections),
        ];
        for (name, help, number) in gauges {
            head(&mut out, name, help, "gauge");
            let _ = writeln!(out, "{name} {}", number.get());
        }
        if let Some(bytes) = resident_bytes() {
            head(&mut out, "process_resident_memory_bytes", "Resident memory of the process.", "gauge");
            let _ = writeln!(out, "process_resident_memory_bytes {bytes}");
        }
        head(&mut out, "olivine_healthy", "Whether requests can be served.", "gauge");
        let _ = writeln!(out, "olivine_healthy {}", u8::from(healthy));
        self.first_token.write(&mut out, "olivine_first_token_seconds", "From a request to its first token.");
        let help = "From one token of a sequence to the next.";
        self.between_tokens.write(&mut out, "olivine_token_seconds", help);
        self.step.write(&mut out, "olivine_step_seconds", "Steps of the engine.");
        self.request.write(&mut out, "olivine_request_seconds", "From a request to the end of its response.");
        out
    }
}

/// Resident memory of this process, read from the system's file where there is one.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_times_below_them() {
        let metrics = Metrics::default();
        for seconds in [0.0, 0.001, 0.3, 1000.0] {
            metrics.request.record(Duration::from_secs_f64(seconds));
        }
        metrics.responded("/v1/models", 200);
        metrics.responded("/v1/models", 200);
        let text = metrics.text(true);
        for line in [
            "olivine_http_responses_total{route=\"/v1/models\",status=\"200\"} 2",
            "olivine_request_seconds_bucket{le=\"0.001\"} 2",
            "olivine_request_seconds_bucket{le=\"0.5\"} 3",
            "olivine_request_seconds_bucket{le=\"300\"} 3",
            "olivine_request_seconds_bucket{le=\"+Inf\"} 4",
            "olivine_request_seconds_sum 1000.301",
            "olivine_request_seconds_count 4",
            "olivine_healthy 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
