//! Memory that does not grow. The only test of its program: others beside it would change what is measured.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::{DEVICES, f32s, to_f32s};
use olivine_array::{Context, DType, ops};

/// Bytes of memory that the process has.
fn resident() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<usize>().ok()? * 4096)
}

#[test]
fn five_thousand_dispatches_take_no_more_memory_than_fifty() {
    for device in DEVICES {
        // Without the validation layer, which remembers things of its own.
        let context = Context::new(device).unwrap();
        let n = 4096;
        let (a, b) = (context.upload(&f32s(&vec![1.0; n])).unwrap(), context.alloc(4 * n).unwrap());
        let round = |count: usize| {
            for i in 0..count {
                let fresh = context.alloc(4 * n).unwrap();
                context.binary(&fresh, &a, &b, n, ops::binary::ADD, DType::F32).unwrap();
                context.unary(&b, &fresh, n, ops::unary::NEG, DType::F32).unwrap();
                if i % 64 == 0 {
                    b.wait().unwrap();
                }
            }
            context.wait().unwrap();
        };
        round(50);
        let (taken, before) = (context.session().memory_taken(), resident());
        round(2500);
        assert_eq!(context.session().memory_taken(), taken, "memory of the device");
        if let (Some(before), Some(after)) = (before, resident()) {
            println!("{before} bytes of memory became {after}");
            assert!(after < before + (8 << 20), "{before} bytes of memory became {after}");
        }
        // 2550 times b := −(a + b), from 0.
        assert_eq!(to_f32s(&b.download().unwrap()), vec![0.0; n]);
    }
}
