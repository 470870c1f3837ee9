#include "tools/emulator/nccl/execution/reduce.h"

#include <cstring>
#include <type_traits>

#include "codecs/base/element_types.h"

namespace slimwire::emu {
namespace {

using element_types::visit_element;

// Integer arithmetic wraps; small types are computed unsigned and cut back.
template <class T>
T wrapping_add(T a, T b) noexcept {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
        return a + b;
    }
}

template <class T>
T wrapping_multiply(T a, T b) noexcept {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        // 64 bits: unsigned char and short would be promoted to signed int.
        return static_cast<T>(static_cast<U>(uint64_t{static_cast<U>(a)} * static_cast<U>(b)));
    } else {
        return a * b;
    }
}

// A NaN loses against a number, as with fmax.
template <class T>
T larger(T a, T b) noexcept {
    return a > b || b != b ? a : b;
}

template <class T>
T smaller(T a, T b) noexcept {
    return a < b || b != b ? a : b;
}

template <ReduceOp kOp, class T>
T apply(T a, T b) noexcept {
    if constexpr (kOp == ReduceOp::kSum) {
        return wrapping_add(a, b);
    } else if constexpr (kOp == ReduceOp::kProd) {
        return wrapping_multiply(a, b);
    } else if constexpr (kOp == ReduceOp::kMax) {
        return larger(a, b);
    } else {
        return smaller(a, b);
    }
}

template <class Element>
typename Element::Compute scale_of(const PreScale& scale) noexcept {
    typename Element::Storage element;
    memcpy(&element, scale.element, sizeof element);
    return Element::load(element);
}

// The scaled input is rounded to the element type before it is reduced.
template <class Element>
typename Element::Compute scaled(typename Element::Storage x,
                                 typename Element::Compute factor) noexcept {
    return Element::load(Element::store(wrapping_multiply(Element::load(x), factor)));
}

template <class Element, ReduceOp kOp>
void reduce_loop(void* output, const void* a, const void* b, size_t count, const PreScale& scale) {
    using Storage = typename Element::Storage;
    auto* out = static_cast<Storage*>(output);
    const auto* x = static_cast<const Storage*>(a);
    const auto* y = static_cast<const Storage*>(b);
    if (scale.enabled) {
        const auto factor = scale_of<Element>(scale);
#pragma GCC ivdep
        for (size_t i = 0; i < count; ++i) {
            out[i] = Element::store(apply<kOp>(Element::load(x[i]), scaled<Element>(y[i], factor)));
        }
        return;
    }
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
        out[i] = Element::store(apply<kOp>(Element::load(x[i]), Element::load(y[i])));
    }
}

}  // namespace

void reduce_elements(DType type,
                     ReduceOp op,
                     void* output,
                     const void* a,
                     const void* b,
                     size_t count,
                     const PreScale& scale) {
    visit_element(type, [&](auto element) {
        using Element = decltype(element);
        switch (op) {
            case ReduceOp::kSum:
                return reduce_loop<Element, ReduceOp::kSum>(output, a, b, count, scale);
            case ReduceOp::kProd:
                return reduce_loop<Element, ReduceOp::kProd>(output, a, b, count, scale);
            case ReduceOp::kMax:
                return reduce_loop<Element, ReduceOp::kMax>(output, a, b, count, scale);
            case ReduceOp::kMin:
                return reduce_loop<Element, ReduceOp::kMin>(output, a, b, count, scale);
        }
    });
}

void scale_elements(
    DType type, void* output, const void* input, size_t count, const PreScale& scale) {
    visit_element(type, [&](auto element) {
        using Element = decltype(element);
        using Storage = typename Element::Storage;
        auto* out = static_cast<Storage*>(output);
        const auto* in = static_cast<const Storage*>(input);
        const auto factor = scale_of<Element>(scale);
#pragma GCC ivdep
        for (size_t i = 0; i < count; ++i) {
            out[i] = Element::store(wrapping_multiply(Element::load(in[i]), factor));
        }
    });
}

void divide_integers(DType type, void* data, size_t count, int divisor) {
    visit_element(type, [&](auto element) {
        using Storage = typename decltype(element)::Storage;
        if constexpr (std::is_integral_v<typename decltype(element)::Compute>) {
            auto* values = static_cast<Storage*>(data);
            using Wide = std::conditional_t<std::is_signed_v<Storage>, int64_t, uint64_t>;
            for (size_t i = 0; i < count; ++i) {
                values[i] =
                    static_cast<Storage>(static_cast<Wide>(values[i]) / static_cast<Wide>(divisor));
            }
        }
    });
}

PreScale one_over(DType type, int n) {
    PreScale scale;
    visit_element(type, [&](auto element) {
        using Element = decltype(element);
        using Compute = typename Element::Compute;
        if constexpr (std::is_floating_point_v<Compute>) {
            const typename Element::Storage value =
                Element::store(static_cast<Compute>(1) / static_cast<Compute>(n));
            memcpy(scale.element, &value, sizeof value);
            scale.enabled = true;
        }
    });
    return scale;
}

}  // namespace slimwire::emu
