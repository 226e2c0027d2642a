"""Names and addresses of the test cluster: what is shared by the machine is never shared by two clusters."""

from __future__ import annotations

import ipaddress
import socket
from itertools import combinations
from pathlib import Path

import pytest
from cluster.rig import layout
from cluster.rig.layout import Layout
from cluster.rig.problem import RigError


def a_layout(index: int, count: int = 2) -> Layout:
    return Layout(f"c{index}", Path(f"/var/tmp/x/c{index}"), index, count, 443, 20001, 20002)


def networks(one: Layout) -> list[ipaddress.IPv4Network]:
    found = [one.services, f"{one.gateway}/24", *(node.pods for node in one.nodes)]
    return [ipaddress.IPv4Network(text, strict=False) for text in found]


def test_no_two_clusters_share_a_network_a_link_or_a_control_group_or_ports_of_clients() -> None:
    every = [a_layout(index, layout.MOST_NODES) for index in range(layout.MOST_CLUSTERS)]
    for one, other in combinations(every, 2):
        assert not [(a, b) for a in networks(one) for b in networks(other) if a.overlaps(b)]
        assert not {node.link for node in one.nodes} & {node.link for node in other.nodes}
        assert not {node.cgroup for node in one.nodes} & {node.cgroup for node in other.nodes}
    one = a_layout(layout.MOST_CLUSTERS - 1, layout.MOST_NODES)
    assert not [pair for pair in combinations(networks(one), 2) if pair[0].overlaps(pair[1])]
    assert all(len(node.link) <= 15 for node in one.nodes)
    ports = layout.free_ports(3)
    assert len(set(ports)) == 3
    assert all(port < 32768 for port in ports)


def test_a_written_layout_is_read_back(tmp_path: Path) -> None:
    one = Layout("c", tmp_path, 4, 2, 443, 20001, 20002)
    one.write()
    assert layout.read(tmp_path) == one


def test_a_port_is_given_once_and_only_the_server_it_is_for_can_listen_there() -> None:
    """Two API servers that started at once were given one port for their etcds."""
    [port] = layout.free_ports(1)
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(("127.0.0.1", port))
    for _ in range(2):  # it starts again
        with socket.socket() as server, socket.socket() as client:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Go's net.Listen does
            server.bind(("127.0.0.1", port))
            server.listen()
            client.connect(("127.0.0.1", port))
            with socket.socket() as another, pytest.raises(OSError, match="in use"):
                another.bind(("127.0.0.1", port))


def test_what_one_holds_another_is_refused() -> None:
    with layout.lock("a test"):
        with pytest.raises(RigError, match="a test is in the hands of another"), layout.lock("a test"):
            pass
        with layout.lock("another test"):
            pass
    with layout.lock("a test"):
        pass


def test_a_number_of_nodes_that_cannot_be_is_refused_before_anything_is_built() -> None:
    with pytest.raises(RigError, match="--nodes 5000: 0 to 15"):
        layout.check_nodes(5000)
