from multiprocessing import forkserver

import pytest

from runners.sweep import local


@pytest.fixture(scope="module")
def light_forkserver():
    """What local jobs are forked from imports no torch, unless another file of tests has started it already."""
    if forkserver._forkserver._forkserver_pid is not None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "WARM", "runners.sweep.local")
        yield
    forkserver._forkserver._stop()
