#include "tools/emulator/nccl/execution/group.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tools/emulator/nccl/transport/device.h"
#include "tools/emulator/nccl/transport/shaper.h"

namespace slimwire::emu {
namespace {

// What one group asks of one communicator.
struct CommWork {
    std::shared_ptr<Communicator> comm;
    std::vector<Task> tasks;
    std::vector<cudaStream_t> streams;  // in order of first use; the first one runs the job
    const char* name;
};

struct Initialisation {
    std::function<Status()> run;
    std::vector<AsyncRef> busy;  // non-blocking communicators
};

struct Group {
    int depth = 0;
    Status error;
    std::vector<CommWork> work;
    std::vector<Initialisation> initialisations;

    // What was collected; the group is empty then.
    Group take() {
        Group taken;
        std::swap(taken.error, error);
        std::swap(taken.work, work);
        std::swap(taken.initialisations, initialisations);
        return taken;
    }
};

Group& group() {
    static thread_local Group group;
    return group;
}

// What a stream's worker runs. A job of a captured graph runs once in each replay and belongs to
// the graph; any other is freed by its run.
struct Job {
    std::shared_ptr<Communicator> comm;
    std::vector<Task> tasks;
    bool captured;
};

void run_job(const void* arguments) {
    Job* job = *static_cast<Job* const*>(arguments);
    if (job->captured) {
        job->comm->run_job(job->tasks, false);
        return;
    }
    const std::unique_ptr<Job> owned(job);
    job->comm->run_job(job->tasks, true);
}

// The graph into which the streams of one communicator are captured; null when they are not.
Result<cudaGraph_t> graph_of(const CommWork& work) {
    const DeviceScope device(work.comm->device());
    cudaGraph_t graph = nullptr;
    for (size_t i = 0; i < work.streams.size(); ++i) {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cudaGraph_t found = nullptr;
        SLIMWIRE_TRY(cuda_check(cudaStreamGetCaptureInfo(work.streams[i], &status, nullptr, &found,
                                                         nullptr, nullptr, nullptr),
                                "cudaStreamGetCaptureInfo"));
        if (status == cudaStreamCaptureStatusInvalidated) {
            return cuda_check(cudaErrorStreamCaptureInvalidated, work.name);
        }
        if (i > 0 && found != graph) {
            return Status(Code::kInvalidUsage,
                          "the streams that a group gives to a communicator must either all be "
                          "uncaptured or all captured by the same graph");
        }
        graph = found;
    }
    return graph;
}

// Lets the graph free the job when it, and all that was instantiated from it, is gone.
Status give_to_graph(cudaGraph_t graph, std::unique_ptr<Job> job) {
    cudaUserObject_t object = nullptr;
    SLIMWIRE_TRY(
        cuda_check(cudaUserObjectCreate(
                       &object, job.get(), [](void* pointer) { delete static_cast<Job*>(pointer); },
                       1, cudaUserObjectNoDestructorSync),
                   "cudaUserObjectCreate"));
    (void)job.release();
    return cuda_check(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove),
                      "cudaGraphRetainUserObject");
}

// `later` waits for what is on `earlier` now. NCCL's own events are made by cudaEventCreate, by
// which SLIMWIRE_EMU_FAULT tells them from others.
Status join_streams(cudaStream_t earlier, cudaStream_t later) {
    cudaEvent_t event = nullptr;
    SLIMWIRE_TRY(cuda_check(cudaEventCreate(&event), "cudaEventCreate"));
    Status status = cuda_check(cudaEventRecord(event, earlier), "cudaEventRecord");
    if (status.ok()) {
        status = cuda_check(cudaStreamWaitEvent(later, event, 0), "cudaStreamWaitEvent");
    }
    (void)cudaEventDestroy(event);
    return status;
}

Status launch_job(const CommWork& work, cudaGraph_t graph) {
    const bool captured = graph != nullptr;
    auto job = std::make_unique<Job>(Job{work.comm, work.tasks, captured});
    SLIMWIRE_TRY(work.comm->tune(&job->tasks));
    if (!captured) {
        work.comm->job_enqueued();
    }
    Job* pointer = job.get();
    const cudaError_t error =
        emulator_api().launch(work.streams.front(), run_job, &pointer, sizeof pointer, work.name);
    if (error != cudaSuccess) {
        if (!captured) {
            work.comm->job_dropped();
        }
        return cuda_check(error, work.name);
    }
    if (captured) {
        return give_to_graph(graph, std::move(job));
    }
    (void)job.release();
    return {};
}

// `graph` is what the streams are captured into; null when they are not.
Status before_job(const CommWork& work, cudaGraph_t graph) {
    SLIMWIRE_TRY(work.comm->error());
    cudaStream_t main = work.streams.front();
    SLIMWIRE_TRY(work.comm->order_before(main, graph != nullptr));
    for (size_t i = 1; i < work.streams.size(); ++i) {
        SLIMWIRE_TRY(join_streams(work.streams[i], main));
    }
    return {};
}

Status after_job(const CommWork& work, cudaGraph_t graph) {
    cudaStream_t main = work.streams.front();
    for (size_t i = 1; i < work.streams.size(); ++i) {
        SLIMWIRE_TRY(join_streams(main, work.streams[i]));
    }
    return work.comm->order_after(main, graph != nullptr);
}

Status run_initialisations(const std::vector<Initialisation>& work) {
    std::vector<Status> results(work.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < work.size(); ++i) {
        threads.emplace_back([&, i] {
            begin_own_thread();
            results[i] = work[i].run();
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const Status& result : results) {
        SLIMWIRE_TRY(result);
    }
    return {};
}

Status launch_all(const std::vector<CommWork>& work,
                  const std::vector<Initialisation>& initialisations) {
    SLIMWIRE_TRY(run_initialisations(initialisations));
    std::vector<cudaGraph_t> graphs;
    for (const CommWork& entry : work) {
        SLIMWIRE_TRY_ASSIGN(cudaGraph_t const graph, graph_of(entry));
        graphs.push_back(graph);
    }
    // As in NCCL, no job of the group is behind what waits for another: they may need each other.
    std::vector<Status> results(work.size());
    for (const auto step : {before_job, launch_job, after_job}) {
        for (size_t i = 0; i < work.size(); ++i) {
            const DeviceScope device(work[i].comm->device());
            results[i] = results[i].ok() ? step(work[i], graphs[i]) : results[i];
        }
    }
    const auto failed = std::find_if(results.begin(), results.end(),
                                     [](const Status& result) { return !result.ok(); });
    return failed != results.end() ? *failed : Status();
}

// Tells the initialisations of a group that they will not run.
Status drop(const Group& group, const Status& why) {
    for (const Initialisation& initialisation : group.initialisations) {
        for (const AsyncRef& state : initialisation.busy) {
            state->finish(why);
        }
    }
    return why;
}

// Launches on this thread, or in the background when the communicators are non-blocking.
Status launch_group(Group group) {
    std::vector<AsyncRef> started;
    bool blocking = false;
    for (const Initialisation& initialisation : group.initialisations) {
        blocking = blocking || initialisation.busy.empty();
        started.insert(started.end(), initialisation.busy.begin(), initialisation.busy.end());
    }
    std::vector<AsyncRef> launching;
    for (const CommWork& work : group.work) {
        blocking = blocking || work.comm->async() == nullptr;
        if (work.comm->async() != nullptr) {
            launching.push_back(work.comm->async());
        }
    }
    if (started.empty() && launching.empty()) {
        return launch_all(group.work, group.initialisations);
    }
    if (blocking) {
        return drop(group, {Code::kInvalidArgument,
                            "blocking and non-blocking communicators are not allowed in the same "
                            "group"});
    }
    for (const AsyncRef& state : launching) {
        state->start();
        started.push_back(state);
    }
    // The legacy stream is the calling thread's current device's; what is launched uses the
    // communicators' devices anyway.
    run_in_background(
        [work = std::move(group.work), initialisations = std::move(group.initialisations)] {
            return launch_all(work, initialisations);
        },
        std::move(started));
    return {};
}

Status unbalanced(const char* function) {
    return {Code::kInvalidUsage, std::string(function) + ": not in a group call"};
}

}  // namespace

void group_start() noexcept {
    ++group().depth;
}

Status group_end() {
    Group& current = group();
    if (current.depth == 0) {
        return unbalanced("ncclGroupEnd");
    }
    if (--current.depth > 0) {
        return {};
    }
    // Launching may call back into this library; the group is over by then.
    Group finished = current.take();
    if (!finished.error.ok()) {
        return drop(finished, finished.error);
    }
    return launch_group(std::move(finished));
}

Status group_simulate_end(float* microseconds) {
    Group& current = group();
    if (current.depth == 0) {
        return unbalanced("ncclGroupSimulateEnd");
    }
    if (--current.depth > 0) {
        return {};
    }
    const Group dropped = current.take();
    (void)drop(dropped, {Code::kInvalidUsage, "dropped by ncclGroupSimulateEnd"});
    const char* text = getenv("SLIMWIRE_EMU_LINK");
    const Result<LinkSpec> link = parse_link_spec(text != nullptr ? text : "");
    double total_us = 0;
    for (const CommWork& work : dropped.work) {
        for (const Task& task : work.tasks) {
            const double n = work.comm->size();
            const double bytes = static_cast<double>(task.count * task.element_bytes());
            const double passes = task.kind == TaskKind::kAllReduce       ? 2 * (n - 1) / n
                                  : task.kind == TaskKind::kAllGather     ? n - 1
                                  : task.kind == TaskKind::kReduceScatter ? n - 1
                                                                          : 1;
            if (link.ok() && link.value().shaped()) {
                total_us += bytes * passes * 8e6 / link.value().bits_per_second;
                total_us += static_cast<double>(link.value().latency_ns) / 1000;
            }
        }
    }
    *microseconds = static_cast<float>(total_us);
    return dropped.error;
}

Status group_error(const Status& status) {
    Group& current = group();
    if (current.depth > 0 && current.error.ok()) {
        current.error = status;
    }
    return status;
}

Status enqueue(const std::shared_ptr<Communicator>& comm,
               const Task& task,
               cudaStream_t stream,
               const char* name) {
    Group& current = group();
    if (current.depth == 0) {
        Group single;
        single.work.push_back({comm, {task}, {stream}, name});
        return launch_group(std::move(single));
    }
    auto entry = std::find_if(current.work.begin(), current.work.end(),
                              [&](const CommWork& work) { return work.comm == comm; });
    if (entry == current.work.end()) {
        current.work.push_back({comm, {}, {}, name});
        entry = current.work.end() - 1;
    }
    entry->tasks.push_back(task);
    if (std::find(entry->streams.begin(), entry->streams.end(), stream) == entry->streams.end()) {
        entry->streams.push_back(stream);
    }
    return {};
}

Status run_or_defer(std::function<Status()> work, std::vector<AsyncRef> busy) {
    Group& current = group();
    if (!busy.empty()) {
        mark_in_progress();
    }
    if (current.depth > 0) {
        current.initialisations.push_back({std::move(work), std::move(busy)});
        return {};
    }
    if (busy.empty()) {
        return work();
    }
    run_in_background(std::move(work), std::move(busy));
    return {};
}

}  // namespace slimwire::emu
