"""The configuration file of remote pools: bytes in, a RemoteConfig out, or an error for each pool that is wrong.

docs/devices/remote.md is the description for people. The probe and the agent both read the file with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from nodedevices_probe.files import (
    ANYTHING,
    DOMAIN,
    NAME,
    CheckError,
    entries,
    fits,
    integer,
    keyed,
    list_of,
    load,
    one_of,
    variables,
)

MAX_POOLS = 64
MAX_COUNT = 1000
FIELDS = ("count", "controller", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerCheck:
    """How the controller is checked: `tcp` (`host:port`) accepts a connection, or `http` (a URL) answers with a status
    from 200 to 399. `failures`: so many in a row mean that it cannot be reached; one success, that it can."""

    tcp: str = ""
    http: str = ""
    period_seconds: int = 10
    timeout_seconds: int = 2
    failures: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePool:
    """`count`: how many of it this node offers."""

    name: str
    count: int
    check: ControllerCheck
    controller: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    domain: str = ""
    pools: tuple[RemotePool, ...] = ()


PRESETS: Mapping[str, Mapping[str, Any]] = {  # what a pool has where the file says nothing
    # Orion vGPU: one request is so many vGPUs; their memory and share are the pod's own ORION_GMEM and ORION_RATIO.
    "orion": {
        "name": "virtaitech.com/gpu",
        "env": {"ORION_CONTROLLER": "{{controller}}", "ORION_VGPU": "{{count}}", "ORION_DEVICE_TYPE": "GPU"},
    },
}


def split_address(address: str) -> tuple[str, int] | None:
    """`[::1]:9123` -> ("::1", 9123); None for what is no address."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    good = host.isascii() and 0 < len(host) <= 253 and all(char.isalnum() or char in ".-_:%" for char in host)
    if not good or not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
        return None
    return host, int(port)


def _is_url(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > 1024 or not value.isascii() or not value.isprintable():
        return False
    try:
        url = urlsplit(value)
        plain = url.username is None and url.password is None and " " not in value
        return url.scheme in {"http", "https"} and bool(url.hostname) and plain and url.port != 0
    except ValueError:
        return False


_ADDRESS = fits(
    lambda value: isinstance(value, str) and split_address(value) is not None, "host:port, such as 10.0.0.5:9123"
)
_CHECK = keyed(
    {
        "tcp": _ADDRESS,
        "http": fits(_is_url, "a URL, such as http://10.0.0.5:9123/healthz"),
        "periodSeconds": integer(1, 300),
        "timeoutSeconds": integer(1, 10),
        "failureThreshold": integer(1, 100),
    }
)
_POOL = keyed(
    {
        "preset": one_of(*PRESETS),
        "name": NAME,
        "count": integer(1, MAX_COUNT),
        "controller": _ADDRESS,
        "env": variables(FIELDS),
        "check": _CHECK,
    },
    required=("count",),
    what="a mapping with a name or a preset, a count and a controller",
)


def parse(raw: bytes) -> RemoteConfig:
    """Return what the file says. Raises InputError with what is wrong with each of its pools."""
    value = load(raw, aliases=False)
    if value is None:
        raise CheckError("is empty; give pools, for example 'pools: [{preset: orion, controller: ..., count: 4}]'")
    pools = list_of(ANYTHING, MAX_POOLS)
    keyed({"domain": DOMAIN, "pools": pools}, required=("pools",), what="a mapping with pools")("", value)
    return RemoteConfig(domain=value.get("domain", ""), pools=entries("pools", value["pools"], _pool, again="keep one"))


def _pool(place: str, value: Any) -> RemotePool:
    _POOL(place, value)
    preset = PRESETS.get(value.get("preset", ""), {})
    given = {**preset, **value}
    if "name" not in given:
        raise CheckError(f"{place}.name: is missing")
    controller, check = given.get("controller", ""), given.get("check", {})
    if "tcp" in check and "http" in check:
        raise CheckError(f"{place}.check.http: tcp is given, too; keep one")
    env = {**preset.get("env", {}), **value.get("env", {})}
    if not controller and (not check or any("{{controller}}" in text.replace(" ", "") for text in env.values())):
        raise CheckError(f"{place}.controller: is missing; give host:port")
    if not controller and not {"tcp", "http"} & check.keys():
        raise CheckError(f"{place}.check.tcp: is missing; give tcp or http, or a controller")
    return RemotePool(
        name=given["name"],
        count=given["count"],
        controller=controller,
        env=env,
        check=ControllerCheck(
            tcp=check.get("tcp", "" if "http" in check else controller),
            http=check.get("http", ""),
            period_seconds=check.get("periodSeconds", 10),
            timeout_seconds=check.get("timeoutSeconds", 2),
            failures=check.get("failureThreshold", 3),
        ),
    )
