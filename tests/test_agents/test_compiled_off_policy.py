"""Blocks of compiled updates against torch's, one by one: the same rows and weights, the same numbers."""

import copy
import sys
from importlib.util import find_spec

import pytest
import torch
from test_dyna import agent

from agents.dyna import agent as dyna
from agents.off_policy import compiled
from agents.off_policy.dqn import DeepQ
from agents.off_policy.sac import LearnerConfig, SoftActorCritic
from agents.replay.replay import Rows, interleave

# Every worker imports this file, and only one has to import numba.
pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
KINDS = {"sac": SoftActorCritic, "dqn": DeepQ}


def learner(kind, path, **options):
    options = {"net_arch": [40, 20], **options}
    made = KINDS[kind](7, 3, LearnerConfig(path=path, **options), seed=1)
    made.whiten(torch.full((7,), 0.1), torch.full((7,), 1.3))
    return made


def rows(kind, count):
    draw = torch.Generator().manual_seed(0)
    numbers = [torch.randn(count, *size, generator=draw) for size in ((7,), (3,), (), (7,))]
    action = numbers[1].tanh() if kind == "sac" else torch.nn.functional.one_hot(numbers[1].argmax(-1), 3).float()
    index = torch.arange(count)
    return Rows(numbers[0] * 9, action, *numbers[2:], 0.9 * (numbers[2] < 1).float(), index, index)


def pieces(whole, size):
    return [Rows(*part) for part in zip(*(x.split(size) for x in whole))]


def apart(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(
    "options",
    [{}, {"target": "mean", "critics": 3, "entropy": "0.1"}, {"net_arch": [33], "max_grad_norm": 0.1}],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_updates_move_the_weights_as_torch_does_to_a_millionth(kind, options):
    ours, theirs = (learner(kind, path, **options) for path in ("numba", "torch"))
    ours.fused = theirs.fused = None
    before, whole = ours.critic_flat.value.clone(), rows(kind, 20 * 50)
    found = compiled.updates(ours, whole, 20)
    for part in pieces(whole, 50):
        expected = theirs.update(part)
    for name in ("critic_flat", "actor_flat", "alpha_flat")[: 3 if kind == "sac" else 1]:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert apart(one.value, other.value) < 1e-6
        assert torch.allclose(one.square, other.square, rtol=1e-4, atol=1e-7 * float(other.square.max()))
        assert one.steps == other.steps
    assert apart(ours.target_flat, theirs.target_flat) < 1e-6 and apart(ours.critic_flat.value, before) > 1e-3
    assert torch.equal(ours.generator.get_state(), theirs.generator.get_state())
    # Errors of single rows are for a replay that draws by them, which the compiled path does not take.
    assert found.keys() == expected.keys() - {"td"}
    for name, value in found.items():
        assert float(value) == pytest.approx(float(expected[name]), rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_any_length_and_of_several_parts_end_with_the_same_bits(kind):
    whole, apiece, mixed = (learner(kind, "numba") for _ in range(3))
    given = rows(kind, 6 * 32)
    compiled.updates(whole, given, 6)
    for part in pieces(given, 2 * 32):
        compiled.updates(apiece, part, 2)
    halves = [[Rows(*(x[a:b] for x in part)) for part in pieces(given, 32)] for a, b in ((0, 8), (8, 32))]
    parts = [Rows(*(torch.cat(x) for x in zip(*half))) for half in halves]
    compiled.updates(mixed, interleave(parts, 6), 6)
    assert torch.equal(whole.critic_flat.value, apiece.critic_flat.value)
    assert torch.equal(whole.critic_flat.value, mixed.critic_flat.value)


def test_nan_reaches_the_weights_and_is_not_hidden():
    for kind in KINDS:
        ours, given = learner(kind, "numba"), rows(kind, 40)
        given.next_obs[3] = float("nan")
        compiled.updates(ours, given, 1)
        assert not bool(torch.isfinite(ours.critic_flat.value.sum()))


def test_auto_changes_over_at_the_same_update_when_it_is_continued(monkeypatch):
    monkeypatch.setattr(dyna, "TORCH_UPDATES", 60)
    settings = {"preset": "sac", "learning_starts": 20, "updates_per_step": 1.0, "net_arch": [16]}
    whole, after, in_torch = (agent(**settings, path=path) for path in ("auto", "auto", "torch"))
    in_torch.learn(140)
    whole.learn(60)
    state, world = copy.deepcopy(whole.get_state()), copy.deepcopy(whole.envs.snapshot())
    whole.learn(80, reset_num_timesteps=False)
    after.envs.restore(world)
    after.set_state(state)
    after.learn(80, reset_num_timesteps=False)
    values = [model.learner.critic_flat.value for model in (whole, after, in_torch)]
    assert torch.equal(values[0], values[1]) and not torch.equal(values[0], values[2])
    assert apart(values[0], values[2]) < 1e-2


def test_what_it_does_not_take_is_learnt_in_torch_and_it_says_so(monkeypatch):
    compiled.warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="runs in torch, as agent.path=numba is for plain critics"):
        assert compiled.updates(learner("sac", "numba", norm="layer"), rows("sac", 8), 1) is None
    monkeypatch.setitem(sys.modules, "numba", None)
    for name in ("agents.off_policy.kernel", "lodestar.numerics.kernel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    compiled.kernel.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"torch, at half the speed \(.*pip install 'lodestar-rl\[fast\]'"):
        assert compiled.updates(learner("sac", "numba"), rows("sac", 8), 1) is None
    compiled.kernel.cache_clear()
