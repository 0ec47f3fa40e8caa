// SPDX-License-Identifier: Apache-2.0
#include "serve/sqlite.h"

#include <sqlite3.h>

#include "core/error.h"

namespace magi {

Statement::Statement(sqlite3* database, std::string_view sql) : database_(database) {
  sqlite3_stmt* statement = nullptr;
  check(sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement, nullptr));
  statement_ = {statement, sqlite3_finalize};
}

void Statement::check(int code) const {
  require(code == SQLITE_OK, "database: {}", sqlite3_errmsg(database_));
}

Statement& Statement::bind(int index, std::int64_t value) {
  check(sqlite3_bind_int64(statement_.get(), index, value));
  return *this;
}

Statement& Statement::bind(int index, const std::string& value) {
  check(sqlite3_bind_text64(statement_.get(), index, value.data(), value.size(), SQLITE_TRANSIENT,
                            SQLITE_UTF8));
  return *this;
}

Statement& Statement::bind(int index, const std::optional<std::string>& value) {
  if (value) return bind(index, *value);
  check(sqlite3_bind_null(statement_.get(), index));
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(statement_.get());
  require(code == SQLITE_ROW || code == SQLITE_DONE, "database: {}", sqlite3_errmsg(database_));
  return code == SQLITE_ROW;
}

void Statement::run() {
  while (step()) {
  }
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  const int bytes = sqlite3_column_bytes(statement_.get(), column);
  return data ? std::string(data, static_cast<std::size_t>(bytes)) : std::string();
}

bool Statement::null(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

Database::Database(const std::filesystem::path& file) {
  sqlite3* database = nullptr;
  const int code = sqlite3_open_v2(file.c_str(), &database,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  database_ = {database, sqlite3_close_v2};
  require(code == SQLITE_OK, "{}: cannot be opened: {}", file.string(), sqlite3_errmsg(database));
  sqlite3_busy_timeout(database, 10'000);
  execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON");
}

void Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  require(code == SQLITE_OK, "database: {}", sqlite3_errmsg(database_.get()));
}

int Database::changes() const {
  return sqlite3_changes(database_.get());
}

}  // namespace magi
