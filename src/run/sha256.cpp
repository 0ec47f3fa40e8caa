// SPDX-License-Identifier: Apache-2.0
#include "run/sha256.h"

#include <openssl/evp.h>

#include <array>

namespace magi {

Sha256::Sha256() : state_(EVP_MD_CTX_new(), [](void* p) { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(p)); }) {
  require(state_ && EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(state_.get()), EVP_sha256(), nullptr) == 1,
          "SHA-256 is not available");
}

void Sha256::add(const void* data, std::size_t bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(state_.get()), data, bytes);
}

std::string Sha256::hex() const {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> copy(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_MD_CTX_copy_ex(copy.get(), static_cast<EVP_MD_CTX*>(state_.get()));
  std::array<unsigned char, 32> digest{};
  EVP_DigestFinal_ex(copy.get(), digest.data(), nullptr);
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::string sha256_of(std::string_view bytes) {
  Sha256 sha;
  sha.add(bytes.data(), bytes.size());
  return sha.hex();
}

std::string sha256_of(const Tensor& tensor) {
  Sha256 sha;
  sha.add(tensor);
  return sha.hex();
}

}  // namespace magi
