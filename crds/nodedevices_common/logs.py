"""Logs of agent, probe and operator: structlog to stderr, one line per change.

JSON unless stderr is a terminal (or the format says otherwise). The message is constant, everything else is key and
value. What others name (devices, pods, errors of a server) is untrusted: characters that would end a line, move a
terminal's cursor or turn the direction of writing come out as escapes. Libraries that use `logging` (kopf, aiohttp) go
through the same formatter on request.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Literal, get_args

import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "text"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
# Controls (C0 is JSON's own matter), directions of writing, separators of lines, characters without a width.
_HIDDEN: Final = "\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
_HIDDEN_IN_JSON: Final = re.compile(f"[{_HIDDEN}]")
_HIDDEN_IN_TEXT: Final = re.compile(f"[\x00-\x1f{_HIDDEN}]")
FORMATS: Final[tuple[Format, ...]] = get_args(Format)


def configure(level: Level = "info", format: Format = "auto", *, stdlib: bool = False) -> None:  # noqa: A002
    """Set logging up for this process; calling it again replaces what was set.

    `stdlib` also routes the standard library's root logger through the same formatter, at the same level.
    """
    number = getattr(logging, level.upper())
    text = sys.stderr.isatty() if format == "auto" else format == "text"
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if text else _json_line
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp" if text else "time"),
        # The console renderer prints exceptions itself.
        _escaped if text else structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    if stdlib:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            )
        )
        root = logging.getLogger()
        root.handlers[:] = [handler]
        root.setLevel(number)


def _json_line(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    return _HIDDEN_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", str(_JSON(logger, method, event)))


_JSON: Final = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)


def _escaped(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Strings for a terminal; anything else is shown as its repr, which escapes by itself."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _HIDDEN_IN_TEXT.sub(lambda found: ascii(found[0])[1:-1], value)
    return event
