"""The commands start."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import pytest

COMMANDS = ("nodedevices-agent", "nodedevices-probe", "nodedevices-operator", "kubectl-nodedevices")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_in_the_docs_is_real(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The commands that the pages speak of are installed, start and explain themselves."""
    (installed,) = entry_points(group="console_scripts", name=command)
    assert isinstance(installed, EntryPoint)
    monkeypatch.setattr("sys.argv", [command, "--help"])
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(installed.load()())
    assert not ended.value.code
    assert "usage" in capfd.readouterr().out.lower()
