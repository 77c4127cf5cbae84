"""Workers that die, hang, stop or raise: noticed, named, replaced or given up, and closed in every state."""

import functools
import os
import signal
import time

import numpy as np
import pytest
import torch

import rewards
from agents.base import Steps
from agents.ppo.agent import PPO, PPOConfig
from agents.ppo.seams import GAEInputs, advantages
from envs.make import make, make_vec
from envs.steps import Cursor, from_vector_step
from envs.vector.watchdog import Budget, Gone, WorkerError
from envs.vector.workers import Workers
from tests.faults.workers import ENV, lose, runs, vector


def _kill(envs: Workers, worker: int, number: int = signal.SIGKILL) -> None:
    os.kill(envs._workers[worker].process.pid, number)
    if number == signal.SIGKILL:
        envs._workers[worker].process.join(10)


def _cartpoles(**options) -> Workers:
    envs = make_vec("CartPole-v1", 4, seed=0, backend="workers", processes=2, workers=options)
    envs.say = lambda sentence: None
    return envs


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("kill", {}),
        ("segfault", {}),
        ("hang", {"step_timeout": 2.0}),
        ("raise", {"on_error": "restart"}),
    ],
)
def test_a_lost_worker_is_named_and_replaced_and_its_episodes_end_as_truncated(how, options, tmp_path) -> None:
    wrong, seconds = lose(tmp_path, how, 0, **options)
    assert wrong == []
    assert seconds["detect_s"] < (12 if how == "hang" else 10)  # of a machine that does other things too


def test_an_environment_that_raises_stops_the_vector_by_default_and_says_where_and_when() -> None:
    envs = vector("raise", at=3)
    envs.reset(seed=5)
    with pytest.raises(
        WorkerError,
        match=r"environment 1 raised KeyError: 'the door' \(.*workers\.py:\d+\) in action 1, step 3 of an episode with "
        "seed 6",
    ) as caught:
        for _ in range(5):
            envs.step(np.ones(4, int))
    assert 'raise KeyError("the door")' in caught.value.__notes__[0]
    assert envs.closed and envs.restarts == 0


def test_too_many_losses_end_the_vector_with_what_happened_before() -> None:
    envs = vector("exit", at=2, restarts=2, restart_window=600)
    said = []
    envs.say = said.append
    envs.reset(seed=0)
    with pytest.raises(
        WorkerError, match=r"ended with exit code 3 .*that is more than 2 restarts within 600 s"
    ) as caught:
        for _ in range(30):
            envs.step(np.zeros(4, int))
    assert [sentence[-30:] for sentence in said] == ["replaced (1 of 2 within 600 s)", "replaced (2 of 2 within 600 s)"]
    [note] = caught.value.__notes__  # a process that ends in order leaves no stack
    assert note.count("ended with exit code 3") == 3
    assert envs.closed and not any(map(runs, [worker.process.pid for worker in envs._workers]))


def test_the_budget_forgets_what_is_older_than_its_window() -> None:
    budget = Budget(1, 0.05)
    assert budget.spend("one") == "1 of 1 within 0.05 s"
    time.sleep(0.1)
    assert budget.spend("two") == "1 of 1 within 0.05 s" and budget.spent == 2
    with pytest.raises(WorkerError, match=r"^three; that is more than 1 restarts"):
        budget.spend("three")
    with pytest.raises(WorkerError, match=r"^dead$"):
        Budget(0, 600).spend("dead")


def test_replacements_are_seeded_anew_and_always_alike() -> None:
    firsts = []
    for _ in range(2):
        envs = _cartpoles()
        start = np.array(envs.reset(seed=3)[0])
        for _ in range(2):
            _kill(envs, 1)
            envs.step(np.zeros(4, int))
            firsts.append(envs._slots.obs[[1, 3]].copy())
        assert envs.restarts == 2
        envs.close()
    np.testing.assert_array_equal(firsts[:2], firsts[2:])
    assert len(np.unique([start[1], start[3], *firsts[0], *firsts[1]], axis=0)) == 6


def test_the_episodes_of_other_workers_go_on_as_if_nothing_had_happened() -> None:
    envs, calm = _cartpoles(step_timeout=30.0), make_vec("CartPole-v1", 4, seed=0, backend="gym")
    # Whatever is no step may take ten times as long.
    assert envs._request_timeout == 300
    for one in (envs, calm):
        one.reset(seed=3)
    for number in range(40):
        if number == 5:
            _kill(envs, 1)
        step, expected = envs.step(np.arange(4) % 2), calm.step(np.arange(4) % 2)
        for ours, theirs in zip(step[:4], expected[:4]):
            np.testing.assert_array_equal(ours[[0, 2]], theirs[[0, 2]])
        assert ("lost" in step[4]) == (number == 5)
        if number == 5:
            assert step[4]["final_info"]["_episode"].tolist() == [False] * 4
            assert [worker.limit for worker in envs._workers] == [30.0, 30.0]
    envs.close()


def test_a_loss_between_two_groups_is_told_to_each_in_its_turn() -> None:
    envs = _cartpoles()
    envs.reset(seed=0)
    envs.send(np.zeros(2, int), 0)
    envs.recv(0)
    _kill(envs, 0)
    envs.send(np.zeros(2, int), 1)
    infos = envs.recv(1)[4]
    assert infos["lost"].tolist() == [True, False]
    envs.send(np.zeros(2, int), 0)
    step = envs.recv(0)
    assert step[4]["lost"].tolist() == [True, False] and step[1].tolist() == [0, 1]
    envs.send(np.zeros(2, int), 1)
    step = envs.recv(1)
    assert "lost" not in step[4] and step[1].tolist() == [1, 1] and not step[3].any()
    envs.close()


def test_a_snapshot_of_a_loss_that_nobody_was_told_of_restores_the_loss() -> None:
    envs = _cartpoles()
    envs.reset(seed=0)
    envs.step(np.zeros(4, int))
    _kill(envs, 1)
    saved = envs.snapshot()
    fresh = _cartpoles()
    fresh.restore(saved)
    for one in (envs, fresh):
        assert one.step(np.zeros(4, int))[4]["lost"].tolist() == [False, True, False, True]
    np.testing.assert_array_equal(envs._slots.obs, fresh._slots.obs)
    for one in (envs, fresh):
        one.close()


def test_a_death_during_a_reset_is_made_good_by_the_successor() -> None:
    envs, calm = _cartpoles(), make_vec("CartPole-v1", 4, seed=0, backend="gym")
    _kill(envs, 0)
    np.testing.assert_array_equal(envs.reset(seed=7)[0], calm.reset(seed=7)[0])
    assert envs.restarts == 1
    assert "lost" not in envs.step(np.zeros(4, int))[4]
    envs.close()


@pytest.mark.parametrize("how", ["stop", "hang", "kill"])
def test_close_returns_in_every_state_and_leaves_no_process(how: str) -> None:
    envs = vector(how, at=1, step_timeout=0)
    pids = [worker.process.pid for worker in envs._workers]
    envs.reset(seed=0)
    envs.send(np.zeros(2, int))
    begin = time.monotonic()
    envs.close()
    envs.close()
    assert time.monotonic() - begin < 20  # 5 s on a machine that does nothing else
    assert not any(map(runs, pids))


def test_a_stopped_worker_has_its_time_and_is_killed() -> None:
    envs = _cartpoles(step_timeout=1.0)
    envs.reset(seed=0)
    said = []
    envs.say = said.append
    _kill(envs, 1, signal.SIGSTOP)
    assert envs.step(np.zeros(4, int))[4]["lost"].tolist() == [False, True, False, True]
    assert "environments 1, 3, gave no answer for 1 s" in said[0]
    envs.close()


@pytest.mark.timeout(60)
def test_what_is_sent_to_a_stopped_worker_does_not_hold_the_parent() -> None:
    envs = _cartpoles()
    worker = envs._workers[1]
    _kill(envs, 1, signal.SIGSTOP)
    worker.limit = 0.3
    with pytest.raises(Gone, match=r"gave no answer for 0.3 s"):
        worker.post(b"?", bytes(1 << 20))  # more than its pipe holds
    worker.process.kill()
    envs.close()


def test_arguments_out_of_range_are_refused_with_the_range() -> None:
    makers = [functools.partial(make, "CartPole-v1")]
    for options, words in [
        ({"step_timeout": -1}, r"step_timeout=-1 is out of range; give seconds, or 0 for no limit"),
        ({"on_error": "ignore"}, r"on_error='ignore' is unknown; give \"stop\" or \"restart\""),
        ({"restarts": -1}, r"restarts=-1 is out of range; give 0 or more"),
    ]:
        with pytest.raises(ValueError, match=words):
            Workers(makers, 1, **options)
    with pytest.raises(ValueError, match=r"workers=.* is for backend=\"workers\", not \"gym\""):
        make_vec("CartPole-v1", 2, backend="gym", workers={"restarts": 1})


def test_a_lost_step_becomes_a_row_that_is_no_transition() -> None:
    envs, cursor = _cartpoles(), Cursor(4)
    before = np.array(envs.reset(seed=0)[0])
    for number in range(3):
        if number == 2:
            _kill(envs, 1)
        obs, paid, *ends = envs.step(np.zeros(4, int))
        batch = from_vector_step(cursor, envs.metadata["autoreset_mode"], before, np.zeros(4, int), paid, obs, *ends)
        known, before = before, np.array(obs)
    assert batch.valid.tolist() == [True, False, True, False]
    assert batch.truncated.tolist() == batch.ended.tolist() == [False, True, False, True]
    np.testing.assert_array_equal(batch.next_obs[[1, 3]], known[[1, 3]])
    assert batch.step.tolist() == [2] * 4 and cursor.step.tolist() == [3, 0, 3, 0]
    envs.close()


def test_steps_do_not_count_a_lost_episode() -> None:
    envs = _cartpoles()
    steps = Steps(envs, 0)
    steps.begin()

    class SpaceEncoding:
        decode = staticmethod(lambda actions: actions.astype(int)[:, 0])
        vector = staticmethod(lambda obs: obs)

    for number in range(30):
        if number == 3:
            _kill(envs, 1)
        batch = steps.step(torch.zeros(4, 1), SpaceEncoding())
        assert batch.valid.all() == (number != 3)
        if number == 3:
            assert not steps.episodes.returns and steps.episodes.running[1].tolist() == [4, 0, 4, 0]
    assert len(steps.episodes.returns) >= 4 and all(episode["l"] >= 8 for episode in steps.episodes.returns)
    envs.close()


def test_ppo_learns_nothing_from_a_lost_row_and_bootstraps_the_one_before() -> None:
    envs = _cartpoles()
    mix = rewards.make(["task", "rnd"], envs.single_observation_space, envs.single_action_space, gamma=0.99, seed=0)
    agent = PPO(envs, PPOConfig(n_steps=16, batch_size=32, n_epochs=1), scorer=mix, seed=0)
    seen = {}

    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 4 * 5:
                _kill(envs, 1)
            return True

        def _on_rollout_end(self) -> None:
            batch, raw, values = self.locals["batch"], self.locals["raw"], agent.collector.values
            seen.update(valid=batch.valid.copy(), ended=batch.ended.copy(), rnd=raw["rnd"].copy(), step=batch.step)
            seen.update(advantage=self.locals["advantages"].copy(), values=values.copy(), task=raw["task"].copy())

    agent.learn(64, callback=Watch())
    lost = np.argwhere(~seen["valid"]).tolist()
    assert sorted(column for _, column in lost) == [1, 3] and all(t in (5, 6) for t, _ in lost)
    for t, column in lost:
        assert seen["ended"][t, column] and seen["rnd"][t, column] == seen["task"][t, column] == 0
        assert (seen["advantage"][t, column] == 0).all() and seen["step"][t + 1, column] == 0
        expected = seen["task"][t - 1, column] + 0.99 * seen["values"][t, column, 0] - seen["values"][t - 1, column, 0]
        np.testing.assert_allclose(seen["advantage"][t - 1, column, 0], expected, rtol=1e-4)
        assert seen["rnd"][t - 1, column] > 0
    assert all(episode["l"] >= 8 for episode in agent.ep_info_buffer)
    envs.close()


def test_advantages_go_on_to_the_value_at_a_loss_and_no_further() -> None:
    ones, no = np.ones((4, 1, 1), np.float32), np.zeros((4, 1), bool)
    values = np.arange(5, dtype=np.float32).reshape(5, 1, 1)
    truncated, valid = no.copy(), ~no
    truncated[2], valid[2] = True, False
    settings = (np.array([0.5], np.float32), 1.0, np.array([True]))
    inputs = GAEInputs(ones, values, np.full_like(ones, 99), no, truncated, valid, *settings)
    found = advantages(inputs)[:, 0, 0]
    # row 3: 1 + 0.5 * 4 - 3; row 1: 1 + 0.5 * 2 - 1; row 0: 1 + 0.5 * 1 - 0 + 0.5 * row 1
    assert found.tolist() == [2.0, 1.0, 0.0, 0.0]


def test_the_faulty_world_is_a_world_as_others_are() -> None:
    env = make(ENV, seed=0)
    obs, _ = env.reset()
    assert obs[0] == 0 and env.step(0)[0][0] == 1
