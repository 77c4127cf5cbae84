# ruff: noqa: NPY002 - global generators are what some of these rewards abuse
"""check_reward lets an honest reward pass and names the rule that a broken one breaks."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rewards.base import Reward, RewardConfig, RunningMeanStd, Scored
from rewards.check import RewardCheckError, check_reward, random_rollout


class Honest(Reward):
    """A random projection of s', less that of a running mean; every broken one extends it."""

    def __init__(self, config, observation_space, action_space, *, seed=0, device="cpu"):
        super().__init__(config, observation_space, action_space, seed=seed, device=device)
        if not isinstance(observation_space, spaces.Box):
            raise ValueError(f"Honest reads a Box, not {observation_space}")
        self.rng = np.random.default_rng(seed)
        self.weights = RunningMeanStd(observation_space.shape)
        self.projection = RunningMeanStd(observation_space.shape)
        self.projection.mean = self.rng.normal(size=observation_space.shape)

    def score(self, batch, memory=None):
        return ((batch.next_obs - self.weights.mean) * self.projection.mean).mean(axis=1).astype(np.float32)

    def update(self, batch):
        batch = batch.flatten()
        self.weights.update(batch.next_obs[batch.valid])
        return {"count": float(self.weights.count)}


class Episodic(Honest):
    """Steps in the episode."""

    def initial_memory(self, n):
        return {"steps": np.zeros(n, np.int64)}

    def score(self, batch, memory=None):
        after = {"steps": memory["steps"] + 1}
        return after["steps"].astype(np.float32), after


def broken(base=Honest, **members):
    return type("Broken", (base,), members)


def test_honest_rewards_pass():
    check_reward(Honest, seeds_differ=True)
    check_reward(Episodic)
    check_reward(Honest(RewardConfig(), spaces.Box(0, 1, (2,)), spaces.Box(-1, 1, (3,))), seeds_differ=True)


def test_a_real_rollout_and_the_reward_handed_in_stay_as_they_were():
    box = spaces.Box(0, 1, (2,))
    reward, rollout = Honest(RewardConfig(), box, spaces.Discrete(2)), random_rollout(box, spaces.Discrete(2), seed=5)
    before = rollout.next_obs.copy()
    check_reward(reward, transitions=rollout)
    assert np.array_equal(rollout.next_obs, before)
    assert reward.weights.count == 0


def test_the_global_generators_are_left_as_they_were():
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    check_reward(Honest)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


def test_frames_are_exchanged_for_the_embedding_that_a_reward_names():
    class Bright(Reward):
        requires = frozenset({"frame"})
        embedding = "brightness"
        frame_size = 8

        def embed(self, batch):
            return batch.frame.mean(axis=(1, 2), dtype=np.float32)

        def score(self, batch, memory=None):
            return batch.extras["brightness"].mean(axis=1)

    check_reward(Bright)


def test_rows_that_are_not_ready_are_allowed():
    def score(self, batch, memory=None):
        return Scored(Honest.score(self, batch), batch.next_obs[:, 0] > 0)

    check_reward(broken(score=score))


# -- deliberately broken rewards: members that replace Honest's, and the words that must come up ----------------------

calls = []


def doubles(self, batch, memory=None):
    return Honest.score(self, batch).astype(np.float64)


def column(self, batch, memory=None):
    return Honest.score(self, batch)[:, None]


def listed(self, batch, memory=None):
    return Honest.score(self, batch).tolist()


def divides_by_zero(self, batch, memory=None):
    with np.errstate(divide="ignore"):
        return Honest.score(self, batch) / np.float32(self.weights.count)


def drifts(self, batch, memory=None):
    calls.append(1)
    return Honest.score(self, batch) + np.float32(len(calls))


def draws(self, batch, memory=None):
    return Honest.score(self, batch) + np.random.rand(*batch.shape).astype(np.float32)


def learns(self, batch, memory=None):
    score = Honest.score(self, batch)
    self.weights.count += 1
    return score


def scribbles(self, batch, memory=None):
    score = Honest.score(self, batch)
    batch.next_obs[:] = 0
    return score


def ranks(self, batch, memory=None):
    return np.arange(len(batch.step), dtype=np.float32)


def centres(self, batch, memory=None):
    score = Honest.score(self, batch)
    return score - score.mean()


def peeks(self, batch, memory=None):
    return Honest.score(self, batch) + batch.action.astype(np.float32)


def halves(self, batch, memory=None):
    return Scored(Honest.score(self, batch), np.ones(2, bool))


def update_returning(value):
    def update(self, batch):
        return value

    return update


def learns_everything(self, batch):
    self.weights.update(batch.flatten().next_obs)
    return {}


def counts_updates(self, batch):
    self.weights.count += 1
    return {}


def hides_state(self, batch):
    if batch.valid.any():
        self.hidden = getattr(self, "hidden", 0) + 1
        self.weights.mean = self.weights.mean + 0.1 * self.hidden
    return {}


def forgets(self):
    return {"rng": self.rng.bit_generator.state}


def remembers(self, state):
    self.rng.bit_generator.state = state["rng"]


def normalises(self, batch):
    batch = batch.flatten()
    rows = batch.next_obs[batch.valid]
    if len(rows):
        with np.errstate(all="ignore"):
            self.weights.mean = rows.mean(axis=0) / rows.std(axis=0)
    return {}


def from_the_clock(self, *args, **kwargs):
    Honest.__init__(self, *args, **kwargs)
    self.projection.mean = np.random.default_rng().normal(size=self.weights.mean.shape)


def from_globals(self, *args, **kwargs):
    Honest.__init__(self, *args, **kwargs)
    self.projection.mean = torch.randn(self.weights.mean.shape).numpy()


def seeds_globals(self, *args, seed=0, **kwargs):
    Honest.__init__(self, *args, seed=seed, **kwargs)
    torch.manual_seed(seed)
    np.random.seed(seed)


def same_for_all(self, *args, **kwargs):
    Honest.__init__(self, *args, **{**kwargs, "seed": 0})


def any_space(self, config, observation_space, action_space, **kwargs):
    space = observation_space if isinstance(observation_space, spaces.Box) else spaces.Box(0, 1, (4,))
    Honest.__init__(self, config, space, action_space, **kwargs)


def no_guard(self, config, observation_space, action_space, **kwargs):
    observation_space.shape[0]
    Honest.__init__(self, config, observation_space, action_space, **kwargs)


def vague(self, config, observation_space, action_space, **kwargs):
    if not isinstance(observation_space, spaces.Box):
        raise ValueError("no")
    Honest.__init__(self, config, observation_space, action_space, **kwargs)


@dataclass(frozen=True)
class Frozen:
    weight: float = 1.0


class Unrelated:
    weight = 1.0


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"score": doubles}, "score returned float64 (24,) for 24 transitions; it must be float32 (24,)"),
        ({"score": column}, "score returned float32 (24, 1)"),
        ({"score": listed}, "score returned a list; it must be a NumPy array of float32"),
        ({"score": divides_by_zero}, "every score must be finite"),
        ({"score": drifts}, "score is not pure: two calls with the same batch differ by 1"),
        ({"score": draws}, "score drew from a global random generator"),
        ({"score": learns}, "score changed state_dict(); only update may move weights and statistics"),
        ({"score": scribbles}, "score wrote into the batch it was given"),
        ({"score": ranks}, "score depends on the order of the rows"),
        ({"score": centres}, "score of a row depends on the other rows"),
        ({"score": peeks}, "score reads action, which requires does not name"),
        ({"score": halves}, "score marks rows as ready with bool (2,)"),
        ({"update": update_returning(None)}, "update returned None; it must be a dict of finite numbers"),
        ({"update": update_returning({"loss": np.ones(2)})}, "it must be a dict of finite numbers"),
        ({"update": update_returning({"loss": float("nan")})}, "it must be a dict of finite numbers"),
        ({"update": learns_everything}, "update learns from rows with valid == False"),
        ({"update": counts_updates}, "update moves its state on a batch without a valid row"),
        ({"update": hides_state}, "a fresh instance that loads state_dict() scores differently after an update"),
        (
            {"state_dict": forgets, "load_state_dict": remembers},
            "a fresh instance that loads state_dict() scores differently;",
        ),
        ({"update": normalises}, "score is not finite after an update on"),
        (
            {"__init__": from_the_clock, "update": update_returning({})},
            "two instances with the same seed score differently",
        ),
        (
            {"__init__": from_globals, "update": update_returning({})},
            "two instances with the same seed score differently",
        ),
        ({"__init__": seeds_globals}, "it seeds a global random generator, which belongs to the run"),
        ({"__init__": any_space}, "built for the space Text(1, 5"),
        ({"__init__": no_guard}, "it met the space Text(1, 5"),
        ({"__init__": vague}, "ValueError: no; raise a ValueError that names it"),
        ({"Config": Frozen}, "Config must be a dataclass that extends RewardConfig"),
        ({"Config": Unrelated}, "Config must be a dataclass that extends RewardConfig"),
        ({"requires": frozenset({"next_ob"})}, "requires names next_ob, which Transitions does not have"),
        ({"role": "extra"}, "role is 'extra'; it must be 'bonus'"),
    ],
    ids=lambda value: (
        next((getattr(v, "__name__", str(v)) for v in value.values()), "") if isinstance(value, dict) else ""
    ),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_broken_reward_is_named(members, words):
    with pytest.raises(RewardCheckError) as error:
        check_reward(broken(**members))
    assert str(error.value).startswith("Broken breaks the contract: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def keeps(self, batch, memory=None):
    memory["steps"] += 1
    return memory["steps"].astype(np.float32), memory


def drops(self, batch, memory=None):
    return (memory["steps"] + 1).astype(np.float32)


def grows(self, batch, memory=None):
    return (memory["steps"] + 1).astype(np.float32), {"steps": np.concatenate([memory["steps"]] * 2)}


def crosses(self, batch, memory=None):
    after = {"steps": memory["steps"] + 1}
    after["steps"][0] += 1
    return memory["steps"].astype(np.float32), after


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"score": keeps}, "score wrote into the memory it was given; return a changed copy instead"),
        ({"score": drops}, "initial_memory returns a memory, so score must return (scores, memory)"),
        ({"score": grows}, "score returned a memory of another form than initial_memory's"),
        ({"score": crosses}, "score mixes the memories of environments"),
        ({"initial_memory": lambda self, n: {"steps": np.zeros(7, np.int64)}}, "leading axis 3"),
    ],
)
def test_a_broken_memory_is_named(members, words):
    with pytest.raises(RewardCheckError) as error:
        check_reward(broken(Episodic, **members))
    assert words in str(error.value)


def test_a_reward_that_ignores_its_seed_is_named_if_it_should_not():
    members = {"__init__": same_for_all, "update": update_returning({})}
    check_reward(broken(**members))
    with pytest.raises(RewardCheckError, match="seeds 0 and 1 give the same scores"):
        check_reward(broken(**members), seeds_differ=True)


def test_what_is_no_reward_is_refused():
    with pytest.raises(RewardCheckError, match=r"neither a class that extends .* nor an instance of one"):
        check_reward(lambda batch: batch.reward)
    with pytest.raises(RewardCheckError, match=r"transitions have shape \(24,\); give a rollout \(T, N\)"):
        check_reward(Honest, transitions=random_rollout(spaces.Box(-1, 1, (4,)), spaces.Discrete(3)).flatten())
