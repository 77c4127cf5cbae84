import json
import os
import resource
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch

from lodestar.state import pack, unpack
from runners.run import checkpoint
from runners.run.checkpoint import CheckpointError, VersionError, load, read, remove_leftovers, save


def _state(fill: float = 1.0, size: int = 64) -> dict:
    return {"weights": np.full(size, fill, np.float32), "optimiser": {0: torch.full((3,), fill)}, "steps": int(fill)}


def _assert_equal(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            _assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple, deque)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            _assert_equal(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    else:
        assert a == b or (a != a and b != b)


def test_a_state_comes_back_with_its_types(tmp_path):
    state = {
        "torch": torch.arange(6).reshape(2, 3).t(),  # not contiguous
        "empty": np.zeros((0, 4), np.float64),
        "zero-dimensional": np.array(3, np.int64),
        "bool": np.array([True, False]),
        "numpy generator": np.random.default_rng(7).bit_generator.state,  # 128-bit integers
        "python generator": (3, (1, 2, 2**32 - 1), None),
        "scalars": [np.float32(0.1), np.int64(-5), np.bool_(True), float("nan"), float("inf"), True, None],
        "optimiser": {0: {"step": torch.tensor(3.0)}, "0": torch.tensor(4.0)},
        "episodes": deque([{"r": 1.0, "l": 9}], maxlen=100),
        "raw": b"\x00\xff",
        "a/b": {"c": np.ones(1)},
        "a": {"b/c": np.zeros(1)},
    }
    save(tmp_path, state, 12)
    loaded, step = load(tmp_path)
    assert step == 12
    _assert_equal(loaded, state)
    assert loaded["episodes"].maxlen == 100


def test_captions_come_back_as_they_were(tmp_path):
    text = np.array([["You open it.", ""], ['\u4e2d "x"\n', "You open it."]], object)
    save(tmp_path, {"text": text, "none": np.empty((0, 3), object)}, 1)
    state, _ = load(tmp_path)
    assert state["text"].tolist() == text.tolist() and state["text"].dtype == object
    assert state["none"].shape == (0, 3)


def test_packing_copies_so_that_training_on_does_not_change_what_is_saved():
    state = _state(1.0)
    tree, arrays = pack(state)
    state["weights"][:] = 9
    state["optimiser"][0][:] = 9
    _assert_equal(unpack(tree, arrays), _state(1.0))


def test_what_cannot_be_saved_is_named_by_its_path(tmp_path):
    with pytest.raises(TypeError, match="the state at /agent/buffer is a set, which only pickle could hold"):
        save(tmp_path, {"agent": {"buffer": {1}}}, 1)
    with pytest.raises(TypeError, match="the state at /infos is an array of object"):
        save(tmp_path, {"infos": np.array([{}])}, 1)
    assert not list(tmp_path.iterdir())


def test_the_last_three_are_kept_and_the_newest_is_loaded(tmp_path):
    for step in range(1, 6):
        save(tmp_path, _state(step), step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", *(f"step_{s:012d}" for s in (3, 4, 5))]
    assert load(tmp_path)[0]["steps"] == 5


def test_saving_the_same_step_twice_keeps_the_newer_state(tmp_path):
    save(tmp_path, _state(1), 5)
    save(tmp_path, _state(2), 5)
    assert load(tmp_path)[0]["steps"] == 2


def test_the_checkpoint_just_written_is_never_pruned(tmp_path):
    for fill in range(12):  # 12: the names of the 10th and 11th sort before that of the 2nd
        assert save(tmp_path / "same", _state(fill), 5).is_dir()
        assert load(tmp_path / "same")[0]["steps"] == fill
    assert len(list((tmp_path / "same").glob("step_*"))) == 3
    save(tmp_path / "older", _state(1), 100, keep=1)
    target = save(tmp_path / "older", _state(2), 50, keep=1)
    assert [path.name for path in (tmp_path / "older").glob("step_*")] == [target.name] == ["step_000000000050"]
    assert load(tmp_path / "older")[1] == 50


@pytest.mark.parametrize("array", [np.ones(2, np.longdouble), torch.ones(2, dtype=torch.bfloat16), np.ones(2, complex)])
def test_numbers_of_a_type_that_no_file_holds_are_no_full_disk(tmp_path, array):
    with pytest.raises(TypeError, match=r"the state at /mean is an array of .*only plain numbers of up to 64 bits"):
        save(tmp_path, {"mean": array}, 1)
    assert not list(tmp_path.iterdir())


def test_leftovers_of_a_kill_are_removed_but_not_through_a_link(tmp_path):
    folder = save(tmp_path / "own", _state(1), 1).parent
    for place in (folder, tmp_path / "others"):
        (place / "tmp-77-5").mkdir(parents=True)
        (place / "LATEST.tmp-77").touch()
        (place / "config.yaml.tmp-77.yaml").touch()
    (folder / "tmp-notes").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "others")
    remove_leftovers(folder)
    remove_leftovers(tmp_path / "link")
    assert sorted(path.name for path in folder.iterdir()) == ["LATEST", "step_000000000001", "tmp-notes"]
    assert sorted(path.name for path in (tmp_path / "others").iterdir()) == [
        "LATEST.tmp-77",
        "config.yaml.tmp-77.yaml",
        "tmp-77-5",
    ]


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert load(tmp_path) is None
    assert load(tmp_path / "missing") is None


@pytest.mark.parametrize("name", [checkpoint.ARRAYS_FILE, checkpoint.STATE_FILE, checkpoint.MANIFEST])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99, "all but one byte"])
def test_a_truncated_file_is_detected_and_the_previous_checkpoint_is_used(tmp_path, name, kept):
    save(tmp_path, _state(1), 1)
    file = save(tmp_path, _state(2), 2) / name
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - 1 if isinstance(kept, str) else int(len(data) * kept)])
    said = []
    state, step = load(tmp_path, said.append)
    assert step == 1 and state["steps"] == 1
    assert len(said) == 1 and "step_000000000002" in said[0] and said[0].endswith("trying step_000000000001")


def test_every_one_of_200_flipped_bits_is_detected(tmp_path):
    path = save(tmp_path, _state(1), 1)
    rng = np.random.default_rng(0)
    files = [path / name for name in (checkpoint.ARRAYS_FILE, checkpoint.STATE_FILE, checkpoint.MANIFEST)]
    for _ in range(200):
        file = files[rng.integers(3)]
        good = bytearray(file.read_bytes())
        bad = bytearray(good)
        bad[rng.integers(len(bad))] ^= 1 << int(rng.integers(8))
        file.write_bytes(bad)
        with pytest.raises(CheckpointError):
            read(path)
        file.write_bytes(good)
    assert read(path)[1] == 1


def test_when_every_checkpoint_is_broken_the_sentence_says_how_to_start_over(tmp_path):
    (save(tmp_path, _state(1), 1) / checkpoint.ARRAYS_FILE).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"none of 1 checkpoints in .* is whole; start over: resume=never"):
        load(tmp_path, lambda sentence: None)


def test_a_broken_checkpoint_does_not_crowd_out_the_ones_saved_after_it(tmp_path):
    for step in (1, 2, 9):
        path = save(tmp_path, _state(step), step)
    (path / checkpoint.STATE_FILE).write_text("{")
    assert load(tmp_path, lambda sentence: None, tidy=True)[1] == 2
    for step in (3, 4, 5):
        save(tmp_path, _state(step), step)
    assert load(tmp_path)[1] == 5


def test_reading_leaves_alone_what_a_run_is_writing(tmp_path):
    save(tmp_path, _state(1), 1)
    (tmp_path / "tmp-4242-2").mkdir()
    (save(tmp_path, _state(3), 3) / checkpoint.STATE_FILE).write_text("{")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert load(tmp_path, lambda sentence: None)[1] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert load(tmp_path, lambda sentence: None, tidy=True)[1] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "broken_step_000000000003", names[1]]


def test_another_format_is_refused_with_the_fix(tmp_path):
    path = save(tmp_path, _state(1), 1)
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    del manifest["sha256"]
    manifest["format"] = 7
    manifest["sha256"] = checkpoint.digest(manifest)
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(VersionError, match="has format 7, this version reads format 2; use the version"):
        load(tmp_path)


def test_a_pickle_in_place_of_the_arrays_is_never_executed(tmp_path):
    import pickle

    marker = tmp_path / "executed"

    class Payload:
        def __reduce__(self):
            return (os.mkdir, (str(marker),))

    path = save(tmp_path, _state(1), 1)
    (path / checkpoint.ARRAYS_FILE).write_bytes(pickle.dumps(Payload()))
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"][checkpoint.ARRAYS_FILE] = checkpoint._fingerprint(path / checkpoint.ARRAYS_FILE)
    manifest["sha256"] = checkpoint.digest(manifest)
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        read(path)
    assert not marker.exists()


def test_a_full_disk_leaves_the_earlier_checkpoints_and_no_leftovers(tmp_path):
    save(tmp_path, _state(1), 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write arrays\.safetensors"):
            save(tmp_path, _state(2, size=1_000_000), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["LATEST", "step_000000000001"]
    assert load(tmp_path)[1] == 1


def test_files_are_flushed_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    calls = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: (calls.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), fsync(fd))
    )
    monkeypatch.setattr(os, "rename", lambda a, b: (calls.append("rename"), rename(a, b)))
    save(tmp_path, _state(1), 1)
    before, after = calls[: calls.index("rename")], calls[calls.index("rename") + 1 :]
    assert before[:3] == [checkpoint.ARRAYS_FILE, checkpoint.STATE_FILE, checkpoint.MANIFEST]
    assert before[3].startswith("tmp-")
    assert after[0] == tmp_path.name
