"""docs/benchmarks.md from a result."""

from . import quantised
from .notes import note
from .table import UNSTEADY, Row
from .targets import COMPILE, WGPU_FROM_MS, WGPU_RATIO

BERT_LAYERS = 12

METHOD = f"""\
## Method

- Random inputs, uniform in [-1, 1) (i8: [-127, 127]); weights within 1/√rows. Runs take turns at up to eight sets of inputs, 192 MiB in all
  where they are large enough, so that no cache holds the next run's; both sides the same. Weights stay where they are, as in a model.
- Warm-up of at least 0.1 s and three runs, then the median of 25. The outputs' memory is filled with ones beforehand and must be
  overwritten.
- Olivine's time is the device's: timestamps before the first dispatch and after the last. Where inputs are 8 MiB or less and
  a run takes less than 0.2 ms, eight in a row are timed, and a run's share counts. PyTorch's is between two CUDA events, TF32 off: around one
  call, which for short calls includes the launch, and around a CUDA graph of up to eight calls, of which a call's share counts. The gelu
  chain runs under `torch.compile` as well. The fastest of these ways is compared with, and named in brackets; "one call" is the ratio against
  a single call where another way is faster.
- Whole runs (BERT-base, ResNet-50) are timed on the host, from inputs in host memory to outputs in host memory; PyTorch's memory is pinned. BERT
  is as it is published, with three matmuls for query, key and value; "fused" is the ratio against a PyTorch model in a CUDA graph that was
  rewritten to have one. ResNet-50 comes from an ONNX file that the script writes; PyTorch's has channels first or last, whichever is faster.
- The ratio is PyTorch's time over ours: above 1 we are faster. Targets for it hold against PyTorch's fastest way too. "wgpu" is our time
  through Vulkan over that through wgpu; rows above {WGPU_FROM_MS * 1e3:g} µs should reach {WGPU_RATIO:g}.
"""

ROUNDS = f"""\
- All rows are measured in {{rounds}} rounds, one after the other, and the medians count. "range" is the least and the largest ratio that the
  rounds allow. Rows whose rounds differ by more than {UNSTEADY:.0%} are marked "unsteady". Before every row the card is kept busy for 0.3 s, since its
  clocks fall while the host makes inputs.
"""

ONE_ROUND = """\
- This result has one round: the spread of its rows was not measured. Its card was not kept busy between rows. Calls above 0.6 ms were not
  measured in a CUDA graph.
"""


def about(result: dict) -> str:
    """Where and with what it ran, in a line."""
    parts = [result["date"]]
    device = result["devices"][0]
    parts.append(result["olivine"][device]["about"].get("name", "no device"))
    torch = (result.get("pytorch") or {}).get("about") or {}
    if torch:
        parts.append(f"PyTorch {torch['torch']}, CUDA {torch['cuda']}")
    return " · ".join(parts)


def number(x: float | None) -> str:
    """About three digits that count."""
    if x is None:
        return ""
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.3g}"


def duration(ms: float | None) -> str:
    if ms is None:
        return "–"
    return f"{number(ms * 1e3)} µs" if ms < 1 else f"{number(ms)} ms"


def rate(row: Row) -> str:
    if row.tflops:
        unit = "TOP/s" if " i8 " in row.name else "TFLOP/s"
        return f", {number(row.tflops)} {unit}"
    return f", {number(row.gb_per_s)} GB/s" if row.gb_per_s else ""


def spread(row: Row) -> str:
    """The least and the largest ratio of the rounds."""
    return "" if row.ratio_range is None else f"{row.ratio_range[0]:.2f}–{row.ratio_range[1]:.2f}"


def _cells(row: Row, marks: dict[str, int]) -> list[str]:
    met = {"yes": "**yes**"}.get(row.met_text(), row.met_text())
    if row.name in marks:
        met += f" [{marks[row.name]}]"
    wgpu = "" if row.wgpu_ratio is None else f"{row.wgpu_ratio:.2f}" + (" (low)" if row.wgpu_met() is False else "")
    how = f" ({row.theirs_how})" if row.theirs_how else ""
    theirs = "" if row.name == COMPILE else duration(row.theirs_ms) + how
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    call = "" if row.call_ratio is None else f"{row.call_ratio:.2f}"
    if row.fused_ratio is not None:
        call = f"{call} ({row.fused_ratio:.2f} fused)".strip()
    if row.unsteady:
        ratio += " unsteady"
    stretch = f" (stretch {row.target.stretch})" if row.target and row.target.stretch else ""
    dispatches = "" if row.dispatches is None else str(row.dispatches)
    if row.dispatches and row.name.startswith("bert-base"):
        dispatches += f" ({row.dispatches / BERT_LAYERS:.3g} a layer)"
    ours = duration(row.ours_ms) + rate(row)
    return [row.name, ours, theirs, ratio, spread(row), row.target_text() + stretch, met, call, dispatches, wgpu]


def _markdown(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _accuracy(result: dict) -> str:
    ours, pytorch = result.get("accuracy"), (result.get("pytorch") or {}).get("rows", {})
    if not ours:
        return ""
    rows = []
    for r in ours["rows"]:
        theirs = pytorch.get(f"accuracy {r['n']}", {}).get(r["distribution"])
        better = "yes" if r["chosen"] <= r["fma"] else "no"
        cells = [f"{r[k]:.2e}" for k in ("chosen", "fma")] + ["" if theirs is None else f"{theirs:.2e}"]
        rows.append([str(r["n"]), r["distribution"], *cells, better])
    kernels = ", ".join(f"`{k}`" for k in ours.get("kernels", []))
    return (
        "## Errors of f32 matmuls\n\n"
        "`olivine bench accuracy`: relative L2 against f64 on sampled rows, by the kernels that are chosen and by tiles of fused "
        f"multiply-adds (`--no-matrices`). Chosen: {kernels or 'unknown'}.\n\n"
        + _markdown(["n", "both operands", "chosen", "fma tiles", "cuBLAS", "chosen ≤ fma"], rows) + "\n"
    )


def _validation(result: dict) -> str:
    lines = ["## Validation\n\n"]
    rows = result["olivine"][result["devices"][0]]["rows"]
    if result.get("same_bits"):
        lines.append(f"- {len(rows)} rows above gave the same bits on {result['same_bits']} runs of the same inputs.\n")
    for run in result.get("verify") or []:
        counts = run["counts"]
        said = "no answer"
        if counts:
            said = f"{counts['passed']} of {counts['cases']} cases right, {counts['refused']} refused, {counts['wrong']} wrong, all 20 runs of each equal bit for bit where right"
        lines.append(f"- `{run['command']}`: {said}.\n")
    lines.append("- [validation/h200.md](validation/h200.md): the whole table of cases on this card, checked and with features masked off.\n")
    return "".join(lines) + "\n"


def page(result: dict, rows: list[Row]) -> str:
    missed = [r for r in rows if r.target and r.met() is not True]
    notes = list(dict.fromkeys(note(r.name) for r in missed if note(r.name)))
    marks = {r.name: notes.index(note(r.name)) + 1 for r in missed if note(r.name)}
    judged = [r for r in rows if r.target]
    met = sum(r.met() is True for r in judged)
    through = [r for r in rows if r.wgpu_met() is not None]
    headings = ["work", "Olivine", "PyTorch", "ratio", "range", "target", "met", "one call", "dispatches", "wgpu"]
    text = [
        "# Benchmarks\n\n<!-- Written by bench/compare; changes made here are lost. -->\n\n",
        f"{about(result)}\n\n```sh\n{result['command']}\n```\n\n",
    ]
    if result.get("remark"):
        text.append(f"{result['remark']}\n\n")
    if result.get("quick"):
        text.append("A quick run in small sizes: it shows that everything works and says nothing about speed.\n\n")
    compared = [r.ratio for r in rows if r.ratio is not None]
    if compared:
        faster = sum(ratio >= 1 for ratio in compared)
        text.append(f"{faster} of {len(compared)} rows are as fast as PyTorch in its fastest way, or faster. ")
    if judged:
        text.append(f"{met} of {len(judged)} targets are met")
        if through:
            well = sum(r.wgpu_met() is True for r in through)
            text.append(f"; through wgpu, {well} of {len(through)} rows above {WGPU_FROM_MS * 1e3:g} µs reach {WGPU_RATIO:g} of Vulkan's speed")
        text.append(".\n\n")
    text.append("![PyTorch's time over ours, by row, with a line at 1 and the targets](benchmarks/ratios.svg)\n\n")
    text.append("![Achieved rates beside the device's ceilings](benchmarks/roofline.svg)\n\n")
    text.append("![Achieved memory rates](benchmarks/bandwidth.svg)\n\n")
    for group in dict.fromkeys(r.group for r in rows):
        cells = [_cells(r, marks) for r in rows if r.group == group]
        text.append(f"## {group[0].upper()}{group[1:]}\n\n" + _markdown(headings, cells) + "\n")
    if notes:
        text.append("## What was tried for the rows that miss\n\n")
    text += [f"[{i + 1}] {said}\n\n" for i, said in enumerate(notes)]
    failed: dict[str, list[str]] = {}
    for r in rows:
        if r.failed:
            failed.setdefault(r.failed, []).append(r.name)
    if failed:
        lines = (f"- {why}: {', '.join(names)}\n" for why, names in failed.items())
        text.append("## Not measured\n\n" + "".join(lines) + "\n")
    text.append(quantised.section())
    text.append(_accuracy(result))
    start = result.get("start")
    if start and start.get("warm"):
        cold = start["cold"]["ms"]["compile"]
        text.append(f"## Start\n\n`{start['command']}`, the second process and those after it, median of {len(start['warm'])}; the first, with an empty cache, compiled for {duration(cold)}.\n\n")
    rounds = result.get("rounds", 1)
    text.append(METHOD + (ROUNDS.format(rounds=rounds) if rounds > 1 else ONE_ROUND) + "\n" + _validation(result))
    return "".join(text).rstrip() + "\n"
