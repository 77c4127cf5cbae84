"""Studies of agents that dream: their figures by hand, what an arm is, a short run of each kind."""

import numpy as np
import pytest

from benchmarks.studies import model_learning, noise_video, reward_swap

QUICK = {"learning_starts": 60, "net_arch": [8], "batch_size": 8, "model_hidden": [8], "model_steps": 100}
QUICK |= {"rollouts_per_step": 2, "model_every": 60}


def swap(arm, values, agent="sac", task="task", way=-500.0):
    points = {f"after_{20 * i}": "" if arm == "random" else way for i in range(5)}
    steps = "0" if arm == "random" else "5000"
    return [{"task": task, "agent": agent, "arm": arm, "return": str(v), "steps": steps, **points} for v in values]


def test_a_swaps_figures_are_named_by_the_agent_or_by_what_changed_its_mind():
    rows = [*swap("relabel", [-100, -200, -150, -9000]), *swap("stale", [-1500]), *swap("random", [-1200])]
    rows += swap("stale", [3.0], "dyna", "rnd")
    found = reward_swap.figures(rows)
    assert found["swap_relabel_sac"] == -175  # the middle half of four
    assert found["swap_stale_sac"] == -1500 and found["swap_random_sac"] == -1200
    assert found["swap_relabel_sac_seeds"] == 4
    assert found["swap_relabel_sac_way"] == -500 and "swap_random_sac_way" not in found
    assert found["swap_stale_rnd"] == 3.0 and "swap_stale_dyna" not in found


def test_the_sign_turns_what_is_paid_and_nothing_else():
    import rewards
    from envs.make import make

    env = make("Pendulum-v1")
    streams, turned = reward_swap._streams("rnd", env.observation_space, env.action_space, 0.99, 0)
    assert [s.name for s in streams] == ["task", "rnd"] and turned.sign == -1
    kind = rewards.get("rnd")
    same = kind(kind.Config(learning_rate=1e-3), env.observation_space, env.action_space, seed=0)
    from envs.transitions import Cursor, from_gym_step

    obs, _ = env.reset(seed=0)
    batch = from_gym_step(Cursor(1), obs, env.action_space.sample(), *env.step(np.zeros(1, np.float32)))
    assert turned.score(batch) == -np.asarray(same.score(batch))
    turned.sign = 1.0
    assert turned.score(batch) == np.asarray(same.score(batch))


@pytest.mark.parametrize(("agent", "arm"), [("sac", "stale"), ("dyna", "relabel")])
def test_a_short_swap_writes_its_row(agent, arm):
    row = reward_swap.train("task", agent, arm, 0, steps=200, **QUICK)
    assert row["steps"] == 200 and -2000 < row["return"] < 0
    assert all(-2000 < row[f"after_{20 * i}"] < 0 for i in range(5))


def test_learning_figures_carry_steps_seeds_cpu_and_success():
    row = {"task": "empty5", "arm": "mrq", "return": "0.9", "success": "1.0", "cpu_seconds": "50"}
    found = model_learning.figures([row, {**row, "return": "0.7", "cpu_seconds": "70", "success": "0.5"}])
    assert found["empty5_mrq_5000"] == pytest.approx(0.8)
    assert found["empty5_mrq_5000_seeds"] == 2 and found["empty5_mrq_5000_cpu"] == 60
    assert found["empty5_mrq_5000_success"] == 0.75


def test_every_arm_of_every_task_is_an_agent_that_can_be_made():
    import agents

    for task, about in model_learning.TASKS.items():
        for arm in about.arms:
            if arm != "random":
                name, settings = model_learning.agent_of(task, arm)
                assert agents.get(name).Config(**settings)
    assert (
        model_learning.agent_of("hopper", "sac")[1]["updates_per_step"]
        == (model_learning.agent_of("hopper", "mbpo")[1]["updates_per_step"])
    )


def test_a_short_run_with_and_without_a_model_writes_its_row():
    row = model_learning.train("pendulum", "mbpo", 0, steps=150, **QUICK)
    assert row["steps"] == 150 and -2000 < row["return_20"] < 0 and row["cpu_seconds"] > 0
    random = model_learning.train("empty5", "random", 0)
    assert 0 < random["return"] < 1 and random["return_20"] == ""
    assert row.keys() == random.keys()


def test_what_is_kept_is_a_share_of_the_way_from_random():
    rows = [
        {"preset": preset, "background": background, "return": value}
        for preset, background, value in (
            ("random", "none", -1200.0),
            ("repo", "none", -200.0),
            ("repo", "video", -400.0),
            ("dreamer", "none", -1300.0),
            ("dreamer", "video", -1200.0),
        )
    ]
    found = noise_video.figures(rows)
    assert found["noise_repo_kept"] == pytest.approx(0.8)
    assert "noise_dreamer_kept" not in found  # it learnt nothing that could be lost
