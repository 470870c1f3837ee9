// One of two ranks that play NCCL's proxy over the plugin: rank 0 receives, rank 1 sends.
//
// usage: proxy_peer PLUGIN VERSION FOLDER SEED MESSAGES BYTES WINDOW [RANK WHERE]
// The handle goes through FOLDER, as NCCL's bootstrap would carry it. BYTES is the largest message;
// a leading = makes all of that size. RANK WHERE: that rank dies at "listened", "connecting",
// "connected" or after so many messages. Prints how the stream ended. Exit code: 0 all well, 3 the
// plugin reported a remote error, 4 nobody came, 1 anything else.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/plugin/net/proxy.h"

namespace slimwire::net {
namespace {

struct Rank {
    std::unique_ptr<InnerTable> net;
    void* context = nullptr;
    std::string folder;
    Traffic traffic;
    std::string dies_at;  // of this rank; empty: it does not

    void die_at(const std::string& where) const {
        if (where == dies_at) {
            raise(SIGKILL);
        }
    }
    [[nodiscard]] StopAt stop() const {
        return [this](int over) {
            die_at(std::to_string(over));
            return false;
        };
    }
};

int ended(const char* where, ncclResult_t result, const std::string& what, int messages = 0) {
    std::printf("%s: result %d, %d messages, %s\n", where, result, messages,
                what.empty() ? "all well" : what.c_str());
    return !what.empty() ? 1 : result == ncclSuccess ? 0 : result == ncclRemoteError ? 3 : 1;
}

int ended(const Outcome& outcome) {
    return ended("stream", outcome.result, outcome.what, outcome.messages);
}

int receive(Rank& rank) {
    alignas(16) char handle[kNetHandleBytes] = {};
    void *listen_comm = nullptr, *comm = nullptr;
    ncclResult_t result = rank.net->listen(rank.context, 0, handle, &listen_comm);
    if (result != ncclSuccess) {
        return ended("listen", result, "");
    }
    const std::string path = rank.folder + "/handle";
    std::ofstream(path + ".new", std::ios::binary).write(handle, sizeof handle);
    if (std::rename((path + ".new").c_str(), path.c_str()) != 0) {
        return ended("handle", ncclSuccess, "cannot be written");
    }
    rank.die_at("listened");
    const auto begin = std::chrono::steady_clock::now();
    while (comm == nullptr) {
        result = rank.net->accept(listen_comm, &comm);
        if (result != ncclSuccess) {
            return ended("accept", result, "");
        }
        if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(10)) {
            std::printf("accept: nobody came\n");
            return 4;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    rank.die_at("connected");
    const Outcome outcome = receive_stream(*rank.net, comm, rank.traffic, rank.stop());
    rank.net->close_recv(comm);
    rank.net->close_listen(listen_comm);
    return ended(outcome);
}

int send(Rank& rank) {
    alignas(16) char handle[kNetHandleBytes] = {};
    const Watch watch;
    while (!std::ifstream(rank.folder + "/handle", std::ios::binary).read(handle, sizeof handle)) {
        if (watch.expired()) {
            return ended("handle", ncclSuccess, "does not come");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    void* comm = nullptr;
    ncclResult_t result = ncclSuccess;
    while (comm == nullptr && !watch.expired()) {
        result = rank.net->connect(rank.context, 0, handle, &comm);
        if (result != ncclSuccess) {
            return ended("connect", result, "");
        }
        rank.die_at("connecting");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (comm == nullptr) {
        return ended("connect", ncclSuccess, "there is no connection after a minute");
    }
    rank.die_at("connected");
    const Outcome outcome = send_stream(*rank.net, comm, rank.traffic, rank.stop());
    rank.net->close_send(comm);
    return ended(outcome);
}

int run(int count, char** words) {
    const char* number = std::getenv("RANK");
    if (number == nullptr || (count != 8 && count != 10)) {
        std::fprintf(stderr, "usage: see the head of proxy_peer.cpp\n");
        return 2;
    }
    auto table = InnerTable::open(words[1], std::atoi(words[2]));
    if (!table.ok()) {
        return ended("open", ncclSuccess, table.status().message());
    }
    Rank rank;
    rank.net = std::move(table).value();
    rank.folder = words[3];
    rank.traffic.seed = static_cast<uint32_t>(std::atoi(words[4]));
    rank.traffic.messages = std::atoi(words[5]);
    rank.traffic.ragged = words[6][0] != '=';
    rank.traffic.most_bytes = std::strtoull(words[6] + (rank.traffic.ragged ? 0 : 1), nullptr, 10);
    rank.traffic.window = std::atoi(words[7]);
    if (count == 10 && std::string(words[8]) == number) {
        rank.dies_at = words[9];
    }
    const ncclResult_t result = rank.net->init(&rank.context, 1, -1, log_to_stderr);
    if (result != ncclSuccess) {
        return ended("init", result, "");
    }
    const int code = std::string(number) == "0" ? receive(rank) : send(rank);
    rank.net->finalize(rank.context);
    return code;
}

}  // namespace
}  // namespace slimwire::net

int main(int count, char** words) {
    return slimwire::net::run(count, words);
}
