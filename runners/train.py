"""Train an agent on a reward, then tell the task's own truth about it.

    python -m runners.train env=CartPole-v1 reward=rnd

command line -> config -> envs -> mix -> agent -> learn -> evaluate -> report
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.run.config import UsageError
from runners.run.packages import name_collision

if TYPE_CHECKING:
    from rewards.mix.mix import Mix
    from runners.run.config import TrainConfig
    from runners.run.control import Control
    from runners.run.exits import Signals
    from runners.run.folder import RunFolder
    from runners.run.log import Live
    from runners.run.saver import Saver

LOG_EVERY = 1000  # environment steps between two rows of the log, unless the user says otherwise


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    collision = name_collision()
    if collision:
        print(f"error: {collision}", file=sys.stderr)
        return 2
    if not argv or "--help" in argv or "-h" in argv:
        from runners.list import help_text

        print(help_text())
        return 0 if argv else 2

    from runners.run.exits import Signals, Stopped, explain, kept
    from runners.run.secrets import masked

    work = Work(argv)
    with Signals() as signals:
        try:
            return train(work, signals)
        except Stopped as stop:
            work.end("stopped", stop.code)
            print(f"stopped at step {work.step:,}; the same command continues from the last checkpoint")
            return stop.code
        except Exception as error:
            code, sentence = explain(error, work.phase, work.step)
            sentence += kept(error, getattr(work, "folder", None))
            work.end("failed", code, sentence or masked(str(error)))
            if not sentence or os.environ.get("LODESTAR_DEBUG"):
                print(masked(traceback.format_exc()), file=sys.stderr)
            if sentence:
                print(f"error: {sentence}", file=sys.stderr)
            return code
        finally:
            work.close()


def train(work: Work, signals: Signals) -> int:
    """The whole run, top to bottom."""
    from runners.cli.compose import compose

    config, preset = compose(work.argv)
    folder = work.open(config)
    if folder.status().get("state") == "finished":
        print(f"{folder.path} is finished already; nothing to do")
        return 0
    parts = build(config, folder.path / "crashes")
    state = work.saved_state()
    saver, live = work.begin(config, parts, state, signals)
    announce(config, preset, parts, work)
    control = start_control(config, work)

    signals.deferred = True
    learn(config, parts, saver, work)
    live.close()
    signals.release()

    work.phase = "report"
    scores = evaluate(config, parts, control)
    report(config, parts, scores, control, work)
    parts.mix.close()
    code = 5 if saver.storage_error else 0
    work.end("failed" if code else "finished", code, saver.storage_error)
    if saver.storage_error:
        print(f"error: the last checkpoint could not be written: {saver.storage_error}", file=sys.stderr)
    return code


@dataclass
class Parts:
    """What learns, what pays it, and where."""

    venv: Any  # a Gymnasium vector, or an SB3 VecEnv
    mix: Mix
    model: Any
    driver: Any  # the callback that feeds the mix; None for an agent that does so itself
    n_envs: int
    device: str


def build(config: TrainConfig, crashes: Path | None = None) -> Parts:
    """Environments, mix and agent, and the driver the agent takes a reward through; workers crash into a folder."""
    import torch
    from stable_baselines3.common.utils import set_random_seed

    import agents
    from envs.finite import OnNan
    from envs.make import make
    from rewards.adapters.guided import make_mix
    from runners.run.malloc import keep_freed_memory

    torch.set_num_threads(config.num_threads)
    keep_freed_memory()
    set_random_seed(config.seed)
    device = find_device(config.device)
    agent = agents.get(config.agent_name)
    n_envs = config.n_envs or agent.n_envs
    one = make(config.env, max_episode_steps=config.max_episode_steps, **config.env_options)
    observation_space, action_space = one.observation_space, one.action_space
    one.close()
    agent.check(observation_space, action_space)
    spaces = (observation_space, action_space)
    mix = make_mix(config.reward, *spaces, gamma=config.agent.gamma, seed=config.seed, device=device)
    mix.on_nan = OnNan(config.on_nan)
    venv = make_envs(config, agent.driver, n_envs, mix, crashes)
    if agent.driver == "scorer":  # it takes the mix itself
        model = agent.build(config.agent, venv, seed=config.seed, device=device, scorer=mix)
        return Parts(venv, mix, model, None, n_envs, device)
    driver, buffer = make_driver(agent.driver, mix, venv)
    model = agent.build(config.agent, venv, seed=config.seed, device=device, buffer=buffer)
    return Parts(venv, mix, model, driver, n_envs, device)


def make_envs(config: TrainConfig, driver: str, n: int, mix: Mix, crashes: Path | None = None) -> Any:
    """The environments of a run: a Gymnasium vector for our agents, a VecEnv for Stable-Baselines3's."""
    from agents.sb3.agent import make_venv
    from envs.make import make_vec
    from rewards.adapters.guided import guided, guides

    options: dict[str, Any] = {"max_episode_steps": config.max_episode_steps, "frame_size": mix.frame_size}
    options |= {name: name in mix.requires for name in ("text", "signals")} | config.env_options
    watchdog = {"step_timeout": config.step_timeout, "on_error": config.on_env_error, "crash_folder": crashes}
    workers = watchdog if config.backend == "workers" else None
    if driver == "scorer":
        envs = make_vec(config.env, n, seed=config.seed, backend=config.backend, workers=workers, **options)
        return guided(envs, mix)
    unfit = ("batched", "workers") if guides(mix) else ("batched",)
    if config.backend in unfit:
        raise UsageError(
            f"backend={config.backend} does not fit agent={config.agent_name}; use agent=ppo, or backend=auto"
        )
    wrap = functools.partial(guided, mix=mix) if guides(mix) else None
    return make_venv(config.env, n, config.seed, workers=workers, wrap=wrap, **options)


def find_device(wanted: str) -> str:
    """`auto` takes a GPU if there is one; a device that is not there is refused."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there[wanted.split(":")[0]]:
        found = ", ".join(name for name, present in there.items() if present)
        raise UsageError(f"device={wanted} is not on this machine (it has {found}); give one of these, or auto")
    return wanted


def make_driver(kind: str, mix: Mix, venv: Any) -> tuple[Any, Any]:
    """The callback that feeds the mix, and (replay buffer class, its arguments) for off-policy agents."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

    from rewards.adapters.sb3 import RelabelCallback, RewardCallback, relabelling

    if kind == "rollout":
        return RewardCallback(mix), None
    plain = DictReplayBuffer if isinstance(venv.observation_space, spaces.Dict) else ReplayBuffer
    return RelabelCallback(), (relabelling(plain), {"mix": mix})


def announce(config: TrainConfig, preset: str | None, parts: Parts, work: Work) -> None:
    """What is about to happen; the composed reward first."""
    print(f"reward: {parts.mix.describe()}")
    for note in [*parts.mix.notes(), *getattr(parts.model, "notes", [])]:
        print(f"note: {note}")
    if preset:
        print(f"preset: {preset} (preset=none switches it off)")
    print(
        f"run: {config.agent_name} on {config.world}, {config.total_timesteps:,} steps, "
        f"{parts.n_envs} environment{'s' if parts.n_envs > 1 else ''}, "
        f"seed {config.seed}, {parts.device}"
    )
    print(f"folder: {work.folder.path}" + (f", continues at step {work.step:,}" if work.step else ""), flush=True)


def start_control(config: TrainConfig, work: Work) -> Control | None:
    """The control run in a second process, if the reward names one and the run is short."""
    from runners.run import control

    if not control.wanted(config):
        return None
    try:
        work.control = control.Control(config, work.argv, work.folder.path)
    except OSError as error:
        print(f"no control run ({error}); training goes on without it")
        return None
    print(f"{work.control.label}, beside this run (control=none switches it off)", flush=True)
    return work.control


def learn(config: TrainConfig, parts: Parts, saver: Saver, work: Work) -> None:
    """For as many steps as are left."""
    from stable_baselines3.common.callbacks import CallbackList

    work.phase = "training"
    left = config.total_timesteps - work.step
    if left > 0:
        parts.model.num_timesteps = work.step  # the rest is restored at the first rollout
        with saver.rescuing():
            parts.model.learn(
                left,
                callback=CallbackList([saver] if parts.driver is None else [saver, parts.driver]),
                log_interval=None,  # the saver writes the rows
                reset_num_timesteps=work.step == 0,
            )
        saver.finish()
    else:  # killed between the last checkpoint and the end of the report
        saver.recall(parts.model)
    parts.model.logger.close()


def evaluate(config: TrainConfig, parts: Parts, control: Control | None) -> dict[str, dict[str, Any]]:
    """The task's truth about this policy, a random one, and the control's."""
    if config.eval_episodes == 0:
        return {}
    from runners.evaluate import evaluation

    scores = evaluation(config, parts.model, parts.mix, config.eval_episodes, config.seed)
    if control is not None:
        if control.process.poll() is None:
            print("waiting for the control run", flush=True)
        result = control.result()
        if result is None:
            print(f"the control run failed; its last words are in {control.log}")
        else:
            scores[control.label] = result
    return scores


def report(config: TrainConfig, parts: Parts, scores: dict[str, Any], control: Control | None, work: Work) -> None:
    """Numbers, film, curve, and the line for TensorBoard. A picture that fails costs a sentence, not the run."""
    from runners.evaluate import table
    from runners.run.checkpoint import write_atomically
    from runners.run.curve import curve
    from runners.run.video import film

    path = work.folder.path
    if scores:
        print(f"\ntask truth over {scores['this run']['episodes']} episodes of the trained policy")
        print(table(scores))
    pictures: list[tuple[str, Callable[[], object]]] = [
        ("curve", lambda: curve(path, f"{config.world}: {parts.mix.describe()}", scores=scores, control=control))
    ]
    if config.video:
        pictures.append(("video", lambda: film(config, parts.model, parts.mix, path / "video.mp4", seed=config.seed)))
    for name, draw in reversed(pictures):
        try:
            print(f"{name + ':':<13}{draw()}")
        except Exception as error:
            if os.environ.get("LODESTAR_DEBUG"):
                traceback.print_exc()
            print(f"{name + ':':<13}none ({type(error).__name__}: {error})")
    print(f"{'tensorboard:':<13}{sys.executable} -m tensorboard.main --logdir {shlex.quote(str(path))}")
    with suppress(OSError):
        write_atomically(path / "result.json", json.dumps(scores, indent=1) + "\n")


class Work:
    """What must be known, and tidied up, however a run ends."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.phase = "set-up"
        self.folder: RunFolder
        self.control: Control | None = None
        self._model: Any = None
        self._start = 0
        self._live: Live | None = None
        self._opened = False

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self._start if self._model is None else max(self._start, int(self._model.num_timesteps))

    def open(self, config: TrainConfig) -> RunFolder:
        """Lock the folder this command works in."""
        from runners.run.folder import open_folder

        self.folder = open_folder(config)
        self._opened = True
        return self.folder

    def saved_state(self) -> dict[str, Any] | None:
        """The newest whole checkpoint of the folder."""
        from runners.run import checkpoint

        found = checkpoint.load(self.folder.checkpoints, tidy=True)
        if found is None:
            return None
        state, self._start = found
        return state

    def begin(
        self, config: TrainConfig, parts: Parts, state: dict[str, Any] | None, signals: Signals
    ) -> tuple[Saver, Live]:
        """Write down the run, open its logs, make the callback that keeps it."""
        from runners.run.log import Live, make_logger
        from runners.run.saver import Saver

        self.folder.begin(config, f"python -m runners.train {shlex.join(self.argv)}")
        self._live = live = Live(int(config.total_timesteps), self._start)
        self._model = parts.model
        parts.model.set_logger(make_logger(self.folder.path, live, step=self._start, warn=live.say))
        saver = Saver(
            self.folder.checkpoints,
            parts.mix,
            parts.driver,
            signals,
            live,
            every=int(config.checkpoint_every),
            log_every=int(config.log_every) or LOG_EVERY,
            state=state,
            on_save=self._saved,
        )
        return saver, live

    def _saved(self, step: int) -> None:
        with suppress(OSError):
            self.folder.write_status(step=step)

    def end(self, state: str, code: int, error: str | None = None) -> None:
        """Write down how it ended; a folder in which nothing happened disappears."""
        if self._live is not None:
            self._live.close()
        if not self._opened:
            return
        if self._model is None and self.folder.new:
            self.folder.discard()
            self._opened = False
            return
        with suppress(OSError):
            self.folder.write_status(state=state, step=self.step, error=error, exit_code=code)

    def close(self) -> None:
        """Stop the control run and let others into the folder."""
        if self.control is not None:
            self.control.stop()
        if self._opened:
            self.folder.close()


if __name__ == "__main__":
    sys.exit(main())
