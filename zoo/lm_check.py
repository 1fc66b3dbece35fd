#!/usr/bin/env python3
"""Small models of every architecture beside Hugging Face transformers and llama.cpp, and smollm2's perplexity beside llama.cpp's.

usage: zoo/lm_check.py BINARY [--zoo FOLDER] [--devices cpu] [NAMES…]       (needs `pip install gguf numpy safetensors`)

What transformers computes is recorded in crates/lm/tests/references. Every model is run from a folder and from a GGUF file, as whole
sequences and by `generate` with caches. llama.cpp runs the same GGUF files. Weights and caches are f32, so that it does not round
activations to 8 bits; its logits are still up to 2e-3 from those in f64, relative to their length. A window, a scale or a frequency
that is wrong gives 1e-1.
"""
import argparse, ctypes, json, os, subprocess, sys, tempfile

import numpy as np

import lm_gguf, lm_models

sys.path.insert(0, os.path.join(lm_models.ROOT, "bench"))
from llama_library import library
from lm_cpu import Llama

BOUND, LLAMA_BOUND = 1e-4, 5e-3
# What GGUF cannot say, or llama.cpp does in another way. A file of these has other logits than are recorded …
OTHER_IN_GGUF = {
    "gemma2": "the scale of scores",
    "gpt_oss": "a ramp of frequencies that does not begin at a pair",
    "gpt_oss_mxfp4": "the same",
    "mamba2_groups": "norms are of each group",
}
# … and these are written as no file, or not run by llama.cpp.
NO_GGUF = {"mistral": "windows of all layers", "qwen3_moe_unnormalised": "weights of experts that do not sum to 1"}
NO_LLAMA = {"phi3": "llama.cpp has no windows there"}
TEXT, WINDOW = "LICENSE-APACHE", 512


def olivine(binary, *words):
    done = subprocess.run([binary, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"olivine {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def theirs(llama, tokens, vocabulary):
    """llama.cpp's logits of every position."""
    llama.clear()
    llama.decode(tokens, 0, every=True)
    row = lambda i: np.ctypeslib.as_array(llama.lib.llama_get_logits_ith(llama.context, i), (vocabulary,)).copy()
    return np.stack([row(i) for i in range(len(tokens))])


def tokenized(llama, path):
    """The tokens of a text by llama.cpp, and how many it knows."""
    lib, P = llama.lib, ctypes.c_void_p
    lib.llama_model_get_vocab.restype, lib.llama_model_get_vocab.argtypes = P, [P]
    lib.llama_vocab_n_tokens.argtypes = [P]
    lib.llama_tokenize.argtypes = [P, ctypes.c_char_p, ctypes.c_int32, P, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
    vocab = lib.llama_model_get_vocab(llama.model)
    with open(path, "rb") as file:
        text = file.read()
    ids = (ctypes.c_int32 * len(text))()
    count = lib.llama_tokenize(vocab, text, len(text), ids, len(ids), True, False)
    return list(ids[:count]), lib.llama_vocab_n_tokens(vocab)


class Check:
    def __init__(self, binary, device):
        self.binary, self.device, self.wrong = binary, device, 0

    def say(self, name, what, error, bound):
        right = error < bound
        self.wrong += not right
        print(f"{name:24} {self.device:7} {what:44} {error:.1e} {'' if right else 'DIFFERS'}", flush=True)

    def logits(self, model, tokens, folder):
        np.save(os.path.join(folder, "tokens.npy"), np.array([tokens], np.int64))
        out = os.path.join(folder, "out")
        olivine(self.binary, "run", model, "--device", self.device, "--input", f"tokens={folder}/tokens.npy", "--output", out)
        return np.load(os.path.join(out, "logits.npy"))[0]

    def generated(self, model, one):
        """How many tokens differ from those recorded, decoded with caches and chunks of the prompt."""
        ids = ",".join(map(str, one["prompt"]))
        words = ["generate", model, "--device", self.device, "--ids", ids, "-n", len(one["tokens"]), "--chunk", 4, "--context", 64, "--json"]
        found = json.loads(olivine(self.binary, *words))["tokens"]
        return float(sum(a != b for a, b in zip(found, one["tokens"])) + abs(len(found) - len(one["tokens"])))

    def model(self, name, record, folder):
        tokens, want = record["tokens"], np.array(record["logits"])
        path = os.path.join(folder, name)
        lm_models.write_folder(record, path)
        self.say(name, "folder, logits beside transformers", distance(self.logits(path, tokens, folder), want), BOUND)
        longest = max(record["generated"], key=lambda one: len(one["prompt"]))
        self.say(name, "folder, tokens that differ", self.generated(path, longest), 0.5)
        if name in NO_GGUF:
            return
        path += ".gguf"
        lm_gguf.write(record, path)
        got = self.logits(path, tokens, folder)
        if name not in OTHER_IN_GGUF:
            self.say(name, "GGUF, logits beside transformers", distance(got, want), BOUND)
            self.say(name, "GGUF, tokens that differ", self.generated(path, longest), 0.5)
        if name not in NO_LLAMA:
            llama = Llama(library(None), path, 2, context=64, f32_caches=True)
            found = theirs(llama, tokens, want.shape[1])
            self.say(name, "GGUF, logits beside llama.cpp", distance(got, found), LLAMA_BOUND)

    def perplexity(self, model):
        """That of a licence by both, in windows of which the second half counts."""
        text = os.path.join(lm_models.ROOT, TEXT)
        llama = Llama(library(None), model, 2, context=WINDOW, f32_caches=True)
        tokens, vocabulary = tokenized(llama, text)
        words = ["--device", self.device, "--window", WINDOW, "--json"]
        ours = json.loads(olivine(self.binary, "perplexity", model, text, *words))["perplexity"]
        sums, count = 0.0, 0
        for at in range(0, len(tokens) - WINDOW + 1, WINDOW):
            window = tokens[at : at + WINDOW]
            logits = theirs(llama, window, vocabulary).astype(np.float64)[WINDOW // 2 - 1 : -1]
            most = logits.max(1)
            chosen = logits[np.arange(len(logits)), window[WINDOW // 2 :]]
            scores = chosen - most - np.log(np.exp(logits - most[:, None]).sum(1))
            sums, count = sums - scores.sum(), count + len(scores)
        found = np.exp(sums / count)
        print(f"perplexity of {TEXT}: olivine {ours:.4f}, llama.cpp {found:.4f}, {count} tokens")
        self.say("smollm2", "perplexity beside llama.cpp", abs(ours / found - 1), 5e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--zoo")
    parser.add_argument("--devices", default="cpu")
    args = parser.parse_args()
    wrong = 0
    for device in args.devices.split(","):
        check = Check(args.binary, device)
        with tempfile.TemporaryDirectory() as folder:
            for name, record in lm_models.records(args.names):
                check.model(name, record, folder)
        if args.zoo:
            check.perplexity(os.path.join(args.zoo, "smollm2/model.gguf"))
        wrong += check.wrong
    sys.exit(f"{wrong} comparisons differ" if wrong else 0)


main()
