#include "codecs/thc.h"

#include <algorithm>
#include <bit>

#include "codecs/host/chunks.h"
#include "codecs/host/single_elements.h"
#include "codecs/launch.h"
#include "codecs/numeric.h"
#include "codecs/thc_math.h"

namespace slimwire {
namespace {

uint32_t magnitude_of(float x) noexcept {
    return std::bit_cast<uint32_t>(x) & kMagnitudeMask;
}

// One group at a time, in the order of the message.
class Groups {
  public:
    explicit Groups(const ThcArgs& args)
        : args_(args),
          draw_(thc_draw(args.random,
                         args.random.step_ptr == nullptr
                             ? 0
                             : *device_view_as<const uint32_t>(args.random.step_ptr))),
          factor_(args.input == nullptr ? 1.0f
                                        : scale_factor(args.scale, args.scale_ptr, args.dtype)) {}

    // Begins with group `group`: where it lies, and its signs.
    void open(int64_t group) {
        group_ = group;
        begin_ = group * kThcGroup;
        elems_ = thc_group_elems(args_.count, group, args_.block);
        present_ = std::min(args_.count - begin_, elems_);
        for (uint32_t part = 0; part < kThcGroup / 128; ++part) {
            uint32_t x[4];
            thc_signs(draw_, group, part, x);
            std::copy_n(x, 4, signs_ + 4 * part);
        }
    }
    [[nodiscard]] int64_t elems() const noexcept { return elems_; }
    [[nodiscard]] int64_t present() const noexcept { return present_; }
    [[nodiscard]] int64_t begin() const noexcept { return begin_; }
    [[nodiscard]] const ThcDraw& draw() const noexcept { return draw_; }

    // The elements p, with zeros to the end of the last rotation.
    template <class Element>
    void load(const typename Element::Bits* input, const float* residual, float* p) const {
        for (int64_t i = 0; i < present_; ++i) {
            p[i] = factor_ * Element::get(input[begin_ + i]);
        }
        for (int64_t i = 0; residual != nullptr && i < present_; ++i) {
            p[i] = p[i] + residual[begin_ + i];
        }
        std::fill(p + present_, p + elems_, 0.0f);
    }
    void rotate(const float* p, float* y) const {
        const float part = 1.0f / static_cast<float>(args_.block);
        for (int64_t i = 0; i < elems_; ++i) {
            y[i] = flip(p[i] * part, i);
        }
        hadamard(y);
    }
    void rotate_back(float* y) const {
        hadamard(y);
        for (int64_t i = 0; i < elems_; ++i) {
            y[i] = flip(y[i], i);
        }
    }

  private:
    [[nodiscard]] float flip(float x, int64_t i) const noexcept {
        return thc_flip(x, signs_[i / 32], static_cast<uint32_t>(i % 32));
    }
    void hadamard(float* y) const {
        for (int64_t stride = 1; stride < args_.block; stride *= 2) {
            for (int64_t first = 0; first < elems_; first += 2 * stride) {
                for (int64_t i = first; i < first + stride; ++i) {
                    const float a = y[i];
                    const float b = y[i + stride];
                    y[i] = a + b;
                    y[i + stride] = a - b;
                }
            }
        }
    }

    const ThcArgs& args_;
    ThcDraw draw_;
    float factor_;
    int64_t group_ = 0, begin_ = 0, elems_ = 0, present_ = 0;
    uint32_t signs_[kThcGroup / 32];
};

}  // namespace

int64_t thc_groups(int64_t count) noexcept {
    return (count + kThcGroup - 1) / kThcGroup;
}

int64_t thc_words(int64_t count, int block, int levels, int ranks) noexcept {
    const int32_t bits = thc_field_bits(levels, ranks);
    const int64_t whole = count / kThcGroup;
    const int64_t rest = count % kThcGroup == 0 ? 0 : thc_group_elems(count, whole, block);
    return whole * thc_words_of(kThcGroup, bits) + thc_words_of(rest, bits);
}

void measure_thc_on_host(const ThcArgs& args) {
    if (args.count <= 0) {
        return;
    }
    const FloatEnvironment environment;
    auto* const scales = device_view_as<uint32_t>(args.scales);
    const auto* const residual = device_view_as<const float>(args.residual);
    Groups groups(args);
    visit_single(args.dtype, [&](auto element) {
        using Element = decltype(element);
        const auto* const input = device_view_as<const typename Element::Bits>(args.input);
        alignas(64) float p[kThcGroup], y[kThcGroup];
        for (int64_t g = 0; g < thc_groups(args.count); ++g) {
            groups.open(g);
            groups.template load<Element>(input, residual, p);
            groups.rotate(p, y);
            uint32_t largest = 0;
            for (int64_t i = 0; i < groups.elems(); ++i) {
                largest = std::max(largest, magnitude_of(y[i]));
            }
            scales[g] = largest >= kInfinityBits ? kNanFloat32 : largest;
        }
    });
}

void quantise_thc_on_host(const ThcArgs& args) {
    if (args.count <= 0) {
        return;
    }
    const FloatEnvironment environment;
    const auto* const scales = device_view_as<const uint32_t>(args.scales);
    auto* const residual = device_view_as<float>(args.residual);
    auto* words = device_view_as<uint64_t>(args.words);
    const int32_t bits = thc_field_bits(args.levels, args.ranks);
    const auto levels = static_cast<uint32_t>(args.levels);
    Groups groups(args);
    visit_single(args.dtype, [&](auto element) {
        using Element = decltype(element);
        const auto* const input = device_view_as<const typename Element::Bits>(args.input);
        alignas(64) float p[kThcGroup], y[kThcGroup];
        uint32_t level[kThcGroup];
        for (int64_t g = 0; g < thc_groups(args.count); ++g) {
            groups.open(g);
            const int64_t elems = groups.elems();
            const float reach = thc_reach(scales[g], args.clip);
            const int64_t number = thc_words_of(elems, bits);
            std::fill_n(words, number, uint64_t{0});
            if (reach > 0.0f) {
                groups.template load<Element>(input, residual, p);
                groups.rotate(p, y);
                const float steps = static_cast<float>(args.levels) * 0.5f / reach;
                const float half_step = reach / static_cast<float>(args.levels);
                for (int64_t i = 0; i < elems; i += 4) {
                    uint32_t x[4];
                    thc_rounding(groups.draw(), static_cast<uint64_t>(groups.begin() + i) / 4, x);
                    for (int64_t k = 0; k < 4; ++k) {
                        level[i + k] = thc_level(y[i + k], steps, levels, x[k]);
                    }
                }
                for (int64_t i = 0, field = 0; i < elems; i += number, field += bits) {
                    for (int64_t j = 0; j < std::min(number, elems - i); ++j) {
                        words[j] |= static_cast<uint64_t>(level[i + j]) << field;
                    }
                }
                if (residual != nullptr) {
                    for (int64_t i = 0; i < elems; ++i) {
                        y[i] = thc_value(static_cast<int32_t>(level[i]), args.levels, 1, half_step);
                    }
                    groups.rotate_back(y);
                }
            } else if (reach == 0.0f && residual != nullptr) {
                groups.template load<Element>(input, residual, p);
                std::fill_n(y, elems, 0.0f);
            }
            for (int64_t i = 0; reach >= 0.0f && residual != nullptr && i < groups.present(); ++i) {
                const float left = p[i] - y[i];
                if (magnitude_of(left) < kInfinityBits) {
                    residual[groups.begin() + i] = left;
                }
            }
            words += number;
        }
    });
}

void restore_thc_on_host(const ThcArgs& args) {
    if (args.count <= 0) {
        return;
    }
    const FloatEnvironment environment;
    const auto* const scales = device_view_as<const uint32_t>(args.scales);
    const auto* words = device_view_as<const uint64_t>(args.words);
    const int32_t bits = thc_field_bits(args.levels, args.ranks);
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    Groups groups(args);
    visit_single(args.dtype, [&](auto element) {
        using Element = decltype(element);
        auto* const output = device_view_as<typename Element::Bits>(args.output);
        alignas(64) float y[kThcGroup];
        for (int64_t g = 0; g < thc_groups(args.count); ++g) {
            groups.open(g);
            const int64_t elems = groups.elems();
            const int64_t number = thc_words_of(elems, bits);
            const float reach = thc_reach(scales[g], args.clip);
            if (reach > 0.0f) {
                const float half_step = reach / static_cast<float>(args.levels);
                for (int64_t i = 0, field = 0; i < elems; i += number, field += bits) {
                    for (int64_t j = 0; j < std::min(number, elems - i); ++j) {
                        y[i + j] = thc_value(static_cast<int32_t>(words[j] >> field & mask),
                                             args.levels, args.ranks, half_step);
                    }
                }
                groups.rotate_back(y);
            } else {
                std::fill_n(y, elems, reach);
            }
            for (int64_t i = 0; i < groups.present(); ++i) {
                output[groups.begin() + i] = Element::put(args.result * y[i]);
            }
            words += number;
        }
    });
}

Status enqueue(const DeviceApi& api, ThcStep step, const ThcArgs& args, cudaStream_t stream) {
    static const Operation<ThcArgs> kSteps[] = {
        {"measure", "thc", measure_thc_on_host, SLIMWIRE_KERNEL(measure_thc_on_cuda)},
        {"quantise", "thc", quantise_thc_on_host, SLIMWIRE_KERNEL(quantise_thc_on_cuda)},
        {"restore", "thc", restore_thc_on_host, SLIMWIRE_KERNEL(restore_thc_on_cuda)},
    };
    return enqueue_operation(api, kSteps[static_cast<size_t>(step)], args, stream);
}

}  // namespace slimwire
