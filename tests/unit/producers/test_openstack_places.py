"""Where an instance takes room: which states are those of a move."""

from __future__ import annotations

import pytest

from producers.openstack_places import is_moving


@pytest.mark.parametrize("task_state", [None, "migrating", "resize_reverting", "deleting"])
def test_a_resized_instance_is_moving_whatever_its_task(task_state: str | None) -> None:
    assert is_moving("resized", task_state)


@pytest.mark.parametrize(
    ("vm_state", "task_state", "expected"),
    [
        ("active", "migrating", True),
        ("paused", "migrating", True),
        ("stopped", "migrating", False),
        ("stopped", "resize_prep", True),
        ("active", "rebuild_spawning", True),
        ("active", "resize_reverting", False),
        ("error", "rebuilding", False),
        (None, None, False),
    ],
)
def test_another_one_is_moving_by_its_task_and_its_state(vm_state: str | None, task_state: str | None, expected: bool) -> None:
    assert is_moving(vm_state, task_state) is expected
