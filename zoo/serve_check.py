"""`olivine serve` against the `openai` package, which knows nothing of it.

usage: serve_check.py PROGRAM ZOO [--minutes N] [--streams N] [--slots N] [--soak-only]

PROGRAM is `olivine`, ZOO the folder that zoo/fetch filled, with smollm2 and minilm. After the checks of the API, so many streams
run for so many minutes (default: 64 and 0.4): no error, fair progress, memory that stays flat, slots of killed clients free
within a second.
"""
import argparse, atexit, json, os, random, re, signal, subprocess, sys, threading, time, urllib.request

import openai
from openai import OpenAI

KEY = "a key of this test"
WRONG = []


def check(what, holds, detail=""):
    print(("ok    " if holds else "WRONG ") + what + (f"  {detail}" if detail else ""), flush=True)
    if not holds:
        WRONG.append(what)


class Server:
    """A server on a free port, with a key."""

    def __init__(self, program, model, *options):
        keys = f"/tmp/olivine-serve-{os.getpid()}.keys"
        with open(keys, "w") as file:
            file.write(KEY + "\n")
        command = [program, "serve", model, "--port", "0", "--json", "--device", "cpu", "--api-key-file", keys, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        line = self.process.stdout.readline()
        os.remove(keys)
        if not line:
            raise SystemExit(f"the server ended with {self.process.wait()}")
        self.started = json.loads(line)
        self.url, self.name = self.started["url"], self.started["model"]

    def client(self, **options):
        options = {"api_key": KEY, "max_retries": 0, "timeout": 600, **options}
        return OpenAI(base_url=self.url + "/v1", **options)

    def get(self, path):
        request = urllib.request.Request(self.url + path, headers={"Authorization": "Bearer " + KEY})
        return urllib.request.urlopen(request, timeout=60).read().decode()

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)$", self.get("/metrics"), re.M).group(1))

    def resident(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) * 1024

    def wait(self, what, seconds, holds):
        begun = time.time()
        while not holds():
            if time.time() - begun > seconds:
                check(what, False, f"not within {seconds} s")
                return
            time.sleep(0.01)
        check(what, True, f"in {time.time() - begun:.2f} s")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=90)


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
    logprobs = complete(model=server.name, prompt=prompt, max_tokens=4, temperature=0, logprobs=0).choices[0].logprobs
    check("log-probabilities", "".join(logprobs.tokens) == greedy.choices[0].text[: len("".join(logprobs.tokens))] and all(x <= 0 for x in logprobs.token_logprobs))
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
    fails("embeddings of a language model", openai.BadRequestError, lambda: client.embeddings.create(model=server.name, input="x"))
    fails("a wrong key", openai.AuthenticationError, lambda: server.client(api_key="wrong").models.list())
    streams = [client.completions.create(model=server.name, prompt="Go on", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}) for _ in range(6)]
    fails("a full queue", openai.RateLimitError, lambda: chat(model=server.name, messages=hello))
    for stream in streams:
        stream.close()
    server.wait("streams that are closed free slots and queue", 1, lambda: server.metric("olivine_slots_busy") == server.metric("olivine_queue_length") == 0)
    check("and the server is well", json.loads(server.get("/health"))["status"] == "ok" and server.metric("olivine_step_errors_total") == 0)


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


def soak(program, model, streams, slots, minutes):
    """Clients that come, read, leave and come again. Caches are of a fixed size, so that other memory that grows shows."""
    server = Server(program, model, "--slots", str(slots), "--queue", str(2 * streams), "--context", "1024", "--cache-tokens", "8192", "--drain", "5")
    counts, problems, killed = [0] * streams, [], [0]
    end = time.time() + 60 * minutes
    first = time.time() + 20 * minutes

    def one(i):
        # All ask for as many tokens, so that what they get can be compared.
        random_ = random.Random(i)
        client = server.client()
        try:
            while time.time() < end:
                prompt = "word " * random_.randint(1, 60) + "and then"
                stream = client.completions.create(model=server.name, prompt=prompt, max_tokens=32, stream=True, extra_body={"ignore_eos": True}, seed=i)
                leave = random_.random() < 0.1
                for n, chunk in enumerate(stream):
                    # A chunk with text is a token, or a few where characters take several.
                    counts[i] += bool(chunk.choices and chunk.choices[0].text)
                    if leave and n == 5:
                        stream.close()
                        killed[0] += 1
                        break
                    if time.time() > end:
                        stream.close()
                        break
        except Exception as error:  # whatever it is, it is to be reported
            problems.append(repr(error))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(streams)]
    for thread in threads:
        thread.start()
    memory = []
    while time.time() < end:
        time.sleep(min(5, 60 * minutes / 10))
        if time.time() > first:
            memory.append(server.resident())
    for thread in threads:
        thread.join()
    tokens = server.metric("olivine_generated_tokens_total")
    check(f"{streams} streams on {slots} slots for {minutes:g} minutes without an error", not problems, f"{tokens:.0f} tokens, {killed[0]} clients left, {problems[:2]}")
    server.wait("all slots are free within a second", 1, lambda: server.metric("olivine_slots_busy") == server.metric("olivine_queue_length") == 0)
    check("progress is fair", min(counts) > 0 and max(counts) <= 3 * min(counts) + 30, f"{min(counts)} to {max(counts)} tokens a stream")
    grown = memory[-1] - memory[0]
    check("memory is flat", grown < 64 << 20, f"{memory[0] >> 20} MiB, later {memory[-1] >> 20} MiB")
    check("no step failed", server.metric("olivine_step_errors_total") == 0 and json.loads(server.get("/health"))["status"] == "ok")
    check("SIGTERM ends it", server.stop() == 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("zoo")
    parser.add_argument("--minutes", type=float, default=0.4)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--soak-only", action="store_true")
    args = parser.parse_args()
    model = os.path.join(args.zoo, "smollm2/model.gguf")
    if not args.soak_only:
        server = Server(args.program, model, "--slots", "4", "--queue", "2", "--logprobs", "--context", "4096", "--alias", "smollm2")
        texts(server, args.program, model)
        errors(server)
        check("SIGTERM ends it", server.stop() == 0)
        embeddings(args.program, os.path.join(args.zoo, "minilm"))
    soak(args.program, model, args.streams, args.slots, args.minutes)
    if WRONG:
        raise SystemExit(f"{len(WRONG)} checks failed: {WRONG}")


main()
