"""How the ranks of a test find each other: over a file where the test gave them a folder (ports of parallel tests
collide), else by the launcher's MASTER_ADDR and MASTER_PORT."""
import os

import torch.distributed as dist


def join(name):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = os.environ.get("TEST_FOLDER")
    method = f"file://{folder}/{name}" if folder else "env://"
    dist.init_process_group(name, init_method=method, rank=rank, world_size=ranks)
