#!/usr/bin/env python3
"""Records what Hugging Face transformers computes with small models of every architecture, in crates/lm/tests/references.

usage: zoo/lm_reference.py [NAMES…]       (`cargo xtask lm --record` installs torch and transformers and runs it)

Torch and its libraries take 7 GB, so that tests read the records: configuration, shapes of tensors (weights are a formula's, see
lm_models.py), the logits of every position of a sequence, and greedy tokens of several prompts with their log-probabilities.
"""
import json, os, sys

import numpy as np
import torch
import transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import lm_models

VOCABULARY, LENGTH = 48, 16
# Lengths of prompts, and how many tokens follow.
PROMPTS = [(11, 5), (1, 3), (20, 4), (6, 6), (3, 5)]
# A likeliest token leads by this at least, so that rounding does not choose another.
LEAD = 0.02
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, rope_theta=50000.0, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)  # fmt: skip
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32)
MAMBA = dict(
    vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=3, num_heads=8, head_dim=16, state_size=24, conv_kernel=4, chunk_size=8,
    bos_token_id=None, eos_token_id=None, pad_token_id=None,
)  # fmt: skip
T = transformers
MODELS = {
    "llama": lambda: T.LlamaConfig(
        **SIZES,
        rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "mistral": lambda: T.MistralConfig(**SIZES, head_dim=24, sliding_window=6),
    "qwen2": lambda: T.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: T.Qwen3Config(**SIZES, head_dim=32, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "qwen3_moe": lambda: T.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=32, norm_topk_prob=True),
    # Weights of experts that do not sum to 1, and a layer without experts.
    "qwen3_moe_unnormalised": lambda: T.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=32, norm_topk_prob=False, mlp_only_layers=[1]),
    "phi3": lambda: T.Phi3Config(**SIZES, sliding_window=6, original_max_position_embeddings=128),
    "phi3_longrope": lambda: T.Phi3Config(
        **SIZES | dict(max_position_embeddings=256, hidden_size=128),
        partial_rotary_factor=0.75,
        original_max_position_embeddings=64,
        rope_scaling=dict(type="longrope", short_factor=[1 + 0.1 * i for i in range(12)], long_factor=[2 + 1.5 * i for i in range(12)]),
    ),
    "gemma2": lambda: T.Gemma2Config(**SIZES, head_dim=32, sliding_window=6, query_pre_attn_scalar=24, attn_logit_softcapping=5.0, final_logit_softcapping=4.0),
    "gemma3_text": lambda: T.Gemma3TextConfig(
        **SIZES | dict(num_hidden_layers=7), head_dim=32, sliding_window=6, query_pre_attn_scalar=32, rope_local_base_freq=5000.0,
        rope_scaling=dict(rope_type="linear", factor=8.0),
    ),  # fmt: skip
    "gpt_oss": lambda: T.GptOssConfig(
        **SIZES | dict(intermediate_size=64), head_dim=32, sliding_window=6, num_local_experts=6, num_experts_per_tok=2,
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0, truncate=False),
    ),  # fmt: skip
    "mamba2": lambda: T.Mamba2Config(**MAMBA, n_groups=1),
    "mamba2_groups": lambda: T.Mamba2Config(**MAMBA, n_groups=2, time_step_limit=(0.2, 2.0), use_bias=True),
    "qwen3_next": lambda: T.Qwen3NextConfig(
        **SIZES | dict(num_hidden_layers=5), **EXPERTS, head_dim=32, shared_expert_intermediate_size=48, linear_conv_kernel_dim=4, linear_key_head_dim=16,
        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
    ),  # fmt: skip
}
MODELS["gpt_oss_mxfp4"] = MODELS["gpt_oss"]


def spread(name, shape, config):
    """The middle and the width of a tensor's elements."""
    from_zero = config.model_type.startswith("gemma") or (config.model_type == "qwen3_next" and "linear_attn" not in name)
    if "norm" in name and len(shape) == 1:
        return (0.0 if from_zero else 1.0), 0.2
    if name.endswith(("A_log", ".D")):
        return 0.5, 0.5
    if len(shape) == 1:
        return 0.0, 0.4
    if "conv1d" in name:
        return 0.0, 0.8
    if "embed" in name:
        # Where the embedding is the output matrix too, a large one would repeat the last token.
        return 0.0, (0.1 if from_zero else 0.4) if config.tie_word_embeddings else 1.0
    # The experts of gpt-oss are [experts, in, out] or have biases [experts, out].
    size = shape[1] if len(shape) == 3 else shape[-1]
    if name.endswith("_proj_bias"):
        return 0.0, 0.4
    gain = 4.0 if "gate.weight" in name or "router" in name else 2.0
    return 0.0, round(gain / size**0.5, 4)


def tensors(name, model):
    """The tensors that a folder has, as lm_models.tensor makes them."""
    out = []
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        shape = list(value.shape)
        if name == "gpt_oss_mxfp4" and len(shape) == 3:
            # Stored by rows of the transposed matrix, in blocks of 32: 16 bytes of numbers and an exponent.
            experts, rows, columns = shape
            out.append([key + "_blocks", [experts, columns, rows // 32, 16], "u8", 0, 256])
            out.append([key + "_scales", [experts, columns, rows // 32], "u8", 121, 3])
        else:
            out.append([key, shape, "f32", *spread(key, shape, model.config)])
    return out


def fill(model, made):
    """Puts tensors into a model; packed ones are decoded by transformers."""
    state = {}
    for key, value in made.items():
        if key.endswith("_blocks"):
            stem = key.removesuffix("_blocks")
            scales = torch.from_numpy(made[stem + "_scales"])
            state[stem] = convert_moe_packed_tensors(torch.from_numpy(value), scales, dtype=torch.float32)
        elif not key.endswith("_scales"):
            state[key] = torch.from_numpy(value)
    missing = model.load_state_dict(state, strict=False)
    left = [key for key in missing.missing_keys if key != "lm_head.weight"]
    if left or missing.unexpected_keys:
        sys.exit(f"tensors differ from the model's: {left}, {missing.unexpected_keys}")
    model.tie_weights()


def forward(model, tokens):
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].double()


def prompt(length, seed):
    return [(i * i * 7 + i * 13 + seed * 31) % VOCABULARY for i in range(length)]


def generate(model, length, count, first):
    """Greedy tokens of the first prompt whose likeliest tokens all lead."""
    for seed in range(first, first + 2000, 100):
        tokens, chosen, logprobs = prompt(length, seed), [], []
        for _ in range(count):
            row = torch.log_softmax(forward(model, tokens)[-1], -1)
            best = torch.topk(row, 2)
            if best.values[0] - best.values[1] < LEAD:
                break
            token = int(best.indices[0])
            tokens.append(token)
            chosen.append(token)
            logprobs.append(round(float(row[token]), 6))
        if len(chosen) == count:
            return {"prompt": tokens[:length], "tokens": chosen, "logprobs": logprobs}
    sys.exit("no prompt of which each next token is decided")


def record(name):
    config = MODELS[name]()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    listed = tensors(name, model)
    fill(model, {entry[0]: lm_models.tensor(*entry) for entry in listed})
    written = config.to_diff_dict()
    if name == "gpt_oss_mxfp4":
        written["quantization_config"] = {"quant_method": "mxfp4"}
    tokens = prompt(LENGTH, 0)
    logits = forward(model, tokens)
    return {
        "transformers": transformers.__version__,
        # As text: Python writes infinities, which are no JSON.
        "config": json.dumps(written),
        "tensors": listed,
        "tokens": tokens,
        "logits": [[float(f"{x:.6g}") for x in row] for row in logits.tolist()],
        "generated": [generate(model, length, count, seed + 1) for seed, (length, count) in enumerate(PROMPTS)],
    }


def dump(made):
    """JSON with a line for each tensor, row of logits and prompt."""
    lines = []
    for key, value in made.items():
        if key in ("tensors", "logits", "generated"):
            rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append(f' "{key}": [\n  {rows}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(2)
    os.makedirs(lm_models.RECORDS, exist_ok=True)
    for name in sys.argv[1:] or MODELS:
        made = record(name)
        with open(os.path.join(lm_models.RECORDS, f"{name}.json"), "w") as out:
            out.write(dump(made))
        norm = np.linalg.norm(made["logits"])
        print(f"{name:24} {len(made['tensors']):4} tensors, |logits| {norm:.3g}, tokens {[g['tokens'] for g in made['generated']]}")


main()
