"""What is compared, and what is to be reached on an H200.

A row is a measurement of `olivine bench gpu`, by its name. `ratio` is PyTorch's time over ours, at least; `tflops` are
TFLOP/s (TOP/s of integers), at least; `us` and `ms` are our own time, at most. All that a row names must hold.
"""

import dataclasses

from . import resnet


@dataclasses.dataclass(frozen=True)
class Target:
    name: str
    group: str
    ratio: float | None = None
    tflops: float | None = None
    us: float | None = None
    ms: float | None = None
    stretch: str = ""

    def conditions(self) -> list[tuple[str, float]]:
        pairs = [("ratio", self.ratio), ("tflops", self.tflops), ("us", self.us), ("ms", self.ms)]
        return [(kind, bound) for kind, bound in pairs if bound is not None]


COMPILE = "compile bert-base, warm cache"
# Rows that take longer than this through Vulkan must reach WGPU_RATIO of its speed through wgpu.
WGPU_FROM_MS = 0.1
WGPU_RATIO = 0.7


def targets() -> list[Target]:
    rows: list[Target] = []

    def add(group: str, name: str, **bounds) -> None:
        rows.append(Target(name, group, **bounds))

    group = "matmul, f32"
    add(group, "matmul f32 1024", ratio=1.3)
    add(group, "matmul f32 4096", ratio=4, tflops=200)
    add(group, "matmul f32 8192", ratio=4, tflops=200)
    group = "matmul, f16"
    for n in (256, 512):
        add(group, f"matmul f16 {n}", ratio=1.2)
    add(group, "matmul f16 1024", ratio=0.8)
    add(group, "matmul f16 4096", ratio=0.9)
    add(group, "matmul f16 8192", ratio=0.9)
    add("matmul, i8", "matmul i8 4096", ratio=1.5, tflops=1300)
    group = "matmul by weights, 128 tokens"
    for dtype, bounds in (("f16", (8, 9, 11)), ("f32", (10, 16, 18))):
        for (n, k), us in zip(((768, 768), (3072, 768), (768, 3072)), bounds):
            add(group, f"matmul {dtype} m128 n{n} k{k}", us=us)
    group = "matrix times vector"
    add(group, "gemv f32 4096 x16", ratio=1.25)
    add(group, "gemv f16 4096 x16", ratio=1.4)
    add(group, "gemv f32 4096 x16 apart", ratio=1.25)
    add(group, "gemv f16 4096 x16 apart", ratio=1.4)
    group = "attention"
    for dtype, sizes, bounds in (
        ("f16", "b1 h32 s4096 d128", dict(ratio=0.75)),
        ("f16", "b4 h16 s2048 d64", dict(ratio=0.75)),
        ("f16", "b1 h12 s512 d64", dict(ratio=1.5)),
        ("f32", "b1 h32 s4096 d128", dict(ratio=3)),
        ("f32", "b4 h16 s2048 d64", dict(ratio=3)),
        ("f32", "b1 h12 s512 d64", dict(ratio=1.5)),
    ):
        add(group, f"attention {dtype} {sizes}", **bounds)
        add(group, f"attention {dtype} {sizes} causal")
    group = "rows and columns"
    for what in ("softmax", "layer_norm", "sum rows", "sum columns"):
        add(group, f"{what} 4096x4096", ratio=1.5)
    add(group, "transpose 4096x4096", ratio=2.5)
    add("element by element", "gelu chain 67108864", ratio=1.0)
    group = "BERT-base, whole runs"
    add(group, "bert-base f32 b1 s128", ratio=3.6)
    add(group, "bert-base f32 b1 s512", ratio=1.8, stretch="2.2")
    add(group, "bert-base f32 b32 s128", ratio=2.5)
    add(group, "bert-base f16 b1 s128", ratio=1.5)
    add(group, "bert-base f16 b32 s128", ratio=0.95)
    group = "ResNet-50, whole runs"
    for dtype, batch, ratio in (("f32", 1, 2), ("f32", 8, None), ("f32", 32, 2), ("f16", 1, 2), ("f16", 32, 0.9)):
        add(group, resnet.name(dtype, batch, False), ratio=ratio)
    add("start", COMPILE, ms=100)
    return rows
