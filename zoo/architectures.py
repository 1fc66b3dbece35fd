#!/usr/bin/env python3
"""Random models of every architecture that olivine decodes, beside llama.cpp: logits of whole sequences, and greedy tokens.

usage: zoo/architectures.py [--binary target/release/olivine] [--devices cpu] [NAMES…]       (needs `pip install gguf numpy`)

Weights and caches are f32, so that llama.cpp does not round activations to 8 bits. Its logits are still up to 2e-3 from
those in f64 (ours 1e-6), relative to their length, so that 5e-3 is allowed; a window, a scale or a frequency that is wrong gives 1e-1. Tokens that are
decoded with caches must be the likeliest of llama.cpp's, which continues from the same tokens, up to that error.
"""
import argparse, json, os, subprocess, sys, tempfile

import gguf
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
from lm_cpu import Llama
from llama_library import library

HIDDEN, HEADS, KV_HEADS, DIM, FEED, EXPERTS, USED, EXPERT_FEED, VOCABULARY, WINDOW = 128, 4, 2, 64, 256, 8, 2, 64, 512, 6
NAMES = ["llama", "qwen2", "qwen3", "qwen3moe", "phi3", "gemma2", "gemma3", "gpt-oss"]
BOUND = 5e-3
LAYERS = {"gemma2": 4, "gemma3": 7}


def write(name, path):
    """A random model."""
    rng = np.random.default_rng(len(name))
    writer = gguf.GGUFWriter(path, name)
    layers, moe = LAYERS.get(name, 3), name in ("qwen3moe", "gpt-oss")
    dim = HIDDEN // HEADS if name in ("phi3", "qwen2") else DIM
    for key, value in [
        ("context_length", 256), ("embedding_length", HIDDEN), ("block_count", layers), ("feed_forward_length", FEED), ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS), ("attention.key_length", dim), ("attention.value_length", dim), ("rope.dimension_count", dim), ("vocab_size", VOCABULARY),
    ]:  # fmt: skip
        writer.add_uint32(f"{name}.{key}", value)
    if moe:
        for key, value in [("expert_count", EXPERTS), ("expert_used_count", USED), ("expert_feed_forward_length", EXPERT_FEED)]:
            writer.add_uint32(f"{name}.{key}", value)
    if name in ("gemma2", "gemma3", "gpt-oss"):
        writer.add_uint32(f"{name}.attention.sliding_window", WINDOW)
    writer.add_float32(f"{name}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{name}.rope.freq_base", 50000.0)
    if name == "gemma2":
        writer.add_float32("gemma2.attn_logit_softcapping", 50.0)
        writer.add_float32("gemma2.final_logit_softcapping", 30.0)
    if name == "gpt-oss":
        writer.add_string("gpt-oss.rope.scaling.type", "yarn")
        writer.add_float32("gpt-oss.rope.scaling.factor", 8.0)
        writer.add_uint32("gpt-oss.rope.scaling.original_context_length", 64)
    if name == "gemma3":
        writer.add_string("gemma3.rope.scaling.type", "linear")
        writer.add_float32("gemma3.rope.scaling.factor", 8.0)
    writer.add_tokenizer_model("none")

    def put(tensor, *shape, scale=0.1, around=0.0):
        writer.add_tensor(tensor, (around + scale * rng.standard_normal(shape)).astype(np.float32))

    norm = lambda tensor, size: put(tensor, size, scale=0.2, around=1.0)
    put("token_embd.weight", VOCABULARY, HIDDEN, scale=0.5)
    q, kv = HEADS * dim, KV_HEADS * dim
    for i in range(layers):
        p = f"blk.{i}."
        norm(p + "attn_norm.weight", HIDDEN)
        if name == "phi3":
            put(p + "attn_qkv.weight", q + 2 * kv, HIDDEN)
        else:
            put(p + "attn_q.weight", q, HIDDEN)
            put(p + "attn_k.weight", kv, HIDDEN)
            put(p + "attn_v.weight", kv, HIDDEN)
        put(p + "attn_output.weight", HIDDEN, q)
        if name in ("qwen2", "gpt-oss"):
            for part, size in (("q", q), ("k", kv), ("v", kv)):
                put(p + f"attn_{part}.bias", size, scale=0.3)
        if name in ("qwen3", "qwen3moe", "gemma3"):
            norm(p + "attn_q_norm.weight", dim)
            norm(p + "attn_k_norm.weight", dim)
        if name == "gpt-oss":
            put(p + "attn_output.bias", HIDDEN, scale=0.3)
            put(p + "attn_sinks.weight", HEADS, scale=1.0)
        if name in ("gemma2", "gemma3"):
            norm(p + "post_ffw_norm.weight", HIDDEN)
        if name in ("gemma2", "gemma3", "gpt-oss"):
            norm(p + "post_attention_norm.weight", HIDDEN)
        if name != "gpt-oss":
            norm(p + "ffn_norm.weight", HIDDEN)
        if moe:
            put(p + "ffn_gate_inp.weight", EXPERTS, HIDDEN, scale=0.3)
            for part, shape in (("gate", (EXPERT_FEED, HIDDEN)), ("up", (EXPERT_FEED, HIDDEN)), ("down", (HIDDEN, EXPERT_FEED))):
                put(p + f"ffn_{part}_exps.weight", EXPERTS, *shape)
                if name == "gpt-oss":
                    put(p + f"ffn_{part}_exps.bias", EXPERTS, shape[0], scale=0.3)
            if name == "gpt-oss":
                put(p + "ffn_gate_inp.bias", EXPERTS, scale=0.3)
        elif name == "phi3":
            put(p + "ffn_up.weight", 2 * FEED, HIDDEN)
            put(p + "ffn_down.weight", HIDDEN, FEED)
        else:
            put(p + "ffn_gate.weight", FEED, HIDDEN)
            put(p + "ffn_up.weight", FEED, HIDDEN)
            put(p + "ffn_down.weight", HIDDEN, FEED)
    norm("output_norm.weight", HIDDEN)
    if name not in ("gemma2", "gemma3"):
        put("output.weight", VOCABULARY, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def olivine(binary, *words):
    done = subprocess.run([binary, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def theirs(llama, tokens):
    """llama.cpp's logits of every position."""
    llama.clear()
    llama.decode(tokens, 0, every=True)
    return np.stack([np.ctypeslib.as_array(llama.lib.llama_get_logits_ith(llama.context, i), (VOCABULARY,)).copy() for i in range(len(tokens))])


def check(name, folder, binary, devices):
    path = os.path.join(folder, f"{name}.gguf")
    write(name, path)
    llama = Llama(library(None), path, 2, context=256, f32_caches=True)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 40)
    want = theirs(llama, tokens.tolist())
    np.save(os.path.join(folder, "tokens.npy"), tokens[None, :])
    wrong = 0
    for device in devices:
        out = os.path.join(folder, "out")
        olivine(binary, "run", path, "--device", device, "--input", f"tokens={folder}/tokens.npy", "--output", out)
        got = np.load(os.path.join(out, "logits.npy"))[0]
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        text = olivine(binary, "generate", path, "--device", device, "--ids", ",".join(map(str, tokens[:9])), "-n", 20, "--chunk", 4, "--json")
        new = json.loads(text)["tokens"]
        logits = theirs(llama, tokens[:9].tolist() + new[:-1])[8:]
        short = [row.max() - row[token] for row, token in zip(logits, new)]
        right = error < BOUND and max(short) < BOUND * np.abs(logits).max()
        print(f"{name:10} {device:8} logits differ by {error:.1e}, tokens are {max(short):.1e} below the likeliest: {'equal' if right else 'DIFFERS'}")
        wrong += not right
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/olivine"))
    parser.add_argument("--devices", default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(sum(check(name, folder, args.binary, args.devices.split(",")) for name in args.names))


main()
