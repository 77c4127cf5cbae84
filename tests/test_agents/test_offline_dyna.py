"""Dyna on a recording of random actions on a line: it goes where the reward is, and nothing is stepped."""

import functools

import numpy as np
import pytest
from test_iql import LINE, STICK, batch

from agents.dyna import imagination
from agents.dyna.offline import OfflineDyna, OfflineDynaConfig
from envs.datasets.recordings import RecordedEnvs

SMALL = {"members": 1, "model_hidden": [32], "model_steps": 100, "net_arch": [32], "model_every": 40, "batch_size": 64}
SMALL |= {"rollouts_per_step": 5, "learning_rate": 3e-3, "gamma": 0.8}
PLACES = np.array([[3.0], [7.0]], np.float32)


def walked(n=600):
    """Random steps on a line between 2 and 8, in episodes of ten; rewards say how near the end is to 5."""
    rng = np.random.default_rng(0)
    obs, action = rng.uniform(2, 8, (n, 1)).astype(np.float32), rng.uniform(-2, 2, (n, 1)).astype(np.float32)
    after = np.clip(obs + action, 2, 8)
    return batch(obs, action, -np.abs(after - 5)[:, 0], after, np.zeros(n)).replace(truncated=np.arange(n) % 10 == 9)


def taught(data, signal=None, steps=200, **options):
    agent = OfflineDyna.of(OfflineDynaConfig(**SMALL | options), LINE, STICK, data=data, signal=signal, seed=0)
    return agent.learn(steps)


def test_it_goes_where_the_reward_is_and_a_file_brings_it_back(tmp_path, monkeypatch):
    # One unit of a line needs no thousand steps.
    short = functools.partial(imagination.EnsembleConfig, first_steps=300)
    monkeypatch.setattr(imagination, "EnsembleConfig", short)
    agent = taught(walked())
    assert agent.config.preset == "mopo" and agent.num_timesteps == agent._n_updates == 200
    assert len(agent.replay) == 600 and len(agent.imagination.buffer) > 600
    right = agent.predict(PLACES, deterministic=True)[0][:, 0]
    assert right[0] > 0.5 and right[1] < -0.5
    penalties = agent.imagination.buffer.table[:600, 4]  # what the model is unsure of is worth less
    assert penalties.min() > 0 and penalties.mean() > 0.01
    agent.save(str(tmp_path / "dyna.safetensors"))
    back = OfflineDyna.load(str(tmp_path / "dyna.safetensors"), RecordedEnvs(LINE, STICK))
    np.testing.assert_array_equal(back.predict(PLACES, deterministic=True)[0][:, 0], right)


@pytest.mark.nightly
def test_it_learns_from_the_signal_and_not_from_the_task():
    away = taught(walked(), -walked().reward, preset="mbpo").predict(PLACES, deterministic=True)[0][:, 0]
    assert away[0] < 0 < away[1]


def test_the_simulator_is_no_model_of_a_recording():
    with pytest.raises(ValueError, match=r"agent.model=true asks the simulator, and a recording is all there is"):
        taught(walked(), model="true", preset="mbpo")
