#include "tests/fuzz/operations.h"

#include "codecs/base/isa.h"
#include "tests/fuzz/reader.h"

namespace slimwire::fuzz {
namespace {

constexpr uint8_t kPattern = 0xA5;

const std::vector<Isa>& all_isas() {
    static const std::vector<Isa> isas = [] {
        std::vector<Isa> found;
        for (int i = 0; i < kIsaCount; ++i) {
            if (isa_supported(static_cast<Isa>(i))) {
                found.push_back(static_cast<Isa>(i));
            }
        }
        return found;
    }();
    return isas;
}

// run(isa) on every instruction set; the first result, with which all must agree.
template <class Run, class Equal>
auto on_all_isas(const Subject& subject, const char* what, Run run, Equal equal) {
    const std::vector<Isa>& isas = all_isas();
    (void)force_isa(isas[0]);
    auto first = run();
    for (size_t i = 1; i < isas.size(); ++i) {
        (void)force_isa(isas[i]);
        if (!equal(first, run())) {
            finding(subject.to_string() + ": " + what + " on " + isa_name(isas[i]) +
                    " differs from " + isa_name(isas[0]));
        }
    }
    return first;
}

bool same_encoding(const Encoding& a, const Encoding& b) {
    return a.slots == b.slots && a.status == b.status && a.residual.size() == b.residual.size() &&
           (a.residual.empty() || std::memcmp(a.residual.data(), b.residual.data(),
                                              a.residual.size() * sizeof(float)) == 0);
}

}  // namespace

std::string Subject::to_string() const {
    return spec.to_string() + " " + dtype_name(dtype) + ", " + std::to_string(count) +
           " elements in chunks of " + std::to_string(chunk_elems) + ", scale " +
           std::to_string(feed.scale) + (feed.has_factor ? ", scale_ptr" : "") +
           (feed.has_threshold ? ", threshold_ptr " + std::to_string(feed.threshold) : "");
}

Encoding encode(const Subject& subject, const uint8_t* input, const std::vector<float>& residual) {
    const auto run = [&] {
        const Exact source(input, subject.bytes(), subject.misalignment);
        // Exactly sized as well: vector's capacity is that of its copy.
        Encoding result{Exact(kPattern, subject.chunks() * subject.slot()), residual, 0};
        subject.spec.codec->host.encode(
            {.input = source.data(),
             .output = result.slots.data(),
             .residual = result.residual.empty() ? nullptr : result.residual.data(),
             .scale_ptr = subject.feed.has_factor ? &subject.feed.factor : nullptr,
             .scale = subject.feed.scale,
             .count = subject.count,
             .chunk_elems = subject.chunk_elems,
             .slot_bytes = subject.slot(),
             .params = subject.spec.params,
             .dtype = subject.dtype,
             .random = subject.feed.random,
             .status = &result.status,
             .threshold_ptr = subject.feed.has_threshold ? &subject.feed.threshold : nullptr});
        return result;
    };
    return on_all_isas(subject, "encode", run, same_encoding);
}

Decoding decode(const Subject& subject, const uint8_t* slots, const uint8_t* old, bool accumulate) {
    const auto run = [&] {
        const Exact source(slots, subject.chunks() * subject.slot());
        Decoding result{Exact(old, subject.bytes(), subject.misalignment), 0};
        subject.spec.codec->host.decode({.input = source.data(),
                                         .output = result.output.data(),
                                         .count = subject.count,
                                         .chunk_elems = subject.chunk_elems,
                                         .slot_bytes = subject.slot(),
                                         .params = subject.spec.params,
                                         .dtype = subject.dtype,
                                         .accumulate = accumulate,
                                         .status = &result.status});
        return result;
    };
    return on_all_isas(subject, accumulate ? "decode_accumulate" : "decode", run,
                       [](const Decoding& a, const Decoding& b) {
                           return a.output == b.output && a.status == b.status;
                       });
}

Encoding reduce(const Subject& subject,
                const uint8_t* sources,
                int32_t inputs,
                const std::vector<float>& residual) {
    const auto run = [&] {
        const Exact source(sources, inputs * subject.slot());
        Encoding result{Exact(kPattern, subject.slot()), residual, 0};
        subject.spec.codec->host.decode_reduce_encode(
            {.input = source.data(),
             .output = result.slots.data(),
             .residual = result.residual.empty() ? nullptr : result.residual.data(),
             .input_stride = subject.slot(),
             .count = subject.elems(0),
             .inputs = inputs,
             .scale = 1.0f / static_cast<float>(inputs),
             .params = subject.spec.params,
             .dtype = subject.dtype,
             .random = {.seed = 7, .tensor = 1, .rank = 2, .step = 3},
             .status = &result.status});
        return result;
    };
    return on_all_isas(subject, "decode_reduce_encode", run, same_encoding);
}

Decoding sum(const Subject& subject, const uint8_t* sources, int32_t inputs) {
    const int64_t bytes = subject.elems(0) * int64_t(dtype_bytes(subject.dtype));
    const auto run = [&] {
        const Exact source(sources, inputs * subject.slot());
        Decoding result{Exact(kPattern, bytes, subject.misalignment), 0};
        subject.spec.codec->host.decode_reduce({.input = source.data(),
                                                .output = result.output.data(),
                                                .input_stride = subject.slot(),
                                                .count = subject.elems(0),
                                                .inputs = inputs,
                                                .scale = 1.0f / static_cast<float>(inputs),
                                                .params = subject.spec.params,
                                                .dtype = subject.dtype,
                                                .status = &result.status});
        return result;
    };
    return on_all_isas(subject, "decode_reduce", run, [](const Decoding& a, const Decoding& b) {
        return a.output == b.output && a.status == b.status;
    });
}

Result<int64_t> check(const Subject& subject, int64_t elems, const uint8_t* bytes, int64_t size) {
    const Exact copy(bytes, size);
    return check_encoding(subject.spec, subject.dtype, elems, copy.data(), copy.size());
}

}  // namespace slimwire::fuzz
