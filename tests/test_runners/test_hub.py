"""Runs to the Hugging Face Hub and back, by the real client and a real server on this machine."""

import builtins
import json
import shutil

import numpy as np
import pytest
import yaml

import lodestar as ld
from tests.hub_server import hub

pytest.importorskip("huggingface_hub")
TINY = {"agent.n_steps": 16, "agent.batch_size": 16, "agent.net_arch": [8]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "mine"
    options = {"total_timesteps": 64, "n_envs": 2, "eval_episodes": 1, "control": "none", "video": False}
    return ld.train("CartPole-v1", "rnd", run_dir=str(folder), **options, **TINY)


@pytest.fixture
def server(monkeypatch, tmp_path):
    with hub() as server:
        for name, value in {"HF_ENDPOINT": server.address, "HF_TOKEN": "letmein"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # read when that is imported
        monkeypatch.chdir(tmp_path)
        yield server


def test_a_run_that_was_pushed_acts_as_before_where_it_is_loaded(run, server, tmp_path):
    assert ld.push_to_hub(run, "me/cartpole") == f"{server.address}/me/cartpole"
    held = server.repos["me/cartpole"]
    kept = "checkpoints/step_000000000064"
    whole = {"config.yaml", "result.json", "versions.json", "status.json", "README.md", "checkpoints/LATEST"}
    assert set(held) == whole | {f"{kept}/{name}" for name in ("arrays.safetensors", "state.json", "manifest.json")}
    assert len(held[f"{kept}/arrays.safetensors"]) < (run.folder / kept / "arrays.safetensors").stat().st_size
    assert str(run.folder).encode() not in b"".join(held.values())
    _, head, text = held["README.md"].decode().split("---\n", 2)
    about = yaml.safe_load(head)
    score = run.figures["this run"]["task_return"]
    assert about["model-index"][0]["results"][0]["metrics"][0]["value"] == score and "CartPole-v1" in about["tags"]
    assert 'ld.load_from_hub("me/cartpole")' in text and "agent.n_steps=16" in text and "seed 0" in text
    held["evil.pkl"] = held["checkpoints/step_000000000064/evil.py"] = b"import os"
    held["README.md"] += b"-"
    back = ld.load_from_hub("me/cartpole")
    assert back.folder.parts[-4:] == ("runs", "hub", "me", "cartpole")[-4:]
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        back.policy.predict(obs, deterministic=True)[0], run.policy.predict(obs, deterministic=True)[0]
    )
    assert back.figures == run.figures and back.config.agent == run.config.agent
    assert not [name for name in server.fetched if "evil" in name]
    assert not [path for path in back.folder.rglob("*") if path.is_symlink()]


def test_a_run_that_trained_is_not_overwritten_and_one_from_there_is(run, server, tmp_path):
    ld.push_to_hub(run, "me/cartpole")
    with pytest.raises(ValueError, match="is the folder of a run that trained; give another one"):
        ld.load_from_hub("me/cartpole", folder=run.folder)
    twice = [ld.load_from_hub("me/cartpole", folder=tmp_path / "there").config for _ in range(2)]
    assert twice[0].agent == twice[1].agent == run.config.agent


def test_what_a_foreign_repository_names_is_not_trusted(run, server):
    ld.push_to_hub(run, "me/cartpole")
    held = server.repos["me/cartpole"]
    held["config.yaml"] = held["config.yaml"].replace(b"env: CartPole-v1", b"env: antigravity:CartPole-v1")
    with pytest.raises(ValueError, match="which imports the module antigravity; add trust=true"):
        _ = ld.load_from_hub("me/cartpole").policy
    held["checkpoints/step_000000000064/arrays.safetensors"] = b"\x80\x04."
    held["config.yaml"] = held["config.yaml"].replace(b"antigravity:", b"")
    from runners.run.checkpoint import CheckpointError

    with pytest.raises(CheckpointError, match="none of 1 checkpoints"):
        _ = ld.load_from_hub("me/cartpole", folder="again").policy


def test_every_failure_is_one_sentence(run, server, monkeypatch, tmp_path):
    with pytest.raises(
        ValueError, match=r"me/nothing is not on http://127.*check its name, or log in with hf auth login"
    ):
        ld.load_from_hub("me/nothing")
    with pytest.raises(ValueError, match=r"'a/b/c' is no repository's name; give owner/name, as in me/cartpole"):
        ld.push_to_hub(run, "a/b/c")
    server.repos["me/empty"] = {"model.pkl": b""}
    with pytest.raises(ValueError, match=r"me/empty holds no run of ours \(it has no config.yaml\)"):
        ld.load_from_hub("me/empty")
    with pytest.raises(ValueError, match="me/empty has no such revision"):
        ld.load_from_hub("me/empty", revision="v9")
    with pytest.raises(ValueError, match="nowhere is no run's folder"):
        ld.push_to_hub("nowhere", "me/cartpole")
    monkeypatch.setenv("HF_TOKEN", "wrong-token")
    with pytest.raises(ValueError, match=r"does not let you do that with me/cartpole .*log in with hf auth login"):
        ld.push_to_hub(run, "me/cartpole")
    server.broken = 507
    with pytest.raises(ConnectionError, match=r"failed for me/cartpole \(HTTP 507: .*all is down.*\); try again later"):
        ld.push_to_hub(run, "me/cartpole")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ConnectionError, match=r"http://127.0.0.1:1 cannot be reached \(.*is there a network\?"):
        ld.load_from_hub("me/cartpole")
    importing = builtins.__import__

    def without(name, *rest):
        if name == "huggingface_hub":
            raise ImportError(name)
        return importing(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"the Hub needs huggingface_hub; pip install 'lodestar-rl\[hub\]'"):
        ld.load_from_hub("me/cartpole")


def test_paths_of_this_machine_stay_here(run, server, tmp_path):
    other = tmp_path / "copy"
    shutil.copytree(run.folder, other)
    config = yaml.safe_load((other / "config.yaml").read_text()) | {"root": "/home/me/secret"}
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    ld.push_to_hub(other, "me/copy", trust=True)
    assert b"secret" not in b"".join(server.repos["me/copy"].values())
    assert json.loads(server.repos["me/copy"]["versions.json"])["torch"]
