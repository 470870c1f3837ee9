// The reporter: gathers the counters of all communicators, keeps the report file current from a
// thread of its own, and prints the summary. Declared in stats.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>

#include "codecs/base/blocked_signals.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/observe/report.h"

namespace slimwire {
namespace {

constexpr std::chrono::milliseconds kFlushInterval{1000};
// A larger file is rewritten by the thread alone, at once, so that no program that ends many
// communicators waits for as many rewritings of all of them.
constexpr size_t kMostAwaitedBytes = 64 << 10;

// Whole `text` or errno.
int write_all(int file, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(file, text.data(), text.size());
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return errno;
        }
        text.remove_prefix(static_cast<size_t>(written));
    }
    return 0;
}

// Puts `text` in the place of the file at `path` in one step, so that a reader sees the old or the
// new content and nothing between. Returns "" or why not.
std::string replace_file(const std::string& path, const std::string& text) {
    struct stat existing {};
    if (::lstat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
        return "not a regular file";
    }
    const std::string temporary = path + "." + std::to_string(::getpid()) + ".tmp";
    const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) {
        return std::strerror(errno);
    }
    int error = write_all(file, text);
    if (::close(file) != 0 && error == 0) {
        error = errno;
    }
    if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) {
        error = errno;
    }
    if (error != 0) {
        ::unlink(temporary.c_str());
        return std::strerror(error);
    }
    return {};
}

}  // namespace

struct Reporter::Impl {
    Impl(std::string pattern_, bool summary_, std::unique_ptr<ReportSource> source_)
        : pattern(std::move(pattern_)), summary(summary_), source(std::move(source_)) {}

    const std::string pattern;
    const bool summary;
    const std::unique_ptr<ReportSource> source;  // may be null
    // Read here because the job may change its environment while the reporter's thread runs.
    const std::string host = host_name();
    const std::optional<int> launched_rank = launcher_rank();
    const pid_t owner = ::getpid();
    const std::shared_ptr<RuleUses> rules =
        std::make_shared<RuleUses>([this] { report_idle_rules(false); });
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

    // Guards what follows. Taken before a CommStats' own mutex; never held during file access.
    std::mutex mutex;
    std::condition_variable wake;
    bool stop = false;
    std::atomic<bool> hurry{false};
    struct {
        std::atomic<bool> is_set{false};
        std::function<std::string()> flush;  // does not change once it is there
        std::string path;                    // under mutex
    } beside;
    bool started = false;
    bool without_comms = false;  // by start()
    bool finished = false;
    std::thread thread;
    ProcessInfo info;
    uint64_t version = 0;  // changes when members below or `info` do
    // Lines of a communicator, made again where its counters changed.
    struct Live {
        std::shared_ptr<CommStats> stats;
        uint64_t mark = 0;
        std::string lines = {};
    };
    struct Retired {
        CommRecord record;
        std::string lines = {};
    };
    std::vector<Live> live;
    std::deque<Retired> retired;
    CommRecord folded;  // of retired ones beyond kMaxRetiredComms

    struct {
        std::atomic<size_t> bytes{0};
        std::mutex mutex;  // guards what follows; taken before the one above
        std::string path;  // empty until the rank in it is known
        uint64_t mark = 0;
        bool warned = false;
    } file;

    // The child of a fork has no reporter thread, and its mutexes may be held for ever.
    [[nodiscard]] bool forked() const { return ::getpid() != owner; }

    static CommRecord record_of(const CommStats& comm) {
        CommRecord record = comm.snapshot();
        fold_keys(kMaxKeysPerComm, &record);
        return record;
    }

    std::vector<CommRecord> comm_records() const {
        std::vector<CommRecord> comms;
        for (const Live& one : live) {
            if (one.stats->mark() != 0) {
                comms.push_back(record_of(*one.stats));
            }
        }
        for (const Retired& one : retired) {
            comms.push_back(one.record);
        }
        if (!folded.comm.empty()) {
            comms.push_back(folded);
        }
        return comms;
    }

    // As report_lines() of comm_records().
    std::string file_text() {
        std::string text = report_lines(process_record(), {});
        for (Live& one : live) {
            const uint64_t now = one.stats->mark();
            if (now != one.mark) {
                one.mark = now;
                one.lines = comm_lines(record_of(*one.stats));
            }
            text += one.lines;
        }
        for (Retired& one : retired) {
            if (one.lines.empty()) {
                one.lines = comm_lines(one.record);
            }
            text += one.lines;
        }
        return folded.comm.empty() ? text : text + comm_lines(folded);
    }

    ProcessRecord process_record() const {
        using Microseconds = std::chrono::microseconds;
        const auto uptime =
            std::chrono::duration_cast<Microseconds>(std::chrono::steady_clock::now() - start);
        return {info,
                host,
                owner,
                launched_rank,
                static_cast<uint64_t>(uptime.count()),
                training_record(training_state())};
    }

    // 0 when there is nothing to write: no communicator yet, and nothing in the source.
    uint64_t mark() const {
        const uint64_t of_source = source != nullptr ? source->mark() : 0;
        if (without_comms && live.empty() && retired.empty() && of_source == 0) {
            return 0;
        }
        uint64_t sum = 1 + (version << 32) + of_source +
                       training_state().changes.load(std::memory_order_relaxed);
        for (const Live& one : live) {
            sum += one.stats->mark();
        }
        return sum;
    }

    // The least rank that this process has in the first communicator that can be seen, or -1.
    int first_rank(const std::vector<CommRecord>& comms) const {
        int rank = comms.empty() ? -1 : comms.front().rank;
        for (const CommRecord& comm : comms) {
            rank = comm.comm == comms.front().comm ? std::min(rank, comm.rank) : rank;
        }
        return rank;
    }

    // Whether this process speaks for the job. Under `mutex`.
    bool speaks(const std::vector<CommRecord>& comms) const {
        return launched_rank.value_or(first_rank(comms)) == 0;
    }

    // A line for each rule that compressed nothing and was not reported: at exit for all, else for
    // those that are due.
    void report_idle_rules(bool at_exit) noexcept {
        if (forked()) {
            return;
        }
        try {
            std::vector<IdleRule> idle;
            std::string policy;
            {
                const std::lock_guard<std::mutex> lock(mutex);
                const std::vector<CommRecord> comms = comm_records();
                policy = info.policy_source;
                idle = speaks(comms) ? idle_rules(comms) : idle;
            }
            for (const IdleRule& one : idle) {
                RuleUse& use = rules->of(one.rule);
                if ((at_exit || use.due()) && !use.settle()) {
                    log_line(LogLevel::kWarn, policy + ": " + one.text);
                }
            }
        } catch (...) {
            // Out of memory: the report has it all the same.
        }
    }

    void flush() {
        if (beside.is_set.load(std::memory_order_acquire)) {
            std::string path_beside = beside.flush();
            const std::lock_guard<std::mutex> lock(mutex);
            beside.path = std::move(path_beside);
        }
        if (pattern.empty()) {
            return;
        }
        const std::lock_guard<std::mutex> file_lock(file.mutex);
        std::string text;
        uint64_t new_mark = 0;
        {
            const std::lock_guard<std::mutex> lock(mutex);
            new_mark = mark();
            if (new_mark == file.mark || new_mark == 0) {
                return;
            }
            if (file.path.empty()) {
                const int rank = first_rank(comm_records());
                if (rank < 0 && !launched_rank && !without_comms &&
                    pattern.find("%r") != std::string::npos) {
                    return;
                }
                file.path = expand_pattern_for(pattern, launched_rank.value_or(rank));
            }
            text = file_text();
            if (source != nullptr) {
                text += source->records();
            }
        }
        file.bytes.store(text.size());
        const std::string why = replace_file(file.path, text);
        if (why.empty()) {
            file.mark = new_mark;
        } else if (!file.warned) {
            file.warned = true;
            log_line(LogLevel::kWarn, "report file '" + file.path + "' cannot be written: " + why +
                                          "; the job goes on without it (SLIMWIRE_REPORT)");
        }
    }

    void run() noexcept {
        ::pthread_setname_np(::pthread_self(), "slimwire-report");
        std::unique_lock<std::mutex> lock(mutex);
        while (!stop) {
            lock.unlock();
            try {
                flush();
            } catch (...) {
                // Out of memory: the next round tries again.
            }
            lock.lock();
            wake.wait_for(lock, kFlushInterval, [&] { return stop || hurry.exchange(false); });
        }
    }

    void start_thread() {
        const BlockedSignals blocked;
        try {
            thread = std::thread([this] { run(); });
        } catch (...) {
            log_line(LogLevel::kWarn,
                     "report thread cannot be started; the report is written only when a "
                     "communicator is destroyed and at exit");
        }
    }

    // There is something to report from now on; `change` runs under the mutex.
    template <class Change>
    void begin(Change&& change) {
        look();
        bool starts = false;
        {
            const std::lock_guard<std::mutex> lock(mutex);
            change();
            starts = !started && !finished && (!pattern.empty() || beside.flush);
            if (starts) {
                started = true;
                start_thread();
            }
        }
        if (starts && !pattern.empty()) {
            warn_about_shared_file();
        }
    }

    void look() const {
        if (source != nullptr) {
            source->look();
        }
    }

    void warn_about_shared_file() const {
        if (launcher_size().value_or(1) > 1 && pattern.find("%r") == std::string::npos &&
            pattern.find("%p") == std::string::npos) {
            log_line(LogLevel::kWarn, "report pattern '" + pattern +
                                          "' has neither %r nor %p: processes that see the same "
                                          "file replace each other's report");
        }
    }

    void stop_thread() {
        std::thread ending;
        {
            const std::lock_guard<std::mutex> lock(mutex);
            stop = true;
            ending = std::move(thread);
        }
        wake.notify_all();
        if (ending.joinable()) {
            ending.join();
        }
    }

    void print_summary() {
        std::string text;
        {
            const std::lock_guard<std::mutex> file_lock(file.mutex);
            const std::lock_guard<std::mutex> lock(mutex);
            const std::vector<CommRecord> comms = comm_records();
            const ProcessRecord process = process_record();
            if (!speaks(comms)) {
                return;
            }
            std::vector<std::string> lines =
                summary_lines(process, comms, file.mark != 0 ? file.path : std::string());
            if (source != nullptr) {
                lines.push_back(source->summary());
            }
            if (!beside.path.empty()) {
                lines.push_back("trace " + beside.path + "; next: slimwire report " + beside.path);
            }
            for (const std::string& line : lines) {
                text += line.empty() ? "" : "slimwire: summary: " + line + "\n";
            }
        }
        (void)write_all(STDERR_FILENO, text);
    }
};

Reporter::Reporter(std::string pattern, bool summary, std::unique_ptr<ReportSource> source)
    : impl_(std::make_unique<Impl>(std::move(pattern), summary, std::move(source))) {}

Reporter::~Reporter() {
    if (impl_->forked()) {
        (void)impl_.release();  // its thread does not exist here and cannot be joined
        return;
    }
    impl_->stop_thread();
}

void Reporter::set_process_info(ProcessInfo info) {
    if (impl_->forked()) {
        return;
    }
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->info = std::move(info);
    ++impl_->version;
}

void Reporter::set_beside(std::function<std::string()> flush) {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    if (!impl_->forked() && !impl_->beside.flush) {
        impl_->beside.flush = std::move(flush);
        impl_->beside.is_set.store(true, std::memory_order_release);
    }
}

void Reporter::wake() noexcept {
    impl_->hurry.store(true);
    impl_->wake.notify_one();
}

std::shared_ptr<CommStats> Reporter::add_comm() {
    auto comm = std::make_shared<CommStats>();
    comm->rules_ = impl_->rules;
    if (!impl_->forked()) {
        impl_->begin([&] { impl_->live.push_back({comm}); });
    }
    return comm;
}

void Reporter::start() {
    if (!impl_->forked()) {
        impl_->begin([&] { impl_->without_comms = true; });
    }
}

void Reporter::retire(const std::shared_ptr<CommStats>& comm) {
    if (impl_->forked()) {
        return;
    }
    impl_->look();
    bool waits = true;
    {
        const std::lock_guard<std::mutex> lock(impl_->mutex);
        if (std::erase_if(impl_->live, [&](const auto& one) { return one.stats == comm; }) == 0) {
            return;
        }
        impl_->retired.push_back({Impl::record_of(*comm)});
        impl_->retired.back().record.retired = true;
        if (impl_->retired.size() > kMaxRetiredComms) {
            fold_comm(impl_->retired.front().record, &impl_->folded);
            impl_->retired.pop_front();
        }
        ++impl_->version;
        waits = impl_->file.bytes.load() <= kMostAwaitedBytes || !impl_->thread.joinable();
    }
    if (waits) {
        impl_->flush();
    } else {
        wake();
    }
}

void Reporter::flush() {
    if (!impl_->forked()) {
        impl_->flush();
    }
}

void Reporter::finish() {
    if (impl_->forked()) {
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(impl_->mutex);
        if (impl_->finished) {
            return;
        }
        impl_->finished = true;
    }
    impl_->look();
    impl_->stop_thread();
    impl_->flush();
    impl_->report_idle_rules(true);
    if (impl_->summary) {
        impl_->print_summary();
    }
}

}  // namespace slimwire
