"""The command nodedevices-agent, also as `python -m nodedevices_plugin`: loads the agent, and runs it.

Loading is most of the time from the start to the first Register. A probe's process starts beside it, as a spare: which
probes run is known only when the agent is loaded. It ends again where none is needed, wrong flags among the reasons.
"""

from __future__ import annotations

import os

from nodedevices_common import loading

from nodedevices_plugin.inputs import probe_child


def main() -> int:
    served = os.environ.get("NODEDEVICES_PROBE_SERVER")  # then no probe runs here
    spare = None if served else probe_child.spare()
    try:
        with loading.quickly(), loading.needing("nodedevices-agent", "agent"):
            from nodedevices_plugin import agent  # noqa: PLC0415  see above
        return agent.main(spare=spare)
    finally:
        if spare is not None:
            spare.end()


if __name__ == "__main__":
    raise SystemExit(main())
