// The policy and the report of a test that makes its calls itself: files of this process, and the
// variables that name them.
#pragma once

#include <gtest/gtest.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace slimwire::test {

class OwnFiles {
  public:
    // Destroys a communicator that report() is to have.
    static void end(ncclComm_t comm) {
        EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess) << ncclGetLastError(nullptr);
        ++ended_;
    }

  protected:
    // Both from SetUpTestSuite(): before the first NCCL call of the process, which reads them.
    static void write_policy(const std::string& text) {
        std::ofstream file(path("policy"));
        file << text;
        if (const char* slice_bytes = std::getenv("TEST_SLICE_BYTES")) {
            file << "\n[runtime]\nslice_bytes = " << slice_bytes << "\n";
        }
        ASSERT_TRUE(file.good());
        ::setenv("SLIMWIRE_POLICY", path("policy").c_str(), 1);
    }
    static void ask_for_report() { ::setenv("SLIMWIRE_REPORT", path("report").c_str(), 1); }
    static void TearDownTestSuite() {
        std::remove(path("policy").c_str());
        std::remove(path("report").c_str());
    }

    // What is in the report once all communicators are that end() destroyed: the reporter's thread
    // may write it a moment later.
    static std::vector<nlohmann::json> report() {
        for (;;) {
            std::vector<nlohmann::json> records;
            size_t retired = 0;
            std::ifstream file(path("report"));
            for (std::string line; std::getline(file, line);) {
                const nlohmann::json& record = records.emplace_back(nlohmann::json::parse(line));
                retired += record.value("retired", false) ? record.value("communicators", 0) : 0;
            }
            if (retired >= ended_) {
                return records;
            }
            std::this_thread::yield();
        }
    }

  private:
    static std::string path(const char* what) {
        return testing::TempDir() + "own_" + what + "_" + std::to_string(getpid());
    }
    static inline size_t ended_ = 0;
};

}  // namespace slimwire::test
