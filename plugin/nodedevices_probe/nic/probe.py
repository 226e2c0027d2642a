"""Network cards: PCI functions of class 0x02, whatever driver has them, and RDMA devices of any kind.

A device is a PCI function by its address, a sub-function by the name of its auxiliary device, or an RDMA device that
has neither (soft-RoCE) by its own name. What says most about it may be away and come back while it is in use: a pod's
network has its interface, and with exclusive RDMA namespaces its RDMA device. Nothing is written, no interface is set
up or down, and nothing but files of the kernel is read.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_common.text import some

from nodedevices_probe import nic as names
from nodedevices_probe.loop import SourceFacts
from nodedevices_probe.nic import required_nodes
from nodedevices_probe.nic.functions import (
    NET,
    Function,
    Interface,
    SysfsOwner,
    default_interfaces,
    functions,
    interface,
    interfaces,
    onload_missing,
    owner,
)
from nodedevices_probe.nic.models import LINUX, link_condition, maker, model, with_fewer_ports
from nodedevices_probe.nic.rdma import NETNS_MODE, FirmwareReads, RdmaDevice, rdma_devices
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import NODE_MISSING, PCI_DEVICES, PciePlace, System, node_conditions, sensors
from nodedevices_probe.protocol import (
    MAX_MESSAGE,
    MAX_SMALL,
    MAX_TEXT,
    DeviceFact,
    Problem,
    Readings,
    is_device_id,
    problem,
    text,
    within,
)
from nodedevices_probe.source import Found, SysfsSource, attributes

EXCLUSIVE = (
    "RDMA devices are seen in only one network namespace: a pod sees those that its CNI plugin moves into its network."
    " To share them: rdma system set netns shared"
)
NO_ROUTES = (
    "it is not known which network card has the node's default route, so plain cards are not reported: mount the"
    " host's /proc/1/net at --host-net-ctr-path, as the component all-hardware does, or report them by --all"
)
NO_INTERFACES = (
    "no network card has an interface: this is not the host's /sys; mount that at --host-sys-ctr-path, or use the"
    " component all-hardware"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """Facts that are read once for all devices of a poll."""

    functions: Mapping[SysfsOwner, Function]  # with sub-functions
    interfaces: Mapping[SysfsOwner, Interface]
    rdma: Mapping[SysfsOwner, RdmaDevice]
    onload_missing: bool  # where it is wanted
    fewer_ports: Set[str]  # PCI addresses
    routed: Set[SysfsOwner]  # whose interface has a default route, or had one since the probe started

    def parent(self, function: Function) -> Function:
        """Return its physical function; itself where it is one."""
        return self.functions.get(SysfsOwner(function.physical), function)


@dataclass(slots=True, kw_only=True)
class NicSource(SysfsSource):
    """`required`: which character devices an RDMA device has to have. `plain`: with cards that have nothing but an
    interface. `selected`: with these, too, because a file may select them, but only where it is known which card
    carries the node's own traffic. `onload`: Solarflare cards need Onload. `host_net`: where /proc/1/net of the host is
    mounted, if it is."""

    name: str = "nic"
    required: frozenset[str] = frozenset(names.RDMA_REQUIRED)
    plain: bool = False
    selected: bool = False
    onload: bool = False
    host_net: Path | None = None
    firmware: FirmwareReads = field(default_factory=FirmwareReads)
    _routed: set[SysfsOwner] = field(default_factory=set)
    _boards: dict[str, str] = field(default_factory=dict)  # by PCI address; a pod may have the RDMA device meanwhile

    def poll(self) -> SourceFacts:
        return self.facts((), self._found, folders=(PCI_DEVICES,))

    def has_paths(self, device: DeviceFact) -> bool:
        return names.PHYSICAL_FUNCTION not in device.extra

    def _found(self) -> Found:
        roots, rdma = self.roots, rdma_devices(self.roots, self.firmware)
        by_owner = {rdma_device.owner: rdma_device for rdma_device in reversed(rdma) if rdma_device.owner.pci}
        every = functions(
            roots, self.system.bus_ids(), {its_owner.pci for its_owner in by_owner if not its_owner.auxiliary}
        )
        own_interfaces = interfaces(roots, without_speed=by_owner)
        knows_routes = self._read_routes(own_interfaces)
        self._boards |= {
            rdma_device.owner.pci: rdma_device.board
            for rdma_device in rdma
            if rdma_device.board and not rdma_device.owner.auxiliary
        }
        machine = _Machine(
            functions=every,
            interfaces=own_interfaces,
            rdma=by_owner,
            onload_missing=self.onload and onload_missing(roots),
            fewer_ports=with_fewer_ports(
                [function.id for function in every.values() if not function.physical], self._boards
            ),
            routed=self._routed,
        )
        plain = self.plain or (self.selected and knows_routes)
        devices = [
            self._device(its_owner, function, machine)
            for its_owner, function in every.items()
            if plain or function.is_special
        ]
        devices += [self._soft(rdma_device) for rdma_device in rdma if not rdma_device.owner.pci]
        usable: dict[str, DeviceFact] = {}
        for device in devices:
            if is_device_id(device.id):
                usable.setdefault(device.id, device)
        ordered = sorted(usable.values(), key=lambda device: (device.type == names.VIRTUAL, not device.pci_bus_id))
        problems = _problems(roots, machine, devices, ordered, routes_needed=self.selected and not knows_routes)
        return ordered[:MAX_DEVICES], tuple(problems)

    def _read_routes(self, cards: Mapping[SysfsOwner, Interface]) -> bool:
        """True when it is known which interfaces have a default route: not where the routes and the interfaces may be
        of two networks, a pod's and the host's. A card that had one keeps the mark while it is away: a link that is
        down must not make the node's own card one to give away."""
        roots, mounted = self.roots, self.host_net is not None and self.host_net.is_dir()
        folder = str(self.host_net) if mounted else "proc/net"
        found = default_interfaces(roots, folder) if mounted or roots.sys is None else None
        for name in found or ():
            if (its_owner := owner(roots, f"{NET}/{name}")) is not None and its_owner.pci:
                self._routed.add(its_owner)
        together = roots.sys is not None if mounted else bool(cards)
        return found is not None and together and all(roots.exists(f"{NET}/{name}") for name in found)

    def _device(self, its_owner: SysfsOwner, function: Function, machine: _Machine) -> DeviceFact:
        rdma, own = machine.rdma.get(its_owner), machine.interfaces.get(its_owner)
        physical = machine.parent(function)
        of_physical = SysfsOwner(physical.id)
        parent, parent_rdma = machine.interfaces.get(of_physical), machine.rdma.get(of_physical)
        made_by = maker(function.vendor)
        nodes = (*function.device_nodes, *(rdma.device_nodes(self.roots, self.required) if rdma else ()))
        return DeviceFact(
            id=function.id,
            index=0,
            type=names.VIRTUAL if function.is_virtual else names.PHYSICAL,
            vendor=made_by.word,
            brand=made_by.brand,
            product_name=model(function.vendor, function.device) or (text(rdma.model) if rdma else ""),
            firmware=rdma.firmware if rdma else "",
            pci_bus_id=its_owner.pci,
            extra=attributes(
                {
                    names.PCI_VENDOR: function.vendor,
                    names.DEVICE_ID: function.device,
                    names.DRIVER: function.driver,
                    names.IF_NAME: own.name if own else "",
                    names.IF_NAMES: _several(own),
                    names.LINK_TYPE: _link_type(own, rdma) or _link_type(parent, parent_rdma),
                    names.PF_NAME: parent.name if parent else "",
                    names.PHYSICAL_FUNCTION: function.physical,
                    names.VF_INDEX: function.index,
                    names.VIRTUAL_FUNCTIONS: function.virtual_functions or None,
                    names.ACPI_INDEX: function.acpi_index,
                    names.SPEED: _speed(own, rdma),
                    names.DEFAULT_ROUTE: True if its_owner in machine.routed else None,
                    names.AUX_TYPE: function.auxiliary_type,
                    names.PF_DRIVER: physical.driver if function.auxiliary_type else "",
                    **function.vdpa,
                    **_of_rdma(rdma),
                }
            ),
            capacity={names.VFS: str(function.most_virtual_functions)} if function.most_virtual_functions else {},
            device_nodes=nodes[:16],
            readings=self._readings(its_owner, function, machine),
        )

    def _readings(self, its_owner: SysfsOwner, function: Function, machine: _Machine) -> Readings:
        rdma, own = machine.rdma.get(its_owner), machine.interfaces.get(its_owner)
        of_physical = SysfsOwner(machine.parent(function).id)
        link = link_condition(machine.interfaces.get(of_physical), machine.rdma.get(of_physical))
        if function.physical:
            felt, counters = Readings(), {}  # those of its physical function
        else:
            at = f"{PCI_DEVICES}/{its_owner.pci}"
            felt = rdma.said.sensors if rdma is not None else sensors(self.roots, at, shown="asic")
            downs = own.carrier_downs if own is not None else None
            counters = {} if downs is None else {names.CARRIER_DOWN_COUNT: downs}
        holds = {
            names.DRIVER_UNBOUND: not function.driver,
            NODE_MISSING: bool(node_conditions(self.roots, function.device_nodes))
            or (rdma is not None and rdma.missing(self.roots, self.required)),
            names.ONLOAD_MISSING: machine.onload_missing and function.needs_onload,
            names.FEWER_PORTS: function.id in machine.fewer_ports,
        }
        return replace(
            felt,
            error=function.unsaid or _no_answer(rdma),
            conditions=(*(name for name in holds if holds[name]), *([link] if link else ())),
            counters={**(rdma.said.counters if rdma else {}), **counters},
        )

    def _soft(self, rdma: RdmaDevice) -> DeviceFact:
        """An RDMA device that the kernel makes of an interface, whose PCI device says where it is."""
        under = interface(self.roots, rdma.netdev) if rdma.netdev else None
        below = owner(self.roots, f"{NET}/{rdma.netdev}") if rdma.netdev else None
        place = self.system.place(below.pci) if below is not None and below.pci else PciePlace(path=())
        missing = (NODE_MISSING,) if rdma.missing(self.roots, self.required) else ()
        link = link_condition(under, rdma)
        return DeviceFact(
            id=rdma.name,
            index=0,
            type=names.PHYSICAL,
            vendor=LINUX.word,
            product_name=text(rdma.model),
            firmware=rdma.firmware,
            pcie_root=place.root,
            numa_node=place.numa_node,
            extra=attributes(
                {
                    names.IF_NAME: under.name if under else "",
                    names.PF_NAME: under.name if under else "",
                    names.LINK_TYPE: _link_type(under, rdma),
                    names.SPEED: _speed(under, rdma),
                    **_of_rdma(rdma),
                }
            ),
            device_nodes=rdma.device_nodes(self.roots, self.required)[:16],
            readings=Readings(
                error=_no_answer(rdma),
                conditions=(*missing, *([link] if link else ())),
                counters=dict(rdma.said.counters),
            ),
        )


def _no_answer(rdma: RdmaDevice | None) -> str | None:
    return None if rdma is None or rdma.answers else text(f"{rdma.name} does not answer", MAX_MESSAGE)


def _of_rdma(rdma: RdmaDevice | None) -> dict[str, str | int | None]:
    if rdma is None:
        return {}
    return {
        names.RDMA_DEVICE: text(rdma.name),
        names.NODE_GUID: rdma.node_guid,
        names.P_KEYS: ",".join(rdma.said.p_keys),
    }


def _several(own: Interface | None) -> str:
    """Join as many as an attribute holds."""
    found = ""
    for name in own.names if own is not None and len(own.names) > 1 else ():
        longer = f"{found},{name}" if found else name
        found = longer if len(longer) <= MAX_TEXT else found
    return found


def _link_type(own: Interface | None, rdma: RdmaDevice | None) -> str:
    if own is not None and own.link_type:
        return own.link_type
    return next((port.link_type for port in rdma.said.ports if port.link_type), "") if rdma is not None else ""


def _speed(own: Interface | None, rdma: RdmaDevice | None) -> int | None:
    if own is not None and own.speed_gbps is not None:
        return own.speed_gbps
    rates = [port.rate_gbps for port in rdma.said.ports if port.rate_gbps is not None] if rdma is not None else []
    return within(max(rates, default=None), 1, MAX_SMALL)


def _problems(
    roots: Roots, machine: _Machine, found: Sequence[DeviceFact], usable: Sequence[DeviceFact], *, routes_needed: bool
) -> Iterator[Problem]:
    """`usable`: those of `found` that a line can name."""
    if roots.word(NETNS_MODE) == "N":
        yield Problem(code="RdmaExclusive", message=EXCLUSIVE)
    if odd := [text(device.id) for device in found if not is_device_id(device.id)]:
        why = f"{len(odd)} RDMA devices are not reported, such as {', '.join(odd[:4])}"
        yield problem("NotReported", f"{why}: give them names of letters, digits and ._:-")
    if machine.interfaces:
        if routes_needed:
            yield Problem(code="RoutesNotKnown", message=NO_ROUTES)
    elif any(
        function.driver and not function.device_nodes and not function.is_virtual
        for function in machine.functions.values()
    ):
        yield Problem(code="NoInterfaces", message=NO_INTERFACES)
    yield from _shared_groups(usable)
    if left := [device.id for device in usable[MAX_DEVICES:]]:
        why = f"{len(usable)} devices were found; only the first {MAX_DEVICES} are reported, without {some(left, 8)}"
        yield problem("TooManyDevices", why)


def _shared_groups(devices: Iterable[DeviceFact]) -> Iterator[Problem]:
    """Yield the problem of VFIO groups with several functions: the node of a group gives access to all of them."""
    groups = defaultdict[str, list[str]](list)
    for device in devices:
        for node in device.device_nodes:
            if node.startswith("/dev/vfio/"):
                groups[node].append(device.id)
    if shared := [f"{node} ({', '.join(ids[:4])})" for node, ids in groups.items() if len(ids) > 1]:
        why = "a pod with one function of an IOMMU group can use the other functions, too; give all of them to one pod"
        yield problem("SharedIommuGroup", f"{why}: {'; '.join(shared[:4])}")


def source(options: argparse.Namespace) -> NicSource:
    """Return the source for its arguments (kind). Raises CheckError."""
    return NicSource(
        system=System(options.root, Path(options.driver_root_ctr_path), options.host_sys_ctr_path),
        required=required_nodes(options.rdma_required),
        plain=options.all,
        selected=bool(options.sriov),
        host_net=options.host_net_ctr_path,
        onload=bool(options.onload),
        poll_seconds=options.interval_seconds,
    )
