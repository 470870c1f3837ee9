// Kernels of blocktopk and rowtopk. Integer values share blocks of 64 across groups and are made by
// a second launch, or by the same thread block where a message of up to 256 KiB has one for each
// chunk.
#include "codecs/sparse/sparse_groups_encode.cuh"

namespace slimwire {
namespace {

struct GroupDecodeArgs {
    DecodeArgs decode;
    SparseWork work;
};

template <class Element>
__global__ void __launch_bounds__(kThreads, kResidentBlocks)
    group_decode_kernel(GroupDecodeArgs args) {
    const DecodeArgs& decode = args.decode;
    const int64_t groups = args.work.full.groups;
    const int64_t warps = thread_total() / kWarpThreads;
    for (int64_t work = thread_index() / kWarpThreads; work < args.work.chunks * groups;
         work += warps) {
        const int64_t chunk = work / groups;
        const int64_t g = work - chunk * groups;
        const SparsePlan& plan = args.work.plan(chunk);
        if (g >= plan.groups) {
            continue;
        }
        const uint8_t* input =
            static_cast<const uint8_t*>(decode.input) + chunk * decode.slot_bytes;
        uint8_t* output =
            static_cast<uint8_t*>(decode.output) + chunk * args.work.chunk_elems * Element::kBytes;
        if (!decode.accumulate) {
            const int64_t left = plan.count - g * plan.group;
            zero_elements<Element>(output, g * plan.group, left < plan.group ? left : plan.group,
                                   lane_number(), kWarpThreads);
            __syncwarp();
        }
        report(decode.status, read_group(plan, input, g, [&](int64_t at, int64_t number) {
                   place<Element>(output, at, decode, get_value<Element>(plan, input, number));
               }));
    }
}

struct GroupSumArgs {
    DecodeReduceArgs reduce;
    SparsePlan plan;
    int64_t tile_elems;  // of shared memory for each warp's sums; 0: they stand in the workspace
};

// Groups up to so many elements are summed in shared memory: 32 KiB a thread block.
constexpr int64_t kMostSharedGroup = 1024;

__global__ void __launch_bounds__(kThreads, kResidentBlocks) group_sum_kernel(GroupSumArgs args) {
    SLIMWIRE_DYNAMIC_SHARED(float, tiles);
    const DecodeReduceArgs& reduce = args.reduce;
    const SparsePlan& plan = args.plan;
    const int64_t element_bytes = reduce.dtype == DType::kFloat32 ? 4 : 2;
    const int64_t warps = thread_total() / kWarpThreads;
    bool good = true;
    for (int64_t g = thread_index() / kWarpThreads; g < plan.groups; g += warps) {
        float* const sum = args.tile_elems > 0
                               ? tiles + threadIdx.x / kWarpThreads * args.tile_elems
                               : static_cast<float*>(reduce.workspace) + g * plan.group;
        good = sum_group(static_cast<const uint8_t*>(reduce.input), reduce.input_stride,
                         reduce.inputs, reduce.input_scale, reduce.sum_limit, plan, g, sum) &&
               good;
        const int64_t begin = g * plan.group;
        const int64_t rest = plan.count - begin;
        const int64_t elems = rest < plan.group ? rest : plan.group;
        for (int64_t i = lane_number() * kPerThread; i < elems; i += kRoundElems) {
            Eight x;
            load_eight<Float32>(reinterpret_cast<const uint8_t*>(sum), i, elems, x);
            scale_and_add(reduce.scale, kInfinityBits, nullptr, i, elems, x);
            deliver(reduce.dtype, static_cast<uint8_t*>(reduce.output) + begin * element_bytes, i,
                    elems, false, x);
        }
        __syncwarp();
    }
    report(reduce.status, good);
}

// Selects and, for integers, quantises: one launch where `small`.
template <class Native>
cudaError_t launch_groups(GroupArgs args, int64_t chunk_bytes, bool sums, cudaStream_t stream) {
    const auto kernel = sums ? group_kernel<Float32, Native> : group_kernel<Native, Native>;
    const SparsePlan& plan = args.work.full;
    const bool integers = plan.format != ValueFormat::kNative;
    const bool small = integers && chunk_bytes <= kOneLaunchBytes;
    args.workspace_bytes = GroupSpace::of(plan).bytes;
    if (args.encode.workspace == nullptr && (sums || args.workspace_bytes > 0)) {
        return cudaErrorInvalidValue;
    }
    args.block_for_chunk = small;
    args.select = true;
    args.quantise = small;
    const int64_t threads = small ? args.work.chunks * kThreads : plan.groups * kWarpThreads;
    const int32_t max_blocks = args.encode.max_blocks;
    const cudaError_t error = launch_threads(kernel, threads, max_blocks, stream, args);
    if (error != cudaSuccess || !integers || small) {
        return error;
    }
    args.select = false;
    args.quantise = true;
    return launch_threads(kernel, threads, max_blocks, stream, args);
}

}  // namespace

template <>
struct SparseKernels<SparseKind::kGroups> {
    static cudaError_t encode(const EncodeArgs& args, cudaStream_t stream) {
        GroupArgs groups = {};
        groups.encode = args;
        groups.work = SparseWork::of(SparseKind::kGroups, args, args.chunk_elems);
        return visit(args.dtype, [&](auto element) {
            return launch_groups<decltype(element)>(
                groups, groups.work.chunk_elems * decltype(element)::kBytes, false, stream);
        });
    }

    static cudaError_t decode(const DecodeArgs& args, cudaStream_t stream) {
        const SparseWork work = SparseWork::of(SparseKind::kGroups, args, args.chunk_elems);
        return visit(args.dtype, [&](auto element) {
            return launch_threads(group_decode_kernel<decltype(element)>,
                                  work.chunks * work.full.groups * kWarpThreads, args.max_blocks,
                                  stream, GroupDecodeArgs{args, work});
        });
    }

    static cudaError_t reduce(const DecodeReduceEncodeArgs& args, cudaStream_t stream) {
        GroupArgs groups = {};
        groups.work = SparseWork::of(SparseKind::kGroups, args, args.count);
        const int64_t staged = GroupSpace::of(groups.work.full).bytes;
        groups.encode = {.input = static_cast<uint8_t*>(args.workspace) + staged,
                         .output = args.output,
                         .residual = args.residual,
                         .scale = args.scale,
                         .count = args.count,
                         .chunk_elems = args.count,
                         .slot_bytes = 0,
                         .params = args.params,
                         .dtype = args.dtype,
                         .workspace = args.workspace,
                         .status = args.status,
                         .max_blocks = args.max_blocks};
        groups.sources = static_cast<const uint8_t*>(args.input);
        groups.input_stride = args.input_stride;
        groups.inputs = args.inputs;
        groups.input_scale = args.input_scale;
        groups.sum_limit = args.sum_limit;
        return visit(args.dtype, [&](auto element) {
            return launch_groups<decltype(element)>(groups, args.count * decltype(element)::kBytes,
                                                    true, stream);
        });
    }

    static cudaError_t sum(const DecodeReduceArgs& args, cudaStream_t stream) {
        GroupSumArgs sums{args,
                          sparse_plan(SparseKind::kGroups, args.params, args.dtype, args.count), 0};
        if (sums.plan.group <= kMostSharedGroup) {
            sums.tile_elems = (sums.plan.group + kPerThread - 1) / kPerThread * kPerThread;
        } else if (args.workspace == nullptr) {
            return cudaErrorInvalidValue;
        }
        unsigned blocks = 0;
        const cudaError_t error =
            blocks_for(sums.plan.groups * kWarpThreads, args.max_blocks, &blocks);
        if (error != cudaSuccess) {
            return error;
        }
        const int64_t shared_bytes =
            kThreads / kWarpThreads * sums.tile_elems * static_cast<int64_t>(sizeof(float));
        return start_kernel(group_sum_kernel, blocks, kThreads, static_cast<size_t>(shared_bytes),
                            stream, sums);
    }
};

template <>
int64_t SparseCuda<SparseKind::kGroups>::workspace_bytes(const CodecParams& params,
                                                         DType dtype,
                                                         int64_t count,
                                                         int64_t chunk_elems) {
    if (count <= 0) {
        return 0;
    }
    const int64_t elems = chunk_elems < count ? chunk_elems : count;
    const SparsePlan plan = sparse_plan(SparseKind::kGroups, params, dtype, elems);
    const int64_t chunks = (count + elems - 1) / elems;
    return chunks * GroupSpace::of(plan).bytes + (chunks == 1 ? GroupSpace::sum_bytes(plan) : 0);
}

template struct Launchers<SparseKernels<SparseKind::kGroups>>;

}  // namespace slimwire
