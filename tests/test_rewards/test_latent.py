"""What whitens the states that rewards compare."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from envs.recording import save
from rewards.check import random_rollout
from rewards.vision.latent import Latent, LatentConfig, Whitened
from rewards.vision.progress import Progress, ProgressConfig


def test_a_million_states_far_from_0_are_whitened_by_their_own_mean_and_deviation():
    """Sums in float32 were off by four deviations."""
    states = np.tile(np.float32([[499.0, 7.0], [501.0, 7.0]]), (500_000, 1))
    whitened = Whitened(2)
    whitened.measure(states)
    assert whitened.mean.tolist() == [500.0, 7.0]
    assert whitened.scale.tolist() == pytest.approx([1.0, 1.0])  # a column that never varies is not divided
    torch.testing.assert_close(whitened.whiten(states[:2]), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))


class FirstNumber(Latent):
    Config = LatentConfig

    def score(self, batch, memory=None):
        return self.states(batch)[:, 0]


def test_two_views_are_embedded_each_by_itself():
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, 256, (2, 3, 64, 64, 3), dtype=np.uint8)
    space = spaces.Box(-1, 1, (2,), np.float32)
    batch = random_rollout(space, spaces.Discrete(2), steps=3, envs=1).flatten()
    batch = batch.replace(frame=np.concatenate([left, right], 2))

    def states(frame, **config):
        reward = FirstNumber(LatentConfig(of="frame", **config), space, spaces.Discrete(2))
        return reward, reward.states(batch.replace(frame=frame))

    both, seen = states(batch.frame, views=2)
    one, first = states(left)
    _, second = states(right)
    np.testing.assert_allclose(seen, np.concatenate([first, second], 1), atol=2e-3)
    assert (both.frame_size, one.frame_size) == (128, 64)
    assert both.embedding != one.embedding
    with pytest.raises(ValueError, match=r"views=2 are parts of a frame; give .*of=frame"):
        LatentConfig(views=2)


def test_progress_is_learned_from_two_views(tmp_path):
    space = spaces.Box(-1, 1, (2,), np.float32)
    batch = random_rollout(space, spaces.Discrete(2), steps=12, envs=1).flatten()
    frame = np.random.default_rng(0).integers(0, 256, (13, 64, 128, 3), dtype=np.uint8)
    never = np.zeros(12, bool)
    batch = batch.replace(
        frame=frame[1:],
        obs_frame=frame[:-1],
        step=np.arange(12),
        valid=~never,
        truncated=never,
        terminated=np.arange(12) == 11,
    )
    save(str(tmp_path / "demos.safetensors"), batch, {"env": "two cameras"})
    config = ProgressConfig(demos=str(tmp_path / "demos.safetensors"), views=2, steps=200)
    reward = Progress(config, space, spaces.Discrete(2))
    rollout = batch.map(lambda x: x[:, None])
    progress, _ = reward.scan(rollout, reward.initial_memory(1))
    # Twelve steps of one episode are learned by heart.
    assert progress[:, 0].tolist() == sorted(progress[:, 0])
    assert progress[-1, 0] > 0.7
