#include "collectives/communicator/rank_places.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>

#include "codecs/base/emulator_abi.h"
#include "collectives/call/hash.h"
#include "collectives/call/log.h"
#include "topology/readers/discovery.h"
#include "topology/readers/machine_xml.h"

namespace slimwire {
namespace {

struct Found {
    Machine machine;
    Places places;
};

constexpr size_t kMostTopologyBytes = 16u << 20;

Result<Machine> read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string text(kMostTopologyBytes, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
    if (text.empty()) {
        return Status(Code::kNotFound, "cannot be read, or is empty");
    }
    return read_machine_xml(text);
}

Found find_machine(bool emulated) {
    Found found;
    bool have = false;
    if (const char* path = getenv("NCCL_TOPO_FILE"); path != nullptr && *path != 0) {
        Result<Machine> machine = read_file(path);
        have = machine.ok();
        if (have) {
            found.machine = std::move(machine).value();
        } else {
            log_line(LogLevel::kWarn, "NCCL_TOPO_FILE " + std::string(path) + ": " +
                                          machine.status().message() + "; not taken");
        }
    }
    if (!have && !emulated) {
        Discovery discovered = discover_machine();
        for (const std::string& line : discovered.log) {
            log_line(LogLevel::kInfo, line);
        }
        found.machine = std::move(discovered.machine);
    }
    found.places = find_places(found.machine, PathTable(found.machine));
    return found;
}

// "0000:17:00.0"; empty where CUDA does not say.
std::string bus_id_of(const DeviceApi& api, int device) {
    std::array<int, 3> parts{};
    constexpr std::array kAttributes = {cudaDevAttrPciDomainId, cudaDevAttrPciBusId,
                                        cudaDevAttrPciDeviceId};
    for (size_t i = 0; i < parts.size(); ++i) {
        if (!tolerate(api, api.device_get_attribute(&parts[i], kAttributes[i], device))) {
            return {};
        }
    }
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text = "0000:00:00.0";
    const auto put = [&](size_t at, size_t digits, int value) {
        for (size_t i = digits; i-- > 0; value >>= 4) {
            text[at + i] = kDigits[value & 15];
        }
    };
    put(0, 4, parts[0]);
    put(5, 2, parts[1]);
    put(8, 2, parts[2]);
    return text;
}

}  // namespace

RankPlace rank_place_of(Runtime& runtime, int device, uint64_t host_id) {
    RankPlace place;
    place.host_id = host_id;
    if (!runtime.device().ok() || !runtime.config.active) {
        return place;
    }
    const DeviceApi& api = runtime.api();
    const bool emulated = api.emulator != nullptr;
    static std::once_flag once;
    static Found* found = nullptr;  // outlives main, as the runtime does
    std::call_once(once, [&] { found = new Found(find_machine(emulated)); });
    size_t index = found->places.gpus.size();
    if (emulated) {
        index = static_cast<size_t>(device);
    } else {
        const std::string bus_id = bus_id_of(api, device);
        for (size_t i = 0; i < found->places.gpus.size(); ++i) {
            const auto gpu = static_cast<size_t>(found->places.gpus[i].gpu);
            index = found->machine.devices[gpu].bus_id == bus_id ? i : index;
        }
    }
    if (index < found->places.gpus.size()) {
        place = rank_place(found->machine, found->places, index, host_id);
    } else {
        place.gpu_id = stable_hash("device " + std::to_string(device)) ^ host_id;
    }
    if (runtime.config.settings.bandwidth_bits > 0) {
        place.net_mb_s =
            static_cast<uint32_t>(std::min(runtime.config.settings.bandwidth_bits / 8e6, 4e9));
    }
    return place;
}

}  // namespace slimwire
