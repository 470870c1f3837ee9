"""Models for the tests and traces of DDP: small ones whose parameters have awkward forms."""
import torch
from torch import nn


class Ragged(nn.Module):
    """Sizes that nothing divides, a layer of one unit, a bias alone and a parameter of no dimension."""
    inputs = (7,)

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 131), nn.GELU(), nn.Linear(131, 37), nn.LayerNorm(37), nn.Linear(37, 1),
                                  nn.Tanh(), nn.Linear(1, 53, bias=False), nn.PReLU(53), nn.Linear(53, 10))
        self.shift = nn.Parameter(torch.zeros(10))
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.gain * self.body(x) + self.shift


class Vectors(nn.Module):
    """Nothing but parameters of one dimension, some of equal size."""
    inputs = (64,)

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(9))
        self.gates = nn.ParameterList(nn.Parameter(torch.full((size,), 0.5)) for size in (64, 1, 64, 1))
        self.head = nn.Parameter(torch.linspace(-1, 1, 10))

    def forward(self, x):
        for norm, gate in zip(self.norms, [self.gates[i % 4] for i in range(9)]):
            x = x + torch.tanh(norm(x)) * gate
        return x.mean(1, keepdim=True) * self.head


class Convolutions(nn.Module):
    """Channels-last weights, 1x1 and depthwise ones among them, and batch norm's buffers."""
    inputs = (3, 12, 12)

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16),
            nn.Conv2d(16, 40, 1), nn.ReLU(), nn.Conv2d(40, 1, 1), nn.Conv2d(1, 24, (3, 1)), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.body(x.contiguous(memory_format=torch.channels_last))


class Tied(nn.Module):
    """A language model whose output layer is its embedding; a frozen table that DDP leaves out."""
    inputs = None
    words = 97

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(self.words, 48)
        self.positions = nn.Parameter(torch.randn(16, 48), requires_grad=False)
        self.hidden = nn.GRU(48, 48, batch_first=True)
        self.norm = nn.LayerNorm(48)
        self.output = nn.Linear(48, self.words)
        self.output.weight = self.embedding.weight

    def forward(self, words):
        x = self.embedding(words) + self.positions
        return self.output(self.norm(self.hidden(x)[0])[:, -1])


class Transformer(nn.Module):
    """Two encoder layers; the largest model, of several buckets."""
    inputs = (12, 64)

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 200, dropout=0, batch_first=True)
                                      for _ in range(2)))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.layers(x).mean(1))


class Branches(nn.Module):
    """Only one of two branches takes part in a step: with find_unused_parameters."""
    inputs = (20,)

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(20, 60)
        self.branches = nn.ModuleList((nn.Sequential(nn.Linear(60, 45), nn.ReLU(), nn.Linear(45, 60)), nn.Linear(60, 60)))
        self.head = nn.Linear(60, 10)
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        x = torch.relu(self.stem(x))
        return self.head(self.branches[self.steps % 2](x) if self.steps % 3 else x)


class Types(nn.Module):
    """Parameters of two types, which DDP never puts into one bucket."""
    inputs = (30,)

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(30, 70)
        self.middle = nn.Sequential(nn.Linear(70, 33), nn.Tanh(), nn.Linear(33, 70)).double()
        self.last = nn.Linear(70, 10)

    def forward(self, x):
        return self.last(self.middle(torch.relu(self.first(x)).double()).float())


MODELS = {"ragged": Ragged, "vectors": Vectors, "convolutions": Convolutions, "tied": Tied, "transformer": Transformer,
          "branches": Branches, "types": Types}


def batch_of(model, generator, size=8):
    """Inputs and labels as the model takes them."""
    if model.inputs is None:
        return (torch.randint(model.words, (size, 16), generator=generator),
                torch.randint(model.words, (size,), generator=generator))
    return torch.randn(size, *model.inputs, generator=generator), torch.randint(10, (size,), generator=generator)
