"""One rank of a training for run: unmodified PyTorch on its NCCL backend; on the emulator, with --emulated, on the
backend of tests/e2e/torch.

usage: train.py ddp|fsdp2|graph STEPS [--emulated]
  ddp      DistributedDataParallel
  fsdp2    fully_shard: all-gather of parameters, reduce-scatter of gradients
  graph    a step with its all-reduce captured in a CUDA graph and replayed; the same steps without a graph must give the
           same bits
Rank 0 prints a line of JSON: loss (mean of the last five steps), digest (of the parameters), replicas_equal, and of graph
equals_eager. Exits with 77 and a reason where this PyTorch cannot do it.
"""
import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

WIDTH, CLASSES, BATCH = 512, 10, 64


def model_on(device):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
                         nn.Linear(WIDTH, CLASSES)).to(device)


def batches(device):
    """Classes that have a mean each; every rank draws its own."""
    means = torch.randn(CLASSES, 256, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(dist.get_rank())
    while True:
        labels = torch.randint(CLASSES, (BATCH,), generator=generator)
        inputs = 0.5 * means[labels] + torch.randn(BATCH, 256, generator=generator)
        yield inputs.to(device), labels.to(device)


def flat(model):
    """All parameters in one vector, gathered where they are sharded."""
    parts = [getattr(parameter.detach(), "full_tensor", parameter.detach)() for parameter in model.parameters()]
    return torch.cat([part.reshape(-1) for part in parts])


def report(losses, parameters, **more):
    digest = hashlib.sha256(parameters.cpu().numpy().tobytes()).digest()[:8]
    own = torch.tensor(list(digest), dtype=torch.uint8, device=parameters.device)
    highest, lowest = own.clone(), own.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    line = {"loss": round(sum(losses[-5:]) / len(losses[-5:]), 5), "digest": digest.hex(),
            "replicas_equal": torch.equal(highest, lowest), **more}
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)


def train(model, steps, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _, (inputs, labels) in zip(range(steps), batches(device)):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp(steps, device):
    model = model_on(device)
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
    losses = train(wrapped, steps, device)
    report(losses, flat(model))


def fsdp2(steps, device):
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        try:
            from torch.distributed._composable.fsdp import fully_shard
        except ImportError:
            print(f"PyTorch {torch.__version__} has no fully_shard")
            sys.exit(77)
    model = model_on(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    losses = train(model, steps, device)
    report(losses, flat(model))


class Step:
    """One step on fixed buffers, as a graph wants it."""

    def __init__(self, device):
        self.model, self.batches = model_on(device), batches(device)
        self.inputs, self.labels = next(self.batches)
        self.parameters = list(self.model.parameters())
        self.gradients = torch.zeros(sum(p.numel() for p in self.parameters), device=device)
        self.loss = torch.zeros((), device=device)

    def __call__(self):
        loss = nn.functional.cross_entropy(self.model(self.inputs), self.labels)
        parts = torch.autograd.grad(loss, self.parameters)
        torch.cat([part.reshape(-1) for part in parts], out=self.gradients)
        dist.all_reduce(self.gradients)
        with torch.no_grad():
            at = 0
            for parameter in self.parameters:
                part = self.gradients[at:at + parameter.numel()]
                parameter.sub_(part.view_as(parameter), alpha=0.05 / dist.get_world_size())
                at += parameter.numel()
            self.loss.copy_(loss)

    def run(self, call, steps):
        losses = []
        for _ in range(steps):
            inputs, labels = next(self.batches)
            self.inputs.copy_(inputs)
            self.labels.copy_(labels)
            call()
            losses.append(self.loss.item())
        return losses


def graph(steps, device):
    # The first steps of both are plain: libraries initialise themselves there, which no graph may hold.
    warm, eager = 3, Step(device)
    eager.run(eager, warm + steps)
    captured = Step(device)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        captured.run(captured, warm)
    side.synchronize()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded, capture_error_mode="thread_local"):  # PyTorch's watchdog queries events meanwhile
        captured()
    losses = captured.run(recorded.replay, steps)
    parameters = flat(captured.model)
    report(losses, parameters, equals_eager=torch.equal(parameters, flat(eager.model)))


def main():
    what, steps, emulated = sys.argv[1], int(sys.argv[2]), "--emulated" in sys.argv
    if emulated:
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../e2e/torch"))
        import backend
        torch.set_num_threads(1)
        device, name = torch.device("cpu"), "emulated"
    else:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        if not torch.cuda.is_available() or not dist.is_nccl_available():
            print(f"PyTorch {torch.__version__} has no CUDA or no NCCL")
            sys.exit(77)
        torch.cuda.set_device(0)
        device, name = torch.device("cuda", 0), "nccl"
        print(f"torch {torch.__version__} nccl {torch.cuda.nccl.version()}", file=sys.stderr)
    # All ranks on one device: PyTorch need not know.
    dist.init_process_group(name, init_method=f"file://{os.environ['TEST_FOLDER']}/store",
                            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    {"ddp": ddp, "fsdp2": fsdp2, "graph": graph}[what](steps, device)
    dist.barrier()
    if emulated:
        backend.close()
    else:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
