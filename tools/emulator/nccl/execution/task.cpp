#include "tools/emulator/nccl/execution/task.h"

#include "plugin/net/abi/tuner.h"

namespace slimwire::emu {
namespace {

using net::TunedCollective;

constexpr struct {
    const char* name;
    TunedCollective function;
} kKinds[] = {{"AllReduce", TunedCollective::kAllReduce},
              {"Reduce", TunedCollective::kReduce},
              {"ReduceScatter", TunedCollective::kReduceScatter},
              {"AllGather", TunedCollective::kAllGather},
              {"Broadcast", TunedCollective::kBroadcast},
              {"Send", TunedCollective::kSend},
              {"Recv", TunedCollective::kRecv}};

}  // namespace

const char* task_name(TaskKind kind) noexcept {
    return kKinds[static_cast<size_t>(kind)].name;
}

int task_function(TaskKind kind) noexcept {
    return static_cast<int>(kKinds[static_cast<size_t>(kind)].function);
}

}  // namespace slimwire::emu
