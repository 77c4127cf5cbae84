"""Questions for goals wait in line, go to a real server from threads, and answers are picked up."""

import json
import threading
import time

from model_server import ModelServer

from rewards.language.guidance import THREADS, WAITING, Advisor


def told_in(text):
    return json.loads(next(line for line in text.splitlines() if line.startswith("[")))


def taken(advisor, count):
    answers = []
    for _ in range(1000):
        answers += advisor.take()
        if len(answers) >= count:
            return answers
        time.sleep(0.01)
    raise AssertionError(f"{answers} came")


def test_newest_situations_go_first_the_oldest_make_room_and_none_is_asked_twice():
    gate = threading.Event()

    def think(text, images):
        gate.wait(20)
        return json.dumps({"goal": f"  after\n{told_in(text)[0]}"})

    with ModelServer(think) as server:
        advisor = Advisor("m", server.url, "NO_KEY", "to win")
        for number in range(THREADS):
            advisor.offer([str(number)])
        while len(server.seen) < THREADS:  # all threads have their hands full
            time.sleep(0.01)
        for number in range(THREADS, THREADS + WAITING + 10):
            advisor.offer([str(number)])
        advisor.offer(["0"])  # in the air
        advisor.offer([str(THREADS + WAITING + 9)])  # waits already
        assert advisor.waiting == WAITING and advisor.take() == []
        gate.set()
        answers = taken(advisor, THREADS + WAITING)
        advisor.close()
        order = [int(told_in(body["messages"][0]["content"])[0]) for _, body in server.seen]
    assert (["3"], "after 3") in answers
    assert sorted(order[:THREADS]) == [0, 1, 2, 3] and max(order) == THREADS + WAITING + 9
    assert set(order[THREADS:]) == set(range(THREADS + 10, THREADS + WAITING + 10))  # the oldest ten fell out
    asked = order[THREADS:]  # threads may overtake each other by a few
    assert sum(asked[: WAITING // 2]) > sum(asked[WAITING // 2 :]) and min(asked[:THREADS]) > max(asked[-THREADS:])
    assert len(order) == THREADS + WAITING and advisor.failed == 0


def test_closing_ends_the_threads():
    with ModelServer(lambda text, images: json.dumps({"goal": "go"})) as server:
        advisor = Advisor("m", server.url, "NO_KEY", "")
        advisor.offer([])
        assert taken(advisor, 1) == [([], "go")]
        advisor.close()
        for thread in advisor._threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in advisor._threads)
        assert "to get far" in server.seen[0][1]["messages"][0]["content"]
