"""One training of a recommender whose tables are shared out over ranks, by unmodified PyTorch, one process a rank.

usage: tables.py JSON
The JSON says: batch (samples of a rank), images (samples to train on), epochs, rate, seed, validate (test on the validation samples, else
on the test's), tested (samples), padded (gradients come back with a row of zeros more for each rank, so that rules can tell them by
their size; false), width (values of a vector, 16). The data and the model are those of clicks.py. As DLRM has it: rank r owns every
N-th table, computes the vectors of all ranks' samples and gives each rank those of its samples by an all-to-all; their gradients come
back by the answering one; the rest of the model is every rank's and goes by DDP. The test's exchanges, too, go by what compresses those of the training.
Rank 0 prints a line of JSON: area_percent, log_loss, what the truth itself would reach, losses of each tenth of the training, steps,
step_seconds (the median), replicas_equal.
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
import clicks
from classifier import flat, replicas_equal
from trainer import Marks, begin


class Exchange(torch.autograd.Function):
    """Rows to all ranks, as many to each; `received` of each rank. Their gradients come the same way back."""

    @staticmethod
    def forward(context, rows, received, padded):
        context.sent, context.received, context.padded = [len(rows) // len(received)] * len(received), received, padded
        found = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(found, rows, received, context.sent)
        return found

    @staticmethod
    def backward(context, gradient):
        def more(counts):
            return [count + context.padded for count in counts]
        parts = [nn.functional.pad(part, (0, 0, 0, context.padded)) for part in gradient.split(context.received)]
        found = gradient.new_empty(sum(more(context.sent)), gradient.shape[1])
        dist.all_to_all_single(found, torch.cat(parts), more(context.sent), more(context.received))
        return torch.cat([part[:count] for part, count in zip(found.split(more(context.sent)), context.sent)]), None, None


class Dense(clicks.Recommender):
    """The model without its tables: `vectors` [samples, tables, width]."""

    def __init__(self, width):
        super().__init__(width)
        del self.tables

    def forward(self, numbers, vectors):
        return self.scores(numbers, vectors.unbind(1))


class Tables(nn.Module):
    """Those of this rank, and the exchange of what they hold."""

    def __init__(self, whole, padded):
        super().__init__()
        self.padded = padded
        rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.owned = [range(of, len(clicks.SIZES), self.ranks) for of in range(self.ranks)]
        self.own = nn.ModuleList(whole[table] for table in self.owned[rank])
        self.fields = [self.owned[rank][at] for at in range(len(self.own))]
        order = [table for tables in self.owned for table in tables]
        self.place = torch.tensor(order).argsort()

    def forward(self, categories):
        """categories [ranks, samples, all tables]: of all ranks' samples; [samples, all tables, width] of this rank's."""
        samples = categories.shape[1]
        rows = torch.stack([table(categories[:, :, field]) for field, table in zip(self.fields, self.own)], 2)
        counts = [samples * len(tables) for tables in self.owned]
        found = Exchange.apply(rows.flatten(0, 2), counts, self.padded).split(counts)
        return torch.cat([part.view(samples, len(tables), -1) for part, tables in zip(found, self.owned)], 1)[:, self.place]


def main():
    job, rank, ranks = begin()
    torch.manual_seed(job["seed"])
    width, marks = job.get("width", 16), Marks(True)
    tables, dense = Tables(clicks.Recommender(width).tables, int(job.get("padded", False))), Dense(width)
    ddp = DistributedDataParallel(dense, broadcast_buffers=False)
    optimizer = torch.optim.Adam([*tables.parameters(), *dense.parameters()], lr=job["rate"])
    data = clicks.clicks(job["images"], 11)
    test = clicks.clicks(job["tested"], 13 if job["validate"] else 12)
    count = job["batch"] * ranks
    steps = job["epochs"] * (len(data[2]) // count)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)

    def scores(model, of, chosen):
        """This rank's part of the samples, whose numbers are the same on all ranks."""
        parts = chosen.view(ranks, -1)
        return model(of[0][parts[rank]], tables(of[1][parts]))

    order, losses = torch.Generator().manual_seed(job["seed"]), []
    seconds = []
    for _ in range(job["epochs"]):
        for chosen in torch.randperm(len(data[2]), generator=order).split(count):
            if len(chosen) < count:
                continue
            marks.step(len(losses))
            began = time.perf_counter()
            loss = nn.functional.binary_cross_entropy_with_logits(scores(ddp, data, chosen), data[2][chosen.view(ranks, -1)[rank]])
            optimizer.zero_grad()
            loss.backward()
            for table in tables.parameters():
                table.grad /= ranks  # of the mean over all samples, as DDP makes it of the rest
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - began)
    found = []
    with torch.no_grad():
        for at, chosen in enumerate(torch.arange(len(test[2])).split(8 * count)):
            marks.step(steps + at)  # each is a step's first exchange, as in training
            own = scores(dense, test, chosen)
            whole = own.new_empty(len(chosen))
            dist.all_gather_into_tensor(whole, own)
            found.append(torch.sigmoid(whole))
    found = torch.cat(found).nan_to_num(0.5)  # of a training that has diverged
    equal = replicas_equal(flat(dense))
    if rank == 0:
        tenth = max(1, len(losses) // 10)
        print(json.dumps({"area_percent": 100 * clicks.area(found, test[2]), "log_loss": clicks.log_loss(found, test[2]),
                          "bayes_area_percent": 100 * clicks.area(test[3], test[2]), "bayes_log_loss": clicks.log_loss(test[3], test[2]),
                          "losses": [round(sum(losses[i:i + tenth]) / len(losses[i:i + tenth]), 5) for i in range(0, len(losses), tenth)],
                          "steps": len(losses), "step_seconds": statistics.median(seconds), "replicas_equal": equal}), flush=True)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
