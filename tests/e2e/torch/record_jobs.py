"""Writes the calls that stock jobs of PyTorch 2.x and DeepSpeed make on the emulator: DDP, FSDP, tensor parallelism, stages.

By hand, from the repository's root, with a Python that has PyTorch 2.x and, for jobs that begin with zero, DeepSpeed;
only those JOBs that are named, else all:
  TEST_TORCH_SHIM=build/tests/e2e/torch/libtorch_shim.so build/tools/slimwire run --native --emulate 4 -- \\
      python3 -B tests/e2e/torch/record_jobs.py tests/collectives/identity/traces [JOB...]

FOLDER/JOB.jsonl is JSON lines. The first says of the job:
  torch, deepspeed    versions
  groups              [[rank]] of each communicator that calls were made on; ranks 0 and 1 are one node, 2 and 3 another
  rank                whose calls these are
  begins              numbers of the calls that are the first of a step; of equal ones at the end the first alone is there
Each further line is one call as record_traces.py has it; `root` only where there is one, of sends and receives the peer, a
rank of the group; `redop` unless sum; `group`, an index, unless 0; `times` where equal calls follow each other. Only
calls of i32 and i64 have values. A line of `lines` and `times` stands before as many lines that follow each other so often.
"""
import itertools
import json
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)
from torch.nn.parallel import DistributedDataParallel

import backend
from rendezvous import join

STEPS, RANK = 6, 1
WORDS, WIDTH, LAYERS, HEADS, TOKENS = 2048, 256, 12, 4, 256


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(a, b, bias=False) for a, b in
                                     ((WIDTH, 3 * WIDTH), (3 * WIDTH, WIDTH), (WIDTH, 3 * WIDTH)))

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.attention_norm = Attention(), nn.RMSNorm(WIDTH)
        self.feed_forward, self.ffn_norm = FeedForward(), nn.RMSNorm(WIDTH)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Model(nn.Module):
    """As torchtitan's; of the layers, and of both ends, those of one stage."""

    def __init__(self, layers=LAYERS, first=True, last=True):
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH) if first else None
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH) if last else None
        self.output = nn.Linear(WIDTH, WORDS, bias=False) if last else None

    def forward(self, x):
        x = x if self.tok_embeddings is None else self.tok_embeddings(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.output is None else self.output(self.norm(x))


def loss_of(logits, words):
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), words.flatten())


def batch(size=1, tokens=TOKENS):
    return torch.randint(WORDS, (size, tokens))


def stepping(model, clip=nn.utils.clip_grad_norm_, passes=1):
    """A training step of gradients of `passes`, the earlier ones without synchronisation."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        for i in range(passes):
            words = batch(tokens=32)
            if passes > 1:
                model.require_backward_grad_sync = i == passes - 1
            loss_of(model(words), words).backward()
        if clip is not None:
            clip(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step


def ddp(passes=1, **options):
    model = Model()
    if passes > 1:
        model.register_buffer("positions", torch.zeros(TOKENS, WIDTH))
    return stepping(DistributedDataParallel(model, **options), None, passes)


def sharded(model, mesh):
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    return fully_shard(model, mesh=mesh, mp_policy=precision)


def fsdp2():
    return stepping(sharded(Model(), init_device_mesh("cpu", (4,))))


def hsdp():
    return stepping(sharded(Model(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))))


def fsdp1():
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FullyShardedDataParallel(Model(), auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=precision,
                                     device_id=torch.device("cpu"))
    return stepping(model, lambda _parameters, norm: model.clip_grad_norm_(norm))


def tensor_parallel(model, mesh):
    """The plan of torchtitan for sequence parallelism and a loss over parts of the words."""
    replicated = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    parallelize_module(model, mesh, {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.layers:
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel(),
            "attention": PrepareModuleInput(**replicated), "feed_forward": PrepareModuleInput(**replicated),
            **{name: ColwiseParallel() for name in ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1",
                                                    "feed_forward.w3")},
            **{name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.wo", "feed_forward.w2")}})
    return model


def in_parts(model):
    """A step of a model that is shared by tensor parallelism."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        words = batch(size=4)
        with loss_parallel():
            loss_of(model(words), words).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step


def tensor_sequence():
    return in_parts(tensor_parallel(Model().to(torch.bfloat16), init_device_mesh("cpu", (4,))))


def fsdp2_tensor():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shards", "parts"))
    return in_parts(sharded(tensor_parallel(Model(), mesh["parts"]), mesh["shards"]))


def pipeline(schedule, chunks):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stages = []
    for number in range(rank, ranks * chunks, ranks):
        part = Model(1, first=number == 0, last=number == ranks * chunks - 1).to(torch.bfloat16)
        stages.append(pipelining.PipelineStage(part, number, ranks * chunks, torch.device("cpu")))
    run = schedule(stages[0] if chunks == 1 else stages, n_microbatches=8, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([p for stage in stages for p in stage.submod.parameters()])

    def step():
        words = batch(size=8)
        given = {"target": words} if rank == ranks - 1 else {}
        run.step(*([words] if rank == 0 else []), **given)
        optimizer.step()
        optimizer.zero_grad()
    return step


def zero(stage):
    import deepspeed
    small = {"reduce_bucket_size": 1_000_000, "allgather_bucket_size": 1_000_000, "stage3_param_persistence_threshold": 1000,
             "stage3_prefetch_bucket_size": 500_000, "stage3_max_live_parameters": 2_000_000,
             "stage3_max_reuse_distance": 2_000_000}  # to the model what the defaults are to a large one
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
              "zero_optimization": {"stage": stage, "overlap_comm": stage > 1, **small}, "zero_allow_untested_optimizer": True}
    model = Model()
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)[0]

    def step():
        words = batch(tokens=32)
        engine.backward(loss_of(engine(words), words))
        engine.step()
    return step


JOBS = {
    "ddp": ddp,
    "ddp-static-graph": lambda: ddp(static_graph=True),
    "ddp-one-bucket": lambda: ddp(bucket_cap_mb=1000),
    "ddp-many-buckets": lambda: ddp(bucket_cap_mb=1),
    "ddp-no-sync": lambda: ddp(passes=4),
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "hsdp": hsdp,
    "tensor-sequence": tensor_sequence,
    "fsdp2-tensor": fsdp2_tensor,
    "stages": lambda: pipeline(pipelining.Schedule1F1B, 1),
    "stages-interleaved": lambda: pipeline(pipelining.ScheduleInterleaved1F1B, 2),
    "zero1": lambda: zero(1),
    "zero2": lambda: zero(2),
    "zero3": lambda: zero(3),
}


def tidied(calls):
    """Communicators by the order in which they come, and nothing that is so by default; returns the former's ranks."""
    groups = []
    for call in calls:
        group = call.pop("group", 0)
        if group not in groups:
            groups.append(group)
        if groups.index(group) > 0:
            call["group"] = groups.index(group)
        if call["root"] < 0:
            del call["root"]
        if call["dtype"] not in ("i32", "i64"):
            call.pop("values", None)
    return [dist.get_process_group_ranks(backend.groups[group]) for group in groups]


def folded(lines):
    """The lines; of blocks alike that follow each other the first, behind a line that says how often."""
    items = [[line] for line in lines]
    period = 2
    while period <= len(items) // 2:
        before = len(items)
        for at in range(before):
            block = items[at:at + period]
            size, times = sum(map(len, block)), 1
            while block and items[at + times * period:at + (times + 1) * period] == block:
                times += 1
            if (times - 1) * size > 1:
                items[at:at + times * period] = [sum(block, [{"lines": size, "times": times}])]
        period = 2 if len(items) < before else period + 1
    return sum(items, [])


def record(job):
    torch.manual_seed(1)
    backend.recorder = calls = []
    step, begins = JOBS[job](), []
    for _ in range(STEPS):
        begins.append(len(calls))
        step()
    backend.recorder = None
    dist.barrier()  # the values of all calls are there now
    groups = tidied(calls)
    steps = [calls[begin:end] for begin, end in zip(begins, begins[1:] + [None])]
    while len(steps) > 1 and steps[-1] == steps[-2]:
        steps.pop()
        calls = calls[:begins.pop()]
    if len(steps) == STEPS:
        raise SystemExit(f"{job}: no two steps are alike")
    header = {"torch": torch.__version__, "groups": groups, "rank": RANK, "begins": begins}
    if job.startswith("zero"):
        header["deepspeed"] = sys.modules["deepspeed"].__version__
    runs = ((call, len(list(run))) for call, run in itertools.groupby(calls))
    return [header] + folded([call | ({"times": times} if times > 1 else {}) for call, times in runs])


def main():
    folder, jobs = sys.argv[1], sys.argv[2:] or list(JOBS)
    torch.set_num_threads(1)
    torch.cuda.is_available = torch.accelerator.is_available = lambda: False  # the emulator's device has no kernels
    join("emulated")
    for job in jobs:
        lines = record(job)
        if dist.get_rank() == RANK:
            with open(os.path.join(folder, job + ".jsonl"), "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
