"""Which hosts `produce libvirt` reports: from its flags, or from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streams.cli.problems import UsageProblem
from streams.cli.produce.libvirt_hosts import HostFlags, check_address, check_distinct, hosts_in, hosts_of

COMMON = HostFlags(uri="", pools=("fast",), service_host="s1")


def cpus(text: str) -> set[int]:
    return {int(each) for each in text.split(",")}


def test_uris_may_name_their_nodes() -> None:
    found = hosts_of(("qemu+tls://c1.example/system", "c02=qemu:///system", "qemu+unix:///system?socket=/run/x"), "", COMMON)

    assert [(host.node, host.uri) for host in found] == [
        ("", "qemu+tls://c1.example/system"),
        ("c02", "qemu:///system"),
        ("", "qemu+unix:///system?socket=/run/x"),
    ]
    assert {(host.pools, host.service_host) for host in found} == {(("fast",), "s1")}


@pytest.mark.parametrize(
    ("uris", "node", "expected"),
    [(("a:///x", "b:///x"), "n", "--node n names one host"), (("m=a:///x",), "n", "both name the node")],
)
def test_one_name_for_several_hosts_is_refused(uris: tuple[str, ...], node: str, expected: str) -> None:
    with pytest.raises(UsageProblem, match=expected):
        hosts_of(uris, node, COMMON)


def test_a_uri_that_says_nothing_is_refused_and_libvirt_chooses_no_host_of_its_own() -> None:
    with pytest.raises(UsageProblem, match="--uri is empty"):
        hosts_of(("",), "", COMMON)


def test_the_same_node_twice_is_refused() -> None:
    with pytest.raises(UsageProblem, match="c1 is there twice"):
        check_distinct(hosts_of(("c1=a:///x", "c1=b:///x"), "", COMMON))
    check_distinct(hosts_of(("c1=a:///x", "c2=a:///x"), "", COMMON))


@pytest.mark.parametrize(("node", "got"), [("x" * 256, 256), (" ", 1)])
def test_a_name_that_no_record_can_say_is_refused(node: str, got: int) -> None:
    with pytest.raises(UsageProblem, match=f"expected a name of 1 to 255 characters, got {got}"):
        check_distinct(hosts_of(("a:///x",), node, COMMON))
    check_distinct(hosts_of(("a:///x",), "x" * 255, COMMON))


def test_a_file_says_for_each_host_what_differs(tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text(
        """
        [[host]]
        uri = "qemu+tls://c01/system"
        [[host]]
        uri = "qemu+tcp://c02/system"
        node = "c02"
        pools = ["nvme", "sas"]
        dedicated_cpus = "4,5"
        pci_devices = ["0000:3b:00.*", "8086:1520"]
        host_ip = "192.0.2.2"
        refresh_pools = true
        """
    )

    found = hosts_in(tmp_path / "hosts.toml", COMMON, cpus)

    assert found == [
        HostFlags(uri="qemu+tls://c01/system", pools=("fast",), service_host="s1"),
        HostFlags(
            uri="qemu+tcp://c02/system",
            node="c02",
            pools=("nvme", "sas"),
            dedicated_cpus=frozenset({4, 5}),
            pci_devices=("0000:3b:00.*", "8086:1520"),
            host_ip="192.0.2.2",
            service_host="s1",
            refresh_pools=True,
        ),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected [[host]] tables"),
        ("x = 1\n[[host]]\nuri = 'a:///'", "expected [[host]] tables"),
        ("[[host]]\nnode = 'n'", "host 1: expected a uri"),
        ("[[host]]\nuri = ' '", "host 1: expected a uri"),
        ("[[host]]\nuri = 'a:///'\nnodes = 'n'", "host 1: nodes is not known; known: uri, node,"),
        ("[[host]]\nuri = 'a:///'\n[[host]]\nuri = 'b:///'\npools = 'p'", "host 2: pools 'p': expected a list of strings"),
        ("[[host]]\nuri = 'a:///'\ndedicated_cpus = 'all'", "dedicated_cpus 'all': expected a list such as"),
        *(
            (f"[[host]]\nuri = 'a:///'\npci_devices = ['*', '{named}']", f"host 1: pci_devices {named!r}: expected an address or")
            for named in ("eth0", "3b:00.1", "0000:3b", "0000:3B:00.1")
        ),
        ("[[host", "hosts.toml: "),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_the_place(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "hosts.toml").write_text(text)

    with pytest.raises(UsageProblem) as refused:
        hosts_in(tmp_path / "hosts.toml", COMMON, cpus)

    assert expected in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="No such file"):
        hosts_in(tmp_path / "none.toml", COMMON, cpus)


def test_an_address_from_the_command_line_is_that_of_one_host() -> None:
    own = replace(COMMON, host_ip="10.0.0.1")

    check_address("10.0.0.1", hosts_of(("c1=a:///x",), "", own))
    check_address("", hosts_of(("c1=a:///x", "c2=b:///x"), "", COMMON))
    with pytest.raises(UsageProblem, match=r"--host-ip 10\.0\.0\.1: several hosts cannot have one address"):
        check_address("10.0.0.1", hosts_of(("c1=a:///x", "c2=b:///x"), "", own))
