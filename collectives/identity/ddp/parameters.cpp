#include "collectives/identity/ddp/parameters.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>

namespace slimwire {
namespace {

// Beyond so many states the search is given up: some milliseconds.
constexpr size_t kMaxStates = size_t{1} << 18;
constexpr int64_t kMaxElements = int64_t{1} << 48;

// Whether the strides are those of a dense tensor whose dimensions lie in memory in this order,
// outermost first. Dimensions of no element count as one, as PyTorch has it.
bool strides_follow(std::span<const int64_t> sizes,
                    std::span<const int64_t> strides,
                    std::span<const size_t> order) noexcept {
    int64_t expected = 1;
    for (size_t i = order.size(); i-- > 0;) {
        const size_t dimension = order[i];
        if (sizes[dimension] < 0 || strides[dimension] != expected) {
            return false;
        }
        const int64_t size = std::max<int64_t>(sizes[dimension], 1);
        if (size > kMaxElements / expected) {
            return false;
        }
        expected *= size;
    }
    return true;
}

// All ways to cut the values into so many parameters. Each takes an even number of values, so
// places are counted in pairs.
class Readings {
  public:
    Readings(std::span<const int64_t> values, uint64_t parameters, MemoryOrder least_usual)
        : values_(values),
          parameters_(parameters),
          least_usual_(least_usual),
          places_(values.size() / 2),
          states_(places_ + 1) {}

    // 0, 1, or 2 for all beyond that, and where too many would have to be looked at.
    int count() {
        states_[places_][0] = {1, 0};
        size_t looks = 0;
        for (size_t place = places_; place-- > 0 && looks <= kMaxStates;) {
            const size_t most = std::min(kMaxParameterDimensions, places_ - place);
            for (size_t dimensions = 1; dimensions <= most; ++dimensions) {
                if (memory_order(sizes_at(place, dimensions), strides_at(place, dimensions)) <=
                    least_usual_) {
                    looks += read_one(place, dimensions);
                }
            }
        }
        const auto all = states_[0].find(parameters_);
        return looks > kMaxStates ? 2 : all == states_[0].end() ? 0 : all->second.readings;
    }

    // One of them; count() found some.
    [[nodiscard]] std::vector<ParameterShape> one() const {
        std::vector<ParameterShape> shapes;
        shapes.reserve(parameters_);
        for (size_t place = 0; place < places_;) {
            const size_t dimensions = states_[place].at(parameters_ - shapes.size()).dimensions;
            const auto sizes = sizes_at(place, dimensions);
            const auto strides = strides_at(place, dimensions);
            shapes.push_back({{sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}});
            place += dimensions;
        }
        return shapes;
    }

  private:
    // From a place to the end, with so many parameters.
    struct State {
        int readings = 0;       // as count() has them
        size_t dimensions = 0;  // of the first parameter in one of them
    };

    [[nodiscard]] std::span<const int64_t> sizes_at(size_t place, size_t dimensions) const {
        return values_.subspan(2 * place, dimensions);
    }
    [[nodiscard]] std::span<const int64_t> strides_at(size_t place, size_t dimensions) const {
        return values_.subspan(2 * place + dimensions, dimensions);
    }

    // A parameter stands at the place, before others that are read. Returns at how many it looked.
    size_t read_one(size_t place, size_t dimensions) {
        for (const auto& [after, read] : states_[place + dimensions]) {
            const uint64_t before = parameters_ - after - 1;  // have values of their own in front
            if (after < parameters_ && before <= place &&
                place <= before * kMaxParameterDimensions) {
                State& state = states_[place][after + 1];
                state = {std::min(state.readings + read.readings, 2), dimensions};
            }
        }
        return states_[place + dimensions].size();
    }

    std::span<const int64_t> values_;
    uint64_t parameters_;
    MemoryOrder least_usual_;
    size_t places_;
    std::vector<std::map<uint64_t, State>> states_;  // by place and number of parameters
};

}  // namespace

uint64_t ParameterShape::count() const noexcept {
    return std::accumulate(
        sizes.begin(), sizes.end(), uint64_t{1},
        [](uint64_t product, int64_t size) { return product * static_cast<uint64_t>(size); });
}

int64_t ParameterShape::rows() const noexcept {
    size_t outermost = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
        const bool farther = strides.size() == sizes.size() && strides[d] > strides[outermost];
        if (sizes[d] > 1 && (sizes[outermost] <= 1 || farther)) {
            outermost = d;
        }
    }
    return sizes.empty() ? 0 : sizes[outermost];
}

MemoryOrder memory_order(std::span<const int64_t> sizes,
                         std::span<const int64_t> strides) noexcept {
    const size_t dimensions = sizes.size();
    if (dimensions == 0 || dimensions > kMaxParameterDimensions) {
        return MemoryOrder::kNotDense;
    }
    std::array<size_t, kMaxParameterDimensions> order{};
    const std::span<size_t> used(order.data(), dimensions);
    std::iota(used.begin(), used.end(), size_t{0});
    if (strides_follow(sizes, strides, used)) {
        return MemoryOrder::kUsual;
    }
    if (dimensions == 4 || dimensions == 5) {
        std::rotate(used.begin() + 1, used.begin() + 2, used.end());
        if (strides_follow(sizes, strides, used)) {
            return MemoryOrder::kUsual;
        }
    }
    // Of equal strides all sizes but the outermost's are 1.
    std::sort(used.begin(), used.end(), [&](size_t a, size_t b) {
        return strides[a] != strides[b] ? strides[a] > strides[b] : sizes[a] > sizes[b];
    });
    return strides_follow(sizes, strides, used) ? MemoryOrder::kDense : MemoryOrder::kNotDense;
}

std::optional<std::vector<ParameterShape>> read_parameter_shapes(std::span<const int64_t> values,
                                                                 uint64_t parameters) {
    if (values.size() % 2 != 0 || parameters == 0 || parameters > values.size() / 2 ||
        values.size() > std::numeric_limits<uint32_t>::max()) {
        return std::nullopt;
    }
    for (const MemoryOrder least_usual : {MemoryOrder::kUsual, MemoryOrder::kDense}) {
        Readings readings(values, parameters, least_usual);
        if (const int count = readings.count(); count != 0) {
            return count == 1 ? std::optional(readings.one()) : std::nullopt;
        }
    }
    return std::nullopt;
}

}  // namespace slimwire
