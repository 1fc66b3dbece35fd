"""A folder of a BERT encoder as a GGUF file, by the names and the vocabulary of llama.cpp's converter.

usage: bert_gguf.py FOLDER OUT.gguf      (needs `pip install gguf numpy safetensors`)
"""
import json, os, sys

import gguf
import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd", "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}  # fmt: skip
PARTS = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip


def gguf_name(name):
    path, kind = name.rsplit(".", 1)
    if path in NAMES:
        return f"{NAMES[path]}.{kind}"
    words = path.split(".", 3)
    if words[:2] == ["encoder", "layer"] and words[3] in PARTS:
        return f"blk.{words[2]}.{PARTS[words[3]]}.{kind}"
    return None


def write_bert(folder, path):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(folder, "vocab.txt")) as file:
        words = file.read().split("\n")[: config["vocab_size"]]
    writer = gguf.GGUFWriter(path, "bert")
    for key, value in [
        ("context_length", config["max_position_embeddings"]), ("embedding_length", config["hidden_size"]), ("block_count", config["num_hidden_layers"]),
        ("feed_forward_length", config["intermediate_size"]), ("attention.head_count", config["num_attention_heads"]), ("pooling_type", 1),
    ]:  # fmt: skip
        writer.add_uint32(f"bert.{key}", value)
    writer.add_float32("bert.attention.layer_norm_epsilon", config["layer_norm_eps"])
    writer.add_bool("bert.attention.causal", False)
    special = {word for word in words if word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    # A word begins with ▁ where the vocabulary of BERT marks those that do not begin one.
    spaced = [word if word in special or word.startswith("[unused") else word[2:] if word.startswith("##") else "▁" + word for word in words]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(spaced)
    writer.add_token_types([gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words])
    writer.add_token_type_count(config["type_vocab_size"])
    for name, word in [("unknown", "[UNK]"), ("seperator", "[SEP]"), ("padding", "[PAD]"), ("cls", "[CLS]"), ("mask", "[MASK]"), ("bos", "[CLS]"), ("eos", "[SEP]")]:
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", words.index(word))
    for name, tensor in load_file(os.path.join(folder, "model.safetensors")).items():
        there = gguf_name(name.removeprefix("bert."))
        if there:
            writer.add_tensor(there, tensor.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write_bert(sys.argv[1], sys.argv[2])
