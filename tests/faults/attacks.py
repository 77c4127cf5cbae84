"""Runs, policies, recordings, presets, command lines and folders made to act, or never to end; none must.

Each attack writes what it needs into a folder of its own and says which command a victim would type there.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from runners.run import checkpoint
from tests.faults.child import TINY

MARK = "import os; os.mkdir({marker!r})\n"
SECRET = "what only the victim may read"


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
        self.elsewhere = False  # whether the victim stands in the run, and starts a process of its own there
        self.tag = f"!!python/object/apply:os.mkdir [{json.dumps(str(self.marker))}]"

    def write(self, name: str, content: str | bytes) -> Path:
        """A file of the attack's folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def server(self) -> str:
        """The address of a server that counts as executed when it is asked anything."""
        marker = self.marker

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                marker.mkdir(exist_ok=True)

        server = HTTPServer(("127.0.0.2", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.2:{server.server_port}/v1"

    def status(self, **changes: Any) -> None:
        """Change status.json."""
        path = self.run / "status.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def seal(self) -> None:
        """Give the doctored checkpoint a manifest that is right."""
        path = self.step / checkpoint.MANIFEST
        manifest = json.loads(path.read_text())
        del manifest["sha256"]
        names = (checkpoint.ARRAYS_FILE, checkpoint.STATE_FILE)
        manifest["files"] = {name: checkpoint._fingerprint(self.step / name) for name in names}
        path.write_text(json.dumps({**manifest, "sha256": checkpoint.digest(manifest)}))

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
    (attack.step / checkpoint.ARRAYS_FILE).write_bytes(attack.pickled)
    attack.seal()
    return _evaluate(attack)


def _strange_state(attack: Attack) -> Command:
    path = attack.step / checkpoint.STATE_FILE
    state = json.loads(path.read_text())
    state["tree"] = {"_": "object", "v": {"module": "os", "name": "mkdir", "arguments": [str(attack.marker)]}}
    path.write_text(json.dumps(state))
    attack.seal()
    return _evaluate(attack)


def _deep_state(attack: Attack) -> Command:
    (attack.step / checkpoint.STATE_FILE).write_text('{"step": 1, "tree": ' + "[" * 100_000 + "]" * 100_000 + "}")
    attack.seal()
    return _evaluate(attack)


def _latest_elsewhere(attack: Attack) -> Command:
    shutil.copytree(attack.step, attack.folder / "outside")
    (attack.folder / "outside" / checkpoint.ARRAYS_FILE).write_bytes(attack.pickled)
    (attack.run / "checkpoints" / checkpoint.LATEST).write_text("../../outside\n")
    return _evaluate(attack)


def _endless_link(attack: Attack) -> Command:
    (attack.step / checkpoint.ARRAYS_FILE).unlink()
    (attack.step / checkpoint.ARRAYS_FILE).symlink_to("/dev/zero")
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


def _option_with_hyphen(attack: Attack) -> Command:
    attack.write("run/evil-world.py", attack.code)
    attack.config(
        "env: CartPole-v1", "env: highway-fast-v0\nenv_options:\n  config: {other_vehicles_type: run.evil-world.Car}"
    )
    return _evaluate(attack)


def _option_deep_down(attack: Attack) -> Command:
    attack.write("evil world.py", attack.code)
    attack.config("env: CartPole-v1", "env: highway-fast-v0\nenv_options:\n  config: {a: [1, {b: 'evil world:make'}]}")
    return _evaluate(attack)


def _module_with_hyphen(attack: Attack) -> Command:
    attack.write("run/evil-world.py", attack.code)
    attack.config("env: CartPole-v1", "env: run.evil-world:CartPole-v1")
    return _evaluate(attack)


def _module_with_colon(attack: Attack) -> Command:
    attack.write("evil:world.py", attack.code)
    attack.config("env: CartPole-v1", "env: evil:world:CartPole-v1")
    return _evaluate(attack)


def _judge_in_config(attack: Attack) -> Command:
    options = f"{{judge: openai, judge_options: {{model: m, url: '{attack.server()}', key: HOME}}}}"
    attack.config("env: CartPole-v1", "env: MiniGrid-Empty-5x5-v0\nenv_options: {captions: full}")
    attack.config("  task:", f"  oni: {options}\n  task:")
    return _evaluate(attack)


def _preset(attack: Attack, text: str, *arguments: str) -> Command:
    path = attack.write("preset.yaml", f"# Fast.\n{text}\n")
    return _train(f"preset={path}", f"run_dir={attack.folder / 'new'}", "control=none", *arguments)


def _module_in_preset(attack: Attack) -> Command:
    attack.write("evil_world.py", attack.code)
    command = _preset(attack, "env: evil_world:CartPole-v1")
    return "train", [argument for argument in command[1] if not argument.startswith("env=")]


def _option_in_preset(attack: Attack) -> Command:
    attack.write("evil-world.py", attack.code)
    return _preset(attack, "env.config: {other_vehicles_type: evil-world.Car}", "env=highway-fast-v0")


def _judge_in_preset(attack: Attack) -> Command:
    options = f"{{judge: openai, judge_options: {{model: m, url: '{attack.server()}'}}}}"
    text = f"rewards: {{oni: {{reward.oni.judge: openai, reward.oni.judge_options: {options}}}}}\non_top: true"
    return _preset(attack, text, "env=MiniGrid-Empty-5x5-v0", "env.captions=full", "reward=oni", "agent.batch_size=64")


def _trust_in_preset(attack: Attack) -> Command:
    attack.write("evil_world.py", attack.code)
    return _preset(attack, f"trust: true\nroot: {attack.marker}")


def _folder_in_preset(attack: Attack) -> Command:
    path = attack.write("preset.yaml", f"# Fast.\nrun_dir: {attack.marker}\n")
    return _train(f"preset={path}")


def _bomb_in_preset(attack: Attack) -> Command:
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 1}]" for i in range(12)]
    return _preset(attack, "\n".join(lines))


def _recording(attack: Attack, **meta: Any) -> Path:
    from envs.make import make
    from envs.recording import record, save

    env = make("MiniGrid-Empty-5x5-v0", captions="full", text=True)
    path = attack.folder / "data.safetensors"
    save(path, record(env, None, 60), meta)
    env.close()
    return path


def _recording_annotated(attack: Attack) -> Command:
    attack.write("evil-world.py", attack.code)
    return "annotate", [f"record={_recording(attack, env='evil-world:X-v0')}", f"out={attack.folder / 'out.jsonl'}"]


def _recording_with_option(attack: Attack) -> Command:
    attack.write("evil-world.py", attack.code)
    options = {"config": {"other_vehicles_type": "evil-world.Car"}}
    path = _recording(attack, env="highway-fast-v0", env_options=options)
    return "offline", [f"data={path}", "steps=1", "episodes=1", "arms=cloning"]


# A run in which something else than a file of ours stands, read by each command that reads it ----------------------


def _not_a_file(path: Path, kind: str, victim: Path) -> None:
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "link":
            victim.write_text(SECRET)
            path.symlink_to(victim)
        case "endless":
            with path.open("wb") as file:
                file.truncate(2**41)  # sparse: no block of it is on the disk


def _strange_file(name: str, kind: str, command: str, attack: Attack) -> Command:
    attack.status(state="stopped")
    _not_a_file((attack.step if name in FILES_OF_A_STEP else attack.run) / name, kind, attack.folder / "secret")
    match command:
        case "report":
            return "report", [str(attack.run), f"out={attack.folder / 'page'}"]
        case "train":
            return _train(f"run_dir={attack.run}")
    return _evaluate(attack)


FILES_OF_A_STEP = (checkpoint.ARRAYS_FILE, checkpoint.STATE_FILE, checkpoint.MANIFEST)
READERS = {
    "config.yaml": ("evaluate", "report"),
    **dict.fromkeys(FILES_OF_A_STEP, ("evaluate",)),
    "checkpoints/LATEST": ("evaluate",),
    **dict.fromkeys(("status.json", "metrics.csv", "command.txt"), ("report", "train")),
    **dict.fromkeys(("result.json", "versions.json"), ("report",)),
}


def _strange_files() -> Iterator[Callable[[Attack], Command]]:
    for name, commands in READERS.items():
        for command in commands:
            for kind in ("pipe", "device", "link", "endless"):
                made = partial(_strange_file, name, kind, command)
                made.__name__ = f"{kind}_as_{Path(name).name}_in_{command}"  # type: ignore[attr-defined]
                yield made


# A folder full of modules, a stranger's run at that, as the working directory --------------------------------------

SHADOWED = ("envs", "agents", "rewards", "torch", "numpy", "gymnasium", "yaml", "safetensors", "hydra", "wandb", "ray")
SHADOWED += (
    "json",
    "tomllib",
    "csv",
    "sqlite3",
    "multiprocessing",
    "selectors",
    "random",
    "evil_plugin",
    "highway_env",
)
PLUGINS = "".join(
    f"[{group}]\n{name} = evil_plugin:load\n"
    for group, name in (("gymnasium.envs", "__root__"), ("lodestar_rl.rewards", "evil"), ("torch.backends", "evil"))
)
VISITS: dict[str, tuple[str, ...]] = {
    "train": ("env=CartPole-v1", "total_timesteps=64", "backend=workers", "eval_episodes=1", "video=false", "root=new"),
    "evaluate": ("run=.", "episodes=1", "video=false"),
    "watch": ("run=.", "out=video.gif", "episodes=1", "steps=5"),
    "export": ("run=.", "format=safetensors"),
    "report": (".", "out=page"),
    "sweep": ("env=CartPole-v1", "total_timesteps=64", "eval_episodes=0", "video=false", "seed=0,1", "root=new"),
    "tune": ("env=CartPole-v1", "total_timesteps=64", "trials=1", "root=new", "agent.n_steps=32"),
    "record": ("policy=.", "out=data.safetensors", "steps=10"),
    "offline": ("data=none.safetensors",),
    "annotate": ("record=none.safetensors", "out=labels.jsonl"),
    "compare": ("env=CartPole-v1", "reward=rnd", "root=new", "rows=64"),
    "list": ("rnd",),
    "doctor": ("only=cores,packages",),
    "explain": ("run=.", "episodes=2", "steps=5"),
}


def _visit(command: str, attack: Attack) -> Command:
    for name in SHADOWED:
        attack.write(f"run/{name}.py", attack.code)
    attack.write("run/evil-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    attack.write("run/evil-1.0.dist-info/entry_points.txt", PLUGINS)
    attack.elsewhere = True
    return command, [*VISITS[command]]


def _visits() -> Iterator[Callable[[Attack], Command]]:
    for command in VISITS:
        made = partial(_visit, command)
        made.__name__ = f"{command}_in_a_folder_of_modules"  # type: ignore[attr-defined]
        yield made


NAMES = (
    _sb3_zip, _pickled_policy, _pickled_arrays, _strange_state, _deep_state, _latest_elsewhere, _endless_link,
    _tagged_config, _target_in_config, _class_in_config, _module_beside, _module_recorded, _module_watched,
    _module_exported, _option_in_config, _target_typed, _interpolated, _hydra_keys, _module_as_agent, _path_upwards,
    _name_upwards, _tagged_preset, _pickled_recording, _recording_names_module, _pickled_clip, _pickled_cache,
    _written_factors, _option_with_hyphen, _option_deep_down, _module_with_hyphen, _module_with_colon, _judge_in_config,
    _module_in_preset, _option_in_preset, _judge_in_preset, _trust_in_preset, _folder_in_preset, _bomb_in_preset,
    _recording_annotated, _recording_with_option,
)  # fmt: skip
VISITING, READING = (*_visits(),), (*_strange_files(),)
ATTACKS: tuple[Callable[[Attack], Command], ...] = (*NAMES, *READING, *VISITING)
# What is false in them is passed over, and the command may succeed.
HARMLESS = (_latest_elsewhere, _pickled_cache, *READING, *VISITING)
