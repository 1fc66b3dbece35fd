//! A run as a trace that chrome://tracing and Perfetto open.

use olivine::StepTime;
use serde_json::{Value, json};

/// The trace of one run: a track for the device, a complete event (`ph` X) for every dispatch, times in µs.
pub(crate) fn trace(model: &str, device: &str, steps: &[StepTime]) -> Value {
    let name = |kind: &str, name: &str| json!({ "ph": "M", "pid": 1, "tid": 1, "name": kind, "args": { "name": name } });
    let mut events = vec![name("process_name", model), name("thread_name", device)];
    events.extend(steps.iter().map(event));
    json!({ "traceEvents": events, "displayTimeUnit": "ms", "otherData": { "model": model, "device": device } })
}

fn event(step: &StepTime) -> Value {
    let seconds = step.time.as_secs_f64();
    let rate = |amount: u64, unit: f64| (amount > 0 && seconds > 0.0).then(|| amount as f64 / seconds / unit);
    json!({
        "ph": "X", "pid": 1, "tid": 1, "cat": step.op, "name": format!("{} · {}", step.op, step.kernel),
        "ts": step.start.as_secs_f64() * 1e6, "dur": seconds * 1e6,
        "args": {
            "node": step.node, "kernel": step.kernel, "bytes": step.bytes, "flops": step.flops,
            "GB/s": rate(step.bytes, 1e9), "TFLOP/s": rate(step.flops, 1e12),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::step;

    #[test]
    fn a_dispatch_is_a_complete_event_in_microseconds() {
        let mut add = step("layer0/add", "add", 3, 20);
        (add.bytes, add.flops) = (40_000, 0);
        let trace = trace("encoder", "cpu", &[add]);
        let events = trace["traceEvents"].as_array().unwrap();
        let events: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X").collect();
        assert_eq!(events.len(), 1);
        assert_eq!((events[0]["ts"].as_f64(), events[0]["dur"].as_f64()), (Some(3.0), Some(20.0)));
        assert_eq!(events[0]["args"]["node"], "layer0/add");
        let rate = events[0]["args"]["GB/s"].as_f64().unwrap();
        assert!((rate - 2.0).abs() < 1e-9, "{rate}");
        assert!(events[0]["args"]["TFLOP/s"].is_null());
    }

    #[test]
    fn an_empty_run_is_a_trace_too() {
        let trace = trace("empty", "cpu", &[]);
        assert!(trace["traceEvents"].as_array().unwrap().iter().all(|e| e["ph"] == "M"));
        let text = trace.to_string();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), trace);
    }
}
