#include "collectives/state/residual_map.h"

#include <algorithm>
#include <cmath>

#include "codecs/residual/load_store.h"

namespace slimwire {
namespace {

struct MapBytes {
    uint32_t type, contributors;
    double unit;
    uint64_t state_bytes, stored_elems, elems, runs;
};
// Behind the runs, where parameters are known.
struct ParametersBytes {
    uint64_t model, parameters;
};
static_assert(sizeof(MapBytes) == 48 && sizeof(ResidualMap::Run) == 32 &&
              sizeof(ParametersBytes) == 16 && sizeof(ResidualMap::Parameter) == 24);

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
    std::vector<std::byte> bytes;
    const auto add = [&](std::span<const std::byte> more) {
        bytes.insert(bytes.end(), more.begin(), more.end());
    };
    add(std::as_bytes(std::span(&head, 1)));
    add(std::as_bytes(std::span(map.runs)));
    if (map.model != 0 || !map.names.empty()) {
        const ParametersBytes of{map.model, map.parameters.size()};
        add(std::as_bytes(std::span(&of, 1)));
        add(std::as_bytes(std::span(map.parameters)));
    }
    for (const ResidualMap::Name& name : map.names) {
        add(std::as_bytes(std::span(&name.pieces, 1)));
        add(std::as_bytes(std::span(name.text.c_str(), name.text.size() + 1)));
    }
    return bytes;
}

LastingTensor by_name(const LastingTensor& tensor, const ResidualMap& map) noexcept {
    return map.model == 0 && !map.names.empty() ? named(tensor, map.names[0].text) : tensor;
}

LastingTensor parameter_of(LastingTensor bucket,
                           const ResidualMap& map,
                           size_t parameter,
                           bool with_name) noexcept {
    const ResidualMap::Parameter& one = map.parameters[parameter];
    bucket.signature.count = static_cast<uint64_t>(one.count);
    bucket.signature.ranges_id = 0;
    bucket.path = map.model;
    bucket.ordinal = one.index;
    if (with_name && !map.names.empty()) {
        bucket = named(bucket, map.names[parameter].text);
        bucket.signature.ranges_id = one.rows;
    }
    return bucket;
}

Result<ResidualMap> residual_map_of(std::span<const std::byte> bytes, uint64_t tensor_bytes) {
    // Whether there were so many.
    const auto take = [&bytes]<class T>(std::vector<T>* values, uint64_t count) {
        if (count > bytes.size() / sizeof(T)) {
            return false;
        }
        values->resize(count);
        const auto to = std::as_writable_bytes(std::span(*values));
        std::copy_n(bytes.begin(), to.size(), to.begin());
        bytes = bytes.subspan(to.size());
        return true;
    };
    std::vector<MapBytes> heads;
    std::vector<ParametersBytes> of(1);
    ResidualMap map;
    if (!take(&heads, 1) || !take(&map.runs, heads[0].runs) ||
        (!bytes.empty() && (!take(&of, 1) || !take(&map.parameters, of[0].parameters) ||
                            (of[0].model == 0 && (bytes.empty() || !map.parameters.empty()))))) {
        return damaged();
    }
    std::vector<uint32_t> pieces;
    while (!bytes.empty()) {
        if (!take(&pieces, 1)) {
            return damaged();
        }
        const auto end = std::find(bytes.begin(), bytes.end(), std::byte{0});
        const bool plain = std::all_of(bytes.begin(), end, [](std::byte one) {
            return one >= std::byte{' '} && one <= std::byte{'~'};
        });
        if (end == bytes.begin() || end == bytes.end() || !plain) {
            return damaged();
        }
        const auto length = static_cast<size_t>(end - bytes.begin());
        map.names.push_back(
            {std::string(reinterpret_cast<const char*>(bytes.data()), length), pieces[0]});
        bytes = bytes.subspan(length + 1);
    }
    if (!map.names.empty() &&
        map.names.size() != (of[0].model != 0 ? map.parameters.size() : size_t{1})) {
        return damaged();
    }
    const MapBytes& head = heads[0];
    constexpr uint64_t kMost = uint64_t{1} << 48;
    if (head.type > static_cast<uint32_t>(ResidualType::kInt8) || !std::isfinite(head.unit) ||
        !(head.unit > 0) || head.stored_elems > kMost || head.elems > kMost ||
        head.state_bytes > tensor_bytes ||
        (head.type == static_cast<uint32_t>(ResidualType::kInt8) &&
         head.stored_elems % kResidualBlock != 0)) {
        return damaged();
    }
    map.type = static_cast<ResidualType>(head.type);
    map.contributors = head.contributors;
    map.unit = head.unit;
    map.state_bytes = head.state_bytes;
    map.stored_elems = head.stored_elems;
    map.elems = head.elems;
    map.model = of[0].model;
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
    for (const ResidualMap::Parameter& one : map.parameters) {
        if (one.at < 0 || one.count <= 0 || static_cast<uint64_t>(one.at) > map.elems ||
            static_cast<uint64_t>(one.count) > map.elems - static_cast<uint64_t>(one.at)) {
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
