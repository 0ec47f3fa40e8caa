// SPDX-License-Identifier: Apache-2.0
#include "text/captions.h"

#include <algorithm>
#include <vector>

namespace magi {
namespace {

/// Null, blank strings, {} and [] removed throughout; null where nothing is left.
PromptJson prune(const PromptJson& value) {
  if (value.is_string()) return is_blank(value.get_ref<const std::string&>()) ? PromptJson() : value;
  if (!value.is_structured()) return value;
  PromptJson out = value.is_array() ? PromptJson::array() : PromptJson::object();
  for (const auto& [key, item] : value.items()) {
    PromptJson kept = prune(item);
    if (kept.is_null()) continue;
    if (value.is_array())
      out.push_back(std::move(kept));
    else
      out.emplace(key, std::move(kept));
  }
  return out.empty() ? PromptJson() : out;
}

/// Fits on one line: a scalar or a list of scalars.
bool is_simple(const PromptJson& value) {
  if (value.is_array())
    return std::none_of(value.begin(), value.end(), [](const auto& v) { return v.is_structured(); });
  return !value.is_object();
}

std::string scalar(const PromptJson& value) {
  if (!value.is_string()) return value.is_number() ? number_text(value) : value.dump();
  std::string out;
  for (const char c : value.get_ref<const std::string&>()) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else
      out += c;
  }
  return out;
}

/// Lines under construction. Runs of blank lines are squeezed at the end.
class Markdown {
 public:
  /// A named value; objects and mixed lists get a heading at `level`.
  void field(const std::string& key, const PromptJson& value, int level) {
    if (value.is_array() && is_simple(value)) {
      std::string items;
      for (const auto& item : value) items += (items.empty() ? "" : " | ") + scalar(item);
      lines_.push_back(key + ":" + items);
    } else if (value.is_structured()) {
      heading(key, level);
      value.is_array() ? list(key, value, level) : object(value, level + 1);
    } else {
      lines_.push_back(key + ":" + scalar(value));
    }
  }

  /// Items as key1, key2, … one level below `level`.
  void list(const std::string& key, const PromptJson& items, int level) {
    int number = 0;
    for (const auto& item : items) {
      const std::string title = key + std::to_string(++number);
      if (!item.is_structured()) {
        lines_.push_back(title + ":" + scalar(item));
        continue;
      }
      heading(title, level + 1);
      if (item.is_array()) {
        list("item", item, level + 2);
      } else {
        object(item, level + 2);
        blank();
      }
    }
  }

  void object(const PromptJson& value, int level) {
    bool first = true;
    for (const bool simple : {true, false}) {
      for (const auto& [key, item] : value.items()) {
        if (is_simple(item) != simple) continue;
        if (!first && item.is_structured()) blank();
        field(key, item, level);
        first = false;
      }
    }
  }

  void blank() { lines_.emplace_back(); }
  void line(std::string text) { lines_.push_back(std::move(text)); }

  std::string text() const {
    std::string out;
    bool after_blank = true;  // none at the start
    for (const std::string& l : lines_) {
      if (l.empty()) {
        if (!after_blank) out += '\n';
        after_blank = true;
      } else {
        out.append(trim_end(l)).append("\n");
        after_blank = false;
      }
    }
    while (out.ends_with("\n\n")) out.pop_back();
    return out;
  }

 private:
  void heading(const std::string& title, int level) {
    lines_.push_back(level <= 6 ? std::string(static_cast<std::size_t>(level), '#') + " " + title
                                : "*" + title + "*");
    blank();
  }

  std::vector<std::string> lines_;
};

}  // namespace

std::string caption_markdown(const PromptJson& caption) {
  const PromptJson value = prune(caption);
  if (value.is_null()) return "";
  Markdown out;
  if (value.is_array()) {
    out.list("item", value, 1);
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      out.blank();
      out.field(key, item, 1);
    }
  } else {
    out.line(scalar(value));
  }
  return out.text();
}

}  // namespace magi
