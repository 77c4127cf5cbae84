"""Dyna: every preset learns, rewards are relabelled, runs continue exactly, and divergence is contained."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envs.make
from agents.base import TaskScorer
from agents.dyna.agent import Dyna
from agents.dyna.config import PRESETS, DynaConfig
from agents.dynamics import Predicted
from agents.dynamics.rollout import HorizonSchedule
from agents.off_policy.dqn import DeepQ

pytestmark = pytest.mark.usefixtures("short_fits")
TINY = {
    "model_hidden": [8],
    "model_steps": 20,
    "model_every": 50,
    "learning_starts": 50,
    "batch_size": 16,
    "net_arch": [8],
    "updates_per_step": 1.0,
    "rollouts_per_step": 1.0,
    "rollout": 25,
}
CHEAPER = {
    "pets": {"updates_per_step": 0.0, "plan_candidates": 4, "plan_horizon": 2},
    "sindy": {"members": 3},
    "dhmbpo": {"training_horizon": 2, "distribution_horizon": 3, "updates_per_step": 0.5},
    "coplanner": {"plan_candidates": 2, "plan_horizon": 2},
    "macura": {"horizon": 4},
    "morec": {"horizon": 4},
}


def agent(env="Pendulum-v1", n=1, seed=0, scorer=None, options=None, **changes):
    made = envs.make.make_vec(env, n, seed=seed, backend="auto", **(options or {}))
    return Dyna(made, DynaConfig(**{**TINY, **changes}), scorer=scorer, seed=seed)


def weights(model):
    return torch.cat([x.float().flatten() for x in model.policy.state_dict().values()])


class Flip(TaskScorer):
    """A reward that changes: the task's, and then its negative."""

    is_task, keeps, sign = False, False, 1.0

    def relabel(self, batch):
        return {"task": np.float32(self.sign) * batch.reward}

    def score(self, batch, memory=None):
        return {"task": np.where(batch.valid, np.float32(self.sign) * batch.reward, np.float32(0))}, memory

    def total(self, batch, memory, timesteps):
        return self.score(batch)[0]["task"], memory


class Bright(TaskScorer):
    """A reward for bright pixels."""

    requires, is_task, keeps = frozenset({"frame"}), False, True

    def keep(self, batch, memory):
        return {"frame": batch.frame}, memory

    def relabel(self, batch):
        return {"task": batch.frame.mean((-3, -2, -1), dtype=np.float32) / 255}


@pytest.mark.parametrize("preset", [p for p in PRESETS if p != "factored"])
def test_every_preset_learns_something_on_pendulum(preset):
    model = agent(preset=preset, **CHEAPER.get(preset, {}))
    before = weights(model)
    model.learn(70, log_interval=None)
    assert model.num_timesteps == 70 and model._n_updates == int(21 * model.config.updates_per_step)
    assert not torch.equal(weights(model), before) and bool(weights(model).isfinite().all())
    assert model._restored == 0
    action, _ = model.predict(np.zeros((3, 3), np.float32), deterministic=True)
    assert action.shape == (3, 1) and model.action_space.contains(action[0])


@pytest.mark.parametrize("preset", ["sac", "single", "factored"])
def test_discrete_actions_are_learned_by_dqn(preset):
    world = "lodestar/ButtonGrid-v0" if preset == "factored" else "CartPole-v1"
    model = agent(world, preset=preset, epsilon=0.3, horizon=2)
    before = weights(model)
    model.learn(80, log_interval=None)
    assert isinstance(model.learner, DeepQ) and model.learner.epsilon == pytest.approx(0.3)
    assert not torch.equal(weights(model), before) and bool(weights(model).isfinite().all())
    obs = model.encoding.obs(model.replay.arrays()[0][:7].numpy())
    assert model.predict(obs, deterministic=True)[0].shape == (7,)
    if preset == "factored":
        buffer = model.imagination.buffer.sample(50, 0.99)
        assert set(buffer.next_obs.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_updates_are_counted_by_transitions_of_all_environments(mode):
    made = envs.make.make_vec("Pendulum-v1", 4, autoreset_mode=mode, max_episode_steps=20)
    model = Dyna(made, DynaConfig(**{**TINY, "preset": "sac", "updates_per_step": 0.5}), seed=0)
    model.learn(200, log_interval=None)
    assert model._n_updates == 0.5 * (200 - 48)  # learning starts with the step that makes 52
    means = model.means.read()
    assert model._restored == 0
    assert {"critic_loss", "actor_loss", "q", "alpha"} <= means.keys() and "td" not in means
    if mode == AutoresetMode.SAME_STEP:
        assert len(model.replay) == 200 and len(model.ep_info_buffer) == 8


def test_batches_mix_real_and_imagined_rows_by_the_ratio():
    model = agent(preset="single", real_ratio=0.25, horizon=2)
    model.learn(60, log_interval=None)
    seen = []
    update = model.learner.update
    model.learner.update = lambda rows, actor: seen.append(rows) or update(rows, actor)
    model._update(3)
    known = model.replay.arrays()[2]
    for rows in seen:
        real = (rows.next_obs[:, None] == known[None]).all(-1).any(1)
        assert len(rows.obs) == 16 and real.sum() == 4 and real[:4].all()


def test_the_horizon_grows_along_its_schedule():
    horizon = HorizonSchedule("linear:1:15:20000:150000")
    assert [horizon(t) for t in (0, 20_000, 29_285, 29_286, 85_000, 150_000, 10**6)] == [1, 1, 1, 2, 8, 15, 15]
    assert horizon.longest == 15 and HorizonSchedule(4)(99) == HorizonSchedule("4").longest == 4


def test_rollouts_have_the_length_of_the_schedule():
    model = agent(preset="single", horizon="linear:1:3:0:100", retain=1, learning_starts=100, model_every=100)
    model.learn(100, log_interval=None)
    assert len(model.imagination.buffer) == 100 * 3
    torch.testing.assert_close(model.means.sums["rollout_length"], torch.tensor(3.0))


class Unsure:
    """Members that disagree by 1 + the action; nothing moves."""

    members, differentiable = 2, False

    def step(self, obs, action, *, sample=True, member_predictions=False):
        half = (1 + action).expand_as(obs)
        return Predicted(obs, torch.zeros(len(obs)), None, torch.stack([obs - half, obs + half]))


def test_coplanner_is_curious_in_the_environment_and_careful_in_its_imagination():
    imagination = agent(preset="coplanner", **CHEAPER["coplanner"]).imagination
    imagination.model, imagination.reward_source = Unsure(), lambda obs, action, next_obs, task, *rest: task
    proposed = torch.tensor([-0.5, 0.5])  # by the policy, for each of three states
    imagination._sample = lambda obs, t: (proposed.repeat_interleave(3)[:, None], None)
    obs = torch.zeros(3, 3)
    assert imagination.plan(obs, None).flatten().tolist() == [0.5] * 3
    assert imagination._act(obs, 0)[0].flatten().tolist() == [-0.5] * 3


def test_imagined_rewards_lose_the_penalty_times_its_weight():
    imagination = agent(preset="single", members=2, uncertainty="ens_var", penalty_weight=4.0).imagination
    imagination.model, imagination._sample = Unsure(), lambda obs, t: (torch.ones(2, 1), None)
    imagined = imagination._imagine(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), 1)
    assert imagined.penalty.tolist() == [[4.0 * 3 * 2**2] * 2]  # three numbers, 2 from their mean in either member
    assert imagined.reward.tolist() == [[-48.0] * 2]


def test_plans_are_continued_within_an_episode_and_forgotten_where_one_begins():
    imagination, told = agent(preset="pets", **CHEAPER["pets"]).imagination, []
    planner = imagination.planner
    planner.reset = lambda rows: told.append(rows.tolist())
    planner.plan = lambda rollout, obs, warm: told.append(warm) or setattr(planner, "mean", obs)
    kept = planner.mean = torch.full((2, 1), 7.0)
    imagination.plan(torch.zeros(2, 1), None)  # for unrelated states: the plans stay
    assert told == [False] and planner.mean is kept
    imagination.plan(torch.ones(2, 1), np.array([0, 3]))
    assert told == [False, [True, False], True] and planner.mean is not kept


def test_the_threshold_of_the_filter_is_the_given_one():
    model = agent(preset="morec", filter_threshold=0.25, **CHEAPER["morec"])
    assert float(model.imagination.discriminator.threshold) == 0.25


@pytest.mark.parametrize("relabel", [True, False])
def test_real_and_imagined_rows_are_relabelled_unless_switched_off(relabel):
    scorer = Flip(0.99)
    model = agent(preset="single", scorer=scorer, relabel=relabel)
    model.learn(100, log_interval=None)
    before = model.replay.rows(torch.arange(16)).reward, model.imagination.buffer.table[:16]
    state = copy.deepcopy(model.imagination.buffer.state_dict())
    sampled = model.imagination.buffer.sample(16, 0.99).reward
    scorer.sign = -1.0
    model.imagination.buffer.load_state_dict(state)
    sign = -1 if relabel else 1
    assert before[0].abs().min() > 0 and sampled.abs().min() > 0
    torch.testing.assert_close(model.replay.rows(torch.arange(16)).reward, sign * before[0])
    torch.testing.assert_close(model.imagination.buffer.sample(16, 0.99).reward, sign * sampled)


def test_a_frozen_reward_scores_new_rows_by_what_it_has_learned():
    scorer = Flip(0.99)
    model = agent(preset="sac", scorer=scorer, relabel=False)
    model.learn(75, log_interval=None)
    model.replay.flush()
    scorer.sign = -1.0
    model.learn(25, reset_num_timesteps=False, log_interval=None)
    rows = model.replay.rows(torch.arange(100))
    task = model.replay.arrays()[3]
    torch.testing.assert_close(rows.reward[:75], task[:75])
    torch.testing.assert_close(rows.reward[75:], -task[75:])


def test_a_reward_that_looks_at_pixels_is_learned_by_a_head_with_a_note():
    model = agent(preset="single", scorer=Bright(0.99), options={"frame_size": 8})
    assert model.imagination.reward_source.how == "head" and "frame" in model.notes[0]
    model.learn(60, log_interval=None)
    assert "head_gap" in model.means.sums
    assert model.imagination.buffer.sample(8, 0.99).reward.isfinite().all()


def test_the_tasks_own_reward_needs_no_note():
    assert agent(preset="mbpo").notes == [] and agent(preset="sac").notes == []


@pytest.mark.parametrize(
    "preset",
    [
        *("sac", "single", "dhmbpo", "pets"),
        *(pytest.param(preset, marks=pytest.mark.nightly) for preset in ("macura", "coplanner", "morec")),
    ],
)
def test_a_run_that_is_stopped_continues_to_the_same_numbers(preset):
    options = {"preset": preset, "n": 2, "model_steps": 5, **CHEAPER.get(preset, {})}

    def fresh():
        return agent(**options)

    whole = fresh().learn(76, log_interval=None)
    state, world = copy.deepcopy(whole.get_state()), copy.deepcopy(whole.envs.snapshot())
    whole.learn(50, reset_num_timesteps=False, log_interval=None)
    second = fresh()
    second.set_state(state)
    second.envs.restore(world)
    second.learn(50, reset_num_timesteps=False, log_interval=None)
    assert second.num_timesteps == 126 and second._n_updates == whole._n_updates
    assert torch.equal(weights(second), weights(whole))
    assert torch.equal(second.replay.arrays()[0], whole.replay.arrays()[0])


def test_a_file_brings_the_policy_back(tmp_path):
    model = agent(preset="single").learn(60, log_interval=None)
    model.save(str(tmp_path / "model"))
    loaded = Dyna.load(str(tmp_path / "model"), model.envs)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert np.array_equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    other = agent("MountainCarContinuous-v0").envs
    with pytest.raises(ValueError, match=r"does not fit these environments"):
        Dyna.load(str(tmp_path / "model"), other)


@pytest.mark.parametrize("preset", ["single", "dhmbpo"])
def test_rollouts_that_diverge_are_cut_and_counted(preset):
    model = agent(preset=preset, horizon=5, retain=1, **CHEAPER["dhmbpo"])
    model.learn(60, log_interval=None)
    model.imagination.model.fit = lambda replay: {}
    with torch.no_grad():
        model.imagination.model.net.outputs.scale.fill_(1e30)
    model.learn(60, reset_num_timesteps=False, log_interval=None)
    assert model.means.sums["diverged"] > 0 and model._n_updates == 35
    if preset == "single":
        assert len(model.imagination.buffer) == 0  # and so what happened is learned from alone
    else:
        assert model.imagination.states(50)[0].isfinite().all()
    assert model._restored == 0 and bool(weights(model).isfinite().all())


def test_the_simulator_itself_can_be_the_model():
    model = agent(preset="single", model="true").learn(60, log_interval=None)
    obs, action, next_obs, task, *_ = model.replay.arrays()
    predicted = model.imagination.model.step(obs, action)
    torch.testing.assert_close(predicted.next_obs, next_obs, rtol=0, atol=1e-5)
    torch.testing.assert_close(predicted.reward, task, rtol=1e-5, atol=1e-4)


def test_weights_that_are_nan_are_replaced_by_the_last_finite_ones_three_times():
    model = agent(preset="sac").learn(60, log_interval=None)
    good = {name: x.clone() for name, x in model.learner.actor.state_dict().items()}
    for times in (1, 2):
        model.learner.actor_flat.value.fill_(np.nan)
        model.act()
        assert model._restored == times
        for name, x in model.learner.actor.state_dict().items():
            assert bool(x.isfinite().all()) and x.shape == good[name].shape
    model.learner.actor_flat.value.fill_(np.nan)
    with pytest.raises(FloatingPointError, match=r"became NaN or infinite 3 times in a row.*lower agent.learning_rate"):
        model.act()


def test_a_finite_fit_resets_the_count_of_recoveries():
    model = agent(preset="sac").learn(60, log_interval=None)
    model.learner.critic_flat.value.fill_(np.nan)
    model._fit()
    assert (model._restored, model._restored_in_row) == (1, 1)
    model._fit()
    assert (model._restored, model._restored_in_row) == (1, 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"preset": "best"}, r"agent\.preset='best' is unknown"),
        ({"update": "soft"}, r"agent\.update='soft' is unknown"),
        ({"horizon": 0}, r"agent\.horizon=0 is out of range"),
        ({"horizon": "linear:1:15"}, r"agent\.horizon='linear:1:15' is no horizon"),
        ({"real_ratio": 1.5}, r"agent\.real_ratio=1\.5 is out of range"),
        ({"members": 3, "elites": 4}, r"agent\.elites=4 is out of range; give 1 to 3"),
        ({"update": "svg", "model": "factored"}, r"update=svg needs gradients of the model"),
        ({"update": "svg", "model": "true"}, r"update=svg needs gradients of the model"),
        ({"planner": "upmpc", "members": 1}, r"planner=upmpc compares members, and members=1"),
        ({"planner": "upmpc", "model": "true"}, r"planner=upmpc compares members of model=ensemble or sindy"),
        ({"uncertainty": "loo_kl", "model_kind": "det"}, r"reads each member's deviations"),
        ({"filter": "morec", "members": 1, "model_kind": "det"}, r"filter=morec chooses among outcomes that differ"),
        ({"planner": "cem"}, r"planner=cem has no policy"),
        ({"updates_per_step": 0}, r"updates_per_step=0 leaves the policy as it is"),
        ({"update": "none", "filter": "morec"}, r"update=none imagines nothing"),
        ({"critics": 0}, r"agent\.critics=0"),
        ({"lipschitz": "hard"}, r"agent\.lipschitz='hard' is unknown"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_a_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        DynaConfig(**changes)


def test_what_is_given_wins_over_the_preset_and_the_preset_over_the_defaults():
    config = DynaConfig(preset="dhmbpo", critics=3)
    assert (config.critics, config.update, config.members) == (3, "svg", 5)
    assert DynaConfig().update == "buffer" and DynaConfig(members=7).elites == 5


def test_spaces_it_cannot_take_are_refused_and_another_agent_is_named():
    image = spaces.Box(0, 255, (3, 8, 8), np.uint8)
    with pytest.raises(ValueError, match=r"has images; use agent=world_model"):
        Dyna.check(image, spaces.Discrete(2))
    made = envs.make.make_vec("CartPole-v1", 1)
    for switch in ("update=svg", "planner=cem"):
        changes = {"preset": {"update=svg": "dhmbpo", "planner=cem": "pets"}[switch]}
        with pytest.raises(ValueError, match=rf"agent\.{switch} needs Box actions"):
            Dyna(made, DynaConfig(**changes))


class Lone(gym.Env):
    """Not registered: there is no known rule of its end."""

    observation_space, action_space = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.k = 0
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action):
        self.k += 1
        return self.np_random.normal(size=2).astype(np.float32), 0.0, self.k == 7, False, {}


def test_without_a_known_rule_the_model_learns_the_end_of_episodes():
    made = SyncVectorEnv([Lone], autoreset_mode=AutoresetMode.SAME_STEP)
    model = Dyna(made, DynaConfig(**{**TINY, "preset": "single"}), seed=0)
    assert model.imagination.ends is None
    model.learn(60, log_interval=None)
    assert model.imagination.model.step(torch.zeros(3, 2), torch.zeros(3, 1)).terminated.shape == (3,)
    with pytest.raises(ValueError, match=r"model=true asks the simulator"):
        Dyna(made, DynaConfig(model="true"))


def test_known_rules_of_ending_are_used_with_actions_in_the_environments_range():
    model = agent("CartPole-v1", preset="sac", update="buffer", members=1)
    ends = model.imagination.ends
    obs = torch.tensor([[0.0, 0, 0, 0], [2.5, 0, 0, 0]])
    assert ends(obs, torch.eye(2), obs).tolist() == [False, True]
