"""DDP under rules that ask for parameters: each gradient against the exact sum.

usage: parameter_rules.py MODEL [named] [marked]
of models.py; named: tells slimwire what its parameters are called; marked: each step is

Every rank computes its own gradients a second time on a copy of the model, without DDP, and adds up those of all ranks as
DDP does: each divided by the number of ranks, in the order of ranks, in float32. Prints a line of JSON for each step:
  exact      by dimensions of the parameter: how many gradients equal that sum to the bit, and of how many
  error      of the others, by dimensions: relative, Euclidean
  names      of the parameters whose gradients are that sum, in whatever order it was made
  digest     of all gradients
"""
import copy
import ctypes
import hashlib
import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import backend
import models
from rendezvous import join

STEPS = 6


def gradients(model, inputs, targets):
    nn.functional.cross_entropy(model(inputs), targets).backward()
    return [p.grad for p in model.parameters() if p.requires_grad]


def sums(own, gloo):
    """Of all ranks' gradients, in rank order."""
    ranks = dist.get_world_size()
    flat = torch.cat([(gradient * (1.0 / ranks)).flatten() for gradient in own])
    parts = [torch.empty_like(flat) for _ in range(ranks)]
    dist.all_gather(parts, flat, group=gloo)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return [part.view(gradient.shape) for part, gradient in
            zip(total.split([gradient.numel() for gradient in own]), own)]


def compare(found, expected):
    exact, error = {}, {}
    for gradient, true in zip(found, expected):
        key = f"{gradient.dim()}d"
        equal, total = exact.get(key, (0, 0))
        same = torch.equal(gradient, true)
        exact[key] = (equal + same, total + 1)
        if not same:
            wrong, whole = error.get(key, (0.0, 0.0))
            error[key] = (wrong + (gradient - true).square().sum().item(), whole + true.square().sum().item())
    return exact, {key: (wrong / whole) ** 0.5 for key, (wrong, whole) in error.items() if whole > 0}


def tell_names(model):
    """As slimwire.h says, which finds no library to tell where there is none."""
    register = ctypes.CDLL(None).slimwire_register_parameter
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for index, (name, parameter) in enumerate(parameters):
        sizes = (ctypes.c_int64 * parameter.dim())(*parameter.shape)
        if register(0, index, name.encode(), sizes, parameter.dim()) != 0:
            sys.exit(f"{name} was refused")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(11)
    model = models.MODELS[sys.argv[1]]()
    if "named" in sys.argv[2:]:
        tell_names(model)  # before the communicator is made
    join("emulated")
    gloo = dist.new_group(backend="gloo")
    dist._DEFAULT_FIRST_BUCKET_BYTES = 8192
    twin = copy.deepcopy(model)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(STEPS):
        if "marked" in sys.argv[2:]:
            ctypes.CDLL(None).slimwire_mark_step(ctypes.c_uint64(step))
        inputs, targets = models.batch_of(model, generator)
        twin.load_state_dict(model.state_dict())
        twin.zero_grad()
        expected = sums(gradients(twin, inputs, targets), gloo)
        optimizer.zero_grad(set_to_none=False)
        found = gradients(ddp, inputs, targets)
        exact, error = compare(found, expected)
        digest = hashlib.sha256(b"".join(gradient.numpy().tobytes() for gradient in found)).hexdigest()[:16]
        same = [name for name, gradient, true in zip(names, found, expected)
                if (gradient - true).norm() <= 1e-6 * true.norm()]
        print(json.dumps({"exact": exact, "error": error, "names": same, "digest": digest}), flush=True)
        optimizer.step()
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
