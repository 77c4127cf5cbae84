"""What streams read of a batch is prepared once, and their numbers are those of rewards alone."""

import numpy as np
from gymnasium import spaces

import rewards
from rewards.base import compute_once, sharing
from rewards.check import random_rollout
from rewards.exploration.learned import Layout

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(3)
NAMES = ["task", "rnd", "icm", "ride", "count", "e3b"]


def test_an_array_and_a_key_are_computed_once_as_long_as_it_is_shared():
    rows, calls = np.zeros((4, 2)), []

    def ask(array, key):
        return compute_once(array, lambda: key, lambda: calls.append(key) or len(calls))

    assert [ask(rows, "a"), ask(rows, "a")] == [1, 2]  # not shared
    with sharing():
        assert [ask(rows, "b"), ask(rows.reshape(4, 2), "b"), ask(rows, "b")] == [3, 3, 3]
        assert [ask(rows, "c"), ask(rows[1:], "b"), ask(rows.T, "b"), ask({"x": rows}, "b")] == [4, 5, 6, 7]
        assert ask(np.zeros((4, 2)), "b") == 8 and ask(np.zeros((4, 2)), "b") == 9  # other memory
    assert ask(rows, "b") == 10


def test_a_mix_gives_the_numbers_of_its_rewards_alone(monkeypatch):
    flattened, flatten = [], Layout.flatten
    monkeypatch.setattr(Layout, "flatten", lambda self, obs: flattened.append(1) or flatten(self, obs))
    mix = rewards.make(NAMES, BOX, ACTIONS, seed=5)
    apart = [rewards.make([name], BOX, ACTIONS, seed=5 + 1000 * index) for index, name in enumerate(NAMES)]
    counts = []
    for seed in range(3):
        batch = random_rollout(BOX, ACTIONS, steps=40, envs=3, seed=seed)
        for whole in (True, False):
            flattened.clear()
            if whole:
                raw, _ = mix.score(batch)
                metrics = mix.update(batch, raw)
            else:
                for one in apart:
                    own, _ = one.score(batch)
                    found = one.update(batch, own)
                    for name in one.streams:
                        np.testing.assert_array_equal(raw[name], own[name])
                        assert {key: metrics[key] for key in found if key.startswith(f"{name}/")} == {
                            key: value for key, value in found.items() if key.startswith(f"{name}/")
                        }
            counts.append(len(flattened))
    assert max(counts[::2]) < min(counts[1::2]) / 2
    for one in apart:
        for name, stream in one.streams.items():
            if hasattr(stream.reward, "statistics"):
                np.testing.assert_array_equal(stream.reward.statistics.mean, mix.streams[name].reward.statistics.mean)
