//! `olivine devices`: what is there, and why the rest is not.

use serde_json::json;

use crate::Global;
use crate::answer::{Answer, Failure};
use crate::table::Table;

pub(crate) fn run(global: &Global) -> Result<Answer, Failure> {
    let devices = match &global.device {
        None => olivine::devices(),
        Some(name) => {
            let device = global.device()?;
            let found: Vec<_> = olivine::devices().into_iter().filter(|info| info.is(&device)).collect();
            if found.is_empty() {
                let reason = "there is none of that name".to_string();
                return Err(olivine::Error::Unavailable { device: name.clone(), reason }.into());
            }
            found
        }
    };
    let mut table = Table::new(&["device", "name", "details", "status"]);
    for info in &devices {
        let status = match &info.unavailable {
            None => "available".to_string(),
            Some(reason) => format!("not available: {reason}"),
        };
        table.row([info.device.to_string(), info.name.clone(), info.details.clone(), status]);
    }
    let rows: Vec<_> = devices
        .iter()
        .map(|info| {
            json!({
                "device": info.device.to_string(), "name": info.name, "details": info.details,
                "available": info.unavailable.is_none(), "reason": info.unavailable,
            })
        })
        .collect();
    Ok(Answer::new(table.to_string(), json!({ "devices": rows })))
}
