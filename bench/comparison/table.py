"""A result of bench/compare as rows: both sides, the ratio, and whether the target is met."""

import dataclasses
import statistics

from .targets import COMPILE, WGPU_FROM_MS, WGPU_RATIO, Target, targets

# Rounds of a row that differ by more than this part of its median are not to be trusted: clocks fell, or others were at work.
UNSTEADY = 0.1


@dataclasses.dataclass
class Row:
    name: str
    group: str
    target: Target | None
    ours_ms: float | None = None
    # Our times of all rounds; empty where there was one.
    ours_rounds: list[float] = dataclasses.field(default_factory=list)
    # PyTorch's fastest way, which way that is, and its times of all rounds.
    theirs_ms: float | None = None
    theirs_how: str = ""
    theirs_rounds: list[float] = dataclasses.field(default_factory=list)
    # One call outside a CUDA graph.
    call_ms: float | None = None
    graph_measured: bool = False
    # Whole runs in a CUDA graph with query, key and value as one product.
    fused_ms: float | None = None
    wgpu_ms: float | None = None
    tflops: float | None = None
    gb_per_s: float | None = None
    flops: float = 0.0
    bytes: float = 0.0
    dispatches: int | None = None
    failed: str = ""

    @property
    def ratio(self) -> float | None:
        return self.theirs_ms / self.ours_ms if self.theirs_ms and self.ours_ms else None

    @property
    def ratio_range(self) -> tuple[float, float] | None:
        """The least and the largest ratio that the rounds allow; None where there was one round."""
        if len(self.ours_rounds) < 2 or len(self.theirs_rounds) < 2:
            return None
        return min(self.theirs_rounds) / max(self.ours_rounds), max(self.theirs_rounds) / min(self.ours_rounds)

    @property
    def unsteady(self) -> bool:
        """Whether the rounds of a side differ by more than a tenth of its median."""
        return any(len(r) > 1 and max(r) - min(r) > UNSTEADY * statistics.median(r) for r in (self.ours_rounds, self.theirs_rounds))

    @property
    def call_ratio(self) -> float | None:
        """Against a single call, where PyTorch has a faster way."""
        if self.theirs_how == "call" or not self.call_ms or not self.ours_ms:
            return None
        return self.call_ms / self.ours_ms

    @property
    def fused_ratio(self) -> float | None:
        return self.fused_ms / self.ours_ms if self.fused_ms and self.ours_ms else None

    @property
    def wgpu_ratio(self) -> float | None:
        """Vulkan's time over wgpu's."""
        return self.ours_ms / self.wgpu_ms if self.ours_ms and self.wgpu_ms else None

    def wgpu_met(self) -> bool | None:
        if self.wgpu_ratio is None or self.ours_ms < WGPU_FROM_MS:
            return None
        return self.wgpu_ratio >= WGPU_RATIO

    def judged(self) -> list[tuple[str, bool | None]]:
        """Every condition of the target, and whether it holds; None where there is no number."""
        if self.target is None:
            return []
        unit = "TOP/s" if " i8 " in self.name else "TFLOP/s"
        ms = self.ours_ms
        least, most = (lambda x, b: None if x is None else x >= b), (lambda x, b: None if x is None else x <= b)
        by_kind = {
            "ratio": lambda b: (f"≥ {b:g}", least(self.ratio, b)),
            "tflops": lambda b: (f"≥ {b:g} {unit}", least(self.tflops, b)),
            "us": lambda b: (f"≤ {b:g} µs", most(None if ms is None else ms * 1e3, b)),
            "ms": lambda b: (f"≤ {b:g} ms", most(ms, b)),
        }
        return [by_kind[kind](bound) for kind, bound in self.target.conditions()]

    def target_text(self) -> str:
        return ", ".join(text for text, _ in self.judged())

    def met(self) -> bool | None:
        """Whether the whole target is met; None without one or without a number."""
        held = [holds for _, holds in self.judged()]
        if not held or any(h is None for h in held):
            return False if any(h is False for h in held) else None
        return all(held)

    def met_text(self) -> str:
        held = [holds for _, holds in self.judged()]
        if not held:
            return ""
        if all(h is None for h in held):
            return "?"
        return {True: "yes", None: "?", False: "in part" if any(held) else "no"}[self.met()]

    def as_dict(self) -> dict:
        ratios = dict(ratio=self.ratio, call_ratio=self.call_ratio, wgpu_ratio=self.wgpu_ratio)
        plain = {k: v for k, v in dataclasses.asdict(self).items() if k != "target"}
        return dict(plain, **ratios, target=self.target_text(), met=self.met())


# Ways that PyTorch was timed in, and what the page calls them.
WAYS = {"eager_ms": "call", "graph_ms": "graph", "compiled_ms": "compiled"}


def _theirs(times: dict) -> tuple[float | None, str, list[float]]:
    """PyTorch's fastest way: a single call, in a CUDA graph, or under torch.compile."""
    ways = [(times[key], how, times.get("rounds", {}).get(key, [])) for key, how in WAYS.items() if times.get(key)]
    return min(ways, default=(None, "", []))


def table(result: dict) -> list[Row]:
    """Targets first, in their order; then what else was measured."""
    device, *others = result["devices"]
    ours = result["olivine"][device]
    wgpu = result["olivine"].get(others[0], {}) if others else {}
    pytorch = result.get("pytorch") or {"rows": {}, "failed": {}}
    wanted = {} if result.get("quick") else {t.name: t for t in targets()}
    names = [n for n in wanted if n in ours["rows"] or n in ours["failed"] or n == COMPILE]
    names += [n for n in [*ours["rows"], *ours["failed"]] if n not in wanted]
    rows = []
    for name in names:
        target = wanted.get(name)
        group = target.group if target else "others"
        row = Row(name, group, target if target and target.conditions() else None)
        if name == COMPILE:
            warm = (result.get("start") or {}).get("warm") or []
            if not warm:
                continue
            row.ours_ms = statistics.median(w["ms"]["compile"] for w in warm)
            rows.append(row)
            continue
        said = []
        if name in ours["rows"]:
            m = ours["rows"][name]
            row.ours_ms, row.dispatches = m["median_ms"], m["dispatches"]
            row.ours_rounds = m.get("rounds", {}).get("median_ms", [])
            row.tflops, row.gb_per_s, row.flops, row.bytes = m["tflops"], m["gb_per_s"], m["flops"], m["bytes"]
        elif name in ours["failed"]:
            said.append(f"{device}: {ours['failed'][name]}")
        times = pytorch["rows"].get(name)
        if times:
            row.theirs_ms, row.theirs_how, row.theirs_rounds = _theirs(times)
            row.call_ms, row.fused_ms = times.get("eager_ms"), times.get("fused_ms")
            row.graph_measured = "graph_ms" in times
            said += [f"PyTorch: {times[k]}" for k in ("compile_failed", "graph_failed") if k in times]
        elif name in pytorch["failed"] and target:
            said.append(f"PyTorch: {pytorch['failed'][name]}")
        if name in wgpu.get("rows", {}):
            row.wgpu_ms = wgpu["rows"][name]["median_ms"]
        elif name in wgpu.get("failed", {}):
            said.append(f"{others[0]}: {wgpu['failed'][name]}")
        row.failed = "; ".join(" ".join(s.split()) for s in said)
        rows.append(row)
    return rows
