// A program of two units; each header also compiles by itself (scripts/cpp).
#include "check.hpp"

std::string of_the_other_unit(lw::store &store);

int main()
{
    lw::store store(fresh("units"), small());
    CHECK(of_the_other_unit(store) == "ab");
}
