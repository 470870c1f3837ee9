"""A c10d backend for tests: unmodified PyTorch without a GPU makes NCCL calls.

`import backend` registers "emulated"; dist.init_process_group("emulated") then makes a communicator
of libnccl for each group. CPU tensors are staged through device memory by a small library
(shim.cpp), whose path is in TEST_TORCH_SHIM, so that slimwire is reached as it is under
PyTorch's own NCCL backend. Tests run it under PyTorch 1.13; record_jobs.py under 2.x, whose names
for calls it has, too.

Calls come from any thread and return a Work at once; a thread of each group completes them in
order. A call that NCCL refuses raises; one that fails later ends the process, as PyTorch's own
watchdog does. Tensors must be dense. close() at the end of the program.

With `recorder` set to a list, each call of every group appends the dictionary that
record_traces.py documents; beside that "redop" unless it is a sum, "group" unless it is the first of
`groups`, and peers of messages as "root".
"""
import ctypes
import os
import queue
import sys
import threading

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

(ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND, RECEIVE) = range(8)
NAMES = ["allreduce", "broadcast", "reduce", "allgather", "reducescatter", "alltoall", "send", "recv"]
# NCCL's numbers and slimwire's names.
TYPES = {torch.int8: (0, "i8"), torch.uint8: (1, "u8"), torch.int32: (2, "i32"), torch.int64: (4, "i64"),
         torch.float16: (6, "f16"), torch.float32: (7, "f32"), torch.float64: (8, "f64"),
         torch.bfloat16: (9, "bf16"), torch.bool: (1, "u8")}
REDUCTIONS = [(dist.ReduceOp.SUM, 0), (dist.ReduceOp.PRODUCT, 1), (dist.ReduceOp.MAX, 2),
              (dist.ReduceOp.MIN, 3), (dist.ReduceOp.AVG, 4)]
REDUCTION_NAMES = ["sum", "prod", "max", "min", "avg"]
MAX_RECORDED_VALUES = 4096
ID_BYTES = 128

recorder = None
groups = []


class Call(ctypes.Structure):
    """ShimCall of shim.cpp, where the members are explained."""
    _fields_ = [("operation", ctypes.c_int), ("input", ctypes.c_void_p), ("input_bytes", ctypes.c_size_t),
                ("output", ctypes.c_void_p), ("output_bytes", ctypes.c_size_t), ("count", ctypes.c_size_t),
                ("type", ctypes.c_int), ("reduction", ctypes.c_int), ("peer", ctypes.c_int),
                ("send_counts", ctypes.POINTER(ctypes.c_size_t)),
                ("receive_counts", ctypes.POINTER(ctypes.c_size_t))]


def load_shim():
    shim = ctypes.CDLL(os.environ["TEST_TORCH_SHIM"])
    shim.shim_error.restype = ctypes.c_char_p
    shim.shim_open.restype = shim.shim_calls.restype = ctypes.c_void_p
    shim.shim_calls.argtypes = [ctypes.c_void_p, ctypes.POINTER(Call), ctypes.c_int]
    shim.work_wait.argtypes = shim.shim_close.argtypes = [ctypes.c_void_p]
    return shim


shim = load_shim()


def failed(what):
    return RuntimeError(f"{what}: {shim.shim_error().decode()}")


def dense(tensor):
    """Raises unless the elements fill a piece of memory without gaps."""
    if tensor.layout != torch.strided or tensor.dtype not in TYPES:
        raise ValueError(f"the emulated backend has no {tensor.dtype} in layout {tensor.layout}")
    if not (tensor.is_contiguous() or
            tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        raise ValueError("the emulated backend takes dense tensors only")


def one(tensors):
    if len(tensors) != 1:
        raise ValueError(f"one tensor for each rank, not {len(tensors)}")
    return tensors[0]


def nccl_reduction(operation, tensor):
    if tensor.dtype == torch.bool and operation == dist.ReduceOp.SUM:
        return 2  # any of them
    for known, number in REDUCTIONS:
        if operation == known:
            return number
    raise ValueError(f"NCCL has no reduction {operation}")


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def spread(source, targets):
    at = 0
    for target in targets:
        target.copy_(source[at:at + target.numel()].view_as(target))
        at += target.numel()


class Emulated(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        identity = ctypes.create_string_buffer(ID_BYTES)
        if rank == 0:
            if shim.shim_unique_id(identity) != 0:
                raise failed("no unique id")
            store.set("nccl id", identity.raw)
        else:
            identity.raw = store.get("nccl id")
        self.members = size
        self.handle = shim.shim_open(identity, rank, size)
        if self.handle is None:
            raise failed("no communicator")
        self.underway = queue.Queue()
        self.batch = None  # calls that wait for the end of their NCCL group
        self.lock = threading.Lock()  # the order of calls is the order of completion
        self.completer = threading.Thread(target=self.complete, daemon=True)
        self.completer.start()
        groups.append(self)

    def complete(self):
        while True:
            entry = self.underway.get()
            if entry is None:
                return
            work, future, value, batch = entry
            try:
                if shim.work_wait(work) != 0:
                    raise failed("a call under way")
                for _call, finish, _kept in batch:
                    if finish is not None:
                        finish()
            except Exception as error:  # whoever waits would wait for ever
                print(f"emulated backend: {error}", file=sys.stderr, flush=True)
                os._exit(70)
            future.set_result(value)

    def close(self):
        self.underway.put(None)
        self.completer.join()
        if shim.shim_close(self.handle) != 0:
            raise failed("close")

    def start(self, operation, source, target, count, value, *, reduction=0, peer=0, splits=None,
              finish=None):
        """Enqueues one NCCL call on the dense `source` and `target`, which may be one or None; in a batch at its end."""
        for tensor in (source, target):
            if tensor is not None:
                dense(tensor)
        any_tensor = target if target is not None else source
        call = Call(operation=operation, count=count, type=TYPES[any_tensor.dtype][0], reduction=reduction,
                    peer=peer)
        if source is not None:
            call.input = source.data_ptr()
            call.input_bytes = source.numel() * source.element_size()
        if target is not None:
            call.output = target.data_ptr()
            call.output_bytes = target.numel() * target.element_size()
        if splits is not None:
            call.send_counts, call.receive_counts = ((ctypes.c_size_t * self.members)(*s) for s in splits)
        entry = call, self.recorded(call, any_tensor, finish), (source, target)
        if self.batch is None:
            return self.launch([entry], value)
        self.batch.append(entry)
        return None

    def launch(self, batch, value):
        calls = (Call * len(batch))(*(call for call, _finish, _kept in batch))
        future = torch.futures.Future()
        with self.lock:
            work = shim.shim_calls(self.handle, calls, len(batch))
            if work is None:
                raise failed(NAMES[batch[0][0].operation])
            self.underway.put((work, future, value, batch))
        return _create_work_from_future(future)

    def together(self, start, tensors):
        """One NCCL group: start(*arguments) of each."""
        self.batch = []
        for arguments in tensors:
            start(*arguments)
        return self._end_coalescing()

    def _start_coalescing(self, device=None):
        self.batch = []

    def _end_coalescing(self, device=None):
        batch, self.batch = self.batch, None
        return self.launch(batch, [kept for _call, _finish, kept in batch])

    supports_coalescing = True

    def _get_backend(self, device):
        return self

    def recorded(self, call, tensor, finish):
        if recorder is None:
            return finish
        entry = {"op": NAMES[call.operation], "dtype": TYPES[tensor.dtype][1], "count": call.count,
                 "root": call.peer if call.operation in (BROADCAST, REDUCE, SEND, RECEIVE) else -1}
        if self is not groups[0]:
            entry["group"] = groups.index(self)
        if call.reduction != 0:
            entry["redop"] = REDUCTION_NAMES[call.reduction]
        recorder.append(entry)
        if tensor.is_floating_point() or tensor.numel() > MAX_RECORDED_VALUES:
            return finish

        def done():
            entry["values"] = tensor.reshape(-1).tolist()
            if finish is not None:
                finish()
        return done

    def allreduce(self, tensors, opts=None):
        tensor = one(tensors)
        reduction = nccl_reduction(opts.reduceOp, tensor) if opts is not None else 0
        return self.start(ALL_REDUCE, tensor, tensor, tensor.numel(), tensors, reduction=reduction)

    def allreduce_coalesced(self, tensors, opts):
        return self.together(lambda tensor: self.allreduce([tensor], opts), ([tensor] for tensor in tensors))

    def broadcast(self, tensors, opts):
        tensor = one(tensors)
        return self.start(BROADCAST, tensor, tensor, tensor.numel(), tensors, peer=opts.rootRank)

    def reduce(self, tensors, opts):
        tensor = one(tensors)
        return self.start(REDUCE, tensor, tensor, tensor.numel(), tensors, peer=opts.rootRank,
                          reduction=nccl_reduction(opts.reduceOp, tensor))

    def allgather(self, outputs, inputs, opts=None):
        source, targets = one(inputs), one(outputs)
        whole = source.new_empty(source.numel() * self.members)
        return self.start(ALL_GATHER, source, whole, source.numel(), outputs,
                          finish=lambda: spread(whole, targets))

    def _allgather_base(self, output, source, opts=None):
        return self.start(ALL_GATHER, source, output, source.numel(), output)

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return self.together(self._allgather_base, zip(outputs, inputs))

    def reduce_scatter(self, outputs, inputs, opts):
        target = one(outputs)
        return self.start(REDUCE_SCATTER, flat(one(inputs)), target, target.numel(), outputs,
                          reduction=nccl_reduction(opts.reduceOp, target))

    def _reduce_scatter_base(self, target, source, opts):
        return self.start(REDUCE_SCATTER, source, target, target.numel(), target,
                          reduction=nccl_reduction(opts.reduceOp, target))

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts):
        return self.together(lambda *pair: self._reduce_scatter_base(*pair, opts), zip(outputs, inputs))

    def alltoall_base(self, output, source, output_splits, input_splits, opts=None):
        """Splits count rows; none is as many for each rank."""
        def counts(tensor, splits):
            row = tensor.numel() // max(tensor.shape[0], 1)
            return [split * row for split in splits] or [tensor.numel() // self.members] * self.members
        splits = counts(source, input_splits), counts(output, output_splits)
        return self.start(ALL_TO_ALL, source, output, source.numel(), output, splits=splits)

    def alltoall(self, outputs, inputs, opts=None):
        source, whole = flat(inputs), outputs[0].new_empty(sum(tensor.numel() for tensor in outputs))
        splits = [[tensor.numel() for tensor in tensors] for tensors in (inputs, outputs)]
        return self.start(ALL_TO_ALL, source, whole, source.numel(), outputs, splits=splits,
                          finish=lambda: spread(whole, outputs))

    def scatter(self, outputs, inputs, opts):
        if self.rank() != opts.rootRank:
            return self.recv(outputs, opts.rootRank)
        outputs[0].copy_(inputs[0][opts.rootRank])
        return self.together(self.send, [([tensor], peer) for peer, tensor in enumerate(inputs[0]) if peer != self.rank()])

    def send(self, tensors, peer, tag=0):
        tensor = one(tensors)
        return self.start(SEND, tensor, None, tensor.numel(), tensors, peer=peer)

    def recv(self, tensors, peer, tag=0):
        tensor = one(tensors)
        return self.start(RECEIVE, None, tensor, tensor.numel(), tensors, peer=peer)

    def barrier(self, opts=None):
        tensor = torch.zeros(1, dtype=torch.uint8)
        return self.start(ALL_REDUCE, tensor, tensor, 1, [tensor])

    # As PyTorch 2.15 calls them.
    all_gather_single, all_gather_single_coalesced = _allgather_base, allgather_into_tensor_coalesced
    reduce_scatter_single, reduce_scatter_single_coalesced = _reduce_scatter_base, reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    group_name = group_desc = ""

    def setGroupName(self, name):
        self.group_name = name

    def getGroupName(self):
        return self.group_name

    def setGroupDesc(self, text):
        self.group_desc = text

    def getGroupDesc(self):
        return self.group_desc

    def getBackendName(self):
        return "emulated"


def close():
    """Ends all groups, the newest first; afterwards no call may come."""
    while groups:
        groups.pop().close()


dist.Backend.register_backend("emulated", Emulated)
