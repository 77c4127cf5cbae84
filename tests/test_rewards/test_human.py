"""A person as the judge, over HTTP with the real server: the token, two tabs, undo, kills, and what is learned."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from rewards.preference import human
from rewards.preference.answers import PICTURE_NUMBERS, KeptAnswers
from rewards.preference.bradley_terry import BradleyTerry, BradleyTerryConfig
from rewards.preference.human import Human
from rewards.preference.judges import RecordedPreferences, make_segment_judge
from tests.test_rewards.test_bradley_terry import BOX, PUSH, SMALL, walk

L = 5


def pairs(count=4, seed=0):
    """Segments (L, count): the first of each pair, and the second."""
    batch = walk(steps=L, envs=2 * count, seed=seed)
    return batch[:, :count], batch[:, count:]


class Tab:
    """A client of the page."""

    def __init__(self, address):
        self.base, self.token = address.strip().split("/?token=")
        self.seen = self("/next")

    def __call__(self, path, body=None, token=None, **headers):
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.base}{path}{'&' if '?' in path else '?'}token={self.token if token is None else token}"
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as reply:
            text = reply.read().decode()
            return json.loads(text) if reply.headers["Content-Type"] == "application/json" else text

    def answer(self, what):
        self.seen = self("/answer", {"id": self.seen["question"]["id"], "answer": what})
        return self.seen

    def answer_rightly(self):
        """By the sum of the first entry, which is the reward of `walk`."""
        one, two = (sum(row[0] for row in clip["rows"]) for clip in self.seen["question"]["clips"])
        return self.answer("left" if one > two else "right")


@pytest.fixture
def judge(tmp_path):
    made = Human(answers=str(tmp_path / "answers.jsonl"), show="obs")
    yield made
    made.close()


def lines(judge):
    with open(judge.answers) as file:
        return [json.loads(line) for line in file]


def refused(tab, status, *arguments, **options):
    with pytest.raises(urllib.error.HTTPError) as error:
        tab(*arguments, **options)
    assert error.value.code == status
    return error.value.read().decode()


def test_the_page_is_given_to_this_machine_and_only_with_its_token(judge, capsys):
    judge.ask(*pairs(), 10)
    assert capsys.readouterr().out == f"questions: {judge.page.address}\n"
    assert judge.page.address.startswith("http://127.0.0.1:")
    tab = Tab(judge.page.address)
    page = tab("/")
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page  # all its own
    for path, body in (("/", None), ("/next", None), ("/answer", {"id": "", "answer": "left"}), ("/undo", {})):
        assert "token" in refused(tab, 403, path, body, token="")
        assert "token" in refused(tab, 403, path, body, token="x" * len(tab.token))
        assert "127.0.0.1" in refused(tab, 403, path, body, Host="rebound.example:80")
    tab("/next", Host="localhost:9000")  # through a tunnel
    refused(tab, 400, "/answer", {"id": tab.seen["question"]["id"], "answer": []})
    refused(tab, 400, "/answer", [1])
    refused(tab, 404, "/elsewhere")
    assert not os.path.exists(judge.answers)


def test_a_question_is_answered_once_though_two_tabs_show_it(judge):
    judge.ask(*pairs(), 10)
    one, two = Tab(judge.page.address), Tab(judge.page.address)
    assert one.seen == two.seen
    first = one.seen["question"]["id"]
    assert one.answer("left")["question"]["id"] != first
    late = two.answer("right")
    assert "answered already" in late["message"]
    assert late["question"]["id"] == one.seen["question"]["id"]
    [line] = lines(judge)
    assert (f"{line['first']} {line['second']}", line["label"]) == (first, 0.0)
    assert late["labels"] == 1
    assert "clips" not in one(f"/next?have={late['question']['id'].replace(' ', '%20')}")["question"]


def test_the_last_answer_can_be_taken_back_until_it_is_learned_from(judge, monkeypatch):
    judge.ask(*pairs(), 10)
    tab = Tab(judge.page.address)
    asked = tab.seen["question"]["id"]
    tab.answer("left")
    tab.seen = tab("/undo", {})
    assert tab.seen["question"]["id"] == asked and tab.seen["labels"] == 0
    tab.answer("skip")
    tab.seen = tab("/undo", {})
    tab.answer("right")
    tab.answer("equal")
    _, _, label = judge.ask(*pairs(seed=1), 10)
    assert label.tolist() == [1.0]  # the last one is held back
    tab.seen = tab("/undo", {})
    tab.answer("left")
    monkeypatch.setattr(human, "UNDO_SECONDS", 0.0)
    assert judge.ask(*pairs(seed=2), 9)[2].tolist() == [0.0]
    assert "not learned from" in tab("/undo", {})["message"]
    again = KeptAnswers(judge.answers)
    assert sorted(again.labels.values()) == [0.0, 1.0] and len(again) == 2


def test_questions_and_answers_are_counted_also_when_one_is_taken_back(judge):
    questions = judge.questions
    first, second = pairs(count=3)
    judge.page = False  # no server is needed
    assert judge.ask(first, second, 2)[2].tolist() == [] and questions.budget == 2
    shown = [questions.view(), questions.answer(questions.current.id, "skip"), questions.undo()]
    shown += [questions.answer(questions.current.id, "left"), questions.answer(questions.current.id, "equal")]
    counts = [(seen["asked"], seen["answered"], seen["skipped"], seen["labels"], seen["undo"]) for seen in shown]
    assert counts == [
        (1, 0, 0, 0, False),
        (2, 0, 1, 0, True),
        (1, 0, 0, 0, False),
        (2, 1, 0, 1, True),
        (2, 2, 0, 2, True),
    ]
    assert shown[2]["question"]["id"] == shown[0]["question"]["id"] != shown[1]["question"]["id"]
    assert shown[4]["question"] is None and len(questions.waiting) == 1  # the budget is spent
    judge.page = None


def test_a_session_may_wait_for_its_answers_and_texts_are_shown_step_by_step(tmp_path):
    judge, found = Human(answers=str(tmp_path / "a.jsonl"), show="text", wait=True), []
    sides = [
        side.replace(text=np.array([[f"{name}{t}{b}" for b in range(2)] for t in range(L)], object))
        for name, side in zip("ab", pairs(count=2))
    ]
    thread = threading.Thread(target=lambda: found.append(judge.ask(*sides, 10)))
    thread.start()
    while judge.page is None:
        time.sleep(0.01)
    tab = Tab(judge.page.address)
    assert tab.seen["question"]["clips"] == [{"texts": [f"{name}{t}1" for t in range(L)]} for name in "ab"]
    tab.answer("left")
    tab.answer("right")
    thread.join(10)
    assert found[0][2].tolist() == [0.0, 1.0] and "has 2" in judge.notes()[0]
    judge.close()


def test_the_first_twelve_numbers_of_an_observation_are_plotted(judge):
    wide = pairs(count=1)[0].replace(
        next_obs={"a": np.full((L, 1, 1), 7.0), "b": np.arange(L * 20.0).reshape(L, 1, 20) / 3}
    )
    [clip] = judge._clips(wide)
    assert len(clip["rows"]) == L and clip["rows"][1] == [7.0, *np.round(np.arange(20, 31) / 3, 5)]


def learner(path, judge="human", **options):
    given = {"answers": str(path), "show": "obs"} if judge == "human" else {"path": str(path)}
    settings = SMALL | {"length": L, "seed_steps": 0, "every": 1, "epochs": 30, "hidden": 32, "features": 32, **options}
    return BradleyTerry(BradleyTerryConfig(**settings, judge=judge, judge_options=given), BOX, PUSH)


def test_a_reward_learns_from_a_person_and_again_from_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(human, "UNDO_SECONDS", 0.0)
    path, other = tmp_path / "below" / "answers.jsonl", walk(seed=1).flatten()
    reward = learner(path, queries=80, budget=61)
    began = time.monotonic()
    assert reward.update(walk()) == {"labels": 0.0}  # nothing is waited for
    assert time.monotonic() - began < 5
    tab = Tab(reward.judge.page.address)
    for _ in range(30):
        tab.answer_rightly()
    assert reward.update(walk(seed=2))["labels"] == 30
    saved = reward.state_dict()
    for _ in range(30):
        tab.answer_rightly()
    tab.answer("skip")
    tab.answer_rightly()
    assert tab.seen["question"] is None and tab.seen["labels"] == 61  # the budget is spent
    resumed = learner(path, queries=80, budget=61)
    resumed.load_state_dict(saved)
    for each in (reward, resumed, replay := learner(path, "recorded", budget=61)):
        metrics = each.update(walk(seed=3))
        assert metrics["labels"] == 61 and metrics["agreement"] == 1.0
        assert np.corrcoef(each.score(other), other.reward)[0, 1] > 0.8
    assert replay.update(walk(seed=4)) == {"labels": 61.0}  # each answer once
    assert resumed.judge.page is None  # nothing left to ask
    reward.close()
    shorter = learner(path, "recorded", length=3)
    shorter.update(walk())
    assert shorter.notes()[1].startswith("61 answers in") and "other segments" in shorter.notes()[1]


CHILD = f"""
import sys, time
import numpy as np
from envs.transitions import Transitions
from rewards.preference.human import Human
x = np.random.default_rng(0).uniform(-1, 1, ({L}, 12, 2)).astype(np.float32)
no = np.zeros(x.shape[:2], bool)
batch = Transitions(x, x, x[..., 0], x, no, no, ~no, no.astype(int))
Human(answers=sys.argv[1], show="obs").ask(batch[:, :6], batch[:, 6:], 10)
time.sleep(60)
"""


def test_a_kill_loses_no_answer_and_asks_none_again(tmp_path):
    path, known = tmp_path / "answers.jsonl", set()
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
        tab = Tab(child.stdout.readline().removeprefix("questions: "))
        for what in ("left", "right"):
            assert tab.seen["question"]["id"] not in known
            known.add(tab.seen["question"]["id"])
            tab.answer(what)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        with open(path, "ab") as file:
            file.write(b'{"first": "cut o')  # as a power cut leaves it
    kept = RecordedPreferences(str(path)).source
    assert sorted(kept.labels.values()) == [0.0, 0.0, 1.0, 1.0]
    kept.append(("a", "b"), 0.5)
    assert len(KeptAnswers(str(path)).labels) == 5


@pytest.mark.parametrize(
    ("tail", "labels"),
    [
        (b"", [0.0]),
        (b'{"first": "c", "second": "d", "label": 1.0}', [0.0, 1.0]),
        (b'{"text": "c", "other": "d", "value": 1.0}', [0.0, 1.0]),
        (b'{"first": "c", "second": "d", "label": 1.', [0.0]),
        (b'{"first": "c", "second": "d", "label": 7}', [0.0]),
        (b"7", [0.0]),
        (b"\xff", [0.0]),
    ],
)
def test_an_answer_without_a_newline_is_kept_when_the_next_one_is_written(tmp_path, tail, labels):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b'{"first": "a", "second": "b", "label": 0.0}\n' + tail)
    kept = KeptAnswers(str(path))
    assert [*kept.labels.values()] == labels
    kept.append(("e", "f"), 0.5)
    kept.append(("g", "h"), 0.25)
    assert [*KeptAnswers(str(path)).labels.values()] == [*labels, 0.5, 0.25]


def test_an_answer_that_cannot_be_written_does_not_count(tmp_path):
    (tmp_path / "file").touch()
    judge = Human(answers=str(tmp_path / "file" / "answers.jsonl"), show="obs")
    judge.ask(*pairs(), 10)
    tab = Tab(judge.page.address)
    said = refused(tab, 507, "/answer", {"id": tab.seen["question"]["id"], "answer": "left"})
    assert "could not be written" in said
    assert tab("/next") == tab.seen
    judge.close()


def test_frames_are_shown_as_pictures_of_which_the_newest_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(human, "MAX_PICTURES", 4 * L)
    judge = Human(answers=str(tmp_path / "answers.jsonl"), frame_size=32)
    first, second = pairs(count=2)
    frames = np.random.default_rng(0).integers(0, 255, (6 * L, 32, 32, 3)).astype(np.uint8)
    numbers = (
        judge.embed(first.flatten().replace(frame=frames[: 2 * L])),
        judge.embed(second.flatten().replace(frame=frames[: 2 * L])),
    )
    first, second = (
        side.replace(extras={PICTURE_NUMBERS: each.reshape(L, 2, 1)}) for side, each in zip((first, second), numbers)
    )
    judge.ask(first, second, 10)
    clips = Tab(judge.page.address).seen["question"]["clips"]
    assert [len(clip["frames"]) for clip in clips] == [L, L]
    assert clips[0] == clips[1] and clips[0]["frames"][0].startswith("/9j/")  # JPEG
    judge.embed(first.flatten().replace(frame=frames[: 2 * L]))  # those of the first sides are gone
    judge.ask(first[:, ::-1], second[:, ::-1], 10)
    assert not judge.questions.waiting
    judge.close()


def test_a_port_in_use_and_a_second_file_are_refused(judge, tmp_path):
    judge.ask(*pairs(), 10)
    other = Human(answers="", port=judge.page.server_port)
    assert other.reach() == f"port={judge.page.server_port} of the judge human is in use; give another, or 0 for any"
    assert judge.questions and Human(answers="").reach() == ""
    (tmp_path / "table.csv").write_text("first,second,label\n")
    with pytest.raises(ValueError, match=r"answers=.*table.csv is of another kind; give JSON lines"):
        Human(answers=str(tmp_path / "table.csv"))
    with pytest.raises(ValueError, match=r"cached=x: the judge human .*; give answers=FILE"):
        make_segment_judge("human", cached="x")
    with pytest.raises(ValueError, match=r"judge human: show='video' is unknown; give one of frame, text, obs"):
        Human(show="video")


def test_a_length_below_zero_is_refused_at_once_and_a_browser_that_leaves_is_no_error(judge, capfd):
    judge.ask(*pairs(), 10)
    tab = Tab(judge.page.address)
    request = f"POST /answer?token={tab.token} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", judge.page.server_port), timeout=5) as line:
        line.sendall(request.encode() + b"x" * 10)
        assert line.recv(100).startswith(b"HTTP/1.0 400")
    server = judge.page
    for error in (BrokenPipeError("gone"), ConnectionResetError("gone"), TimeoutError("slow")):
        try:
            raise error
        except OSError:
            server.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("given", "aspect", "asked"),
    [
        ("", 1.5, "Which clip is nearer to “pole vertically upright on top of the cart”?"),
        (",aspect:2,question:Which is calmer", 2.0, "Which is calmer"),
    ],
    ids=["of the environment", "given"],
)
def test_the_page_has_the_proportions_and_the_goal_of_the_environment(tmp_path, given, aspect, asked):
    from runners.cli.compose import compose
    from runners.run.build import build

    judge_options = f"{{answers:{tmp_path}/answers.jsonl,browser:false{given}}}"
    words = "env=CartPole-v1 reward=bradley_terry reward.bradley_terry.judge=human n_envs=2 preset=none"
    config, *_ = compose([*words.split(), f"reward.bradley_terry.judge_options={judge_options}"])
    parts = build(config)
    try:
        judge = parts.mix.streams["bradley_terry"].reward.judge
        assert judge.questions.aspect == aspect
        view = judge.questions.view()
        assert (view["task"], view["text"]) == ("CartPole-v1", asked)
    finally:
        parts.venv.close()
