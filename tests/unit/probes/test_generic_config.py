"""The configuration file of generic devices: what is understood, and what is refused with the place and a remedy."""

from __future__ import annotations

import json

import pytest
from nodedevices_common.errors import InputError
from nodedevices_probe.generic.config import (
    ConfigEntry,
    DeviceGroup,
    GenericConfig,
    PathPart,
    UsbPart,
    find,
    parse,
    shape,
)
from nodedevices_probe.generic.glob import match_text, matches
from support.cases import cases


def config(text: str) -> GenericConfig:
    return parse(text.encode())


def test_presets_are_ready_made_and_may_be_called_otherwise() -> None:
    found = config("devices: [{preset: fuse}, {preset: tun}, {preset: kvm, name: devices.kubevirt.io/kvm, count: 7}]")
    assert [(each.name, each.groups[0].paths[0].path, each.groups[0].count) for each in found.devices] == [
        ("fuse", "/dev/fuse", 100),
        ("tun", "/dev/net/tun", 100),
        ("devices.kubevirt.io/kvm", "/dev/kvm", 7),
    ]


SQUAT_FILE = """
domain: squat.ai
log-level: info
listen: ":8080"
devices:
- name: serial
  groups:
  - paths:
    - path: /dev/ttyUSB*
  - paths:
    - path: /dev/ttyACM*
- name: capture
  groups:
  - count: 10
    paths:
    - {path: /dev/snd/pcmC0D0c, mountPath: /dev/snd/mic, permissions: mrw}
    - {path: /dev/snd/controlC0, limit: 4, optional: true}
    - {path: /run/sound, type: Mount, readOnly: true}
- name: ch340
  groups:
  - usb: [{vendor: "1A86", product: "7523", serial: "00000001"}]
"""


def test_a_file_of_squats_plugin_is_understood_as_it_is() -> None:
    found = config(SQUAT_FILE)
    assert found.domain == "squat.ai"
    assert [each.name for each in found.devices] == ["serial", "capture", "ch340"]
    assert found.devices[0].groups == (
        DeviceGroup(paths=(PathPart(path="/dev/ttyUSB*"),)),
        DeviceGroup(paths=(PathPart(path="/dev/ttyACM*"),)),
    )
    assert found.devices[1].groups == (
        DeviceGroup(
            count=10,
            paths=(
                PathPart(path="/dev/snd/pcmC0D0c", container_path="/dev/snd/mic", permissions="mrw"),
                PathPart(path="/dev/snd/controlC0", limit=4, optional=True),
                PathPart(path="/run/sound", mount=True, read_only=True),
            ),
        ),
    )
    assert found.devices[2].groups == (DeviceGroup(usb=(UsbPart(vendor="1a86", product="7523", serial="00000001"),)),)


def test_what_its_flag_device_takes_is_an_entry_and_one_group_needs_no_groups() -> None:
    flag = '{"name": "fuse", "groups": [{"count": 10, "paths": [{"path": "/dev/fuse"}]}]}'
    [entry] = config(f"device:\n- {flag}\n").devices
    assert entry == ConfigEntry(name="fuse", groups=(DeviceGroup(count=10, paths=(PathPart(path="/dev/fuse"),)),))
    assert config(f"- {flag}").devices == config(json.dumps({"devices": [json.loads(flag)]})).devices == (entry,)
    short = config('[{name: a, paths: [{path: /dev/a}], count: 2, env: {A: "{{path}}"}}]')
    assert (
        short.devices[0].groups
        == config("[{name: a, groups: [{paths: [{path: /dev/a}], count: 2}]}]").devices[0].groups
    )


# The values of --device that its README and its DaemonSet have (squat/generic-device-plugin 179b1fe), as written there.
SQUATS_EXAMPLES = """
{"name": "video", "groups": [{"paths": [{"path": "/dev/video0"}]}]}
{"name": "serial", "groups": [{"paths": [{"path": "/dev/ttyUSB*"}]}, {"paths": [{"path": "/dev/ttyACM*"}]}]}
{"name": "capture", "groups": [{"paths": [{"path": "/dev/snd/pcmC0D0c"}, {"path": "/dev/snd/controlC0"}]}]}
{"name": "ch340", "groups": [{"usb": [{"vendor": "1a86", "product": "7523"}]}]}
{"name": "a", "groups": [{"usb": [{"vendor": "1209", "product": "000F"}, {"vendor": "1209", "serial": "00000001"}]}]}
{"name": "fuse", "groups": [{"count": 10, "paths": [{"path": "/dev/fuse"}]}]}
{"name": "a", "groups": [{"paths": [{"path": "/dev/ttyS0", "optional": true}, {"path": "/dev/a", "optional": true}]}]}
{"name": "serial", "groups": [{"paths": [{"path": "/dev/ttyUSB*", "mountPath": "/dev/serial/"}]}]}
{name: audio, groups: [{count: 10, paths: [{path: /dev/snd}]}]}
{name: serial, groups: [{paths: [{path: /dev/tty.usb*}]}, {paths: [{path: /dev/cu.*}]}]}
{name: capture, groups: [{paths: [{path: /dev/snd/controlC1, mountPath: /dev/snd/controlC0}]}]}
"""


@cases("flag", *SQUATS_EXAMPLES.strip().splitlines())
def test_every_example_of_squats_plugin_is_an_entry_as_it_is_written(flag: str) -> None:
    assert len(config(f"device:\n- {flag}\n").devices) == 1


REFUSED = {
    "": "is empty",
    "a": "a mapping with devices, or a list of them",
    "devices: {}": "devices: a mapping is not allowed; give a list",
    "devices: []\ndevice: []": "keep one",
    "domain: x.com": "devices: is missing",
    "devces: []": "devces: no such key; did you mean devices?",
    "domain: x.kubernetes.io\ndevices: []": "domain: 'x.kubernetes.io' is not allowed; give a domain of your own",
    "devices: [{preset: fuse, name: requests.io/a}]": "'requests.io/a' is not allowed; give a resource's name",
    "domain: 'A b'\ndevices: []": "domain: 'A b' is not allowed; give a domain",
    "- 3": "devices[0]: 3 is not allowed; give a mapping with a name and groups, or a preset",
    "- {preset: gpu}": "devices[0].preset: 'gpu' is not allowed; give one of fuse, tun, kvm",
    "- {preset: fuse, paths: [{path: /dev/x}]}": "devices[0].paths: cannot be combined with a preset",
    "- {paths: [{path: /dev/x}]}": "devices[0].name: is missing",
    "- {name: a}": "devices[0].paths: is missing; give paths or usb",
    "- {name: a/b/c, paths: [{path: /dev/x}]}": "devices[0].name: 'a/b/c' is not allowed; give a resource's name",
    "- {name: a, paths: [{path: /dev/x}], usb: [{vendor: '1234'}]}": "devices[0].usb: cannot be combined with paths",
    "- {name: a, groups: [{paths: [{path: /dev/x}]}], count: 2}": "devices[0].count: cannot be combined with groups",
    "- {name: a, groups: [{paths: [{path: /dev/x}]}, {paths: [{path: /dev/x}]}]}": "the same parts as in groups[0]",
    "- {name: a, paths: [{path: /etc/passwd}]}": "'/etc/passwd' is not allowed; give a path in /dev, or type: Mount",
    "- {name: a, paths: [{path: /dev/../etc/shadow}]}": "give a path without empty parts, . and ..",
    "- {name: a, paths: [{path: '/dev/a b'}]}": "give letters, digits, any of",
    "- {name: a, paths: [{path: '/dev/[ab'}]}": "[...] is not closed",
    "- {name: a, paths: [{path: '/dev/a*b*c*d*'}]}": "at most 3 *",
    "- {name: a, paths: [{path: dev/x}]}": "give an absolute path",
    "- {name: a, paths: [{path: /dev/x, type: File}]}": "type: 'File' is not allowed; give one of Device, Mount",
    "- {name: a, paths: [{path: /dev/x, permissions: rx}]}": "permissions: 'rx' is not allowed; give some of r, w",
    "- {name: a, paths: [{path: /dev/x, permissions: rr}]}": "permissions: 'rr' is not allowed",
    "- {name: a, paths: [{path: /dev/x, readOnly: true}]}": "readOnly: only for type: Mount",
    "- {name: a, paths: [{path: /x, type: Mount, permissions: r}]}": "permissions: only for type: Device",
    "- {name: a, paths: [{path: /dev/x, containerPath: ../y}]}": "containerPath: '../y' is not allowed; give an",
    "- {name: a, paths: [{path: /dev/x, containerPath: /dev/../../y}]}": "is not allowed; give an absolute path",
    "- {name: a, paths: [{path: /dev/x, containerPath: '/dev/{{no}}'}]}": "{{no}} is not a field; known here: {{id}}",
    "- {name: a, paths: [{path: /dev/x, containerPath: /a, mountPath: /b}]}": "keep one",
    "- {name: a, paths: [{path: /dev/x, optional: true}], required: true}": "required: all paths are optional",
    "- {name: a, usb: [{vendor: '1209', optional: true}]}": "usb[0].optional: no such key",
    "- {name: a, pair: match, paths: [{path: /dev/x}]}": "match needs a path with a wildcard",
    "- {name: a, paths: [{path: /dev/x, limit: 0}]}": "limit: 0 is not allowed; give an integer from 1 to 1000",
    "- {name: a, paths: [{path: /dev/x}], count: 1001}": "count: 1001 is not allowed",
    "- {name: a, paths: [{path: /dev/x*}], required: true}": "required: only for paths without wildcards",
    "- {name: a, together: true, paths: [{path: /dev/x}, {path: '/x/*', type: Mount}]}": "cannot be combined with /x/*",
    "- {name: a, usb: [{vendor: 1209}]}": "vendor: 1209 is not allowed; give four hexadecimal digits, such as 1a86",
    "- {name: a, usb: [{product: '1209'}]}": "usb[0].vendor: is missing",
    "- {name: a, paths: [{path: /dev/x}], env: {'A B': c}}": "env: a name: 'A B' is not allowed; give a variable",
    "- {name: a, paths: [{path: /dev/x}], env: {A: 3}}": "env.A: 3 is not allowed; give a text, in quotes",
    "- {name: a, paths: [{path: /dev/x}], env: {A: '{{pod}}'}}": "{{pod}} is not a field",
    "- {name: a, paths: [{path: /dev/x}], mounts: [{hostPath: opt}]}": "hostPath: 'opt' is not allowed; give an",
    "- {name: a, paths: [{path: /dev/x}], mounts: [{hostPath: /}]}": "containerPath: '/' is not allowed",
    "- {name: a, paths: [{path: /dev/x}], cdiDevices: [gpu0]}": "cdiDevices[0]: 'gpu0' is not allowed; give a name",
    "- {preset: fuse}\n- {preset: fuse}": "devices[1].name: fuse is given twice",
    "- {name: a, name: b}": "name: is given twice",
    "- &a {preset: fuse}\n- *a": "an alias (*name): not allowed",
    "- !!python/object:os.system {}": "not YAML",
}


@cases("text", *REFUSED)
def test_what_is_wrong_is_named_with_what_would_be_right(text: str) -> None:
    with pytest.raises(InputError) as refused:
        config(text)
    assert REFUSED[text] in str(refused.value)


def test_every_entry_that_is_wrong_is_named_at_once_and_a_file_too_long_or_no_text_refused() -> None:
    with pytest.raises(InputError) as refused:
        config("[{preset: gpu}, {preset: kvm}, {name: a}]")
    assert [each.partition(":")[0] for each in refused.value.problems] == ["devices[0].preset", "devices[2].paths"]
    for raw in (b"#" * ((1 << 20) + 1), b"\xff\xfe", b"\x00", b"[" * 100_000):
        with pytest.raises(InputError):
            parse(raw)


def test_a_shape_is_of_what_is_searched_for_and_of_nothing_else() -> None:
    [one], [other] = (
        config(text).devices
        for text in (
            "[{name: a, paths: [{path: /dev/x}]}]",
            "[{name: a, paths: [{path: /dev/x}], count: 2, env: {A: b}}]",
        )
    )
    assert shape(one, one.groups[0]) == shape(other, other.groups[0])
    found = find(GenericConfig(devices=(other,)), "a", shape(one, one.groups[0]))
    assert found == (other, other.groups[0])
    assert find(GenericConfig(devices=(other,)), "a", "older") is None
    assert find(GenericConfig(devices=(other,)), "b", shape(one, one.groups[0])) is None


@cases(
    ("path", "pattern", "text"),
    ("/dev/ttyUSB0", "/dev/ttyUSB*", "0"),
    ("/dev/snd/pcmC1D3c", "/dev/snd/pcmC*D*c", "1-3"),
    ("/dev/tty7", "/dev/tty[0-9]", "7"),
    ("/dev/ttyS", "/dev/tty[!0-9]", "S"),
    ("/dev/ab", "/dev/?b", "a"),
    ("/dev/fuse", "/dev/fuse", ""),
    ("/dev/z", "/dev/[z-a]", ""),
)
def test_what_wildcards_stand_for(path: str, pattern: str, text: str) -> None:
    assert match_text(path, pattern) == text


def test_matching_ends_whatever_a_name_is() -> None:
    assert not matches("a" * 255, "*a*a*b")
