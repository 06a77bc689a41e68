"""Nova's other filters: what each says of a node, in words and amounts; their rules are held by tests/conformance."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from projections.node import Claim, Node, Shown
from projections.room import Room, mark_of, room
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem
from schemas.inventory import Aggregate, CpuInfo, Hypervisor, Metric, Physical, ResourceRule, SupportedGuest
from schemas.requests import Flavor, Hints, Image, PlacementRequested
from schemas.resources import Limits, Resources
from streams.scheduling.ask import Ask, ask_of
from streams.scheduling.filters import FILTERS, RESTRICTIONS, filters_of, reason
from streams.scheduling.options import Options
from streams.scheduling.policy import Policy

HOST = Hypervisor(vcpus=8, memory_mib=4096, disk_mib=10_240)


def node(hypervisor: Hypervisor = HOST, instances: int = 0, used: tuple[int, int, int, int] = (0, 0, 0, 0), **fields: Any) -> Room:
    host = Node("n1", hypervisor=hypervisor, **fields)
    host.used = list(used)
    items = [ClaimItem(claim_id=f"c{n}", instance_id=f"i{n}", nodes=("n1",), resources=Resources()) for n in range(instances)]
    return room(host, 0, mark_of("n1"), items)


def in_aggregates(*metadata: dict[str, str], **more: Any) -> Room:
    return node(aggregates=tuple(Aggregate(name=f"a{n}", metadata=each) for n, each in enumerate(metadata)), **more)


def ask(**request: Any) -> Ask:
    options: dict[str, Any] = {"request_id": "r", "flavor": Flavor(name="small", vcpus=1, memory_mib=512), "instance_ids": ("i",)} | request
    return ask_of(PlacementRequested(**options), 0, seed=1)


def why(name: str, asked: Ask, there: Room, **options: Any) -> str | None:
    filters = {each.name: each for each in (*FILTERS.values(), *RESTRICTIONS)}
    return reason(msgspec.structs.replace(filters[name], options=Options(**options)), asked, there)


def with_specs(**extra_specs: str) -> Ask:
    return ask(flavor=Flavor(name="small", extra_specs={key.replace("__", ":"): text for key, text in extra_specs.items()}))


def with_image(image_id: str = "", **properties: str) -> Ask:
    return ask(image=Image(image_id=image_id, properties=properties))


def test_capabilities_are_read_from_what_the_node_reports() -> None:
    cpu = CpuInfo(vendor="Intel", features=("aes", "avx2"), maxphysaddr_bits=46)
    host = node(Hypervisor(memory_mib=4096, cpu_info=cpu, stats={"gpu": "2"}))
    name = "ComputeCapabilitiesFilter"

    assert why(name, with_specs(capabilities__cpu_info__vendor="Intel", free_ram_mb=">= 4096", gpu=">= 2"), host) is None
    assert why(name, with_specs(hw__mem_page_size="large"), host) is None
    assert why(name, with_specs(capabilities__cpu_info__features="<all-in> aes avx2"), host) is None
    assert why(name, with_specs(gpu="= 3"), host) == "gpu: = 3 needed, it is 2"
    assert why(name, with_specs(capabilities__tpu="1"), host) == "capabilities:tpu: 1 needed, it is not known of the node"
    assert why(name, with_specs(hw__maxphysaddr_bits="48"), host) == "capabilities:cpu_info:maxphysaddr:bits: >= 48 needed, it is 46"
    assert why(name, with_specs(unknown_to_all="1"), host) is None
    deep = node(Hypervisor(stats={"gpu": "[" * 4000}))
    assert why(name, with_specs(capabilities__gpu__x="1"), deep) == "capabilities:gpu:x: 1 needed, it is not known of the node"


def test_what_a_node_has_is_compared_by_the_figures_and_in_the_spelling_of_novas_host_state() -> None:
    host = node(
        Hypervisor(vcpus=8, memory_mib=4096, disk_mib=10_240, physical=Physical(disk_mib_available_least=1024)),
        used=(1, 0, 96, 240),
        vcpus=ResourceRule(reserved=2),
        memory_mib=ResourceRule(reserved=512),
        disk_mib=ResourceRule(reserved=1000),
    )
    figures = {"free_ram_mb": "3488", "vcpus_used": "3", "total_usable_disk_gb": "10", "disk_mb_used": "1240", "free_disk_mb": "1024"}

    assert why("ComputeCapabilitiesFilter", with_specs(**figures), host) is None


def test_beside_a_demand_for_address_bits_all_others_count() -> None:
    host = node(Hypervisor(cpu_info=CpuInfo(maxphysaddr_bits=46), stats={"gpu": "2"}))

    assert why("ComputeCapabilitiesFilter", with_specs(hw__maxphysaddr_bits="46", gpu="3"), host) == "gpu: 3 needed, it is 2"


def test_of_two_demands_for_address_bits_the_short_one_counts() -> None:
    host = node(Hypervisor(cpu_info=CpuInfo(maxphysaddr_bits=46)))
    both = {"hw__maxphysaddr_bits": "40", "capabilities__cpu_info__maxphysaddr__bits": "== 40"}

    assert why("ComputeCapabilitiesFilter", with_specs(**both), host) is None


def test_an_image_finds_hypervisors_that_run_its_kind_in_its_version() -> None:
    kvm = SupportedGuest(architecture="x86_64", hypervisor_type="kvm", vm_mode="hvm")
    host = node(Hypervisor(supported_guests=(kvm,), hypervisor_version=6_000_000, cpu_info=CpuInfo(maxphysaddr_bits=40)))
    name = "ImagePropertiesFilter"

    assert why(name, with_image(architecture="AMD64", vm_mode="baremetal", img_hv_requested_version=">=6.0,<6.2"), host) is None
    assert why(name, with_image(img_hv_type="xapi"), host) == "image needs xen, it runs x86_64/kvm/hvm"
    assert why(name, with_image(img_hv_type="kvm", img_hv_requested_version=">= 6.0.1"), host) == (
        "image needs hypervisor version >= 6.0.1, it has 6.0.0"
    )
    assert why(name, with_image(img_hv_type="kvm", img_hv_requested_version="six"), host) is not None
    assert why(name, with_image(img_hv_type="kvm", hw_maxphysaddr_bits="42"), host) == "image needs 42 bits of physical address, it has 40"
    assert why(name, with_image(img_hv_type="kvm", hw_maxphysaddr_bits="40"), host) is None
    unversioned = node(Hypervisor(supported_guests=(kvm,)))
    assert why(name, with_image(img_hv_type="kvm", img_hv_requested_version=">= 6.0.1", hw_maxphysaddr_bits="42"), unversioned) is None
    assert why(name, ask(), host, image_properties_default_architecture="aarch64") == "image needs aarch64, it runs x86_64/kvm/hvm"
    assert why(name, with_image(img_hv_type="kvm"), node()) == "image needs kvm, it runs nothing that it reports"


def test_what_an_image_stands_for_is_asked_as_traits() -> None:
    host = node(traits=("COMPUTE_IMAGE_TYPE_QCOW2", "COMPUTE_NET_VIF_MODEL_VIRTIO"))

    assert why("require_image_type_support", with_image(disk_format="qcow2"), host) is None
    assert why("require_image_type_support", with_image(disk_format="vmdk"), host) == "the image needs COMPUTE_IMAGE_TYPE_VMDK"
    assert why("require_image_type_support", ask(image=Image(properties={"disk_format": "vmdk"}), boot_from_volume=True), host) is None
    assert why("transform_image_metadata", with_image(hw_vif_model="virtio"), host) is None
    assert why("transform_image_metadata", with_image(hw_disk_bus="sata"), host) == "the image needs COMPUTE_STORAGE_BUS_SATA"


def test_an_image_of_a_format_or_a_device_that_no_trait_stands_for_is_asked_for_none() -> None:
    bare = node()

    assert why("require_image_type_support", with_image(disk_format="squashfs"), bare) is None
    assert why("transform_image_metadata", with_image(hw_architecture="AMD64"), bare) == "the image needs HW_ARCH_X86_64"
    assert why("transform_image_metadata", with_image(hw_architecture="armv7l", hw_disk_bus="sata"), bare) is None
    assert why("transform_image_metadata", with_image(hw_viommu_model="intel", hw_disk_bus="sata"), bare) is None


def test_aggregates_compare_an_images_properties_in_novas_spelling() -> None:
    told = node(aggregates=(Aggregate(name="a", metadata={"hw_architecture": "x86_64", "hw_pmu": "True", "license": "gold"}),))

    assert why("AggregateImagePropertiesIsolation", with_image(hw_architecture="amd64", hw_pmu="on", license="tin"), told) is None
    assert why("AggregateImagePropertiesIsolation", with_image(hw_pmu="no"), told) is None
    assert why("AggregateImagePropertiesIsolation", with_image(architecture="i386"), told) == (
        "its aggregates take images with hw_architecture x86_64, this one has i686"
    )


def test_aggregates_say_which_images_specs_projects_and_flavors_they_take() -> None:
    mixed = in_aggregates({"os_distro": "windows, linux", "ssd": "true", "filter_tenant_id_1": "p1,p2", "instance_type": "small,big"})

    assert why("AggregateImagePropertiesIsolation", with_image(os_distro="linux"), mixed) is None
    assert why("AggregateImagePropertiesIsolation", with_image(os_distro="bsd"), mixed) == (
        "its aggregates take images with os_distro linux or windows, this one has bsd"
    )
    namespace = {"aggregate_image_properties_isolation_namespace": "hw", "aggregate_image_properties_isolation_separator": "_"}
    assert why("AggregateImagePropertiesIsolation", with_image(os_distro="bsd"), mixed, **namespace) is None
    assert why("AggregateInstanceExtraSpecsFilter", with_specs(ssd="<or> true <or> yes"), mixed) is None
    assert why("AggregateInstanceExtraSpecsFilter", with_specs(aggregate_instance_extra_specs__gpu="1"), mixed) == (
        "aggregates with gpu 1 needed, its own have no such key"
    )
    assert why("AggregateInstanceExtraSpecsFilter", with_specs(hw__gpu="1"), mixed) is None
    assert why("AggregateMultiTenancyIsolation", ask(project_id="p2"), mixed) is None
    assert why("AggregateMultiTenancyIsolation", ask(project_id="p3"), mixed) == "its aggregates are for other projects than p3"
    assert why("AggregateMultiTenancyIsolation", ask(project_id="p3"), node()) is None
    assert why("require_tenant_aggregate", ask(project_id="p3"), node()) == "it is in no aggregate of project p3"
    assert why("AggregateTypeAffinityFilter", ask(), mixed) is None
    huge = ask(flavor=Flavor(name="huge"))
    assert why("AggregateTypeAffinityFilter", huge, node()) is None
    assert why("AggregateTypeAffinityFilter", huge, mixed) == "its aggregates are for flavors big, small, not huge"


def running(**flavors: str) -> Room:
    """A node with these instances on it, each of a flavor that its host reports."""
    host = Node("n1", hypervisor=HOST)
    for instance_id, flavor in flavors.items():
        host.shown[instance_id] = Shown(InstanceReport(instance_id=instance_id, flavor=flavor), (1, 0, 512, 0), 1)
        host.recount(instance_id)
    return room(host, 0, mark_of("n1"))


def test_a_node_for_one_flavor_takes_no_other_nor_one_beside_guests_of_which_nobody_says_the_flavor() -> None:
    one = "TypeAffinityFilter"
    unnamed = ask(flavor=Flavor(vcpus=1))

    assert why(one, ask(), running()) is None
    assert why(one, ask(), running(g1="small", g2="small")) is None
    assert why(one, ask(), running(g1="small", g3="big", g2="large")) == "instance g2 there is of flavor large, not of small"
    assert why(one, ask(), running(g1="")) == "instance g1 there is of a flavor that nobody says, not of small"
    assert why(one, unnamed, running()) is None
    assert why(one, unnamed, running(g1="")) is not None
    assert why(one, ask(), running(i="big")) is None, "the instance itself, which is being resized"


def test_a_node_for_one_flavor_knows_it_of_claims_in_flight_and_of_held_ones() -> None:
    def there(flavor: str, *, laid: str | None = None) -> Room:
        host = Node("n1", hypervisor=HOST)
        host.claims["c1"] = [Claim("c", "r", "c1", "n1", "s", 1, (1, 0, 512, 0), 1, 1, 1, flavor=flavor)]
        host.recount("c1")
        items = [] if laid is None else [ClaimItem(claim_id="l", instance_id="l1", nodes=("n1",), resources=Resources(), flavor=laid)]
        return room(host, 0, mark_of("n1"), items)

    assert why("TypeAffinityFilter", ask(), there("small")) is None
    assert why("TypeAffinityFilter", ask(), there("small", laid="small")) is None
    assert why("TypeAffinityFilter", ask(), there("big")) == "instance c1 there is of flavor big, not of small"
    assert why("TypeAffinityFilter", ask(), there("small", laid="big")) == "instance l1 there is of flavor big, not of small"


def test_a_guest_that_is_resized_is_of_both_flavors_until_its_host_shows_the_new_one() -> None:
    resized = running(g1="small")
    resized.node.claims["g1"] = [Claim("c", "r", "g1", "n1", "s", 1, (2, 0, 1024, 0), 1, 1, 1, resize=True, flavor="big")]

    assert why("TypeAffinityFilter", ask(), resized) == "instance g1 there is of flavor big, small, not of small"


def test_a_request_without_a_project_is_no_project_of_an_aggregate_whose_list_ends_in_a_comma() -> None:
    listed = in_aggregates({"filter_tenant_id": "p1,"})

    assert why("AggregateMultiTenancyIsolation", ask(), listed) == "its aggregates are for other projects than none"
    assert why("require_tenant_aggregate", ask(), listed) == "it is in no aggregate of project (none)"
    assert why("AggregateMultiTenancyIsolation", ask(project_id="p1"), listed) is None


def test_an_aggregate_that_is_required_is_a_projects_by_a_whole_value_beside_a_key_that_names_projects() -> None:
    nobody = "it is in no aggregate of project p1"
    for metadata, said in {
        ("filter_tenant_id", "p1"): None,
        ("filter_tenant_id7", "p1"): None,
        ("filter_tenant_id", "p1,p2"): nobody,
        ("owner", "p1"): nobody,
    }.items():
        assert why("require_tenant_aggregate", ask(project_id="p1"), in_aggregates(dict([metadata]))) == said
    assert why("require_tenant_aggregate", ask(project_id="p1"), in_aggregates({"filter_tenant_id": "p2", "owner": "p1"})) is None
    assert why("require_tenant_aggregate", ask(project_id="p1"), in_aggregates({"filter_tenant_id": "p2"}, {"owner": "p1"})) == nobody


def test_of_an_image_with_old_and_new_names_the_new_ones_count() -> None:
    host = node(Hypervisor(supported_guests=(SupportedGuest(architecture="x86_64", hypervisor_type="kvm", vm_mode="hvm"),)))

    both = with_image(hw_architecture="x86_64", architecture="i686")

    assert why("ImagePropertiesFilter", both, host) is None
    assert why("ImagePropertiesFilter", with_image(architecture="i686", hw_architecture="x86_64"), host) is None
    assert why("ImagePropertiesFilter", with_image(architecture="i686"), host) == "image needs i686, it runs x86_64/kvm/hvm"


def test_traits_may_stand_in_flavor_and_image_and_an_aggregate_may_ask_for_one() -> None:
    apart = in_aggregates({"trait:LICENSED": "required"}, traits=("LICENSED",))
    licensed = with_specs(trait__LICENSED="required")

    assert why("TraitsFilter", licensed, apart) is None
    assert why("TraitsFilter", licensed, node()) == "lacks LICENSED"
    assert why("TraitsFilter", with_specs(trait__LICENSED="forbidden"), apart) == "has LICENSED, which is forbidden"
    assert why("isolate_aggregates", licensed, apart) is None
    assert why("isolate_aggregates", ask(), apart) == "its aggregates are for requests with trait:LICENSED"
    assert why("isolate_aggregates", with_specs(trait_GPU__LICENSED="required"), apart) is None
    assert why("isolate_aggregates", with_specs(trait1__LICENSED="forbidden"), apart) is not None


def test_a_trait_that_a_part_of_a_node_must_have_or_not_is_asked_of_the_whole_node() -> None:
    apart = node(traits=("LICENSED",))

    assert why("TraitsFilter", with_specs(trait1__LICENSED="required"), node()) == "lacks LICENSED"
    assert why("TraitsFilter", with_specs(trait_GPU__LICENSED="forbidden"), apart) == "has LICENSED, which is forbidden"
    assert why("TraitsFilter", with_specs(trait1__LICENSED="required"), apart) is None


def test_isolated_hosts_take_isolated_images_and_nothing_else() -> None:
    apart = node(Hypervisor(service_host="quiet"))
    options: dict[str, Any] = {"isolated_images": ("img",), "isolated_hosts": ("quiet",)}

    assert why("IsolatedHostsFilter", with_image("img"), apart, **options) is None
    assert why("IsolatedHostsFilter", with_image("img"), node(), **options) == "the image is isolated, the host is not"
    assert why("IsolatedHostsFilter", with_image("other"), apart, **options) == "the host is isolated, the image is not"
    assert why("IsolatedHostsFilter", with_image("other"), apart, **options, restrict_isolated_hosts_to_isolated_images=False) is None
    assert why("IsolatedHostsFilter", with_image("other"), apart, isolated_hosts=("quiet",)) == "the host is isolated, the image is not"


def test_a_host_is_near_an_address_by_its_network() -> None:
    near = node(Hypervisor(host_ip="10.8.1.1"))
    name = "SimpleCIDRAffinityFilter"

    assert why(name, ask(hints=Hints(build_near_host_ip="10.8.1.100")), near) is None
    assert why(name, ask(hints=Hints(build_near_host_ip="10.8.1.100", cidr="/32")), near) == "its address 10.8.1.1 is not in 10.8.1.100/32"
    assert why(name, ask(hints=Hints(build_near_host_ip="10.8.1.100", cidr="/99")), near) is not None
    assert why(name, ask(hints=Hints(build_near_host_ip="10.8.1.100")), node()) == (
        "its address (none reported) cannot be compared with 10.8.1.0/24"
    )


def test_a_query_reads_facts_and_one_that_cannot_be_understood_finds_nothing() -> None:
    def asked(query: str) -> Ask:
        return ask(hints=Hints(query=query))

    assert why("JsonFilter", asked('["and", [">=", "$free_ram_mb", 4096], ["not", "$service.disabled"]]'), node()) is None
    assert why("JsonFilter", asked('["<", "$vcpus_total", 8]'), node()) == "the request's query does not hold for it"
    assert why("JsonFilter", asked('["!=", 1, 2]'), node()) == (
        "hint query: operator '!=' is not known; known: =, <, >, in, <=, >=, not, or, and"
    )
    assert str(why("JsonFilter", asked("[,"), node())).startswith("hint query: not JSON")
    for depth in (33, 500, 2000):
        said = why("JsonFilter", asked('["not",' * depth + "1" + "]" * depth), node())
        assert said == "hint query: expected at most 32 lists in one another"
    assert why("JsonFilter", asked('["and",' * 32 + "1" + "]" * 32), node()) is None


@pytest.mark.parametrize(
    ("query", "holds"),
    [
        ('["=", 4096, "$total_usable_ram_mb", "$free_ram_mb"]', True),
        ('["=", 4096, "$free_ram_mb", 4095]', False),
        ('["=", "$free_ram_mb"]', False),
        ('["and", ["=", "$free_ram_mb", 4096], ""]', True),
        ("[1, 2]", False),
        ("[[1], 2]", False),
    ],
)
def test_a_query_compares_its_first_argument_with_all_others_and_leaves_out_empty_ones(query: str, holds: bool) -> None:
    assert (why("JsonFilter", ask(hints=Hints(query=query)), node()) is None) == holds


def test_a_query_that_cannot_be_worked_out_rejects_wherever_in_it_that_stands_and_says_why() -> None:
    no_order = "hint query: < of 4096, '2048': they have no order"
    no_parts = "hint query: $free_ram_mb.x: 4096 has no parts"
    for query, said in {
        '["<", "$free_ram_mb", "2048"]': no_order,
        '["not", ["<", "$free_ram_mb", "2048"]]': no_order,
        '["or", true, ["<", "$free_ram_mb", "2048"]]': no_order,
        '["<", "$free_ram_mb", 1, "2048"]': "hint query: < of 4096, 1, '2048': they have no order",
        '["not", ["=", "$free_ram_mb.x", 1]]': no_parts,
        '["=", "$free_ram_mb.x", 1, 1]': no_parts,
        '["not", "$service.nothing.more"]': "the request's query does not hold for it",
    }.items():
        assert why("JsonFilter", ask(hints=Hints(query=query)), node()) == said, query


@pytest.mark.parametrize("query", ["[]", "{}", "null", "0", "false", '""'])
def test_a_query_that_asks_nothing_holds(query: str) -> None:
    assert why("JsonFilter", ask(hints=Hints(query=query)), node()) is None


def test_busy_and_full_nodes_and_those_without_a_metric() -> None:
    busy = in_aggregates({"max_io_ops_per_host": "9"}, {"max_io_ops_per_host": "10"}, hypervisor=Hypervisor(io_workload=8))
    full = in_aggregates({"max_instances_per_host": "nine"}, instances=3)

    assert why("IoOpsFilter", ask(), busy) == "io_ops: 8 of at most 8 are at work"
    assert why("AggregateIoOpsFilter", ask(), busy) is None
    assert why("NumInstancesFilter", ask(), full, max_instances_per_host=3) == "instances: 3 of at most 3 are there"
    assert why("NumInstancesFilter", ask(instance_ids=("i1",)), full, max_instances_per_host=3) is None
    assert why("AggregateNumInstancesFilter", ask(), full, max_instances_per_host=4) is None
    measured = node(Hypervisor(metrics=(Metric(name="cpu", value_milli=1),)))
    assert why("MetricsFilter", ask(), measured, weight_setting=("cpu=1",)) is None
    assert why("MetricsFilter", ask(), measured, weight_setting=("cpu=1", "disk=2", "bad")) == "it does not report disk"


def test_ratios_of_aggregates_and_exact_amounts_and_the_limits_that_claims_carry() -> None:
    roomy = in_aggregates({"ram_allocation_ratio": "2.0"}, {"ram_allocation_ratio": "1.5"}, used=(0, 0, 5888, 0))
    fits, wide = ask(flavor=Flavor(memory_mib=256)), ask(flavor=Flavor(memory_mib=257))

    assert why("AggregateRamFilter", fits, roomy) is None
    assert why("AggregateRamFilter", wide, roomy) == "memory_mib: 257 needed of 256 by its aggregates' ram_allocation_ratio"
    kept = in_aggregates({"ram_allocation_ratio": "2.0"}, memory_mib=ResourceRule(reserved=96), used=(0, 0, 7744, 0))
    assert why("AggregateRamFilter", wide, kept) == "memory_mib: 257 needed of 256 by its aggregates' ram_allocation_ratio"
    assert why("AggregateRamFilter", wide, node(used=(0, 0, 4000, 0))) == "memory_mib: 257 needed of 96"
    assert why("ExactRamFilter", ask(flavor=Flavor(memory_mib=4096)), node()) is None
    assert why("ExactDiskFilter", ask(flavor=Flavor(root_gib=9)), node()) == "disk_mib: 9216 asked, exactly 10240 are free"
    assert why("ExactCoreFilter", ask(), node(Hypervisor())) == "vcpus: the node reports no total of it"
    check = FILTERS["AggregateRamFilter"].prepare(fits)
    assert check is not None
    assert check.limits is not None
    assert check.limits(roomy) == Limits(memory_mib=6144)


def test_no_ratio_of_an_aggregate_lets_an_instance_in_that_is_larger_than_the_node_or_asks_for_what_nobody_reports() -> None:
    ratio, large = {"ram_allocation_ratio": "4"}, ask(flavor=Flavor(memory_mib=5000))
    overcommitted = ResourceRule(ratio_milli=4000)

    assert why("AggregateRamFilter", large, in_aggregates(ratio, memory_mib=overcommitted)) == (
        "memory_mib: 5000 needed, the whole node has 4096"
    )
    assert why("AggregateRamFilter", ask(), in_aggregates(ratio, hypervisor=Hypervisor(vcpus=8))) == (
        "memory_mib: the node reports no total of it"
    )


def test_exactly_what_is_free_is_without_what_is_kept_for_the_host() -> None:
    host = node(memory_mib=ResourceRule(reserved=96))

    assert why("ExactRamFilter", ask(flavor=Flavor(memory_mib=4000)), host) is None
    assert why("ExactRamFilter", ask(flavor=Flavor(memory_mib=4096)), host) == "memory_mib: 4096 asked, exactly 4000 are free"


def test_an_aggregates_ratio_below_zero_leaves_no_room_and_is_not_taken_for_none() -> None:
    none = in_aggregates({"ram_allocation_ratio": "-1"}, {"ram_allocation_ratio": "1.5"})

    assert why("AggregateRamFilter", ask(flavor=Flavor(memory_mib=256)), none) == (
        "memory_mib: 256 needed of -4096 by its aggregates' ram_allocation_ratio"
    )


def test_cpus_that_nobody_reports_are_the_ledgers_matter() -> None:
    assert why("CoreFilter", ask(), node(Hypervisor(memory_mib=4096))) is None
    assert why("AggregateCoreFilter", ask(), node(Hypervisor(memory_mib=4096), vcpus=ResourceRule(ratio_milli=None))) is None


def test_hosts_are_named_in_any_case_of_letters() -> None:
    of_service = node(Hypervisor(service_host="Rack-1"))

    assert why("forced-hosts", ask(forced_hosts=("rack-1",)), of_service) is None
    assert why("forced-hosts", ask(forced_hosts=("rack-2",)), of_service) == "forced to host rack-2"
    assert why("ignored-hosts", ask(ignored_hosts=("RACK-1",)), of_service) == "the request ignores host Rack-1"
    assert ask(forced_hosts=("rack-1",)).item.forced


def test_hosts_that_are_requested_or_were_tried_are_named_exactly_as_in_nova() -> None:
    of_service = node(Hypervisor(service_host="Rack-1"))

    assert why("requested-hosts", ask(requested_hosts=("Rack-1",)), of_service) is None
    assert why("requested-hosts", ask(requested_hosts=("rack-1",)), of_service) == "requested on host rack-1"
    assert why("RetryFilter", ask(retry_hosts=("Rack-1",)), of_service) == "it was tried there before"
    assert why("RetryFilter", ask(retry_hosts=("rack-1",)), of_service) is None
    assert not ask(requested_hosts=("Rack-1",)).item.forced


def test_a_policy_gives_its_filters_its_options() -> None:
    policy = Policy(filters=("IoOpsFilter",), options=Options(max_io_ops_per_host=1))

    (filter_,) = filters_of(policy)

    assert reason(filter_, ask(), node(Hypervisor(io_workload=1))) == "io_ops: 1 of at most 1 are at work"


NEVER_AUDITED = {
    "AggregateDiskFilter": "disk_mib: the node reports no total of it",
    "AggregateInstanceExtraSpecsFilter": "aggregates with a b needed, its own have no such key",
    "AggregateRamFilter": "memory_mib: the node reports no total of it",
    "AvailabilityZoneFilter": "availability zone z needed, it is in nova",
    "ComputeCapabilitiesFilter": "capabilities:cpu_info:vendor: x needed, it is not known of the node",
    "ComputeFilter": "no audit of it is known",
    "DiskFilter": "disk_mib: the node reports no total of it",
    "ExactCoreFilter": "vcpus: the node reports no total of it",
    "ExactDiskFilter": "disk_mib: the node reports no total of it",
    "ExactRamFilter": "memory_mib: the node reports no total of it",
    "ImagePropertiesFilter": "image needs x86_64, it runs nothing that it reports",
    "IsolatedHostsFilter": "the image is isolated, the host is not",
    "JsonFilter": "the request's query does not hold for it",
    "MetricsFilter": "it does not report cpu",
    "RamFilter": "memory_mib: the node reports no total of it",
    "SameHostFilter": "none of x is there",
    "SimpleCIDRAffinityFilter": "its address (none reported) cannot be compared with 10.0.0.0/24",
    "require_image_type_support": "the image needs COMPUTE_IMAGE_TYPE_RAW",
    "require_tenant_aggregate": "it is in no aggregate of project (none)",
    "transform_image_metadata": "the image needs HW_ARCH_X86_64",
}
"""What a filter says of a node that was never audited to a request of everything; any other lets it pass."""


@pytest.mark.parametrize("name", sorted(FILTERS.keys() | NEVER_AUDITED))
def test_each_filter_has_its_word_on_a_node_that_was_never_audited(name: str) -> None:
    bare = room(Node("n1"), 0, mark_of("n1"))
    asked = ask(
        flavor=Flavor(vcpus=1, memory_mib=1, root_gib=1, extra_specs={"capabilities:cpu_info:vendor": "x", "a": "b"}),
        image=Image(image_id="img", properties={"hw_architecture": "x86_64", "disk_format": "raw"}),
        hints=Hints(query='["=", "$free_ram_mb", 1]', build_near_host_ip="10.0.0.1", same_host=("x",), different_host=("y",)),
        availability_zone="z",
    )

    said = why(name, asked, bare, weight_setting=("cpu=1",), isolated_images=("img",))

    assert said == NEVER_AUDITED.get(name)
