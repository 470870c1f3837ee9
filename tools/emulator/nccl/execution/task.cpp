#include "tools/emulator/nccl/execution/task.h"

#include "plugin/net/abi/tuner.h"

namespace slimwire::emu {
namespace {

struct Names {
    const char* name;
    net::TunedCollective function;
};

Names names_of(TaskKind kind) noexcept {
    using net::TunedCollective;
    switch (kind) {
        case TaskKind::kAllReduce:
            return {"AllReduce", TunedCollective::kAllReduce};
        case TaskKind::kReduce:
            return {"Reduce", TunedCollective::kReduce};
        case TaskKind::kReduceScatter:
            return {"ReduceScatter", TunedCollective::kReduceScatter};
        case TaskKind::kAllGather:
            return {"AllGather", TunedCollective::kAllGather};
        case TaskKind::kBroadcast:
            return {"Broadcast", TunedCollective::kBroadcast};
        case TaskKind::kSend:
            return {"Send", TunedCollective::kSend};
        case TaskKind::kRecv:
            break;
    }
    return {"Recv", TunedCollective::kRecv};
}

}  // namespace

const char* task_name(TaskKind kind) noexcept {
    return names_of(kind).name;
}

int task_function(TaskKind kind) noexcept {
    return static_cast<int>(names_of(kind).function);
}

}  // namespace slimwire::emu
