"""Programs that measure row after row and say so in lines of JSON, so that one that hangs or dies loses one row."""

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time

# Restarts after a row that killed its program.
RESTARTS = 12


class Deadline:
    """When everything must be over."""

    def __init__(self, seconds: float | None) -> None:
        self.at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float:
        return float("inf") if self.at is None else self.at - time.monotonic()


def stream(what: str, command, names: list[str] | None, row_seconds: float, deadline: Deadline) -> dict:
    """Runs `command(names)` and gathers its lines; starts it again behind a row that killed it.

    Lines are `{"begin": name}`, `{"measurement": {...}}` and `{"failed": {...}}`; others describe the run. With names
    None, the program chooses, and cannot be started again.
    """
    gathered: dict = {"about": {}, "rows": {}, "failed": {}, "commands": []}
    todo, reason, began = names, "not run", time.monotonic()
    for _ in range(RESTARTS):
        if todo is not None and not todo:
            break
        line = command(todo)
        gathered["commands"].append(shlex.join(line))
        trouble, current = _one(what, line, gathered, row_seconds, deadline)
        if todo is not None:
            todo = [n for n in todo if n not in gathered["rows"] and n not in gathered["failed"]]
        if trouble is None:
            break
        if current is not None:
            gathered["failed"][current] = trouble
        else:
            reason = f"not run: {trouble}"
        print(f"{what}: {current or 'start'}: {trouble}", file=sys.stderr)
        if todo is None or current is None or deadline.left() <= 0:
            break
        todo = [n for n in todo if n != current]
    for name in todo or []:
        gathered["failed"].setdefault(name, reason)
    gathered["seconds"] = round(time.monotonic() - began, 1)
    return gathered


def _one(what: str, line: list[str], gathered: dict, row_seconds: float, deadline: Deadline):
    """One process. Returns what went wrong, if anything, and the row it was at."""
    try:
        process = _started(line)
    except OSError as error:
        return f"cannot run {line[0]}: {error}", None
    lines: queue.Queue = queue.Queue()
    errors: list[str] = []

    def read_lines() -> None:
        for text in process.stdout:
            lines.put(text)
        lines.put(None)

    def read_errors() -> None:
        errors.extend(process.stderr)

    readers = [threading.Thread(target=f, daemon=True) for f in (read_lines, read_errors)]
    for reader in readers:
        reader.start()
    current, began = None, time.monotonic()
    # Opening a device and importing PyTorch may take a while.
    patience = row_seconds + 60
    while True:
        try:
            text = lines.get(timeout=max(0.0, min(patience, deadline.left())))
        except queue.Empty:
            _killed(process)
            over = "out of time" if deadline.left() <= 0 else f"no answer in {patience:.0f} s"
            return over, current
        if text is None:
            break
        patience = row_seconds
        try:
            message = json.loads(text)
        except json.JSONDecodeError:
            continue
        if "begin" in message:
            current, began = message["begin"], time.monotonic()
            show(f"{what}: {current}")
        elif "measurement" in message:
            row = message["measurement"]
            gathered["rows"][row["name"]] = dict(row, seconds=round(time.monotonic() - began, 2))
            current = None
        elif "failed" in message:
            failure = message["failed"]
            said = "; ".join(failure.get("causes") or [failure.get("error", "failed")])
            gathered["failed"][current or failure.get("error", "?")] = said
            print(f"{what}: {current}: {said}", file=sys.stderr)
            current = None
        else:
            gathered["about"].update(message)
    code = process.wait()
    for reader in readers:
        reader.join(timeout=5)
    if current is None and (code == 0 or gathered["rows"] or gathered["failed"]):
        return None, None
    tail = "".join(errors)[-400:].strip()
    return f"ended with {code}: {tail}" if tail else f"ended with {code}", current


def _started(line: list[str]) -> subprocess.Popen:
    # A group of its own, so that what a wrapper started ends with it.
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def _killed(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def json_of(line: list[str], seconds: float) -> dict | None:
    """The JSON that a program prints; None, with a word on stderr, if it prints none."""
    show(shlex.join(line))
    if seconds <= 0:
        return None
    try:
        process = _started(line)
        return json.loads(process.communicate(timeout=seconds)[0])
    except subprocess.TimeoutExpired:
        _killed(process)
        print(f"{shlex.join(line)}: no answer in {seconds:.0f} s", file=sys.stderr)
    except (OSError, json.JSONDecodeError) as error:
        print(f"{shlex.join(line)}: {error}", file=sys.stderr)
    return None


def show(text: str) -> None:
    """Where we are, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)
