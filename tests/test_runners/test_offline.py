"""Learning from a recording and comparisons, in a world where the answer is known: act as the observation says."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import register, registry
from sample import mostly_at_night

from agents.offline.iql import IQL
from envs.recording import save
from runners.offline import OfflineConfig, label_by_judge, load, main, run
from runners.record import main as record
from runners.run.config import UsageError

BOX, TWO = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
FAST = {"net_arch": [16], "learning_rate": 1e-2, "batch_size": 64}


class Obey(gym.Env):
    """Eight steps; doing what the sign of the first number says is worth 1, and the second number shows whether it was.

    `bradley_terry` reads the action and the state it led to, so what was right has to be seen there.
    """

    observation_space, action_space = BOX, TWO

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 8
        return self.look(0.0), {}

    def look(self, reward):
        self.seen = np.array([self.np_random.uniform(-1, 1), reward], np.float32)
        return self.seen

    def step(self, action):
        reward = float(action == (self.seen[0] > 0))
        self.left -= 1
        return self.look(reward), reward, False, self.left == 0, {}


if "Obey-v0" not in registry:
    register("Obey-v0", Obey)


@pytest.fixture
def recorded():
    """Random actions in 100 episodes of 8 steps."""
    from envs.make import make
    from envs.recording import record

    env = make("Obey-v0")
    batch = record(env, None, 800, seed=0)
    env.close()
    return batch


def config(**changes):
    options = {"data": ["x"], "env": "Obey-v0", "queries": 100, "length": 4, "steps": 300, "agent_options": FAST}
    return OfflineConfig(**{**options, **changes})


def record_of(env_id, steps=20):
    from envs.make import make
    from envs.recording import record

    env = make(env_id)
    batch = record(env, None, steps, seed=0)
    env.close()
    return batch


MODEL = {
    "members": 2,
    "model_hidden": [32],
    "net_arch": [32],
    "model_every": 40,
    "batch_size": 64,
    "learning_rate": 3e-3,
}
PLAIN = {"judge": "none", "steps": 200}
ALGORITHMS = {
    "cpl": {"agent_options": {**FAST, "alpha": 1.0}},
    "cpl_kl": {"agent_options": {**FAST, "alpha": 1.0}},
    "recoil": {"agent_options": FAST, "demos": ["good"]},
    "dyna": {"agent_options": MODEL, **PLAIN},
}


@pytest.mark.nightly
def test_a_policy_learned_from_comparisons_does_as_well_as_one_that_was_told_the_rewards(recorded):
    found = run(config(), recorded)
    returns = {name: scores["task_return"] for name, scores in found["arms"].items()}
    assert set(returns) == {"preferences", "true", "cloning", "random", "the data"}
    assert returns["true"] > 7.5 and returns["preferences"] > 7.5
    assert all(3 < returns[name] < 5 for name in ("random", "the data"))
    assert returns["cloning"] < 6
    assert found["labels"]["agreement"] == 1 and found["labels"]["correlation"] > 0.8
    assert found["notes"][0].startswith("labels are synthetic")


def test_the_judge_decides_and_not_the_task(recorded):
    """A teacher who is always wrong teaches the opposite."""
    found = run(config(arms=["preferences"], judge_options={"mistakes": 1.0}), recorded)
    assert found["arms"]["preferences"]["task_return"] < 0.5 and found["labels"]["correlation"] < -0.8


def test_the_command_reads_files_keeps_the_policy_and_prints_a_table(recorded, tmp_path, capsys):
    half = len(recorded.step) // 2
    for name, rows in (("a", slice(0, half)), ("b", slice(half, None))):
        save(tmp_path / f"{name}.safetensors", recorded[rows], {"env": "Obey-v0"})
    arguments = f"data={tmp_path}/a.safetensors,{tmp_path}/b.safetensors queries=20 length=4 steps=20 episodes=2"
    options = f"arms=preferences agent.net_arch=[8] judge.mistakes=0 out={tmp_path}/new/policy.safetensors"
    assert main([*arguments.split(), *options.split()]) == 0
    printed = capsys.readouterr().out
    assert "preferences" in printed and "the data" in printed and "labels 20" in printed
    assert IQL.load(f"{tmp_path}/new/policy.safetensors", BOX, TWO).config.net_arch == [8]


def test_signals_that_were_recorded_are_known_to_heron_by_name(tmp_path, capsys):
    path = tmp_path / "a.safetensors"
    assert record(["env=Pendulum-v1", "steps=400", "signals=true", f"out={path}"]) == 0
    options = f"data={path} judge=heron judge.order=[height,-spin] queries=20 steps=5 episodes=1 arms=preferences"
    assert main(options.split()) == 0
    assert "labels are synthetic: signals of the simulator" in capsys.readouterr().out


def test_recordings_of_different_environments_do_not_mix(recorded, tmp_path):
    for name, env in (("a", "Obey-v0"), ("b", "CartPole-v1")):
        save(tmp_path / name, recorded, {"env": env})
    with pytest.raises(UsageError, match=r"holds recordings of different environments"):
        load([f"{tmp_path}/a", f"{tmp_path}/b"])


def test_a_judge_that_cannot_see_or_does_not_know_is_a_sentence(recorded):
    seeing = config(judge="vlm", judge_options={"goal": "to obey", "model": "tiny"})
    with pytest.raises(UsageError, match=r"the judge vlm reads frame, which the data lacks; record with frames=224"):
        label_by_judge(seeing, recorded, BOX, TWO)
    silent = config(judge_options={"skip": 1.0})
    with pytest.raises(UsageError, match=r"no reward could be learned: .*answered none of 100 pairs"):
        label_by_judge(silent, recorded, BOX, TWO)


def test_a_model_over_http_can_be_the_judge(recorded):
    """It is shown frames whose brightness is the reward, and prefers the brighter one."""
    import json

    from model_server import ModelServer

    def looks(text, images):
        if images:
            return f"verdict {int(images[1].mean() > images[0].mean())}"
        return json.dumps({"answer": int(text.split("verdict ")[1][0])})

    bright = (200 * recorded.reward + recorded.step).astype(np.uint8)
    seen = recorded.replace(frame=np.tile(bright[:, None, None, None], (8, 8, 3)))
    with ModelServer(looks) as server:
        options = {"goal": "to make it bright", "model": "tiny", "url": server.url}
        asked = config(judge="vlm", judge_options=options, length=1, queries=60)
        rewards, metrics, notes = label_by_judge(asked, seen, BOX, TWO)
    assert metrics["correlation"] > 0.7 and len(rewards) == 800
    assert notes == [f"preferences are those of tiny at {server.url}, asked for: to make it bright"]


def test_values_out_of_range_are_refused(capsys):
    for changes, words in [
        ({"arms": ["preferences", "magic"]}, r"arms=.*magic.* is unknown"),
        ({"queries": 0}, r"queries=0 is out of range"),
    ]:
        with pytest.raises(ValueError, match=words):
            config(**changes)
    assert main(["judge=scripted"]) == 2 and "data= is missing; give recordings" in capsys.readouterr().err


def test_every_algorithm_has_its_arms_and_refuses_the_others():
    assert config(algo="dyna", judge="none").arms == ["true", "cloning"]
    assert config(algo="cpl").arms == ["preferences", "cloning"] and config(algo="cloning").arms == ["cloning"]
    assert config(algo="recoil", demos=["pendulum_good"]).arms == ["demos", "cloning"]
    for changes, words in [
        (
            {"algo": "cpl", "arms": ["true"]},
            r"arms=true does not go with algo=cpl and judge=scripted; give preferences or",
        ),
        ({"judge": "none", "arms": ["preferences"]}, r"arms=preferences .* judge=none; give true or cloning"),
        ({"algo": "recoil"}, r"demos=\[\] does not go with algo=recoil; .* as in demos=pendulum_good"),
        ({"demos": ["a"]}, r"demos=\[a\] does not go with algo=iql"),
    ]:
        with pytest.raises(UsageError, match=words):
            config(**changes)


@pytest.mark.parametrize("algo", mostly_at_night(["cpl", "cpl_kl", "recoil", "dyna"], "cpl"))
def test_every_algorithm_obeys_where_cloning_does_not(algo, recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("good", recorded[recorded.reward > 0][:100], {"env": "Obey-v0"})
    found = run(config(algo=algo, **ALGORITHMS[algo]), recorded)
    returns = {name: scores["task_return"] for name, scores in found["arms"].items()}
    assert returns.pop(next(iter(returns))) > 6.5 and (algo == "recoil" or returns["cloning"] < 6)


def test_what_nothing_can_be_learned_from_is_a_sentence(recorded, tmp_path):
    nothing = recorded.replace(reward=np.zeros(800, np.float32))
    same = recorded.replace(obs=np.zeros((800, 2), np.float32), next_obs=np.zeros((800, 2), np.float32))
    for batch, words in [
        (nothing, r"every reward of data=x is 0 and no episode terminates, so that all policies are as good"),
        (same.replace(action=np.zeros(800, int)), r"data=x holds 800 transitions, all of them alike"),
        (recorded.replace(valid=np.zeros(800, bool)), r"data=x holds 0 transitions"),
        (recorded.replace(obs=recorded.obs * np.nan), r"data=x: 1600 numbers are NaN or infinite"),
        (recorded.replace(action=recorded.action + 1), r"data=x: the actions recorded, .* are not those of Obey-v0"),
    ]:
        with pytest.raises(ValueError, match=words):
            run(config(), batch)
    with pytest.raises(UsageError, match=r"option=agent.betta is unknown; did you mean agent.beta"):
        run(config(arms=["true"], agent_options={"betta": 1}), recorded)
    save(tmp_path / "whole", recorded, {"env": "Obey-v0"})
    (tmp_path / "half").write_bytes((tmp_path / "whole").read_bytes()[:20_000])
    with pytest.raises(ValueError, match=r"half is no recording"):
        run(config(data=[f"{tmp_path}/half"], arms=["cloning"]))
    wide = record_of("Pendulum-v1")
    with pytest.raises(ValueError, match=r"data=x: 20 of 20 actions, 9 to 9, are outside Box\(-2.0, 2.0"):
        run(config(env="Pendulum-v1"), wide.replace(action=np.full_like(wide.action, 9)))


def test_files_of_ogbench_are_read_and_say_no_environment(tmp_path, capsys):
    batch = record_of("Pendulum-v1")
    ends = np.arange(20) % 10 == 9
    np.savez(tmp_path / "a.npz", observations=batch.obs, actions=batch.action, terminals=ends)
    line = [f"data={tmp_path}/a.npz", "algo=cloning", "steps=5", "episodes=1", "agent.net_arch=[8]"]
    assert main(line) == 2 and "a.npz does not say where to evaluate" in capsys.readouterr().err
    assert main([*line, "env=Pendulum-v1"]) == 0
    printed = capsys.readouterr().out
    assert "has no rewards: they are 0" in printed and "the data" in printed


def test_a_reward_of_histories_scores_a_recording_along_its_episodes(recorded):
    asked = config(reward_options={"of": "history", "hidden": 16, "members": 2, "epochs": 30})
    rewards, metrics, _ = label_by_judge(asked, recorded, BOX, TWO)
    assert rewards.shape == (800,) and metrics["correlation"] > 0.5
