#include "tools/cli/bench/worker/bench_worker_result.h"

#include <cmath>

namespace slimwire::bench {
namespace {

// What element `index` should be.
double exact(const Delivery& of, size_t count, size_t index) {
    const auto input = [&](size_t rank, size_t at) {
        return static_cast<double>(
            rounded(of.options.type, gaussian(of.options.seed, static_cast<int>(rank), at)));
    };
    const auto mine = static_cast<size_t>(of.rank);
    const auto ranks = static_cast<size_t>(of.ranks);
    size_t at = index;
    switch (of.options.operation) {
        case Operation::kAllGather:
            return input(index / count, index % count);
        case Operation::kAllToAll:
            return input(index / count, mine * count + index % count);
        case Operation::kBroadcast:
            return input(0, index);
        case Operation::kSendRecv:
        case Operation::kPairs:
            return input((mine + ranks - 1) % ranks, index);
        case Operation::kReduceScatter:
            at = mine * count + index;
            break;
        case Operation::kAllReduce:
        case Operation::kReduce:
            break;
    }
    double sum = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
        sum += input(rank, at);
    }
    return sum;
}

}  // namespace

size_t Delivery::input_elems(size_t count) const {
    const bool blocks =
        options.operation == Operation::kReduceScatter || options.operation == Operation::kAllToAll;
    return blocks ? count * static_cast<size_t>(ranks) : count;
}

size_t Delivery::output_elems(size_t count) const {
    const bool blocks =
        options.operation == Operation::kAllGather || options.operation == Operation::kAllToAll;
    return blocks ? count * static_cast<size_t>(ranks) : count;
}

bool Delivery::alike_on_all_ranks() const {
    return options.operation == Operation::kAllReduce ||
           options.operation == Operation::kAllGather || options.operation == Operation::kBroadcast;
}

double Delivery::relative_error(const std::vector<char>& result, size_t count) const {
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < output_elems(count); ++i) {
        const double expected = exact(*this, count, i);
        const double off = static_cast<double>(load(options.type, result.data(), i)) - expected;
        error += off * off;
        norm += expected * expected;
    }
    return norm > 0 ? std::sqrt(error / norm) : 0;
}

}  // namespace slimwire::bench
