// Prints the reference of the SLIMWIRE_* variables as collectives/policy/VARIABLES.md holds it. Run
// by documents_test.py.
#include <cstdio>

#include "collectives/policy/variables.h"

int main() {
    return std::fputs(slimwire::variables_markdown().c_str(), stdout) < 0 ? 1 : 0;
}
