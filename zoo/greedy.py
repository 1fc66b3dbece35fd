#!/usr/bin/env python3
"""Writes zoo/greedy.json: the tokens that llama.cpp picks greedily with the zoo's language models, and their log-probabilities.

usage: zoo/greedy.py FOLDER     (the folder that zoo/fetch filled; needs `pip install gguf xllamacpp`)

llama.cpp rounds activations to 8 bits, which decides between tokens that are about as likely. So the file also has what
the model says without any rounding: at every position the likeliest token and its log-probability, by NumPy in f64 from
the weights as the `gguf` package decodes them.

`olivine test zoo` decodes the same prompts. It has no tokenizer, so prompts are stored as token ids.
"""
import json, pathlib, sys

import gguf, xllamacpp
import numpy as np

FOLDER = pathlib.Path(sys.argv[1])
MODEL = "smollm2/model.gguf"
PROMPTS = {
    "The capital of France is": ["The", " capital", " of", " France", " is"],
    "Once upon a time": ["Once", " upon", " a", " time"],
    "def fibonacci(n):": ["def", " fib", "onacci", "(", "n", "):"],
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n":
        ["<|im_start|>", "user", "\n", "What", " is", " ", "2", "+", "2", "?", "<|im_end|>", "\n", "<|im_start|>", "ass", "istant", "\n"],
}  # fmt: skip
TOKENS = 24
# Likeliest tokens that lead by less could be others in f32.
LEAD = 0.01


def answer(server, prompt):
    """llama.cpp's tokens, their log-probabilities and the number of tokens of the prompt."""
    request = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "n_probs": 1, "cache_prompt": False}
    response = server.handle_completions(request)
    steps = response["choices"][0]["logprobs"]["content"]
    return [step["id"] for step in steps], [step["logprob"] for step in steps], response["usage"]["prompt_tokens"]


class Exact:
    """The decoder in f64."""

    def __init__(self, reader):
        value = lambda key: reader.fields["llama." + key].contents()
        self.layers, self.heads, self.kv_heads = value("block_count"), value("attention.head_count"), value("attention.head_count_kv")
        self.eps, self.base, self.rotary = value("attention.layer_norm_rms_epsilon"), value("rope.freq_base"), value("rope.dimension_count")
        decoded = lambda t: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64).reshape(t.shape[::-1].tolist())
        self.weights = {t.name: decoded(t) for t in reader.tensors}

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name + ".weight"]

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T

    def rope(self, x):
        angles = np.arange(len(x))[:, None, None] * self.base ** (-np.arange(0, self.rotary, 2) / self.rotary)
        even, odd, y = x[..., 0::2], x[..., 1::2], np.empty_like(x)
        y[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
        y[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
        return y

    def attention(self, x, name):
        split = lambda part, heads: self.linear(x, f"{name}_{part}").reshape(len(x), heads, -1)
        repeat = lambda x: np.repeat(x, self.heads // self.kv_heads, axis=1)
        q, k, v = self.rope(split("q", self.heads)), repeat(self.rope(split("k", self.kv_heads))), repeat(split("v", self.kv_heads))
        scores = np.einsum("shd,thd->hst", q, k) / np.sqrt(q.shape[-1])
        scores[:, ~np.tri(len(x), dtype=bool)] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = np.einsum("hst,thd->shd", scores / scores.sum(-1, keepdims=True), v)
        return self.linear(context.reshape(len(x), -1), name + "_output")

    def logprobs(self, ids):
        """For every position the log-probabilities of the token after it."""
        x = self.weights["token_embd.weight"][ids]
        for layer in (f"blk.{i}." for i in range(self.layers)):
            x = x + self.attention(self.norm(x, layer + "attn_norm"), layer + "attn")
            h = self.norm(x, layer + "ffn_norm")
            gate = self.linear(h, layer + "ffn_gate")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * self.linear(h, layer + "ffn_up"), layer + "ffn_down")
        logits = self.linear(self.norm(x, "output_norm"), "output" if "output.weight" in self.weights else "token_embd")
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def main():
    reader = gguf.GGUFReader(FOLDER / MODEL)
    number = {token: i for i, token in enumerate(reader.fields["tokenizer.ggml.tokens"].contents())}
    exact = Exact(reader)
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx = str(FOLDER / MODEL), 256
    server = xllamacpp.Server(params)
    rounded = lambda values: [round(float(v), 5) for v in values]
    entries = []
    for text, pieces in PROMPTS.items():
        # Byte-level BPE writes a space as Ġ and a line feed as Ċ.
        ids = [number[piece.replace(" ", "Ġ").replace("\n", "Ċ")] for piece in pieces]
        tokens, logprobs, count = answer(server, text)
        # The pieces above are those of llama.cpp's tokenizer: as text and as ids a prompt gives the same.
        assert "".join(pieces) == text and count == len(ids) and answer(server, ids)[0] == tokens, text
        all = exact.logprobs(ids + tokens[:-1])[len(ids) - 1 :]
        best, two = all.argmax(-1), np.sort(all)[:, -2:]
        assert (two[:, 1] - two[:, 0]).min() > LEAD, text
        print(f"{text!r}: llama.cpp picks another token than f64 at {np.flatnonzero(best != tokens).tolist()}")
        entry = dict(model=MODEL, text=text, prompt=ids, tokens=tokens, logprobs=rounded(logprobs))
        entries.append(entry | dict(exact=best.tolist(), exact_logprobs=rounded(two[:, 1])))
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (pathlib.Path(__file__).resolve().parent / "greedy.json").write_text(f"[\n{lines}\n]\n")


main()
