"""Training that is sharded, in stages or by experts, on four ranks, each compared with the same training in one process.

usage: parallel.py TYPE...     float64 (which no codec takes), float32

  sharded   ZeRO by hand: reduce-scatter of the gradients, an update of the rank's shard, all-gather of the parameters
  stages    a pipeline of two stages with two replicas: activations and their gradients by send and receive in two
            micro-batches, gradients of each stage summed over its replicas
  experts   one expert a rank: rows travel to the expert that a fixed gate chose, and back, by all-to-all with uneven splits

Prints a line of JSON for each and type on every rank:
  training, type
  loss, expected_loss   of this rank's data, mean over the last ten steps; in one process
  replicated            digest of what the rank holds, equal on the ranks of `with` (absent: nobody else holds it)
  distance              of what the rank holds from the one process's
"""
import json
import sys

import torch
import torch.distributed as dist
from torch import nn

import backend
from classifier import Batches, Classifier, digest, distance, flat
from rendezvous import join

STEPS = 12
RATE = 0.1


def cross_entropy(logits, labels):
    return nn.functional.cross_entropy(logits, labels)


def last_ten(losses):
    return sum(losses[-10:]) / 10


def fill(model, vector):
    """Sets the parameters from one vector."""
    at = 0
    for parameter in model.parameters():
        parameter.data.copy_(vector[at:at + parameter.numel()].view_as(parameter))
        at += parameter.numel()


def gradients(model):
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


class InOneProcess:
    """What all ranks together train: the mean of the losses of their parts of each batch, by plain SGD."""

    def __init__(self, model, dtype, forward):
        self.model, self.forward, self.losses = model, forward, []
        rank, ranks = dist.get_rank(), dist.get_world_size()
        batches = Batches(7, rank, ranks, size=16)
        for _ in range(STEPS):
            images, labels = batches.whole()
            losses = [cross_entropy(forward(model, images[part].to(dtype)), labels[part])
                      for part in torch.arange(len(labels)).split(batches.size)]
            model.zero_grad()
            (sum(losses) / ranks).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= RATE * parameter.grad
            self.losses.append(losses[rank].item())


def report(training, dtype, losses, expected_losses, held, expected, partners):
    line = {"training": training, "type": str(dtype).split(".")[1], "loss": last_ten(losses),
            "expected_loss": last_ten(expected_losses), "distance": distance(held, expected)}
    if partners:
        line.update({"replicated": digest(held), "with": partners})
    print(json.dumps(line), flush=True)


def sharded(dtype):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    model = Classifier(width=96).to(dtype)
    parameters = flat(model)
    shard_size = -(-len(parameters) // ranks)
    padded = torch.zeros(shard_size * ranks, dtype=dtype)
    padded[:len(parameters)] = parameters
    shard = padded[rank * shard_size:(rank + 1) * shard_size].clone()
    whole, summed, sent = torch.empty_like(padded), torch.empty_like(shard), torch.zeros_like(padded)
    batches, losses = Batches(7, rank, ranks, size=16), []
    for _ in range(STEPS):
        dist.all_gather_into_tensor(whole, shard)
        fill(model, whole)
        images, labels = batches.next()
        loss = cross_entropy(model(images.to(dtype)), labels)
        model.zero_grad()
        loss.backward()
        sent[:len(parameters)] = gradients(model)
        dist.reduce_scatter_tensor(summed, sent)
        shard -= RATE / ranks * summed
        losses.append(loss.item())
    dist.all_gather_into_tensor(whole, shard)
    torch.manual_seed(11)
    expected = InOneProcess(Classifier(width=96).to(dtype), dtype, lambda model, images: model(images))
    report("sharded", dtype, losses, expected.losses, whole[:len(parameters)], flat(expected.model),
           list(range(ranks)))


def two_stages(dtype):
    torch.manual_seed(12)
    return nn.ModuleList([nn.Sequential(nn.Linear(784, 96), nn.ReLU(), nn.Linear(96, 192), nn.ReLU()),
                          nn.Sequential(nn.Linear(192, 96), nn.ReLU(), nn.Linear(96, 10))]).to(dtype)


def stages(dtype):
    """Ranks 0 and 1 are the first stage, 2 and 3 the second; 0 and 2 train on the data of both, so do 1 and 3."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage, replica = divmod(rank, 2)
    peer = (rank + 2) % ranks
    replicas = [dist.new_group([0, 1]), dist.new_group([2, 3])][stage]
    model = two_stages(dtype)[stage]
    batches, losses = Batches(7, rank, ranks, size=16), []
    for _ in range(STEPS):
        images, labels = batches.whole()
        micro_batches = [torch.arange(len(labels)).split(batches.size)[replica + 2 * part] for part in range(2)]
        model.zero_grad()
        if stage == 0:
            sent = [model(images[part].to(dtype)) for part in micro_batches]
            for activations in sent:
                dist.send(activations.detach(), peer)
            for activations in sent:
                gradient = torch.empty_like(activations)
                dist.recv(gradient, peer)
                activations.backward(gradient)
            losses.append(0.0)
        else:
            received = [torch.empty(batches.size, 192, dtype=dtype) for _ in micro_batches]
            for activations in received:
                dist.recv(activations, peer)
            total = 0.0
            for part, activations in zip(micro_batches, received):
                activations.requires_grad_()
                loss = cross_entropy(model(activations), labels[part])
                loss.backward()
                dist.send(activations.grad, peer)
                total += loss.item() / 2
            losses.append(total)
        reduced = gradients(model)
        dist.all_reduce(reduced, group=replicas)
        fill(model, flat(model) - RATE / ranks * reduced)
    expected = InOneProcess(two_stages(dtype), dtype, lambda model, images: model[1](model[0](images)))
    expected_losses = [0.0] * STEPS
    if stage == 1:  # the losses of the two parts that this pipeline trains on
        parts = [None] * ranks
        dist.all_gather_object(parts, expected.losses)
        expected_losses = [(a + b) / 2 for a, b in zip(parts[replica], parts[replica + 2])]
    else:
        dist.all_gather_object([None] * ranks, expected.losses)
    report("stages", dtype, losses, expected_losses, flat(model), flat(expected.model[stage]), [2 * stage, 2 * stage + 1])


class Exchange(torch.autograd.Function):
    """Rows to other ranks; their gradients come the same way back."""

    @staticmethod
    def forward(context, rows, sent, received):
        context.splits = sent, received
        output = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(output, rows.contiguous(), received, sent)
        return output

    @staticmethod
    def backward(context, gradient):
        sent, received = context.splits
        output = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(output, gradient.contiguous(), sent, received)
        return output, None, None


class Experts(nn.Module):
    """`at` of the experts, which are all there in the model of one process."""

    def __init__(self, count):
        super().__init__()
        self.gate = torch.randn(784, count, generator=torch.Generator().manual_seed(1))  # not trained
        self.stem, self.head = nn.Linear(784, 128), nn.Linear(128, 10)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 128))
                                     for _ in range(count))

    def choice(self, images):
        return (images.float() @ self.gate).argmax(1)

    def together(self, images):
        x, chosen = torch.tanh(self.stem(images)), self.choice(images)
        output = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero()[:, 0]
            output = output.index_copy(0, rows, expert(x[rows]))
        return self.head(x + output)

    def apart(self, images):
        x, chosen = torch.tanh(self.stem(images)), self.choice(images)
        order = chosen.argsort(stable=True)
        sent = torch.bincount(chosen, minlength=len(self.experts))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        rows = Exchange.apply(x[order], sent.tolist(), received.tolist())
        rows = self.experts[dist.get_rank()](rows)
        rows = Exchange.apply(rows, received.tolist(), sent.tolist())
        return self.head(x + torch.zeros_like(x).index_copy(0, order, rows))


def experts(dtype):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(13)
    model = Experts(ranks).to(dtype)
    shared, own = nn.ModuleList([model.stem, model.head]), model.experts[rank]
    batches, losses = Batches(7, rank, ranks, size=16), []
    for _ in range(STEPS):
        images, labels = batches.next()
        loss = cross_entropy(model.apart(images.to(dtype)), labels)
        model.zero_grad()
        loss.backward()
        reduced = gradients(shared)
        dist.all_reduce(reduced)
        fill(shared, flat(shared) - RATE / ranks * reduced)
        fill(own, flat(own) - RATE / ranks * gradients(own))
        losses.append(loss.item())
    torch.manual_seed(13)
    expected = InOneProcess(Experts(ranks).to(dtype), dtype, lambda model, images: model.together(images))
    report("experts", dtype, losses, expected.losses, flat(shared),
           flat(nn.ModuleList([expected.model.stem, expected.model.head])), list(range(ranks)))
    report("own expert", dtype, losses, expected.losses, flat(own), flat(expected.model.experts[rank]), [])


def main():
    torch.set_num_threads(1)
    join("emulated")
    for name in sys.argv[1:]:
        for training in (sharded, stages, experts):
            training(getattr(torch, name))
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
