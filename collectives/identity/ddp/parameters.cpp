#include "collectives/identity/ddp/parameters.h"

#include <algorithm>
#include <array>
#include <limits>
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
        if (!go_forward()) {
            return 2;
        }
        count_backward();
        const State* all = find(0, 0);
        return all != nullptr ? all->readings : 0;
    }

    // One of them; count() found some.
    [[nodiscard]] std::vector<ParameterShape> one() const {
        std::vector<ParameterShape> shapes;
        shapes.reserve(parameters_);
        for (size_t place = 0; place < places_;) {
            const size_t dimensions = find(place, static_cast<uint32_t>(shapes.size()))->dimensions;
            const auto sizes = sizes_at(place, dimensions);
            const auto strides = strides_at(place, dimensions);
            shapes.push_back({{sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}});
            place += dimensions;
        }
        return shapes;
    }

  private:
    // A place that can be reached with so many parameters before it.
    struct State {
        uint32_t read = 0;
        uint8_t readings = 0;    // from here to the end, as count() has them
        uint8_t dimensions = 0;  // of the next parameter in one of them
    };

    [[nodiscard]] std::span<const int64_t> sizes_at(size_t place, size_t dimensions) const {
        return values_.subspan(2 * place, dimensions);
    }
    [[nodiscard]] std::span<const int64_t> strides_at(size_t place, size_t dimensions) const {
        return values_.subspan(2 * place + dimensions, dimensions);
    }
    [[nodiscard]] const State* find(size_t place, uint32_t read) const {
        const std::vector<State>& here = states_[place];
        const auto at = std::lower_bound(
            here.begin(), here.end(), read,
            [](const State& state, uint32_t wanted) { return state.read < wanted; });
        return at != here.end() && at->read == read ? &*at : nullptr;
    }

    // Calls visit(dimensions) for each parameter that may stand here.
    template <class Visit>
    void each_parameter(size_t place, Visit&& visit) const {
        const size_t most = std::min(kMaxParameterDimensions, places_ - place);
        for (size_t dimensions = 1; dimensions <= most; ++dimensions) {
            if (memory_order(sizes_at(place, dimensions), strides_at(place, dimensions)) <=
                least_usual_) {
                visit(dimensions);
            }
        }
    }

    bool go_forward() {
        size_t made = 1;
        states_[0].push_back({});
        for (size_t place = 0; place < places_ && made <= kMaxStates; ++place) {
            std::vector<State>& here = states_[place];
            if (here.empty()) {
                continue;
            }
            const auto by_read = [](const State& a, const State& b) { return a.read < b.read; };
            const auto equal = [](const State& a, const State& b) { return a.read == b.read; };
            std::sort(here.begin(), here.end(), by_read);
            here.erase(std::unique(here.begin(), here.end(), equal), here.end());
            each_parameter(place, [&](size_t dimensions) {
                const uint64_t left = places_ - place - dimensions;
                for (const State& state : here) {
                    const uint64_t after = parameters_ - state.read - 1;
                    if (after <= left && left <= after * kMaxParameterDimensions) {
                        states_[place + dimensions].push_back({state.read + 1});
                        ++made;
                    }
                }
            });
        }
        if (!states_[places_].empty()) {
            states_[places_] = {State{static_cast<uint32_t>(parameters_), 1, 0}};
        }
        return made <= kMaxStates;
    }

    void count_backward() {
        for (size_t place = places_; place-- > 0;) {
            if (states_[place].empty()) {
                continue;
            }
            each_parameter(place, [&](size_t dimensions) {
                for (State& state : states_[place]) {
                    const State* next = find(place + dimensions, state.read + 1);
                    if (next != nullptr && next->readings > 0) {
                        state.readings =
                            static_cast<uint8_t>(std::min(state.readings + next->readings, 2));
                        state.dimensions = static_cast<uint8_t>(dimensions);
                    }
                }
            });
        }
    }

    std::span<const int64_t> values_;
    uint64_t parameters_;
    MemoryOrder least_usual_;
    size_t places_;
    std::vector<std::vector<State>> states_;  // by place, ascending in `read`
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
