// SPDX-License-Identifier: Apache-2.0
// Who launched this process, by the variables that launchers set.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "comm/world.h"
#include "support/expect_error.h"

namespace magi {
namespace {

using Variables = std::map<std::string, std::string>;

/// Only these of the launchers' variables are set.
class LaunchTest : public testing::Test {
 protected:
  LaunchTest() { clear(); }
  ~LaunchTest() override {
    clear();
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Launch launched(const Variables& variables) {
    clear();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    return Launch::from_environment();
  }

 private:
  void clear() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_RANK",
                             "PMI_RANK",
                             "MPI_LOCALRANKID",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_STEP_NODELIST",
                             "SLURM_JOB_NODELIST",
                             "SLURM_NODELIST",
                             "SLURM_LAUNCH_NODE_IPADDR",
                             "SLURM_JOB_ID"}) {
      if (const char* value = std::getenv(name)) before_.emplace(name, value);
      ::unsetenv(name);
    }
  }
  Variables before_;
};

TEST_F(LaunchTest, Alone) {
  EXPECT_EQ(launched({}).kind, Launch::Kind::alone);
  EXPECT_EQ(launched({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).kind, Launch::Kind::alone);
  // A batch script, outside of srun.
  EXPECT_EQ(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_NODELIST", "n1"}}).kind,
            Launch::Kind::alone);
  EXPECT_EQ(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}}).kind,
            Launch::Kind::alone);
}

TEST_F(LaunchTest, ByTorchrun) {
  const Launch l =
      launched({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(l.kind, Launch::Kind::address);
  EXPECT_EQ(l.rank, 2);
  EXPECT_EQ(l.size, 4);
  EXPECT_EQ(l.host, "node7");
  EXPECT_EQ(l.port, 1234);
  const Launch elastic = launched({{"RANK", "2"},
                                   {"WORLD_SIZE", "4"},
                                   {"MASTER_ADDR", "node7"},
                                   {"MASTER_PORT", "1234"},
                                   {"TORCHELASTIC_RUN_ID", "none"}});
  EXPECT_EQ(elastic.port, 1235) << "torchrun listens at 1234";
  expect_error([&] { launched({{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n"}}); }, "RANK");
  expect_error([&] { launched({{"RANK", "1"}, {"WORLD_SIZE", "2"}}); }, "MASTER_ADDR");
  expect_error([&] { launched({{"RANK", "one"}, {"WORLD_SIZE", "2"}}); }, "\"one\"");
}

TEST_F(LaunchTest, BySlurm) {
  const Variables step{{"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "16"},
                       {"SLURM_STEP_NUM_TASKS", "8"},
                       {"SLURM_STEP_ID", "3"},
                       {"SLURM_JOB_ID", "123456"},
                       {"SLURM_STEP_NODELIST", "gpu[012-013]"},
                       {"SLURM_JOB_NODELIST", "gpu[011-019]"}};
  const Launch l = launched(step);
  EXPECT_EQ(l.kind, Launch::Kind::address);
  EXPECT_EQ(l.rank, 5);
  EXPECT_EQ(l.size, 8) << "the step's tasks, not the job's";
  EXPECT_EQ(l.host, "gpu012");
  EXPECT_EQ(l.port, 20000 + 123456 % 20000) << "two jobs on a node do not meet";

  Variables changed = step;
  changed["MASTER_ADDR"] = "10.0.0.9";
  changed["MASTER_PORT"] = "4000";
  EXPECT_EQ(launched(changed).host, "10.0.0.9");
  EXPECT_EQ(launched(changed).port, 4000);

  changed = step;
  changed.erase("SLURM_STEP_NODELIST");
  EXPECT_EQ(launched(changed).host, "gpu011");
  changed.erase("SLURM_JOB_NODELIST");
  expect_error([&] { launched(changed); }, "MASTER_ADDR");
  changed["SLURM_LAUNCH_NODE_IPADDR"] = "10.1.2.3";
  EXPECT_EQ(launched(changed).host, "10.1.2.3");
  changed["SLURM_PROCID"] = "8";
  expect_error([&] { launched(changed); }, "SLURM_PROCID");
}

TEST_F(LaunchTest, FirstNodeOfASlurmList) {
  for (const auto& [list, first] : Variables{{"login1", "login1"},
                                             {"a,b", "a"},
                                             {"n[7]", "n7"},
                                             {"n[003-008,11],other", "n003"},
                                             {"n[3,5-6]-ib", "n3-ib"},
                                             {"rack[0-1]n[10-12],x", "rack0n10"}})
    EXPECT_EQ(launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_NODELIST", list}}).host,
              first);
  expect_error(
      [&] {
        launched({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_NODELIST", "n[1-"}});
      },
      "n[1-");
}

/// In builds without MPI, mpirun's processes on one machine meet there.
TEST_F(LaunchTest, ByMpirun) {
  const Variables variables{{"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"SLURM_PROCID", "0"},
                            {"SLURM_STEP_ID", "0"}};
  const Launch l = launched(variables);
  if (MpiWorld::available()) {
    EXPECT_EQ(l.kind, Launch::Kind::mpi);
  } else {
    EXPECT_EQ(l.kind, Launch::Kind::address);
    EXPECT_EQ(l.rank, 1);
    EXPECT_EQ(l.host, "127.0.0.1");
  }
}

}  // namespace
}  // namespace magi
