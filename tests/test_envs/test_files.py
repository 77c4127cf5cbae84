import json
import os

import numpy as np
import pytest

from lodestar.files import (
    NoRegularFile,
    make_folder,
    open_text_file,
    open_to_append,
    read_bytes,
    read_json,
    read_text,
    regular,
    replacing,
    save_arrays,
)


@pytest.fixture
def strange(tmp_path):
    """Name -> a path at which there is no file that could be read to its end."""
    (tmp_path / "file").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(2**40 + 1)  # sparse: no block of it is on the disk
    return {name: tmp_path / name for name in ("link", "device", "folder", "pipe", "endless")}


@pytest.mark.parametrize("read", [read_bytes, read_text, open_text_file, regular])
def test_what_is_no_regular_file_of_bounded_size_is_refused_and_never_waited_for(strange, read):
    for path in strange.values():
        with pytest.raises(NoRegularFile, match=str(path)):
            read(path)


def test_nothing_is_written_through_a_link_or_into_a_pipe(strange, tmp_path):
    for name in ("link", "device", "folder", "pipe"):
        with pytest.raises(OSError):
            open_to_append(strange[name])
    assert (tmp_path / "file").read_text() == "secret"
    with open_to_append(tmp_path / "file") as file:
        file.write(b" and more")
    assert read_text(tmp_path / "file") == "secret and more"


def test_a_link_is_replaced_and_what_it_leads_to_stays_also_under_the_temporary_name(strange, tmp_path):
    (tmp_path / f"link.tmp-{os.getpid()}").symlink_to(tmp_path / "file")
    with replacing(strange["link"]) as path:
        path.write_text("new")
    assert read_text(strange["link"]) == "new"
    assert (tmp_path / "file").read_text() == "secret"
    assert not [*tmp_path.glob("*.tmp-*")]


def test_what_is_written_in_vain_leaves_the_file_as_it_was(tmp_path):
    (tmp_path / "table.csv").write_text("old")
    with pytest.raises(KeyError), replacing(tmp_path / "table.csv") as path:
        path.write_text("half")
        raise KeyError("the other half")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"table.csv": "old"}


def test_a_linked_folder_is_not_written_into_even_if_it_leads_nowhere_yet(tmp_path):
    (tmp_path / "page").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoRegularFile, match=r"page is a link, which may lead anywhere; put the folder itself there"):
        make_folder(tmp_path / "page")
    assert not (tmp_path / "elsewhere").exists()
    assert make_folder(tmp_path / "a" / "b").is_dir()


def test_arrays_for_a_full_disk_are_an_error_of_the_disk(tmp_path):
    from tests.faults.child import full_disk

    full = pytest.raises(OSError, match=r"cannot write a\.safetensors: .*File too large")
    with full_disk(), full, replacing(tmp_path / "a.safetensors") as path:
        save_arrays(path, {"x": np.zeros(10_000)})
    assert not [*tmp_path.iterdir()]


def test_a_file_may_be_as_large_as_it_should_and_no_larger(tmp_path):
    (tmp_path / "file").write_bytes(b"1234")
    assert read_bytes(tmp_path / "file", 4) == b"1234"
    with pytest.raises(NoRegularFile, match=r"file has 4 bytes, more than the 3 that belong there"):
        read_bytes(tmp_path / "file", 3)


def test_a_device_is_no_regular_file_either():
    with pytest.raises(NoRegularFile):
        read_bytes("/dev/zero")


def test_bytes_that_are_no_utf8_are_read_as_question_marks_and_a_missing_file_is_told(tmp_path):
    (tmp_path / "bytes").write_bytes(b'{"a": "\xff"}')
    assert json.loads(read_text(tmp_path / "bytes")) == {"a": "\ufffd"}
    with open_text_file(tmp_path / "bytes") as file:
        assert file.read() == '{"a": "\ufffd"}'
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "nothing")


@pytest.mark.parametrize("text", [None, "", '{"a": 1', "[1]", "\xff", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_json_that_cannot_be_read_is_an_empty_object(tmp_path, text):
    if text is not None:
        (tmp_path / "a.json").write_text(text, encoding="latin-1")
    assert read_json(tmp_path / "a.json") == {}
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "a.json") == {"a": 1}
