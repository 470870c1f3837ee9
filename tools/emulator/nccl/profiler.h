// The profiler plugin as one communicator has it: NCCL 2.28's events around a job and around what
// the proxies do between nodes.
//
//   group API > collective or p2p API      while a job is prepared
//   group, collective or p2p               likewise; they end before the proxies begin
//     proxy operation                      one for each operation, peer and direction
//       proxy step                         one for each message
//         net plugin                       started by the network through its callback
//
// Thread contract: make() and destruction by the client's threads; events from the thread that runs
// the communicator's job; the callback from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "plugin/net/abi/profiler.h"
#include "tools/emulator/nccl/task.h"

namespace slimwire::emu {

class Profiler {
  public:
    struct Place {
        uint64_t comm;
        std::string name;
        int nodes, ranks, rank;
    };
    // Null when there is no profiler: NCCL_PROFILER_PLUGIN or libnccl-profiler.so, else the library
    // of the net plugin, table version 5 or 4. One that fails to initialise is left aside with an
    // INFO line.
    static Result<std::unique_ptr<Profiler>> make(Place place);
    ~Profiler();
    Profiler(const Profiler&) = delete;
    Profiler& operator=(const Profiler&) = delete;

    // The kinds of events that are wanted now.
    [[nodiscard]] static int mask() noexcept;

    // Starts and ends the events of a job up to its tasks', and leaves their handles in them.
    void prepare(std::vector<Task>& tasks);
    void* start_proxy_operation(const net::ProfiledProxyOperation& operation, void* parent);
    void* start_proxy_step(int step, void* parent);
    void* start_net_plugin(int64_t id, void* data, void* parent);
    // Null handles are nothing.
    static void record(void* event,
                       net::ProfilerEventState state,
                       net::ProfilerStateArguments more);
    static void stop(void* event);

  private:
    explicit Profiler(Place place) : place_(std::move(place)) {}
    void* start(net::ProfilerEventV5& event);
    void* start_task(const Task& task, void* api, void* group);

    Place place_;
    void* context_ = nullptr;
    bool initialised_ = false;
    std::array<uint64_t, kTaskKinds> sequence_{};
};

}  // namespace slimwire::emu
