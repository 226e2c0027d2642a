"""`make size` counts what it says it counts."""

from __future__ import annotations

from pathlib import Path

from support.size import table

TREE = {
    "cli/nodedevices_kubectl/main.py": '"""Says."""\n\nimport sys\n\n\ndef main():\n    """Ends."""\n    sys.exit()\n',
    "cli/nodedevices_kubectl/views/table.py": "a = 1; b = 2\n",
    "crds/nodedevices_api/names.py": "# Names.\nGROUP = (\n    'nodedevices.io'\n)\n",
    "crds/nodedevices.yaml": "kind: X\n",
    "plugin/nodedevices_plugin/kubelet/api/podresources_v1_pb2.py": "generated = True\n",
    "tests/conftest.py": "import pytest\n",
    "tests/unit/rig/test_rig.py": "def test_it() -> None:\n    assert True\n",
    "docs/faults.md": "# Faults\n\nA GPU is lost.\n",
    "docs/devices/intel.md": "# Intel\n",
    "README.md": "# NodeDevices\n\nHealth of devices.\n",
    "CONTRIBUTING.md": "# Contributing\n",
    "CHANGELOG.md": "",
}

SHOWN = """\
product                                files       lines  statements
  cli/nodedevices_kubectl                  2           9           5
  crds/nodedevices_api                     1           4           1
  total                                    3          13           6

tests                                  files       lines  statements
  tests                                    1           1           1
  tests/unit                               1           2           2
  total                                    2           3           3

pages                                  files       lines       words
  README.md                                1           3           5
  CONTRIBUTING.md                          1           1           2
  CHANGELOG.md                             1           0           0
  docs                                     1           3           6
  docs/devices                             1           1           2
  total                                    5           8          15"""


def test_it_counts_files_lines_and_statements_of_code_and_words_of_pages(tmp_path: Path) -> None:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert table(tmp_path) == SHOWN
