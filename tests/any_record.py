"""Any record that can be read, drawn from its type: the edges of every number and text, few names so that records meet, odd words.

What is drawn need not make sense together, which is the point: whoever may write to a topic can write it.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from schemas.codec import Unreadable, decode, record_types
from schemas.units import AMOUNT_MAX

EDGES = (0, 1, 2, 3, 5, 8, 64, 100, 1000, 1024, 4096, (1 << 31) - 1, 1 << 32, 1 << 40, AMOUNT_MAX - 1, AMOUNT_MAX, -1, -AMOUNT_MAX)
NODES = ("n1", "n2", "n3")
NAMES = {"node_id": NODES, "nodes": NODES, "instance_id": ("i1", "i2", "i3", "i4"), "claim_id": ("c1", "c2", "c3")}
OTHER_NAMES = ("n1", "i1", "r1", "r2", "g1", "c1", "p1")
WORDS = (
    "", "0", "-1", "4", " 4", "1.5", "1e999", "nan", "-inf", "99999999999999999999999", "true", "yes", "any", "large", "2MB", "0-3", "^1",
    "0,1", "0-99999999999", "dedicated", "mixed", "isolate", "require", "<in> x", "s== 1", ">= 2", "<or> 1 <or> 2",
    '["=", "$free_ram_mb", 1]', "a:1", "é", "\u0000", "\U0001f600", "a\nb", "x" * 255,
)  # fmt: skip
SPECS = (
    "hw:cpu_policy", "hw:cpu_thread_policy", "hw:emulator_threads_policy", "hw:numa_nodes", "hw:numa_cpus.0", "hw:numa_mem.0",
    "hw:numa_cpus.1", "hw:numa_mem.1", "hw:mem_page_size", "hw:cpu_dedicated_mask", "hw:cpu_realtime", "hw:cpu_realtime_mask",
    "hw:pci_numa_affinity_policy", "pci_passthrough:alias", "resources:VCPU", "resources:PCPU", "resources1:VCPU",
    "trait:HW_CPU_X86_AVX", "capabilities:free_ram_mb", "hw_numa_nodes", "hw_cpu_policy", "hw_mem_page_size", "hw_architecture",
    "img_hv_type", "cpu_weight_multiplier", "cpu_allocation_ratio", "max_instances_per_host", "filter_tenant_id", "availability_zone",
    "cpu.percent",
)  # fmt: skip
"""Keys of extra specs, image properties, aggregates and metrics that something reads."""
TRIES_MAX = 1000


class AnyRecord:
    """Draws records with `random`."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def draw(self, topic: str, *names: str) -> Any:
        """A record of `topic`, of one of the types called `names` if there are any; it reads back as it is."""
        types = [cls for cls in record_types(topic) if not names or cls.__name__ in names]
        for _ in range(TRIES_MAX):
            drawn = self._value(inspect.type_info(self._random.choice(types)), "")
            record = decode(topic, msgspec.json.encode(drawn))
            if not isinstance(record, Unreadable):
                return record
        raise AssertionError(f"of {TRIES_MAX} drawn for {topic} {names} none can be read")

    def _value(self, kind: inspect.Type, name: str) -> Any:
        random = self._random
        match kind:
            case inspect.IntType(ge=least, le=most):
                likely = EDGES[:9] if random.random() < 0.8 else EDGES
                return random.choice([each for each in likely if _within(each, least, most)] or [least or most or 0])
            case inspect.StrType():
                return self._text(kind, name)
            case inspect.BoolType():
                return random.random() < 0.3
            case inspect.NoneType():
                return None
            case inspect.LiteralType(values=values):
                return random.choice(values)
            case inspect.UnionType(types=kinds):
                return self._value(random.choice(kinds), name)
            case inspect.Metadata(type=inner):
                return self._value(inner, name)
            case inspect.VarTupleType(item_type=inner, min_length=least):
                return [self._value(inner, name) for _ in range(max(random.choice((0, 0, 1, 1, 2, 3)), least or 0))]
            case inspect.DictType(key_type=key, value_type=inner):
                return {self._value(key, "key"): self._value(inner, name) for _ in range(random.choice((0, 0, 1, 2, 4)))}
            case inspect.StructType(fields=fields):
                share = random.choice((0.2, 0.5, 0.9))
                shown = [field for field in fields if field.required or random.random() < share]
                drawn = {field.encode_name: self._value(field.type, field.name) for field in shown}
                return drawn if kind.tag_field is None else {kind.tag_field: kind.tag, **drawn}
        raise NotImplementedError(f"no record had a {kind} so far: draw one here")

    def _text(self, kind: inspect.StrType, name: str) -> str:
        is_name = kind.min_length and self._random.random() < 0.95
        likely = (*SPECS, *WORDS) if name == "key" else NAMES.get(name, OTHER_NAMES) if is_name else WORDS
        return self._random.choice([word for word in likely if _within(len(word), kind.min_length, kind.max_length)])


def _within(number: int, least: float | None, most: float | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)
