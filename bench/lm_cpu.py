#!/usr/bin/env python3
"""A language model on the CPU beside llama.cpp: the same file, threads and numbers of tokens, taking turns.

usage: lm_cpu.py MODEL.gguf [--threads 2] [--rounds 3] [--prompt 512] [--tokens 128] [--peer FOLDER]
                 [--binary target/release/olivine] [--json FILE]

llama.cpp's library is that of bench/llama_library.py, called through its C API. Its decoding does not choose tokens; ours
does. Every round measures both; the best of each counts, and a ratio is our rate over llama.cpp's: 1 or more is no slower.
"""
import argparse, ctypes as C, datetime, glob, json, os, random, subprocess, sys, time

from llama_library import ROOT, VERSION, library


class Params(C.Structure):
    """Parameters that are passed by value; only the first numbers of a context's are set."""

    _fields_ = [("words", C.c_uint32 * 128)]


class Batch(C.Structure):
    _fields_ = [
        ("count", C.c_int32), ("tokens", C.POINTER(C.c_int32)), ("embeddings", C.c_void_p), ("positions", C.POINTER(C.c_int32)),
        ("sequence_counts", C.POINTER(C.c_int32)), ("sequences", C.POINTER(C.POINTER(C.c_int32))), ("logits", C.POINTER(C.c_int8)),
    ]  # fmt: skip


LOG = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)
SILENT = LOG(lambda level, text, data: None)


class Llama:
    """A model and a context of llama.cpp; its caches are f16 unless f32 ones are asked for."""

    loaded = False

    def __init__(self, folder, model, threads, context=2048, f32_caches=False):
        load = lambda name: C.CDLL(glob.glob(os.path.join(folder, name))[0], mode=C.RTLD_GLOBAL)
        load("libggml-base*.so")
        backends = load("libggml.*.so")
        lib = self.lib = load("libllama.*.so")
        if not Llama.loaded:
            backends.ggml_backend_load_all_from_path.argtypes = [C.c_char_p]
            backends.ggml_backend_load_all_from_path(folder.encode())
            Llama.loaded = True
        lib.llama_log_set.argtypes = [LOG, C.c_void_p]
        lib.llama_log_set(SILENT, None)
        P = C.c_void_p
        for name, result, *args in [
            ("llama_model_default_params", Params),
            ("llama_context_default_params", Params),
            ("llama_model_load_from_file", P, C.c_char_p, Params),
            ("llama_init_from_model", P, P, Params),
            ("llama_set_n_threads", None, P, C.c_int32, C.c_int32),
            ("llama_decode", C.c_int, P, Batch),
            ("llama_synchronize", None, P),
            ("llama_get_memory", P, P),
            ("llama_memory_clear", None, P, C.c_bool),
            ("llama_get_logits_ith", C.POINTER(C.c_float), P, C.c_int32),
        ]:
            function = getattr(lib, name)
            function.restype, function.argtypes = result, args
        self.model = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp cannot load {model}")
        params = lib.llama_context_default_params()
        # n_ctx, n_batch, n_ubatch, n_seq_max.
        params.words[0], params.words[1], params.words[2], params.words[3] = context, 2048, 512, 1
        if f32_caches:
            # type_k and type_v: GGML_TYPE_F16 by default.
            if list(params.words[26:28]) != [1, 1]:
                sys.exit("the context's parameters are laid out in another way than those of the version that is expected")
            params.words[26] = params.words[27] = 0
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("llama.cpp makes no context")
        lib.llama_set_n_threads(self.context, threads, threads)

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, tokens, first, every=False):
        """Computes tokens that begin at a position; logits of the last, or of every one."""
        n = len(tokens)
        ids = (C.c_int32 * 1)(0)
        sequences = (C.POINTER(C.c_int32) * n)(*[C.cast(ids, C.POINTER(C.c_int32))] * n)
        wanted = (C.c_int8 * n)(*([1] * n if every else [0] * (n - 1) + [1]))
        positions = (C.c_int32 * n)(*range(first, first + n))
        batch = Batch(n, (C.c_int32 * n)(*tokens), None, positions, (C.c_int32 * n)(*[1] * n), sequences, wanted)
        if self.lib.llama_decode(self.context, batch):
            sys.exit("llama.cpp cannot decode")
        self.lib.llama_synchronize(self.context)


def measure(llama, prompt, tokens, draw):
    """Tokens a second of a prompt, and of tokens one after the other."""
    llama.clear()
    begun = time.perf_counter()
    llama.decode([draw() for _ in range(prompt)], 0)
    prefill = prompt / (time.perf_counter() - begun)
    llama.clear()
    llama.decode([draw() for _ in range(8)], 0)
    begun = time.perf_counter()
    for i in range(tokens):
        llama.decode([draw()], 8 + i)
    return {"prefill": prefill, "decode": tokens / (time.perf_counter() - begun)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    for name, default in [("threads", 2), ("rounds", 3), ("prompt", 512), ("tokens", 128)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--peer")
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/olivine"))
    parser.add_argument("--json")
    args = parser.parse_args()
    llama = Llama(library(args.peer), args.model, args.threads)
    random.seed(0)
    draw = lambda: random.randrange(1000)
    best = {"olivine": {}, "llama.cpp": {}}
    for _ in range(args.rounds):
        command = [args.binary, "bench", "lm", args.model, "--device", "cpu", "--threads", args.threads, "--prompt", args.prompt, "--tokens", args.tokens]
        command += ["--runs", 1, "--json"]
        ours = json.loads(subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout)
        found = {
            "olivine": {"prefill": ours["prefill_tokens_per_s"], "decode": ours["decode_tokens_per_s"]},
            "llama.cpp": measure(llama, args.prompt, args.tokens, draw),
        }
        for who, rates in found.items():
            for what, rate in rates.items():
                best[who][what] = max(best[who].get(what, 0), rate)
    ratios = {what: best["olivine"][what] / best["llama.cpp"][what] for what in ("prefill", "decode")}
    for what, ratio in ratios.items():
        print(f"{what:8} olivine {best['olivine'][what]:8.1f} tokens/s, llama.cpp {best['llama.cpp'][what]:8.1f}, ratio {ratio:.2f}")
    if args.json:
        record = {"date": datetime.date.today().isoformat(), "llama.cpp": f"node-llama-cpp {VERSION}", "threads": args.threads,
                  "prompt": args.prompt, "tokens": args.tokens, "best": best, "ratios": ratios}  # fmt: skip
        with open(args.json, "w") as out:
            json.dump(record, out, indent=1)


if __name__ == "__main__":
    main()
