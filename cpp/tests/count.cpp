// A call so many times, in C or C++: `scripts/cpp count` counts the instructions.
#include <latchwork.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const lw::table<std::uint64_t, std::uint64_t> numbers("numbers");
std::uint64_t sum = 0;

void get_c(lw_store *store, std::uint64_t key)
{
    lw_part part = lw_part_u64(key);
    lw_buf bytes = LW_BUF_INIT, value = LW_BUF_INIT;
    if (lw_key_encode(&part, 1, &bytes, nullptr) != LW_OK ||
        lw_get(store, numbers.get(), bytes.data, bytes.len, &value, nullptr) != LW_OK)
        std::abort();
    std::uint64_t number;
    std::memcpy(&number, value.data, 8);
    sum += number;
    lw_buf_free(&bytes), lw_buf_free(&value);
}

void put_c(lw_store *store, std::uint64_t key)
{
    lw_part part = lw_part_u64(key);
    lw_buf bytes = LW_BUF_INIT;
    if (lw_key_encode(&part, 1, &bytes, nullptr) != LW_OK ||
        lw_put(store, numbers.get(), bytes.data, bytes.len, &key, 8, nullptr) != LW_OK)
        std::abort();
    lw_buf_free(&bytes);
}

int add(void *, const void *, std::size_t, const void *value, std::size_t)
{
    std::uint64_t number;
    std::memcpy(&number, value, 8);
    sum += number;
    return 0;
}

}  // namespace

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    std::string call = argv[1];
    std::uint64_t times = std::strtoull(argv[2], nullptr, 10);
    lw::options options;
    options.mode = lw::mode::none;
    lw::store store(argv[3], options);
    store.write([&](lw::transaction &tx) {
        for (std::uint64_t key = 0; key < 11000; key++) tx.put(numbers, key, key);
    });
    lw_store *raw = store.get_handle();
    lw::snapshot at = store.snapshot();
    if (call == "scan-c") {
        lw_range range = LW_RANGE_INIT;
        range.limit = times;
        if (lw_snapshot_scan(at.get_handle(), numbers.get(), &range, add, nullptr, nullptr) != LW_OK) return 1;
    } else if (call == "scan-cpp") {
        for (auto [key, value] : at.range(numbers).limit(times)) sum += key ^ value;
    } else {
        for (std::uint64_t key = 0; key < times; key++) {
            if (call == "get-c") get_c(raw, key);
            if (call == "get-cpp") sum += *store.get(numbers, key);
            if (call == "put-c") put_c(raw, key);
            if (call == "put-cpp") store.put(numbers, key, key);
        }
    }
    std::printf("%llu\n", static_cast<unsigned long long>(sum));
}
