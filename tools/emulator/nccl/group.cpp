#include "tools/emulator/nccl/group.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tools/emulator/nccl/device.h"
#include "tools/emulator/nccl/link_spec.h"

namespace slimwire::emu {
namespace {

// What one group asks of one communicator.
struct CommWork {
    std::shared_ptr<Communicator> comm;
    std::vector<Task> tasks;
    std::vector<cudaStream_t> streams;  // in order of first use; the first one runs the job
    const char* name;
};

struct Group {
    int depth = 0;
    Status error;
    std::vector<CommWork> work;
    std::vector<std::function<Status()>> initialisations;

    void clear() {
        error = Status();
        work.clear();
        initialisations.clear();
    }
};

Group& group() {
    static thread_local Group group;
    return group;
}

// What a stream's worker runs. Jobs of captured graphs run many times and are never freed.
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

Result<bool> is_capturing(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    SLIMWIRE_TRY(cuda_check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing"));
    return status != cudaStreamCaptureStatusNone;
}

// All streams of a group are captured, or none is.
Result<bool> group_is_captured(const std::vector<CommWork>& work) {
    size_t captured = 0;
    size_t streams = 0;
    for (const CommWork& entry : work) {
        const DeviceScope device(entry.comm->device());
        for (cudaStream_t stream : entry.streams) {
            SLIMWIRE_TRY_ASSIGN(const bool capturing, is_capturing(stream));
            captured += capturing ? 1 : 0;
            ++streams;
        }
    }
    if (captured != 0 && captured != streams) {
        return Status(Code::kInvalidUsage,
                      "streams in a group must either all be captured or none of them");
    }
    return captured != 0;
}

// `later` waits for what is on `earlier` now.
Status join_streams(cudaStream_t earlier, cudaStream_t later) {
    cudaEvent_t event = nullptr;
    SLIMWIRE_TRY(cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                            "cudaEventCreateWithFlags"));
    Status status = cuda_check(cudaEventRecord(event, earlier), "cudaEventRecord");
    if (status.ok()) {
        status = cuda_check(cudaStreamWaitEvent(later, event, 0), "cudaStreamWaitEvent");
    }
    (void)cudaEventDestroy(event);
    return status;
}

Status launch_job(const CommWork& work, bool captured) {
    auto job = std::make_unique<Job>(Job{work.comm, work.tasks, captured});
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
    (void)job.release();
    return {};
}

Status launch(const CommWork& work, bool captured) {
    SLIMWIRE_TRY(work.comm->error());
    const DeviceScope device(work.comm->device());
    cudaStream_t main = work.streams.front();
    if (!captured) {
        SLIMWIRE_TRY(work.comm->order_before(main));
    }
    for (size_t i = 1; i < work.streams.size(); ++i) {
        SLIMWIRE_TRY(join_streams(work.streams[i], main));
    }
    SLIMWIRE_TRY(launch_job(work, captured));
    for (size_t i = 1; i < work.streams.size(); ++i) {
        SLIMWIRE_TRY(join_streams(main, work.streams[i]));
    }
    return captured ? Status() : work.comm->order_after(main);
}

Status run_initialisations(const std::vector<std::function<Status()>>& work) {
    std::vector<Status> results(work.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < work.size(); ++i) {
        threads.emplace_back([&, i] { results[i] = work[i](); });
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
                  const std::vector<std::function<Status()>>& initialisations) {
    SLIMWIRE_TRY(run_initialisations(initialisations));
    if (work.empty()) {
        return {};
    }
    SLIMWIRE_TRY_ASSIGN(const bool captured, group_is_captured(work));
    Status first;
    for (const CommWork& entry : work) {
        const Status status = launch(entry, captured);
        if (first.ok()) {
            first = status;
        }
    }
    return first;
}

Status unbalanced(const char* function) {
    return {Code::kInvalidUsage, std::string(function) + ": not in a group call"};
}

}  // namespace

int group_depth() noexcept {
    return group().depth;
}

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
    Group finished;
    std::swap(finished.error, current.error);
    std::swap(finished.work, current.work);
    std::swap(finished.initialisations, current.initialisations);
    SLIMWIRE_TRY(finished.error);
    return launch_all(finished.work, finished.initialisations);
}

Status group_simulate_end(float* microseconds) {
    Group& current = group();
    if (current.depth == 0) {
        return unbalanced("ncclGroupSimulateEnd");
    }
    if (--current.depth > 0) {
        return {};
    }
    const Status error = current.error;
    const char* text = getenv("SLIMWIRE_EMU_LINK");
    const Result<LinkSpec> link = parse_link_spec(text != nullptr ? text : "");
    double total_us = 0;
    for (const CommWork& work : current.work) {
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
    current.clear();
    *microseconds = static_cast<float>(total_us);
    return error;
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
        return launch_all({{comm, {task}, {stream}, name}}, {});
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

Status run_or_defer(std::function<Status()> work) {
    Group& current = group();
    if (current.depth == 0) {
        return work();
    }
    current.initialisations.push_back(std::move(work));
    return {};
}

}  // namespace slimwire::emu
