# SPDX-License-Identifier: Apache-2.0
# make         build/magi2 (with CUDA where there are a GPU and the toolkit)
# make demo    a tiny model and three ten-second clips with sound (from text, from an image, refined), in demo/
# make test    every test, golden data included
# make cuda    build with CUDA for ARCHS (default: the GPUs that are there, else 90a; several: "80;90a"); what FFmpeg or
#              oneDNN are needed for is left out where they are missing
# make asan    the tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make tsan    the server's tests under ThreadSanitizer
# make bench   CPU operations beside oneDNN
# Missing Debian or Ubuntu packages are installed first (as root, or through sudo).

BUILD    ?= build
DEMO     ?= demo
JOBS     ?= $(shell nproc)
CMAKE    ?= cmake
GPU      := $(shell nvidia-smi -L 2>/dev/null | grep -c GPU)
# As the kernels want them: from 8.0 on; 9.0 is Hopper, some of whose kernels need its own instructions.
GPU_ARCHS := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^([89]|1[0-9])\.[0-9]$$' | \
  tr -d . | sed 's/^90$$/90a/' | sort -u | paste -sd ';')
ARCHS    ?= $(or $(GPU_ARCHS),90a)
CUDA     ?= $(if $(filter-out 0,$(GPU)),$(if $(NVCC),ON,OFF),OFF)

# Threads that wait must not spin when several tests share the cores.
export OMP_WAIT_POLICY = passive

PACKAGES := $(shell sed 's/\#.*//' packages.txt)

# The CUDA build goes with what a GPU machine has: the toolkit, a compiler and header-only libraries.
NVCC     ?= $(firstword $(shell command -v nvcc || ls /usr/local/cuda*/bin/nvcc 2>/dev/null))
MEDIA     = $(if $(and $(wildcard /usr/include/CLI/CLI.hpp),$(shell pkg-config --exists libavformat libswscale oniguruma libutf8proc libcurl libcrypto libmicrohttpd sqlite3 2>/dev/null && echo y)),ON,OFF)
ONEDNN    = $(if $(wildcard /usr/include/dnnl.hpp /usr/include/oneapi/dnnl/dnnl.hpp),ON,OFF)

.PHONY: all packages npm browser configure build demo test asan tsan cuda bench clean

all: build

packages:
	@missing=""; for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  echo "installing:$$missing"; \
	  run=""; [ "$$(id -u)" = 0 ] || run=sudo; \
	  $$run apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$run apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

# npm fetches a vocabulary for one golden test, which is skipped by name without it. Not in packages.txt: Debian's npm
# conflicts with a Node.js from elsewhere, which brings its own.
npm:
	@command -v npm >/dev/null || { \
	  echo "installing: npm"; \
	  run=""; [ "$$(id -u)" = 0 ] || run=sudo; \
	  $$run apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $$run apt-get install -y -qq --no-install-recommends npm >/dev/null || \
	    echo "no npm: the test of the Qwen3 vocabulary will be skipped"; \
	}

# The page's test drives Chromium; without one it is skipped by name. Not in packages.txt: nothing else needs it.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  echo "installing: chromium"; \
	  run=""; [ "$$(id -u)" = 0 ] || run=sudo; \
	  $$run apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $$run apt-get install -y -qq --no-install-recommends chromium >/dev/null || \
	    echo "no Chromium: the test of the page will be skipped"; \
	}

$(BUILD)/build.ninja: | packages
	@[ $(GPU) = 0 ] || [ $(CUDA) = ON ] || echo "there is a GPU but no nvcc, so this build computes on the CPU alone;" \
	  "install the CUDA toolkit (12.8 or newer) or say NVCC=/path/to/nvcc, and remove $(BUILD)"
	$(CMAKE) -S . -B $(BUILD) -G Ninja -DMAGI2_CUDA=$(CUDA) \
	  $(if $(filter ON,$(CUDA)),-DCMAKE_CUDA_COMPILER=$(NVCC) -DARCHS="$(ARCHS)") $(CMAKE_ARGS)

build: packages $(BUILD)/build.ninja
	$(CMAKE) --build $(BUILD) -j $(JOBS) --target magi2

cuda:
	@[ -n "$(NVCC)" ] || { echo "make cuda: no nvcc; install the CUDA toolkit (12.8 or newer), or say NVCC=/path/to/nvcc"; exit 1; }
	$(CMAKE) -S . -B build-cuda -G Ninja -DMAGI2_CUDA=ON -DARCHS="$(ARCHS)" -DCMAKE_CUDA_COMPILER=$(NVCC) \
	  -DMAGI2_MEDIA=$(MEDIA) -DMAGI2_ONEDNN=$(ONEDNN) $(CMAKE_ARGS)
	$(CMAKE) --build build-cuda -j $(JOBS)

demo: build
	$(BUILD)/magi2 init $(DEMO)/model --if-missing
	$(BUILD)/magi2 generate -m $(DEMO)/model -o $(DEMO)/clip.mp4 \
	  -p "A red fox walks through fresh snow; the snow crunches under its feet."
	$(BUILD)/magi2 generate -m $(DEMO)/model -o $(DEMO)/from-image.mp4 -i $(DEMO)/model/example.png --steps 4 \
	  -p "The sun of <Figure 1> sets; waves roll in."
	$(BUILD)/magi2 generate -m $(DEMO)/model -o $(DEMO)/refined.mp4 --refine 320x192 --refiner-steps 1 --steps 4 \
	  -p "A red fox walks through fresh snow; the snow crunches under its feet."
	@echo "$(DEMO)/*.mp4: made by an untrained tiny model, so expect moving colours and noise"

test: packages npm browser $(BUILD)/build.ninja
	$(CMAKE) --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

asan: packages npm
	$(CMAKE) -S . -B build-asan -G Ninja -DMAGI2_SANITIZE=address,undefined -DMAGI2_BENCH=OFF $(CMAKE_ARGS)
	$(CMAKE) --build build-asan -j $(JOBS)
	ctest --test-dir build-asan --output-on-failure -j $(JOBS)

# GCC's OpenMP runtime is not built for ThreadSanitizer: one thread, so that it has nothing to do.
tsan: packages
	$(CMAKE) -S . -B build-tsan -G Ninja -DMAGI2_SANITIZE=thread -DMAGI2_BENCH=OFF $(CMAKE_ARGS)
	$(CMAKE) --build build-tsan -j $(JOBS) --target test_serve
	OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 build-tsan/tests/test_serve

bench: packages $(BUILD)/build.ninja
	$(CMAKE) --build $(BUILD) -j $(JOBS) --target bench_ops
	$(BUILD)/bench/bench_ops

clean:
	rm -rf build build-asan build-tsan build-cuda $(DEMO)
