// What an agreement costs the process that made the unique id, where many ranks say hello at once:
// agreement_bench [RANKS]. A child process is all of the ranks, over loopback. Prints a JSON line
// for ranks that go, for what they claim of a type, and for ranks of which one stays native: bytes
// that the root received and sent, as TCP counts them, and seconds from the first connection to the
// last answer. Fails where an answer has more than 64 bytes.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator/agreement/agreement.h"
#include "collectives/communicator/agreement/wire.h"
#include "collectives/communicator/communicator.h"
#include "collectives/policy/compared_text.h"
#include "collectives/policy/config.h"

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

// As `slimwire run --codec int4 --ef ef14` sets it.
const char* variable(const char* name) {
    const std::string_view wanted(name);
    return wanted == "SLIMWIRE_CODEC" ? "int4" : wanted == "SLIMWIRE_EF" ? "ef14" : nullptr;
}

struct Bytes {
    uint64_t to_root = 0, from_root = 0;
    double seconds = 0;
};

// All ranks say hello, rank 1 with this reason to stay native.
Bytes agree(const AgreementAddress& address, int ranks, const std::string& native_reason) {
    const Result<Config> config = load_config(variable);
    if (!config.ok()) {
        fail(config.status().message());
    }
    std::vector<AgreementClient> clients(static_cast<size_t>(ranks));
    const uint64_t began_us = steady_us();
    for (int rank = 0; rank < ranks; ++rank) {
        Hello hello;
        hello.rank = rank;
        hello.ranks = ranks;
        hello.config_hash = config.value().hash;
        hello.settings = compared_text(config.value());
        hello.native_reason = rank == 1 ? native_reason : "";
        if (Status sent = clients[static_cast<size_t>(rank)].send(address, hello, kTimeoutUs);
            !sent.ok()) {
            fail(sent.message());
        }
    }
    for (AgreementClient& client : clients) {
        const Result<Agreement> answer = client.wait(kTimeoutUs, {});
        if (!answer.ok() || (answer.value().verdict == Verdict::kGo) != native_reason.empty()) {
            fail(answer.ok() ? answer.value().text : answer.status().message());
        }
    }
    Bytes bytes{.seconds = static_cast<double>(steady_us() - began_us) / 1e6};
    count_bytes(ranks + 64, &bytes.to_root, &bytes.from_root);
    return bytes;
}

// Then each says which type its all-gathers have, over a connection of its own.
Bytes claim(const AgreementAddress& address, int ranks) {
    using namespace agreement_wire;
    const uint64_t began_us = steady_us(), deadline_us = now_us() + kTimeoutUs;
    std::vector<int> sockets;
    for (int rank = 0; rank < ranks; ++rank) {
        ClaimRecord record{};
        record.magic = kClaimMagic;
        record.version = kAgreementVersion;
        record.op = Op::kAllGather;
        record.dtype = DType::kBfloat16;
        record.compressed = 1;
        record.token = address.token;
        record.comm_key = 1;
        record.bytes = 1 << 20;
        record.number = static_cast<uint32_t>(rank);
        record.ranks = ranks;
        record.rank = rank;
        const Result<int> connected = connect_to(address, deadline_us, {});
        if (!connected.ok() ||
            !write_all(connected.value(), &record, sizeof(record), deadline_us)) {
            fail("no claim: " + connected.status().message());
        }
        sockets.push_back(connected.value());
    }
    for (const int socket : sockets) {
        MatchRecord answer{};
        do {
            if (!read_all(socket, &answer, sizeof(answer), deadline_us, {}) ||
                (answer.matched != Matched::kAlike && answer.matched != Matched::kSoFar)) {
                fail("a claim has no answer, or types differ");
            }
        } while (answer.matched == Matched::kSoFar);
    }
    Bytes bytes{.seconds = static_cast<double>(steady_us() - began_us) / 1e6};
    count_bytes(ranks + 64, &bytes.to_root, &bytes.from_root);
    for (const int socket : sockets) {
        close(socket);
    }
    return bytes;
}

void run_ranks(const AgreementAddress (&addresses)[2], int ranks) {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    const auto report = [&](const char* what, const Bytes& bytes) {
        std::printf(
            "{\"v\":1,\"record\":\"bench_agreement\",\"what\":\"%s\",\"ranks\":%d,"
            "\"root_received_bytes\":%llu,\"root_sent_bytes\":%llu,"
            "\"root_received_bytes_a_rank\":%.1f,\"root_sent_bytes_a_rank\":%.1f,"
            "\"seconds\":%.3f}\n",
            what, ranks, static_cast<unsigned long long>(bytes.to_root),
            static_cast<unsigned long long>(bytes.from_root),
            static_cast<double>(bytes.to_root) / ranks,
            static_cast<double>(bytes.from_root) / ranks, bytes.seconds);
        std::fflush(stdout);
        // The end of a connection counts for one.
        const uint64_t most = static_cast<uint64_t>(ranks) * 65 + agreement_wire::kMaxText;
        if (bytes.from_root == 0 || bytes.from_root > most) {
            fail("an answer has more than 64 bytes, or none was counted");
        }
    };
    report("go", agree(addresses[0], ranks, ""));
    report("claims", claim(addresses[0], ranks));
    report("native", agree(addresses[1], ranks, std::string(2000, 'x')));
}

int run(int ranks) {
    int tell[2];
    if (pipe(tell) != 0) {
        fail("no pipe");
    }
    const pid_t child = fork();
    if (child == 0) {
        AgreementAddress addresses[2];
        if (read(tell[0], addresses, sizeof(addresses)) != sizeof(addresses)) {
            fail("no address");
        }
        run_ranks(addresses, ranks);
        _exit(0);
    }
    Result<AgreementServer*> server = AgreementServer::instance(kTimeoutUs);
    if (!server.ok()) {
        fail("no server: " + server.status().message());
    }
    AgreementAddress addresses[2];
    for (AgreementAddress& address : addresses) {
        const Result<AgreementAddress> opened = server.value()->open(ncclUniqueId{}, "");
        if (!opened.ok()) {
            fail("no server: " + opened.status().message());
        }
        address = opened.value();
    }
    if (write(tell[1], addresses, sizeof(addresses)) != sizeof(addresses)) {
        fail("no pipe");
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
