"""The options of filters and weighers, by Nova's names and with its defaults; they stand in the policy, under `options`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

NUMBER_MAX = 1e100
"""Largest multiplier, weight and ratio that counts: sums of what they multiply stay finite, and no result can carry another weight."""


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What Nova reads from `[filter_scheduler]` and `[metrics]`, and `alias` of `[pci]`: JSON objects as texts, in its form.

    Others than Nova's: `metrics_step_milli` and `io_ops_step` make what the Metrics and I/O weighers read coarser (raw figures are rounded
    down to multiples of them; by 1 they stay as they are), and ties are shuffled unless that is switched off, because schedulers that know
    nothing of each other would all choose the same node.
    """

    max_io_ops_per_host: int = 8
    max_instances_per_host: int = 50
    isolated_images: tuple[str, ...] = ()
    isolated_hosts: tuple[str, ...] = ()
    restrict_isolated_hosts_to_isolated_images: bool = True
    aggregate_image_properties_isolation_namespace: str = ""
    aggregate_image_properties_isolation_separator: str = "."
    image_properties_default_architecture: str = ""
    default_availability_zone: str = "nova"
    pci_alias: tuple[str, ...] = ()
    weight_setting: tuple[str, ...] = ()
    required: bool = True
    weight_of_unavailable: float = -10000.0
    image_props_weight_setting: tuple[str, ...] = ()
    host_subset_size: int = 1
    shuffle_best_same_weighed_hosts: bool = True
    metrics_step_milli: int = 1
    io_ops_step: int = 1


MULTIPLIERS: Mapping[str, tuple[str, float]] = {
    "RAMWeigher": ("ram_weight_multiplier", 1.0),
    "CPUWeigher": ("cpu_weight_multiplier", 1.0),
    "DiskWeigher": ("disk_weight_multiplier", 1.0),
    "IoOpsWeigher": ("io_ops_weight_multiplier", -1.0),
    "NumInstancesWeigher": ("num_instances_weight_multiplier", 0.0),
    "HypervisorVersionWeigher": ("hypervisor_version_weight_multiplier", 1.0),
    "PCIWeigher": ("pci_weight_multiplier", 1.0),
    "ServerGroupSoftAffinityWeigher": ("soft_affinity_weight_multiplier", 1.0),
    "ServerGroupSoftAntiAffinityWeigher": ("soft_anti_affinity_weight_multiplier", 1.0),
    "BuildFailureWeigher": ("build_failure_weight_multiplier", 1_000_000.0),
    "CrossCellWeigher": ("cross_cell_move_weight_multiplier", 1_000_000.0),
    "MetricsWeigher": ("metrics_weight_multiplier", 1.0),
    "ImagePropertiesWeigher": ("image_props_weight_multiplier", 0.0),
}
"""Of each of Nova's weighers the option that multiplies it (also the key in aggregates' metadata that overrides it), and its default."""
MULTIPLIER_SUFFIX = "_weight_multiplier"

OPTIONS = Options()
"""All defaults."""


@lru_cache(maxsize=64)
def settings(texts: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """The `name=ratio` pairs of a weight setting; what is no such pair is left out, as in Nova (`loading` refuses it beforehand)."""
    return tuple(pair for text in texts if (pair := setting(text)) is not None)


def setting(text: str) -> tuple[str, float] | None:
    """One `name=ratio`; None if it is none."""
    name, separator, ratio = text.partition("=")
    try:
        value = float(ratio)
    except ValueError:
        return None
    return (name.strip(), value) if name.strip() and separator and abs(value) <= NUMBER_MAX else None
