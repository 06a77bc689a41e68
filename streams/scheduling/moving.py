"""What a guest that runs takes along when it is migrated live: its memory, and so the size of its pages.

A guest that asked for pages by a name (`large`, `any`) may have 2 MiB pages here and would get 1 GiB pages there. Nova's
live_migration_claim refuses that; here the guest asks for pages of the size it has, so that a node with both is found all the same.
"""

from __future__ import annotations

from msgspec.structs import replace

from projections.node import Node
from projections.numa_node import kept
from streams.scheduling.ask import Ask


def with_its_pages(ask: Ask, source: Node) -> Ask:
    """The ask of a live migration with the page size of its instance on `source`; as it is where nothing is known of that there.

    One that asks for another size by its number cannot be met by any node.
    """
    there = kept(source, ask.instance_id)
    size_kib = there.cells[0].page_size_kib if there is not None and there.cells else 0
    wanted = [want for want in ask.item.numa if want.page_size or want.page_size_kib]
    if not size_kib or not wanted:
        return ask
    others = sorted({want.page_size_kib for want in wanted if want.page_size_kib} - {size_kib})
    if others:
        text = f"a live migration keeps its pages: the instance has {size_kib} KiB on {source.node_id} and asks for {others[0]} KiB"
        return replace(ask, unusable=ask.unusable or text)
    numa = tuple([replace(want, page_size_kib=size_kib, page_size="") if want in wanted else want for want in ask.item.numa])
    return replace(ask, item=replace(ask.item, numa=numa))
