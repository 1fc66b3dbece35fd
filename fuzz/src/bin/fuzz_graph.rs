//! Throws broken texts, graphs and operations at the graph layer; nothing may panic.
//!
//! ```text
//! cargo run -p olivine-fuzz --bin fuzz_graph -- --cases 1000000 [--seed N] [--only CASE]
//! ```
//!
//! A case is named by the seed and its number: `--only` runs that one again, with the panic's own message.

#[path = "../../../crates/ir/tests/generate/mod.rs"]
mod generate;

use std::process::ExitCode;

use generate::Rng;
use olivine_ir::attr::{Attr, Attrs};
use olivine_ir::{DType, Def, Graph, Node, NodeId, Op, Output, Shape, Tensor, TensorType, Value, ValueId};

fn main() -> ExitCode {
    olivine_fuzz::run_cases(|seed| case_of(&mut Rng::new(seed)))
}

/// One case and how it went; an error is a broken promise other than a panic.
fn case_of(rng: &mut Rng) -> Result<&'static str, String> {
    match rng.below(12) {
        0 => text(&bytes(rng)),
        1 | 2 => text(&tokens(rng)),
        3..=5 => {
            let printed = valid(rng)?.to_string();
            text(&mutated_text(rng, printed))
        }
        6..=8 => parts(rng),
        _ => operation(rng),
    }
}

fn valid(rng: &mut Rng) -> Result<Graph, String> {
    let graph = generate::graph(rng).map_err(|e| format!("the generator made an invalid graph: {e}"))?;
    graph.verify().map_err(|e| format!("a built graph does not verify: {e}\n{graph}"))?;
    Ok(graph)
}

/// Whatever parses must verify, and print and parse back to itself.
fn text(text: &str) -> Result<&'static str, String> {
    match text.parse::<Graph>() {
        Ok(graph) => same_after_text(&graph).map(|()| "texts accepted"),
        Err(e) => {
            let _ = e.to_string();
            Ok("texts refused")
        }
    }
}

fn same_after_text(graph: &Graph) -> Result<(), String> {
    graph.verify().map_err(|e| format!("parsed but does not verify: {e}\n{graph}"))?;
    let printed = graph.to_string();
    match printed.parse::<Graph>() {
        Ok(again) if &again == graph => Ok(()),
        Ok(again) => Err(format!("prints as\n{printed}\nwhich parses as\n{again}")),
        Err(e) => Err(format!("its own text does not parse: {e}\n{printed}")),
    }
}

fn bytes(rng: &mut Rng) -> String {
    let bytes: Vec<u8> = (0..rng.below(200)).map(|_| rng.next() as u8).collect();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if rng.chance(50) { format!("graph \"g\" {{ {text}") } else { text }
}

const VOCABULARY: &[&str] = &[
    "graph",
    "output",
    "input",
    "param",
    "const",
    "base64",
    "none",
    "true",
    "inf",
    "nan",
    "-inf",
    "%0",
    "%1",
    "%2",
    "%4294967295",
    "%4294967296",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "=",
    ":",
    ",",
    "\"",
    "\"x\"",
    "\"AAAA\"",
    "\\u{110000}",
    "f32",
    "i64",
    "bool",
    "f32[2, 3]",
    "f32[]",
    "i64[0]",
    "0",
    "1",
    "-1",
    "3",
    "1e400",
    "18446744073709551615",
    "340282366920938463463374607431768211456",
    "1125899906842624",
    "0.5",
    "-",
    ".",
    "#",
    "//",
    "\n",
    "…",
    "add",
    "matmul",
    "reshape",
    "{axis=0}",
    "{dims=[-1]}",
    "axis",
    "epilogue",
    "if",
    "loop",
    "custom",
    "then_branch=graph \"t\" {",
    "body=graph \"b\" { %0 = input \"i\": i64[] output \"i\" = %0 }",
    "{epilogue={inputs=1, instrs=[], outputs=[in0]}}",
    "%0 = input \"x\": f32[n=2]\n",
];

fn tokens(rng: &mut Rng) -> String {
    let mut out =
        String::from(if rng.chance(80) { "graph \"g\" { %0 = input \"x\": f32[2, 3] " } else { "" });
    for _ in 0..rng.below(30) {
        out.push_str(rng.pick(VOCABULARY));
        out.push_str(rng.pick(&["", " "]));
    }
    out
}

fn mutated_text(rng: &mut Rng, text: String) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=rng.below(4) {
        let at = rng.below(chars.len());
        let upto = (at + rng.below(12)).min(chars.len());
        match rng.below(6) {
            0 => drop(chars.drain(at..upto)),
            1 => chars.splice(at..at, rng.pick(VOCABULARY).chars()).for_each(drop),
            2 => {
                let copy: Vec<char> = chars[at..upto].to_vec();
                chars.splice(at..at, copy).for_each(drop);
            }
            3 => chars.truncate(at),
            4 => {
                let digits: Vec<usize> = (0..chars.len()).filter(|i| chars[*i].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    let at = rng.pick(&digits);
                    chars[at] = rng.pick(&['0', '1', '7', '9', '-', '.']);
                }
            }
            _ => {
                if let Some(c) = chars.get_mut(at) {
                    *c = char::from_u32(rng.below(0x300) as u32).unwrap_or('x');
                }
            }
        }
    }
    chars.into_iter().collect()
}

/// The verifier on graphs put together wrongly; what it accepts must survive the text form.
fn parts(rng: &mut Rng) -> Result<&'static str, String> {
    let graph = valid(rng)?;
    let (mut values, mut nodes) = (graph.values().to_vec(), graph.nodes().to_vec());
    let mut outputs = graph.outputs().to_vec();
    for _ in 0..=rng.below(3) {
        break_parts(rng, &mut values, &mut nodes, &mut outputs);
    }
    let broken = Graph::from_parts("broken", values, nodes, outputs);
    let verdict = broken.verify();
    let _ = (broken.to_string(), broken.use_counts(), broken.specialise(&[]));
    let _ = (broken.inputs().count(), broken.params().count(), broken.output_named("x"));
    match verdict {
        Ok(()) => same_after_text(&broken).map(|()| "graphs accepted"),
        Err(e) => {
            let _ = e.to_string();
            Ok("graphs refused")
        }
    }
}

fn any_id(rng: &mut Rng, count: usize) -> u32 {
    if rng.chance(10) { rng.next() as u32 } else { rng.below(count + 1) as u32 }
}

fn break_parts(rng: &mut Rng, values: &mut Vec<Value>, nodes: &mut Vec<Node>, outputs: &mut Vec<Output>) {
    let (v, n) = (rng.below(values.len()), rng.below(nodes.len()));
    let id = ValueId::new(any_id(rng, values.len()));
    match rng.below(14) {
        0 => values.truncate(v),
        1 => nodes.truncate(n),
        2 => outputs.push(Output { name: rng.pick(&["x", "y"]).into(), value: id }),
        3 if !values.is_empty() => drop(values.swap_remove(v)),
        4 => values.iter_mut().skip(v).take(1).for_each(|value| value.ty = wild_type(rng)),
        5 => {
            let def = wild_def(rng, values.len(), nodes.len());
            values.iter_mut().skip(v).take(1).for_each(|value| value.def = def.clone());
        }
        6 => nodes.iter_mut().skip(n).take(1).for_each(|node| node.inputs.push(id)),
        7 => nodes.iter_mut().skip(n).take(1).for_each(|node| node.inputs.truncate(1)),
        8 => nodes.iter_mut().skip(n).take(1).for_each(|node| node.inputs.iter_mut().for_each(|i| *i = id)),
        9 => nodes.iter_mut().skip(n).take(1).for_each(|node| node.outputs.push(id)),
        10 => nodes.iter_mut().skip(n).take(1).for_each(|node| node.outputs.reverse()),
        11 => nodes.iter_mut().skip(n).take(1).for_each(|node| node.op = generate::op(rng).0),
        12 => nodes.rotate_left(n),
        _ => nodes.iter_mut().skip(n).take(1).for_each(|node| node.outputs.clear()),
    }
}

fn wild_def(rng: &mut Rng, values: usize, nodes: usize) -> Def {
    match rng.below(4) {
        0 => Def::Input { name: "x".into(), dims: vec![rng.chance(50).then(|| "n".into()); rng.below(9)] },
        1 => Def::Param { name: "x".into() },
        2 => Def::Const(Tensor::scalar(1.0f32)),
        _ => Def::Node { node: NodeId(any_id(rng, nodes)), result: rng.below(values) },
    }
}

/// Any type at all, up to the largest that is legal.
fn wild_type(rng: &mut Rng) -> TensorType {
    let sizes = [0, 1, 2, 3, 7, 64, 1 << 20, 1 << 31, 1 << 40, (1 << 50) - 1, 1 << 50];
    let dims: Vec<usize> =
        (0..rng.below(9)).map(|_| sizes[if rng.chance(70) { rng.below(5) } else { rng.below(11) }]).collect();
    TensorType::new(rng.pick(&DType::ALL), Shape::new(&dims).unwrap_or_default())
}

/// Shape rules on operands and attributes that do not fit.
fn operation(rng: &mut Rng) -> Result<&'static str, String> {
    let (op, mut operands) = generate::op(rng);
    for _ in 0..rng.below(4) {
        let at = rng.below(operands.len());
        match rng.below(4) {
            0 => operands.insert(at, wild_type(rng)),
            1 if !operands.is_empty() => drop(operands.remove(at)),
            2 => operands.iter_mut().skip(at).take(1).for_each(|t| t.dtype = rng.dtype()),
            _ => operands.iter_mut().skip(at).take(1).for_each(|t| *t = wild_type(rng)),
        }
    }
    let mut attrs: Attrs = op.attrs();
    if rng.chance(70) {
        for _ in 0..=rng.below(2) {
            let at = rng.below(attrs.0.len());
            attrs.0.iter_mut().skip(at).take(1).for_each(|(_, attr)| break_attr(rng, attr));
        }
    }
    if rng.chance(3) {
        attrs.0.truncate(rng.below(attrs.0.len()));
    }
    let Ok(op) = Op::read(op.name(), &attrs) else { return Ok("attributes refused") };
    if op.attrs() != attrs && attrs.0.len() == op.attrs().0.len() {
        // Whole numbers may stand for floats; spelled again they must read as the same operation.
        let again = Op::read(op.name(), &op.attrs());
        if again.as_ref() != Ok(&op) {
            return Err(format!("{op:?} spells {} and reads {again:?}", op.attrs()));
        }
    }
    let Ok(results) = op.infer(&operands) else { return Ok("operands refused") };
    if results.is_empty() {
        return Err(format!("{op:?} on {operands:?} gives nothing"));
    }
    if let Some(bad) = results.iter().find(|t| Shape::new(t.shape.dims()).is_err()) {
        return Err(format!("{op:?} on {operands:?} gives the illegal {bad}"));
    }
    let constants: Vec<Option<Tensor>> =
        operands.iter().map(|t| (t.shape.numel() < 1000).then(|| wild_tensor(rng, *t)).flatten()).collect();
    let _ = op.check_constants(&operands, &constants.iter().map(Option::as_ref).collect::<Vec<_>>());
    Ok("operands accepted")
}

fn wild_tensor(rng: &mut Rng, ty: TensorType) -> Option<Tensor> {
    if ty.dtype != DType::I64 {
        return generate::tensor(rng, ty).ok();
    }
    let elements = (0..ty.shape.numel()).map(|_| rng.pick(&[0, 1, -1, 3, i64::MIN, i64::MAX])).collect();
    Tensor::new(ty.shape, elements).ok()
}

fn break_attr(rng: &mut Rng, attr: &mut Attr) {
    let extremes = [
        0,
        1,
        -1,
        2,
        3,
        7,
        8,
        9,
        1 << 31,
        1 << 50,
        i128::from(i64::MAX),
        i128::from(i64::MIN),
        u64::MAX as i128,
        1 << 100,
    ];
    match attr {
        Attr::Int(i) => *i = rng.pick(&extremes),
        Attr::Float(x) => *x = rng.real(),
        Attr::Bool(b) => *b = !*b,
        Attr::List(items) => {
            let at = rng.below(items.len());
            match rng.below(6) {
                0 if !items.is_empty() => drop(items.remove(at)),
                1 if !items.is_empty() => items.insert(at, items[at].clone()),
                2 => items.push(Attr::Int(rng.pick(&extremes))),
                3 => items.clear(),
                _ => items.iter_mut().skip(at).take(1).for_each(|item| break_attr(rng, item)),
            }
        }
        Attr::Record(fields) => {
            let at = rng.below(fields.len());
            fields.iter_mut().skip(at).take(1).for_each(|(_, field)| break_attr(rng, field));
        }
        Attr::Text(text) => {
            text.push_str(rng.pick(&["...", "->", ",", "i", "é"]));
            *text = mutated_text(rng, text.clone());
        }
        Attr::Word(word) => {
            *word = rng.pick(&["f32", "bool", "in0", "in9", "t0", "t99", "max", "keep", "bhsd"]).into()
        }
        Attr::Graph(_) => *attr = rng.pick(&[Attr::None, Attr::Int(0), Attr::Word("graph".into())]),
        Attr::None => {
            *attr = rng.pick(&[Attr::Int(0), Attr::Float(-1.0), Attr::List(vec![]), Attr::Int(1 << 64)])
        }
    }
}
