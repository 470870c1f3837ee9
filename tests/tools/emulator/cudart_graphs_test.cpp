// Graphs after they were made: launching, concurrency and order, launches in captures, event nodes,
// user objects. How capture makes them is cudart_capture_test.cpp.
#include <array>
#include <mutex>
#include <set>

#include "tests/tools/emulator/cuda_test.h"

namespace slimwire::testing {
namespace {

class Graphs : public ::testing::Test {
  protected:
    void SetUp() override {
        stream = make_stream();
        builder = make_stream();
        ASSERT_EQ(cudaStreamBeginCapture(builder, cudaStreamCaptureModeRelaxed), cudaSuccess);
        cudaStreamCaptureStatus status{};
        ASSERT_EQ(cudaStreamGetCaptureInfo(builder, &status, nullptr, &graph), cudaSuccess);
    }
    void TearDown() override {
        finish();
        ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
        (void)cudaStreamDestroy(builder);
        if (graph != nullptr) {
            ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        }
        (void)cudaGetLastError();
    }
    // The node that the capture adds for what `enqueue` does, behind the nodes `after`.
    template <class Enqueue>
    cudaGraphNode_t node(std::vector<cudaGraphNode_t> after, Enqueue&& enqueue) {
        EXPECT_EQ(cudaStreamUpdateCaptureDependencies(builder, after.data(), nullptr, after.size(),
                                                      cudaStreamSetCaptureDependencies),
                  cudaSuccess);
        enqueue();
        cudaStreamCaptureStatus status{};
        const cudaGraphNode_t* added = nullptr;
        size_t count = 0;
        EXPECT_EQ(
            cudaStreamGetCaptureInfo(builder, &status, nullptr, nullptr, &added, nullptr, &count),
            cudaSuccess);
        EXPECT_EQ(count, 1u);
        return count == 1 ? *added : nullptr;
    }
    cudaGraphNode_t host_node(const std::vector<cudaGraphNode_t>& after,
                              cudaHostFn_t function,
                              void* data) {
        return node(after,
                    [&] { EXPECT_EQ(cudaLaunchHostFunc(builder, function, data), cudaSuccess); });
    }
    cudaGraphNode_t note_node(const std::vector<cudaGraphNode_t>& after, int value) {
        notes.push_back(std::make_unique<Note>(Note{&log, value}));
        return host_node(
            after,
            [](void* data) {
                const Note* note = static_cast<const Note*>(data);
                note->log->push_back(note->value);
            },
            notes.back().get());
    }
    // The graph is whole.
    void finish() {
        if (!finished) {
            finished = true;
            cudaGraph_t same = nullptr;
            EXPECT_EQ(cudaStreamEndCapture(builder, &same), cudaSuccess);
            EXPECT_EQ(same, graph);
        }
    }
    cudaGraphExec_t instantiate() {
        finish();
        cudaGraphExec_t exec = nullptr;
        EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
        return exec;
    }

    cudaStream_t stream = nullptr;
    cudaStream_t builder = nullptr;  // captured into `graph` until that is whole
    bool finished = false;
    cudaGraph_t graph = nullptr;
    std::vector<int> log;
    std::vector<std::unique_ptr<Note>> notes;
};

// Two branches that wait for each other: a graph that ran them one after the other would hang.
TEST_F(Graphs, BranchesRunAtTheSameTime) {
    std::array<std::atomic<int>, 2> arrived{};
    struct Meeting {
        std::atomic<int>* mine;
        std::atomic<int>* other;
    };
    const std::array<Meeting, 2> meetings{Meeting{&arrived[0], &arrived[1]},
                                          Meeting{&arrived[1], &arrived[0]}};
    const auto meet = [](const void* data) {
        const auto* meeting = static_cast<const Meeting*>(data);
        const int round = meeting->mine->fetch_add(1) + 1;
        meeting->mine->notify_all();
        for (int seen = meeting->other->load(); seen < round; seen = meeting->other->load()) {
            meeting->other->wait(seen);
        }
    };
    const cudaGraphNode_t root = note_node({}, 1);
    std::vector<cudaGraphNode_t> branches;  // kernels, as host functions may take turns
    for (const Meeting& meeting : meetings) {
        branches.push_back(node({root}, [&] {
            EXPECT_EQ(emulator().launch(builder, meet, &meeting, sizeof(meeting), "meet"),
                      cudaSuccess);
        }));
    }
    note_node(branches, 2);
    const cudaGraphExec_t exec = instantiate();
    std::vector<int> expected;
    for (int i = 0; i < 100; ++i) {
        CUDA_OK(cudaGraphLaunch(exec, stream));
        expected.insert(expected.end(), {1, 2});
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(log, expected);
    CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_F(Graphs, LaunchesOfOneExecutableGraphFollowEachOtherOnAnyStream) {
    Gate gate;
    const Stream other;
    note_node({}, 1);
    const cudaGraphExec_t exec = instantiate();
    gate.hold(stream);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaGraphLaunch(exec, other));
    note(other, log, 2);
    sleep_ms(20);
    EXPECT_EQ(cudaStreamQuery(other), cudaErrorNotReady);
    gate.open();
    CUDA_OK(cudaStreamSynchronize(other));
    EXPECT_EQ(log, (std::vector<int>{1, 1, 2}));
    CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_F(Graphs, WideGraphsKeepTheOrderOfEveryEdge) {
    // A grid: node (x, y) after (x-1, y) and (x, y-1); each writes 1 + the largest of both.
    constexpr int kSide = 12;
    struct Cell {
        int value;
        const Cell* left;
        const Cell* up;
    };
    std::vector<Cell> cells(kSide * kSide);
    std::vector<cudaGraphNode_t> nodes(cells.size());
    for (int y = 0; y < kSide; ++y) {
        for (int x = 0; x < kSide; ++x) {
            const auto i = static_cast<size_t>(y * kSide + x);
            std::vector<cudaGraphNode_t> after;
            cells[i] = {0, x > 0 ? &cells[i - 1] : nullptr, y > 0 ? &cells[i - kSide] : nullptr};
            if (x > 0) {
                after.push_back(nodes[i - 1]);
            }
            if (y > 0) {
                after.push_back(nodes[i - kSide]);
            }
            nodes[i] = host_node(
                after,
                [](void* data) {
                    Cell* cell = static_cast<Cell*>(data);
                    const int left = cell->left != nullptr ? cell->left->value : 0;
                    const int up = cell->up != nullptr ? cell->up->value : 0;
                    cell->value = 1 + std::max(left, up);
                },
                &cells[i]);
        }
    }
    const cudaGraphExec_t exec = instantiate();
    for (int run = 0; run < 20; ++run) {
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        for (int y = 0; y < kSide; ++y) {
            for (int x = 0; x < kSide; ++x) {
                Cell& cell = cells[static_cast<size_t>(y * kSide + x)];
                ASSERT_EQ(cell.value, x + y + 1) << x << " " << y << " in run " << run;
                cell.value = 0;
            }
        }
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaErrorInvalidValue);
}

TEST_F(Graphs, VeryWideGraphsTakeABoundedNumberOfThreads) {
    struct Seen {
        std::mutex mutex;
        std::set<std::thread::id> threads;
        int runs = 0;
    } seen;
    std::vector<cudaGraphNode_t> nodes;
    for (int i = 0; i < 1000; ++i) {
        nodes.push_back(host_node(
            {},
            [](void* data) {
                Seen& all = *static_cast<Seen*>(data);
                const std::lock_guard lock(all.mutex);
                all.threads.insert(std::this_thread::get_id());
                ++all.runs;
            },
            &seen));
    }
    note_node(nodes, 1);
    const cudaGraphExec_t exec = instantiate();
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(seen.runs, 1000);
    EXPECT_GT(seen.threads.size(), 8u);
    EXPECT_LE(seen.threads.size(), 64u);
    EXPECT_EQ(log, (std::vector<int>{1}));
    CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_F(Graphs, AnExecutableGraphOutlivesItsGraphAndItsHandle) {
    Gate gate;
    note_node({}, 1);
    const cudaGraphExec_t exec = instantiate();
    CUDA_OK(cudaGraphDestroy(graph));
    graph = nullptr;
    gate.hold(stream);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaGraphExecDestroy(exec));  // the launch in flight still runs
    gate.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(log, (std::vector<int>{1}));
}

TEST_F(Graphs, ALaunchIntoACaptureAddsTheNodes) {
    const cudaGraphNode_t first = note_node({}, 1);
    note_node({first}, 2);
    const cudaGraphExec_t exec = instantiate();
    cudaGraph_t outer = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    note(stream, log, 0);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    note(stream, log, 3);
    CUDA_OK(cudaStreamEndCapture(stream, &outer));
    size_t count = 0;
    CUDA_OK(cudaGraphGetNodes(outer, nullptr, &count));
    EXPECT_EQ(count, 6u);
    CUDA_OK(cudaGraphExecDestroy(exec));
    cudaGraphExec_t outer_exec = nullptr;
    CUDA_OK(cudaGraphInstantiate(&outer_exec, outer, 0));
    CUDA_OK(cudaGraphDestroy(outer));
    CUDA_OK(cudaGraphLaunch(outer_exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(log, (std::vector<int>{0, 1, 2, 1, 2, 3}));
    CUDA_OK(cudaGraphExecDestroy(outer_exec));
}

TEST_F(Graphs, EventNodesRecordAndWaitAtEachLaunch) {
    const Event before(cudaEventDisableTiming);
    const Event after(cudaEventDisableTiming);
    EXPECT_EQ(cudaEventRecordWithFlags(after, stream, cudaEventRecordExternal),
              cudaErrorInvalidValue)
        << "not captured";
    const cudaGraphNode_t wait =
        node({}, [&] { CUDA_OK(cudaStreamWaitEvent(builder, before, cudaEventWaitExternal)); });
    const cudaGraphNode_t work = note_node({wait}, 1);
    node({work},
         [&] { CUDA_OK(cudaEventRecordWithFlags(after, builder, cudaEventRecordExternal)); });
    const cudaGraphExec_t exec = instantiate();
    const Stream other;
    for (int run = 0; run < 3; ++run) {
        Gate gate;
        gate.hold(other);
        CUDA_OK(cudaEventRecord(before, other));
        CUDA_OK(cudaGraphLaunch(exec, stream));
        sleep_ms(5);
        EXPECT_EQ(cudaEventQuery(after), cudaErrorNotReady) << run;
        gate.open();
        CUDA_OK(cudaEventSynchronize(after));
        EXPECT_EQ(log.size(), static_cast<size_t>(run) + 1);
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
}

// --- User objects

struct Destructions {
    std::atomic<int> count{0};
    static void count_one(void* self) {
        auto& mine = *static_cast<Destructions*>(self);
        mine.count.fetch_add(1);
        mine.count.notify_all();
    }
    void wait_for_one() {
        count.wait(0);
        EXPECT_EQ(count.load(), 1);
    }
};

TEST_F(Graphs, AUserObjectEndsWithTheLastGraphThatHoldsIt) {
    Destructions ended;
    cudaUserObject_t object = nullptr;
    EXPECT_EQ(cudaUserObjectCreate(&object, &ended, Destructions::count_one, 1, 0),
              cudaErrorInvalidValue);  // the flag is compulsory
    CUDA_OK(cudaUserObjectCreate(&object, &ended, Destructions::count_one, 1,
                                 cudaUserObjectNoDestructorSync));
    CUDA_OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    note_node({}, 1);
    const cudaGraphExec_t exec = instantiate();
    CUDA_OK(cudaGraphDestroy(graph));
    graph = nullptr;
    EXPECT_EQ(ended.count, 0);
    Gate gate;
    gate.hold(stream);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaGraphExecDestroy(exec));
    sleep_ms(5);
    EXPECT_EQ(ended.count, 0);  // the launch in flight still needs it
    gate.open();
    ended.wait_for_one();
}

TEST_F(Graphs, ReferencesToUserObjectsAreCounted) {
    Destructions ended;
    cudaUserObject_t object = nullptr;
    CUDA_OK(cudaUserObjectCreate(&object, &ended, Destructions::count_one, 5,
                                 cudaUserObjectNoDestructorSync));
    CUDA_OK(cudaUserObjectRelease(object, 4));
    CUDA_OK(cudaGraphRetainUserObject(graph, object, 2, 0));
    CUDA_OK(cudaUserObjectRelease(object, 1));
    EXPECT_EQ(ended.count, 0);
    // The handle lives while any graph holds the object.
    CUDA_OK(cudaGraphRetainUserObject(graph, object, 1, 0));
    finish();
    CUDA_OK(cudaGraphDestroy(std::exchange(graph, nullptr)));
    EXPECT_EQ(ended.count, 1);
    EXPECT_EQ(cudaUserObjectRelease(object, 1), cudaErrorInvalidValue);
}

TEST_F(Graphs, AFaultInANodePoisonsTheDevice) {
    host_node(
        {}, [](void*) { throw cudaErrorIllegalAddress; }, nullptr);
    const cudaGraphExec_t exec = instantiate();
    ::testing::internal::CaptureStderr();
    CUDA_OK(cudaGraphLaunch(exec, stream));
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaErrorIllegalAddress);
    (void)::testing::internal::GetCapturedStderr();
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaDeviceReset());
    stream = make_stream();
    builder = make_stream();
}

}  // namespace
}  // namespace slimwire::testing
