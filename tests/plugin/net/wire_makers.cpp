#include "plugin/net/wrapped/wrapped_wire.h"
#include "tests/plugin/net/memory_wire.h"
#include "tests/plugin/net/wire_contract_fixture.h"
#ifdef SLIMWIRE_HAVE_UCX
#include "plugin/net/ucx/ucx_wire.h"
#endif

namespace slimwire::net {
namespace {

WireMaker memory_maker(std::string name, const MemoryWireOptions& options) {
    auto network = MemoryNetwork::make(options);
    return {.name = std::move(name),
            .make = [network]() -> Result<std::unique_ptr<Wire>> { return network->wire(); },
            .sends_ahead = options.eager_bytes > 0};
}

#ifdef SLIMWIRE_HAVE_UCX
// Over loopback; with other transports where `transports` names them, or without UCX.
WireMaker ucx_maker(std::string name, const std::string& transports, bool sockets = false) {
    return {.name = std::move(name), .make = [=]() -> Result<std::unique_ptr<Wire>> {
                UcxSettings settings = read_ucx_settings();
                settings.interfaces = "=lo";
                settings.transports = transports;
                settings.sockets = sockets;
                return open_ucx_wire(settings);
            }};
}
#endif

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
        list.push_back(memory_maker("throttled", {.refuse_send_every = 4}));
        list.back().throttle = make_throttle(2e9, 100'000, nullptr);
#ifdef SLIMWIRE_HAVE_UCX
        list.push_back(ucx_maker("ucx", ""));
        list.push_back(ucx_maker("ucxSharedMemory", "posix,cma"));
        list.push_back(ucx_maker("sockets", "", true));
#endif
        for (const char* version : {"8", "9", "10", "11", "12"}) {
            list.push_back({.name = std::string("wrapped") + version,
                            .make =
                                [version] {
                                    return open_wrapped_wire(
                                        std::string(SLIMWIRE_TEST_INNER) + version + ".so",
                                        nullptr);
                                },
                            .names_truncation = false});
        }
        return list;
    }();
    return makers;
}

}  // namespace slimwire::net
