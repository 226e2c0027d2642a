"""The contract between hardware, nodes and people: the models of NodeDevices and DevicePolicy, and their CRDs.

This module imports next to nothing, so that a probe may use `nodedevices_api.bounds` without pydantic.
The models are in `nodedevices`, `devicepolicy` and `sections`; `crds/*.yaml` are generated from them.
"""

from typing import Final

GROUP: Final = "nodedevices.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "nodedevices.io/v1alpha1"

RESTORED_BY: Final = "nodedevices-agent-restore"
"""Field manager of what people had written in a NodeDevices that was deleted: the agent makes it again with that."""
