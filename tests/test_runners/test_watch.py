import shutil
import sys

import imageio.v2 as imageio
import numpy as np
import pytest

from lodestar import video
from runners.doctor import checks
from runners.evaluate import main as evaluate
from runners.run.build import build, load_run
from runners.run.config import UsageError
from runners.run.curve import colours
from runners.run.video import LANE_PX, PANEL_PX, PICTURE_SIDE_PX, Episode, draw, draw_text, play
from runners.train import main as train
from runners.watch import WatchConfig, Window, frames_a_second, main, play_all, summary, watch


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch") / "run"
    options = "agent.n_steps=32 agent.batch_size=32 n_envs=2 total_timesteps=256 checkpoint_every=64 eval_episodes=0"
    assert train(["env=CartPole-v1", "reward=rnd", "video=false", f"run_dir={folder}", *options.split()]) == 0
    return folder


def coloured(picture: np.ndarray, colour: str) -> np.ndarray:
    """Columns in which something is drawn in a colour."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return np.flatnonzero((np.abs(picture.astype(int) - wanted).sum(-1) < 90).any(0))


@pytest.mark.parametrize("name", ["video.mp4", "video.gif"])
def test_a_film_holds_every_step_with_a_lane_for_each_stream(run, tmp_path, capsys, name):
    assert main([f"run={run}", f"out={tmp_path / name}", "episodes=2", "steps=9"]) == 0
    assert capsys.readouterr().out.strip() == f"{tmp_path / name}: 18 frames of CartPole-v1, step 256"
    frames = [np.asarray(frame)[..., :3] for frame in imageio.mimread(tmp_path / name, memtest=False)]
    # CartPole's picture is 600 x 400; a film's height is a multiple of 16.
    height = round(PICTURE_SIDE_PX * 400 / 600)
    assert len(frames) == 18 and frames[0].shape == (-(-(height + 2 * LANE_PX + 8) // 16) * 16, PICTURE_SIDE_PX, 3)
    for number, colour in enumerate(colours(["task", "rnd"]).values()):
        top = height + 6 + LANE_PX * number
        first, last = (coloured(frames[t][top + 18 : top + LANE_PX - 2], colour) for t in (0, 8))
        assert first.max() < 30 and last.max() > PICTURE_SIDE_PX - 30  # the line has grown from the left to the right
    assert frames[0][:height].std() > 5


def test_without_ffmpeg_a_video_is_a_gif_and_the_extra_is_named(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(video, "find_ffmpeg", str)
    copy = shutil.copytree(run, tmp_path / "run")
    assert evaluate([f"run={copy}", "episodes=1"]) == 0
    place = f"{copy / 'video.gif'} (pip install 'lodestar-rl[video]' makes it an mp4)"
    assert capsys.readouterr().out.splitlines()[-1] == f"video: {place}"
    assert len(imageio.mimread(copy / "video.gif", memtest=False)) >= 8
    assert main([f"run={copy}", "episodes=1", "steps=2", "window=false"]) == 0
    assert capsys.readouterr().out.startswith(f"{copy / 'watch.gif'}: 2 frames")
    with pytest.raises(UsageError, match=r"out=a.mp4 needs ffmpeg; pip install 'lodestar-rl\[video\]', or give a name"):
        main.parse([f"run={copy}", "out=a.mp4"])
    (finding,) = checks.video()
    assert finding.state == "optional" and finding.fix == video.INSTALL_FFMPEG


def test_an_ffmpeg_on_the_path_is_found_and_one_that_fails_says_why(tmp_path, monkeypatch):
    black = [np.zeros((16, 16, 3), np.uint8)] * 3
    with pytest.raises(OSError, match=r"ffmpeg ended with code \d+: .*No such file or directory"):
        video.write_mp4(tmp_path / "nowhere" / "a.mp4", black, 10)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert video.find_ffmpeg.__wrapped__() == ""
    (tmp_path / "ffmpeg").touch(0o755)
    assert video.find_ffmpeg.__wrapped__() == str(tmp_path / "ffmpeg")


def test_a_window_shows_each_step_once_and_heeds_its_keys(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    import pygame

    picture = np.zeros((PICTURE_SIDE_PX, PICTURE_SIDE_PX, 3), np.uint8)
    episode = Episode([picture] * 40, {"task": np.ones(40, np.float32)})
    window = Window("test", 600)

    def press(*keys: int) -> None:
        for key in keys:
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))

    try:
        pygame.display.set_mode((PICTURE_SIDE_PX, PICTURE_SIDE_PX))
        pygame.event.clear()
        press(pygame.K_UP, pygame.K_RIGHT, pygame.K_n)
        assert window.show(episode) and window.count == 1 and window.speed == 4.0
        press(pygame.K_DOWN, pygame.K_SPACE, pygame.K_n)
        assert window.show(episode) and window.count == 2 and window.speed == 2.0 and window.paused
        assert "2x" not in pygame.display.get_caption()[0]  # drawn before the keys were read
        press(pygame.K_SPACE, pygame.K_q)
        assert not window.show(episode) and window.count == 3 and not window.paused
        assert window.show(episode, "episode 3") and window.count >= 3 + 40  # to the end, where the last one lingers
        assert pygame.display.get_caption()[0] == "test: episode 3, step 40, 2x"
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        assert not window.show(episode)
    finally:
        window.close()


def test_a_run_is_watched_in_a_window(run, monkeypatch, capsys):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    sentence = watch(WatchConfig(run=str(run), window="true", episodes=2, steps=3))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in lines] == ["episode 1: 3 steps, cut", "episode 2: 3 steps, cut"]
    assert "task +3.00, rnd" in lines[0] and sentence.endswith("pictures of CartPole-v1, step 256")


def test_the_checkpoint_of_a_step_is_loaded_and_others_are_named(run):
    config, newest, _, step = load_run(run)
    _, older, _, at = load_run(run, at=192)
    assert (step, at) == (256, 192) and config.env == "CartPole-v1"
    new, old = newest.policy.state_dict(), older.policy.state_dict()
    assert float((new["pi_head.weight"] - old["pi_head.weight"]).abs().max()) > 0
    with pytest.raises(UsageError, match=r"checkpoint=100 is not in .*; there are those of the steps .*192, 256"):
        load_run(run, at=100)


def test_the_same_seed_is_the_same_episode_and_a_random_policy_another(run):
    trained = load_run(run)
    first, again = (list(play_all(WatchConfig(run=str(run), episodes=2), trained)) for _ in range(2))
    random = list(play_all(WatchConfig(run=str(run), episodes=2, policy="random"), trained))
    for a, b, c in zip(first, again, random):
        np.testing.assert_array_equal(a.streams["rnd"], b.streams["rnd"])
        assert len(a.images) != len(c.images) or not np.array_equal(a.streams["rnd"], c.streams["rnd"])
    assert first[0].ending in ("terminated", "truncated") and len(first[0].streams["task"]) == len(first[0].images)
    assert summary(1, first[0]).startswith(f"episode 1: {len(first[0].images)} steps, terminated; task +")


def test_what_draws_nothing_is_written(run):
    from runners.run.config import TrainConfig

    config = load_run(run).config
    probe = TrainConfig(env="lodestar/ProbeValue-v0", reward={"task": config.reward["task"]}, agent=config.agent)
    parts = build(probe)
    episode = play(probe, None, parts.mix, 0, drawn=False)
    assert episode.ending == "terminated" and len(episode.images) == 1
    assert episode.images[0].shape == (PICTURE_SIDE_PX, PICTURE_SIDE_PX, 3) and episode.images[0].max() > 150
    np.testing.assert_array_equal(draw_text("a b"), draw_text("a b"))
    assert (draw_text("abc") != draw_text("abd")).any() and draw_text("").shape == (PICTURE_SIDE_PX, PICTURE_SIDE_PX, 3)


def test_what_the_reward_reads_stands_between_picture_and_lanes():
    image = np.zeros((PICTURE_SIDE_PX, PICTURE_SIDE_PX, 3), np.uint8)
    streams = {"clip": np.zeros(3, np.float32)}
    seen = np.zeros((2, 2, 3), np.uint8)
    seen[0, 0], seen[1, 1] = 250, 130
    drawn = draw(Episode([image], streams, ["You see a newt."], [seen]), 0)
    assert len(drawn) >= PICTURE_SIDE_PX + PANEL_PX + LANE_PX
    small = drawn[PICTURE_SIDE_PX + 8 : PICTURE_SIDE_PX + 8 + PANEL_PX - 12, 10 : 10 + PANEL_PX - 12]
    assert small[10, 10].tolist() == [250] * 3 and small[-10, -10].tolist() == [130] * 3 and not small[10, -10].any()
    beside = (slice(PICTURE_SIDE_PX + 28, PICTURE_SIDE_PX + 50), slice(PANEL_PX + 10, None))
    without_caption = draw(Episode([image], streams, [""], [seen]), 0)
    assert drawn[beside].max() > 150 and (drawn[beside] != without_caption[beside]).any()
    assert len(draw(Episode([image], streams), 0)) < len(drawn)


def test_time_runs_as_the_environment_says():
    assert frames_a_second("CartPole-v1") == 50 and frames_a_second("MiniGrid-Empty-5x5-v0") == 10
    assert frames_a_second("lodestar/ProbeValue-v0") == 30


def test_mistakes_are_one_sentence_each(monkeypatch, capsys):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    for arguments, sentence in (
        (["episodes=3"], r"run= is missing"),
        (["run=x", "out=video.avi"], r"out=video.avi is neither a video nor a gif"),
        (["run=x", "window=true"], r"window=true needs a screen, and there is none; give out=video.mp4"),
        (["run=x", "episodes=0"], r"episodes=0 is out of range; give a number at least 1"),
        (["run=x", "policy=rnadom"], r"policy='rnadom' is unknown; give one of trained, random"),
    ):
        with pytest.raises(ValueError, match=sentence):
            main.parse(arguments)
    assert main(["run=/nowhere"]) == 2 and "is no run's folder" in capsys.readouterr().err
    assert main(["--help"]) == 0 and "python -m runners.watch" in capsys.readouterr().out
