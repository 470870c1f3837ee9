"""One training of the classifier on Fashion-MNIST by unmodified DDP, as a user would write it but for the backend's name.

usage: train_fashion.py SEED EPOCHS     one process a rank
Rank 0 prints a line of JSON: seed, loss (mean of the last epoch on its data), accuracy_percent (of the test images), digest
and replicas_equal (of all ranks' parameters).
"""
import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import backend
from classifier import Classifier, digest, flat, replicas_equal
from data import fashion_mnist
from rendezvous import join

BATCH = 64  # of a rank
RATE = 0.05


def main():
    seed, epochs = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    join("emulated")
    dist._DEFAULT_FIRST_BUCKET_BYTES = 65536  # a small model, more than one bucket
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = Classifier(width=256)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-4)
    images, labels = fashion_mnist()
    steps = len(labels) // (BATCH * ranks)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * RATE, total_steps=steps * epochs)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        total, shuffled = 0.0, torch.randperm(len(labels), generator=order)[rank::ranks]
        for step in range(steps):
            chosen = shuffled[step * BATCH:(step + 1) * BATCH]
            loss = torch.nn.functional.cross_entropy(ddp(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
    model.eval()
    images, labels = fashion_mnist("t10k")
    with torch.no_grad():
        hits = (model(images).argmax(1) == labels).sum().item()
    own = flat(model)
    equal = replicas_equal(own)
    if rank == 0:
        print(json.dumps({"seed": seed, "loss": round(total / steps, 5), "accuracy_percent": 100 * hits / len(labels),
                          "digest": digest(own), "replicas_equal": equal}), flush=True)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
