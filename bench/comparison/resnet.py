"""ResNet-50 v1.5 for inference, batch norms folded into the convolutions, as an ONNX file; `pytorch.py` has the same layers."""

import pathlib

from .onnx_file import FLOAT, FLOAT16, File

# Blocks of a stage, and channels inside of them.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
SMALL = ((1, 8), (1, 16))
CLASSES = 1000
# The last convolution of a block is scaled down, so that the sum of many blocks stays in the range of f16.
LAST = 0.3

# Rows of the comparison: dtype and batch.
ROWS = (("f32", 1), ("f32", 8), ("f32", 32), ("f16", 1), ("f16", 32))


def name(dtype: str, batch: int, quick: bool) -> str:
    return f"{'resnet' if quick else 'resnet50'} {dtype} b{batch}"


def write(path: pathlib.Path, dtype: str, quick: bool) -> None:
    """Writes the model; `quick` is a small one of the same kinds of layers."""
    stages, classes, side = (SMALL, 10, 32) if quick else (STAGES, CLASSES, 224)
    file = File(FLOAT16 if dtype == "f16" else FLOAT)

    def conv(x: str, name: str, sizes: tuple[int, int, int], stride: int = 1, scale: float = 1.0, relu: bool = True) -> str:
        channels, filters, k = sizes
        bound = scale * (6 / (channels * k * k)) ** 0.5
        w = file.weight(f"{name}.weight", (filters, channels, k, k), bound)
        b = file.weight(f"{name}.bias", (filters,), 0.1)
        pads, strides = [k // 2] * 4, [stride] * 2
        y = file.node("Conv", x, w, b, kernel_shape=[k, k], strides=strides, pads=pads)
        return file.node("Relu", y) if relu else y

    width = stages[0][1]
    x = conv("image", "stem", (3, width, 7), stride=2)
    x = file.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = width
    for s, (blocks, inner) in enumerate(stages):
        for i in range(blocks):
            block, stride = f"stage{s + 1}.{i}", 2 if i == 0 and s else 1
            y = conv(x, f"{block}.conv1", (channels, inner, 1))
            y = conv(y, f"{block}.conv2", (inner, inner, 3), stride=stride)
            y = conv(y, f"{block}.conv3", (inner, 4 * inner, 1), scale=LAST, relu=False)
            if i == 0:
                x = conv(x, f"{block}.shortcut", (channels, 4 * inner, 1), stride=stride, relu=False)
            x = file.node("Relu", file.node("Add", y, x))
            channels = 4 * inner
    x = file.node("Flatten", file.node("GlobalAveragePool", x), axis=1)
    w = file.weight("fc.weight", (classes, channels), (3 / channels) ** 0.5)
    b = file.weight("fc.bias", (classes,), 0.1)
    file.node("Gemm", x, w, b, output="logits", transB=1)
    file.write(path, "resnet", {"image": ["batch", 3, side, side]}, {"logits": ["batch", classes]})
