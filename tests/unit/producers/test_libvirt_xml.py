"""libvirt's XML in our units, from canned documents of hosts that the test driver cannot be."""

from __future__ import annotations

import pytest

from producers.libvirt_xml import Disk, cpuset, pci_address, read_capabilities, read_domain, read_pci, read_system_uuid
from schemas.audits import HypervisorAudited
from schemas.codec import decode, encode
from schemas.inventory import HugePages, Hypervisor, NumaCell, SupportedGuest
from schemas.resources import ObservedResources
from schemas.topics import AUDITS

CAPABILITIES = """<capabilities><host><uuid>8a1f</uuid>
<cpu><arch>x86_64</arch><model>Skylake</model><vendor>Intel</vendor><topology sockets='1' dies='1' cores='2' threads='2'/>
<maxphysaddr mode='emulate' bits='46'/><feature name='vmx'/><feature name='aes'/><feature name='vmx'/></cpu>
<topology><cells num='2'>
<cell id='1'><memory unit='KiB'>33554432</memory><cpus num='2'>
<cpu id='4' socket_id='1' siblings='4-5'/><cpu id='5' socket_id='1' siblings='4-5'/></cpus></cell>
<cell id='0'><memory unit='KiB'>33554433</memory><pages unit='KiB' size='4'>8000</pages><pages unit='KiB' size='1048576'>2</pages>
<pages unit='KiB' size='2048'>512</pages><cpus num='4'><cpu id='0' socket_id='0' siblings='0,2'/><cpu id='2' socket_id='0' siblings='0,2'/>
<cpu id='1' socket_id='1' siblings='1,3'/><cpu id='3' socket_id='1' siblings='1,3'/></cpus></cell>
</cells></topology></host>
<guest><os_type>hvm</os_type><arch name='x86_64'><domain type='qemu'/><domain type='kvm'/></arch></guest>
<guest><os_type>hvm</os_type><arch name='i686'><domain type='kvm'/></arch></guest></capabilities>"""
DOMAIN = """<domain type='kvm'><name>instance-1</name><uuid>i-1</uuid>
<metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'><nova:owner><nova:user uuid='u-1'>joe</nova:user>
<nova:project uuid='p-1'>shop</nova:project></nova:owner></nova:instance></metadata>
<memory unit='KiB'>1048577</memory><currentMemory unit='KiB'>524288</currentMemory><vcpu placement='static' current='2'>4</vcpu>
<cputune><vcpupin vcpu='0' cpuset='6'/><vcpupin vcpu='1' cpuset='7'/><vcpupin vcpu='2' cpuset='0-3'/></cputune>
<numatune><memory mode='strict' nodeset='0-1'/><memnode cellid='0' mode='strict' nodeset='1'/></numatune>
<devices>
<disk type='file' device='disk'><source file='/var/a.qcow2'/></disk><disk type='block' device='disk'><source dev='/dev/vg/b'/></disk>
<disk type='volume' device='disk'><source pool='fast' volume='c'/></disk>
<disk type='network' device='disk'><source protocol='rbd' name='p/d'/></disk>
<disk type='file' device='cdrom'><source file='/iso'/></disk>
<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x81' slot='0x1f' function='0x7'/></source></hostdev>
<hostdev mode='subsystem' type='usb'><source><address bus='1' device='2'/></source></hostdev>
<interface type='hostdev'><source><address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x1'/></source></interface>
</devices></domain>"""


def test_a_host_has_its_cells_pages_siblings_and_sorted_features() -> None:
    host = read_capabilities(CAPABILITIES, (9, 9, 9, 9), frozenset({2, 3}))

    assert host.cells == (
        NumaCell(
            cell_id=0,
            cpus=(0, 1, 2, 3),
            dedicated_cpus=(2, 3),
            siblings=((0, 2), (1, 3)),
            memory_mib=32_768,
            socket=None,
            pages=(HugePages(size_kib=2_048, total=512), HugePages(size_kib=1_048_576, total=2)),
        ),
        NumaCell(cell_id=1, cpus=(4, 5), siblings=((4, 5),), memory_mib=32_768, socket=1),
    )
    cpu = host.cpu_info
    assert (cpu.features, cpu.maxphysaddr_bits, cpu.model, cpu.vendor) == (("aes", "vmx"), 46, "Skylake", "Intel")
    assert (cpu.cells, cpu.sockets, cpu.cores, cpu.threads) == (2, 1, 2, 2)
    assert host.host_uuid == "8a1f"


def test_pages_of_an_unknown_unit_are_an_error_that_an_audit_can_say() -> None:
    with pytest.raises(ValueError, match="<pages unit='stone'>: expected one of b, bytes"):
        read_capabilities(CAPABILITIES.replace("<pages unit='KiB'", "<pages unit='stone'"), (9, 9, 9, 9))


def test_supported_guests_are_sorted_triples() -> None:
    assert read_capabilities(CAPABILITIES, (0, 0, 0, 0)).guests == tuple(
        SupportedGuest(architecture=arch, hypervisor_type=kind, vm_mode="hvm")
        for arch, kind in (("i686", "kvm"), ("x86_64", "kvm"), ("x86_64", "qemu"))
    )


def test_a_silent_host_has_the_topology_of_its_node_info() -> None:
    cpu = read_capabilities("<capabilities><host><cpu><arch>x86_64</arch></cpu></host></capabilities>", (2, 1, 16, 2)).cpu_info

    assert (cpu.architecture, cpu.cells, cpu.sockets, cpu.cores, cpu.threads, cpu.maxphysaddr_bits) == ("x86_64", 2, 1, 16, 2, None)


def test_a_domain_has_its_defined_size_not_its_present_one() -> None:
    domain = read_domain(DOMAIN)

    assert (domain.vcpus, domain.memory_mib) == (4, 1_025)
    assert (domain.instance_id, domain.name, domain.project_id) == ("i-1", "instance-1", "p-1")


def test_of_a_name_that_no_record_can_say_the_beginning_is_said() -> None:
    name = read_domain("<domain><uuid>u</uuid><name>" + 5_000 * "n" + "</name><memory>1024</memory><vcpu>1</vcpu></domain>").name

    assert name == 4_096 * "n"


def test_only_a_pin_to_one_cpu_binds_it() -> None:
    assert read_domain(DOMAIN).pinned_cpus == (6, 7)
    assert read_domain(DOMAIN).numa_cells == (0, 1)


def test_pinned_cpus_count_as_pcpus_where_the_host_has_a_dedicated_set() -> None:
    domain = read_domain(DOMAIN)

    assert domain.report("running", 7).resources == ObservedResources(vcpus=4, pcpus=0, memory_mib=1_025, disk_mib=7)
    assert domain.report("running", 7, frozenset({6, 7, 8})).resources == ObservedResources(vcpus=2, pcpus=2, memory_mib=1_025, disk_mib=7)
    assert domain.report("running", 7, frozenset({9})).resources == ObservedResources(vcpus=4, pcpus=0, memory_mib=1_025, disk_mib=7)


def test_a_cpu_kept_for_the_emulator_counts_and_is_held_and_one_shared_with_the_guests_is_not() -> None:
    beside, within, floating = (
        read_domain(DOMAIN.replace("</cputune>", f"<emulatorpin cpuset='{cpus}'/></cputune>")) for cpus in ("8", "7", "6-8")
    )

    report = beside.report("running", 7, frozenset({6, 7, 8}))

    assert (report.resources.vcpus, report.resources.pcpus, report.pinned_cpus) == (2, 3, (6, 7, 8))
    assert (within.emulator_cpus, floating.emulator_cpus) == ((), ())


@pytest.mark.parametrize(
    ("vcpu", "pins", "pinned", "emulator"),
    [
        ("<vcpu placement='static' cpuset='1'>1</vcpu>", "", (1,), ()),
        ("<vcpu cpuset='1'>2</vcpu>", "<vcpupin vcpu='0' cpuset='6'/>", (1, 6), ()),
        ("<vcpu cpuset='1'>2</vcpu>", "<vcpupin vcpu='0' cpuset='6'/><vcpupin vcpu='1' cpuset='7'/>", (6, 7), (1,)),
        ("<vcpu cpuset='1'>1</vcpu>", "<vcpupin vcpu='0' cpuset='6'/><emulatorpin cpuset='0-3'/>", (6,), ()),
        ("<vcpu cpuset='1'>1</vcpu>", "<vcpupin vcpu='0' cpuset='2-3'/><emulatorpin cpuset='8'/>", (), (8,)),
        ("<vcpu cpuset='1-2'>1</vcpu>", "", (), ()),
        ("<vcpu placement='auto' cpuset='1'>1</vcpu>", "", (), ()),
    ],
)
def test_threads_without_a_pin_of_their_own_are_bound_where_all_are(
    vcpu: str, pins: str, pinned: tuple[int, ...], emulator: tuple[int, ...]
) -> None:
    domain = read_domain(f"<domain><uuid>i</uuid><memory>1</memory>{vcpu}<cputune>{pins}</cputune></domain>")

    assert (domain.pinned_cpus, domain.emulator_cpus) == (pinned, emulator)


def test_a_guest_that_is_bound_as_a_whole_holds_its_dedicated_cpu() -> None:
    domain = read_domain("<domain><uuid>i</uuid><memory>1</memory><vcpu placement='static' cpuset='1'>1</vcpu></domain>")

    report = domain.report("running", 0, frozenset({1}))

    assert (report.resources.vcpus, report.resources.pcpus, report.pinned_cpus) == (0, 1, (1,))


def test_disks_are_found_where_they_are_and_a_cdrom_is_none() -> None:
    assert read_domain(DOMAIN).disks == (Disk(path="/var/a.qcow2"), Disk(path="/dev/vg/b"), Disk(pool="fast", volume="c"), Disk())


NOVAS = """<domain><uuid>i</uuid><memory unit='MiB'>1</memory><vcpu>1</vcpu>
<metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'><nova:flavor name='m1'><nova:memory>1</nova:memory>
<nova:disk>20</nova:disk><nova:swap>512</nova:swap><nova:ephemeral>5</nova:ephemeral><nova:vcpus>1</nova:vcpus></nova:flavor>{root}
</nova:instance></metadata><devices>
<disk type='network' device='disk'><source protocol='rbd' name='vms/i_disk'/></disk>
<disk type='block' device='disk'><source dev='/dev/sdx'/><serial>5d1b3a43-77d3-4a0a-8d86-51b5b2f4d7ac</serial></disk></devices></domain>"""


@pytest.mark.parametrize(("root", "flavor_mib"), [("<nova:root type='image' uuid='a'/>", 25 * 1024 + 512), ("", 5 * 1024 + 512)])
def test_a_guest_of_novas_has_its_flavors_disk_and_no_root_on_a_volume_and_volumes_are_not_the_hosts(root: str, flavor_mib: int) -> None:
    domain = read_domain(NOVAS.format(root=root))

    assert domain.disks == (Disk(),)
    assert domain.flavor_disk_mib == flavor_mib
    assert domain.report("running", None).flavor == "m1"


def test_a_serial_makes_no_volume_of_a_disk_without_nova_and_a_flavor_without_sizes_says_nothing() -> None:
    serial = "<disk type='block'><source dev='/dev/sdx'/><serial>s</serial></disk>"
    plain = f"<domain><uuid>i</uuid><memory>1</memory><vcpu>1</vcpu><devices>{serial}</devices></domain>"

    assert read_domain(plain).disks == (Disk(path="/dev/sdx"),)
    assert read_domain(plain).flavor_disk_mib is None
    assert read_domain(NOVAS.format(root="").replace("<nova:disk>20</nova:disk>", "")).flavor_disk_mib is None


@pytest.mark.parametrize("said", ["<nova:disk>-1</nova:disk>", f"<nova:disk>{1 << 60}</nova:disk>"])
def test_metadata_that_no_record_can_say_are_none_and_the_audit_can_be_read(said: str) -> None:
    text = NOVAS.format(root=f"<nova:root/><nova:project uuid='{'p' * 5_000}'/>").replace("<nova:disk>20</nova:disk>", said)
    text = text.replace("'m1'", f"'{'m' * 5_000}'")
    domain = read_domain(text)

    audit = HypervisorAudited(
        node_id="n", producer="p", epoch=1, counter=1, taken_at_ms=1, mono_ms=1, digest="d", hypervisor=Hypervisor(),
        instances=(domain.report("running", domain.flavor_disk_mib),),
    )  # fmt: skip

    assert decode(AUDITS, encode(audit)) == audit
    assert (domain.flavor_disk_mib, domain.project_id, domain.flavor) == (None, "", "")


def test_passed_through_devices_have_their_addresses() -> None:
    assert read_domain(DOMAIN).pci_addresses == ("0000:05:00.1", "0000:81:1f.7")


def test_the_device_of_an_nvme_disk_is_the_guests() -> None:
    source = "<source type='pci' managed='yes' namespace='1'><address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></source>"
    own = "<target dev='vda'/><address type='pci' domain='0x0000' bus='0x09' slot='0x00' function='0x0'/>"
    disk = f"<disk type='nvme' device='disk'>{source}{own}</disk>"

    assert read_domain(DOMAIN.replace("<devices>", f"<devices>{disk}")).pci_addresses == ("0000:01:00.0", "0000:05:00.1", "0000:81:1f.7")


@pytest.mark.parametrize(("unit", "memory_mib"), [("KiB", 2), ("b", 1), ("MiB", 2_048), ("GiB", 2_097_152), ("KB", 2)])
def test_memory_in_any_unit_is_rounded_up_to_mib(unit: str, memory_mib: int) -> None:
    text = f"<domain><uuid>i</uuid><memory unit='{unit}'>2048</memory><vcpu>1</vcpu></domain>"

    assert read_domain(text).memory_mib == memory_mib


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<domain><uuid>i</uuid><vcpu>1</vcpu></domain>", "expected <uuid>, <memory> and <vcpu>"),
        ("<domain><uuid>i</uuid><memory unit='stone'>1</memory><vcpu>1</vcpu></domain>", "<memory unit='stone'>: expected one of b, bytes"),
        (f"<domain><uuid>i</uuid><memory unit='TiB'>{1 << 40}</memory><vcpu>1</vcpu></domain>", "expected <memory> in MiB from 0 to"),
        ("<domain><uuid>i</uuid><memory>-1048576</memory><vcpu>1</vcpu></domain>", "<memory> in MiB from 0 to 1125899906842624, got -1024"),
        ("<domain><uuid>i</uuid><memory>1</memory><vcpu>-1</vcpu></domain>", "expected <vcpu> from 0 to 1125899906842624, got -1"),
        ("<domain>", "expected XML from libvirt: no element found"),
    ],
)
def test_a_domain_without_a_size_is_an_error(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        read_domain(text)


def test_a_pci_device_is_virtual_physical_or_plain() -> None:
    plain = "<device><capability type='pci'><domain>0</domain><bus>5</bus><slot>31</slot><function>1</function>{}</capability></device>"

    kinds = [read_pci(plain.format(f"<capability type='{kind}'/>")) for kind in ("virt_functions", "phys_function", "other")]

    assert [device.device_type for device in kinds if device] == ["type-PF", "type-VF", "type-PCI"]
    assert kinds[0] is not None
    assert (kinds[0].address, kinds[0].numa_cell, kinds[0].physical_function) == ("0000:05:1f.1", None, "")
    assert read_pci("<device><capability type='scsi_host'/></device>") is None


def test_the_machines_uuid_stands_with_the_system_device() -> None:
    assert read_system_uuid("<device><capability type='system'><hardware><uuid>33</uuid></hardware></capability></device>") == "33"
    assert read_system_uuid("<device><capability type='scsi_host'/></device>") == ""


def test_lists_of_cpus_have_ranges_and_exclusions() -> None:
    assert cpuset("0-3,^2, 8") == {0, 1, 3, 8}
    assert cpuset("") == set()
    assert pci_address({"domain": "0x1", "bus": "a", "slot": "0x00", "function": "7"}) == "0001:0a:00.7"


@pytest.mark.parametrize("text", ["9-3", "0-99999999999", "-3", "8-", "^8-", "a", "1-2-3"])
def test_a_list_of_cpus_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a range|invalid literal"):
        cpuset(text)
