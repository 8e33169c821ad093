"""Rows of fabric_baseline.py, each in a process of its own that has torch and lightning already: they are imported once a rank.

usage: LOCAL_RANK=R python3 fabric-table-torch.py BASELINE
Prints READY and the number of GPUs. Then reads a row a line, the port at which its ranks meet and the baseline's arguments, forks
a process that runs the baseline as it is, waits for its end and prints DONE. This process never touches a GPU, so that between
rows nothing of torch is on one. Where a forked process cannot use the GPU a row starts Python anew. Ends with its input, and
after a row that failed.
"""
import ctypes
import os
import runpy
import signal
import subprocess
import sys

import lightning  # noqa: F401
import torch

PR_SET_PDEATHSIG = 1


def end_with_parent():
    """Nobody is left behind, however the one who asked ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def in_child(action):
    """Forks, runs `action` there and returns the exit code."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        action()
        # As a script ends: what torch and Fabric have to do at exit is done.
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ready():
    gpus = torch.cuda.device_count()
    if gpus > 0:
        torch.zeros(1, device="cuda")
    print("READY", gpus, flush=True)


def row(arguments):
    sys.argv = [baseline, *arguments]
    runpy.run_path(baseline, run_name="__main__")


def anew(*arguments):
    return subprocess.call([sys.executable, *arguments], stdin=subprocess.DEVNULL)


end_with_parent()
baseline = sys.argv[1]
# Asked in a child too: the count may open the driver, and what has it open cannot be forked.
forks = in_child(ready) == 0
if not forks and anew("-c", "import torch; print('READY', torch.cuda.device_count())") != 0:
    sys.exit(1)
for line in iter(sys.stdin.readline, ""):
    port, *arguments = line.split()
    os.environ["MASTER_PORT"] = port
    code = in_child(lambda: row(arguments)) if forks else anew(baseline, *arguments)
    if code != 0:
        print("a row ended with", code, file=sys.stderr)
        sys.exit(1)
    print("DONE", flush=True)
