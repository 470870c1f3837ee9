// When what is left of aborted communicators is freed: not while another thread may look at it.
#include "collectives/communicator/registry.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

namespace slimwire {
namespace {

struct Other {
    explicit Other(bool goes_on) {
        thread = std::thread([this, goes_on] {
            CommUse::begin();
            began = true;
            began.notify_one();
            wait_for(&ends);
            CommUse::end(goes_on);
            ended = true;
            ended.notify_one();
            wait_for(&leaves);
        });
        wait_for(&began);
    }
    void end() {
        set(&ends);
        wait_for(&ended);
    }
    void leave() {
        set(&leaves);
        thread.join();
    }
    static void set(std::atomic<bool>* flag) {
        *flag = true;
        flag->notify_one();
    }
    static void wait_for(std::atomic<bool>* flag) { flag->wait(false); }

    std::thread thread;
    std::atomic<bool> began{false}, ends{false}, ended{false}, leaves{false};
};

TEST(CommRegistry, keeps_aborted_ones_while_another_thread_is_in_a_call) {
    for (const bool goes_on : {false, true}) {
        CommRegistry registry;
        const CommUse own;  // the call that aborts
        Other other(goes_on);
        registry.retire({std::make_unique<Communicator>(), true});
        EXPECT_TRUE(registry.take_retired().empty());
        other.end();
        if (goes_on) {  // of a group
            EXPECT_TRUE(registry.take_retired().empty());
            other.leave();
        }
        registry.retire({std::make_unique<Communicator>(), false});
        const auto taken = registry.take_retired();
        ASSERT_EQ(taken.size(), 2u);
        EXPECT_TRUE(taken[0].released && !taken[1].released);
        EXPECT_TRUE(registry.take_retired().empty());
        if (!goes_on) {
            other.leave();
        }
    }
}

TEST(CommRegistry, a_call_inside_another_ends_with_that) {
    CommRegistry registry;
    std::atomic<bool> inner{false}, goes{false};
    std::thread other([&] {
        const CommUse use;
        { const CommUse nested; }
        Other::set(&inner);
        Other::wait_for(&goes);
    });
    Other::wait_for(&inner);
    registry.retire({std::make_unique<Communicator>(), true});
    EXPECT_TRUE(registry.take_retired().empty());
    Other::set(&goes);
    other.join();
    EXPECT_EQ(registry.take_retired().size(), 1u);
}

TEST(CommRegistry, a_fork_has_no_other_threads) {
    CommRegistry registry;
    Other other(false);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        CommUse::begin_child();
        registry.retire({std::make_unique<Communicator>(), true});
        _exit(registry.take_retired().size() == 1 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    other.end();
    other.leave();
}

}  // namespace
}  // namespace slimwire
