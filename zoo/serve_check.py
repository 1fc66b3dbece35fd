"""`olivine serve` against the `openai` package, which knows nothing of it; then bad input, then many streams.

usage: serve_check.py PROGRAM ZOO [--minutes N] [--streams N] [--slots N] [--soak-only]

PROGRAM is `olivine`, ZOO the folder that zoo/fetch filled, with smollm2, minilm and stories15m. The checks of the API need `openai`,
the model of the soak `gguf` and `numpy`. serve_bad_input.py and serve_soak.py say what is checked after the API; the soak is so many
streams on so many slots for so many minutes (default: 64 on 48 for 0.4), with caches that grow and requests of many lengths.
"""
import argparse, json, os, subprocess, tempfile

import openai

from serve_bad_input import bad_input
from serve_process import WRONG, Server, check
from serve_soak import soak

# How Qwen writes tools and calls, which is Hermes' way.
TOOLS_TEMPLATE = """{%- if tools %}<|im_start|>system
You may call tools. They are given as JSON:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
For each call, return JSON within tags: <tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def fails(what, kind, call):
    try:
        call()
        check(what, False, "it succeeds")
    except kind as error:
        check(what, True, str(error)[:100])
    except openai.APIError as error:
        check(what, False, repr(error)[:200])


def texts(server, program, model):
    client = server.client()
    chat, complete = client.chat.completions.create, client.completions.create
    check("models", [m.id for m in client.models.list()] == [server.name] and client.models.retrieve(server.name).id == server.name)
    prompt = "The capital of France is"
    greedy = complete(model=server.name, prompt=prompt, max_tokens=16, temperature=0)
    own = subprocess.run([program, "generate", model, "-p", prompt, "-n", "16", "--device", "cpu", "--json"], capture_output=True, text=True, check=True)
    check("a greedy completion is that of `olivine generate`", greedy.choices[0].text == json.loads(own.stdout)["text"], repr(greedy.choices[0].text))
    check("and knows Paris", "Paris" in greedy.choices[0].text)
    check("usage", greedy.usage.completion_tokens == 16 and greedy.usage.total_tokens == 16 + greedy.usage.prompt_tokens)
    both = complete(model=server.name, prompt=[prompt, "Once upon a time"], max_tokens=8, n=2, seed=1, echo=True)
    check("two prompts with two choices each", [c.index for c in both.choices] == [0, 1, 2, 3] and both.choices[3].text.startswith("Once upon a time"))
    logprobs = complete(model=server.name, prompt=prompt, max_tokens=4, temperature=0, logprobs=3).choices[0].logprobs
    check("log-probabilities", "".join(logprobs.tokens) == greedy.choices[0].text[: len("".join(logprobs.tokens))] and all(x <= 0 for x in logprobs.token_logprobs))
    check("the likeliest tokens", all(len(top) == 3 and max(top, key=top.get) == token for token, top in zip(logprobs.tokens, logprobs.top_logprobs)))
    top = chat(model=server.name, messages=[{"role": "user", "content": "hi"}], max_tokens=3, temperature=0, logprobs=True, top_logprobs=20).choices[0].logprobs.content
    check("and those of a chat", all(len(t.top_logprobs) == 20 and t.top_logprobs[0].token == t.token and abs(t.top_logprobs[0].logprob - t.logprob) < 1e-5 for t in top))
    stopped = complete(model=server.name, prompt="1, 2, 3, 4,", max_tokens=40, temperature=0, stop=[" 8", "9,"])
    check("a stop string", stopped.choices[0].finish_reason == "stop" and "8" not in stopped.choices[0].text, repr(stopped.choices[0].text))

    messages = [{"role": "system", "content": "You answer in one sentence."}, {"role": "user", "content": "What is the sun? Use an emoji ☀️ é."}]
    whole = chat(model=server.name, messages=messages, max_tokens=24, temperature=0)
    stream = chat(model=server.name, messages=messages, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True})
    parts, usage, reasons = [], None, []
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            reasons += [choice.finish_reason] if choice.finish_reason else []
    check("a streamed chat is the whole one", "".join(parts) == whole.choices[0].message.content and len(parts) > 5, repr("".join(parts)))
    check("its usage and its end", usage == whole.usage and reasons == [whole.choices[0].finish_reason])
    draws = [chat(model=server.name, messages=messages, max_tokens=12, temperature=1.5, seed=s).choices[0].message.content for s in (1, 1, 2)]
    check("seeds reproduce", draws[0] == draws[1] != draws[2])
    biased = chat(model=server.name, messages=messages, max_tokens=5, temperature=0, logit_bias={"28": 100}, extra_body={"top_k": 5, "min_p": 0.1})
    check("biases", len(set(biased.choices[0].message.content)) == 1, repr(biased.choices[0].message.content))
    answer = chat(model=server.name, messages=[{"role": "user", "content": "Write a JSON object with the keys name and age."}], max_tokens=120, temperature=0, response_format={"type": "json_object"})
    said = answer.choices[0].message.content
    valid = said.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        valid = isinstance(json.loads(said), dict)
    check("JSON", valid, f"{answer.choices[0].finish_reason}: {said[:80]!r}")
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    parsed = client.chat.completions.parse(model=server.name, messages=[{"role": "user", "content": "Ann is 31 years old."}], max_tokens=400, temperature=0, response_format=Person)
    person = parsed.choices[0].message.parsed
    check("a schema of pydantic", parsed.choices[0].finish_reason == "stop" and isinstance(person, Person), repr(person))


def errors(server):
    client = server.client()
    chat = client.chat.completions.create
    hello = [{"role": "user", "content": "hello"}]
    fails("a prompt over the context", openai.BadRequestError, lambda: chat(model=server.name, messages=[{"role": "user", "content": "word " * 9000}]))
    fails("an unknown model", openai.NotFoundError, lambda: chat(model="gpt-9", messages=hello))
    fails("a temperature out of range", openai.BadRequestError, lambda: chat(model=server.name, messages=hello, temperature=7))
    fails("an unknown role", openai.BadRequestError, lambda: chat(model=server.name, messages=[{"role": "alien", "content": "x"}]))
    fails("a parameter that nobody knows", openai.BadRequestError, lambda: chat(model=server.name, messages=hello, extra_body={"tempreature": 1}))
    fails("embeddings of a language model", openai.BadRequestError, lambda: client.embeddings.create(model=server.name, input="x"))
    fails("a wrong key", openai.AuthenticationError, lambda: server.client(api_key="wrong").models.list())
    streams = [client.completions.create(model=server.name, prompt="Go on", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}) for _ in range(6)]
    fails("a full queue", openai.RateLimitError, lambda: chat(model=server.name, messages=hello))
    for stream in streams:
        stream.close()
    server.wait("streams that are closed free slots and queue", 1, server.is_idle)
    check("and the server is well", server.is_well())


def embeddings(program, model):
    server = Server(program, model, "--alias", "minilm")
    client = server.client()
    texts = ["A cat sits on the mat.", "A kitten is resting on a rug.", "Stock prices fell sharply on Monday."]
    packed = [e.embedding for e in client.embeddings.create(model="minilm", input=texts).data]
    plain = [e.embedding for e in client.embeddings.create(model="minilm", input=texts, encoding_format="float").data]
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    check("base64 and floats agree", all(abs(x - y) < 1e-6 for a, b in zip(packed, plain) for x, y in zip(a, b)) and len(plain[0]) == 384)
    check("what means the same is near", dot(plain[0], plain[1]) > 0.5 > 0.2 > dot(plain[0], plain[2]), f"{dot(plain[0], plain[1]):.3f} {dot(plain[0], plain[2]):.3f}")
    fails("chats with an encoder", openai.BadRequestError, lambda: client.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "x"}]))
    check("SIGTERM ends it", server.stop() == 0)


def tools(program, model):
    """Tools by the `openai` package: calls that are forced, streamed, and answered."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(TOOLS_TEMPLATE)
        file.flush()
        server = Server(program, model, "--slots", "2", "--context", "2048", "--alias", "smollm2", "--chat-template", file.name)
    client = server.client()
    chat = client.chat.completions.create
    parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["city", "unit"]}
    weather = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": parameters}}
    clock = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
    asked = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
    more = {"model": server.name, "messages": asked, "tools": [weather, clock], "temperature": 0, "max_tokens": 200}
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole = chat(tool_choice=named, **more).choices[0]
    call = whole.message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    good = whole.finish_reason == "tool_calls" and whole.message.content is None and call.function.name == "get_weather" and set(arguments) == {"city", "unit"}
    check("a tool that is named is called", good, call.function.arguments)
    with client.chat.completions.stream(tool_choice=named, **more) as stream:
        events = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    same = final.message.tool_calls[0].function
    check("a streamed call is the whole one", len(events) > 3 and (same.name, same.arguments, final.finish_reason) == ("get_weather", call.function.arguments, "tool_calls"), f"{len(events)} parts")
    required = chat(tool_choice="required", **more).choices[0].message.tool_calls[0].function
    check("a call that is required", required.name in ("get_weather", "get_time") and isinstance(json.loads(required.arguments), dict), f"{required.name} {required.arguments}")
    answered = [*asked, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "22 degrees and sunny"}]
    answer = chat(**{**more, "messages": answered}, tool_choice="none").choices[0]
    check("a tool's answer is read", answer.finish_reason in ("stop", "length") and bool(answer.message.content) and not answer.message.tool_calls, repr(answer.message.content)[:80])
    auto = chat(**more, n=2, seed=1).choices
    check("the model may call or not", all(bool(c.message.tool_calls) == (c.finish_reason == "tool_calls") or c.finish_reason == "length" for c in auto), repr(auto[0].message.content)[:80])
    check("SIGTERM ends it", server.stop() == 0)


def stories(zoo):
    """The smallest model, as GGUF."""
    from lm_zoo import write_stories

    folder = os.path.join(zoo, "stories15m")
    path = os.path.join(folder, "model.gguf")
    if not os.path.exists(path):
        write_stories(os.path.join(folder, "stories15M.bin"), path + ".part", os.path.join(folder, "tokenizer.bin"))
        os.rename(path + ".part", path)
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("zoo")
    parser.add_argument("--minutes", type=float, default=0.4)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--slots", type=int, default=48)
    parser.add_argument("--soak-only", action="store_true")
    args = parser.parse_args()
    model = os.path.join(args.zoo, "smollm2/model.gguf")
    if not args.soak_only:
        server = Server(args.program, model, "--slots", "4", "--queue", "2", "--logprobs", "--context", "4096", "--alias", "smollm2")
        texts(server, args.program, model)
        errors(server)
        check("SIGTERM ends it", server.stop() == 0)
        embeddings(args.program, os.path.join(args.zoo, "minilm"))
        tools(args.program, model)
        server = Server(args.program, model, "--slots", "4", "--queue", "64", "--client-timeout", "2", "--drain", "2", "--context", "1024", "--alias", "smollm2")
        bad_input(server, 2)
        check("SIGTERM ends it", server.stop() == 0)
    soak(args.program, stories(args.zoo), args.streams, args.slots, args.minutes)
    if WRONG:
        raise SystemExit(f"{len(WRONG)} checks failed: {WRONG}")


main()
