"""A part of one training of a language model by unmodified DDP, one process a rank, which another one goes on with.

usage: resumed.py JSON
The JSON says: width, heads, layers, context, batch (sequences of all ranks, a multiple of eight), steps (of the whole training), first
and last (of this part), save (the step before which weights and optimizer go to TEST_SAVED/weights, where they come from if first is
not 0; 0: none), rate, seed, skewed, tested (sequences), tests (steps before which to test).
The text is pipeline.py's, its files sorted by how many of their bytes are letters and cut into eight sources: a tenth of each is to
test. Skewed: the i-th eighth of a batch is drawn from the i-th source, and ranks take batches in runs, so that each rank reads sources
of its own; else every sequence is of any source. A batch is the same on any number of ranks.
Rank 0 prints a line of JSON: loss (nats a byte, of the last test), tested (of each), losses (of each tenth of the training), steps,
parameters, step_seconds (the median), replicas_equal.
"""
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e/torch"))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import backend
from classifier import flat, replicas_equal
from pipeline import Stage, files
from trainer import Marks, begin

SOURCES = 8


def sources():
    """(to train on, to test by) of each source, as bytes."""
    texts = sorted(files(), key=lambda data: sum(data.count(letter) for letter in b"etaoinsrhl") / max(1, len(data)))
    whole = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8).long()
    parts = whole.split(-(-len(whole) // SOURCES))
    return [(part[:len(part) * 9 // 10], part[len(part) * 9 // 10:]) for part in parts]


def drawn(parts, count, context, generator, skewed):
    """Sequences: the i-th of `count` from source i * SOURCES // count, or from any."""
    which = torch.arange(count) * SOURCES // count if skewed else torch.randint(SOURCES, (count,), generator=generator)
    places = torch.rand(count, generator=generator, dtype=torch.float64)
    found = []
    for source, place in zip(which.tolist(), places.tolist()):
        at = int(place * (len(parts[source]) - context))
        found.append(parts[source][at:at + context + 1])
    return torch.stack(found)


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def main():
    job, rank, ranks = begin()
    torch.manual_seed(job["seed"])
    model, marks = Stage(job, 0, 1), Marks(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["rate"])
    warm = max(1, job["steps"] // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm, 1.0) * (1 - step / job["steps"]))
    order = torch.Generator().manual_seed(job["seed"])
    weights = os.path.join(os.environ["TEST_SAVED"], "weights")
    if job["first"] > 0:
        saved = torch.load(weights)
        for one, state in zip((model, optimizer, schedule), saved["states"]):
            one.load_state_dict(state)
        order.set_state(saved["order"])
    ddp = DistributedDataParallel(model)
    trained, tests = zip(*sources())
    own = slice(rank * job["batch"] // ranks, (rank + 1) * job["batch"] // ranks)
    held = drawn(tests, job["tested"], job["context"], torch.Generator().manual_seed(99), True)[rank::ranks]
    losses, tested, seconds = [], [], []

    def test():
        with torch.no_grad():
            tested.append(loss_of(model, held))

    for step in range(job["first"], job["last"]):
        if step in job["tests"]:
            test()
        marks.step(step, optimizer.param_groups[0]["lr"])
        began = time.perf_counter()
        if step == job["save"] > job["first"] and rank == 0:
            torch.save({"states": [one.state_dict() for one in (model, optimizer, schedule)], "order": order.get_state()}, weights)
        optimizer.zero_grad()
        loss = loss_of(ddp, drawn(trained, job["batch"], job["context"], order, job["skewed"])[own])
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    marks.step(job["last"], optimizer.param_groups[0]["lr"])
    test()
    all_tested = torch.stack(tested) / ranks
    dist.all_reduce(all_tested)
    equal = replicas_equal(flat(model))
    if rank == 0:
        tenth = max(1, len(losses) // 10)
        print(json.dumps({"loss": all_tested[-1].item(), "tested": all_tested.tolist(),
                          "losses": [round(sum(losses[i:i + tenth]) / len(losses[i:i + tenth]), 5) for i in range(0, len(losses), tenth)],
                          "steps": len(losses), "parameters": len(flat(model)), "step_seconds": statistics.median(seconds),
                          "replicas_equal": equal}), flush=True)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
