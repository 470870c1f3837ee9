// Stands in for libFuzzer where the compiler has none: random inputs for the fuzz target, from a
// printed seed. Takes libFuzzer's -max_total_time=SECONDS (default: TEST_FUZZ_SECONDS,
// else a minute), -runs=N and -seed=N, and files to run instead.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace {

// In the working folder, for each target another: they may run side by side.
std::string last_input_of(const std::string& program) {
    return "last-input-" + program.substr(program.find_last_of('/') + 1);
}

std::vector<uint8_t> random_input(std::mt19937_64& random) {
    std::vector<uint8_t> input(7 + random() % (random() % 8 == 0 ? 8192 : 512));
    // Bytes of few values, of all, or repeated: what formats react to differs.
    const uint64_t kind = random() % 3;
    const auto base = static_cast<uint8_t>(random());
    for (size_t i = 0; i < input.size(); ++i) {
        const uint64_t draw = random();
        input[i] = kind == 0   ? static_cast<uint8_t>(draw)
                   : kind == 1 ? static_cast<uint8_t>(draw % 16 == 0 ? draw >> 8 : base)
                               : static_cast<uint8_t>(i % 4 == 3 ? 0x3C + draw % 8 : draw);
    }
    for (size_t i = 0; i < 7; ++i) {
        input[i] = static_cast<uint8_t>(random());
    }
    return input;
}

}  // namespace

int main(int argc, char** argv) {
    if (LLVMFuzzerInitialize != nullptr) {
        LLVMFuzzerInitialize(&argc, &argv);
    }
    const std::string last_input = last_input_of(argv[0]);
    const char* const wanted = std::getenv("TEST_FUZZ_SECONDS");
    double seconds = wanted == nullptr ? 60 : std::atof(wanted);
    uint64_t seed = std::random_device{}(), most = UINT64_MAX;
    std::vector<std::string> files;
    for (int i = 1; i < argc; ++i) {
        if (std::strncmp(argv[i], "-max_total_time=", 16) == 0) {
            seconds = std::atof(argv[i] + 16);
        } else if (std::strncmp(argv[i], "-runs=", 6) == 0) {
            most = std::strtoull(argv[i] + 6, nullptr, 10);
            seconds = 1e6;
        } else if (std::strncmp(argv[i], "-seed=", 6) == 0) {
            seed = std::strtoull(argv[i] + 6, nullptr, 10);
        } else if (argv[i][0] != '-') {
            files.emplace_back(argv[i]);
        }
    }
    uint64_t runs = 0;
    for (const std::string& file : files) {
        std::ifstream stream(file, std::ios::binary);
        const std::vector<char> content{std::istreambuf_iterator<char>(stream), {}};
        if (stream && !content.empty()) {  // a folder reads as nothing
            LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(content.data()),
                                   content.size());
            ++runs;
        }
    }
    if (runs > 0) {
        std::printf("Done %llu runs\n", static_cast<unsigned long long>(runs));
        return 0;
    }
    std::printf("random inputs of seed %llu; a finding's input stays in the file %s\n",
                static_cast<unsigned long long>(seed), last_input.c_str());
    std::fflush(stdout);
    std::mt19937_64 random(seed);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    std::FILE* last = std::fopen(last_input.c_str(), "wb");
    for (; runs < most && std::chrono::steady_clock::now() < end; ++runs) {
        const std::vector<uint8_t> input = random_input(random);
        if (last != nullptr) {
            std::rewind(last);
            std::fwrite(input.data(), 1, input.size(), last);
            std::fflush(last);
            // Longer former inputs leave a tail, which the target reads as more elements.
        }
        LLVMFuzzerTestOneInput(input.data(), input.size());
    }
    std::printf("Done %llu runs\n", static_cast<unsigned long long>(runs));
    return 0;
}
