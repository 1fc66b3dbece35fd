//! Lowering for devices that are too small: all nodes that do not fit, with numbers, before anything is built.

use olivine_gpu::{Addressing, DeviceCaps, Error, Program, Record, lower};
use olivine_ir::op::ReduceKind;
use olivine_ir::{DType, Graph};

use crate::mock::{caps, compiled, double};

fn refused(graph: &Graph, caps: &DeviceCaps) -> Vec<String> {
    match lower(&compiled(graph), caps, &Record::new(), &[]) {
        Err(Error::Unsupported { nodes, .. }) => nodes,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("nothing was refused"),
    }
}

#[test]
fn more_workgroups_than_the_device_counts_are_refused_with_the_node() {
    let mut small = caps(1 << 40);
    small.max_groups = [2, 1, 1];
    let nodes = refused(&double(1 << 20), &small);
    assert!(nodes.len() == 1 && nodes[0].contains('`') && nodes[0].contains("workgroups"), "{nodes:?}");
}

#[test]
fn bindings_too_large_or_too_many_are_refused_with_node_and_numbers() {
    let mut small = caps(1 << 40);
    small.addressing = Addressing::Bindings { alignment: 256, max_bytes: 4096, max_count: 8, overlap: true };
    assert!(lower(&compiled(&double(1024)), &small, &Record::new(), &[]).is_ok());
    let nodes = refused(&double(2048), &small);
    assert!(nodes[0].contains("8192 bytes, the device binds 4096"), "{nodes:?}");
    small.addressing = Addressing::Bindings { alignment: 256, max_bytes: 4096, max_count: 1, overlap: true };
    let nodes = refused(&double(8), &small);
    assert!(nodes[0].contains("3 buffers, the device binds 1"), "{nodes:?}");
}

/// Every node of the graph that does not fit is named with numbers; else all kernels fit. Gives what was refused.
fn fits_or_says_so(graph: &Graph, caps: &DeviceCaps) -> Vec<String> {
    let check = |program: &Program| {
        for kernel in &program.kernels {
            olivine_kernel::validate(kernel, &caps.target).unwrap();
        }
    };
    match lower(&compiled(graph), caps, &Record::new(), &[]) {
        Ok(program) => {
            check(&program);
            Vec::new()
        }
        Err(Error::Unsupported { nodes, .. }) => {
            let names_and_numbers = |n: &String| n.contains('`') && n.contains(|c: char| c.is_ascii_digit());
            assert!(nodes.iter().all(names_and_numbers), "{nodes:?}");
            nodes
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_shader_limit_is_kept_or_named() {
    let mut g = Graph::new("sums");
    let x = g.input("x", DType::F32, [64, 4096]).unwrap();
    let rows = g.reduce(ReduceKind::Sum, x, &[1], false).unwrap();
    g.output("rows", rows).unwrap();
    for (shared, invocations) in
        [(0, 128), (16, 128), (64, 128), (16384, 1), (16384, 2), (16, 1), (16384, 128)]
    {
        let mut small = caps(1 << 40);
        (small.target.shared_bytes, small.target.max_invocations) = (shared, invocations);
        let refused = fits_or_says_so(&g, &small);
        if shared == 0 && invocations > 1 {
            let numbers = "bytes of workgroup memory is 512, the device allows 0";
            assert!(refused[0].contains("reduce_sum `") && refused[0].contains(numbers), "{refused:?}");
        }
        assert!(fits_or_says_so(&double(1 << 16), &small).is_empty(), "it shares nothing");
    }
}

#[test]
fn every_node_of_a_type_that_the_device_lacks_is_named() {
    let mut g = Graph::new("wide");
    let a = g.input("a", DType::F64, [8]).unwrap();
    let b = g.input("b", DType::I64, [8]).unwrap();
    let (y, z) = (g.mul(a, a).unwrap(), g.mul(b, b).unwrap());
    g.output("y", y).unwrap();
    g.output("z", z).unwrap();
    let nodes = refused(&g, &caps(1 << 40));
    assert!(nodes.len() == 2 && nodes[0].contains("f64") && nodes[1].contains("i64"), "{nodes:?}");
}
