"""Watch a saved run: its policy in the environment, and what each part of the reward pays for every step.

    python -m runners.watch run=runs/CartPole-v1/ppo-task+rnd/20261121-120000-s0              a window
    python -m runners.watch run=... out=film.mp4 episodes=1                                     a file, mp4 or gif

Each episode is played first and then shown, so that its rewards are drawn on the scale of the whole episode.
keys:
    run=         a run's folder
    episodes=    how many (3)
    out=         a file to write instead of opening a window (watch.mp4 in the run's folder where there is no screen)
    window=      true or false; auto opens one if there is a screen and no out= (auto)
    checkpoint=  environment steps of the checkpoint to watch (the newest)
    policy=      random, to see what the rewards say of chance
    seed=        of the first episode (0); the episodes of runners.evaluate are others
    steps=       at most so many of each episode (1000)
    trust=       whether the run may name code and servers, as in env=module:Id (false)
In the window: space pauses, n goes to the next episode, up and down (or right and left) make it faster and slower,
q quits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.record import command, parsed
from runners.run.config import UsageError, unknown

if TYPE_CHECKING:
    from rewards.mix.mix import Mix
    from runners.run.config import TrainConfig
    from runners.run.video import Episode

FASTEST = 16.0  # times real time; the slowest is its inverse
LINGER_S = 0.7  # that the last picture of an episode stays


@dataclass
class WatchConfig:
    """What to watch; the module's docstring explains the keys."""

    run: str = ""
    episodes: int = 3
    out: str = ""
    window: str = "auto"
    checkpoint: int = -1
    policy: str = "trained"
    seed: int = 0
    steps: int = 1000
    trust: bool = False

    def __post_init__(self) -> None:
        if not self.run:
            raise UsageError("run= is missing; give a run's folder below runs/")
        for name, low in (("episodes", 1), ("steps", 1), ("seed", 0), ("checkpoint", -1)):
            if getattr(self, name) < low:
                value = getattr(self, name)
                raise UsageError(f"{name}={value} is out of range; give a whole number, {max(low, 0)} or more")
        for name, known in (("window", ("auto", "true", "false")), ("policy", ("trained", "random"))):
            if getattr(self, name) not in known:
                raise UsageError(unknown(name, getattr(self, name), known))
        if self.out and Path(self.out).suffix not in (".mp4", ".gif"):
            raise UsageError(f"out={self.out} is neither a film nor a gif; give a name that ends with .mp4 or .gif")
        if self.out and self.window == "true":
            raise UsageError(f"out={self.out} writes a file and window=true opens a window; give one of them")
        if self.window == "true" and not has_screen():
            raise UsageError("window=true needs a screen, and there is none; give out=film.mp4")


def has_screen() -> bool:
    """Whether a window can be opened; a video driver that the user chose is believed in."""
    named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    return sys.platform in ("win32", "darwin") or named


def watch(config: WatchConfig) -> str:
    """Play, and show or write; returns a sentence about what was seen."""
    run = Path(config.run)
    opens = config.window == "true" or (config.window == "auto" and not config.out and _real_screen())
    trained, model, mix, step = load_at(run, config.checkpoint, config.trust)
    who = f"step {step:,}" if config.policy == "trained" else "a random policy"
    label = f"{trained.world}, {who}"
    episodes = played(config, trained, model, mix)
    fps = frames_a_second(trained.env)
    if not opens:
        from runners.run.video import write

        path = Path(config.out) if config.out else run / "watch.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        return f"{path}: {write(path, episodes, fps):,} frames of {label}"
    window = Window(label, fps)
    try:
        for number, episode in enumerate(episodes, start=1):
            print(told(number, episode), flush=True)
            if not window.show(episode, f"episode {number} of {config.episodes}"):
                break
    finally:
        window.close()
    return f"{window.shown:,} pictures of {label}"


def _real_screen() -> bool:
    return has_screen() and os.environ.get("SDL_VIDEODRIVER") != "dummy"


def load_at(run: Path, step: int = -1, trust: bool = False) -> tuple[TrainConfig, Any, Mix, int]:
    """A run at its newest checkpoint, or at that of a step: configuration, agent, mix, environment steps.

    Raises:
        UsageError: if there is no such checkpoint; names those that are there.
    """
    from runners.evaluate import load_run
    from runners.run import checkpoint

    config, model, mix = load_run(run, trust)
    folders = {int(path.name.split("_")[1]): path for path in sorted((run / "checkpoints").glob("step_*"))}
    if step < 0:
        return config, model, mix, max(folders)
    if step not in folders:
        known = ", ".join(map(str, sorted(folders)))
        raise UsageError(f"checkpoint={step} is not in {run}; there are those of the steps {known}")
    state, _ = checkpoint.read(folders[step])
    model.policy.load_state_dict(state["agent"]["modules"]["policy"])
    mix.load_state_dict(state["mix"])
    return config, model, mix, step


def played(config: WatchConfig, trained: TrainConfig, model: Any, mix: Mix) -> Iterator[Episode]:
    """The episodes, one after the other."""
    from runners.evaluate import policy
    from runners.run.video import can_be_drawn, opened, play

    act = None if config.policy == "random" else policy(model, trained.env)
    drawn = can_be_drawn(trained.env)
    world = opened(trained, mix, drawn)  # one for all: some environments take every window with them when they close
    try:
        for number in range(config.episodes):
            yield play(trained, act, mix, config.seed + number, config.steps, shown=drawn, world=world)
    finally:
        world.close()


def told(number: int, episode: Episode) -> str:
    """An episode in a line: its length, its end, the sum of each stream."""
    sums = ", ".join(f"{name} {values.sum():+.2f}" for name, values in episode.streams.items())
    return f"episode {number}: {len(episode.images)} steps, {episode.ending}; {sums}"


def frames_a_second(env_id: str) -> int:
    """What an environment says of its own time, in [5, 60]; 30 if it says nothing."""
    from envs.options import creator

    said = getattr(creator(env_id), "metadata", {}).get("render_fps") or 30
    return int(min(max(said, 5), 60))


class Window:
    """Shows episodes and heeds keys.

    Args:
        label: for the title.
        fps: pictures a second at real time.

    Attributes:
        speed: times real time.
        paused: whether time stands still.
        shown: pictures so far.
    """

    def __init__(self, label: str, fps: int) -> None:
        import pygame

        self.pygame, self.label, self.fps = pygame, label, fps
        self.speed, self.paused, self.shown = 1.0, False, 0
        pygame.display.init()
        self.clock = pygame.time.Clock()
        self.surface: Any = None

    def show(self, episode: Episode, name: str = "") -> bool:
        """Show an episode from its beginning; False if the window was closed."""
        from runners.run.video import draw

        t, last, wish = 0, len(episode.images) - 1, ""
        linger = LINGER_S * self.fps
        while wish == "" and (t < last or linger > 0 or self.paused):
            self._put(draw(episode, t), f"{name}, step {t + 1}")
            self.clock.tick(self.fps * self.speed)
            wish = self._heed()
            if not self.paused:
                linger -= t == last
                t = min(t + 1, last)
        return wish != "quit"

    def _put(self, picture: Any, words: str) -> None:
        size = (picture.shape[1], picture.shape[0])
        if not self.pygame.display.get_init():
            self.pygame.display.init()
            self.surface = None
        if self.surface is None or self.surface.get_size() != size:
            self.surface = self.pygame.display.set_mode(size)
        state = "paused" if self.paused else f"{self.speed:g}x"
        self.pygame.display.set_caption(f"{self.label}: {words}, {state}")
        self.pygame.surfarray.blit_array(self.surface, picture.swapaxes(0, 1))
        self.pygame.display.flip()
        self.shown += 1

    def _heed(self) -> str:
        """What the keys ask for: "quit", "next" or ""."""
        key = self.pygame
        for event in key.event.get():
            if event.type == key.QUIT or (event.type == key.KEYDOWN and event.key in (key.K_q, key.K_ESCAPE)):
                return "quit"
            if event.type != key.KEYDOWN:
                continue
            if event.key == key.K_n:
                return "next"
            if event.key == key.K_SPACE:
                self.paused = not self.paused
            elif event.key in (key.K_UP, key.K_RIGHT):
                self.speed = min(2 * self.speed, FASTEST)
            elif event.key in (key.K_DOWN, key.K_LEFT):
                self.speed = max(self.speed / 2, 1 / FASTEST)
        return ""

    def close(self) -> None:
        """Take the window away."""
        self.pygame.display.quit()


def main(argv: list[str] | None = None) -> int:
    """Watch from the command line; returns the exit code."""

    def run(arguments: list[str]) -> None:
        print(watch(parsed(WatchConfig, arguments, {})))

    return command(__doc__, run, argv)


if __name__ == "__main__":
    sys.exit(main())
