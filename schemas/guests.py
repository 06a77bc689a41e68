"""What an instance is: its flavor and image, and the NUMA cells and PCI devices it wants."""

from typing import Literal

from msgspec import Struct

from schemas.units import Amount, Count, Name, Text


class Flavor(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The size of an instance, with Nova's fields and units: root and ephemeral disk in GiB, swap in MiB."""

    name: Text = ""
    vcpus: Count = 0
    pcpus: Count = 0
    memory_mib: Amount = 0
    root_gib: Amount = 0
    ephemeral_gib: Amount = 0
    swap_mib: Amount = 0
    extra_specs: dict[Name, Text] = {}


class Image(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The image an instance starts from: its id and the properties that filters read."""

    image_id: Text = ""
    properties: dict[Name, Text] = {}


class NumaWant(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One guest NUMA cell wanted: CPUs, memory, page size, and how CPUs are to be pinned.

    `cpus` and `pinned_cpus` are the guest's own numbers. Under `shared` the cell's `cpus` float; under `mixed` its `cpus` float and its
    `pinned_cpus` are pinned; under `dedicated` all of them are. `page_size` is Nova's `hw:mem_page_size` by name, `page_size_kib` by
    number, which wins; with neither, ordinary memory is taken.
    """

    cell_id: Count = 0
    cpus: tuple[Count, ...] = ()
    pinned_cpus: tuple[Count, ...] = ()
    memory_mib: Amount = 0
    page_size_kib: Count | None = None
    page_size: Literal["", "small", "large", "any"] = ""
    cpu_policy: Literal["shared", "dedicated", "mixed"] = "shared"
    thread_policy: Literal["", "prefer", "require", "isolate"] = ""
    emulator_threads: Literal["", "share", "isolate"] = ""


class PciWant(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """PCI devices wanted: any of `specs` (vendor, product, type, tags), `count` of them, under a NUMA policy."""

    alias: Text = ""
    count: Count = 1
    specs: tuple[dict[Name, Text], ...] = ()
    numa_policy: Literal["required", "legacy", "preferred", "socket"] = "legacy"
