"""Ranks of PyTorch that are forks of one process, which has imported it for all of them: an import takes a second.

usage: forked.py --serve        imports, then forks a rank for each process that asks, until the first that connected has closed
       forked.py SCRIPT WORD... a rank: runs the script in a fork, with this process's arguments, environment, output and end

The socket's path is in TEST_FORKS. NCCL, CUDA and slimwire know nothing of it: none of them has been called before the fork. How they
come into a process is decided when it starts, so that has to be alike for both.
"""
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys

AT_THE_START = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")


def new_socket():
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def ask():
    with new_socket() as server:
        server.connect(os.environ["TEST_FORKS"])
        socket.send_fds(server, [json.dumps([sys.argv[1:], dict(os.environ)]).encode()], [1, 2])
        status = server.recv(64)
    if not status:
        sys.exit("the process that forks has ended")
    code = os.waitstatus_to_exitcode(int(status))
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def serve():
    """Returns what a fork shall run."""
    import torch.distributed  # noqa: F401
    import torch.nn.parallel  # noqa: F401
    gc.freeze()
    listener = new_socket()
    listener.bind(os.environ["TEST_FORKS"])
    listener.listen(64)
    keeper, ranks = listener.accept()[0], {}  # of a rank: who asked, by its process
    while keeper not in (ready := select.select([listener, keeper, *ranks, *(asked for _, asked in ranks.values())], [], [])[0]):
        for ended in [one for one in ranks if one in ready]:
            process, asked = ranks.pop(ended)
            status = os.waitpid(process, 0)[1]
            with asked, contextlib.suppress(BrokenPipeError):
                asked.send(str(status).encode())
            os.close(ended)
        for process, asked in ranks.values():
            if asked in ready:  # it was killed
                os.kill(process, signal.SIGKILL)
        if listener in ready:
            asked = listener.accept()[0]
            words, descriptors = socket.recv_fds(asked, 1 << 20, 2)[:2]
            process = os.fork()
            if process == 0:
                for number, descriptor in enumerate(descriptors, 1):
                    os.dup2(descriptor, number)
                for descriptor in (*descriptors, *ranks):
                    os.close(descriptor)
                return json.loads(words)
            ranks[os.pidfd_open(process)] = process, asked
            for descriptor in descriptors:
                os.close(descriptor)
    for process, _ in ranks.values():
        os.kill(process, signal.SIGKILL)
    sys.exit(0)


def main():
    if sys.argv[1:] != ["--serve"]:
        ask()
    words, environment = serve()
    for name in AT_THE_START:
        if environment.get(name) != os.environ.get(name):
            sys.exit(f"{name} is {environment.get(name)}, and was {os.environ.get(name)} when the process began that forks")
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:], sys.path[0] = words, os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
