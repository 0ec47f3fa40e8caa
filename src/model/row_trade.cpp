// SPDX-License-Identifier: Apache-2.0
#include "model/row_trade.h"

#include <numeric>

namespace magi {
namespace {

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

/// The trade's landing on one of its ranks, as a matrix.
Tensor landed(const Trade& t, int rank, std::int64_t rows, std::int64_t columns) {
  std::byte* const at = t.group->on(*t.landing.window, rank) + t.landing.offset;
  return Tensor::view(at, t.dtype, {rows, columns}, t.landing.window, t.landing.window->device());
}

/// Tells the others that all is written; so many elements went before it.
std::unique_ptr<Exchange> arrival(const Trade& t, std::int64_t sent, std::int64_t received,
                                  const char* what) {
  const auto bytes = static_cast<std::int64_t>(size_of(t.dtype));
  return t.group->start_arrival(t.landing.window, sent * bytes, received * bytes, what);
}

constexpr const char* kToColumns = "rows to columns";
constexpr const char* kToRows = "columns to rows";

}  // namespace

std::int64_t aligned_columns(std::int64_t columns) {
  return (columns + 7) / 8 * 8;
}

std::int64_t Trade::all_rows() const {
  return first_row(group->size());
}
std::int64_t Trade::first_row(int rank) const {
  return std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
}
std::int64_t Trade::own_rows() const {
  return rows[index(group->rank())];
}
std::int64_t Trade::own_columns() const {
  return columns[index(group->rank())].count;
}
std::int64_t Trade::leaving() const {
  std::int64_t others = -own_columns();
  for (const Columns& c : columns) others += c.count;
  return own_rows() * others;
}
std::int64_t Trade::coming() const {
  return (all_rows() - own_rows()) * own_columns();
}

ToColumns::ToColumns(Ops& ops, Trade trade) : trade_(std::move(trade)) {
  const int me = trade_.group->rank();
  const auto place = [&](int rank, std::int64_t rows) {
    const std::int64_t width = aligned_columns(trade_.columns[index(rank)].count);
    return trade_.landing ? landed(trade_, rank, trade_.all_rows(), width)
                          : ops.arena().alloc(trade_.dtype, {rows, width});
  };
  result_ = place(me, trade_.all_rows());
  for (int r = 0; r < trade_.group->size(); ++r) {
    const bool whole = r == me || trade_.landing;
    const Tensor columns = r == me ? result_ : place(r, trade_.own_rows());
    leaving_.push_back(whole ? columns.rows(trade_.first_row(me), trade_.own_rows()) : columns);
  }
}

Tensor ToColumns::place(int rank) const {
  return leaving_[index(rank)].columns(0, trade_.columns[index(rank)].count);
}

void ToColumns::depart() {
  if (trade_.landing) {
    exchange_ = arrival(trade_, trade_.leaving(), trade_.coming(), kToColumns);
  } else {
    std::vector<Part> send, receive;
    for (int r = 0; r < trade_.group->size(); ++r) {
      if (r == trade_.group->rank()) continue;
      send.push_back({r, leaving_[index(r)]});
      receive.push_back({r, result_.rows(trade_.first_row(r), trade_.rows[index(r)])});
    }
    exchange_ = trade_.group->start_exchange(std::move(send), std::move(receive), kToColumns);
  }
  leaving_.clear();
}

Tensor ToColumns::arrive() {
  if (exchange_) exchange_->wait();
  exchange_.reset();
  return result_.columns(0, trade_.own_columns());
}

Tensor place_for_rows(Ops& ops, const Trade& trade, std::int64_t columns) {
  return trade.landing ? landed(trade, trade.group->rank(), trade.own_rows(), columns)
                       : ops.arena().alloc(trade.dtype, {trade.own_rows(), columns});
}

ToRows::ToRows(Ops& ops, Trade trade, Tensor whole)
    : ops_(ops), trade_(std::move(trade)), whole_(std::move(whole)) {
  if (!trade_.landing) {
    places_.push_back(ops.arena().alloc(trade_.dtype, {trade_.all_rows(), trade_.own_columns()}));
    return;
  }
  const Trade::Columns own = trade_.columns[index(trade_.group->rank())];
  for (int r = 0; r < trade_.group->size(); ++r)
    places_.push_back(landed(trade_, r, trade_.rows[index(r)], whole_.dim(1)).columns(own.first, own.count));
}

void ToRows::depart() {
  if (trade_.landing) {
    exchange_ = arrival(trade_, trade_.coming(), trade_.leaving(), kToRows);
  } else {
    std::vector<Part> send, receive;
    for (int r = 0; r < trade_.group->size(); ++r) {
      const Tensor rows = places_[0].rows(trade_.first_row(r), trade_.rows[index(r)]);
      const bool own = r == trade_.group->rank();
      arriving_.push_back(
          own ? rows : ops_.arena().alloc(trade_.dtype, {trade_.own_rows(), trade_.columns[index(r)].count}));
      if (own) continue;
      send.push_back({r, rows});
      receive.push_back({r, arriving_.back()});
    }
    exchange_ = trade_.group->start_exchange(std::move(send), std::move(receive), kToRows);
  }
  places_.clear();
}

void ToRows::arrive() {
  if (exchange_) exchange_->wait();
  exchange_.reset();
  for (std::size_t r = 0; r < arriving_.size(); ++r)
    if (const Trade::Columns c = trade_.columns[r]; arriving_[r].numel() > 0)
      ops_.copy(whole_.columns(c.first, c.count), arriving_[r]);
  arriving_.clear();
}

}  // namespace magi
