"""What a program does not load, as a process of its own shows it."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

from nodedevices_operator import desired, records

INPUT_OUTPUT = {"aiohttp", "grpc", "kopf", "kubernetes", "prometheus_client", "structlog"}


def test_a_dry_run_needs_no_package_that_the_command_line_is_not_installed_with() -> None:
    script = "import sys; from nodedevices_dryrun import run; "
    script += "print(*{name.partition('.')[0] for name, it in sys.modules.items() "
    script += "if name[0] != '_' and 'site-packages' in (getattr(it, '__file__', None) or '')})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    pydantic = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
    assert set(done.stdout.split()) <= {*pydantic, "msgspec", "orjson", "yaml"}


def test_what_the_operator_decides_by_loads_no_input_or_output() -> None:
    modules = [
        info.name
        for package in (desired, records)
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    script = "import importlib, sys\n"
    script += f"for module in {modules}:\n"
    script += "    importlib.import_module(module)\n"
    script += f"    print(module, *{INPUT_OUTPUT} & sys.modules.keys())\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == modules, "behind a module stands what it has loaded first"


def loaded_by(module: str) -> set[str]:
    script = f"import sys, {module}; print(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_an_agent_is_there_before_it_loads_what_only_a_report_or_a_probe_needs() -> None:
    late = {
        "ctypes",
        "kubernetes",
        "nodedevices_api.devicepolicy",
        "nodedevices_api.nodedevices",
        "nodedevices_plugin.status.report",
    }
    assert not late & loaded_by("nodedevices_plugin.agent")


def test_help_and_completion_of_the_command_line_load_no_view_and_no_client() -> None:
    loaded = loaded_by("nodedevices_kubectl.main")
    assert not {"json", "subprocess", "nodedevices_kubectl.views", "nodedevices_kubectl.api"} & loaded
