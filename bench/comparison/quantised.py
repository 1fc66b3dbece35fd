"""Quantised weights on the page of benchmarks, from the results that bench/quant_cpu.py and `olivine bench quant` kept."""

import json
import pathlib
import statistics

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
KEPT = FOLDER / "quant_cpu.json"
KEPT_GPU = FOLDER / "quant_gpu.json"
HEADINGS = ["weight", "Olivine", "llama.cpp", "ratio", "range", "ratio of the shortest", "range"]


def _cells(row: dict) -> list[str]:
    """Medians of all repetitions, and the least and the largest ratio."""
    runs = row["runs"]
    ms = lambda side: statistics.median(run[side]["median_ms"] for run in runs)
    time = lambda side: f"{ms(side):.3f} ms, {row['bytes'] / ms(side) / 1e6:.1f} GB/s"
    cells = [f"{row['format']} {row['k']}x{row['n']}", time("olivine"), time("llama")]
    for key in ("median_ms", "best_ms"):
        ratios = [run["llama"][key] / run["olivine"][key] for run in runs]
        cells += [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}–{max(ratios):.2f}"]
    return cells


def _gpu() -> str:
    """One line to a format: one row by bytes, many rows by operations; means of the kept runs."""
    kept = json.loads(KEPT_GPU.read_text())
    by_format: dict[str, dict[int, dict]] = {}
    for row in kept["rows"]:
        by_format.setdefault(row["format"], {})[row["rows"]] = row
    lines = [["format", "one row", "GB/s", "of the read rate", "512 rows, TFLOP/s"], ["---"] * 5]
    for name, rows in by_format.items():
        rate = statistics.mean(rows[1]["gb_per_s"])
        time = f"{statistics.mean(rows[1]['ms']) * 1e3:.1f} µs"
        many = f"{statistics.mean(rows[512]['tflops']):.0f}"
        lines.append([name, time, f"{rate:.0f}", f"{rate / kept['read_gb_per_s']:.2f}", many])
    return (
        "\n## Quantised weights on the GPU\n\n"
        f"{kept['date']} · {kept['device']}, driver {kept['driver']}\n\n"
        f"```sh\n{kept['command']}\n```\n\n"
        f"x of {kept['dtype']} times a packed weight of {kept['n']}x{kept['k']} (N×K) that comes from memory. The card reads {kept['read_gb_per_s']} GB/s. "
        "How, and what limits it: [packed weights](performance/2026-11-17-packed-weights.md).\n\n"
        + "".join("| " + " | ".join(line) + " |\n" for line in lines)
        + "\n"
    )


def section() -> str:
    """Both tables."""
    kept = json.loads(KEPT.read_text())
    lines = [HEADINGS, ["---"] * len(HEADINGS), *map(_cells, kept["rows"])]
    return (
        "## Quantised weights on the CPU\n\n"
        f"{kept['date']} · {kept['processor']}, {kept['threads']} threads · llama.cpp of {kept['peer']}\n\n"
        "```sh\ncargo build --release -p olivine-cpu --example quant_rows\n"
        f"{kept['command']}\n```\n\n"
        "One row of f32 times a packed weight of K×N that comes from memory, beside llama.cpp in whichever of its layouts is faster. Both run in turns. "
        "A ratio is llama.cpp's time over ours, first of the median times of a repetition, then of the shortest; medians of all repetitions. The machine does other "
        "work at times, which the ranges show. llama.cpp rounds x to 8 bits, Olivine does not.\n\n"
        + (f"{kept['remark']}\n\n" if kept.get("remark") else "")
        + "".join("| " + " | ".join(line) + " |\n" for line in lines)
        + _gpu()
    )
