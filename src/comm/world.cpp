// SPDX-License-Identifier: Apache-2.0
#include "comm/world.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace magi {
namespace {

constexpr double kDefaultDeadline = 45;
constexpr double kMeetSeconds = 60;
constexpr int kDefaultPort = 29500;
constexpr const char* kGreeting = "magi2 ranks 2";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int number_of(const char* name, int least, int most) {
  const std::string text = variable(name);
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(failure == std::errc() && end == text.data() + text.size() && value >= least && value <= most,
          "the environment variable {} is \"{}\", expected a number from {} to {}", name, text, least, most);
  return value;
}

bool any_of(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (std::getenv(name)) return true;
  return false;
}

/// The first host of a Slurm list: "rack[0-1]n[003-008,11]-ib,other" is rack0n003-ib.
std::string first_host(const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t end = list.find(']', i);
    require(end != list.npos, "Slurm's list of nodes \"{}\" has a bracket that does not end", list);
    host += list.substr(i + 1, list.find_first_of(",-]", i + 1) - i - 1);
    i = end;
  }
  return host;
}

/// Slurm starts a step's tasks on its nodes in order, so rank 0 is on the first one.
std::string first_slurm_host() {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (const std::string host = first_host(variable(name)); !host.empty()) return host;
  return variable("SLURM_LAUNCH_NODE_IPADDR");
}

constexpr int kManyRanks = 65536;

/// Ranks of one machine that may all run on all of its cores would stand in each other's way.
void share_cores(int ranks_here) {
  const int cores = omp_get_num_procs();
  const bool bound = cores < sysconf(_SC_NPROCESSORS_ONLN);  // by the launcher, to cores of its own
  if (ranks_here > 1 && !bound && !any_of({"OMP_NUM_THREADS"}))
    omp_set_num_threads(std::max(1, cores / ranks_here));
}

}  // namespace

Launch Launch::from_environment() {
  Launch launch;
  const auto at = [&](const char* rank, const char* size) {
    launch.kind = Kind::address;
    launch.size = number_of(size, 1, kManyRanks);
    launch.rank = number_of(rank, 0, launch.size - 1);
    launch.port = any_of({"MASTER_PORT"}) ? number_of("MASTER_PORT", 1, 65535) : kDefaultPort;
    // torchrun itself listens there.
    if (any_of({"TORCHELASTIC_RUN_ID"})) launch.port += launch.port < 65535 ? 1 : -1;
    if (launch.size == 1) launch = {};
  };
  if (any_of({"RANK"}) && any_of({"WORLD_SIZE"})) {
    at("RANK", "WORLD_SIZE");
    launch.host = variable("MASTER_ADDR");
    require(
        launch.size == 1 || !launch.host.empty(),
        "WORLD_SIZE is {}: set MASTER_ADDR to the machine of rank 0, and MASTER_PORT to a free port there",
        launch.size);
  } else if (MpiWorld::available() &&
             any_of({"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "MPI_LOCALRANKID"})) {
    launch.kind = Kind::mpi;
  } else if (any_of({"OMPI_COMM_WORLD_SIZE"})) {
    at("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    launch.host = variable("MASTER_ADDR");
    const bool one_host = variable("OMPI_COMM_WORLD_SIZE") == variable("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (launch.host.empty() && one_host) launch.host = "127.0.0.1";
    require(launch.size == 1 || !launch.host.empty(),
            "this build has no MPI: pass MASTER_ADDR, the machine of rank 0, to mpirun with -x");
  } else if (any_of({"SLURM_PROCID"}) && any_of({"SLURM_STEP_ID", "SLURM_STEP_NODELIST"})) {
    // A batch script itself has a SLURM_PROCID, and is alone; a step has a list of its own.
    at("SLURM_PROCID", any_of({"SLURM_STEP_NUM_TASKS"}) ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
    if (launch.size == 1) return launch;
    launch.host = variable("MASTER_ADDR");
    if (launch.host.empty()) launch.host = first_slurm_host();
    require(!launch.host.empty(), "Slurm does not say which node rank 0 is on: set MASTER_ADDR to it");
    if (!any_of({"MASTER_PORT"}) && any_of({"SLURM_JOB_ID"}))
      launch.port = 20000 + number_of("SLURM_JOB_ID", 0, 1 << 30) % 20000;
  }
  return launch;
}

double rank_deadline_seconds() {
  return any_of({"MAGI2_RANK_DEADLINE"}) ? number_of("MAGI2_RANK_DEADLINE", 2, 86400) : kDefaultDeadline;
}

Links meet_at_first_rank(const Launch& launch, Listener* listener, Deadline deadline) {
  const RankName own = RankName::own(launch.rank);
  const std::string greeting = fmt::format("{} of {}\n", kGreeting, launch.size);
  Links links;
  if (launch.rank > 0) {
    for (const std::string kind : {"beats", "control"}) {
      Socket socket = Socket::connect(launch.host, launch.port, deadline);
      socket.send_frame(greeting + kind + "\n" + own.to_text(), deadline);
      const std::string first = socket.receive_frame(deadline);
      if (kind == "beats") links.names = {RankName::from_text(first), own};
      (kind == "beats" ? links.beats : links.control).push_back(std::move(socket));
    }
    return links;
  }
  const auto others = static_cast<std::size_t>(launch.size - 1);
  links.beats.resize(others);
  links.control.resize(others);
  links.names.resize(others + 1);
  links.names[0] = own;
  for (std::size_t count = 0; count < 2 * others;) {
    Socket socket;
    try {
      socket = listener->accept(deadline);
      std::string hello = socket.receive_frame(std::min(deadline, deadline_in(5)));
      if (!hello.starts_with(greeting)) continue;  // somebody else
      hello.erase(0, greeting.size());
      const bool beats = hello.starts_with("beats\n");
      const RankName name = RankName::from_text(hello.substr(hello.find('\n') + 1));
      if (name.rank < 1 || name.rank >= launch.size) continue;
      Socket& place = (beats ? links.beats : links.control)[static_cast<std::size_t>(name.rank - 1)];
      require(!place.open(), "two processes say that they are rank {}: {} and {}", name.rank,
              links.names[static_cast<std::size_t>(name.rank)].describe(), name.describe());
      links.names[static_cast<std::size_t>(name.rank)] = name;
      socket.send_frame(own.to_text(), deadline);
      place = std::move(socket);
      ++count;
    } catch (const Error&) {
      if (std::chrono::steady_clock::now() < deadline) throw;
      std::vector<int> missing;
      for (std::size_t i = 0; i < others; ++i)
        if (!links.beats[i].open()) missing.push_back(static_cast<int>(i) + 1);
      fail("of {} ranks these did not come within {:.0f} s: {}", launch.size, kMeetSeconds,
           fmt::join(missing, ", "));
    }
  }
  return links;
}

std::shared_ptr<World> World::join(const Launch& launch) {
  const std::shared_ptr<World> world(new World);
  if (launch.kind != Launch::Kind::alone) world->meet(launch);
  return world;
}

void World::meet(const Launch& given) {
  Launch launch = given;
  const Deadline deadline = deadline_in(kMeetSeconds);
  std::unique_ptr<Listener> listener;
  if (launch.kind == Launch::Kind::mpi) {
    is_mpi_ = true;
    std::tie(launch.rank, launch.size) = MpiWorld::init();
    if (launch.size == 1) return;
    const std::string own_host = RankName::own(launch.rank).host;
    if (launch.rank == 0) listener = std::make_unique<Listener>("0.0.0.0", 0);
    const std::string place =
        MpiWorld::broadcast(launch.rank == 0 ? fmt::format("{} {}", listener->port(), own_host) : "");
    launch.port = std::atoi(place.c_str());
    launch.host = place.substr(place.find(' ') + 1);
    if (launch.host == own_host) launch.host = "127.0.0.1";
  } else if (launch.rank == 0) {
    listener = std::make_unique<Listener>(launch.host, launch.port);
  }
  Links links = meet_at_first_rank(launch, listener.get(), deadline);
  const double seconds = rank_deadline_seconds();
  monitor_ =
      std::make_shared<Monitor>(launch.rank, std::move(links.names), std::move(links.beats), seconds / 2);
  host_carries_data_ = is_mpi_;
  host_ = Group(
      is_mpi_ ? MpiWorld::transport(monitor_, seconds)
              : make_control_transport(launch.rank, launch.size, std::move(links.control), monitor_, seconds),
      "all ranks");
  const std::string own_host = RankName::own(launch.rank).host;
  const std::vector<std::string> hosts = host_.gather_texts(own_host);
  local_size_ = static_cast<int>(std::ranges::count(hosts, own_host));
  share_cores(local_size_);
  for (int r = 0; r < launch.rank; ++r) local_rank_ += hosts[static_cast<std::size_t>(r)] == own_host;
}

World::~World() {
  if (!left_) fail("ended early");
  monitor_.reset();
  // After a failure MPI is left as it is: its launcher then ends the other ranks.
  if (is_mpi_ && left_) MpiWorld::finalize();
}

void World::set_stage(const std::string& text) const {
  if (monitor_) monitor_->set_stage(text);
}

void World::check() const {
  if (monitor_) monitor_->check();
}

void World::fail(const std::string& why) const {
  if (monitor_) monitor_->fail(why, true);
}

void World::leave() {
  if (!alone()) {
    set_stage("end");
    host_.wait_for_all();
    monitor_->leave();
  }
  left_ = true;
}

}  // namespace magi
