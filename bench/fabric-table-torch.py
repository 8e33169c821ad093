"""Rows of fabric_baseline.py in turn, in one process a rank: torch and lightning are imported once, not once a row.

usage: LOCAL_RANK=R python3 fabric-table-torch.py BASELINE
Prints READY and the number of GPUs. Then reads a row a line, the port at which its ranks meet and the baseline's arguments, runs the
baseline as it is, gives everything back and prints DONE with the MiB that torch still holds. Ends with its input, with an error, and
after a row that left more than a trace behind, so that every row begins as in a process of its own.
"""
import gc
import os
import runpy
import sys

import lightning  # noqa: F401
import torch

LEFT_MIB = 64
baseline = sys.argv[1]
chosen_threads = os.environ.get("OMP_NUM_THREADS")
print("READY", torch.cuda.device_count(), flush=True)

for line in sys.stdin:
    port, *arguments = line.split()
    os.environ["MASTER_PORT"] = port
    if chosen_threads is None:
        # Fabric sets it once a process, by the number of ranks; each row has its own.
        os.environ.pop("OMP_NUM_THREADS", None)
    sys.argv = [baseline, *arguments]
    runpy.run_path(baseline, run_name="__main__").clear()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()
    left = 0
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        left = torch.cuda.memory_allocated() >> 20
    print("DONE", left, flush=True)
    if left > LEFT_MIB:
        break
