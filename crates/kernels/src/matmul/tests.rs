//! Which kernel a shape gets.

use olivine_kernel::{MatrixSupport, Target};
use olivine_program::{Addressing, DeviceCaps, DeviceKind};

use crate::matmul::choice::{Choice, LARGE, MEDIUM, SMALL, Shape, choose};
use crate::matmul::problem::{Axis, Layout};

const ALONG_K: Layout = Layout { along: Axis::K, lanes: 4 };

const ALONG_OUTER: Layout = Layout { along: Axis::Outer, lanes: 4 };

/// A shape of `[m, n, k, batches]`.
pub(crate) fn shape([m, n, k, batches]: [usize; 4]) -> Shape {
    Shape { m, n: n.into(), k: k.into(), batches: batches.into() }
}

fn caps(kind: DeviceKind, target: Target) -> DeviceCaps {
    DeviceCaps {
        name: "a device".into(),
        driver: "a driver".into(),
        kind,
        target,
        addressing: Addressing::Pointers,
        max_groups: [65535; 3],
        max_buffer_bytes: 1 << 32,
        memory_bytes: 1 << 34,
        processors: None,
        keeps_denormals: true,
        ptx: None,
    }
}

/// A card with everything but cooperative matrices.
pub(crate) fn card() -> DeviceCaps {
    let target = Target {
        subgroup: Some(32),
        f16: true,
        exact_f16: false,
        f64: true,
        i64: true,
        i64_pairs: false,
        packed_dot: true,
        matrices: Vec::new(),
        matrix_support: MatrixSupport::Full,
        fragments: None,
        warpgroups: false,
        int8_warpgroups: false,
        device_fences: false,
        max_invocations: 1024,
        shared_bytes: 49152,
    };
    caps(DeviceKind::Discrete, target)
}

fn plain() -> DeviceCaps {
    caps(DeviceKind::Other, Target::plain())
}

fn choice(m: usize, n: usize, k: usize, batches: usize, caps: &DeviceCaps) -> Choice {
    choose(&shape([m, n, k, batches]), ALONG_K, ALONG_OUTER, 4, caps)
}

fn turned(m: usize, n: usize, k: usize) -> Choice {
    choose(&shape([m, n, k, 1]), ALONG_K, ALONG_K, 4, &card())
}

#[test]
fn large_matmuls_get_large_tiles_where_they_fit() {
    let whole = |tile| Choice::Tiled { tile, splits: 1 };
    assert_eq!(choice(4096, 4096, 4096, 1, &card()), whole(LARGE));
    assert_eq!(choice(1024, 1024, 1024, 1, &card()), whole(MEDIUM));
    assert_eq!(choice(4096, 4096, 4096, 1, &plain()), whole(MEDIUM));
    assert_eq!(choice(32, 32, 64, 768, &card()), whole(SMALL));
    let wide = choose(&shape([4096, 4096, 64, 1]), ALONG_K, ALONG_OUTER, 8, &card());
    assert_eq!(wide, whole(MEDIUM.wide()));
}

#[test]
fn split_k_of_small_matmuls_has_no_empty_part() {
    assert_eq!(choice(128, 768, 768, 1, &card()), Choice::Tiled { tile: MEDIUM, splits: 6 });
    for k in [129, 300, 1000, 2049, 5000, 100_003] {
        let Choice::Tiled { tile, splits } = choice(40, 40, k, 1, &card()) else {
            panic!("{k} is not done by tiles")
        };
        let chunk = k.div_ceil(splits).next_multiple_of(tile.k as usize);
        assert!((splits - 1) * chunk < k && splits * chunk >= k, "{k}: {splits} parts of {chunk}");
    }
}

#[test]
fn small_m_reads_the_large_operand_in_its_own_layout() {
    let Choice::GemvAxpy { swapped: false, cut } = choice(1, 4096, 4096, 1, &card()) else {
        panic!("no sweep of rows as they lie")
    };
    assert_eq!((cut.rows, cut.splits), (1, 1), "enough columns to keep a card busy without parts");
    let dots = |m, n, k| match turned(m, n, k) {
        Choice::GemvDot { swapped, cut } => (swapped, cut),
        other => panic!("{other:?} for {m}x{k}x{n}"),
    };
    let (swapped, cut) = dots(1, 4096, 4096);
    assert!(!swapped && (cut.rows, cut.width, cut.splits) == (1, 32, 1));
    assert!(!dots(3, 4096, 4096).0 && dots(3, 4096, 4096).1.rows == 4);
    let (swapped, cut) = dots(4096, 5, 64);
    assert!(swapped && (cut.rows, cut.width, cut.splits) == (8, 8, 1));
    let (_, cut) = dots(1, 1, 1 << 20);
    assert!(cut.width == 256 && cut.splits > 1);
    assert!(dots(70_000, 3, 4).0 && dots(70_000, 3, 4).1.width == 1);
}

#[test]
fn empty_results_and_empty_k_need_no_operands() {
    assert_eq!(choice(0, 5, 5, 1, &card()), Choice::Empty);
    assert_eq!(choice(5, 5, 5, 0, &card()), Choice::Empty);
    assert_eq!(choice(5, 5, 0, 1, &card()), Choice::Zeros);
}
