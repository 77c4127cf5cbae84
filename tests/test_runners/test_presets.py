"""Presets: which one applies, what lies on top of it, and that those that ship are settings of something."""

import fnmatch

import pytest

import agents
import rewards
from runners.cli import presets
from runners.cli.compose import compose
from runners.run.config import RECORDING, UsageError

CARTPOLE = "env=CartPole-v1"


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "PRESET_FOLDER", tmp_path)
    (tmp_path / "poles.yaml").write_text(
        "# Poles.\napplies: {env: 'CartPole*', reward: rnd}\nagent: a2c\nagent.n_steps: 9\ntotal_timesteps: 2e4\n"
    )
    (tmp_path / "exact.yaml").write_text("# This one.\napplies: {env: CartPole-v1, reward: rnd}\nagent.n_steps: 11\n")
    (tmp_path / "quick.yaml").write_text(
        "# Short.\ntotal_timesteps: 500\nreward: [task, count]\nreward.count.weight: 0.5\n"
    )


def test_a_preset_applies_by_itself_and_the_user_wins(written):
    config, name = compose(["env=CartPole-v0", "reward=rnd", "agent.n_steps=10"])
    assert (name, config.agent_name, config.agent.n_steps, config.total_timesteps) == ("poles", "a2c", 10, 20_000)


def test_the_most_exact_preset_applies(written):
    assert compose([CARTPOLE, "reward=rnd"])[1] == "exact"
    assert compose([CARTPOLE, "reward=rnd"])[0].agent.n_steps == 11


@pytest.mark.parametrize(
    "given",
    [
        {"env": "CartPole-v0", "reward": "rnd", "preset": "none"},
        {"env": "CartPole-v0", "reward": "rnd", "agent": "dqn"},
        {"env": "CartPole-v0"},
        {"env": "Pendulum-v1", "reward": "rnd"},
    ],
)
def test_a_preset_steps_back(written, given):
    assert presets.choose_presets(given) == []


def test_a_named_preset_gives_way_to_another_reward(written):
    config, name = compose([CARTPOLE, "preset=quick"])
    assert (name, list(config.reward), config.reward["count"].weight) == ("quick", ["task", "count"], 0.5)
    config, _ = compose([CARTPOLE, "preset=quick", "reward=rnd"])
    assert (list(config.reward), config.total_timesteps) == (["task", "rnd"], 500)


def test_every_preset_that_ships_composes():
    for name, preset in presets.all_presets().items():
        patterns = preset["applies"].get("env", "CartPole-v1")
        pattern = patterns[0] if isinstance(patterns, list) else patterns
        env = pattern.replace("MiniGrid-*", "MiniGrid-DoorKey-8x8-v0").replace("*NetHack*", "NetHackScore-v0")
        assert preset["about"], name
        compose([f"env={env}", f"preset={name}"])
        # A section must not be a pattern that nothing it applies to matches.
        for pattern in preset["envs"] if isinstance(patterns, list) else ():
            assert fnmatch.filter(patterns, pattern), (name, pattern)


@pytest.mark.parametrize(("env", "preset", "normalized"), [("Walker2d-v5", "mujoco", True), ("Ant-v5", "ant", False)])
def test_a_preset_applies_to_each_environment_of_its_list(env, preset, normalized):
    config, name = compose([f"env={env}"])
    assert (name, config.agent.normalize_obs, config.total_timesteps) == (preset, normalized, 1_000_000)


@pytest.mark.parametrize(
    ("env", "n_envs", "activation", "falls"), [("HalfCheetah-v5", 1, "relu", False), ("Hopper-v5", 8, "tanh", True)]
)
def test_halfcheetah_has_the_settings_of_the_zoo_and_other_robots_have_ours(env, n_envs, activation, falls):
    config, name = compose([f"env={env}"])
    assert (name, config.n_envs, config.agent.activation, config.agent.anneal) == ("mujoco", n_envs, activation, falls)


@pytest.mark.parametrize(
    ("env", "agent", "preset", "steps"),
    [
        ("Pendulum-v1", "sac", "zoo_sac", 20_000),
        ("Pendulum-v1", "ppo", "pendulum", 100_000),
        ("LunarLander-v3", "dqn", "zoo_dqn", 100_000),
        ("MountainCar-v0", "dqn", "zoo_dqn", 120_000),
    ],
)
def test_an_agent_named_with_its_environment_has_a_preset_of_its_own(env, agent, preset, steps):
    assert compose([f"env={env}"])[0].agent_name == "ppo"
    config, name = compose([f"env={env}", f"agent={agent}"])
    assert (name, config.agent_name, config.total_timesteps) == (preset, agent, steps)


def test_a_bonus_in_minigrid_weighs_what_its_task_can_bear():
    env = "env=MiniGrid-KeyCorridorS3R3-v0"
    for reward in ("noveld", "count"):
        config, name = compose([env, f"reward={reward}"])
        assert (name, config.reward[reward].weight, config.reward[reward].scale) == ("minigrid", 0.03, "return")
        assert config.n_envs == 32
    assert compose([env, "reward=rnd"])[0].n_envs == 16


def test_the_large_doorkey_has_the_steps_that_its_task_needs_and_fewer_with_labels():
    for reward, steps in (("task", 1_000_000), ("oni", 300_000)):
        config, name = compose(["env=MiniGrid-DoorKey-8x8-v0", f"reward={reward}"])
        assert (name, config.total_timesteps, config.n_envs) == ("minigrid", steps, 16)


def test_the_steps_that_a_preset_needs_are_those_of_its_reward_and_not_of_one_on_top(stacked):
    assert presets.needed_steps(["poles", "brief"], "CartPole-v0", "a2c", ["task", "rnd"]) == 20_000
    assert presets.needed_steps(["brief"], "CartPole-v0", "ppo", ["task"]) == 0


META = ["fast", "debug", "paper"]


@pytest.fixture
def stacked(written, tmp_path):
    (tmp_path / "brief.yaml").write_text(
        "# Brief.\non_top: true\ntotal_timesteps: 300\nagents: {a2c: {agent.n_steps: 7}, dqn: {agent.batch_size: 3}}\n"
        "rewards: {rnd: {reward.rnd.hidden: 8}, count: {reward.count.weight: 2}}\n"
    )


def test_a_preset_on_top_changes_what_applies_by_itself(stacked):
    config, name = compose(["env=CartPole-v0", "reward=rnd", "preset=brief"])
    assert name == "poles + brief"
    assert (config.agent_name, config.agent.n_steps, config.total_timesteps) == ("a2c", 7, 300)
    assert config.reward["rnd"].hidden == 8


def test_what_the_user_says_lies_above_all_presets(stacked):
    config, _ = compose(["env=CartPole-v0", "reward=rnd", "preset=brief", "agent.n_steps=5", "total_timesteps=40"])
    assert (config.agent.n_steps, config.total_timesteps) == (5, 40)


def test_a_preset_on_top_speaks_to_the_agent_and_the_rewards_of_the_run_alone(stacked):
    config, name = compose([CARTPOLE, "agent=dqn", "preset=brief"])
    assert (name, config.agent.batch_size, list(config.reward)) == ("brief", 3, ["task"])


@pytest.mark.parametrize("name", META)
@pytest.mark.parametrize("agent", sorted(agents.TABLE))
def test_the_settings_for_every_agent_fit_it(name, agent):
    env = "MiniGrid-Empty-5x5-v0" if agent in ("world_model", "sqirl") else "CartPole-v1"
    env = "Pendulum-v1" if agent in ("sac", "td3", "tqc", "crossq") else env
    arguments = [f"env={env}", f"agent={agent}", f"preset={name}"]
    if agents.get(agent).driver == RECORDING:
        # The environment is the recording's.
        arguments[0] = "data=pendulum"
    compose(arguments)


@pytest.mark.parametrize("name", META)
def test_the_settings_for_every_reward_fit_it(name):
    known = presets.all_presets()[name]["rewards"] or {}
    assert set(known) <= set(rewards.names()) and set(presets.all_presets()[name]["agents"]) <= set(agents.TABLE)
    for reward in known:
        compose(["env=lodestar/CartPoleUpright-v0", f"reward={reward}", f"preset={name}"])


def test_debug_takes_a_thousand_steps_and_fast_less_than_paper():
    steps = {name: compose([CARTPOLE, f"preset={name}"])[0].total_timesteps for name in META}
    assert steps["debug"] == 1000 < steps["fast"] < steps["paper"]


def test_an_unknown_preset_offers_the_nearest():
    with pytest.raises(UsageError, match=r"did you mean debug"):
        compose([CARTPOLE, "preset=debugg"])
