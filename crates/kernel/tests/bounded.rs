//! Kernels with bounds, run on the host with any indices: nothing outside of their memory is touched, and what is inside is as
//! without bounds. The interpreter refuses every access outside of a buffer, so a run that ends says the first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use olivine_kernel::interpret::{Device, interpret};
use olivine_kernel::*;

const GROUP: u32 = 32;
const LANES: u32 = 8;

fn target() -> Target {
    let shape = MatrixShape { operand: Elem::F16, accumulator: Elem::F32, m: 8, n: 8, k: 8 };
    Target {
        subgroup: Some(LANES),
        f16: true,
        f64: true,
        i64: true,
        matrices: vec![shape],
        ..Target::plain()
    }
}

fn kernel(write: impl FnOnce(&Builder)) -> Kernel {
    let k = Builder::new("anywhere", GROUP, &target());
    write(&k);
    k.finish().expect("a valid kernel")
}

/// Indices in and out of a buffer of `len` elements, one for each invocation; those inside are all different.
fn indices(len: u32) -> Vec<u32> {
    let inside = [0, 1, 2, 3, len / 2, len - 1].into_iter().filter(|i| *i < len);
    let outside = [len, len + 1, len + 3, 2 * len, 1 << 16, 1 << 30, 1 << 31, u32::MAX - 3, u32::MAX];
    let mut list: Vec<u32> = inside.chain(outside.into_iter().filter(|i| *i >= len)).collect();
    list.sort_unstable();
    list.dedup();
    let mut state = 12345u32;
    while list.len() < GROUP as usize {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        list.push((state | 1).max(len));
    }
    list
}

fn words(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Bytes of a buffer: whole multiples of 16.
fn buffer(len: u32, elem: Elem, byte: u8) -> Vec<u8> {
    vec![byte; (len * elem.size()).next_multiple_of(16) as usize]
}

/// Runs a kernel with bounds over buffers of so many elements; without bounds the same run must fail.
fn run(kernel: &Kernel, buffers: &mut [Vec<u8>], lengths: &[u32]) {
    let mut untouched = buffers.to_vec();
    let free = interpret(kernel, LANES, [1, 1, 1], &mut untouched, &[], Device::EXACT);
    assert!(free.is_err(), "the run has nothing to guard against");
    let kept = bounded(kernel.clone(), &target()).expect("bounds");
    assert_eq!(kept.params.len(), lengths.len());
    interpret(&kept, LANES, [1, 1, 1], buffers, lengths, Device::EXACT).expect("it stays inside");
}

#[test]
fn stores_outside_are_dropped_and_loads_outside_read_the_last_element() {
    for elem in Elem::ALL.into_iter().filter(|e| *e != Elem::Bool) {
        for (lanes, len) in [1u8, 2, 4].into_iter().flat_map(|l| [1, 3, 6, 7, 16, 33].map(|n| (l, n))) {
            for wide in [false, true] {
                let kernel = kernel(|k| {
                    let at = k.arg("at", Elem::U32, Access::Read);
                    let x = k.arg("x", elem, Access::Read);
                    let (y, z) = (k.arg("y", elem, Access::Write), k.arg("z", elem, Access::Write));
                    let i = k.local_index();
                    let mut index = at.load(i);
                    if wide {
                        // Far past 32 bits; cut down to them it would be inside.
                        let far = index.gt(len + 8);
                        let high = far.select(k.u32(1 << 30), k.u32(0)).convert(Scalar::U64) << 8;
                        index = far.select(k.u32(0), index).convert(Scalar::U64) + high;
                    }
                    let seven = k.number(elem.scalar(), 7.0);
                    match lanes {
                        1 => {
                            y.store(index, seven);
                            z.store(i, x.load(index));
                        }
                        n => {
                            y.store_vec(index, &vec![seven; usize::from(n)]);
                            z.store_vec(i * u32::from(n), &x.load_vec(index, n));
                        }
                    }
                });
                let list = indices(len);
                let all = GROUP * u32::from(lanes);
                let mut x = buffer(len, elem, 0);
                for (i, chunk) in x.chunks_mut(elem.size() as usize).enumerate() {
                    chunk[0] = i as u8 + 1;
                }
                let padded = (x.len() / elem.size() as usize) as u32;
                let mut buffers = [words(&list), x.clone(), buffer(len, elem, 0xee), buffer(all, elem, 0)];
                run(&kernel, &mut buffers, &[GROUP, len, len, all]);
                let size = elem.size() as usize;
                let mut stored = vec![false; padded as usize];
                for (i, index) in list.iter().enumerate() {
                    let first = index / u32::from(lanes) * u32::from(lanes);
                    for lane in 0..u32::from(lanes) {
                        // Vectors of more than 16 bytes are kept or dropped 16 bytes at a time.
                        let step = u32::from(lanes).min(16 / elem.size());
                        let begin = first + lane / step * step;
                        let inside = begin < len;
                        if inside {
                            stored[(first + lane) as usize] = true;
                        }
                        let last = (len - 1) / step * step + lane % step;
                        let from = if inside { first + lane } else { last };
                        let what = format!("{elem}, {lanes} from {index} of {len}");
                        let at = (i as u32 * u32::from(lanes) + lane) as usize * size;
                        let want = &x[from as usize * size..][..size];
                        assert_eq!(&buffers[3][at..at + size], want, "{what}");
                    }
                }
                for (i, stored) in stored.iter().enumerate() {
                    let kept = buffers[2][i * size..][..size].iter().all(|b| *b == 0xee);
                    assert_eq!(kept, !stored, "{elem}, {lanes} of {len}: element {i}");
                }
            }
        }
    }
}

#[test]
fn atomics_outside_are_dropped_and_give_zero() {
    let len = 5;
    let kernel = kernel(|k| {
        let at = k.arg("at", Elem::U32, Access::Read);
        let y = k.arg("y", Elem::U32, Access::ReadWrite);
        let z = k.arg("z", Elem::U32, Access::Write);
        let i = k.local_index();
        let before = y.atomic(AtomicOp::Add, at.load(i), k.u32(3));
        let swapped = y.compare_exchange(at.load(i), k.u32(13), k.u32(100));
        z.store(i * 2, before);
        z.store(i * 2 + 1, swapped);
    });
    let list = indices(len);
    let mut buffers = [words(&list), buffer(len, Elem::U32, 0), buffer(2 * GROUP, Elem::U32, 1)];
    buffers[1] = words(&[10, 10, 10, 10, 10, 77, 77, 77]);
    run(&kernel, &mut buffers, &[GROUP, len, 2 * GROUP]);
    assert_eq!(buffers[1], words(&[100, 100, 100, 100, 100, 77, 77, 77]));
    let want: Vec<u32> = list.iter().flat_map(|i| if *i < len { [10, 13] } else { [0, 0] }).collect();
    assert_eq!(buffers[2], words(&want));
}

#[test]
fn workgroup_arrays_have_bounds_too() {
    for lanes in [1u8, 4] {
        let kernel = kernel(|k| {
            let at = k.arg("at", Elem::U32, Access::Read);
            let z = k.arg("z", Elem::U32, Access::Write);
            let (s, counts) = (k.shared(Elem::U32, lanes, 6), k.shared(Elem::U32, 1, 3));
            let i = k.local_index();
            let index = at.load(i);
            k.if_(i.lt(6), || s.store_vec(i, &vec![i; usize::from(lanes)]));
            k.if_(i.lt(3), || counts.store(i, k.u32(0)));
            k.barrier();
            s.store_vec(index, &vec![index + 100; usize::from(lanes)]);
            s.store_lane(index, lanes - 1, index + 200);
            counts.atomic(AtomicOp::Add, index, k.u32(1));
            k.barrier();
            z.store(i * 3, s.load_lane(index, 0));
            z.store(i * 3 + 1, s.load_lane(index, lanes - 1));
            z.store(i * 3 + 2, counts.load(index));
        });
        let list = indices(6);
        let mut buffers = [words(&list), buffer(3 * GROUP, Elem::U32, 9)];
        run(&kernel, &mut buffers, &[GROUP, 3 * GROUP]);
        let element = |i: u32| if [0, 1, 2, 3, 5].contains(&i) { i + 100 } else { i };
        let want: Vec<u32> = list
            .iter()
            .flat_map(|i| {
                let (i, count) = ((*i).min(5), 1);
                let last = if i == 4 { 4 } else { element(i) + 100 };
                [if lanes == 1 { last } else { element(i) }, last, count]
            })
            .collect();
        assert_eq!(buffers[1], words(&want), "{lanes}");
    }
}

/// First element, stride, and whether columns are contiguous.
type MatrixAt = (u32, u32, bool);

fn matrix_kernel(at: MatrixAt, shared: bool, store: bool) -> Kernel {
    kernel(|k| {
        let numbers = k.arg("numbers", Elem::U32, Access::Read);
        let x = k.arg("x", Elem::F16, if store { Access::Write } else { Access::Read });
        let y = k.arg("y", Elem::F16, Access::Write);
        let ty = MatrixType { elem: Elem::F16, rows: 8, columns: 8, role: MatrixUse::A };
        let s = k.shared(Elem::F16, 1, 64);
        let (index, stride) = (numbers.load_uniform(0), numbers.load_uniform(1));
        let one = k.f32(1.0);
        k.for_(k.local_index(), k.u32(64), k.u32(GROUP), |i| s.store(i, one));
        k.barrier();
        match (shared, store) {
            (false, true) => x.store_matrix(index, stride, at.2, one.splat(ty)),
            (true, true) => s.store_matrix(index, stride, at.2, (one * 3).splat(ty)),
            (false, false) => {
                y.store_matrix(k.u32(0), k.u32(8), false, x.load_matrix(ty, index, stride, at.2))
            }
            (true, false) => {
                y.store_matrix(k.u32(0), k.u32(8), false, s.load_matrix(ty, index, stride, at.2))
            }
        }
        k.barrier();
        if store {
            k.for_(k.local_index(), k.u32(64), k.u32(GROUP), |i| y.store(i, s.load(i)));
        }
    })
}

#[test]
fn matrices_outside_give_zeros_and_are_not_stored() {
    let len = 72;
    let outside = [
        (65, 8, false),
        (80, 8, true),
        (0, 16, false),
        (8, 64, true),
        (0, 1 << 29, false),
        (0, u32::MAX - 7, false),
        (u32::MAX - 7, 8, false),
        (8, (1u32 << 31) + 8, true),
        // Not aligned.
        (3, 8, false),
        (0, 9, false),
    ];
    let (one, half) = (0x3c00u16.to_le_bytes(), 0x3800u16.to_le_bytes());
    for (at, shared, store) in outside
        .into_iter()
        .flat_map(|at| [(at, false, false), (at, false, true), (at, true, false), (at, true, true)])
    {
        let what = format!("{at:?}, in workgroup memory: {shared}, store: {store}");
        let plain = matrix_kernel(at, shared, store);
        let kept = bounded(plain, &target()).expect("bounds");
        let x: Vec<u8> = half.repeat(len as usize);
        let mut buffers = [words(&[at.0, at.1, 0, 0]), x.clone(), buffer(64, Elem::F16, 0xee)];
        interpret(&kept, LANES, [1, 1, 1], &mut buffers, &[2, len, 64], Device::EXACT).expect(&what);
        assert_eq!(buffers[1], x, "{what}");
        let want = if store { one.repeat(64) } else { vec![0; 128] };
        assert_eq!(buffers[2], want, "{what}");
    }
    for (at, shared, store) in [((8, 8, false), false, false), ((0, 8, true), true, false)] {
        let kept = bounded(matrix_kernel(at, shared, store), &target()).expect("bounds");
        let mut buffers =
            [words(&[at.0, at.1, 0, 0]), half.repeat(len as usize), buffer(64, Elem::F16, 0xee)];
        interpret(&kept, LANES, [1, 1, 1], &mut buffers, &[2, len, 64], Device::EXACT).expect("inside");
        assert_eq!(buffers[2], if shared { one.repeat(64) } else { half.repeat(64) });
    }
}

#[test]
fn arithmetic_that_devices_leave_undefined_is_defined() {
    let kernel = kernel(|k| {
        let x = k.arg("x", Elem::I32, Access::Read);
        let f = k.arg("f", Elem::F32, Access::Read);
        let y = k.arg("y", Elem::I32, Access::Write);
        let i = k.local_index();
        let (a, b) = (x.load(i * 2), x.load(i * 2 + 1));
        let unset = {
            // Set on one way only.
            let var = std::cell::Cell::new(None);
            k.if_(i.gt(100), || var.set(Some(k.var(a))));
            var.get().map_or(a, |v| v.get())
        };
        for (at, value) in
            [a / b, a % b, a << b, a >> b, f.load(i).convert(Scalar::I32), unset].into_iter().enumerate()
        {
            y.store(i * 6 + at as u32, value);
        }
    });
    let (least, most) = (i32::MIN, i32::MAX);
    let pairs = [(7, 0), (least, -1), (least, 0), (-7, 2), (1, 33), (-8, -31), (5, most), (0, least)];
    let floats = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e9, -3e9, 2.9, -2.9, f32::MAX];
    let list: Vec<u32> =
        (0..GROUP as usize).flat_map(|i| [pairs[i % 8].0, pairs[i % 8].1]).map(|x: i32| x as u32).collect();
    let f: Vec<u32> = (0..GROUP as usize).map(|i| floats[i % 8].to_bits()).collect();
    let mut buffers = [words(&list), words(&f), buffer(6 * GROUP, Elem::I32, 1)];
    run(&kernel, &mut buffers, &[2 * GROUP, GROUP, 6 * GROUP]);
    for (i, got) in buffers[2].chunks(24).enumerate() {
        let got: Vec<i32> = got.chunks(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let ((a, b), x) = (pairs[i % 8], floats[i % 8]);
        let divisor = if b == 0 { 1 } else { b };
        let (held, by) = (if x.is_nan() { f32::MIN } else { x.min(2147483520.0) }, b as u32 & 31);
        let want = [a.wrapping_div(divisor), a.wrapping_rem(divisor), a << by, a >> by, held as i32, 0];
        assert_eq!(got, want, "{a}, {b}, {x}");
    }
}

#[test]
fn finished_code_cannot_be_given_bounds() {
    let words = spirv::print(
        &kernel(|k| k.arg("y", Elem::F32, Access::Write).store(k.u32(0), k.f32(0.0))),
        &spirv::SpirvOptions::default(),
    );
    let module = SpirvModule::new(words.unwrap(), "main").unwrap();
    let code = Foreign { pointers: Some(module), ..Foreign::default() };
    let args = vec![ArgDecl { name: "y".into(), elem: Elem::F32, access: Access::Write, streaming: false }];
    let kernel = Kernel::foreign("finished", args, Vec::new(), code).unwrap();
    assert!(matches!(bounded(kernel, &target()), Err(Error::Invalid(_))));
}
