// Training steps whose ranks exchange activations and then gradients, with data that is known:
//   exchanges alltoall|messages|sequence|mixed STEPS CALLS COUNT TWENTIETHS TOLD [LEAST [FIRST
//   [AGAIN [STOPS [KNOWN [MARKED]]]]]]
// alltoall: ncclAlltoAll; messages: the same in groups of sends and receives, of counts that differ
// between every two ranks and steps; sequence: all-gathers and reduce-scatters in turn, each of
// which the other one answers; mixed: all-to-alls and messages in turn. A step is CALLS exchanges
// of activations, as many of gradients, newest first, and one of an evaluation. What arrives must
// be so many twentieths of what was sent, the largest, and zero elsewhere; gradients those at the
// positions of their activations, to the bit, or where TOLD is 0 and the program marks no steps,
// the largest of their own, and where TOLD is 2 whole. TWENTIETHS 0: anything; below 0: rows of 50
// that are multiples of one, and of -2 all alike, and arrive as they are, nearly. With LEAST
// messages of fewer elements arrive whole, and in every second step rank 0 has nothing for rank 1,
// nor a buffer, and below 0 sends nothing, as PyTorch does then, so that what rank 0 answers there
// has the largest of its own; with FIRST the first so many of each operation forward, and their
// answers, arrive whole; AGAIN of those forward at a time are made again before they are answered,
// and arrive as before, but for the last STOPS of each AGAIN; the gradients of the first KNOWN
// steps (1) are the largest of their own; of MARKED steps (1) the first is marked. TWENTIETHS from
// 100 on: 100 less, in runs of 32 that are drawn, the same ones for all of a step's calls of one
// operation and count, and which came the ranks tell each other. Prints how many blocks were as
// they must be.
#include <utility>

#include "plugin/capi/slimwire.h"
#include "tests/e2e/programs/masked.h"
#include "tests/support/nccl_program.h"

namespace {

using slimwire::test::mask_of;
using slimwire::test::masked;
using slimwire::test::noise;
using slimwire::test::Values;

constexpr size_t kRow = 50, kRun = 32;

enum class Form { kAllToAll, kMessages, kSequence };

struct Job {
    Form form = Form::kAllToAll;
    int rank = 0, ranks = 0, twentieths = 0;
    size_t count = 0;
    size_t least = 0;
    int first = 0, known = 0;
    bool told = false, whole = false, mixed = false, drawn = false, leaves_out = false;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float *send = nullptr, *recv = nullptr;
    int right = 0;

    // Elements that `from` gives `to` forward.
    [[nodiscard]] size_t elements(int step, int from, int to) const {
        if (least > 0 && step % 2 == 1 && from == 0 && to == 1) {
            return 0;
        }
        return form == Form::kMessages
                   ? count + 20 * static_cast<size_t>(step % 2 + 3 * from + 7 * to)
                   : count;
    }
    // What goes from a rank to another one in a call, of which an all-gather gives all the same.
    [[nodiscard]] Values block(int call, int from, int to, size_t of) const {
        Values out(of);
        const auto of_call = static_cast<uint64_t>(call) + 1;
        for (size_t i = 0; twentieths < 0 && i < of; ++i) {
            const size_t row = i / kRow, key = static_cast<size_t>(from * 64 + to);
            const float of_column = noise(of_call, key, 90001 + i % kRow);
            out[i] = twentieths == -2
                         ? of_column
                         : noise(of_call, key, 7 * row) * (row < of / kRow ? of_column : 1);
        }
        for (size_t i = 0; twentieths >= 0 && i < of; ++i) {
            out[i] =
                noise(static_cast<uint64_t>(call) + 1, static_cast<uint64_t>(from * 64 + to), i);
        }
        return out;
    }
    [[nodiscard]] Values mask(const Values& of) const {
        return mask_of(of, of.size() * static_cast<size_t>(twentieths) / 20);
    }
};

// One exchange, and what must become of each block that it gives.
struct Call {
    int number = 0, step = 0;
    bool gathers = false;           // of a sequence: an all-gather
    const Call* answers = nullptr;  // gradients of it
    std::vector<Values> came = {};  // where choices are drawn: from each rank to each

    [[nodiscard]] bool left_whole(const Job& job) const {
        return number % 64 / (job.form == Form::kSequence ? 2 : 1) < job.first;
    }
    [[nodiscard]] Values given(const Job& job, int from, int to) const {
        const bool back = answers != nullptr;
        return job.block(number, from, gathers ? 63 : to,
                         back ? job.elements(step, to, from) : job.elements(step, from, to));
    }
    [[nodiscard]] Values arriving(const Job& job, int from, int to) const {
        const Values all = given(job, from, to);
        if ((job.form != Form::kSequence && from == to) || all.size() < job.least ||
            left_whole(job)) {
            return all;
        }
        if (job.twentieths < 0 || (job.whole && answers != nullptr)) {
            return all;
        }
        const bool left_out = job.leaves_out && job.elements(step, from, to) == 0;
        const bool alone = answers == nullptr || !job.told || step < job.known || left_out;
        if (job.drawn) {
            return alone ? all
                         : masked(all, answers->came[static_cast<size_t>(to * job.ranks + from)]);
        }
        return masked(all, job.mask(alone ? all : answers->given(job, to, from)));
    }
};

void enqueue(const Job& job, const Call& call) {
    const size_t count = job.count;
    if (job.form == Form::kAllToAll) {
        CHECK_NCCL(ncclAlltoAll(job.send, job.recv, count, ncclFloat, job.comm, job.stream));
    } else if (job.form == Form::kSequence && call.gathers) {
        CHECK_NCCL(ncclAllGather(job.send, job.recv, count, ncclFloat, job.comm, job.stream));
    } else if (job.form == Form::kSequence) {
        CHECK_NCCL(
            ncclReduceScatter(job.send, job.recv, count, ncclFloat, ncclSum, job.comm, job.stream));
    } else {
        CHECK_NCCL(ncclGroupStart());
        size_t sent = 0, received = 0;
        for (int peer = 0; peer < job.ranks; ++peer) {
            const size_t to = call.given(job, job.rank, peer).size();
            const size_t from = call.given(job, peer, job.rank).size();
            const float* const block = to > 0 ? job.send + sent : nullptr;
            if (to > 0 || !job.leaves_out) {
                CHECK_NCCL(ncclSend(block, to, ncclFloat, peer, job.comm, job.stream));
            }
            if (from > 0 || !job.leaves_out) {
                CHECK_NCCL(
                    ncclRecv(job.recv + received, from, ncclFloat, peer, job.comm, job.stream));
            }
            sent += to;
            received += from;
        }
        CHECK_NCCL(ncclGroupEnd());
    }
}

// Of what a rank got, whole runs of what was given and zeros, and of what all others got.
void learn(Job* job, const Values& got, const Values& given, Call* call) {
    const size_t room = 2 * job->count, ranks = static_cast<size_t>(job->ranks);
    const bool sums = job->form == Form::kSequence && !call->gathers;
    std::vector<uint8_t> own(ranks * room), all(ranks * own.size());
    for (size_t from = 0, at = 0; from < ranks; ++from) {
        const size_t of = call->given(*job, static_cast<int>(from), job->rank).size();
        const bool whole = job->form != Form::kSequence && static_cast<int>(from) == job->rank;
        size_t runs = 0;
        for (size_t i = 0; i < of; ++i) {
            const uint8_t came = got[at + i] != 0;
            own[from * room + i] = came;
            runs += came != 0 && i % kRun == 0;
            EXPECT_THAT(got[at + i] == (came != 0 ? given[at + i] : 0) &&
                            came == own[from * room + i / kRun * kRun],
                        "call %d: element %zu of rank %zu", call->number, i, from);
        }
        const size_t most = (of + kRun - 1) / kRun;
        EXPECT_THAT(whole || runs == (most * static_cast<size_t>(job->twentieths) + 10) / 20,
                    "call %d: %zu runs of %zu", call->number, runs, most);
        at += sums ? 0 : of;
    }
    CHECK_CUDA(
        cudaMemcpyAsync(job->send, own.data(), own.size(), cudaMemcpyHostToDevice, job->stream));
    CHECK_NCCL(ncclAllGather(job->send, job->recv, own.size(), ncclUint8, job->comm, job->stream));
    CHECK_CUDA(
        cudaMemcpyAsync(all.data(), job->recv, all.size(), cudaMemcpyDeviceToHost, job->stream));
    CHECK_CUDA(cudaStreamSynchronize(job->stream));
    for (size_t from = 0; from < ranks; ++from) {
        for (size_t to = 0; to < ranks; ++to) {
            const auto begin = all.begin() + static_cast<int64_t>((to * ranks + from) * room);
            call->came.emplace_back(begin, begin + static_cast<int64_t>(room));
        }
    }
}

void run(Job* job, Call* made) {
    const Call& call = *made;
    if (job->mixed) {
        job->form = call.number % 2 == 0 ? Form::kAllToAll : Form::kMessages;
    }
    Values sent, expected;
    for (int peer = 0; peer < job->ranks; ++peer) {
        const Values to = call.given(*job, job->rank, peer);
        const Values from = call.arriving(*job, peer, job->rank);
        if (!call.gathers || peer == 0) {
            sent.insert(sent.end(), to.begin(), to.end());
        }
        if (job->form == Form::kSequence && !call.gathers && peer > 0) {
            for (size_t i = 0; i < from.size(); ++i) {
                expected[i] += from[i];
            }
        } else {
            expected.insert(expected.end(), from.begin(), from.end());
        }
    }
    Values got(expected.size());
    CHECK_CUDA(cudaMemcpyAsync(job->send, sent.data(), sent.size() * sizeof(float),
                               cudaMemcpyHostToDevice, job->stream));
    enqueue(*job, call);
    CHECK_CUDA(cudaMemcpyAsync(got.data(), job->recv, got.size() * sizeof(float),
                               cudaMemcpyDeviceToHost, job->stream));
    CHECK_CUDA(cudaStreamSynchronize(job->stream));
    // Whole gradients may be summed in another order.
    const bool nearly =
        job->twentieths < 0 || call.left_whole(*job) || (job->whole && call.answers != nullptr);
    const float most = nearly ? 1e-4f : 0.0f;
    if (job->drawn && (call.answers == nullptr || call.step < job->known)) {
        learn(job, got, expected, made);
        expected = got;
    }
    for (size_t i = 0; job->twentieths != 0 && i < got.size(); ++i) {
        EXPECT_THAT(std::fabs(got[i] - expected[i]) <= most,
                    "call %d at rank %d: element %zu is %g, not %g", call.number, job->rank, i,
                    static_cast<double>(got[i]), static_cast<double>(expected[i]));
    }
    ++job->right;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string form = argv[1];
    const int steps = std::atoi(argv[2]), calls = std::atoi(argv[3]);
    Job job;
    job.form = form == "alltoall"   ? Form::kAllToAll
               : form == "sequence" ? Form::kSequence
                                    : Form::kMessages;
    job.mixed = form == "mixed";
    job.rank = slimwire::test::launcher_rank();
    job.ranks = slimwire::test::launcher_ranks();
    job.count = static_cast<size_t>(std::atoi(argv[4]));
    job.drawn = std::atoi(argv[5]) >= 100;
    job.twentieths = std::atoi(argv[5]) - (job.drawn ? 100 : 0);
    job.told = std::atoi(argv[6]) != 0;
    job.whole = std::atoi(argv[6]) == 2;
    job.leaves_out = argc > 7 && std::atoi(argv[7]) < 0;
    job.least = argc > 7 ? static_cast<size_t>(std::abs(std::atoi(argv[7]))) : 0;
    job.first = argc > 8 ? std::atoi(argv[8]) : 0;
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_CUDA(cudaStreamCreate(&job.stream));
    for (float** buffer : {&job.send, &job.recv}) {
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(buffer),
                              4 * sizeof(float) * job.count * static_cast<size_t>(job.ranks)));
    }
    const ncclUniqueId id = slimwire::test::exchange_id(job.rank);
    CHECK_NCCL(ncclCommInitRank(&job.comm, job.ranks, id, job.rank));
    const int again = argc > 9 ? std::atoi(argv[9]) : 0;
    const int stops = argc > 10 ? std::atoi(argv[10]) : 0;
    job.known = argc > 11 ? std::atoi(argv[11]) : again > 0 ? 1 : 0;
    const int marked = argc > 12 ? std::atoi(argv[12]) : 1;
    std::vector<Values> chosen;
    for (int step = 0; step < steps; ++step) {
        if (job.told && step % marked == 0) {
            EXPECT_THAT(slimwire_mark_step(static_cast<uint64_t>(step)) == SLIMWIRE_OK, "no step");
        }
        std::vector<Call> forward;
        for (int i = 0; i < calls; ++i) {
            forward.push_back({(step * 3 + 0) * 64 + i, step, form == "sequence" && i % 2 == 0});
            run(&job, &forward.back());
        }
        for (int i = calls - 1; i >= 0; --i) {
            for (int j = again > 0 && (i + 1) % again == 0 ? i + 1 - again : calls; j <= i - stops;
                 ++j) {
                Call repeated = forward[static_cast<size_t>(j)];
                const std::vector<Values> first = std::exchange(repeated.came, {});
                run(&job, &repeated);
                EXPECT_THAT(repeated.came == first,
                            "call %d has another choice when it is made again", repeated.number);
            }
            const Call& of = forward[static_cast<size_t>(i)];
            Call back{(step * 3 + 1) * 64 + i, step, form == "sequence" && !of.gathers, &of};
            run(&job, &back);
        }
        if (job.told) {
            EXPECT_THAT(slimwire_mark_phase(SLIMWIRE_EVALUATION) == SLIMWIRE_OK, "no phase");
        }
        Call evaluated{(step * 3 + 2) * 64, step, form == "sequence"};
        run(&job, &evaluated);
        for (const Call& call : forward) {
            EXPECT_THAT(step < job.known || call.gathers != evaluated.gathers ||
                            call.came == evaluated.came,
                        "call %d has another choice than the step's last one", call.number);
        }
        EXPECT_THAT(!job.drawn || std::exchange(chosen, evaluated.came) != chosen,
                    "step %d has the choice of the one before", step);
        if (job.told) {
            EXPECT_THAT(slimwire_mark_phase(SLIMWIRE_TRAINING) == SLIMWIRE_OK, "no phase");
        }
    }
    std::printf("%d\n", job.right);
    CHECK_NCCL(ncclCommDestroy(job.comm));
    return 0;
}
