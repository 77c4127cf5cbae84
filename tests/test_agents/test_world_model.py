"""The latent agent: every preset learns, rewards that change are followed, a run can be stopped and continued."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sample import mostly_at_night

import envs.make
from agents.base import TaskScorer
from agents.world_model.agent import WorldModel, WorldModelConfig
from agents.world_model.config import PRESETS
from envs.recording import record, save

TINY = {
    "latent": 16,
    "groups": 4,
    "classes": 4,
    "hidden": 16,
    "embed": 16,
    "horizon": 3,
    "imagine_starts": 16,
    "learning_starts": 30,
    "rollout": 15,
    "burst": 4,
    "refit": 20,
    "buffer_size": 1000,
    "plan_samples": 8,
    "plan_policy": 4,
    "plan_elites": 4,
    "plan_iterations": 2,
}
PLAIN = ("tdmpc2", "mrq")


def config(preset="r2dreamer", **changes):
    batch = {"batch_size": 16, "train_ratio": 4.0}
    if preset not in PLAIN:
        batch = {"batch_size": 4, "batch_length": 6, "train_ratio": 6.0}
    return WorldModelConfig(preset=preset, **{**TINY, **batch, **changes})


def agent(env="MiniGrid-Empty-5x5-v0", preset="r2dreamer", n=2, seed=0, scorer=None, **changes):
    made = envs.make.make_vec(env, n, seed=seed, backend="gym") if isinstance(env, str) else env
    return WorldModel(made, config(preset, **changes), scorer=scorer, seed=seed)


def weights(model):
    return {name: flat.value.clone() for name, flat in model.learner.flats.items()}


class Camera(gym.Env):
    """A bright column in a small image, moved to the left or to the right; reward at the right edge."""

    def __init__(self, side=32):
        self.observation_space = spaces.Box(0, 255, (3, side, side), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.side = side

    def _obs(self):
        image = np.zeros((3, self.side, self.side), np.uint8)
        image[:, :, self.place * 8 : self.place * 8 + 8] = 255
        return image

    def reset(self, *, seed=None, options=None):
        self.place, self.k = 1, 0
        return self._obs(), {}

    def step(self, action):
        self.k += 1
        self.place = int(np.clip(self.place + 2 * action - 1, 0, 3))
        return self._obs(), float(self.place == 3), self.place == 3, self.k == 12, {}


@pytest.mark.parametrize(
    "preset", mostly_at_night([name for name in PRESETS if name != "tdmpc2"], "r2dreamer", "mrq", "drama")
)
def test_every_preset_learns_on_a_grid(preset):
    model = agent(preset=preset)
    before = weights(model)
    model.learn(90)
    assert model.num_timesteps == 90 and model._n_updates >= 12
    for name, value in weights(model).items():
        unused = preset == "mrq" and name in ("actor", "slow_actor")  # actions are enumerated
        assert torch.isfinite(value).all() and torch.equal(value, before[name]) == unused, name


@pytest.mark.parametrize(
    "preset",
    [
        *("r2dreamer", "tdmpc2", "mrq"),
        *(pytest.param(preset, marks=pytest.mark.nightly) for preset in ("drama", "infopower")),
    ],
)
def test_presets_learn_with_continuous_actions(preset):
    model = agent("Pendulum-v1", preset)
    before = weights(model)
    model.learn(70)
    for name, value in weights(model).items():
        assert torch.isfinite(value).all() and not torch.equal(value, before[name]), name
    obs = model.steps.obs
    action, memory = model.predict(obs, deterministic=True)
    assert action.shape == (2, 1) and (np.abs(action) <= 2).all() and {len(part) for part in memory.values()} == {2}
    alone, _ = model.predict(obs[0], deterministic=True)
    assert alone.shape == (1,)


@pytest.mark.parametrize(
    ("preset", "mode"),
    [
        pytest.param("r2dreamer", AutoresetMode.SAME_STEP, marks=pytest.mark.nightly),
        ("dreamer", AutoresetMode.NEXT_STEP),
        ("mrq", AutoresetMode.SAME_STEP),
        pytest.param("mrq", AutoresetMode.NEXT_STEP, marks=pytest.mark.nightly),
    ],
)
def test_it_learns_from_pixels(preset, mode):
    made = SyncVectorEnv([Camera] * 2, autoreset_mode=mode)
    model = agent(made, preset)
    before = weights(model)
    model.learn(70)
    for name in ("model", "reward", "critic"):
        value = weights(model)[name]
        assert torch.isfinite(value).all() and not torch.equal(value, before[name])


def test_nethack_is_read_by_its_parts_and_the_loss_falls():
    model = agent("lodestar/NetHackScore-v0", net="glyphs", learning_starts=60, model_learning_rate=1e-3)
    model.learn(60)
    rows = model.replay.sequences(4, 6)
    with torch.no_grad():
        before = float(sum(model.learner.world.losses(rows)[0].values()))
    for _ in range(15):
        model.learner._fit(rows)
    with torch.no_grad():
        after = float(sum(model.learner.world.losses(rows)[0].values()))
    assert np.isfinite(after) and after < before


class Turning(TaskScorer):
    """The task's reward, until `sign` is turned."""

    is_task = False
    sign = 1.0

    def score(self, batch, memory=None):
        raw, memory = super().score(batch, memory)
        return {"task": self.sign * raw["task"]}, memory

    def relabel(self, batch):
        return self.score(batch)[0]

    def combine(self, raw, timesteps):
        return raw["task"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("preset", "relabel"),
    [
        ("mrq", True),
        ("mrq", False),
        ("r2dreamer", True),
    ],
)
def test_the_head_follows_a_reward_that_turns_round_only_where_rewards_are_relabelled(preset, relabel):
    scorer = Turning(0.99)
    sizes = {"latent": 32, "groups": 8, "classes": 8, "embed": 32, "hidden": 32}
    speed = {"model_learning_rate": 3e-3, "train_ratio": 16.0, "batch_size": 32 if preset == "mrq" else 16}
    model = agent("Pendulum-v1", preset, scorer=scorer, relabel=relabel, refit=60, **sizes, **speed)
    model.learn(250)
    for _ in range(3):
        model.learner.refit(model.replay)
    rows = model.replay.sequences(32, model.learner.length)
    old = model.learner.world.replay_states(rows)

    def scored():
        with torch.no_grad():
            return model.learner.world.reward(old.features, old.action)

    assert torch.corrcoef(torch.stack([scored().flatten(), rows.task.flatten()]))[0, 1] > 0.5
    for _ in range(20):  # as in the middle of a rollout
        action = model._act()
        batch = model.steps.step(action, model.encoding)
        model.replay.add(batch)
        model._recent.append((batch, action))
    model.replay.flush()
    model._usual, refits = model.head_gap(), model.refits
    scorer.sign = -1.0
    assert (model.replay.newest(40).reward.mean() > 0) == relabel
    model._watch_head()
    now = torch.corrcoef(torch.stack([scored().flatten(), rows.task.flatten()]))[0, 1]
    if relabel:
        assert model.refits == refits + 1 and now < -0.3
    else:
        assert model.refits == refits and now > 0.5


def test_rewards_that_see_or_remember_come_with_a_note():
    class Seeing(TaskScorer):
        requires = frozenset({"frame"})

    assert agent().notes == []
    assert "frame" in agent(scorer=Seeing(0.99)).notes[0]


@pytest.mark.parametrize(
    ("preset", "env"),
    [("r2dreamer", "Pendulum-v1"), ("mrq", "Pendulum-v1"), pytest.param("drama", "grid", marks=pytest.mark.nightly)],
)
def test_a_run_continues_exactly_where_it_stopped(preset, env):
    env = "MiniGrid-Empty-5x5-v0" if env == "grid" else env
    whole = agent(env, preset)
    whole.learn(60)
    state, made = copy.deepcopy(whole.get_state()), envs.make.make_vec(env, 2, seed=0, backend="gym")
    part = WorldModel(made, config(preset), seed=7)
    part.set_state(state)
    _continue_environments(whole.envs, made)
    whole.learn(60, reset_num_timesteps=False)
    part.learn(60, reset_num_timesteps=False)
    assert part.num_timesteps == whole.num_timesteps == 120
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(part)[name]), name


def _continue_environments(old, new):
    """The environments of a continued run stand where those of the old one do."""
    new.reset(seed=0)
    new.restore(old.snapshot())


def test_saving_and_loading_keeps_the_actions(tmp_path):
    model = agent(preset="mrq")
    model.learn(40)
    model.save(str(tmp_path / "agent"))
    other = WorldModel.load(str(tmp_path / "agent"), model.envs, seed=5)
    obs = model.steps.obs
    assert (model.predict(obs, deterministic=True)[0] == other.predict(obs, deterministic=True)[0]).all()


def test_what_is_remembered_matters_and_is_emptied_where_episodes_begin():
    model = agent("Pendulum-v1")
    model.learn(60)
    obs = model.steps.obs
    _, memory = model.predict(obs, deterministic=True)
    _, fresh = model.predict(obs, memory, np.array([True, True]), deterministic=True)
    _, carried = model.predict(obs, memory, np.array([True, False]), deterministic=True)
    for name, part in memory.items():
        np.testing.assert_array_equal(fresh[name], part)
        np.testing.assert_array_equal(carried[name][0], part[0])
    assert not np.array_equal(carried["h"][1], fresh["h"][1])


def test_weights_that_are_nan_are_restored_and_in_the_end_refused():
    model = agent()
    model.learn(60)
    good = weights(model)
    for _ in range(2):
        model.learner.flats["actor"].value[0] = torch.nan
        model.update()
        assert all(torch.equal(value, good[name]) for name, value in weights(model).items())
    model.learner.flats["actor"].value[0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"3 times in a row"):
        model.update()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"preset": "dreamerv4"}, r"agent\.preset='dreamerv4' is unknown"),
        ({"gamma": 1.5}, r"agent\.gamma=1\.5 is out of range; give a number in \(0, 1\]"),
        ({"behaviour": "mppi"}, r"needs a latent without memory"),
        ({"cell": "simnorm"}, r"has no KL"),
        ({"cell": "simnorm", "kl": "none"}, r"go together"),
        ({"sampling": "lap"}, r"follows the errors"),
        ({"preset": "mrq", "sampling": "dfs"}, r"balances imagination"),
        ({"empowerment_reward": 0.1}, r"needs what agent\.empowerment trains"),
        ({"preset": "mrq", "batch_length": 4}, r"agent\.batch_length=4"),
        ({"batch_length": 1}, r"nothing to remember"),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        WorldModelConfig(**changes)


def test_elites_may_be_all_plans_those_of_the_policy_too():
    assert config("tdmpc2", plan_samples=8, plan_policy=4, plan_elites=12).plan_elites == 12
    with pytest.raises(ValueError, match=r"agent\.plan_elites=13 of 12 plans; give fewer"):
        config("tdmpc2", plan_samples=8, plan_policy=4, plan_elites=13)


def test_imagination_has_beginnings_of_its_own_where_they_are_balanced():
    model = agent("Pendulum-v1", "drama").learn(60)
    begun = model.replay.sampler.imagined.sum().item()
    assert begun == pytest.approx(4 * model._n_updates) != 0  # 4 sequences for an update, a whole one is 1
    assert model._usual > 0  # the error of the reward head is watched after every rollout


def test_spaces_it_cannot_take_are_refused():
    with pytest.raises(ValueError, match=r"cannot be predicted from"):
        WorldModel.check(spaces.Box(-1, 1, (3,)), spaces.MultiDiscrete([2, 3]))
    with pytest.raises(ValueError, match=r"plans continuous actions"):
        agent(preset="tdmpc2")


@pytest.fixture
def walks(tmp_path):
    """A recording of images: a policy that always moves to the right, 4 episodes of 3 steps (the first column is 1)."""
    batch = record(Camera(), lambda obs, begins: np.ones(len(begins), int), 12, seed=0)
    path = str(tmp_path / "walks.safetensors")
    save(path, batch, {"env": "Camera"})
    return path


@pytest.mark.parametrize("preset", ["mrq", "dreamer"])
def test_demonstrations_of_images_keep_their_share_of_every_batch(preset, walks):
    made = SyncVectorEnv([Camera] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    settings = {"unroll": 2, "n_step": 2} if preset == "mrq" else {"batch_length": 4}
    model = agent(made, preset, demos=walks, demo_share=0.25, **settings)
    seen = []
    draw = model.replay.sequences

    def sequences(*arguments, **options):
        seen.append(draw(*arguments, **options))
        return seen[-1]

    model.replay.sequences = sequences
    model.learn(60)
    assert model._n_updates > 0 and len(model.replay) == 60
    for batch in seen:
        is_demo = batch.index[0] < 0
        assert is_demo.sum() == round(0.25 * batch.action.shape[1])
        # The recording holds the action "right" alone, and the reward of the right edge.
        steps = batch.valid & is_demo
        assert (batch.action[steps][:, 1] == 1).all()
        for image, reward in zip(batch.pixels[""][steps], batch.reward[steps]):
            assert float(reward) == float(image[0, 0].argmax() == 16)


def test_priorities_are_of_the_ring_alone(walks):
    made = SyncVectorEnv([Camera] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    model = agent(made, "mrq", demos=walks, unroll=2, n_step=2).learn(60)
    assert (model.replay.sources["demos"].sampler.sampling, model.replay.sampler.sampling) == ("uniform", "lap")
    sampler = model.replay.sampler
    expected = sampler._priority.clone()
    expected[[3, 5]] = 4.0  # 32 ^ 0.4
    # Half of a batch are demonstrations, which have no priorities.
    model.replay.set_priority(torch.tensor([3, 5, -1, -2]), torch.full((4,), 32.0))
    torch.testing.assert_close(sampler._priority, expected)
    copied = agent(made, "mrq", demos=walks, unroll=2, n_step=2)
    copied.set_state(copy.deepcopy(model.get_state()))
    torch.testing.assert_close(copied.replay.sources["demos"].table, model.replay.sources["demos"].table)


def test_a_recording_shorter_than_a_sequence_is_refused(walks):
    made = SyncVectorEnv([Camera] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match=r"holds 12 transitions, and a sequence of this model 17; record more"):
        agent(made, "dreamer", demos=walks, batch_length=16)
    with pytest.raises(ValueError, match=r"agent.relabel=False keeps old rewards"):
        config(demos=walks, relabel=False)
