//! What a run costs on a device, before it runs.
//!
//! ```text
//!   probes.rs ── small graphs ── measure.rs ── Calibration ── store.rs: a file in the user's cache folder
//!   engine ───── work.rs: what each step of a run does ──┐         │
//!                                                        └─ predict.rs ── rank.rs: which device is the fastest
//!   watch.rs: real runs beside their predictions
//! ```
//!
//! A [`Calibration`] holds measured times of the library's own kernels at a few sizes ([`Curve`]). A prediction looks the
//! times of each step up in them.

mod calibration;
mod curve;
mod measure;
mod predict;
mod probes;
mod rank;
mod store;
mod watch;
mod work;

pub use calibration::{Calibration, Rates};
pub use curve::Curve;
pub use measure::Progress;
pub use predict::{Bound, Prediction, StepPrediction};
pub use rank::{Fallback, RankedDevice, rank, rank_devices};
pub use work::{Family, Work};

pub(crate) use store::OfSession as CalibrationOfSession;
pub(crate) use watch::{Moved, Watch, WatchedRun};
