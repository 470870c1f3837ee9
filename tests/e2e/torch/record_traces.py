"""Writes the calls that DDP makes for each of several models, with what is true of them.

usage: one process for each of two ranks, as run_ranks (tests/support) starts them:  record_traces.py FOLDER
By hand, from the repository's root, to renew what is committed:
  TEST_TORCH_SHIM=build/tests/e2e/torch/libtorch_shim.so build/tools/slimwire run --emulate 2 -- \\
      /usr/bin/python3 -B tests/e2e/torch/record_traces.py tests/collectives/identity/ddp/traces

FOLDER/NAME.jsonl is JSON lines. The first is the truth, from the model and from DDP's own bookkeeping, not from calls:
  model               its name, a key of models.MODELS with the variant of DDP behind it, if any
  options             what DDP got beside the model; bucket_cap_mb is among them
  first_bucket_bytes  DDP's limit for the first bucket
  ranks, steps        of the run
  parameters          [{"name", "shape", "stride", "dtype"}], those that DDP reduces, in its order: stride in elements
  initial_buckets     [[index into parameters]] in order of the bytes, before DDP rebuilds them
  buckets             the same afterwards
  rebuilt_after       that many steps
Each further line is one call, in the order in which rank 0 made them:
  op, dtype           slimwire's names
  count               NCCL's count: elements sent by each rank of an allgather
  root                of a broadcast, else -1
  values              the result on rank 0, of integer calls of at most 4096 elements; absent otherwise
The program calls nothing of its own but, at the end of each step, an all-reduce of the loss: one element, f32.
A bucket is one all-reduce whose elements are its parameters', one behind the other, each in the order of its memory.
"""
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import backend
import models
from rendezvous import join

STEPS = 4
BUCKET_MB = 0.05
VARIANTS = [
    ("ragged", {"bucket_cap_mb": 0.01}),
    ("ragged", {"bucket_cap_mb": 0.01, "static_graph": True}),
    ("vectors", {"bucket_cap_mb": 0.001}),
    ("convolutions", {"bucket_cap_mb": 0.02}),
    ("tied", {"bucket_cap_mb": BUCKET_MB}),
    ("transformer", {"bucket_cap_mb": BUCKET_MB}),
    ("transformer", {"bucket_cap_mb": BUCKET_MB, "find_unused_parameters": True}),
    ("branches", {"bucket_cap_mb": 0.01, "find_unused_parameters": True}),
    ("types", {"bucket_cap_mb": 0.01}),
]


def trace_name(name, options):
    marked = [key if value else "no_" + key for key, value in options.items() if key != "bucket_cap_mb"]
    return "-".join([name] + marked).replace("_", "-")


def train(name, options, hook=None):
    """DDP over a fresh model for some steps; returns it."""
    torch.manual_seed(1)
    model = models.MODELS[name]()
    ddp = DistributedDataParallel(model, **options)
    if hook is not None:
        ddp.register_comm_hook(ddp, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        inputs, labels = models.batch_of(model, generator)
        loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
    return ddp


def buckets_of(name, options):
    """[[parameter indices]] of the first and of the last step, as DDP tells a communication hook; steps of the first."""
    steps = []

    def hook(ddp, bucket):
        index_of = {parameter.data_ptr(): i for i, parameter in enumerate(reduced(ddp.module)[1])}
        if bucket.index() == 0:
            steps.append([])
        steps[-1].append([index_of[parameter.data_ptr()] for parameter in bucket.parameters()])
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    train(name, options, hook)
    # By the limits the first step of some has the rebuilt ones by chance.
    initial = steps.count(steps[0]) if steps[0] != steps[-1] else 1
    if len(steps) != STEPS or steps != [steps[0]] * initial + [steps[-1]] * (STEPS - initial):
        raise SystemExit(f"{name}: unexpected buckets: {steps}")
    return steps[0], steps[-1], initial


def reduced(model):
    """Names and tensors of what DDP reduces."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return [name for name, _ in named], [parameter for _, parameter in named]


def check(header, calls):
    """The buckets must be what was reduced, or the trace would teach something wrong."""
    elements = [torch.Size(p["shape"]).numel() for p in header["parameters"]]
    sizes = [[sum(elements[i] for i in bucket) for bucket in header[key]] for key in ("initial_buckets", "buckets")]
    expected = sizes[0] * header["rebuilt_after"] + sizes[1] * (STEPS - header["rebuilt_after"])
    counts = [call["count"] for call in calls if call["op"] == "allreduce" and call["dtype"] in ("f32", "f64") and
              call["count"] > 1]
    if counts != [count for count in expected if count > 1]:
        raise SystemExit(f"{header['model']}: reduced {counts}, expected {expected}")


def record(name, options):
    backend.recorder = calls = []
    model = train(name, options).module
    backend.recorder = None
    dist.barrier()  # the values of all calls are there now
    names, parameters = reduced(model)
    initial, rebuilt, rebuilt_after = buckets_of(name, options)
    header = {
        "model": trace_name(name, options), "options": options, "first_bucket_bytes": dist._DEFAULT_FIRST_BUCKET_BYTES,
        "ranks": dist.get_world_size(), "steps": STEPS,
        "parameters": [{"name": n, "shape": list(p.shape), "stride": list(p.stride()), "dtype": backend.TYPES[p.dtype][1]}
                       for n, p in zip(names, parameters)],
        "initial_buckets": initial, "buckets": rebuilt, "rebuilt_after": rebuilt_after,
    }
    check(header, calls)
    return [header] + calls


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    join("emulated")
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096  # small models, several buckets
    for name, options in VARIANTS:
        lines = record(name, options)
        if dist.get_rank() == 0:
            with open(os.path.join(folder, lines[0]["model"] + ".jsonl"), "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
