"""Choosing what to train on: the acquisition by hand, regret against controls, a family's grid, and real runs."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from runners.transfer import mbtl
from runners.transfer.__main__ import main, summary, table

LINE = np.linspace(0, 1, 3)[:, None]


def world(seed, n=25, theta=1.0):
    """Contexts (n, 1) and transfers (n, n) where the linear gap is true: smooth returns at home, less the distance."""
    draw = np.random.default_rng(seed)
    x = np.linspace(0, 1, n)[:, None]
    bumps = [draw.normal() * np.exp(-0.5 * ((x[:, 0] - draw.uniform()) / 0.2) ** 2) for _ in range(4)]
    return x, (1 + 0.3 * np.sum(bumps, axis=0))[:, None] - theta * np.abs(x - x.T)


def chosen(x, matrix, k):
    """The sources that the method takes, one by one."""
    seen = {}
    while len(seen) < k:
        source = mbtl.choose(x, seen)
        seen[source] = matrix[source]
    return list(seen)


def test_the_acquisition_of_three_tasks_by_hand():
    gain = mbtl.acquisition(np.array([1.0, 1.0, 2.0]), np.array([1.0]), LINE, np.array([0.5, 1.0, 0.0]))
    # source 0 earns 1, .5, 0; source 1 .5, 1, .5; source 2 1, 1.5, 2; what is above the best so far, averaged
    assert gain == pytest.approx([0.5 / 3, 0.5 / 3, 3.0 / 3])


def test_the_process_between_two_sources_by_hand():
    # k(d) = exp(-d^2 / 0.18) / 4, of noise 0.01: the returns 0.3 and 0.7 pull by +-0.2 / (0.26 - k(0.6)), and cancel
    x, k = np.array([[0.2], [0.5], [0.8]]), lambda d: np.exp(-(d**2) / 0.18) / 4
    mean, deviation = mbtl.predict(x, [0, 2], np.array([0.3, 0.7]))
    pull = 0.2 * (0.25 - k(0.6)) / (0.26 - k(0.6))
    assert mean == pytest.approx([0.5 - pull, 0.5, 0.5 + pull])
    assert deviation[1] == pytest.approx(np.sqrt(0.25 - 2 * k(0.3) ** 2 / (0.26 + k(0.6))))


def test_the_second_source_by_hand(monkeypatch):
    x, asked = np.linspace(0, 1, 5)[:, None], {}
    real = mbtl.acquisition
    monkeypatch.setattr(
        mbtl, "acquisition", lambda *values: asked.setdefault("gain", real(*asked.setdefault("of", values)))
    )
    # The middle earns 300 at home and 0, 150, 225, 150 elsewhere: of the spread 1 and 0, 0.5, 0.75, 0.5.
    assert mbtl.choose(x, {2: np.array([0.0, 150.0, 300.0, 225.0, 150.0])}) == 0
    home, theta, _, best = asked["of"]
    assert theta == pytest.approx(
        [(0.5 * 1 + 0.25 * 0.5 + 0.25 * 0.25 + 0.5 * 0.5) / (2 * 0.5**2 + 2 * 0.25**2)]
    )  # 1.5
    assert best.tolist() == [0, 0.5, 1, 0.75, 0.5]
    doubt = np.sqrt(0.25 - np.exp(-(np.array([0.5, 0.25, 0, 0.25, 0.5]) ** 2) / 0.09) / 16 / 0.26)
    assert home == pytest.approx(1 + np.sqrt(np.log(2)) * doubt)
    # Source 0 would earn home[0] on task 0 and 1.5 / 4 less on task 1, where 0 and 0.5 are earned; nothing beyond.
    assert asked["gain"][0] == pytest.approx((home[0] + home[0] - 0.375 - 0.5) / 5) == asked["gain"].max()


def test_the_slope_is_what_was_lost_for_each_unit_of_distance_and_never_negative():
    x, matrix = world(0, theta=0.7)
    assert mbtl.slope(x, [3], matrix[[3]]) == pytest.approx([0.7])
    assert mbtl.slope(x, [3], -matrix[[3]]) == pytest.approx([0.0])
    two = np.array([[a, b] for a in (0, 0.5, 1) for b in (0, 0.5, 1)])
    lost = np.abs(two - two[4]) @ [1.0, 3.0]
    assert mbtl.slope(two, [4], -lost[None]) == pytest.approx([1.0, 3.0])


def test_a_third_source_has_to_beat_the_better_of_two_on_each_task(monkeypatch):
    best = []
    monkeypatch.setattr(mbtl, "acquisition", lambda *values: best.append(values[-1].tolist()) or np.zeros(3))
    assert mbtl.choose(LINE, {1: np.array([0.0, 4.0, 1.0]), 0: np.array([3.0, 2.0, 0.0])}) == 2
    assert best == [[0.75, 1.0, 0.25]]


def test_the_first_source_is_the_middle_and_none_comes_twice():
    x, matrix = world(1)
    order = chosen(x, matrix, 10)
    assert order[0] == 12 and len(set(order)) == 10
    assert order == chosen(x, matrix, 10)
    with pytest.raises(ValueError, match=r"all 3 tasks have been trained on"):
        mbtl.choose(LINE, {k: np.zeros(3) for k in range(3)})


def test_a_scale_and_a_shift_of_returns_change_no_choice():
    x, matrix = world(2)
    assert chosen(x, matrix, 5) == chosen(x, 300 * matrix - 1500, 5)


def test_known_returns_at_home_are_predicted_with_little_doubt():
    x, matrix = world(3)
    home = matrix[range(25), range(25)]
    mean, deviation = mbtl.predict(x, list(range(0, 25, 3)), home[::3])
    assert np.abs(mean - home).max() < 0.1 and deviation.max() < 0.15


def greedy(matrix: np.ndarray, k: int) -> list[int]:
    """Oracle: each source the best next one, known only where all have been trained; the matrix is (N, N)."""
    found: list[int] = []
    best = np.full(len(matrix), -np.inf)
    while len(found) < k:
        found.append(int(np.maximum(matrix, best).mean(axis=1).argmax()))
        best = np.maximum(best, matrix[found[-1]])
    return found


def test_with_everything_known_the_greedy_oracle_takes_the_best_first_source_and_never_loses():
    _, matrix = world(4)
    order = greedy(matrix, 3)
    assert order[0] == matrix.mean(axis=1).argmax()
    values = mbtl.mean_of_best(matrix[order])
    assert (np.diff(values) >= 0).all()
    pairs = [mbtl.mean_of_best(matrix[[a, b]])[-1] for a in range(25) for b in range(a)]
    assert values[1] >= 0.95 * max(pairs)


def test_regret_is_below_randoms_and_near_the_oracles():
    regret = {"mbtl": [], "random": []}
    for seed in range(12):
        x, matrix = world(seed)
        oracle = mbtl.mean_of_best(matrix[greedy(matrix, 4)])
        drawn = [np.random.default_rng(s).permutation(25)[:4] for s in range(20)]
        draws = [mbtl.mean_of_best(matrix[sources]) for sources in drawn]
        regret["mbtl"].append(oracle - mbtl.mean_of_best(matrix[chosen(x, matrix, 4)]))
        regret["random"].append(oracle - np.mean(draws, axis=0))
    ours, random = np.mean(regret["mbtl"], axis=0), np.mean(regret["random"], axis=0)
    assert ours[2] < 0.6 * random[2]
    assert ours[3] < 0.8 * random[3]


def test_equidistant_sources_lie_in_the_middle_of_equal_parts():
    x = np.linspace(0, 1, 21)[:, None]
    assert mbtl.equidistant(x, 2) == [5, 15]
    square = np.array([[a, b] for a in np.linspace(0, 1, 3) for b in np.linspace(0, 1, 3)])
    assert mbtl.equidistant(square, 5)[0] == 4 and {*mbtl.equidistant(square, 5)[1:]} == {0, 2, 6, 8}


def test_what_sources_add_up_to_by_hand():
    assert mbtl.mean_of_best(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]])) == pytest.approx([1.0, 2.0])


def test_a_family_is_a_grid_of_options(tmp_path):
    one = main.parse(["env=Pendulum-v1", "over=env.g=[2,15,14]", "budget=3", f"root={tmp_path}"])
    assert one.tasks[0] == (2,) and one.tasks[-1] == (15,) and len(one.tasks) == 14
    assert one.contexts[[0, -1], 0].tolist() == [0.0, 1.0]
    assert one.labels[5] == "g=7" and one.run(5, 1).name == "jobs/g=7/s1"
    assert "env.g=7" in one.run(5, 1).argv and "seed=1" in one.run(5, 1).argv

    two = main.parse(["env=Pendulum-v1", "over=env.g=[2,10,3]", "over=env.sticky=[0,0.5,2]", f"root={tmp_path}"])
    assert two.contexts.shape == (6, 2) and two.labels[1] == "g=2,sticky=0.5"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], r"0 options are given; name one or two"),
        (["over=reward.rnd.weight=[0,1,3]"], r"over=reward.rnd.weight is no option of an environment"),
        (["over=env.g=[2,15]"], r"is no range; give \[low,high,how many\]"),
        (["over=env.g=[15,2,3]"], r"is no range"),
        (["over=env.gravity=[2,15,3]"], r"env.gravity=2.0 is no option of Pendulum-v1"),
        (["over=env.g=[2,15,3]", "budget=4"], r"budget=4 is out of range; there are 3 tasks"),
        (
            ["over=env.g=[2,15,3]", "controls=oracle"],
            r"controls='oracle' is unknown; give one of equidistant, random",
        ),
    ],
)
def test_a_wrong_command_is_one_sentence(tmp_path, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        main.parse(["env=Pendulum-v1", f"root={tmp_path}", "budget=2", *arguments])


def test_the_summary_by_hand(tmp_path):
    one = main.parse(["env=Pendulum-v1", "over=env.g=[2,4,3]", "budget=2", "seeds=2", f"root={tmp_path}"])
    rows = {0: np.array([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]]), 2: np.array([[0.0, 1.0, 5.0], [0.0, 1.0, 3.0]])}
    found = summary(one, {"mbtl": [2, 0], "random": [0, 2]}, rows)
    assert found["generalised"] == {"mbtl": pytest.approx([5 / 3, 7 / 3]), "random": pytest.approx([2 / 3, 7 / 3])}
    assert found["at_home"] == 3.0 and found["orders"]["mbtl"] == ["g=4", "g=2"]
    low, high = found["intervals"]["mbtl"]  # of 7/3 and 7/3, the two seeds' own
    assert low <= 7 / 3 <= high
    assert "mbtl chose g=4 g=2" in table(found)


def arguments(tmp_path, *more):
    run = ["total_timesteps=64", "n_envs=2", "agent.n_steps=32", "eval_episodes=0", "max_episode_steps=20"]
    own = ["env=Pendulum-v1", "over=env.g=[2,14,3]", "budget=2", "episodes=1", "slots=1", "controls=[]", "name=t"]
    return [*own, *run, f"root={tmp_path}", *more]


@pytest.mark.nightly
def test_two_real_sources_survive_a_kill_and_give_the_same_matrix(tmp_path):
    command = [sys.executable, "-m", "runners.transfer", *arguments(tmp_path)]
    folder, home = tmp_path / "transfer" / "t", Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL)
    first = folder / "jobs" / "g=8" / "s0" / "transfer.json"
    limit = time.monotonic() + 250
    while not first.exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = first.read_text()

    assert main(arguments(tmp_path)) == 0
    assert first.read_text() == before
    found = json.loads((folder / "transfer.json").read_text())
    assert found["orders"]["mbtl"][0] == "g=8" and len(found["orders"]["mbtl"]) == 2
    rows = list(csv.DictReader((folder / "matrix.csv").open()))
    assert [row["source"] for row in rows] == sorted(found["orders"]["mbtl"], key=lambda label: float(label[2:]))
    assert all(-20 * 16.3 <= float(row[f"g={g}"]) <= 0 for row in rows for g in (2, 8, 14))  # Pendulum's own bounds
    assert len({float(rows[0][f"g={g}"]) for g in (2, 8, 14)}) == 3  # each task was really another
    assert (folder / "transfer.png").stat().st_size > 10_000


def test_another_family_in_the_same_folder_is_refused(tmp_path, capsys):
    (tmp_path / "transfer" / "t").mkdir(parents=True)
    known = main.parse(arguments(tmp_path)[:4] + arguments(tmp_path)[5:] + ["episodes=3"]).fixed_settings()
    (tmp_path / "transfer" / "t" / "plan.json").write_text(json.dumps(known))
    assert main(arguments(tmp_path)) == 2
    assert "was begun by another command (it differs in episodes)" in capsys.readouterr().err
