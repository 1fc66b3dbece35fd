//! Progress bars: on stderr, on a terminal, and only for work that takes over a second.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Progress through a known number of steps.
pub(crate) struct Progress {
    bar: ProgressBar,
    since: Instant,
    shown: bool,
    quiet: bool,
}

impl Progress {
    pub(crate) fn new(steps: usize, quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Progress { bar, since: Instant::now(), shown: false, quiet }
    }

    /// Begins a step under a name.
    pub(crate) fn begin(&mut self, name: &str) {
        self.bar.set_message(name.to_string());
        if !self.shown && !self.quiet && self.since.elapsed() > PATIENCE {
            self.shown = true;
            // indicatif draws nothing here when stderr is no terminal.
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// A bar for measurements of devices, which tell how far they are: one after another.
    pub(crate) fn of_measurements(quiet: bool) -> impl FnMut(&str, usize, usize) {
        let mut bar: Option<Progress> = None;
        move |row, done, all| {
            let bar = bar.get_or_insert_with(|| Progress::new(all, quiet));
            bar.begin(&format!("measuring: {row}"));
            bar.bar.set_length(all as u64);
            bar.bar.set_position(done as u64);
        }
    }

    /// A step is done.
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress through bytes, of which the number may be unknown.
#[cfg(feature = "pull")]
pub(crate) struct Bytes {
    bar: ProgressBar,
    since: Instant,
    shown: bool,
    quiet: bool,
}

#[cfg(feature = "pull")]
impl Bytes {
    pub(crate) fn new(total: Option<u64>, done: u64, quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let template = match total {
            Some(_) => "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            None => "{bytes} {bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_position(done);
        bar.reset_eta();
        Bytes { bar, since: Instant::now(), shown: false, quiet }
    }

    /// More bytes are done.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.bar.inc(bytes as u64);
        if !self.shown && !self.quiet && self.since.elapsed() > PATIENCE {
            self.shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

#[cfg(feature = "pull")]
impl Drop for Bytes {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
