#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>

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

// One accepted socket, until `bytes` are a whole hello, or for the claims of a rank.
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
    SocketAddress all{};
    all.any.sa_family = family == 6 ? AF_INET6 : AF_INET;
    socklen_t length = family == 6 ? sizeof(all.v6) : sizeof(all.v4);
    const int only = 1;
    if (family == 6) {
        (void)setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
    }
    if (bind(socket, &all.any, length) != 0 || listen(socket, kMaxConnections) != 0 ||
        getsockname(socket, &all.any, &length) != 0) {
        close(socket);
        return -1;
    }
    *port = ntohs(family == 6 ? all.v6.sin6_port : all.v4.sin_port);
    return socket;
}

bool parse_hello(const std::string& bytes, Hello* hello, uint64_t* token, bool* malformed) {
    HelloHeader header{};
    const bool claim = bytes.size() >= 8 && std::memcmp(bytes.data(), &kClaimMagic, 8) == 0;
    if (bytes.size() < sizeof(header) || claim) {
        *malformed = bytes.size() >= 8 && !claim && std::memcmp(bytes.data(), &kMagic, 8) != 0;
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

bool begins_with_claim(const std::string& bytes) {
    return bytes.size() >= sizeof(ClaimRecord) &&
           std::memcmp(bytes.data(), &kClaimMagic, sizeof(kClaimMagic)) == 0;
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

// The listening thread, and what it knows.
struct Server {
    explicit Server(uint64_t timeout) : timeout_us(timeout) {}

    const uint64_t timeout_us;
    const pid_t pid = getpid();
    const int ready = epoll_create1(EPOLL_CLOEXEC);
    uint16_t port4 = 0, port6 = 0;
    std::mutex mutex;  // guards the next four
    std::map<uint64_t, Pending> pending;
    std::deque<uint64_t> tokens;  // whose ranks may claim; of very many the last
    uint64_t opened = 0;
    bool forgot = false;  // one that might yet be used
    // Below: the server's thread only. However many claim, what stands still costs nothing.
    std::map<uint64_t, Connection> strangers, claiming;  // by number, in the order of their coming
    uint64_t last_number = 0;
    ClaimBook book;
    std::vector<ClaimBook::Answer> answers;

    void serve();
    void watch(int socket, uint64_t number) const;
    void unwatch(int socket) const;
    void accept_from(int listener);
    void hear(uint64_t number);
    bool advance(uint64_t number, Connection* stranger);
    bool take_claims(uint64_t number, Connection* rank);
    void answer_claims();
    void drop(uint64_t number);
    void take_hello(uint64_t token, Hello hello, int socket);
    bool expire(uint64_t heard_us);
    void forget_oldest();
};

void answer_hello(int socket, const Agreement& answer, int32_t whole_at) {
    const std::string bytes = encode_answer(answer, whole_at);
    (void)write_all(socket, bytes.data(), bytes.size(), now_us() + 2000000);
    close(socket);
}

// The ranks of this process last: with an error they may end it.
void answer_all(Pending* entry, const Agreement& decided) {
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
                answer_hello(entry->sockets[i], decided,
                             hellos[i].rank == entry->whole_at ? -1 : entry->whole_at);
            }
        }
    }
}

// A listener has its own number, a connection a higher one than any descriptor.
constexpr uint64_t kFirstNumber = uint64_t{1} << 32;

void Server::watch(int socket, uint64_t number) const {
    epoll_event event{EPOLLIN, {.u64 = number}};
    (void)epoll_ctl(ready, EPOLL_CTL_ADD, socket, &event);
}

// Before it is closed: a fork may hold the connection open.
void Server::unwatch(int socket) const {
    (void)epoll_ctl(ready, EPOLL_CTL_DEL, socket, nullptr);
}

void Server::accept_from(int listener) {
    for (;;) {
        const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0) {
            const int error = errno;
            if (error == EMFILE && more_files()) {
                continue;
            }
            if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
                usleep(50000);  // the waiting connection would be seen at once, and again
            }
            return;
        }
        if (strangers.size() + claiming.size() >= static_cast<size_t>(kMaxConnections)) {
            close(socket);
            continue;
        }
        const uint64_t number = kFirstNumber + ++last_number;
        strangers[number] = {socket, now_us(), {}};
        watch(socket, number);
    }
}

void Server::hear(uint64_t number) {
    const bool claims = claiming.contains(number);
    auto& among = claims ? claiming : strangers;
    const auto found = among.find(number);
    if (found == among.end()) {
        return;  // dropped since
    }
    Connection* const from = &found->second;
    char buffer[4096];
    const ssize_t got = recv(from->socket, buffer, sizeof(buffer), 0);
    const bool open =
        got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
    from->bytes.append(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
    const bool fits = claims ? take_claims(number, from) : advance(number, from);
    if (!fits || !open) {
        drop(number);
    }
    answer_claims();
}

// False for a stranger.
bool Server::advance(uint64_t number, Connection* stranger) {
    if (begins_with_claim(stranger->bytes)) {
        return take_claims(number, &claiming.insert(strangers.extract(number)).position->second);
    }
    Hello hello;
    uint64_t token = 0;
    bool malformed = false;
    if (parse_hello(stranger->bytes, &hello, &token, &malformed)) {
        unwatch(stranger->socket);
        take_hello(token, std::move(hello), stranger->socket);
        strangers.erase(number);
    }
    return !malformed;
}

bool Server::take_claims(uint64_t number, Connection* rank) {
    size_t at = 0;
    for (; rank->bytes.size() - at >= sizeof(ClaimRecord); at += sizeof(ClaimRecord)) {
        ClaimRecord record{};
        std::memcpy(&record, rank->bytes.data() + at, sizeof(record));
        {
            const std::lock_guard lock(mutex);
            if (std::find(tokens.rbegin(), tokens.rend(), record.token) == tokens.rend()) {
                return false;
            }
        }
        if (!book.take(number, record, now_us(), &answers)) {
            return false;
        }
    }
    rank->bytes.erase(0, at);
    return true;
}

// What does not go out at once never does: who does not read is no rank that waits.
void Server::answer_claims() {
    for (const ClaimBook::Answer& one : std::exchange(answers, {})) {
        const auto found = claiming.find(one.to);
        std::string bytes(reinterpret_cast<const char*>(&one.record), sizeof(one.record));
        bytes.append(reinterpret_cast<const char*>(one.part.data()),
                     one.part.size() * sizeof(int32_t));
        if (found != claiming.end() &&
            send(found->second.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
                static_cast<ssize_t>(bytes.size())) {
            drop(one.to);
        }
    }
}

void Server::drop(uint64_t number) {
    const bool claimed = claiming.contains(number);
    auto& among = claimed ? claiming : strangers;
    const auto found = among.find(number);
    if (found == among.end()) {
        return;
    }
    unwatch(found->second.socket);
    close(found->second.socket);
    among.erase(found);
    if (claimed) {
        book.gone(number, now_us());
    }
}

void Server::take_hello(uint64_t token, Hello hello, int socket) {
    const std::lock_guard lock(mutex);
    const auto found = pending.find(token);
    if (found == pending.end() && forgot) {
        answer_hello(socket,
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
        answer_hello(socket, entry.answer, entry.whole_at);
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

// Ends what had taken too long at `heard_us`, when all that had come is heard by now; whether
// anything else waits for its time.
bool Server::expire(uint64_t heard_us) {
    while (!strangers.empty() &&
           heard_us > strangers.begin()->second.accepted_us + kStrangerPatienceUs) {
        drop(strangers.begin()->first);
    }
    bool waiting = !strangers.empty();
    const std::lock_guard lock(mutex);
    for (auto& [token, entry] : pending) {
        if (!entry.waits()) {
            continue;
        }
        if (heard_us < entry.first_us + timeout_us) {
            waiting = true;
            continue;
        }
        entry.came = entry.hellos.size();
        entry.answer = decide(entry.hellos, entry.hellos.front().ranks, timeout_us);
        entry.answered = true;
        answer_all(&entry, entry.answer);
        entry.hellos.clear();
        entry.sockets.clear();
    }
    return waiting;
}

// Of an id that is not used, or not by all of its ranks.
void Server::forget_oldest() {
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

void Server::serve() {
    pthread_setname_np(pthread_self(), "slimwire-agree");
    uint64_t looked_us = 0, heard_us = 0;
    bool all = false;  // that was there
    for (bool waiting = false;; waiting = expire(heard_us)) {
        epoll_event events[64];
        const uint64_t before_us = std::exchange(looked_us, now_us());
        const int count = epoll_wait(ready, events, std::size(events), waiting ? 100 : -1);
        for (int i = 0; i < count; ++i) {
            if (events[i].data.u64 < kFirstNumber) {
                accept_from(static_cast<int>(events[i].data.u64));
            } else {
                hear(events[i].data.u64);
            }
        }
        // This thread may have been held up: who connected is heard at the next look.
        const bool all_before = std::exchange(all, count < static_cast<int>(std::size(events)));
        heard_us = all && all_before ? before_us : heard_us;
    }
}

// That of this process; starts it if needed. After a fork the child has none.
Result<Server*> server_of_process(uint64_t timeout_us) {
    static std::mutex mutex;
    static Server* server = nullptr;  // never destroyed: its thread may outlive main
    const std::lock_guard lock(mutex);
    if (server != nullptr && server->pid == getpid()) {
        return server;
    }
    auto made = std::make_unique<Server>(timeout_us);
    for (const auto& [family, port] : {std::pair(4, &made->port4), std::pair(6, &made->port6)}) {
        const int listener = made->ready < 0 ? -1 : listen_any(static_cast<uint8_t>(family), port);
        if (listener >= 0) {
            made->watch(listener, static_cast<uint64_t>(listener));
        }
    }
    if (made->port4 == 0 && made->port6 == 0) {
        const int error = errno;
        close(made->ready);
        return Status(Code::kSystemError,
                      std::string("the agreement server cannot listen: ") + std::strerror(error));
    }
    SLIMWIRE_TRY(start_detached([server = made.get()] { server->serve(); }));
    return server = made.release();
}

}  // namespace

Result<AgreementAddress> open_agreement(uint64_t timeout_us,
                                        const ncclUniqueId& id,
                                        const std::string& ifname,
                                        bool hellos) {
    SLIMWIRE_TRY_ASSIGN(Server * server, server_of_process(timeout_us));
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
    address.port = address.family == 6 ? server->port6 : server->port4;
    if (address.port == 0) {
        return Status(Code::kSystemError, "the agreement server has no listener for IPv" +
                                              std::to_string(address.family));
    }
    while (address.token == 0) {
        if (getrandom(&address.token, sizeof(address.token), 0) != sizeof(address.token)) {
            return Status(Code::kSystemError, "no random bytes for the agreement token");
        }
    }
    const std::lock_guard lock(server->mutex);
    server->tokens.push_back(address.token);
    if (server->tokens.size() > kMostIds) {
        server->tokens.pop_front();
    }
    if (hellos && server->pending.size() >= kMostIds) {
        server->forget_oldest();
    }
    if (hellos) {
        server->pending[address.token].number = server->opened++;
    }
    return address;
}

}  // namespace slimwire
