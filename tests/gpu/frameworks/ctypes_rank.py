"""One rank of a client that calls NCCL over ctypes, as inference servers do: one process a rank, memory of its own, no
torch.distributed. Sums a known vector and prints the largest error relative to the largest sum on rank 0.

usage: ctypes_rank.py NCCL CUDART     names or paths of the libraries
"""
import ctypes
import os
import sys
import time

COUNT, FLOAT32, SUM = 1 << 18, 7, 0
TO_DEVICE, TO_HOST, ID_BYTES = 1, 2, 128


def check(result, what):
    if result != 0:
        raise SystemExit(f"{what}: {result}")


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * ID_BYTES)]


def exchanged(identity, rank):
    """Rank 0's id, over a file of the job's folder."""
    path = os.path.join(os.environ["TEST_FOLDER"], "ctypes_id")
    if rank == 0:
        with open(path + ".part", "wb") as file:
            file.write(bytes(identity))
        os.rename(path + ".part", path)
    for _ in range(3000):
        if os.path.exists(path):
            with open(path, "rb") as file:
                return UniqueId.from_buffer_copy(file.read())
        time.sleep(0.01)
    raise SystemExit("rank 0 published no id for 30 s")


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    nccl, cuda = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    check(cuda.cudaSetDevice(0), "cudaSetDevice")
    identity = UniqueId()
    if rank == 0:
        check(nccl.ncclGetUniqueId(ctypes.byref(identity)), "ncclGetUniqueId")
    identity = exchanged(identity, rank)
    comm, buffer, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(4 * COUNT)
    check(nccl.ncclCommInitRank(ctypes.byref(comm), ranks, identity, rank), "ncclCommInitRank")
    check(cuda.cudaMalloc(ctypes.byref(buffer), size), "cudaMalloc")
    values = (ctypes.c_float * COUNT)(*((rank + 1) * (1 + i % 97) for i in range(COUNT)))
    check(cuda.cudaMemcpy(buffer, values, size, TO_DEVICE), "cudaMemcpy")
    check(nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(COUNT), FLOAT32, SUM, comm, None), "ncclAllReduce")
    check(cuda.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
    check(cuda.cudaMemcpy(values, buffer, size, TO_HOST), "cudaMemcpy")
    factor = ranks * (ranks + 1) // 2
    error = max(abs(value - factor * (1 + i % 97)) for i, value in enumerate(values)) / (factor * 97)
    check(nccl.ncclCommDestroy(comm), "ncclCommDestroy")
    check(cuda.cudaFree(buffer), "cudaFree")
    if rank == 0:
        print(f"error {error:.6f}")


if __name__ == "__main__":
    main()
