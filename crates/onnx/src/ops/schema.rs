//! What holds of a node before its import: no more inputs and outputs than its operator has, and attributes that hold one
//! of a few values hold one of them, whether or not the import looks at them.

use crate::proto::attribute_proto::AttributeType;
use crate::proto::{AttributeProto, NodeProto};

use super::most;

/// Attributes that are 0 or 1 in every operator that has them.
const FLAGS: &[&str] = &[
    "align_corners",
    "allowzero",
    "antialias",
    "broadcast",
    "ceil_mode",
    "center_point_box",
    "channels_last",
    "count_include_pad",
    "detect_negative",
    "detect_positive",
    "do_rotary",
    "exclude_outside",
    "exclusive",
    "fmod",
    "input_forget",
    "interleaved",
    "inverse",
    "is_causal",
    "is_packed_batching",
    "is_test",
    "keepdims",
    "largest",
    "layout",
    "linear_before_reset",
    "new_axis",
    "noop_with_empty_axes",
    "one_class",
    "onesided",
    "output_sequence",
    "periodic",
    "reverse",
    "rotary_interleaved",
    "saturate",
    "select_last_index",
    "sorted",
    "spatial",
    "storage_order",
    "training_mode",
    "transA",
    "transB",
    "transBatchA",
    "transBatchB",
    "unidirectional",
    "upper",
    "zeros",
];

/// Operators, separated by spaces (none: all that have it), an attribute, and the numbers that it may be.
const NUMBERS: &[(&str, &str, &[i64])] = &[
    ("", "qk_matmul_output_mode", &[0, 1, 2, 3]),
    ("", "smooth_softmax", &[-1, 0, 1]),
    // f32, f16, f64 and bf16.
    ("", "stash_type", &[1, 10, 11, 16]),
    ("LpNormalization", "p", &[1, 2]),
    ("TreeEnsemble", "aggregate_function", &[0, 1, 2, 3]),
    ("TreeEnsemble", "post_transform", &[0, 1, 2, 3, 4]),
];

/// Operators, separated by spaces (none: all that have it), an attribute, and the words that it may be.
const WORDS: &[(&str, &str, &[&str])] = &[
    ("", "auto_pad", &["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""]),
    ("BitShift", "direction", &["LEFT", "RIGHT"]),
    ("DepthToSpace", "mode", &["DCR", "CRD"]),
    ("Gelu", "approximate", &["none", "tanh"]),
    ("GridSample", "mode", &["linear", "bilinear", "cubic", "bicubic", "nearest"]),
    ("GridSample", "padding_mode", &["zeros", "border", "reflection"]),
    ("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", "reduction", &["none", "sum", "mean"]),
    ("Normalizer", "norm", &["MAX", "L1", "L2"]),
    ("Pad", "mode", &["constant", "reflect", "edge", "wrap"]),
    (
        "Resize",
        "coordinate_transformation_mode",
        &[
            "half_pixel",
            "half_pixel_symmetric",
            "pytorch_half_pixel",
            "align_corners",
            "asymmetric",
            "tf_crop_and_resize",
            "tf_half_pixel_for_nn",
        ],
    ),
    ("Resize", "keep_aspect_ratio_policy", &["stretch", "not_larger", "not_smaller"]),
    ("Resize", "mode", &["nearest", "linear", "cubic"]),
    ("Resize", "nearest_mode", &["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    ("RoiAlign", "coordinate_transformation_mode", &["half_pixel", "output_half_pixel"]),
    ("RoiAlign", "mode", &["avg", "max"]),
    ("ScatterElements ScatterND", "reduction", &["none", "add", "mul", "max", "min"]),
    ("SVMClassifier SVMRegressor", "kernel_type", &["LINEAR", "POLY", "RBF", "SIGMOID"]),
    ("TensorScatter", "mode", &["linear", "circular"]),
    ("TfIdfVectorizer", "mode", &["TF", "IDF", "TFIDF"]),
    ("TreeEnsembleRegressor", "aggregate_function", &["SUM", "AVERAGE", "MIN", "MAX"]),
    (
        "LinearClassifier LinearRegressor SVMClassifier SVMRegressor TreeEnsembleClassifier TreeEnsembleRegressor",
        "post_transform",
        &["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"],
    ),
];

/// The words of recurrent layers, in any case.
const DIRECTIONS: [&str; 3] = ["forward", "reverse", "bidirectional"];
const RECURRENT: &str = "GRU LSTM RNN DynamicQuantizeLSTM";

/// What is wrong with a node of an operator in a version of its set. `attribute` finds an attribute's value by its name,
/// which a function's caller may have given.
pub(crate) fn problem<'a>(
    node: &NodeProto,
    opset: i64,
    attribute: impl Fn(&str) -> Option<&'a AttributeProto>,
) -> Option<String> {
    let surplus = surplus(node, opset);
    surplus.or_else(|| {
        let values = node.attribute.iter().filter_map(|own| Some((own.name(), attribute(own.name())?)));
        values.filter_map(|(name, value)| out_of_range(node.op_type(), name, value)).next()
    })
}

fn surplus(node: &NodeProto, opset: i64) -> Option<String> {
    let (inputs, outputs) = most(node.domain(), node.op_type(), opset)?;
    let named = |names: &[String]| names.iter().rposition(|name| !name.is_empty()).map_or(0, |i| i + 1);
    let few = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let over = |given: usize, most: usize, what: &str| {
        (given > most).then(|| format!("it has {}, the operator takes {most}", few(given, what)))
    };
    over(named(&node.input), inputs, "input").or_else(|| over(named(&node.output), outputs, "output"))
}

fn out_of_range(operator: &str, name: &str, value: &AttributeProto) -> Option<String> {
    let of = |operators: &str| operators.is_empty() || operators.split(' ').any(|o| o == operator);
    match value.r#type() {
        AttributeType::Int | AttributeType::Undefined if value.i.is_some() => {
            let flag = FLAGS.contains(&name).then_some([0i64, 1].as_slice());
            let listed =
                || NUMBERS.iter().find(|(o, n, _)| of(o) && *n == name).map(|(.., numbers)| *numbers);
            let allowed = flag.or_else(listed)?;
            let all = || allowed.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
            let found = value.i();
            (!allowed.contains(&found))
                .then(|| format!("attribute `{name}` is {found}, not one of {}", all()))
        }
        AttributeType::String | AttributeType::Undefined if value.s.is_some() => {
            let found = String::from_utf8_lossy(value.s());
            let (allowed, fits) = if name == "direction" && of(RECURRENT) {
                let word = found.to_lowercase();
                (&DIRECTIONS as &[&str], DIRECTIONS.contains(&word.as_str()))
            } else {
                let (.., words) = WORDS.iter().find(|(o, n, _)| of(o) && *n == name)?;
                (*words, words.contains(&&*found))
            };
            let shown: String = found.chars().take(60).collect();
            (!fits).then(|| format!("attribute `{name}` is `{shown}`, not one of {}", allowed.join(", ")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{DOMAINS, families};

    fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        DOMAINS.into_iter().flat_map(|domain| {
            families(domain).iter().copied().flatten().map(move |(name, ..)| (domain, *name))
        })
    }

    fn node(domain: &str, name: &str, inputs: usize, outputs: usize) -> NodeProto {
        NodeProto {
            domain: Some(domain.into()),
            op_type: Some(name.into()),
            input: (0..inputs).map(|i| format!("i{i}")).collect(),
            output: (0..outputs).map(|i| format!("o{i}")).collect(),
            ..NodeProto::default()
        }
    }

    #[test]
    fn every_operator_refuses_one_input_or_output_more_than_it_has() {
        for (domain, name) in all() {
            for opset in 1..30 {
                let known = most(domain, name, opset);
                let (inputs, outputs) = known.unwrap_or_else(|| panic!("{domain} {name} has no arity"));
                let (inputs, outputs) = (inputs.min(50), outputs.min(50));
                let said = |i, o| problem(&node(domain, name, i, o), opset, |_| None);
                assert_eq!(said(inputs, outputs), None, "{name}");
                if inputs < 50 {
                    assert!(said(inputs + 1, 1).is_some_and(|p| p.contains("input")), "{name} {opset}");
                }
                if outputs < 50 {
                    assert!(said(0, outputs + 1).is_some_and(|p| p.contains("output")), "{name} {opset}");
                }
            }
        }
        // Names that are left out at the end do not count.
        let mut relu = node("", "Relu", 1, 1);
        relu.input.extend([String::new(), String::new()]);
        assert_eq!(problem(&relu, 20, |_| None), None);
        relu.input.push("x".into());
        assert!(problem(&relu, 20, |_| None).is_some());
    }

    #[test]
    fn attributes_of_a_few_values_refuse_all_others() {
        let said = |operator: &str, value: &AttributeProto| {
            let mut node = node("", operator, 1, 1);
            node.attribute.push(value.clone());
            problem(&node, 20, |_| Some(value))
        };
        let int = |name: &str, i: i64| AttributeProto {
            name: Some(name.into()),
            r#type: Some(AttributeType::Int as i32),
            i: Some(i),
            ..AttributeProto::default()
        };
        let word = |name: &str, s: &str| AttributeProto {
            name: Some(name.into()),
            r#type: Some(AttributeType::String as i32),
            s: Some(s.as_bytes().to_vec().into()),
            ..AttributeProto::default()
        };
        for name in FLAGS {
            for i in [-3, -1, 2, i64::MIN, i64::MAX] {
                assert!(said("GRU", &int(name, i)).is_some_and(|p| p.contains(name)), "{name} {i}");
            }
            assert_eq!(said("GRU", &int(name, 0)).or(said("GRU", &int(name, 1))), None, "{name}");
        }
        for (operators, name, numbers) in NUMBERS {
            let operator = operators.split(' ').next().unwrap_or_default();
            assert!(said(operator, &int(name, 99)).is_some(), "{name}");
            assert!(numbers.iter().all(|i| said(operator, &int(name, *i)).is_none()), "{name}");
        }
        for (operators, name, words) in WORDS {
            for operator in operators.split(' ') {
                for wrong in ["nonsense", "Linear ", "\u{0}"] {
                    assert!(said(operator, &word(name, wrong)).is_some_and(|p| p.contains(name)), "{name}");
                }
                assert!(words.iter().all(|w| said(operator, &word(name, w)).is_none()), "{name}");
            }
        }
        assert!(said("GRU", &word("direction", "sideways")).is_some());
        assert_eq!(said("LSTM", &word("direction", "Bidirectional")), None);
    }
}
