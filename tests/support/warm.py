"""What an agent's first step makes and keeps, such as the readers of its configuration: made before any is forked."""

from __future__ import annotations

from nodedevices_plugin.settings.effective import resolve, to_saved
from nodedevices_plugin.settings.flags import parse

to_saved(resolve(parse(["--node-name=node", "--standalone"], {}), None, None))
