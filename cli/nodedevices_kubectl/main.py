"""The command line: finds the command, runs it, and turns what went wrong into a sentence and an exit code. And its
completion, `kubectl_complete-nodedevices`.

Exit codes: 0 well; 1 error; 2 usage; 3 `check` found something broken, or `policy dry-run` what is to be looked at;
130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

import click
from click.shell_completion import ShellComplete
from nodedevices_common.errors import NodeDevicesError
from nodedevices_common.text import nearest, printable

from nodedevices_kubectl import commands
from nodedevices_kubectl.session import PROGRAM, Machine

ERROR, USAGE, INTERRUPTED = 1, 2, 130
NO_FILES = ":4"


class Commands(click.Group):
    """Loads a command when it is needed. Without one it is `nodes`; options may come before the command, as kubectl
    users write them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands.COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return commands.load(cmd_name) if cmd_name in commands.COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in commands.COMMANDS and not ctx.resilient_parsing:
            instead = commands.FORMERLY.get(args[0]) or nearest(args[0], commands.COMMANDS)
            raise click.UsageError(f"{args[0]}: no such command{instead}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, arranged(args) if not ctx.resilient_parsing else args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(commands.COMMANDS.items()))


def arranged(args: Sequence[str]) -> list[str]:
    """Return the arguments with the command first: options that came before it follow it."""
    first = list(args)
    if not first:
        return [commands.DEFAULT]
    if first == ["--version"]:
        return ["version", "--client"]
    if not first[0].startswith("-") or first[0] in {"-h", "--help", "--"}:
        return first
    # Of the commands that people begin with an option: all that list have those of `devices`.
    known = commands.load("devices").params
    values = {flag for it in known if isinstance(it, click.Option) and not it.is_flag for flag in it.opts}
    at = 0
    while at < len(first) and first[at].startswith("-"):
        at += 2 if first[at] in values else 1
    if at >= len(first):
        return [commands.DEFAULT, *first]
    return [first[at], *first[:at], *first[at + 1 :]]


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli() -> None:
    """What devices the cluster's nodes have, who holds them, are they well, and what to do when they are not.

    Without a command: nodes. `kubectl nodedevices COMMAND --help` says more of each.
    """


def run(args: Sequence[str], machine: Machine | None = None) -> int:
    """Return the exit code."""
    using = machine or Machine()
    try:
        result: Any = cli.main(list(args), prog_name=PROGRAM, standalone_mode=False, obj=using)
        using.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:  # of a command that has others below it
        using.stderr.write(f"{error.format_message()}\n")
        return USAGE
    except click.UsageError as error:
        _say(using, error.format_message())
        command = error.ctx.command_path if error.ctx is not None else PROGRAM
        using.stderr.write(f"See '{command} --help'.\n")
        return USAGE
    except click.ClickException as error:
        _say(using, error.format_message())
        return ERROR
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except NodeDevicesError as error:
        _say(using, str(error))
        if advice := getattr(error, "advice", ""):
            using.stderr.write(f"{printable(advice)}\n")
        return ERROR
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR  # as click does
    return result if isinstance(result, int) else 0


def _say(machine: Machine, text: str) -> None:
    for line in text.splitlines():
        machine.stderr.write(f"error: {printable(line)}\n" if line else "\n")


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character shows its number
    sys.exit(run(sys.argv[1:]))


# --- completion ------------------------------------------------------------------------------------------------------
def proposals(args: Sequence[str], machine: Machine) -> list[str]:
    """`args`: the words so far, the last of which is not whole."""
    *words, last = args or [""]
    first = arranged(words) if words and words[0].startswith("-") else words
    return [
        printable(completion.value) + (f"\t{printable(completion.help)}" if completion.help else "")
        for completion in ShellComplete(cli, {"obj": machine}, PROGRAM, "").get_completions(first, last)
        if completion.type == "plain"
    ]


def complete() -> None:
    """What kubectl (1.26 or later) runs for `kubectl nodedevices` and TAB: one proposal a line, with a tab before its
    help, and after them what the shell shall do (`:4`: propose no files)."""
    for line in (*proposals(sys.argv[1:], Machine()), NO_FILES):
        sys.stdout.write(f"{line}\n")
