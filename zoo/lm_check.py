#!/usr/bin/env python3
"""Small models of every architecture beside Hugging Face transformers and llama.cpp, and smollm2's perplexity beside llama.cpp's.

usage: zoo/lm_check.py BINARY [--zoo FOLDER] [--devices cpu] [--names NAMES]       (needs `pip install gguf numpy safetensors`)

What transformers computes is recorded in crates/lm/tests/references. Every model is run from a folder and from a GGUF file, as whole
sequences and by `generate` with caches. llama.cpp runs the same GGUF files. Weights and caches are f32, so that it does not round
activations to 8 bits; its logits are still up to 2e-3 from those in f64, relative to their length. A window, a scale or a frequency
that is wrong gives 1e-1.
"""
import argparse, json, os, shutil, subprocess, sys, tempfile

import numpy as np

import lm_gguf, lm_models, lm_zoo

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
NO_LLAMA = {"phi3": "it has no windows there", "phi3_longrope": "its contexts are multiples of 256, for which it takes the long factors"}
# With packed weights llama.cpp rounds activations to 8 bits.
ROUNDED = {"gpt_oss_mxfp4": 3e-2}


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


class Check:
    def __init__(self, binary, device):
        self.binary, self.device, self.wrong = binary, device, 0

    def say(self, name, what, error, bound):
        right = error < bound
        self.wrong += not right
        print(f"{name:24} {self.device:7} {what:52} {error:.1e} {'' if right else 'DIFFERS'}", flush=True)

    def outputs(self, model, inputs, folder):
        """The results of a run."""
        words = ["run", model, "--device", self.device, "--output", os.path.join(folder, "out")]
        for name, values in inputs.items():
            np.save(os.path.join(folder, f"{name}.npy"), np.array(values, np.int64))
            words += ["--input", f"{name}={folder}/{name}.npy"]
        olivine(self.binary, *words)
        out = os.path.join(folder, "out")
        made = {name.removesuffix(".npy"): np.load(os.path.join(out, name)) for name in os.listdir(out)}
        shutil.rmtree(out)
        return made

    def logits(self, model, tokens, folder):
        return self.outputs(model, {"tokens": [tokens]}, folder)["logits"][0]

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
            self.say(name, "GGUF, logits beside llama.cpp", distance(got, found), ROUNDED.get(name, LLAMA_BOUND))

    def perplexity(self, model, folder):
        """That of a licence by both, in windows of which the second half counts."""
        words = ["--device", self.device, "--window", lm_zoo.WINDOW, "--json"]
        ours = json.loads(olivine(self.binary, "perplexity", model, os.path.join(lm_models.ROOT, lm_zoo.TEXT), *words))
        decoded = os.path.join(folder, "decoded.gguf")
        lm_zoo.write_decoded(model, decoded)
        # llama.cpp rounds activations where weights are packed, which costs it more than what is allowed beside the same weights in f32.
        for path, what, bound in [(decoded, "its weights in f32", 5e-3), (model, "the same file", 1.5e-2)]:
            llama = Llama(library(None), path, 2, context=lm_zoo.WINDOW, f32_caches=True)
            found, count = lm_zoo.perplexity(llama, theirs)
            if count != ours["tokens"]:
                sys.exit(f"llama.cpp has {count} tokens of the text, olivine {ours['tokens']}")
            print(f"perplexity of {lm_zoo.TEXT}, {count} tokens: olivine {ours['perplexity']:.4f}, llama.cpp {found:.4f}")
            self.say("smollm2", f"perplexity beside llama.cpp, {what}", abs(ours["perplexity"] / found - 1), bound)
        os.remove(decoded)

    def zoo(self, zoo, folder):
        path = os.path.join(folder, "stories.gguf")
        if not os.path.exists(path):
            lm_zoo.write_stories(os.path.join(zoo, "stories15m/stories15M.bin"), path)
        self.say("stories15m", "tokens that differ", self.generated(path, {"prompt": [1], "tokens": lm_zoo.STORY}), 0.5)
        found = lm_zoo.cosines(self, os.path.join(zoo, "minilm"), folder)
        self.say("minilm", "cosines beside those known", max(abs(a - b) for a, b in zip(found, lm_zoo.COSINES)), 2e-4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("--names", type=lambda text: text.split(","), default=[], help="some of the recorded models alone")
    parser.add_argument("--zoo")
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--zoo-devices", default="cpu,vulkan,wgpu")
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for device in args.devices.split(","):
            check = Check(args.binary, device)
            for name, record in lm_models.records(args.names):
                check.model(name, record, folder)
            if args.zoo:
                check.perplexity(os.path.join(args.zoo, "smollm2/model.gguf"), folder)
            wrong += check.wrong
        for device in args.zoo_devices.split(",") if args.zoo else []:
            check = Check(args.binary, device)
            check.zoo(args.zoo, folder)
            wrong += check.wrong
    sys.exit(f"{wrong} comparisons differ" if wrong else 0)


main()
