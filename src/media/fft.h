// SPDX-License-Identifier: Apache-2.0
// The discrete Fourier transform of any length in double precision.
#pragma once

#include <complex>
#include <vector>

namespace magi {

using Spectrum = std::vector<std::complex<double>>;

/// X_k = Σ_j x_j·exp(∓2πi·jk/n), minus forward, plus inverse; not scaled. O(n log n) for every n, primes too.
Spectrum fourier(const Spectrum& x, bool inverse);

}  // namespace magi
