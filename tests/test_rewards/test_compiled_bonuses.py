"""Compiled learning and scores are held to torch's, and chosen where a run is long enough for them."""

import copy
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rewards
from lodestar.numerics import compiled as fallback
from rewards.check import random_rollout
from rewards.exploration import learned
from rewards.exploration.compiled import tape
from rewards.exploration.memories import EllipticalMemory, NeighbourMemory
from rewards.exploration.rnd import RND

# Every worker imports this file, and only one has to import numba.
pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")

BOX = spaces.Box(-np.inf, np.inf, (5,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "several": spaces.MultiDiscrete([3, 2]),
    "box": spaces.Box(-1, 1, (2,), np.float32),
}
CASES = {
    "rnd": ("rnd", {}),
    "rdd": ("rdd", {"replay": 64}),
    "icm": ("icm", {"update_proportion": 0.7}),
    "forward": ("forward", {}),
    "ride": ("ride", {}),
    "e3b": ("e3b", {}),
    "disagreement": ("disagreement", {}),
    "disagreement, all rows": ("disagreement", {"bootstrap": 1.0}),
}
SIZES = {"hidden": 20, "features": 9, "batch_size": 24, "epochs": 2, "learning_rate": 1e-3}


def make(case, path, actions="discrete", **options):
    name, own = CASES[case]
    cls = rewards.get(name)
    return cls(cls.Config(path=path, **{**SIZES, **own, **options}), BOX, ACTIONS[actions], seed=3)


def rollout(seed, actions="discrete"):
    return random_rollout(BOX, ACTIONS[actions], steps=31, envs=2, seed=seed)


def scores(reward, batch):
    if (memory := reward.initial_memory(batch.shape[1])) is not None:
        return reward.scan(batch, memory)[0]
    return reward.score(batch.flatten())


def compare(case, actions="discrete", **options):
    ours, reference = (make(case, path, actions, **options) for path in ("numba", "torch"))
    for seed in range(3):
        batch = rollout(seed, actions)
        np.testing.assert_allclose(scores(ours, batch), scores(reference, batch), rtol=2e-4, atol=2e-5)
        found, expected = ours.update(batch), reference.update(batch)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert int(ours.optimizer.steps) == int(reference.optimizer.steps) > 6
    torch.testing.assert_close(ours.optimizer.value, reference.optimizer.value, rtol=0, atol=2e-5)
    assert ours.rng.random() == reference.rng.random()
    assert not torch.equal(ours.optimizer.value, reference.optimizer.value)  # they did take different paths


@pytest.mark.parametrize("case", CASES)
def test_it_learns_and_scores_as_torch_does(case):
    compare(case)


def learned_bonuses():
    for name in sorted(rewards.names()):
        kind = rewards.get(name)
        if kind.role == "bonus" and issubclass(kind, learned.Learned):
            yield name


@pytest.mark.parametrize("name", [name for name in learned_bonuses() if name not in CASES])
def test_bonuses_that_write_no_tape_of_their_loss_score_as_torch_does_once_a_run_compiles(name):
    kind = rewards.get(name)
    compiled = kind(kind.Config(path="numba"), BOX, ACTIONS["discrete"], seed=3)
    plain = kind(kind.Config(path="torch"), BOX, ACTIONS["discrete"], seed=3)
    for seed in range(2):
        batch = rollout(seed)
        np.testing.assert_allclose(scores(compiled, batch), scores(plain, batch), rtol=1e-3, atol=1e-4)
        compiled.update(batch)
        plain.update(batch)


@pytest.mark.parametrize("actions", ["several", "box"])
def test_actions_of_every_kind_are_predicted_as_in_torch(actions):
    compare("icm", actions)


def test_no_step_is_taken_on_a_loss_that_is_not_finite():
    reward = make("rnd", "numba")
    before = reward.optimizer.value.clone()
    columns = (torch.zeros(24, 5), torch.full((24, 9), float("nan")))
    assert np.isnan(reward.fit(columns)["loss"]) and int(reward.optimizer.steps) == 0
    assert torch.equal(reward.optimizer.value, before)


def test_a_class_that_overrides_the_loss_alone_learns_in_torch():
    class Doubled(RND):
        def loss(self, *columns):
            return {"loss": 2 * super().loss(*columns)["loss"]}

    reward = Doubled(RND.Config(path="numba"), BOX, ACTIONS["discrete"])
    assert reward.compiled.kernel("error") is not None and reward.compiled.kernel("loss") is None


def test_auto_changes_over_after_enough_minibatches_also_when_it_is_continued(monkeypatch):
    whole, first, in_torch = make("rnd", "auto"), make("rnd", "auto"), make("rnd", "torch")
    monkeypatch.setattr(learned, "COMPILE_AFTER_WORK", 8 * len(whole.optimizer.value))
    for seed in range(4):
        if seed == 2:  # after 12 minibatches
            assert first.compiled.kernel() is not None
            state = copy.deepcopy(first.state_dict())
            first = make("rnd", "auto")
            first.load_state_dict(state)
        for reward in (whole, first, in_torch):
            reward.update(rollout(seed))
        same = torch.equal(whole.optimizer.value, in_torch.optimizer.value)
        assert same == (seed < 2) and torch.equal(whole.optimizer.value, first.optimizer.value)


def test_a_short_run_never_asks_for_a_compiler(monkeypatch):
    monkeypatch.setattr(tape, "kernel", lambda *about: pytest.fail("it was asked for"))
    reward = make("icm", "auto")
    reward.update(rollout(0))
    reward.score(rollout(0).flatten())


def test_where_it_cannot_be_compiled_torch_learns_and_it_says_so(monkeypatch):
    fallback.warn_once.cache_clear()
    image = RND(RND.Config(path="numba"), spaces.Box(0, 255, (1, 40, 40), np.uint8), ACTIONS["discrete"])
    with pytest.warns(RuntimeWarning, match=r"runs in torch, as reward\.rnd\.path=numba is for vectors, on the CPU"):
        assert image.compiled.kernel() is None
    monkeypatch.setitem(sys.modules, "numba", None)
    for name in ("rewards.exploration.compiled.kernel", "lodestar.numerics.kernel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    fallback.kernel.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"reward rnd runs in torch \(.*or give another reward\.rnd\.path"):
        assert make("rnd", "numba").update(rollout(0)) == make("rnd", "torch").update(rollout(0))
    fallback.kernel.cache_clear()


@pytest.mark.parametrize("kind", [EllipticalMemory(7, 0.1), NeighbourMemory(20, 7, 3)], ids=lambda kind: kind.compiled)
def test_walks_of_memories_agree_with_numpys(kind):
    rng = np.random.default_rng(0)
    x, valid, ended = rng.normal(size=(90, 3, 7)).astype(np.float32), rng.random((90, 3)) < 0.9, rng.random((90, 3))
    x[5] = x[4]
    (one, kept), start = kind.walk(kind.initial(3), x[:8], valid[:8], ended[:8] < 0), kind.initial(3)
    expected, after = kind.walk(kept, x, valid, ended < 0.03)
    kind.kernel = lambda: fallback.kernel("rewards.exploration.compiled.kernel", "a test", "NumPy")
    ours, own = kind.walk(start, x[:8], valid[:8], ended[:8] < 0)
    found, last = kind.walk(own, x, valid, ended < 0.03)
    for a, b in ((one, ours), (expected, found)):
        np.testing.assert_allclose(b[valid[: len(b)]], a[valid[: len(a)]], rtol=1e-5, atol=1e-6)
    for key, values in after.items():
        np.testing.assert_allclose(last[key], values, rtol=1e-6, atol=1e-6)
    for key, values in kind.initial(3).items():
        assert np.array_equal(start[key], values)  # not written into
