//! The text form: what prints parses back to an equal graph, and what is wrong is told with its place.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine_ir::half::{bf16, f16};
use olivine_ir::op::{Attention, HeadLayout, MaskKind};
use olivine_ir::{DType, Error, Graph, Op, Printer, Tensor};

fn parse(text: &str) -> Result<Graph, Error> {
    text.parse()
}

/// The line, column and words of the error that a text gives.
fn refused(text: &str) -> (usize, usize, String) {
    match parse(text) {
        Err(Error::Parse { line, column, problem }) => (line, column, problem),
        other => panic!("expected a parse error for {text}, got {other:?}"),
    }
}

fn round_trip(graph: &Graph) {
    let text = graph.to_string();
    let parsed = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(&parsed, graph, "{text}");
    assert_eq!(parsed.to_string(), text);
}

#[test]
fn a_graph_prints_as_one_definition_a_line() {
    let mut g = Graph::new("bert");
    let x = g.input_with_dims("x", DType::F32, [1, 128, 8], vec![None, Some("seq".into()), None]).unwrap();
    let w = g.param("w", DType::F32, [8, 8]).unwrap();
    let half = g.constant(Tensor::scalar(0.5f32));
    let y = g.scoped("layer0", |g| g.matmul(x, w)).unwrap();
    let y = g.mul(y, half).unwrap();
    let (best, at) = g.top_k(y, 4, -1, true).unwrap();
    g.output("best", best).unwrap();
    g.output("at", at).unwrap();
    let text = r#"graph "bert" {
  %0 = input "x": f32[1, seq=128, 8]
  %1 = param "w": f32[8, 8]
  %2 = const f32[] 0.5
  %3: f32[1, 128, 8] = matmul(%0, %1) "layer0/matmul_0"
  %4: f32[1, 128, 8] = mul(%3, %2) "mul_1"
  %5: f32[1, 128, 4], %6: i64[1, 128, 4] = top_k(%4) {k=4, axis=2, largest=true} "top_k_2"
  output "best" = %5
  output "at" = %6
}
"#;
    assert_eq!(g.to_string(), text);
    round_trip(&g);
}

#[test]
fn types_and_node_names_may_be_left_out() {
    let g =
        parse("graph \"g\" { %0 = input \"x\": f32[2] # one\n %1 = relu(%0) // two\n output \"y\" = %1 }")
            .unwrap();
    assert_eq!(g.nodes()[0].name, "relu_0");
    assert_eq!(g.ty(g.outputs()[0].value).unwrap().to_string(), "f32[2]");
    round_trip(&g);
}

#[test]
fn names_may_hold_any_text() {
    let name = "a\"b\\c\n\t\r\u{0}\u{7f}ü→😀 #not//comment";
    let mut g = Graph::new(name);
    let x = g.input_with_dims(name, DType::F32, [2, 3], vec![Some(name.into()), Some("n-1".into())]).unwrap();
    g.param(name, DType::F32, [1]).unwrap();
    g.param("", DType::F32, [1]).unwrap();
    let y = g.add_named(name, olivine_ir::op::Reshape { dims: vec![(-1).into()] }, &[x]).unwrap()[0];
    g.output(name, y).unwrap();
    round_trip(&g);
}

#[test]
fn constants_keep_their_bits() {
    let mut g = Graph::new("constants");
    let f32s =
        [0.0, -0.0, 1e-45, f32::MIN_POSITIVE, f32::MAX, 0.1, f32::INFINITY, f32::NEG_INFINITY, 16777217.0];
    g.constant(Tensor::new([9], f32s.to_vec()).unwrap());
    g.constant(Tensor::new([2], vec![f32::from_bits(0x7fc0_1234), 1.0]).unwrap());
    g.constant(Tensor::new([3], vec![5e-324f64, f64::MAX, -0.0]).unwrap());
    g.constant(Tensor::new([3], vec![i64::MIN, i64::MAX, -1]).unwrap());
    g.constant(Tensor::new([2], vec![u32::MAX, 0]).unwrap());
    g.constant(Tensor::new([2, 2], vec![true, false, false, true]).unwrap());
    g.constant(Tensor::new([0, 3], Vec::<f32>::new()).unwrap());
    g.constant(Tensor::scalar(-128i8));
    for first in (0..=u16::MAX).step_by(64) {
        let bits = first..=first + 63;
        g.constant(Tensor::new([64], bits.clone().map(f16::from_bits).collect()).unwrap());
        g.constant(Tensor::new([64], bits.map(bf16::from_bits).collect()).unwrap());
    }
    round_trip(&g);
}

#[test]
fn a_scalar_and_a_list_of_one_differ() {
    let mut g = Graph::new("g");
    g.constant(Tensor::scalar(2.0f32));
    g.constant(Tensor::new([1], vec![2.0f32]).unwrap());
    assert!(g.to_string().contains("const f32[] 2.0\n"));
    assert!(g.to_string().contains("const f32[1] [2.0]\n"));
    round_trip(&g);
}

#[test]
fn large_constants_are_bytes_or_elided() {
    let mut g = Graph::new("g");
    g.constant(Tensor::new([100], (0..100i64).collect()).unwrap());
    g.constant(Tensor::new([65], vec![true; 65]).unwrap());
    round_trip(&g);
    let elided = Printer::new(&g).elide_constants(true).to_string();
    assert!(elided.contains("%0 = const i64[100] …\n"), "{elided}");
    assert_eq!(refused(&elided).2, "unexpected character '…'");
}

#[test]
fn attributes_at_their_default_are_not_printed() {
    let mut g = Graph::new("g");
    let q = g.input("q", DType::F16, [1, 2, 3, 4]).unwrap();
    let spec =
        Attention { window: Some(usize::MAX), softcap: Some(30.0), ..Attention::new(HeadLayout::Bhsd) };
    g.attention(spec, q, q, q, &[]).unwrap();
    let text = g.to_string();
    assert!(!text.contains("scale") && text.contains("window=18446744073709551615"), "{text}");
    assert!(text.contains(&format!("mask={}", MaskKind::None.name())), "{text}");
    round_trip(&g);
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let g = |body: &str| format!("graph \"g\" {{\n  %0 = input \"x\": f32[2, 3]\n  {body}\n}}");
    for (body, line, column, words) in [
        ("%1 = add(%1, %1)", 3, 12, "%1 is used before it is defined"),
        ("%1 = relu(%9)", 3, 13, "%9 is used before it is defined"),
        ("%0 = relu(%0)", 3, 3, "%0 is already defined"),
        ("%2 = relu(%0)", 3, 3, "values are numbered in order: expected %1, found %2"),
        ("%1 = rleu(%0)", 3, 8, "unknown operation `rleu`; did you mean `relu`?"),
        ("%1 = softmax(%0) {axes=1}", 3, 8, "unknown attribute `axes`; did you mean `axis`?"),
        ("%1 = softmax(%0) {axis=1, axis=1}", 3, 8, "attribute `axis` is given twice"),
        ("%1 = softmax(%0)", 3, 8, "attribute `axis` is missing"),
        (
            "%1 = softmax(%0) {axis=-1}",
            3,
            8,
            "attribute `axis`: expected a whole number from 0 up, found `-1`",
        ),
        ("%1 = cast(%0) {to=f31}", 3, 8, "attribute `to`: unknown dtype `f31`"),
        ("%1: f32[3, 2] = relu(%0)", 3, 3, "%1 is written as f32[3, 2], but relu gives f32[2, 3]"),
        ("%1, %2 = relu(%0)", 3, 12, "relu gives 1 results, 2 are named"),
        ("%1 = top_k(%0) {k=1, axis=0, largest=true}", 3, 8, "top_k gives 2 results, 1 are named"),
        ("%1 = input \"x\": f32[]", 3, 8, "input `x` is declared twice"),
        ("%1: f32[] = const f32[] 1", 3, 15, "`const` defines one value and gives its type on the right"),
        ("%1 = param \"w\": f32[n=3]", 3, 19, "only an input's sizes have names"),
        ("%1 = param \"w\": f33[3]", 3, 19, "unknown dtype `f33`; did you mean `f32`?"),
        ("%1 = const i8[] 128", 3, 19, "expected a number of i8, found `128`"),
        ("%1 = const f32[] 1e39", 3, 20, "expected a number of f32, found `1e39`"),
        ("%1 = const f16[] 65520", 3, 20, "expected a number of f16, found `65520`"),
        ("%1 = const f32[] nan", 3, 20, "expected a number of f32, found `nan`"),
        ("%1 = const bool[] 1", 3, 21, "expected a number of bool, found `1`"),
        ("%1 = const f32[2] [1, 2, 3]", 3, 28, "f32[2] holds 2 elements, more are given"),
        ("%1 = const f32[2] [1]", 3, 21, "f32[2] holds 2 elements, 1 are given"),
        ("%1 = const f32[1] base64 \"AAAA\"", 3, 28, "f32[1] takes 8 characters of base64, found 4"),
        ("%1 = const f32[1] base64 \"AAAA!A==\"", 3, 28, "not base64"),
        ("%1 = const f32[1] base64 \"AAAAAAAA\"", 3, 28, "f32[1] takes 4 bytes, found 6"),
        ("%1 = const bool[1] base64 \"Ag==\"", 3, 29, "a bool must be 0 or 1, found 2"),
        ("%1 = relu(%0) \"a", 3, 17, "the string has no closing quote"),
        ("%1 = relu(%0) \"\\q\"", 3, 18, "unknown escape in a string"),
        ("%1 = relu(%0) \"\\u{110000}\"", 3, 18, "expected \\u{hex} with up to 6 digits"),
        ("%1 = leaky_relu(%0) {alpha=1e999}", 3, 30, "`1e999` is out of range"),
        (
            "%1 = roll(%0) {axis=0, shift=9223372036854775808}",
            3,
            8,
            "attribute `shift`: expected a whole number of 64 bits, found `9223372036854775808`",
        ),
        ("%99999999999 = relu(%0)", 3, 3, "`%99999999999` is not a value's number"),
        ("output \"y\" = %1", 3, 16, "%1 is used before it is defined"),
        ("nonsense", 3, 3, "expected a definition, an output or `}`, found `nonsense`"),
        ("ü", 3, 3, "unexpected character 'ü'"),
        ("%1 = param \"ü\": f32[x]", 3, 24, "expected `=`, found `]`"),
    ] {
        assert_eq!(refused(&g(body)), (line, column, words.to_string()), "{body}");
    }
    assert_eq!(refused("").2, "expected `graph`, found the end of the text");
    assert_eq!(refused("graph \"g\" { } }").2, "expected the end of the text, found `}`");
    assert_eq!(
        refused(&g("%1 = matmul(%0, %0)")).2,
        "matmul `matmul_0`: inner sizes differ: 3 and 2; operands: f32[2, 3], f32[2, 3]"
    );
}

#[test]
fn absurd_sizes_are_refused_before_anything_is_allocated() {
    for (ty, words) in [
        ("f32[99999999999999999999]", "expected a size"),
        ("f32[4294967296, 4294967296]", "too large"),
        ("f32[1, 1, 1, 1, 1, 1, 1, 1, 1]", "rank 9 is above the limit"),
        ("f64[1125899906842624] base64 \"AAAA\"", "characters of base64, found 4"),
        ("f64[1125899906842624] [1, 2]", "holds 1125899906842624 elements, 2 are given"),
    ] {
        let (_, _, problem) = refused(&format!("graph \"g\" {{ %0 = const {ty} }}"));
        assert!(problem.contains(words), "{ty}: {problem}");
    }
}

#[test]
fn deep_nesting_is_refused_and_not_a_stack_overflow() {
    for (open, close) in [("[", "]"), ("{a=", "}")] {
        let deep = format!("{}1{}", open.repeat(1_000_000), close.repeat(1_000_000));
        let text = format!("graph \"g\" {{ %0 = range() {{start={deep}}} }}");
        assert_eq!(refused(&text).2, "attributes nest deeper than 32");
    }
}

#[test]
fn an_operation_is_read_by_itself() {
    let top: Op = "top_k {k=4, axis=2, largest=true}".parse().unwrap();
    assert_eq!((top.name(), top.attrs().to_string()), ("top_k", "{k=4, axis=2, largest=true}".into()));
    assert_eq!("  add  # and nothing else\n".parse::<Op>().unwrap().name(), "add");
    for (text, why) in [
        ("", "expected an operation"),
        ("%3", "expected an operation"),
        ("addd", "did you mean `add`"),
        ("top_k {k=4", "expected `,`"),
        ("top_k {k=4, axis=2, largest=true} add", "expected the end"),
        ("add(%0, %1)", "expected the end"),
        ("custom {name=\"acme.twice\"}", "acme.twice"),
    ] {
        let problem = text.parse::<Op>().unwrap_err().to_string();
        assert!(problem.contains(why), "{text}: {problem}");
    }
}
