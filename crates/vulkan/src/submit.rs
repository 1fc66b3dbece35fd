//! Queues: each counts its submissions on a timeline.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ash::vk;
use olivine_program::Error;

use crate::error::failed;

/// How long a wait looks at the counter before it sleeps: waking up costs more than most runs' last part.
const SPIN: Duration = Duration::from_micros(50);
/// How long before a submission is due a wait stops sleeping, and how long after it begins to sleep again.
const NEAR: Duration = Duration::from_micros(150);

/// A queue with a timeline: every submission raises it by one.
pub(crate) struct Queue {
    pub(crate) family: u32,
    pub(crate) timeline: vk::Semaphore,
    state: Mutex<State>,
}

struct State {
    /// One thread at a time may use it.
    queue: vk::Queue,
    /// The value of the last submission.
    last: u64,
    /// What earlier submissions waited for: later ones are behind it too.
    seen: Vec<After>,
}

/// What a submission waits for on the device.
pub(crate) type After = (vk::Semaphore, u64);

impl Queue {
    pub(crate) fn new(device: &ash::Device, family: u32) -> Result<Self, Error> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // Safety: the device is alive and was made with a queue of this family.
        unsafe {
            let timeline = device.create_semaphore(&info, None).map_err(failed("vkCreateSemaphore"))?;
            let queue = device.get_device_queue(family, 0);
            Ok(Queue { family, timeline, state: Mutex::new(State { queue, last: 0, seen: Vec::new() }) })
        }
    }

    /// The value that all submissions so far will have reached.
    pub(crate) fn last(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last
    }

    /// Submits command buffers one after another, each raising the timeline; returns the first value and the last.
    pub(crate) fn submit(
        &self,
        device: &ash::Device,
        buffers: &[vk::CommandBuffer],
        after: &[After],
    ) -> Result<(u64, u64), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.last;
        let news: Vec<After> = after
            .iter()
            .filter(|(semaphore, value)| !state.seen.iter().any(|(s, v)| s == semaphore && v >= value))
            .copied()
            .collect();
        let waits: Vec<_> = news
            .iter()
            .map(|(semaphore, value)| {
                vk::SemaphoreSubmitInfo::default()
                    .semaphore(*semaphore)
                    .value(*value)
                    .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)
            })
            .collect();
        let commands: Vec<_> =
            buffers.iter().map(|b| [vk::CommandBufferSubmitInfo::default().command_buffer(*b)]).collect();
        let signals: Vec<_> = (1..=buffers.len() as u64)
            .map(|i| {
                [vk::SemaphoreSubmitInfo::default()
                    .semaphore(self.timeline)
                    .value(before + i)
                    .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)]
            })
            .collect();
        let submits: Vec<_> = commands
            .iter()
            .zip(&signals)
            .enumerate()
            .map(|(i, (command, signal))| {
                let info =
                    vk::SubmitInfo2::default().command_buffer_infos(command).signal_semaphore_infos(signal);
                if i == 0 { info.wait_semaphore_infos(&waits) } else { info }
            })
            .collect();
        // Safety: the lock gives this thread the queue; the buffers are recorded, and whoever owns them waits for the
        // timeline before changing or freeing them.
        unsafe { device.queue_submit2(state.queue, &submits, vk::Fence::null()) }
            .map_err(failed("vkQueueSubmit2"))?;
        state.last = before + buffers.len() as u64;
        state.seen.retain(|(s, _)| !news.iter().any(|(n, _)| n == s));
        state.seen.extend(news);
        Ok((before + 1, state.last))
    }

    /// Binds memory to a sparse buffer and waits until it is bound.
    pub(crate) fn bind(
        &self,
        device: &ash::Device,
        buffer: vk::Buffer,
        binds: &[vk::SparseMemoryBind],
    ) -> Result<(), Error> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let buffers = [vk::SparseBufferMemoryBindInfo::default().buffer(buffer).binds(binds)];
        let info = vk::BindSparseInfo::default().buffer_binds(&buffers);
        // Safety: the lock gives this thread the queue; the fence is waited for before it goes.
        unsafe {
            let fence = device
                .create_fence(&vk::FenceCreateInfo::default(), None)
                .map_err(failed("vkCreateFence"))?;
            let bound = device
                .queue_bind_sparse(state.queue, &[info], fence)
                .and_then(|()| device.wait_for_fences(&[fence], true, u64::MAX));
            device.destroy_fence(fence, None);
            bound.map_err(failed("vkQueueBindSparse"))
        }
    }

    /// The value reached so far.
    pub(crate) fn reached(&self, device: &ash::Device) -> Result<u64, Error> {
        // Safety: the semaphore is a timeline of this device.
        unsafe { device.get_semaphore_counter_value(self.timeline) }
            .map_err(failed("vkGetSemaphoreCounterValue"))
    }

    /// Waits until the timeline reaches a value: at first by looking, then asleep.
    pub(crate) fn wait(&self, device: &ash::Device, value: u64) -> Result<(), Error> {
        match self.look(device, value, Instant::now() + SPIN)? {
            true => Ok(()),
            false => self.sleep(device, value, None).map(drop),
        }
    }

    /// The same for a value that should be reached at a known time: asleep until shortly before, then by looking.
    pub(crate) fn wait_until_due(&self, device: &ash::Device, value: u64, due: Instant) -> Result<(), Error> {
        let asleep = (due.saturating_duration_since(Instant::now())).saturating_sub(NEAR);
        if asleep > SPIN && self.sleep(device, value, Some(asleep))? {
            return Ok(());
        }
        match self.look(device, value, Instant::now().max(due) + NEAR)? {
            true => Ok(()),
            false => self.sleep(device, value, None).map(drop),
        }
    }

    /// Looks at the counter until it reaches a value or the time is up; whether it did.
    fn look(&self, device: &ash::Device, value: u64, end: Instant) -> Result<bool, Error> {
        loop {
            if self.reached(device)? >= value {
                return Ok(true);
            }
            if Instant::now() > end {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until the timeline reaches a value or the time is up; whether it did.
    fn sleep(&self, device: &ash::Device, value: u64, most: Option<Duration>) -> Result<bool, Error> {
        let most = most.map_or(u64::MAX, |most| u64::try_from(most.as_nanos()).unwrap_or(u64::MAX));
        let (semaphores, values) = ([self.timeline], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // Safety: the semaphore is a timeline of this device.
        match unsafe { device.wait_semaphores(&info, most) } {
            Ok(()) => Ok(true),
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(e) => Err(failed("vkWaitSemaphores")(e)),
        }
    }

    /// Destroys the timeline; nothing may be in flight.
    pub(crate) fn destroy(&self, device: &ash::Device) {
        // Safety: the owner calls this last, when the device is idle or lost.
        unsafe { device.destroy_semaphore(self.timeline, None) };
    }
}
