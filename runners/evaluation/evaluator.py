"""Evaluation while a run trains: the task's own scores of the policy so far, its best weights, videos.

A second agent plays, with the weights of the one that trains, whose random numbers and memory stay as they are: a run
learns the same whether it is evaluated or not.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lodestar.files import make_folder
from lodestar.state import Stateful
from lodestar.video import video_suffix
from runners.evaluation.closing import write_video
from runners.evaluation.play import SEED, limits_of, play, policy
from runners.run import checkpoint
from runners.run.build import build_actor
from runners.run.config import TrainConfig
from runners.run.folder import VIDEOS, mean_costs
from runners.run.progress import TASK_RETURN, random_state, set_random_state
from runners.run.tensorboard import video_writer
from runners.run.video import Act, record_video

if TYPE_CHECKING:
    from rewards.mix.mix import Mix
    from runners.run.build import Model

# Tag in the log -> entry of `Scores.to_dict`.
EVALUATION_TAGS = {
    "eval/return": "task_return",
    "eval/length": "length",
    "eval/success": "success",
    "eval/goal_steps": "goal_steps",
}


class Interrupted(BaseException):
    """A signal asks the run to save: the evaluation is left, and done when the run continues."""


@dataclass(eq=False)
class Evaluator(Stateful):
    """Evaluates every `eval_every` steps, keeps the best policy's weights, records a video every `video_every`."""

    saved = ("evaluated", "filmed", "best")

    config: TrainConfig
    folder: Path
    mix: "Mix"
    interrupted: Callable[[], bool]
    say: Callable[[str], None]
    # Environment steps at the last evaluation and at the last video.
    evaluated: int = 0
    filmed: int = 0
    # The highest task return so far.
    best: float = -math.inf
    # The second agent, made when it is needed.
    _model: Any = None

    def is_due(self, step: int) -> bool:
        """Whether an evaluation is to be done at this step; still so after one that a signal cut short."""
        return _is_due(self.config.eval_every, self.evaluated, step)

    def __call__(self, step: int, model: "Model", last: bool = False) -> dict[str, float]:
        """Do what is due at this step; the tags of an evaluation, for the log.

        A signal cuts it short, but not the `last` one: no rollout follows, before which it could be done again.
        """
        evaluates = self.is_due(step)
        films = _is_due(self.config.video_every, self.filmed, step)
        if not (evaluates or films):
            return {}
        state_before = random_state()
        scores = {}
        try:
            # An evaluation that is done when a signal cuts the video short stays.
            with suppress(Interrupted):
                act = self._policy(model, interruptible=not last)
                if evaluates:
                    scores = self._evaluate(step, act)
                if films:
                    self._film(step, act, model)
        finally:
            set_random_state(state_before)
        return scores

    def _film(self, step: int, act: Act, model: "Model") -> None:
        """A video; one that fails is a sentence, not the end of training."""
        path = self.folder / VIDEOS / f"step_{step:012d}{video_suffix()}"
        try:
            make_folder(path.parent)
            also = video_writer(self.config, self.folder, step)
            record_video(self.config, act, self.mix, path, SEED + 1000 * self.config.seed, also)
            if path.exists():
                write_video(model.logger, path, step)
        except Exception as error:
            self.say(f"no video at step {step:,} ({type(error).__name__}: {error}); training continues")
        self.filmed = step

    def _policy(self, model: "Model", interruptible: bool) -> Act:
        if self._model is None:
            self._model = build_actor(self.config, self.mix).model
        self._model.policy.load_state_dict(model.policy.state_dict())
        if getattr(model, "masked", False):
            self._model.masked = True
        act = policy(self._model, self.config, seed=self.config.seed)

        def act_unless_interrupted(obs: Any, begins: Any, mask: Any = None) -> Any:
            if interruptible and self.interrupted():
                raise Interrupted
            return act(obs, begins, mask)

        return act_unless_interrupted

    def _evaluate(self, step: int, act: Act) -> dict[str, float]:
        config = self.config
        limits = limits_of(config, config.seed)
        episodes = max(config.eval_episodes, 1)
        scores = play(config.env, act, episodes, mix=self.mix, **limits).to_dict()
        if scores["task_return"] > self.best:
            self.best = scores["task_return"]
            state = {
                "agent": {"modules": {"policy": self._model.policy.state_dict()}},
                "mix": self.mix.state_dict(),
                "masked": getattr(self._model, "masked", False),
            }
            try:
                checkpoint.save(self.folder / checkpoint.BEST, state, step, keep=1)
            except OSError as error:
                self.say(f"the best policy, of step {step:,}, is not kept ({error}); training continues")
        self.evaluated = step
        values = {}
        for tag, key in EVALUATION_TAGS.items():
            if scores[key] is not None:
                values[tag] = float(scores[key])
        for name, cost in mean_costs(scores).items():
            values[f"eval/{name}_cost"] = cost
        # Who learns from a recording has no other returns to draw, nor to prune by.
        if config.data:
            values[TASK_RETURN] = float(scores["task_return"])
        return values


def _is_due(every: int, last: int, step: int) -> bool:
    """Whether a multiple of `every` lies between the step of the last time and this one."""
    return every > 0 and step // every > last // every
