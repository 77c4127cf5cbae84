"""The bench of the workers measures what it says, and their faults are as the matrix promises."""

import pytest

from benchmarks import results
from benchmarks.speed import watchdog
from tests.faults.workers import FAULTS


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(watchdog, "N", 2)
    monkeypatch.setattr(watchdog, "ENVS", {"cartpole": ("CartPole-v1", 40), "busy": (watchdog.BUSY, 5)})


@pytest.mark.nightly
def test_the_bench_gives_a_ratio_for_each_world_and_the_least_of_them(small, tmp_path) -> None:
    figures = watchdog.run(tmp_path, rounds=1)
    worlds = [f"vec_ratio_{world}{way}" for world in ("cartpole", "busy") for way in ("", "_several")]
    assert sorted(figures) == sorted([*worlds, "vec_ratio", "sb3_vec_ratio"])
    assert figures["vec_ratio"] == min(figures[name] for name in worlds) > 0
    rows = results.read_rows(tmp_path / "watchdog.csv")
    assert [(row["group"], row["variant"]) for row in rows] == [
        *[(world, name) for world in ("cartpole", "busy") for name in ("ours", "several", "gymnasium")],
        ("sb3", "ours"),
        ("sb3", "stable-baselines3"),
    ]


def test_a_busy_step_takes_its_millisecond() -> None:
    import time

    env = watchdog.Busy()
    env.reset()
    begin = time.perf_counter()
    for _ in range(10):
        env.step(0)
    assert time.perf_counter() - begin >= 0.01


def test_every_fault_of_a_worker_has_its_row() -> None:
    assert [fault.name for fault in FAULTS] == [
        "worker-killed",
        "worker-segfault",
        "worker-raises",
        "worker-raises-restart",
        "worker-hangs",
        "worker-crash-loop",
        "worker-close",
        "worker-parent-killed",
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["worker-crash-loop", "worker-parent-killed"])
def test_a_crash_loop_ends_with_a_checkpoint_and_a_killed_parent_leaves_no_orphans(name: str, tmp_path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    found = fault.run(tmp_path, True)
    assert found.failed == 0, found.words
    if name == "worker-crash-loop":
        assert found.figures == {"restarts": 5}
