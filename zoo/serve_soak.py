"""Many streams for long: clients that come, read, leave and come again, with prompts and texts of many lengths.

usage: serve_soak.py PROGRAM MODEL.gguf [--minutes N] [--streams N] [--slots N] [--cache-tokens N] [--log FILE]

Checked are
  - errors: none, of any request or step;
  - texts: a request that is sent again and again has the text that it had alone, whoever shares its batch;
  - lengths: every request that is read to its end has as many tokens as it asked for;
  - pace: every sequence that decodes has a token for nearly each step of the server;
  - gaps: no sequence waits for its next token for much longer than steps take;
  - order: no request waits for its first token for more steps than the longest text of those before it and all their prompts take, or
    has it long after those that came later;
  - leaving: sequences of clients that left are cancelled within a second, or two steps where these take longer;
  - memory: resident memory less the caches, which grow with what sequences need, stays flat after the first third.
"""
import argparse, bisect, http.client, json, random, statistics, threading, time

from serve_process import KEY, WRONG, Server, check

WATCHED = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 1.1, "seed": 7}
LONGEST = 110
FLAT = 32 << 20


def request(prompt, max_tokens, **more):
    return {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True, **more}


class Stream:
    """A completion that is streamed; times are those at which its parts came."""

    def __init__(self, server, body, end=None, leave=None):
        host, port = server.address
        connection = http.client.HTTPConnection(host, int(port), timeout=600)
        self.sent, self.text, self.times, self.whole, self.gone = time.time(), "", [], False, None
        self.asked = body["max_tokens"]
        body = {**body, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "Authorization": "Bearer " + KEY})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read()[:200]}")
        for line in response:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                break
            event = json.loads(data)
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            if event["choices"] and event["choices"][0]["text"]:
                self.text += event["choices"][0]["text"]
                self.times.append(time.time())
            if event.get("usage"):
                self.whole, self.tokens = True, event["usage"]["completion_tokens"]
            if (leave is not None and len(self.times) > leave) or (end is not None and time.time() > end):
                self.gone = time.time()
                break
        response.close()
        connection.close()


class Steps:
    """How many steps a server has done at any time. They are what is compared: seconds depend on what else the machine does."""

    def __init__(self, server):
        self.server, self.times, self.counts, self.ended = server, [], [], False
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()

    def sample(self):
        while not self.ended:
            before = time.time()
            count = self.server.metric("olivine_steps_total")
            self.times.append((before + time.time()) / 2)
            self.counts.append(count)
            time.sleep(0.2)

    def end(self):
        self.ended = True
        self.thread.join()

    def at(self, when):
        i = bisect.bisect(self.times, when)
        if i == 0 or i == len(self.times):
            return self.counts[max(0, i - 1)]
        part = (when - self.times[i - 1]) / (self.times[i] - self.times[i - 1])
        return self.counts[i - 1] + part * (self.counts[i] - self.counts[i - 1])

    def between(self, begin, end):
        return self.at(end) - self.at(begin)


class Soak:
    def __init__(self, server, streams, minutes):
        self.server, self.end, self.begun = server, time.time() + 60 * minutes, time.time()
        self.done, self.problems, self.others, self.left, self.lock = [], [], 0, 0, threading.Lock()
        self.alone = Stream(server, request(**WATCHED)).text
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(streams)]
        self.by_client = [0] * streams

    def client(self, i):
        random_ = random.Random(i)
        try:
            while time.time() < self.end:
                if random_.random() < 0.1:
                    stream = Stream(self.server, request(**WATCHED), self.end)
                    with self.lock:
                        self.others += stream.whole and stream.text != self.alone
                else:
                    # Clients differ in what they ask for: some always for a few tokens, some always for many.
                    length = random_.choice([2, 8, 32, 100]) if i % 4 == 0 else [4, 24, LONGEST][i % 4 - 1]
                    prompt = "word " * random_.randint(1, 60) + "and then"
                    # Of long texts only: what is done cannot be cancelled.
                    leave = 2 if length >= 100 and random_.random() < 0.3 else None
                    stream = Stream(self.server, request(prompt, length, seed=i), self.end, leave)
                with self.lock:
                    self.left += stream.gone is not None and stream.gone < self.end
                self.by_client[i] += len(stream.times)
                self.done.append(stream)
        except Exception as error:  # whatever it is, it is to be reported
            self.problems.append(repr(error))

    def cancelled(self, left, steps):
        """Whether so many clients' sequences are cancelled within a second, or two steps where these take longer."""
        begun = time.time()
        while True:
            metrics = self.server.metrics()
            if metrics["olivine_cancelled_sequences_total"] >= left:
                return True
            waited = time.time() - begun
            if waited > 60 or (waited > 1 and metrics["olivine_steps_total"] > steps + 2):
                return False
            time.sleep(0.05)

    def run(self, log):
        self.steps = Steps(self.server)
        for thread in self.threads:
            thread.start()
        samples, late = [], 0
        while time.time() < self.end:
            time.sleep(min(5, (self.end - self.begun) / 12))
            left = self.left
            metrics = self.server.metrics()
            if metrics["olivine_cancelled_sequences_total"] < left:
                late += not self.cancelled(left, metrics["olivine_steps_total"])
            resident, caches = metrics["process_resident_memory_bytes"], metrics["olivine_cache_bytes"]
            samples.append((time.time() - self.begun, resident, caches))
            line = {"seconds": round(samples[-1][0], 1), "resident_mib": round(resident / 2**20, 1), "caches_mib": round(caches / 2**20, 1)}
            for name in ("generated_tokens_total", "steps_total", "plans", "slots_busy", "queue_length", "connections", "cancelled_sequences_total"):
                line[name] = int(metrics["olivine_" + name])
            if log:
                print(json.dumps(line), file=log, flush=True)
        for thread in self.threads:
            thread.join()
        self.steps.end()
        return samples, late


def soak(program, model, streams, slots, minutes, cache_tokens=None, log=None):
    fixed = ["--cache-tokens", str(cache_tokens)] if cache_tokens else []
    server = Server(program, model, "--slots", str(slots), "--queue", str(2 * streams), "--context", "256", "--drain", "5", *fixed)
    run = Soak(server, streams, minutes)
    samples, late = run.run(log)
    metrics, done = server.metrics(), run.done
    step = metrics["olivine_step_seconds_sum"] / metrics["olivine_steps_total"]
    what = f"{len(done)} requests, {metrics['olivine_generated_tokens_total']:.0f} tokens, steps of {step:.3f} s, {run.left} clients left, {run.problems[:2]}"
    check(f"{streams} streams on {slots} slots for {minutes:g} minutes without an error", not run.problems and min(run.by_client) > 0, what)
    server.wait("all slots are free within a second", 1, server.is_idle)
    watched = sum(stream.whole and stream.asked == WATCHED["max_tokens"] for stream in done)
    check("texts do not depend on who shares the batch", run.others == 0, f"{run.others} of {watched} differ")
    short = [stream for stream in done if stream.whole and stream.tokens != stream.asked]
    check("every request has the tokens that it asked for", not short and watched, f"{len(short)} of {sum(s.whole for s in done)} have not")
    paces = [(stream.tokens - 1) / max(1, run.steps.between(stream.times[0], stream.times[-1])) for stream in done if stream.whole and stream.tokens > 20]
    check("those that decode have a token a step", min(paces) > 0.6, f"{min(paces):.2f} tokens a step at least, {statistics.median(paces):.2f} in the middle")
    gap = max(b - a for s in done for a, b in zip(s.times, s.times[1:]))
    check("no sequence waits long for its next token", gap < 20 * step + 2, f"{gap:.2f} s at most")
    begun = sorted((s.sent, s.times[0]) for s in done if s.times)
    overtaken, earliest = 0.0, float("inf")
    for sent, first in reversed(begun):
        if first > earliest:
            overtaken = max(overtaken, run.steps.between(earliest, first))
        earliest = min(earliest, first)
    waits = [run.steps.between(sent, first) for sent, first in begun]
    detail = f"{statistics.median(waits):.0f} steps in the middle, {max(waits):.0f} at most, {max(b - a for a, b in begun):.2f} s at most; overtaken by {overtaken:.0f} steps at most"
    check("slots are given in the order of arrival", max(waits) < LONGEST + 2 * streams and overtaken < streams, detail)
    check("clients that leave are cancelled within a second or two steps", late == 0, f"{run.left} left")
    settled = [(resident, caches) for at, resident, caches in samples if at > 20 * minutes]
    others = [resident - caches for resident, caches in settled]
    (first, _), (last, caches) = settled[0], settled[-1]
    grown = max(others[len(others) // 2 :]) - max(others[: max(1, len(others) // 2)])
    detail = f"{first / 2**20:.0f} MiB, later {last / 2**20:.0f} MiB, of which caches {settled[0][1] / 2**20:.0f} and {caches / 2**20:.0f} MiB"
    check("memory beside the caches is flat", grown < FLAT, detail)
    check("no step failed", server.is_well())
    check("SIGTERM ends it", server.stop() == 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--slots", type=int, default=48)
    parser.add_argument("--cache-tokens", type=int)
    parser.add_argument("--log")
    args = parser.parse_args()
    log = open(args.log, "w") if args.log else None
    soak(args.program, args.model, args.streams, args.slots, args.minutes, args.cache_tokens, log)
    if WRONG:
        raise SystemExit(f"{len(WRONG)} checks failed: {WRONG}")


if __name__ == "__main__":
    main()
