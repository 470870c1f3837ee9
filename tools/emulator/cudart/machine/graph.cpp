#include "tools/emulator/cudart/machine/graph.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tools/emulator/cudart/machine/handle_table.h"

namespace slimwire::emulator {
namespace {

using NodeTable = HandleTable<cudaGraphNode_t, GraphNode, 0x55>;

NodeTable& node_table() {
    static auto* const table = new NodeTable;  // workers may outlive static destructors
    return *table;
}

}  // namespace

NodeRef find_node(cudaGraphNode_t handle) {
    return node_table().find(handle);
}

bool UserObject::retain(uint64_t count) {
    const std::lock_guard lock(mutex_);
    if (references_ == 0) {
        return false;
    }
    references_ += count;
    return true;
}

bool UserObject::release(uint64_t count) {
    {
        const std::lock_guard lock(mutex_);
        if (count > references_) {
            return false;
        }
        references_ -= count;
        if (references_ != 0 || count == 0) {
            return true;
        }
    }
    if (forget_) {
        forget_();
    }
    destroy_(pointer_);
    return true;
}

void UserObjectSet::adopt_all(const UserObjectSet& other) {
    for (const auto& [object, count] : other.held_) {
        (void)object->retain(count);
        adopt(object, count);
    }
}

UserObjectSet::~UserObjectSet() {
    for (const auto& [object, count] : held_) {
        (void)object->release(count);
    }
}

void UserObjectSet::adopt(const std::shared_ptr<UserObject>& object, uint64_t count) {
    held_[object] += count;
}

Graph::~Graph() {
    for (const NodeRef& node : nodes_) {
        node_table().remove(node->handle);
        node->graph = nullptr;
        node->dependencies.clear();
    }
}

NodeRef Graph::add(NodeWork work, const std::vector<NodeRef>& dependencies) {
    auto node = std::make_shared<GraphNode>();
    node->work = std::move(work);
    node->graph = this;
    for (const NodeRef& dependency : dependencies) {
        node->dependencies.push_back(dependency.get());
    }
    node->handle = node_table().add(node);
    const std::lock_guard lock(mutex_);
    nodes_.push_back(node);
    return node;
}

std::vector<NodeRef> Graph::nodes() const {
    const std::lock_guard lock(mutex_);
    return nodes_;
}

std::shared_ptr<Graph> Graph::clone() const {
    auto copy = std::make_shared<Graph>();
    std::unordered_map<const GraphNode*, NodeRef> counterpart;
    for (const NodeRef& original : nodes()) {
        NodeWork work = original->work;
        if (work.child != nullptr) {
            work.child = work.child->clone();
        }
        std::vector<NodeRef> dependencies;
        for (const GraphNode* dependency : original->dependencies) {
            dependencies.push_back(counterpart.at(dependency));
        }
        counterpart[original.get()] = copy->add(std::move(work), dependencies);
    }
    copy->user_objects_.adopt_all(user_objects_);
    return copy;
}

bool reachable(const std::vector<NodeRef>& from, const GraphNode* node) {
    std::vector<const GraphNode*> open;
    for (const NodeRef& start : from) {
        open.push_back(start.get());
    }
    std::unordered_set<const GraphNode*> seen;
    while (!open.empty()) {
        const GraphNode* next = open.back();
        open.pop_back();
        if (next == node) {
            return true;
        }
        if (seen.insert(next).second) {
            open.insert(open.end(), next->dependencies.begin(), next->dependencies.end());
        }
    }
    return false;
}

}  // namespace slimwire::emulator
