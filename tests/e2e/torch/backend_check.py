"""Every call of the test backend against results computed here: each rank's data is known to all. Ends with a message
where something differs. Then trains as ddp_variants.py does, and prints what that prints."""
import sys
import threading

import torch
import torch.distributed as dist

import backend
import ddp_variants

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
COUNT = 103


def data(rank, dtype, count=COUNT, shift=0):
    """Small integers, exact in every type and in their sums and products."""
    return ((torch.arange(count) * 7 + rank * 3 + shift) % 4 + 1).to(dtype)


def same(got, expected, what):
    if got.dtype != expected.dtype or not torch.equal(got, expected):
        sys.exit(f"rank {dist.get_rank()}: {what}: {got} is not {expected}")


def all_of(dtype, **more):
    return [data(rank, dtype, **more) for rank in range(dist.get_world_size())]


def reductions(rank):
    for dtype in FLOATS + INTEGERS:
        stacked = torch.stack([tensor.double() for tensor in all_of(dtype)])
        cases = [(dist.ReduceOp.SUM, stacked.sum(0)), (dist.ReduceOp.PRODUCT, stacked.prod(0)),
                 (dist.ReduceOp.MAX, stacked.amax(0)), (dist.ReduceOp.MIN, stacked.amin(0))]
        for operation, expected in cases:
            tensor = data(rank, dtype)
            dist.all_reduce(tensor, operation)
            same(tensor, expected.to(dtype), f"all_reduce {dtype} {operation}")
        tensor = data(rank, dtype)
        dist.reduce(tensor, 1)
        if rank == 1:
            same(tensor, stacked.sum(0).to(dtype), f"reduce {dtype}")
    mean = data(rank, torch.float64)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    torch.testing.assert_close(mean, torch.stack(all_of(torch.float64)).mean(0))
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags)
    same(flags, torch.tensor([True, False, True]), "all_reduce of bool")


def copies(rank, ranks):
    for dtype in FLOATS + INTEGERS + [torch.bool]:
        tensor = data(rank, dtype)
        dist.broadcast(tensor, ranks - 1)
        same(tensor, data(ranks - 1, dtype), f"broadcast {dtype}")
        parts = [torch.empty(COUNT, dtype=dtype) for _ in range(ranks)]
        dist.all_gather(parts, data(rank, dtype))
        same(torch.stack(parts), torch.stack(all_of(dtype)), f"all_gather {dtype}")
        whole = torch.empty(ranks * COUNT, dtype=dtype)
        dist.all_gather_into_tensor(whole, data(rank, dtype))
        same(whole, torch.cat(all_of(dtype)), f"all_gather_into_tensor {dtype}")


def scatters(rank, ranks):
    expected = sum(data(other, torch.float32, shift=rank) for other in range(ranks))
    inputs = [data(rank, torch.float32, shift=shift) for shift in range(ranks)]
    part = torch.empty(COUNT)
    dist.reduce_scatter(part, inputs)
    same(part, expected, "reduce_scatter")
    part = torch.empty(COUNT)
    dist.reduce_scatter_tensor(part, torch.cat(inputs))
    same(part, expected, "reduce_scatter_tensor")


def exchanges(rank, ranks):
    outputs = [torch.empty(5 + rank) for _ in range(ranks)]
    dist.all_to_all(outputs, [data(rank, torch.float32, count=5 + to) for to in range(ranks)])
    for other, output in enumerate(outputs):
        same(output, data(other, torch.float32, count=5 + rank), "all_to_all")
    # Rows of three; nothing goes to the rank itself.
    sent, received = ([rank + other if other != rank else 0 for other in range(ranks)] for _ in range(2))
    source = torch.full((sum(sent), 3), float(rank))
    target = torch.empty(sum(received), 3)
    dist.all_to_all_single(target, source, received, sent)
    same(target[:, 0], torch.cat([torch.full((n,), float(other)) for other, n in enumerate(received)]),
         "all_to_all_single with splits")
    target = torch.empty(ranks * 4, dtype=torch.int64)
    dist.all_to_all_single(target, torch.arange(ranks * 4) + 100 * rank)
    same(target, torch.cat([torch.arange(rank * 4, rank * 4 + 4) + 100 * other for other in range(ranks)]),
         "all_to_all_single")
    # Around a ring: the even ranks send first.
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    message, heard = data(rank, torch.float64), torch.empty(COUNT, dtype=torch.float64)
    first, second = (lambda: dist.send(message, after)), (lambda: dist.recv(heard, before))
    for step in (first, second) if rank % 2 == 0 and rank != ranks - 1 else (second, first):
        step()
    same(heard, data(before, torch.float64), "send and recv")


def asynchronous(rank, ranks):
    tensors = [data(rank, torch.float32, shift=shift) for shift in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for shift, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        if not work.is_completed():
            sys.exit("a work that was waited for is not complete")
        same(tensor, sum(all_of(torch.float32, shift=shift)), "asynchronous all_reduce")
    then = dist.all_reduce(tensors[0], async_op=True).get_future().then(lambda done: done.value()[0].clone())
    same(then.wait(), ranks * sum(all_of(torch.float32)), "what follows on a future")


def threads(rank, ranks):
    """Two groups, two threads."""
    group, wrong = dist.new_group(list(range(ranks))), []

    def other():
        for shift in range(50):
            tensor = data(rank, torch.float32, shift=shift)
            dist.all_reduce(tensor, group=group)
            if not torch.equal(tensor, sum(all_of(torch.float32, shift=shift))):
                wrong.append(shift)
    thread = threading.Thread(target=other)
    thread.start()
    for shift in range(50):
        tensor = data(rank, torch.int32, shift=shift)
        dist.all_reduce(tensor)
        same(tensor, sum(all_of(torch.int32, shift=shift)), "all_reduce beside another thread")
    thread.join()
    if wrong:
        sys.exit(f"rank {rank}: wrong sums of the second thread: {wrong}")


def refusals():
    for tensor, why in [(torch.zeros(3, dtype=torch.int16), "int16"), (torch.zeros(8)[::2], "dense")]:
        try:
            dist.all_reduce(tensor)
        except ValueError as error:
            if why in str(error):
                continue
        sys.exit(f"{why} was not refused")


def main():
    ddp_variants.start()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    reductions(rank)
    copies(rank, ranks)
    scatters(rank, ranks)
    exchanges(rank, ranks)
    asynchronous(rank, ranks)
    threads(rank, ranks)
    refusals()
    for variant in ("plain", "unused_parameters"):
        ddp_variants.run(variant, torch.float32)
    dist.barrier()
    backend.close()


if __name__ == "__main__":
    main()
