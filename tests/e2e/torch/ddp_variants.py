"""DistributedDataParallel, unmodified, in its variants: each trained over Gloo and over the emulated backend.

usage: ddp_variants.py TYPE...     float64, float32

Float64 is what no codec takes. Each variant has a group, so a communicator, of its own: residuals of one do not enter
the next. Prints a line of JSON for each variant and type on every rank:
  variant, type
  loss, gloo_loss    of this rank, mean over the last ten steps
  digest             of the parameters
  exact              whether they are Gloo's to the bit
  first, last        elements of the all-reduces of the first step and of the last
"""
import contextlib
import functools
import json
import sys
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import backend
from classifier import Batches, Classifier, digest, flat
from rendezvous import join

STEPS = 20
# Options of DDP; micro-batches a step; of the model.
VARIANTS = {
    "plain": ({}, 1, False),
    "bucket_view": ({"gradient_as_bucket_view": True}, 1, False),
    "static_graph": ({"static_graph": True}, 1, False),
    "other_thread": ({}, 1, False),
    "no_sync": ({}, 3, False),
    "unused_parameters": ({"find_unused_parameters": True}, 1, True),
}
FLOATS = {torch.float32: "f32", torch.float64: "f64"}


def backward(loss, on_other_thread):
    """DDP calls from the thread that runs backward; on a GPU that is one of PyTorch's own."""
    if not on_other_thread:
        loss.backward()
        return
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


def train(dtype, options, micro_batches, branches, group, on_other_thread=False):
    """The parameters, the mean loss of the last steps, and the sizes of each step's all-reduces."""
    torch.manual_seed(3)
    model = Classifier(branches).to(dtype)
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.1, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    batches = Batches(5, dist.get_rank(), dist.get_world_size())
    losses, sizes = [], []
    for _ in range(STEPS):
        backend.recorder = []
        optimizer.zero_grad(set_to_none=False)
        for micro in range(micro_batches):
            images, labels = batches.next()
            with contextlib.nullcontext() if micro == micro_batches - 1 else ddp.no_sync():
                loss = torch.nn.functional.cross_entropy(ddp(images.to(dtype)), labels) / micro_batches
                backward(loss, on_other_thread)
        optimizer.step()
        losses.append(loss.item() * micro_batches)
        sizes.append([call["count"] for call in backend.recorder
                      if call["op"] == "allreduce" and call["dtype"] == FLOATS[dtype]])
    backend.recorder = None
    return flat(model), sum(losses[-10:]) / 10, sizes


@functools.lru_cache
def reference(dtype, micro_batches, branches):
    """Over Gloo, as plain as the model permits."""
    gloo = dist.new_group(backend="gloo")
    parameters, loss, sizes = train(dtype, {"find_unused_parameters": branches}, micro_batches, branches, gloo)
    if any(sizes):
        sys.exit("Gloo's training came to the emulated backend")
    return parameters, loss


def run(variant, dtype):
    options, micro_batches, branches = VARIANTS[variant]
    expected, gloo_loss = reference(dtype, micro_batches, branches)
    parameters, loss, sizes = train(dtype, options, micro_batches, branches, dist.new_group(),
                                    on_other_thread=variant == "other_thread")
    print(json.dumps({
        "variant": variant, "type": str(dtype).split(".")[1], "loss": loss, "gloo_loss": gloo_loss,
        "digest": digest(parameters), "exact": torch.equal(parameters, expected), "first": sizes[0], "last": sizes[-1]}),
        flush=True)


def main():
    torch.set_num_threads(1)
    join("emulated")
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096  # a small model, several buckets
    for name in sys.argv[1:]:
        for variant in VARIANTS:
            run(variant, getattr(torch, name))
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
