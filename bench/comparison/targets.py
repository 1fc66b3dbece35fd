"""What is compared, and what is to be reached on an H200.

A row is a measurement of `olivine bench gpu`, by its name. `ratio` is PyTorch's time over ours, at least; `tflops` are
TFLOP/s (TOP/s of integers), at least; `us` and `ms` are our own time, at most. All that a row names must hold.
"""

import dataclasses


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
    add(group, "matmul f32 4096", ratio=1.6, tflops=80, stretch="2.0")
    add(group, "matmul f32 8192", ratio=1.6, tflops=80, stretch="2.0")
    group = "matmul, f16"
    for n in (256, 512, 1024):
        add(group, f"matmul f16 {n}", ratio=1.2)
    add(group, "matmul f16 4096", ratio=0.43)
    add(group, "matmul f16 8192", ratio=0.44, tflops=330, stretch="400 TFLOP/s")
    add("matmul, i8", "matmul i8 4096", tflops=550, stretch="700 TOP/s")
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
        ("f16", "b1 h32 s4096 d128", dict(ratio=0.40, stretch="0.5")),
        ("f16", "b4 h16 s2048 d64", dict(ratio=0.45, stretch="0.5")),
        ("f16", "b1 h12 s512 d64", dict(ratio=1.5)),
        ("f32", "b1 h32 s4096 d128", dict(ratio=1.5)),
        ("f32", "b4 h16 s2048 d64", dict(ratio=1.5)),
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
    add(group, "bert-base f32 b1 s128", ratio=2.5, stretch="3.3")
    add(group, "bert-base f32 b1 s512", ratio=1.8, stretch="2.2")
    add(group, "bert-base f32 b32 s128", ratio=1.4, stretch="1.6")
    add(group, "bert-base f16 b1 s128", ratio=1.5)
    add(group, "bert-base f16 b32 s128", ratio=0.6)
    add("start", COMPILE, ms=100)
    return rows
