"""Rewards by linear programs: the hand values of a chain, what stays optimal, what a learner needs, the command."""

import numpy as np
import pytest
from test_finite_models import CHAIN, SPARSE

from runners.compare.finite import FiniteModel, gaps, informativeness, optimal_values
from runners.design.__main__ import main
from runners.design.explors import bonus, credit, explors, to_go
from runners.design.table import Ahead, adaptive, exprd, program
from runners.run.config import UsageError


def corridor(n=8):
    """A line: action 0 to the right, 1 to the left; the task rewards the step out of its right end."""
    line = np.zeros((n, 2, n))
    line[np.arange(n - 1), 0, np.arange(1, n)] = 1
    line[np.arange(n), 1, np.maximum(np.arange(n) - 1, 0)] = 1
    task = np.zeros((n, 2))
    task[-1, 0] = 1
    return line, task


def test_the_chain_needs_no_more_than_the_tasks_own_state_and_gaps_do_not_shrink(monkeypatch):
    monkeypatch.setattr("runners.design.table.HORIZONS", (0,))
    monkeypatch.setattr("runners.compare.finite.HORIZONS", (1,))
    sparse, active = exprd(SPARSE, CHAIN, 0.5, states=0)
    assert active == [1]
    dense, active = exprd(SPARSE, CHAIN, 0.5, states=1)
    assert active == [1, 0]
    # at once: Delta_0(s0) = R(s0, on) - R(s0, stay) must reach 0.25; with nothing there it is 0
    assert dense[0, 0] - dense[0, 1] >= 0.25 / (1 + 1e-5) - 1e-9 and sparse[0].tolist() == [0, 0]
    for reward in (sparse, dense):
        q = optimal_values(reward, CHAIN, 0.5)
        assert q.argmax(axis=1).tolist() == [0, 0] and np.abs(reward).max() <= 1 + 1e-9
        assert (gaps(q)[0] >= np.array([0.25, 0.75]) - 1e-4).all()


def test_more_states_tell_more_and_all_keep_the_optimal_policy():
    line, task = corridor(20)
    found = {states: exprd(task, line, 0.95, states) for states in (0, 2, 4)}
    early = [informativeness(reward, task, line, 0.95) for reward, _ in found.values()]
    assert early[0] < early[1] < early[2]
    for states, (reward, active) in found.items():
        assert len(active) == states + 1 and active[0] == 19  # the goal's own state is not counted
        assert not reward[np.setdiff1d(np.arange(20), active)].any()
        assert (optimal_values(reward, line, 0.95).argmax(axis=1) == 0).all()


def test_every_state_is_tried_in_each_turn(monkeypatch):
    line, task = corridor(12)
    tried = []

    def spy(*given):
        tried.append(given[2][-1])
        return program(*given)

    monkeypatch.setattr("runners.design.table.program", spy)
    _, active = exprd(task, line, 0.95, 2)
    assert tried[1:12] == list(range(11))
    assert tried[12:] == [state for state in range(11) if state != active[1]]
    worth = {state: program(task, Ahead.of(task, line, 0.95), [11, state], 0.0)[1] for state in range(11)}
    assert active[1] == min(worth, key=worth.get)


def test_a_price_on_rewards_makes_them_small():
    line, task = corridor()
    free, priced = (exprd(task, line, 0.9, 8, l1)[0] for l1 in (0.0, 0.05))
    assert np.abs(priced).sum() < np.abs(free).sum()
    assert (optimal_values(priced, line, 0.9).argmax(axis=1) == 0).all()


def test_an_adaptive_reward_speaks_where_the_learner_is_and_errs():
    line, task = corridor()
    model = FiniteModel(line, np.arange(8.0)[:, None], np.zeros((0, 2), int), np.eye(8)[0])
    learner = np.tile([0.5, 0.5], (8, 1))
    learner[:4] = [1.0, 0.0]  # it knows the first half
    reward = adaptive(task, model, 0.9, learner)
    assert (optimal_values(reward, line, 0.9).argmax(axis=1) == 0).all()
    assert (reward[4:, 0] - reward[4:, 1] > 1.9).all()  # as loud as |R| <= 1 lets it be


def test_a_bonus_of_visits_and_the_step_of_a_reward_that_an_agent_finds_by_hand():
    assert bonus(np.arange(4)) == pytest.approx([1, 0.7071, 0.5774, 0.5], abs=1e-4)
    assert bonus(np.arange(2), weight=0.0).tolist() == [0, 0]
    assert credit(np.array([[0.5, 0.5]]), np.array([0]), np.array([1.0])).tolist() == [[0.25, -0.25]]
    assert to_go(np.array([0.0, 0, 1]), 0.5).tolist() == [0.25, 0.5, 1]


def test_what_an_agent_finds_tells_early_and_nothing_is_found_without_it():
    line, task = corridor(4)
    model = FiniteModel(line, np.arange(4.0)[:, None], np.zeros((0, 2), int), np.eye(4)[0])
    f, returns = explors(task, model, 0.9, 200, 0)
    assert (f[:, 0] > f[:, 1]).all() and f.sum(axis=1) == pytest.approx(0)
    assert returns[-50:].mean() > returns[:50].mean() and returns.max() == pytest.approx(0.9**3)
    assert not explors(task, model, 0.9, 20, 0, eta=0.0)[0].any()


def test_what_has_no_solution_is_one_sentence():
    with pytest.raises(UsageError, match=r"no reward in 0 states keeps the optimal policy"):
        program(SPARSE, Ahead.of(SPARSE, CHAIN, 0.5), [], 0.0)


@pytest.mark.parametrize("method", [pytest.param("exprd", marks=pytest.mark.nightly), "adaptive", "explors"])
def test_a_table_of_a_grid_is_solved_for_and_trained_on(method, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lake = ["env=FrozenLake-v1", "env.is_slippery=false"]
    assert main([*lake, f"method={method}", "states=4", "episodes=20", f"root={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "exact model, 16 states" in out and "informativeness" in out and "one-hot" in out
    from runners.train import main as train

    table = tmp_path / "design" / f"FrozenLake-v1-{method}" / "table.json"
    run = ["total_timesteps=128", "n_envs=2", "agent.n_steps=32", "eval_episodes=1", "video=false", "logger=[]"]
    assert train([*lake, *run, "reward=table", f"reward.table.file={table}", f"run_dir={tmp_path}/run"]) == 0
    if method == "adaptive":  # for what the run does now
        assert (
            main([*lake, "method=adaptive", "name=next", f"of_run={tmp_path}/run", "trust=true", f"root={tmp_path}"])
            == 0
        )


def test_a_recording_without_the_tasks_reward_and_continuous_actions_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["env=MountainCar-v0", "method=exprd", "frames=200", f"root={tmp_path}"]) == 2
    assert "all actions are as good in this model of MountainCar-v0; give data=" in capsys.readouterr().err
    assert main(["env=Pendulum-v1", "method=exprd", "frames=50", f"root={tmp_path}"]) == 2
    assert "a finite model has discrete actions, not Box" in capsys.readouterr().err
