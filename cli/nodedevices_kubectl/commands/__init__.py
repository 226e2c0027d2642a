"""The commands, with what `--help` shows of each. One module has those that belong together, and is loaded when one of
them is run, or asked for help.

To add a command: a click command of the same name in a module here, and a line in COMMANDS; a test compares the help
with the command's own.
"""

from __future__ import annotations

from importlib import import_module

import click

DEFAULT = "nodes"
COMMANDS = {
    "nodes": "List nodes: health of agent and devices, and held devices.",
    "devices": "List devices: model, health, and holders.",
    "pods": "List pods that hold devices, with health of the devices.",
    "describe": "Show a node, or one of its devices, on one screen.",
    "idle": "List devices that pods hold but do not use, and for how long.",
    "top": "Show how busy devices are: utilisation, memory, power, temperature.",
    "check": "Check each link from driver to pod, and show what is broken; exit codes for CI.",
    "policy": "Show how policies configure nodes, and what a changed policy would do.",
    "cordon": "Take a device out of service: no new pod gets it.",
    "uncordon": "Take a device back into service.",
    "confirm": "Confirm a repair, a removal, or that what stopped itself goes on.",
    "support": "Write a support bundle: a file for those who help you, without secrets.",
    "version": "Show the versions of this plugin, of the agents, and of Kubernetes.",
}
# What to say of commands of earlier versions.
FORMERLY = {"resume": "; give `confirm actions resumed`, or `confirm policy/NAME resumed`"}


_MODULES = {
    **dict.fromkeys(("nodes", "devices", "pods", "idle", "describe", "version"), "show"),
    **dict.fromkeys(("cordon", "uncordon", "confirm"), "edits"),
}


def load(name: str) -> click.Command:
    command: click.Command = getattr(import_module(f"{__name__}.{_MODULES.get(name, name)}"), name)
    return command
