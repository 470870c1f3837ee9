"""DistributedDataParallel under Join, over ranks whose numbers of batches differ: argv has the number of epochs."""
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import backend
from classifier import Batches, Classifier
from rendezvous import join


def main():
    torch.set_num_threads(1)
    join("emulated")
    torch.manual_seed(3)
    model = Classifier()
    batches = Batches(5, dist.get_rank(), dist.get_world_size())
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for _ in range(int(sys.argv[1])):
        with ddp.join():
            for _ in range(3 + 2 * dist.get_rank()):
                images, labels = batches.next()
                optimizer.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(ddp(images), labels).backward()
                optimizer.step()
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
