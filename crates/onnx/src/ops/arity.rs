//! How many inputs and outputs an operator has at most, from the schemas of ONNX 1.23 and of ONNX Runtime: a node with
//! more was meant for another operator or version, and what it has too much would be ignored.

use std::collections::HashMap;
use std::sync::OnceLock;

/// As many as a node names.
const ANY: usize = usize::MAX;

/// The most inputs and outputs of some operators, whose names are separated by spaces.
type Group = (usize, usize, &'static str);

/// ONNX's own operators whose numbers never changed.
const ONNX: &[Group] = &[
    (0, 1, "Constant RandomNormal RandomUniform SequenceEmpty"),
    (
        1,
        1,
        "Abs Acos Acosh ArgMax ArgMin Asin Asinh Atan Atanh AveragePool Bernoulli BitCast BitwiseNot \
         BlackmanWindow Cast Ceil Celu ConcatFromSequence ConstantOfShape Cos Cosh DepthToSpace Det \
         Elu Erf Exp EyeLike Flatten Floor Gelu GlobalAveragePool GlobalLpPool GlobalMaxPool \
         HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LRN LeakyRelu \
         Log LogSoftmax LpNormalization LpPool MeanVarianceNormalization Mish Multinomial Neg NonZero \
         Not Optional OptionalGetElement OptionalHasElement RandomNormalLike RandomUniformLike \
         Reciprocal Relu Round Selu SequenceLength Shape Shrink Sigmoid Sign Sin Sinh Size Softmax \
         Softplus Softsign SpaceToDepth Sqrt Swish Tan Tanh TfIdfVectorizer ThresholdedRelu Transpose",
    ),
    (1, 3, "DynamicQuantizeLinear"),
    (1, 4, "Unique"),
    (1, ANY, "If"),
    (
        2,
        1,
        "Add AffineGrid And BitShift BitwiseAnd BitwiseOr BitwiseXor CastLike CenterCropPad Compress \
         CumProd CumSum Div Equal Expand Gather GatherElements GatherND Greater GreaterOrEqual \
         GridSample Less LessOrEqual MatMul MaxRoiPool Mod Mul Or PRelu Pow RMSNormalization \
         ReverseSequence SequenceAt SequenceErase SplitToSequence Sub Trilu Xor",
    ),
    (2, 3, "SimplifiedLayerNormalization"),
    (
        3,
        1,
        "Col2Im Conv ConvTranspose DequantizeLinear Gemm GroupNormalization InstanceNormalization \
         MaxUnpool NegativeLogLikelihoodLoss OneHot QuantizeLinear Range RoiAlign Scatter \
         ScatterElements ScatterND SequenceInsert TensorScatter Where",
    ),
    (3, 2, "SoftmaxCrossEntropyLoss"),
    (3, 3, "LayerNormalization"),
    (4, 1, "ConvInteger MatMulInteger RotaryEmbedding STFT"),
    (4, 2, "CausalConvWithState"),
    (5, 1, "DeformConv MelWeightMatrix NonMaxSuppression"),
    (6, 2, "GRU LinearAttention RNN"),
    (8, 1, "QLinearMatMul"),
    (8, 3, "LSTM"),
    (9, 1, "QLinearConv"),
    (ANY, 1, "Concat Einsum Max Mean Min SequenceConstruct Sum"),
    (ANY, ANY, "Loop Scan SequenceMap"),
];

/// A version of an operator, and its most inputs and outputs from then on.
type Version = (i64, usize, usize);

/// ONNX's own operators whose numbers changed: the version that they changed in, and what they are from then on.
const CHANGED: &[(&str, &[Version])] = &[
    ("Attention", &[(23, 6, 4), (24, 7, 4)]),
    ("BatchNormalization", &[(1, 5, 5), (14, 5, 3)]),
    ("Clip", &[(1, 1, 1), (11, 3, 1)]),
    ("DFT", &[(17, 2, 1), (20, 3, 1)]),
    ("Dropout", &[(1, 1, 2), (12, 3, 2)]),
    ("MaxPool", &[(1, 1, 1), (8, 1, 2)]),
    ("Pad", &[(1, 1, 1), (11, 3, 1), (18, 4, 1)]),
    ("ReduceL1", &[(1, 1, 1), (18, 2, 1)]),
    ("ReduceL2", &[(1, 1, 1), (18, 2, 1)]),
    ("ReduceLogSum", &[(1, 1, 1), (18, 2, 1)]),
    ("ReduceLogSumExp", &[(1, 1, 1), (18, 2, 1)]),
    ("ReduceMax", &[(1, 1, 1), (18, 2, 1)]),
    ("ReduceMean", &[(1, 1, 1), (18, 2, 1)]),
    ("ReduceMin", &[(1, 1, 1), (18, 2, 1)]),
    ("ReduceProd", &[(1, 1, 1), (18, 2, 1)]),
    ("ReduceSum", &[(1, 1, 1), (13, 2, 1)]),
    ("ReduceSumSquare", &[(1, 1, 1), (18, 2, 1)]),
    ("Reshape", &[(1, 1, 1), (5, 2, 1)]),
    ("Resize", &[(10, 2, 1), (11, 4, 1)]),
    ("Slice", &[(1, 1, 1), (10, 5, 1)]),
    ("Split", &[(1, 2, ANY), (2, 1, ANY), (13, 2, ANY)]),
    ("Squeeze", &[(1, 1, 1), (13, 2, 1)]),
    ("Tile", &[(1, 3, 1), (6, 2, 1)]),
    ("TopK", &[(1, 1, 2), (10, 2, 2)]),
    ("Unsqueeze", &[(1, 1, 1), (13, 2, 1)]),
    ("Upsample", &[(1, 1, 1), (9, 2, 1)]),
];

/// Operators of `ai.onnx.ml`.
const ML: &[Group] = &[
    (
        1,
        1,
        "Binarizer Imputer LabelEncoder LinearRegressor Normalizer OneHotEncoder SVMRegressor Scaler \
         TreeEnsemble TreeEnsembleRegressor",
    ),
    (1, 2, "LinearClassifier SVMClassifier TreeEnsembleClassifier"),
    (2, 1, "ArrayFeatureExtractor"),
    (ANY, 1, "FeatureVectorizer"),
];

/// Operators of `ai.onnx.preview`.
const PREVIEW: &[Group] = &[(3, 1, "FlexAttention")];

/// Operators of `ai.onnx.preview.training`.
const TRAINING: &[Group] = &[(ANY, ANY, "Adagrad Adam Momentum")];

/// Operators of `com.microsoft`.
const MICROSOFT: &[Group] = &[
    (1, 1, "Gelu QuickGelu"),
    (2, 1, "BiasGelu BiasSplitGelu FastGelu FusedMatMul"),
    (2, 3, "SimplifiedLayerNormalization"),
    (3, 1, "BiasAdd DequantizeLinear FusedGemm QuantizeLinear"),
    (4, 1, "FusedConv GatherBlockQuantized RotaryEmbedding"),
    (4, 4, "SkipSimplifiedLayerNormalization"),
    (
        5,
        1,
        "DynamicQuantizeMatMul QLinearAveragePool QLinearGlobalAveragePool QLinearLeakyRelu \
         QLinearSigmoid QLinearSoftmax",
    ),
    (5, 4, "SkipLayerNormalization"),
    (6, 1, "MatMulNBits"),
    (7, 1, "MatMulIntegerToFloat"),
    (7, 2, "Attention"),
    (8, 1, "QLinearAdd QLinearMul"),
    (9, 1, "QGemm QLinearConv QLinearWhere"),
    (9, 2, "QAttention"),
    (9, 3, "EmbedLayerNormalization"),
    (10, 4, "MultiHeadAttention"),
    (12, 3, "DynamicQuantizeLSTM"),
    (16, 4, "GroupQueryAttention"),
    (18, 2, "QEmbedLayerNormalization"),
    (ANY, 1, "QLinearConcat"),
];

/// The most inputs and outputs of an operator, in a version of its set; `None` for one that is not known.
pub(super) fn most(domain: &str, name: &str, opset: i64) -> Option<(usize, usize)> {
    type Table = HashMap<&'static str, (usize, usize)>;
    static TABLES: [OnceLock<Table>; 5] = [const { OnceLock::new() }; 5];
    let (groups, table) = match domain {
        "" | "ai.onnx" => {
            if let Some((_, versions)) = CHANGED.iter().find(|(of, _)| *of == name) {
                let last = versions.iter().rfind(|(since, ..)| *since <= opset).or(versions.first());
                return last.map(|(_, inputs, outputs)| (*inputs, *outputs));
            }
            (ONNX, &TABLES[0])
        }
        "ai.onnx.ml" => (ML, &TABLES[1]),
        "ai.onnx.preview" => (PREVIEW, &TABLES[2]),
        "ai.onnx.preview.training" => (TRAINING, &TABLES[3]),
        "com.microsoft" => (MICROSOFT, &TABLES[4]),
        _ => return None,
    };
    let of = |(inputs, outputs, names): Group| names.split(' ').map(move |name| (name, (inputs, outputs)));
    table.get_or_init(|| groups.iter().copied().flat_map(of).collect()).get(name).copied()
}
