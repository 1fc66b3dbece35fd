//! Every device against the reference, and what is reported of it.

use std::path::Path;
use std::time::Instant;

use olivine::Device;
use olivine::internals::onnx::NodeInfo;
use serde_json::{Value, json};

use super::compare::{Comparison, Distance, Sensitivity, Values, Verdict, node_by_node};
use super::sensitivity::{LEAST_RUNS, LONGEST, MOST_RUNS, widen};
use crate::answer::{Answer, Failure};
use crate::panics::{Silence, caught};
use crate::table::Table;

/// What runs the model.
pub(super) trait Runner {
    /// What a device computes: the outputs, or every value that a node of the main graph makes.
    fn values(&self, device: &Device, all: bool) -> Result<Values, Failure>;

    /// Every value on the CPU, with float inputs and weights moved by about as much as rounding moves them.
    fn moved(&self, seed: u64) -> Result<Values, Failure>;
}

/// What is examined, and how closely.
pub(super) struct Examination<'a> {
    pub(super) runs: &'a dyn Runner,
    pub(super) nodes: &'a [NodeInfo],
    /// Names of the model's outputs.
    pub(super) outputs: Vec<String>,
    pub(super) tolerance: f64,
    /// How many of the worst nodes are listed.
    pub(super) worst: usize,
}

/// What is known of one device.
struct Row {
    device: String,
    /// Every output and how far it is off, or why there are none.
    outputs: Result<Vec<(String, Distance)>, String>,
    /// Its values against the reference's, and whose those are.
    nodes: Option<(String, Comparison)>,
}

/// What the examination found.
pub(super) struct Report {
    reference: String,
    rows: Vec<Row>,
    sensitivity: Sensitivity,
    /// Why the model's sensitivity is not known, where it matters.
    sensitivity_problem: Option<String>,
    /// ONNX Runtime's version, or why it was not asked.
    oracle: Result<String, String>,
    tolerance: f64,
    worst: usize,
}

/// The name of the CPU's row whose values are all outputs.
const EVERY_VALUE: &str = "cpu, every value kept";

impl Examination<'_> {
    /// Compares the CPU and the devices with the expected outputs; without those with ONNX Runtime, and without that with
    /// the CPU.
    pub(super) fn report(
        &self,
        devices: &[Device],
        expected: Values,
        ask: impl FnOnce(Option<&Values>) -> Result<(String, Values), String>,
    ) -> Report {
        let cpu = self.run(&Device::Cpu, false);
        let kept = self.run(&Device::Cpu, true);
        let oracle = ask(kept.as_ref().ok());
        let (reference, wanted) = match (&oracle, &cpu) {
            _ if !expected.is_empty() => ("the expected outputs".to_string(), Some(&expected)),
            (Ok((version, values)), _) => (format!("ONNX Runtime {version}"), Some(values)),
            (Err(_), Ok(values)) => ("cpu".to_string(), Some(values)),
            (Err(_), Err(_)) => ("nothing".to_string(), None),
        };
        let mut rows = Vec::new();
        if reference != "cpu" {
            rows.push(self.row("cpu", cpu.as_ref(), wanted));
        }
        rows.push(self.row(EVERY_VALUE, kept.as_ref(), wanted));
        for device in devices {
            rows.push(self.row(&device.to_string(), self.run(device, false).as_ref(), wanted));
        }
        let (found, sensitivity_problem) = match rows.iter().any(|row| self.is_off(row)) {
            true => self.sensitivity(kept.as_ref().ok(), &rows),
            false => (Sensitivity::new(), None),
        };
        let against = match (&oracle, &kept) {
            (Ok((version, values)), _) => Some((format!("ONNX Runtime {version}"), values)),
            (Err(_), Ok(values)) => Some(("cpu".to_string(), values)),
            (Err(_), Err(_)) => None,
        };
        let compare = |got: &Values| {
            let (name, want) = against.as_ref()?;
            Some((name.clone(), node_by_node(self.nodes, got, want, self.tolerance, &found)))
        };
        for row in &mut rows {
            // The inner values of the CPU are always worth comparing with ONNX Runtime's.
            if row.device == EVERY_VALUE {
                row.nodes = kept.as_ref().ok().filter(|_| oracle.is_ok()).and_then(compare);
            } else if row.device != "cpu" && self.differs(row, &found) {
                let device = devices.iter().find(|device| device.to_string() == row.device);
                let values = device.map(|device| self.run(device, true));
                row.nodes = values.and_then(Result::ok).as_ref().and_then(compare);
            }
        }
        Report {
            reference,
            rows,
            sensitivity: found,
            sensitivity_problem,
            oracle: oracle.map(|(version, _)| version),
            tolerance: self.tolerance,
            worst: self.worst,
        }
    }

    /// A device's values; one that panics is one that fails.
    fn run(&self, device: &Device, all: bool) -> Result<Values, String> {
        let _silence = Silence::new();
        caught(|| self.runs.values(device, all)).and_then(|values| values.map_err(|failure| failure.line()))
    }

    fn row(&self, device: &str, got: Result<&Values, &String>, want: Option<&Values>) -> Row {
        let outputs = got.map_err(String::clone).and_then(|got| {
            let want = want.ok_or_else(|| "there is nothing to compare it with".to_string())?;
            let mut found: Vec<(String, Distance)> = want
                .iter()
                .filter(|(name, _)| self.is_output(name))
                .map(|(name, want)| {
                    let distance = got.get(name).map(|got| Distance::of(got, want));
                    (name.clone(), distance.unwrap_or_else(|| Distance::Type("missing".into())))
                })
                .collect();
            found.sort_by(|a, b| a.0.cmp(&b.0));
            if found.is_empty() { Err("the reference has none of the outputs".into()) } else { Ok(found) }
        });
        Row { device: device.to_string(), outputs, nodes: None }
    }

    /// Whether a value is an output of the model, or an element of one that is a sequence.
    fn is_output(&self, name: &str) -> bool {
        let base = name.split_once('[').map_or(name, |(base, _)| base);
        self.outputs.iter().any(|output| output == name || output == base)
    }

    fn is_off(&self, row: &Row) -> bool {
        self.differs(row, &Sensitivity::new())
    }

    fn differs(&self, row: &Row, sensitivity: &Sensitivity) -> bool {
        let differs = |(name, of): &(String, Distance)| {
            of.verdict(self.tolerance, sensitivity.get(name)) == Verdict::Differs
        };
        row.outputs.as_ref().is_ok_and(|outputs| outputs.iter().any(differs))
    }

    /// How far values move with rounding, or why that is not known. A change of an integer is rare in a small model, so that
    /// more runs are made where they are quick and something still differs.
    fn sensitivity(&self, still: Option<&Values>, rows: &[Row]) -> (Sensitivity, Option<String>) {
        let mut found = Sensitivity::new();
        let Some(still) = still else { return (found, Some("the CPU has no values".into())) };
        let _silence = Silence::new();
        let begun = Instant::now();
        for run in 0..MOST_RUNS {
            let is_enough = run >= LEAST_RUNS
                && (begun.elapsed() > LONGEST || !rows.iter().any(|row| self.differs(row, &found)));
            if is_enough {
                break;
            }
            let moved = caught(|| self.runs.moved(run + 1));
            match moved.and_then(|values| values.map_err(|failure| failure.line())) {
                Ok(values) => widen(&mut found, still, &values),
                Err(problem) => return (Sensitivity::new(), Some(problem)),
            }
        }
        (found, None)
    }
}

impl Report {
    fn verdict(&self, name: &str, of: &Distance) -> Verdict {
        of.verdict(self.tolerance, self.sensitivity.get(name))
    }

    fn agrees(&self, row: &Row) -> bool {
        let fits = |(name, of): &(String, Distance)| self.verdict(name, of) != Verdict::Differs;
        row.outputs.as_ref().is_ok_and(|outputs| outputs.iter().all(fits))
    }

    /// What differs or failed, by name.
    fn wrong(&self) -> Vec<String> {
        let rows = self.rows.iter().filter(|row| {
            !self.agrees(row) || row.nodes.as_ref().is_some_and(|(_, nodes)| nodes.first().is_some())
        });
        rows.map(|row| row.device.clone()).collect()
    }

    /// The report below a heading, as text and for a program.
    pub(super) fn answer(&self, heading: &str, model: &Path) -> Answer {
        let wrong = self.wrong();
        let json = json!({
            "model": model, "tolerance": self.tolerance, "reference": self.reference,
            "devices": self.rows.iter().map(|row| self.row_json(row)).collect::<Vec<_>>(),
            "sensitivity_problem": self.sensitivity_problem,
            "onnxruntime": match &self.oracle {
                Ok(version) => json!({ "version": version }),
                Err(problem) => json!({ "problem": problem }),
            },
            "agrees": wrong.is_empty(),
        });
        let failure = (!wrong.is_empty())
            .then(|| Failure::new(format!("results differ or are missing: {}", wrong.join(", "))));
        Answer::new(format!("{heading}{}", self.text()), json).with_failure(failure)
    }

    fn text(&self) -> String {
        let mut text = format!("reference: {}\n\n", self.reference);
        let mut table = Table::new(&["device", "output", ">error", ">sensitivity", ""]);
        for row in &self.rows {
            match &row.outputs {
                Err(problem) => {
                    table.row([
                        row.device.clone(),
                        String::new(),
                        String::new(),
                        String::new(),
                        problem.clone(),
                    ]);
                }
                Ok(outputs) => outputs.iter().for_each(|(name, of)| {
                    let moved = self.sensitivity.get(name).map_or(String::new(), Distance::to_string);
                    let verdict = self.verdict(name, of).words().to_string();
                    table.row([row.device.clone(), name.clone(), of.to_string(), moved, verdict]);
                }),
            }
        }
        text += &table.to_string();
        for (device, (name, nodes)) in self.rows.iter().filter_map(|r| Some((&r.device, r.nodes.as_ref()?))) {
            text += &format!("\n{device} against {name}, node by node:\n{}", nodes.text(self.worst));
        }
        if let Some(problem) = &self.sensitivity_problem {
            text += &format!("\nthe model's sensitivity is not known: {problem}\n");
        }
        if let Err(problem) = &self.oracle {
            text += &format!("\nnot compared with ONNX Runtime: {problem}\n");
        }
        text
    }

    fn row_json(&self, row: &Row) -> Value {
        let outputs = row.outputs.as_ref().map_or(Value::Null, |outputs| {
            let output = |(name, of): &(String, Distance)| {
                json!({
                    "name": name, "error": of.json(), "verdict": self.verdict(name, of).words(),
                    "sensitivity": self.sensitivity.get(name).map(Distance::json),
                })
            };
            outputs.iter().map(output).collect()
        });
        let nodes = row.nodes.as_ref().map(|(against, nodes)| {
            let mut json = nodes.json(self.worst);
            json["against"] = against.clone().into();
            json
        });
        json!({
            "device": row.device, "agrees": self.agrees(row), "problem": row.outputs.as_ref().err(),
            "outputs": outputs, "nodes": nodes,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use olivine::ir::Tensor;

    use super::*;

    /// Devices that answer as a test says, of a model x → a → y.
    struct Fake<F> {
        answer: F,
        /// By how much moved floats move y on the CPU.
        moved: f32,
        asked: RefCell<Vec<String>>,
    }

    fn values(y: f32) -> Values {
        [("a", 1.0), ("y", y)].map(|(n, v)| (n.to_string(), Tensor::new([1], vec![v]).unwrap())).into()
    }

    impl<F: Fn(&Device, bool) -> f32> Runner for Fake<F> {
        fn values(&self, device: &Device, all: bool) -> Result<Values, Failure> {
            self.asked.borrow_mut().push(device.to_string());
            let mut values = values((self.answer)(device, all));
            if !all {
                values.remove("a");
            }
            Ok(values)
        }

        fn moved(&self, _: u64) -> Result<Values, Failure> {
            Ok(values((self.answer)(&Device::Cpu, true) + self.moved))
        }
    }

    fn report<F: Fn(&Device, bool) -> f32>(
        fake: &Fake<F>,
        expected: Option<f32>,
        oracle: Option<f32>,
    ) -> Report {
        let nodes = [("one", "x", "a"), ("two", "a", "y")].map(|(place, input, output)| NodeInfo {
            location: place.into(),
            inputs: vec![input.into()],
            outputs: vec![output.into()],
        });
        let examination =
            Examination { runs: fake, nodes: &nodes, outputs: vec!["y".into()], tolerance: 1e-3, worst: 10 };
        let devices: Vec<Device> = ["vulkan", "wgpu"].map(|name| name.parse().unwrap()).to_vec();
        let mut expected = expected.map(values).unwrap_or_default();
        expected.remove("a");
        let ask = |_: Option<&Values>| {
            oracle.map(|y| ("1.0".to_string(), values(y))).ok_or_else(|| "not asked".to_string())
        };
        examination.report(&devices, expected, ask)
    }

    fn fake<F: Fn(&Device, bool) -> f32>(answer: F) -> Fake<F> {
        Fake { answer, moved: 0.0, asked: RefCell::default() }
    }

    #[test]
    fn a_device_that_panics_is_reported_and_the_others_are_examined() {
        let fake = fake(|device, _| match device.to_string().as_str() {
            "vulkan" => panic!("a lost device"),
            _ => 2.0,
        });
        let report = report(&fake, None, None);
        assert_eq!(report.wrong(), ["vulkan"]);
        assert!(fake.asked.borrow().iter().any(|name| name == "wgpu"));
        assert!(report.text().contains("panicked: a lost device"), "{}", report.text());
        let json = report.row_json(&report.rows[1]);
        assert_eq!(
            (&json["device"], &json["problem"]),
            (&json!("vulkan"), &json!("panicked: a lost device"))
        );
    }

    #[test]
    fn a_cpu_that_panics_leaves_the_other_references() {
        let fake = fake(|device, _| if *device == Device::Cpu { panic!("a bug") } else { 2.0 });
        assert_eq!(report(&fake, None, Some(2.0)).wrong(), ["cpu", EVERY_VALUE]);
        let alone = report(&fake, None, None);
        assert_eq!(alone.wrong(), ["cpu", EVERY_VALUE, "vulkan", "wgpu"], "nothing vouches for a device");
        assert!(alone.text().contains("nothing to compare it with"), "{}", alone.text());
    }

    #[test]
    fn what_is_expected_is_the_reference_and_then_onnx_runtime_and_then_the_cpu() {
        // The CPU is wrong and the others are right.
        let fake = fake(|device, _| if *device == Device::Cpu { 3.0 } else { 2.0 });
        for right in [report(&fake, Some(2.0), None), report(&fake, None, Some(2.0))] {
            assert_eq!(right.wrong(), ["cpu", EVERY_VALUE], "{}", right.text());
        }
        let expected = report(&fake, Some(2.0), Some(3.0));
        assert_eq!(expected.reference, "the expected outputs");
        assert_eq!(expected.rows[0].outputs.as_ref().unwrap()[0].1, Distance::Relative(0.5));
        assert_eq!(report(&fake, None, None).wrong(), ["vulkan", "wgpu"]);
        assert_eq!(report(&fake, None, None).reference, "cpu");
    }

    #[test]
    fn the_nodes_of_a_device_that_differs_are_compared() {
        let fake = fake(|device, _| if device.to_string() == "wgpu" { 3.0 } else { 2.0 });
        let report = report(&fake, None, None);
        let (against, nodes) = report.rows[2].nodes.as_ref().unwrap();
        assert_eq!((against.as_str(), nodes.compared), ("cpu", 2));
        let json = report.row_json(&report.rows[2]);
        assert_eq!(json["nodes"]["first"]["node"], "two");
        assert_eq!(json["nodes"]["worst"][0]["outputs"][0]["error"]["size"], 0.5);
    }

    #[test]
    fn a_difference_that_rounding_alone_makes_is_the_models_own() {
        // Kept values change what is fused, and with it the last bits.
        let mut fake = fake(|device, all| if *device == Device::Cpu && !all { 2.0 } else { 2.02 });
        let differs = report(&fake, None, None);
        assert_eq!(differs.wrong(), [EVERY_VALUE, "vulkan", "wgpu"]);
        fake.moved = 0.02;
        let sensitive = report(&fake, None, None);
        assert!(sensitive.wrong().is_empty(), "{}", sensitive.text());
        assert!(sensitive.text().contains("within the model's own sensitivity"), "{}", sensitive.text());
        let json = sensitive.row_json(&sensitive.rows[0]);
        assert_eq!(json["outputs"][0]["verdict"], "within the model's own sensitivity");
        assert!(json["outputs"][0]["sensitivity"]["size"].as_f64().unwrap() > 0.005);
    }
}
