"""How a program is loaded: with what its start need not wait for left out."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quickly() -> Iterator[None]:
    """Load modules in this block. The garbage collector rests meanwhile and later leaves out what was loaded: it stays,
    and the collector would look through all of it, again and again. Within another such block it has no effect."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # or it looks for some in every installed package
    awake = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if awake:
            gc.freeze()
            gc.enable()


@contextmanager
def needing(program: str, extra: str) -> Iterator[None]:
    """Load modules in this block that need the packages of an extra. Every installation has all programs on its PATH,
    such as one of the plugin for kubectl alone: who calls another program there learns what it lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("nodedevices"):
            raise
        what = f"this installation lacks {error.name}, which it needs; pip install 'nodedevices[{extra}]' has it"
        raise SystemExit(f"{program}: {what}") from error
