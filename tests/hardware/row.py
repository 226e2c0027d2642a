"""A record as a row of the table in docs/hardware.md. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
HEAD = "| date | machine | driver | what was run | result |\n|---|---|---|---|---|"


def row(record: Json) -> str:
    """Return one line of Markdown. What a step did not find is left out."""
    line = _found(record, "probing").get("line", {})
    cells = (
        record.get("began", "")[:10],
        _machine(record, line),
        _driver(line),
        f"`make hardware`, {record.get('version', '')} ({record.get('commit', '')[:8]})",
        "; ".join(results(record)),
    )
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def _found(record: Json, step: str) -> Json:
    found: Json = record.get("steps", {}).get(step, {}).get("found", {})
    return found


def _machine(record: Json, line: Json) -> str:
    cards = Counter(device.get("productName") or "unknown" for device in line.get("devices", ()))
    names = ", ".join(f"{count} x {name}" for name, count in cards.items()) or "no GPU"
    about = _found(record, "probing").get("machine", {})
    return ", ".join(filter(None, (names, about.get("architecture"), f"Python {about.get('python', '?')}")))


def _driver(line: Json) -> str:
    driver = line.get("driver", {})
    cuda = f" (CUDA {driver['cudaVersion']})" if driver.get("cudaVersion") else ""
    return f"{driver.get('version') or driver.get('state', 'none')}{cuda}"


def results(record: Json) -> Iterator[str]:
    """Yield what each step has to say, and those that were skipped or failed."""
    probe, agent = _found(record, "probing"), _found(record, "serving")
    yield from _fields(probe.get("nvidia-smi"))
    rest = probe.get("at rest", {})
    if isinstance(rest, dict) and rest.get("poll milliseconds"):
        yield f"a poll {rest['poll milliseconds']['median']} ms"
    if isinstance(rest, dict) and rest.get("resident MiB"):
        yield f"at rest {sum(rest['resident MiB'].values()):.0f} MiB with two probes"
    if summary := _found(record, "checking").get("summary"):
        yield f"check: {summary}"
    start = agent.get("by variables", {})
    if isinstance(start, dict) and start.get("seconds to Register") is not None:
        yield f"Register after {start['seconds to Register']:.2f} s"
    yield from _faults(_found(record, "faults"))
    yield from _words(_found(record, "use"))
    yield from _limits(_found(record, "mps"))
    for name, step in record.get("steps", {}).items():
        if step["outcome"] != "done":
            yield f"{name} {step['outcome']}: {step['why'].strip().splitlines()[-1] if step['why'].strip() else ''}"


def _fields(compared: object) -> Iterator[str]:
    if not isinstance(compared, list):
        return
    fields = [field for card in compared for field in card["fields"]]
    counts = Counter(field["outcome"] for field in fields)
    differ = sorted({field["field"] for field in fields if field["outcome"] == "different"})
    yield f"{counts['equal']} fields equal to nvidia-smi's" + (f", different: {', '.join(differ)}" if differ else "")
    for card in compared:
        if "missing" in card:
            yield f"{card['id']} {card['missing']}"


def _faults(found: Json) -> Iterator[str]:
    for name, case in found.items():
        if isinstance(case, dict) and "expected XID" in case:
            events = case["events"]
            xids = ", ".join(str(event["xid"]) for event in events) or "none"
            after = f" after {events[0]['event after ms']:.0f} ms" if events else ""
            health = (case["status"].get("health") or {}).get("state", "unknown")
            codes = ", ".join(notice["code"] for notice in case["status"].get("notices", ())) or "none"
            yield f"{name}: XID {xids}{after}, {health}, notices: {codes}"


def _words(found: Json) -> Iterator[str]:
    for name, case in found.items():
        if isinstance(case, dict) and "word" in case:
            expected = "" if case["as expected"] else f" (not {case['expected'] or 'in use'})"
            yield f"{name}: {case['word'] or 'in use'}{expected}"


def _limits(found: Json) -> Iterator[str]:
    for name, case in found.items():
        if isinstance(case, dict) and "limits hold" in case:
            yield f"MPS {name}: limits {'hold' if case['limits hold'] else 'do not hold'}"
