"""What a run's folder, a preset or a recording from elsewhere may name."""

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.house import ROOT
from runners.cli.compose import compose
from runners.run.config import UsageError, from_dict, to_dict
from runners.run.trust import require, saved_keys

HIGHWAY = "highway_env.vehicle.behavior.AggressiveVehicle"
PIECES = ("evil", "evil-world", "evil world", "3vil", "évil", "x+y", "class", "e,v", "a;b", "$a", "日本", "_", "e%41")


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder on the path; the modules that were imported from it are forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_no_name_that_import_module_accepts_gets_through_without_trust(beside):
    rng = np.random.default_rng(0)
    names = [[f"{rng.choice(PIECES)}{i}", *rng.choice(PIECES, rng.integers(3))] for i in range(60)]
    for parts in names:
        folder = beside.joinpath(*parts[:-1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{parts[-1]}.py").write_text("def Car(*arguments): ...\n")
    importlib.invalidate_caches()
    for parts in names:
        name = ".".join(parts)
        for key, value in (
            ("env", f"{name}:CartPole-v1"),
            ("env.module", name),
            ("env.maker", f"{name}:Car"),
            ("env.config", {"other_vehicles_type": [{"deep": f"{name}.Car"}]}),
            ("env.config", {f"{name}.Car": 1}),
        ):
            with pytest.raises(UsageError, match="add trust=true"):
                require(False, "run=x", {key: value})
        importlib.import_module(name)  # it is one, indeed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"env": "stranger.world:X-v0"}, r"env=stranger\.world:X-v0, which imports the module stranger\.world"),
        ({"env": "run.evil-world:X-v0"}, "imports the module run.evil-world"),
        ({"env": "a:b:X-v0"}, "imports the module a:b"),
        (
            {"env.config": {"type": "run.evil-world.Car"}},
            "the name run.evil-world.Car, which an environment may import",
        ),
        ({"env.world": "stranger:make"}, "the name stranger:make"),
        ({"env.options": ["a", {"b": "../../x"}]}, r"the name \.\./\.\./x"),
        ({"env.savedir": "here"}, "the file here, which would be written to"),
        ({"reward.oni.judge_options": {"url": "https://example.com/v1"}}, "a server at https://example.com/v1"),
        ({"reward.oni.judge_options": {"url": "http://localhost@example.com/v1"}}, "a server at"),
        ({"reward.oni.judge_options": {"url": "http://localhost\\@example.com"}}, "a server at"),
        ({"reward.oni.judge_options": {"url": " http://example.com"}}, "a server at"),
        ({"reward.guidance.url": "http://localhost:1/v1"}, "a server at http://localhost:1/v1, .* a key of yours"),
        ({"reward.guidance.key": "OPENAI_API_KEY2"}, "the variable OPENAI_API_KEY2, which would be sent"),
        ({"reward.oni.cache": "thesis"}, "the file thesis, which would be written to"),
        ({"reward.clip.weights": "pyproject.toml"}, "the file pyproject.toml, which would be read"),
        ({"reward.clip.weights": "/dev/zero"}, "/dev/zero"),
        ({"reward.clip.model": "hf-hub:me/it"}, "hf-hub:me/it, which may be a file or a server"),
        ({"reward": ["task", "evil:Reward"]}, "reward=evil:Reward"),
        ({"agent": "evil:Agent"}, "agent=evil:Agent"),
        ({"agent.policy": "evil.Policy"}, r"agent\.policy=evil\.Policy"),
        ({"starts": "secret"}, "starts=secret, a file which would be read"),
        ({"starts": "teacher:clusters=1"}, "starts=teacher:clusters=1, a file which would be read"),
        ({"run_dir": "elsewhere"}, "run_dir=elsewhere, where it would write"),
        ({"trust": True}, "which belongs on a command line"),
    ],
)
def test_a_file_that_reaches_out_needs_trust(values, words, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    monkeypatch.setenv("OPENAI_API_KEY2", "sk-0123456789")
    with pytest.raises(UsageError, match=rf"preset=x names .*{words}.*; add trust=true if it is yours"):
        require(False, "preset=x", values)
    require(True, "preset=x", values)


def test_what_is_built_in_declared_or_mere_words_needs_no_trust(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    local = {"judge_options": {"url": "http://localhost:8000/v1", "model": "qwen2.5-7b"}, "goal": "it stands. Upright"}
    saved = {
        "env": "CartPole-v1",
        "env_options": {"sticky": 0.25, "noisy_tv": "on_demand", "number": "1e-3", "config": {"type": HIGHWAY}},
        "reward": {"oni": local, "clip": {"model": "lodestar", "weights": ""}, "rnd": {"weight": "linear:1:0:1e5"}},
        "agent": {"name": "ppo", "net_arch": [64, 64], "horizon": "linear:1:15:20000:150000"},
        "root": "/home/of/its/author/runs",  # a saved run is not written to
        "starts": "variance",
    }
    require(False, "run=x", saved_keys(saved))
    with pytest.raises(UsageError, match="starts=secret, a file which would be read"):
        require(False, "run=x", saved_keys({**saved, "starts": "secret"}))
    for env in ("json:CartPole-v1", "highway_env:highway-v0", "minigrid:MiniGrid-Empty-5x5-v0"):
        require(False, "run=x", {"env": env})


def test_every_default_of_every_reward_needs_no_trust(monkeypatch):
    import rewards

    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    for name in rewards.TABLE:
        options = vars(rewards.get(name).Config())
        require(False, name, {f"reward.{name}.{key}": value for key, value in options.items()})


def test_a_preset_from_elsewhere_is_read_with_the_same_eyes(tmp_path):
    preset = tmp_path / "evil.yaml"
    given = ["env=Pendulum-v1", f"preset={preset}"]
    preset.write_text("# It is short.\ntotal_timesteps: 500\nreward: rnd\nagents: {ppo: {agent.n_steps: 16}}\n")
    assert compose(given)[0].total_timesteps == 500
    for text in (
        "env: evil:CartPole-v1",
        "run_dir: elsewhere",
        "trust: true\nroot: elsewhere",
        "rewards: {oni: {reward.oni.judge_options: {url: 'https://example.com/v1'}}}",
    ):
        preset.write_text(f"# It is not.\n{text}\n")
        with pytest.raises(UsageError, match=r"preset=.*evil\.yaml names .*; add trust=true"):
            compose(given)
    preset.write_text("run_dir: elsewhere\n")
    assert compose([*given, "trust=true"])[0].run_dir == "elsewhere"


def test_trust_is_neither_written_down_nor_read(tmp_path):
    config, _ = compose(["env=CartPole-v1", "trust=true"])
    assert "trust" not in to_dict(config) and config.key() == compose(["env=CartPole-v1"])[0].key()
    assert not from_dict({**to_dict(config), "trust": True}).trust


def test_the_working_directory_is_searched_last_and_only_for_what_the_user_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    compose(["env=CartPole-v1", "env.sticky=0.25"])
    assert str(tmp_path) not in sys.path
    (tmp_path / "own_world_of_mine.py").write_text(
        "from gymnasium.envs.registration import register\n"
        "register('Mine-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    compose(["env=own_world_of_mine:Mine-v0", "env.sticky=0.25"])
    assert sys.path[-1] == str(tmp_path)


def test_a_command_executes_nothing_of_the_folder_that_it_is_called_in(tmp_path):
    for name in ("envs", "agents", "json", "tomllib", "yaml", "numpy", "csv", "plugin"):
        (tmp_path / f"{name}.py").write_text(f"import os; os.mkdir({str(tmp_path / 'executed')!r})\n")
    about = tmp_path / "plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[gymnasium.envs]\n__root__ = plugin:load\n")
    command = [sys.executable, "-m", "runners.report", "."]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}."}  # a dot there is a slip, too
    answer = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert answer.returncode == 2 and answer.stderr.startswith("error: "), answer.stderr
    assert not (tmp_path / "executed").exists()
