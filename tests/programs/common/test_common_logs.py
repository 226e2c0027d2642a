"""Logs: one JSON object a line on stderr, libraries included. In their own processes: logging is global."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

from support.patience import PATIENCE_SECONDS

PROGRAM = """
import logging, structlog
from nodedevices_common import logs
logs.configure({arguments})
log = structlog.get_logger()
log.debug("too fine")
log.info("device unhealthy", device="gpu-3", reason="Xid79", node="ä")
logging.getLogger("kopf").warning("watching %s", "nodes")
logging.getLogger("kopf").debug("too fine")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("stage failed")
names = dict(pod="a\\x1b[2J\\r\\n{{}}", device="\\u202eb\\x9b1m\\u2028", ids=["\\x1b\\n"])
log.info("pod marked", error=ValueError("\\x1b\\n"), **names)  # what others have named
print("stdout stays free")
"""


@cache
def run(arguments: str, program: str = PROGRAM) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program.format(arguments=arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout in {"", "stdout stays free\n"}
    return done.stderr.splitlines()


def test_json_lines_have_a_constant_message_and_keys_and_values() -> None:
    unhealthy, watching, failed, _ = map(json.loads, run("stdlib=True"))

    assert unhealthy["event"] == "device unhealthy"
    assert (unhealthy["device"], unhealthy["reason"], unhealthy["node"]) == ("gpu-3", "Xid79", "ä")
    assert unhealthy["level"] == "info"
    assert unhealthy["time"].endswith("Z")
    assert (watching["event"], watching["logger"], watching["level"]) == ("watching nodes", "kopf", "warning")
    assert "ZeroDivisionError" in failed["exception"]


def test_text_is_for_people() -> None:
    lines = run("format='text', stdlib=True")
    assert "device unhealthy" in lines[0]
    assert "device=gpu-3" in lines[0]
    assert not lines[0].startswith("{")


def test_what_others_name_neither_ends_a_line_nor_moves_a_terminals_cursor() -> None:
    for arguments in ("stdlib=True", "format='text', stdlib=True"):
        line = run(arguments)[-1]
        assert "pod marked" in line
        assert [character for character in line if not character.isprintable()] == []
    marked = json.loads(run("stdlib=True")[-1])
    assert (marked["pod"], marked["device"]) == ("a\x1b[2J\r\n{}", "\u202eb\x9b1m\u2028"), "and is read as it was"


def test_the_level_holds_for_both_kinds_of_logger() -> None:
    assert len(run("'error', stdlib=True")) == 1


def test_the_standard_librarys_logging_is_left_alone_unless_requested() -> None:
    assert [line for line in run("") if line == "watching nodes"] == ["watching nodes"]  # logging's last resort


def test_a_probe_can_log_without_pydantic_grpc_or_kubernetes() -> None:
    program = (
        "import sys; import nodedevices_common.logs;"
        "print([m for m in ('pydantic', 'grpc', 'kubernetes', 'yaml', 'asyncio') if m in sys.modules], file=sys.stderr)"
    )
    heavy = json.loads(run("", program)[0].replace("'", '"'))
    assert set(heavy) <= {"asyncio"}  # structlog's own
