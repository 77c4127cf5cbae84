from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from runners.run.curve import curve

pytestmark = pytest.mark.usefixtures("drawn_curves")
HEADER = "step,rollout/ep_rew_mean,rollout/ep_learned_mean,reward/task_share,reward/rnd_share"


def drawn(folder: Path, *rows: str) -> np.ndarray:
    (folder / "metrics.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return image.imread(curve(folder, "title", scores={"random": {"task_return": 0.5}}))


def test_the_task_alone_has_one_panel(tmp_path):
    assert drawn(tmp_path, "10,1,1,,", "20,,,,", "30,3,3,,").shape[1] == 7 * 130


def test_a_learned_return_is_set_against_the_tasks(tmp_path):
    assert drawn(tmp_path, "10,1,5,,", "20,,,,", "30,3,6,,").shape[1] == round(10.6 * 130)


def test_several_streams_show_their_shares(tmp_path):
    assert drawn(tmp_path, "10,1,5,0.9,0.1", "20,,,,", "30,3,6,0.2,0.8").shape[1] == round(14.2 * 130)


@pytest.mark.parametrize("tag", ["cosine", "weight"])
def test_what_moved_the_policy_has_a_panel(tmp_path, tag):
    rows = ["10,1,5,0.9,0.1,-0.5", "20,,,,,nan", "30,3,6,0.2,0.8,0.5"]
    (tmp_path / "metrics.csv").write_text("\n".join([f"{HEADER},stream/rnd/{tag}", *rows]) + "\n")
    assert image.imread(curve(tmp_path, "title")).shape[1] == round(17.8 * 130)


def test_an_alarm_is_shaded(tmp_path):
    quiet = drawn(tmp_path, *(f"{i},{i},{i + 1},," for i in range(20)))
    alarmed = drawn(tmp_path, *(f"{i},{20 - i},{i},," for i in range(20)))

    def pink(picture):
        return ((picture[..., 0] - picture[..., 1] > 0.05) & (np.abs(picture[..., 1] - picture[..., 2]) < 0.06)).sum()

    assert pink(alarmed) > 20_000 > pink(quiet)
