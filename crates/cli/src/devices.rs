//! `olivine devices`: what is there, why the rest is not, and which of them runs a model the fastest.

use std::path::{Path, PathBuf};

use clap::Args;
use olivine::cost::{Calibration, RankedDevice, rank_devices};
use olivine::{CompileOptions, DeviceInfo, Session};
use serde_json::{Value, json};

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::model::Sizes;
use crate::progress::Progress;
use crate::table::Table;
use crate::timing::short;
use crate::zoo::calibrate;
use crate::{onnx, source, svg};

#[derive(Args)]
pub(crate) struct DevicesArgs {
    /// Rank the devices by the predicted time of a run of a model: a built-in one (bert-base, encoder), an ONNX file or a
    /// graph in text form.
    #[arg(long, value_name = "MODEL")]
    rank: Option<String>,
    #[command(flatten)]
    sizes: Sizes,
    /// With --rank, draw the ranking into a file.
    #[arg(long, value_name = "FILE", requires = "rank")]
    svg: Option<PathBuf>,
    /// Draw what each device was measured to do, arithmetic over memory, into a file.
    #[arg(long, value_name = "FILE")]
    roofline: Option<PathBuf>,
    /// Measure the devices again, whatever is stored of them.
    #[arg(long)]
    calibrate: bool,
}

pub(crate) fn run(global: &Global, args: &DevicesArgs) -> Result<Answer, Failure> {
    let devices = named(global)?;
    if args.calibrate {
        measure_again(global, &devices)?;
    }
    let mut answer = match &args.rank {
        Some(model) => ranking(global, args, model, &devices)?,
        None => list(&devices),
    };
    if let Some(path) = &args.roofline {
        let drawn = roofline(global, &devices)?;
        write(path, &drawn)?;
        answer = answer.with_line(&format!("roofline: {}", path.display()));
    }
    Ok(answer)
}

/// The devices that --device names, or all.
fn named(global: &Global) -> Result<Vec<DeviceInfo>, Failure> {
    let Some(name) = &global.device else { return Ok(olivine::devices()) };
    let device = global.device()?;
    let found: Vec<_> = olivine::devices().into_iter().filter(|info| info.is(&device)).collect();
    if found.is_empty() {
        let reason = "there is none of that name".to_string();
        return Err(olivine::Error::Unavailable { device: name.clone(), reason }.into());
    }
    Ok(found)
}

fn list(devices: &[DeviceInfo]) -> Answer {
    let mut table = Table::new(&["device", "name", "details", "status"]);
    for info in devices {
        let status = match &info.unavailable {
            None => "available".to_string(),
            Some(reason) => format!("not available: {reason}"),
        };
        table.row([info.device.to_string(), info.name.clone(), info.details.clone(), status]);
    }
    let row = |info: &DeviceInfo| {
        json!({
            "device": info.device.to_string(), "name": info.name, "details": info.details,
            "kind": info.class.name(), "memory_bytes": info.memory_bytes,
            "available": info.unavailable.is_none(), "reason": info.unavailable,
        })
    };
    let rows: Vec<_> = devices.iter().map(row).collect();
    Answer::new(table.to_string(), json!({ "devices": rows }))
}

/// The devices by the predicted time of a run, the fastest first.
fn ranking(
    global: &Global,
    args: &DevicesArgs,
    model: &str,
    devices: &[DeviceInfo],
) -> Result<Answer, Failure> {
    let (devices, how) = (devices.to_vec(), global.options());
    let mut show = Progress::of_measurements(global.quiet);
    let all = if onnx::is_onnx(model) && !args.sizes.any() {
        // All graphs that a run goes through count, not only the last.
        let dims = &args.sizes.dims;
        let model = onnx::load(Path::new(model), &dims.load_options())?;
        rank_devices(devices, &model, &dims.compile_options(&model)?, &how, &mut show)
    } else {
        let graph = source::graph(model, &args.sizes)?;
        rank_devices(devices, &graph, &CompileOptions::default(), &how, &mut show)
    };
    drop(show);
    let mut table =
        Table::new(&[">#", "device", "name", "kind", ">predicted ms", ">starting", ">transfers", "reason"]);
    for (i, ranked) in all.iter().enumerate() {
        let ms = |time: std::time::Duration| short(time.as_secs_f64() * 1e3);
        let cells = match &ranked.prediction {
            Ok(p) => [ms(p.total), ms(p.run), ms(p.transfers), p.reason()],
            Err(reason) => [String::new(), String::new(), String::new(), format!("cannot run it: {reason}")],
        };
        let info = &ranked.info;
        let first =
            [(i + 1).to_string(), info.device.to_string(), info.name.clone(), info.class.name().into()];
        table.row(first.into_iter().chain(cells));
    }
    let mut text = table.to_string();
    if let Some(path) = &args.svg {
        let bars: Vec<(String, f64)> = all
            .iter()
            .filter_map(|ranked| Some((ranked.info.device.to_string(), ranked.time()?.as_secs_f64() * 1e3)))
            .collect();
        write(path, &svg::bars(&format!("predicted time of a run of {model}, ms"), &bars))?;
        text += &format!("\nplot: {}\n", path.display());
    }
    let rows: Vec<Value> = all.iter().map(json_of).collect();
    Ok(Answer::new(text, json!({ "model": model, "ranking": rows, "svg": args.svg })))
}

fn json_of(ranked: &RankedDevice) -> Value {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let prediction = ranked.prediction.as_ref();
    json!({
        "device": ranked.info.device.to_string(), "name": ranked.info.name, "kind": ranked.info.class.name(),
        "predicted_ms": prediction.ok().map(|p| ms(p.total)), "run_ms": prediction.ok().map(|p| ms(p.run)),
        "transfers_ms": prediction.ok().map(|p| ms(p.transfers)),
        "reason": prediction.map_or_else(Clone::clone, olivine::cost::Prediction::reason),
    })
}

fn sessions<'a>(
    global: &'a Global,
    devices: &'a [DeviceInfo],
) -> impl Iterator<Item = Result<(&'a DeviceInfo, Session), Failure>> {
    let usable = devices.iter().filter(|info| info.unavailable.is_none());
    usable.map(|info| Ok((info, Session::with_options(info.device.clone(), global.options())?)))
}

fn measure_again(global: &Global, devices: &[DeviceInfo]) -> Result<(), Failure> {
    for opened in sessions(global, devices) {
        calibrate(global, &opened?.1, true)?;
    }
    Ok(())
}

/// Arithmetic rates over operations to the byte, of every device.
fn roofline(global: &Global, devices: &[DeviceInfo]) -> Result<String, Failure> {
    let mut roofs = Vec::new();
    for opened in sessions(global, devices) {
        let (info, session) = opened?;
        calibrate(global, &session, false)?;
        let measured = Calibration::load_or_measure(&session)?;
        let rows = ["matmul f32", "matmul f16", "matmul bf16", "matmul i8", "arithmetic"];
        let peak = |row: &&str| Some((format!("{} {row}", info.device), measured.rate(row)?));
        let Some(memory) = measured.copy_rate() else { continue };
        roofs.extend(rows.iter().filter_map(peak).map(|(name, flops)| svg::Roof { name, memory, flops }));
    }
    Ok(svg::roofline("measured rates", &roofs))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| {
        Failure::new(error.to_string())
            .context(format!("cannot write `{}`", path.display()))
            .hint("name a file in a folder that exists and can be written")
    })
}
