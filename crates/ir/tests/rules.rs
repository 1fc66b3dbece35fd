//! The shape and dtype rule of each family: what it gives, and the words with which it refuses.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use olivine_ir::{DType, Error, Graph, Tensor};

/// The result types of an operation on params of the given types (separated by `;`), or the words of the error.
fn infer(operands: &str, name: &str, attrs: &str) -> String {
    let mut text = String::from("graph \"g\" {\n");
    let types: Vec<&str> = operands.split(';').map(str::trim).filter(|t| !t.is_empty()).collect();
    for (i, ty) in types.iter().enumerate() {
        text += &format!("%{i} = param \"p{i}\": {ty}\n");
    }
    let uses: Vec<String> = (0..types.len()).map(|i| format!("%{i}")).collect();
    // The number of results is not known yet: name one, then as many as the operation says it gives.
    for results in 1..8 {
        let ids: Vec<String> = (types.len()..types.len() + results).map(|i| format!("%{i}")).collect();
        let line = format!("{} = {name}({}) {{{attrs}}} \"n\" }}", ids.join(", "), uses.join(", "));
        match (text.clone() + &line).parse::<Graph>() {
            Ok(g) => {
                let results = &g.nodes()[0].outputs;
                return results
                    .iter()
                    .map(|id| g.ty(*id).unwrap().to_string())
                    .collect::<Vec<_>>()
                    .join("; ");
            }
            Err(Error::Parse { problem, .. }) if problem.contains(" are named") => {}
            Err(Error::Parse { problem, .. }) => {
                let words = problem.strip_prefix(&format!("{name} `n`: ")).unwrap_or(&problem);
                return words.split("; operands: ").next().unwrap_or_default().to_string();
            }
            Err(e) => return e.to_string(),
        }
    }
    "too many results".into()
}

fn check(rows: &[(&str, &str, &str, &str)]) {
    for (operands, name, attrs, expected) in rows {
        assert_eq!(infer(operands, name, attrs), *expected, "{name}({operands}) {{{attrs}}}");
    }
}

#[test]
fn an_error_carries_op_node_and_operands() {
    let mut g = Graph::new("g");
    let a = g.input("a", DType::F32, [2, 3]).unwrap();
    let e = g.scoped("encoder", |g| g.matmul(a, a)).unwrap_err();
    assert_eq!(
        e.to_string(),
        "matmul `encoder/matmul_0`: inner sizes differ: 3 and 2; operands: f32[2, 3], f32[2, 3]"
    );
    assert_eq!(g.nodes().len(), 0, "a refused operation leaves no trace");
}

#[test]
fn elementwise() {
    check(&[
        ("f32[2, 1, 3]; f32[4, 1]", "add", "", "f32[2, 4, 3]"),
        ("f32[0]; f32[1]", "add", "", "f32[0]"),
        ("f32[0]; f32[2]", "add", "", "shapes do not broadcast: [0] with [2]"),
        ("f32[2]; f16[2]", "add", "", "dtypes differ: f32 and f16"),
        ("bool[2]; bool[2]", "add", "", "needs a number dtype, got bool"),
        ("bool[2]; bool[2]", "and", "", "bool[2]"),
        ("f32[2]; f32[2]", "and", "", "needs bool or an integer dtype, got f32"),
        ("f32[]; f32[]", "shl", "", "needs an integer dtype, got f32"),
        ("i64[]; i64[]", "lt", "", "bool[]"),
        ("bool[]; bool[]", "lt", "", "needs a number dtype, got bool"),
        ("bool[]; bool[]", "eq", "", "bool[]"),
        ("i32[]", "exp", "", "needs a float dtype, got i32"),
        ("i32[]", "relu", "", "i32[]"),
        ("f16[3]", "isnan", "", "bool[3]"),
        ("f32[2]", "cast", "to=i8", "i8[2]"),
        ("f16[2]", "bitcast", "to=i16", "i16[2]"),
        ("f32[2]", "bitcast", "to=i16", "f32 and i16 differ in size"),
        ("u8[2]", "bitcast", "to=bool", "needs a number dtype, got u8"),
        ("i32[2]", "elu", "alpha=1.0", "needs a float dtype, got i32"),
        ("bool[3]; i8[]; i8[2, 1]", "where", "", "i8[2, 3]"),
        ("i8[3]; i8[]; i8[]", "where", "", "the condition must be bool, got i8"),
        ("f32[2]; f32[]", "clamp", "", "takes 3 operands, got 2"),
    ]);
}

#[test]
fn fused_regions() {
    let add = "region={inputs=2, instrs=[{op=add, args=[in0, in1]}, {op=cast, to=f16, args=[t0]}], outputs=[t1, t0]}";
    check(&[
        ("f32[2, 1]; f32[3]", "fused", add, "f16[2, 3]; f32[2, 3]"),
        ("f32[2, 1]", "fused", add, "the region takes 2 operands, got 1"),
        ("f32[2]; f16[2]", "fused", add, "region instruction 0 (add): dtypes differ: f32 and f16"),
        ("f32[]", "fused", "region={inputs=1, instrs=[], outputs=[]}", "the region has no output"),
        ("f32[]", "fused", "region={inputs=1, instrs=[], outputs=[t0]}", "result 0 is not computed yet"),
        (
            "f32[]",
            "fused",
            "region={inputs=1, instrs=[{op=neg, args=[t0]}], outputs=[t0]}",
            "region instruction 0: result 0 is not computed yet",
        ),
        (
            "f32[]",
            "fused",
            "region={inputs=1, instrs=[{op=softmax, args=[in0]}], outputs=[t0]}",
            "attribute `region`: attribute `instrs`: `softmax` is not an elementwise operation",
        ),
        (
            "f32[]",
            "fused",
            "region={inputs=1, instrs=[{op=neg, op=abs, args=[in0]}], outputs=[t0]}",
            "attribute `region`: attribute `instrs`: attribute `op` is given twice",
        ),
    ]);
}

#[test]
fn contractions() {
    let epilogue = "epilogue={inputs=2, instrs=[{op=add, args=[in0, in1]}], outputs=[t0]}";
    check(&[
        ("f32[2, 1, 4, 5]; f32[1, 3, 5, 6]", "matmul", "", "f32[2, 3, 4, 6]"),
        ("f32[5]; f32[5]", "matmul", "", "f32[]"),
        ("f32[5]; f32[7, 5, 2]", "matmul", "", "f32[7, 2]"),
        ("f32[0, 5]; f32[5, 0]", "matmul", "", "f32[0, 0]"),
        ("f32[]; f32[5]", "matmul", "", "operands need rank 1 or more"),
        ("f32[2, 2, 2]; f32[3, 2, 2]", "matmul", "", "batch sizes do not broadcast: [2] with [3]"),
        ("f32[2, 2]; f32[2, 2]; f32[2]", "matmul", "", "1 operands too many"),
        ("f32[2, 3]; f32[3, 4]; f32[4]", "matmul", epilogue, "f32[2, 4]"),
        (
            "f32[2, 3]; f32[3, 4]; f32[3]",
            "matmul",
            epilogue,
            "region operand f32[3] does not broadcast to [2, 4]",
        ),
        ("f32[2]", "matmul", "", "takes 2 or more operands, got 1"),
        (
            "f32[7, 2, 3]; f32[3, 7, 4]",
            "dot_general",
            "lhs_batch=[0], rhs_batch=[1], lhs_contract=[2], rhs_contract=[0]",
            "f32[7, 2, 4]",
        ),
        (
            "f32[2, 3]; f32[4, 5]",
            "dot_general",
            "lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]",
            "contracted sizes differ: left axis 1 is 3, right axis 0 is 4",
        ),
        (
            "f32[2, 3]; f32[2]",
            "dot_general",
            "lhs_batch=[0], rhs_batch=[0], lhs_contract=[0], rhs_contract=[]",
            "left axis 0 is named twice",
        ),
        ("f32[2, 3]; f32[3, 4]", "einsum", "equation=\"ij, jk\"", "f32[2, 4]"),
        ("f32[7, 2, 3]; f32[3, 4]", "einsum", "equation=\"...ij,jk->...ki\"", "f32[7, 4, 2]"),
        ("f32[3, 3]", "einsum", "equation=\"ii->i\"", "f32[3]"),
        (
            "f32[3, 1]",
            "einsum",
            "equation=\"ii->i\"",
            "a diagonal of [3, 1] needs equal sizes, axes 0 and 1 differ",
        ),
        ("f32[2, 3]; f32[4]", "einsum", "equation=\"ij,j\"", "label `j` has sizes 3 and 4"),
        ("f32[2]", "einsum", "equation=\"i->j\"", "result letter `j` is in no operand"),
        ("f32[2]", "einsum", "equation=\"i->ii\"", "result letter `i` is named twice"),
        ("f32[2]", "einsum", "equation=\"i,i\"", "equation `i,i` names 2 operands, got 1"),
        ("f32[2]", "einsum", "equation=\"é\"", "`é` in `é` is not a letter"),
        ("f32[2, 3, 4]; f32[4, 5]; f32[4, 2]; f32[2, 5]", "lora_matmul", "scale=0.5", "f32[2, 3, 5]"),
        (
            "f32[4]; f32[4, 5]; f32[4, 2]; f32[3, 5]",
            "lora_matmul",
            "scale=0.5",
            "B must have shape [2, 5], got [3, 5]",
        ),
        ("f32[6, 4]; f32[3, 4, 5]; i32[6]", "grouped_matmul", "", "f32[6, 5]"),
        ("f32[6, 4]; f32[3, 4, 5]; f32[6]", "grouped_matmul", "", "indices must be i32 or i64, got f32"),
    ]);
}

#[test]
fn norms() {
    let layer = "axis=1, eps=1e-5, bias=true, emit_input=false";
    check(&[
        ("f32[2, 3, 4]; f32[3, 4]; f32[3, 4]", "layer_norm", layer, "f32[2, 3, 4]"),
        ("f32[2, 3, 4]; f32[4]; f32[4]", "layer_norm", layer, "gamma must have shape [3, 4], got [4]"),
        ("f32[2, 3]; f16[3]; f32[3]", "layer_norm", layer, "gamma must be f32, got f16"),
        ("i32[2, 3]; i32[3]; i32[3]", "layer_norm", layer, "needs a float dtype, got i32"),
        ("f32[2]; f32[2]; f32[2]", "layer_norm", layer, "axis 1 is outside rank 1"),
        (
            "f32[2, 3]; f32[3]",
            "rms_norm",
            "axis=1, eps=0.0, bias=false, emit_input=true",
            "f32[2, 3]; f32[2, 3]",
        ),
        (
            "f32[2, 6, 5]; f32[6]; f32[6]",
            "group_norm",
            "groups=4, eps=0.0",
            "4 groups do not divide 6 channels",
        ),
        ("f32[2]; f32[2]; f32[2]", "instance_norm", "eps=0.0", "x must be [N, C, ..], got [2]"),
        (
            "f32[2, 3]; f32[3]; f32[3]; f32[3]; f32[2]",
            "batch_norm",
            "eps=0.0",
            "variance must have shape [3], got [2]",
        ),
        ("f32[2, 3, 4]; f32[3]; f32[3]", "layer_norm2d", "eps=0.0", "x must be [N, C, H, W], got [2, 3, 4]"),
        (
            "f32[2, 3, 4]; f32[2, 1, 4]; f32[5]",
            "ada_layer_norm",
            "eps=0.0",
            "shift [5] does not broadcast to [2, 3, 4]",
        ),
        ("f32[2, 3]", "l2_norm", "axis=2, eps=0.0", "axis 2 is outside rank 2"),
    ]);
}

#[test]
fn reductions_and_scans() {
    check(&[
        ("f32[2, 3, 4]", "reduce_sum", "axes=[2, 0], keepdims=false", "f32[3]"),
        ("f32[2, 3, 4]", "reduce_sum", "axes=[2, 0], keepdims=true", "f32[1, 3, 1]"),
        ("f32[2]", "reduce_sum", "axes=[0, 0], keepdims=true", "axis 0 is named twice"),
        ("i32[2]", "reduce_mean", "axes=[0], keepdims=true", "needs a float dtype, got i32"),
        ("f32[2]", "reduce_any", "axes=[0], keepdims=true", "needs bool, got f32"),
        ("f32[0]", "reduce_max", "axes=[0], keepdims=false", "f32[]"),
        ("f32[]", "softmax", "axis=0", "axis 0 is outside rank 0"),
        ("u8[3, 2]", "argmax", "axis=0, keepdims=false, last=true", "i64[2]"),
        (
            "u8[0, 2]",
            "argmin",
            "axis=0, keepdims=false, last=true",
            "axis 0 is empty: it has no position to give",
        ),
        ("bool[3]", "cumsum", "axis=0, exclusive=false, reverse=false", "needs a number dtype, got bool"),
        ("f32[3, 2]", "top_k", "k=2, axis=0, largest=true", "f32[2, 2]; i64[2, 2]"),
        ("f32[3]", "top_k", "k=4, axis=0, largest=true", "k = 4 exceeds axis 0 of size 3"),
        ("f32[3]", "argsort", "axis=0, descending=true", "i64[3]"),
    ]);
}

#[test]
fn attention_and_positions() {
    let plain = "layout=bhsd, causal=true, mask=nomask, sinks=false, lengths=false, pages=false";
    let full = "layout=bshd, causal=true, mask=keep, sinks=true, lengths=true, pages=false";
    let capped =
        "layout=bhsd, causal=true, softcap=0.0, mask=nomask, sinks=false, lengths=false, pages=false";
    let windowed = "layout=bhsd, causal=true, window=0, mask=nomask, sinks=false, lengths=false, pages=false";
    let paged = "layout=bhsd, causal=true, mask=nomask, sinks=false, lengths=true, pages=true";
    let into_pages = "layout=bhsd, pages=true";
    let qkv = "f32[2, 6, 5, 8]; f32[2, 3, 7, 8]; f32[2, 3, 7, 9]";
    check(&[
        (qkv, "attention", plain, "f32[2, 6, 5, 9]"),
        (
            "f16[2, 5, 6, 8]; f16[2, 7, 3, 8]; f16[2, 7, 3, 8]; bool[5, 7]; f16[6]; i32[2]",
            "attention",
            full,
            "f16[2, 5, 6, 8]",
        ),
        (qkv, "attention", full, "takes 6 operands, got 3"),
        (qkv, "attention", capped, "a softcap must be positive"),
        (qkv, "attention", windowed, "a window must hold at least one key"),
        (
            "f32[2, 6, 5, 8]; f32[2, 4, 7, 8]; f32[2, 4, 7, 8]",
            "attention",
            plain,
            "4 kv heads do not divide 6 heads",
        ),
        (
            "f32[1, 1, 1, 513]; f32[1, 1, 1, 513]; f32[1, 1, 1, 1]",
            "attention",
            plain,
            "head dims must be 1 to 512, got 513 and 1",
        ),
        (
            "f32[2, 4, 9, 8]; f32[2, 4, 3, 8]; i64[]",
            "kv_append",
            "layout=bhsd, pages=false",
            "f32[2, 4, 9, 8]",
        ),
        (
            "f32[2, 4, 9, 8]; f32[2, 4, 3, 8]; i64[2]",
            "kv_append",
            "layout=bhsd, pages=false",
            "f32[2, 4, 9, 8]",
        ),
        (
            "f32[2, 4, 9, 8]; f32[2, 4, 3, 8]; i64[3]",
            "kv_append",
            "layout=bhsd, pages=false",
            "the position must have shape [2], got [3]",
        ),
        (
            "f32[2, 4, 2, 8]; f32[2, 4, 3, 8]; i64[]",
            "kv_append",
            "layout=bhsd, pages=false",
            "3 rows do not fit a cache of 2",
        ),
        (
            "f32[1, 6, 5, 8]; f32[9, 3, 4, 8]; f32[9, 3, 4, 9]; i32[1]; i32[1, 2]",
            "attention",
            paged,
            "f32[1, 6, 5, 9]",
        ),
        (
            "f32[2, 6, 5, 8]; f32[9, 3, 4, 8]; f32[9, 3, 4, 8]; i32[2]; i32[1, 2]",
            "attention",
            paged,
            "pages must have shape [2, P], got [1, 2]",
        ),
        (
            "f32[2, 6, 5, 8]; f32[0, 3, 4, 8]; f32[0, 3, 4, 8]; i32[2]; i32[2, 2]",
            "attention",
            paged,
            "there must be a page",
        ),
        (
            "f32[2, 6, 5, 8]; f32[9, 3, 4, 8]; f32[8, 3, 4, 8]; i32[2]; i32[2, 2]",
            "attention",
            paged,
            "batches differ: q 2, k 9, v 8",
        ),
        ("f32[9, 4, 4, 8]; f32[2, 4, 30, 8]; i64[2]; i32[2, 3]", "kv_append", into_pages, "f32[9, 4, 4, 8]"),
        (
            "f32[9, 4, 4, 8]; f32[2, 4, 3, 8]; i64[]; i32[9, 3]",
            "kv_append",
            into_pages,
            "pages must have shape [2, P], got [9, 3]",
        ),
        ("f32[9, 4, 4, 8]; f32[2, 4, 3, 8]; i64[]", "kv_append", into_pages, "takes 4 operands, got 3"),
        // Packed caches: rows and queries are floats.
        (
            "q8_0[9, 4, 4, 64]; f16[2, 4, 3, 64]; i64[2]; i32[2, 3]",
            "kv_append",
            into_pages,
            "q8_0[9, 4, 4, 64]",
        ),
        (
            "q8_0[9, 4, 4, 64]; f32[2, 4, 3, 96]; i64[2]; i32[2, 3]",
            "kv_append",
            into_pages,
            "cache and rows differ in batch, heads or dim",
        ),
        (
            "q8_0[9, 4, 4, 64]; f64[2, 4, 3, 64]; i64[2]; i32[2, 3]",
            "kv_append",
            into_pages,
            "rows of a packed cache: needs f32, f16 or bf16, got f64",
        ),
        (
            "q4_0[9, 4, 4, 64]; f32[2, 4, 3, 64]; i64[2]; i32[2, 3]",
            "kv_append",
            into_pages,
            "caches can be packed as q8_0 only, got q4_0[9, 4, 4, 64]",
        ),
        (
            "q8_0[9, 4, 4, 64]; q8_0[2, 4, 3, 64]; i64[2]; i32[2, 3]",
            "kv_append",
            into_pages,
            "operand 1 is packed, q8_0[2, 4, 3, 64]: it must be dequantised first",
        ),
        (
            "f16[2, 6, 5, 64]; q8_0[9, 3, 4, 64]; q8_0[9, 3, 4, 96]; i32[2]; i32[2, 2]",
            "attention",
            paged,
            "f16[2, 6, 5, 96]",
        ),
        (
            "f32[2, 6, 5, 64]; q8_0[9, 3, 4, 32]; q8_0[9, 3, 4, 64]; i32[2]; i32[2, 2]",
            "attention",
            paged,
            "head dims of q and k differ: 64 and 32",
        ),
        (
            "f32[2, 6, 5, 64]; q8_0[9, 3, 4, 64]; f32[9, 3, 4, 64]; i32[2]; i32[2, 2]",
            "attention",
            paged,
            "both k and v must be packed, got q8_0[9, 3, 4, 64] and f32[9, 3, 4, 64]",
        ),
        (
            "f64[2, 6, 5, 64]; q8_0[9, 3, 4, 64]; q8_0[9, 3, 4, 64]; i32[2]; i32[2, 2]",
            "attention",
            paged,
            "q beside packed k and v needs f32, f16 or bf16, got f64",
        ),
        (
            "f32[2, 6, 5, 64]; q5_0[9, 3, 4, 64]; q5_0[9, 3, 4, 64]; i32[2]; i32[2, 2]",
            "attention",
            paged,
            "caches can be packed as q8_0 only, got q5_0[9, 3, 4, 64]",
        ),
        (
            "f32[2, 5, 4, 8]; i64[2, 5]",
            "rope",
            "layout=bshd, style=neox, rotary=6, base=10000.0, tables=false",
            "f32[2, 5, 4, 8]",
        ),
        (
            "f32[2, 5, 4, 8]; i64[4]",
            "rope",
            "layout=bshd, style=neox, rotary=6, base=10000.0, tables=false",
            "positions must have shape [5], got [4]",
        ),
        (
            "f32[2, 5, 4, 8]; i64[5]",
            "rope",
            "layout=bshd, style=neox, rotary=7, base=10000.0, tables=false",
            "rotary size 7 must be even and at most the head dim 8",
        ),
    ]);
}

#[test]
fn layout() {
    check(&[
        ("f32[2, 3, 4]", "reshape", "dims=[0, -1]", "f32[2, 12]"),
        ("f32[2, 3]", "reshape", "dims=[-1, -1]", "-1 stands twice"),
        ("f32[2, 3]", "reshape", "dims=[4, -1]", "cannot infer -1: 6 elements over 4"),
        (
            "f32[2]",
            "reshape",
            "dims=[9223372036854775807, 3]",
            "size overflows: product of [9223372036854775807, 3]",
        ),
        ("f32[2, 3, 4]", "transpose", "perm=[2, 0, 1]", "f32[4, 2, 3]"),
        ("f32[2, 3]", "transpose", "perm=[1, 1]", "[1, 1] is not a permutation of 2 axes"),
        ("f32[9, 2]", "slice", "axes=[0], starts=[-1], ends=[-9223372036854775808], steps=[-2]", "f32[5, 2]"),
        ("f32[9]", "slice", "axes=[0], starts=[0], ends=[1], steps=[0]", "a step must not be 0"),
        ("f32[2, 1]", "expand", "shape=[3, 1, 4]", "f32[3, 2, 4]"),
        ("f32[6]", "view", "shape=[2, 3], strides=[-3, 1], offset=3", "f32[2, 3]"),
        ("f32[6]", "view", "shape=[2, 3], strides=[-3, 1], offset=2", "reads elements -1 to 4 of 6"),
        ("f32[1, 8, 2, 3]", "depth_to_space", "block=2, mode=dcr", "f32[1, 2, 4, 6]"),
        ("f32[1, 2, 4, 5]", "space_to_depth", "block=2", "4 x 5 is not a multiple of the block 2"),
        ("f32[7, 2]", "unfold", "axis=0, size=3, step=2", "f32[3, 2, 3]"),
        ("f32[1, 1, 1, 1, 1, 1, 1, 1]", "unfold", "axis=0, size=1, step=1", "rank 9 is above the limit of 8"),
    ]);
}

#[test]
fn joining_and_repeating() {
    check(&[
        ("f32[2, 5]; f32[2, 3]", "slice_scatter", "axis=1, start=2", "f32[2, 5]"),
        ("f32[2, 5]; f32[2, 0]", "slice_scatter", "axis=1, start=5", "f32[2, 5]"),
        ("f32[2, 5]; f32[2, 3]", "slice_scatter", "axis=1, start=3", "3 .. 6 is outside axis 1 of size 5"),
        ("f32[2, 5]; f32[2, 3]", "slice_scatter", "axis=1, start=-1", "-1 .. 2 is outside axis 1 of size 5"),
        (
            "f32[2, 5]; f32[1, 3]",
            "slice_scatter",
            "axis=1, start=0",
            "[1, 3] does not fit [2, 5] along axis 1",
        ),
        ("f32[2, 5]; f16[2, 3]", "slice_scatter", "axis=1, start=0", "dtypes differ: f32 and f16"),
        ("f32[2, 3]; f32[2, 0]; f32[2, 5]", "concat", "axis=1", "f32[2, 8]"),
        ("f32[2, 3]; f32[3, 3]", "concat", "axis=1", "[3, 3] does not fit [2, 3] along axis 1"),
        ("", "concat", "axis=0", "takes 1 or more operands, got 0"),
        ("f32[5]", "split", "axis=0, sizes=[2, 0, 3]", "f32[2]; f32[0]; f32[3]"),
        ("f32[5]", "split", "axis=0, sizes=[2, 2]", "parts [2, 2] do not sum to axis 0 of size 5"),
        ("f32[2]; f32[2]", "stack", "axis=1", "f32[2, 2]"),
        ("f32[2]; f32[3]", "stack", "axis=1", "shapes differ: [2] and [3]"),
        ("f32[2, 3]", "tile", "repeats=[2, 0]", "f32[4, 0]"),
        ("f32[2, 3]", "repeat", "axis=1, repeats=4", "f32[2, 12]"),
        ("f32[4]", "pad", "pads=[[-1, 3]], mode=constant, value=0.0", "f32[6]"),
        (
            "f32[4]",
            "pad",
            "pads=[[4, 0]], mode=reflect, value=0.0",
            "reflect padding of 4 exceeds axis 0 of size 4",
        ),
        (
            "f32[0]",
            "pad",
            "pads=[[1, 0]], mode=edge, value=0.0",
            "edge padding of 1 exceeds axis 0 of size 0",
        ),
        (
            "f32[2]",
            "pad",
            "pads=[[-2, -1]], mode=constant, value=0.0",
            "axis 0 of size 2 is cut by more than it has",
        ),
    ]);
}

#[test]
fn indexing_and_making() {
    check(&[
        ("f32[5, 6]; i64[2, 3]", "gather", "axis=1", "f32[5, 2, 3]"),
        ("f32[5, 0]; i64[2]", "gather", "axis=1", "axis 1 is empty: no index is in range"),
        ("f32[5, 0]; i64[0]", "gather", "axis=1", "f32[5, 0]"),
        ("f32[5]; i16[2]", "gather", "axis=0", "indices must be i32 or i64, got i16"),
        ("f32[5, 6]; i32[9, 4]", "gather_elements", "axis=0", "f32[9, 4]"),
        (
            "f32[5, 6]; i32[9, 7]",
            "gather_elements",
            "axis=0",
            "indices [9, 7] are not within [5, 6] beside axis 0",
        ),
        ("f32[2, 5, 6]; i64[2, 7, 1]", "gather_nd", "batch_dims=1", "f32[2, 7, 6]"),
        ("f32[2, 5]; i64[7, 3]", "gather_nd", "batch_dims=0", "tuples of 3 after 0 batch axes exceed rank 2"),
        (
            "f32[5]; i64[3]; f32[2]",
            "scatter_elements",
            "axis=0, mode=add",
            "updates must have shape [3], got [2]",
        ),
        (
            "bool[5]; i64[3]; bool[3]",
            "scatter_elements",
            "axis=0, mode=add",
            "needs a number dtype, got bool",
        ),
        ("f32[4, 5]; i64[3, 1]; f32[3, 5]", "scatter_nd", "mode=replace", "f32[4, 5]"),
        ("i32[2]; f16[2]", "one_hot", "axis=0, depth=3", "f16[3, 2]"),
        ("f32[2]", "trilu", "part=upper, diagonal=0", "x needs rank 2 or more, got [2]"),
        (
            "",
            "range",
            "dtype=i64, start=0.5, step=1.0, count=3",
            "an i64 range needs whole start and step, got 0.5 and 1",
        ),
        ("f32[]", "fill", "shape=[2, 0]", "f32[2, 0]"),
        ("f32[2, 3]", "nonzero", "", "i64[2, 6]; i64[]"),
    ]);
}

#[test]
fn windows() {
    let unit = "window={strides=[1], pads=[[0, 0]], dilations=[1]}";
    let wide = "window={strides=[2, 2], pads=[[1, 1], [1, 1]], dilations=[1, 1]}";
    let conv = |window: &str, groups: usize| format!("{window}, groups={groups}, bias=false");
    let pool = |window: &str| {
        format!("kind=max, kernel=[3], {window}, ceil=false, count_include_pad=false, p=2, indices=true")
    };
    let hanging = |stride: usize| {
        let window = format!("window={{strides=[{stride}], pads=[[0, 0]], dilations=[1]}}");
        pool(&window).replace("ceil=false", "ceil=true")
    };
    check(&[
        ("f32[1, 4, 9, 9]; f32[6, 2, 3, 3]", "conv", &conv(wide, 2), "f32[1, 6, 5, 5]"),
        (
            "f32[1, 4, 9, 9]; f32[6, 4, 3, 3]",
            "conv",
            &conv(wide, 2),
            "w must take 2 channels per group, takes 4",
        ),
        (
            "f32[1, 4, 2]; f32[6, 4, 3]",
            "conv",
            &conv(unit, 1),
            "a window of 3 does not fit 2 with padding 0 and 0",
        ),
        ("f32[1, 4, 2]; f32[6, 4, 0]", "conv", &conv(unit, 1), "kernel sizes must be at least 1"),
        (
            "f32[1, 4, 3]; f32[4, 2, 3]",
            "conv_transpose",
            "window={strides=[2], pads=[[1, 1]], dilations=[1]}, groups=1, output_padding=[1], bias=false",
            "f32[1, 2, 6]",
        ),
        (
            "f32[1, 4, 3]; f32[4, 2, 3]",
            "conv_transpose",
            "window={strides=[2], pads=[[1, 1]], dilations=[1]}, groups=1, output_padding=[2], bias=false",
            "output_padding 2 must be below stride or dilation",
        ),
        ("f32[2, 3, 5]", "im2col", &format!("kernel=[2], {unit}"), "f32[2, 6, 4]"),
        ("f32[2, 3, 5]", "pool", &pool(unit), "f32[2, 3, 3]; i64[2, 3, 3]"),
        // The only window hangs over the end, by less than a stride.
        ("f32[2, 3, 2]", "pool", &hanging(2), "f32[2, 3, 1]; i64[2, 3, 1]"),
        ("f32[2, 3, 2]", "pool", &hanging(1), "a window of 3 does not fit 2 with padding 0 and 0"),
        (
            "f32[2, 3, 0]",
            "pool",
            &pool("window={strides=[1], pads=[[2, 2]], dilations=[1]}"),
            "kernel 3 over 0 with padding 2 and 2 has windows of padding alone",
        ),
        ("f32[2, 3, 5, 6]", "global_pool", "kind=lp, p=2", "f32[2, 3, 1, 1]"),
        ("f32[2, 3, 5]", "adaptive_pool", "kind=lp, output=[2]", "an adaptive pool is max or average"),
        (
            "f32[1, 2]",
            "resize",
            "sizes=[1, 5], scales=[1.0, 0.0], mode=linear, coordinates=half_pixel, nearest=floor, cubic=-0.75, exclude_outside=false, antialias=false",
            "scales must be positive",
        ),
    ]);
}

#[test]
fn sampling() {
    let grid = |mode: &str| format!("mode={mode}, padding=zeros, align_corners=false");
    let roi = |ratio: usize, scale: &str| {
        format!(
            "mode=average, height=2, width=3, sampling_ratio={ratio}, scale={scale}, coordinates=half_pixel"
        )
    };
    check(&[
        ("f16[2, 3, 4, 5]; f32[2, 6, 7, 2]", "grid_sample", &grid("cubic"), "f16[2, 3, 6, 7]"),
        ("f32[2, 3, 4, 5, 6]; f32[2, 1, 8, 7, 3]", "grid_sample", &grid("linear"), "f32[2, 3, 1, 8, 7]"),
        (
            "f32[2, 3, 4, 5, 6]; f32[2, 1, 8, 7, 3]",
            "grid_sample",
            &grid("cubic"),
            "cubic sampling is of images [N, C, H, W], got [2, 3, 4, 5, 6]",
        ),
        (
            "f32[2, 3, 4, 5]; f32[2, 6, 7, 3]",
            "grid_sample",
            &grid("linear"),
            "a grid for [2, 3, 4, 5] has shape [2, .., 2] and rank 4, got [2, 6, 7, 3]",
        ),
        (
            "f32[2, 3, 0, 5]; f32[2, 6, 7, 2]",
            "grid_sample",
            &grid("linear"),
            "nothing to read: [2, 3, 0, 5] has no elements",
        ),
        ("i32[2, 3, 4, 5]; f32[2, 6, 7, 2]", "grid_sample", &grid("nearest"), "needs a float dtype, got i32"),
        ("f32[2, 3, 8, 8]; f32[5, 4]; i64[5]", "roi_align", &roi(0, "0.5"), "f32[5, 3, 2, 3]"),
        (
            "f32[2, 3, 8, 8]; f32[5, 4]; i64[4]",
            "roi_align",
            &roi(0, "0.5"),
            "batch indices must have shape [5], got [4]",
        ),
        ("f32[2, 3, 8, 8]; f16[5, 4]; i64[5]", "roi_align", &roi(0, "0.5"), "dtypes differ: f32 and f16"),
        (
            "f32[0, 3, 8, 8]; f32[5, 4]; i64[5]",
            "roi_align",
            &roi(0, "0.5"),
            "nothing to read: [0, 3, 8, 8] has no elements",
        ),
        (
            "f32[2, 3, 8, 8]; f32[5, 4]; i64[5]",
            "roi_align",
            &roi(0, "0.0"),
            "the scale must be positive, got 0",
        ),
        (
            "f32[2, 3, 8, 8]; f32[5, 4]; i64[5]",
            "roi_align",
            &roi(5000, "1.0"),
            "5000 samples along an axis, at most 4096",
        ),
    ]);
}

#[test]
fn a_constant_index_out_of_range_is_refused_when_the_graph_is_built() {
    let mut g = Graph::new("g");
    let x = g.input("x", DType::F32, [3, 4]).unwrap();
    let words = |r: Result<_, Error>| r.map(|_: olivine_ir::ValueId| ()).unwrap_err().to_string();
    let low = g.constant(Tensor::new([2], vec![-3i32, -4]).unwrap());
    assert!(words(g.gather(x, low, 0)).contains("index -4 at position 1 is out of range for size 3"));
    assert!(g.gather(x, low, 1).is_ok());
    let tuples = g.constant(Tensor::new([2, 2], vec![0i64, 3, 2, 4]).unwrap());
    assert!(words(g.gather_nd(x, tuples, 0)).contains("index 4 at position 3 is out of range for size 4"));
    let w = g.input("w", DType::F32, [2, 4, 5]).unwrap();
    let experts = g.constant(Tensor::new([3], vec![0i64, 1, -1]).unwrap());
    assert!(words(g.grouped_matmul(x, w, experts)).contains("expert id -1 is negative"));
    let image = g.input("image", DType::F32, [2, 3, 8, 8]).unwrap();
    let regions = g.input("regions", DType::F32, [2, 4]).unwrap();
    let images = g.constant(Tensor::new([2], vec![-2i64, 2]).unwrap());
    let op = olivine_ir::op::RoiAlign {
        mode: olivine_ir::op::RoiMode::Max,
        height: 1,
        width: 1,
        sampling_ratio: 0,
        scale: 1.0,
        coordinates: olivine_ir::op::RoiCoordinates::HalfPixel,
    };
    let refused = words(g.roi_align(op, image, regions, images));
    assert!(refused.contains("index 2 at position 1 is out of range for size 2"), "{refused}");
}

#[test]
fn equal_operations_have_equal_bits() {
    let pad = |value| olivine_ir::op::Pad { pads: vec![], mode: olivine_ir::op::PadMode::Constant, value };
    assert_eq!(pad(f64::NAN), pad(-f64::NAN));
    assert_ne!(pad(0.0), pad(-0.0));
    assert_eq!(pad(1.5), pad(1.5));
}

#[test]
fn a_tensor_that_no_machine_holds_is_an_error() {
    let error = Tensor::zeros(DType::F64, [1 << 25, 1 << 25]).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { bytes } if bytes == 1 << 53), "{error}");
}
