// SPDX-License-Identifier: Apache-2.0
#include "run/http_post.h"

#include <curl/curl.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace magi {
namespace {

constexpr int kPollMilliseconds = 100;
constexpr double kConnectSeconds = 15;

template <auto release>
struct Releaser {
  template <typename T>
  void operator()(T* handle) const {
    release(handle);
  }
};
using Easy = std::unique_ptr<CURL, Releaser<curl_easy_cleanup>>;
using Multi = std::unique_ptr<CURLM, Releaser<curl_multi_cleanup>>;
using Headers = std::unique_ptr<curl_slist, Releaser<curl_slist_free_all>>;
using Url = std::unique_ptr<CURLU, Releaser<curl_url_cleanup>>;
using UrlText = std::unique_ptr<char, Releaser<curl_free>>;

std::string url_part(const Url& url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url.get(), part, &text, 0) != CURLUE_OK) return {};
  const UrlText owned(text);
  return text;
}

/// Grows up to a limit; a reply beyond it ends the transfer.
struct ReplyBody {
  std::string text;
  std::size_t limit = 0;
  bool overflowed = false;
};

std::size_t receive(char* data, std::size_t size, std::size_t count, void* user) {
  auto& body = *static_cast<ReplyBody*>(user);
  if (count * size > body.limit - body.text.size()) {
    body.overflowed = true;
    return 0;
  }
  body.text.append(data, count * size);
  return count * size;
}

template <typename Value>
void set(const Easy& easy, CURLoption option, Value value) {
  const CURLcode code = curl_easy_setopt(easy.get(), option, value);
  require(code == CURLE_OK, "libcurl refuses an option: {}", curl_easy_strerror(code));
}

void set_connection_rules(const Easy& easy, double timeout_s) {
  const auto milliseconds = [](double seconds) { return static_cast<long>(std::ceil(seconds * 1000)); };
  set(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  set(easy, CURLOPT_FOLLOWLOCATION, 0L);
  set(easy, CURLOPT_PROXY, "");  // else the environment's http_proxy would get to see prompt and key
  set(easy, CURLOPT_SSL_VERIFYPEER, 1L);
  set(easy, CURLOPT_SSL_VERIFYHOST, 2L);
  set(easy, CURLOPT_NOSIGNAL, 1L);
  set(easy, CURLOPT_TIMEOUT_MS, milliseconds(timeout_s));
  set(easy, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(std::min(timeout_s, kConnectSeconds)));
}

Headers headers_of(const HttpPost& post) {
  Headers list;
  const auto add = [&](const std::string& line) {
    curl_slist* longer = curl_slist_append(list.get(), line.c_str());
    if (!longer) throw std::bad_alloc();
    (void)list.release();
    list.reset(longer);
  };
  add("Content-Type: application/json");
  add("Accept: application/json");
  add("Expect:");  // no waiting for "100 Continue" before an image is sent
  if (!post.bearer.empty()) add("Authorization: Bearer " + post.bearer);
  return list;
}

/// Runs the transfer in short waits, so that cancelling takes effect between them.
CURLcode transfer(const Easy& easy, const Progress& progress) {
  const Multi multi(curl_multi_init());
  if (!multi || curl_multi_add_handle(multi.get(), easy.get()) != CURLM_OK) throw std::bad_alloc();
  struct Removal {
    CURLM* multi;
    CURL* easy;
    ~Removal() { curl_multi_remove_handle(multi, easy); }
  } const removal{multi.get(), easy.get()};
  for (int running = 1; running > 0;) {
    progress.check();
    if (curl_multi_perform(multi.get(), &running) != CURLM_OK) return CURLE_RECV_ERROR;
    if (running > 0) curl_multi_poll(multi.get(), nullptr, 0, kPollMilliseconds, nullptr);
  }
  int left = 0;
  const CURLMsg* message = curl_multi_info_read(multi.get(), &left);
  return message ? message->data.result : CURLE_RECV_ERROR;
}

[[noreturn]] void fail_transfer(const HttpPost& post, CURLcode code, bool overflowed) {
  if (overflowed)
    throw RetryableError(fmt::format("the reply is longer than {} bytes", post.max_reply_bytes));
  if (code == CURLE_OPERATION_TIMEDOUT)
    throw RetryableError(fmt::format("no reply within {:g} s", post.timeout_s));
  const std::string message = curl_easy_strerror(code);
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_OUT_OF_MEMORY:
      throw Error(message);
    default:
      throw RetryableError(message);
  }
}

}  // namespace

std::string checked_base_url(const std::string& url) {
  const Url parsed(curl_url());
  if (!parsed) throw std::bad_alloc();
  require(curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) == CURLUE_OK,
          "the URL of the language model is not one like http://127.0.0.1:8000/v1");
  require(url_part(parsed, CURLUPART_USER).empty() && url_part(parsed, CURLUPART_PASSWORD).empty(),
          "the URL of the language model holds a user name or password; a key goes into MAGI2_LLM_API_KEY");
  const std::string scheme = url_part(parsed, CURLUPART_SCHEME);
  require(scheme == "http" || scheme == "https", "{}: a language model is asked over http or https", url);
  require(url_part(parsed, CURLUPART_QUERY).empty() && url_part(parsed, CURLUPART_FRAGMENT).empty(),
          "{}: the URL must end before any ? or #, as in http://127.0.0.1:8000/v1", url);
  return url.substr(0, url.find_last_not_of("/?#") + 1);
}

bool is_exposed(const std::string& url) {
  const Url parsed(curl_url());
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return true;
  const std::string host = url_part(parsed, CURLUPART_HOST);
  const bool loopback =
      host == "localhost" || host == "[::1]" ||
      (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
  return url_part(parsed, CURLUPART_SCHEME) == "http" && !loopback;
}

HttpReply http_post(const HttpPost& post, const Progress& progress) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  require(ready == CURLE_OK, "libcurl does not start: {}", curl_easy_strerror(ready));
  const Easy easy(curl_easy_init());
  if (!easy) throw std::bad_alloc();
  const Headers headers = headers_of(post);
  ReplyBody body;
  body.limit = post.max_reply_bytes;

  set_connection_rules(easy, post.timeout_s);
  set(easy, CURLOPT_URL, post.url.c_str());
  set(easy, CURLOPT_HTTPHEADER, headers.get());
  set(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(post.body.size()));
  set(easy, CURLOPT_POSTFIELDS, post.body.c_str());
  set(easy, CURLOPT_WRITEFUNCTION, receive);
  set(easy, CURLOPT_WRITEDATA, static_cast<void*>(&body));

  const CURLcode code = transfer(easy, progress);
  if (code != CURLE_OK) fail_transfer(post, code, body.overflowed);
  HttpReply reply;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &reply.status);
  curl_off_t wait = 0;
  if (curl_easy_getinfo(easy.get(), CURLINFO_RETRY_AFTER, &wait) == CURLE_OK)
    reply.retry_after_s = static_cast<double>(wait);
  reply.body = std::move(body.text);
  return reply;
}

}  // namespace magi
