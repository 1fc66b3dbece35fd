"""Recorded language models as GGUF files, by the names of the `gguf` package and the layouts of llama.cpp's converter."""
import json

import gguf
import numpy as np

import lm_models

# Architectures in GGUF by `model_type`.
ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "phi3": "phi3", "gemma2": "gemma2", "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss", "mamba2": "mamba2", "qwen3_next": "qwen3next",
}  # fmt: skip


def metadata(writer, name, config):
    def put(key, value):
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{name}.{key}", value)

    context = config.get("max_position_embeddings", 2**20)
    for key, value in [("block_count", config["num_hidden_layers"]), ("embedding_length", config["hidden_size"]), ("context_length", context)]:
        put(key, value)
    put("vocab_size", config["vocab_size"])
    put("feed_forward_length", config.get("intermediate_size", 0))
    put("attention.head_count", config.get("num_attention_heads", 0))
    put("attention.layer_norm_rms_epsilon", config.get("rms_norm_eps") or config["layer_norm_epsilon"])
    if name == "mamba2":
        inner = config["num_heads"] * config["head_dim"]
        keys = [("conv_kernel", "conv_kernel"), ("state_size", "state_size"), ("time_step_rank", "num_heads"), ("group_count", "n_groups")]
        for key, source in keys:
            put(f"ssm.{key}", config[source])
        put("ssm.inner_size", inner)
        return
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    put("attention.head_count_kv", config["num_key_value_heads"])
    put("attention.key_length", dim)
    put("attention.value_length", dim)
    put("rope.dimension_count", int(dim * config.get("partial_rotary_factor", 1.0)))
    put("rope.freq_base", config["rope_theta"])
    if config.get("sliding_window"):
        put("attention.sliding_window", config["sliding_window"])
    if "rope_local_base_freq" in config:
        put("rope.freq_base_swa", config["rope_local_base_freq"])
    experts = config.get("num_experts") or config.get("num_local_experts")
    if experts:
        put("expert_count", experts)
        put("expert_used_count", config["num_experts_per_tok"])
        put("expert_feed_forward_length", config.get("moe_intermediate_size") or config["intermediate_size"])
    if config.get("shared_expert_intermediate_size"):
        put("expert_shared_feed_forward_length", config["shared_expert_intermediate_size"])
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key):
            put(key, config[key])
    if name == "qwen3next":
        keys = [("conv_kernel", "conv_kernel_dim"), ("state_size", "key_head_dim"), ("group_count", "num_key_heads"), ("time_step_rank", "num_value_heads")]
        for key, source in keys:
            put(f"ssm.{key}", config[f"linear_{source}"])
        put("ssm.inner_size", config["linear_value_head_dim"] * config["linear_num_value_heads"])
        put("full_attention_interval", 4)
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind in ("linear", "yarn"):
        put("rope.scaling.type", kind)
        put("rope.scaling.factor", scaling["factor"])
    if kind == "yarn":
        put("rope.scaling.original_context_length", scaling["original_max_position_embeddings"])
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        put("rope.scaling.original_context_length", original)
        put("rope.scaling.attn_factor", float(np.sqrt(1 + np.log(context / original) / np.log(original))))
        for length in ("short", "long"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(scaling[f"{length}_factor"], np.float32))
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(dim, config["rope_theta"], scaling))


def llama3_divisors(dim, base, scaling):
    """What Llama 3 divides frequencies by."""
    wavelengths = 2 * np.pi * base ** (np.arange(0, dim, 2) / dim)
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def paired(x, heads):
    """Rows of a head as GGUF's llama orders them: those that rotate together are neighbours."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)


def mxfp4(blocks, scales):
    """GGUF's blocks of MXFP4: the exponent, then bytes whose low halves are the first 16 elements."""
    elements = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    packed = elements[..., :16] | elements[..., 16:] << 4
    return np.concatenate([scales[..., None], packed], -1).reshape(*scales.shape[:-1], -1)


def changed(name, config, key, x):
    """A tensor's names and values in GGUF before its name is mapped."""
    if name == "mamba2" and key.endswith("_proj.bias"):
        # llama.cpp knows no such biases.
        return []
    if key.endswith("A_log"):
        x = -np.exp(x)
    if key.endswith("dt_bias"):
        key = key.removesuffix("dt_bias") + "dt_proj.bias"
    if "conv1d.weight" in key:
        x = x.squeeze(1)
    if name in ("gemma2", "gemma3", "qwen3next") and key.endswith("norm.weight") and "linear_attn.norm" not in key:
        x = x + 1
    if name == "llama" and ("q_proj" in key or "k_proj" in key):
        x = paired(x, config["num_attention_heads" if "q_proj" in key else "num_key_value_heads"])
    if name == "mamba2" and key.endswith(("A_log", ".D")):
        x = x.reshape(-1, 1)
    if name == "mamba2" and key.endswith("mixer.norm.weight"):
        x = x.reshape(config["n_groups"], -1)
    if key.endswith("shared_expert_gate.weight"):
        x = x.reshape(-1)
    if key.endswith("in_proj_qkvz.weight"):
        groups, keys = config["linear_num_key_heads"], config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] // groups * config["linear_value_head_dim"]
        parts = np.split(x.reshape(groups, -1, x.shape[-1]), np.cumsum([keys, keys, values]), 1)
        q, k, v, z = (part.reshape(-1, x.shape[-1]) for part in parts)
        layer = key.split(".")[2]
        return [(f"blk.{layer}.attn_qkv.weight", np.concatenate([q, k, v])), (f"blk.{layer}.attn_gate.weight", z)]
    return [(key, x)]


def write(record, path):
    """Writes a record as a file."""
    config = json.loads(record["config"].replace("Infinity", "null"))
    name = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, name)
    metadata(writer, name, config)
    writer.add_tokenizer_model("none")
    arch = next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])

    def add(key, x, **more):
        mapped = key if key.startswith("blk.") else names.get_name(key, try_suffixes=(".weight", ".bias"))
        if mapped is None:
            raise SystemExit(f"{key} has no name in GGUF")
        # Sinks and plain experts have no suffix of their own.
        if name == "gpt-oss" and not mapped.endswith((".weight", ".bias")):
            mapped += ".weight"
        writer.add_tensor(mapped, np.ascontiguousarray(x), **more)

    made = lm_models.weights(record)
    experts = {}
    for key, x in made.items():
        layer = key.split(".")[2] if ".layers." in key else ""
        if ".experts." not in key:
            for new, y in changed(name, config, key, x):
                add(new, y)
        elif name != "gpt-oss":
            stem, which, part = key.partition(".experts.")[0], *key.partition(".experts.")[2].split(".", 1)
            experts.setdefault(f"{stem}.experts.{part}", []).append((int(which), x))
        elif key.endswith("_scales"):
            continue
        else:
            packed = key.endswith("_blocks")
            bias, stem = key.endswith("_bias"), key.rpartition(".")[2]
            if packed:
                x = mxfp4(x, made[key.replace("_blocks", "_scales")])
            elif not bias:
                x = x.swapaxes(1, 2)
            parts = [("gate", x[:, 0::2]), ("up", x[:, 1::2])] if stem.startswith("gate_up") else [("down", x)]
            more = {"raw_dtype": gguf.GGMLQuantizationType.MXFP4} if packed else {}
            for part, y in parts:
                add(f"blk.{layer}.ffn_{part}_exps.{'bias' if bias else 'weight'}", y, **more)
    for key, parts in experts.items():
        add(key, np.stack([x for _, x in sorted(parts, key=lambda part: part[0])]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
