//! A ring of slots in workgroup memory: one thread fills them by asynchronous copies, warpgroups multiply by them and empty them.

use olivine_kernel::{AsyncBarrier, Buf, Builder, Elem, Shared, Val, Var};

/// The slots, with two barriers to each.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'k> {
    k: &'k Builder,
    /// The slots, one after another, in elements of 16 bytes.
    pub(crate) memory: Shared<'k>,
    full: Shared<'k>,
    empty: Shared<'k>,
    slots: u32,
    /// Bytes of a slot, a multiple of 16.
    bytes: u32,
}

impl<'k> Ring<'k> {
    /// Workgroup memory of a ring.
    pub(crate) const fn shared_bytes(slots: u32, bytes: u32) -> u32 {
        slots * (bytes + 16)
    }

    /// Takes workgroup memory.
    pub(crate) fn declare(k: &'k Builder, slots: u32, bytes: u32) -> Self {
        let barriers = || k.shared(Elem::U64, 1, slots);
        let memory = k.shared(Elem::U32, 4, slots * (bytes / 16));
        Ring { k, memory, full: barriers(), empty: barriers(), slots, bytes }
    }

    /// Makes the barriers; slots are empty when so many subgroups have said so.
    pub(crate) fn init(&self, subgroups: u32) {
        let k = self.k;
        k.if_(k.local_index().eq(0u32), || {
            for slot in 0..self.slots {
                k.init_barrier(k.async_barrier(self.full, k.u32(slot)), 1);
                k.init_barrier(k.async_barrier(self.empty, k.u32(slot)), subgroups);
            }
        });
        k.barrier();
    }

    /// The barrier whose phase is complete when a slot is full.
    pub(crate) fn full(&self, slot: Val<'k>) -> AsyncBarrier {
        self.k.async_barrier(self.full, slot)
    }

    /// The barrier whose phase is complete when a slot is empty.
    pub(crate) fn empty(&self, slot: Val<'k>) -> AsyncBarrier {
        self.k.async_barrier(self.empty, slot)
    }

    /// Where the copying thread begins.
    pub(crate) fn writer(self) -> RingWriter<'k> {
        RingWriter { ring: self, at: Position::of_writer(self) }
    }

    /// Where a subgroup that multiplies begins.
    pub(crate) fn reader(self) -> RingReader<'k> {
        RingReader { ring: self, at: Position::of_reader(self), held: self.k.var(self.k.u32(0)) }
    }
}

/// A role's position in the ring: a slot, and the parity of its phase.
pub(crate) struct Position<'k> {
    ring: Ring<'k>,
    pub(crate) slot: Var<'k>,
    pub(crate) parity: Var<'k>,
}

impl<'k> Position<'k> {
    /// Of the thread that fills slots. Of a fresh barrier, the phase of parity 1 counts as complete: all slots are empty.
    pub(crate) fn of_writer(ring: Ring<'k>) -> Self {
        Position::new(ring, 1)
    }

    /// Of a subgroup that multiplies.
    pub(crate) fn of_reader(ring: Ring<'k>) -> Self {
        Position::new(ring, 0)
    }

    fn new(ring: Ring<'k>, parity: u32) -> Self {
        let k = ring.k;
        Position { ring, slot: k.var(k.u32(0)), parity: k.var(k.u32(parity)) }
    }

    /// Goes on to the next slot.
    pub(crate) fn advance(&self) {
        let k = self.ring.k;
        let next = self.slot.get() + 1u32;
        let wraps = next.eq(self.ring.slots);
        self.slot.set(wraps.select(k.u32(0), next));
        self.parity.set(self.parity.get() ^ wraps.select(k.u32(1), k.u32(0)));
    }
}

/// The thread that fills slots, one after another.
pub(crate) struct RingWriter<'k> {
    ring: Ring<'k>,
    at: Position<'k>,
}

impl<'k> RingWriter<'k> {
    /// Waits until the next slot is empty and begins to copy bytes of a buffer of u32, from a u64 element on, into it.
    pub(crate) fn copy(&self, buffer: Buf<'k>, from: Val<'k>, bytes: u32) {
        let Ring { k, memory, .. } = self.ring;
        let slot = self.at.slot.get();
        k.await_phase(self.ring.empty(slot), self.at.parity.get());
        let full = self.ring.full(slot);
        k.arrive(full, bytes);
        k.copy_async((memory, slot * (self.ring.bytes / 16)), (buffer, from), bytes, full);
        self.at.advance();
    }
}

/// A subgroup that multiplies by slots, one after another.
pub(crate) struct RingReader<'k> {
    ring: Ring<'k>,
    at: Position<'k>,
    /// The slot that multiplies under way still read.
    held: Var<'k>,
}

impl<'k> RingReader<'k> {
    /// For each of so many slots: waits until it is full, and calls `multiply` with its number, the ring's memory and the index of the
    /// slot's first 16 bytes. Each slot's multiplies are a group; a slot is emptied once the next group has begun and its own is
    /// complete. All groups are complete at the end: ptxas serialises multiplies that run on into the next iteration of a loop.
    pub(crate) fn multiply_by(&self, slots: u32, multiply: impl Fn(u32, Shared<'k>, Val<'k>)) {
        for slot in 0..slots {
            self.multiply_by_next(|memory, first| multiply(slot, memory, first));
            if slot > 0 {
                self.empty();
            }
            self.held.set(self.at.slot.get());
            self.at.advance();
        }
        self.ring.k.warpgroup_wait(0);
        self.empty();
    }

    fn multiply_by_next(&self, multiply: impl FnOnce(Shared<'k>, Val<'k>)) {
        let k = self.ring.k;
        let slot = self.at.slot.get();
        k.await_phase(self.ring.full(slot), self.at.parity.get());
        k.warpgroup_fence();
        multiply(self.ring.memory, slot * (self.ring.bytes / 16));
        k.warpgroup_commit();
        k.warpgroup_wait(1);
    }

    fn empty(&self) {
        let k = self.ring.k;
        k.if_(k.lane().eq(0u32), || k.arrive(self.ring.empty(self.held.get()), 0));
    }
}
