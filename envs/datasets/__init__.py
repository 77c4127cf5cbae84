"""Recordings of others as transitions of ours: Minari, LeRobot's format, OGBench, buffers of Stable-Baselines3.

    read("D4RL/door/human-v2").transitions()          Minari, by its name or folder, where that package is installed
    read("pusht", frame_size=64).transitions()        a folder in LeRobot's format, version 2 or 3
    read("cube-single-play-v0.npz").transitions()     a file of OGBench
    from_sb3(model.replay_buffer)                     a buffer that a program holds

`envs.recording.save` writes them; `runners.record from=` does it all. Nothing in a data set is executed, and no
environment that it names is imported here.
"""

from pathlib import Path

from envs.datasets.dataset import Dataset, StoredEpisode, from_sb3

__all__ = ["Dataset", "StoredEpisode", "from_sb3", "read"]


def read(source: str | Path, frame_size: int = 0, camera: str = "") -> Dataset:
    """The data set in a folder, in a file of OGBench (*.npz), or Minari's of that name on this machine.

    `frame_size` is the side of the frames to make of the images of a `camera` of LeRobot's format, 0 for none. The
    camera is the first by default; of `a,b` the images stand side by side. An ImportError names a package that it
    takes; a FileNotFoundError, a ValueError what cannot be read.
    """
    folder = Path(source)
    if (folder / "meta" / "info.json").is_file():
        from envs.datasets.lerobot import from_lerobot

        return from_lerobot(folder, frame_size, camera)
    if folder.suffix == ".npz" and not frame_size:
        from envs.datasets.ogbench import from_ogbench

        return from_ogbench(folder)
    from envs.datasets.minari import find, from_minari

    if frame_size:
        raise ValueError(f"frames are read from LeRobot's format only, which {source} is not; leave frames= out")
    return from_minari(find(source))
