"""One training of a language model whose layers are the stages of a pipeline, by unmodified PyTorch, one process a stage.

usage: pipeline.py JSON
The JSON says: width, heads, layers (of a stage), context, batch (sequences of a micro-batch), micro_batches (all forward, then all
backward, the oldest first), steps, rate, seed, validate (test on the validation split, else on the test set), tested (batches).
The text is Debian's: the modules of Python's own library that the interpreter came with, byte by byte, in an order that is drawn once;
nine tenths to train on, half of the rest to validate and to test. What compresses messages does so in the test, too.
The last stage prints a line of JSON: loss (nats a byte, of the test), losses (of each tenth of the training), steps, parameters.
"""
import ctypes
import glob
import json
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e/torch"))

import torch
import torch.distributed as dist
from torch import nn

import backend
from rendezvous import join

BYTES = 8 << 20  # of text at most


def files():
    """What the text is made of, in the order that was drawn."""
    names = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))
    random.Random(7).shuffle(names)
    for name in names:
        with open(name, "rb") as file:
            yield file.read()


def text():
    return torch.frombuffer(bytearray(b"".join(files()))[:BYTES], dtype=torch.uint8).long()


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norms[0](x)).split(width, 2))
        later = torch.full((length, length), float("-inf")).triu(1)
        weights = (q @ k.transpose(2, 3) / (width // self.heads) ** 0.5 + later).softmax(3)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


class Stage(nn.Module):
    def __init__(self, job, stage, stages):
        super().__init__()
        width = job["width"]
        self.embedding = nn.Embedding(256, width) if stage == 0 else None
        self.places = nn.Embedding(job["context"], width) if stage == 0 else None
        self.layers = nn.Sequential(*(Layer(width, job["heads"]) for _ in range(job["layers"])))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256)) if stage == stages - 1 else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x) + self.places(torch.arange(x.shape[1]))
        x = self.layers(x)
        return self.head(x) if self.head is not None else x


class Pipeline:
    def __init__(self, job, stage, stages):
        self.stage, self.last = stage, stage == stages - 1
        self.shape = job["batch"], job["context"], job["width"]
        self.model = Stage(job, stage, stages)

    def forward(self, tokens):
        """What the stage was given and what it makes, of the last one the loss."""
        given = tokens[:, :-1]
        if self.stage > 0:
            given = torch.empty(self.shape)
            dist.recv(given, self.stage - 1)
            given.requires_grad_(torch.is_grad_enabled())
        made = self.model(given)
        if self.last:
            return given, nn.functional.cross_entropy(made.flatten(0, 1), tokens[:, 1:].flatten())
        dist.send(made.detach(), self.stage + 1)
        return given, made

    def backward(self, given, made, parts):
        if self.last:
            (made / parts).backward()
        else:
            gradient = torch.empty_like(made)
            dist.recv(gradient, self.stage + 1)
            made.backward(gradient)
        if self.stage > 0:
            dist.send(given.grad, self.stage - 1)


class Steps:
    """Tells slimwire where steps begin, where it is there."""

    def __init__(self):
        self.mark = getattr(ctypes.CDLL(None), "slimwire_mark_step", None)

    def __call__(self, number):
        if self.mark is not None:
            self.mark(ctypes.c_uint64(number))


def main():
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    join("emulated")
    stage, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1000 * job["seed"] + stage)
    pipeline, begins = Pipeline(job, stage, stages), Steps()
    optimizer = torch.optim.AdamW(pipeline.model.parameters(), lr=job["rate"])
    warm = max(1, job["steps"] // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 1.0) * (1 - step / job["steps"]))
    all_text = text()
    ends = len(all_text) * 9 // 10, len(all_text) * 19 // 20, len(all_text)
    tested = all_text[ends[0]:ends[1]] if job["validate"] else all_text[ends[1]:ends[2]]
    order = torch.Generator().manual_seed(job["seed"])

    def batch(of, generator):
        at = torch.randint(len(of) - job["context"], (job["batch"],), generator=generator)
        return torch.stack([of[i:i + job["context"] + 1] for i in at.tolist()])

    losses = []
    for step in range(job["steps"]):
        begins(step)
        parts = [pipeline.forward(batch(all_text[:ends[0]], order)) for _ in range(job["micro_batches"])]
        for given, made in parts:
            pipeline.backward(given, made, len(parts))
        nn.utils.clip_grad_norm_(pipeline.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(sum(made.item() for _, made in parts) / len(parts) if pipeline.last else 0.0)
    begins(job["steps"])
    drawn = torch.Generator().manual_seed(99)
    with torch.no_grad():
        found = [pipeline.forward(batch(tested, drawn))[1] for _ in range(job["tested"])]
    parameters = torch.tensor([sum(p.numel() for p in pipeline.model.parameters())])
    dist.all_reduce(parameters)
    if pipeline.last:
        tenth = max(1, len(losses) // 10)
        print(json.dumps({"loss": sum(one.item() for one in found) / len(found),
                          "losses": [round(sum(losses[i:i + tenth]) / len(losses[i:i + tenth]), 5) for i in range(0, len(losses), tenth)],
                          "steps": len(losses), "parameters": parameters.item()}), flush=True)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
