# ruff: noqa: NPY002 - global generators are what some of these rewards abuse
"""Deliberately broken rewards, as data: what replaces members of an honest one, and the words that must come up.

python -m tests.broken_rewards      # how many of them `check_reward` catches
"""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces

from rewards.base import Reward, RunningMeanStd, Scored
from rewards.check import RewardCheckError, check_reward


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


class Reader(Honest):
    """The length of a text."""

    requires = frozenset({"text"})

    def score(self, batch, memory=None):
        return np.array([len(text) for text in batch.text], np.float32)

    def update(self, batch):
        return {}


class Recalled(Episodic):
    """Steps in the episode, kept by a replay."""

    recalls = "place"

    def recall(self, batch, memory):
        return Reward.scan(Dropped(self), batch, memory)

    def score(self, batch, memory=None):
        if "place" in batch.extras:
            return batch.extras["place"], memory
        return super().score(batch, memory)


class Dropped:
    """A reward whose score reads no extras."""

    def __init__(self, reward):
        self.initial_memory = reward.initial_memory

    def score(self, batch, memory):
        return Episodic.score(self, batch, memory)


def broken(base=Honest, **members):
    return type("Broken", (base,), members)


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


def remembers_the_size(self, batch):
    """Learns, at each place of a rollout, from what stood there in the one before."""
    before = getattr(self, "before", batch.reward)
    self.before = batch.reward + 0 * before
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


# -- what users wrote, and check_reward did not see


def zeroes_the_batch(self, batch):
    batch.reward[:] = 0
    return Honest.update(self, batch)


def whitens_in_place(self, batch):
    flat = batch.flatten()  # of a flat batch: views
    flat.next_obs[:] -= flat.next_obs.mean(axis=0)
    return {}


def deviates(self, batch):
    rows = batch.flatten().next_obs[batch.flatten().valid]
    if len(rows):
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            self.weights.mean = rows.std(axis=0, ddof=1)
    return {}


def direction(self, batch, memory=None):
    with np.errstate(all="ignore"):
        return (batch.next_obs / np.linalg.norm(batch.next_obs, axis=1, keepdims=True))[:, 0]


def change(self, batch, memory=None):
    away = batch.next_obs - batch.obs
    with np.errstate(all="ignore"):
        return (away / np.linalg.norm(away, axis=1, keepdims=True))[:, 0]


def eight(self, n):
    return {"seen": np.zeros((n, 8), np.float32), "steps": np.zeros(n, np.int64)}


def writes_the_ninth(self, batch, memory=None):
    seen, steps = memory["seen"].copy(), memory["steps"]
    seen[np.arange(len(steps)), steps] = batch.next_obs[:, 0]
    return seen.sum(axis=1), {"seen": seen, "steps": steps + 1}


def doubles_its_memory(self, batch, memory=None):
    with np.errstate(over="ignore"):
        after = {"steps": memory["steps"] * np.float32(10)}
    return after["steps"], after


def float_memory(self, n):
    return {"steps": np.ones(n, np.float32)}


def no_autograd(self, *args, **kwargs):
    Honest.__init__(self, *args, **kwargs)
    torch.set_grad_enabled(False)


def no_autograd_in_score(self, batch, memory=None):
    torch.set_grad_enabled(False)
    return Honest.score(self, batch)


def double_precision(self, *args, **kwargs):
    Honest.__init__(self, *args, **kwargs)
    torch.set_default_dtype(torch.float64)


def many_threads(self, batch):
    torch.set_num_threads(torch.get_num_threads() + 1)
    return Honest.update(self, batch)


def silences_numpy(self, batch):
    np.seterr(all="raise" if np.geterr()["divide"] == "ignore" else "ignore")
    return Honest.update(self, batch)


def coarse_products(self, *args, **kwargs):
    Honest.__init__(self, *args, **kwargs)
    torch.set_float32_matmul_precision("medium")


def about_before(self, batch, memory=None):
    return Honest.score(self, batch.replace(next_obs=batch.obs))


def about_the_text_before(self, batch, memory=None):
    return Reader.score(self, batch.replace(text=batch.obs_text))


def early(self, batch, memory=None):
    return Honest.score(self, batch) / (1 + batch.step).astype(np.float32)


def until_the_end(self, batch, memory=None):
    return np.where(batch.terminated, np.float32(0), Honest.score(self, batch))


def while_time_lasts(self, batch, memory=None):
    return np.where(batch.truncated, np.float32(0), Honest.score(self, batch))


def hashed(self, batch, memory=None):
    return np.array([hash(text) % 97 for text in batch.text], np.float32)


def hashed_bytes(self, batch, memory=None):
    return np.array([hash(row.tobytes()) % 97 for row in batch.next_obs], np.float32)


def hashed_pair(self, batch, memory=None):
    return np.array([hash((text, 3)) % 97 for text in batch.text], np.float32)


def counted_by_hash(self, batch):
    self.weights.mean = np.resize([hash(text) % 97 for text in batch.flatten().text], self.weights.mean.shape) + 0.0
    return {}


def remembers_in_itself(self, batch, memory=None):
    self.seen = getattr(self, "seen", 0) + 1  # no part of state_dict
    return Honest.score(self, batch) + np.float32(self.seen)


def recalls_nothing(self, batch, memory):
    return np.zeros(batch.shape, np.float32), memory


OBS = frozenset({"obs", "next_obs"})
BUGS = [  # base, members, words
    *(
        (Honest, *case)
        for case in [
            ({"score": doubles}, "score returned float64 (24,) for 24 transitions; it must be float32 (24,)"),
            ({"score": column}, "score returned float32 (24, 1)"),
            ({"score": listed}, "score returned a list; it must be a NumPy array"),
            ({"score": divides_by_zero}, "every score must be finite"),
            ({"score": drifts}, "differ by 1; what it remembers of an episode belongs into initial_memory"),
            ({"score": draws}, "score drew from a global random generator"),
            ({"score": learns}, "what is remembered of an episode belongs into initial_memory"),
            ({"score": scribbles}, "score wrote into the batch it was given; change a copy"),
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
            ({"update": normalises}, "after an update on observations of zeros; every score must be finite"),
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
        ]
    ),
    (Episodic, {"score": keeps}, "score wrote into the memory it was given; return a changed copy instead"),
    (Episodic, {"score": drops}, "with initial_memory score must return (scores, memory)"),
    (Episodic, {"score": grows}, "score returned a memory of another form than initial_memory's"),
    (Episodic, {"score": crosses}, "score mixes the memories of environments"),
    (Episodic, {"initial_memory": lambda self, n: {"steps": np.zeros(7, np.int64)}}, "leading axis 3"),
    (Honest, {"update": zeroes_the_batch}, "update wrote into the batch it was given; change a copy"),
    (Honest, {"update": whitens_in_place}, "update wrote into the batch it was given"),
    (Honest, {"update": deviates}, "after an update on a single transition; every score must be finite"),
    (Honest, {"score": direction}, "score returned [nan] for observations of zeros; every score must be finite"),
    (Honest, {"score": change, "requires": OBS}, "score returned [nan] for transitions that change nothing"),
    (Episodic, {"initial_memory": eight, "score": writes_the_ninth}, "an episode of 100 steps ended in IndexError"),
    (Episodic, {"initial_memory": float_memory, "score": doubles_its_memory}, "[inf] in an episode of 100 steps"),
    (Honest, {"__init__": no_autograd}, "building it changed torch.set_grad_enabled, which the whole process shares"),
    (Honest, {"score": no_autograd_in_score}, "score changed torch.set_grad_enabled"),
    (Honest, {"__init__": double_precision}, "building it changed torch.set_default_dtype"),
    (Honest, {"__init__": coarse_products}, "building it changed torch.set_float32_matmul_precision"),
    (Honest, {"update": many_threads}, "update changed torch.set_num_threads"),
    (Honest, {"update": silences_numpy}, "update changed np.seterr"),
    (Honest, {"score": about_before, "requires": OBS}, "score is about obs, not about what the action led to"),
    (
        Reader,
        {"score": about_the_text_before, "requires": frozenset({"text", "obs_text"})},
        "score is about obs, not about what the action led to: next_obs, frame, text",
    ),
    (Honest, {"score": early}, "score reads step, which requires does not name"),
    (Honest, {"score": until_the_end}, "score reads terminated, which requires does not name"),
    (Honest, {"score": while_time_lasts}, "score reads truncated, which requires does not name"),
    (Reader, {"score": hashed}, "another process, where hash() of a text differs; use zlib.crc32"),
    (Reader, {"score": hashed_pair}, "another process, where hash() of a text differs"),
    (Honest, {"score": hashed_bytes}, "another process, where hash() of a text differs"),
    (Honest, {"score": remembers_in_itself}, "belongs into initial_memory, what it learns into update"),
    (Honest, {"update": remembers_the_size}, "update of a rollout of 5 steps in 4 environments ended in ValueError"),
    (Recalled, {"recall": recalls_nothing}, "with the extra 'place' of recall, score otherwise than in order"),
    (Recalled, {"recall": Reward.recall}, "recalls is 'place', but recall is not defined"),
]


def caught(base, members):
    """What `check_reward` says about a broken reward, or None."""
    try:
        with warnings.catch_warnings(action="ignore"):
            check_reward(broken(base, **members))
    except RewardCheckError as error:
        return str(error)
    return None


def tally():
    """The figures."""
    met = sum(words in (caught(*bug) or "") for *bug, words in BUGS)
    return {"check_reward_bugs_caught": met, "check_reward_bugs_tried": len(BUGS)}


if __name__ == "__main__":
    print(tally())
