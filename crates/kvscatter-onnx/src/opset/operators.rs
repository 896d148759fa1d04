//! The operators of the default domain, with the versions that introduced them.

/// Returns `true` if the default domain's operator set of this version (11 to 24) has an operator.
///
/// `Scatter` and `Upsample` are deprecated in all of these versions, so the result is `false`. ONNX Runtime
/// has `SimplifiedLayerNormalization` in the default domain, in all versions alike.
pub(super) fn exists(op_type: &str, version: i64) -> bool {
    op_type == "SimplifiedLayerNormalization"
        || SINCE.iter().any(|(since, operators)| {
            *since <= version && operators.split_ascii_whitespace().any(|name| name == op_type)
        })
}

/// The operators by the version that introduced them. 11 includes all earlier versions.
const SINCE: [(i64, &str); 11] = [
    (
        11,
        "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BitShift Cast \
         Ceil Clip Compress Concat ConcatFromSequence Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos \
         Cosh CumSum DepthToSpace DequantizeLinear Det Div Dropout DynamicQuantizeLinear Elu Equal Erf Exp Expand \
         EyeLike Flatten Floor GRU Gather GatherElements GatherND Gemm GlobalAveragePool GlobalLpPool \
         GlobalMaxPool Greater HardSigmoid Hardmax Identity If InstanceNormalization IsInf IsNaN LRN LSTM \
         LeakyRelu Less Log LogSoftmax Loop LpNormalization LpPool MatMul MatMulInteger Max MaxPool MaxRoiPool \
         MaxUnpool Mean MeanVarianceNormalization Min Mod Mul Multinomial Neg NonMaxSuppression NonZero Not OneHot \
         Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RNN RandomNormal RandomNormalLike \
         RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp \
         ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize \
         ReverseSequence RoiAlign Round Scan ScatterElements ScatterND Selu SequenceAt SequenceConstruct \
         SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Shrink Sigmoid Sign Sin Sinh Size Slice \
         Softmax Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze StringNormalizer Sub Sum Tan \
         Tanh TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Unique Unsqueeze Where Xor",
    ),
    (12, "Celu Einsum GreaterOrEqual LessOrEqual NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
    (14, "HardSwish Trilu"),
    (15, "Bernoulli CastLike Optional OptionalGetElement OptionalHasElement"),
    (16, "GridSample"),
    (17, "BlackmanWindow DFT HammingWindow HannWindow LayerNormalization MelWeightMatrix STFT SequenceMap"),
    (18, "BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im GroupNormalization Mish"),
    (19, "DeformConv"),
    (20, "AffineGrid Gelu ImageDecoder RegexFullMatch StringConcat StringSplit"),
    (23, "Attention RMSNormalization RotaryEmbedding"),
    (24, "Swish TensorScatter"),
];
