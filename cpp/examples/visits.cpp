// The first program of docs/cpp.md: counts visits by name, in a store that any number of processes
// may write at the same time.
//
//     c++ -std=c++17 visits.cpp $(pkg-config --cflags --libs latchwork) -o visits
//     ./visits folder ann bob ann
#include <latchwork.hpp>

#include <cstdio>

static const lw::table<std::string, std::uint64_t> visits("visits");

int main(int argc, char **argv)
try {
    if (argc < 2) {
        std::fprintf(stderr, "usage: visits FOLDER [NAME]..\n");
        return 2;
    }
    lw::store store(argv[1]);
    for (int i = 2; i < argc; i++) {
        store.write([&](lw::transaction &tx) {
            tx.put(visits, argv[i], tx.get_for_update(visits, argv[i]).value_or(0) + 1);
        });
    }
    for (auto [name, count] : store.snapshot().range(visits))
        std::printf("%s %llu\n", name.c_str(), static_cast<unsigned long long>(count));
} catch (const lw::error &why) {
    std::fprintf(stderr, "visits: %s: %s\n", why.code_name(), why.what());
    return 1;
}
