"""Flags and environment from one table, as agent and operator read them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from nodedevices_common.errors import InputError
from nodedevices_common.options import (
    Given,
    Option,
    Parser,
    Value,
    defaults,
    from_environment,
    options_of,
    setting,
    settings_of,
    values_of,
)
from support.cases import cases

OPTIONS = (
    Option(name="log-level", help="", choices=("debug", "info"), default="info", variables=("ND_LOG_LEVEL",)),
    Option(name="fail", help="", kind="bool", default=False, variables=("FAIL",)),
    Option(name="strategy", help="", kind="list", variables=("STRATEGY",), aliases=("strategies",)),
    Option(name="kubeconfig", help="100 % of it", variables=("ND_KUBECONFIG", "KUBECONFIG")),
)


def flags(*arguments: str) -> dict[str, Value]:
    parser = Parser(prog="program", description="", epilog="")
    parser.add_options(OPTIONS)
    return values_of(parser.read(arguments, rest="every argument is a flag")[1])


def variables(**environment: str) -> dict[str, Given]:
    return from_environment(OPTIONS, environment, prefix="ND_")


@cases("arguments", ["--log-level", "debug"], ["--log-level=debug"], ["-log-level", "debug"])
def test_a_flag_has_one_dash_or_two_and_its_value_beside_it_or_behind(arguments: list[str]) -> None:
    assert flags(*arguments) == {"log-level": "debug"}


def test_lists_have_commas_or_several_flags_and_of_variables_the_first_that_says_something_counts() -> None:
    assert flags("--fail", "--strategy=a,b", "-strategies", "c") == {"fail": True, "strategy": ("a", "b", "c")}
    assert flags("--fail=F") == {"fail": False}
    assert variables(ND_KUBECONFIG="", KUBECONFIG="/k") == {
        "kubeconfig": Given("/k", "environment variable KUBECONFIG")
    }
    assert values_of(variables(ND_KUBECONFIG="/n", KUBECONFIG="/k")) == {"kubeconfig": "/n"}


def test_every_problem_of_a_command_line_is_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        flags("--log-levle=info", "serve", "--fail=perhaps", "--log-level=loud")
    assert caught.value.problems == (
        "--log-levle: unknown flag; did you mean --log-level?",
        "'serve'; every argument is a flag",
        "--log-level: 'loud' is not allowed; give debug or info",
        "--fail: 'perhaps' is not true or false; give true or false",
    )


def test_an_unknown_variable_of_ours_is_a_typo_but_for_what_kubernetes_says_of_services() -> None:
    with pytest.raises(InputError) as caught:
        variables(FAIL="perhaps", ND_LOG_LEVLE="debug")
    assert caught.value.problems == (
        "environment variable FAIL: 'perhaps' is not true or false; give true or false",
        "environment variable ND_LOG_LEVLE: unknown setting; did you mean ND_LOG_LEVEL?",
    )
    assert variables(ND_SERVICE_HOST="10.0.0.1", ND_OPERATOR_PORT_9736_TCP_ADDR="10.0.0.1", OTHER="x") == {}


def test_the_help_says_which_variables_and_which_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags("--help")
    said = capsys.readouterr().out
    assert "[$ND_LOG_LEVEL, default info]" in said
    assert "100 % of it [$ND_KUBECONFIG or $KUBECONFIG]" in " ".join(said.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    wait_seconds: float = setting("how [long](flags.md#wait), in `s`", default="15", read=float)
    folders: tuple[str, ...] = setting("where", name="folder", default=("/etc", "/run"), metavar="DIR")
    verbose: bool = setting("say more", default=False, variables=("VERBOSE",))
    command: str


def test_a_record_has_a_flag_and_a_variable_a_value_or_a_default_for_each_field() -> None:
    named = {option.name: (option.kind, option.variables) for option in options_of(Settings)}
    assert named == {
        "wait-seconds": ("text", ("NODEDEVICES_WAIT_SECONDS",)),
        "folder": ("list", ("NODEDEVICES_FOLDER",)),
        "verbose": ("bool", ("VERBOSE",)),
    }
    options = options_of(Settings)
    given = defaults(options) | {"wait-seconds": Given("0.5", "--wait-seconds")}
    assert Settings(**settings_of(Settings, given), command="run") == Settings(
        wait_seconds=0.5, folders=("/etc", "/run"), verbose=False, command="run"
    )
    with pytest.raises(TypeError, match="wait_seconds"):
        Settings(command="run")


def test_help_is_the_pages_text_without_its_marks(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="program", description="", epilog="")
    parser.add_options(options_of(Settings))
    parser.print_help()
    assert "how long, in s [$NODEDEVICES_WAIT_SECONDS, default 15]" in " ".join(capsys.readouterr().out.split())
    wait, *_ = options_of(Settings)
    assert wait.cells == (
        "`--wait-seconds VALUE`",
        "`NODEDEVICES_WAIT_SECONDS`",
        "`15`",
        "how [long](flags.md#wait), in `s`",
    )


def test_an_alias_of_one_letter_has_one_dash_and_no_variable_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    output = Option(name="output", help="form", variables=(), aliases=("o",), choices=("table", "json"))
    parser = Parser(prog="program", description="", epilog="")
    parser.add_options([output])
    _, given = parser.read(["-o", "json"], rest="every argument is a flag")
    assert given == {"output": Given("json", "--output")}
    assert output.cells[:2] == ("`--output table|json` (`-o`)", "")
    parser.print_help()
    assert "-o table|json form" in " ".join(capsys.readouterr().out.split())
