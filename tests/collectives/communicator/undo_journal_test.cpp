// A group that does not run: what its calls changed is taken back, the newest change first.
#include "collectives/communicator/undo_journal.h"

#include <gtest/gtest.h>

#include <vector>

#include "collectives/communicator/communicator.h"

namespace slimwire {
namespace {

std::vector<uint64_t> undone;

void take_back(Communicator*, uint64_t first, uint64_t second) noexcept {
    undone.push_back(10 * first + second);
}
void other(Communicator*, uint64_t, uint64_t) noexcept {
    undone.push_back(0);
}

TEST(UndoJournal, UndoesBackwardsAndOnceWhatIsNotKeptOrForgotten) {
    Communicator one, two;
    UndoJournal journal;
    journal.add(&one, take_back, 9);
    journal.clear();  // it is kept
    journal.add(&one, take_back, 1, 2);
    journal.add(&one, other);
    journal.add(&two, take_back, 3, 4);
    EXPECT_EQ(journal.communicators(), (std::vector<Communicator*>{&one, &two}));
    EXPECT_EQ(journal.with(other), std::vector<Communicator*>{&one});
    EXPECT_TRUE(journal.has(&one, take_back));
    journal.undo();
    EXPECT_EQ(undone, (std::vector<uint64_t>{34, 0, 12}));
    journal.undo();
    journal.add(&one, take_back, 5);
    journal.add(&one, other);
    journal.add(&two, take_back, 6);
    journal.forget(one);  // it is being destroyed
    EXPECT_FALSE(journal.has(&one, take_back));
    EXPECT_TRUE(journal.with(other).empty());
    journal.undo();
    EXPECT_EQ(undone, (std::vector<uint64_t>{34, 0, 12, 60}));
}

}  // namespace
}  // namespace slimwire
