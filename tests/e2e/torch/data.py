"""Fashion-MNIST as Debian installs it, or seeded noise with a pattern a class where it is not there."""
import functools
import gzip
import os

import torch

FOLDER = "/usr/share/datasets/fashion-mnist"


def bytes_of(name, header, count):
    with gzip.open(os.path.join(FOLDER, name)) as file:
        file.read(header)
        return torch.frombuffer(bytearray(file.read(count)), dtype=torch.uint8)


@functools.lru_cache
def fashion_mnist(part="train", count=60000):
    """(images of 784 values of mean 0 and deviation 1, labels), the first `count` of `train` or `t10k`."""
    if not os.path.isdir(FOLDER):
        return patterns(min(count, 4000), seed=0 if part == "train" else 1)
    labels = bytes_of(f"{part}-labels-idx1-ubyte.gz", 8, count).long()
    pixels = bytes_of(f"{part}-images-idx3-ubyte.gz", 16, count * 784)
    return (pixels.view(-1, 784).float() / 255 - 0.2860) / 0.3530, labels


def patterns(count, seed):
    means = torch.randn(10, 784, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return 0.3 * means[labels] + torch.randn(count, 784, generator=generator), labels
