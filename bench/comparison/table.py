"""A result of bench/compare as rows: both sides, the ratio, and whether the target is met."""

import dataclasses
import statistics

from .targets import COMPILE, WGPU_FROM_MS, WGPU_RATIO, Target, targets


@dataclasses.dataclass
class Row:
    name: str
    group: str
    target: Target | None
    ours_ms: float | None = None
    # PyTorch's time that counts, and how it was had.
    theirs_ms: float | None = None
    theirs_how: str = ""
    graph_ms: float | None = None
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
    def graph_ratio(self) -> float | None:
        """Against a call's share of a CUDA graph, where that is not what counts already."""
        if self.theirs_how == "graph" or not self.graph_ms or not self.ours_ms:
            return None
        return self.graph_ms / self.ours_ms

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
        ratios = dict(ratio=self.ratio, graph_ratio=self.graph_ratio, wgpu_ratio=self.wgpu_ratio)
        plain = {k: v for k, v in dataclasses.asdict(self).items() if k != "target"}
        return dict(plain, **ratios, target=self.target_text(), met=self.met())


def _theirs(name: str, times: dict) -> tuple[float | None, str]:
    """PyTorch's time that counts: compiled for chains of elements, the better way for whole runs, in a graph for
    products that a graph was asked for, else a single call."""
    if name.startswith("gelu chain") and "compiled_ms" in times:
        return times["compiled_ms"], "compiled"
    if name.startswith(("bert-base", "encoder", "chain of", "gemv")):
        ways = [(times[k], k.removesuffix("_ms")) for k in ("eager_ms", "graph_ms") if times.get(k)]
        return min(ways, default=(None, ""))
    return (times["eager_ms"], "eager") if times.get("eager_ms") else (None, "")


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
            row.tflops, row.gb_per_s, row.flops, row.bytes = m["tflops"], m["gb_per_s"], m["flops"], m["bytes"]
        elif name in ours["failed"]:
            said.append(f"{device}: {ours['failed'][name]}")
        times = pytorch["rows"].get(name)
        if times:
            row.theirs_ms, row.theirs_how = _theirs(name, times)
            row.graph_ms, row.fused_ms = times.get("graph_ms"), times.get("fused_ms")
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
