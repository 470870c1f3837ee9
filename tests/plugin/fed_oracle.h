// Error feedback call after call against slow oracles that know only the codec's encode and decode:
// what arrives has the bits that they say, around a NaN, too. Two ranks, int4.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codecs/float16.h"
#include "tests/plugin/oracles.h"
#include "tests/plugin/several_devices.h"

namespace slimwire::test {

class FedOracle : public TwoDevices {
  protected:
    static constexpr size_t kElems = 5000;  // of an all-reduce, and of a block of a reduce-scatter
    static constexpr size_t kChunk = 2560;  // half of it in whole blocks
    static constexpr size_t kBlock = 64;
    using Inputs = std::vector<Values>;   // of each rank
    using Results = std::vector<Values>;  // of each rank; empty: nothing is said of it

    using TwoDevices::TwoDevices;
    void SetUp() override {
        TwoDevices::SetUp();
        mark();
    }

    // In the sixth step rank 1 has a NaN in the first chunk and block.
    static Values input(int rank, int step, size_t count) {
        Values values(count);
        for (size_t i = 0; i < count; ++i) {
            values[i] = std::sin(0.7f * static_cast<float>(i) + 2.0f * static_cast<float>(rank)) *
                        (i % 7 == 0 ? 3.0f : 0.2f) * (step % 3 == 2 ? 0.1f : 1.0f);
        }
        if (step == 5 && rank == 1) {
            values[100] = NAN;
        }
        return values;
    }
    static Values part(const Values& of, size_t begin, size_t end) {
        return {of.begin() + static_cast<ptrdiff_t>(begin),
                of.begin() + static_cast<ptrdiff_t>(end)};
    }
    static Values block_of(const Values& of, int block) {
        const size_t begin = static_cast<size_t>(block) * kElems;
        return part(of, begin, begin + kElems);
    }
    static bool finite(const Values& values) {
        return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
    }
    // (a + b) * scale, rounded after each.
    static Values sum_of_two(const Values& a, const Values& b, float scale) {
        Values sum(a.size());
        for (size_t i = 0; i < a.size(); ++i) {
            volatile float both = a[i] + b[i];
            sum[i] = both * scale;
        }
        return sum;
    }
    static void add(Values* to, const Values& what) {
        for (size_t i = 0; i < to->size(); ++i) {
            (*to)[i] += what[i];
        }
    }

    // call(rank) with `count` elements of each rank, twelve times; `oracle` makes Results of
    // Inputs.
    template <class Call, class Oracle>
    void expect_oracle(size_t count, const Call& call, Oracle oracle) {
        for (int step = 0; step < 12; ++step) {
            const Inputs inputs = {input(0, step, count), input(1, step, count)};
            for (int rank = 0; rank < kRanks; ++rank) {
                fill(rank, inputs[static_cast<size_t>(rank)]);
            }
            group(call);
            const Results wanted = oracle(inputs);
            EXPECT_EQ(std::isnan(wanted[0][100]), step == 5);
            for (int rank = 0; rank < kRanks; ++rank) {
                const Values& of = wanted[static_cast<size_t>(rank)];
                const Values got = result(rank, of.size());
                for (size_t i = 0; i < of.size(); ++i) {
                    ASSERT_TRUE(std::isnan(of[i])
                                    ? std::isnan(got[i])
                                    : std::memcmp(&got[i], &of[i], sizeof(float)) == 0)
                        << "step " << step << " rank " << rank << " element " << i << ": " << got[i]
                        << " instead of " << of[i];
                }
            }
            mark();
        }
    }
    // `message`: what makes of both ranks' values, and what the sum is multiplied by, the result of
    // both.
    template <class Message>
    void expect_all_reduce(Message message, size_t count, ncclRedOp_t op, float scale) {
        expect_oracle(
            count, [&](int rank) { return sum_of(rank, count, op); },
            [&](const Inputs& inputs) -> Results {
                const Values both = message.step(inputs[0], inputs[1], scale);
                return {both, both};
            });
    }
    // What arrives of `values` given at one end of a link, sent(rank, block, values), is summed.
    template <class Send>
    void expect_reduce_scatter(ncclRedOp_t op, const Send& sent) {
        expect_oracle(
            2 * kElems,
            [&](int rank) {
                return ncclReduceScatter(send_[rank], recv_[rank], kElems, ncclFloat32, op,
                                         comms_[rank], nullptr);
            },
            [&](const Inputs& inputs) {
                Results results;
                for (int block = 0; block < kRanks; ++block) {
                    results.push_back(sum_of_two(sent(0, block, block_of(inputs[0], block)),
                                                 sent(1, block, block_of(inputs[1], block)), 1.0f));
                }
                return results;
            });
    }

    // Elements of 16 bits whose estimates are not: the average that stays becomes exact. Of
    // `count` given by each rank it gets `got`, from where its block begins.
    template <class Call>
    void expect_halves_become_exact(size_t count, size_t got, const Call& call) {
        std::vector<uint16_t> halves(count);
        for (size_t i = 0; i < count; ++i) {
            halves[i] = float_to_bfloat16(0.37f * std::sin(static_cast<float>(i)));
        }
        double error = 0;
        for (int step = 0; step < 25; ++step) {
            for (int rank = 0; rank < kRanks; ++rank) {
                upload(rank, send_[rank], halves);
            }
            group(call);
            error = 0;
            for (int rank = 0; rank < kRanks; ++rank) {
                const auto arrived = download<uint16_t>(rank, recv_[rank], got);
                const size_t begin = got < count ? static_cast<size_t>(rank) * got : 0;
                for (size_t i = 0; i < got; ++i) {
                    error = std::max<double>(error, std::abs(bfloat16_to_float(arrived[i]) -
                                                             bfloat16_to_float(halves[begin + i])));
                }
            }
            EXPECT_TRUE(step > 0 || error > 0.01);
            mark();
        }
        EXPECT_EQ(error, 0.0) << "both ranks' average is an element of the type";
    }
};

}  // namespace slimwire::test
