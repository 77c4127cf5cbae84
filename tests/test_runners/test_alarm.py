import numpy as np
import pytest

from runners.run.progress import ALARM_WINDOW_ROWS, LEARNED_RETURN, TASK_RETURN, Alarm, diverging_rows

ROWS = 30
UP, DOWN = np.linspace(0.0, 10.0, ROWS), np.linspace(10.0, 0.0, ROWS)


def test_a_learned_return_that_rises_while_the_tasks_falls_is_found_after_one_window() -> None:
    assert diverging_rows(DOWN, UP).tolist() == [False] * (ALARM_WINDOW_ROWS - 1) + [True] * (
        ROWS - ALARM_WINDOW_ROWS + 1
    )


@pytest.mark.parametrize(("task", "learned"), [(UP, UP), (DOWN, DOWN), (UP, DOWN), (np.zeros(ROWS), UP)])
def test_every_other_pair_of_directions_is_no_alarm(task: np.ndarray, learned: np.ndarray) -> None:
    assert not diverging_rows(task, learned).any()


def test_noise_without_a_direction_is_no_alarm() -> None:
    rng = np.random.default_rng(0)
    share = np.mean([diverging_rows(*rng.normal(size=(2, 200))).mean() for _ in range(20)])
    assert share < 0.005


def test_a_small_fall_after_a_long_climb_is_no_alarm() -> None:
    task = np.concatenate([np.linspace(0, 100, 30), np.linspace(100, 90, ALARM_WINDOW_ROWS)])
    learned = np.concatenate([np.linspace(0, 10, 30), np.linspace(10, 20, ALARM_WINDOW_ROWS)])
    assert not diverging_rows(task, learned).any()
    task[30:] = np.linspace(100, 50, ALARM_WINDOW_ROWS)
    assert diverging_rows(task, learned)[-1]


def test_it_speaks_once_a_stretch_and_names_the_steps() -> None:
    said: list[str] = []
    alarm = Alarm(said.append)
    task = np.concatenate([DOWN, UP, DOWN])
    learned = np.concatenate([UP, UP + 10, UP + 20])
    for row in range(len(task)):
        alarm.write({TASK_RETURN: task[row], LEARNED_RETURN: learned[row]}, {}, 1000 * row)
        alarm.write({"something": 1.0}, {}, 1000 * row)
    assert len(said) == 2
    assert said[1].startswith("alarm: since step ")
    assert "since step 0 the learned return rose from 0 to 3.103 while the task's fell from 10 to 6.897" in said[0]


def test_a_run_that_continues_remembers_the_rows_before() -> None:
    said: list[str] = []
    rows = []
    for i in range(ALARM_WINDOW_ROWS - 1):
        rows.append({"step": str(i), TASK_RETURN: str(DOWN[i]), LEARNED_RETURN: str(UP[i])})
    rows.append({"step": "9", TASK_RETURN: "", LEARNED_RETURN: ""})
    alarm = Alarm(said.append, rows)
    alarm.write({TASK_RETURN: DOWN[9], LEARNED_RETURN: UP[9]}, {}, 9)
    assert len(said) == 1
