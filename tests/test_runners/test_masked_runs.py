"""A run on an environment with action masks: trained, continued, evaluated, watched, recorded, exported."""

from pathlib import Path

import numpy as np
import pytest
import torch

import lodestar as ld
from runners.evaluate import main as evaluate
from runners.export import load
from runners.export.__main__ import main as export
from runners.record import main as record
from runners.run.build import load_checkpoint
from runners.train import main as train
from runners.watch import main as watch
from tests import masked_env

QUICK = ["video=false", "control=none", "logger=[]", "eval_episodes=2", "n_envs=2"]
PPO = ["env=MaskDoors-v0", "reward=task", *QUICK, "agent.n_steps=16", "agent.batch_size=32"]
assert masked_env.Doors  # imported, it is registered


NIGHTLY = pytest.param("maskable_ppo", marks=pytest.mark.nightly)


@pytest.mark.parametrize("agent", ["ppo", NIGHTLY])
def test_a_masked_run_goes_through_every_command(agent, tmp_path, capsys):
    run = tmp_path / "run"
    assert train([*PPO, f"agent={agent}", "total_timesteps=64", f"run_dir={run}", "eval_every=32"]) == 0
    assert "may choose any" not in capsys.readouterr().out
    assert evaluate([f"run={run}", "episodes=2", "video=false"]) == 0
    assert evaluate([f"run={run}", "episodes=2", "video=false", "checkpoint=best"]) == 0
    assert watch([f"run={run}", "episodes=1", f"out={tmp_path / 'w.gif'}", "steps=4"]) == 0
    assert record([f"policy={run}", "steps=40", "noise=0.5", f"out={tmp_path / 'r.safetensors'}"]) == 0
    assert record(["env=MaskDoors-v0", "policy=random", "steps=40", f"out={tmp_path / 'q.safetensors'}"]) == 0
    policy = ld.load(run).policy
    obs, only = np.zeros(6, np.float32), np.eye(6, dtype=bool)[3]
    with pytest.raises(ValueError, match=r"give one: predict\(obs, mask=info"):
        policy.predict(obs)
    assert policy.predict(obs, mask=only)[0] == 3
    assert export([f"run={run}", "format=safetensors" if agent == "ppo" else "format=both"]) == 0
    exported = load(run / "export")
    assert exported.act(obs, only) == 3
    with pytest.raises(ValueError, match=r"give one: act\(obs, info"):
        exported.act(obs)


@pytest.mark.parametrize("agent", ["ppo", "dqn", NIGHTLY])
def test_a_masked_run_that_is_continued_has_the_weights_of_a_whole_one(agent, tmp_path):
    given = [*PPO, f"agent={agent}", "eval_episodes=0"]
    if agent == "dqn":
        given = [one for one in given if "n_steps" not in one] + ["agent.learning_starts=20", "agent.buffer_size=500"]
    for name, lengths in (("whole", [128]), ("parts", [64, 128])):
        for steps in lengths:
            assert train([*given, f"total_timesteps={steps}", f"run_dir={tmp_path / name}"]) == 0
    whole, parts = (_arrays(load_checkpoint(tmp_path / name)[0]["agent"]["modules"]) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() and all(np.array_equal(whole[key], parts[key]) for key in whole)


def _arrays(tree, name=""):
    if isinstance(tree, dict):
        return {k: v for key, part in tree.items() for k, v in _arrays(part, f"{name}.{key}").items()}
    return {name: np.asarray(tree)} if isinstance(tree, np.ndarray | torch.Tensor) else {}


def test_an_agent_that_reads_no_masks_says_so_before_it_trains(tmp_path, capsys):
    given = ["env=MaskDoors-v0", "reward=task", "agent=a2c", "total_timesteps=20", "video=false", "control=none"]
    train([*given, "eval_episodes=0", f"run_dir={tmp_path / 'a'}"])  # a closed door raises
    out = capsys.readouterr().out
    assert "note: MaskDoors-v0 masks its actions, but agent=a2c may choose any; ppo, dqn, maskable_ppo obey" in out


def test_an_agent_that_needs_masks_is_refused_where_there_are_none(tmp_path, capsys):
    assert train(["env=CartPole-v1", "agent=maskable_ppo", f"run_dir={tmp_path / 'a'}"]) != 0
    assert "agent=maskable_ppo needs action masks, and CartPole-v1 gives none" in capsys.readouterr().err


def test_a_bad_mask_ends_a_run_in_one_sentence(tmp_path, capsys):
    bad = ["env.bad=none", "env.at=2", f"run_dir={tmp_path / 'a'}", "total_timesteps=64"]
    assert train([*PPO, *bad]) != 0
    err = capsys.readouterr().err
    assert "environment 0: the action mask at step 2 of the episode allows no action" in err
    assert "Traceback" not in err and Path(tmp_path / "a").exists()
