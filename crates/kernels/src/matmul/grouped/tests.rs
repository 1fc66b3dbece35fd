//! Grouped matmuls by cooperative matrices, run by the interpreter and held against sums.

use olivine_ir::{DType, Dim, Shape, TensorType, ValueId};
use olivine_kernel::Elem;
use olivine_program::DeviceCaps;

use super::*;
use crate::matmul::coop::blocks::CoopTile;
use crate::matmul::coop::form::MatrixForm;
use crate::matmul::coop::tests::{bits, card, number, others, run};
use crate::matmul::grouped::coop::{FLAT, GroupedTile, LARGE, MEDIUM, PLAIN, TALL};
use crate::site::{Memory, Operand, Target};

fn operand(dtype: DType, id: u32, dims: &[usize], stored: bool) -> Operand {
    let ty = TensorType::new(dtype, Shape::new(dims).unwrap());
    let strides = ty.shape.stride_sizes();
    Operand { ty, strides, offset: Dim::ZERO, memory: Memory::Value(ValueId::new(id)), stored }
}

/// The expert of a row; some have none.
fn expert(row: usize, count: usize) -> i32 {
    match row % 11 {
        3 => count as i32 + 2,
        7 => -1,
        _ => ((row * row / 3) % count) as i32,
    }
}

/// Runs `[m, k]` by `count` matrices `[k, n]`.
fn check(dtype: DType, sizes: [usize; 4], cut: GroupedTile) {
    check_on(&card(), dtype, sizes, cut);
}

fn check_on(caps: &DeviceCaps, dtype: DType, [m, n, k, count]: [usize; 4], cut: GroupedTile) {
    let (x, w) = (operand(dtype, 0, &[m, k], false), operand(dtype, 1, &[count, k, n], false));
    let ids = operand(DType::I32, 2, &[m], false);
    let target = Target {
        ty: TensorType::new(dtype, Shape::new(&[m, n]).unwrap()),
        memory: Memory::Value(ValueId::new(3)),
    };
    let mut site = Site::new(caps, vec![x.clone(), w.clone(), ids.clone()], vec![target.clone()]);
    let problem = problem_of(&x, &w, &ids, target).unwrap();
    let experts = Experts { ids, count };
    let sorted = sort(&experts, m, cut.blocks.m, &mut site).unwrap();
    coop::emit(&problem, &experts, cut, &sorted, &mut site).unwrap();
    let fill = |count: usize, skew: usize| -> Vec<u8> {
        (0..count).flat_map(|i| bits(dtype, number(i, skew))).collect()
    };
    let ids = (0..m).flat_map(|row| expert(row, count).to_le_bytes()).collect();
    let given = [fill(m * k, 0), fill(count * k * n, 5), ids, vec![0xff; 2 * m * n]];
    let memory = run(&site, given);
    let found = &memory[&Memory::Value(ValueId::new(3))];
    for i in 0..m {
        let e = usize::try_from(expert(i, count)).ok().filter(|e| *e < count);
        for j in 0..n {
            let term = |e: usize, l: usize| number(i * k + l, 0) * number((e * k + l) * n + j, 5);
            let sum: f32 = e.map_or(0.0, |e| (0..k).map(|l| term(e, l)).sum());
            let at = 2 * (i * n + j);
            assert_eq!(found[at..at + 2], bits(dtype, sum), "{cut}: row {i}, column {j}");
        }
    }
}

#[test]
fn rows_of_any_expert_and_of_none_get_their_sums_in_blocks_of_every_form() {
    for cut in [LARGE, MEDIUM, PLAIN] {
        check(DType::F16, [100, 40, 72, 5], cut);
    }
    for cut in [TALL, FLAT] {
        check(DType::BF16, [150, 72, 128, 2], cut);
    }
    let small = CoopTile { m: 32, n: 64, rows: 32, columns: 32, k_step: 32, ..TALL.blocks };
    check(DType::F16, [60, 24, 64, 9], GroupedTile { blocks: small, height: 16 });
}

#[test]
fn matrices_of_other_forms_give_the_sums() {
    for caps in others() {
        let form = MatrixForm::of(Elem::F16, &caps.target).unwrap();
        for cut in [MEDIUM, PLAIN] {
            let cut = GroupedTile { blocks: CoopTile { form, ..cut.blocks }, ..cut };
            check_on(&caps, DType::F16, [100, 40, 72, 5], cut);
        }
    }
}

/// What a grouped matmul of f16 gets, as text.
fn chosen([m, n, k, count]: [usize; 4], stored: bool) -> Option<String> {
    let caps = card();
    let (x, w) = (operand(DType::F16, 0, &[m, k], false), operand(DType::F16, 1, &[count, k, n], stored));
    let ids = operand(DType::I32, 2, &[m], false);
    let target = Target {
        ty: TensorType::new(DType::F16, Shape::new(&[m, n]).unwrap()),
        memory: Memory::Value(ValueId::new(3)),
    };
    let mut site = Site::new(&caps, vec![], vec![target.clone()]);
    let problem = problem_of(&x, &w, &ids, target).unwrap();
    coop::choose(&problem, &Experts { ids, count }, &mut site).map(|b| b.to_string())
}

#[test]
fn few_rows_of_an_expert_get_flat_tiles_and_stored_weights_are_packed_where_k_steps_are_whole() {
    assert_eq!(chosen([4096, 1408, 2048, 64], true).as_deref(), Some("80x128/80x32x1/128/1/sp1 h16"));
    assert_eq!(chosen([512, 1408, 2048, 64], true).as_deref(), Some("32x128/32x32x1/128/1/sp1 h16"));
    assert_eq!(chosen([4096, 1408, 2048, 64], false).as_deref(), Some("64x128/32x64x1/32/1/ss1 h64"));
    assert_eq!(chosen([512, 1408, 2000, 64], true).as_deref(), Some("16x64/16x64x8/128/1/ss1 h16"));
}
