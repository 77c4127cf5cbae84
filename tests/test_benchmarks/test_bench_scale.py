"""The benchmark of scale, on next to nothing."""

import csv
import os
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import __main__ as bench
from benchmarks import scale
from benchmarks.scale import cores, gpu, model, mujoco, replay
from runners.run.config import UsageError


def test_cases_are_named_behind_it_and_others_are_refused(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(scale, "run", lambda folder, cases=(): asked.append(cases) or {"ratio": 2.0})
    assert bench.main(["scale:mujoco"], tmp_path) == 0 and asked == [["mujoco"]]
    monkeypatch.undo()
    with pytest.raises(UsageError, match="case=mujoko is unknown; did you mean mujoco"):
        scale.run(tmp_path, ["mujoko"])


def test_robots_are_compared_and_the_least_ratio_of_each_kind_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(mujoco, "STEPS", {"HalfCheetah": 200, "Hopper": 200})
    figures = mujoco.run(tmp_path, rounds=1, share=0.02)
    assert figures["mujoco_batched_equal"] == 2 * 4 * 24
    for name in ("mujoco_batched_over_bare", "mujoco_batched_threads2", "mujoco_bare_threads2"):
        assert figures[name] == min(figures[f"{name}_halfcheetah"], figures[f"{name}_hopper"])
    with (tmp_path / "scale-mujoco.csv").open() as file:
        rows = list(csv.DictReader(file))
    alone = ["two robots, one thread", "two robots, two threads"]
    assert [row["variant"] for row in rows] == ["bare", "one thread, Python", "one thread", "two threads", *alone] * 2
    assert {row["frames"] for row in rows} == {"64"}


def test_a_program_that_differs_from_gymnasium_is_an_error(monkeypatch):
    from envs.batched.mujoco import BatchedHopper

    original = BatchedHopper._costs
    monkeypatch.setattr(BatchedHopper, "_costs", lambda self, actions: original(self, actions) + np.float32(1e-6))
    with pytest.raises(AssertionError, match="Hopper 0 differs"):
        mujoco.equal("Hopper", 3)


def test_the_bare_physics_is_the_program_s_through_resets(monkeypatch):
    frames, work = mujoco._bare("Hopper", 40)()
    assert frames == 640
    work()
    cells = {name: cell.cell_contents for name, cell in zip(work.__code__.co_freevars, work.__closure__)}
    frames, play = mujoco._program("Hopper", 40, 1, False)()
    play()
    cells_of_program = {n: c.cell_contents for n, c in zip(play.__code__.co_freevars, play.__closure__)}
    assert sum(len(places) for places, _ in cells["begun"]) > mujoco.N
    last = np.stack([data.qpos for data in cells["robots"]])
    env = cells_of_program["env"]
    running = env._steps > 0  # others have just begun anew
    assert running.any() and np.array_equal(last[running], env.state["physics"][running, env._positions])


def test_the_best_setting_on_two_cores_is_divided_by_the_best_on_one(tmp_path, monkeypatch):
    asked, rates = [], {"1: a": [9.0, 11.0, 10.0], "1: b": [5.0] * 3, "2: c": [18.0, 11.0, 15.0], "2: d": [6.0] * 3}
    monkeypatch.setattr(cores, "TASKS", {"grid": (("env=Grid-v0",), ["a", "b"], ["c", "d"])})
    monkeypatch.setattr(cores, "interleave", lambda *given: asked.append([*given[3]]) or {"wall": rates})
    assert cores._ratio(tmp_path, "grid") == {"cores2_ratio_grid": 1.5}  # of 2, 1 and 1.5, not of the medians
    assert asked == [["1: a", "1: b", "2: c", "2: d"]]


def test_a_run_on_one_core_is_pinned_to_it_while_it_learns(monkeypatch):
    before, seen = os.sched_getaffinity(0), []
    model = SimpleNamespace(learn=lambda steps: seen.append((steps, len(os.sched_getaffinity(0)))))
    parts = SimpleNamespace(model=model, venv=SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(cores, "_run", lambda arguments, rollouts: parts)
    frames, work = cores._measure(("env=Grid-v0",), 1, 3)()
    work()
    assert frames == 3 * 2_048 and seen == [(frames, 1)] and os.sched_getaffinity(0) == before


def test_overlap_gains_at_most_what_the_longer_side_leaves(tmp_path, monkeypatch):
    seconds, clock = {"reward": 1.0, "update": 5.0}, iter([0.0, 10.0])

    def learn(steps):
        seconds["update"] += 8.0

    parts = SimpleNamespace(
        model=SimpleNamespace(learn=learn, seconds=seconds), venv=SimpleNamespace(close=lambda: None)
    )
    monkeypatch.setattr(cores, "_run", lambda arguments, rollouts: parts)
    monkeypatch.setattr(cores.time, "perf_counter", lambda: next(clock))
    assert cores.cartpole(tmp_path) == {"cores2_bound_cartpole": 1.25}  # learning takes 8 of 10 seconds


def test_the_model_is_compared_with_what_one_and_two_actors_did():
    service = model.Service(collect=3e-3, update=1e-3, embed=0.0, call=0.4)
    rows = [("ray", "local", 4.0), ("ray", "one", 5.0), ("ray2", "local", 4.0), ("ray2", "two", 2.0)]
    measured = [{"group": group, "variant": name, "frames": "1000", "seconds": str(s)} for group, name, s in rows]
    # One actor takes 3 + 0.4 + 1 seconds where the local run takes 4; two and the learner share two cores for 2.
    shared = model.Service(collect=3e-3, update=1e-3, embed=0.0, call=0.0)
    found = model.errors(service, shared, measured, 1000)
    assert found["model_error_2"] == pytest.approx(0) and found["model_error_1"] == pytest.approx(4 / 4.4 / (4 / 5) - 1)
    assert found["model_error"] == found["model_error_1"]


@pytest.mark.nightly
def test_what_waits_for_a_gpu_runs_and_agrees_on_the_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert scale.run(tmp_path, ["gpu"]) == {} and "gpu is skipped: there is no GPU" in capsys.readouterr().out
    assert gpu.programs("cpu", n=4, steps=12) == {"gpu_equal_programs": 0}
    assert gpu.policy("cpu", n=8) == {"gpu_equal_policy": 0}
    found = gpu.clip("cpu", "lodestar", rows=16, batch=8) | gpu.ppo("cpu", n=8, rollouts=1)
    assert found.pop("gpu_equal_clip") == 0
    found |= gpu.others("cpu", steps=40)
    assert {key for key, value in found.items() if value > 0} == {
        *("gpu_clip_frames", "gpu_clip_ratio", "gpu_ppo_frames", "gpu_ppo_rnd_frames", "gpu_ppo_over_cpu"),
        *("gpu_sac_over_cpu", "gpu_world_model_over_cpu"),
    }


def test_what_one_learner_takes_from_a_hundred_actors_follows_from_times_of_a_frame(tmp_path, monkeypatch):
    def times(updates):
        # An actor's 30 ms for a frame, 0.1 ms to store it, 1 ms for an update.
        return 0.030, 0.0001 + 0.001 * updates, 200.0

    monkeypatch.setattr(replay, "_service_times", times)
    figures = replay.service(tmp_path)
    assert figures["replay_update_us"] == pytest.approx(1000) and figures["replay_store_us"] == pytest.approx(100)
    # A hundred actors bring a frame each 0.3 ms, of which storing leaves 0.2 ms for updates.
    assert figures["replay_100_updates"] == pytest.approx(0.2)
    assert figures["replay_100_frames"] == pytest.approx(1 / 0.0011)
