"""What a server must survive: each of these is answered with a 4xx whose JSON says why, or loses its connection; nothing leaks."""
import json, os, socket, threading, time

from serve_process import KEY, check

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def head(path, length, kind="application/json"):
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Authorization: Bearer {KEY}", f"Content-Type: {kind}", f"Content-Length: {length}", "Connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def connect(server):
    host, port = server.address
    return socket.create_connection((host, int(port)), timeout=60)


def received(stream):
    """Everything until the connection ends, and whether it ended with a reset."""
    parts = []
    try:
        while part := stream.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def answer(raw):
    """The status of a response and its JSON."""
    top, _, body = raw.partition(b"\r\n\r\n")
    status = int(top.split(b" ")[1]) if top.startswith(b"HTTP/1.1 ") else None
    try:
        return status, json.loads(body)
    except ValueError:
        return status, None


def post(server, path, body):
    with connect(server) as stream:
        try:
            stream.sendall(head(path, len(body)) + body)
        except ConnectionError:
            pass  # it may have been answered before all was sent
        return answer(received(stream))


def refused(server, what, path, body, statuses=(400,), param=None):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, said = post(server, path, body)
    error = (said or {}).get("error", {})
    good = status in statuses and bool(error.get("message")) and (param is None or error.get("param") == param)
    check(f"refused: {what}", good, f"{status} {error.get('param') or ''} {str(error.get('message'))[:90]}")


def chat(**more):
    return {"messages": HELLO, "max_tokens": 2, **more}


def raw(text):
    """A chat with a field that Python's JSON cannot write."""
    return ('{"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, ' + text + "}").encode()


def bodies(server):
    for name, body in [
        ("no body", b""), ("bytes that are not UTF-8", b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'),
        ("half a character", b'{"messages": [{"role": "user", "content": "\xc3"}]}'), ("NUL bytes", b"\0" * 100), ("half of JSON", b'{"messages": ['),
        ("two values", b"{} {}"), ("an array", b"[]"), ("a number", b"1"),
        ("brackets nested deeply", b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"), ("objects nested deeply", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        ("brackets that do not end", b"[" * 1_000_000),
    ]:  # fmt: skip
        refused(server, name, CHAT, body)
    deep = '{"type":"array","items":' * 2000 + '{"type":"string"}' + "}" * 2000
    refused(server, "a schema nested deeply", CHAT, raw('"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": ' + deep + "}}"))
    for size in (5 << 20, 100 << 20):
        refused(server, f"{size >> 20} MiB", CHAT, b'{"messages": "' + b"x" * size + b'"}', (413,))
    check("refused: another type", answer_of_type(server) == 415)
    with connect(server) as stream:
        # A body without a length that never ends.
        stream.sendall(head(CHAT, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        try:
            for _ in range(200):
                stream.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        except ConnectionError:
            pass
        status, _ = answer(received(stream))
        check("refused: chunks without end", status in (413, None), str(status))


def answer_of_type(server):
    with connect(server) as stream:
        stream.sendall(head(CHAT, 2, "text/plain") + b"{}")
        return answer(received(stream))[0]


def numbers(server):
    for text, param in [
        ('"max_tokens": 9223372036854775808', "max_tokens"), ('"max_tokens": 1e400', None), ('"max_tokens": -1', "max_tokens"), ('"max_tokens": 1.5', "max_tokens"),
        ('"max_tokens": "2"', "max_tokens"), ('"max_completion_tokens": -9223372036854775809', "max_completion_tokens"), ('"temperature": NaN', None), ('"temperature": Infinity', None),
        ('"temperature": 1e308', "temperature"), ('"temperature": 1e999', None), ('"temperature": -0.1', "temperature"), ('"temperature": "hot"', "temperature"),
        ('"temperature": [1]', "temperature"), ('"top_p": 1.1', "top_p"), ('"top_p": -1e-9', "top_p"), ('"n": 1000000000', "n"), ('"n": 0', "n"), ('"n": -1', "n"), ('"n": 99999999999999999999', "n"),
        ('"seed": 1e300', "seed"), ('"seed": "x"', "seed"), ('"frequency_penalty": 2.5', "frequency_penalty"), ('"presence_penalty": -3', "presence_penalty"),
        ('"top_logprobs": 21, "logprobs": true', "top_logprobs"), ('"logit_bias": {"1": 1e9}', "logit_bias"), ('"logit_bias": {"-1": 1}', "logit_bias"), ('"logit_bias": {"99999999": 1}', None),
        ('"logit_bias": {"x": 1}', "logit_bias"), ('"logit_bias": []', "logit_bias"), ('"stop": 5', "stop"), ('"stop": [""]', "stop"), ('"stop": ["a", 5]', "stop"),
        ('"stop": ' + json.dumps(["x"] * 1000), "stop"), ('"stream": "yes"', "stream"), ('"stream_options": {"include_usage": true}', "stream_options"),
    ]:  # fmt: skip
        refused(server, text[:60], CHAT, raw(text), (400,), param)
    # More than the context is as much as fits.
    status, said = post(server, TEXT, b'{"prompt": "1, 2, 3", "max_tokens": 9223372036854775807, "stop": ","}')
    check("2^63 - 1 tokens are as many as fit", status == 200, str(said)[:80])


def messages(server):
    for name, body in [
        ("no messages", {}), ("empty messages", {"messages": []}), ("messages that are none", {"messages": "hello"}), ("a message that is none", {"messages": ["hello"]}),
        ("no role", {"messages": [{"content": "x"}]}), ("an unknown role", {"messages": [{"role": "alien", "content": "x"}]}), ("a role that is a number", {"messages": [{"role": 1, "content": "x"}]}),
        ("no content", {"messages": [{"role": "user"}]}), ("content that is null", {"messages": [{"role": "user", "content": None}]}), ("content that is a number", {"messages": [{"role": "user", "content": 5}]}),
        ("an unknown part", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}), ("20,000 messages", {"messages": HELLO * 20_000}),
        ("a parameter that nobody knows", chat(tempreature=1)), ("one that is not supported", chat(modalities=["audio"])), ("functions", chat(functions=[{"name": "f"}])),
        ("a response format that is none", chat(response_format="json")), ("an unknown one", chat(response_format={"type": "xml"})), ("template variables that are none", chat(chat_template_kwargs=5)),
        ("tools that are none", chat(tools="x")), ("a tool without a function", chat(tools=[{"type": "function"}])), ("a choice of an unknown tool", chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice={"type": "function", "function": {"name": "g"}})),
    ]:  # fmt: skip
        refused(server, name, CHAT, body)
    for name, body in [
        ("no prompt", {}), ("an empty array", {"prompt": []}), ("an empty array of tokens", {"prompt": [[]]}), ("a token below 0", {"prompt": [-1]}), ("a token past all", {"prompt": [2**40]}),
        ("a prompt that is a number", {"prompt": 5}), ("1,000 prompts", {"prompt": ["x"] * 1000}), ("a suffix", {"prompt": "x", "suffix": "y"}), ("best_of", {"prompt": "x", "best_of": 3}),
    ]:  # fmt: skip
        refused(server, name, TEXT, body)
    refused(server, "a prompt over the context", TEXT, {"prompt": "word " * 100_000})


def connections(server, timeout):
    """Clients that are slow, silent or half gone; `timeout` is the server's for clients."""
    lorises = [connect(server) for _ in range(50)]
    begun = time.time()
    while lorises and time.time() - begun < 6 * timeout:
        for stream in list(lorises):
            try:
                stream.sendall(b"P" if time.time() - begun < 0.1 else b"x")
                stream.settimeout(0.001)
                if stream.recv(1000) == b"":
                    raise ConnectionError
            except TimeoutError:
                continue
            except (ConnectionError, OSError):
                stream.close()
                lorises.remove(stream)
        check_alive = post(server, TEXT, b'{"prompt": "x", "max_tokens": 1}')[0]
        time.sleep(0.1)
    check("50 clients that send a byte at a time lose their connections", not lorises and check_alive == 200, f"after {time.time() - begun:.1f} s, {len(lorises)} left")
    with connect(server) as stream:
        stream.sendall(head(TEXT, 1000) + b'{"prompt": "x"')
        status, said = answer(received(stream))
        check("a body that stops coming", status == 408 and said["error"]["message"], str(status))
    with connect(server) as stream:
        # Half closed before the body is whole.
        stream.sendall(head(TEXT, 1000) + b'{"prompt": "x"')
        stream.shutdown(socket.SHUT_WR)
        status, _ = answer(received(stream))
        check("a client that closes its half within the body", status in (400, None), str(status))
    with connect(server) as stream:
        # Half closed after a whole request: some clients do that and read on, most have left.
        body = b'{"prompt": "x", "max_tokens": 3}'
        stream.sendall(head(TEXT, len(body)) + body)
        stream.shutdown(socket.SHUT_WR)
        status, _ = answer(received(stream))
        check("a client that closes its half after the request", status in (200, None), str(status))
    for text in [b"\0\1\2\3\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000 + b"\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"]:
        with connect(server) as stream:
            try:
                stream.sendall(text)
                stream.settimeout(4 * timeout)
                status, _ = answer(received(stream))
            except ConnectionError:
                status = None
            check(f"refused: {text[:40]!r}", status is None or 400 <= status < 500, str(status))


def crowd(server, count):
    """So many requests at once: each is served or told to come again."""
    statuses, gate = [], threading.Barrier(count)

    def one(i):
        gate.wait()
        try:
            statuses.append(post(server, TEXT, json.dumps({"prompt": f"{i}", "max_tokens": 2}).encode())[0])
        except OSError as error:
            statuses.append(repr(error))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted = {status: statuses.count(status) for status in set(statuses)}
    check(f"{count} requests at once", set(counted) <= {200, 429} and counted.get(200, 0) > 0, str(counted))


def bad_input(server, timeout):
    def files():
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    post(server, TEXT, b'{"prompt": "x", "max_tokens": 1}')
    before, resident = files(), server.metric("process_resident_memory_bytes")
    bodies(server)
    numbers(server)
    messages(server)
    connections(server, timeout)
    crowd(server, 1000)
    server.wait("nothing runs afterwards", 1, server.is_idle)
    server.wait("connections are closed", 4 * timeout, lambda: server.metric("olivine_connections") == 1 and files() <= before + 2)
    grown = server.metric("process_resident_memory_bytes") - resident
    check("memory did not grow much", grown < 256 << 20, f"{grown / 2**20:.0f} MiB")
    check("the server is well", server.is_well())
