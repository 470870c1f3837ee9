"""Processes of one job: started together, all on one device, ended at a limit with all that they started.

Rank i gets RANK, LOCAL_RANK = 0 (there is one device), WORLD_SIZE, TEST_FOLDER and NCCL_HOSTID of its own, without
which NCCL refuses two ranks on one device. What it writes goes to FOLDER/rank.i; when the time is up and cuda-gdb is
there, FOLDER/stack.i says where it was.
"""
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

TIME_UP = 124
OTHERS_S = 10  # that ranks have once one has failed
STACK_S = 10

running = []


@dataclass
class Ended:
    status: int  # 0, the first failed rank's (negative: its signal), or TIME_UP
    seconds: float
    folder: Path

    def output(self, rank=0):
        try:
            return (self.folder / f"rank.{rank}").read_text(errors="replace")
        except OSError:
            return ""

    def last_lines(self, count=6):
        """The end of each rank's output."""
        ends = []
        for path in sorted(self.folder.glob("rank.*")):
            lines = path.read_text(errors="replace").splitlines()[-count:]
            ends += [f"{path.name}: {line[:300]}" for line in lines]
        return "\n".join(ends)

    def records(self, kind):
        """Of slimwire's reports of all ranks."""
        for path in sorted(self.folder.glob("report.*")):
            for line in path.read_text(errors="replace").splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if record.get("record") == kind:
                    yield record

    def compressed_calls(self, algorithm=""):
        return sum(key.get("calls", 0) for key in self.records("key")
                   if key.get("algorithm") != "native" and algorithm in ("", key.get("algorithm")))


def members(sessions):
    """Processes of these sessions that have not ended: a compiler that ninja started has a group of its own."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rsplit(")", 1)[1].split()[:4]
        except (OSError, ValueError):  # it ended
            continue
        if int(session) in sessions and state != "Z":
            yield int(path.parent.name)


def kill_all():
    """Ends what is left of every job, with all that it started."""
    sessions = {process.pid for process in running}
    while left := list(members(sessions)):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    for process in running:
        process.wait()
    running.clear()


def write_stacks(processes, folder):
    debugger = shutil.which("cuda-gdb") or "/usr/local/cuda/bin/cuda-gdb"
    if not os.access(debugger, os.X_OK):
        return
    for rank, process in enumerate(processes):
        if process.poll() is None:
            with open(folder / f"stack.{rank}", "wb") as file:
                debugging = subprocess.Popen(
                    [debugger, "-batch", "-p", str(process.pid), "-ex", "info cuda kernels", "-ex",
                     "thread apply all backtrace 12"], stdin=subprocess.DEVNULL, stdout=file,
                    stderr=subprocess.STDOUT, start_new_session=True)
                running.append(debugging)
                try:
                    debugging.wait(STACK_S)
                except subprocess.TimeoutExpired:
                    pass


def wait(processes, end):
    """Status of the job; some may still run afterwards."""
    first = 0
    left = list(processes)
    while left:
        for process in list(left):
            if process.poll() is not None:
                left.remove(process)
                if process.returncode != 0 and first == 0:
                    first = process.returncode
                    end = min(end, time.monotonic() + OTHERS_S)
        if left and time.monotonic() >= end:
            return first or TIME_UP
        time.sleep(0.02)
    return first


def run(command, folder, limit_s, environment, ranks=1, same_host=False, stacks=False):
    """Runs `ranks` processes of the command for at most limit_s seconds. Never raises for what the command does."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = time.monotonic()
    token = f"{folder.name}.{os.getpid()}"
    processes = []
    try:
        for rank in range(ranks):
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks),
                   "TEST_FOLDER": str(folder), "SLIMWIRE_EMU_JOB": token}
            if not same_host:
                own["NCCL_HOSTID"] = f"{token}.{rank}"
            with open(folder / f"rank.{rank}", "wb") as file:
                processes.append(subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=file,
                                                  stderr=subprocess.STDOUT, start_new_session=True))
            running.append(processes[-1])
        status = wait(processes, begin + limit_s)
        if stacks and status == TIME_UP:
            write_stacks(processes, folder)
    except OSError as error:  # no such program
        (folder / f"rank.{len(processes)}").write_text(f"{error}\n")
        status = 127
    finally:
        kill_all()
    return Ended(status, time.monotonic() - begin, folder)
