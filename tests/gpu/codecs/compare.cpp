#include "tests/gpu/codecs/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>

#include "codecs/float16.h"

namespace slimwire::gpu {
namespace {

using Bytes = std::vector<uint8_t>;
constexpr uint8_t kPattern = 0xA5;

void put_element(uint8_t* to, DType dtype, float value) {
    if (dtype == DType::kFloat32) {
        std::memcpy(to, &value, sizeof(value));
        return;
    }
    const uint16_t half =
        dtype == DType::kFloat16 ? float_to_float16(value) : float_to_bfloat16(value);
    std::memcpy(to, &half, sizeof(half));
}

Bytes make_input(const Situation& situation, std::mt19937_64& random) {
    const auto element_bytes = static_cast<int64_t>(dtype_bytes(situation.dtype));
    Bytes bytes(static_cast<size_t>((situation.count + situation.misalignment) * element_bytes));
    const double magnitude = std::exp2(static_cast<double>(random() % 40) - 20);
    std::normal_distribution<float> normal(0.0f, static_cast<float>(magnitude));
    // Gaussian numbers are slow to draw, so a table of encoded ones is copied in pieces from random
    // starts.
    constexpr int64_t kTable = 1 << 16;
    Bytes table(static_cast<size_t>(kTable * element_bytes));
    for (int64_t i = 0; i < kTable; ++i) {
        put_element(table.data() + i * element_bytes, situation.dtype, normal(random));
    }
    uint8_t* const begin = bytes.data() + situation.misalignment * element_bytes;
    for (int64_t i = 0; i < situation.count;) {
        const auto from = static_cast<int64_t>(random() % (kTable - 1024));
        const int64_t length = std::min(
            {situation.count - i, kTable - from, 1 + static_cast<int64_t>(random() % 9000)});
        if (random() % 16 == 0) {
            std::memset(begin + i * element_bytes, 0, static_cast<size_t>(length * element_bytes));
        } else {
            std::memcpy(begin + i * element_bytes, table.data() + from * element_bytes,
                        static_cast<size_t>(length * element_bytes));
        }
        i += length;
    }
    for (int64_t i = 0; situation.hostile && i < situation.count; i += 1 + random() % 500) {
        uint8_t* to = begin + i * element_bytes;
        const uint64_t draw = random();
        const float specials[] = {INFINITY, -INFINITY, NAN, -NAN, 1e-41f, 3.4e38f, 65519.9f, -0.0f};
        if (draw % 16 < 8) {
            put_element(to, situation.dtype, specials[draw % 8]);
        } else {
            std::memcpy(to, &draw, static_cast<size_t>(element_bytes));
        }
    }
    return bytes;
}

Bytes from_device(const DeviceBuffer& buffer) {
    Bytes bytes(buffer.size());
    check(cudaMemcpy(bytes.data(), buffer.data(), buffer.size(), cudaMemcpyDeviceToHost), "copy");
    return bytes;
}

// A copy from pageable memory may return before it has arrived, and the streams here do not wait
// for the default one.
void to_device(const DeviceBuffer& buffer, const void* from, size_t bytes) {
    check(cudaMemcpy(buffer.data(), from, bytes, cudaMemcpyHostToDevice), "copy");
    check(cudaStreamSynchronize(nullptr), "copy");
}

void expect_equal(const Bytes& host,
                  const Bytes& device,
                  const CodecSpec& spec,
                  const Situation& situation,
                  const char* what,
                  std::vector<std::string>* failures) {
    if (host == device) {
        return;
    }
    const auto differs = std::mismatch(host.begin(), host.end(), device.begin());
    failures->push_back(spec.to_string() + " " + situation.to_string() + ": " + what +
                        " differs at byte " + std::to_string(differs.first - host.begin()) +
                        ": host " + std::to_string(*differs.first) + ", device " +
                        std::to_string(*differs.second));
}

// Enqueues on a stream, directly or through a captured graph, and waits.
void run(bool graph, const std::function<cudaError_t(cudaStream_t)>& enqueue, const char* what) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    if (graph) {
        cudaGraph_t captured = nullptr;
        cudaGraphExec_t executable = nullptr;
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
        check(enqueue(stream), what);
        check(cudaStreamEndCapture(stream, &captured), "end capture");
        check(cudaGraphInstantiate(&executable, captured, 0), "instantiate");
        check(cudaGraphLaunch(executable, stream), "graph launch");
        check(cudaStreamSynchronize(stream), what);
        check(cudaGraphExecDestroy(executable), "destroy");
        check(cudaGraphDestroy(captured), "destroy");
    } else {
        check(enqueue(stream), what);
        check(cudaStreamSynchronize(stream), what);
    }
    check(cudaStreamDestroy(stream), "destroy");
}

}  // namespace

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        std::exit(1);
    }
}

void DeviceBuffer::fill(const std::vector<uint8_t>& bytes) const {
    to_device(*this, bytes.data(), std::min(bytes.size(), bytes_));
}

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(std::max<size_t>(bytes, 16)) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes_), "cudaMalloc");
    check(cudaMemset(data_, kPattern, bytes_), "cudaMemset");
    check(cudaStreamSynchronize(nullptr), "cudaMemset");
}

DeviceBuffer::~DeviceBuffer() {
    (void)cudaFree(data_);
}

std::string Situation::to_string() const {
    return std::string(dtype_name(dtype)) + " count " + std::to_string(count) + " chunk " +
           std::to_string(chunk_elems) + " misaligned " + std::to_string(misalignment) +
           " blocks " + std::to_string(max_blocks) + " random " + std::to_string(random.seed) +
           "/" + std::to_string(random.tensor) + "/" + std::to_string(random.rank) + "/" +
           std::to_string(random.step) + (residual ? " residual" : "") +
           (scale_ptr ? " scale_ptr" : "") + (hostile ? " hostile" : "") + (graph ? " graph" : "") +
           " inputs " + std::to_string(inputs);
}

std::vector<uint8_t> gaussian_bytes(DType dtype, int64_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    Situation situation{};
    situation.dtype = dtype;
    situation.count = count;
    return make_input(situation, random);
}

Situation random_situation(const CodecSpec& spec, int64_t most_elems, std::mt19937_64& random) {
    // Casts take 16-bit floats too, although a policy does not offer that.
    constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBfloat16};
    std::uniform_real_distribution<double> log_count(0.0,
                                                     std::log2(static_cast<double>(most_elems)));
    Situation situation{};
    situation.dtype = kTypes[random() % std::size(kTypes)];
    situation.count = static_cast<int64_t>(std::exp2(log_count(random)));
    const int64_t granule = spec.granule(situation.dtype);
    if (random() % 4 == 0) {  // beside the end of a chunk
        const auto edge = static_cast<int64_t>(1 + random() % 3) * granule;
        situation.count = std::min(edge - 1 + static_cast<int64_t>(random() % 3), most_elems);
    }
    const int64_t pieces = 1 + static_cast<int64_t>(random() % 5);
    situation.chunk_elems =
        pieces == 1 ? situation.count : (situation.count / pieces + granule) / granule * granule;
    situation.misalignment = random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 8);
    situation.residual = random() % 2 == 0;
    situation.scale_ptr = random() % 4 == 0;
    situation.hostile = random() % 2 == 0;
    situation.graph = random() % 8 == 0;
    situation.inputs = 1 + static_cast<int32_t>(random() % 8);
    situation.max_blocks = random() % 4 == 0 ? 1 + static_cast<int32_t>(random() % 40) : 0;
    situation.random = {.seed = static_cast<uint32_t>(random()),
                        .tensor = static_cast<uint32_t>(random()),
                        .rank = static_cast<uint32_t>(random() % 64),
                        .step = static_cast<uint32_t>(random() % 1000),
                        .step_ptr = nullptr};
    return situation;
}

namespace {

// One situation: what both sides work on, and the comparisons.
class Comparison {
  public:
    Comparison(const CodecSpec& spec,
               const Situation& situation,
               std::mt19937_64& random,
               std::vector<std::string>* failures)
        : spec_(spec),
          situation_(situation),
          random_(random),
          failures_(failures),
          element_bytes_(static_cast<int64_t>(dtype_bytes(situation.dtype))),
          offset_(situation.misalignment * element_bytes_),
          chunks_((situation.count + situation.chunk_elems - 1) / situation.chunk_elems),
          slot_((spec.encoded_bytes(situation.dtype, situation.chunk_elems) + 15) / 16 * 16 + 16),
          input_(make_input(situation, random)),
          residual_(static_cast<size_t>(situation.count), 0.125f),
          encoded_(static_cast<size_t>(chunks_ * slot_), kPattern),
          device_user_(input_.size()),
          device_encoded_(encoded_.size()),
          device_residual_(residual_.size() * sizeof(float)),
          device_workspace_(static_cast<size_t>(std::max(
              {int64_t{1},
               spec.workspace_bytes(situation.dtype, situation.count, situation.chunk_elems),
               spec.workspace_bytes(situation.dtype, reduced_elems(), reduced_elems())}))),
          device_words_(64) {}

    void encode() {
        Bytes factor(16);
        put_element(factor.data(), situation_.dtype, 0.75f);
        encoded_step_ = static_cast<uint32_t>(random_() % 1000);
        uint32_t status = 0;
        EncodeArgs args{.input = input_.data() + offset_,
                        .output = encoded_.data(),
                        .residual = situation_.residual ? residual_.data() : nullptr,
                        .scale_ptr = situation_.scale_ptr ? factor.data() : nullptr,
                        .scale = 1.5f,
                        .count = situation_.count,
                        .chunk_elems = situation_.chunk_elems,
                        .slot_bytes = slot_,
                        .params = spec_.params,
                        .dtype = situation_.dtype,
                        .random = situation_.random,
                        .status = &status,
                        .max_blocks = 0};
        args.random.step_ptr = &encoded_step_;
        to_device(device_residual_, residual_.data(), residual_.size() * sizeof(float));
        spec_.codec->host.encode(args);

        to_device(device_user_, input_.data(), input_.size());
        put_words(0, encoded_step_, factor);
        args.input = device_user_.data() + offset_;
        args.output = device_encoded_.data();
        args.residual = device_residual();
        args.scale_ptr = situation_.scale_ptr ? device_words_.data() + 16 : nullptr;
        args.random.step_ptr = word(1);
        enqueue(args, spec_.codec->cuda.encode, "encode");
        expect_equal(encoded_, from_device(device_encoded_), spec_, situation_, "encoding",
                     failures_);
        expect_residual("residual");
        expect_status(status, "encode");
    }

    void decode(bool accumulate, bool damaged) {
        Bytes bytes = encoded_;
        // Every other time where headers and tables are.
        const size_t reached = random_() % 2 == 0 ? bytes.size() : std::min<size_t>(slot_, 200);
        for (size_t i = random_() % 16; damaged && i < reached;
             i += 1 + random_() % (reached / 3 + 1)) {
            bytes[i] = static_cast<uint8_t>(random_());
        }
        Bytes decoded = input_;
        uint32_t status = 0;
        DecodeArgs args{.input = bytes.data(),
                        .output = decoded.data() + offset_,
                        .count = situation_.count,
                        .chunk_elems = situation_.chunk_elems,
                        .slot_bytes = slot_,
                        .params = spec_.params,
                        .dtype = situation_.dtype,
                        .accumulate = accumulate,
                        .scale = spec_.sums() ? 1.0f : 0.3f,
                        .sum_limit = sum_limit(),
                        .status = &status,
                        .max_blocks = 0};
        spec_.codec->host.decode(args);
        to_device(device_user_, input_.data(), input_.size());
        to_device(device_encoded_, bytes.data(), bytes.size());
        put_words(0, 0, {});
        args.input = device_encoded_.data();
        args.output = device_user_.data() + offset_;
        const char* what = damaged      ? "decode of damaged bytes"
                           : accumulate ? "decode_accumulate"
                                        : "decode";
        enqueue(args, spec_.codec->cuda.decode, what);
        decoded.resize(device_user_.size(), kPattern);
        expect_equal(decoded, from_device(device_user_), spec_, situation_, what, failures_);
        expect_status(status, what);
    }

    // The sources of reduce() as elements.
    int64_t sum(const Bytes& sources, const DeviceBuffer& device_sources, int64_t elems) {
        Bytes expected = input_;
        uint32_t status = 0;
        // What a sparsifier did not send is scale * 0, also where that is not +0.
        const bool sparse = spec_.traits(situation_.dtype).poison_elems == 0;
        const float scale = situation_.inputs % 4 == 2 ? -2.5f
                            : sparse && situation_.inputs == 1
                                ? std::numeric_limits<float>::infinity()
                                : 1.0f / static_cast<float>(situation_.inputs);
        DecodeReduceArgs args{.input = sources.data(),
                              .output = expected.data() + offset_,
                              .input_stride = slot_,
                              .count = elems,
                              .inputs = situation_.inputs,
                              .scale = scale,
                              .params = spec_.params,
                              .dtype = situation_.dtype,
                              .input_scale = 0.7f,
                              .sum_limit = sum_limit(),
                              .status = &status,
                              .max_blocks = 0};
        spec_.codec->host.decode_reduce(args);
        to_device(device_user_, input_.data(), input_.size());
        put_words(0, 0, {});
        args.input = device_sources.data();
        args.output = device_user_.data() + offset_;
        enqueue(args, spec_.codec->cuda.decode_reduce, "decode_reduce");
        expected.resize(device_user_.size(), kPattern);
        expect_equal(expected, from_device(device_user_), spec_, situation_, "summed elements",
                     failures_);
        expect_status(status, "decode_reduce");
        return elems * situation_.inputs;
    }

    // The sources are the first chunk and its opposite by turns; with hostile data the first has
    // random bytes.
    int64_t reduce() {
        const int64_t elems = reduced_elems();
        Bytes opposite(static_cast<size_t>(slot_), kPattern);
        EncodeArgs args_of_opposite{.input = input_.data() + offset_,
                                    .output = opposite.data(),
                                    .scale = -0.7f,
                                    .count = elems,
                                    .chunk_elems = situation_.chunk_elems,
                                    .slot_bytes = slot_,
                                    .params = spec_.params,
                                    .dtype = situation_.dtype,
                                    .random = situation_.random};
        args_of_opposite.random.step_ptr = &encoded_step_;
        spec_.codec->host.encode(args_of_opposite);
        Bytes sources;
        for (int32_t i = 0; i < situation_.inputs; ++i) {
            const Bytes& from = i % 2 == 0 ? encoded_ : opposite;
            sources.insert(sources.end(), from.begin(), from.begin() + slot_);
        }
        for (int64_t i = 0; situation_.hostile && i < slot_; i += 7) {
            sources[static_cast<size_t>(i)] = static_cast<uint8_t>(random_());
        }
        const DeviceBuffer device_sources(sources.size());
        const DeviceBuffer device_reduced(static_cast<size_t>(slot_));
        to_device(device_sources, sources.data(), sources.size());
        to_device(device_residual_, residual_.data(), residual_.size() * sizeof(float));
        Bytes reduced(device_reduced.size(), kPattern);
        uint32_t status = 0;
        const uint32_t step = 7;
        DecodeReduceEncodeArgs args{.input = sources.data(),
                                    .output = reduced.data(),
                                    .residual = situation_.residual ? residual_.data() : nullptr,
                                    .input_stride = slot_,
                                    .count = elems,
                                    .inputs = situation_.inputs,
                                    .scale = 1.0f / static_cast<float>(situation_.inputs),
                                    .params = spec_.params,
                                    .dtype = situation_.dtype,
                                    .input_scale = situation_.residual ? 0.3f : 1.0f,
                                    .sum_limit = sum_limit(),
                                    .random = situation_.random,
                                    .status = &status,
                                    .max_blocks = 0};
        args.random.step_ptr = &step;
        spec_.codec->host.decode_reduce_encode(args);
        put_words(0, step, {});
        args.input = device_sources.data();
        args.output = device_reduced.data();
        args.residual = device_residual();
        args.random.step_ptr = word(1);
        enqueue(args, spec_.codec->cuda.decode_reduce_encode, "decode_reduce_encode");
        expect_equal(reduced, from_device(device_reduced), spec_, situation_, "reduced encoding",
                     failures_);
        expect_residual("reduced residual");
        expect_status(status, "decode_reduce_encode");
        return elems * situation_.inputs + sum(sources, device_sources, elems);
    }

  private:
    [[nodiscard]] int64_t reduced_elems() const {
        return std::min(situation_.count, situation_.chunk_elems);
    }
    [[nodiscard]] SumLimit sum_limit() const {
        return {situation_.hostile ? 2.0f : kNoSumLimit, situation_.residual ? 1.5f : kNoSumLimit};
    }
    [[nodiscard]] float* device_residual() const {
        return situation_.residual ? reinterpret_cast<float*>(device_residual_.data()) : nullptr;
    }
    // Words of device memory: 0 the status, 1 the step; from byte 16 the factor.
    [[nodiscard]] uint32_t* word(int index) const {
        return reinterpret_cast<uint32_t*>(device_words_.data()) + index;
    }
    void put_words(uint32_t status, uint32_t step, const Bytes& factor) {
        Bytes bytes(device_words_.size());
        std::memcpy(bytes.data(), &status, 4);
        std::memcpy(bytes.data() + 4, &step, 4);
        std::copy(factor.begin(), factor.end(), bytes.begin() + 16);
        to_device(device_words_, bytes.data(), bytes.size());
    }

    template <class Args>
    void enqueue(Args& args, cudaError_t (*kernel)(const Args&, cudaStream_t), const char* what) {
        Bytes garbage(device_workspace_.size());
        for (size_t i = 0; i + 8 <= garbage.size(); i += 8) {
            const uint64_t word = random_();
            std::memcpy(garbage.data() + i, &word, 8);
        }
        to_device(device_workspace_, garbage.data(), garbage.size());
        args.workspace = device_workspace_.data();
        args.status = word(0);
        args.max_blocks = situation_.max_blocks;
        run(
            situation_.graph, [&](cudaStream_t stream) { return kernel(args, stream); }, what);
    }

    void expect_residual(const char* what) {
        Bytes expected(device_residual_.size(), kPattern);
        std::memcpy(expected.data(), residual_.data(), residual_.size() * sizeof(float));
        expect_equal(expected, from_device(device_residual_), spec_, situation_, what, failures_);
    }
    void expect_status(uint32_t status, const char* what) {
        const Bytes words = from_device(device_words_);
        uint32_t found = 0;
        std::memcpy(&found, words.data(), 4);
        if (found != status) {
            failures_->push_back(spec_.to_string() + " " + situation_.to_string() + ": " + what +
                                 " reports " + std::to_string(found) + ", the host " +
                                 std::to_string(status));
        }
    }

    const CodecSpec& spec_;
    const Situation& situation_;
    std::mt19937_64& random_;
    std::vector<std::string>* failures_;
    int64_t element_bytes_, offset_, chunks_, slot_;
    uint32_t encoded_step_ = 0;
    Bytes input_;
    std::vector<float> residual_;
    Bytes encoded_;
    DeviceBuffer device_user_, device_encoded_, device_residual_, device_workspace_, device_words_;
};

}  // namespace

int64_t compare(const CodecSpec& spec,
                const Situation& situation,
                std::mt19937_64& random,
                std::vector<std::string>* failures) {
    Comparison comparison(spec, situation, random, failures);
    comparison.encode();
    comparison.decode(false, false);
    comparison.decode(true, false);
    comparison.decode(false, true);
    const int64_t reduced = spec.reduces() ? comparison.reduce() : 0;
    return 4 * situation.count + reduced;
}

}  // namespace slimwire::gpu
