#include "tests/support/meeting.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace slimwire::test {
namespace {

std::string place(const std::string& name) {
    const char* folder = std::getenv("TEST_FOLDER");
    if (folder == nullptr) {
        throw std::runtime_error("TEST_FOLDER is not set; start this program through run_ranks()");
    }
    return std::string(folder) + "/" + name;
}

}  // namespace

void publish(const std::string& name, const std::string& bytes) {
    const std::string path = place(name);
    const std::string unfinished = path + ".part" + std::to_string(getpid());
    {
        std::ofstream stream(unfinished, std::ios::binary);
        stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        if (!stream.flush()) {
            throw std::runtime_error("cannot write " + unfinished);
        }
    }
    if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
        throw std::runtime_error("cannot rename " + unfinished);
    }
}

std::string await(const std::string& name, int limit_s) {
    const std::string path = place(name);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(limit_s);
    while (access(path.c_str(), F_OK) != 0) {
        if (std::chrono::steady_clock::now() > until) {
            throw std::runtime_error("nobody published '" + name + "' in time");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void barrier(const std::string& name, int rank, int ranks) {
    publish(name + ".rank" + std::to_string(rank), "");
    for (int other = 0; other < ranks; ++other) {
        (void)await(name + ".rank" + std::to_string(other));
    }
}

}  // namespace slimwire::test
