#!/usr/bin/env python3
"""dequant_matmul on the CPU beside llama.cpp's own kernels: the same bytes, shapes and threads, taking turns.

usage: quant_cpu.py [--threads 2] [--rounds 12] [--runs 40] [--repeat 1] [--rows 1] [--shapes 4096x14336,4096x4096] [--formats q4_0,q8_0,q4_k]
                    [--peer FOLDER] [--binary target/release/examples/quant_rows] [--json FILE]

llama.cpp's library is that of the npm package @node-llama-cpp/linux-x64, which has its kernels for every generation of
processors; it is fetched into target/llama once, or FOLDER has it. The wheels on PyPI have AVX2 only. llama.cpp is timed
with weights as they are in a file and, where it does so, as it packs them when it loads a model; the faster one counts.

Both sides run in turns of 40 runs each. In turns of 8, our medians at 4096x4096 were
those of one thread in about a third of the measurements; why was not looked into. Weights of 256 MB or more are used in turn, so that they come from memory.
A ratio is llama.cpp's time over ours: 1 or more is no slower. Both the medians and the shortest times are compared;
on a machine that does something else at the same time only the shortest mean anything. --repeat measures everything so many times. --json keeps all of it;
docs/benchmarks/quant_cpu.json is the one that bench/compare puts on the page. Needs numpy.
"""
import argparse, ctypes as C, datetime, glob, json, os, subprocess, sys, tempfile, time

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("numpy is missing; run: pip install -r bench/requirements.txt")

from llama_library import ROOT, VERSION, library

# GGUF's number, elements and bytes of a block, where its f16 numbers are.
FORMATS = {
    "q4_0": (2, 32, 18, [0]), "q4_1": (3, 32, 20, [0, 2]), "q5_0": (6, 32, 22, [0]), "q5_1": (7, 32, 24, [0, 2]),
    "q8_0": (8, 32, 34, [0]), "q4_k": (12, 256, 144, [0, 2]), "q5_k": (13, 256, 176, [0, 2]), "q6_k": (14, 256, 210, [208]),
    "iq4_nl": (20, 32, 18, [0]), "iq4_xs": (23, 256, 136, [0]), "mxfp4": (39, 32, 17, []),
}  # fmt: skip


class Init(C.Structure):
    _fields_ = [("size", C.c_size_t), ("memory", C.c_void_p), ("no_alloc", C.c_bool)]


class Llama:
    """ggml's CPU backend, the best of its libraries for this processor."""

    def __init__(self, folder, threads):
        P, S, I = C.c_void_p, C.c_size_t, C.c_int
        load = lambda name: C.CDLL(glob.glob(os.path.join(folder, name))[0], mode=C.RTLD_GLOBAL)
        self.base, backends = load("libggml-base.so"), load("libggml.v*.so")
        for lib, name, result, *args in [
            (backends, "ggml_backend_load_all_from_path", None, C.c_char_p),
            (backends, "ggml_backend_dev_by_type", P, I),
            (self.base, "ggml_backend_dev_init", P, P, C.c_char_p),
            (self.base, "ggml_backend_dev_backend_reg", P, P),
            (self.base, "ggml_backend_dev_buffer_type", P, P),
            (self.base, "ggml_backend_reg_get_proc_address", P, P, C.c_char_p),
            (self.base, "ggml_backend_buft_name", C.c_char_p, P),
            (self.base, "ggml_init", P, Init),
            (self.base, "ggml_free", None, P),
            (self.base, "ggml_new_tensor_2d", P, P, I, C.c_int64, C.c_int64),
            (self.base, "ggml_mul_mat", P, P, P, P),
            (self.base, "ggml_new_graph", P, P),
            (self.base, "ggml_build_forward_expand", None, P, P),
            (self.base, "ggml_backend_alloc_ctx_tensors_from_buft", P, P, P),
            (self.base, "ggml_backend_buffer_free", None, P),
            (self.base, "ggml_backend_tensor_set", None, P, P, S, S),
            (self.base, "ggml_backend_tensor_get", None, P, P, S, S),
            (self.base, "ggml_backend_graph_compute", I, P, P),
        ]:
            function = getattr(lib, name)
            function.restype, function.argtypes = result, args
            setattr(self, name.removeprefix("ggml_"), function)
        quiet = C.CFUNCTYPE(None, I, C.c_char_p, P)(lambda *_: None)
        self.quiet = quiet
        self.base.ggml_log_set(quiet, None)
        self.backend_load_all_from_path(folder.encode())
        self.device = self.backend_dev_by_type(0)
        self.backend = self.backend_dev_init(self.device, None)
        registry = self.backend_dev_backend_reg(self.device)
        address = lambda name: self.backend_reg_get_proc_address(registry, name)
        C.CFUNCTYPE(None, P, I)(address(b"ggml_backend_set_n_threads"))(self.backend, threads)
        features = C.CFUNCTYPE(C.POINTER(C.c_char_p * 2), P)(address(b"ggml_backend_get_features"))(registry)
        self.features = []
        while features[len(self.features)][0]:
            self.features.append(features[len(self.features)][0].decode())
        extra = C.CFUNCTYPE(C.POINTER(P), P)(address(b"ggml_backend_dev_get_extra_bufts"))(self.device)
        self.layouts = [self.backend_dev_buffer_type(self.device)]
        while extra and extra[len(self.layouts) - 1]:
            self.layouts.append(extra[len(self.layouts) - 1])


class Peer:
    """Matmuls by llama.cpp with some copies of a weight."""

    def __init__(self, llama, layout, kind, sizes, count, weight, x):
        (m, n, k), self.llama, self.next = sizes, llama, 0
        self.contexts = [llama.init(Init(64 << 20, None, True)) for _ in range(2)]
        weights = [llama.new_tensor_2d(self.contexts[0], kind, k, n) for _ in range(count)]
        left = llama.new_tensor_2d(self.contexts[1], 0, k, m)
        self.graphs, self.shape = [], (m, n)
        for w in weights:
            self.result = llama.mul_mat(self.contexts[1], w, left)
            self.graphs.append(llama.new_graph(self.contexts[1]))
            llama.build_forward_expand(self.graphs[-1], self.result)
        where = (layout, llama.layouts[0])
        self.buffers = [llama.backend_alloc_ctx_tensors_from_buft(c, b) for c, b in zip(self.contexts, where)]
        for w in weights:
            llama.backend_tensor_set(w, weight.ctypes.data, 0, weight.nbytes)
        llama.backend_tensor_set(left, x.ctypes.data, 0, x.nbytes)

    def run(self, runs):
        times = []
        for _ in range(runs):
            graph = self.graphs[self.next % len(self.graphs)]
            self.next += 1
            start = time.perf_counter_ns()
            self.llama.backend_graph_compute(self.llama.backend, graph)
            times.append(time.perf_counter_ns() - start)
        return times

    def value(self):
        self.run(len(self.graphs))
        y = np.empty(self.shape, np.float32)
        self.llama.backend_tensor_get(self.result, y.ctypes.data, 0, y.nbytes)
        return y

    def free(self):
        for buffer in self.buffers:
            self.llama.backend_buffer_free(buffer)
        for context in self.contexts:
            self.llama.free(context)


class Olivine:
    """The example `quant_rows`."""

    def __init__(self, binary, folder, kind, sizes, count, threads):
        self.out, self.shape = os.path.join(folder, "y"), sizes[:2]
        files = [os.path.join(folder, name) for name in ("w", "x", "y")]
        command = [binary, kind, *map(str, sizes), str(count), str(threads), *files]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, runs):
        self.process.stdin.write(f"{runs}\n")
        self.process.stdin.flush()
        return [int(t) for t in self.process.stdout.readline().split()]

    def value(self):
        self.process.stdin.close()
        if self.process.wait():
            sys.exit("quant_rows failed")
        return np.fromfile(self.out, np.float32).reshape(self.shape)


def compare(llama, args, name, sizes):
    (kind, elements, size, scales), (m, n, k) = FORMATS[name], sizes
    random = np.random.default_rng(1)
    weight = random.integers(0, 256, (n * k // elements, size), dtype=np.uint8)
    for at in scales:
        weight[:, at : at + 2] = np.frombuffer(np.float16(0.003).tobytes(), np.uint8)
    if name == "mxfp4":
        weight[:, 0] = 120
    x = random.standard_normal((m, k)).astype(np.float32)
    count = max(2, -(-(256 << 20) // weight.nbytes))
    with tempfile.TemporaryDirectory() as folder:
        weight.tofile(os.path.join(folder, "w"))
        x.tofile(os.path.join(folder, "x"))
        ours = Olivine(args.binary, folder, name, sizes, count, args.threads)
        # Q8_0 and others are used as they are: ggml has no other layout for them on x86.
        layouts = llama.layouts if name in ("q4_0", "q4_k", "iq4_nl") else llama.layouts[:1]
        peers = [Peer(llama, layout, kind, sizes, count, weight, x) for layout in layouts]
        mine, theirs = [], [[] for _ in peers]
        ours.run(count), [peer.run(count) for peer in peers]
        for _ in range(args.rounds):
            mine += ours.run(args.runs)
            for peer, times in zip(peers, theirs):
                times += peer.run(args.runs)
        y, other = ours.value(), peers[0].value()
        for peer in peers:
            peer.free()
    middle, best = lambda t: sorted(t)[len(t) // 2] / 1e6, lambda t: min(t) / 1e6
    rate = lambda ms: weight.nbytes / ms / 1e6
    fastest, shortest = min(map(middle, theirs)), min(map(best, theirs))
    apart = np.abs(y - other).max() / np.abs(other).max()
    print(f"{name:7} {m}x{k}x{n}: olivine {middle(mine):.3f} ms, best {best(mine):.3f} ({rate(best(mine)):.1f} GB/s); llama.cpp", end=" ")
    print(", ".join(f"{middle(t):.3f}, best {best(t):.3f} ({rate(best(t)):.1f} GB/s)" for t in theirs), end="; ")
    print(f"ratio {fastest / middle(mine):.2f}, of the best {shortest / best(mine):.2f}; apart {apart:.1e}", flush=True)
    sides = {"olivine": (middle(mine), best(mine)), "llama": (fastest, shortest)}
    times = {side: {"median_ms": round(median, 4), "best_ms": round(least, 4)} for side, (median, least) in sides.items()}
    return {**times, "apart": float(apart)}


def processor():
    with open("/proc/cpuinfo") as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rows", default="1")
    parser.add_argument("--shapes", default="4096x14336,4096x4096")
    parser.add_argument("--formats", default="q4_0,q8_0,q4_k")
    parser.add_argument("--peer")
    parser.add_argument("--json")
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "examples", "quant_rows"))
    args = parser.parse_args()
    if not os.path.exists(args.binary):
        sys.exit(f"no {args.binary}: cargo build --release -p olivine-cpu --example quant_rows")
    llama = Llama(library(args.peer), args.threads)
    print("llama.cpp with", " ".join(llama.features))
    measured = {}
    for _ in range(args.repeat):
        for shape in args.shapes.split(","):
            k, n = map(int, shape.split("x"))
            for name in args.formats.split(","):
                for m in map(int, args.rows.split(",")):
                    measured.setdefault((name, m, n, k), []).append(compare(llama, args, name, (m, n, k)))
    size = lambda name, n, k: n * k // FORMATS[name][1] * FORMATS[name][2]
    rows = [{"format": f, "m": m, "k": k, "n": n, "bytes": size(f, n, k), "runs": runs} for (f, m, n, k), runs in measured.items()]
    if args.json:
        command = " ".join(["python3 bench/quant_cpu.py", *sys.argv[1:]])
        about = {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC", "processor": processor(), "threads": args.threads}
        with open(args.json, "w") as file:
            json.dump({**about, "peer": f"@node-llama-cpp/linux-x64 {VERSION}", "command": command, "rows": rows}, file, indent=1)
            file.write("\n")
    wrong = [run for runs in measured.values() for run in runs if run["apart"] >= 0.03]
    sys.exit("results differ" if wrong else 0)


main()
