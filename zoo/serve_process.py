"""A server that runs for a check, and how checks report."""
import atexit, json, os, re, signal, subprocess, time, urllib.request

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
        self.address = re.fullmatch(r"http://(.+):(\d+)/?", self.url).groups()

    def client(self, **options):
        from openai import OpenAI

        options = {"api_key": KEY, "max_retries": 0, "timeout": 600, **options}
        return OpenAI(base_url=self.url + "/v1", **options)

    def get(self, path):
        request = urllib.request.Request(self.url + path, headers={"Authorization": "Bearer " + KEY})
        return urllib.request.urlopen(request, timeout=60).read().decode()

    def metrics(self):
        return {name: float(value) for name, value in re.findall(r"^([^#\s]+) (\S+)$", self.get("/metrics"), re.M)}

    def metric(self, name):
        return self.metrics()[name]

    def is_idle(self):
        metrics = self.metrics()
        return metrics["olivine_slots_busy"] == metrics["olivine_queue_length"] == 0

    def is_well(self):
        return json.loads(self.get("/health"))["status"] == "ok" and self.metric("olivine_step_errors_total") == 0

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
