// A communicator's links from what its ranks say of their places.
#include "topology/machine/comm_links.h"

#include <algorithm>

#include "tests/support/seed.h"
#include "tests/topology/fixture.h"

namespace slimwire::test {
namespace {

std::vector<RankPlace> ranks_of(const ReadMachine& read,
                                const std::vector<size_t>& gpus,
                                uint64_t host) {
    std::vector<RankPlace> places;
    for (const size_t gpu : gpus) {
        places.push_back(rank_place(read.machine, read.places, gpu, host));
    }
    return places;
}

std::vector<RankPlace> operator+(std::vector<RankPlace> a, const std::vector<RankPlace>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

std::string text(const RankLink& link) {
    return std::string(path_class_name(link.path_class)) + " " + std::to_string(link.mb_s) +
           (link.same_rail ? " rail" : "");
}

CommLinks links_of(const std::vector<RankPlace>& places) {
    auto links = make_comm_links(places);
    EXPECT_TRUE(links.ok());
    return links.ok() ? std::move(links).value() : CommLinks{};
}

const std::vector<size_t> kAll = {0, 1, 2, 3, 4, 5, 6, 7};

TEST(CommLinks, TwoNodesOfAnNvSwitchMachine) {
    const ReadMachine read = read_fixture("nvswitch_8gpu_8nic.xml");
    const auto places = ranks_of(read, kAll, 11) + ranks_of(read, kAll, 22);
    const CommLinks links = links_of(places);
    EXPECT_EQ(links.shape.nodes, 2);
    EXPECT_EQ(links.ranks_on_node, (std::vector<int>{8, 8}));
    EXPECT_EQ(links.rails, 8);
    EXPECT_TRUE(links.rails_aligned);
    EXPECT_EQ(links.nv_domains, 2);
    EXPECT_EQ(text(links.slowest_in_node), "NVL 370800");
    EXPECT_EQ(text(links.slowest_between_nodes), "NET 48000");
    EXPECT_EQ(text(links.slowest()), "NET 48000");
    EXPECT_EQ(text(rank_link(places[0], places[1])), "NVL 370800");
    EXPECT_EQ(text(rank_link(places[2], places[10])), "NET 48000 rail");
    EXPECT_EQ(text(rank_link(places[2], places[11])), "NET 48000");
    EXPECT_FALSE(links.shared_gpus);
}

TEST(CommLinks, UnevenNodesAndRails) {
    const ReadMachine read = read_fixture("nvswitch_8gpu_8nic.xml");
    const CommLinks links = links_of(ranks_of(read, {0, 1, 2}, 11) + ranks_of(read, {0}, 22));
    EXPECT_EQ(links.ranks_on_node, (std::vector<int>{3, 1}));
    EXPECT_FALSE(links.shape.even());
    EXPECT_FALSE(links.rails_aligned);
    EXPECT_EQ(links.nv_domains, 1) << "that of one rank is none";
    // One rank a node on one rail: a ring of these crosses no other rail.
    const CommLinks rail = links_of(ranks_of(read, {3}, 11) + ranks_of(read, {3}, 22));
    EXPECT_EQ(text(rail.slowest()), "NET 48000 rail");
    EXPECT_TRUE(rail.rails_aligned);
    EXPECT_EQ(rail.slowest_in_node.path_class, PathClass::kNone);
}

TEST(CommLinks, PcieOnly) {
    const ReadMachine read = read_fixture("switches_2gpu_1nic.xml");
    const auto places = ranks_of(read, kAll, 11);
    EXPECT_EQ(text(rank_link(places[0], places[1])), "PIX 12000");
    EXPECT_EQ(text(rank_link(places[0], places[2])), "PHB 12000");
    EXPECT_EQ(text(rank_link(places[0], places[7])), "SYS 10000");
    const CommLinks links = links_of(places);
    EXPECT_EQ(text(links.slowest()), "SYS 10000");
    EXPECT_EQ(text(links_of(ranks_of(read, {0, 1}, 11)).slowest()), "PIX 12000");
    // The wire's speed is not in the file: not known, not guessed.
    const CommLinks two = links_of(places + ranks_of(read, kAll, 22));
    EXPECT_EQ(text(two.slowest()), "NET 0");
}

TEST(CommLinks, RanksOnOneGpu) {
    const ReadMachine read = read_fixture("pcie_one_nic.xml");
    const auto places = ranks_of(read, {0, 0, 1}, 11);
    EXPECT_EQ(text(rank_link(places[0], places[1])), "LOC 5000000");
    EXPECT_TRUE(links_of(places).shared_gpus);
    EXPECT_EQ(text(links_of(places).slowest()), "PHB 24000");
    // The same bus id on another host is another GPU.
    EXPECT_FALSE(links_of(ranks_of(read, {0}, 11) + ranks_of(read, {0}, 22)).shared_gpus);
}

TEST(CommLinks, NvLinkDomainOverHosts) {
    std::vector<RankPlace> places(4);
    for (size_t i = 0; i < 4; ++i) {
        places[i].host_id = 1 + i / 2;
        places[i].nv_domain_id = 5;
        places[i].nv_mb_s = 700000 + static_cast<uint32_t>(i);
        places[i].net_mb_s = 50000;
    }
    EXPECT_EQ(text(links_of(places).slowest()), "NVL 700000");
    // A fifth outside of the domain, with the fastest NIC: pairs with it have the others' speed.
    places.push_back({3, 0, 0, 0, -1, 0, 0, 0, 0, 90000});
    EXPECT_EQ(text(links_of(places).slowest()), "NET 50000");
    places.pop_back();
    places.push_back({3, 0, 0, 0, -1, 0, 0, 0, 0, 20000});
    EXPECT_EQ(text(links_of(places).slowest()), "NET 20000");
}

// The slowest link against all pairs, on places drawn at random.
TEST(CommLinks, SlowestIsThatOfAllPairs) {
    const uint64_t seed = test_seed();
    uint64_t state = seed * 2654435761u + 12345;
    const auto draw = [&state](uint64_t below) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % below;
    };
    for (int round = 0; round < 300; ++round) {
        std::vector<RankPlace> places(1 + draw(9));
        const bool known = draw(4) != 0;
        for (RankPlace& place : places) {
            place.host_id = 1 + draw(3);
            place.gpu_id = draw(6);
            place.nv_domain_id = draw(3);
            place.switch_id = draw(3);
            place.numa = static_cast<int32_t>(draw(3)) - 1;
            place.rail = static_cast<int32_t>(draw(3)) - 1;
            place.nv_mb_s = static_cast<uint32_t>(known + draw(1000));
            place.pcie_mb_s = static_cast<uint32_t>(known + draw(100));
            place.cpu_mb_s = static_cast<uint32_t>(known + draw(50));
            place.net_mb_s = static_cast<uint32_t>(known + draw(20));
        }
        const CommLinks links = links_of(places);
        PathClass in_node = PathClass::kNone, between = PathClass::kNone;
        uint32_t in_node_mb_s = 0, between_mb_s = 0;
        const auto take = [](const RankLink& link, PathClass* farthest, uint32_t* least) {
            if (*farthest == PathClass::kNone || link.path_class > *farthest) {
                *farthest = link.path_class;
            }
            if (link.mb_s != 0) {
                *least = *least == 0 ? link.mb_s : std::min(*least, link.mb_s);
            }
        };
        bool one_rail = true;
        for (size_t i = 0; i < places.size(); ++i) {
            for (size_t j = i + 1; j < places.size(); ++j) {
                const RankLink link = rank_link(places[i], places[j]);
                EXPECT_EQ(link, rank_link(places[j], places[i]));
                if (places[i].host_id == places[j].host_id) {
                    take(link, &in_node, &in_node_mb_s);
                } else {
                    take(link, &between, &between_mb_s);
                    one_rail = one_rail && (link.path_class != PathClass::kNet || link.same_rail);
                }
            }
        }
        EXPECT_EQ(links.slowest_in_node.path_class, in_node) << "seed " << seed;
        EXPECT_EQ(links.slowest_in_node.mb_s, in_node_mb_s) << "seed " << seed;
        EXPECT_EQ(links.slowest_between_nodes.path_class, between) << "seed " << seed;
        EXPECT_EQ(links.slowest_between_nodes.mb_s, between_mb_s) << "seed " << seed;
        EXPECT_EQ(links.slowest_between_nodes.same_rail, between == PathClass::kNet && one_rail)
            << "seed " << seed;
    }
}

TEST(CommLinks, NoRanksIsAnError) {
    EXPECT_EQ(make_comm_links({}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace slimwire::test
