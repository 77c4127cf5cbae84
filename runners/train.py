"""Train an agent on a reward, then report the task's own return.

    python -m runners.train env=CartPole-v1 reward=rnd

command line -> config -> envs -> mix -> agent -> learn -> evaluate -> report
"""

import functools
import math
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.vector.watchdog import WorkerError
from lodestar.memory import peak_memory
from runners.cli.command import Command
from runners.cli.compose import compose
from runners.cli.presets import needed_steps
from runners.evaluation.play import SEED, disagreement, evaluation, policy, table
from runners.run import checkpoint
from runners.run.build import Parts, build
from runners.run.checkpoint import write_json
from runners.run.child import Control, start_control
from runners.run.config import TrainConfig, Values
from runners.run.exits import STORAGE, Failed, Signals, Stopped, explain, save_kept
from runners.run.folder import CRASHES, open_folder
from runners.run.judged import judge_results, judge_sentences, no_label_sentences
from runners.run.output import activity
from runners.run.trust import mask_secrets

if TYPE_CHECKING:
    from runners.run.progress import Live, Saver


def train(argv: list[str]) -> int:
    """The whole run; returns the exit code."""
    return train_in(argv)[0]


def train_in(argv: list[str]) -> tuple[int, Path]:
    """The whole run, top to bottom; returns the exit code and the run's folder."""
    config, preset = compose(argv)
    with Signals() as signals, Work(config, argv) as work, ExitStack() as after:
        if work.folder.is_finished(config):
            path = work.folder.relative_words(work.folder.path)
            print(f"{path} is finished already; nothing to do, but more total_timesteps extend it")
            return 0, work.folder.path
        make_vector = after.enter_context(cluster_envs(config))
        parts = build(config, work.folder.path / CRASHES, make_vector=make_vector)
        require(parts, work.folder.new)
        saver = work.begin(parts, signals)
        announce(config, preset, parts, work)
        work.control = start_control(config, argv, work.folder.path)

        signals.deferred = True
        learn(config, parts, saver, work)
        saver.live.close()
        signals.release()

        work.phase = "report"
        if config.eval_episodes:
            work.show("evaluating")
        scores = {}
        if config.eval_episodes:
            scores = evaluation(config, parts.model, parts.mix, config.eval_episodes, config.seed)
        if config.fitted:
            scores["this run"]["fitted_value"] = estimate_value(config, parts)
        # Drawn while the control run, which began a little later, ends.
        lines = draw_policy(config, parts, work)
        if config.eval_episodes and work.control is not None:
            add_control(scores, work.control)
        report(config, parts, scores, lines, work)
        parts.model.logger.close()
        parts.mix.close()
        if saver.storage_error:
            work.end("failed", STORAGE, saver.storage_error)
            print(f"error: the last checkpoint could not be written: {saver.storage_error}", file=sys.stderr)
            return STORAGE, work.folder.path
        work.end("finished", 0)
        return 0, work.folder.path


def cluster_envs(config: TrainConfig) -> AbstractContextManager[Callable[..., Any] | None]:
    """What makes the environments on a cluster, where they are to be there; None for this process."""
    if config.cluster == "none":
        return nullcontext()
    from runners.cluster.fleet import cluster

    return cluster(config)


def require(parts: Parts, fresh: bool) -> None:
    """Refuse to begin a run without what its rewards need; one that continues waits for it."""
    # Few runs ask a language model, so the others do not import this.
    from rewards.llm.judges.cores import hold_cores

    with hold_cores():
        sentences = parts.mix.preflight()
    for missing in sentences:
        if fresh:
            raise ValueError(missing)
        print(f"note: {missing}; the run continues without it until it is there")


def announce(config: TrainConfig, preset: str | None, parts: Parts, work: "Work") -> None:
    """What is about to happen; the composed reward first."""
    print(f"reward: {parts.mix.describe()}")
    notes = [*parts.mix.notes(), *getattr(parts.model, "notes", []), *parts.notes]
    if work.step == 0:
        # It brings torch, which a mistake on the command line need not wait for.
        from runners.compare.staying import staying_notes

        notes += staying_notes(config)
    for note in notes:
        print(f"note: {note}")
    if parts.taken:
        print(f"begins {parts.taken}")
    if preset:
        print(f"preset: {preset} (preset=none switches it off)")
        steps = needed_steps(preset.split(" + "), config.env, config.agent_name, list(config.reward))
        if config.total_timesteps < steps:
            print(f"note: this run stops at {config.total_timesteps:,} steps, the task took {steps:,} to learn")
    print(f"run: {describe_run(config, parts)}, seed {config.seed}, {parts.device}")
    progress = f", continues at step {work.step:,}" if work.step else ""
    print(f"folder: {work.folder.relative_words(work.folder.path)}{progress}", flush=True)
    size = parts.n_envs * rollout_steps(parts.model)
    end = work.step + size * math.ceil((config.total_timesteps - work.step) / size)
    if end > config.total_timesteps:
        print(f"note: {end:,} steps will be trained, as they come in rollouts of {size:,}", flush=True)


def describe_run(config: TrainConfig, parts: Parts) -> str:
    """The agent, what it learns from, and for how long."""
    if config.data:
        files = ",".join(config.data)
        return f"{config.agent_name} on data={files} of {config.env_label}, {config.total_timesteps:,} minibatches"
    plural = "s" if parts.n_envs > 1 else ""
    place = f"{parts.n_envs} environment{plural}"
    return f"{config.agent_name} on {config.env_label}, {config.total_timesteps:,} steps, {place}"


def rollout_steps(model: Any) -> int:
    """Steps of each environment in a rollout, of our agents and of Stable-Baselines3's; 1 where there is a replay."""
    if hasattr(model, "collector"):
        return model.collector.rollout.length
    if hasattr(model, "steps") and model.steps.in_rollouts:
        return math.ceil(model.config.rollout / model.steps.n)
    return model.n_steps if hasattr(model, "rollout_buffer") else 1


def learn(config: TrainConfig, parts: Parts, saver: "Saver", work: "Work") -> None:
    """For as many steps as are left."""
    from stable_baselines3.common.callbacks import CallbackList

    work.phase = "training"
    # It takes long where an update is compiled for the first time.
    work.show("first rollout and update")
    steps_left = config.total_timesteps - work.step
    if steps_left <= 0:
        # It was killed between the last checkpoint and the end of the report.
        saver.restore(parts.model, training=False)
        return
    # The rest of the agent's state is restored at the first rollout.
    parts.model.num_timesteps = work.step
    callbacks: list[Any] = [saver]
    if parts.driver is not None:
        callbacks.append(parts.driver)
    try:
        # The saver writes the rows of the log.
        parts.model.learn(
            steps_left,
            callback=CallbackList(callbacks),
            log_interval=None,  # type: ignore[arg-type]
            reset_num_timesteps=work.step == 0,
        )
    except WorkerError:
        # The environments are lost for good.
        saver.save_held()
        raise
    saver.finish()


def add_control(scores: dict[str, Values], control: Control) -> None:
    """Wait for the control run, and put its scores beside those of this policy and of a random one."""
    if control.process.poll() is None:
        print("waiting for the control run", flush=True)
        activity.begin("waiting for the control run")
    result = control.result()
    if result is None:
        print(f"the control run failed; its output is in {control.log}")
    else:
        scores[control.label] = result


def estimate_value(config: TrainConfig, parts: Parts) -> float:
    """What the policy is worth by its recording alone, by fitted Q evaluation."""
    from agents.offline.fitted import fitted_value

    activity.begin("estimating the policy's value from the recording")
    recorded: Any = parts.venv
    model: Any = parts.model
    # The learned reward is never its own judge: these are the task's.
    return fitted_value(model, recorded.unrated, config.fitted, config.agent.gamma, config.seed)


def report(config: TrainConfig, parts: Parts, scores: Values, lines: list[str], work: "Work") -> None:
    """Numbers, the lines about pictures that are there already, the curve, and the line for TensorBoard."""
    from runners.evaluation.closing import write_scores
    from runners.run.curve import curve
    from runners.run.tensorboard import command_line

    write_scores(parts.model.logger, scores, work.step)
    print_scores(parts, scores)
    path = work.folder.path
    title = f"{config.env_label}: {parts.mix.describe()}"
    lines.append(draw("curve", lambda: curve(path, title, scores=scores, control=work.control), work))
    print("\n".join(lines))
    if "tensorboard" in config.logger:
        print(f"tensorboard: {command_line(work.folder.relative_words(path))}")
    with suppress(OSError):
        write_json(path / "result.json", scores)


def print_scores(parts: Parts, scores: Values) -> None:
    """The table of the evaluation, if there was one, and what the judges answered."""
    judge_uses = judge_results(parts.mix)
    sentences = judge_sentences(judge_uses)
    if scores:
        this_run = scores["this run"]
        print(f"\nthe task's own scores over {this_run['episodes']} episodes of the trained policy")
        print(table(scores))
        if "fitted_value" in this_run:
            print(f"value by the recording alone (discounted): {this_run['fitted_value']:.4g}")
        window = list(parts.model.ep_info_buffer or [])
        note = disagreement(this_run, [episode["r"] for episode in window])
        if note:
            print(note)
    else:
        # Otherwise the table says it.
        sentences += no_label_sentences(judge_uses)
    for sentence in sentences:
        print(f"note: {sentence}")


def draw_policy(config: TrainConfig, parts: Parts, work: "Work") -> list[str]:
    """Draw what needs no scores: the video, and an agent's map; a line about each."""
    from lodestar.video import video_suffix
    from runners.evaluation.closing import write_video
    from runners.run.curve import archive
    from runners.run.tensorboard import video_writer
    from runners.run.video import record_video

    path = work.folder.path

    def film() -> str:
        act = policy(parts.model, config, seed=config.seed)
        add_to_log = video_writer(config, path, work.step)
        video = path / f"video{video_suffix()}"
        place = record_video(config, act, parts.mix, video, SEED + 1000 * config.seed, add_to_log)
        if video.exists():
            write_video(parts.model.logger, video, work.step)
        return place

    lines = []
    if config.video:
        lines.append(draw("video", film, work))
    if hasattr(parts.model, "map"):
        lines.append(draw("archive", lambda: archive(path, parts.model), work))
    return lines


def draw(name: str, draw_picture: Callable[[], object], work: "Work") -> str:
    """Draw one picture; a line that says where it is. One that fails is a sentence, not a failed run."""
    work.show(f"drawing the {name}")
    try:
        words = work.folder.relative_words(draw_picture())
    except Exception as error:
        if os.environ.get("LODESTAR_DEBUG"):
            traceback.print_exc()
        words = f"none ({type(error).__name__}: {error})"
    return f"{name + ':':<13}{words}"


class Work:
    """A run in its folder: whatever ends it is written down, and the folder is left in order."""

    def __init__(self, config: TrainConfig, argv: list[str]) -> None:
        self.config = config
        self.argv = argv
        self.phase = "set-up"
        # The folder is locked from here on.
        self.folder = open_folder(config)
        self.control: Control | None = None
        self._model: Any = None
        self._start = 0
        self._live: Live | None = None

    def __enter__(self) -> "Work":
        return self

    def show(self, doing: str) -> None:
        """Tell the terminal and status.json, which sweeps read, what the run does now."""
        activity.begin(doing)
        with suppress(OSError):
            self.folder.write_status(doing=doing)

    @property
    def step(self) -> int:
        """Environment steps so far."""
        if self._model is None:
            return self._start
        return max(self._start, self._model.num_timesteps)

    def begin(self, parts: Parts, signals: Signals) -> "Saver":
        """Read the newest checkpoint, write down the run, open its logs, make the callback that saves it."""
        from runners.run.progress import Live, Saver, make_logger

        config = self.config
        newest = checkpoint.load(self.folder.checkpoints, tidy=True)
        state, self._start = newest or (None, 0)
        last_row = 0
        if state is not None:
            last_row = state["log"]["rows"]
        elif config.init_from:
            from runners.run.policies import initialise

            parts.taken = initialise(config, parts)
        self.folder.begin(config, f"python -m runners.train {shlex.join(self.argv)}")
        live = Live(config.total_timesteps, self._start)
        self._live = live
        self._model = parts.model
        more = self._logs(parts, last_row)
        logger = make_logger(self.folder.path, live, step=last_row, warn=live.say, more=more)
        parts.model.set_logger(logger)
        evaluator = None
        if config.eval_every or config.video_every:
            from runners.evaluation.evaluator import Evaluator

            evaluator = Evaluator(config, self.folder.path, parts.mix, lambda: signals.received is not None, live.say)
        return Saver(config, self.folder, parts, signals, live, state, evaluator)

    def _logs(self, parts: Parts, last_row: int) -> dict[str, Callable[[], Any]]:
        """What makes the writers that the user asked for, beside that of metrics.csv; `last_row` is the row's step."""
        from runners.run.progress import TensorBoardLog

        path = self.folder.path
        config = self.config
        writers: dict[str, Callable[[], Any]] = {}
        if "tensorboard" in config.logger:
            from runners.run import tensorboard

            folder = path / "tensorboard"
            # If the disk is full, the log itself will say so.
            with suppress(OSError):
                tensorboard.begin(folder, config, self._start)
            writers["tensorboard"] = functools.partial(TensorBoardLog, folder, last_row)
            if config.histograms:
                writers["tensorboard"] = functools.partial(
                    tensorboard.HistogramLog, folder, last_row, model=parts.model, mix=parts.mix
                )
        if "wandb" in config.logger:
            from runners.run.wandb_log import WandbLog

            writers["wandb"] = functools.partial(WandbLog, path, config)
        return writers

    def end(self, state: str, code: int, error: str | None = None) -> None:
        """Write down how it ended; a folder in which nothing happened disappears."""
        if self._live is not None:
            self._live.close()
        if self._model is None and self.folder.new:
            self.folder.discard()
            return
        with suppress(OSError):
            self.folder.write_status(
                state=state, step=self.step, error=error, exit_code=code, peak_memory=peak_memory()
            )

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Stopped):
                self.end("stopped", error.code)
                print(f"stopped at step {self.step:,}; the same command continues from the last checkpoint")
            elif isinstance(error, Exception | SystemExit):
                code, sentence = explain(error, self.phase, self.step)
                sentence += save_kept(error, self.folder.path)
                self.end("failed", code, sentence or mask_secrets(str(error)))
                raise Failed(code, sentence) from error
        finally:
            if self.control is not None:
                self.control.stop()
            self.folder.close()


main = Command(None, train, stopped="", busy="setting up", help=lambda: import_module("runners.list").train_text())

if __name__ == "__main__":
    sys.exit(main())
