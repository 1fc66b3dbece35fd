"""The rows of `olivine bench gpu` in PyTorch, a line of JSON for each; their names come as a JSON list, the only argument.

Times are medians. `eager_ms` lies between two CUDA events around one call, `graph_ms` is a call's share of a CUDA graph of
several; `compiled_ms` is under torch.compile. Whole runs are timed on the host, from pinned memory to pinned memory.
Calls take turns at as many sets of inputs as Olivine's runs do.
"""

import json
import pathlib
import re
import statistics
import sys
import time

# This file is run as a program, beside the package that it belongs to.
sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)
from comparison import resnet

RUNS = 25
WARMUP_SECONDS = 0.1
SETS = 8
ROUND = 192 << 20
# Calls in a CUDA graph: fewer where they are long.
CALLS = 8
GRAPH_MS = 50
# The card is kept busy for so long before a row: its clocks fall while inputs are made.
BUSY_SECONDS = 0.3


def say(**line) -> None:
    print(json.dumps(line), flush=True)


def busy() -> None:
    """Keeps the card at work, so that its clocks are up when the row begins."""
    a = torch.rand(4096, 4096, device="cuda")
    start = time.perf_counter()
    while time.perf_counter() - start < BUSY_SECONDS:
        a @ a
        torch.cuda.synchronize()


def warm(work) -> None:
    busy()
    start, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < WARMUP_SECONDS:
        work(count)
        torch.cuda.synchronize()
        count += 1


def device_ms(work, runs: int = RUNS) -> float:
    """Median time between two events around the i-th call."""
    warm(work)
    times = []
    for i in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work(i)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def host_ms(work) -> float:
    """Median time of a call that ends with the answer in host memory."""
    warm(work)
    times = []
    for i in range(RUNS):
        start = time.perf_counter()
        work(i)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def captured(work, calls: int):
    """Replays a CUDA graph of so many calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(calls):
            work(i)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            work(i)
    return graph.replay


def uniform(*shape: int, dtype=None):
    made = torch.rand(*shape, device="cuda") * 2 - 1
    return made if dtype is None else made.to(dtype)


def integers(*shape: int):
    return torch.randint(-127, 128, shape, dtype=torch.int8, device="cuda")


def rotated(make):
    """Calls that take turns at sets of inputs; `make` gives a set's inputs and the call on them."""
    inputs, call = make()
    size = sum(t.numel() * t.element_size() for t in inputs)
    count = max(1, min(SETS, ROUND // max(size, 1) + 1))
    calls = [call] + [make()[1] for _ in range(count - 1)]
    return lambda i: calls[i % len(calls)]()


def encoder(layers: int, hidden: int, heads: int, feed_forward: int, fused: bool):
    """crates/olivine/src/models/encoder.rs: BERT-base over hidden states. `fused` makes one product of query, key and
    value, which the model as it is published does not."""
    import torch.nn.functional as F

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norm = lambda: torch.nn.LayerNorm(hidden, eps=1e-12)
            linear = torch.nn.Linear
            parts = [(hidden, 3 * hidden)] if fused else [(hidden, hidden)] * 3
            self.layers = torch.nn.ModuleList(
                torch.nn.ModuleDict(
                    dict(
                        qkv=torch.nn.ModuleList(linear(a, b) for a, b in parts), out=linear(hidden, hidden), norm1=norm(),
                        up=linear(hidden, feed_forward), down=linear(feed_forward, hidden), norm2=norm(),
                    )
                )
                for _ in range(layers)
            )

        def forward(self, x):
            batch, sequence, hidden = x.shape
            for layer in self.layers:
                parts = [part(x) for part in layer["qkv"]]
                parts = parts[0].chunk(3, -1) if fused else parts
                q, k, v = (p.view(batch, sequence, heads, hidden // heads).transpose(1, 2) for p in parts)
                attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
                x = layer["norm1"](x + layer["out"](attended))
                x = layer["norm2"](x + layer["down"](F.gelu(layer["up"](x))))
            return x

    with torch.device("cuda"):
        return Encoder()


def resnet50():
    """The layers of resnet.py."""
    import torch.nn as nn
    import torch.nn.functional as F

    def conv(channels: int, filters: int, k: int, stride: int = 1):
        return nn.Conv2d(channels, filters, k, stride, k // 2)

    class Block(nn.Module):
        def __init__(self, channels: int, inner: int, stride: int, shortcut: bool) -> None:
            super().__init__()
            self.conv1, self.conv2 = conv(channels, inner, 1), conv(inner, inner, 3, stride)
            self.conv3 = conv(inner, 4 * inner, 1)
            self.shortcut = conv(channels, 4 * inner, 1, stride) if shortcut else nn.Identity()

        def forward(self, x):
            y = self.conv3(F.relu(self.conv2(F.relu(self.conv1(x)))))
            return F.relu(y + self.shortcut(x))

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, channels, blocks = conv(3, 64, 7, 2), 64, []
            for s, (count, inner) in enumerate(resnet.STAGES):
                for i in range(count):
                    blocks.append(Block(channels, inner, 2 if i == 0 and s else 1, i == 0))
                    channels = 4 * inner
            self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(channels, resnet.CLASSES)

        def forward(self, x):
            x = self.blocks(F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1))
            return self.fc(x.mean((2, 3)))

    with torch.device("cuda"):
        return ResNet()


def images(dtype, batch: int) -> dict:
    """ResNet-50 with channels first and channels last; the faster of both counts."""
    shape = (batch, 3, 224, 224)
    forms = [torch.contiguous_format, torch.channels_last]
    times = [whole_run(resnet50().to(memory_format=form), shape, dtype, form) for form in forms]
    return {key: min(t[key] for t in times) for key in times[0]}


def whole_run(model, shape: tuple[int, ...], dtype, form=None) -> dict:
    """Input up, model, output back; pinned memory on both sides."""
    model = model.to(dtype).eval()
    x = (torch.rand(*shape) * 2 - 1).to(dtype)
    x = (x if form is None else x.contiguous(memory_format=form)).pin_memory()
    with torch.inference_mode():
        y = torch.empty_like(model(x.cuda()), device="cpu").pin_memory()

    def run(_: int) -> None:
        y.copy_(model(x.to("cuda", non_blocking=True)), non_blocking=True)

    times = dict(eager_ms=host_ms(run))
    replay = captured(run, 1)
    times["graph_ms"] = host_ms(lambda _: replay())
    return times


def chain(links: int) -> dict:
    """Tiny dependent operations, PyTorch's way of submitting many at once: as one CUDA graph."""
    x, a, b = (torch.rand(256).pin_memory() for _ in range(3))
    out = torch.empty(256).pin_memory()

    def run(_: int) -> None:
        y, scale, shift = (t.to("cuda", non_blocking=True) for t in (x, a, b))
        for i in range(links):
            y = y * scale if i % 2 == 0 else y + shift
        out.copy_(y, non_blocking=True)

    replay = captured(run, 1)
    return dict(graph_ms=host_ms(lambda _: replay()))


DTYPES = {"f32": "float32", "f16": "float16"}


def subject(name: str):
    """A call by number for what a row's name stands for; None for what PyTorch has not."""
    import torch.nn.functional as F

    number = lambda pattern: [int(n) for n in re.search(pattern, name).groups()]
    of = re.search(r" (f32|f16) ", name)
    dtype = getattr(torch, DTYPES[of.group(1)]) if of else torch.float32
    first = name.split(" ", 1)[0]
    if name.startswith("matmul i8 "):
        (n,) = number(r"i8 (\d+)")
        a, b = integers(n, n), integers(n, n)
        # The layout that the library prefers is not ours: the faster of both counts.
        forms = [b, b.t().contiguous().t()]
        times = []
        for form in forms:
            try:
                times.append((device_ms(lambda _, form=form: torch._int_mm(a, form), 5), form))
            except RuntimeError:
                pass
        best = min(times, key=lambda pair: pair[0])[1]
        return lambda _: torch._int_mm(a, best)
    if re.match(r"matmul f\d\d m", name):
        m, n, k = number(r"m(\d+) n(\d+) k(\d+)")
        w = uniform(k, n, dtype=dtype)

        def make():
            x, out = uniform(m, k, dtype=dtype), torch.empty(m, n, device="cuda", dtype=dtype)
            return [x], lambda: torch.matmul(x, w, out=out)

        return rotated(make)
    if first == "matmul":
        (n,) = number(r"f\d\d (\d+)$")

        def make():
            a, b, out = (uniform(n, n, dtype=dtype) for _ in range(3))
            return [a, b], lambda: torch.matmul(a, b, out=out)

        return rotated(make)
    if first == "gemv":
        n, count = number(r"(\d+) x(\d+)")
        weights = [uniform(n, n, dtype=dtype) / n**0.5 for _ in range(count)]

        def make():
            x = uniform(1, n, dtype=dtype)
            if name.endswith(" apart"):
                return [x], lambda: [torch.matmul(x, w) for w in weights]

            def call():
                y = x
                for w in weights:
                    y = torch.matmul(y, w)
                return y

            return [x], call

        return rotated(make)
    if first == "attention":
        b, h, s, d = number(r"b(\d+) h(\d+) s(\d+) d(\d+)")
        causal = name.endswith(" causal")

        def make():
            q, k, v = (uniform(b, h, s, d, dtype=dtype) for _ in range(3))
            return [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return rotated(make)
    if first == "add":
        (n,) = number(r"(\d+)")

        def make():
            a, b, out = uniform(n), uniform(n), torch.empty(n, device="cuda")
            return [a, b], lambda: torch.add(a, b, out=out)

        return rotated(make)
    if first in ("conv", "depthwise", "conv_transpose"):
        kernel, stride, batch, channels, filters, side = number(r"(\d+)x\d+/(\d+) b(\d+) (\d+)-(\d+) (\d+)x")
        padding, groups = (kernel - 1) // 2, channels if first == "depthwise" else 1
        transposed = first == "conv_transpose"
        shape = (channels, filters) if transposed else (filters, channels // groups)
        w = uniform(*shape, kernel, kernel, dtype=dtype)

        def make():
            x = uniform(batch, channels, side, side, dtype=dtype)
            if transposed:
                return [x], lambda: F.conv_transpose2d(x, w, stride=stride, padding=padding)
            return [x], lambda: F.conv2d(x, w, stride=stride, padding=padding, groups=groups)

        return rotated(make)
    if first in ("lstm", "gru"):
        h, s, b = number(r"h(\d+) s(\d+) b(\d+)")
        layer = (torch.nn.LSTM if first == "lstm" else torch.nn.GRU)(h, h).cuda().eval()

        def make():
            x = uniform(s, b, h)
            return [x], lambda: layer(x)[0]

        return rotated(make)
    if first in ("fft", "rfft"):
        n, batch = number(r"(\d+)x(\d+)")

        def make():
            if first == "rfft":
                x = uniform(batch, n)
                return [x], lambda: torch.fft.rfft(x)
            z = torch.view_as_complex(uniform(batch, n, 2))
            return [z], lambda: torch.fft.fft(z)

        return rotated(make)
    ordered = re.fullmatch(r"(sort|argsort|top_k (\d+) of) (\d+)x(\d+)", name)
    if ordered:
        k, rows, n = ordered.group(2), int(ordered.group(3)), int(ordered.group(4))

        def make():
            x = uniform(rows, n)
            if k:
                return [x], lambda: torch.topk(x, int(k), dim=1)
            # Either gives values and positions: PyTorch sorts no other way.
            return [x], lambda: torch.sort(x, dim=1, stable=True)

        return rotated(make)
    if re.fullmatch(r"cumsum \d+", name):
        (n,) = number(r"(\d+)")

        def make():
            x = uniform(n)
            return [x], lambda: torch.cumsum(x, 0)

        return rotated(make)
    square = re.fullmatch(r"(layer_norm|softmax|transpose|sum rows|sum columns|cumsum rows|cumsum columns) (\d+)x\d+", name)
    if not square:
        return None
    what, n = square.group(1), int(square.group(2))
    gamma, beta = uniform(n), uniform(n)

    def make():
        x = uniform(n, n)
        return [x], {
            "layer_norm": lambda: F.layer_norm(x, [n], gamma, beta, 1e-5),
            "softmax": lambda: torch.softmax(x, -1),
            "transpose": lambda: x.t().contiguous(),
            "sum rows": lambda: x.sum(1),
            "sum columns": lambda: x.sum(0),
            "cumsum rows": lambda: torch.cumsum(x, 1),
            "cumsum columns": lambda: torch.cumsum(x, 0),
        }[what]

    return rotated(make)


def gelu_chain(n: int) -> dict:
    import torch.nn.functional as F

    formula = lambda x, y: F.gelu(x * y + 0.5) * x - y

    def calls(function):
        def make():
            a, b = uniform(n), uniform(n)
            return [a, b], lambda: function(a, b)

        return rotated(make)

    times = dict(eager_ms=device_ms(calls(formula)))
    try:
        times["compiled_ms"] = device_ms(calls(torch.compile(formula)))
    except Exception as error:  # torch.compile fails in many ways, of its own and of its compilers'
        times["compile_failed"] = f"{type(error).__name__}: {str(error)[:200]}"
    return times


def measure(name: str) -> dict | None:
    """Times of a row, or None for what PyTorch has not."""
    if name.startswith("gelu chain "):
        return gelu_chain(int(name.split()[-1]))
    if name.startswith("chain of "):
        return chain(int(name.split()[-1]))
    whole = re.fullmatch(r"(bert-base|encoder) (f32|f16) b(\d+) s(\d+)", name)
    if whole:
        what, of, batch, sequence = whole.groups()
        layers, hidden, heads, wide = (12, 768, 12, 3072) if what == "bert-base" else (1, 64, 2, 128)
        shape, dtype = (int(batch), int(sequence), hidden), getattr(torch, DTYPES[of])
        times = whole_run(encoder(layers, hidden, heads, wide, False), shape, dtype)
        times["fused_ms"] = whole_run(encoder(layers, hidden, heads, wide, True), shape, dtype)["graph_ms"]
        return times
    whole = re.fullmatch(r"resnet50 (f32|f16) b(\d+)", name)
    if whole:
        return images(getattr(torch, DTYPES[whole.group(1)]), int(whole.group(2)))
    work = subject(name)
    if work is None:
        return None
    times = dict(eager_ms=device_ms(work))
    try:
        calls = max(1, min(CALLS, round(GRAPH_MS / times["eager_ms"])))
        replay = captured(work, calls)
        times["graph_ms"] = device_ms(lambda _: replay(), 10) / calls
    except Exception as error:  # not all calls may be captured
        times["graph_failed"] = f"{type(error).__name__}: {str(error)[:200]}"
        torch.cuda.synchronize()
    return times


def accuracy(n: int) -> dict:
    """Relative L2 error of f32 matmuls on 64 rows, by distribution."""
    normal = lambda: torch.randn(n, n, device="cuda")
    distributions = {
        "normal": normal,
        "uniform(0,1)": lambda: torch.rand(n, n, device="cuda"),
        "±exp(3·normal)": lambda: torch.exp(3 * normal()) * torch.sign(normal()),
        "1e-4·normal": lambda: 1e-4 * normal(),
        "1e4·normal": lambda: 1e4 * normal(),
    }
    errors = {}
    for name, draw in distributions.items():
        a, b = draw(), draw()
        rows = torch.arange(64, device="cuda") * (n // 64)
        exact = a[rows].double() @ b.double()
        errors[name] = (((a @ b)[rows].double() - exact).norm() / exact.norm()).item()
    return errors


def main() -> None:
    # As Olivine computes f32: without TF32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # cuDNN tries its algorithms during the warm-up and keeps the fastest.
    torch.backends.cudnn.benchmark = True
    say(torch=torch.__version__, cuda=torch.version.cuda, device=torch.cuda.get_device_name())
    with torch.inference_mode():
        for name in json.loads(sys.argv[1]):
            say(begin=name)
            try:
                found = re.fullmatch(r"accuracy (\d+)", name)
                times = accuracy(int(found.group(1))) if found else measure(name)
                if times is None:
                    say(failed=dict(error="PyTorch has no such operation"))
                else:
                    say(measurement=dict(name=name, **times))
            except Exception as error:  # one row that fails must not lose the others
                say(failed=dict(error=f"{type(error).__name__}: {str(error)[:300]}"))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")
    main()
