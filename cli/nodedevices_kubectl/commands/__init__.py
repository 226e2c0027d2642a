"""The commands: a file each, and its line here. A file is loaded when its command is run, or asked for help.

To add one: a module with a click command of the same name (dashes as underscores), and a line in COMMANDS with what
`--help` shows of it; a test compares that with the command's own.
"""

from __future__ import annotations

from importlib import import_module

import click

DEFAULT = "nodes"
COMMANDS = {
    "nodes": "List nodes: are agent and devices well, who holds how many.",
    "devices": "List devices: what they are, are they well, who holds them.",
    "pods": "List pods that hold devices: which ones, and are they well.",
    "describe": "Show a node, or one of its devices, on one screen.",
    "idle": "List devices that pods hold and do not use, and for how long.",
    "top": "Show how busy devices are: utilisation, memory, power, temperature.",
    "check": "Walk the chain from driver to pod, and say where it breaks; exit codes for CI.",
    "policy": "See what policies make of nodes, and what a changed one would.",
    "cordon": "Take a device out of service: no new pod gets it.",
    "uncordon": "Take a device back into service.",
    "confirm": "Say that a device was repaired, or taken out of the machine.",
    "resume": "Let taints and evictions go on after a mass fault, or a stopped roll-out.",
    "support": "Write a file with what somebody who helps needs to see; no secrets.",
    "version": "Show the versions of this plugin, of the agents, and of Kubernetes.",
}


def load(name: str) -> click.Command:
    attribute = name.replace("-", "_")
    command: click.Command = getattr(import_module(f"{__name__}.{attribute}"), attribute)
    return command
