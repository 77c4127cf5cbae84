import io
import resource
import sys
import time

import numpy as np
import pytest

from runners.run import output, tensorboard
from runners.run.progress import CSVLog, Live, TensorBoardLog, make_logger, read_csv
from tests.glossary import TAGS, explain


def _scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_new_tag_adds_a_column_and_keeps_the_old_rows(tmp_path):
    log = CSVLog(tmp_path / "m.csv")
    log.write({"a": 1.5}, {}, 10)
    log.write({"a": 2, "b": np.float32(0.25), "text": "not a number"}, {}, 20)
    log.write({"b": 3}, {}, 30)
    log.close()
    assert read_csv(tmp_path / "m.csv") == [
        {"step": "10", "a": "1.5", "b": ""},
        {"step": "20", "a": "2", "b": "0.25"},
        {"step": "30", "a": "", "b": "3"},
    ]


def test_continuing_drops_what_was_written_after_the_checkpoint(tmp_path):
    log = CSVLog(tmp_path / "m.csv")
    for step in (10, 20, 30):
        log.write({"a": step}, {}, step)
    log.file.write("40,4")  # killed in the middle of a row
    log.close()
    log = CSVLog(tmp_path / "m.csv", step=20)
    log.write({"a": -30}, {}, 30)
    log.close()
    assert [row["a"] for row in read_csv(tmp_path / "m.csv")] == ["10", "20", "-30"]


def test_tensorboard_hides_what_was_written_after_the_checkpoint(tmp_path):
    log = TensorBoardLog(tmp_path)
    for step in (10, 20, 30):
        log.write({"a": float(step)}, {}, step)
    log.close()
    log = TensorBoardLog(tmp_path, step=20)
    log.write({"a": -30.0}, {}, 30)
    log.close()
    assert _scalars(tmp_path)["a"] == [(10, 10.0), (20, 20.0), (30, -30.0)]


def test_a_full_disk_switches_a_writer_off_with_one_warning(tmp_path):
    warnings = []
    more = {"tensorboard": lambda: TensorBoardLog(tmp_path / "tensorboard")}
    logger = make_logger(tmp_path, Live(100), warn=warnings.append, more=more)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        for step in range(200):
            logger.record("a", step)
            logger.record("b", step)
            logger.dump(step)
        logger.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(warnings) == 2
    assert warnings[0].endswith("training continues") and {w.split()[0] for w in warnings} == {
        "metrics.csv",
        "tensorboard",
    }


@pytest.mark.parametrize(
    ("tag", "begins"),
    [
        ("reward/rnd", "mean score of a stream"),
        ("reward/rnd_share", "share of the stream"),
        ("reward/total", "mean reward per step"),
        ("rnd/loss", "what a reward reports"),
        ("train/entropy_loss", "losses and schedules"),
        ("rollout/ep_rew_mean", "task return"),
    ],
)
def test_the_glossary_explains_a_tag_by_its_most_literal_entry(tag, begins):
    assert explain(tag).startswith(begins)


def test_the_glossary_does_not_explain_everything():
    assert explain("nothing") is None
    assert explain("a/b c") is None
    assert len(TAGS) > 25


def test_without_a_terminal_the_live_line_is_plain_and_rare(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    live = Live(1000, start=500)
    live.every_s = 0.0
    live.write({"rollout/ep_learned_mean": 0.125}, {}, 750)
    live.began -= 10.0  # as if ten seconds had passed
    live.update(750, lambda: 9.5)
    words = stream.getvalue()
    assert words.startswith(" 75 %  step 750  0:10 left")
    assert "task return 9.5  learned return 0.125  25 frames/s" in words
    live.every_s = 10.0
    live.update(760, lambda: pytest.fail("asked before it was time"))
    assert stream.getvalue() == words


def test_a_terminal_shows_the_last_row_of_the_log_below_the_bar(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", stream)
    live = Live(1000)
    live.update(500, lambda: 9.5, force=True)
    live.write({"ppo/entropy": 0.6931471, "reward/rnd": 0.25}, {}, 500)
    live.update(500, lambda: 9.5, force=True)
    live.close()
    shown = stream.getvalue().splitlines()
    # What is drawn last stays, and the cursor comes back.
    assert "50%" in shown[-3] and "task return 9.5" in shown[-3]
    assert shown[-2].split() == ["ppo/entropy", "0.6931", "reward/rnd", "0.25"]


def test_a_silent_command_says_what_it_does_and_for_how_long(capfd, monkeypatch):
    monkeypatch.setattr(output, "SIGN_OF_LIFE_S", 0.05)
    monkeypatch.setattr(output, "SILENCE_POLL_S", 0.01)
    with output.lasting_output(), output.signs_of_life("setting up"):
        output.activity.begin("evaluating: episode {} of {}", 5, 20)
        deadline = time.monotonic() + 10.0
        signs = ""
        # On a busy machine the first sign may say what was done before.
        while "evaluating" not in signs and time.monotonic() < deadline:
            time.sleep(0.02)
            signs += capfd.readouterr().err
    assert "evaluating: episode 5 of 20: 0:00 so far\n" in signs


def test_what_was_printed_or_waits_for_a_person_needs_no_sign():
    activity = output.Activity()
    activity.begin("training")
    now = activity.last_output
    assert activity.sign(now + output.SIGN_OF_LIFE_S - 0.1) == ""
    assert activity.sign(now + output.SIGN_OF_LIFE_S).startswith("training: 0:0")
    activity.begin("")
    assert activity.sign(now + 60.0) == ""


def test_a_path_with_braces_is_no_place_of_a_value():
    output.Ticker("writing {x}.mp4")("picture {:,}", 1000)
    assert output.activity.sign(output.activity.last_output + 60.0).startswith("writing {x}.mp4: picture 1,000: ")


def test_names_in_tensorboard_leave_out_what_all_runs_share():
    names = ["A-v1/ppo-task/s0", "A-v1/ppo-task/s1", "A-v1/ppo-rnd/s0"]
    assert tensorboard.short_names(names) == ["ppo-task s0", "ppo-task s1", "ppo-rnd s0"]
    assert tensorboard.short_names(names[:1]) == ["A-v1 ppo-task s0"]


def test_links_to_logs_are_made_once_and_only_where_there_is_a_log(tmp_path):
    (tmp_path / "jobs" / "a" / "tensorboard").mkdir(parents=True)
    (tmp_path / "jobs" / "a" / "tensorboard" / "events").touch()
    runs = {"a s0": tmp_path / "jobs" / "a", "b s0": tmp_path / "jobs" / "b"}
    for _ in range(2):
        place = tensorboard.link_runs(tmp_path / "tensorboard", runs)
    assert [path.name for path in place.iterdir()] == ["a s0"]
    assert (place / "a s0" / "events").exists()
