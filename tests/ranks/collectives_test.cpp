// SPDX-License-Identifier: Apache-2.0
// Every collective over several ranks, in all and in subgroups.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ranks/ranks_testing.h"

namespace magi {
namespace {

/// What rank `from` sends to rank `to`: `count` values that tell both.
Tensor message(int from, int to, std::int64_t count) {
  Tensor t = Tensor::empty(DType::f32, {count});
  for (std::int64_t i = 0; i < count; ++i)
    t.data<float>()[i] = static_cast<float>(1000 * from + 100 * to + i);
  return t;
}

void expect_equal(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.numel(), want.numel());
  EXPECT_TRUE(std::ranges::equal(got.values<float>(), want.values<float>()));
}

/// Sizes of an uneven exchange; some are zero.
std::int64_t length(int from, int to) {
  return (3 * from + 5 * to) % 7;
}

void check_all(const Group& g) {
  const int n = g.size(), me = g.rank();
  std::vector<Tensor> send, receive;
  for (int r = 0; r < n; ++r) {
    send.push_back(message(me, r, length(me, r)));
    receive.push_back(Tensor::zeros(DType::f32, {length(r, me)}));
  }
  g.all_to_all(send, receive);
  for (int r = 0; r < n; ++r)
    expect_equal(receive[static_cast<std::size_t>(r)], message(r, me, length(r, me)));

  const Tensor even = Tensor::empty(DType::f32, {n, 4}), swapped = Tensor::zeros(DType::f32, {n, 4});
  for (int r = 0; r < n; ++r)
    std::ranges::copy(message(me, r, 4).values<float>(), even.rows(r, 1).data<float>());
  g.all_to_all(even, swapped);
  for (int r = 0; r < n; ++r) expect_equal(swapped.rows(r, 1), message(r, me, 4));

  const Tensor all = Tensor::zeros(DType::f32, {n * 2, 3});
  g.all_gather(message(me, 0, 6).reshape({2, 3}), all);
  for (int r = 0; r < n; ++r) expect_equal(all.rows(2 * r, 2), message(r, 0, 6));

  for (int root = 0; root < n; ++root) {
    const Tensor t = message(me, 9, 5);
    g.broadcast(t, root);
    expect_equal(t, message(root, 9, 5));
    EXPECT_EQ(g.broadcast(fmt::format("from {}", me), root), fmt::format("from {}", root));
  }
  const std::vector<std::string> texts = g.gather_texts(std::string(static_cast<std::size_t>(me), 'x'));
  for (int r = 0; r < n; ++r)
    EXPECT_EQ(texts[static_cast<std::size_t>(r)].size(), static_cast<std::size_t>(r));
  g.barrier();
  g.wait_for_all();
}

TEST(Collectives, AllRanks) {
  check_all(world().host());
}

TEST(Collectives, Subgroups) {
  if (!world().host_carries_data()) GTEST_SKIP() << "subgroups need MPI";
  const Group& all = world().host();
  std::vector<int> even_or_odd, halves;
  for (int r = 0; r < all.size(); ++r) {
    if (r % 2 == all.rank() % 2) even_or_odd.push_back(r);
    if (2 * r / all.size() == 2 * all.rank() / all.size()) halves.push_back(r);
  }
  check_all(all.subgroup(even_or_odd, "parity"));
  check_all(all.subgroup(halves, "half"));
}

TEST(Collectives, SeveralUnderWay) {
  const Group& g = world().host();
  const int n = g.size(), me = g.rank();
  std::vector<std::unique_ptr<Exchange>> transfers;
  std::vector<std::vector<Tensor>> received;
  for (int k = 0; k < 3; ++k) {
    std::vector<Tensor> send, receive;
    for (int r = 0; r < n; ++r) {
      send.push_back(message(me, r, 50000 + k));  // larger than what MPI sends eagerly
      receive.push_back(Tensor::zeros(DType::f32, {50000 + k}));
    }
    received.push_back(receive);
    transfers.push_back(g.start_all_to_all(send, receive));
  }
  for (int k = 0; k < 3; ++k) {
    transfers[static_cast<std::size_t>(k)]->wait();
    for (int r = 0; r < n; ++r)
      expect_equal(received[static_cast<std::size_t>(k)][static_cast<std::size_t>(r)],
                   message(r, me, 50000 + k));
  }
}

TEST(Collectives, BytesAreCounted) {
  const Group& g = world().host();
  const auto sent = [&] { return g.transport().traffic()["all-to-all of " + g.name()].bytes_sent; };
  const std::int64_t before = sent();
  g.all_to_all(Tensor::zeros(DType::f32, {g.size(), 25}), Tensor::zeros(DType::f32, {g.size(), 25}));
  EXPECT_EQ(sent() - before, 100 * (g.size() - 1));
}

}  // namespace
}  // namespace magi
