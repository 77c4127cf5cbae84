"""Runs, policies, recordings, presets and command lines made to execute code that came with them; none must.

Each attack writes what it needs into a folder of its own and says which command a victim would type there.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from runners.run import checkpoint
from tests.faults.child import TINY

MARK = "import os; os.mkdir({marker!r})\n"


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


class Attack:
    """A run from somebody else, and the folder that shows that its code was executed.

    Args:
        name: what it tries.
        folder: empty, for this attack alone.
        good: a trained run, of which it gets a copy.
    """

    def __init__(self, name: str, folder: Path, good: Path) -> None:
        self.name, self.folder, self.marker = name, folder, folder / "executed"
        self.run = folder / "run"
        folder.mkdir()
        shutil.copytree(good, self.run, ignore=shutil.ignore_patterns(".lock"))
        (self.step,) = sorted((self.run / "checkpoints").glob("step_*"))[-1:]
        self.pickled = pickle.dumps(Payload(self.marker))
        self.code = MARK.format(marker=str(self.marker))
        self.tag = f"!!python/object/apply:os.mkdir [{json.dumps(str(self.marker))}]"

    def write(self, name: str, content: str | bytes) -> Path:
        """A file of the attack's folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def seal(self) -> None:
        """Give the doctored checkpoint a manifest that is right."""
        path = self.step / checkpoint.MANIFEST
        manifest = json.loads(path.read_text())
        del manifest["sha256"]
        names = (checkpoint.ARRAYS, checkpoint.STATE)
        manifest["files"] = {name: checkpoint._fingerprint(self.step / name) for name in names}
        path.write_text(json.dumps({**manifest, "sha256": checkpoint._digest(manifest)}))

    def config(self, old: str, new: str) -> None:
        """Change config.yaml."""
        path = self.run / "config.yaml"
        text = path.read_text()
        assert old in text, f"config.yaml has no {old!r} any more"
        path.write_text(text.replace(old, new, 1))


Command = tuple[str, list[str]]  # module of runners, its arguments


def _train(*arguments: str) -> Command:
    return "train", [*(f"{key}={value}" for key, value in TINY.items()), "total_timesteps=64", *arguments]


def _evaluate(attack: Attack) -> Command:
    return "evaluate", [f"run={attack.run}", "episodes=1", "video=false"]


def _sb3_zip(attack: Attack) -> Command:
    path = attack.folder / "model.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", json.dumps({"policy_class": {":type:": "x", ":serialized:": attack.pickled.hex()}}))
        file.writestr("policy.pth", attack.pickled)
    return "export", [f"run={path}", "env=CartPole-v1"]


def _pickled_policy(attack: Attack) -> Command:
    return "export", [f"run={attack.write('policy.safetensors', attack.pickled)}", "env=CartPole-v1"]


def _pickled_arrays(attack: Attack) -> Command:
    (attack.step / checkpoint.ARRAYS).write_bytes(attack.pickled)
    attack.seal()
    return _evaluate(attack)


def _strange_state(attack: Attack) -> Command:
    path = attack.step / checkpoint.STATE
    state = json.loads(path.read_text())
    state["tree"] = {"_": "object", "v": {"module": "os", "name": "mkdir", "arguments": [str(attack.marker)]}}
    path.write_text(json.dumps(state))
    attack.seal()
    return _evaluate(attack)


def _deep_state(attack: Attack) -> Command:
    (attack.step / checkpoint.STATE).write_text('{"step": 1, "tree": ' + "[" * 100_000 + "]" * 100_000 + "}")
    attack.seal()
    return _evaluate(attack)


def _latest_elsewhere(attack: Attack) -> Command:
    shutil.copytree(attack.step, attack.folder / "outside")
    (attack.folder / "outside" / checkpoint.ARRAYS).write_bytes(attack.pickled)
    (attack.run / "checkpoints" / checkpoint.LATEST).write_text("../../outside\n")
    return _evaluate(attack)


def _endless_link(attack: Attack) -> Command:
    (attack.step / checkpoint.ARRAYS).unlink()
    (attack.step / checkpoint.ARRAYS).symlink_to("/dev/zero")
    return _evaluate(attack)


def _tagged_config(attack: Attack) -> Command:
    attack.config("seed: 0", f"seed: {attack.tag}")
    return _evaluate(attack)


def _target_in_config(attack: Attack) -> Command:
    attack.config("task:\n", f"task:\n    _target_: os.mkdir\n    path: {attack.marker}\n")
    return _evaluate(attack)


def _class_in_config(attack: Attack) -> Command:
    attack.write("evil_rewards.py", attack.code)
    attack.config("  task:", "  'evil_rewards:Reward':")
    return _evaluate(attack)


def _module_beside(attack: Attack) -> Command:
    attack.write("run/evil_world.py", attack.code)
    attack.config("env: CartPole-v1", "env: run.evil_world:CartPole-v1")
    return _evaluate(attack)


def _module_recorded(attack: Attack) -> Command:
    _module_beside(attack)
    return "record", [f"policy={attack.run}", f"out={attack.folder / 'out.safetensors'}", "steps=10"]


def _module_watched(attack: Attack) -> Command:
    _module_beside(attack)
    return "watch", [f"run={attack.run}", f"out={attack.folder / 'video.gif'}", "episodes=1", "steps=5"]


def _module_exported(attack: Attack) -> Command:
    _module_beside(attack)
    return "export", [f"run={attack.run}", "format=safetensors"]


def _option_in_config(attack: Attack) -> Command:
    attack.write("run/evil_world.py", attack.code)
    attack.config(
        "env: CartPole-v1", "env: highway-fast-v0\nenv_options:\n  config: {other_vehicles_type: run.evil_world.Car}"
    )
    return _evaluate(attack)


def _target_typed(attack: Attack) -> Command:
    return _train("reward=rnd", "reward.rnd._target_=torch.hub.load", f"run_dir={attack.folder / 'new'}")


def _interpolated(attack: Attack) -> Command:
    return _train("reward=rnd", "reward.rnd.weight=${oc.env:HOME}", f"run_dir={attack.folder / 'new'}")


def _hydra_keys(attack: Attack) -> Command:
    return _train(f"hydra.run.dir={attack.marker}", "hydra/launcher=joblib")


def _module_as_agent(attack: Attack) -> Command:
    attack.write("evil_agent.py", attack.code)
    return _train("agent=evil_agent:Agent", f"run_dir={attack.folder / 'new'}")


def _path_upwards(attack: Attack) -> Command:
    return _train(f"run_dir={attack.folder}/run/../executed")


def _name_upwards(attack: Attack) -> Command:
    arguments = [f"{key}={value}" for key, value in TINY.items()]
    return "sweep", [
        *arguments,
        "total_timesteps=64",
        "seed=0,1",
        f"root={attack.folder}/a/b",
        "name=../../../executed",
    ]


def _tagged_preset(attack: Attack) -> Command:
    path = attack.write("preset.yaml", f"# evil\nseed: {attack.tag}\n")
    return _train(f"preset={path}", f"run_dir={attack.folder / 'new'}")


def _pickled_recording(attack: Attack) -> Command:
    path = attack.folder / "data.npz"
    np.savez(path, obs=np.array([Payload(attack.marker)], object))
    return "offline", [f"data={path}", "env=CartPole-v1", "steps=1", "episodes=1"]


def _recording_names_module(attack: Attack) -> Command:
    from envs.make import make
    from envs.recording import record, save

    env = make("CartPole-v1")
    attack.write("run/evil_world.py", attack.code)
    path = attack.folder / "data.safetensors"
    save(path, record(env, None, 60), {"env": "run.evil_world:CartPole-v1"})
    env.close()
    return "offline", [f"data={path}", "steps=1", "episodes=1", "arms=cloning"]


def _pickled_clip(attack: Attack) -> Command:
    path = attack.write("weights.pt", attack.pickled)
    return _train("reward=clip", f"reward.clip.weights={path}", f"run_dir={attack.folder / 'new'}", "control=none")


def _pickled_cache(attack: Attack) -> Command:
    path = attack.folder / "cache.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE labels (world TEXT, text TEXT, value BLOB)")
        file.execute("INSERT INTO labels VALUES ('x', 'y', ?)", (attack.pickled,))
    captioned = ["env=MiniGrid-Empty-5x5-v0", "env.captions=full", "reward=oni", "agent.batch_size=64", "control=none"]
    return _train(*captioned, f"reward.oni.cache={path}", f"run_dir={attack.folder / 'new'}")


def _written_factors(attack: Attack) -> Command:
    path = attack.write("factors.py", f'"""Factors."""\n{attack.code}\ndef evaluate(obs, action):\n    return [obs]\n')
    options = ["env=Pendulum-v1", "reward=lare", f"reward.lare.code={path}", "control=none"]
    return _train(*options, f"run_dir={attack.folder / 'new'}")


ATTACKS: tuple[Callable[[Attack], Command], ...] = (
    _sb3_zip, _pickled_policy, _pickled_arrays, _strange_state, _deep_state, _latest_elsewhere, _endless_link,
    _tagged_config, _target_in_config, _class_in_config, _module_beside, _module_recorded, _module_watched,
    _module_exported, _option_in_config, _target_typed, _interpolated, _hydra_keys, _module_as_agent, _path_upwards,
    _name_upwards, _tagged_preset, _pickled_recording, _recording_names_module, _pickled_clip, _pickled_cache,
    _written_factors,
)  # fmt: skip
HARMLESS = (_latest_elsewhere, _pickled_cache)  # what is false in them is passed over, and the command succeeds
