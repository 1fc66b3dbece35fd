//! Encoding, submission and waiting. wgpu's command buffers run once, so each run is encoded anew from what was
//! prepared when it was recorded.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use olivine_kernel::{REPORT_WORDS, Report, Violation};
use olivine_program::{Error, Timing};

use crate::Device;
use crate::memory::copy_mapped;
use crate::record::{Recording, State, Step};

/// Submitted work, and the read-back buffers that are mapped when it is done.
#[derive(Debug)]
pub(crate) struct Flight {
    latch: Arc<Latch>,
    /// The submission to block for, which a browser cannot.
    #[cfg(not(target_arch = "wasm32"))]
    index: wgpu::SubmissionIndex,
    #[cfg(not(target_arch = "wasm32"))]
    mapped: bool,
    during: Option<String>,
}

/// Counts callbacks down.
#[derive(Debug, Default)]
struct Latch {
    state: Mutex<Countdown>,
}

#[derive(Debug, Default)]
struct Countdown {
    left: usize,
    failed: bool,
    waker: Option<Waker>,
}

impl Latch {
    fn arrive(&self, ok: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.left = state.left.saturating_sub(1);
        state.failed |= !ok;
        if state.left == 0
            && let Some(waker) = state.waker.take()
        {
            drop(state);
            waker.wake();
        }
    }

    /// Whether all went well, once all have arrived; `waker` is called then.
    fn poll(&self, waker: Option<&Waker>) -> Option<bool> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.left == 0 {
            return Some(!state.failed);
        }
        state.waker = waker.cloned();
        None
    }
}

impl Flight {
    /// Maps read-back buffers as soon as the submission that fills them is done.
    pub(crate) fn new<'b>(
        queue: &wgpu::Queue,
        #[cfg_attr(target_arch = "wasm32", allow(unused_variables))] index: wgpu::SubmissionIndex,
        slices: impl IntoIterator<Item = wgpu::BufferSlice<'b>>,
        during: Option<String>,
    ) -> Self {
        let slices: Vec<_> = slices.into_iter().collect();
        let countdown = Countdown { left: slices.len().max(1), ..Default::default() };
        let latch = Arc::new(Latch { state: Mutex::new(countdown) });
        let mapped = !slices.is_empty();
        for slice in slices {
            let latch = latch.clone();
            slice.map_async(wgpu::MapMode::Read, move |outcome| latch.arrive(outcome.is_ok()));
        }
        if !mapped {
            let latch = latch.clone();
            queue.on_submitted_work_done(move || latch.arrive(true));
        }
        Flight {
            latch,
            #[cfg(not(target_arch = "wasm32"))]
            index,
            #[cfg(not(target_arch = "wasm32"))]
            mapped,
            during,
        }
    }

    /// Blocks until the work is done.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn wait(&self, device: &Device) -> Result<(), Error> {
        loop {
            device.poll_for(self.index.clone(), self.during.as_deref().unwrap_or("wait"))?;
            match self.latch.poll(None) {
                Some(ok) => return self.outcome(device, ok),
                None if !self.mapped => return device.faults.check("wait", self.during.as_deref()),
                // Another thread's poll has taken the callbacks and is about to call them.
                None => std::thread::yield_now(),
            }
            device.faults.check("wait", self.during.as_deref())?;
        }
    }

    /// Resolves when the work is done.
    pub(crate) async fn landed(&self, device: &Device) -> Result<(), Error> {
        Landed { flight: self, device }.await
    }

    fn outcome(&self, device: &Device, ok: bool) -> Result<(), Error> {
        device.faults.check("wait", self.during.as_deref())?;
        match ok {
            true => Ok(()),
            false => {
                let problem = "the read-back memory could not be mapped".to_string();
                Err(Error::Driver { call: "wait", problem })
            }
        }
    }
}

struct Landed<'a> {
    flight: &'a Flight,
    device: &'a Device,
}

impl Future for Landed<'_> {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Landed { flight, device } = &*self;
        // Native callbacks come from polls, so the task asks to be polled again; a browser calls by itself.
        #[cfg(not(target_arch = "wasm32"))]
        device.poll(wgpu::PollType::Poll, "wait")?;
        if let Some(ok) = flight.latch.poll(Some(context.waker())) {
            return Poll::Ready(flight.outcome(device, ok));
        }
        device.faults.check("wait", flight.during.as_deref())?;
        #[cfg(not(target_arch = "wasm32"))]
        {
            std::thread::yield_now();
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Device {
    /// Waits for a submission.
    pub(crate) fn poll_for(&self, index: wgpu::SubmissionIndex, during: &str) -> Result<(), Error> {
        self.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: None }, during)
    }

    pub(crate) fn poll(&self, kind: wgpu::PollType, during: &str) -> Result<(), Error> {
        self.faults.check("poll", Some(during))?;
        // A device that is lost while it is waited for makes wgpu's poll panic; here it is an error like any other.
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.raw.poll(kind)));
        match polled {
            Ok(Ok(_)) => Ok(()),
            // The scope around the submission caught every refusal but that of a lost device, of which wgpu says
            // nothing until it next tidies up.
            Ok(Err(wgpu::PollError::WrongSubmissionIndex(..))) => {
                self.faults.lose(String::new());
                self.faults.check("poll", Some(during))
            }
            Ok(Err(error)) => Err(Error::Driver { call: "poll", problem: error.to_string() }),
            Err(_) => {
                self.faults.lose(String::new());
                self.faults.check("poll", Some(during))
            }
        }
    }
}

impl Device {
    /// Sets the bytes of the i-th upload for the next submission.
    pub(crate) fn upload(&self, recording: &mut Recording, i: usize, bytes: &[u8]) -> Result<(), Error> {
        recording.must_rest("upload")?;
        let upload = recording.uploads.get(i).ok_or_else(|| no_such("upload", i))?;
        if bytes.len() as u64 != upload.bytes {
            return Err(wrong_bytes("upload", upload.bytes, bytes.len()));
        }
        // What pads the last word is the upload's own.
        self.write_words(&upload.buffer, 0, bytes)
    }

    pub(crate) fn submit(&self, recording: &mut Recording) -> Result<(), Error> {
        recording.must_rest("submit")?;
        recording.unmap();
        let flight = self.scoped("submit", || self.launch(recording)).map_err(|caught| {
            // Some buffers may be mapped or on their way; the others' refusal to be unmapped says nothing new.
            let _ = self.scoped("submit", || recording.slices().for_each(|slice| slice.buffer().unmap()));
            caught.into_error("submit")
        })?;
        recording.state = State::InFlight(flight);
        Ok(())
    }

    fn launch(&self, recording: &Recording) -> Flight {
        let mut index = None;
        let last = recording.parts.len().saturating_sub(1);
        for (i, part) in recording.parts.iter().enumerate() {
            let mut encoder =
                self.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("run") });
            if let (0, Some(report)) = (i, &recording.report) {
                encoder.clear_buffer(&report.buffer, 0, None);
            }
            let steps = recording.steps.get(part.clone()).unwrap_or_default();
            match (&recording.timer, recording.timing) {
                (Some(timer), Timing::Runs(times)) => {
                    encode(&mut encoder, steps, times, timer.writes(i));
                }
                (Some(timer), _) => {
                    for (step, number) in steps.iter().zip(part.start..) {
                        encode(&mut encoder, std::slice::from_ref(step), 1, timer.writes(number));
                    }
                }
                (None, _) => encode(&mut encoder, steps, 1, None),
            }
            if i == last {
                recording.copy_back(&mut encoder);
            }
            index = Some(self.queue.submit([encoder.finish()]));
        }
        let index = index.unwrap_or_else(|| self.queue.submit([]));
        Flight::new(&self.queue, index, recording.slices(), Some(recording.span.clone()))
    }

    pub(crate) fn is_done(&self, recording: &Recording) -> Result<bool, Error> {
        let State::InFlight(flight) = &recording.state else { return Ok(true) };
        // Native callbacks come from polls; a browser calls by itself.
        #[cfg(not(target_arch = "wasm32"))]
        self.poll(wgpu::PollType::Poll, "is_done")?;
        Ok(flight.latch.poll(None).is_some())
    }

    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn wait(&self, recording: &mut Recording) -> Result<(), Error> {
        let State::InFlight(flight) = &recording.state else { return Ok(()) };
        let outcome = flight.wait(self);
        recording.land(outcome)
    }

    /// Waits for the submission without blocking; a violation that checked kernels reported is an error.
    pub async fn wait_async(&self, recording: &mut Recording) -> Result<(), Error> {
        let State::InFlight(flight) = &recording.state else { return Ok(()) };
        let outcome = flight.landed(self).await;
        recording.land(outcome)
    }

    /// Whether the submission has ended; the task is woken when it has.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn poll_done(
        &self,
        recording: &mut Recording,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let State::InFlight(flight) = &recording.state else { return Poll::Ready(Ok(())) };
        let outcome = std::task::ready!(Pin::new(&mut Landed { flight, device: self }).poll(context));
        Poll::Ready(recording.land(outcome))
    }

    pub(crate) fn download(&self, recording: &mut Recording, i: usize, into: &mut [u8]) -> Result<(), Error> {
        recording.must_have_landed("download")?;
        let download = recording.downloads.get(i).ok_or_else(|| no_such("download", i))?;
        if into.len() as u64 != download.bytes {
            return Err(wrong_bytes("download", download.bytes, into.len()));
        }
        copy_mapped(&download.staging, 0, into)
    }
}

/// Encodes steps, so many times in a row. Copies before a step end the pass that came before them.
fn encode(
    encoder: &mut wgpu::CommandEncoder,
    steps: &[Step],
    times: u32,
    timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
) {
    if steps.is_empty() {
        return;
    }
    let passes: Vec<&[Step]> = match steps.iter().any(|step| !step.copies.is_empty()) {
        false => vec![steps],
        true => steps.chunk_by(|_, next| next.copies.is_empty()).collect(),
    };
    let (rounds, in_pass) = if passes.len() == 1 { (1, times.max(1)) } else { (times.max(1), 1) };
    let last = rounds as usize * passes.len() - 1;
    for (i, steps) in (0..rounds).flat_map(|_| &passes).enumerate() {
        for copy in steps.iter().flat_map(|step| &step.copies) {
            let (from, to) = (&copy.from.raw, &copy.to.raw);
            encoder.copy_buffer_to_buffer(from, copy.offset, to, 0, copy.bytes);
        }
        let timestamp_writes = timestamp_writes.as_ref().map(|writes| wgpu::ComputePassTimestampWrites {
            query_set: writes.query_set,
            beginning_of_pass_write_index: writes.beginning_of_pass_write_index.filter(|_| i == 0),
            end_of_pass_write_index: writes.end_of_pass_write_index.filter(|_| i == last),
        });
        let timestamp_writes = timestamp_writes.filter(|_| i == 0 || i == last);
        let descriptor = wgpu::ComputePassDescriptor { label: Some("run"), timestamp_writes };
        let mut pass = encoder.begin_compute_pass(&descriptor);
        (0..in_pass).flat_map(|_| steps.iter()).for_each(|step| dispatch(&mut pass, step));
    }
}

fn dispatch(pass: &mut wgpu::ComputePass<'_>, step: &Step) {
    pass.set_pipeline(&step.pipeline.raw);
    pass.set_bind_group(0, &step.group, &[]);
    if !step.immediates.is_empty() {
        pass.set_immediates(0, &step.immediates);
    }
    match &step.indirect {
        Some((buffer, offset)) => pass.dispatch_workgroups_indirect(buffer, *offset),
        None => {
            let [x, y, z] = step.groups;
            pass.dispatch_workgroups(x, y, z);
        }
    }
}

impl Recording {
    fn must_rest(&self, call: &'static str) -> Result<(), Error> {
        match self.state {
            State::InFlight(_) => {
                Err(Error::Driver { call, problem: "the recording is in flight: wait for it first".into() })
            }
            State::New | State::Landed => Ok(()),
        }
    }

    pub(crate) fn must_have_landed(&self, call: &'static str) -> Result<(), Error> {
        match self.state {
            State::Landed => Ok(()),
            _ => Err(Error::Driver {
                call,
                problem: "the recording has not run: submit it and wait first".into(),
            }),
        }
    }

    /// Takes the mapped buffers back for the device.
    fn unmap(&mut self) {
        if matches!(self.state, State::Landed) {
            self.slices().for_each(|slice| slice.buffer().unmap());
        }
        self.state = State::New;
    }

    fn slices(&self) -> impl Iterator<Item = wgpu::BufferSlice<'_>> {
        let downloads = self.downloads.iter().map(|d| d.staging.slice(..));
        let report = self.report.iter().map(|r| r.staging.slice(..));
        let timer = self.timer.iter().map(|t| t.staging().slice(..));
        downloads.chain(report).chain(timer)
    }

    fn copy_back(&self, encoder: &mut wgpu::CommandEncoder) {
        for d in &self.downloads {
            encoder.copy_buffer_to_buffer(&d.buffer.raw, 0, &d.staging, 0, d.staging.size());
        }
        if let Some(r) = &self.report {
            encoder.copy_buffer_to_buffer(&r.buffer, 0, &r.staging, 0, r.staging.size());
        }
        if let Some(timer) = &self.timer {
            timer.resolve(encoder);
        }
    }

    fn land(&mut self, outcome: Result<(), Error>) -> Result<(), Error> {
        self.state = State::Landed;
        outcome?;
        let Some(report) = &self.report else { return Ok(()) };
        let mut bytes = [0; 4 * REPORT_WORDS];
        copy_mapped(&report.staging, 0, &mut bytes)?;
        let mut words = [0; REPORT_WORDS];
        for (word, four) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*four);
        }
        match Report::read(&words) {
            Some(report) => Err(self.violation(report)),
            None => Ok(()),
        }
    }

    fn violation(&self, report: Report) -> Error {
        let Some(step) = self.steps.get(report.dispatch as usize) else {
            let problem = format!("a checked kernel reported {report:?} of no known dispatch");
            return Error::Driver { call: "wait", problem };
        };
        let (op, node) = (step.op, step.node.to_string());
        match report.what {
            Violation::OutOfBounds { arg, index, size } => {
                let kernel = &step.pipeline.kernel;
                let arg = kernel.args.get(arg as usize).map_or_else(|| format!("#{arg}"), |a| a.name.clone());
                let (index, size) = (u64::from(index), u64::from(size));
                Error::OutOfBounds { op, node, kernel: kernel.name.clone(), arg, index, size }
            }
            Violation::BadIndex { position, value, size } => {
                Error::IndexOutOfRange { op, node, position: position as usize, value, size: size as usize }
            }
        }
    }
}

fn no_such(call: &'static str, i: usize) -> Error {
    Error::Driver { call, problem: format!("the recording has no {call} {i}") }
}

fn wrong_bytes(call: &'static str, expected: u64, got: usize) -> Error {
    Error::WrongCount { what: format!("bytes to {call}"), expected: expected as usize, got }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use olivine_program::{Commands, Driver, Program};

    use super::*;
    use crate::{Options, Select};

    #[test]
    fn a_lost_device_is_an_error_of_every_call_and_a_new_one_works() {
        let open = || Device::open(Select::Auto, Options::default());
        let device = match open() {
            Ok(device) => device,
            Err(e) => panic!("{e}: apt install mesa-vulkan-drivers libvulkan1"),
        };
        let buffer = device.allocate(64, "a").unwrap_or_else(|e| panic!("{e}"));
        let commands = Commands {
            program: &Program::default(),
            dispatches: &[],
            pipelines: &[],
            buffers: &[Some(buffer.clone())],
            uploads: &[],
            downloads: &[(olivine_program::BufferId(0), 64)],
            timing: Timing::Off,
            checked: false,
        };
        let mut recording = device.record(&commands).unwrap_or_else(|e| panic!("{e}"));
        device.raw.destroy();
        let lost = |outcome: Result<(), Error>| match outcome {
            Err(Error::DeviceLost { .. }) => {}
            other => panic!("expected the loss of the device, got {other:?}"),
        };
        lost(device.submit(&mut recording).and_then(|()| device.wait(&mut recording)));
        lost(device.read(&buffer, 0, &mut [0; 64]));
        lost(device.write(&buffer, 0, &[0; 64]));
        lost(device.write(&buffer, 1, &[0; 2]));
        lost(device.allocate(64, "b").map(|_| ()));
        let again = open().unwrap_or_else(|e| panic!("{e}"));
        assert!(again.allocate(64, "c").is_ok());
    }
}
