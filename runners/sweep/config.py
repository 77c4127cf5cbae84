"""What every command that runs jobs is given: where they are kept, and what runs them.

`runners.sweep`, `runners.tune` and `runners.transfer` add their own settings to these.
"""

import json
import shlex
import typing
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from lodestar.files import read_json
from lodestar.settings import Settings, declarations, setting, settings_of
from runners.cli.command import OPTIONS, REST, argument_text
from runners.cli.compose import compose
from runners.run.checkpoint import write_json
from runners.run.child import Argv
from runners.run.config import LOG_EVERY, TrainConfig, UsageError, Values, describe_unknown
from runners.run.value import cast, literals, replace_arguments
from runners.sweep.job import Job, Launcher

LAUNCHERS = {"local": "runners.sweep.local:Local", "ray": "runners.sweep.ray:Ray", "slurm": "runners.sweep.slurm:Slurm"}


@dataclass
class JobsConfig(Settings):
    """Settings of a command that runs jobs."""

    name: str = setting("", "of the folder below root; by default made of what is run")
    root: str = setting("runs", "folder that everything is written to")
    launcher: str = setting("local", "what runs the jobs", choices=tuple(LAUNCHERS))
    launcher_options: Values = setting({}, "options of the launcher")
    slots: int | None = setting(None, "jobs at once; by default one a core", ">= 1")
    gpus: float = setting(0.0, "share of a GPU for a job, as in 0.25 for four on one, or how many; 0: none", ">= 0")
    rest: list[str] = setting([], "keys of runners.train")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise UsageError(f"gpus={self.gpus:g} is out of range; give a share, 0 to 1, or a whole number")

    def command(self, module: str) -> str:
        """The command line that asks for this."""
        arguments = list(self.rest)
        for name, default, _ in settings_of(type(self)):
            value = getattr(self, name)
            if name.endswith(OPTIONS):
                for key, option in value.items():
                    arguments.append(f"{name.removesuffix(OPTIONS)}.{key}={argument_text(option)}")
            elif name != REST and value != default:
                arguments.append(f"{name}={argument_text(value)}")
        return f"python -m {module} {shlex.join(arguments)}"

    def launch(self) -> Launcher:
        """The launcher, with its options."""
        return make_launcher(self.launcher, {"slots": self.slots, **self.launcher_options})

    def job(self, folder: Path, name: str, argv: Argv, changes: Values) -> Job:
        """A run with some changes; `name` is its folder in that of the command, too."""
        place = (folder / name).absolute()
        given = literals({**changes, "run_dir": str(place)})
        return Job(name, tuple(replace_arguments(argv, given)), place, self.gpus)

    def refuse(self, *keys: str) -> None:
        """A UsageError if keys of runners.train were given that belong to the command itself."""
        for argument in self.rest:
            key = argument.partition("=")[0]
            if key in keys:
                raise UsageError(f"{key}= cannot be given here, as every run has its own folder; give name= or root=")

    def compose_search(self) -> tuple[TrainConfig, Argv]:
        """The plain run of a search, and what each is given: without video and control, which would double its cost."""
        self.refuse("run_dir", "resume")
        train, _ = compose(self.rest)
        if train.eval_episodes == 0:
            raise UsageError("eval_episodes=0 leaves nothing to judge runs by; give 1 or more")
        # However short a run is, its log has about 20 rows.
        log_every = min(LOG_EVERY, max(train.total_timesteps // 20, 1))
        return train, tuple(replace_arguments(("control=none", "video=false", f"log_every={log_every}"), self.rest))


def begin(folder: Path, settings: Values) -> None:
    """Write down the settings of a command that must not change; a UsageError if an earlier start had others."""
    path = folder / "plan.json"
    # JSON turns tuples into lists, so that what is read can be compared.
    settings = json.loads(json.dumps(settings))
    earlier = read_json(path) or settings
    if earlier != settings:
        changed_keys = []
        for key in settings:
            if settings[key] != earlier.get(key):
                changed_keys.append(key)
        keys = ", ".join(changed_keys)
        raise UsageError(f"{folder} was begun by another command (it differs in {keys}); give name= for a new one")
    write_json(path, settings)


def make_launcher(name: str, options: Values) -> Launcher:
    """A launcher by its name, and the declared fields of its class; a UsageError if one of them is unknown."""
    cls = resolve_name(LAUNCHERS[name])
    keys = []
    for key, declared in declarations(cls).items():
        if declared.help:
            keys.append(f"launcher.{key}")
    hints = typing.get_type_hints(cls)
    given = {}
    for option, value in options.items():
        key = f"launcher.{option}"
        if key not in keys:
            raise UsageError(describe_unknown(f"{name}'s launcher option", key, keys))
        if value is not None:
            given[option] = cast(key, value, hints[option])
    return cls(**given)
