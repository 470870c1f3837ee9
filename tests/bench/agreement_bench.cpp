// What an agreement costs the process that made the unique id, where many ranks say hello at once:
// agreement_bench [RANKS]. A child process is all of the ranks, over loopback. Prints a JSON line
// for ranks that go, for what they claim of a type, for splits that they make then, and for ranks
// of which one stays native: bytes that the root received and sent, as TCP counts them, processor
// seconds of its process, and seconds from the first connection to the last answer (splits: ranks
// are connected). Fails where an answer has more than 64 bytes.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator/agreement/agreement.h"
#include "collectives/communicator/agreement/wire.h"
#include "collectives/communicator/communicator.h"
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

// Of the parent process, which is the root.
double root_seconds() {
    clockid_t clock = 0;
    timespec used{};
    if (clock_getcpuclockid(getppid(), &clock) != 0 || clock_gettime(clock, &used) != 0) {
        fail("the root's time is not known");
    }
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

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

agreement_wire::ClaimRecord record_of(const AgreementAddress& address, int ranks, int rank) {
    agreement_wire::ClaimRecord record{};
    record.magic = agreement_wire::kClaimMagic;
    record.version = kAgreementVersion;
    record.token = address.token;
    record.comm_key = 1;
    record.number = static_cast<uint32_t>(rank) + 1;
    record.ranks = ranks;
    record.rank = rank;
    return record;
}

// Then each says which type its all-gathers have, over a connection of its own.
Bytes claim(const AgreementAddress& address, int ranks, std::vector<int>* all) {
    using namespace agreement_wire;
    const uint64_t began_us = steady_us(), deadline_us = now_us() + kTimeoutUs;
    std::vector<int>& sockets = *all;
    for (int rank = 0; rank < ranks; ++rank) {
        ClaimRecord record = record_of(address, ranks, rank);
        record.op = Op::kAllGather;
        record.dtype = DType::kBfloat16;
        record.compressed = 1;
        record.bytes = 1 << 20;
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
    return bytes;
}

// Over those connections each tells its color and key, and hears who is in its part.
Bytes split(const AgreementAddress& address,
            const std::vector<int>& sockets,
            uint32_t which,
            const std::function<int(int rank)>& color_of,
            useconds_t apart_us = 0) {
    using namespace agreement_wire;
    const int ranks = static_cast<int>(sockets.size());
    Bytes before, bytes;
    count_bytes(ranks + 64, &before.to_root, &before.from_root);
    const uint64_t began_us = steady_us(), deadline_us = now_us() + kTimeoutUs;
    std::map<int, size_t> sizes;
    for (int rank = 0; rank < ranks; ++rank) {
        ClaimRecord record = record_of(address, ranks, rank);
        record.what = Claiming::kSplit;
        record.root_or_peer = color_of(rank);
        record.kind = which;
        ++sizes[record.root_or_peer];
        if (!write_all(sockets[static_cast<size_t>(rank)], &record, sizeof(record), deadline_us)) {
            fail("no split");
        }
        if (apart_us > 0) {
            usleep(apart_us);
        }
    }
    for (int rank = 0; rank < ranks; ++rank) {
        const int socket = sockets[static_cast<size_t>(rank)];
        MatchRecord answer{};
        if (!read_all(socket, &answer, sizeof(answer), deadline_us, {}) ||
            answer.matched != Matched::kPart ||
            static_cast<uint32_t>(answer.ranks[0]) > kMostBrief) {
            fail("a split has no answer");
        }
        std::vector<int32_t> brief(static_cast<size_t>(answer.ranks[0]));
        const size_t size = sizes.at(color_of(rank));
        if (!read_all(socket, brief.data(), 4 * brief.size(), deadline_us, {}) ||
            (!brief.empty() && ranks_in_brief(brief, size).size() != size)) {
            fail("a part of a split is another one");
        }
    }
    bytes.seconds = static_cast<double>(steady_us() - began_us) / 1e6;
    count_bytes(ranks + 64, &bytes.to_root, &bytes.from_root);
    bytes.to_root -= before.to_root;
    bytes.from_root -= before.from_root;
    return bytes;
}

void run_ranks(const AgreementAddress (&addresses)[2], int ranks) {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    double root_before = root_seconds();
    const auto report = [&](const char* what, const Bytes& bytes) {
        const double root_now = root_seconds();
        std::printf(
            "{\"v\":1,\"record\":\"bench_agreement\",\"what\":\"%s\",\"ranks\":%d,"
            "\"root_received_bytes\":%llu,\"root_sent_bytes\":%llu,"
            "\"root_received_bytes_a_rank\":%.1f,\"root_sent_bytes_a_rank\":%.1f,"
            "\"root_cpu_seconds\":%.3f,\"seconds\":%.3f}\n",
            what, ranks, static_cast<unsigned long long>(bytes.to_root),
            static_cast<unsigned long long>(bytes.from_root),
            static_cast<double>(bytes.to_root) / ranks,
            static_cast<double>(bytes.from_root) / ranks, root_now - root_before, bytes.seconds);
        std::fflush(stdout);
        root_before = root_now;
        // The end of a connection counts for one.
        const uint64_t most = static_cast<uint64_t>(ranks) * 65 + agreement_wire::kMaxText;
        if (bytes.from_root == 0 || bytes.from_root > most) {
            fail("an answer has more than 64 bytes, or none was counted");
        }
    };
    report("go", agree(addresses[0], ranks, ""));
    std::vector<int> sockets;
    report("claims", claim(addresses[0], ranks, &sockets));
    // Into pairs, nodes of eight, one rank of each node, halves, and parts that no formula tells.
    report("split_pairs", split(addresses[0], sockets, 1, [](int rank) { return rank / 2; }));
    report("split_nodes", split(addresses[0], sockets, 2, [](int rank) { return rank / 8; }));
    report("split_rails", split(addresses[0], sockets, 3, [](int rank) { return rank % 8; }));
    report("split_halves",
           split(addresses[0], sockets, 4, [&](int rank) { return 2 * rank / ranks; }));
    report("split_irregular", split(addresses[0], sockets, 5, [](int rank) {
               return static_cast<int>(static_cast<uint32_t>(rank) * 2654435761u >> 29);
           }));
    // One after the other, as ranks come that are not alike far.
    report("split_apart", split(
                              addresses[0], sockets, 6, [](int rank) { return rank / 2; }, 100));
    for (const int socket : sockets) {
        close(socket);
    }
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
    AgreementAddress addresses[2];
    for (AgreementAddress& address : addresses) {
        const Result<AgreementAddress> opened = open_agreement(kTimeoutUs, ncclUniqueId{}, "");
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
