"""What `make demo` shows beside the build of Kubernetes: at once, and nothing where there is nothing to wait for."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo import first_sight
from demo.stage import Stage
from support.kubectl import NotReached, wait_until

NOT_NEEDED = ("false",)


class SightedStage(Stage):
    """One that makes a file when the first sight is over."""

    def __init__(self, over: Path) -> None:
        super().__init__()
        self._over = over

    def done(self, text: str) -> None:
        super().done(text)
        self._over.touch()


def test_devices_and_a_fault_are_shown_before_kubernetes_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NODEDEVICES_CACHE", str(tmp_path / "empty"))
    over = tmp_path / "over"
    building = f"echo building; until [ -e {over} ]; do sleep 0.1; done; echo 'no compiler'; exit 1"
    with pytest.raises(NotReached, match="building / no compiler"):  # what the build says in the end is what counts
        first_sight.build(SightedStage(over), ("sh", "-c", building), NOT_NEEDED)
    shown = capsys.readouterr().out
    assert shown.count('"productName": "NVIDIA H100 80GB HBM3"') == 2
    assert "| building" in shown
    assert shown.index("healthy=8") < shown.index("reason=Xid79") < shown.index("healthy=7")


def test_a_sight_that_is_not_reached_beside_a_busy_build_does_not_end_the_demo(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with first_sight.beside(Stage()):
        wait_until("the agent's log says healthy=7", lambda: False, seconds=0)
    assert "Not reached beside the build: the agent's log says healthy=7" in capsys.readouterr().out


def test_nothing_is_shown_where_kubernetes_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    first_sight.build(Stage(), ("echo", "it is here"), NOT_NEEDED)
    assert capsys.readouterr().out.split("\n") == ["         | it is here", ""]
