#include "tools/cli/bench/worker/bench_worker_options.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "tools/cli/bench/worker/bench_worker_meeting.h"

namespace slimwire::bench {
namespace {

constexpr char kUsage[] =
    "usage: slimwire-bench-worker --op OP --dtype f32|f16|bf16 --bytes N[,N...] --port P\n"
    "       [--rounds N] [--warmup N] [--seed N] [--out FILE]";

constexpr const char* kOperations[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                       "broadcast",  "reduce",         "send_recv",  "pairs"};

}  // namespace

Options parse_options(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string flag = argv[i];
        if (i + 1 == argc) {
            stop(kUsage);
        }
        const std::string value = argv[i + 1];
        if (flag == "--op") {
            const auto* const end = std::end(kOperations);
            const auto* const found = std::find(std::begin(kOperations), end, value);
            if (found == end) {
                stop(kUsage);
            }
            options.operation = static_cast<Operation>(found - std::begin(kOperations));
        } else if (flag == "--dtype" && (value == "f32" || value == "f16" || value == "bf16")) {
            options.type = value == "f32" ? Type::kF32 : value == "f16" ? Type::kF16 : Type::kBf16;
        } else if (flag == "--bytes") {
            for (const char* at = value.c_str(); *at != '\0';) {
                char* end = nullptr;
                options.bytes.push_back(std::strtoull(at, &end, 10));
                if (end == at || (*end != '\0' && *end != ',')) {
                    stop(kUsage);
                }
                at = *end == ',' ? end + 1 : end;
            }
        } else if (flag == "--port") {
            options.port = std::atoi(value.c_str());
        } else if (flag == "--rounds") {
            options.rounds = std::max(1, std::atoi(value.c_str()));
        } else if (flag == "--warmup") {
            options.warmup = std::max(1, std::atoi(value.c_str()));
        } else if (flag == "--seed") {
            options.seed = std::strtoull(value.c_str(), nullptr, 10);
        } else if (flag == "--out") {
            options.out = value;
        } else {
            stop(kUsage);
        }
    }
    if (options.bytes.empty() || options.port <= 0) {
        stop(kUsage);
    }
    return options;
}

}  // namespace slimwire::bench
