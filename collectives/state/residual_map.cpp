#include "collectives/state/residual_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/residual/load_store.h"

namespace slimwire {
namespace {

struct MapBytes {
    uint32_t type, contributors;
    double unit;
    uint64_t state_bytes, stored_elems, elems, runs;
};
static_assert(sizeof(MapBytes) == 48 && sizeof(ResidualMap::Run) == 32);

Status damaged() {
    return {Code::kInvalidUsage, "a map of residuals that do not lie in their tensor"};
}

}  // namespace

uint64_t ResidualMap::store_bytes() const noexcept {
    return stored_residual_bytes(type, stored_elems);
}

std::vector<std::byte> bytes_of(const ResidualMap& map) {
    const MapBytes head{static_cast<uint32_t>(map.type),
                        map.contributors,
                        map.unit,
                        map.state_bytes,
                        map.stored_elems,
                        map.elems,
                        map.runs.size()};
    std::vector<std::byte> bytes(sizeof head + map.runs.size() * sizeof(ResidualMap::Run));
    std::memcpy(bytes.data(), &head, sizeof head);
    std::memcpy(bytes.data() + sizeof head, map.runs.data(), bytes.size() - sizeof head);
    return bytes;
}

Result<ResidualMap> residual_map_of(std::span<const std::byte> bytes, uint64_t tensor_bytes) {
    MapBytes head{};
    if (bytes.size() < sizeof head) {
        return damaged();
    }
    std::memcpy(&head, bytes.data(), sizeof head);
    constexpr uint64_t kMost = uint64_t{1} << 48;
    if (head.type > static_cast<uint32_t>(ResidualType::kInt8) || !std::isfinite(head.unit) ||
        !(head.unit > 0) || head.stored_elems > kMost || head.elems > kMost ||
        head.state_bytes > tensor_bytes ||
        (head.type == static_cast<uint32_t>(ResidualType::kInt8) &&
         head.stored_elems % kResidualBlock != 0) ||
        (bytes.size() - sizeof head) / sizeof(ResidualMap::Run) != head.runs ||
        bytes.size() != sizeof head + head.runs * sizeof(ResidualMap::Run)) {
        return damaged();
    }
    ResidualMap map{static_cast<ResidualType>(head.type),
                    head.contributors,
                    head.unit,
                    head.state_bytes,
                    head.stored_elems,
                    head.elems,
                    std::vector<ResidualMap::Run>(head.runs)};
    std::memcpy(map.runs.data(), bytes.data() + sizeof head, bytes.size() - sizeof head);
    if (map.store_bytes() > tensor_bytes - map.state_bytes) {
        return damaged();
    }
    for (const ResidualMap::Run& run : map.runs) {
        if (run.begin < 0 || run.count < 0 || run.at < 0 || run.sums > 4 ||
            static_cast<uint64_t>(run.begin) > map.stored_elems ||
            static_cast<uint64_t>(run.count) >
                map.stored_elems - static_cast<uint64_t>(run.begin) ||
            static_cast<uint64_t>(run.at) > map.elems ||
            static_cast<uint64_t>(run.count) > map.elems - static_cast<uint64_t>(run.at) ||
            (map.type == ResidualType::kInt8 && run.begin % kResidualBlock != 0)) {
            return damaged();
        }
    }
    return map;
}

Status read_run(const ResidualMap& map,
                const ReadTensor& read,
                const ResidualMap::Run& run,
                int64_t first,
                std::span<float> out) {
    // Whole blocks, as a store of their own.
    const int64_t block = map.type == ResidualType::kInt8 ? kResidualBlock : 1;
    const int64_t wanted = run.begin + first;
    const int64_t begin = wanted / block * block;
    const int64_t elems =
        (wanted + static_cast<int64_t>(out.size()) - begin + block - 1) / block * block;
    const uint64_t width = map.type == ResidualType::kFloat32    ? sizeof(float)
                           : map.type == ResidualType::kBfloat16 ? sizeof(uint16_t)
                                                                 : 1;
    std::vector<std::byte> bytes(stored_residual_bytes(map.type, static_cast<uint64_t>(elems)));
    const std::span all(bytes);
    const uint64_t values = static_cast<uint64_t>(elems) * width;
    SLIMWIRE_TRY(read(map.state_bytes + static_cast<uint64_t>(begin) * width, all.first(values)));
    if (values < all.size()) {
        const uint64_t scales = map.stored_elems + static_cast<uint64_t>(begin / block) * 2;
        SLIMWIRE_TRY(read(map.state_bytes + scales, all.subspan(values)));
    }
    std::vector<float> loaded(static_cast<size_t>(elems));
    load_residual_on_host(
        {.stored = {bytes.data(), elems, 0, map.type}, .output = loaded.data(), .count = elems});
    std::copy_n(loaded.begin() + (wanted - begin), out.size(), out.begin());
    return {};
}

void write_run(const ResidualMap& map,
               std::byte* tensor,
               const ResidualMap::Run& run,
               std::span<const float> values) {
    store_residual_on_host({.stored = {tensor + map.state_bytes,
                                       static_cast<int64_t>(map.stored_elems), run.begin, map.type},
                            .input = values.data(),
                            .count = run.count,
                            .keep = 0,
                            .take = 1});
}

}  // namespace slimwire
