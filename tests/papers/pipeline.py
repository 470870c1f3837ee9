"""One training of a language model whose layers are the stages of a pipeline, by unmodified PyTorch, one process a stage.

usage: pipeline.py JSON
The JSON says: width, heads, layers (of a stage), context, batch (sequences of a micro-batch), micro_batches (all forward, then all
backward, the oldest first), steps, rate, seed, validate (test on the validation split, else on the test set), tested (batches), and may
say: tensor (ranks that share each stage's layers as Megatron does, and add up what they make; 1), save and load (names of a checkpoint
in the folder TEST_CHECKPOINTS), text (library, or headers: C's, of /usr/include), marked_test (every batch of the test is a step of its own).
The text is Debian's: the modules of Python's own library that the interpreter came with, byte by byte, in an order that is drawn once;
nine tenths to train on, half of the rest to validate and to test. What compresses messages does so in the test, too.
The last stage prints a line of JSON: loss (nats a byte, of the test), losses (of each tenth of the training), steps, parameters,
step_seconds (the median), spectra (behind the last step: concentration() of what the stage was given, of its gradient, and of a matrix's).
"""
import glob
import json
import os
import random
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e/torch"))

import torch
import torch.distributed as dist
from torch import nn

import backend
from trainer import Marks, begin

BYTES = 8 << 20  # of text at most


def files(which="library"):
    """What the text is made of, in the order that was drawn."""
    pattern = {"library": os.path.join(os.path.dirname(os.__file__), "*.py"), "headers": "/usr/include/**/*.h"}[which]
    names = sorted(glob.glob(pattern, recursive=True))
    random.Random(7).shuffle(names)
    for name in names:
        with open(name, "rb") as file:
            yield file.read()


def text(which):
    found = bytearray()
    for data in files(which):
        found += data
        if len(found) >= BYTES:
            break
    return torch.frombuffer(found[:BYTES], dtype=torch.uint8).long()


class Shares:
    """The ranks that share layers: `index` of `ranks`. What is copied into their parts has the sum of their gradients; what their parts
    make is added up."""

    def __init__(self, ranks=1):
        self.ranks, self.index, self.group = ranks, dist.get_rank() % ranks, None
        for first in range(0, dist.get_world_size(), ranks) if ranks > 1 else ():
            group = dist.new_group(range(first, first + ranks))
            if first <= dist.get_rank() < first + ranks:
                self.group = group

    def added(self, x):
        if self.ranks > 1:
            dist.all_reduce(x := x.clone(memory_format=torch.contiguous_format), group=self.group)
        return x

    def copied(self, x):
        return Through.apply(x, lambda of: of.view_as(of), self.added)

    def sum(self, x):
        return Through.apply(x, self.added, lambda of: of)


class Through(torch.autograd.Function):
    @staticmethod
    def forward(context, x, forward, backward):
        context.back = backward
        return forward(x)

    @staticmethod
    def backward(context, gradient):
        return context.back(gradient), None, None


class Layer(nn.Module):
    def __init__(self, width, heads, shares):
        super().__init__()
        own, self.heads, self.shares = width // shares.ranks, heads // shares.ranks, shares
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * own), nn.Linear(own, width, bias=shares.index == 0)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * own), nn.GELU(), nn.Linear(4 * own, width, bias=shares.index == 0))

    def forward(self, x):
        batch, length, width = x.shape
        own = width // self.shares.ranks
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.shares.copied(self.norms[0](x))).split(own, 2))
        later = torch.full((length, length), float("-inf")).triu(1)
        weights = (q @ k.transpose(2, 3) / (own // self.heads) ** 0.5 + later).softmax(3)
        x = x + self.shares.sum(self.out((weights @ v).transpose(1, 2).reshape(batch, length, own)))
        return x + self.shares.sum(self.mlp(self.shares.copied(self.norms[1](x))))


class Stage(nn.Module):
    def __init__(self, job, stage, stages, shares=None):
        super().__init__()
        shares = shares or Shares()
        width = job["width"]
        self.embedding = nn.Embedding(256, width) if stage == 0 else None
        self.places = nn.Embedding(job["context"], width) if stage == 0 else None
        with torch.random.fork_rng(enabled=shares.ranks > 1):  # what is whole on all of them is alike, their parts are not
            if shares.ranks > 1:
                torch.manual_seed(torch.initial_seed() + 100 + shares.index)
            self.layers = nn.Sequential(*(Layer(width, job["heads"], shares) for _ in range(job["layers"])))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256)) if stage == stages - 1 else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x) + self.places(torch.arange(x.shape[1]))
        x = self.layers(x)
        return self.head(x) if self.head is not None else x


class Pipeline:
    def __init__(self, job):
        self.shares = Shares(job.get("tensor", 1))
        apart, stages = self.shares.ranks, dist.get_world_size() // self.shares.ranks
        self.stage = dist.get_rank() // apart
        self.before, self.after = dist.get_rank() - apart, dist.get_rank() + apart
        self.last = self.stage == stages - 1
        self.shape = job["batch"], job["context"], job["width"]
        torch.manual_seed(1000 * job["seed"] + self.stage)
        self.model = Stage(job, self.stage, stages, self.shares)

    def forward(self, tokens):
        """What the stage was given and what it makes, of the last one the loss."""
        given = tokens[:, :-1]
        if self.stage > 0:
            given = torch.empty(self.shape)
            dist.recv(given, self.before)
            given.requires_grad_(torch.is_grad_enabled())
        made = self.model(given)
        if self.last:
            return given, nn.functional.cross_entropy(made.flatten(0, 1), tokens[:, 1:].flatten())
        dist.send(made.detach(), self.after)
        return given, made

    def backward(self, given, made, parts):
        if self.last:
            (made / parts).backward()
        else:
            gradient = torch.empty_like(made)
            dist.recv(gradient, self.after)
            made.backward(gradient)
        if self.stage > 0:
            dist.send(given.grad, self.before)

    def clip(self, most):
        """By the norm of the stage's gradients, of which those of layers' matrices are other ones on each of its ranks."""
        if self.shares.ranks == 1:
            nn.utils.clip_grad_norm_(self.model.parameters(), most)
            return
        matrices = [p for name, p in self.model.named_parameters() if name.startswith("layers") and "norms" not in name]
        ours = {id(p) for p in matrices}
        parts = [sum(p.grad.square().sum() for p in of)
                 for of in (matrices, [p for p in self.model.parameters() if id(p) not in ours])]
        norm = (self.shares.added(parts[0]) + parts[1]).sqrt().item()
        for p in self.model.parameters():
            p.grad *= min(1.0, most / (norm + 1e-6))


def concentration(x):
    """The part of the squared norm that the largest sixteenth of the singular values has."""
    squares = torch.linalg.svdvals(x.detach().flatten(0, -2)).square()
    return round((squares[:max(1, len(squares) // 16)].sum() / squares.sum()).item(), 4)


def main():
    job, rank, _ = begin()
    pipeline, marks = Pipeline(job), Marks(True)
    checkpoint = os.path.join(os.environ.get("TEST_CHECKPOINTS", "."), f"{{}}.{rank}")
    if "load" in job:
        pipeline.model.load_state_dict(torch.load(checkpoint.format(job["load"])))
    optimizer = torch.optim.AdamW(pipeline.model.parameters(), lr=job["rate"])
    warm = max(1, job["steps"] // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 1.0) * (1 - step / job["steps"]))
    all_text = text(job.get("text", "library"))
    ends = len(all_text) * 9 // 10, len(all_text) * 19 // 20, len(all_text)
    tested = all_text[ends[0]:ends[1]] if job["validate"] else all_text[ends[1]:ends[2]]
    order = torch.Generator().manual_seed(job["seed"])

    def batch(of, generator):
        at = torch.randint(len(of) - job["context"], (job["batch"],), generator=generator)
        return torch.stack([of[i:i + job["context"] + 1] for i in at.tolist()])

    losses, seconds, spectra = [], [], {}
    for step in range(job["steps"]):
        marks.step(step)
        began = time.perf_counter()
        parts = [pipeline.forward(batch(all_text[:ends[0]], order)) for _ in range(job["micro_batches"])]
        for given, made in parts:
            pipeline.backward(given, made, len(parts))
        if step == job["steps"] - 1 and pipeline.stage > 0:
            spectra = {"activation": concentration(given), "its_gradient": concentration(given.grad),
                       "gradient": concentration(pipeline.model.layers[0].mlp[0].weight.grad)}
        pipeline.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        seconds.append(time.perf_counter() - began)
        losses.append(sum(made.item() for _, made in parts) / len(parts) if pipeline.last else 0.0)
    marks.step(job["steps"])
    if "save" in job:
        torch.save(pipeline.model.state_dict(), checkpoint.format(job["save"]))
    drawn, found = torch.Generator().manual_seed(99), []
    with torch.no_grad():
        for i in range(job["tested"]):
            if "marked_test" in job:
                marks.step(job["steps"] + i)
            found.append(pipeline.forward(batch(tested, drawn))[1])
    parameters = torch.tensor([sum(p.numel() for p in pipeline.model.parameters())])
    dist.all_reduce(parameters)
    if pipeline.last and pipeline.shares.index == 0:
        tenth = max(1, len(losses) // 10)
        print(json.dumps({"loss": sum(one.item() for one in found) / len(found),
                          "losses": [round(sum(losses[i:i + tenth]) / len(losses[i:i + tenth]), 5) for i in range(0, len(losses), tenth)],
                          "steps": len(losses), "parameters": parameters.item(), "step_seconds": statistics.median(seconds),
                          "spectra": spectra}), flush=True)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
