//! What stays on the device between runs: results, state, and runs in flight; one body for every backend.
#![forbid(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine::ir::Data;
use olivine::ir::op::HeadLayout;
use olivine::prelude::*;
use olivine::{Backend, PipelineCache, ResidentOutputs, State};

const DEVICES: [Device; 3] = [Device::Cpu, Device::Vulkan, Device::Wgpu];

/// Opens a device, Vulkan under validation, or says what to install.
fn open(device: &Device) -> Session {
    let validation = device.backend() == Backend::Vulkan;
    let options = SessionOptions::new().validation(validation).pipeline_cache(PipelineCache::Off);
    Session::with_options(device.clone(), options).unwrap_or_else(|e| {
        panic!("{e}\ninstall: apt-get install mesa-vulkan-drivers libvulkan1 vulkan-validationlayers")
    })
}

/// The same test on every backend; the validation layer must have nothing to say.
fn everywhere(mut test: impl FnMut(&Session)) {
    for device in DEVICES {
        println!("{device}");
        let session = open(&device);
        test(&session);
        assert_eq!(session.validation_messages(), Vec::<String>::new());
    }
}

fn vector(values: &[f32]) -> Tensor {
    Tensor::new([values.len()], values.to_vec()).unwrap()
}

fn ramp(n: usize, start: f32) -> Tensor {
    Tensor::new([n], (0..n).map(|i| start + i as f32).collect()).unwrap()
}

fn f32s(tensor: &Tensor) -> Vec<f32> {
    tensor.as_slice::<f32>().unwrap().to_vec()
}

/// y = x · x + x over `n` elements.
fn square(n: usize) -> Graph {
    let mut g = Graph::new("square");
    let x = g.input("x", DType::F32, [n]).unwrap();
    let y = g.mul(x, x).unwrap();
    let y = g.add(y, x).unwrap();
    g.output("y", y).unwrap();
    g
}

fn squared(x: &Tensor) -> Vec<f32> {
    f32s(x).iter().map(|v| v * v + v).collect()
}

/// A resident output by name.
fn taken(mut outputs: ResidentOutputs, name: &str) -> DeviceTensor {
    outputs.take(name).unwrap()
}

#[test]
fn eight_runs_in_flight_are_right_in_any_order_of_waiting() {
    everywhere(|session| {
        let executable = session.compile(&square(1000)).unwrap();
        let inputs: Vec<Tensor> = (0..8).map(|i| ramp(1000, i as f32)).collect();
        for order in [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 6, 1, 7, 2, 5, 4]] {
            let mut pending: Vec<_> =
                inputs.iter().map(|x| Some(executable.submit([("x", x)]).unwrap())).collect();
            for i in order {
                let out = pending[i].take().unwrap().wait().unwrap();
                assert_eq!(f32s(out.get("y").unwrap()), squared(&inputs[i]), "run {i}");
            }
        }
    });
}

#[test]
fn runs_that_nobody_waits_for_harm_nothing() {
    everywhere(|session| {
        let executable = session.compile(&square(1000)).unwrap();
        let x = ramp(1000, 0.5);
        for _ in 0..20 {
            let dropped: Vec<_> = (0..5).map(|_| executable.submit([("x", &x)]).unwrap()).collect();
            let kept = executable.submit([("x", &ramp(1000, 2.0))]).unwrap();
            drop(dropped);
            let out = kept.wait().unwrap();
            assert_eq!(f32s(out.get("y").unwrap()), squared(&ramp(1000, 2.0)));
        }
        let last = executable.submit([("x", &x)]).unwrap();
        drop(executable);
        assert_eq!(f32s(last.wait().unwrap().get("y").unwrap()), squared(&x), "its executable is gone");
    });
}

#[test]
fn the_inputs_of_a_run_in_flight_may_change_at_once() {
    everywhere(|session| {
        let executable = session.compile(&square(64)).unwrap();
        let mut x = ramp(64, 1.0);
        let pending = executable.submit([("x", &x)]).unwrap();
        x.as_mut_slice::<f32>().unwrap().fill(-7.0);
        assert_eq!(f32s(pending.wait().unwrap().get("y").unwrap()), squared(&ramp(64, 1.0)));
    });
}

#[test]
fn results_go_from_one_executable_to_another_without_the_host() {
    everywhere(|session| {
        let (one, two) = (session.compile(&square(300)).unwrap(), session.compile(&square(300)).unwrap());
        for start in [0.0, 1.0, 2.0, 0.0] {
            let x = ramp(300, start);
            let between = taken(one.run_resident([("x", &x)]).unwrap(), "y");
            let out = two.run([("x", &between)]).unwrap();
            let want = squared(&vector(&squared(&x)));
            assert_eq!(f32s(out.get("y").unwrap()), want);
            assert_eq!(f32s(&between.to_tensor().unwrap()), squared(&x), "an input is not written over");
        }
    });
}

#[test]
fn outputs_of_a_run_in_flight_stay_on_the_device() {
    everywhere(|session| {
        let model = session.compile(&square(1000)).unwrap();
        let x = ramp(1000, 2.0);
        let mut run = model.submit_resident([("x", &x)]).unwrap();
        let outputs = run.outputs().unwrap();
        // The result of a run that may not have ended is an input of another.
        assert_eq!(outputs.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["y"]);
        assert!(matches!(outputs.get("z"), Err(Error::UnknownName { .. })));
        let again = model.run([("x", &outputs["y"])]).unwrap();
        assert_eq!(f32s(again.at(0).unwrap()), squared(&vector(&squared(&x))));
        while !run.is_done().unwrap() {
            std::thread::yield_now();
        }
        run.wait().unwrap();
        // Runs that nobody waits for harm nothing.
        drop(model.submit_resident([("x", &x)]).unwrap());
    });
}

#[test]
fn bytes_on_the_device_are_read_as_another_type_and_replaced_in_front() {
    everywhere(|session| {
        let x = session.upload(&vector(&[1.0, -2.0, 3.0])).unwrap();
        let bits = x.reinterpret(TensorType::new(DType::I32, Shape::new(&[2]).unwrap())).unwrap();
        let want = [1.0f32.to_bits() as i32, (-2.0f32).to_bits() as i32];
        assert_eq!(bits.to_tensor().unwrap().as_slice::<i32>().unwrap(), want);
        let large = TensorType::new(DType::F64, Shape::new(&[2]).unwrap());
        assert!(x.reinterpret(large).unwrap_err().to_string().contains("at most the 12 bytes"));
        let front = session.upload(&vector(&[7.0])).unwrap();
        assert_eq!(f32s(&x.with_prefix(&front).unwrap().to_tensor().unwrap()), [7.0, -2.0, 3.0]);
        assert_eq!(f32s(&x.to_tensor().unwrap()), [1.0, -2.0, 3.0], "it is a copy");
        assert!(front.with_prefix(&x).is_err());
        let mut bytes = [0; 12];
        x.read_bytes(&mut bytes).unwrap();
        assert_eq!(bytes[4..8], (-2.0f32).to_ne_bytes());
        assert!(x.read_bytes(&mut bytes[1..]).is_err());
    });
}

#[test]
fn a_loop_over_results_takes_bounded_memory() {
    everywhere(|session| {
        let model = session.compile(&square(1000)).unwrap();
        let mut x = session.upload(&ramp(1000, 0.0)).unwrap();
        let mut taken = None;
        for step in 0..40 {
            let outputs = model.run_resident([("x", &x)]).unwrap();
            x = outputs.into_iter().next().unwrap().1;
            match step {
                20 => taken = session.memory_taken(),
                21.. => assert_eq!(session.memory_taken(), taken),
                _ => {}
            }
        }
    });
}

#[test]
fn an_uploaded_tensor_is_an_input_of_any_number_of_runs() {
    everywhere(|session| {
        let executable = session.compile(&square(77)).unwrap();
        let x = ramp(77, 3.0);
        let there = session.upload(&x).unwrap();
        assert_eq!(there.ty(), x.ty());
        for _ in 0..3 {
            assert_eq!(f32s(executable.run([("x", &there)]).unwrap().get("y").unwrap()), squared(&x));
        }
        assert_eq!(there.to_tensor().unwrap(), x);
    });
}

#[test]
fn some_elements_are_read_back_as_the_slice_they_are() {
    everywhere(|session| {
        let executable = session.compile(&square(1001)).unwrap();
        let x = ramp(1001, 0.0);
        let y = taken(executable.run_resident([("x", &x)]).unwrap(), "y");
        let all = squared(&x);
        for range in [0..1001, 0..1, 1000..1001, 3..700, 500..500] {
            let Data::F32(part) = y.read_elements(range.clone()).unwrap() else { panic!("not f32") };
            assert_eq!(part.as_slice(), &all[range]);
        }
        #[allow(clippy::reversed_empty_ranges, reason = "it must be refused")]
        for range in [0..1002, 1002..1002, 7..6, usize::MAX - 1..usize::MAX] {
            assert!(matches!(y.read_elements(range), Err(Error::BadRange { all: 1001, .. })));
        }
    });
}

#[test]
fn odd_parts_of_small_types_are_read_back() {
    everywhere(|session| {
        let mut g = Graph::new("narrow");
        let x = g.input("x", DType::U8, [37]).unwrap();
        let y = g.add(x, x).unwrap();
        g.output("y", y).unwrap();
        let executable = session.compile(&g).unwrap();
        let x = Tensor::new([37], (0..37).collect::<Vec<u8>>()).unwrap();
        let y = taken(executable.run_resident([("x", &x)]).unwrap(), "y");
        for range in [0..37, 1..2, 3..36, 35..37] {
            let Data::U8(part) = y.read_elements(range.clone()).unwrap() else { panic!("not u8") };
            let want: Vec<u8> = range.map(|i| 2 * i as u8).collect();
            assert_eq!(part.as_slice(), want);
        }
    });
}

#[test]
fn a_result_outlives_its_executable_and_later_runs_leave_it_alone() {
    everywhere(|session| {
        let executable = session.compile(&square(500)).unwrap();
        let kept: Vec<(Tensor, DeviceTensor)> = (0..20)
            .map(|i| {
                let x = ramp(500, i as f32);
                let y = taken(executable.run_resident([("x", &x)]).unwrap(), "y");
                (x, y)
            })
            .collect();
        let clone = kept[3].1.clone();
        drop(executable);
        for (x, y) in &kept {
            assert_eq!(f32s(&y.to_tensor().unwrap()), squared(x));
        }
        let want = squared(&kept[3].0);
        drop(kept);
        assert_eq!(f32s(&clone.to_tensor().unwrap()), want);
    });
}

#[test]
fn a_tensor_outlives_its_session() {
    for device in DEVICES {
        let x = ramp(100, 1.0);
        let session = open(&device);
        let y = taken(session.compile(&square(100)).unwrap().run_resident([("x", &x)]).unwrap(), "y");
        drop(session);
        assert_eq!(f32s(&y.to_tensor().unwrap()), squared(&x), "{device}");
    }
}

#[test]
fn tensors_of_another_device_or_session_are_refused() {
    let x = ramp(10, 1.0);
    for here in DEVICES {
        let session = open(&here);
        let executable = session.compile(&square(10)).unwrap();
        for there in DEVICES {
            let other = open(&there);
            let tensor = other.upload(&x).unwrap();
            let outcome = executable.run([("x", &tensor)]);
            // All sessions of the CPU share its memory.
            if (&here, &there) == (&Device::Cpu, &Device::Cpu) {
                assert_eq!(f32s(outcome.unwrap().get("y").unwrap()), squared(&x));
                continue;
            }
            assert!(matches!(outcome, Err(Error::OtherDevice)), "{there} to {here}: {outcome:?}");
            assert!(matches!(executable.submit([("x", &tensor)]).map(drop), Err(Error::OtherDevice)));
            assert!(matches!(executable.run_resident([("x", &tensor)]), Err(Error::OtherDevice)));
            assert!(matches!(executable.profile([("x", &tensor)]), Err(Error::OtherDevice)));
        }
        let out = executable.run([("x", &x)]).unwrap();
        assert_eq!(f32s(out.get("y").unwrap()), squared(&x), "{here} works on");
        assert_eq!(session.validation_messages(), Vec::<String>::new());
    }
}

fn states(pairs: &[(&str, &str)]) -> CompileOptions {
    CompileOptions::new().states(pairs.iter().copied())
}

/// count' = count + step; seen = 2 · count.
fn counter(session: &Session) -> Executable {
    let mut g = Graph::new("counter");
    let count = g.input("count", DType::F32, [4]).unwrap();
    let step = g.input("step", DType::F32, [4]).unwrap();
    let next = g.add(count, step).unwrap();
    let seen = g.add(count, count).unwrap();
    g.output("seen", seen).unwrap();
    g.output("next", next).unwrap();
    session.compile_with(&g, &states(&[("count", "next")])).unwrap()
}

fn part(state: &State, name: &str) -> Vec<f32> {
    f32s(&state.get(name).unwrap().to_tensor().unwrap())
}

#[test]
fn a_counter_counts_on_the_device_and_its_other_outputs_come_back() {
    everywhere(|session| {
        let executable = counter(session);
        let mut state = executable.new_state().unwrap();
        assert_eq!(part(&state, "count"), [0.0; 4]);
        let step = vector(&[1.0, 2.0, 3.0, 4.0]);
        let mut taken = None;
        for i in 0..100 {
            let out = executable.run_with_state(&mut state, [("step", &step)]).unwrap();
            let want: Vec<f32> = f32s(&step).iter().map(|s| 2.0 * i as f32 * s).collect();
            assert_eq!(f32s(out.get("seen").unwrap()), want, "step {i}");
            assert!(out.get("next").is_err(), "the state stays on the device");
            if i == 10 {
                taken = session.memory_taken();
            }
        }
        assert_eq!(part(&state, "count"), [100.0, 200.0, 300.0, 400.0]);
        assert_eq!(session.memory_taken(), taken, "nothing is taken per step");
        assert_eq!(executable.compiled(), 1);
        assert!(state.get("counts").unwrap_err().to_string().contains("did you mean `count`?"));
    });
}

#[test]
fn states_of_one_executable_are_independent() {
    everywhere(|session| {
        let executable = counter(session);
        // More than there are recordings kept for.
        let mut all: Vec<State> = (0..12).map(|_| executable.new_state().unwrap()).collect();
        for round in 0..4 {
            for (i, state) in all.iter_mut().enumerate() {
                let step = vector(&[i as f32, 1.0, round as f32, 0.0]);
                executable.run_with_state(state, [("step", &step)]).unwrap();
            }
        }
        for (i, state) in all.iter().enumerate() {
            assert_eq!(part(state, "count"), [4.0 * i as f32, 4.0, 6.0, 0.0], "state {i}");
        }
        // Threads with a state each.
        std::thread::scope(|scope| {
            for state in &mut all {
                let executable = &executable;
                scope.spawn(move || {
                    for _ in 0..10 {
                        executable.run_with_state(state, [("step", &vector(&[0.0, 1.0, 0.0, 0.0]))]).unwrap();
                    }
                });
            }
        });
        assert!(all.iter().all(|state| part(state, "count")[1] == 14.0));
    });
}

#[test]
fn a_state_of_another_session_or_executable_is_refused() {
    everywhere(|session| {
        let executable = counter(session);
        let step = vector(&[1.0; 4]);
        let mut mine = executable.new_state().unwrap();
        let other = open(&if session.device() == &Device::Vulkan { Device::Wgpu } else { Device::Vulkan });
        let mut foreign = counter(&other).new_state().unwrap();
        let refused = executable.run_with_state(&mut foreign, [("step", &step)]);
        assert!(matches!(refused, Err(Error::OtherDevice)), "{refused:?}");
        let refused = executable.run_with_state(&mut mine, [("step", &step), ("count", &step)]);
        assert!(matches!(refused, Err(Error::GivenTwice { .. })), "{refused:?}");
        let refused = executable.run_with_state(&mut mine, [("step", &vector(&[1.0; 3]))]);
        assert!(matches!(refused, Err(Error::WrongType { .. })), "{refused:?}");
        executable.run_with_state(&mut mine, [("step", &step)]).unwrap();
        assert_eq!(part(&mine, "count"), [1.0; 4]);
    });
}

#[test]
fn states_that_read_each_other_all_see_the_old_ones() {
    everywhere(|session| {
        // a' = b, b' = a + x, c' = transposed c + 0, d' = transposed d, and the old a as a plain output behind them.
        let mut g = Graph::new("exchange");
        let a = g.input("a", DType::F32, [3]).unwrap();
        let b = g.input("b", DType::F32, [3]).unwrap();
        let d = g.input("d", DType::F32, [2, 2]).unwrap();
        let x = g.input("x", DType::F32, [3]).unwrap();
        let fresh = g.input("fresh", DType::F32, [2, 2]).unwrap();
        let sum = g.add(a, x).unwrap();
        let both = g.add(d, fresh).unwrap();
        let turned = g.transpose(both, &[1, 0]).unwrap();
        g.output("b2", sum).unwrap();
        g.output("a2", b).unwrap();
        g.output("d2", turned).unwrap();
        g.output("old_a", a).unwrap();
        let pairs = states(&[("a", "a2"), ("b", "b2"), ("d", "d2")]);
        let executable = session.compile_with(&g, &pairs).unwrap();
        let mut state = executable.new_state().unwrap();
        let (mut want_a, mut want_b, mut want_d) = ([0f32; 3], [0f32; 3], [0f32; 4]);
        for i in 0..6 {
            let x = [1.0, 10.0, i as f32];
            let add = [1.0, 2.0, 3.0, i as f32];
            let given = [("x", vector(&x)), ("fresh", Tensor::new([2, 2], add.to_vec()).unwrap())];
            let out = executable.run_with_state(&mut state, given.iter().map(|(n, t)| (*n, t))).unwrap();
            assert_eq!(f32s(out.get("old_a").unwrap()), want_a, "run {i}");
            (want_a, want_b) = (want_b, std::array::from_fn(|j| want_a[j] + x[j]));
            let sum: [f32; 4] = std::array::from_fn(|j| want_d[j] + add[j]);
            want_d = [sum[0], sum[2], sum[1], sum[3]];
            assert_eq!(part(&state, "a"), want_a, "run {i}");
            assert_eq!(part(&state, "b"), want_b, "run {i}");
            assert_eq!(part(&state, "d"), want_d, "run {i}");
        }
    });
}

#[test]
fn states_that_change_places_and_turn_are_not_torn() {
    everywhere(|session| {
        let n = 64;
        let mut g = Graph::new("exchange");
        let a = g.input("a", DType::F32, [n, n]).unwrap();
        let b = g.input("b", DType::F32, [n, n]).unwrap();
        let turned = g.transpose(b, &[1, 0]).unwrap();
        g.output("a2", turned).unwrap();
        g.output("b2", a).unwrap();
        let executable = session.compile_with(&g, &states(&[("a", "a2"), ("b", "b2")])).unwrap();
        let values = |k: usize| (0..n * n).map(|i| (i * k % 1000) as f32).collect::<Vec<_>>();
        let (mut want_a, mut want_b) = (values(7), values(13));
        let to = |v: &[f32]| session.upload(&Tensor::new([n, n], v.to_vec()).unwrap()).unwrap();
        let (mut a, mut b) = (to(&want_a), to(&want_b));
        for i in 0..3 {
            let out = executable.run_resident([("a", &a), ("b", &b)]).unwrap();
            (want_a, want_b) = ((0..n * n).map(|i| want_b[i % n * n + i / n]).collect(), want_a);
            (a, b) = (taken(out.clone(), "a2"), taken(out, "b2"));
            assert_eq!(f32s(&a.to_tensor().unwrap()), want_a, "run {i}");
            assert_eq!(f32s(&b.to_tensor().unwrap()), want_b, "run {i}");
        }
    });
}

#[test]
fn wrong_pairs_are_refused_when_compiling() {
    everywhere(|session| {
        let mut g = Graph::new("pairs");
        let a = g.input("a", DType::F32, [4]).unwrap();
        let b = g.input("b", DType::F32, [4]).unwrap();
        let sum = g.add(a, b).unwrap();
        let short = g.cast(sum, DType::F16).unwrap();
        g.output("sum", sum).unwrap();
        g.output("twice", sum).unwrap();
        g.output("short", short).unwrap();
        let compile = |pairs: &[(&str, &str)]| session.compile_with(&g, &states(pairs)).map(drop);
        let unknown =
            |kind: &str, outcome| matches!(&outcome, Err(Error::UnknownName { kind: k, .. }) if *k == kind);
        assert!(unknown("input", compile(&[("c", "sum")])));
        assert!(unknown("output", compile(&[("a", "summ")])));
        assert!(matches!(compile(&[("a", "short")]), Err(Error::WrongType { .. })));
        assert!(matches!(compile(&[("a", "sum"), ("a", "twice")]), Err(Error::GivenTwice { .. })));
        assert!(matches!(compile(&[("a", "sum"), ("b", "sum")]), Err(Error::GivenTwice { .. })));
        assert!(compile(&[("a", "sum"), ("b", "twice")]).is_ok());
    });
}

/// cache' = cache with rows at the position; sum = cache' read back by a node behind it.
fn cache(session: &Session, layout: HeadLayout, dims: [usize; 4], rows: [usize; 4]) -> Executable {
    let mut g = Graph::new("cache");
    let cache = g.input("cache", DType::F32, dims).unwrap();
    let fresh = g.input("rows", DType::F32, rows).unwrap();
    let position = g.input("position", DType::I32, [] as [usize; 0]).unwrap();
    let next = g.kv_append(layout, cache, fresh, position).unwrap();
    let seen = g.neg(next).unwrap();
    g.output("next", next).unwrap();
    g.output("seen", seen).unwrap();
    session.compile_with(&g, &states(&[("cache", "next")])).unwrap()
}

#[test]
fn a_key_value_cache_grows_at_moving_positions_without_compiling_again() {
    for (layout, dims, rows) in
        [(HeadLayout::Bhsd, [2, 3, 120, 8], [2, 3, 1, 8]), (HeadLayout::Bshd, [2, 120, 3, 5], [2, 2, 3, 5])]
    {
        let count: usize = rows.iter().product();
        let fresh = |i: usize| {
            let values = (0..count).map(|j| (i * count + j + 1) as f32).collect();
            Tensor::new(rows, values).unwrap()
        };
        // Forward, then jumps, some of them past the end and before the start.
        let positions: Vec<i32> = (0..80).chain((0..20).map(|i| i * 37 % 140 - 5)).collect();
        let mut want: Vec<Vec<f32>> = Vec::new();
        everywhere(|session| {
            let executable = cache(session, layout, dims, rows);
            let mut state = executable.new_state().unwrap();
            let mut other = executable.new_state().unwrap();
            let mut taken = None;
            for (i, position) in positions.iter().enumerate() {
                let given = [("rows", fresh(i)), ("position", Tensor::scalar(*position))];
                let given = || given.iter().map(|(n, t)| (*n, t));
                let out = executable.run_with_state(&mut state, given()).unwrap();
                let seen: Vec<f32> = f32s(out.get("seen").unwrap()).iter().map(|v| -v).collect();
                if session.device() == &Device::Cpu {
                    want.push(seen.clone());
                }
                assert_eq!(seen, want[i], "step {i} at {position}");
                if i == 10 {
                    executable.run_with_state(&mut other, given()).unwrap();
                    taken = session.memory_taken();
                }
            }
            assert_eq!(part(&state, "cache"), want[positions.len() - 1]);
            assert_ne!(part(&other, "cache"), want[10], "it has the rows of one step only");
            assert_eq!(session.memory_taken(), taken, "nothing is taken per step");
            assert_eq!(executable.compiled(), 1);
        });
        assert!(want[79].iter().filter(|v| **v != 0.0).count() > count * 30, "the cache did fill");
    }
}

#[test]
fn a_cache_is_appended_in_place() {
    for device in [Device::Vulkan, Device::Wgpu] {
        let session = open(&device);
        let executable = cache(&session, HeadLayout::Bhsd, [1, 2, 1000, 64], [1, 2, 1, 64]);
        let mut state = executable.new_state().unwrap();
        let (rows, at) = (Tensor::new([1, 2, 1, 64], vec![1f32; 128]).unwrap(), Tensor::scalar(5i32));
        executable.run_with_state(&mut state, [("rows", &rows), ("position", &at)]).unwrap();
        let cached = state.get("cache").unwrap().clone();
        let given = [("cache", Input::from(&cached)), ("rows", (&rows).into()), ("position", (&at).into())];
        let steps = executable.profile(given).unwrap();
        let append = steps.iter().find(|s| s.op == "kv_append").unwrap();
        assert!(append.bytes <= 4 * 128 * 4, "{device}: {append:?}: it moves the rows, not the cache");
        assert!(steps.iter().all(|s| s.op != "copy"), "{device}: {steps:?}");
    }
}
