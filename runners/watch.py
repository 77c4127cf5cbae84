"""Watch a saved run: its policy in the environment, and what each stream contributes to the reward at every step.

    python -m runners.watch run=runs/CartPole-v1/ppo-task+rnd/20261121-120000-s0              a window
    python -m runners.watch run=... out=video.mp4 episodes=1                                    a file, mp4 or gif

Each episode is played first and then shown, so that its rewards are drawn on the scale of the whole episode.
In the window: space pauses, n goes to the next episode, up and down (or right and left) make it faster and slower,
q quits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.make import creator
from lodestar.files import make_parent
from lodestar.settings import Settings, setting
from runners.cli.command import Command
from runners.evaluation.play import policy
from runners.run.build import Trained, load_run
from runners.run.config import UsageError

if TYPE_CHECKING:
    import numpy as np

    from runners.run.video import Episode

# Times real time; the slowest is its inverse.
MAX_SPEED = 16.0
# The last picture of an episode stays so long.
LINGER_S = 0.7


@dataclass
class WatchConfig(Settings):
    """What to watch."""

    run: str = setting(help="a run's folder below runs/")
    episodes: int = setting(3, "how many", ">= 1")
    out: str = setting("", "a file to write instead of opening a window; watch.mp4 or .gif in the run without a screen")
    window: str = setting("auto", "auto: where there is a screen and no out=", "auto | true | false")
    checkpoint: str = setting("", "environment steps of the checkpoint to watch, or best; the newest")
    policy: str = setting("trained", "trained, or random for comparison", "trained | random")
    seed: int = setting(0, "of the first episode; the episodes of runners.evaluate are others", ">= 0")
    steps: int = setting(1000, "at most so many of each episode", ">= 1")
    trust: bool = setting(False, "whether the run may name code and servers, as in env=module:Id")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out and Path(self.out).suffix not in (".mp4", ".gif"):
            raise UsageError(f"out={self.out} is neither a video nor a gif; give a name that ends with .mp4 or .gif")
        if self.out.endswith(".mp4"):
            from lodestar.video import INSTALL_FFMPEG, find_ffmpeg

            if not find_ffmpeg():
                raise UsageError(f"out={self.out} needs ffmpeg; {INSTALL_FFMPEG}, or give a name that ends with .gif")
        if self.out and self.window == "true":
            raise UsageError(f"out={self.out} writes a file and window=true opens a window; give one of them")
        if self.window == "true" and not has_screen():
            raise UsageError("window=true needs a screen, and there is none; give out=video.mp4")


def has_screen() -> bool:
    """Whether a window can be opened; a video driver that the user chose is taken at its word."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")))


def watch(config: WatchConfig) -> str:
    """Play, and show or write; returns a sentence about it."""
    run = Path(config.run)
    # Asked first, because environments may choose a video driver when they are made.
    in_window = config.window == "true"
    if config.window == "auto":
        # Nobody sees what SDL's dummy driver shows.
        in_window = not config.out and has_screen() and os.environ.get("SDL_VIDEODRIVER") != "dummy"
    trained = load_run(run, config.trust, config.checkpoint)
    # This imports torch.
    from lodestar.video import video_suffix
    from runners.run.video import write

    actor = f"step {trained.step:,}" if config.policy == "trained" else "a random policy"
    label = f"{trained.config.env_label}, {actor}"
    episodes = play_all(config, trained)
    fps = frames_a_second(trained.config.env)
    if not in_window:
        path = Path(config.out) if config.out else run / f"watch{video_suffix()}"
        make_parent(path)
        return f"{path}: {write(path, episodes, fps):,} frames of {label}"
    with closing(Window(label, fps)) as window:
        for number, episode in enumerate(episodes, start=1):
            print(summary(number, episode), flush=True)
            if not window.show(episode, f"episode {number} of {config.episodes}"):
                break
    return f"{window.count:,} pictures of {label}"


def play_all(config: WatchConfig, trained: Trained) -> Iterator[Episode]:
    """The episodes, one after the other."""
    from runners.run.video import can_be_drawn, open_env, play

    run, model, mix, _ = trained
    act = None
    if config.policy == "trained":
        act = policy(model, run, seed=config.seed)
    drawn = can_be_drawn(run.env)
    # One environment for all episodes: some take every window with them when they close.
    with closing(open_env(run, mix, drawn)) as env:
        for number in range(config.episodes):
            yield play(run, act, mix, config.seed + number, config.steps, drawn=drawn, env=env)


def summary(number: int, episode: Episode) -> str:
    """An episode in a line: its length, its end, the sum of each stream."""
    sums = ", ".join(f"{name} {values.sum():+.2f}" for name, values in episode.streams.items())
    return f"episode {number}: {len(episode.images)} steps, {episode.ending}; {sums}"


def frames_a_second(env_id: str) -> int:
    """The frame rate that an environment declares, in [5, 60]; 30 if it declares none."""
    declared = getattr(creator(env_id), "metadata", {}).get("render_fps") or 30
    return int(min(max(declared, 5), 60))


class Window:
    """Shows episodes at `fps` pictures a second times `speed`, controlled by keys; `count` are the pictures so far."""

    def __init__(self, label: str, fps: int) -> None:
        import pygame

        self.pygame = pygame
        self.label = label
        self.fps = fps
        self.speed = 1.0
        self.paused = False
        self.count = 0
        pygame.display.init()
        self.clock = pygame.time.Clock()
        self.surface: Any = None

    def show(self, episode: Episode, name: str = "") -> bool:
        """Show an episode from its beginning; False if the window was closed."""
        from runners.run.video import draw

        t = 0
        last = len(episode.images) - 1
        ticks_to_linger = LINGER_S * self.fps
        request = ""
        while request == "" and (t < last or ticks_to_linger > 0 or self.paused):
            self._show_picture(draw(episode, t), f"{name}, step {t + 1}")
            self.clock.tick(self.fps * self.speed)
            request = self._handle_keys()
            if not self.paused:
                ticks_to_linger -= t == last
                t = min(t + 1, last)
        return request != "quit"

    def _show_picture(self, picture: np.ndarray, words: str) -> None:
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
        self.count += 1

    def _handle_keys(self) -> str:
        """Pause, and change the speed, as the keys say; returns what else they ask for: "quit", "next" or ""."""
        pygame = self.pygame
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                return "quit"
            if event.type != pygame.KEYDOWN:
                continue
            if event.key in (pygame.K_q, pygame.K_ESCAPE):
                return "quit"
            if event.key == pygame.K_n:
                return "next"
            if event.key == pygame.K_SPACE:
                self.paused = not self.paused
            elif event.key in (pygame.K_UP, pygame.K_RIGHT):
                self.speed = min(2 * self.speed, MAX_SPEED)
            elif event.key in (pygame.K_DOWN, pygame.K_LEFT):
                self.speed = max(self.speed / 2, 1 / MAX_SPEED)
        return ""

    def close(self) -> None:
        """Take the window away."""
        self.pygame.display.quit()


main = Command(WatchConfig, lambda config: print(watch(config)), __doc__, busy="")

if __name__ == "__main__":
    sys.exit(main())
