#include "plugin/net/throttle.h"
#include "tests/plugin/net/memory_wire.h"
#include "tests/plugin/net/wire_contract.h"

namespace slimwire::net {
namespace {

WireMaker memory_maker(std::string name, const MemoryWireOptions& options) {
    auto network = MemoryNetwork::make(options);
    return {std::move(name),
            [network]() -> Result<std::unique_ptr<Wire>> { return network->wire(); }};
}

}  // namespace

const std::vector<WireMaker>& wire_makers() {
    static const std::vector<WireMaker> makers = [] {
        std::vector<WireMaker> list;
        list.push_back(memory_maker("memory", {}));
        list.push_back(memory_maker("memoryEager", {.eager_bytes = 64 << 10}));
        list.push_back(memory_maker("memoryHesitant", {.refuse_send_every = 3,
                                                       .refuse_receive_every = 2,
                                                       .delay_ns = 200'000,
                                                       .bytes_per_call = 5000}));
        list.push_back({"throttled",
                        [network = MemoryNetwork::make(
                             {.refuse_send_every = 4})]() -> Result<std::unique_ptr<Wire>> {
                            return make_throttled_wire(network->wire(), 2e9, 100'000);
                        }});
        return list;
    }();
    return makers;
}

}  // namespace slimwire::net
