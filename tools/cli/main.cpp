// The program `slimwire`: one command line for running, checking, reporting and measuring.
#include "tools/cli/common/commands.h"

int main(int argc, char** argv) {
    return slimwire::cli::run_cli(argc, argv);
}
