"""Demonstrations and own best episodes beside a replay: shares, rewards as they are now, bounds, refusals, resume."""

import copy

import numpy as np
import pytest
import torch

import envs.make
import rewards
from agents.base import TaskScorer
from agents.dyna.agent import Dyna
from agents.dyna.config import DynaConfig
from agents.networks.actor_critic import SpaceEncoding
from agents.off_policy.sac import LearnerConfig, SoftActorCritic
from agents.replay.demonstrations import MixedReplay
from envs.recording import load, record, save
from lodestar.numerics.returns import returns
from rewards.base import Reward, RewardConfig
from tests.rollouts import blank

pytestmark = pytest.mark.usefixtures("short_fits")
TINY = {
    **{"model_hidden": [8], "model_steps": 20, "model_every": 50, "learning_starts": 50, "batch_size": 16},
    **{"net_arch": [8], "updates_per_step": 1.0, "rollouts_per_step": 1.0, "rollout": 25},
}


def agent(env="Pendulum-v1", n=1, scorer=None, **changes):
    made = envs.make.make_vec(env, n, seed=0, backend="auto")
    settings = {**TINY, "preset": "sac", "demos": "pendulum_good", **changes}
    return Dyna(made, DynaConfig(**settings), scorer=scorer, seed=0)


def known(rows, batch):
    """Which rows (B,) are transitions of a recording."""
    table = torch.as_tensor(np.concatenate([batch.obs, batch.next_obs], -1))
    mine = torch.cat([rows.obs, rows.next_obs], -1)
    return (mine[:, None] == table[None]).all(-1).any(1)


def test_every_batch_holds_its_share_while_the_ring_is_small():
    model, demos = agent(demo_share=0.25), load("pendulum_good")[0]
    model.learn(60, log_interval=None)
    assert len(model.replay) == 60 and model._n_updates == 11
    seen, update = [], model.learner.update
    model.learner.update = lambda rows, actor: seen.append(rows) or update(rows, actor)
    model._update(3)
    assert [int(known(rows, demos).sum()) for rows in seen] == [4, 4, 4]
    assert len(model.replay.arrays()[0]) == 60 + len(demos.step)
    low, high = model.replay.bounds()
    assert (low.numpy() <= demos.obs.min(0)).all() and (high.numpy() >= demos.obs.max(0)).all()


def test_poured_in_they_are_rows_of_the_ring_and_no_step_of_the_agent():
    model = agent(demo_share=0, n=3)
    count = len(load("pendulum_good")[0].step)
    assert len(model.replay) == count and model.replay.added == model.replay.timesteps == 0
    assert not model.replay.sources and agent(demo_share=0.5).replay.sources["demos"].table.shape[0] == count
    model.learn(60, log_interval=None)
    assert len(model.replay) == count + 60
    with pytest.raises(ValueError, match=r"agent.demos holds 1000 transitions; raise agent.buffer_size=100"):
        agent(demo_share=0, buffer_size=100)


class Patience(Reward):
    """Steps of the episode so far times what it has learned: how often it was updated."""

    Config, requires, updates = RewardConfig, frozenset(), 0

    def initial_memory(self, n):
        return {"steps": np.zeros(n, np.int64)}

    def score(self, batch, memory=None):
        after = {"steps": memory["steps"] + 1}
        return np.float32(after["steps"] * self.updates), after

    def update(self, batch):
        self.updates += 1
        return {}


def test_rewards_that_learn_label_demonstrations_as_they_are_now():
    vector = envs.make.make_vec("Pendulum-v1", 1, seed=0)
    spaces = vector.single_observation_space, vector.single_action_space
    mix = rewards.make({"rnd": {"scale": "none"}, Patience: {"scale": "none"}}, *spaces, seed=0)
    model = agent(scorer=mix, updates_per_step=0.02, demo_share=0.5)
    demos = model.replay.sources["demos"]
    before = demos.rows(torch.arange(50)).reward
    model.learn(1100, log_interval=None)  # the scorer learns every 1,024 rows
    batch = load("pendulum_good")[0][:50]
    raw, _ = mix.score(batch.map(lambda x: x[:, None]))
    assert not model.replay._stale and raw["patience"][:3, 0].tolist() == [1, 2, 3] and (before < 50).all()
    demos.timesteps = model.num_timesteps
    now = demos.rows(torch.arange(50)).reward
    np.testing.assert_allclose(now, mix.combine(raw, model.num_timesteps)[:, 0], rtol=1e-4)


def test_returns_are_sums_that_go_on_where_time_ran_out():
    reward, ends = np.array([[0.0], [1], [0], [0], [1]]), np.array([0, 0, 1, 0, 1], bool)
    tail = np.array([[0.0], [0], [8], [0], [0]])
    assert returns(reward, ends, tail, np.array([0.5])).ravel().tolist() == [1.5, 3, 4, 0.5, 1]


def best(share=0.5):
    """A replay of one environment with episodes (0, 0, 1) and (0, 0), the second without a reward."""
    env = envs.make.make("Pendulum-v1")
    encoding, shares = SpaceEncoding(env.observation_space, env.action_space), {"demo_share": 0.5, "best_share": share}
    replay = MixedReplay(20, 1, encoding, TaskScorer(0.5), gamma=0.5, demos=None, **shares)
    numbers = np.random.default_rng(0).normal(size=(5, 1, 3)).astype(np.float32)
    for t, (reward, step, ended) in enumerate([(0, 0, 0), (0, 1, 0), (1, 2, 1), (0, 0, 0), (0, 1, 1)]):
        flags = {"terminated": np.array([bool(ended)]), "step": np.array([step])}
        rest = {"obs": numbers[t], "next_obs": numbers[t] + 1, "reward": np.array([reward], np.float32)}
        replay.add(blank(1, action=np.zeros((1, 1), np.float32), **rest, **flags))
    return replay


def no_entropy(obs):
    return torch.zeros(len(obs))


def test_a_return_holds_the_entropy_of_later_actions_as_soft_values_do():
    replay = best()
    replay.rescore(lambda obs: torch.zeros(len(obs)), lambda obs: torch.full((len(obs),), -0.2))
    assert replay.bound[:3].tolist() == pytest.approx([0.25 - 0.1 - 0.05, 0.5 - 0.1, 1.0])


def test_the_entropy_of_a_state_is_the_weight_times_that_of_the_policy():
    learner = SoftActorCritic(3, 1, LearnerConfig(entropy=0.5, net_arch=[4]))
    learner.sample = lambda obs: (None, torch.tensor([2.0, -4.0]))
    assert learner.entropy_reward(torch.zeros(2, 3)).tolist() == [-1.0, 2.0]


def test_rewarded_episodes_are_kept_and_their_returns_are_targets_where_they_are_above_the_value():
    replay = best()
    assert len(replay.sources["best"]) == 3 and replay.bound[:4].tolist() == [-torch.inf] * 4
    replay.rescore(lambda obs: torch.full((len(obs),), 100.0), no_entropy)  # it ended: nothing follows
    assert replay.bound[:4].tolist() == [0.25, 0.5, 1.0, -torch.inf]
    rows = replay.sample(40)
    assert (rows.index < 0).sum() == 20 and (rows.index[:10] < 0).sum() == 5
    assert set(rows.index[rows.index < 0].tolist()) == {-1, -2, -3}
    changed = replay.lower_bounds(rows, lambda obs, action: torch.full((len(obs),), 0.3))
    for place, value, follows, old in zip(rows.index, changed.reward, changed.discount, rows.discount):
        bound = {-1: None, -2: 0.5, -3: 1.0}.get(int(place))
        assert (bound is None and follows == old) or (value, follows) == (bound, 0)


def test_with_a_subset_the_actor_ascends_the_mean_of_the_critics():
    learner = SoftActorCritic(3, 1, LearnerConfig(critics=5, subset=2, net_arch=[4]))
    q = torch.arange(5.0)[:, None].expand(5, 7)
    assert float(learner.aggregate(q)[0]) == 2
    drawn = {float(learner.aggregate(q, drawn=True)[0]) for _ in range(60)}
    assert drawn == {0, 1, 2, 3}


def test_targets_are_the_least_of_two_critics_drawn_from_many():
    learner = SoftActorCritic(3, 1, LearnerConfig(critics=5, subset=2, target="mean", net_arch=[4]))
    assert learner.fused is None
    q = torch.arange(5.0)[:, None].expand(5, 7)
    drawn = {float(learner.aggregate(q, drawn=True)[0]) for _ in range(60)}
    assert drawn == {0, 1, 2, 3} and float(learner.aggregate(q)[0]) == 2
    before = learner.actor_flat.value.clone(), learner.critic_flat.value.clone()
    learner.update(best().sample(8), actor=False)
    assert torch.equal(before[0], learner.actor_flat.value)
    assert not torch.equal(before[1], learner.critic_flat.value)


POLE = {"env": "CartPole-v1", "demos": "", "imitate": 0.25}  # where every step is rewarded


@pytest.mark.parametrize(
    "changes",
    [
        POLE,
        pytest.param({"preset": "rlpd", "critics": 3}, marks=pytest.mark.nightly),
        pytest.param({"demo_share": 0.0}, marks=pytest.mark.nightly),
        pytest.param({"preset": "single", **POLE}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_a_run_with_demonstrations_continues_exactly(changes):
    def build():
        return agent(n=2, **changes)

    whole = build().learn(150, log_interval=None)
    state, world = copy.deepcopy(whole.get_state()), copy.deepcopy(whole.envs.snapshot())
    whole.learn(50, reset_num_timesteps=False, log_interval=None)
    second = build()
    second.set_state(state)
    second.envs.restore(world)
    second.learn(50, reset_num_timesteps=False, log_interval=None)
    assert "imitate" not in changes or len(whole.replay.sources["best"]) > 0
    for key, value in whole.policy.state_dict().items():
        assert torch.equal(value, second.policy.state_dict()[key]), key


def test_discrete_actions_and_models_learn_from_demonstrations(tmp_path):
    batch = record(envs.make.make("CartPole-v1"), None, 60, seed=0)
    save(tmp_path / "demos.safetensors", batch, {"env": "CartPole-v1"})
    for preset in ("sac", "rlpd", "single"):
        model = agent("CartPole-v1", demos=str(tmp_path / "demos.safetensors"), preset=preset, imitate=0.2)
        model.learn(70, log_interval=None)
        assert model._n_updates >= 21 and len(model.replay.sources["best"]) > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"obs": np.zeros((20, 2), np.float32)}, r"agent\.demos=.*: the observations recorded, of shape \(2,\)"),
        ({"action": np.full((20, 1), 5, np.float32)}, r"agent\.demos=.*: 20 of 20 actions, 5 to 5, are outside Box"),
        ({"reward": np.full(20, np.nan, np.float32)}, r"agent\.demos=.*: 20 numbers are NaN or infinite; leave those"),
        ({"valid": np.zeros(20, bool)}, r"agent\.demos=.* holds 0 transitions; record at least 10"),
    ],
)
def test_recordings_that_do_not_fit_are_one_sentence_at_construction(tmp_path, change, sentence):
    batch = load("pendulum_good")[0][:20].replace(**change)
    save(tmp_path / "demos.safetensors", batch.replace(next_obs=batch.obs) if "obs" in change else batch, {})
    with pytest.raises(ValueError, match=sentence):
        agent(demos=str(tmp_path / "demos.safetensors"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"demos": "nowhere"}, r"agent\.demos='nowhere' is no file"),
        ({"relabel": False}, r"agent\.relabel=False keeps old rewards"),
        ({"imitate": 0.5}, r"agent\.imitate=0\.5 needs .* less than 1 in sum with demo_share=0\.5"),
        ({"demo_share": 1.0}, r"agent\.demo_share=1\.0 is out of range"),
        ({"subset": 3}, r"agent\.subset=3 needs as many agent\.critics, not 2"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        agent(**changes)


def test_a_reward_that_reads_what_the_recording_lacks_is_refused():
    class Bright(TaskScorer):
        requires, is_task, keeps = frozenset({"frame"}), False, True

    with pytest.raises(ValueError, match=r"agent\.demos=pendulum_good lacks frame, which the reward reads"):
        agent(scorer=Bright(0.99))
