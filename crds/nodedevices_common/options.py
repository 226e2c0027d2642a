"""Flags and environment of a program, from one table: what is given, and of what is wrong every single problem.

`--name value`, `--name=value`, a bare `--name` for a truth value, and all of them with one dash, as Go's flag package
takes them; lists are comma-separated or repeated. Variables are read where no flag is given; an empty one is not set. A
variable that begins with the program's prefix and is no setting is an error, except those that Kubernetes makes for
Services of such a name. A problem names the flag or variable, the value and what would be right (InputError).

Why argparse and not pydantic-settings: docs/decisions/008-settings-memory-and-checks-by-hand.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, NoReturn, TypedDict, TypeVar, Unpack, overload

from nodedevices_common.errors import InputError
from nodedevices_common.text import nearest, plain, show

Value = str | bool | tuple[str, ...]
T = TypeVar("T")
S = TypeVar("S", bound=str)
OptionKind = Literal["text", "bool", "list"]
PREFIX = "NODEDEVICES_"  # of variables
TRUE = frozenset({"true", "1", "t"})  # as Go's strconv.ParseBool, which NVIDIA's plugin uses
FALSE = frozenset({"false", "0", "f"})
# NODEDEVICES_OPERATOR_SERVICE_HOST, NODEDEVICES_OPERATOR_PORT_8080_TCP_ADDR, ...
SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$")
_ONE_DASH = re.compile(r"^-[A-Za-z][\w-]")  # not -h


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting. `help`: Markdown, with links relative to docs/; `--help` has it as plain text. `default` is for
    people when it depends on other settings (their reader resolves it). `variable_prefix`: of a list; every
    variable that begins so adds to it, sorted by name, so that several who know nothing of each other can. `flag`:
    False, where variables alone give it. `formerly`: names of flags that it has replaced, for those who give one."""

    HEAD: ClassVar = ("flag (also)", "variable", "default", "what")  # of the table in docs/flags.md

    name: str
    help: str
    group: str = ""
    kind: OptionKind = "text"
    default: Value = ""
    variables: tuple[str, ...] = ()
    variable_prefix: str = ""
    aliases: tuple[str, ...] = ()
    key: str | None = None  # in a configuration file; None: it has none
    choices: tuple[str, ...] = ()
    metavar: str = ""
    flag: bool = True
    formerly: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it is given."""
        return f"--{self.name}" if self.flag else f"environment variable {self.shown_variables[0]}"

    @property
    def shown_default(self) -> str:
        """Empty where it has none."""
        if isinstance(self.default, bool):
            return "true" if self.default else ""
        return ",".join(self.default) if isinstance(self.default, tuple) else self.default

    @property
    def shown_variables(self) -> tuple[str, ...]:
        return (*self.variables, *([f"{self.variable_prefix}*"] if self.variable_prefix else []))

    @property
    def cells(self) -> tuple[str, ...]:
        """Empty without a flag: docs/flags.md has another table of those."""
        if not self.flag:
            return ()
        also = f" ({', '.join(f'`{_dashed(alias)}`' for alias in self.aliases)})" if self.aliases else ""
        value = "" if self.kind == "bool" else f" {_metavar(self)}"
        variables = ", ".join(f"`{name}`" for name in self.shown_variables)
        default = f"`{self.shown_default}`" if self.shown_default else ""
        key = f"; file: `{self.key}`" if self.key else ""
        return f"`--{self.name}{value}`{also}", variables, default, self.help + key


class OptionDetails(TypedDict, total=False):
    """The fields of an Option that it can do without."""

    group: str
    variables: tuple[str, ...]
    variable_prefix: str
    aliases: tuple[str, ...]
    key: str | None
    choices: tuple[str, ...]
    metavar: str
    flag: bool
    formerly: tuple[str, ...]


def option(name: str, help_text: str, *, default: Value = "", **details: Unpack[OptionDetails]) -> Option:
    """An option of its default's kind, whose variable, where it says no other, is called as it is."""
    kind: OptionKind = "bool" if isinstance(default, bool) else "list" if isinstance(default, tuple) else "text"
    details.setdefault("variables", (PREFIX + variable(name),))
    return Option(name=name, help=help_text, kind=kind, default=default, **details)


def with_flag_variables(name: str, help_text: str, *, default: Value = "", **details: Unpack[OptionDetails]) -> Option:
    """An option with a variable for each of its flags, called as they are: --mig-strategy, MIG_STRATEGY."""
    details.setdefault("variables", tuple(variable(flag) for flag in (name, *details.get("aliases", ()))))
    return option(name, help_text, default=default, **details)


def variable(name: str) -> str:
    return name.upper().replace("-", "_")


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and where it was given: `--log-level`, `environment variable LOG_LEVEL`."""

    value: Value
    place: str


@overload
def setting(
    help_text: str, *, read: Callable[[str], T], default: Value = "", name: str = "", **details: Unpack[OptionDetails]
) -> T: ...
@overload
def setting(help_text: str, *, choices: tuple[S, ...], default: str, group: str = "", flag: bool = True) -> S: ...
@overload
def setting(help_text: str, *, default: bool, name: str = "", **details: Unpack[OptionDetails]) -> bool: ...
@overload
def setting(
    help_text: str, *, default: tuple[str, ...], name: str = "", **details: Unpack[OptionDetails]
) -> tuple[str, ...]: ...
@overload
def setting(help_text: str, *, default: str = "", name: str = "", **details: Unpack[OptionDetails]) -> str: ...
def setting(
    help_text: str,
    *,
    default: Value = "",
    name: str = "",
    read: Callable[[str], Any] | None = None,
    **details: Unpack[OptionDetails],
) -> Any:
    """A field of a frozen record that is an option, too (see `option`), called as the field is where there is no
    `name`. `read` makes the field's value of the text that was given, and raises ValueError with what would be right;
    without it the field has just what was given."""
    return field(metadata={"option": (name, help_text, default, details), "read": read})


def options_of(record: type) -> tuple[Option, ...]:
    return tuple(_option_of(member) for member in fields(record) if "option" in member.metadata)


def settings_of(record: type, given: Mapping[str, Given]) -> dict[str, Any]:
    """Return the values of these fields, by which the record is made. Raises InputError with each that cannot be."""
    found: dict[str, Any] = {}
    problems: list[str] = []
    for member in fields(record):
        if "option" in member.metadata:
            value, read = given[_option_of(member).name], member.metadata["read"]
            try:
                found[member.name] = value.value if read is None else read(str(value.value))
            except ValueError as error:
                problems.append(f"{value.place}: {error}")
    if problems:
        raise InputError(problems)
    return found


def _option_of(it: Field[Any]) -> Option:
    name, help_text, default, details = it.metadata["option"]
    return option(name or it.name.replace("_", "-"), help_text, default=default, **details)


@dataclass(frozen=True, slots=True)
class Values:
    """Settings by name: what was given, else the option's default."""

    given: Mapping[str, Value]
    options: Mapping[str, Option]

    def said(self, *names: str) -> bool:
        """True when one of them was given."""
        return any(name in self.given for name in names)

    def value(self, name: str) -> Value:
        return self.given.get(name, self.options[name].default)

    def text(self, name: str) -> str:
        return str(self.value(name))

    def truth(self, name: str) -> bool:
        return bool(self.value(name))

    def items(self, name: str) -> tuple[str, ...]:
        """Return the entries of a list."""
        value = self.value(name)
        return value if isinstance(value, tuple) else ()


def defaults(options: Iterable[Option]) -> dict[str, Given]:
    return {option.name: Given(option.default, option.place) for option in options}


def values_of(given: Mapping[str, Given]) -> dict[str, Value]:
    return {name: value.value for name, value in given.items()}


class Parser(argparse.ArgumentParser):
    """The command line of a table of options. Raises InputError; `--help` prints and raises SystemExit(0)."""

    def __init__(self, *, prog: str, description: str, epilog: str, usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._table: list[Option] = []
        self._moved: dict[str, str] = {}

    def add_options(self, options: Iterable[Option], *, title: str = "options") -> None:
        section = self.add_argument_group(title)
        for option in options:
            here = (option.name,) if not option.flag else ()
            self._moved |= {f"--{name}": f"; give {option.place}" for name in (*here, *option.formerly)}
            if not option.flag:
                continue
            self._table.append(option)
            section.add_argument(
                *map(_dashed, (option.name, *option.aliases)),
                dest=option.name,
                action="append",
                nargs="?" if option.kind == "bool" else None,
                const="true" if option.kind == "bool" else None,
                metavar=_metavar(option),
                help=_help(option),
            )

    def read(self, arguments: Sequence[str], *, rest: str) -> tuple[argparse.Namespace, dict[str, Given]]:
        """Return what argparse found of its own arguments, and the options that were given. rest: what is wrong with an
        argument that is neither."""
        # Go's flag package, which NVIDIA's plugin uses, takes `-name` for `--name`.
        parsed, unknown = self.parse_known_args([f"-{it}" if _ONE_DASH.match(it) else it for it in arguments])
        problems = []
        names = {name for action in self._actions for name in action.option_strings if name.startswith("--")}
        for extra in unknown:
            flag = extra.split("=", 1)[0]
            if flag.startswith("-"):
                hint = self._moved.get(flag) or nearest(flag, names) or f"; see {self.prog} --help"
                problems.append(f"{flag}: unknown flag{hint}")
            else:
                problems.append(f"{show(extra)}; {rest}")
        written = [
            (option, ",".join(texts) if option.kind == "list" else texts[-1], option.place)
            for option in self._table
            if (texts := getattr(parsed, option.name)) is not None
        ]
        found = _read_all(written, problems)
        if problems:
            raise InputError(problems)
        return parsed, found

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def from_environment(options: Sequence[Option], environment: Mapping[str, str], *, prefix: str) -> dict[str, Given]:
    """The options that variables give. Raises InputError."""
    known = {variable for option in options for variable in option.variables}
    moved = {prefix + variable(name): option.variables[0] for option in options for name in option.formerly}
    prefixes = tuple(option.variable_prefix for option in options if option.variable_prefix)
    written = []
    for option in options:
        if begin := option.variable_prefix:
            texts = [environment[name] for name in sorted(environment) if name.startswith(begin)]
            written.append((option, ",".join(filter(str.strip, texts)), f"environment variables {begin}*"))
        written += [(option, environment.get(name, ""), f"environment variable {name}") for name in option.variables]
    problems: list[str] = []
    found = _read_all((place for place in written if place[1]), problems)
    for name in sorted(environment):
        ours = name.startswith(prefix) and not name.startswith(prefixes)
        if ours and name not in known and not SERVICE_LINK.search(name):
            hint = f"; give {moved[name]}" if name in moved else nearest(name, known)
            problems.append(f"environment variable {name}: unknown setting{hint}")
    if problems:
        raise InputError(problems)
    return found


def _read_all(written: Iterable[tuple[Option, str, str]], problems: list[str]) -> dict[str, Given]:
    """Read what is written for options, and where; of several for one option the first counts. Add what is wrong to the
    problems."""
    found: dict[str, Given] = {}
    for option, text, place in written:
        if option.name not in found:
            try:
                found[option.name] = Given(read_text(option, text, place), place)
            except ValueError as error:
                problems.append(str(error))
    return found


def read_text(option: Option, text: str, place: str) -> Value:
    """The value written on a command line or in a variable. Raises ValueError with a sentence for people."""
    if option.kind == "list":
        return check(option, tuple(part.strip() for part in text.split(",") if part.strip()), place)
    if option.kind == "text":
        return check(option, text, place)
    lowered = text.strip().lower()
    if lowered not in TRUE | FALSE:
        raise ValueError(f"{place}: {show(text)} is not true or false; give true or false")
    return lowered in TRUE


def read_plain(option: Option, value: object, place: str) -> Value:
    """The value as read from a YAML or JSON file: of the right type already."""
    if option.kind == "bool":
        if isinstance(value, bool):
            return value
        raise ValueError(f"{place}: {show(value)} is not true or false; give true or false, without quotes")
    if option.kind == "list":
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str | int) for item in items):
            raise ValueError(f"{place}: {show(value)} is not a list of names")
        return check(option, tuple(str(item) for item in items), place)
    if not isinstance(value, str):
        raise ValueError(f"{place}: {show(value)} is not a text")  # noqa: TRY004  one error for all bad input
    return check(option, value, place)


def check(option: Option, value: str | tuple[str, ...], place: str) -> str | tuple[str, ...]:
    """Return the value itself when it is possible."""
    for text in (value,) if isinstance(value, str) else value:
        if "\0" in text:
            raise ValueError(f"{place}: {show(text)} has a NUL byte, which no path and no name can have")
        if option.choices and text not in option.choices:
            near = nearest(text, option.choices)
            hint = near if near.startswith("; did") else f"; give {' or '.join(option.choices)}"
            raise ValueError(f"{place}: {show(text)} is not allowed{hint}")
    return value


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _metavar(option: Option) -> str:
    if option.kind == "bool":
        return "true|false"
    if option.choices:
        return "|".join(option.choices)
    return option.metavar or ("LIST" if option.kind == "list" else "VALUE")


def _help(option: Option) -> str:
    notes = [f"${' or $'.join(option.shown_variables)}"] if option.shown_variables else []
    if option.shown_default:
        notes.append(f"default {option.shown_default}")
    return (plain(option.help) + (f" [{', '.join(notes)}]" if notes else "")).replace("%", "%%")
