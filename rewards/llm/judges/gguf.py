"""What a GGUF file says of the language model in it, read without loading it, and where the small model lies.

The format: github.com/ggml-org/ggml, docs/gguf.md. The head holds named values, then each tensor's
name, shape, type and place. A file that ends before its last tensor was cut off.
"""

import functools
import hashlib
import math
import mmap
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

SMALL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMALL_MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Codes of values: how `struct` reads them; then text and list.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT = 8
_LIST = 9
# Codes of tensor types: numbers in a block, and its bytes. The last tensor of another type is not measured.
_BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84)}
_BLOCKS |= {11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}
DEFAULT_ALIGNMENT = 32


class ModelFile(NamedTuple):
    """What is read of a file."""

    # Of its head and its size: equal files have equal ones.
    digest: str
    # The tokens that the model was trained to read at once; 0 where the file does not say.
    context: int
    has_chat_template: bool


class _Head:
    """Reads values one after the other; struct.error where the file ends."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.place = 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.place)
        self.place += struct.calcsize(f"<{code}")
        return value

    def text(self) -> str:
        length = self.number("Q")
        self.place += length
        return self.data[self.place - length : self.place].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A number or a text; a list is passed over."""
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            return self.number(_NUMBERS[kind])
        kind = self.number("I")
        count = self.number("Q")
        if kind in _NUMBERS:
            self.place += count * struct.calcsize(f"<{_NUMBERS[kind]}")
            return None
        for _ in range(count):
            self.value(kind)
        return None


def small_model() -> Path:
    """Where `lodestar fetch` puts the small model, and judges look for it."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "lodestar" / SMALL_MODEL


def read_model(path: Path) -> ModelFile:
    """The head of a file; a ValueError, half a sentence, if it is no GGUF or was cut off."""
    status = path.stat()
    return _read_model(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(8)
def _read_model(path: Path, size: int, changed_ns: int) -> ModelFile:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("is no GGUF file; give the file of a model in llama.cpp's format")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            head = _Head(data)
            try:
                values, end = _read_head(head)
            except (struct.error, IndexError, KeyError, OverflowError):
                raise ValueError(f"is cut off in its head, at {size:,} bytes; bring it again") from None
            digest = hashlib.sha256(data[: head.place])
    if end > size:
        raise ValueError(f"is cut off: it has {size:,} bytes of {end:,}; bring it again")
    digest.update(str(size).encode())
    context = values.get(f"{values.get('general.architecture')}.context_length", 0)
    return ModelFile(digest.hexdigest(), int(context), "tokenizer.chat_template" in values)


def _read_head(head: _Head) -> tuple[dict[str, Any], int]:
    """The named values, and the size that the file must have."""
    head.place = 8
    tensor_count = head.number("Q")
    value_count = head.number("Q")
    values = {}
    for _ in range(value_count):
        name = head.text()
        values[name] = head.value(head.number("I"))
    ends = [0]
    for _ in range(tensor_count):
        head.text()
        dimensions = head.number("I")
        shape = [head.number("Q") for _ in range(dimensions)]
        block, size = _BLOCKS.get(head.number("I"), (1, 0))
        ends.append(head.number("Q") + math.prod(shape) // block * size)
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    start = math.ceil(head.place / alignment) * alignment
    return values, start + max(ends)
