"""Language models of the zoo beside what is known of them: stories15m, minilm and smollm2's perplexity beside llama.cpp's."""
import ctypes, os, struct

import gguf
import numpy as np

import lm_models

TEXT, WINDOW = "LICENSE-APACHE", 512
# What stories15m says after the token that begins a text, by NumPy in f64; the best token leads by 0.14 at least. Its text begins
# "Once upon a time, there was a little girl named Lily."
STORY = [
    9038, 2501, 263, 931, 29892, 727, 471, 263, 2217, 7826, 4257, 365, 2354, 29889, 2296, 18012, 304, 1708, 5377, 297, 278, 6575, 845, 457, 29889, 3118,
    2462, 29892, 1183, 4446, 263, 4802, 29892, 2654, 8287, 297, 278, 14744, 29889, 739, 471, 278, 6575, 29991, 2296, 2714, 372, 471,
]  # fmt: skip
# Sentences of minilm's model card, and cosines of the first with the others.
SENTENCES = ["that is a happy person", "that is a happy dog", "that is a very happy person", "today is a sunny day"]
COSINES = [0.6946, 0.9429, 0.2569]


def add_tokenizer(writer, source):
    """The tokenizer of llama2.c: scores and texts, whose spaces SentencePiece writes as ▁."""
    with open(source, "rb") as file:
        content = file.read()
    texts, scores, at = [], [], 4
    while at < len(content):
        score, length = struct.unpack_from("fi", content, at)
        texts.append(content[at + 8 : at + 8 + length].decode(errors="replace").replace(" ", "▁"))
        scores.append(score)
        at += 8 + length
    special, bytes_ = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = special + bytes_ + texts[259:]
    kinds = ["UNKNOWN", "CONTROL", "CONTROL"] + ["BYTE"] * 256 + ["NORMAL"] * (len(texts) - 259)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types([gguf.TokenType[kind] for kind in kinds])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_stories(source, path, tokenizer=None):
    """A checkpoint of llama2.c as GGUF, which orders rows of q and k in the same way; with its tokenizer, if that is given."""
    with open(source, "rb") as file:
        content = file.read()
    dim, feed, layers, heads, kv_heads, vocabulary, context = struct.unpack("7i", content[:28])
    numbers, kv = np.frombuffer(content, np.float32, offset=28), kv_heads * dim // heads
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in [
        ("context_length", context), ("embedding_length", dim), ("block_count", layers), ("feed_forward_length", feed), ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads), ("rope.dimension_count", dim // heads), ("vocab_size", vocabulary),
    ]:  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    at = 0

    def take(*shape):
        nonlocal at
        begin, at = at, at + int(np.prod(shape))
        return numbers[begin:at].reshape(shape)

    writer.add_tensor("token_embd.weight", take(vocabulary, dim))
    for name, *shape in [
        ("attn_norm", dim), ("attn_q", dim, dim), ("attn_k", kv, dim), ("attn_v", kv, dim), ("attn_output", dim, dim), ("ffn_norm", dim),
        ("ffn_gate", feed, dim), ("ffn_down", dim, feed), ("ffn_up", feed, dim),
    ]:  # fmt: skip
        for layer in range(layers):
            writer.add_tensor(f"blk.{layer}.{name}.weight", take(*shape))
    writer.add_tensor("output_norm.weight", take(dim))
    add_tokenizer(writer, tokenizer) if tokenizer else writer.add_tokenizer_model("none")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cosines(check, model, folder):
    """Cosines of minilm's embeddings."""
    with open(os.path.join(model, "vocab.txt")) as file:
        ids = {word.rstrip("\n"): i for i, word in enumerate(file)}
    rows = [[ids[word] for word in ["[CLS]", *sentence.split(), "[SEP]"]] for sentence in SENTENCES]
    made = []
    for row in rows:
        inputs = {"input_ids": [row], "attention_mask": [[1] * len(row)], "token_type_ids": [[0] * len(row)]}
        embedding = check.outputs(model, inputs, folder)["sentence_embedding"][0]
        made.append(embedding / np.linalg.norm(embedding))
    return [float(made[0] @ row) for row in made[1:]]


def write_decoded(source, path):
    """A file with the same weights in f32: with packed ones llama.cpp rounds activations to 8 bits."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        decoded = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, decoded.reshape(tensor.shape[::-1].tolist()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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


def perplexity(llama, logits_of):
    """llama.cpp's of a licence, in windows of which the second half counts, and how many tokens that are."""
    tokens, vocabulary = tokenized(llama, os.path.join(lm_models.ROOT, TEXT))
    total, count = 0.0, 0
    for at in range(0, len(tokens) - WINDOW + 1, WINDOW):
        window = tokens[at : at + WINDOW]
        logits = logits_of(llama, window, vocabulary).astype(np.float64)[WINDOW // 2 : -1]
        most = logits.max(1)
        chosen = logits[np.arange(len(logits)), window[WINDOW // 2 + 1 :]]
        scores = chosen - most - np.log(np.exp(logits - most[:, None]).sum(1))
        total, count = total - scores.sum(), count + len(scores)
    return float(np.exp(total / count)), count
