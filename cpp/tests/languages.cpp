// The program crates/latchwork/examples/languages.rs in C++: writes the same tables, and checks
// the tables of the program in Rust.
#include "check.hpp"

#include <cstring>

namespace {

struct order_id {
    std::string customer;
    std::uint64_t number = 0;
};

struct order {
    std::string what;
    std::uint32_t count = 0;
    std::optional<double> price;
};

}  // namespace

template <>
struct lw::fields<order_id> {
    static constexpr auto of = std::tuple(lw::field("customer", &order_id::customer),
                                          lw::field("number", &order_id::number));
};
template <>
struct lw::fields<order> {
    static constexpr auto of = std::tuple(lw::field("what", &order::what),
                                          lw::field("count", &order::count),
                                          lw::field("price", &order::price));
};

namespace {

using namespace std::string_literals;
using three = std::array<std::uint8_t, 3>;
using nested_key = std::tuple<std::optional<std::uint32_t>, std::tuple<bool, float>>;

const lw::table<std::string, std::uint64_t> fruit("fruit");
const lw::table<std::pair<std::string, std::int64_t>, std::optional<double>> scores("scores");
const lw::table<order_id, order> orders("orders");
const lw::table<lw::uuid, lw::bytes> ids("ids");
const lw::table<nested_key, std::pair<std::string, three>> nested("nested");
#ifdef __SIZEOF_INT128__
const lw::table<lw::detail::int128, lw::detail::uint128> wide("wide");
const auto wide_key = -(lw::detail::int128(1) << 100);
const auto wide_value = lw::detail::uint128(1) << 120;
#endif

const std::string odd("p\xc3\xa9" "ar\0x", 7);

lw::uuid some_id()
{
    lw::uuid id;
    std::memcpy(id.value.data(), "0123456789abcdef", 16);
    return id;
}

void write(lw::store &store)
{
    store.write([](lw::transaction &tx) {
        tx.put(fruit, "pear", 3);
        tx.put(fruit, odd, UINT64_MAX);
        tx.put(scores, {"ann", -300}, -0.5);
        tx.put(scores, {"ann", 7}, std::nullopt);
        tx.put(orders, {"ann", 8}, {"tea", 2, 1.5});
        tx.put(orders, {"bob", UINT64_C(1) << 40}, {"", 0, std::nullopt});
        tx.put(ids, some_id(), lw::bytes_view("\0\xff\0", 3));
        tx.put(nested, {std::nullopt, {true, 0.25f}}, {"x", three{1, 2, 3}});
        tx.put(nested, {9u, {false, -1.0f}}, {"", three{}});
#ifdef __SIZEOF_INT128__
        tx.put(wide, wide_key, wide_value);
#endif
    });
}

void check(lw::store &store)
{
    auto at = store.snapshot();
    CHECK(at.get(fruit, "pear") == 3u && at.get(fruit, odd) == UINT64_MAX);
    CHECK(at.range(fruit).count() == 2);
    CHECK(at.get(scores, {"ann", -300}).value() == -0.5);
    CHECK(at.get(scores, {"ann", 7}).value() == std::nullopt);
    CHECK(at.range(scores).first()->key.second == -300);
    auto tea = *at.get(orders, {"ann", 8}), none = *at.get(orders, {"bob", UINT64_C(1) << 40});
    CHECK(tea.what == "tea" && tea.count == 2 && tea.price == 1.5);
    CHECK(none.what.empty() && none.count == 0 && !none.price);
    CHECK(lw::bytes_view(*at.get(ids, some_id())) == lw::bytes_view("\0\xff\0", 3));
    CHECK((at.get(nested, {std::nullopt, {true, 0.25f}}) == std::pair("x"s, three{1, 2, 3})));
    CHECK((at.get(nested, {9u, {false, -1.0f}}) == std::pair(""s, three{})));
#ifdef __SIZEOF_INT128__
    CHECK(at.get(wide, wide_key) == wide_value);
#endif
}

}  // namespace

int main(int argc, char **argv)
{
    if (argc == 3) {
        lw::store store(argv[2]);
        std::strcmp(argv[1], "write") == 0 ? write(store) : check(store);
        return 0;
    }
    lw::store store(fresh("languages"), small());
    write(store);
    check(store);
}
