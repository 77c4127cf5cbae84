"""A rollout says the same about a trajectory in both auto-reset modes, and what the world itself says."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted import ScriptedWorld, script

from envs.transitions import OneGroup, Rollout

N, T = 3, 24
EVERYTHING = frozenset({"next_obs", "frame", "obs_frame", "text", "obs_text"})


def play(mode, rollouts=2, modality_names=frozenset({"frame", "text"})):
    """(world, episode, step) -> what the rollouts say about that transition."""
    envs = SyncVectorEnv([lambda i=i: ScriptedWorld(i, 8) for i in range(N)], autoreset_mode=mode)
    stepper = OneGroup(envs)
    rollout = Rollout(T, envs, modality_names)
    rollout.begin(*envs.reset(seed=0))
    told = {}
    for _ in range(rollouts):
        for t in range(T):
            rollout.action[t] = script(rollout.obs[t])
            stepper.send(rollout.action[t], 0)
            rollout.write(t, slice(0, N), *stepper.recv(0))
        batch = rollout.transitions(EVERYTHING)
        for t in range(T):
            for n in range(N):
                if batch.valid[t, n]:
                    row = batch[t, n]
                    key = (n, int(row.obs[1]), int(row.obs[0]))
                    told[key] = row.map(np.copy)
        rollout.roll()
    return told


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_every_row_is_what_the_world_did(mode):
    told = play(mode)
    assert len(told) > 100
    for (world, episode, step), row in told.items():
        env = ScriptedWorld(world, 8)
        for _ in range(episode + 1):
            obs, info = env.reset()
        for _ in range(step):
            obs, _, _, _, info = env.step(script(obs[None])[0])
        before = info
        obs, reward, terminated, truncated, info = env.step(script(obs[None])[0])
        np.testing.assert_array_equal(row.next_obs, obs)
        np.testing.assert_array_equal(row.frame, info["frame"])
        np.testing.assert_array_equal(row.obs_frame, before["frame"])
        assert (row.text.item(), row.obs_text.item()) == (info["text"], before["text"])
        assert row.reward == np.float32(reward) and row.step == step
        assert (bool(row.terminated), bool(row.truncated)) == (terminated, truncated)


def test_successors_are_views_where_no_episode_ended():
    envs = SyncVectorEnv([lambda: ScriptedWorld(0, 8)] * N, autoreset_mode=AutoresetMode.SAME_STEP)
    rollout = Rollout(2, envs)
    rollout.begin(*envs.reset())
    for t in range(2):
        rollout.action[t] = script(rollout.obs[t])
        rollout.write(t, slice(0, N), *envs.step(rollout.action[t]))
    batch = rollout.transitions(frozenset({"next_obs"}))
    assert np.shares_memory(batch.next_obs, rollout.obs)


def test_a_step_that_only_resets_truncates_nothing_whatever_the_environment_says():
    envs = SyncVectorEnv([lambda: ScriptedWorld(0, 8)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    rollout, (obs, infos) = Rollout(3, envs), envs.reset()
    rollout.begin(obs, infos)
    no, late = np.zeros(2, bool), np.array([True, False])
    for t, truncations in enumerate((late, late, no)):  # the time limit of the first is over twice in a row
        rollout.action[t] = script(rollout.obs[t])
        rollout.write(t, slice(0, 2), obs, np.zeros(2), no, truncations, {})
    batch = rollout.transitions(frozenset({"next_obs"}))
    assert batch.valid.tolist() == [[True, True], [False, True], [True, True]]
    assert batch.truncated.tolist() == [[True, False], [False, False], [False, False]]


def test_an_environment_that_leaves_resets_to_others_is_refused():
    envs = SyncVectorEnv([lambda: ScriptedWorld(0, 8)], autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match="must reset its environments itself"):
        Rollout(4, envs)
