// SPDX-License-Identifier: Apache-2.0
#include "serve/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "core/error.h"

namespace magi {
namespace {

constexpr std::size_t kDigestBytes = 32;

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

}  // namespace

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  require(RAND_bytes(bytes_of(bytes), static_cast<int>(count)) == 1, "the system gives no random numbers");
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string sha256(std::string_view data) {
  std::string digest(kDigestBytes, '\0');
  require(EVP_Digest(data.data(), data.size(), bytes_of(digest), nullptr, EVP_sha256(), nullptr) == 1,
          "SHA-256 is not available");
  return digest;
}

std::string hmac_sha256(std::string_view key, std::string_view data) {
  std::string digest(kDigestBytes, '\0');
  require(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(data), data.size(),
               bytes_of(digest), nullptr) != nullptr,
          "HMAC is not available");
  return digest;
}

bool equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string from_base64(std::string_view text) {
  require(text.size() % 4 == 0, "base64 of {} characters is cut short", text.size());
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(bytes_of(bytes), bytes_of(text), static_cast<int>(text.size()));
  require(size == static_cast<int>(bytes.size()), "no base64");
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  bytes.resize(bytes.size() - padding);
  return bytes;
}

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // with the terminating NUL
  const int size = EVP_EncodeBlock(bytes_of(text), bytes_of(bytes), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace magi
