// What a player makes of its results: margins, values, equal bits when repeated and on all ranks.
#include <algorithm>
#include <cstring>

#include "tests/e2e/conformance/oracle.h"
#include "tests/e2e/conformance/player.h"
#include "tests/support/nccl_program.h"

namespace conformance {
namespace {

uint64_t digest_bytes(uint64_t digest, const char* bytes, size_t count) {
    for (; count >= 8; bytes += 8, count -= 8) {
        uint64_t word;
        std::memcpy(&word, bytes, 8);
        digest = (digest ^ word) * 0x9e3779b97f4a7c15ull;
        digest ^= digest >> 32;
    }
    for (; count > 0; ++bytes, --count) {
        digest = (digest ^ static_cast<uint8_t>(*bytes)) * 0x9e3779b97f4a7c15ull;
    }
    return digest ^ digest >> 29;
}

bool poisoned(const char* bytes, size_t count) {
    return std::all_of(bytes, bytes + count,
                       [](char byte) { return static_cast<uint8_t>(byte) == kResultPoison; });
}

}  // namespace

void Player::fail(const Batch& batch, size_t index, uint64_t number, const std::string& what) {
    std::fprintf(stderr, "rank %d, batch %llu, call %zu of %zu (%s%s): %s\n  %s\n",
                 members_[0].rank, static_cast<unsigned long long>(number), index,
                 batch.calls.size(),
                 batch.grouping == Grouping::kOneByOne ? "one by one"
                 : batch.grouping == Grouping::kGroup  ? "group"
                                                       : "nested groups",
                 batch.repeat ? ", repeated" : "", batch.calls[index].text().c_str(), what.c_str());
    std::fflush(nullptr);
    std::_Exit(5);
}

void Player::check(const Batch& batch, uint64_t number) {
    check(batch, number, [&](size_t index, const Member& member, const char* output) {
        const Call& call = batch.calls[index];
        return Oracle(call, rules_.of(call, member.ranks), member.ranks, member.rank).check(output);
    });
}

void Player::check(const Batch& batch, uint64_t number, const Judge& judge) {
    before_.clear();
    for (const Placed& placed : placed_) {
        before_.emplace_back(host_results_.data() + placed.output,
                             host_results_.data() + placed.output + placed.output_bytes);
    }
    for (size_t i = 0; i < batch.calls.size(); ++i) {
        const Call& call = batch.calls[i];
        const Placed& placed = placed_[i];
        const Member& member = member_of(call);
        const char* region = host_results_.data() + placed.region;
        const char* output = host_results_.data() + placed.output;
        // What is no part of input or result stays as it was.
        const size_t first = std::min(placed.output, call.in_place ? placed.input : placed.output);
        const size_t last = std::max(placed.output + placed.output_bytes,
                                     call.in_place ? placed.input + placed.input_bytes : 0);
        if (!poisoned(region, first - placed.region) ||
            !poisoned(host_results_.data() + last, placed.region + placed.region_bytes - last)) {
            fail(batch, i, number, "memory beside the result was written");
        }
        if (!placed.result_here) {
            // In place, the input stands inside the unused output.
            const char* input = host_results_.data() + placed.input;
            const bool clean =
                call.in_place
                    ? poisoned(output, static_cast<size_t>(input - output)) &&
                          poisoned(input + placed.input_bytes,
                                   static_cast<size_t>(output + placed.output_bytes - input) -
                                       placed.input_bytes)
                    : poisoned(output, placed.output_bytes);
            if (!clean) {
                fail(batch, i, number, "a result of another rank was written here");
            }
            continue;
        }
        if (const std::string wrong = judge(i, member, output); !wrong.empty()) {
            fail(batch, i, number, wrong);
        }
        own_digest_ = digest_bytes(own_digest_, output, placed.output_bytes);
        if (call.equal_on_all_ranks()) {
            Member& counted = members_[static_cast<int>(call.communicator)];
            counted.digest = digest_bytes(counted.digest, output, placed.output_bytes);
        }
    }
}

void Player::compare_with_before(const Batch& batch, uint64_t number) {
    for (size_t i = 0; i < placed_.size(); ++i) {
        const Call& call = batch.calls[i];
        const Member& member = member_of(call);
        const Codec& codec = rules_.of(call, member.ranks);
        const bool compressible = Oracle(call, codec, member.ranks, member.rank).compressible();
        const bool draws = compressible ? codec.stochastic : !batch.all_exact;
        if (placed_[i].result_here && !draws && !before_[i].empty() &&
            std::memcmp(before_[i].data(), host_results_.data() + placed_[i].output,
                        before_[i].size()) != 0) {
            fail(batch, i, number, "the same call, grouped in another way, gave other bits");
        }
    }
}

void Player::begin_digest(int member, uint64_t number) {
    const uint64_t mine[2] = {members_[member].digest, number};
    CHECK_CUDA(cudaMemcpy(inputs_, mine, sizeof(mine), cudaMemcpyDefault));
}

void Player::gather_digests(int member) {
    CHECK_NCCL(ncclAllGather(inputs_, results_, 2, ncclUint64, members_[member].comm, nullptr));
}

void Player::check_digests(int which, uint64_t number) {
    const Member& member = members_[which];
    const auto ranks = static_cast<size_t>(member.ranks);
    std::vector<uint64_t> all(2 * ranks);
    CHECK_CUDA(cudaMemcpy(all.data(), results_, all.size() * sizeof(uint64_t), cudaMemcpyDefault));
    for (size_t rank = 0; rank < ranks; ++rank) {
        EXPECT_THAT(all[2 * rank] == member.digest && all[2 * rank + 1] == number,
                    "ranks %d and %zu have different results before batch %llu", member.rank, rank,
                    static_cast<unsigned long long>(number));
    }
}

void Player::compare_digests(uint64_t number) {
    for (const int member : {0, 1}) {
        begin_digest(member, number);
        gather_digests(member);
        check_digests(member, number);
    }
}

}  // namespace conformance
