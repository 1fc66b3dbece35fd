"""Plots as SVG, written out by hand: they need nothing, and read well on light and dark pages."""

import dataclasses
import math
from xml.sax.saxutils import escape

from .table import Row

# What the card gives at best, measured through Vulkan on 1 GiB (the f32 rate by its clock). What only reads can be faster
# than what also writes.
READ_GB_PER_S, COPY_GB_PER_S = 4642, 4259
CEILINGS = [("s8 matrices", 1243e12), ("f16 matrices", 620e12), ("f32 FMA", 67e12)]

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f; }
.small { font-size: 11px; } .faint { fill: #6e7781; } .title { font-size: 14px; font-weight: 600; }
.grid { stroke: #d0d7de; stroke-width: 1; } .axis { stroke: #6e7781; stroke-width: 1; fill: none; }
.roof { stroke: #6e7781; stroke-width: 1.5; fill: none; } .dashed { stroke-dasharray: 5 4; }
.faster { fill: #2da44e; } .slower { fill: #cf5b4a; } .ceiling { fill: #8c959f; } .plain { fill: #57a0d3; } .mark { stroke: #24292f; stroke-width: 2; }
.one { stroke: #24292f; stroke-width: 1.5; } .range { stroke: #24292f; stroke-width: 1; }
.f32 { fill: #2f7fd1; } .f16 { fill: #d4711c; } .i8 { fill: #8250df; }
.leader { stroke: #8c959f; stroke-width: 0.7; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .faint { fill: #9198a1; } .grid { stroke: #30363d; } .axis, .roof { stroke: #9198a1; }
  .mark, .one, .range { stroke: #e6edf3; }
}
"""


def text(x: float, y: float, what: str, anchor: str = "start", kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(what)}</text>\n'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>\n'


def document(width: float, height: float, title: str, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{STYLE}</style>\n{text(16, 24, title, kind='title')}{body}</svg>\n"
    )


def dtype_of(name: str) -> str:
    words = name.split()
    return next((w for w in words if w in ("f16", "i8")), "f32")


@dataclasses.dataclass
class Bar:
    name: str
    value: float
    label: str
    kind: str
    # Where its target stands, and the least and the largest value of its rounds.
    mark: float | None = None
    range: tuple[float, float] | None = None

    def end(self) -> float:
        return max(self.value, self.mark or 0.0, *(self.range or (0.0,)))


def _bars(title: str, bars: list[Bar], step: float, note: list[str], line_at: float | None = None) -> str:
    """Horizontal bars, all of them whole, with a line through all at a value."""
    left, right, height = 250, 210, 20
    width = 1000
    span = width - left - right
    top = math.ceil(max([step] + [bar.end() for bar in bars]) / step) * step
    at = lambda v: left + span * v / top
    bottom = 44 + height * len(bars)
    body = ""
    for i in range(round(top / step) + 1):
        body += line(at(i * step), 40, at(i * step), bottom, "grid")
        body += text(at(i * step), bottom + 16, f"{i * step:g}", "middle", "small faint")
    for i, bar in enumerate(bars):
        y = 44 + height * i
        body += text(left - 8, y + 13, bar.name, "end", "small")
        body += f'<rect x="{left}" y="{y + 3}" width="{max(at(bar.value) - left, 1):.1f}" height="{height - 6}" rx="2" class="{bar.kind}"/>\n'
        if bar.range:
            middle = y + height / 2
            body += line(at(bar.range[0]), middle, at(bar.range[1]), middle, "range")
            for end in bar.range:
                body += line(at(end), middle - 3, at(end), middle + 3, "range")
        if bar.mark is not None:
            body += line(at(bar.mark), y + 1, at(bar.mark), y + height - 1, "mark")
        end = at(bar.end())
        # A label does not stand across the line.
        if line_at is not None and end < at(line_at) < end + 10 + 6.5 * len(bar.label):
            end = at(line_at)
        body += text(end + 6, y + 13, bar.label, "start", "small")
    if line_at is not None:
        body += line(at(line_at), 36, at(line_at), bottom, "one")
    for i, said in enumerate(note):
        body += text(16, bottom + 36 + 15 * i, said, kind="small faint")
    return document(width, bottom + 46 + 15 * len(note), title, body)


def ratios(rows: list[Row]) -> str:
    bars = []
    for row in rows:
        if row.ratio is None:
            continue
        label = f"{row.ratio:.2f}"
        if row.met() is False:
            missed = ", ".join(said for said, holds in row.judged() if holds is False)
            label += f" · misses {missed}"
        if row.unsteady:
            label += " · unsteady"
        kind = "faster" if row.ratio >= 1 else "slower"
        bars.append(Bar(row.name, row.ratio, label, kind, row.target.ratio if row.target else None, row.ratio_range))
    spread = "a thin line is the range of the rounds" if any(bar.range for bar in bars) else "one round: the spread was not measured"
    note = [
        "PyTorch's time, in its fastest way (one call, CUDA graph or torch.compile), over ours: green where we are as fast or faster, red where slower.",
        f"A mark is the target for the ratio; targets of any kind that are missed are named; {spread}.",
    ]
    longest = max([1.5] + [bar.end() for bar in bars])
    return _bars("How many times as fast as PyTorch", bars, 0.5 if longest <= 5 else 1.0, note, 1.0)


def bandwidth(rows: list[Row]) -> str:
    bars = [Bar(r.name, r.gb_per_s, f"{r.gb_per_s:.0f} GB/s", "plain") for r in rows if r.gb_per_s]
    ceilings = [("reading 1 GiB", READ_GB_PER_S), ("copying 1 GiB, both ways", COPY_GB_PER_S)]
    bars = [Bar(name, rate, f"{rate} GB/s", "ceiling") for name, rate in ceilings] + bars
    note = [
        "GB/s of the bytes that must move at least. Grey: what plain kernels reach on this card. Gemv and sums mostly read;",
        "softmax, norms, transposes and elementwise work read and write.",
    ]
    return _bars("Memory rates of what memory bounds", bars, 500, note)


def roofline(rows: list[Row]) -> str:
    """FLOP/s against FLOP per byte, both on logarithmic axes, under the card's ceilings."""
    points = [r for r in rows if r.ours_ms and r.flops and r.bytes]
    width, height, left, right, top, bottom = 1010, 570, 70, 350, 44, 50
    rate = lambda r: r.flops / (r.ours_ms * 1e-3)
    low = min([1e11] + [rate(r) for r in points])
    y0, y1 = math.floor(math.log10(low)), math.log10(2.5e15)
    intensities = [r.flops / r.bytes for r in points] or [1.0]
    x0, x1 = math.floor(math.log10(min(0.1, *intensities, 1.0))), math.log10(max(1e4, *intensities, 1.0))
    at_x = lambda v: left + (width - left - right) * (math.log10(v) - x0) / (x1 - x0)
    at_y = lambda v: height - bottom - (height - top - bottom) * (math.log10(v) - y0) / (y1 - y0)
    body = ""
    for e in range(x0, math.floor(x1) + 1):
        body += line(at_x(10**e), top, at_x(10**e), height - bottom, "grid")
        anchor = "end" if at_x(10**e) > width - right - 10 else "middle"
        body += text(at_x(10**e), height - bottom + 16, f"{10.0**e:g}", anchor, "small faint")
    units = {9: "G", 12: "T", 15: "P"}
    for e in range(y0, math.floor(y1) + 1):
        body += line(left, at_y(10**e), width - right, at_y(10**e), "grid")
        prefix = max((u for u in units if u <= e), default=9)
        body += text(left - 6, at_y(10**e) + 4, f"{10.0 ** (e - prefix):g} {units[prefix]}", "end", "small faint")
    body += text((left + width - right) / 2, height - 12, "floating-point operations to a byte that must move", "middle", "small faint")
    body += text(16, 40, "FLOP/s", kind="small faint")
    memory = READ_GB_PER_S * 1e9
    highest = CEILINGS[0][1]
    begin, knee = max(10**x0, 10**y0 / memory), highest / memory
    body += line(at_x(begin), at_y(memory * begin), at_x(knee), at_y(highest), "roof")
    taken = []
    roofs = [(name, ceiling, "roof") for name, ceiling in CEILINGS]
    for name, ceiling, kind in [*roofs, ("f32 as three f16", CEILINGS[1][1] / 3, "roof dashed")]:
        x, y = at_x(ceiling / memory), at_y(ceiling)
        body += line(x, y, width - right, y, kind)
        body += text(x + 14, y - 5, f"{name} {ceiling / 1e12:.0f} T", kind="small faint")
        taken.append((x + 10, y - 18, x + 140, y - 2))
    x, y = at_x(begin * 2.2) + 12, at_y(memory * begin * 2.2) + 14
    body += text(x, y, f"reading memory {READ_GB_PER_S} GB/s", kind="small faint")
    taken.append((x, y - 12, x + 120, y + 4))
    body += _numbered(points, at_x, at_y, rate, (left, width - right, top, height - bottom), taken)
    y, gap = top + 4, min(15.0, (height - top - 10) / max(len(points), 1))
    for i, r in enumerate(points):
        body += text(width - right + 22, y + 4, str(i + 1), "end", "small")
        body += f'<circle cx="{width - right + 32}" cy="{y:.1f}" r="3.5" class="{dtype_of(r.name)}"/>\n'
        body += text(width - right + 42, y + 4, f"{r.name}: {_short(rate(r))}", kind="small")
        y += gap
    return document(width, max(height, y + 10), "Achieved rates beside the ceilings of an H200", body)


def _short(flops: float) -> str:
    value, unit = (flops / 1e12, "T") if flops >= 1e12 else (flops / 1e9, "G")
    return f"{value:.3g} {unit}"


def _numbered(points: list[Row], at_x, at_y, rate, box, taken: list) -> str:
    """Points with numbers beside them, each number where nothing else is."""
    left, right, top, bottom = box
    places = [(at_x(r.flops / r.bytes), at_y(rate(r))) for r in points]
    taken = taken + [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    body = ""
    for i, (x, y) in enumerate(places):
        label, wide = str(i + 1), 7.0 * len(str(i + 1))
        best = None
        for radius in (10, 18, 28, 40, 54):
            for turn in range(12):
                cx, cy = x + radius * math.cos(turn * math.pi / 6), y + radius * math.sin(turn * math.pi / 6)
                spot = (cx - wide / 2 - 1, cy - 6, cx + wide / 2 + 1, cy + 6)
                inside = spot[0] >= left and spot[2] <= right and spot[1] >= top and spot[3] <= bottom
                free = all(spot[2] < t[0] or spot[0] > t[2] or spot[3] < t[1] or spot[1] > t[3] for t in taken)
                if inside and free:
                    best = (cx, cy, spot, radius)
                    break
            if best:
                break
        if best is None:
            best = (x + 10, y, (x, y, x, y), 10)
        cx, cy, spot, radius = best
        taken.append(spot)
        if radius > 12:
            body += line(x, y, cx, cy, "leader")
        body += text(cx, cy + 4, label, "middle", "small")
    for r, (x, y) in zip(points, places):
        body += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="{dtype_of(r.name)}"><title>{escape(r.name)}</title></circle>\n'
    return body


def all_of(rows: list[Row]) -> dict[str, str]:
    """The plots by file name."""
    return {"ratios.svg": ratios(rows), "roofline.svg": roofline(rows), "bandwidth.svg": bandwidth(rows)}
