#!/usr/bin/env python3
"""The same encoder, weights and inputs in Olivine and in ONNX Runtime, run in turn on this machine's CPU.

The weights follow crates/olivine/src/models/seeded.rs and the graph crates/olivine/src/models/encoder.rs, so both
runtimes compute the same numbers; the script fails if their outputs differ.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
SEED = 0
# Outputs further apart than this, as the L2 norm of the difference over that of the output, are an error.
TOLERANCE = 1e-4
MODELS = {
    "bert-base": dict(layers=12, hidden=768, heads=12, feed_forward=3072, batch=1, sequence=128),
    "encoder": dict(layers=4, hidden=256, heads=4, feed_forward=1024, batch=1, sequence=64),
}


def uniform(name: str, seed: int, count: int) -> np.ndarray:
    """Uniform f32 in [-1, 1) with 24 bits: SplitMix64's finaliser over FNV-1a of name and seed, plus the position."""
    mask = (1 << 64) - 1
    base = 0xCBF29CE484222325
    for byte in name.encode() + seed.to_bytes(8, "little"):
        base = ((base ^ byte) * 0x100000001B3) & mask
    # Arrays wrap around at 64 bits, as the Rust code does.
    z = (np.arange(count, dtype=np.uint64) + np.uint64(base)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)


def seeded_param(name: str, shape: list[int]) -> np.ndarray:
    scale = np.float32(1) / np.sqrt(np.float32(max(shape[0], 1))) if len(shape) >= 2 else np.float32(0.02)
    centre = np.float32(1 if name.endswith(".gamma") else 0)
    return (centre + scale * uniform(name, SEED, int(np.prod(shape)))).reshape(shape)


def seeded_input(sizes: dict, seed: int) -> np.ndarray:
    shape = [sizes["batch"], sizes["sequence"], sizes["hidden"]]
    return uniform("x", seed, int(np.prod(shape))).reshape(shape)


class Builder:
    """Collects nodes and initialisers of an ONNX graph."""

    def __init__(self) -> None:
        self.nodes, self.initialisers = [], []

    def op(self, kind: str, *inputs: str, **attributes) -> str:
        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def tensor(self, name: str, value: np.ndarray) -> str:
        self.initialisers.append(numpy_helper.from_array(value, name))
        return name

    def param(self, name: str, shape: list[int]) -> str:
        return self.tensor(name, seeded_param(name, shape))

    def constant(self, value: np.ndarray) -> str:
        return self.tensor(f"constant_{len(self.initialisers)}", value)

    def linear(self, x: str, rows: int, columns: int, name: str) -> str:
        product = self.op("MatMul", x, self.param(f"{name}.weight", [rows, columns]))
        return self.op("Add", product, self.param(f"{name}.bias", [columns]))

    def norm(self, x: str, hidden: int, name: str) -> str:
        gamma, beta = self.param(f"{name}.gamma", [hidden]), self.param(f"{name}.beta", [hidden])
        return self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-12)


def layer(b: Builder, x: str, sizes: dict, name: str) -> str:
    hidden, heads, wide = sizes["hidden"], sizes["heads"], sizes["feed_forward"]
    dim = hidden // heads

    def head(part: str, perm: list[int]) -> str:
        p = b.linear(x, hidden, hidden, f"{name}.{part}")
        split = b.op("Reshape", p, b.constant(np.array([0, 0, heads, dim], dtype=np.int64)))
        return b.op("Transpose", split, perm=perm)

    q, k, v = head("query", [0, 2, 1, 3]), head("key", [0, 2, 3, 1]), head("value", [0, 2, 1, 3])
    scores = b.op("Div", b.op("MatMul", q, k), b.constant(np.array(np.sqrt(dim), dtype=np.float32)))
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    context = b.op("Transpose", context, perm=[0, 2, 1, 3])
    context = b.op("Reshape", context, b.constant(np.array([0, 0, hidden], dtype=np.int64)))
    attended = b.linear(context, hidden, hidden, f"{name}.out")
    h = b.norm(b.op("Add", attended, x), hidden, f"{name}.norm1")
    up = b.linear(h, hidden, wide, f"{name}.up")
    erf = b.op("Erf", b.op("Div", up, b.constant(np.array(np.sqrt(2.0), dtype=np.float32))))
    shifted = b.op("Add", erf, b.constant(np.array(1.0, dtype=np.float32)))
    gelu = b.op("Mul", b.op("Mul", up, shifted), b.constant(np.array(0.5, dtype=np.float32)))
    down = b.linear(gelu, wide, hidden, f"{name}.down")
    return b.norm(b.op("Add", down, h), hidden, f"{name}.norm2")


def onnx_model(sizes: dict) -> bytes:
    b = Builder()
    x = "x"
    for i in range(sizes["layers"]):
        x = layer(b, x, sizes, f"layer{i}")
    b.nodes.append(helper.make_node("Identity", [x], ["y"]))
    shape = ["batch", "sequence", sizes["hidden"]]
    graph = helper.make_graph(
        b.nodes,
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        b.initialisers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


class OnnxRuntime:
    def __init__(self, model: bytes, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        start = time.perf_counter()
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.load_ms = (time.perf_counter() - start) * 1e3

    def run(self, x: np.ndarray) -> np.ndarray:
        return self.session.run(["y"], {"x": x})[0]

    def median_ms(self, sizes: dict, runs: int, warmup: int) -> float:
        times = []
        for i in range(warmup + runs):
            x = seeded_input(sizes, SEED + 1 + i)
            start = time.perf_counter()
            self.run(x)
            if i >= warmup:
                times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)


class Olivine:
    def __init__(self, program: Path, name: str, sizes: dict, threads: int) -> None:
        flags = [f"--{key}={sizes[key]}" for key in ("layers", "batch", "sequence")]
        self.command = [str(program), "bench", "model", name, *flags, "--device=cpu", f"--threads={threads}", "--json"]

    def bench(self, *flags: str) -> dict:
        done = subprocess.run([*self.command, *flags], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(self.command)} failed:\n{done.stderr}")
        return json.loads(done.stdout)

    def output(self, shape: tuple) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "output.f32"
            self.bench("--runs=1", "--warmup=0", f"--dump-output={file}")
            return np.fromfile(file, dtype="<f4").reshape(shape)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="bert-base")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="how often the two runtimes take turns")
    parser.add_argument("--runs", type=int, default=7, help="timed runs of each per round")
    parser.add_argument("--warmup", type=int, default=2, help="untimed runs of each per round")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--sequence", type=int)
    parser.add_argument("--olivine", type=Path, help="the program; built with cargo when not given")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    sizes = dict(MODELS[args.model])
    for key in ("layers", "batch", "sequence"):
        if getattr(args, key) is not None:
            sizes[key] = getattr(args, key)
    program = args.olivine
    if program is None:
        subprocess.run(["cargo", "build", "--release", "-q", "-p", "olivine-cli"], cwd=ROOT, check=True)
        program = ROOT / "target/release/olivine"
    olivine = Olivine(program, args.model, sizes, args.threads)
    runtime = OnnxRuntime(onnx_model(sizes), args.threads)

    want = runtime.run(seeded_input(sizes, SEED))
    got = olivine.output(want.shape)
    error = float(np.linalg.norm((got - want).astype(np.float64)) / np.linalg.norm(want.astype(np.float64)))

    ours, theirs = [], []
    for i in range(args.rounds):
        ours.append(olivine.bench(f"--runs={args.runs}", f"--warmup={args.warmup}")["median_ms"])
        theirs.append(runtime.median_ms(sizes, args.runs, args.warmup))
        print(f"round {i + 1}: olivine {ours[-1]:.1f} ms, onnxruntime {theirs[-1]:.1f} ms", file=sys.stderr)

    print(f"{args.model}: {', '.join(f'{k} {v}' for k, v in sizes.items())}; {args.threads} threads")
    print(f"{'runtime':<22}{'median ms':>12}{'least ms':>12}")
    for name, times in (("olivine", ours), (f"onnxruntime {ort.__version__}", theirs)):
        print(f"{name:<22}{statistics.median(times):>12.2f}{min(times):>12.2f}")
    print(f"olivine takes {statistics.median(ours) / statistics.median(theirs):.3f} of onnxruntime's time")
    print(f"outputs differ by {error:.1e} (relative L2)")
    if not error <= TOLERANCE:
        print(f"error: the outputs disagree: {error:.1e} is above {TOLERANCE:.0e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
