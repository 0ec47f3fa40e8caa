// SPDX-License-Identifier: Apache-2.0
// All jobs, in an SQLite database that survives a kill at any moment, and the files that belong to them.
// Every change of a job's state is one transaction, synced before the call returns; files of a job are named
// by its id and are never looked for by any other name.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/job.h"
#include "serve/sqlite.h"

namespace magi {

/// A job's files.
enum class JobFile : std::uint8_t { video, thumbnail, sound, reference, state };

class JobStore {
 public:
  /// Makes the directory where it is missing. Throws Error when another server uses it.
  explicit JobStore(const std::filesystem::path& directory);
  ~JobStore();
  JobStore(const JobStore&) = delete;
  JobStore& operator=(const JobStore&) = delete;

  std::filesystem::path file(const std::string& id, JobFile which) const;
  std::filesystem::path files() const { return directory_ / "files"; }
  /// Random, the same for the life of the database.
  const std::string& secret() const { return secret_; }

  /// A queued job, unless `limit` jobs wait already.
  bool add(const Job& job, std::size_t limit);
  /// Known jobs are kept in memory until the next change, so that clients who poll cost no query.
  std::optional<Job> find(const std::string& id);
  struct Page {
    std::vector<Job> jobs;
    bool more = false;
  };
  /// The owner's jobs by age, at most `limit`, after the job `after` (empty: from the start).
  Page list(const std::string& owner, std::size_t limit, bool newest_first, const std::string& after);
  struct Counts {
    std::int64_t queued = 0, running = 0, completed = 0, failed = 0, cancelled = 0, bytes = 0;
  };
  Counts counts();
  /// From 1; 0 when it does not wait.
  std::int64_t queue_position(const std::string& id);
  /// Those that wait, first the one that goes next.
  std::vector<std::string> queue();

  /// The job to go on with: one that was running when a server stopped, else the first in the queue; it is
  /// in progress and has one more attempt after this.
  std::optional<Job> take_next();
  /// The first in the queue, left there.
  std::optional<Job> peek_next();
  /// The job got further: its attempts count from 0 again.
  void got_further(const std::string& id);
  void set_enhanced(const std::string& id, const std::string& prompt);

  /// Ends a job that is in progress; false when it was cancelled or removed meanwhile.
  bool complete(const std::string& id, std::int64_t bytes);
  bool fail(const std::string& id, const std::string& code, const std::string& message);
  /// Ends a job that waits or runs; false when it had ended.
  bool cancel(const std::string& id);
  /// Forgets the job, then its files.
  bool remove(const std::string& id);

  /// Removes files of a job that are not for keeping: results of one that did not complete, states of one
  /// that is over.
  void tidy(const std::string& id);
  /// Removes every file that belongs to no job, or not to a job of its state: a server was killed between two
  /// steps. Only while nothing runs.
  void sweep();
  /// Removes jobs that ended before `before`, then the oldest completed ones while their files take more than
  /// `bytes`. Returns how many.
  std::size_t expire(std::int64_t before, std::int64_t bytes);

 private:
  std::vector<Job> query(const std::string& where, const std::function<void(Statement&)>& bind);
  std::optional<Job> first(const std::string& where, const std::function<void(Statement&)>& bind);
  bool change(const std::string& sql, const std::function<void(Statement&)>& bind);
  void migrate();
  void changed();

  std::filesystem::path directory_;
  int lock_ = -1;
  std::mutex read_mutex_, write_mutex_;  ///< readers do not wait for a commit's sync
  std::optional<Database> reader_, writer_;
  std::mutex found_mutex_;
  std::uint64_t revision_ = 1;        ///< changes so far
  std::map<std::string, Job> found_;  ///< as of this revision
  std::string secret_;
};

/// Now, in seconds since 1970.
std::int64_t unix_time();

}  // namespace magi
