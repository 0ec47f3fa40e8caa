// SPDX-License-Identifier: Apache-2.0
// Opcodes and their stack effects: Python's Lib/pickletools.py. What PyTorch writes: torch/_utils.py,
// torch/serialization.py.
#include "io/pickle.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_map>

#include "io/pickle_opcodes.h"
#include "io/tensor_store.h"

namespace magi {
namespace {

constexpr std::size_t kMaxBytes = 64u << 20;
constexpr std::size_t kMaxRank = 64;  // these two: what is copied out of a shared value must be small
constexpr std::size_t kLongestKey = 255;
constexpr std::size_t kMaxValues = 4u << 20;  // what a pickle of the largest models needs a thousandth of

std::optional<DType> storage_dtype(const std::string& global) {
  static const std::unordered_map<std::string, DType> types{
      {"torch.FloatStorage", DType::f32}, {"torch.BFloat16Storage", DType::bf16},
      {"torch.HalfStorage", DType::f16},  {"torch.DoubleStorage", DType::f64},
      {"torch.ByteStorage", DType::u8},   {"torch.CharStorage", DType::i8},
      {"torch.ShortStorage", DType::i16}, {"torch.IntStorage", DType::i32},
      {"torch.LongStorage", DType::i64},  {"torch.BoolStorage", DType::boolean}};
  const auto it = types.find(global);
  return it == types.end() ? std::nullopt : std::optional(it->second);
}

constexpr std::string_view kOrderedDict = "collections.OrderedDict";
constexpr std::string_view kSize = "torch.Size";
constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kParameter = "torch._utils._rebuild_parameter";

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  Pickle run() {
    require(bytes_.size() <= kMaxBytes, "{}: a pickle of {} bytes, at most {} are read", where_,
            bytes_.size(), kMaxBytes);
    while (!stopped_) step(static_cast<Op>(unsigned_field(1)));
    return std::move(pickle_);
  }

 private:
  // ---- input ----

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) damaged("it ends too early");
    const std::string_view part(reinterpret_cast<const char*>(bytes_.data()) + at_, count);
    at_ += count;
    return part;
  }
  std::uint64_t unsigned_field(std::size_t width) {
    std::uint64_t value = 0;
    const std::string_view field = take(width);
    for (std::size_t i = 0; i < width; ++i)
      value |= std::uint64_t{static_cast<unsigned char>(field[i])} << (8 * i);
    return value;
  }
  std::string line() {
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_, bytes_.size() - at_);
    const std::size_t length = rest.find('\n');
    if (length == std::string_view::npos) damaged("it ends too early");
    at_ += length + 1;
    return std::string(rest.substr(0, length));
  }
  std::string_view counted(std::size_t width) { return take(unsigned_field(width)); }

  double big_endian_double() {
    std::uint64_t bits = 0;
    for (const unsigned char c : take(8)) bits = bits << 8 | c;
    return std::bit_cast<double>(bits);
  }
  /// LONG1: two's complement, little endian, as many bytes as needed.
  std::int64_t long_integer() {
    const std::size_t width = unsigned_field(1);
    if (width > 8) refuse("an integer of more than 64 bits");
    if (width == 0) return 0;
    const int unused_bits = 64 - 8 * static_cast<int>(width);
    return static_cast<std::int64_t>(unsigned_field(width) << unused_bits) >> unused_bits;
  }

  [[noreturn]] void damaged(std::string_view what) const {
    fail("{}: damaged pickle: {} (byte {})", where_, what, at_);
  }
  [[noreturn]] void refuse(const std::string& what) const { fail("{}: refused: {}", where_, what); }

  // ---- stack and memo; a null on the stack is a mark ----

  template <typename T>
  void push(T data) {
    if (pickle_.values.size() >= kMaxValues) refuse(fmt::format("more than {} objects", kMaxValues));
    pickle_.values.push_back({std::move(data)});
    stack_.push_back(&pickle_.values.back());
  }
  PickledValue* pop() {
    if (stack_.empty() || stack_.back() == nullptr) damaged("its stack is empty");
    PickledValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  std::vector<PickledRef> pop_last(std::size_t count) {
    std::vector<PickledRef> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }
  std::vector<PickledRef> pop_to_mark() {
    const auto mark = std::find(stack_.rbegin(), stack_.rend(), nullptr);
    if (mark == stack_.rend()) damaged("a mark is missing");
    std::vector<PickledRef> items(mark.base(), stack_.end());
    stack_.erase(mark.base() - 1, stack_.end());
    return items;
  }
  PickledValue* top() {
    if (stack_.empty() || stack_.back() == nullptr) damaged("its stack is empty");
    return stack_.back();
  }
  template <typename T>
  T& top_as(std::string_view what) {
    T* data = std::get_if<T>(&top()->data);
    if (!data) damaged(what);
    return *data;
  }
  void memoize(std::uint64_t index) { memo_[index] = top(); }
  void recall(std::uint64_t index) {
    const auto it = memo_.find(index);
    if (it == memo_.end()) damaged("it recalls what was never stored");
    stack_.push_back(it->second);
  }

  // ---- containers ----

  void append(const std::vector<PickledRef>& items) {
    auto& list = top_as<PickledList>("it appends to what is no list").items;
    list.insert(list.end(), items.begin(), items.end());
  }
  void set_items(const std::vector<PickledRef>& items) {
    if (items.size() % 2 != 0) damaged("a key without a value");
    auto& dict = top_as<PickledDict>("it sets items of what is no dict").items;
    for (std::size_t i = 0; i < items.size(); i += 2) dict.emplace_back(items[i], items[i + 1]);
  }
  /// BUILD: state_dict() gives its OrderedDict an attribute `_metadata`; nothing here needs attributes.
  void build() {
    const PickledValue* state = pop();
    const bool attributes_of_dict = state->as<PickledDict>() && top()->as<PickledDict>();
    if (!attributes_of_dict) refuse("opcode BUILD on anything but an OrderedDict");
  }

  // ---- globals, calls, persistent ids ----

  void push_global(const std::string& name) {
    const bool allowed = name == kOrderedDict || name == kSize || name == kTensor || name == kParameter ||
                         storage_dtype(name).has_value();
    if (!allowed) refuse("global " + printable(name));
    push(PickledGlobal{name});
  }
  void stack_global() {
    const PickledValue* name = pop();
    const PickledValue* module = pop();
    if (!name->as<std::string>() || !module->as<std::string>()) damaged("a global without a name");
    push_global(*module->as<std::string>() + "." + *name->as<std::string>());
  }
  void reduce() {
    const PickledValue* arguments = pop();
    const PickledValue* callable = pop();
    if (!callable->as<PickledGlobal>() || !arguments->as<PickledTuple>())
      damaged("a call of what is no function");
    const std::string& name = callable->as<PickledGlobal>()->name;
    const auto& items = arguments->as<PickledTuple>()->items;
    if (name == kOrderedDict) {
      if (!items.empty()) refuse("an OrderedDict built from arguments");
      push(PickledDict{});
    } else if (name == kSize) {
      const bool one_tuple = items.size() == 1 && items[0]->as<PickledTuple>();
      if (!one_tuple) damaged("a torch.Size of what is no tuple");
      if (items[0]->as<PickledTuple>()->items.size() > kMaxRank) refuse("a torch.Size of too many axes");
      push(PickledTuple{items[0]->as<PickledTuple>()->items});
    } else if (name == kParameter) {
      if (items.empty() || !items[0]->tensor()) damaged("a parameter without a tensor");
      push(std::make_unique<PickledTensor>(*items[0]->tensor()));
    } else if (name == kTensor) {
      push(std::make_unique<PickledTensor>(tensor_of(items)));
    } else {
      refuse("a call of " + name);
    }
  }
  /// ("storage", torch.FloatStorage, key, location, elements)
  void persistent_id() {
    const auto* id = pop()->as<PickledTuple>();
    const bool shaped = id && id->items.size() == 5 && id->items[0]->as<std::string>() &&
                        *id->items[0]->as<std::string>() == "storage" && id->items[1]->as<PickledGlobal>() &&
                        id->items[2]->as<std::string>() && id->items[4]->as<std::int64_t>();
    if (!shaped) damaged("a persistent id that is no storage");
    const auto dtype = storage_dtype(id->items[1]->as<PickledGlobal>()->name);
    const std::int64_t elements = *id->items[4]->as<std::int64_t>();
    const std::string& key = *id->items[2]->as<std::string>();
    if (!dtype || elements < 0 || key.size() > kLongestKey) damaged("a persistent id that is no storage");
    push(std::make_unique<PickledStorage>(PickledStorage{*dtype, key, elements}));
  }
  Shape integers_of(PickledRef value) const {
    const auto* tuple = value->as<PickledTuple>();
    if (!tuple) damaged("a tensor's shape is no tuple");
    if (tuple->items.size() > kMaxRank) refuse(fmt::format("a shape of {} axes", tuple->items.size()));
    Shape result;
    for (PickledRef item : tuple->items) {
      const auto* n = item->as<std::int64_t>();
      if (!n || *n < 0) damaged("a tensor's shape or stride is no natural number");
      result.push_back(*n);
    }
    return result;
  }
  /// (storage, offset, shape, strides, requires_grad, hooks[, metadata])
  PickledTensor tensor_of(const std::vector<PickledRef>& items) const {
    const auto* storage = items.size() >= 6 ? items[0]->as<std::unique_ptr<PickledStorage>>() : nullptr;
    if (!storage || !items[1]->as<std::int64_t>()) damaged("a tensor without storage or offset");
    PickledTensor tensor{**storage, *items[1]->as<std::int64_t>(), integers_of(items[2]),
                         integers_of(items[3])};
    check_inside_storage(tensor);
    return tensor;
  }
  void check_inside_storage(const PickledTensor& t) const {
    if (t.offset < 0 || t.shape.size() != t.strides.size()) damaged("a tensor's offset or strides are wrong");
    std::int64_t last = t.offset, product = 1, count = 1;
    bool overflows = false;
    for (std::size_t i = 0; i < t.shape.size(); ++i) {
      std::int64_t reach = 0;
      overflows |= __builtin_mul_overflow(std::max<std::int64_t>(t.shape[i] - 1, 0), t.strides[i], &reach);
      overflows |= __builtin_add_overflow(last, reach, &last);
      overflows |= __builtin_mul_overflow(product, std::max<std::int64_t>(t.shape[i], 1), &product);
      if (t.shape[i] == 0) count = 0;
    }
    if (overflows || (count > 0 && last >= t.storage.numel)) damaged("a tensor reaches beyond its storage");
  }

  void step(Op op);
  // What is not of its kind each hands to the next; the last refuses it.
  void scalar(Op op);
  void container(Op op);
  void memory(Op op);
  void call(Op op);

  std::span<const std::byte> bytes_;
  const std::string& where_;
  std::size_t at_ = 0;
  bool stopped_ = false;
  Pickle pickle_;
  std::vector<PickledValue*> stack_;
  std::unordered_map<std::uint64_t, PickledValue*> memo_;
};

void Machine::step(Op op) {
  switch (op) {
    case Op::proto: {
      const auto version = unsigned_field(1);
      if (version < 2 || version > 4) refuse(fmt::format("pickle protocol {}", version));
      return;
    }
    case Op::frame:
      unsigned_field(8);
      return;
    case Op::stop:
      pickle_.root = pop();
      stopped_ = true;
      return;
    default:
      return scalar(op);
  }
}

void Machine::scalar(Op op) {
  switch (op) {
    case Op::none:
      return push(std::monostate{});
    case Op::new_true:
      return push(true);
    case Op::new_false:
      return push(false);
    case Op::bin_int:
      return push(std::int64_t{static_cast<std::int32_t>(unsigned_field(4))});
    case Op::bin_int1:
      return push(static_cast<std::int64_t>(unsigned_field(1)));
    case Op::bin_int2:
      return push(static_cast<std::int64_t>(unsigned_field(2)));
    case Op::long1:
      return push(long_integer());
    case Op::bin_float:
      return push(big_endian_double());
    case Op::short_bin_unicode:
      return push(std::string(counted(1)));
    case Op::bin_unicode:
      return push(std::string(counted(4)));
    case Op::bin_unicode8:
      return push(std::string(counted(8)));
    case Op::short_bin_bytes:
      return push(PickledBytes{std::string(counted(1))});
    case Op::bin_bytes:
      return push(PickledBytes{std::string(counted(4))});
    case Op::bin_bytes8:
      return push(PickledBytes{std::string(counted(8))});
    default:
      return container(op);
  }
}

void Machine::container(Op op) {
  switch (op) {
    case Op::mark:
      stack_.push_back(nullptr);
      return;
    case Op::empty_tuple:
      return push(PickledTuple{});
    case Op::tuple:
      return push(PickledTuple{pop_to_mark()});
    case Op::tuple1:
      return push(PickledTuple{pop_last(1)});
    case Op::tuple2:
      return push(PickledTuple{pop_last(2)});
    case Op::tuple3:
      return push(PickledTuple{pop_last(3)});
    case Op::empty_list:
      return push(PickledList{});
    case Op::append:
      return append(pop_last(1));
    case Op::appends:
      return append(pop_to_mark());
    case Op::empty_dict:
      return push(PickledDict{});
    case Op::set_item:
      return set_items(pop_last(2));
    case Op::set_items:
      return set_items(pop_to_mark());
    default:
      return memory(op);
  }
}

void Machine::memory(Op op) {
  switch (op) {
    case Op::bin_put:
      return memoize(unsigned_field(1));
    case Op::long_bin_put:
      return memoize(unsigned_field(4));
    case Op::memoize:
      return memoize(memo_.size());
    case Op::bin_get:
      return recall(unsigned_field(1));
    case Op::long_bin_get:
      return recall(unsigned_field(4));
    default:
      return call(op);
  }
}

void Machine::call(Op op) {
  switch (op) {
    case Op::global: {
      const std::string module = line();
      return push_global(module + "." + line());
    }
    case Op::stack_global:
      return stack_global();
    case Op::reduce:
      return reduce();
    case Op::build:
      return build();
    case Op::bin_persid:
      return persistent_id();
    default:
      refuse("opcode " + opcode_name(static_cast<std::uint8_t>(op)));
  }
}

}  // namespace

Pickle unpickle(std::span<const std::byte> bytes, const std::string& where) {
  return Machine(bytes, where).run();
}

}  // namespace magi
