// Mutates plans and weights, hands them to the engine, and runs what it accepts. The sanitizers do the judging.
//
//   fuzz_plan SEEDS SECONDS RANDOM_SEED
//
// A seed file is a number of words (int64), the words, then the bytes of the weights: see fuzz/make_seeds.py.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <vector>

#include "engine.h"

namespace {

struct Seed {
    std::vector<int64_t> words;
    std::vector<uint8_t> weights;
};

using Random = std::mt19937_64;

constexpr int64_t kMostFloats = 1 << 22;
constexpr double kMostWork = 2e7;

std::vector<Seed> read_seeds(const char* folder) {
    std::vector<Seed> seeds;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        std::ifstream file(entry.path(), std::ios::binary);
        const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        int64_t count = 0;
        std::memcpy(&count, bytes.data(), sizeof(count));
        Seed seed;
        seed.words.resize(static_cast<size_t>(count));
        std::memcpy(seed.words.data(), bytes.data() + 8, static_cast<size_t>(count) * 8);
        seed.weights.assign(bytes.begin() + 8 + count * 8, bytes.end());
        seeds.push_back(seed);
    }
    return seeds;
}

int64_t pick(Random& random, int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); }

int64_t interesting(Random& random, int64_t old) {
    const int64_t values[] = {0, 1, -1, 2, 3, 7, 15, 16, 17, 63, 64, 255, 4096, 65535, 65536, INT32_MAX, INT64_MAX, INT64_MIN};
    switch (pick(random, 5)) {
        case 0: return values[pick(random, sizeof(values) / sizeof(values[0]))];
        case 1: return old + pick(random, 9) - 4;
        case 2: return old * 2;
        case 3: return old ^ (int64_t{1} << pick(random, 63));
        default: return pick(random, 100);
    }
}

void mutate(Random& random, Seed& seed) {
    for (int64_t times = pick(random, 4); times >= 0; --times) {
        const int64_t kind = pick(random, 20);
        if (kind < 10 && !seed.words.empty()) {
            int64_t& word = seed.words[static_cast<size_t>(pick(random, static_cast<int64_t>(seed.words.size())))];
            word = static_cast<int64_t>(static_cast<uint64_t>(interesting(random, word % (int64_t{1} << 40))));
        } else if (kind < 17 && !seed.weights.empty()) {
            seed.weights[static_cast<size_t>(pick(random, static_cast<int64_t>(seed.weights.size())))] =
                static_cast<uint8_t>(random());
        } else if (kind == 17) {
            seed.words.resize(static_cast<size_t>(pick(random, static_cast<int64_t>(seed.words.size()) + 1)));
        } else if (kind == 18) {
            seed.weights.resize(static_cast<size_t>(pick(random, static_cast<int64_t>(seed.weights.size()) + 1)));
        } else if (seed.words.size() > 2) {
            std::swap(seed.words[static_cast<size_t>(pick(random, static_cast<int64_t>(seed.words.size())))],
                      seed.words[static_cast<size_t>(pick(random, static_cast<int64_t>(seed.words.size())))]);
        }
    }
}

// What a plan would cost: a valid but enormous one teaches nothing.
bool affordable(const penni::Plan& plan) {
    double work = 0;
    for (const penni::Step& step : plan.steps) {
        const penni::Shape in = plan.values[step.inputs[0]].shape, out = plan.values[step.output].shape;
        work += static_cast<double>(in.size()) + static_cast<double>(out.size()) + step.conv.macs;
        if (step.op == penni::Op::kPool) work += static_cast<double>(out.size()) * step.attributes[0] * step.attributes[1];
        if (step.op == penni::Op::kTransposedConvolution) {
            work += static_cast<double>(step.tensors[0].count) * static_cast<double>(in.plane());
        }
        work += static_cast<double>(step.conv.line_count) * static_cast<double>(out.plane());
        work += static_cast<double>(step.conv.scratch_plane);
        if (step.conv.combine == penni::Combine::kMixFirst) {
            const double bands = static_cast<double>(out.height) / static_cast<double>(step.conv.mix.band);
            work += bands * static_cast<double>(step.conv.scratch_lines + step.conv.scratch_plane);
        }
    }
    return work < kMostWork && plan.arena < kMostFloats && plan.scratch < kMostFloats;
}

bool try_seed(const Seed& given, Random& random) {
    // Exactly as large as what is said: the sanitizer then sees every read beyond.
    std::vector<int64_t> words(given.words);
    words.shrink_to_fit();
    std::vector<uint8_t> weights(given.weights);
    weights.shrink_to_fit();
    const auto decode = [&] {
        return penni::decode_plan(words.data(), static_cast<int64_t>(words.size()), weights.data(),
                                  static_cast<int64_t>(weights.size()));
    };
    try {
        if (!affordable(decode())) return false;
        penni::Engine engine(words.data(), static_cast<int64_t>(words.size()), weights.data(),
                             static_cast<int64_t>(weights.size()), 1 + static_cast<int>(pick(random, 2)));
        const int64_t batch = 1 + pick(random, 3);
        std::vector<std::vector<float>> inputs, outputs;
        for (const int64_t value : engine.plan().inputs) {
            inputs.emplace_back(static_cast<size_t>(engine.plan().values[value].shape.size() * batch), 1.0f);
        }
        for (const int64_t value : engine.plan().outputs) {
            outputs.emplace_back(static_cast<size_t>(engine.plan().values[value].shape.size() * batch), 0.0f);
        }
        std::vector<const float*> from;
        std::vector<float*> to;
        for (const auto& input : inputs) from.push_back(input.data());
        for (auto& output : outputs) to.push_back(output.data());
        engine.run(from.data(), to.data(), batch, 1 + static_cast<int64_t>(pick(random, 3)), nullptr);
        return true;
    } catch (const std::invalid_argument&) {
        return false;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 4) {
        std::fprintf(stderr, "usage: fuzz_plan SEEDS SECONDS RANDOM_SEED\n");
        return 2;
    }
    const std::vector<Seed> seeds = read_seeds(arguments[1]);
    if (seeds.empty()) {
        std::fprintf(stderr, "no seeds in %s\n", arguments[1]);
        return 2;
    }
    Random random(std::strtoull(arguments[3], nullptr, 10));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(arguments[2]));
    int64_t tried = 0, ran = 0;
    for (const Seed& seed : seeds) {
        if (!try_seed(seed, random)) {
            std::fprintf(stderr, "a seed is refused as it is\n");
            return 1;
        }
    }
    while (std::chrono::steady_clock::now() < end) {
        Seed seed = seeds[static_cast<size_t>(pick(random, static_cast<int64_t>(seeds.size())))];
        mutate(random, seed);
        ran += try_seed(seed, random);
        ++tried;
    }
    std::printf("%lld plans tried, %lld accepted and run\n", static_cast<long long>(tried), static_cast<long long>(ran));
    return 0;
}
