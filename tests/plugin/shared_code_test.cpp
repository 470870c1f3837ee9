// All-to-alls and the pair of all-gather and reduce-scatter by an autoencoder of all ranks that
// learns from their answers, against an oracle in fp64. One process, emulated devices, a policy of
// the test's own.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/plugin/oracles.h"
#include "tests/plugin/several_devices.h"

namespace slimwire::test {
namespace {

using namespace code;

// Before the first NCCL call of the process, which reads it.
constexpr const char* kSharedCodePolicy =
    "version = 1\n"
    "[[rule]]\nname = \"tables\"\nmatch = { op = \"alltoall\" }\nforward_calls = 2\n"
    "codec = \"linear_ae:width=4,row=40,seed=5,rate=0.02\"\n"
    "[[rule]]\nname = \"sequence\"\nforward_calls = 2\n"
    "match = { op = [\"allgather\", \"reducescatter\"] }\n"
    "codec = \"linear_ae:width=4,row=40,seed=6,rate=0.02\"\n"
    "[[rule]]\nname = \"gradients\"\nmatch = { op = \"allreduce\" }\ncodec = \"int8\"\n"
    "error_feedback = \"ef14\"\n";  // steps are asked for

// Collectives and their answers, newest first, by one E and one D of all ranks.
enum class Shared { kAllToAll, kAllGather, kReduceScatter };

class Collectives : public SeveralDevices<3> {
  protected:
    using Values = code::Values;
    static constexpr int kForward = 2;  // calls before their answers come
    using Blocks = std::vector<Values>;

    static constexpr size_t kBuffer = 3 * kCount;  // elements of a call

    Collectives() : SeveralDevices(kForward * kBuffer) {}
    static void SetUpTestSuite() { write_policy(kSharedCodePolicy); }

    static Shared answer_to(Shared op) {
        return op == Shared::kAllGather       ? Shared::kReduceScatter
               : op == Shared::kReduceScatter ? Shared::kAllGather
                                              : op;
    }
    static size_t given_blocks(Shared op) {
        return op == Shared::kAllGather ? 1 : static_cast<size_t>(ranks());
    }
    // What reaches a rank as its block of what all give.
    static Values at(Shared op, const std::vector<Blocks>& given, size_t rank, size_t block) {
        if (op != Shared::kReduceScatter) {
            return given[block][op == Shared::kAllGather ? 0 : rank];
        }
        Values sum(given[0][0].size());
        for (const Blocks& one : given) {
            for (size_t i = 0; i < sum.size(); ++i) {
                sum[i] += one[rank][i];
            }
        }
        return sum;
    }
    static std::vector<Blocks> map(const std::vector<Blocks>& given, const Weights& weights) {
        std::vector<Blocks> out = given;
        for (Blocks& blocks : out) {
            for (Values& block : blocks) {
                block = weights.numbers(block);
            }
        }
        return out;
    }
    static std::vector<Blocks> drawn_blocks(Shared op, int number) {
        std::vector<Blocks> given(static_cast<size_t>(ranks()));
        for (size_t rank = 0; rank < given.size(); ++rank) {
            for (size_t block = 0; block < given_blocks(op); ++block) {
                given[rank].push_back(
                    activation(static_cast<int>((7 * rank + 3 * block) % 11) + number));
            }
        }
        return given;
    }
    // Inside a group; `at`: which call of it.
    void post(Shared op, const std::vector<Blocks>& given, size_t at = 0) {
        for (int rank = 0; rank < ranks(); ++rank) {
            std::vector<float> all;
            for (const Values& block : given[static_cast<size_t>(rank)]) {
                all.insert(all.end(), block.begin(), block.end());
            }
            float* const from = send_[rank] + at * kBuffer;
            float* const to = recv_[rank] + at * kBuffer;
            upload(rank, from, all);
            EXPECT_EQ(op == Shared::kAllToAll
                          ? ncclAlltoAll(from, to, kCount, ncclFloat32, comms_[rank], nullptr)
                      : op == Shared::kAllGather
                          ? ncclAllGather(from, to, kCount, ncclFloat32, comms_[rank], nullptr)
                          : ncclReduceScatter(from, to, kCount, ncclFloat32, ncclSum, comms_[rank],
                                              nullptr),
                      ncclSuccess);
        }
    }
    std::vector<Blocks> call(Shared op, const std::vector<Blocks>& given) {
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        post(op, given);
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        return arrived(op);
    }
    std::vector<Blocks> arrived(Shared op, size_t at = 0) {
        std::vector<Blocks> out(static_cast<size_t>(ranks()));
        for (int rank = 0; rank < ranks(); ++rank) {
            for (size_t block = 0; block < given_blocks(answer_to(op)); ++block) {
                const std::vector<float> got =
                    download(rank, recv_[rank] + at * kBuffer + block * kCount, kCount);
                out[static_cast<size_t>(rank)].emplace_back(got.begin(), got.end());
            }
        }
        return out;
    }
    // Whether a call brings exactly what was given.
    bool is_native(Shared op, const std::vector<Blocks>& given) {
        const std::vector<Blocks> got = call(op, given);
        double error = 0;
        for (size_t rank = 0; rank < got.size(); ++rank) {
            for (size_t block = 0; block < got[rank].size(); ++block) {
                const Values expected = at(op, given, rank, block);
                error = std::max(error, distance(got[rank][block], expected) / norm(expected));
            }
        }
        return error < 1e-6;
    }
    // That all get what the numbers say, of all but what an all-to-all gives itself.
    static void expect(const std::vector<Blocks>& got,
                       Shared op,
                       const std::vector<Blocks>& given,
                       const std::vector<Blocks>& numbers,
                       const Weights& weights) {
        for (size_t rank = 0; rank < got.size(); ++rank) {
            for (size_t block = 0; block < got[rank].size(); ++block) {
                const Values raw = at(op, given, rank, block);
                const bool own = op == Shared::kAllToAll && rank == block;
                const Values expected = own ? raw : weights.rows(at(op, numbers, rank, block), raw);
                EXPECT_LT(distance(got[rank][block], expected), 2e-4 * norm(expected))
                    << "rank " << rank << " block " << block;
            }
        }
    }
    // Gradients of weights from blocks of rows and the numbers that came for them.
    static void learn(Weights* weights,
                      Shared op,
                      const std::vector<Blocks>& rows,
                      const std::vector<Blocks>& numbers) {
        for (size_t rank = 0; rank < rows.size(); ++rank) {
            for (size_t block = 0; block < rows[rank].size(); ++block) {
                if (op != Shared::kAllToAll || rank != block) {
                    weights->add(rows[rank][block], at(answer_to(op), numbers, rank, block));
                }
            }
        }
    }
};

// First, before the process has marked a step: nothing tells gradients from activations.
TEST_P(Collectives, WithoutMarksAreNative) {
    for (const Shared op : {Shared::kAllToAll, Shared::kAllGather, Shared::kReduceScatter}) {
        EXPECT_TRUE(is_native(op, drawn_blocks(op, 3)));
    }
}

// An activation that keeps nothing for its answer has a dense one, not zeros.
TEST_P(Collectives, AnswersOfNativeCallsAreNative) {
    for (const Shared op : {Shared::kAllToAll, Shared::kAllGather, Shared::kReduceScatter}) {
        SCOPED_TRACE("operation " + std::to_string(static_cast<int>(op)));
        ASSERT_EQ(slimwire_mark_step(90 + static_cast<uint64_t>(op)), SLIMWIRE_OK);
        std::vector<std::pair<ncclComm_t, ncclWindow_t>> windows;
        for (int rank = 0; rank < ranks(); ++rank) {
            for (void* buffer : {send_[rank], recv_[rank]}) {
                windows.emplace_back(comms_[rank], nullptr);
                ASSERT_EQ(ncclCommWindowRegister(comms_[rank], buffer, kBuffer * sizeof(float),
                                                 &windows.back().second, NCCL_WIN_COLL_SYMMETRIC),
                          ncclSuccess);
            }
        }
        EXPECT_TRUE(is_native(op, drawn_blocks(op, 3)));
        for (const auto& [comm, window] : windows) {
            ASSERT_EQ(ncclCommWindowDeregister(comm, window), ncclSuccess);
        }
        EXPECT_FALSE(is_native(op, drawn_blocks(op, 4)));
        EXPECT_FALSE(is_native(answer_to(op), drawn_blocks(answer_to(op), 5)));
        EXPECT_TRUE(is_native(answer_to(op), drawn_blocks(answer_to(op), 6)));
    }
}

TEST_P(Collectives, RowsAtTheEndOfTheRangeComeFinite) {
    for (const Shared op : {Shared::kAllToAll, Shared::kAllGather}) {
        for (const double largest : {3.389e38, -3.389e38}) {
            ASSERT_EQ(slimwire_mark_step(99), SLIMWIRE_OK);
            const Blocks blocks(given_blocks(op), Values(kCount, largest));
            for (const Blocks& of : call(op, std::vector<Blocks>(size_t(ranks()), blocks))) {
                for (const Values& block : of) {
                    for (const double value : block) {
                        ASSERT_TRUE(std::isfinite(value));
                    }
                }
            }
        }
    }
}

// All answers of a step in one group in every other step; in one of five a call has no answer.
TEST_P(Collectives, LearnAsTheOracleSays) {
    uint64_t step = 0;
    Weights codes[2][2] = {{drawn(5), drawn(5)}, {drawn(6), drawn(6)}};
    for (const Shared forward : {Shared::kAllToAll, Shared::kAllGather, Shared::kReduceScatter}) {
        SCOPED_TRACE("operation " + std::to_string(static_cast<int>(forward)));
        const Shared answer = answer_to(forward);
        auto& [encoder, decoder] = codes[forward == Shared::kAllToAll ? 0 : 1];
        const Values before = encoder.at;
        for (const uint64_t last = step + 5; step < last; ++step) {
            SCOPED_TRACE("step " + std::to_string(step));
            ASSERT_EQ(slimwire_mark_step(step), SLIMWIRE_OK);
            std::vector<std::vector<Blocks>> given, numbers;
            for (int one = 0; one < kForward; ++one) {
                given.push_back(drawn_blocks(forward, static_cast<int>(step) + 5 * one));
                numbers.push_back(map(given.back(), encoder));
                expect(call(forward, given.back()), forward, given.back(), numbers.back(), decoder);
            }
            const size_t last_one = step % 5 == 2 ? 1 : 0;
            const auto gradient_of = [&](size_t of) {
                return drawn_blocks(answer, static_cast<int>(20 + step + 5 * of));
            };
            if (step % 2 == 1) {
                EXPECT_EQ(ncclGroupStart(), ncclSuccess);
                for (size_t of = kForward; of-- > last_one;) {
                    post(answer, gradient_of(of), of);
                }
                EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
            }
            for (size_t of = kForward; of-- > last_one;) {
                const std::vector<Blocks> gradient = gradient_of(of);
                const std::vector<Blocks> back = map(gradient, decoder);
                expect(step % 2 == 1 ? arrived(answer, of) : call(answer, gradient), answer,
                       gradient, back, encoder);
                learn(&encoder, forward, given[of], back);
                learn(&decoder, answer, gradient, numbers[of]);
            }
            encoder.step();
            decoder.step();
        }
        EXPECT_GT(distance(encoder.at, before), 0.1);
        // An evaluation goes forward by what was learnt, and teaches nothing.
        ASSERT_EQ(slimwire_mark_phase(SLIMWIRE_EVALUATION), SLIMWIRE_OK);
        for (int one = 0; one < 3; ++one) {
            const std::vector<Blocks> given = drawn_blocks(forward, 40 + one);
            expect(call(forward, given), forward, given, map(given, encoder), decoder);
        }
        ASSERT_EQ(slimwire_mark_phase(SLIMWIRE_TRAINING), SLIMWIRE_OK);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(2, 3));

}  // namespace
}  // namespace slimwire::test
