"""The `lodestar` command in folders of a user's own, and what a shell completes of it."""

import dataclasses
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

import agents
import rewards
from runners.cli.complete import complete
from runners.cli.declared import declared_fields
from runners.cli.verbs import verbs

ROOT = Path(__file__).parents[2]
WORLD = """
from gymnasium.envs.registration import register
register("Mine-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=20)
"""


@pytest.fixture
def shell(tmp_path):
    """Runs `lodestar ...` in a folder whose `envs` and `runners` are the user's own, and on PYTHONPATH."""
    home = tmp_path / "home"
    for name in ("envs", "runners"):
        (home / name).mkdir(parents=True)
        (home / name / "__init__.py").write_text("raise SystemExit('the user\\'s own package was imported')")
    (home / "my_world.py").write_text(WORLD)
    command = tmp_path / "bin" / "lodestar"
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"sys.path.append({str(ROOT)!r})\nfrom lodestar import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )  # as an installer writes it, but for where we are: in no site-packages
    command.chmod(0o755)
    path = os.pathsep.join([str(home), str(ROOT)])
    env = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": path}

    def run(*argv, **more):
        return subprocess.run(["lodestar", *argv], cwd=home, env=env, capture_output=True, text=True, timeout=200)

    run.home, run.env = home, env
    return run


def test_a_verb_is_the_module_of_that_name():
    assert verbs()["train"] == "runners.train" and verbs()["sweep"] == "runners.sweep.__main__"
    assert {"evaluate", "watch", "compare", "report", "tune", "transfer", "annotate", "record", "offline"} <= {*verbs()}
    assert {"export", "explain", "list", "doctor"} <= {*verbs()} and not {"cli", "run"} & {*verbs()}


def test_packages_of_the_users_own_with_our_names_do_not_stop_the_command(shell):
    answer = shell("train", "env=my_world:Mine-v0", "sed=3")
    assert answer.stderr == "error: sed=3 is unknown; did you mean seed?\n"
    answer = shell("trian")
    assert (answer.returncode, answer.stderr) == (2, "error: lodestar trian is unknown; did you mean lodestar train?\n")
    assert "  sweep       Run a grid of runs" in shell("--help").stdout


@pytest.mark.nightly
def test_the_processes_of_a_sweep_find_what_the_user_named_behind_our_packages(shell):
    answer = shell("train", "--help")
    assert answer.returncode == 0 and answer.stdout.startswith("usage: lodestar train env=ID")
    grid = ("env=my_world:Mine-v0", "seed=0,1", "total_timesteps=300", "n_envs=2", "backend=workers", "video=false")
    answer = shell("sweep", *grid, "eval_episodes=1", "agent.n_steps=32", "agent.batch_size=32", "report=false")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert len([*shell.home.glob("runs/**/result.json")]) == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lodestar tra", ["train", "transfer"]),
        ("lodestar train max_", ["max_episode_steps="]),
        ("lodestar train env=lodestar/ProcM", ["env=lodestar/ProcMaze-v0"]),
        ("lodestar train env=ProcM", ["env=lodestar/ProcMaze-v0"]),
        ("lodestar train reward=[task,pseudo", ["reward=[task,pseudocount"]),
        ("lodestar train reward=rnd reward.rnd.warm", ["reward.rnd.warmup="]),
        ("lodestar train reward.rnd.scale=e", ["reward.rnd.scale=ema"]),
        ("lodestar train agent=dyna agent.preset=sind", ["agent.preset=sindy"]),
        ("lodestar train env=CartPole-v1 env.st", ["env.sticky="]),
        ("lodestar train video=", ["video=true", "video=false"]),
        ("lodestar sweep launcher=", ["launcher=local", "launcher=ray", "launcher=slurm"]),
        ("lodestar evaluate ep", ["episodes="]),
        ("lodestar list e3", ["e3b"]),
        ("lodestar evaluate run=", []),  # the shell offers files
        ("lodestar nonsense x", []),
    ],
)
def test_verbs_keys_names_and_values_are_completed(line, words):
    assert complete(line, verbs()) == words


def test_options_of_a_reward_of_the_users_own_are_completed_without_importing_it(tmp_path, monkeypatch):
    source = """import nothing_of_this_name
from dataclasses import dataclass
from rewards.base import Reward, RewardConfig

@dataclass
class FarConfig(RewardConfig):
    power: float = 1.0

class Far(Reward):
    Config = FarConfig
"""
    (tmp_path / "novelty_of_mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    line = "lodestar train reward=novelty_of_mine:Far reward.far."
    assert complete(line + "po", verbs()) == ["reward.far.power="]
    assert complete(line + "scale=n", verbs()) == ["reward.far.scale=none"]


def test_what_is_completed_are_the_fields_of_every_reward_and_agent():
    for kind, table in (("reward", rewards), ("agent", agents)):
        for name in table.TABLE:
            assert {*declared_fields(kind, name)} == {f.name for f in dataclasses.fields(table.get(name).Config)}, name


def test_a_real_bash_completes_on_tab(shell):
    master, slave = pty.openpty()
    command = ["bash", "--norc", "--noprofile", "-i"]
    env = {**shell.env, "PS1": "$ ", "TERM": "dumb", "COLUMNS": "500"}
    bash = subprocess.Popen(command, cwd=shell.home, env=env, stdin=slave, stdout=slave, stderr=slave)
    try:
        os.write(master, b"source <(lodestar completion bash)\n")
        _read_until(master, "$ ")
        for typed, completed in (
            (b"lodestar trai\t", "lodestar train "),
            (b"env=lodestar/Cr\t", "env=lodestar/Crafter-v0 "),
            (b"reward=rd\t", "reward=rdd "),
            (b"reward.rdd.warm\t", "reward.rdd.warmup="),
        ):
            os.write(master, typed)
            _read_until(master, completed)
    finally:
        bash.kill()
        bash.wait()
        os.close(master)
        os.close(slave)


def _read_until(terminal, text, seconds=60.0):
    seen, end = "", time.monotonic() + seconds
    while text not in seen.replace("\r", "").replace("\a", ""):
        ready, _, _ = select.select([terminal], [], [], max(end - time.monotonic(), 0))
        assert ready, f"{text!r} did not come; there is {seen!r}"
        seen += os.read(terminal, 4096).decode()
