// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

int main(int argc, char** argv) { return magi::run_command_line(argc, argv); }
