// What an agreement costs the process that made the unique id, where many ranks say hello at once:
// agreement_bench [RANKS]. A child process is all of the ranks, over loopback. Prints a JSON line:
// bytes that the root received and sent, as TCP counts them, and seconds from the first hello to
// the last answer. Fails where an answer has more than 64 bytes.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "collectives/communicator/agreement/agreement.h"
#include "collectives/communicator/communicator.h"

namespace slimwire {
namespace {

constexpr uint64_t kTimeoutUs = 60000000;

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "agreement_bench: %s\n", what.c_str());
    _exit(1);
}

// Of all TCP connections of this process.
void count_bytes(int descriptors, uint64_t* sent, uint64_t* received) {
    for (int i = 0; i < descriptors; ++i) {
        // The system's own structure has more fields than the C library's.
        struct {
            tcp_info head;
            uint64_t pacing[2];
            uint64_t acked, received;
        } info{};
        socklen_t size = sizeof(info);
        if (getsockopt(i, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && size == sizeof(info)) {
            *sent += info.acked;
            *received += info.received;
        }
    }
}

void run_ranks(const AgreementAddress& address, int ranks) {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    std::vector<AgreementClient> clients(static_cast<size_t>(ranks));
    const uint64_t began_us = steady_us();
    for (int rank = 0; rank < ranks; ++rank) {
        Hello hello;
        hello.rank = rank;
        hello.ranks = ranks;
        if (Status sent = clients[static_cast<size_t>(rank)].send(address, hello, kTimeoutUs);
            !sent.ok()) {
            fail(sent.message());
        }
    }
    for (AgreementClient& client : clients) {
        const Result<Agreement> answer = client.wait(kTimeoutUs, {});
        if (!answer.ok() || answer.value().verdict != Verdict::kGo) {
            fail(answer.ok() ? answer.value().text : answer.status().message());
        }
    }
    const double seconds = static_cast<double>(steady_us() - began_us) / 1e6;
    uint64_t sent = 0, received = 0;
    count_bytes(ranks + 64, &sent, &received);
    const auto each = static_cast<double>(received) / ranks;
    std::printf(
        "{\"v\":1,\"record\":\"bench_agreement\",\"ranks\":%d,\"root_received_bytes\":%llu,"
        "\"root_sent_bytes\":%llu,\"root_sent_bytes_a_rank\":%.1f,\"seconds\":%.3f}\n",
        ranks, static_cast<unsigned long long>(sent), static_cast<unsigned long long>(received),
        each, seconds);
    std::fflush(stdout);
    if (received == 0 || each > 64) {
        fail("an answer has more than 64 bytes, or none was counted");
    }
}

int run(int ranks) {
    int tell[2];
    if (pipe(tell) != 0) {
        fail("no pipe");
    }
    const pid_t child = fork();
    if (child == 0) {
        AgreementAddress address;
        if (read(tell[0], &address, sizeof(address)) != sizeof(address)) {
            fail("no address");
        }
        run_ranks(address, ranks);
        _exit(0);
    }
    Result<AgreementServer*> server = AgreementServer::instance(kTimeoutUs);
    const Result<AgreementAddress> address =
        server.ok() ? server.value()->open(ncclUniqueId{}, "") : server.status();
    if (!address.ok() ||
        write(tell[1], &address.value(), sizeof(AgreementAddress)) != sizeof(AgreementAddress)) {
        fail("no server: " + address.status().message());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace slimwire

int main(int argc, char** argv) {
    const int ranks = argc > 1 ? std::atoi(argv[1]) : 4096;
    if (ranks < 1) {
        std::fprintf(stderr, "agreement_bench [RANKS]: at least 1\n");
        return 2;
    }
    return slimwire::run(ranks);
}
