"""The vectors of Nova's and Placement's behaviour, one test each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conformance.nova import AREAS, difference, load, main, unread

HERE = Path(__file__).parent
VECTORS = load(HERE / "nova_vectors.json")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_the_product_does_what_nova_does(vector: dict[str, Any]) -> None:
    assert difference(vector) == ""


@pytest.mark.parametrize("name", ["ServerGroupAffinityFilter", "ServerGroupAntiAffinityFilter"])
def test_a_group_of_a_policy_that_no_filter_knows_is_passed_by(name: str) -> None:
    host = {"host": "host1", "instances": ["i1"]}
    group = {"policy": "legacy", "members": ["i1"], "hosts": ["host2"], "rules": {}}

    vector = {"area": "filter", "subject": name, "given": {"host": host, "request": {"group": group}}, "expect": {"pass": True}}

    assert difference(vector) == ""


RATIOS = {"cpu_allocation_ratio": 1.0, "ram_allocation_ratio": 1.0}


@pytest.mark.parametrize(
    ("networks", "expected"),
    [({"physnets": ["foo"]}, "network_metadata: the product has no counterpart"), ({"physnets": [], "tunneled": False}, ""), (None, "")],
)
def test_a_vector_that_asks_for_what_the_product_has_not_fails(networks: Any, expected: str) -> None:
    steps = [{"instance": [{"id": 0, "cpuset": [0], "pcpuset": [], "memory": 64}], "limits": RATIOS | {"network_metadata": networks}}]
    host = {"id": 0, "cpuset": [0, 1], "pcpuset": [], "memory": 1024, "siblings": [[0], [1]]}

    vector = {"area": "numa_host_fit", "subject": "numa_fit_instance_to_host", "given": {"host_cells": [host], "steps": steps}}

    assert difference(vector | {"expect": {"cells": [[0]]}}) == expected


def test_a_core_without_cpus_is_none() -> None:
    host = {"id": 0, "cpuset": [], "pcpuset": [0, 1], "memory": 1024, "siblings": [[], [0, 1]]}
    given = {"host_cells": [host], "steps": [{"instance": [PINNED | {"memory": 64}]}]}

    assert difference({"area": "numa_host_fit", "subject": "numa_fit_instance_to_host", "given": given, "expect": {"cells": [[0]]}}) == ""


HOSTS = [["blade", "n1"], ["blade", "n2"], ["Rack", "n1"]]
ONE_OF_A = {"instances": [{"uuid": "i1", "flavor": {"name": "a"}}]}
CELL = {"id": 0, "cpuset": [], "pcpuset": [0, 1], "memory": 2048, "siblings": [[0], [1]], "memory_usage": 1024}
PINNED = {"id": 0, "cpuset": [], "pcpuset": [0], "memory": 1024, "cpu_policy": "dedicated"}
RAM = "ram_weight_multiplier"
AT_HOME = {"policy": "affinity", "members": [], "hosts": ["host1"], "rules": {}}
TOTALS = {"memory_mb": 512, "local_gb": 6, "vcpus": 4}
FULL = {"memory_mb": 1024, "memory_mb_used": 1024, "local_gb": 10, "local_gb_used": 10, "vcpus": 2, "vcpus_used": 2}
TWINS = [{"vendor": "v", "product": name, "numa": cell, "address": "0000:00:00.1"} for name, cell in (("far", 1), ("near", 0))]
SMALL = {"memory_mb": 128, "vcpus": 1, "root_gb": 1, "ephemeral_gb": 0, "swap": 0}
KEYED = [{"k1": "1", "k2": "3"}, {"k1": "2"}, {"k2": "4"}]
BIG = {"memory_mb": 256, "vcpus": 2, "root_gb": 5, "ephemeral_gb": 0, "swap": 0}
LIVE_MOVE = {"direction": "dest", "type": "live-migration", "status": "running"}
EVACUATION = {"direction": "dest", "type": "evacuation", "status": "pre-migrating", "new_flavor": None}
SAME_HOST = {"direction": "source-and-dest", "type": "resize", "status": "migrating"}
ALONE = {"direction": "dest", "type": "resize", "status": "error", "flavor": {"memory_mb": 256, "vcpus": 1, "root_gb": 1}}


@pytest.mark.parametrize(
    ("area", "subject", "given", "expect"),
    [
        ("host_select", "get_filtered_hosts", {"hosts": HOSTS, "request": {"destination": {"host": "blade"}}}, {"hosts": HOSTS[:2]}),
        ("host_select", "get_filtered_hosts", {"hosts": HOSTS, "request": {"destination": {"host": "rack", "node": None}}}, {"hosts": []}),
        ("host_select", "get_filtered_hosts", {"hosts": HOSTS, "request": {"destination": {"cell": "c1"}}}, {"hosts": HOSTS}),
        ("host_select", "get_filtered_hosts", {"hosts": HOSTS, "request": {"destination": {"host": None, "node": None}}}, {"hosts": []}),
        ("normalize", "normalize", {"values": [1, 50], "minval": None, "maxval": 10}, {"weights": [0.0, 5.444444444444445]}),
        ("normalize", "normalize", {"values": [-1, 3], "minval": 1, "maxval": None}, {"weights": [-1.0, 1.0]}),
        ("filter", "TypeAffinityFilter", {"host": ONE_OF_A, "request": {"flavor": {"name": "a"}}}, {"pass": True}),
        ("filter", "TypeAffinityFilter", {"host": ONE_OF_A, "request": {"flavor": {"name": "b"}}}, {"pass": False}),
        ("aggregates", "validate_num_values", {"values": ["1", "many"]}, {"error": "ValueError"}),
        (
            "multiplier",
            "get_weight_multiplier",
            {"option": RAM, "config_value": 1, "aggregate_values": ["inf", "1.5"]},
            {"multiplier": 1.5},
        ),
        ("filter", "ServerGroupAffinityFilter", {"host": {"node": "n2"}, "request": {"group": AT_HOME}}, {"pass": True}),
        ("filter", "JsonFilter", {"host": {}, "request": {"hints": {"query": '["=", "$num_instances", 0]'}}}, {"pass": True}),
        ("filter", "RamFilter", {"host": {"total_usable_ram_mb": 512}, "request": {"flavor": {"memory_mb": 64}}}, {"pass": False}),
        (
            "filter",
            "NUMATopologyFilter",
            {"host": {"numa_cells": [{**CELL, "mempages": [[4, 524288, 262144]]}]}, "request": {"numa_cells": [PINNED]}},
            {"pass": True},
        ),
        (
            "claim",
            "Claim",
            {"node": FULL, "flavor": {"memory_mb": 1, "root_gb": 1, "vcpus": 1}, "limits": {"vcpu": 2, "disk_gb": 10, "memory_mb": 1024}},
            {"claimed": False, "reason_mentions_in_order": ["memory", "disk", "vcpu"]},
        ),
        (
            "filter",
            "ExactCoreFilter",
            {"host": {"vcpus_total": 3, "vcpus_used": 2}, "request": {"flavor": {"vcpus": 2}}},
            {"pass": False, "limits": {}},
        ),
        (
            "filter",
            "CoreFilter",
            {"host": {"vcpus_total": 1, "cpu_allocation_ratio": 16.0}, "request": {"flavor": {"vcpus": 17}}},
            {"pass": False, "limits": {"vcpu": 16}},
        ),
        ("filter", "NUMATopologyFilter", {"host": {"numa_cells": [CELL]}, "request": {"numa_cells": None}}, {"pass": True, "limits": {}}),
        ("filter", "JsonFilter", {"host": {}, "request": {"hints": {"query": '["=", 1, 2]'}}}, {"pass": False, "limits": {}}),
        (
            "filter",
            "MetricsFilter",
            {"host": {"metrics": []}, "config": {"metrics": {"weight_setting": ["foo=1"]}}},
            {"pass": False, "limits": {}},
        ),
        ("choose", "_schedule", {"hosts_selected": 1, "num_instances": 1, "claim": False}, {"error": "NoValidHost"}),
        (
            "choose",
            "_schedule",
            {"hosts_selected": 2, "num_instances": 2, "claim_ok": [True, False]},
            {"error": "NoValidHost", "allocations_removed": 1},
        ),
        ("choose", "_schedule", {"hosts_selected": 2, "num_instances": 2, "claim_fails": [False, False]}, {"error": None}),
        ("claim", "MoveClaim", {"migration_type": "live-migration", "pagesize": 2, "claimed_pagesize": 1}, {"claimed": False}),
        (
            "claim",
            "MoveClaim",
            {"migration_type": "live-migration", "instance_numa": {"page_size_kb": 2}, "claimed_numa": {"page_size_kb": 1}},
            {"claimed": False},
        ),
        ("host_state", "free_disk_mb", {"free_disk_gb": -5, "disk_available_least": None}, {"free_disk_mb": -5120}),
        (
            "host_state",
            "consume",
            {"start": {"vcpus_used": 3, "free_ram_mb": 512}, "requests": [{"memory_mb": 1024, "vcpus": 1}]},
            {"vcpus_used": 4, "free_ram_mb": -512, "num_instances": 1},
        ),
        (
            "tracker",
            "update_available_resource",
            {
                "totals": TOTALS,
                "migrations": [ALONE, {**ALONE, "instance": {"vm_state": "active", "task_state": None}}],
            },
            {"memory_mb_used": 256},
        ),
        ("filter", "RamFilter", {"host": {"free_ram_mb": 512}, "request": {"flavor": {"memory_mb": 64}}}, {"pass": False}),
        (
            "filter",
            "ExactRamFilter",
            {"host": {"free_ram_mb": 512}, "request": {"flavor": {"memory_mb": 512}}},
            {"pass": True, "limits": {"memory_mb": 0}},
        ),
        ("filter", "SameHostFilter", {"host": {"instances": ["i1"]}, "request": {"hints": {"same_host": [""]}}}, {"pass": True}),
        (
            "filter",
            "IsolatedHostsFilter",
            {"host": {"host": "free_host"}, "request": {"image": None}, "config": {"isolated_images": [""]}},
            {"pass": True},
        ),
        (
            "filter",
            "ComputeCapabilitiesFilter",
            {"host": None, "request": {"flavor": {"extra_specs": {"vcpus_used": ">= 20"}}}},
            {"pass": True},
        ),
        (
            "stats",
            "Stats",
            {
                "updates": [
                    {"id": "1", "vm_state": None, "task_state": "scheduling"},
                    {"id": "2", "vm_state": "building", "task_state": None},
                ]
            },
            {"num_vm_None": 1, "num_vm_building": 1, "num_task_None": 1, "workload": 1, "io_workload": 1, "num_instances": 2},
        ),
        (
            "pci",
            "support/consume",
            {"devices": TWINS, "requests": [{"count": 2, "vendor": "v", "numa_policy": "preferred"}], "instance_cells": [0]},
            {"supported": True, "products": ["near", "far"]},
        ),
        (
            "pci",
            "support/consume",
            {
                "devices": [{"vendor": "v", "product": "far", "numa_node": 1}, {"vendor": "v", "product": "anywhere", "numa_node": None}],
                "requests": [{"count": 1, "vendor": "v", "numa_policy": "required"}],
                "instance_cells": [1],
            },
            {"supported": True, "products": ["far"]},
        ),
        ("host_state", "counters", {"stats": {"num_instances": "5", "failed_builds": "3"}}, {"num_instances": 5, "failed_builds": 3}),
        ("host_state", "not_ready", {"free_ram_mb": 7, "free_disk_gb": 2}, {"free_ram_mb": 7, "free_disk_mb": 2048}),
        ("tracker", "claim", {"totals": TOTALS, "claim": SMALL}, {"stats": {"num_instances": 1}}),
        ("tracker", "claim_abort", {"totals": TOTALS, "claim": SMALL, "then": "abort"}, {"stats": {"num_instances": 0, "io_workload": 0}}),
        (
            "tracker",
            "update_usage_shelved_offloaded",
            {"totals": TOTALS, "claim": SMALL, "then_vm_state": "shelved_offloaded"},
            {"stats": {"num_instances": 0, "io_workload": 0}},
        ),
        ("filter", "NumInstancesFilter", {"host": {"num_instances": 5.0}, "request": {}}, {"pass": True}),
        (
            "filter",
            "SimpleCIDRAffinityFilter",
            {"host": {"host_ip": "10.8.1.1"}, "request": {"hints": {"build_near_host_ip": "10.8.1.100", "cidr": "/24 "}}},
            {"pass": True},
        ),
        ("pci", "support/consume", {"devices": TWINS}, {"supported": True, "products": []}),
        ("aggregates", "validate_num_values", {"values": [1.0, 2], "cast": "int"}, {"value": 1}),
        (
            "numa_cell_fit",
            "_numa_fit_instance_cell",
            {"host_cell": {**CELL, "pcpuset": [0, 1, 0]}, "instance_cell": {**PINNED, "pcpuset": [0, 1, 1]}},
            {"fits": True, "cpu_pinning": {"0": 0, "1": 1}},
        ),
        (
            "tracker",
            "update_usage_shelved_offloaded",
            {"totals": TOTALS, "claim": SMALL, "then_vm_state": "shelved_offloaded", "then_task_state": "spawning"},
            {"memory_mb_used": 128, "stats": {"num_instances": 1}},
        ),
        (
            "numa_cell_fit",
            "_numa_fit_instance_cell",
            {
                "host_cell": {**CELL, "cpuset": [0, 1], "pcpuset": []},
                "instance_cell": {"id": 0, "cpuset": [0, 1, 2], "pcpuset": [], "memory": 1024, "cpu_policy": "dedicated"},
            },
            {"fits": True, "cpu_pinning": None},
        ),
        (
            "numa_cell_fit",
            "_numa_fit_instance_cell",
            {"host_cell": {**CELL, "mempages": [[4, 524288, 0]]}, "instance_cell": {**PINNED, "pagesize": 2048}},
            {"fits": False, "error": "MemoryPageSizeNotSupported"},
        ),
        (
            "claim",
            "MoveClaim",
            {"migration_type": "live-migration", "instance_numa": [{"memory": 512, "pagesize": 2}], "claimed_numa": [{"pagesize": 1}]},
            {"claimed": False},
        ),
        ("claim", "MoveClaim", {"instance_pagesize": 4, "claimed_pagesize": 4}, {"claimed": True}),
        ("claim", "MoveClaim", {"source_pagesize": 4, "dest_pagesize": 2048}, {"claimed": False}),
        ("claim", "MoveClaim", {"node_numa_cells": [CELL], "instance_numa_cells": [{**PINNED, "memory": 1 << 20}]}, {"claimed": False}),
        ("numa_host_fit", "numa_fit_instance_to_host", {"host_cells": [CELL], "instance": None}, {"cells": [None]}),
        ("numa_host_fit", "numa_fit_instance_to_host", {"host_cells": [CELL], "instance": {"cells": [PINNED]}}, {"cells": [[0]]}),
        *(
            (
                "numa_host_fit",
                "numa_fit_instance_to_host",
                {
                    "host_cells": [CELL, {**CELL, "id": 1, "pinned_cpus": [0]}],
                    "instance": [PINNED],
                    "config": {"compute.packing_host_numa_cells_allocation_strategy": packs},
                },
                {"cells": [[cell]]},
            )
            for packs, cell in ((True, 1), (False, 0))
        ),
        (
            "choose",
            "_get_sorted_hosts",
            {"weighed": [["a", 1], ["b", 1]], "config": {"filter_scheduler.host_subset_size": 2}, "random_picks": "b"},
            {"order": ["b", "a"], "random_over": ["a", "b"]},
        ),
        (
            "tracker",
            "update_available_resource",
            {
                "totals": TOTALS,
                "instances": [{"id": "a", "flavor": BIG, "vm_state": "active", "task_state": "resize_migrating"}],
                "migrations": [{**SAME_HOST, "old_flavor": SMALL, "new_flavor": BIG, "instance": "a"}],
            },
            {"memory_mb_used": 384, "vcpus_used": 3, "running_vms": 1, "current_workload": 1},
        ),
        *(
            (
                "tracker",
                "update_available_resource",
                {"totals": TOTALS, "instances": [], "migrations": [{**move, "instance": {"id": "m", **states, "flavor": BIG}}]},
                {"memory_mb_used": used},
            )
            for move, states, used in (
                (LIVE_MOVE, {"vm_state": "paused", "task_state": "migrating"}, 256),
                (LIVE_MOVE, {"vm_state": "stopped", "task_state": "migrating"}, 0),
                (EVACUATION, {"vm_state": "active", "task_state": "rebuilding"}, 256),
                (EVACUATION, {"vm_state": "error", "task_state": "rebuilding"}, 0),
                (LIVE_MOVE, {"vm_state": "active", "task_state": "resize_reverting"}, 0),
            )
        ),
        (
            "tracker",
            "update_available_resource",
            {
                "totals": TOTALS,
                "instances": [
                    {"id": "a", "flavor": BIG, "vm_state": "active", "task_state": "resize_finish"},
                    {"id": "b", "flavor": SMALL, "vm_state": "building", "task_state": "spawning"},
                ],
                "migrations": [
                    {**LIVE_MOVE, "type": "resize", "instance": {"id": "a", "vm_state": "active", "task_state": "resize_finish"}}
                ],
            },
            {"memory_mb_used": 384, "stats": {"io_workload": 1, "num_instances": 2}},
        ),
        (
            "tracker",
            "claim_abort",
            {"totals": TOTALS, "claim": SMALL, "then": "exception inside the claim context"},
            {"memory_mb_used": 0, "instance_host": None},
        ),
        (
            "tracker",
            "same_host_resize_then_abort",
            {
                "totals": TOTALS,
                "instances": [
                    {"id": "a", "flavor": SMALL, "vm_state": "active", "task_state": None},
                    {"id": "b", "flavor": BIG, "vm_state": "deleted", "task_state": None},
                ],
                "resize": {"from": SMALL, "to": BIG},
            },
            {"after_abort": {"vcpus_used": 1, "memory_mb_used": 128, "local_gb_used": 1, "tracked_migrations": 0}},
        ),
        ("stats", "failed_builds", {"events": ["failed", "succeeded", "failed"]}, {"after_each": [1, 0, 1]}),
        ("multiplier", "get_weight_multiplier", {"option": RAM, "config_value": 1.0, "aggregates": [{RAM: "2.0"}]}, {"multiplier": 2.0}),
        (
            "weigh",
            "RAMWeigher",
            {"hosts": [{"free_ram_mb": 1}, {"free_ram_mb": 2}], "config": {f"filter_scheduler.{RAM}": "2.0"}},
            {"first": "host2", "first_weight": 2.0},
        ),
        (
            "weigh",
            "MetricsWeigher",
            {
                "hosts": [{"metrics": [{"name": "idle", "value": 3}]}, {"metrics": {"idle": 4}}],
                "config": {"metrics.weight_setting": ["idle=1"]},
            },
            {"order": ["host2", "host1"]},
        ),
        (
            "filter",
            "RetryFilter",
            {"host": {"host": "h", "nodename": "n"}, "request": {"retry": {"hosts": [{"host": "h", "node": "n"}]}}},
            {"pass": False},
        ),
        ("filter", "RetryFilter", {"host": {"host": "h", "nodename": "n"}, "request": {"retry": {"hosts": None}}}, {"pass": True}),
        ("host_select", "get_filtered_hosts", {"hosts": HOSTS, "request": {"ignore_hosts": "blade"}}, {"hosts": [["Rack", "n1"]]}),
        ("choose", "_get_sorted_hosts", {"weighed": [["h1", 1.0], ["h2", 1.0]], "random_picks": None}, {"order": ["h1", "h2"]}),
        (
            "filter",
            "ComputeCapabilitiesFilter",
            {"host": {"free_ram_mb": 1024}, "request": {"flavor": {"extra_specs": {"pci_stats": "1"}}}},
            {"pass": False},
        ),
        (
            "weigh",
            "CrossCellWeigher",
            {
                "hosts": [{"host": "h1", "cell_uuid": "c2"}, {"host": "h2", "cell_uuid": "c1"}],
                "request": {"requested_destination": {"cell": "c1", "allow_cross_cell_move": True}},
            },
            {"order": ["h2", "h1"]},
        ),
        (
            "filter",
            "ServerGroupAntiAffinityFilter",
            {
                "host": {"instances": ["i1"]},
                "request": {"instance_group": {"policies": ["anti-affinity"], "members": ["i1"]}, "instance_uuid": "new"},
            },
            {"pass": False},
        ),
        (
            "filter",
            "NUMATopologyFilter",
            {"host": {"numa_topology": {"cells": [CELL]}}, "request": {"numa_topology": {"cells": [PINNED, {**PINNED, "id": 1}]}}},
            {"pass": False},
        ),
        ("normalize", "normalize", {"values": [1, 3]}, {"weights": [0, 1]}),
        (
            "filter",
            "IoOpsFilter",
            {"host": {"num_io_ops": 7, "instances": ["i1", "i2"]}, "config": {"max_io_ops_per_host": 8}},
            {"pass": True},
        ),
        (
            "filter",
            "NumInstancesFilter",
            {"host": {"num_instances": 5, "instances": ["i1"]}, "config": {"max_instances_per_host": 5}},
            {"pass": False},
        ),
        (
            "weigh",
            "IoOpsWeigher",
            {"hosts": [{"host": "h1", "num_io_ops": 1, "num_instances": 9}, {"host": "h2", "num_io_ops": 2}]},
            {"order": ["h1", "h2"]},
        ),
        ("placement_capacity", "capacity", {"inventory": {"total": 16.0, "allocation_ratio": 1.0}}, {"capacity": 16}),
        ("tracker", "claim", {"totals": {"memory_mb": 512.0}, "claim": {"memory_mb": 128.0}}, {"free_ram_mb": 384}),
        ("host_state", "free_disk_mb", {"free_disk_gb": None}, {"free_disk_mb": 0}),
        ("claim", "Claim", {"node": {}, "flavor": {"memory_mb": 512, "vcpus": 1, "root_gb": 1}}, {"claimed": True}),
        (
            "tracker",
            "update_available_resource",
            {"totals": TOTALS, "instances": [{"id": "a", "flavor": SMALL, "volume_backed": True}]},
            {"memory_mb_used": 128, "local_gb_used": 0},
        ),
        ("choose", "_schedule", {"hosts_selected": 2, "num_instances": 2}, {"error": None, "allocations_removed": 0}),
        ("aggregates", "metadata_by_host", {"aggregates": KEYED, "key": "k1"}, {"metadata": {"k1": ["1", "2"]}}),
        ("aggregates", "metadata_by_host", {"aggregates": KEYED, "key": "k1"}, {"metadata": {"k1": ["1", "2"], "k2": ["3"]}}),
        ("aggregates", "metadata_by_host", {"aggregates": KEYED}, {"metadata": {"k1": ["1", "2"], "k2": ["3", "4"]}}),
        ("aggregates", "metadata_by_host", {"aggregates": KEYED, "key": "k9"}, {"metadata": {}}),
        (
            "tracker",
            "update_available_resource",
            {"totals": TOTALS, "instances": [], "migrations": [ALONE]},
            {"memory_mb_used": 256, "running_vms": 0, "stats": {"io_workload": 0, "num_instances": 0}},
        ),
        *(
            (
                "tracker",
                "update_available_resource",
                {
                    "totals": TOTALS,
                    "instances": [{"id": "a", "flavor": SMALL, "vm_state": state, "task_state": None}],
                    "migrations": [{**SAME_HOST, "old_flavor": SMALL, "new_flavor": BIG, **named}],
                },
                {"memory_mb_used": used, "tracked_migrations": moves},
            )
            for state, named, used, moves in (
                ("active", {"instance_id": "a"}, 128, 0),
                ("resized", {"instance_id": "a"}, 384, 1),
                ("active", {"instance_id": "b", "flavor": BIG}, 384, 1),
            )
        ),
        (
            "tracker",
            "update_available_resource",
            {
                "totals": TOTALS,
                "migrations": [{**LIVE_MOVE, "instance": {"vm_state": "resized", "task_state": "migrating", "flavor": SMALL}}],
            },
            {"memory_mb_used": 128},
        ),
        (
            "tracker",
            "update_available_resource",
            {
                "totals": TOTALS,
                "instances": [{"id": "a", "flavor": SMALL, "vm_state": "resized", "task_state": None, "volume_backed": True}],
                "migrations": [{**SAME_HOST, "old_flavor": SMALL, "new_flavor": BIG, "instance": "a"}],
            },
            {"memory_mb_used": 384, "local_gb_used": 0},
        ),
        ("placement_capacity", "allocate", {"inventory": {"total": 4}, "amount": 0}, {"accepted": False, "http": 400}),
        ("placement_capacity", "allocate", {"inventory": {"total": 4}, "amount": 1}, {"accepted": True, "http": 204}),
        *(
            (
                "pci",
                "support/consume",
                {
                    "devices": [
                        {"vendor": "v", "product": "pf", "address": "0000:81:00.0", kind: "type-PF"},
                        {"vendor": "v", "product": "vf", "address": "0000:81:10.0", kind: "type-VF", parent: "0000:81:00.0"},
                    ],
                    "requests": [{"count": 1, "product": "vf"}, {"count": 1, "product": "pf", kind: "type-PF"}],
                },
                {"supported": False},
            )
            for kind in ("dev_type", "type")
            for parent in ("parent_addr", "parent")
        ),
        (
            "numa_cell_fit",
            "_numa_fit_instance_cell",
            {"host_cell": {**CELL, "mempages": [[4, 524288, 0]]}, "instance_cell": {**PINNED, "page_size": 2048}},
            {"fits": False, "error": "MemoryPageSizeNotSupported"},
        ),
        *(
            ("choose", "_get_sorted_hosts", {"weighed": [["a", 1], ["b", 1], ["c", 0]], name: True}, {"order": ["b", "a", "c"]})
            for name in ("shuffle_best_same_weighed_hosts", "shuffle_best")
        ),
        *(
            ("choose", "_schedule", {"hosts_selected": 1, "num_instances": 1, **said}, {"error": "NoValidHost", "allocations_removed": 0})
            for said in ({"claim_ok": False}, {"claim_fails": True})
        ),
        *(
            ("host_select", "get_filtered_hosts", {"hosts": HOSTS, "request": {"requested_destination": said}}, {"hosts": found})
            for said, found in (("blade", HOSTS[:2]), ("nowhere", []), (["blade", "n2"], HOSTS[1:2]))
        ),
        (
            "claim",
            "Claim",
            {"flavor": {"memory_mb": 512, "root_gb": 99}, "limits": {"disk_gb": 100}, "overhead": {"disk_gb": 1}},
            {"claimed": True, "disk_gb": 100},
        ),
        (
            "claim",
            "Claim",
            {"flavor": {"memory_mb": 2, "root_gb": 2}, "limits": {"disk_gb": 1}, "pci_requests": [{"vendor": "v"}]},
            {"claimed": False, "reason_mentions_in_order": ["disk", "Claim pci failed."]},
        ),
        (
            "claim",
            "MoveClaim",
            {"migration_type": "live-migration", "instance_numa": [{"page_size": 2}], "claimed_numa": [{"page_size": 1}]},
            {"claimed": False, "reason_mentions_in_order": ["Requested page size is different"]},
        ),
        (
            "host_state",
            "consume",
            {"start": {"free_disk_mb": 4096}, "requests": [{"memory_mb": 1, "vcpus": 1, "root_gb": 1, "swap": 512}]},
            {"free_disk_mb": 3072},
        ),
    ],
)
def test_what_novas_code_answered_to_inputs_drawn_at_random(area: str, subject: str, given: dict[str, Any], expect: dict[str, Any]) -> None:
    assert difference({"area": area, "subject": subject, "given": given, "expect": expect}) == ""


@pytest.mark.parametrize(
    ("area", "subject", "given", "expect", "strange"),
    [
        ("normalize", "normalize", {"values": [1], "omen": "good"}, {"weights": [0]}, "omen"),
        ("tracker", "volume_backed", {"flavor": {**SMALL, "omen": False}, "volume_backed": True}, {"root_gb_counted": 0}, "flavor.omen"),
        ("stats", "Stats", {"updates": [{"id": "1", "omen": 3}]}, {"num_instances": 1}, "updates.omen"),
        ("filter", "RamFilter", {"host": {"omen": 0}, "request": {}}, {"pass": True}, "host.omen"),
        ("weigh", "RAMWeigher", {"hosts": [{"free_ram_mb": 1}], "config": {"x.omen": 1}}, {"first": "host1"}, "config.x.omen"),
        ("claim", "MoveClaim", {"instance_pagesize": 4, "claimed_pagesize": 4, "omen": 1}, {"claimed": True}, "omen"),
        ("numa_host_fit", "numa_fit_instance_to_host", {"host_cells": [{**CELL, "omen": 1}]}, {"cells": [None]}, "host_cells.omen"),
    ],
)
def test_a_key_that_the_adapter_passes_over_is_named(
    area: str, subject: str, given: dict[str, Any], expect: dict[str, Any], strange: str
) -> None:
    assert unread({"area": area, "subject": subject, "given": given, "expect": expect}) == [strange]


def test_no_key_of_the_vectors_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(HERE / "nova_vectors.json")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("reasons", [["memory"], ["memory", "disk"], ["disk", "memory", "vcpu"], []])
def test_reasons_that_are_others_or_in_another_order_differ(reasons: list[str]) -> None:
    limits = {"vcpu": 2, "disk_gb": 10, "memory_mb": 1024}
    given = {"node": FULL, "flavor": {"memory_mb": 1, "root_gb": 1, "vcpus": 1}, "limits": limits}

    told = difference({"area": "claim", "subject": "Claim", "given": given, "expect": {"reason_mentions_in_order": reasons}})

    assert told.startswith("reason_mentions_in_order: expected")


@pytest.mark.parametrize("area", sorted(AREAS))
def test_a_subject_that_an_area_does_not_know_fails_and_ends_no_run(area: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "vectors.json"
    strange = {"id": "s", "area": area, "subject": "horoscope", "given": {"stars": 7}, "expect": {"pass": True}}
    file.write_bytes(msgspec.json.encode([strange, *VECTORS[:1]]))

    assert main([str(file)]) == 1

    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed"


@pytest.mark.parametrize("name", ["\\ud800", "\u00e9\u2603"])
def test_what_a_vector_says_may_be_no_text_or_none_that_the_terminal_can_show(name: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    file.write_text(f'[{{"id": "{name}", "area": "normalize", "subject": "{name}"}}]', encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PATH": os.environ["PATH"]}

    done = subprocess.run([sys.executable, str(HERE / "nova.py"), str(file)], capture_output=True, text=True, env=plain)

    assert (done.returncode, done.stdout.splitlines()[-1:]) == (1, ["0 passed, 1 failed"]), done.stderr


def test_a_claim_asks_nothing_of_the_disk_for_swap() -> None:
    """Nova 15.1.5, `claims.py`: root, ephemeral and what the hypervisor adds."""
    node = {"memory_mb": 8192, "memory_mb_used": 0, "local_gb": 20, "local_gb_used": 20, "vcpus": 8, "vcpus_used": 0}
    flavor = {"memory_mb": 1, "vcpus": 1, "root_gb": 0, "ephemeral_gb": 0, "swap": 1024}
    given = {"node": node, "flavor": flavor, "limits": {"disk_gb": 20}}

    assert difference({"area": "claim", "subject": "Claim", "given": given, "expect": {"claimed": True}}) == ""


@pytest.mark.parametrize(
    ("said", "order"),
    [
        ({"shuffle": "reverse"}, ["b", "a"]),
        ({"shuffle_reverses": True}, ["b", "a"]),
        ({"shuffle": False, "shuffled": ["b", "a"]}, ["a", "b"]),
        ({"host_subset_size": 2.0, "random_picks": "b"}, ["b", "a"]),
    ],
)
def test_how_a_draw_is_told_is_read_in_other_words_too(said: dict[str, Any], order: list[str]) -> None:
    given = {"weighed": [["a", 1.0], ["b", 1.0]], **said}

    assert difference({"area": "choose", "subject": "_get_sorted_hosts", "given": given, "expect": {"order": order}}) == ""


def test_a_whole_number_of_an_option_may_have_a_point() -> None:
    given = {"host": {"num_io_ops": 8}, "request": {}, "config": {"max_io_ops_per_host": 8.0}}

    assert difference({"area": "filter", "subject": "IoOpsFilter", "given": given, "expect": {"pass": False}}) == ""


def test_what_nobody_knows_and_what_is_no_vector_are_failures_and_the_script_counts_them(tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    good = {"id": "good", "area": "normalize", "subject": "normalize", "given": {"values": [], "minval": None, "maxval": None}}
    empty: dict[str, Any] = {"given": {}, "expect": {"pass": True}}
    filled: dict[str, Any] = {"expect": {"weights": []}}
    bad = [
        {"id": "x-1", "area": "astrology", "subject": "s", **empty},
        {"id": "x-2", "area": "filter", "subject": "HoroscopeFilter", **empty},
        {"id": "x-3", "area": "normalize", "subject": "standardize", **filled, "given": good["given"]},
        {**good, "id": "x-4", "expect": {}},
        {"id": "x-5", "area": "normalize", "subject": "normalize", **filled},
        {"id": "x-6", "area": ["filter"], "subject": {}},
        "x-7",
        None,
    ]
    file.write_bytes(msgspec.json.encode({"vectors": [*bad, {**good, **filled}]}))

    done = subprocess.run([sys.executable, str(HERE / "nova.py"), str(file)], capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "1 passed, 8 failed"
    assert "area 'astrology' is not known" in done.stdout
    assert "subject 'HoroscopeFilter' is not known" in done.stdout
    assert "number 7 None: expected an object" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("text", ["", "{}", "3", '{"vectors": 1}'])
def test_a_file_without_vectors_is_no_success(tmp_path: Path, text: str) -> None:
    file = tmp_path / "vectors.json"
    file.write_text(text)

    assert main([str(file)]) == 2
    assert main([str(tmp_path / "none.json")]) == 2


def test_a_file_that_is_none_costs_no_other_its_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beyond, deep = tmp_path / "beyond.json", tmp_path / "deep.json"
    good: dict[str, Any] = {"area": "normalize", "subject": "normalize", "given": {"values": [1, 3]}, "expect": {"weights": [0, 1]}}
    beyond.write_text("\ufeff" + json.dumps([good, {**good, "given": {"values": [float("inf")]}}]))
    deep.write_text("[" * 200_000)

    code = main([str(deep), str(beyond), str(HERE / "nova_vectors.json")])

    said = capsys.readouterr()
    assert (code, said.out.splitlines()[-1]) == (2, "207 passed, 2 failed")
    assert f"error: {deep}: expected JSON: " in said.err


SEATED, LARGE_PAGES = {"id": 0, "cpuset": [0, 1], "memory": 1024}, 1_048_576


@pytest.mark.parametrize(
    ("said", "reasons"),
    [
        ({"instance_numa": [{**SEATED, "pagesize": 2048}], "claimed_numa": [{**SEATED, "pagesize": 2048}]}, []),
        (
            {"instance_numa": [{**SEATED, "pagesize": 2048}], "claimed_numa": [{**SEATED, "pagesize": 4}]},
            ["Requested page size is different"],
        ),
        ({"instance_numa": [SEATED], "claimed_numa": [{**SEATED, "pagesize": 2048}]}, ["Requested page size is different"]),
        ({"instance_numa": [SEATED], "claimed_numa": [SEATED]}, []),
        ({"instance_pagesize": LARGE_PAGES, "claimed_pagesize": LARGE_PAGES}, []),
        ({"instance_pagesize": LARGE_PAGES, "claimed_pagesize": 2048}, ["Requested page size is different"]),
        ({"instance_numa": [SEATED], "node_numa_cells": [{**SEATED, "cpuset": [0]}]}, ["Requested instance NUMA topology"]),
        (
            {"instance_numa": [{**SEATED, "pagesize": 2}], "claimed_numa": [{**SEATED, "pagesize": 1}], "node_numa_cells": [SEATED]},
            ["Requested page size is different"],
        ),
    ],
)
def test_a_live_move_is_granted_where_its_cells_fit_and_its_pages_are(said: dict[str, Any], reasons: list[str]) -> None:
    given = {"migration_type": "live-migration", **said}
    expect = {"claimed": not reasons, "reason_mentions_in_order": reasons}

    assert difference({"area": "claim", "subject": "MoveClaim", "given": given, "expect": expect}) == ""


def test_the_command_needs_nothing_but_what_claimlog_is_installed_with() -> None:
    """`make demo` installs no more, and a file of vectors can be run then."""
    without = "import runpy, sys; sys.modules |= dict.fromkeys(('pytest', 'hypothesis')); sys.argv = sys.argv[1:]; "
    code = f"{without}runpy.run_path(sys.argv[0], run_name='__main__')"

    command = [sys.executable, "-c", code, str(HERE / "nova.py"), str(HERE / "nova_vectors.json")]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.stdout.splitlines()[-1:] == [f"{len(VECTORS)} passed, 0 failed"], done.stderr
