import ast
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.numpy import load_file

import agents
import lodestar as ld
from envs.make import make, make_vec
from runners.evaluate import table
from runners.export import load
from runners.export.__main__ import ExportConfig, compare_actions, export, main, onnx_actions, write_onnx
from runners.export.card import remove_paths
from runners.export.convert import NoForm, convert
from runners.export.policy import Policy
from runners.run.checkpoint import CheckpointError
from runners.run.config import UsageError
from runners.train import main as train

ROWS = 64
TINY = "total_timesteps=128 eval_episodes=2 eval_steps=50 video=false control=none n_envs=2 agent.n_steps=32"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Our PPO on a Box of actions, with normalised observations."""
    folder = tmp_path_factory.mktemp("export") / "run"
    given = ["env=Pendulum-v1", "reward=rnd", "agent.normalize_obs=true", "agent.batch_size=32", f"run_dir={folder}"]
    assert train([*given, *TINY.split()]) == 0
    return folder


class Rooms(gym.Env):
    """Every kind of entry that an observation can have, images with their channels last."""

    observation_space = spaces.Dict(
        {
            "count": spaces.MultiDiscrete([3, 2]),
            "eye": spaces.Box(0, 255, (40, 38, 3), np.uint8),
            "flags": spaces.MultiBinary(3),
            "room": spaces.Discrete(4),
            "speed": spaces.Box(-5, 5, (2, 2), np.float64),
        }
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


gym.register("ExportRooms-v0", Rooms, max_episode_steps=9)


def moved(model, name: str, seed: int = 1):
    """Weights and running statistics a little away from where they are."""
    draw = torch.Generator().manual_seed(seed)
    held = [model.learner.critic, getattr(model.learner, "actor", None)] if name == "dyna" else [model.policy]
    with torch.no_grad():
        if name == "dyna":
            size = model.learner.obs_size
            model.learner.whiten(torch.arange(size) / 10, torch.full((size,), 2.0))
            if hasattr(model.learner.head, "scale"):
                model.learner.head.scale.fill_(2.0)  # as if targets had been seen
        for module in filter(None, held):
            for value in [*module.parameters(), *(b for n, b in module.named_buffers() if n.endswith("ra_mean"))]:
                value += (0.2 if value.shape.numel() > max(value.shape, default=1) else 0.02) * torch.randn(
                    value.shape, generator=draw
                )
    return model


def sampled(space: spaces.Space, seed: int = 3):
    space.seed(seed)
    rows = [space.sample() for _ in range(ROWS)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([row[key] for row in rows]) for key in space.spaces}
    if isinstance(space, spaces.Box) and not space.is_bounded():
        return np.random.default_rng(seed).normal(size=(ROWS, *space.shape)).astype(space.dtype)
    return np.stack(rows)


CASES = [
    ("ppo", "CartPole-v1", {"normalize_obs": True}),
    ("ppo", "ExportRooms-v0", {}),
    ("ppo", "FrozenLake-v1", {"net_arch": [8]}),
    ("ppo", "lodestar/NetHackScore-v0", {"net": "glyphs", "normalize_obs": True}),
    ("sb3_ppo", "Pendulum-v1", {}),
    ("sb3_ppo", "ExportRooms-v0", {}),
    ("a2c", "MiniGrid-Empty-5x5-v0", {}),
    ("dqn", "CartPole-v1", {}),
    ("qrdqn", "CartPole-v1", {}),
    ("sac", "Pendulum-v1", {}),
    ("td3", "Pendulum-v1", {}),
    ("tqc", "Pendulum-v1", {}),
    ("crossq", "Pendulum-v1", {}),
    ("dyna", "Pendulum-v1", {}),
    ("dyna", "CartPole-v1", {"head": "hl_gauss", "norm": "layer", "activation": "silu"}),
    ("dyna", "CartPole-v1", {"head": "two_hot"}),
]


@pytest.mark.parametrize(("name", "env_id", "options"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_an_exported_policy_acts_as_its_agent_does(name, env_id, options, tmp_path):
    model = made(name, env_id, options)
    space = make(env_id).observation_space
    obs = sampled(space)
    for seed in range(50):  # the same action everywhere would prove nothing
        expected = np.asarray(moved(model, name, seed).predict(obs, deterministic=True)[0])
        if np.ptp(expected.reshape(ROWS, -1), axis=0).all():
            break
    else:
        raise AssertionError("the policy cannot be made to look at its observations")
    convert(name, model, space).write(tmp_path, {})
    read = load(tmp_path)
    actions = read.act(obs)
    assert actions.shape == expected.shape
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    one = {key: value[5] for key, value in obs.items()} if isinstance(obs, dict) else obs[5]
    np.testing.assert_allclose(read.act(one), expected[5], atol=1e-5)


def made(name: str, env_id: str, options: dict):
    agent = agents.get(name)
    config = agent.Config(**options)
    if agent.driver == "scorer":
        return agent.build(config, make_vec(env_id, 2, backend="gym"), seed=0, scorer=None)
    from agents.sb3.agent import make_venv

    return agent.build(config, make_venv(env_id, 1, 0), seed=0, device="cpu")


def test_an_agent_with_a_memory_or_a_plan_has_no_form(tmp_path):
    space = make("CartPole-v1").observation_space
    with pytest.raises(NoForm, match=r"agent=ppo with agent.gru acts by a GRU's memory"):
        convert("ppo", made("ppo", "CartPole-v1", {"gru": 8}), space)
    with pytest.raises(NoForm, match=r"agent=recurrent_ppo acts by an LSTM's memory"):
        convert("recurrent_ppo", None, space)


def test_onnxruntime_gives_the_agents_actions_for_real_observations(run, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    import onnxruntime

    from runners.run.build import load_run

    out, checked = export(ExportConfig(run=str(run), out=str(tmp_path / "out")))
    assert [sentence.split(":")[0] for sentence in checked] == ["policy.safetensors", "policy.onnx"]
    assert {path.name for path in out.iterdir()} == {
        *("policy.json", "policy.onnx", "policy.safetensors", "README.md", "checkpoints"),
        *("config.yaml", "result.json", "status.json", "versions.json"),
    }
    model = load_run(run).model
    session = onnxruntime.InferenceSession(str(out / "policy.onnx"), providers=["CPUExecutionProvider"])
    obs = sampled(make("Pendulum-v1").observation_space)
    expected, _ = model.predict(obs, deterministic=True)
    for rows in (slice(0, 1), slice(None)):  # the batch's size is open
        (actions,) = session.run(None, {"obs": obs[rows]})
        assert actions.dtype == np.float32
        np.testing.assert_allclose(actions, expected[rows], atol=1e-5)
    again, _ = export(ExportConfig(run=str(run), out=str(out), format="safetensors"))
    assert not (again / "policy.onnx").exists()  # nothing stale beside what was written now
    (far,) = session.run(None, {"obs": 1e3 * obs})  # clipped inside the graph, to the environment's bounds
    assert np.abs(far).max() <= 2.0


@pytest.mark.nightly
def test_a_graph_takes_every_kind_of_entry_in_its_own_type(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = moved(made("sb3_ppo", "ExportRooms-v0", {}), "sb3_ppo")
    obs = sampled(Rooms.observation_space)
    policy = convert("sb3_ppo", model, Rooms.observation_space)
    write_onnx(policy, tmp_path / "policy.onnx")
    actions = onnx_actions(tmp_path / "policy.onnx", policy, obs)
    assert actions.dtype == np.int64 and actions.shape == (ROWS, 2)
    np.testing.assert_array_equal(actions, model.predict(obs, deterministic=True)[0])


def test_the_file_that_reads_a_policy_needs_nothing_of_this_project():
    import runners.export.policy as module

    tree = ast.parse(Path(module.__file__).read_text())
    named = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {name.split(".")[0] for name in named} - sys.stdlib_module_names == {"numpy", "safetensors", "torch"}


@pytest.mark.nightly
def test_an_exported_policy_needs_none_of_this_project(run, tmp_path):
    out, _ = export(ExportConfig(run=str(run), out=str(tmp_path / "out"), format="safetensors"))
    import runners.export.policy as module

    shutil.copy(module.__file__, tmp_path / "alone.py")
    script = (
        "import sys; from pathlib import Path; import numpy as np; from alone import Policy\n"
        "action = Policy.read(Path('out')).act(np.array([1, 0, 0], np.float32))\n"
        "assert not {'agents', 'envs', 'rewards', 'runners', 'gymnasium', 'pickle5'} & set(sys.modules)\n"
        "print(action.shape, float(action[0]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = float(load(out).act(np.array([1, 0, 0], np.float32))[0])
    assert done.stdout.split(") ")[0] + ")" == "(1,)" and float(done.stdout.split()[-1]) == pytest.approx(expected)


def test_the_card_tells_the_run_and_neither_machine_nor_person(run, tmp_path, capsys):
    assert main([f"run={run}", "format=safetensors", f"out={tmp_path}"]) == 0
    assert "policy.safetensors: at most" in capsys.readouterr().out
    card, told = (tmp_path / "README.md").read_text(), (tmp_path / "policy.json").read_text()
    for word in ("agent.normalize_obs=true", "reward=[task,rnd]", "128 environment steps with seed 0", "task return"):
        assert word in card
    assert "torch" in json.loads(told)["versions"] and json.loads(told)["config"]["agent"]["batch_size"] == 32
    for line in table(json.loads((run / "result.json").read_text())).splitlines():
        assert line in card
    for word in (str(tmp_path), str(run), socket.gethostname(), "/work", "/home", "/tmp"):
        assert word not in card + told


def test_an_exported_run_is_a_run_to_load_and_to_begin_with_and_no_run_to_continue(run, tmp_path, capsys):
    out, checked = export(ExportConfig(run=str(run), out=str(tmp_path / "out"), format="none"))
    assert checked == [] and not (out / "policy.json").exists()
    whole, small = ld.load(run), ld.load(out)
    assert small.figures == whole.figures and small.config.reward == whole.config.reward
    assert small.evaluate(1) == whole.evaluate(1)
    (held,) = (out / "checkpoints").glob("step_*/arrays.safetensors")
    (trained,) = (run / "checkpoints").glob("step_*/arrays.safetensors")
    names = load_file(held)
    assert set(names) < set(load_file(trained)) and {name.split("/")[1] for name in names} == {"agent", "mix"}
    assert {name.split("/")[2] for name in names if name.startswith("/agent")} == {"modules", "observations"}
    for word in (str(tmp_path), str(run), socket.gethostname()):
        assert all(word not in path.read_text() for path in out.glob("*.*"))

    begun = f"env=Pendulum-v1 reward=rnd agent.normalize_obs=true agent.batch_size=32 {TINY} eval_episodes=0".split()
    assert train([*begun, f"init_from={out}", f"run_dir={tmp_path / 'begun'}"]) == 0
    assert f"begins from step 128 of {out}: agent, rnd" in capsys.readouterr().out
    before = sorted(out.rglob("*"))
    assert train([*begun, "total_timesteps=256", f"run_dir={out}"]) == 2
    assert f"is an exported run, which cannot train on; init_from={out} begins" in capsys.readouterr().err
    assert sorted(path for path in out.rglob("*") if path.name != ".lock") == before
    with pytest.raises(UsageError, match=r"is the folder of a run that trained; give another one"):
        ExportConfig(run=str(run), out=str(run))

    damaged = bytearray(held.read_bytes())
    damaged[-1] ^= 1
    held.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"none of 1 checkpoints in .* is whole"):
        ld.load(out).evaluate(1)
    assert "arrays.safetensors is corrupt" in capsys.readouterr().err


def test_paths_and_addresses_are_taken_out_and_sentences_stay():
    assert remove_paths({"a": ["/home/ann/clip.pt", "~/x/y.pt"], "b": "http://judge.inside:8000/v1"}) == {
        "a": ["clip.pt", "y.pt"],
        "b": "<address>",
    }
    assert remove_paths("reward.clip.weights=local-dir:/data/ann/clip") == "reward.clip.weights=local-dir:clip"
    assert remove_paths("clip (potential) / std") == "clip (potential) / std"
    assert remove_paths("lodestar/CartPoleUpright-v0") == "lodestar/CartPoleUpright-v0"
    assert remove_paths(r"C:\Users\ann\clip.pt") == "clip.pt"


def test_what_acts_otherwise_is_refused():
    same = np.zeros((4, 1), np.float32)
    assert (
        compare_actions("x", same, same + np.float32(1e-6))
        == "x: at most 1.0e-06 from the agent's actions in 4 observations"
    )
    with pytest.raises(UsageError, match=r"x is off by up to 0.1 from the agent's actions; nothing is kept"):
        compare_actions("x", same, same + 0.1)
    with pytest.raises(UsageError, match=r"x chooses otherwise than the agent in 1 of 3 observations"):
        compare_actions("x", np.array([0, 1, 1]), np.array([0, 1, 0]))
    with pytest.raises(UsageError, match=r"x is off by up to nan"):
        compare_actions("x", np.full((1, 1), np.nan), np.zeros((1, 1)))


def test_a_memory_is_exported_as_weights_that_say_so_and_never_as_a_graph(tmp_path, capsys):
    folder = tmp_path / "gru"
    given = ["env=CartPole-v1", "agent.gru=8", "agent.batch_size=32", f"run_dir={folder}"]
    assert train([*given, *TINY.replace("eval_episodes=2", "eval_episodes=0").split()]) == 0
    out, checked = export(ExportConfig(run=str(folder), format="safetensors"))
    assert out == folder / "export" and checked[0].startswith("policy.safetensors: weights only")
    with pytest.raises(ValueError, match=r"weights that only their agent can run: agent=ppo with agent.gru"):
        load(out)
    pytest.importorskip("onnxscript")
    capsys.readouterr()
    assert main([f"run={folder}", "format=onnx"]) == 2
    assert "which an ONNX graph of one step cannot hold; give format=safetensors" in capsys.readouterr().err


def test_a_policy_learned_from_a_recording_is_exported_too(tmp_path):
    from agents.offline.iql import IQL, IQLConfig

    env = make("Pendulum-v1")
    model = IQL(IQLConfig(net_arch=[16]), env.observation_space, env.action_space, seed=0)
    with torch.no_grad():
        model.net.mean += 0.1
        model.net.std *= 2
    model.save(str(tmp_path / "iql.safetensors"))
    with pytest.raises(UsageError, match=r"env= is missing"):
        ExportConfig(run=str(tmp_path / "iql.safetensors"))
    given = {"run": str(tmp_path / "iql.safetensors"), "env": "Pendulum-v1", "format": "safetensors"}
    out, checked = export(ExportConfig(**given))
    assert out == tmp_path / "export" and "in 256 observations" in checked[0]
    obs = sampled(env.observation_space)
    np.testing.assert_allclose(load(out).act(obs), model.predict(obs)[0], atol=1e-5)


def test_of_a_cloned_policy_that_acts_in_chunks_the_weights_are_exported(tmp_path):
    from agents.offline.cloning import Cloning, CloningConfig

    env = make("Pendulum-v1")
    Cloning(CloningConfig(net_arch=[8]), env.observation_space, env.action_space).save(str(tmp_path / "a.safetensors"))
    _, checked = export(ExportConfig(run=str(tmp_path / "a.safetensors"), env="Pendulum-v1", format="safetensors"))
    assert "weights only (agent=cloning acts by chunks of actions" in checked[0]


def test_a_folder_without_a_policy_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"holds no exported policy .*; give what runners.export wrote"):
        load(tmp_path)
    (tmp_path / "policy.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match=r"has format 99, this reads format 1; export it again"):
        Policy.read(Path(tmp_path))
