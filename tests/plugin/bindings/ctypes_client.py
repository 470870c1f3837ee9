"""An NCCL client over ctypes, as inference servers have one: one process, two devices, one all-reduce.

usage: ctypes_client.py NCCL     a name or a path of libnccl.so.2
"""
import ctypes
import sys

DEVICES, COUNT, FLOAT32, SUM = 2, 50000, 7, 0
TO_DEVICE, TO_HOST = 1, 2


def check(result, what):
    if result != 0:
        raise SystemExit(f"{what}: {result}")


def main():
    nccl, cuda = ctypes.CDLL(sys.argv[1]), ctypes.CDLL("libcudart.so.13")
    comms = (ctypes.c_void_p * DEVICES)()
    check(nccl.ncclCommInitAll(comms, DEVICES, None), "ncclCommInitAll")
    buffers, size = [], ctypes.c_size_t(COUNT * 4)
    for device in range(DEVICES):
        values = (ctypes.c_float * COUNT)(*((device + 1) * (1 + i % 97) for i in range(COUNT)))
        buffer = ctypes.c_void_p()
        check(cuda.cudaSetDevice(device), "cudaSetDevice")
        check(cuda.cudaMalloc(ctypes.byref(buffer), size), "cudaMalloc")
        check(cuda.cudaMemcpy(buffer, values, size, TO_DEVICE), "cudaMemcpy")
        buffers.append(buffer)
    check(nccl.ncclGroupStart(), "ncclGroupStart")
    for device, buffer in enumerate(buffers):
        check(cuda.cudaSetDevice(device), "cudaSetDevice")
        check(nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(COUNT), FLOAT32, SUM,
                                 ctypes.c_void_p(comms[device]), None), "ncclAllReduce")
    check(nccl.ncclGroupEnd(), "ncclGroupEnd")
    error = 0
    for device, buffer in enumerate(buffers):
        sums = (ctypes.c_float * COUNT)()
        check(cuda.cudaSetDevice(device), "cudaSetDevice")
        check(cuda.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
        check(cuda.cudaMemcpy(sums, buffer, size, TO_HOST), "cudaMemcpy")
        error = max(error, max(abs(value - 3 * (1 + i % 97)) for i, value in enumerate(sums)))
        check(cuda.cudaFree(buffer), "cudaFree")
        check(nccl.ncclCommDestroy(ctypes.c_void_p(comms[device])), "ncclCommDestroy")
    print(f"max error {error:g}")


if __name__ == "__main__":
    main()
