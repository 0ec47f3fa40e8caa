// SPDX-License-Identifier: Apache-2.0
#include "serve/job_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <chrono>

#include "core/error.h"
#include "serve/secret.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

constexpr int kSchema = 1;
constexpr std::size_t kKeptInMemory = 256;  // jobs, some 1 KB each but for long prompts
constexpr const char* kColumns =
    "id, owner, status, priority, created_at, started_at, completed_at, request, has_reference, enhanced, "
    "error_code, error_message, attempts, bytes";

constexpr std::array kAllFiles{JobFile::video, JobFile::thumbnail, JobFile::sound, JobFile::reference,
                               JobFile::state};

const char* suffix(JobFile which) {
  switch (which) {
    case JobFile::video:
      return ".mp4";
    case JobFile::thumbnail:
      return ".jpg";
    case JobFile::sound:
      return ".wav";
    case JobFile::reference:
      return ".reference";
    case JobFile::state:
      break;
  }
  return ".state";
}

/// Whether a job in this status has that file for good reason.
bool belongs(JobFile which, JobStatus status) {
  if (which == JobFile::reference) return true;
  if (which == JobFile::state) return !is_over(status);
  return status == JobStatus::completed || status == JobStatus::in_progress;
}

std::optional<std::string> text_or_null(const Statement& row, int column) {
  return row.null(column) ? std::nullopt : std::optional(row.text(column));
}

Job job_of(const Statement& row) {
  Job job;
  job.id = row.text(0);
  job.owner = row.text(1);
  job.status = static_cast<JobStatus>(row.integer(2));
  job.priority = row.integer(3);
  job.created_at = row.integer(4);
  job.started_at = row.integer(5);
  job.completed_at = row.integer(6);
  job.request = row.text(7);
  job.has_reference = row.integer(8) != 0;
  job.enhanced = text_or_null(row, 9);
  job.error_code = text_or_null(row, 10);
  job.error_message = text_or_null(row, 11);
  job.attempts = row.integer(12);
  job.bytes = row.integer(13);
  return job;
}

std::string number(JobStatus status) {
  return std::to_string(static_cast<int>(status));
}

const std::string kQueued = number(JobStatus::queued), kRunning = number(JobStatus::in_progress);
const std::string kOpen = "status IN (" + kQueued + "," + kRunning + ")";
const std::string kFirstInQueue = "status=" + kQueued + " ORDER BY priority DESC, seq LIMIT 1";

int lock_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory / "files", error);
  require(!error, "{}: cannot be made: {}", directory.string(), error.message());
  fs::permissions(directory, fs::perms::owner_all, error);  // prompts and pictures are nobody else's business
  const int lock = open((directory / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  require(lock >= 0, "{}: no file can be made in it", directory.string());
  if (flock(lock, LOCK_EX | LOCK_NB) == 0) return lock;
  close(lock);
  fail("{}: another server uses it; give this one a --data of its own", directory.string());
}

}  // namespace

std::int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

JobStore::JobStore(const fs::path& directory) : directory_(directory), lock_(lock_directory(directory)) {
  try {
    writer_.emplace(directory / "jobs.db");
    migrate();
    reader_.emplace(directory / "jobs.db");
  } catch (...) {
    close(lock_);
    throw;
  }
}

JobStore::~JobStore() {
  reader_.reset();
  writer_.reset();
  close(lock_);
}

void JobStore::migrate() {
  auto version = writer_->prepare("PRAGMA user_version");
  version.step();
  const std::int64_t found = version.integer(0);
  require(found <= kSchema, "{}: made by a newer magi2 (schema {}, this one knows {})", directory_.string(),
          found, kSchema);
  if (found < kSchema) {
    version = writer_->prepare("SELECT 1");  // no statement may be open
    writer_->execute(
        "BEGIN;"
        "CREATE TABLE jobs(seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, owner TEXT NOT "
        "NULL,"
        " status INTEGER NOT NULL, priority INTEGER NOT NULL, created_at INTEGER NOT NULL,"
        " started_at INTEGER NOT NULL DEFAULT 0, completed_at INTEGER NOT NULL DEFAULT 0, request TEXT NOT "
        "NULL,"
        " has_reference INTEGER NOT NULL, enhanced TEXT, error_code TEXT, error_message TEXT,"
        " attempts INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0);"
        "CREATE INDEX jobs_by_status ON jobs(status, priority DESC, seq);"
        "CREATE INDEX jobs_by_owner ON jobs(owner, seq);"
        "CREATE TABLE secrets(secret TEXT NOT NULL);"
        "INSERT INTO secrets VALUES('" +
        to_hex(random_bytes(32)) +
        "');"
        "PRAGMA user_version=" +
        std::to_string(kSchema) +
        ";"
        "COMMIT");
  }
  auto secret = writer_->prepare("SELECT secret FROM secrets");
  require(secret.step(), "{}: the database has no secret", directory_.string());
  secret_ = secret.text(0);
}

fs::path JobStore::file(const std::string& id, JobFile which) const {
  require(is_job_id(id), "\"{}\" is no job", id);
  return files() / (id + suffix(which));
}

std::vector<Job> JobStore::query(const std::string& where, const std::function<void(Statement&)>& bind) {
  const std::lock_guard lock(read_mutex_);
  Statement select = reader_->prepare(fmt::format("SELECT {} FROM jobs WHERE {}", kColumns, where));
  bind(select);
  std::vector<Job> jobs;
  while (select.step()) jobs.push_back(job_of(select));
  return jobs;
}

std::optional<Job> JobStore::first(const std::string& where, const std::function<void(Statement&)>& bind) {
  std::vector<Job> jobs = query(where, bind);
  return jobs.empty() ? std::nullopt : std::optional(std::move(jobs.front()));
}

bool JobStore::change(const std::string& sql, const std::function<void(Statement&)>& bind) {
  const std::lock_guard lock(write_mutex_);
  Statement statement = writer_->prepare(sql);
  bind(statement);
  statement.run();
  changed();
  return writer_->changes() > 0;
}

/// After a commit: what was read before it may be old.
void JobStore::changed() {
  const std::lock_guard lock(found_mutex_);
  ++revision_;
  found_.clear();
}

bool JobStore::add(const Job& job, std::size_t limit) {
  return change(
      "INSERT INTO jobs(id, owner, status, priority, created_at, request, has_reference)"
      " SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE (SELECT COUNT(*) FROM jobs WHERE status=?3) < ?8",
      [&](Statement& s) {
        s.bind(1, job.id).bind(2, job.owner).bind(3, static_cast<std::int64_t>(JobStatus::queued));
        s.bind(4, job.priority).bind(5, job.created_at).bind(6, job.request);
        s.bind(7, static_cast<std::int64_t>(job.has_reference)).bind(8, static_cast<std::int64_t>(limit));
      });
}

std::optional<Job> JobStore::find(const std::string& id) {
  std::uint64_t revision = 0;
  {
    const std::lock_guard lock(found_mutex_);
    if (const auto known = found_.find(id); known != found_.end()) return known->second;
    revision = revision_;
  }
  std::optional<Job> job = first("id=?1", [&](Statement& s) { s.bind(1, id); });
  if (!job) return job;
  job->revision = revision;
  const std::lock_guard lock(found_mutex_);
  if (found_.size() >= kKeptInMemory) found_.clear();
  if (revision == revision_) found_.emplace(id, *job);
  return job;
}

JobStore::Page JobStore::list(const std::string& owner, std::size_t limit, bool newest_first,
                              const std::string& after) {
  std::string where = "owner=?1";
  if (!after.empty())
    where += fmt::format(" AND seq {} (SELECT seq FROM jobs WHERE id=?3)", newest_first ? "<" : ">");
  where += fmt::format(" ORDER BY seq {} LIMIT ?2", newest_first ? "DESC" : "ASC");
  Page page;
  page.jobs = query(where, [&](Statement& s) {
    s.bind(1, owner).bind(2, static_cast<std::int64_t>(limit) + 1);
    if (!after.empty()) s.bind(3, after);
  });
  page.more = page.jobs.size() > limit;
  if (page.more) page.jobs.pop_back();
  return page;
}

JobStore::Counts JobStore::counts() {
  const std::lock_guard lock(read_mutex_);
  Statement select = reader_->prepare("SELECT status, COUNT(*), SUM(bytes) FROM jobs GROUP BY status");
  Counts counts;
  std::int64_t* const by_status[] = {&counts.queued, &counts.running, &counts.completed, &counts.failed,
                                     &counts.cancelled};
  while (select.step()) {
    *by_status[select.integer(0)] = select.integer(1);
    counts.bytes += select.integer(2);
  }
  return counts;
}

std::int64_t JobStore::queue_position(const std::string& id) {
  const std::lock_guard lock(read_mutex_);
  Statement select = reader_->prepare(
      "SELECT COUNT(*) FROM jobs AS mine, jobs AS other WHERE mine.id=?1 AND mine.status=" + kQueued +
      " AND other.status=" + kQueued +
      " AND (other.priority > mine.priority OR (other.priority = mine.priority AND other.seq <= mine.seq))");
  select.bind(1, id);
  select.step();
  return select.integer(0);
}

std::vector<std::string> JobStore::queue() {
  const std::lock_guard lock(read_mutex_);
  Statement select =
      reader_->prepare("SELECT id FROM jobs WHERE status=" + kQueued + " ORDER BY priority DESC, seq");
  std::vector<std::string> ids;
  while (select.step()) ids.push_back(select.text(0));
  return ids;
}

std::optional<Job> JobStore::take_next() {
  const std::lock_guard lock(write_mutex_);
  for (const std::string& where :
       {"status=" + kRunning + " ORDER BY started_at, seq LIMIT 1", kFirstInQueue}) {
    Statement update =
        writer_->prepare(fmt::format("UPDATE jobs SET status={}, attempts=attempts+1,"
                                     " started_at=CASE started_at WHEN 0 THEN ?1 ELSE started_at END"
                                     " WHERE seq=(SELECT seq FROM jobs WHERE {}) RETURNING {}",
                                     kRunning, where, kColumns));
    update.bind(1, unix_time());
    if (!update.step()) continue;
    Job job = job_of(update);
    update.run();
    changed();
    return job;
  }
  return std::nullopt;
}

std::optional<Job> JobStore::peek_next() {
  return first(kFirstInQueue, [](Statement&) {});
}

void JobStore::got_further(const std::string& id) {
  change("UPDATE jobs SET attempts=0 WHERE id=?1", [&](Statement& s) { s.bind(1, id); });
}

void JobStore::set_enhanced(const std::string& id, const std::string& prompt) {
  change("UPDATE jobs SET enhanced=?2 WHERE id=?1", [&](Statement& s) { s.bind(1, id).bind(2, prompt); });
}

bool JobStore::complete(const std::string& id, std::int64_t bytes) {
  return change("UPDATE jobs SET status=" + number(JobStatus::completed) +
                    ", completed_at=?2, bytes=?3 WHERE id=?1 AND status=" + kRunning,
                [&](Statement& s) { s.bind(1, id).bind(2, unix_time()).bind(3, bytes); });
}

bool JobStore::fail(const std::string& id, const std::string& code, const std::string& message) {
  return change("UPDATE jobs SET status=" + number(JobStatus::failed) +
                    ", completed_at=?2, error_code=?3, error_message=?4 WHERE id=?1 AND status=" + kRunning,
                [&](Statement& s) { s.bind(1, id).bind(2, unix_time()).bind(3, code).bind(4, message); });
}

bool JobStore::cancel(const std::string& id) {
  return change(
      "UPDATE jobs SET status=" + number(JobStatus::cancelled) + ", completed_at=?2 WHERE id=?1 AND " + kOpen,
      [&](Statement& s) { s.bind(1, id).bind(2, unix_time()); });
}

bool JobStore::remove(const std::string& id) {
  const bool removed = change("DELETE FROM jobs WHERE id=?1", [&](Statement& s) { s.bind(1, id); });
  if (removed) tidy(id);
  return removed;
}

void JobStore::tidy(const std::string& id) {
  const std::optional<Job> job = find(id);
  std::error_code ignored;
  for (const JobFile which : kAllFiles)
    if (!job || !belongs(which, job->status)) fs::remove(file(id, which), ignored);
}

void JobStore::sweep() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(files())) found.push_back(entry.path());
  std::error_code ignored;
  for (const fs::path& path : found) {
    const std::string id = path.stem().string();
    const std::optional<Job> job = is_job_id(id) ? find(id) : std::nullopt;
    bool known = false;
    for (const JobFile which : kAllFiles)
      known = known || (job && path == file(id, which) && belongs(which, job->status));
    if (!known) fs::remove_all(path, ignored);
  }
}

std::size_t JobStore::expire(std::int64_t before, std::int64_t bytes) {
  const std::vector<Job> over = query("NOT " + kOpen + " ORDER BY completed_at, seq", [](Statement&) {});
  std::int64_t total = 0;
  for (const Job& job : over) total += job.bytes;
  std::size_t removed = 0;
  for (const Job& job : over) {
    const bool old = job.completed_at < before;
    if (!old && (total <= bytes || job.bytes == 0)) continue;
    total -= job.bytes;
    removed += remove(job.id);
  }
  return removed;
}

}  // namespace magi
