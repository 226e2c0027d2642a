"""`make fuzz-guided`: bytes that coverage leads to (Atheris, which is libFuzzer), to what reads files and answers.

    make fuzz-guided                           # each reader for SECONDS (60)
    make fuzz-guided TESTS=checkpoint SECONDS=3600

It starts from the files of tests/corpus and asks for what tests/unit/fuzz asks for: they are read, or refused in a
sentence. Only our packages are instrumented. What fails is kept in build/fuzz; a cure takes it into tests/corpus as
found-... Exit 1 when anything failed. Atheris is in requirements/guided.lock alone, as no other test needs it.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"
CHECKS = {  # folder of the corpus -> what checks what becomes of such bytes
    "checkpoint": "test_fuzz_node.check_checkpoint",
    "probe-line": "test_fuzz_node.check_line",
    "state": "test_fuzz_node.check_state",
    **{path.name: "test_fuzz_files.check" for path in sorted(CORPUS.glob("*-file"))},
}
OURS = ["nodedevices_api", "nodedevices_common", "nodedevices_operator", "nodedevices_plugin", "nodedevices_probe"]
MOST_BYTES = 64 << 10


def main() -> int:
    wanted = os.environ.get("TESTS", "").split() or list(CHECKS)
    seconds = int(os.environ.get("SECONDS") or 60)
    if unknown := [each for each in wanted if each not in CHECKS]:
        print(f"TESTS={unknown[0]}: there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    failed = [name for name in wanted if guided(name, seconds)]
    return int(bool(failed))


def guided(name: str, seconds: int) -> bool:
    """Whether it failed. In a process of its own, which libFuzzer ends."""
    kept = ROOT / "build" / "fuzz" / name
    kept.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-max_len={MOST_BYTES}", f"-artifact_prefix={kept}/"]
    print(f"{name}, {seconds} s", flush=True)
    seeds = str(CORPUS / name)
    new = kept / "corpus"  # the first folder is where it writes what is new
    new.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "fuzz.guided", name, *options, str(new), seeds]
    return bool(subprocess.run(command, cwd=ROOT, check=False).returncode)


def one(name: str) -> None:
    import atheris  # `make fuzz-guided` installs it; everything else does without

    module, _, function = CHECKS[name].rpartition(".")
    with atheris.instrument_imports(include=OURS, enable_loader_override=False):
        check = getattr(importlib.import_module(module), function)
    if name.endswith("-file"):  # one check for all of them
        check = partial(check, name)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], check)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests" / "unit" / "fuzz"))
    if len(sys.argv) > 1:
        one(sys.argv[1])
    else:
        sys.exit(main())
