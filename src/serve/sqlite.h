// SPDX-License-Identifier: Apache-2.0
// SQLite with C++ lifetimes and errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace magi {

/// One prepared statement; rows are read after step() returned true.
class Statement {
 public:
  Statement(sqlite3* database, std::string_view sql);

  /// Parameters count from 1.
  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, const std::string& value);
  Statement& bind(int index, const std::optional<std::string>& value);

  bool step();
  /// step() until the end, for statements without rows.
  void run();

  /// Columns count from 0; null is 0 or "".
  std::int64_t integer(int column) const;
  std::string text(int column) const;
  bool null(int column) const;

 private:
  void check(int code) const;

  sqlite3* database_;
  std::shared_ptr<sqlite3_stmt> statement_;
};

/// A connection, for one thread at a time.
class Database {
 public:
  /// Opens or makes the file, in WAL mode, synced at every commit. Throws Error.
  explicit Database(const std::filesystem::path& file);

  Statement prepare(std::string_view sql) { return {database_.get(), sql}; }
  void execute(const std::string& sql);
  /// Rows changed by the last statement.
  int changes() const;

 private:
  std::shared_ptr<sqlite3> database_;
};

}  // namespace magi
