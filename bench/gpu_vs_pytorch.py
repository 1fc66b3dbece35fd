#!/usr/bin/env python3
"""What `olivine bench gpu` measures, and the same in PyTorch on the same GPU, one after the other.

Both warm up, take the median of as many runs and time on the device: Olivine by timestamps, PyTorch by events.
Measurements whose clock is `wall` are timed on the host in both, from the call to the answer in host memory.

    python3 bench/gpu_vs_pytorch.py target/release/olivine
    python3 bench/gpu_vs_pytorch.py ./olivine --prefix "./run-with-driver" --device vulkan --json
"""

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

RUNS = 25
WARMUP_SECONDS = 0.1


def warm(work) -> None:
    start, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < WARMUP_SECONDS:
        work()
        torch.cuda.synchronize()
        count += 1


def device_ms(work) -> float:
    """Median time between two events around the work."""
    warm(work)
    times = []
    for _ in range(RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def wall_ms(work) -> float:
    """Median time from the call to the answer on the host."""
    warm(work)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work().cpu()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, device="cuda") * 2 - 1


class Encoder(torch.nn.Module):
    """crates/olivine/src/models/encoder.rs: BERT-base over hidden states."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        linear = lambda a, b: torch.nn.Linear(a, b)
        norm = lambda: torch.nn.LayerNorm(hidden, eps=1e-12)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                dict(
                    qkv=linear(hidden, 3 * hidden), out=linear(hidden, hidden), norm1=norm(),
                    up=linear(hidden, 4 * hidden), down=linear(4 * hidden, hidden), norm2=norm(),
                )
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        for layer in self.layers:
            split = layer["qkv"](x).view(batch, sequence, 3, self.heads, hidden // self.heads)
            q, k, v = split.permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = layer["norm1"](x + layer["out"](attended))
            x = layer["norm2"](x + layer["down"](F.gelu(layer["up"](x))))
        return x


def chain(links: int):
    """Tiny dependent operations as one CUDA graph, PyTorch's way of submitting many at once."""
    x, a, b = uniform(256), uniform(256), uniform(256)

    def eager() -> torch.Tensor:
        y = x
        for i in range(links):
            y = y * a if i % 2 == 0 else y + b
        return y

    eager()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = eager()

    def replay() -> torch.Tensor:
        graph.replay()
        return y

    return replay


def subject(name: str):
    """The work that a measurement of this name stands for; None for one that PyTorch has not."""
    number = lambda pattern: [int(n) for n in re.search(pattern, name).groups()]
    if name.startswith("matmul f16 "):
        (n,) = number(r"f16 (\d+)")
        a, b = uniform(n, n).half(), uniform(n, n).half()
        out = torch.empty_like(a)
        return lambda: torch.matmul(a, b, out=out)
    if name.startswith("matmul "):
        (n,) = number(r"(\d+)")
        a, b = uniform(n, n), uniform(n, n)
        out = torch.empty_like(a)
        return lambda: torch.matmul(a, b, out=out)
    if name.startswith("add "):
        (n,) = number(r"(\d+)")
        a, b = uniform(n), uniform(n)
        out = torch.empty_like(a)
        return lambda: torch.add(a, b, out=out)
    if name.startswith("attention "):
        h, s, d = number(r"h(\d+) s(\d+) d(\d+)")
        q, k, v = (uniform(1, h, s, d) for _ in range(3))
        return lambda: F.scaled_dot_product_attention(q, k, v)
    convolution = re.match(r"(conv|depthwise|conv_transpose) ", name)
    if convolution:
        kernel, stride, batch, channels, filters, side = number(r"(\d+)x\d+/(\d+) b(\d+) (\d+)-(\d+) (\d+)x")
        x, padding = uniform(batch, channels, side, side), (kernel - 1) // 2
        if convolution.group(1) == "conv_transpose":
            w = uniform(channels, filters, kernel, kernel)
            return lambda: F.conv_transpose2d(x, w, stride=stride, padding=padding)
        groups = channels if convolution.group(1) == "depthwise" else 1
        w = uniform(filters, channels // groups, kernel, kernel)
        return lambda: F.conv2d(x, w, stride=stride, padding=padding, groups=groups)
    if name.startswith(("lstm ", "gru ")):
        h, s, b = number(r"h(\d+) s(\d+) b(\d+)")
        layer = (torch.nn.LSTM if name.startswith("lstm ") else torch.nn.GRU)(h, h).cuda().eval()
        x = uniform(s, b, h)
        return lambda: layer(x)[0]
    if name.startswith("chain of "):
        return chain(*number(r"(\d+)"))
    if name.startswith("bert-base "):
        batch, sequence = number(r"b(\d+) s(\d+)")
        model, x = Encoder(12, 768, 12).cuda().eval(), uniform(batch, sequence, 768)
        return lambda: model(x)
    if name.startswith("encoder, "):
        model, x = Encoder(1, 256, 4).cuda().eval(), uniform(1, 64, 256)
        return lambda: model(x)
    if name.startswith(("fft ", "rfft ")):
        n, batch = number(r"(\d+)x(\d+)")
        if name.startswith("rfft "):
            x = uniform(batch, n)
            return lambda: torch.fft.rfft(x)
        x = torch.view_as_complex(uniform(batch, n, 2))
        return lambda: torch.fft.fft(x)
    ordered = re.fullmatch(r"(sort|argsort|top_k (\d+) of) (\d+)x(\d+)", name)
    if ordered:
        what, k, rows, n = ordered.groups()
        x = uniform(int(rows), int(n))
        if k:
            return lambda: torch.topk(x, int(k), dim=1)
        # Either gives values and positions: PyTorch sorts no other way.
        return lambda: torch.sort(x, dim=1, stable=True)
    if re.fullmatch(r"cumsum \d+", name):
        (n,) = number(r"(\d+)")
        x = uniform(n)
        return lambda: torch.cumsum(x, 0)
    square = re.fullmatch(r"(.+) (\d+)x(\d+)", name)
    if not square:
        return None
    what, n = square.group(1), int(square.group(2))
    x = uniform(n, n)
    if what == "layer_norm":
        gamma, beta = uniform(n), uniform(n)
        return lambda: F.layer_norm(x, [n], gamma, beta, 1e-5)
    return {
        "softmax": lambda: torch.softmax(x, -1),
        "transpose": lambda: x.t().contiguous(),
        "sum rows": lambda: x.sum(1),
        "sum columns": lambda: x.sum(0),
        "cumsum rows": lambda: torch.cumsum(x, 1),
        "cumsum columns": lambda: torch.cumsum(x, 0),
    }.get(what)


def olivine(args: argparse.Namespace) -> dict:
    command = shlex.split(args.prefix) + [args.binary, "bench", "gpu", "--json", "--quiet"]
    command += [f"--device={args.device}", f"--filter={args.filter}"] + (["--quick"] if args.quick else [])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    try:
        result = json.loads(done.stdout)
    except json.JSONDecodeError:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode} and no JSON: {done.stdout[:200]!r}")
    if "measurements" not in result:
        sys.exit(f"olivine: {result}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the olivine program")
    parser.add_argument("--prefix", default="", help="command to run it with, such as a wrapper that sets up a driver")
    parser.add_argument("--device", default="vulkan", help="Olivine's device")
    parser.add_argument("--filter", default="", help="only measurements whose name contains this")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")
    # As Olivine computes f32: without TF32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # cuDNN tries its algorithms during the warm-up and keeps the fastest.
    torch.backends.cudnn.benchmark = True

    ours = olivine(args)
    rows = []
    with torch.inference_mode():
        for row in ours["measurements"]:
            work = subject(row["name"])
            timed = wall_ms if row["clock"] == "wall" else device_ms
            theirs = timed(work) if work else None
            ratio = theirs / row["median_ms"] if theirs else None
            rate = row["tflops"] or row["gb_per_s"]
            rows.append(
                dict(
                    name=row["name"], clock=row["clock"], olivine_ms=row["median_ms"], pytorch_ms=theirs,
                    unit="TFLOP/s" if row["tflops"] else "GB/s" if row["gb_per_s"] else None, olivine_rate=rate,
                    pytorch_rate=rate / ratio if rate and ratio else None, ratio=ratio,
                )
            )
            torch.cuda.empty_cache()
    result = dict(
        olivine=ours["name"], pytorch=f"{torch.__version__} on {torch.cuda.get_device_name()}", rows=rows,
        failed=ours.get("failed", []),
    )
    if args.json:
        print(json.dumps(result))
        return
    print(f"Olivine: {result['olivine']}\nPyTorch: {result['pytorch']}\n")
    cell = lambda x: "" if x is None else f"{x:.4g}"
    print(f"{'measurement':28}{'clock':8}{'Olivine ms':>12}{'PyTorch ms':>12}{'':>9}{'Olivine':>9}{'PyTorch':>9}{'speed':>8}")
    for r in rows:
        print(
            f"{r['name']:28}{r['clock']:8}{cell(r['olivine_ms']):>12}{cell(r['pytorch_ms']):>12}"
            f"{r['unit'] or '':>9}{cell(r['olivine_rate']):>9}{cell(r['pytorch_rate']):>9}{cell(r['ratio']):>7}x"
        )
    for failure in result["failed"]:
        print(f"failed: {failure['error']}: {'; '.join(failure['causes'])}")


if __name__ == "__main__":
    main()
