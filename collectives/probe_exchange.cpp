#include "collectives/probe_exchange.h"

#include "collectives/comm_state.h"

namespace slimwire {

Status ProbeExchange::exchange(int /*phase*/) {
    const CollectiveCall& call = context_.call;
    return nccl_status(
        context_.nccl,
        context_.nccl.AllReduce(call.send, call.recv, context_.plan.facts.count, call.nccl_dtype,
                                call.nccl_op, context_.state.exchange_comm, context_.work),
        "ncclAllReduce of a probe of max_error");
}

}  // namespace slimwire
