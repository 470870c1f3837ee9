#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "collectives/call/interfaces.h"
#include "collectives/communicator/agreement/claim_book.h"
#include "collectives/communicator/agreement/private_split.h"
#include "collectives/communicator/agreement/wire.h"

namespace slimwire {

using namespace agreement_wire;

namespace {

constexpr int kMaxConnections = 70000;  // one a rank of the largest communicator we would meet
constexpr uint64_t kStrangerPatienceUs = 5000000;
constexpr size_t kMostIds = ClaimBook::kMostComms;  // that wait for ranks

// One accepted socket: first it fills `bytes` up to a whole hello, then it waits for the answer.
// One that begins with a claim is the ClaimServer's.
struct Connection {
    int socket = -1;
    uint64_t accepted_us = 0;
    std::string bytes;
};

// One communicator in the making.
struct Pending {
    uint64_t number = 0;  // in the order of ids
    std::vector<Hello> hellos;
    std::vector<int> sockets;
    uint64_t first_us = 0;
    bool answered = false;
    size_t came = 0;  // ranks, once answered
    Agreement answer;
    int32_t whole_at = -1;  // encode_answer()'s, for whoever comes late
    [[nodiscard]] bool waits() const { return !answered && !hellos.empty(); }
};

// Where `from` is, but for the port; false for a family that is no IP.
bool take_address(const SocketAddress& from, AgreementAddress* out) {
    if (from.any.sa_family == AF_INET) {
        out->family = 4;
        std::memcpy(out->address, &from.v4.sin_addr, 4);
    } else if (from.any.sa_family == AF_INET6) {
        out->family = 6;
        std::memcpy(out->address, &from.v6.sin6_addr, 16);
        out->scope = from.v6.sin6_scope_id;
    }
    return out->family != 0;
}

// Listens on every address of the family; returns the socket and its port, or -1.
int listen_any(uint8_t family, uint16_t* port) {
    const int socket = open_socket(family);
    if (socket < 0) {
        return -1;
    }
    sockaddr_storage storage{};
    socklen_t length = 0;
    if (family == 6) {
        const int only = 1;
        setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
        auto* any = reinterpret_cast<sockaddr_in6*>(&storage);
        any->sin6_family = AF_INET6;
        any->sin6_addr = in6addr_any;
        length = sizeof(*any);
    } else {
        auto* any = reinterpret_cast<sockaddr_in*>(&storage);
        any->sin_family = AF_INET;
        any->sin_addr.s_addr = htonl(INADDR_ANY);
        length = sizeof(*any);
    }
    if (bind(socket, reinterpret_cast<sockaddr*>(&storage), length) != 0 ||
        listen(socket, kMaxConnections) != 0 ||
        getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
        close(socket);
        return -1;
    }
    *port = ntohs(family == 6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                              : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
    return socket;
}

bool parse_hello(const std::string& bytes, Hello* hello, uint64_t* token, bool* malformed) {
    HelloHeader header{};
    if (bytes.size() < sizeof(header)) {
        *malformed = bytes.size() >= 8 && std::memcmp(bytes.data(), &kMagic, 8) != 0 &&
                     std::memcmp(bytes.data(), &kClaimMagic, 8) != 0;
        return false;
    }
    std::memcpy(&header, bytes.data(), sizeof(header));
    *malformed = header.magic != kMagic || header.text_bytes > kMaxHelloText ||
                 header.error_bytes > header.text_bytes || header.ranks <= 0;
    if (*malformed || bytes.size() < sizeof(header) + header.text_bytes) {
        return false;
    }
    *token = header.token;
    hello->ranks = header.ranks;
    hello->rank = header.rank;
    hello->config_hash = header.config_hash;
    hello->process = header.process;
    hello->error = bytes.substr(sizeof(header), header.error_bytes);
    const std::string rest =
        bytes.substr(sizeof(header) + header.error_bytes, header.text_bytes - header.error_bytes);
    hello->native_reason = rest.substr(0, rest.find('\0'));
    hello->settings = rest.substr(std::min(rest.size(), hello->native_reason.size() + 1));
    if (header.version != kAgreementVersion) {
        hello->error = "runs another slimwire (agreement version " +
                       std::to_string(header.version) + ", expected " +
                       std::to_string(kAgreementVersion) + "); install one version";
    }
    return true;
}

// Raises the limit of open files to what the process may have, as NCCL does for its own root; false
// where that is no more than it has.
bool more_files() {
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) {
        return false;
    }
    files.rlim_cur = files.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &files) == 0;
}

// NCCL's own id: 8 bytes of magic, then the socket address of its bootstrap root.
bool address_in_id(const ncclUniqueId& id, AgreementAddress* out) {
    SocketAddress address{};
    std::memcpy(&address, id.internal + 8, sizeof(address));
    return take_address(address, out);
}

}  // namespace

struct AgreementServer::Impl {
    std::mutex mutex;  // guards the next three
    std::map<uint64_t, Pending> pending;
    uint64_t opened = 0;
    bool forgot = false;                  // one that might yet be used
    std::vector<Connection> connections;  // server thread only
    ClaimServer claims;
    int listener4 = -1, listener6 = -1;
    uint16_t port4 = 0, port6 = 0;
    int wake[2] = {-1, -1};
    uint64_t timeout_us = 0;
    pid_t pid = 0;

    void serve();
    void accept_from(int listener);
    bool advance(Connection* connection);
    void take_hello(uint64_t token, Hello hello, int socket);
    void expire();
    void forget_oldest();
    static void answer(int socket, const Agreement& answer, int32_t whole_at);
    static void answer_all(Pending* entry, const Agreement& decided);
};

void AgreementServer::Impl::answer(int socket, const Agreement& answer, int32_t whole_at) {
    const std::string bytes = encode_answer(answer, whole_at);
    (void)write_all(socket, bytes.data(), bytes.size(), now_us() + 2000000);
    close(socket);
}

// The ranks of this process last: with an error they may end it.
void AgreementServer::Impl::answer_all(Pending* entry, const Agreement& decided) {
    const auto own = static_cast<uint32_t>(getpid());
    const std::vector<Hello>& hellos = entry->hellos;
    if (hellos.front().ranks > kRanksWithText) {
        const auto first = std::min_element(
            hellos.begin(), hellos.end(),
            [](const Hello& one, const Hello& other) { return one.rank < other.rank; });
        entry->whole_at = std::max(first->rank, 0);
    }
    for (const bool last : {false, true}) {
        for (size_t i = 0; i < hellos.size(); ++i) {
            if ((hellos[i].process == own) == last) {
                answer(entry->sockets[i], decided,
                       hellos[i].rank == entry->whole_at ? -1 : entry->whole_at);
            }
        }
    }
}

void AgreementServer::Impl::accept_from(int listener) {
    for (;;) {
        const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0) {
            const int error = errno;
            if (error == EMFILE && more_files()) {
                continue;
            }
            if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
                usleep(50000);  // poll would report the waiting connection at once, and again
            }
            return;
        }
        if (connections.size() + claims.connections() >= static_cast<size_t>(kMaxConnections)) {
            close(socket);
            continue;
        }
        connections.push_back({socket, now_us(), {}});
    }
}

// False when the connection is done with (closed or handed over).
bool AgreementServer::Impl::advance(Connection* connection) {
    char buffer[1024];
    for (;;) {
        const ssize_t got = recv(connection->socket, buffer, sizeof(buffer), 0);
        if (got > 0) {
            connection->bytes.append(buffer, static_cast<size_t>(got));
        }
        if (ClaimServer::begins(connection->bytes)) {
            claims.adopt(connection->socket, std::move(connection->bytes));
            return false;
        }
        Hello hello;
        uint64_t token = 0;
        bool malformed = false;
        if (parse_hello(connection->bytes, &hello, &token, &malformed)) {
            take_hello(token, std::move(hello), connection->socket);
            return false;
        }
        const bool waiting = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        if (malformed || got == 0 || (got < 0 && !waiting) ||
            now_us() - connection->accepted_us > kStrangerPatienceUs) {
            close(connection->socket);  // a stranger, or a rank that died
            return false;
        }
        if (waiting) {
            return true;
        }
    }
}

void AgreementServer::Impl::take_hello(uint64_t token, Hello hello, int socket) {
    std::lock_guard lock(mutex);
    const auto found = pending.find(token);
    if (found == pending.end() && forgot) {
        answer(socket,
               {Verdict::kNative, "its unique id is not known, or older than " +
                                      std::to_string(kMostIds) + " others"},
               -1);
        return;
    }
    if (found == pending.end()) {
        close(socket);  // the random token is the proof of membership
        return;
    }
    Pending& entry = found->second;
    const int ranks = hello.ranks;
    if (entry.answered) {
        answer(socket, entry.answer, entry.whole_at);
        if (++entry.came >= static_cast<size_t>(ranks)) {
            pending.erase(found);
        }
        return;
    }
    if (entry.hellos.empty()) {
        entry.first_us = now_us();
    }
    if (!entry.hellos.empty() && hello.config_hash == entry.hellos.front().config_hash) {
        hello.settings.clear();  // those of the first
    }
    entry.hellos.push_back(std::move(hello));
    entry.sockets.push_back(socket);
    if (entry.hellos.size() >= static_cast<size_t>(ranks)) {
        answer_all(&entry, decide(entry.hellos, ranks, timeout_us));
        pending.erase(found);  // nobody else may come
    }
}

void AgreementServer::Impl::expire() {
    std::lock_guard lock(mutex);
    const uint64_t now = now_us();
    for (auto& [token, entry] : pending) {
        if (!entry.waits() || now - entry.first_us < timeout_us) {
            continue;
        }
        entry.came = entry.hellos.size();
        entry.answer = decide(entry.hellos, entry.hellos.front().ranks, timeout_us);
        entry.answered = true;
        answer_all(&entry, entry.answer);
        entry.hellos.clear();
        entry.sockets.clear();
    }
}

// Of an id that is not used, or not by all of its ranks.
void AgreementServer::Impl::forget_oldest() {
    auto oldest = pending.end();
    for (auto at = pending.begin(); at != pending.end(); ++at) {
        if (!at->second.waits() &&
            (oldest == pending.end() || at->second.number < oldest->second.number)) {
            oldest = at;
        }
    }
    if (oldest != pending.end()) {
        pending.erase(oldest);
        forgot = true;
    }
}

void AgreementServer::Impl::serve() {
    pthread_setname_np(pthread_self(), "slimwire-agree");
    std::vector<pollfd> polled;
    for (;;) {
        polled.clear();
        polled.push_back({wake[0], POLLIN, 0});
        polled.push_back({listener4, POLLIN, 0});
        polled.push_back({listener6, POLLIN, 0});  // -1 is ignored by poll
        polled.push_back({claims.descriptor(), POLLIN, 0});
        for (const Connection& connection : connections) {
            polled.push_back({connection.socket, POLLIN, 0});
        }
        bool waiting = !connections.empty();
        {
            std::lock_guard lock(mutex);
            for (const auto& [token, entry] : pending) {
                waiting |= entry.waits();
            }
        }
        (void)poll(polled.data(), polled.size(), waiting ? 100 : -1);
        char drained[64];
        while (read(wake[0], drained, sizeof(drained)) > 0) {
        }
        claims.serve();
        for (const int listener : {listener4, listener6}) {
            if (listener >= 0) {
                accept_from(listener);
            }
        }
        for (size_t i = 0; i < connections.size();) {
            if (advance(&connections[i])) {
                ++i;
            } else {
                connections[i] = std::move(connections.back());
                connections.pop_back();
            }
        }
        expire();
    }
}

AgreementServer::AgreementServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AgreementServer::~AgreementServer() = default;

Result<AgreementServer*> AgreementServer::instance(uint64_t timeout_us) {
    static std::mutex mutex;
    static AgreementServer* server = nullptr;  // never destroyed: its thread may outlive main
    std::lock_guard lock(mutex);
    if (server != nullptr && server->impl_->pid == getpid()) {
        return server;
    }
    auto impl = std::make_unique<Impl>();
    impl->pid = getpid();
    impl->timeout_us = timeout_us;
    impl->listener4 = listen_any(4, &impl->port4);
    impl->listener6 = listen_any(6, &impl->port6);
    if ((impl->listener4 < 0 && impl->listener6 < 0) ||
        pipe2(impl->wake, O_CLOEXEC | O_NONBLOCK) != 0) {
        return Status(Code::kSystemError,
                      std::string("the agreement server cannot listen: ") + std::strerror(errno));
    }
    auto* created = new (std::nothrow) AgreementServer(std::move(impl));
    if (created == nullptr) {
        return Status(Code::kOutOfMemory, "the agreement server cannot be created");
    }
    if (Status started = start_detached([impl = created->impl_.get()] { impl->serve(); });
        !started.ok()) {
        delete created;
        return started;
    }
    server = created;
    return server;
}

Result<AgreementAddress> AgreementServer::open(const ncclUniqueId& id,
                                               const std::string& ifname,
                                               bool hellos) {
    AgreementAddress address;
    if (!ifname.empty()) {
        SLIMWIRE_TRY_ASSIGN(const Interface found,
                            listed_interface(ifname, "SLIMWIRE_SOCKET_IFNAME"));
        (void)take_address(found.address, &address);
    } else if (!address_in_id(id, &address)) {
        address.family = 4;
        const uint32_t loopback = htonl(INADDR_LOOPBACK);
        std::memcpy(address.address, &loopback, 4);
    }
    address.port = address.family == 6 ? impl_->port6 : impl_->port4;
    if (address.port == 0) {
        return Status(Code::kSystemError, "the agreement server has no listener for IPv" +
                                              std::to_string(address.family));
    }
    while (address.token == 0) {
        if (getrandom(&address.token, sizeof(address.token), 0) != sizeof(address.token)) {
            return Status(Code::kSystemError, "no random bytes for the agreement token");
        }
    }
    impl_->claims.know(address.token);
    if (!hellos) {
        return address;
    }
    std::lock_guard lock(impl_->mutex);
    if (impl_->pending.size() >= kMostIds) {
        impl_->forget_oldest();
    }
    impl_->pending[address.token].number = impl_->opened++;
    return address;
}

}  // namespace slimwire
