"""What whitens the states that rewards compare."""

import numpy as np
import pytest
import torch

from rewards.vision.latent import Whitened


def test_a_million_states_far_from_0_are_whitened_by_their_own_mean_and_deviation():
    """Sums in float32 were off by four deviations."""
    states = np.tile(np.float32([[499.0, 7.0], [501.0, 7.0]]), (500_000, 1))
    whitened = Whitened(2)
    whitened.measure(states)
    assert whitened.mean.tolist() == [500.0, 7.0]
    assert whitened.scale.tolist() == pytest.approx([1.0, 1.0])  # a column that never varies is not divided
    torch.testing.assert_close(whitened.whiten(states[:2]), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
