"""DDP with error feedback where tensors are told apart by their place in the step, and the same with a key that cannot be
wrong: each bucket's buffer. The oracle compresses the same calls and sends the others over Gloo, so if no call of the first
run took another bucket's residual, every result of both runs is equal to the bit.

usage: step_keys.py watch FILE     under tensor = "step"; rank 0 writes which calls were compressed
       step_keys.py oracle FILE    under tensor = "address"; does what FILE says

A call was compressed if its result is not the exact sum, which Gloo tells (of two ranks: a sum of two has one order).
Buckets of equal size, an evaluation after each epoch, and a last batch that is smaller and followed by a call of its own.
Prints a line of JSON for each epoch: "compressed" of "calls" of buckets, "steps", "digest" of all results so far.
"""
import hashlib
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import backend
from classifier import Batches
from rendezvous import join

EPOCHS = (140, 50, 90)  # steps
LEAST = 256  # elements: smaller all-reduces are no buckets


class Watched(backend.Emulated):
    """The backend, with an eye on each bucket's all-reduce."""
    gloo = None
    known = None  # the calls to compress; None: find out
    compressed = []
    digest = hashlib.sha256()

    def allreduce(self, tensors, opts=None):
        tensor = tensors[0]
        if tensor.numel() < LEAST:
            return super().allreduce(tensors, opts)
        if Watched.known is None:
            exact = tensor.clone()
            Watched.gloo.allreduce([exact]).wait()
            work = super().allreduce(tensors, opts)
            work.wait()
            Watched.compressed.append(not torch.equal(tensor, exact))
        else:
            Watched.compressed.append(Watched.known[len(Watched.compressed)])
            work = (super() if Watched.compressed[-1] else Watched.gloo).allreduce(tensors)
            work.wait()
        Watched.digest.update(tensor.numpy().tobytes())
        return work


def evaluate(model, images):
    """Sums as a metric makes them: two sizes that no step has."""
    with torch.no_grad():
        for part in images.split(500):
            hits = torch.bincount(model(part).argmax(1), minlength=10).float()
            dist.all_reduce(hits)
        dist.all_reduce(torch.zeros(300))


def epoch(ddp, optimizer, batches, steps):
    for step in range(steps):
        images, labels = batches.next()
        if step == steps - 1:
            images, labels = images[:11], labels[:11]
        loss = nn.functional.cross_entropy(ddp(images), labels)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
    dist.all_reduce(torch.zeros(2))


def main():
    mode, path = sys.argv[1:]
    torch.set_num_threads(1)
    dist.Backend.register_backend("watched", Watched)
    join("watched")
    Watched.gloo = dist.new_group(backend="gloo")
    if mode == "oracle":
        with open(path, encoding="utf-8") as file:
            Watched.known = json.load(file)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 2048
    torch.manual_seed(21)
    widths = [784, 40, 40, 40, 40, 10]
    layers = [nn.Sequential(nn.Linear(before, after), nn.Tanh()) for before, after in zip(widths, widths[1:])]
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    batches = Batches(9, dist.get_rank(), dist.get_world_size(), size=16)
    for steps in EPOCHS:
        before = len(Watched.compressed)
        epoch(ddp, optimizer, batches, steps)
        evaluate(ddp.module, batches.images[:1500])
        done = Watched.compressed[before:]
        print(json.dumps({"steps": steps, "calls": len(done), "compressed": sum(done),
                          "digest": Watched.digest.hexdigest()[:16]}), flush=True)
    if mode == "watch" and dist.get_rank() == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(Watched.compressed, file)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
