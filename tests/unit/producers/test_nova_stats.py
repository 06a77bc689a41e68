"""What Nova counts of the instances of a host."""

from __future__ import annotations

from producers.nova_stats import InstanceState, failed_builds, io_workload, latest, workload


def state(instance_id: str, vm_state: str | None = "active", task_state: str | None = None) -> InstanceState:
    return InstanceState(instance_id=instance_id, vm_state=vm_state, task_state=task_state)


def test_deleted_and_offloaded_instances_do_not_count_unless_they_come_back() -> None:
    told = [state("a"), state("a", "deleted"), state("b", "shelved_offloaded"), state("c", "shelved_offloaded", "spawning")]

    assert list(latest(told)) == ["c"]


def test_an_instance_without_a_state_yet_counts_as_none_that_is_built() -> None:
    told = latest([state("a", None, "scheduling")])

    assert (list(told), io_workload(told.values()), workload(told.values())) == (["a"], 0, 1)


def test_builds_and_busy_tasks_are_io_and_every_task_is_work() -> None:
    states = [state("a", "building", "spawning"), state("b", "stopped", "image_backup"), state("c", "stopped", "shelving"), state("d")]

    assert io_workload(states) == 2
    assert workload(states) == 3


def test_a_build_that_succeeds_ends_the_row_of_failures() -> None:
    row = failed_builds(failed_builds(0, succeeded=False), succeeded=False)

    assert (row, failed_builds(row, succeeded=True)) == (2, 0)
