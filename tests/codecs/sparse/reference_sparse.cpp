// The sparsifiers of the reference: FORMAT.md, "Sparse", once more, slowly. Elements are sorted,
// bits are put one at a time, values go through the reference of the casts and block integers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "tests/codecs/reference.h"

namespace slimwire::reference {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr float kSparseNan = std::numeric_limits<float>::quiet_NaN();

uint32_t order_of(float p) {
    return std::isnan(p) ? 0x7FC00000u : std::bit_cast<uint32_t>(p) & 0x7FFFFFFFu;
}

int64_t up(int64_t a, int64_t b) {
    return (a + b - 1) / b * b;
}

int64_t share(float fraction, int64_t count) {
    const auto exact = static_cast<int64_t>(
        std::floor(static_cast<double>(fraction) * static_cast<double>(count) + 0.5));
    return std::min(std::max<int64_t>(exact, 1), count);
}

bool named(const CodecSpec& spec, const char* name) {
    return std::string(spec.codec->name) == name;
}

enum Form { kBitmap, kBytes, kPairs, kEliasFano };

struct SparseLayout {
    int64_t n;
    int64_t capacity = 0;
    int64_t group = 0;
    int64_t groups = 0;
    int form = -1;
    int64_t indices = 0;
    int64_t lows = 0;  // of form 3, behind the bits
    int64_t values = 0;
    int64_t size = 0;
    CodecSpec integers;  // of the values, no codec where they are native
};

// Bytes that hold a bit of each value, and one of each 16 elements, in whole words.
int64_t elias_bits(int64_t n, int64_t c) {
    return 4 * (c / 32 + up(n, 512) / 512 + up(n, 8192) / 8192);
}

SparseLayout layout_of(const CodecSpec& spec, DType dtype, int64_t n) {
    SparseLayout layout;
    layout.n = n;
    int64_t table = 0;
    std::vector<std::pair<int64_t, int64_t>> forms;  // table and indices of each
    const bool chosen = named(spec, "topk") || named(spec, "threshold");
    const CodecParams& params = spec.params;
    if (chosen) {
        const int64_t c = layout.capacity = share(params.fraction, n);
        const int64_t spans = up(n, 8192) / 8192;
        forms = {{4 * spans, up(n, 8) / 8},
                 {40 * spans, c},
                 {up(n, 65536) / 65536 * 4, 2 * c},
                 {4 * spans, elias_bits(n, c) + up(c, 2) / 2 + spans}};
    } else if (named(spec, "randomk")) {
        layout.groups = share(params.fraction, up(n, 32) / 32);
        layout.capacity = 32 * layout.groups;
    } else {
        layout.group = named(spec, "rowtopk") ? params.row : params.block;
        layout.groups = up(n, layout.group) / layout.group;
        layout.capacity = layout.groups * params.kept;
        const int64_t never = std::numeric_limits<int64_t>::max() / 2;
        forms = {{0, layout.groups * (up(layout.group, 8) / 8)},
                 {0, layout.group <= 256 ? layout.capacity : never},
                 {0, 2 * layout.capacity}};
    }
    int64_t index_bytes = 0;
    for (size_t i = 0; i < forms.size(); ++i) {
        const auto [t, b] = forms[i];
        if (i == 0 || t + b < table + index_bytes) {
            layout.form = static_cast<int>(i);
            table = t;
            index_bytes = b;
        }
    }
    const int64_t header = layout.group != 0 ? 0 : 16;
    layout.indices = up(header + table, 16);
    layout.lows = layout.indices + elias_bits(n, layout.capacity);
    layout.values = up(layout.indices + index_bytes, 16);
    if (params.values == static_cast<uint8_t>(ValueFormat::kNative)) {
        layout.size = layout.values + layout.capacity * static_cast<int64_t>(dtype_bytes(dtype));
    } else {
        const bool wide = params.values == static_cast<uint8_t>(ValueFormat::kInt8);
        layout.integers = parse_codec(wide ? "int8" : "int4").value();
        layout.size =
            layout.values + layout.integers.encoded_bytes(DType::kFloat32, layout.capacity);
    }
    return layout;
}

void put_word(Bytes& bytes, int64_t at, uint64_t word, int width = 4) {
    put_bits(bytes.data(), 8 * at, 8 * width, static_cast<uint32_t>(word));
}
uint32_t sparse_get_word(const uint8_t* bytes, int width = 4) {
    return get_bits(bytes, 0, 8 * width);
}
void put_bit(Bytes& bytes, int64_t at, int64_t bit) {
    put_bits(bytes.data(), 8 * at + bit, 1, 1);
}

void put_values(Bytes& bytes, const SparseLayout& layout, DType dtype, std::vector<float> p) {
    if (layout.integers.codec != nullptr) {
        p.resize(static_cast<size_t>(layout.capacity));
        const Bytes blocks = *encode(layout.integers, p);
        std::copy(blocks.begin(), blocks.end(),
                  bytes.begin() + static_cast<std::ptrdiff_t>(layout.values));
        return;
    }
    for (size_t i = 0; i < p.size(); ++i) {
        double value = p[i];
        if (dtype != DType::kFloat32 && std::isfinite(value)) {
            const double most =
                dtype == DType::kFloat16 ? kFloat16.max_finite : kBfloat16.max_finite;
            value = std::clamp(value, -most, most);
        }
        set_element(bytes.data() + layout.values, dtype, static_cast<int64_t>(i),
                    static_cast<float>(value));
    }
}

std::vector<float> get_values(const uint8_t* bytes, const SparseLayout& layout, DType dtype) {
    if (layout.integers.codec != nullptr) {
        return decode(layout.integers, bytes + layout.values, layout.capacity);
    }
    std::vector<float> values(static_cast<size_t>(layout.capacity));
    for (int64_t i = 0; i < layout.capacity; ++i) {
        values[static_cast<size_t>(i)] = element(bytes + layout.values, dtype, i);
    }
    return values;
}

// The k largest of positions [first, end), p being zero past its end; ascending.
std::vector<int64_t> largest_of(const std::vector<float>& p,
                                int64_t first,
                                int64_t end,
                                int64_t k) {
    const auto order = [&](int64_t i) {
        return i < static_cast<int64_t>(p.size()) ? order_of(p[static_cast<size_t>(i)]) : 0;
    };
    std::vector<int64_t> at(static_cast<size_t>(end - first));
    std::iota(at.begin(), at.end(), first);
    std::stable_sort(at.begin(), at.end(),
                     [&](int64_t a, int64_t b) { return order(a) > order(b); });
    at.resize(static_cast<size_t>(k));
    std::sort(at.begin(), at.end());
    return at;
}

void put_positions(Bytes& bytes, const SparseLayout& layout, const std::vector<int64_t>& sent) {
    const int64_t unit = layout.form == kPairs ? 65536 : 8192;
    const int64_t entry = layout.form == kBytes ? 40 : 4;
    size_t next = 0;
    for (int64_t u = 0; u * unit < layout.n; ++u) {
        const int64_t start = static_cast<int64_t>(next);
        put_word(bytes, 16 + entry * u, next);
        std::vector<int> counts(32);
        for (; next < sent.size() && sent[next] < (u + 1) * unit; ++next) {
            const int64_t at = sent[next];
            const int64_t number = static_cast<int64_t>(next);
            if (layout.form == kBitmap) {
                put_bit(bytes, layout.indices, at);
            } else if (layout.form == kBytes) {
                put_word(bytes, layout.indices + number, static_cast<uint64_t>(at % 256), 1);
                ++counts[static_cast<size_t>(at % 8192 / 256)];
            } else if (layout.form == kPairs) {
                put_word(bytes, layout.indices + 2 * number, static_cast<uint64_t>(at % 65536), 2);
            } else {
                const int64_t inside = at % 8192;
                put_bit(bytes, layout.indices,
                        32 * (start / 32 + 17 * u) + inside / 16 + number - start);
                const int64_t half = 2 * (up(start, 2) / 2 + u) + number - start;
                bytes[static_cast<size_t>(layout.lows + half / 2)] |=
                    static_cast<uint8_t>(inside % 16 << (half % 2 * 4));
            }
        }
        for (int s = 0; layout.form == kBytes && s < 32; ++s) {
            const int count = counts[static_cast<size_t>(s)];
            put_word(bytes, 16 + 40 * u + 8 + s, static_cast<uint64_t>(count % 256), 1);
            if (count == 256) {
                put_bit(bytes, 16 + 40 * u + 4, s);
            }
        }
    }
}

// (position, number of the value) of every value that has a place.
using Places = std::vector<std::pair<int64_t, int64_t>>;

// Ascending positions base + list[i] for values [start, end).
void take_list(Places& places,
               const uint8_t* list,
               int width,
               int64_t base,
               int64_t limit,
               int64_t start,
               int64_t end) {
    int64_t before = -1;
    for (int64_t i = start; i < end; ++i) {
        const int64_t at = sparse_get_word(list + i * width, width);
        if (at <= before || base + at >= limit) {
            return;
        }
        places.emplace_back(base + at, i);
        before = at;
    }
}

void take_bits(
    Places& places, const uint8_t* bits, int64_t base, int64_t elems, int64_t start, int64_t end) {
    for (int64_t i = 0; i < elems && start < end; ++i) {
        if ((bits[i / 8] >> (i % 8) & 1) != 0) {
            places.emplace_back(base + i, start++);
        }
    }
}

Places get_positions(const uint8_t* bytes, const SparseLayout& layout) {
    Places places;
    const int64_t kept = std::min<int64_t>(sparse_get_word(bytes), layout.capacity);
    const int64_t unit = layout.form == kPairs ? 65536 : 8192;
    const int64_t entry = layout.form == kBytes ? 40 : 4;
    const uint8_t* indices = bytes + layout.indices;
    for (int64_t u = 0; u * unit < layout.n; ++u) {
        const auto start_of = [&](int64_t which) {
            return which * unit >= layout.n
                       ? kept
                       : std::min<int64_t>(sparse_get_word(bytes + 16 + entry * which), kept);
        };
        int64_t start = start_of(u);
        const int64_t end = start_of(u + 1);
        const int64_t base = u * unit;
        const int64_t elems = std::min(unit, layout.n - base);
        if (layout.form == kBitmap) {
            take_bits(places, indices + u * 1024, base, elems, start, end);
        } else if (layout.form == kPairs) {
            take_list(places, indices, 2, base, layout.n, start, end);
        } else if (layout.form == kBytes) {
            const uint8_t* counts = bytes + 16 + 40 * u + 8;
            const uint32_t full = sparse_get_word(bytes + 16 + 40 * u + 4);
            for (int s = 0; s < 32; ++s) {
                const int64_t next = std::min<int64_t>(start + counts[s] + (full >> s & 1) * 256,
                                                       std::max(start, end));
                take_list(places, indices, 1, base + s * 256, layout.n, start, next);
                start = next;
            }
        } else {
            const uint8_t* bits = indices + 4 * (start / 32 + 17 * u);
            const int64_t most = 32 * (up(elems, 512) / 512 + up(end - start, 32) / 32);
            int64_t half = 2 * (up(start, 2) / 2 + u);
            int64_t before = -1;
            for (int64_t bit = 0, zeros = 0; bit < most && start < end; ++bit) {
                if ((bits[bit / 8] >> (bit % 8) & 1) == 0) {
                    ++zeros;
                    continue;
                }
                const int low = bytes[layout.lows + half / 2] >> (half % 2 * 4) & 15;
                const int64_t at = 16 * zeros + low;
                if (at <= before || at >= elems) {
                    break;
                }
                places.emplace_back(base + at, start++);
                before = at;
                ++half;
            }
        }
    }
    return places;
}

// First elements of the runs that randomk sends.
std::vector<int64_t> runs_of(const CodecSpec& spec,
                             const SparseLayout& layout,
                             uint32_t step,
                             uint32_t tensor,
                             uint32_t chunk) {
    std::vector<int64_t> runs;
    const int64_t all = up(layout.n, 32) / 32;
    for (int64_t j = 0; j < layout.groups; ++j) {
        const auto group = static_cast<uint64_t>(j / 4);
        uint32_t words[4] = {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                             chunk, step};
        threefry(words, {{spec.params.seed, tensor, 0, 3}});
        const int64_t low = j * all / layout.groups;
        const int64_t high = (j + 1) * all / layout.groups;
        const double part = std::ldexp(static_cast<double>(words[j % 4]), -32);
        runs.push_back(32 * (low + static_cast<int64_t>(part * static_cast<double>(high - low))));
    }
    return runs;
}

}  // namespace

std::vector<uint8_t> encode_sparse(const CodecSpec& spec,
                                   const std::vector<float>& p,
                                   const Draw& draw,
                                   DType dtype) {
    const auto n = static_cast<int64_t>(p.size());
    const SparseLayout layout = layout_of(spec, dtype, n);
    Bytes bytes(static_cast<size_t>(layout.size));
    std::vector<float> values;
    if (layout.group != 0) {
        for (int64_t g = 0; g < layout.groups; ++g) {
            const int64_t first = g * layout.group;
            const auto sent = largest_of(p, first, first + layout.group, spec.params.kept);
            for (const int64_t at : sent) {
                const auto number = static_cast<int64_t>(values.size());
                const auto inside = static_cast<uint64_t>(at - first);
                if (layout.form == kBitmap) {
                    put_bit(bytes, layout.indices + g * (up(layout.group, 8) / 8), at - first);
                } else {
                    put_word(bytes, layout.indices + number * layout.form, inside, layout.form);
                }
                values.push_back(at < n ? p[static_cast<size_t>(at)] : 0);
            }
        }
    } else if (layout.form >= 0) {
        std::vector<int64_t> sent;
        uint32_t least = std::bit_cast<uint32_t>(spec.params.threshold);
        bool lost = false;
        if (named(spec, "topk")) {
            sent = largest_of(p, 0, n, layout.capacity);
            least = 0x7FFFFFFFu;
            for (const int64_t at : sent) {
                least = std::min(least, order_of(p[static_cast<size_t>(at)]));
            }
        }
        int64_t survivors = 0;
        for (int64_t i = 0; i < n; ++i) {
            const float value = p[static_cast<size_t>(i)];
            if (order_of(value) < least) {
                continue;
            }
            ++survivors;
            if (named(spec, "threshold")) {
                const bool room = static_cast<int64_t>(sent.size()) < layout.capacity;
                lost = lost || (!room && !std::isfinite(value));
                if (room) {
                    sent.push_back(i);
                }
            }
        }
        put_word(bytes, 0, sent.size());
        put_word(bytes, 4, static_cast<uint64_t>(survivors));
        put_word(bytes, 8, least);
        put_word(bytes, 12, static_cast<uint64_t>(layout.form) + (lost ? 256 : 0));
        put_positions(bytes, layout, sent);
        for (const int64_t at : sent) {
            values.push_back(p[static_cast<size_t>(at)]);
        }
    } else {
        const uint32_t step =
            draw.key.step + (draw.key.step_ptr != nullptr ? *draw.key.step_ptr : 0);
        put_word(bytes, 0, step);
        put_word(bytes, 4, draw.key.tensor);
        put_word(bytes, 8, draw.chunk);
        std::vector<bool> sent(p.size());
        for (const int64_t run : runs_of(spec, layout, step, draw.key.tensor, draw.chunk)) {
            for (int64_t i = run; i < run + 32; ++i) {
                values.push_back(i < n ? p[static_cast<size_t>(i)] : 0);
                if (i < n) {
                    sent[static_cast<size_t>(i)] = true;
                }
            }
        }
        for (size_t i = 0; i < p.size(); ++i) {
            if (!sent[i] && !std::isfinite(p[i])) {
                values[0] = kSparseNan;
            }
        }
    }
    put_values(bytes, layout, dtype, values);
    return bytes;
}

std::vector<float> decode_sparse(const CodecSpec& spec,
                                 const uint8_t* bytes,
                                 int64_t count,
                                 DType dtype) {
    const SparseLayout layout = layout_of(spec, dtype, count);
    const std::vector<float> values = get_values(bytes, layout, dtype);
    Places places;
    bool lost = false;
    if (layout.group != 0) {
        for (int64_t g = 0; g < layout.groups; ++g) {
            const int64_t first = g * spec.params.kept;
            const int64_t last = first + spec.params.kept;
            const uint8_t* indices = bytes + layout.indices;
            const int64_t base = g * layout.group;
            if (layout.form == kBitmap) {
                take_bits(places, indices + g * (up(layout.group, 8) / 8), base, layout.group,
                          first, last);
            } else {
                take_list(places, indices, layout.form, base, base + layout.group, first, last);
            }
        }
    } else if (layout.form >= 0) {
        places = get_positions(bytes, layout);
        lost = (sparse_get_word(bytes + 12) & 256) != 0;
    } else {
        const auto runs = runs_of(spec, layout, sparse_get_word(bytes), sparse_get_word(bytes + 4),
                                  sparse_get_word(bytes + 8));
        for (size_t j = 0; j < runs.size(); ++j) {
            for (int64_t i = 0; i < 32; ++i) {
                places.emplace_back(runs[j] + i, static_cast<int64_t>(j) * 32 + i);
            }
        }
    }
    std::vector<float> decoded(static_cast<size_t>(count));
    for (const auto& [at, number] : places) {
        if (at < count) {
            decoded[static_cast<size_t>(at)] = values[static_cast<size_t>(number)];
        }
    }
    if (lost) {
        decoded[0] = kSparseNan;
    }
    return decoded;
}

}  // namespace slimwire::reference
