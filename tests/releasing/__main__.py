"""`make release`: the files of a release of the last commit, in dist/<version>; `make version V=...`: the version.

python -m releasing [--source URL]        # files, and nothing that is not committed
python -m releasing --version 0.2.0
"""

from __future__ import annotations

import argparse
import shutil
import sys

from nodedevices_common import __version__
from releasing import versions
from releasing.build import Commit, git, release, tree_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m releasing", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--source", default="", help="address of the repository's files, for SECURITY-INSIGHTS.yml")
    parser.add_argument("--version", metavar="V", help="write this version to wherever it stands, and do nothing else")
    given = parser.parse_args()
    if given.version is not None:
        try:
            print(*versions.write(given.version), sep="\n")
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    if changed := git("status", "--porcelain", "--untracked-files=no").decode().rstrip():
        print(f"not committed, and so not in the release:\n{changed}", file=sys.stderr)
    commit = Commit.head()
    folder = versions.ROOT / "dist" / __version__
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tree_of(commit) as tree:
        for name, data in sorted(release(tree, commit, __version__, source=given.source).items()):
            (folder / name).write_bytes(data)
            print(f"{len(data):>9}  {name}")
    print(f"commit {commit.id}, in {folder.relative_to(versions.ROOT)}: docs/releases.md has what comes next")
    return 0


if __name__ == "__main__":
    sys.exit(main())
