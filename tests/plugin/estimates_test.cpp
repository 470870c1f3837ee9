// EF21: the result is the estimate that all ranks share, and with it errors of a gradient that
// stays the same die out. One process, two emulated devices, a policy of the test's own.
#include "tests/plugin/fed_oracle.h"

namespace slimwire::test {
namespace {

constexpr size_t kGathered = 7000;  // elements of a sum by gather

class Estimates : public FedOracle {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n"
            "[[rule]]\nname = \"sparse\"\nmatch = { op = \"allreduce\", bytes = \"..8KiB\" }\n"
            "codec = \"topk:fraction=0.1\"\nerror_feedback = \"ef21\"\n"
            "[[rule]]\nname = \"gathered\"\nmatch = { op = \"allreduce\", bytes = \"24KiB..\" }\n"
            "codec = \"int4\"\nalgorithm = \"gather\"\nerror_feedback = \"ef21\"\n"
            "[[rule]]\nname = \"dense\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"int4\"\nerror_feedback = \"ef21\"\n");
    }
    Estimates() : FedOracle(kGathered) {}

    static void begin_anew(std::initializer_list<Values*> states) {
        for (Values* state : states) {
            std::fill(state->begin(), state->end(), 0.0f);
        }
    }
    // What a rank sends of x, whose estimate takes it up.
    static Values sent_of(const Values& x, float scale, Values* estimate) {
        Values difference(x.size());
        for (size_t i = 0; i < x.size(); ++i) {
            volatile float scaled = x[i] * scale;
            difference[i] = scaled - (*estimate)[i];
        }
        const Values sent = coded(difference);
        add(estimate, sent);
        return sent;
    }
    // One rank's chunk of the message, as all ranks know it.
    struct Chunk {
        Values own[2], owed, shared;

        explicit Chunk(size_t count)
            : own{Values(count), Values(count)}, owed(count), shared(count) {}

        Values step(const Values& first, const Values& second, float scale) {
            Values sum = sum_of_two(sent_of(first, 1, &own[0]), sent_of(second, 1, &own[1]), scale);
            add(&sum, owed);
            const Values sent = coded(sum);
            for (size_t begin = 0; begin < sum.size(); begin += kBlock) {
                const size_t end = std::min(begin + kBlock, sum.size());
                for (size_t i = begin; finite(part(sum, begin, end)) && i < end; ++i) {
                    owed[i] = sum[i] - sent[i];
                }
            }
            add(&shared, sent);
            const Values result = shared;
            if (!finite(result)) {
                begin_anew({&own[0], &own[1], &owed, &shared});
            }
            return result;
        }
    };
    // A message whose sums are encoded, in a chunk a rank.
    struct TwoChunks {
        Chunk left{kChunk}, right{kElems - kChunk};

        Values step(const Values& first, const Values& second, float scale) {
            Values all = left.step(part(first, 0, kChunk), part(second, 0, kChunk), scale);
            const Values rest =
                right.step(part(first, kChunk, kElems), part(second, kChunk, kElems), scale);
            all.insert(all.end(), rest.begin(), rest.end());
            return all;
        }
    };
    // A message whose sums are not encoded, as all ranks know it.
    struct Gathered {
        Values own[2] = {Values(kGathered), Values(kGathered)}, shared = Values(kGathered);

        Values step(const Values& first, const Values& second, float scale) {
            add(&shared, sent_of(first, scale, &own[0]));
            add(&shared, sent_of(second, scale, &own[1]));
            const Values result = shared;
            if (!finite(result)) {
                begin_anew({&own[0], &own[1], &shared});
            }
            return result;
        }
    };

    // Of the average of inputs that stay the same, after so many calls: relative, Euclidean.
    double error_after(int calls, size_t count) {
        const Values first = input(0, 0, count), second = input(1, 0, count);
        double error = 0, whole = 0;
        for (int call = 0; call < calls; ++call) {
            const Values got = reduce({first, second}, ncclAvg);
            error = whole = 0;
            for (size_t i = 0; i < count; ++i) {
                const double mean = 0.5 * first[i] + 0.5 * second[i];
                error += (got[i] - mean) * (got[i] - mean);
                whole += mean * mean;
            }
            mark();
        }
        return std::sqrt(error / whole);
    }
};

TEST_F(Estimates, OfASumAsTheOracleSays) {
    expect_all_reduce(TwoChunks(), kElems, ncclSum, 1.0f);
}

TEST_F(Estimates, OfAnAverageAsTheOracleSays) {
    expect_all_reduce(TwoChunks(), kElems, ncclAvg, 0.5f);
}

TEST_F(Estimates, OfAGatheredAverageAsTheOracleSays) {
    expect_all_reduce(Gathered(), kGathered, ncclAvg, 0.5f);
}

// How many kinds of calls a rank knows is its own business; whether a sum goes by estimates is not.
TEST_F(Estimates, KindsThatOneRankAloneHasDoNotCount) {
    for (size_t count = 1; count <= 2100; ++count) {  // a kind of send and one of receive
        ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        ASSERT_EQ(ncclSend(send_[0], count, ncclFloat32, 0, comms_[0], nullptr), ncclSuccess);
        ASSERT_EQ(ncclRecv(recv_[0], count, ncclFloat32, 0, comms_[0], nullptr), ncclSuccess);
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    }
    mark();
    expect_all_reduce(TwoChunks(), kElems, ncclSum, 1.0f);
}

TEST_F(Estimates, ErrorsDieOut) {
    EXPECT_GT(error_after(1, kElems), 1e-2);
    EXPECT_LT(error_after(20, kElems), 1e-5);
}

TEST_F(Estimates, ErrorsOfASparsifierDieOut) {
    EXPECT_GT(error_after(1, 1500), 0.2);
    EXPECT_LT(error_after(40, 1500), 0.02);
    EXPECT_LT(error_after(150, 1500), 1e-4);
}

TEST_F(Estimates, OfSixteenBitsAreKeptInFp32) {
    constexpr size_t kHalves = 6000;
    expect_halves_become_exact(kHalves, kHalves, [&](int rank) {
        return ncclAllReduce(send_[rank], recv_[rank], kHalves, ncclBfloat16, ncclAvg, comms_[rank],
                             nullptr);
    });
}

}  // namespace
}  // namespace slimwire::test
