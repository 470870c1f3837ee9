"""Sharded training by hand, as FSDP does it: each rank keeps a part of every layer, gathers whole layers for the forward and again for
the backward pass, and reduces and scatters their gradients. For trainer.py."""
import torch
import torch.distributed as dist


class Layer:
    """One layer's parameters in a row, of which this rank keeps a part. The module computes with what was gathered last."""

    def __init__(self, parameters):
        self.parameters, ranks = parameters, dist.get_world_size()
        size = -(-sum(p.numel() for p in parameters) // ranks)
        self.whole, self.sent = torch.zeros(size * ranks), torch.zeros(size * ranks)
        self.views, self.gradients, at = [], [], 0
        for parameter in parameters:
            count = parameter.numel()
            view = self.whole[at:at + count].view_as(parameter)
            view.copy_(parameter.data)
            parameter.data = view
            self.gradients.append(self.sent[at:at + count].view_as(parameter))
            at += count
        self.shard = self.whole[dist.get_rank() * size:(dist.get_rank() + 1) * size].clone().requires_grad_()
        self.shard.grad = torch.zeros(size)

    def gather(self):
        dist.all_gather_into_tensor(self.whole, self.shard.data)

    def reduce(self):
        for parameter, gradient in zip(self.parameters, self.gradients):
            gradient.copy_(parameter.grad)
            parameter.grad = None
        dist.reduce_scatter_tensor(self.shard.grad, self.sent, op=dist.ReduceOp.AVG)


class Sharded:
    def __init__(self, model):
        self.layers = [Layer(own) for own in (list(module.parameters(recurse=False)) for module in model.modules()) if own]

    def shards(self):
        return [layer.shard for layer in self.layers]

    def gather(self):
        for layer in self.layers:
            layer.gather()

    def backward(self, loss):
        """Gathers again, in the order of use, and leaves the mean gradients in the shards."""
        for layer in reversed(self.layers):
            layer.gather()
        loss.backward()
        for layer in reversed(self.layers):
            layer.reduce()
