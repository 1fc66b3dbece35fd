//! A matmul on Hopper's instructions: asynchronous copies into a ring, warpgroups that multiply, roles. It is interpreted, and
//! printed as PTX and emulated.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::ptx::{self, Capability, PtxOptions};
use olivine_kernel::*;
use olivine_ptx::{Module, Order};

/// Slots of the ring, bytes of each: a step of 16 along k for 256 columns.
const SLOTS: u32 = 5;
const SLOT: u32 = 8192;
/// Rows and columns of a tile.
const TILE: [u32; 2] = [128, 256];
/// Steps of 16 whose left operands are loaded together; two such buffers take turns.
const BATCH: usize = 4;
/// Elements along k of both buffers.
const BLOCK: u32 = 16 * 2 * BATCH as u32;

fn hopper() -> Target {
    Target {
        subgroup: Some(32),
        f16: true,
        i64: true,
        warpgroups: true,
        int8_warpgroups: true,
        max_invocations: 1024,
        shared_bytes: 48 << 10,
        ..Target::plain()
    }
}

/// What may be wrong with the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// Slots are handed back before the multiply that reads them is waited for.
    EarlyRelease,
    /// The sums are read before the last multiply is waited for.
    EarlyStore,
    /// Nobody waits for the copies.
    NoAwait,
}

/// The place in a ring: a slot, and the parity of its phase.
struct Ring<'k> {
    k: &'k Builder,
    slot: Var<'k>,
    parity: Var<'k>,
}

impl<'k> Ring<'k> {
    fn new(k: &'k Builder, parity: u32) -> Self {
        Ring { k, slot: k.var(k.u32(0)), parity: k.var(k.u32(parity)) }
    }

    fn advance(&self) {
        let next = self.slot.get() + 1;
        let wraps = next.eq(SLOTS);
        self.slot.set(wraps.select(self.k.u32(0), next));
        self.parity.set(wraps.select(self.parity.get() ^ 1, self.parity.get()));
    }
}

/// C = A · B in f16 with sums in f32: A by rows, B packed, both with k in the order that [`packed`] says.
fn matmul(flaw: Flaw) -> Result<Kernel, Error> {
    let k = Builder::new("matmul_warpgroup", 384, &hopper());
    write(&k, flaw);
    k.finish()
}

fn write(k: &Builder, flaw: Flaw) {
    let a = k.arg("a", Elem::U32, Access::Read);
    let b = k.arg("b", Elem::U32, Access::Read);
    let c = k.arg("c", Elem::F16, Access::Write);
    let [rows, columns, inner] = ["m", "n", "k"].map(|name| k.param(name, Scalar::U32));
    let ring = k.shared(Elem::U32, 4, SLOTS * SLOT / 16);
    let [full, empty] = [0, 1].map(|_| k.shared(Elem::U64, 1, SLOTS));
    k.if_(k.local_index().eq(0), || {
        for slot in 0..SLOTS {
            k.init_barrier(k.async_barrier(full, k.u32(slot)), 1);
            // One arrival of every subgroup that multiplies.
            k.init_barrier(k.async_barrier(empty, k.u32(slot)), 8);
        }
    });
    k.barrier();
    let (tiles, steps) = ((rows / TILE[0]) * (columns / TILE[1]), inner / 16);
    let across = columns / TILE[1];
    let multiplies = || {
        let (lane, warp) = (k.lane(), k.subgroup_id());
        let place = Ring::new(k, 0);
        let buffers: Vec<Var<'_>> = (0..8 * BATCH).map(|_| k.var(k.u32(0))).collect();
        let sums: Vec<Var<'_>> = (0..128).map(|_| k.var(k.f32(0.0))).collect();
        let held = k.var(k.u32(0));
        k.for_(k.group_id(0), tiles, k.group_count(0), |tile| {
            let row = (tile / across) * TILE[0] + warp * 16 + lane / 4;
            // In 64 bytes of a row a lane has 16: its words of two steps.
            let start = row * (inner / 2) + (lane % 4) * 4;
            let load = |block: Val<'_>, second: bool| {
                for pair in 0..BATCH / 2 {
                    let at = block * (BLOCK / 2) + (usize::from(second) * BATCH * 8 + pair * 16) as u32;
                    for half in 0..2u32 {
                        let words = a.load_vec(start + inner * (4 * half) + at, 4);
                        for (i, word) in words.into_iter().enumerate() {
                            // Word 2s + h is of step s: its row, then the row 8 below, then both further along k.
                            let var = (usize::from(second) * BATCH + 2 * pair + i / 2) * 4
                                + 2 * (i % 2)
                                + half as usize;
                            buffers[var].set(word);
                        }
                    }
                }
            };
            let blocks = inner / BLOCK;
            load(k.u32(0), false);
            k.for_(k.u32(0), blocks, k.u32(1), |block| {
                for step in 0..2 * BATCH {
                    let first = block.eq(0);
                    let adds = if step == 0 { block.gt(0) } else { k.bool(true) };
                    let slot = place.slot.get();
                    if flaw != Flaw::NoAwait {
                        k.await_phase(k.async_barrier(full, slot), place.parity.get());
                    }
                    let left = std::array::from_fn(|i| buffers[4 * step + i]);
                    let right = k.warpgroup_operand(ring, slot * (SLOT / 16), [128, 256]);
                    k.warpgroup_fence();
                    k.warpgroup_multiply([Elem::F16; 2], &sums, left, right, adds);
                    k.warpgroup_commit();
                    k.warpgroup_wait(1);
                    // The step before is complete: its slot is free, and so are its left operands.
                    let begins = if step == 0 { first } else { k.bool(false) };
                    let mine = lane.eq(0);
                    if flaw == Flaw::EarlyRelease {
                        k.if_(mine, || k.arrive(k.async_barrier(empty, slot), 0));
                    } else if step == 0 {
                        k.if_(mine & !begins, || k.arrive(k.async_barrier(empty, held.get()), 0));
                    } else {
                        k.if_(mine, || k.arrive(k.async_barrier(empty, held.get()), 0));
                    }
                    if step == 0 {
                        load(block, true);
                    }
                    if step == BATCH {
                        let last = (block + 1).eq(blocks);
                        load(last.select(k.u32(0), block + 1), false);
                    }
                    held.set(slot);
                    place.advance();
                }
            });
            if flaw != Flaw::EarlyStore {
                k.warpgroup_wait(0);
            }
            if flaw != Flaw::EarlyRelease {
                k.if_(lane.eq(0), || k.arrive(k.async_barrier(empty, held.get()), 0));
            }
            let column = (tile % across) * TILE[1] + (lane % 4) * 2;
            for (i, pair) in sums.chunks(2).enumerate() {
                let at = (row + 8 * (i as u32 % 2)) * columns + column + 8 * (i as u32 / 2);
                c.store_vec(at, &[pair[0].get(), pair[1].get()]);
            }
            if flaw == Flaw::EarlyStore {
                k.warpgroup_wait(0);
            }
        });
    };
    let copies = || {
        k.if_(k.local_index().eq(256), || {
            let place = Ring::new(k, 1);
            k.for_(k.group_id(0), tiles, k.group_count(0), |tile| {
                k.for_(k.u32(0), steps, k.u32(1), |step| {
                    let slot = place.slot.get();
                    k.await_phase(k.async_barrier(empty, slot), place.parity.get());
                    let barrier = k.async_barrier(full, slot);
                    k.arrive(barrier, SLOT);
                    let from = ((tile % across) * steps + step) * (SLOT / 4);
                    k.copy_async((ring, slot * (SLOT / 16)), (b, from), SLOT, barrier);
                    place.advance();
                });
            });
        });
    };
    k.roles(vec![(8, 240, Box::new(multiplies)), (4, 24, Box::new(copies))]);
}

/// The bits of small f16 numbers: multiples of 1/4 from -2 to 2.
fn half(number: i32) -> u16 {
    let x = number as f32 / 4.0;
    if x == 0.0 {
        return 0;
    }
    let bits = x.to_bits();
    let exponent = ((bits >> 23) & 0xff) as i32 - 127 + 15;
    ((bits >> 16) & 0x8000) as u16 | (exponent as u16) << 10 | ((bits >> 13) & 0x3ff) as u16
}

fn element(which: usize, i: usize) -> i32 {
    ((i * 37 + which * 11 + i / 64 * 5) % 17) as i32 - 8
}

/// Where a step's byte of B comes from in 64 bytes along k: as A's lanes load theirs.
fn from_byte(step: usize, byte: usize) -> usize {
    16 * (byte % 16 / 4) + 8 * step + 4 * (byte / 16) + byte % 4
}

/// B as the kernel copies it: tiles of 256 columns, steps of 16 along k, blocks of 8 columns and 16 bytes along k.
fn packed(columns: usize, inner: usize) -> Vec<u8> {
    let steps = inner / 16;
    let mut bytes = vec![0; columns * inner * 2];
    for tile in 0..columns / 256 {
        for step in 0..steps {
            for column in 0..256 {
                for byte in (0..32).step_by(2) {
                    let k = step / 2 * 32 + from_byte(step % 2, byte) / 2;
                    let value = half(element(1, k * columns + tile * 256 + column)).to_le_bytes();
                    let block = column / 8 * 256 + byte / 16 * 128 + column % 8 * 16 + byte % 16;
                    let at = (tile * steps + step) * SLOT as usize + block;
                    bytes[at..at + 2].copy_from_slice(&value);
                }
            }
        }
    }
    bytes
}

/// Inputs, outputs that nobody wrote, and what these should become.
fn problem([m, n, k]: [usize; 3]) -> ([Vec<u8>; 3], Vec<u8>) {
    let a = (0..m * k).flat_map(|i| half(element(0, i)).to_le_bytes()).collect();
    let expected = (0..m * n).flat_map(|i| {
        let (row, column) = (i / n, i % n);
        let terms = (0..k).map(|d| element(0, row * k + d) * element(1, d * n + column));
        f16_of(terms.sum::<i32>() as f32 / 16.0).to_le_bytes()
    });
    ([a, packed(n, k), vec![0xff; m * n * 2]], expected.collect())
}

/// The f16 nearest to a number of normal size.
fn f16_of(x: f32) -> u16 {
    let k = Builder::new("constant", 1, &Target::plain());
    k.arg("y", Elem::F16, Access::Write).store(k.u32(0), k.f32(x));
    let mut buffers = [vec![0; 2]];
    interpret(&k.finish().unwrap(), 1, [1; 3], &mut buffers, &[], Device::EXACT).unwrap();
    u16::from_le_bytes([buffers[0][0], buffers[0][1]])
}

fn emulated(kernel: &Kernel, sizes: [usize; 3], groups: u32, order: Order) -> Result<Vec<u8>, String> {
    let text =
        ptx::print(kernel, &PtxOptions { capability: Capability::HOPPER }).map_err(|e| e.to_string())?;
    let (mut buffers, _) = problem(sizes);
    Module::parse(&text)?.run([groups, 1, 1], &mut buffers, &sizes.map(|s| s as u32), order)?;
    Ok(buffers[2].clone())
}

#[test]
fn a_matmul_of_roles_is_right_interpreted_and_emulated() {
    let kernel = matmul(Flaw::None).expect("a valid kernel");
    // One and several tiles to a workgroup, rings that wrap, blocks that repeat.
    for (sizes, groups) in [([128, 256, 128], 1), ([256, 512, 256], 2), ([384, 256, 384], 1)] {
        let (mut buffers, expected) = problem(sizes);
        let params = sizes.map(|s| s as u32);
        interpret(&kernel, 32, [groups, 1, 1], &mut buffers, &params, Device::EXACT)
            .unwrap_or_else(|e| panic!("{sizes:?}: {e}"));
        assert!(buffers[2] == expected, "{sizes:?}, interpreted");
        for order in [Order::Ascending, Order::Descending] {
            let found = emulated(&kernel, sizes, groups, order).unwrap_or_else(|e| panic!("{sizes:?}: {e}"));
            assert!(found == expected, "{sizes:?}, emulated");
        }
    }
}

#[test]
fn the_emulator_finds_out_what_is_not_waited_for() {
    let sizes = [128, 256, 256];
    let (_, expected) = problem(sizes);
    for flaw in [Flaw::EarlyRelease, Flaw::EarlyStore, Flaw::NoAwait] {
        let kernel = matmul(flaw).expect("a valid kernel");
        let wrong = |order| emulated(&kernel, sizes, 1, order).map_or(true, |found| found != expected);
        assert!(wrong(Order::Ascending) || wrong(Order::Descending), "{flaw:?}");
    }
}

#[test]
fn phases_that_nothing_completes_are_an_error() {
    let k = Builder::new("stuck", 128, &hopper());
    let barriers = k.shared(Elem::U64, 1, 1);
    let barrier = k.async_barrier(barriers, k.u32(0));
    k.if_(k.local_index().eq(0), || k.init_barrier(barrier, 2));
    k.barrier();
    k.if_(k.local_index().eq(0), || k.arrive(barrier, 0));
    k.await_phase(barrier, k.u32(0));
    let kernel = k.finish().expect("a valid kernel");
    assert!(interpret(&kernel, 32, [1; 3], &mut [], &[], Device::EXACT).is_err());
    let text = ptx::print(&kernel, &PtxOptions { capability: Capability::HOPPER }).unwrap();
    let stuck = Module::parse(&text).unwrap().run([1; 3], &mut [], &[], Order::Ascending);
    assert!(stuck.unwrap_err().contains("for ever"));
}

#[test]
fn warpgroups_are_held_to_their_rules_and_to_hopper() {
    let kernel = matmul(Flaw::None).expect("a valid kernel");
    let without = Target { warpgroups: false, ..hopper() };
    assert!(matches!(validate(&kernel, &without), Err(Error::Missing(_))));
    for capability in [Capability::ADA, Capability::BLACKWELL] {
        assert!(matches!(ptx::print(&kernel, &PtxOptions { capability }), Err(Error::Missing(_))));
    }
    assert!(matches!(spirv::print(&kernel, &spirv::SpirvOptions::default()), Err(Error::Missing(_))));
    let text = ptx::print(&kernel, &PtxOptions { capability: Capability::HOPPER }).unwrap();
    assert!(text.contains(".target sm_90a\n") && text.contains("setmaxnreg.inc.sync.aligned.u32 240;"));
    // Registers that a launch does not have, roles that are no warpgroups, barriers inside of roles.
    let refused = |roles: for<'k> fn(&'k Builder) -> Vec<RoleWork<'k>>| {
        let k = Builder::new("roles", 256, &hopper());
        k.roles(roles(&k));
        k.finish().is_err()
    };
    fn nothing() -> Box<dyn FnOnce() + 'static> {
        Box::new(|| {})
    }
    assert!(!refused(|_| vec![(4, 240, nothing()), (4, 24, nothing())]));
    assert!(refused(|_| vec![(4, 241, nothing()), (4, 24, nothing())]));
    assert!(refused(|_| vec![(3, 64, nothing()), (5, 64, nothing())]));
    assert!(refused(|_| vec![(4, 64, nothing())]));
    assert!(refused(|k| vec![(4, 64, Box::new(|| k.barrier())), (4, 24, nothing())]));
}

/// One multiply of a warpgroup: sums that begin at `start`, and so many columns.
fn one_multiply(elems: [Elem; 2], columns: u32, start: i32, target: &Target) -> Result<Kernel, Error> {
    let k = Builder::new("one_multiply", WARPGROUP, target);
    let a = k.arg("a", Elem::U32, Access::Read);
    let b = k.arg("b", Elem::U32, Access::Read);
    let is_float = elems[0].scalar().is_float();
    let c = k.arg("c", if is_float { Elem::F32 } else { Elem::I32 }, Access::Write);
    let bytes = columns * 32;
    let (slot, barriers) = (k.shared(Elem::U32, 4, bytes / 16), k.shared(Elem::U64, 1, 1));
    let barrier = k.async_barrier(barriers, k.u32(0));
    k.if_(k.local_index().eq(0), || k.init_barrier(barrier, 1));
    k.barrier();
    k.if_(k.local_index().eq(0), || {
        k.arrive(barrier, bytes);
        k.copy_async((slot, k.u32(0)), (b, k.u32(0)), bytes, barrier);
    });
    let me = k.local_index();
    let begin = || k.var(if is_float { k.f32(start as f32) } else { k.i32(start) });
    let sums: Vec<Var<'_>> = (0..columns / 2).map(|_| begin()).collect();
    let words = a.load_vec(me * 4, 4);
    let left: [Var<'_>; 4] = std::array::from_fn(|i| k.var(words[i]));
    k.await_phase(barrier, k.u32(0));
    k.warpgroup_fence();
    let right = k.warpgroup_operand(slot, k.u32(0), [128, 256]);
    k.warpgroup_multiply(elems, &sums, left, right, k.bool(true));
    k.warpgroup_commit();
    k.warpgroup_wait(0);
    for (i, sums) in (0u32..).zip(sums.chunks(4)) {
        let sums: Vec<Val<'_>> = sums.iter().map(|sum| sum.get()).collect();
        c.store_vec(me * (columns / 2) + 4 * i, &sums);
    }
    k.finish()
}

#[test]
fn integers_of_either_sign_are_multiplied_into_sums_that_wrap() {
    // All bytes occur, so that each is -1 as one type and 255 as the other.
    let byte = |which: usize, i: usize, k: usize| ((i * 37 + k * 101 + which * 11 + i * k % 7) % 256) as u8;
    let number =
        |elem: Elem, byte: u8| if elem == Elem::I8 { i32::from(byte as i8) } else { i32::from(byte) };
    for (elems, columns) in [
        ([Elem::I8, Elem::I8], 256),
        ([Elem::I8, Elem::U8], 128),
        ([Elem::U8, Elem::I8], 32),
        ([Elem::U8, Elem::U8], 24),
    ] {
        for start in [0, i32::MAX, i32::MIN] {
            let kernel = one_multiply(elems, columns, start, &hopper()).expect("a valid kernel");
            let n = columns as usize;
            let mut a = Vec::new();
            for (thread, word) in (0..128).flat_map(|thread| (0..4).map(move |word| (thread, word))) {
                let row = thread / 32 * 16 + thread % 32 / 4 + word % 2 * 8;
                let first = thread % 4 * 4 + word / 2 * 16;
                a.extend((first..first + 4).map(|k| byte(0, row, k)));
            }
            let mut b = vec![0; n * 32];
            for (column, k) in (0..n).flat_map(|column| (0..32).map(move |k| (column, k))) {
                b[column / 8 * 256 + k / 16 * 128 + column % 8 * 16 + k % 16] = byte(1, column, k);
            }
            let mut expected = Vec::new();
            for (thread, i) in (0..128).flat_map(|thread| (0..n / 2).map(move |i| (thread, i))) {
                let row = thread / 32 * 16 + thread % 32 / 4 + i % 4 / 2 * 8;
                let column = i / 4 * 8 + thread % 4 * 2 + i % 2;
                let term = |k| number(elems[0], byte(0, row, k)) * number(elems[1], byte(1, column, k));
                expected.extend((0..32).map(term).fold(start, i32::wrapping_add).to_le_bytes());
            }
            let buffers = [a, b, vec![0xff; expected.len()]];
            let mut found = buffers.clone();
            interpret(&kernel, 32, [1; 3], &mut found, &[], Device::EXACT).unwrap();
            assert!(found[2] == expected, "{elems:?}, {columns} columns from {start}, interpreted");
            let text = ptx::print(&kernel, &PtxOptions { capability: Capability::HOPPER }).unwrap();
            // A mix of both types came with a later version of PTX.
            let version = if elems[0] == elems[1] { "8.0" } else { "8.4" };
            assert!(text.starts_with(&format!(".version {version}\n")), "{elems:?}");
            for order in [Order::Ascending, Order::Descending] {
                let mut found = buffers.clone();
                Module::parse(&text).unwrap().run([1; 3], &mut found, &[], order).unwrap();
                assert!(found[2] == expected, "{elems:?}, {columns} columns from {start}, emulated");
            }
        }
    }
}

#[test]
fn operands_that_warpgroups_do_not_multiply_are_refused() {
    let refused = |elems, columns, target: &Target| one_multiply(elems, columns, 0, target).is_err();
    assert!(!refused([Elem::F16; 2], 40, &hopper()));
    // Integers come in sixteens of columns, with integers, and where the device has them.
    assert!(refused([Elem::I8; 2], 40, &hopper()));
    assert!(refused([Elem::I8, Elem::F16], 64, &hopper()));
    assert!(refused([Elem::F16, Elem::BF16], 64, &hopper()));
    assert!(refused([Elem::F32; 2], 64, &hopper()));
    let without = Target { int8_warpgroups: false, ..hopper() };
    assert!(refused([Elem::U8, Elem::I8], 64, &without));
    assert!(!refused([Elem::F16; 2], 64, &without));
}
