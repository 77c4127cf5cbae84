"""llama.cpp's own server over a real model, for nightly tests; `python llama_server.py WEIGHTS PORT CONTEXT` is one."""

import os
import socket
import subprocess
import sys

from runners.fetch import FetchConfig, fetch
from runners.run.config import UsageError


def bring_weights(folder):
    """The path of the small model; OSError with a sentence where it cannot be had."""
    try:
        fetch(FetchConfig(out=str(folder / "small.gguf")))
    except UsageError as error:
        raise OSError(str(error)) from None
    return folder / "small.gguf"


class LlamaServer:
    """A process that serves the weights; `with` ends it. It answers 503 until the model is loaded."""

    def __init__(self, weights, context=2048):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        command = [sys.executable, __file__, str(weights), str(port), str(context)]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **streams)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()


def serve(weights, port, context):
    """Serve until standard input ends."""
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = weights
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    params.n_parallel, params.n_ctx = 1, int(context)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = Server(params)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    serve(*sys.argv[1:])
