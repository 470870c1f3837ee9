// State and its copy by a flag: the host body against memcpy, the kernel on the execution model of
// tests/support/cuda_on_host.h.
#include "codecs/rollback.h"
#include "tests/support/cuda_on_host.h"

#include <algorithm>

#include "tests/codecs/fixture.h"

#include "codecs/rollback.cu"

namespace slimwire::testing {
namespace {

struct alignas(16) Line {
    uint8_t bytes[16];
    bool operator==(const Line& other) const { return std::equal(bytes, bytes + 16, other.bytes); }
};

std::vector<Line> draw(size_t lines, std::mt19937& random) {
    std::vector<Line> values(lines);
    for (Line& line : values) {
        for (uint8_t& byte : line.bytes) {
            byte = static_cast<uint8_t>(random());
        }
    }
    return values;
}

TEST(RollBack, TheFlagSaysWhichWay) {
    std::mt19937 random(test_seed());
    constexpr uint32_t kUndo = 0x3F800000u;
    for (const bool kernel : {false, true}) {
        for (const size_t lines : {0, 1, 255, 4099}) {
            // One line behind each that stays as it is.
            const std::vector<Line> state = draw(lines + 1, random), copy = draw(lines + 1, random);
            for (const int flag : {-1, 0, 1, 2}) {  // none, clear, set, another number
                SCOPED_TRACE(::testing::Message() << kernel << " " << lines << " " << flag);
                const uint32_t word = flag == 1 ? kUndo : static_cast<uint32_t>(flag);
                std::vector<Line> now = state, kept = copy;
                const RollBackArgs args{.state = now.data(),
                                        .copy = kept.data(),
                                        .flag = flag < 0 ? nullptr : &word,
                                        .bytes = static_cast<int64_t>(16 * lines),
                                        .undo = kUndo};
                if (kernel) {
                    ASSERT_EQ(roll_back_on_cuda(args, nullptr), cudaSuccess);
                } else {
                    roll_back_on_host(args);
                }
                std::vector<Line> wanted = flag == 1 ? copy : state;
                wanted.back() = state.back();
                EXPECT_EQ(now, wanted);
                wanted.back() = copy.back();
                EXPECT_EQ(kept, wanted);
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::testing
