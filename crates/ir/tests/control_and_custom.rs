//! Operations with graphs inside and operations of the user's: rules, text form, limits.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine_ir::attr::{Attr, Attrs};
use olivine_ir::op::{CustomOp, Registry};
use olivine_ir::{DType, Error, Graph, MAX_NESTING, Shape, SubGraph, Tensor};

/// A graph that adds its inputs.
fn sum(name: &str, dtype: DType, dims: &[usize]) -> Graph {
    let mut g = Graph::new(name);
    let a = g.input("a", dtype, dims).unwrap();
    let b = g.input("b", dtype, dims).unwrap();
    let y = g.add(a, b).unwrap();
    g.output("y", y).unwrap();
    g
}

/// A body that counts up to its capture: `go = x + 1 < limit`, `x + 1`, and the row `x`.
fn counting() -> Graph {
    let mut g = Graph::new("count");
    g.input("trip", DType::I64, []).unwrap();
    let x = g.input("x", DType::I32, []).unwrap();
    let limit = g.input("limit", DType::I32, []).unwrap();
    let one = g.constant(Tensor::scalar(1i32));
    let next = g.add(x, one).unwrap();
    let go = g.lt(next, limit).unwrap();
    for (name, value) in [("go", go), ("next", next), ("row", x)] {
        g.output(name, value).unwrap();
    }
    g
}

fn looped(max_iterations: Option<usize>) -> Result<Graph, Error> {
    let mut g = Graph::new("g");
    let limit = g.input("limit", DType::I32, [])?;
    let trips = g.constant(Tensor::scalar(100i64));
    let begin = g.constant(Tensor::scalar(true));
    let x = g.constant(Tensor::scalar(0i32));
    let out = g.loop_(trips, begin, &[x], &[limit], max_iterations, counting())?;
    for (i, id) in out.iter().enumerate() {
        g.output(&format!("y{i}"), *id)?;
    }
    Ok(g)
}

#[test]
fn a_loop_returns_carried_values_then_rows_then_the_number_of_iterations() {
    let g = looped(Some(7)).unwrap();
    let types: Vec<String> = g.outputs().iter().map(|o| g.ty(o.value).unwrap().to_string()).collect();
    assert_eq!(types, ["i32[]", "i32[7]", "i64[]"]);
    let again: Graph = g.to_string().parse().unwrap();
    assert_eq!(again, g);
    let problem = looped(None).unwrap_err().to_string();
    assert!(problem.contains("needs max_iterations"), "{problem}");
}

#[test]
fn branches_must_agree() {
    let mut g = Graph::new("g");
    let c = g.input("c", DType::Bool, [1]).unwrap();
    let x = g.input("x", DType::F32, [2]).unwrap();
    let mut other = sum("else", DType::F32, &[2]);
    let extra = other.output_named("y").unwrap();
    other.output("z", extra).unwrap();
    let problem = g.if_(c, sum("then", DType::F32, &[2]), other, &[x, x]).unwrap_err().to_string();
    assert!(problem.contains("then_branch has 1 outputs, else_branch 2"), "{problem}");
    let problem =
        g.if_(c, sum("then", DType::F32, &[2]), sum("else", DType::F32, &[3]), &[x, x]).unwrap_err();
    assert!(problem.to_string().contains("input 0 of else_branch is f32[3], given f32[2]"), "{problem}");
    let ok = g.if_(c, sum("then", DType::F32, &[2]), sum("else", DType::F32, &[2]), &[x, x]).unwrap();
    assert_eq!(g.ty(ok[0]).unwrap(), g.ty(x).unwrap());
}

#[test]
fn a_scan_slices_and_stacks_along_any_axis() {
    let text = r#"graph "g" {
  %0 = input "s": f32[3]
  %1 = input "x": f32[3, 5]
  %2: f32[3], %3: f32[3, 5] = scan(%0, %1) {states=1, axes=[1], reverse=[true], out_axes=[1], out_reverse=[false], body=graph "b" {
    %0 = input "s": f32[3]
    %1 = input "x": f32[3]
    %2: f32[3] = add(%0, %1) "sum"
    output "s" = %2
    output "y" = %2
  }} "scan"
  output "y" = %3
}
"#;
    let g: Graph = text.parse().unwrap();
    assert_eq!(g.to_string(), text);
}

#[test]
fn an_error_in_an_inner_graph_names_its_node_and_line() {
    let text = r#"graph "g" {
  %0 = input "c": bool[]
  %1: f32[2] = if(%0) {then_branch=graph "t" {
    %0 = input "x": f32[2]
    %1 = input "z": f32[3]
    %2: f32[2] = add(%0, %1) "inner/add"
    output "y" = %2
  }, else_branch=none}
}"#;
    let Err(Error::Parse { line, problem, .. }) = text.parse::<Graph>() else { panic!("parsed") };
    assert_eq!(line, 6);
    assert!(problem.contains("inner/add"), "{problem}");
}

#[test]
fn inner_graphs_have_no_params_and_no_free_sizes_and_nest_so_deep() {
    let mut g = Graph::new("p");
    g.param("w", DType::F32, [2]).unwrap();
    assert!(SubGraph::new(g).unwrap_err().to_string().contains("param `w`"));
    let mut g = Graph::new("d");
    g.input_with_dims("x", DType::F32, [2], vec![Some("n".into())]).unwrap();
    assert!(SubGraph::new(g).unwrap_err().to_string().contains("have no names"));

    let nest = |inner: Graph| -> Result<Graph, Error> {
        let mut g = Graph::new("n");
        let c = g.input("c", DType::Bool, [])?;
        let y = g.if_(c, inner.clone(), inner, &[c])?;
        g.output("y", y[0])?;
        Ok(g)
    };
    let mut g = Graph::new("n");
    let c = g.input("c", DType::Bool, []).unwrap();
    g.output("y", c).unwrap();
    let mut problem = None;
    for depth in 0..MAX_NESTING + 2 {
        match nest(g.clone()) {
            Ok(deeper) if depth < 4 => g = deeper,
            // Both branches would double the text at every level; one road is enough from here on.
            Ok(_) => {
                let mut deeper = Graph::new("n");
                let c = deeper.input("c", DType::Bool, []).unwrap();
                let mut flat = Graph::new("f");
                let x = flat.input("c", DType::Bool, []).unwrap();
                flat.output("y", x).unwrap();
                let y = deeper.if_(c, g.clone(), flat, &[c]).unwrap();
                deeper.output("y", y[0]).unwrap();
                g = deeper;
            }
            Err(e) => {
                problem = Some(e.to_string());
                break;
            }
        }
    }
    assert!(problem.is_some_and(|p| p.contains("nest deeper than 16")));
    let open = "graph \"g\" { %0 = input \"c\": bool[] %1 = if(%0) {then_branch=".repeat(100);
    assert!(open.parse::<Graph>().unwrap_err().to_string().contains("nest deeper"));
}

#[test]
fn another_size_of_an_input_reaches_inner_graphs() {
    let mut g = Graph::new("g");
    let c = g.input("c", DType::Bool, []).unwrap();
    let x = g.input_with_dims("x", DType::F32, [2], vec![Some("n".into())]).unwrap();
    let y = g.if_(c, sum("t", DType::F32, &[2]), sum("e", DType::F32, &[2]), &[x, x]).unwrap();
    g.output("y", y[0]).unwrap();
    let other = g.specialise(&[("x", Shape::new(&[5]).unwrap())]).unwrap();
    other.verify().unwrap();
    assert_eq!(other.ty(other.outputs()[0].value).unwrap().to_string(), "f32[5]");
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.register(CustomOp::new("acme.same", |_, operands| Ok(operands.to_vec()))).unwrap();
    let panics = CustomOp::new("acme.panics", |_, _| panic!("a rule of the user's"));
    registry.register(panics).unwrap();
    registry
}

#[test]
fn custom_operations_are_read_through_a_registry() {
    let registry = registry();
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [2]).unwrap();
    let attrs = Attrs(vec![("by".into(), Attr::Float(2.0))]);
    let y = g.custom(registry.get("acme.same").unwrap(), attrs, &[x]).unwrap();
    g.output("y", y[0]).unwrap();
    let text = g.to_string();
    assert!(text.contains("custom(%0) {name=\"acme.same\", attrs={by=2.0}}"), "{text}");
    assert_eq!(Graph::parse_with(&text, &registry).unwrap(), g);
    let problem = text.parse::<Graph>().unwrap_err().to_string();
    assert!(problem.contains("no custom operation named `acme.same`"), "{problem}");
    let wrong = text.replace("acme.same", "acme.sane");
    let problem = Graph::parse_with(&wrong, &registry).unwrap_err().to_string();
    assert!(problem.contains("did you mean `acme.same`?"), "{problem}");
}

#[test]
fn a_name_is_registered_once_and_a_rule_that_panics_is_an_error() {
    let mut registry = registry();
    let again = registry.register(CustomOp::new("acme.same", |_, _| Ok(Vec::new())));
    assert!(matches!(again, Err(Error::Duplicate { .. })));
    let mut g = Graph::new("g");
    let problem =
        g.custom(registry.get("acme.panics").unwrap(), Attrs::default(), &[]).unwrap_err().to_string();
    assert!(problem.contains("`acme.panics` panicked"), "{problem}");
}
