"""Studies of exploration: rows that are there are not run again, columns, counts and figures computed by hand."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.studies import exploration, exploration_figure, noisy_rooms, pseudo_counts
from envs.exploration.family import START, corridor
from envs.make import make_vec
from runners.report import results

ROOMS, SEA = "lodestar/NoisyRooms-v0", "lodestar/DeepSea-v0"
DIVE = replace(exploration.TASKS["deepsea10"], steps=1000)


def write(folder, study, rows):
    results.append_rows(folder / f"{study}.csv", rows)


# Sparse tasks


def test_runs_of_all_arms_answer_in_the_same_columns():
    rows = {arm: exploration.train("deepsea10", arm, 0, task=DIVE) for arm in ("count_lifetime", "none", "random")}
    for row in rows.values():
        # A CSV has one header: of the first row.
        assert list(row) == ["return", "success", "first_success", "solved_at", "steps", "seconds"]
        assert row["steps"] == 1000 and -0.01 <= row["return"] <= 0.99 and 0 <= row["success"] <= 1
        assert row["solved_at"] == "" and row["seconds"] >= 0
    again = exploration.train("deepsea10", "random", 0, task=DIVE)
    assert {**again, "seconds": 0} == {**rows["random"], "seconds": 0}


def test_chance_finds_the_treasure_once_in_1024_dives():
    envs = make_vec(SEA, 1024, seed=0, backend="batched", size=10)
    row = exploration.play_at_random(envs, 400 * 1024, seed=0)  # 40,960 dives: 40 treasures, give or take 6
    assert row["success"] == pytest.approx(2**-10, abs=5e-4) and row["success"] > 0
    # Half of ten moves go to the right, for a thousandth each.
    assert row["return"] == pytest.approx(-0.005 + 2**-10, abs=6e-4)
    assert (row["first_success"], row["solved_at"]) == ("", "")


@pytest.mark.parametrize("arm", exploration.known())
def test_a_bonus_fades_to_nothing_at_two_thirds_of_the_steps(arm):
    envs = make_vec(SEA, 2, backend="batched", size=10)
    mix = exploration.mix_of(envs, DIVE, arm, 0.99, 0, {})
    name = exploration.METHODS[arm][0]
    assert list(mix.streams) == ["task", name]
    bonus = mix.streams[name]
    weights = [float(mix.weights(np.array(t))[name]) for t in (0, 333, 666, 1000)]
    assert weights == pytest.approx([0.3, 0.15, 0.0, 0.0]) and weights[2:] == [0.0, 0.0]
    assert float(mix.weights(np.array(1000))["task"]) == 1.0
    assert bonus.episodic == (arm in exploration.EPISODIC) and bonus.has_scale


def test_an_agent_without_bonus_is_paid_by_the_task_alone_and_options_can_be_changed():
    envs = make_vec(SEA, 2, backend="batched", size=10)
    assert list(exploration.mix_of(envs, DIVE, "none", 0.99, 0, {}).streams) == ["task"]
    changed = exploration.mix_of(envs, DIVE, "count_lifetime", 0.99, 0, {"weight": 2.0}).streams["count"]
    config = changed.reward.config
    assert (config.memory, config.kind, config.weight) == ("lifetime", "sqrt", 2.0)


def test_figures_of_the_tasks_are_means_of_the_middle_half(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    monkeypatch.setattr(exploration, "TASKS", {name: exploration.TASKS[name] for name in ("deepsea10", "mountaincar")})
    monkeypatch.setattr(exploration, "known", lambda: ["rnd"])
    success = {"none": [0, 0, 0, 0, 0], "random": [0, 0, 0, 0, 0], "rnd": [0, 0.3, 0.6, 0.9, 1]}
    solved = {"deepsea10": ["", 300, 100, 200, ""], "mountaincar": ["", 100, "", 200, ""]}  # 3 and 2 seeds of 5
    write(
        folder,
        "exploration",
        [
            {"task": task, "arm": arm, "seed": seed, "return": -200 + 10 * seed, "success": value}
            | {"solved_at": solved[task][seed] if arm == "rnd" else ""}
            for task in exploration.TASKS
            for arm, values in success.items()
            for seed, value in enumerate(values)
        ],
    )
    figures = exploration.run(folder)  # nothing is missing
    arms = [f"{task}_{arm}" for task in exploration.TASKS for arm in success]
    assert set(figures) == {*(f"{arm}{end}" for arm in arms for end in ("", "_low", "_high")), "deepsea10_rnd_steps"}
    assert figures["deepsea10_rnd_steps"] == 300  # the median, where "never" is later than all
    assert figures["deepsea10_rnd"] == pytest.approx((0.3 + 0.6 + 0.9) / 3)
    assert -0.1 < figures["deepsea10_rnd_low"] < 0.6 < figures["deepsea10_rnd_high"] < 1.3
    assert figures["deepsea10_none"] == figures["deepsea10_none_low"] == figures["deepsea10_none_high"] == 0
    assert figures["mountaincar_rnd"] == pytest.approx(-180)  # a car is judged by its return
    assert (tmp_path / "figures" / "exploration.png").exists()


# Noisy rooms


def test_what_was_visited_is_what_a_count_by_hand_says():
    steps, seed = 640, 3
    row = noisy_rooms.explore("on_demand", "random", seed, steps)
    envs = make_vec(ROOMS, noisy_rooms.ENVS, seed=1000 * seed, backend="batched", noise="on_demand")
    envs.reset(seed=1000 * seed)
    rng, leads = np.random.default_rng(seed), corridor(8)
    where, seen, idle = [START] * 32, [], []
    for _ in range(20):
        actions = rng.integers(0, 5, 32)
        where = [int(leads[cell, action]) for cell, action in zip(where, actions)]
        seen.append(set(where))
        idle.append(sum(action == 0 for action in actions) / 32)
        assert envs.step(actions)[-1]["cell"].tolist() == where
    furthest = max(set.union(*seen))
    tenths = [(idle[2 * k] + idle[2 * k + 1]) / 2 for k in range(10)]
    assert {key: value for key, value in row.items() if key != "seconds"} == {
        "cells": len(set.union(*seen)),
        "late": len(set.union(*seen[-4:])),
        "noop": round(sum(idle[-4:]) / 4, 4),
        "worst_noop": round(max(tenths[5:]), 4),
        "furthest_cell": furthest,
        "furthest_at": 32 * next(t for t, cells in enumerate(seen) if furthest in cells),
        "steps": steps,
    }


def test_an_agent_that_is_paid_nothing_answers_in_the_same_columns_within_what_is_possible():
    row, chance = (noisy_rooms.explore("off", arm, 0, 640) for arm in ("none", "random"))
    assert list(row) == list(chance)
    for answer in (row, chance):
        # In 20 steps from the centre of the first room nobody is past the door of the third.
        assert 1 <= answer["late"] <= answer["cells"] <= 3 * 26 and answer["furthest_cell"] < 3 * 26
        assert 0 <= answer["noop"] <= answer["worst_noop"] <= 1  # the last fifth is two of these tenths
        assert 0 <= answer["furthest_at"] <= 640


def test_visits_stop_where_the_steps_asked_for_end():
    visits = noisy_rooms.Visits(make_vec(ROOMS, 2, backend="batched"), 20)
    visits.reset(seed=0)
    for action in (2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1):  # right, stay, back left
        visits.step(np.array([action, 3]))
    # The rollout that is under way may go on; 11 rows are kept.
    assert visits.t == 11 and visits.num_envs == 2
    assert visits.cells[:, 0].tolist() == [13, 14, *[25] * 9] and visits.cells[:, 1].tolist() == [7, *[2] * 10]
    assert visits.idle.tolist() == [0] * 3 + [0.5] * 8
    assert visits.account() == {
        "cells": 5, "late": 2, "noop": 0.5, "worst_noop": 0.5, "furthest_cell": 25, "furthest_at": 4,
    }  # fmt: skip


def test_figures_of_the_rooms_are_named_by_world_arm_and_column(tmp_path, monkeypatch):
    worlds = {"off": ({}, ("rnd",)), "on_demand": ({}, ("rnd", "byol")), "pixels": ({}, ("rnd",))}
    monkeypatch.setattr(noisy_rooms, "WORLDS", worlds)
    folder = tmp_path / "results"
    rows = [
        {"world": world, "arm": arm, "seed": seed, "cells": cells, "noop": 0.1}
        for world, (_, arms) in worlds.items()
        for arm in arms
        for seed, cells in enumerate((207, 100, 110, 90, 20))
        if seed < 2 or (arm, world) in (("rnd", "off"), ("rnd", "on_demand"))  # two seeds are enough for the rest
    ]
    write(folder, "noisy_rooms", rows)
    figures = noisy_rooms.run(folder)
    names = ["clean_rnd", "noisy_rnd", "noisy_byol", "pixels_rnd"]
    assert set(figures) == {
        f"{name}_{column}{end}" for name in names for column in ("cells", "noop") for end in ("", "_low", "_high")
    }
    assert figures["clean_rnd_cells"] == figures["noisy_rnd_cells"] == 100
    assert figures["noisy_byol_cells"] == pytest.approx((207 + 100) / 2)
    assert figures["pixels_rnd_noop"] == figures["pixels_rnd_noop_low"] == pytest.approx(0.1)
    assert len(results.read_rows(folder / "noisy_rooms.csv")) == len(rows) == 14


def test_every_arm_and_world_of_the_rooms_is_one_that_there_is():
    import rewards

    for name, options in noisy_rooms.ARMS.values():
        rewards.get(name).Config(**options)
    for options, arms in noisy_rooms.WORLDS.values():
        assert set(arms) <= set(noisy_rooms.ARMS)
        make_vec(ROOMS, 1, backend="batched", **options).close()


# Counts


def test_a_rank_correlation_by_hand_shares_ranks_between_ties():
    rank = pseudo_counts.rank_correlation
    assert rank(np.array([1.0, 4.0, 9.0]), np.array([1, 2, 30])) == pytest.approx(1)
    assert rank(np.array([3.0, 2.0, 1.0]), np.array([1, 2, 3])) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert rank(np.array([0.0, 5.0, 5.0, 6.0]), np.array([1, 2, 3, 4])) == pytest.approx(0.9**0.5)
    assert rank(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0, 1, 0, 1])) == pytest.approx(0)


def test_a_bonus_is_scored_at_the_cells_that_were_visited(monkeypatch):
    monkeypatch.setattr(pseudo_counts, "EPISODES", 100)  # two cells of the second row: 50 visits each
    row = pseudo_counts.measure("rnd", 0)
    assert list(row) == ["rank_correlation", "times_count", "cells"]
    assert 10 <= row["cells"] <= 55 - 1  # the first cell is never reached
    assert -1 <= row["rank_correlation"] <= 1 and row["times_count"] >= 0
    batch = pseudo_counts._standing_on(np.array([2, 0]), 3)
    assert batch.next_obs.tolist() == [[0, 0, 1], [1, 0, 0]] and batch.valid.all() and not batch.terminated.any()


def test_figures_of_the_counts_are_means_of_the_middle_half(tmp_path, monkeypatch):
    monkeypatch.setattr(
        pseudo_counts,
        "measure",
        lambda arm, seed: {"rank_correlation": (-1, 0.2, 0.5, 0.8, 1)[seed], "times_count": len(arm), "cells": 55},
    )
    write(tmp_path, "pseudo_counts", [{"arm": "rdd", "seed": 0}])  # of an older run
    figures = pseudo_counts.run(tmp_path)
    assert len(results.read_rows(tmp_path / "pseudo_counts.csv")) == 5 * 4
    assert set(figures) == {f"{a}_{c}" for a in pseudo_counts.ARMS for c in ("rank_correlation", "times_count")}
    assert figures["rnd_rank_correlation"] == pytest.approx(0.5) and figures["coin_flip_times_count"] == 9


# The picture


def test_the_picture_has_a_panel_for_every_task_that_was_run_and_two_for_the_rooms(tmp_path):
    folder = tmp_path / "results"
    write(
        folder,
        "exploration",
        [
            {"task": task, "arm": arm, "seed": seed, "return": -150 - seed, "success": seed / 4, "solved_at": ""}
            for task in ("mountaincar", "deepsea20")
            for arm in ("none", "rnd")
            for seed in range(3)
        ],
    )
    exploration_figure.draw(folder)
    picture = tmp_path / "figures" / "exploration.png"
    narrow = _size(picture)
    write(
        folder,
        "noisy_rooms",
        [
            {"world": world, "arm": "icm", "seed": 0, "cells": 50, "noop": 0.9}
            for world in ("off", "on_demand", "pixels")
        ],
    )
    panels = exploration_figure._panels(folder)
    returns, successes = [-150, -151, -152], [0, 0.25, 0.5]
    assert panels == [
        ("MountainCar", "return", (-200.0, -100.0), {"none": returns, "rnd": returns}),
        ("DeepSea 20", "success", (0.0, 1.0), {"none": successes, "rnd": successes}),
        ("noisy rooms", "cells seen", (0.0, 207.0), {"icm": [50]}),
        ("noisy rooms", "no-op share", (0.0, 1.0), {"icm": [0.9]}),
    ]
    exploration_figure.draw(folder)
    wide = _size(picture)
    assert wide[0] - narrow[0] == 2 * 1.25 * 160 and wide[1] > narrow[1]  # two panels more, one method more


def test_every_task_has_a_title_and_every_control_is_an_arm():
    assert set(exploration_figure.TITLES) == set(exploration.TASKS)
    assert set(exploration_figure.CONTROLS) <= {"none", "random", *exploration.METHODS}
    assert inspect.signature(exploration.train).parameters["task"].default is None


def _size(picture):
    from PIL import Image

    with Image.open(picture) as image:
        assert np.asarray(image.convert("L")).min() < 128  # something was drawn
        return image.size
