// The headers in a second unit of the same program: no symbol is defined twice.
#include <latchwork.hpp>

std::string of_the_other_unit(lw::store &store)
{
    static const lw::table<std::string, std::string> names("names");
    store.put(names, "a", "b");
    std::string all;
    for (auto [key, value] : store.snapshot().range(names)) all += key + value;
    return all;
}
