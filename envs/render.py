"""One guarded path from an environment to a frame.

`prepare()` chooses the renderers before any of them is imported. `frame(env, size)` renders what rewards read: an image
that is squashed to a square by area averaging, without cropping, so that nothing at the edge is lost. `picture(env,
side)` is for people: circles stay circles.
"""

import ctypes
import functools
import importlib.util
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

# `PIL.Image.Resampling.BOX`, which averages areas; Pillow is imported only where a picture is made.
PILLOW_BOX = 4


def prepare() -> str:
    """Choose renderers that work without a screen, unless the user's own variables are set or there is a screen.

    Call it before `mujoco` or `pygame` is imported. Returns the choice, such as "MUJOCO_GL=egl, SDL_VIDEODRIVER=dummy".
    """
    screens = (os.environ.get("DISPLAY"), os.environ.get("WAYLAND_DISPLAY"))
    if sys.platform not in ("win32", "darwin") and not any(screens):
        if "MUJOCO_GL" not in os.environ:
            os.environ["MUJOCO_GL"] = _screenless_renderer()
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        # SDL and Mesa complain on every start when it is missing.
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    # No environment of ours makes a sound; without this ALSA prints a page of errors.
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    names = ("MUJOCO_GL", "SDL_VIDEODRIVER")
    return ", ".join(f"{name}={os.environ.get(name) or 'the default'}" for name in names)


def _screenless_renderer() -> str:
    """The first way to draw without a screen whose library is here; "disable" leaves MuJoCo its physics."""
    if not sys.platform.startswith("linux"):
        return "egl"
    for name, library in (("egl", "libEGL.so.1"), ("osmesa", "libOSMesa.so.8")):
        with suppress(OSError):
            ctypes.CDLL(library)
            return name
    return "disable"


def opengl(draws: bool) -> Any:
    """MuJoCo with the renderer that `MUJOCO_GL` names; an ImportError if it does not work, or is off but `draws`."""
    choice = os.environ.get("MUJOCO_GL", "")
    problem = ""
    if draws and choice.lower() in ("disable", "disabled", "off", "false", "0"):
        problem = "it is switched off"
    try:
        import mujoco

        if draws and choice == "osmesa":
            # MuJoCo itself would load it with the first picture only.
            importlib.import_module("mujoco.osmesa")
    except Exception as error:
        if isinstance(error, ImportError) and error.name == "mujoco":
            raise
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise ImportError(
            f"MuJoCo cannot draw with MUJOCO_GL={choice} ({problem}); set MUJOCO_GL=egl, osmesa or glfw, whichever "
            "this machine has the library of, or MUJOCO_GL=disable for a run without pictures (video=false)"
        )
    return mujoco


@functools.cache
def before_opengl() -> None:
    """Load triton's compiler ahead of Mesa's: both bring an LLVM, and importing it after an OpenGL context crashes."""
    spec = importlib.util.find_spec("triton")
    if spec is None:
        return
    for folder in spec.submodule_search_locations or []:
        with suppress(OSError):
            ctypes.CDLL(str(Path(folder) / "_C" / "libtriton.so"))


def frame(env: gym.Env, size: int) -> np.ndarray:
    """The current state as rewards read it, uint8 (size, size, 3); a RuntimeError for none, or a single colour."""
    image: np.ndarray | None = None
    if env.has_wrapper_attr("small_frame"):
        # The family's shorter way to the same pixels.
        image = env.get_wrapper_attr("small_frame")(size)
    if image is None:
        image = resize(render_picture(env), size)
    refuse_single_colour(env, image)
    return image


def picture(env: gym.Env, side: int) -> np.ndarray:
    """The current state as people see it, uint8 (H, W, 3) of the environment's own proportions; the longer is `side`.

    The errors are those of `frame`.
    """
    from PIL import Image, ImageOps

    image = render_picture(env)
    refuse_single_colour(env, image)
    original = Image.fromarray(np.ascontiguousarray(image, dtype=np.uint8))
    method: Any = PILLOW_BOX
    return np.array(ImageOps.contain(original, (side, side), method))


def render_picture(env: gym.Env) -> np.ndarray:
    """What an environment renders, (H, W, 3); a RuntimeError if it is no image."""
    image: Any = env.render()
    if isinstance(image, np.ndarray) and image.ndim == 3:
        return image
    raise RuntimeError(
        f"{name_of(env)} rendered {type(image).__name__}, not an image (render_mode={env.render_mode!r}); "
        'make it with render_mode="rgb_array"'
    )


def refuse_single_colour(env: gym.Env, image: np.ndarray) -> None:
    """A RuntimeError about an image on which nothing can be seen."""
    if image.min() == image.max():
        raise RuntimeError(
            f"{name_of(env)} rendered one single colour ({int(image.min())} everywhere), which no reward can read; "
            f"the renderers in use are {prepare()}: set these variables, or render in a process of its own"
        )


def resize(image: np.ndarray, size: int) -> np.ndarray:
    """Shrink uint8 (H, W, 3) to (size, size, 3) by area averaging, the sides independently of each other."""
    from PIL import Image

    if image.shape[:2] == (size, size):
        return np.array(image, dtype=np.uint8)
    return np.array(shrink(Image.fromarray(np.ascontiguousarray(image, dtype=np.uint8)), size))


def shrink(picture: Any, size: int) -> Any:
    """A Pillow image averaged to (size, size)."""
    # Far shrinking averages whole blocks first: twice as fast, and the rest is off by less than half a block.
    reducing_gap = 1.0 if min(picture.size) >= 4 * size else None
    return picture.resize((size, size), resample=PILLOW_BOX, reducing_gap=reducing_gap)


def name_of(env: gym.Env) -> str:
    """An environment's id, or the name of its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
