// SPDX-License-Identifier: Apache-2.0
// A matrix that changes hands: some rows of all columns on each rank of a group become all rows of some
// columns, and the reverse. Where the ranks' devices write to each other's memory (a Landing), whoever
// computes an element puts it where it is needed, and nothing is left to send; elsewhere messages carry it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/group.h"
#include "ops/ops.h"

namespace magi {

/// Part of a window, at the same place on every rank; none: messages.
struct Landing {
  std::shared_ptr<Window> window;
  std::size_t offset = 0;
  explicit operator bool() const { return window != nullptr; }
};

/// Who has what.
struct Trade {
  struct Columns {
    std::int64_t first = 0, count = 0;
  };
  const Group* group = nullptr;
  std::vector<std::int64_t> rows;  ///< by rank, in order
  std::vector<Columns> columns;    ///< by rank, of the matrix's
  DType dtype = DType::bf16;
  Landing landing;

  std::int64_t all_rows() const;
  std::int64_t first_row(int rank) const;
  std::int64_t own_rows() const;
  std::int64_t own_columns() const;
  /// Elements that go to other ranks, and come from them, when rows become columns.
  std::int64_t leaving() const;
  std::int64_t coming() const;
};

/// Columns with room: all rows begin at multiples of 16 bytes of bf16, what wide loads ask for.
std::int64_t aligned_columns(std::int64_t columns);

/// Each rank has its rows of all columns and gets all rows of its columns.
class ToColumns {
 public:
  ToColumns(Ops& ops, Trade trade);
  /// Where the own rows of rank `rank`'s columns are to be written: [rows, its width].
  Tensor place(int rank) const;
  /// They are written.
  void depart();
  /// [all rows, own width]; landed ones last until the next trade through the landing.
  Tensor arrive();

 private:
  Trade trade_;
  Tensor result_;                ///< [all rows, own aligned width]
  std::vector<Tensor> leaving_;  ///< by rank: [own rows, its aligned width]
  std::unique_ptr<Exchange> exchange_;
};

/// [own rows, `columns`], what ToRows fills: the landing, or scratch.
Tensor place_for_rows(Ops& ops, const Trade& trade, std::int64_t columns);

/// Each rank has all rows of its columns and gets its rows of the columns of all.
class ToRows {
 public:
  /// Into `whole`, from place_for_rows.
  ToRows(Ops& ops, Trade trade, Tensor whole);
  /// Where all rows of the own columns are to be written: in order, one tensor after another.
  std::span<const Tensor> places() const { return places_; }
  /// They are written.
  void depart();
  /// `whole` has the trade's columns.
  void arrive();

 private:
  Ops& ops_;
  Trade trade_;
  std::vector<Tensor> places_;
  Tensor whole_;
  std::vector<Tensor> arriving_;  ///< messages: by rank, [own rows, its width]
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace magi
