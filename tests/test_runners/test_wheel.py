"""What a user installs: the sdist and the wheel hold the product and nothing else, and its commands run anywhere."""

import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks.checks import wheel as checked

OURS = {"agents", "envs", "lodestar", "rewards", "runners"}
DATA = {
    "envs/recordings/pendulum.safetensors",
    "rewards/llm/judges/rulebooks/nethack.txt",
    "rewards/vision/weights/lodestar/open_clip_model.safetensors",
    "rewards/vision/weights/lodestar-96/open_clip_model.safetensors",
    "runners/cli/preset/upright.yaml",
    "runners/report/page.html",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of both; the sdist and the wheel."""
    return checked.build(tmp_path_factory.mktemp("built"))


@pytest.mark.nightly
def test_sdist_and_wheel_are_the_product_and_nothing_else(built):
    sdist, wheel = built
    with tarfile.open(sdist) as file:
        source = {name.partition("/")[2] for name in file.getnames() if "/" in name}
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
    assert source >= DATA and names >= DATA
    assert {name.partition("/")[0].removesuffix(".py") for name in names} == OURS
    folders = {name.partition("/")[0] for name in source if "/" in name}
    assert {name for name in folders if not name.endswith(".egg-info")} == OURS


@pytest.mark.nightly
def test_an_sdist_unpacks_where_python_knows_no_filters(built, tmp_path, monkeypatch):
    plain = tarfile.TarFile.extractall
    monkeypatch.delattr(tarfile, "data_filter")
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, path: plain(self, path))  # as before 3.11.4
    assert (checked.unpack(built[0], tmp_path / "sdist") / "lodestar" / "__init__.py").is_file()


def test_newcomers_start_with_the_oldest_python_that_is_admitted(tmp_path):
    for version, number in (("3.12", "3.12.9"), ("3.11", "3.11.0")):
        fake = tmp_path / f"python{version}"
        fake.write_text(f"#!/bin/sh\necho {number} /opt/{number}/python\n")
        fake.chmod(0o755)
    command = ["bash", checked.ROOT / "tests" / "newcomer.sh", "--python"]
    kept = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    printed = subprocess.run(command, env=kept, capture_output=True, text=True, check=True).stdout
    assert printed == "/opt/3.11.0/python\n"


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    return checked.install(built[1], tmp_path_factory.mktemp("environment") / "venv")


def run(program, *arguments, folder, code=0):
    """What a command prints in a folder, as a user whose home is empty."""
    kept = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS", "SDL_VIDEODRIVER", "MUJOCO_GL")}
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        env={**kept, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.nightly
def test_the_commands_of_the_wheel_run_in_an_empty_folder(python, tmp_path):
    where = f"import importlib as i; print(*(i.import_module(name).__file__ for name in {sorted(OURS)}))"
    for place in run(python, "-c", where, folder=tmp_path).split():
        assert Path(place).is_relative_to(python.parents[1])
    small = ("total_timesteps=2048", "eval_episodes=2", "run_dir=upright")
    first = ("-m", "runners.train", "env=lodestar/CartPoleUpright-v0", "reward=clip")  # README's
    assert "reward: clip\n" in run(python, *first, *small, folder=tmp_path)
    assert json.loads((tmp_path / "upright" / "status.json").read_text())["step"] == 2048
    short = ("queries=20", "steps=50", "episodes=1")
    learned = run(python.with_name("lodestar"), "offline", "data=pendulum", *short, folder=tmp_path)
    assert "the data" in learned and "preferences" in learned
    ready = run(python.with_name("lodestar"), "doctor", "timeout=200", folder=tmp_path)
    assert ready.endswith("\nready\n") and "missing" not in ready


@pytest.mark.nightly
def test_a_project_that_was_installed_over_ours_is_named_by_every_command(python, tmp_path):
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    other = packages / "openai_agents-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: openai-agents\nVersion: 1.0\n")
    (other / "RECORD").write_text("agents/__init__.py,,\n")
    (packages / "agents" / "__init__.py").write_text("from agents.models import nothing_of_ours\n")
    commands = [(python, "-m", f"runners.{verb}") for verb in ("train", "list", "doctor", "evaluate")]
    for command in [*commands, (python.with_name("lodestar"), "train")]:
        assert run(*command, "env=CartPole-v1", folder=tmp_path, code=2) == (
            f"error: the package 'agents' of lodestar-rl in {packages} was overwritten by openai-agents; "
            "install lodestar-rl in an environment without it\n"
        )
