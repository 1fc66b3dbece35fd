//! Which kernel a convolution gets.

use olivine_program::DeviceCaps;

use super::implicit_gemm::{self, BROAD, SMALL_M};
use crate::matmul::choice::{LARGE, MEDIUM};
use crate::matmul::tests::card;

fn convolution(
    m: usize,
    columns: &[usize],
    k: usize,
    groups: usize,
    caps: &DeviceCaps,
) -> implicit_gemm::Choice {
    implicit_gemm::choose(&implicit_gemm::Shape { m, columns: columns.to_vec(), k, groups }, 4, caps)
}

#[test]
fn convolutions_get_tiles_as_wide_as_they_have_filters_and_parts_where_pixels_are_few() {
    let whole = |tile| implicit_gemm::Choice::Tiled { tile, splits: 1 };
    assert_eq!(convolution(64, &[32 * 3136], 576, 1, &card()), whole(BROAD));
    assert_eq!(convolution(256, &[32 * 784], 1152, 1, &card()), whole(LARGE));
    assert_eq!(convolution(16, &[32 * 3136], 144, 1, &card()), whole(SMALL_M));
    assert_eq!(
        convolution(64, &[3136], 576, 1, &card()),
        implicit_gemm::Choice::Tiled { tile: MEDIUM, splits: 4 }
    );
    assert_eq!(convolution(3, &[512 * 512], 576, 1, &card()), implicit_gemm::Choice::Direct);
    assert_eq!(convolution(1, &[32 * 49], 9, 512, &card()), implicit_gemm::Choice::Direct);
    assert!(matches!(
        convolution(1, &[49], 4608, 1, &card()),
        implicit_gemm::Choice::Tiled { splits: 2.., .. }
    ));
    assert_eq!(convolution(8, &[100], 0, 1, &card()), implicit_gemm::Choice::Zeros);
    assert_eq!(convolution(8, &[], 9, 1, &card()), implicit_gemm::Choice::Empty);
}
