// The palette codec as FORMAT.md describes it, over lists of single bits and symbols.
#include <algorithm>
#include <array>

#include "tests/codecs/palette/reference_palette.h"

namespace slimwire::reference {
namespace {

using Bytes = std::vector<uint8_t>;
using Symbols = std::vector<int>;

struct Layout {
    int width;     // W
    int raw_bits;  // r
    bool rotated;
};

Layout layout_of(DType dtype) {
    switch (dtype) {
        case DType::kBfloat16:
            return {2, 0, true};
        case DType::kFloat32:
            return {4, 0, true};
        case DType::kFloat64:
            return {8, 0, true};
        case DType::kFloat16:
            return {2, 3, true};
        case DType::kFloat8e4m3:
            return {1, 4, true};
        case DType::kFloat8e5m2:
            return {1, 3, true};
        default:
            return {1, 0, false};
    }
}

void put(Bytes* to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
        to->push_back(static_cast<uint8_t>(value >> (8 * i)));
    }
}

uint64_t get(const uint8_t* from, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
        value |= static_cast<uint64_t>(from[i]) << (8 * i);
    }
    return value;
}

void pad(Bytes* bytes) {
    while (bytes->size() % 8 != 0) {
        bytes->push_back(0);
    }
}

// The element as a number with its sign in bit 0.
uint64_t rotated(const Layout& layout, uint64_t bits) {
    if (!layout.rotated) {
        return bits;
    }
    const int top = 8 * layout.width - 1;
    const uint64_t sign = bits >> top & 1;
    return (bits - (sign << top)) * 2 + sign;
}

void put_words(Bytes* to, const Symbols& codes, int bits) {
    for (size_t begin = 0; begin < codes.size(); begin += 64) {
        const size_t t = std::min<size_t>(64, codes.size() - begin);
        for (int bit = 0; bit < bits; ++bit) {
            Bytes word((t + 7) / 8);
            for (size_t i = 0; i < t; ++i) {
                word[i / 8] |= static_cast<uint8_t>((codes[begin + i] >> bit & 1) << (i % 8));
            }
            to->insert(to->end(), word.begin(), word.end());
        }
    }
}

Symbols palette_of(const Symbols& symbols, bool* many_zeros) {
    Symbols sample = symbols;
    if (symbols.size() >= 256) {
        sample.clear();
        for (size_t i = 0; i < 16; ++i) {
            for (size_t j = 0; j < 16; ++j) {
                sample.push_back(symbols[i * ((symbols.size() - 16) / 15) + j]);
            }
        }
    }
    int sum = 0;
    std::array<int, 256> count{};
    for (const int symbol : sample) {
        sum += symbol;
        ++count[static_cast<size_t>(symbol)];
    }
    const int size = static_cast<int>(sample.size());
    *many_zeros = 8 * count[0] > size;
    const int mean = count[0] == size ? 0 : sum / (size - count[0]);
    const int base = std::min(std::max(mean - 8, 1), 241);
    std::vector<std::pair<int, int>> places;  // count, place
    for (int place = 0; place < 16; ++place) {
        const int symbol = place == 0 ? 0 : base + place - 1;
        places.emplace_back(count[static_cast<size_t>(symbol)], place);
    }
    std::sort(places.rbegin(), places.rend());
    Symbols palette;
    for (size_t i = 0; i < 13; ++i) {
        palette.push_back(places[i].second == 0 ? 0 : base + places[i].second - 1);
    }
    return palette;
}

// Codes of one tier; the symbols that escape take the place of `symbols`.
Symbols tier(Symbols* symbols, const Symbols& palette, size_t first, int entries) {
    Symbols codes;
    Symbols escapes;
    for (const int symbol : *symbols) {
        int code = 0;
        while (code < entries && palette[first + static_cast<size_t>(code)] != symbol) {
            ++code;
        }
        codes.push_back(code);
        if (code == entries) {
            escapes.push_back(symbol);
        }
    }
    *symbols = escapes;
    return codes;
}

Bytes encode_block(const Layout& layout, const uint8_t* input, size_t len) {
    std::vector<uint64_t> elements;
    size_t zeros = 0;
    for (size_t i = 0; i < len; ++i) {
        elements.push_back(get(input + i * static_cast<size_t>(layout.width), layout.width));
        zeros += elements.back() == 0;
    }
    const auto top_of = [&](uint64_t element) {
        return static_cast<int>(rotated(layout, element) >> (8 * (layout.width - 1)));
    };
    const auto symbols_of = [&](const std::vector<uint64_t>& list) {
        Symbols symbols;
        for (const uint64_t element : list) {
            symbols.push_back(top_of(element) >> layout.raw_bits);
        }
        return symbols;
    };
    bool many_zeros = false;
    Symbols palette = palette_of(symbols_of(elements), &many_zeros);
    const bool zero_mode = many_zeros && 8 * zeros > len;
    Bytes marks;
    if (zero_mode) {
        if (zeros == len) {
            return {};
        }
        uint64_t groups = 0;
        Bytes words;
        std::vector<uint64_t> kept;
        for (size_t group = 0; group * 64 < len; ++group) {
            uint64_t word = 0;
            for (size_t j = 0; j < 64 && group * 64 + j < len; ++j) {
                const uint64_t element = elements[group * 64 + j];
                if (element != 0) {
                    word |= uint64_t{1} << j;
                    kept.push_back(element);
                }
            }
            if (word != 0) {
                groups |= uint64_t{1} << group;
                put(&words, word, 8);
            }
        }
        put(&marks, groups, 8);
        marks.insert(marks.end(), words.begin(), words.end());
        elements = kept;
        bool ignored = false;
        palette = palette_of(symbols_of(elements), &ignored);
    }
    Symbols symbols = symbols_of(elements);
    const Symbols first = tier(&symbols, palette, 0, 3);
    const size_t n1 = symbols.size();
    const Symbols second = tier(&symbols, palette, 3, 3);
    const size_t n2 = symbols.size();
    const Symbols third = tier(&symbols, palette, 6, 7);
    const size_t n3 = symbols.size();

    Bytes bytes;
    put(&bytes,
        (elements.size() - 1) + (uint64_t{n1} << 12) + (uint64_t{n2} << 25) + (uint64_t{n3} << 38) +
            (uint64_t{zero_mode} << 51),
        8);
    for (const int symbol : palette) {
        put(&bytes, static_cast<uint64_t>(symbol), 1);
    }
    put(&bytes, 0, 3);
    bytes.insert(bytes.end(), marks.begin(), marks.end());
    for (int j = 0; j + 1 < layout.width; ++j) {
        for (const uint64_t element : elements) {
            put(&bytes, rotated(layout, element) >> (8 * j), 1);
        }
    }
    Symbols low_bits;
    for (const uint64_t element : elements) {
        low_bits.push_back(top_of(element));
    }
    put_words(&bytes, low_bits, layout.raw_bits);
    put_words(&bytes, first, 2);
    put_words(&bytes, second, 2);
    put_words(&bytes, third, 3);
    for (const int symbol : symbols) {
        put(&bytes, static_cast<uint64_t>(symbol), 1);
    }
    pad(&bytes);

    Bytes raw(input, input + len * static_cast<size_t>(layout.width));
    pad(&raw);
    return bytes.size() < raw.size() ? bytes : raw;
}

}  // namespace

std::vector<uint8_t> encode_palette(DType dtype, const uint8_t* input, int64_t count) {
    const Layout layout = layout_of(dtype);
    const size_t elements =
        static_cast<size_t>(count) * dtype_bytes(dtype) / static_cast<size_t>(layout.width);
    const size_t blocks = (elements + 4095) / 4096;
    Bytes payload;
    Bytes ends;
    const size_t first = 16 + (4 * blocks + 7) / 8 * 8;
    for (size_t block = 0; block < blocks; ++block) {
        const Bytes coded =
            encode_block(layout, input + block * 4096 * static_cast<size_t>(layout.width),
                         std::min<size_t>(4096, elements - block * 4096));
        payload.insert(payload.end(), coded.begin(), coded.end());
        put(&ends, (first + payload.size()) / 8, 4);
    }
    pad(&ends);
    Bytes bytes;
    put(&bytes, 0x31704C53, 4);
    put(&bytes, 0, 4);
    put(&bytes, first + payload.size(), 8);
    bytes.insert(bytes.end(), ends.begin(), ends.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
}

}  // namespace slimwire::reference
