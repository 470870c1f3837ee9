// Training steps of a small network whose layers are stages of a pipeline, one a rank: out = w * in
// + c of each element, and half the sum of squares at the end, so that every gradient is known.
//   pipeline SCHEDULE STEPS BATCHES COUNT [KEPT [HELD EXPLICIT]]
// 1f1b: as Megatron's; gpipe: all forward, then all backward; newest: backward in the opposite
// order; eval: as 1f1b, and five batches forward alone behind each step; grows: as gpipe, and with
// each step 400 elements more, 20 of them kept; tested: as gpipe of marked steps, and 300 batches
// forward alone in front of the first; against: see send_first_to_the_first(). With "+HEADERS"
// behind it shapes of rows of 50 go in front of messages: "megatron", of each, in groups of their
// own; "deepspeed" and "older", as its pipeline does and did, of the first forward; "differing", as
// Megatron's, with rows of 25 in turns. With KEPT above 0 an
// activation that arrives must be the KEPT largest of what was sent and zero elsewhere, and a
// gradient that of the network so masked, to the bit; but for the first four gradients of a pair,
// and those from the EXPLICIT-th on, which are the KEPT largest of theirs, and those whose
// activation is none of the step's last HELD, which are zero. Prints how many were as they must be.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plugin/capi/slimwire.h"
#include "tests/e2e/programs/masked.h"
#include "tests/support/nccl_program.h"

namespace {

using slimwire::test::noise;
using slimwire::test::Values;

struct Network {
    int stages = 0;
    size_t count = 0, kept = 0;
    int batches = 0, undirected = 4, held = INT32_MAX, explicit_from = INT32_MAX;

    [[nodiscard]] Values input(int batch) const {
        Values out(count);
        for (size_t i = 0; i < count; ++i) {
            out[i] = noise(1, static_cast<uint64_t>(batch), i);
        }
        return out;
    }
    [[nodiscard]] float weight(int stage, size_t i) const {
        return noise(2, static_cast<uint64_t>(stage), i);
    }
    [[nodiscard]] Values forward(int stage, const Values& in) const {
        Values out(count);
        for (size_t i = 0; i < count; ++i) {
            const float product = weight(stage, i) * in[i];
            out[i] = product + noise(3, static_cast<uint64_t>(stage), i) / 4;
        }
        return out;
    }
    [[nodiscard]] Values backward(int stage, const Values& gradient) const {
        Values out(count);
        for (size_t i = 0; i < count; ++i) {
            out[i] = weight(stage, i) * gradient[i];
        }
        return out;
    }
    [[nodiscard]] Values mask(const Values& of) const { return slimwire::test::mask_of(of, kept); }
};

// One micro-batch as a stage has it, and what must arrive there.
struct Batch {
    Values in, gradient;            // of what the stage gives; the latter as it arrived
    Values expected_in, sent_mask;  // of the message in front and of that behind
};

class Stage {
  public:
    Stage(const Network& network, int rank, ncclComm_t comm)
        : net_(network), rank_(rank), comm_(comm) {
        CHECK_CUDA(cudaStreamCreate(&stream_));
        for (float*& buffer : buffers_) {
            CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), net_.count * sizeof(float)));
        }
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&header_), 2 * kHeader * sizeof(int64_t)));
    }

    void tell_shapes(const std::string& as) { headers_ = as; }
    void one_forward_one_backward(int first, int batches) {
        const int ahead = std::min(batches, net_.stages - rank_ - 1);
        for (int i = 0; i < ahead; ++i) {
            receive_forward(first + i);
            send_forward(first + i);
        }
        if (ahead < batches) {
            receive_forward(first + ahead);
        }
        for (int i = 0; i + ahead < batches; ++i) {
            tell({1, -1, -1, 1});
            CHECK_NCCL(ncclGroupStart());
            post_forward(first + i + ahead);
            post_receive_backward();
            CHECK_NCCL(ncclGroupEnd());
            take_backward(first + i);
            const bool more = i + ahead + 1 < batches;
            tell({-1, more ? 1 : -1, 1, -1});
            CHECK_NCCL(ncclGroupStart());
            post_backward(first + i);
            if (more) {
                post_receive_forward();
            }
            CHECK_NCCL(ncclGroupEnd());
            if (more) {
                take_forward(first + i + ahead + 1);
            }
        }
        for (int i = batches - ahead; i < batches; ++i) {
            receive_backward(first + i);
            send_backward(first + i);
        }
    }
    // `waits`: until the forward messages have gone.
    void all_forward_first(int first, int batches, bool newest_first, bool waits) {
        evaluate(first, batches);
        if (waits) {
            CHECK_CUDA(cudaStreamSynchronize(stream_));
        }
        for (int i = 0; i < batches; ++i) {
            const int batch = first + (newest_first ? batches - 1 - i : i);
            receive_backward(batch);
            send_backward(batch);
        }
    }
    void evaluate(int first, int batches) {
        for (int i = 0; i < batches; ++i) {
            receive_forward(first + i);
            send_forward(first + i);
        }
    }
    void grow() {
        net_.count += 400;
        net_.kept += 20;
        for (float*& buffer : buffers_) {
            CHECK_CUDA(cudaFree(buffer));
            CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), net_.count * sizeof(float)));
        }
    }
    [[nodiscard]] int right() const { return right_; }

  private:
    [[nodiscard]] bool begins() const { return rank_ == 0; }
    [[nodiscard]] bool ends() const { return rank_ == net_.stages - 1; }

    void put(float* to, const Values& values) {
        CHECK_CUDA(cudaMemcpyAsync(to, values.data(), net_.count * sizeof(float),
                                   cudaMemcpyHostToDevice, stream_));
    }
    Values get(const float* from) {
        Values out(net_.count);
        CHECK_CUDA(cudaMemcpyAsync(out.data(), from, net_.count * sizeof(float),
                                   cudaMemcpyDeviceToHost, stream_));
        CHECK_CUDA(cudaStreamSynchronize(stream_));
        return out;
    }
    void expect(const Values& got, const Values& expected, const char* what, int batch) {
        for (size_t i = 0; net_.kept > 0 && i < net_.count; ++i) {
            EXPECT_THAT(got[i] == expected[i],
                        "%s of batch %d at rank %d: element %zu is %g, not %g", what, batch, rank_,
                        i, static_cast<double>(got[i]), static_cast<double>(expected[i]));
        }
        ++right_;
    }

    // Which headers go in front of what is sent forward, received forward, sent back, received
    // back.
    struct Messages {
        int forward_out, forward_in, back_out, back_in;
    };
    void tell(const Messages& of) {
        const bool each = headers_ == "megatron" || headers_ == "differing";
        const bool first = headers_ == "deepspeed" || headers_ == "older";
        if (!each && !first) {
            return;
        }
        const auto rows = static_cast<int64_t>(net_.count / 50);
        CHECK_NCCL(ncclGroupStart());
        if (of.forward_out > 0 && !ends() && (each || !std::exchange(told_out_, true))) {
            send_header(rows, rank_ + 1);
        }
        if (of.forward_in > 0 && !begins() && (each || !std::exchange(told_in_, true))) {
            receive_header(rank_ - 1);
        }
        if (each && of.back_out > 0 && !begins()) {
            send_header(rows, rank_ - 1);
        }
        if (each && of.back_in > 0 && !ends()) {
            receive_header(rank_ + 1);
        }
        CHECK_NCCL(ncclGroupEnd());
    }
    template <class T>
    void pass_header(const std::vector<T>& words, ncclDataType_t type, int to) {
        CHECK_CUDA(cudaMemcpyAsync(header_, words.data(), words.size() * sizeof(T),
                                   cudaMemcpyHostToDevice, stream_));
        CHECK_NCCL(ncclSend(header_, words.size(), type, to, comm_, stream_));
    }
    void send_header(int64_t rows, int to) {
        using Long = std::vector<int64_t>;
        if (headers_ == "deepspeed") {
            std::vector<int32_t> words = {0, 0, 3, static_cast<int32_t>(rows / 2), 2, 50};
            words.resize(256, -7);
            pass_header(words, ncclInt32, to);
        } else if (headers_ == "older") {
            // Each has memory of its own where the stream is behind.
            CHECK_CUDA(cudaMemcpyAsync(header_ + 8, Long{0, 3}.data(), 16, cudaMemcpyHostToDevice,
                                       stream_));
            CHECK_NCCL(ncclSend(header_ + 8, 1, ncclInt64, to, comm_, stream_));
            CHECK_NCCL(ncclSend(header_ + 9, 1, ncclInt64, to, comm_, stream_));
            pass_header(Long{rows / 2, 2, 50}, ncclInt64, to);
        } else {
            const bool other = headers_ == "differing" && ++told_ % 2 == 0;
            pass_header(other ? Long{rows, 2, 25} : Long{rows / 2, 2, 50}, ncclInt64, to);
        }
    }
    void receive_header(int from) {
        int64_t* const to = header_ + kHeader;
        if (headers_ == "deepspeed") {
            CHECK_NCCL(ncclRecv(to, 256, ncclInt32, from, comm_, stream_));
            return;
        }
        for (int i = 0; headers_ == "older" && i < 2; ++i) {
            CHECK_NCCL(ncclRecv(to + 8 + i, 1, ncclInt64, from, comm_, stream_));
        }
        CHECK_NCCL(ncclRecv(to, 3, ncclInt64, from, comm_, stream_));
    }

    void receive_forward(int batch) {
        tell({-1, 1, -1, -1});
        post_receive_forward();
        take_forward(batch);
    }
    void post_receive_forward() {
        if (!begins()) {
            CHECK_NCCL(ncclRecv(buffers_[0], net_.count, ncclFloat, rank_ - 1, comm_, stream_));
        }
    }
    void take_forward(int batch) {
        Values in = net_.input(batch), mask;
        for (int stage = 0; stage < rank_; ++stage) {
            in = net_.forward(stage, in);
            mask = net_.mask(in);
            in = slimwire::test::masked(in, mask);
        }
        if (!begins()) {
            const Values got = get(buffers_[0]);
            expect(got, in, "activation", batch);
            in = got;
        }
        batches_[batch].in = in;
    }
    void send_forward(int batch) {
        tell({1, -1, -1, -1});
        post_forward(batch);
    }
    void send_backward(int batch) {
        tell({-1, -1, 1, -1});
        post_backward(batch);
    }
    void post_forward(int batch) {
        const Values out = net_.forward(rank_, batches_[batch].in);
        batches_[batch].sent_mask = net_.mask(out);
        if (!ends()) {
            put(buffers_[1], out);
            CHECK_NCCL(ncclSend(buffers_[1], net_.count, ncclFloat, rank_ + 1, comm_, stream_));
        }
    }
    void receive_backward(int batch) {
        tell({-1, -1, -1, 1});
        post_receive_backward();
        take_backward(batch);
    }
    void post_receive_backward() {
        if (!ends()) {
            CHECK_NCCL(ncclRecv(buffers_[2], net_.count, ncclFloat, rank_ + 1, comm_, stream_));
        }
    }
    void take_backward(int batch) {
        Batch& own = batches_[batch];
        if (ends()) {
            own.gradient = net_.forward(rank_, own.in);  // of half the sum of squares
            return;
        }
        own.gradient = get(buffers_[2]);
        // What the stages behind give: they went the same way with the same masks.
        std::vector<Values> ins = {own.in};
        std::vector<Values> masks;
        for (int stage = rank_; stage < net_.stages - 1; ++stage) {
            const Values out = net_.forward(stage, ins.back());
            masks.push_back(net_.mask(out));
            ins.push_back(slimwire::test::masked(out, masks.back()));
        }
        Values gradient = net_.forward(net_.stages - 1, ins.back());
        for (int stage = net_.stages - 1; stage > rank_; --stage) {
            gradient = net_.backward(stage, gradient);
            const auto behind = static_cast<size_t>(stage - 1 - rank_);
            const bool alone = answers_ < net_.undirected || answers_ >= net_.explicit_from;
            const bool missed = answers_ % net_.batches < net_.batches - net_.held;
            gradient = slimwire::test::masked(gradient, alone    ? net_.mask(gradient)
                                                        : missed ? Values(net_.count)
                                                                 : masks[behind]);
        }
        ++answers_;
        expect(own.gradient, gradient, "gradient", batch);
    }
    void post_backward(int batch) {
        Batch& own = batches_[batch];
        if (!begins()) {
            put(buffers_[3], net_.backward(rank_, own.gradient));
            CHECK_NCCL(ncclSend(buffers_[3], net_.count, ncclFloat, rank_ - 1, comm_, stream_));
        }
        batches_.erase(batch);
    }

    Network net_;
    int rank_;
    ncclComm_t comm_;
    cudaStream_t stream_ = nullptr;
    float* buffers_[4] = {};
    std::map<int, Batch> batches_;
    int answers_ = 0;
    int right_ = 0;
    static constexpr size_t kHeader = 128;  // words of one
    std::string headers_;
    int64_t* header_ = nullptr;  // that is sent, that is received
    int told_ = 0;
    bool told_out_ = false, told_in_ = false;
};

// The second of two ranks sends first, and no activation; then the first one sends `ahead` that no
// gradient comes for. In each step both send one, which the first rank alone does in a group. How
// many came.
int send_first_to_the_first(int rank, int steps, int ahead, size_t count, ncclComm_t comm) {
    cudaStream_t stream = nullptr;
    float* buffer = nullptr;
    CHECK_CUDA(cudaStreamCreate(&stream));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&buffer), 2 * count * sizeof(float)));
    CHECK_CUDA(cudaMemset(buffer, 1, 2 * count * sizeof(float)));
    int came = 0;
    const auto pass = [&](int from) {
        if (rank == from) {
            CHECK_NCCL(ncclSend(buffer, count, ncclFloat, 1 - rank, comm, stream));
        } else {
            CHECK_NCCL(ncclRecv(buffer + count, count, ncclFloat, from, comm, stream));
            ++came;
        }
    };
    pass(1);
    for (int i = 0; i < ahead; ++i) {
        pass(0);
    }
    for (int step = 0; step < steps; ++step) {
        CHECK_CUDA(cudaStreamSynchronize(stream));
        if (rank == 0) {
            CHECK_NCCL(ncclGroupStart());
        }
        pass(rank);
        pass(1 - rank);
        if (rank == 0) {
            CHECK_NCCL(ncclGroupEnd());
        }
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    return came;
}

}  // namespace

int main(int argc, char** argv) {
    std::string schedule = argv[1];
    const size_t plus = std::min(schedule.find('+'), schedule.size());
    const std::string headers = schedule.substr(std::min(plus + 1, schedule.size()));
    schedule.resize(plus);
    const int steps = std::atoi(argv[2]), batches = std::atoi(argv[3]);
    const int rank = slimwire::test::launcher_rank();
    Network network;
    network.stages = slimwire::test::launcher_ranks();
    network.count = static_cast<size_t>(std::atoi(argv[4]));
    network.kept = argc > 5 ? static_cast<size_t>(std::atoi(argv[5])) : 0;
    network.batches = batches;
    network.undirected = schedule == "tested" ? 0 : 4;  // the test's messages had no direction
    if (argc > 7) {
        network.held = std::atoi(argv[6]);
        network.explicit_from = std::atoi(argv[7]);
    }
    ncclComm_t comm = slimwire::test::join_job(rank, network.stages);
    if (schedule == "against") {
        std::printf("%d\n", send_first_to_the_first(rank, steps, batches, network.count, comm));
        CHECK_NCCL(ncclCommDestroy(comm));
        return 0;
    }
    Stage stage(network, rank, comm);
    stage.tell_shapes(headers);
    for (int step = 0; step < steps; ++step) {
        if (schedule == "1f1b" || schedule == "eval") {
            stage.one_forward_one_backward(step * batches, batches);
            stage.evaluate(100000, schedule == "eval" ? 5 : 0);
        } else {
            if (schedule == "tested") {
                slimwire_mark_step(static_cast<uint64_t>(2 * step));
                stage.evaluate(100000, step == 0 ? 300 : 0);
                slimwire_mark_step(static_cast<uint64_t>(2 * step + 1));
            }
            // Behind a test the first answers count from messages of this step on, which a host
            // that ran ahead would have to wait for in a call.
            stage.all_forward_first(step * batches, batches, schedule == "newest",
                                    schedule == "tested");
            if (schedule == "grows") {
                stage.grow();
            }
        }
    }
    std::printf("%d\n", stage.right());
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}
