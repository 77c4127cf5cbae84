"""Our PPO: it learns, it can be stopped and continued, it refuses nonsense before it touches a weight."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envs.make
import rewards
from agents.ppo import agent as ppo_agent
from agents.ppo.agent import PPO, PPOConfig

SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "net_arch": [16], "sequence": 8}


def vector(*makers, mode=AutoresetMode.SAME_STEP):
    return SyncVectorEnv(list(makers), autoreset_mode=mode)


def cartpole(n=4, seed=0, **kwargs):
    return envs.make.make_vec("CartPole-v1", n, seed=seed, **kwargs)


def agent(n=4, seed=0, scorer=None, **changes):
    return PPO(cartpole(n), PPOConfig(**{**SMALL, **changes}), scorer=scorer, seed=seed)


def weights(model):
    return model.flat.value.clone()


class Toy(gym.Env):
    """Observations of any space; reward and termination as told."""

    def __init__(self, obs_space, action_space=None, reward=0.0, length=5):
        self.observation_space, self.action_space = obs_space, action_space or spaces.Discrete(2)
        self.reward, self.length, self.k = reward, length, 0

    def _obs(self):
        self.observation_space.seed(self.k)
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        self.k = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.k += 1
        reward = self.reward(self.k) if callable(self.reward) else self.reward
        return self._obs(), reward, self.k == self.length, False, {}


# ------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("path", ["auto", pytest.param("eager", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ["Value", "Observation", "Discount", "Policy", "Joint"])
def test_it_solves_the_probes(name, path):
    made = envs.make.make_vec(f"lodestar/Probe{name}-v0", 8, seed=0)
    config = PPOConfig(n_steps=32, batch_size=64, n_epochs=8, learning_rate=1e-2, gamma=0.5, net_arch=[16], path=path)
    model = PPO(made, config, seed=0).learn(8 * 32 * 15)
    expected = {"Value": [[0, 1]], "Observation": [[-1, -1], [1, 1]], "Discount": [[0, 0.5], [1, 1]]}
    for obs, value in expected.get(name, []):
        got = model.policy(torch.tensor([[float(obs)]]), {})[1].item()
        assert got == pytest.approx(value, abs=0.1)
    for obs, action in {"Policy": [[0, 1]], "Joint": [[-1, 0], [1, 1]]}.get(name, []):
        assert model.predict(np.array([obs], np.float32), deterministic=True)[0] == action


def test_both_paths_learn_the_same_in_the_first_rollouts():
    fast, eager = agent(), agent(path="eager")
    assert type(fast.learner).__name__ == "CompiledUpdate" and type(eager.learner).__name__ == "TorchUpdate"
    for model in (fast, eager):
        model.learn(4 * 16 * 3)
    torch.testing.assert_close(weights(fast), weights(eager), rtol=0, atol=1e-4)


def test_a_reward_of_nothing_but_zeros_moves_no_weight_of_the_policy():
    made = vector(*[lambda: Toy(spaces.Box(-1, 1, (3,), np.float32))] * 4)
    model = PPO(made, PPOConfig(**SMALL), seed=0)
    before = copy.deepcopy(model.policy.state_dict())
    model.learn(4 * 16 * 3)
    for key, value in model.policy.state_dict().items():
        if key.startswith(("pi", "vf")):  # values may learn that there is nothing
            assert torch.equal(value, before[key]) == key.startswith("pi"), key


def test_a_stream_that_pays_nothing_does_not_disturb_one_that_pays():
    def run(names):
        made = cartpole()
        mix = rewards.make(names, made.single_observation_space, made.single_action_space, gamma=0.99, seed=0)
        model = PPO(made, PPOConfig(**{**SMALL, "value_weight": 0.0}), scorer=mix, seed=0)
        with torch.no_grad():
            model.policy.vf_head.weight[0] = torch.linspace(-1, 1, 16)  # the task's value is the same in both
        return model.learn(4 * 16 * 3)

    silent = run({"task": rewards.get("task").Config(), "count": rewards.get("count").Config(weight=0.0)})
    alone = run({"task": rewards.get("task").Config()})
    for one, other in zip(silent.policy.pi.parameters(), alone.policy.pi.parameters()):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_the_learning_rate_falls_to_zero_over_training_and_weights_are_those_of_each_step():
    model, rates, moments = agent(anneal=True, learning_rate=1e-3), [], []
    end, weights_at = model.end_rollout, model.scorer.weights
    model.end_rollout = lambda: rates.append(model.learner.learning_rate) or end()
    model.scorer.weights = lambda timesteps: moments.append(timesteps) or weights_at(timesteps)
    model.learn(4 * 16 * 4)
    assert rates == pytest.approx([0.75e-3, 0.5e-3, 0.25e-3, 0.0])
    rows = next(x for x in moments if np.ndim(x) and x[0, 0] == 64)  # the second rollout's
    assert rows[:, 0].tolist() == list(range(64, 128, 4))


def test_without_a_hidden_layer_it_learns_too():
    model = agent(net_arch=[])
    assert not model.policy.is_mlp and agent(net_arch=[8]).policy.is_mlp
    before = weights(model)
    model.learn(64)
    assert not torch.equal(weights(model), before)


def test_what_the_networks_read_is_what_was_observed():
    model = PPO(envs.make.make_vec("FrozenLake-v1", 4, seed=0), PPOConfig(**SMALL), seed=0).learn(4 * SMALL["n_steps"])
    rollout, vector = model.collector.rollout, model.collector.vector
    assert vector.shape[2] == 16 and len(np.unique(rollout.obs[1:-1])) > 2
    assert np.array_equal(vector[1 : rollout.length].argmax(2), rollout.obs[1:-1]) and (vector.sum(2) == 1).all()


def test_streams_have_values_of_their_own():
    """Value 1 a step until the end of the episode, and the same forever: two heads on one network."""
    made = vector(*[lambda: Toy(spaces.Box(0, 0, (1,), np.float32), spaces.Discrete(1), reward=1.0, length=1)] * 8)

    class Twice:
        requires, relabelable, differentiable = frozenset({"reward"}), True, False
        streams = {
            "ends": type("S", (), {"gamma": 0.5, "episodic": True}),
            "goes_on": type("S", (), {"gamma": 0.5, "episodic": False}),
        }
        initial_memory = staticmethod(lambda n: {})
        embed = staticmethod(lambda batch: batch)
        score = staticmethod(lambda batch, memory: ({"ends": batch.reward, "goes_on": batch.reward}, memory))
        scale_rewards = staticmethod(lambda raw: raw)
        weights = staticmethod(lambda timesteps: {"ends": 1.0, "goes_on": 1.0})
        update = staticmethod(lambda batch, raw, timesteps: {})
        total = staticmethod(lambda batch, memory, timesteps: (batch.reward, memory))

    config = PPOConfig(n_steps=32, batch_size=64, learning_rate=1e-2, net_arch=[16], gae_lambda=0.0)
    model = PPO(made, config, scorer=Twice(), seed=0).learn(8 * 32 * 15)
    np.testing.assert_allclose(model.policy(torch.zeros(1, 1), {})[1].detach()[0], [1.0, 2.0], atol=0.1)


def test_one_value_of_the_sum_is_the_value_of_the_weighted_rewards():
    made = vector(*[lambda: Toy(spaces.Box(0, 0, (1,), np.float32), spaces.Discrete(1), reward=1.0, length=1)] * 8)
    half = {"task": rewards.get("task").Config(weight=0.5), "count": rewards.get("count").Config(weight=0.0)}
    mix = rewards.make(half, made.single_observation_space, made.single_action_space, gamma=0.9, seed=0)
    config = PPOConfig(n_steps=32, batch_size=64, learning_rate=1e-2, net_arch=[16], streams="sum")
    model = PPO(made, config, scorer=mix, seed=0).learn(8 * 32 * 10)
    np.testing.assert_allclose(model.policy(torch.zeros(1, 1), {})[1].detach(), [[0.5]], atol=0.05)


def test_the_sum_of_the_streams_is_taken_step_by_step(monkeypatch):
    given, real = [], ppo_agent.advantages
    monkeypatch.setattr(
        ppo_agent, "advantages", lambda *values: given.append(values[0].rewards.copy()) or real(*values)
    )
    made = vector(*[lambda k=k: Toy(spaces.Box(-1, 1, (1,), np.float32), reward=float(k)) for k in range(4)])
    both = {"task": rewards.get("task").Config(weight=0.5), "count": rewards.get("count").Config(weight=0.0)}
    mix = rewards.make(both, made.single_observation_space, made.single_action_space, gamma=0.9, seed=0)
    PPO(made, PPOConfig(**{**SMALL, "streams": "sum"}), scorer=mix, seed=0).learn(64)
    assert given[0].shape == (16, 4, 1) and (given[0][..., 0] == [0, 0.5, 1, 1.5]).all()


@pytest.mark.nightly
def test_a_recurrent_policy_remembers_what_the_observation_no_longer_shows():
    class Cue(gym.Env):
        """The first observation says which action is right two steps later; nothing else does."""

        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.cue, self.k = int(self.np_random.integers(2)), 0
            return np.array([2.0 * self.cue - 1], np.float32), {}

        def step(self, action):
            self.k += 1
            right = self.k == 3 and action == self.cue
            return np.zeros(1, np.float32), float(right), self.k == 3, False, {}

    made = vector(*[Cue] * 16)
    config = PPOConfig(n_steps=16, batch_size=64, n_epochs=4, learning_rate=1e-2, net_arch=[16], gru=16, sequence=8)
    model = PPO(made, config, seed=0).learn(16 * 16 * 40)
    assert np.mean([e["r"] for e in model.ep_info_buffer]) > 0.9
    state, wins = None, 0
    for episode in range(20):
        obs, _ = (env := Cue()).reset(seed=episode)
        ended, begins = False, True
        while not ended:
            action, state = model.predict(obs, state, np.array([begins]), deterministic=True)
            obs, reward, ended, _, _ = env.step(int(action))
            begins = False
        wins += reward
    assert wins >= 19


# ------------------------------------------------------------------------------------------------------- interface

WHERE = spaces.Box(-1, 1, (2,), np.float32)
SPACES = {
    "image": spaces.Box(0, 255, (3, 40, 40), np.uint8),
    "small image": spaces.Box(0, 255, (3, 7, 7), np.uint8),
    "dict": spaces.Dict({"eye": spaces.Box(0, 255, (1, 12, 12), np.uint8), "where": WHERE}),
    "dict of numbers": spaces.Dict({"kind": spaces.Discrete(3, start=1), "where": WHERE}),
    "discrete": spaces.Discrete(5),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
}  # fmt: skip
CHOICES = {
    "discrete": spaces.Discrete(3, start=1),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(2),
    "box": spaces.Box(-0.01, 0.01, (2,), np.float32),
}


@pytest.mark.parametrize("gru", [0, 8])
@pytest.mark.parametrize("kind", SPACES)
def test_it_reads_every_kind_of_observation(kind, gru):
    made = vector(*[lambda: Toy(SPACES[kind], reward=float)] * 2)
    config = PPOConfig(n_steps=8, batch_size=8, n_epochs=1, net_arch=[8], gru=gru, sequence=4)
    model = PPO(made, config, seed=0)
    before = weights(model)
    model.learn(32)
    assert torch.isfinite(weights(model)).all() and not torch.equal(before, weights(model))
    obs = SPACES[kind].sample()
    action, state = model.predict(obs, deterministic=True)
    assert np.shape(action) == () and (state is None) == (gru == 0)


@pytest.mark.parametrize("kind", CHOICES)
def test_it_takes_every_kind_of_action_and_stays_inside_its_space(kind):
    made = vector(*[lambda: Toy(SPACES["float64"], CHOICES[kind], reward=float)] * 2)  # the toy asserts membership
    model = PPO(made, PPOConfig(n_steps=16, batch_size=8, n_epochs=1), seed=0).learn(64)
    obs = np.stack([SPACES["float64"].sample() for _ in range(5)])
    actions, _ = model.predict(obs)
    assert all(CHOICES[kind].contains(action) for action in actions)


@pytest.mark.parametrize("steps", [2_560, pytest.param(40_000, marks=pytest.mark.nightly)])
def test_rows_that_only_reset_are_neither_counted_nor_learnt_from(steps):
    """NEXT_STEP spends a row on every reset."""
    mean_return = {}
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        made = vector(*[lambda: gym.make("CartPole-v1")] * 4, mode=mode)
        config = PPOConfig(n_steps=64, batch_size=32, n_epochs=4, learning_rate=1e-3)
        model = PPO(made, config, seed=0).learn(steps)
        lengths = [episode["l"] for episode in model.ep_info_buffer]
        returns = [episode["r"] for episode in model.ep_info_buffer]
        assert lengths == returns  # CartPole pays 1 a step
        assert len(returns) > 30
        mean_return[mode] = np.mean(returns)
    if steps > 10_000:
        assert min(mean_return.values()) > 100


class Clock(gym.Env):
    """Shows how many steps it has gone; time runs out after `limit` of them."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, limit):
        self.limit, self.k = limit, 0

    def reset(self, *, seed=None, options=None):
        self.k = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.k += 1
        return np.full(1, self.k, np.float32), 0.0, False, self.k == self.limit, {}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("changes", [{}, {"path": "eager"}, {"gru": 4}], ids=str)
def test_where_time_runs_out_the_value_is_that_of_the_last_observation(changes, mode):
    made = vector(lambda: Clock(3), lambda: Clock(9), mode=mode)
    model = PPO(made, PPOConfig(**{**SMALL, "n_steps": 8, "batch_size": 16, **changes}), seed=0)
    model.begin_rollout()
    collector = model.collector
    assert collector.collect(lambda t: True)
    collector.evaluate()
    ended, continued = collector.last_values[2, 0], collector.values[3, 1]  # both after three steps
    np.testing.assert_allclose(ended, continued, atol=1e-6)
    if mode is AutoresetMode.SAME_STEP:
        assert abs(ended - collector.values[3, 0]) > 1e-3  # not of the next episode's first


def test_rows_that_only_reset_do_not_count_in_the_statistics_of_observations():
    model = agent(n=2, normalize_obs=True, n_steps=2, batch_size=4)
    model.collector.vector[:2] = np.array([[1, 9], [3, 5]], np.float32)[..., None]
    model._update_statistics(model.collector, np.array([[True, False], [True, True]]))
    np.testing.assert_allclose(model.policy.obs_mean, 3.0, atol=1e-3)  # of 1, 3 and 5
    np.testing.assert_allclose(model.policy.obs_scale, (8 / 3) ** -0.5, atol=1e-3)


def test_episode_returns_are_those_the_environment_counted():
    made = cartpole(3)
    counted = []
    step = made.step

    def spy(actions):
        result = step(actions)
        if "final_info" in result[4]:
            said = result[4]["final_info"]["episode"]
            ended = np.flatnonzero(result[2] | result[3])
            counted.extend((float(said["r"][i]), int(said["l"][i])) for i in ended)
        return result

    made.step = spy
    model = PPO(made, PPOConfig(n_steps=40, batch_size=40, n_epochs=1), seed=0).learn(3 * 40 * 6)
    assert [(e["r"], e["l"]) for e in model.ep_info_buffer] == counted and len(counted) > 10


def test_callbacks_of_stable_baselines3_work():
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnMaxEpisodes
    from stable_baselines3.common.env_util import make_vec_env

    model = agent()
    evaluation = EvalCallback(make_vec_env("CartPole-v1"), eval_freq=16, n_eval_episodes=1, verbose=0)
    model.learn(4 * 16 * 2, callback=evaluation)
    assert evaluation.last_mean_reward > 0
    steps = []
    stopped = model.learn(10_000, callback=lambda data, _: steps.append(data["rewards"]) or len(steps) < 20)
    assert stopped.num_timesteps == 4 * 20
    stopped.learn(4 * 16, callback=StopTrainingOnMaxEpisodes(10_000))  # and it goes on afterwards
    assert stopped.num_timesteps == 4 * 16


def test_saved_and_loaded_it_acts_the_same(tmp_path):
    model = agent(normalize_obs=True).learn(4 * 16 * 3)
    model.save(tmp_path / "ppo.safetensors")
    again = PPO.load(tmp_path / "ppo.safetensors", cartpole())
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], again.predict(obs, deterministic=True)[0])
    assert again.config == model.config
    with pytest.raises(ValueError, match="does not fit these environments"):
        PPO.load(tmp_path / "ppo.safetensors", envs.make.make_vec("Acrobot-v1", 4))


# ------------------------------------------------------------------------------------------------ exact repetition


@pytest.mark.parametrize("changes", [{}, {"gru": 8}, {"normalize_obs": True, "anneal": True}], ids=str)
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(changes):
    runs = [weights(agent(seed=seed, **changes).learn(4 * 16 * 3)) for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("changes", [{}, {"gru": 8}, {"path": "eager"}, {"normalize_obs": True}], ids=str)
def test_continued_from_its_state_it_ends_with_the_same_weights(changes):
    def build():
        made = cartpole(2)
        mix = rewards.make(["task", "rnd", "count"], made.single_observation_space, made.single_action_space, seed=0)
        return PPO(made, PPOConfig(**{**SMALL, **changes}), scorer=mix, seed=0)

    whole = build().learn(2 * 16 * 6)
    first = build().learn(2 * 16 * 3)
    state = copy.deepcopy((first.get_state(), first.scorer.state_dict()))
    snapshots = first.envs.call("snapshot")
    second = build()
    second.envs.reset(seed=0)
    for env, snapshot in zip(second.envs.envs, snapshots):
        env.get_wrapper_attr("restore")(snapshot)
    second.set_state(state[0])
    second.scorer.load_state_dict(state[1])
    second.learn(2 * 16 * 3, reset_num_timesteps=False)
    assert torch.equal(weights(second), weights(whole))
    assert list(second.ep_info_buffer) == list(whole.ep_info_buffer)


# -------------------------------------------------------------------------------------------------------- nonsense


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gamma": 1.5}, r"agent.gamma=1.5 is out of range; give a number in \(0, 1\]"),
        ({"gae_lambda": -0.1}, "agent.gae_lambda=-0.1 is out of range"),
        ({"net_arch": [0]}, "agent.net_arch"),
        ({"path": "quick"}, "agent.path='quick' is unknown; give one of auto, numba, numpy, eager"),
        (
            {"batch_size": 48},
            "4 \\* 16 = 64 transitions do not divide into minibatches of agent.batch_size=48; give 64",
        ),
        ({"gru": 8, "sequence": 5}, "agent.n_steps=16 does not divide into sequences of agent.sequence=5; give"),
    ],
)
def test_bad_settings_are_one_sentence_at_construction(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        agent(**changes)


def test_a_reward_without_streams_and_a_stream_without_scores_are_named():
    with pytest.raises(ValueError, match=r"has no streams, or lacks members of .*; give what rewards\.make"):
        agent(scorer="rnd")
    made = cartpole()
    mix = rewards.make(["task", "count"], made.single_observation_space, made.single_action_space, seed=0)
    mix.scale_rewards = lambda raw: {"task": raw["task"]}
    with pytest.raises(ValueError, match="no score for its stream 'count', only for"):
        PPO(made, PPOConfig(**SMALL), scorer=mix).learn(64)


def test_a_reward_that_looks_at_frames_says_so_at_the_first_reset():
    made = cartpole()
    prompts = rewards.get("clip").Config(goal="pole upright", baseline="a pole", weights="untrained")
    mix = rewards.make({"clip": prompts}, made.single_observation_space, made.single_action_space, seed=0)
    with pytest.raises(ValueError, match="the reward 'clip' reads frame"):
        PPO(made, PPOConfig(**SMALL), scorer=mix).learn(64)


@pytest.mark.parametrize(
    ("obs", "action", "sentence"),
    [
        (spaces.Text(5), spaces.Discrete(2), "cannot read observations from Text"),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 5, (2,), np.int64), "cannot choose actions from Box"),
        (spaces.Box(0, 1, (2,)), spaces.Text(5), "cannot choose actions from Text"),
    ],
)
def test_spaces_it_cannot_take_are_named(obs, action, sentence):
    with pytest.raises(ValueError, match=sentence):
        PPO.check(obs, action)


def test_a_loss_that_is_no_number_ends_training_in_a_sentence():
    made = vector(*[lambda: Toy(spaces.Box(-1, 1, (2,), np.float32), reward=3e38)] * 2)
    words = r"the returns became .* no weight has moved"
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match=words):
        PPO(made, PPOConfig(**SMALL), seed=0).learn(200)


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_a_number_that_is_none_is_named_and_moves_no_weight(what):
    class Broken(Toy):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            if self.k == 3:
                obs, reward = (obs * np.nan, reward) if what == "observation" else (obs, np.nan)
            return (obs, reward, *rest)

    space = spaces.Box(-1, 1, (2,), np.float32)
    made = vector(lambda: Toy(space, reward=1.0), lambda: Broken(space, reward=1.0))
    model = PPO(made, PPOConfig(**SMALL), seed=0)
    before = weights(model)
    with pytest.raises(FloatingPointError, match=rf"environment 1 gave the {what} nan at step 2 of its episode"):
        model.learn(100)
    assert torch.equal(weights(model), before)


def test_successes_are_logged_where_there_are_any():
    agent = PPO(vector(lambda: Toy(spaces.Box(-1, 1, (2,)))), PPOConfig(n_steps=32, batch_size=32))
    agent.learn(32, log_interval=None)
    rows = []
    agent.logger.dump = lambda step: rows.append(dict(agent.logger.name_to_value))
    agent.dump_logs()
    agent.ep_success_buffer.extend([True, False])
    agent.dump_logs()
    assert "rollout/success_rate" not in rows[0] and rows[1]["rollout/success_rate"] == 0.5
