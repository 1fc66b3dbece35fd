//! `olivine bench predict`: what runs of the zoo's models were predicted to take, beside what they take.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use olivine::cost::Calibration;
use olivine::internals::onnx::{Dim, Kind, Port};
use olivine::ir::{Data, Shape, Tensor};
use olivine::{Executable, Model, Session};
use serde_json::{Value, json};

use super::ZooArgs;
use crate::Global;
use crate::answer::{Answer, Failure};
use crate::progress::Progress;
use crate::table::Table;
use crate::timing::{Repeat, Times, short, timed};

/// How often the open size of a model is its own: three sizes where there is an open one.
const FACTORS: [usize; 3] = [1, 2, 4];
/// A prediction is good if it is no more than so many times too long or too short.
const GOOD: f64 = 2.0;
/// The predicted fastest device is right if it takes no longer than the fastest by so much.
const NEAR: f64 = 1.2;

#[derive(Args)]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    zoo: ZooArgs,
    /// Timed runs of a model at a size on a device, unless they take over a second together.
    #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Measure the devices again before.
    #[arg(long)]
    calibrate: bool,
    /// Print the steps whose prediction is the furthest off, of each model and device.
    #[arg(long)]
    steps: bool,
}

/// A model at a size on a device.
struct Row {
    model: String,
    size: String,
    device: String,
    predicted: f64,
    measured: f64,
    /// The shortest run: on a machine that does something else, nearer to what the device takes.
    shortest: f64,
    steps: String,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.predicted / self.measured
    }

    fn is_good(&self) -> bool {
        is_good(self.ratio())
    }
}

fn is_good(ratio: f64) -> bool {
    (1.0 / GOOD..=GOOD).contains(&ratio)
}

pub(crate) fn run(global: &Global, args: &PredictArgs) -> Result<Answer, Failure> {
    let (sessions, mut entries) = (args.zoo.sessions(global)?, args.zoo.entries()?);
    entries.dedup_by(|later, kept| later.model == kept.model);
    if entries.is_empty() {
        return Err(args.zoo.nothing(&args.zoo.oracle));
    }
    for (_, session) in &sessions {
        calibrate(global, session, args.calibrate)?;
    }
    let host = Session::new(olivine::Device::Cpu)?;
    let mut progress = Progress::new(entries.len(), global.quiet);
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for entry in &entries {
        progress.begin(&entry.model);
        let model = Model::load(args.zoo.folder.join(&entry.model))?;
        let own = entry.inputs(&args.zoo.folder)?;
        let sizes = sizes(&host.compile(&model)?, &model, own);
        for (device, session) in &sessions {
            match measure(session, &model, &sizes, args) {
                Ok(measured) => rows.extend(measured.into_iter().map(|row| Row {
                    model: entry.model.clone(),
                    device: device.clone(),
                    ..row
                })),
                Err(failure) => failed.push(format!("{} on {device}: {}", entry.model, failure.error())),
            }
        }
        progress.step();
    }
    drop(progress);
    Ok(report(&rows, &failed, args))
}

/// Loads a session's calibration, or measures it under a bar.
pub(crate) fn calibrate(global: &Global, session: &Session, again: bool) -> Result<(), Failure> {
    let mut show = Progress::of_measurements(global.quiet);
    if again {
        Calibration::measure_again(session, &mut show)?;
    }
    Calibration::load_or_measure_with(session, &mut show)?;
    Ok(())
}

/// Inputs by name.
type Inputs = Vec<(String, Tensor)>;

/// The inputs at three sizes, or at one where no size is open that can be another.
fn sizes(host: &Executable, model: &Model, own: Inputs) -> Vec<(String, Inputs)> {
    let ports = model.inputs();
    let mut axes = open_axes(&ports);
    // The last axis of an image or a sequence is the one that changes most; batches come after.
    axes.reverse();
    let works =
        |inputs: &Inputs| host.run(inputs.iter().map(|(name, tensor)| (name.as_str(), tensor))).is_ok();
    for axis in axes {
        let scaled: Option<Vec<(String, Inputs)>> = FACTORS
            .iter()
            .map(|factor| {
                let inputs = own
                    .iter()
                    .map(|(name, tensor)| Some((name.clone(), scaled(name, tensor, &axis, &ports, *factor)?)))
                    .collect::<Option<Inputs>>()?;
                works(&inputs).then(|| (format!("×{factor}"), inputs))
            })
            .collect();
        if let Some(scaled) = scaled {
            return scaled;
        }
    }
    vec![("×1".to_string(), own)]
}

/// An open size: by its name, or by input and axis.
#[derive(Clone, PartialEq)]
enum Open {
    Named(String),
    Axis(String, usize),
}

fn open_axes(ports: &[Port]) -> Vec<Open> {
    let mut all = Vec::new();
    for port in ports {
        let Kind::Tensor { dims: Some(dims), .. } = &port.kind else { continue };
        for (axis, dim) in dims.iter().enumerate() {
            let open = match dim {
                Dim::Fixed(_) => continue,
                Dim::Named(name) => Open::Named(name.clone()),
                Dim::Free => Open::Axis(port.name.clone(), axis),
            };
            if !all.contains(&open) {
                all.push(open);
            }
        }
    }
    all
}

/// An input with an open size so many times as long, its elements repeated.
fn scaled(name: &str, tensor: &Tensor, open: &Open, ports: &[Port], factor: usize) -> Option<Tensor> {
    let port = ports.iter().find(|port| port.name == name)?;
    let Kind::Tensor { dims: Some(dims), .. } = &port.kind else { return Some(tensor.clone()) };
    let is = |axis: usize, dim: &Dim| match (open, dim) {
        (Open::Named(open), Dim::Named(name)) => open == name,
        (Open::Axis(input, at), Dim::Free) => input == name && *at == axis,
        _ => false,
    };
    let mut sizes = tensor.shape().dims().to_vec();
    for (axis, _) in dims.iter().enumerate().filter(|(axis, dim)| is(*axis, dim)) {
        *sizes.get_mut(axis)? *= factor;
    }
    let shape = Shape::new(&sizes).ok()?;
    let (from, bytes) = (tensor.bytes(), shape.numel() * tensor.dtype().size());
    let repeated: Vec<u8> = from.iter().copied().cycle().take(bytes).collect();
    Tensor::from_data(shape, Data::from_bytes(tensor.dtype(), &repeated).ok()?).ok()
}

/// The model at every size on a device.
fn measure(
    session: &Session,
    model: &Model,
    sizes: &[(String, Inputs)],
    args: &PredictArgs,
) -> Result<Vec<Row>, Failure> {
    let executable = session.compile(model)?;
    let mut rows = Vec::new();
    for (size, inputs) in sizes {
        let given = || inputs.iter().map(|(name, tensor)| (name.as_str(), tensor));
        // The first run compiles what is compiled late.
        executable.run(given())?;
        let begun = Instant::now();
        executable.run(given())?;
        if begun.elapsed() < Duration::from_millis(20) {
            (0..3).try_for_each(|_| executable.run(given()).map(drop))?;
        }
        let repeat = Repeat { runs: args.runs as usize, budget: Duration::from_secs(1) };
        let times: Times = repeat.time(|| {
            let (time, out) = timed(|| executable.run(given()));
            out?;
            Ok(time)
        })?;
        let prediction = executable.predict(given())?;
        let steps = if args.steps { worst(&executable, inputs, &prediction)? } else { String::new() };
        rows.push(Row {
            model: String::new(),
            size: size.clone(),
            device: String::new(),
            predicted: prediction.total.as_secs_f64() * 1e3,
            measured: times.median(),
            shortest: times.least(),
            steps,
        });
    }
    Ok(rows)
}

/// The parts of a run that are the furthest from their prediction, by family.
fn worst(
    executable: &Executable,
    inputs: &Inputs,
    prediction: &olivine::cost::Prediction,
) -> Result<String, Failure> {
    let profiled = executable.profile(inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let mut parts: BTreeMap<String, (f64, f64, usize)> = BTreeMap::new();
    for (measured, predicted) in profiled.iter().zip(&prediction.steps) {
        let name = format!("{}/{}", predicted.work.family.name(), predicted.kernel);
        let part = parts.entry(name).or_default();
        part.0 += predicted.time.as_secs_f64() * 1e3;
        part.1 += measured.time.as_secs_f64() * 1e3;
        part.2 += 1;
    }
    let mut parts: Vec<_> = parts.into_iter().collect();
    parts.sort_by(|a, b| (b.1.0 - b.1.1).abs().total_cmp(&(a.1.0 - a.1.1).abs()));
    let part = |(name, (predicted, measured, count)): &(String, (f64, f64, usize))| {
        format!("      {count} {name}: {} predicted, {} ms\n", short(*predicted), short(*measured))
    };
    let ms = |time: Duration| short(time.as_secs_f64() * 1e3);
    let fixed = format!("      start {} ms, transfers {} ms\n", ms(prediction.run), ms(prediction.transfers));
    Ok(fixed + &parts.iter().take(6).map(part).collect::<String>())
}

/// The devices' rows of one model at one size.
fn runs(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut all: BTreeMap<(&str, &str), Vec<&Row>> = BTreeMap::new();
    for row in rows {
        all.entry((&row.model, &row.size)).or_default().push(row);
    }
    all.into_values().filter(|rows| rows.len() > 1).collect()
}

/// Whether the device that was predicted to be the fastest is, or nearly.
fn is_right(rows: &[&Row]) -> bool {
    let least = |of: &dyn Fn(&Row) -> f64| rows.iter().copied().min_by(|a, b| of(a).total_cmp(&of(b)));
    match (least(&|row| row.predicted), least(&|row| row.measured)) {
        (Some(chosen), Some(fastest)) => chosen.measured <= NEAR * fastest.measured,
        _ => false,
    }
}

fn report(rows: &[Row], failed: &[String], args: &PredictArgs) -> Answer {
    let mut table =
        Table::new(&["model", "size", "device", ">predicted ms", ">measured ms", ">ratio", "within 2×"]);
    let mut steps = String::new();
    for row in rows {
        let good = if row.is_good() { "" } else { "no" };
        let (predicted, measured) = (short(row.predicted), short(row.measured));
        let ratio = format!("{:.2}", row.ratio());
        table.row([
            row.model.clone(),
            row.size.clone(),
            row.device.clone(),
            predicted,
            measured,
            ratio,
            good.into(),
        ]);
        if args.steps {
            steps += &format!(
                "{} {} {} predicted {} measured {}\n{}",
                row.model,
                row.size,
                row.device,
                short(row.predicted),
                short(row.measured),
                row.steps
            );
        }
    }
    let (good, runs) = (rows.iter().filter(|row| row.is_good()).count(), runs(rows));
    let right = runs.iter().filter(|rows| is_right(rows)).count();
    let share = |part: usize, all: usize| if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 };
    let mut text = format!("{table}\n{steps}");
    text += &format!("within 2×: {good} of {} ({:.1} %)\n", rows.len(), share(good, rows.len()));
    let near = rows.iter().filter(|row| is_good(row.predicted / row.shortest)).count();
    text += &format!(
        "of the shortest runs instead of medians: {near} of {} ({:.1} %)\n",
        rows.len(),
        share(near, rows.len())
    );
    text += &format!(
        "the predicted fastest is the fastest or within 20 %: {right} of {} ({:.1} %)\n",
        runs.len(),
        share(right, runs.len())
    );
    text.extend(failed.iter().map(|failure| format!("left out: {failure}\n")));
    let list: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "model": row.model, "size": row.size, "device": row.device, "predicted_ms": row.predicted,
                "measured_ms": row.measured, "shortest_ms": row.shortest, "ratio": row.ratio(),
            })
        })
        .collect();
    let json = json!({
        "rows": list, "within_2": good, "predictions": rows.len(), "fastest_right": right, "choices": runs.len(),
        "left_out": failed,
    });
    Answer::new(text, json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(device: &str, predicted: f64, measured: f64) -> Row {
        let text = |text: &str| text.to_string();
        let (model, size, device) = (text("m"), text("×1"), text(device));
        Row { model, size, device, predicted, measured, shortest: measured, steps: text("") }
    }

    #[test]
    fn twice_as_long_or_half_is_good_and_more_is_not() {
        assert!(row("cpu", 2.0, 1.0).is_good() && row("cpu", 1.0, 2.0).is_good());
        assert!(!row("cpu", 2.1, 1.0).is_good() && !row("cpu", 1.0, 2.1).is_good());
        assert!(!row("cpu", 1.0, f64::NAN).is_good());
    }

    #[test]
    fn a_choice_is_right_if_the_chosen_takes_little_longer_than_the_fastest() {
        let (fast, near, slow) = (row("a", 2.0, 1.0), row("b", 1.0, 1.15), row("c", 0.5, 3.0));
        assert!(is_right(&[&fast, &near]));
        assert!(!is_right(&[&fast, &near, &slow]));
        assert_eq!(runs(&[fast, near]).len(), 1);
        assert_eq!(runs(&[slow]).len(), 0, "one device is no choice");
    }

    #[test]
    fn open_sizes_are_scaled_wherever_their_name_stands() -> Result<(), Failure> {
        let element = olivine::internals::onnx::ElementType::of_dtype(olivine::ir::DType::F32);
        let port = |name: &str, dims: Vec<Dim>| Port {
            name: name.into(),
            kind: Kind::Tensor { element, dims: Some(dims) },
        };
        let n = || Dim::Named("n".into());
        let ports = [port("x", vec![n(), Dim::Fixed(2)]), port("y", vec![Dim::Free, n()])];
        assert!(open_axes(&ports) == [Open::Named("n".into()), Open::Axis("y".into(), 0)]);
        let x = Tensor::new([1, 2], vec![1f32, 2.0])?;
        let twice = scaled("x", &x, &Open::Named("n".into()), &ports, 2);
        let twice = twice.ok_or_else(|| Failure::new("not scaled"))?;
        assert_eq!(
            (twice.shape().dims(), twice.as_slice::<f32>()?),
            (&[2, 2][..], &[1.0, 2.0, 1.0, 2.0][..])
        );
        Ok(())
    }
}
