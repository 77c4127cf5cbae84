import numpy as np

from rewards.vision import encoder as cache_module
from rewards.vision.encoder import EmbeddingCache


class Encoder:
    """Sums a frame's bytes, and remembers what it was asked for."""

    def __init__(self):
        self.passes = []

    def __call__(self, frames, batch_size):
        self.passes.append(len(frames))
        total = frames.astype(np.float64).sum((1, 2, 3))
        return np.stack([total / 1000, -total / 1000], axis=1).astype(np.float16)


def frames_of(*seeds):
    return np.stack([np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8) for seed in seeds])


def test_answers_are_the_encoders_and_what_came_before_is_not_encoded_again():
    encoder = Encoder()
    cache = EmbeddingCache(encoder)
    asked = [(0, 1, 2), (2, 0, 3, 0, 3), (1, 1, 1), (4,)]
    for seeds in asked:
        frames = frames_of(*seeds)
        assert cache(frames, 64).tolist() == Encoder()(frames, 64).tolist()
    assert (cache.missed, cache.found) == (5, 7)
    assert encoder.passes == [3, 5, 1]  # one new frame among five: a pass as long as the batch


def test_a_new_frame_among_many_goes_through_in_a_pass_of_sixteen():
    encoder = Encoder()
    cache = EmbeddingCache(encoder)
    cache(frames_of(*range(40)), 64)
    cache(frames_of(*range(41)), 64)
    assert encoder.passes == [40, 16]


def test_the_answer_is_the_callers_to_change():
    cache = EmbeddingCache(Encoder())
    for _ in range(3):
        answer = cache(frames_of(0, 1), 64)
        assert answer.tolist() == Encoder()(frames_of(0, 1), 64).tolist()
        answer[:] = 0


def test_the_oldest_make_room():
    encoder = Encoder()
    cache = EmbeddingCache(encoder, capacity=3)
    cache(frames_of(0, 1), 64)
    cache(frames_of(2, 3), 64)  # 0 is gone
    cache(frames_of(1, 2, 3), 64)
    assert cache.found == 3 and len(cache.table) == 3
    assert cache(frames_of(0), 64).tolist() == Encoder()(frames_of(0), 64).tolist() and cache.missed == 5
    many = frames_of(*range(10, 20))
    assert cache(many, 64).tolist() == Encoder()(many, 64).tolist() and len(cache.table) == 3
    both = frames_of(19, 30, 31, 32)  # what it holds makes room for what comes with it
    assert cache(both, 64).tolist() == Encoder()(both, 64).tolist()


def test_it_switches_itself_off_where_next_to_nothing_comes_back(monkeypatch):
    monkeypatch.setattr(cache_module, "CACHE_MIN_MISSES", 20)
    off, on = EmbeddingCache(Encoder()), EmbeddingCache(Encoder())
    for i in range(25):
        off(frames_of(i), 64)
        on(frames_of(i, 0), 64)
    assert not off.is_worthwhile and off.missed == 20 and not off.table
    assert on.is_worthwhile and on.missed == 25
    assert off(frames_of(3, 3), 64).tolist() == Encoder()(frames_of(3, 3), 64).tolist()


def test_pictures_of_another_shape_with_the_same_bytes_are_not_mistaken():
    cache = EmbeddingCache(lambda frames, _: np.full((len(frames), 1), frames.shape[1], np.float16))
    flat = np.zeros((1, 4, 16, 3), np.uint8)
    assert cache(flat, 64).tolist() == [[4]] and cache(flat.reshape(1, 8, 8, 3), 64).tolist() == [[8]]


def test_nothing_asked_is_nothing_answered():
    assert EmbeddingCache(Encoder())(np.zeros((0, 8, 8, 3), np.uint8), 64).shape == (0, 2)
