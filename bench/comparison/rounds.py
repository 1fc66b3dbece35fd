"""Rounds of the same rows as one result: medians, and the times of every round beside them."""

import statistics


def merged(rounds: list[dict]) -> dict:
    """What `stream` gathered in several rounds. A row's times are the medians of its rounds, kept under `rounds`; a row that
    failed in one round and not in others counts by those."""
    if len(rounds) == 1:
        return rounds[0]
    out = dict(rounds[0], rows={}, failed={}, commands=[c for r in rounds for c in r["commands"]])
    out["seconds"] = round(sum(r["seconds"] for r in rounds), 1)
    for r in rounds:
        out["about"] = {**r["about"], **out["about"]}
    names = dict.fromkeys(name for r in rounds for name in [*r["rows"], *r["failed"]])
    for name in names:
        found = [r["rows"][name] for r in rounds if name in r["rows"]]
        if found:
            out["rows"][name] = _row(found)
        else:
            out["failed"][name] = next(r["failed"][name] for r in rounds if name in r["failed"])
    return out


def _row(found: list[dict]) -> dict:
    # The round in the middle, so that its rates belong to its time; even counts take the slower of the two.
    order = sorted(found, key=lambda row: row.get("median_ms") or 0.0)
    row = dict(order[len(order) // 2])
    row["rounds"] = {}
    for key in row:
        times = [r[key] for r in found if key.endswith("_ms") and isinstance(r.get(key), (int, float))]
        if times:
            row["rounds"][key] = times
            if key != "median_ms":
                row[key] = statistics.median(times)
    return row
