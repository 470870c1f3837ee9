"""Click-through data from a generator whose truth is known, and what a model of it can at best reach.

A sample has 13 numbers and 8 categories. Numbers are standard normal. Category f takes one of SIZES[f] values, value v with a
probability proportional to 1 / (v + 1) (Zipf's law, so that most values of a large table are rare). With the numbers x and, for
each category, a weight w and a vector u of 4 numbers by the value,

    logit = -1.4 + sum of w_f + a . x + 0.5 * sum over pairs f < g of u_f . u_g + 0.7 * tanh(b . x) * w_0

and a click comes with the probability p = 1 / (1 + exp(-logit)). All constants are drawn once, from seed 7. The Bayes values are
those of p itself: no model can expect a smaller log loss or a larger area under the curve. As a program it checks itself.
"""
import functools
import math

import torch

NUMBERS = 13
SIZES = [2000, 1000, 500, 200, 100, 50, 20, 10]
FACTORS = 4


@functools.lru_cache
def truth():
    draw = torch.Generator().manual_seed(7)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    return {"w": [0.5 * normal(size) for size in SIZES], "u": [0.35 * normal(size, FACTORS) for size in SIZES],
            "a": 0.25 * normal(NUMBERS), "b": 0.4 * normal(NUMBERS)}


@functools.lru_cache
def clicks(count, seed):
    """(numbers [count, 13], categories [count, 8], clicks [count], probabilities [count])."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, NUMBERS, generator=draw)
    categories = torch.stack([torch.multinomial(1 / torch.arange(1.0, size + 1), count, replacement=True, generator=draw)
                              for size in SIZES], 1)
    of = truth()
    weights = torch.stack([of["w"][f][categories[:, f]] for f in range(len(SIZES))], 1)
    vectors = torch.stack([of["u"][f][categories[:, f]] for f in range(len(SIZES))], 1)
    pairs = 0.5 * (vectors.sum(1).square().sum(1) - vectors.square().sum((1, 2)))
    logit = (-1.4 + weights.sum(1) + numbers @ of["a"] + 0.5 * pairs + 0.7 * torch.tanh(numbers @ of["b"]) * weights[:, 0])
    probabilities = torch.sigmoid(logit)
    return numbers, categories, (torch.rand(count, generator=draw) < probabilities).float(), probabilities


def log_loss(probabilities, labels):
    p = probabilities.double().clamp(1e-7, 1 - 1e-7)
    return -(labels * p.log() + (1 - labels) * (1 - p).log()).mean().item()


def area(scores, labels):
    """Under the receiver's curve: the part of pairs of a click and none that the scores order rightly, ties half."""
    values, place, counts = torch.unique(scores.double(), return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts.double() - 1) / 2)[place]
    hits = labels.sum().double().item()
    return ((ranks[labels == 1].sum().item() - hits * (hits + 1) / 2) / (hits * (len(labels) - hits)))


class Recommender(torch.nn.Module):
    """A small DLRM: a vector for each category and one for the numbers, their products in pairs, and a perceptron of all."""

    def __init__(self, width=16):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(size, width) for size in SIZES)
        self.bottom = torch.nn.Sequential(torch.nn.Linear(NUMBERS, 64), torch.nn.ReLU(), torch.nn.Linear(64, width), torch.nn.ReLU())
        fields = len(SIZES) + 1
        self.top = torch.nn.Sequential(torch.nn.Linear(fields * width + fields * (fields - 1) // 2, 256), torch.nn.ReLU(),
                                       torch.nn.Linear(256, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
        self.register_buffer("pairs", torch.triu_indices(fields, fields, 1), persistent=False)
        for table in self.tables:
            torch.nn.init.normal_(table.weight, std=0.1)

    def forward(self, numbers, categories):
        return self.scores(numbers, [table(categories[:, f]) for f, table in enumerate(self.tables)])

    def scores(self, numbers, rows):
        vectors = torch.stack([self.bottom(numbers), *rows], 1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([vectors.flatten(1), products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)


def main():
    numbers, categories, labels, probabilities = clicks(2000, 5)
    again = truth.__wrapped__()["w"][3]
    assert torch.equal(again, truth()["w"][3]), "another truth"
    scores = (10 * probabilities).round()  # with ties
    above = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    assert abs(area(scores, labels) - ((above > 0).double() + 0.5 * (above == 0).double()).mean().item()) < 1e-12
    assert abs(log_loss(torch.full((4,), 0.25), torch.tensor([1.0, 0, 0, 0])) + (math.log(0.25) + 3 * math.log(0.75)) / 4) < 1e-9
    many = clicks(200000, 6)
    assert abs(many[2].mean() - many[3].mean()) < 0.005, "clicks do not come with their probabilities"
    best, blurred = log_loss(many[3], many[2]), log_loss(0.9 * many[3] + 0.03, many[2])
    assert best < blurred and best < log_loss(many[3].clamp(0.1, 0.9), many[2]), "the truth can be beaten"
    assert categories.amax(0).lt(torch.tensor(SIZES)).all() and numbers.shape == (2000, NUMBERS)
    print(f"clicks {many[2].mean():.4f}, log loss of the truth {best:.4f}, area {area(many[3], many[2]):.4f}")


if __name__ == "__main__":
    main()
