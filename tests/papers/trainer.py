"""One training by unmodified PyTorch, DDP or sharded by hand, one process a rank: what all reproductions run.

usage: trainer.py JSON
The JSON says: model (mlp, cnn and vgg of Fashion-MNIST, recommender of clicks.py), seed, epochs, batch (of a rank), rate, drops (epochs
after which the rate falls tenfold), images (samples of the training set), validate (test on the validation split, else on the test
set), most_steps (0: all), drop_steps (steps after which the rate falls tenfold; may be left out), bucket_mb (of gradients; 25), marks
(whether the program marks its steps and tells its learning rate by slimwire.h; false), sharded (as FSDP does it, by sharding.py; false),
optimizer (sgd, with momentum, or adamw; sgd), skewed (each rank sees classes of its own; false).
Rank 0 prints a line of JSON: accuracy_percent (of the recommender area_percent, under the curve, and log_loss, and what the truth
itself would reach), loss of each epoch, steps, step_seconds (the median), parameters and replicas_equal.
"""
import ctypes
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
from data import fashion_mnist
from rendezvous import join
from sharding import Sharded

TRAINING, VALIDATION = 50000, 10000  # of the training images the first and the last


class Cnn(nn.Module):
    """Two convolutions and two layers; its first weights are few, its dense ones many."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.head(self.features(x.view(-1, 1, 28, 28)).flatten(1))


class Vgg(nn.Module):
    """As VGG has them: pairs of 3 x 3 convolutions with batch norms, each pair twice as wide as the one before; images are halved first."""

    def __init__(self):
        super().__init__()
        layers, width = [nn.AvgPool2d(2)], 1
        for wide in (16, 32, 64):
            for _ in range(2):
                layers += [nn.Conv2d(width, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
                width = wide
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.head(self.features(x.view(-1, 1, 28, 28)).flatten(1))


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


class Images:
    """Fashion-MNIST in ten classes."""

    def __init__(self, job):
        images, labels = fashion_mnist() if job["validate"] else fashion_mnist(count=min(job["images"], TRAINING))
        held = min(VALIDATION, len(labels) // 5) if job["validate"] else 0
        kept = min(job["images"], len(labels) - held)
        self.test = (images[-held:], labels[-held:]) if job["validate"] else fashion_mnist("t10k")
        self.images, self.labels = images[:kept], labels[:kept]

    def loss(self, model, chosen):
        return nn.functional.cross_entropy(model(self.images[chosen]), self.labels[chosen])

    def tested(self, model):
        hits = sum((model(some).argmax(1) == of).sum().item()
                   for some, of in zip(self.test[0].split(1000), self.test[1].split(1000)))
        return {"accuracy_percent": 100 * hits / len(self.test[1])}


class Clicks:
    """The generator's samples: those to train on, to validate and to test by have seeds of their own."""

    def __init__(self, job):
        self.numbers, self.categories, self.labels, _ = clicks.clicks(job["images"], 11)
        self.test = clicks.clicks(100000, 13 if job["validate"] else 12)

    def loss(self, model, chosen):
        return nn.functional.binary_cross_entropy_with_logits(model(self.numbers[chosen], self.categories[chosen]),
                                                              self.labels[chosen])

    def tested(self, model):
        numbers, categories, labels, truth = self.test
        found = torch.sigmoid(torch.cat([model(*some) for some in zip(numbers.split(10000), categories.split(10000))]))
        found = found.nan_to_num(0.5)  # of a training that has diverged
        return {"area_percent": 100 * clicks.area(found, labels), "log_loss": clicks.log_loss(found, labels),
                "bayes_area_percent": 100 * clicks.area(truth, labels), "bayes_log_loss": clicks.log_loss(truth, labels)}


TASKS = {"mlp": (mlp, Images), "cnn": (Cnn, Images), "vgg": (Vgg, Images), "recommender": (clicks.Recommender, Clicks)}


class Marks:
    """What the program tells slimwire, where the job says so."""

    def __init__(self, wanted):
        # Global under LD_PRELOAD, in the place of NCCL under LD_AUDIT; neither in a training without slimwire.
        libraries = [ctypes.CDLL(None), ctypes.CDLL("libnccl.so.2")] if wanted else []
        self.library = next((one for one in libraries if hasattr(one, "slimwire_mark_step")), None)

    def step(self, number, rate=None):
        if self.library is None:
            return
        self.library.slimwire_mark_step(ctypes.c_uint64(number))
        if rate is not None:
            self.library.slimwire_set_learning_rate(ctypes.c_double(rate))


def begin():
    """Joins the other ranks: the job, this rank and how many there are."""
    torch.set_num_threads(1)
    join("emulated")
    return json.loads(sys.argv[1]), dist.get_rank(), dist.get_world_size()


def main():
    job, rank, ranks = begin()
    torch.manual_seed(job["seed"])
    make, task = TASKS[job["model"]]
    model = make()
    if "bucket_mb" in job:
        dist._DEFAULT_FIRST_BUCKET_BYTES = int(job["bucket_mb"] * 2 ** 20)  # the first bucket, too
    sharded = Sharded(model) if job.get("sharded", False) else None
    ddp = model if sharded else DistributedDataParallel(model, bucket_cap_mb=job.get("bucket_mb", 25))
    trained = sharded.shards() if sharded else ddp.parameters()
    if job.get("optimizer", "sgd") == "adamw":
        optimizer = torch.optim.AdamW(trained, lr=job["rate"])
    else:
        optimizer = torch.optim.SGD(trained, lr=job["rate"], momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, job["drops"], gamma=0.1)
    data = task(job)
    order = torch.Generator().manual_seed(job["seed"])
    losses, steps, seconds, marks = [], 0, [], Marks(job.get("marks", False))
    for _ in range(job["epochs"]):
        shuffled, total = torch.randperm(len(data.labels), generator=order), 0.0
        if job.get("skewed", False):
            part = len(shuffled) // ranks
            by_class = data.labels[shuffled].argsort(stable=True)[rank * part:(rank + 1) * part]
            shuffled = shuffled[by_class[torch.randperm(part, generator=order)]]
        else:
            shuffled = shuffled[rank::ranks]
        count = len(data.labels) // (job["batch"] * ranks)
        for step in range(count):
            if job["most_steps"] and steps == job["most_steps"]:
                break
            marks.step(steps, optimizer.param_groups[0]["lr"])
            began = time.perf_counter()
            chosen = shuffled[step * job["batch"]:(step + 1) * job["batch"]]
            if sharded:
                sharded.gather()
            loss = data.loss(ddp, chosen)
            if sharded:
                sharded.backward(loss)
            else:
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            total += loss.item()
            seconds.append(time.perf_counter() - began)
            steps += 1
            if steps in job.get("drop_steps", []):
                for group in optimizer.param_groups:
                    group["lr"] *= 0.1
        losses.append(round(total / max(1, count), 5))
        schedule.step()
    model.eval()
    if sharded:
        sharded.gather()
    with torch.no_grad():
        tested = data.tested(model)
    own = flat(model)
    equal = replicas_equal(own)
    if rank == 0:
        print(json.dumps({**tested, "losses": losses, "steps": steps, "step_seconds": statistics.median(seconds),
                          "parameters": len(own), "replicas_equal": equal}), flush=True)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
