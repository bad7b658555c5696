// Keys and values have the bytes that the C library makes of them, and decoding accepts those only.
#include "check.hpp"

#include <random>

namespace {

std::mt19937_64 random_numbers(7);

std::uint64_t below(std::uint64_t end) { return random_numbers() % end; }

// Numbers of all lengths are equally likely.
std::uint64_t number() { return random_numbers() >> below(64); }

std::string text()
{
    static const char *const pieces[] = {"a", "zz", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8d\x90"};
    std::string made;
    for (std::uint64_t left = below(9); left > 0; left--) {
        if (below(4) == 0) {
            made += '\0';
        } else {
            made += pieces[below(5)];
        }
    }
    return made;
}

lw::bytes some_bytes()
{
    lw::bytes made(below(40));
    for (auto &byte : made) byte = below(3) == 0 ? std::byte{0} : std::byte(below(256));
    return made;
}

template <class K>
std::string key_bytes(const K &key)
{
    lw::writer to;
    lw::detail::encode_key<K>(key, to);
    return std::string(to.view().text());
}

template <class K>
K key_of(std::string_view bytes)
{
    return lw::detail::decode_key<K>(bytes);
}

std::string by_library(const std::vector<lw_part> &parts)
{
    lw::detail::buffer key;
    lw::detail::call(lw_key_encode, parts.data(), parts.size(), key.get());
    return std::string(key.view().text());
}

// The bytes are those of the library, come back as the key, and no shorter or longer ones do.
template <class K>
void same(const K &key, const std::vector<lw_part> &parts)
{
    std::string bytes = key_bytes(key);
    CHECK(bytes == by_library(parts));
    CHECK(key_of<K>(bytes) == key);
    THROWS(lw::bad_format, key_of<K>(bytes + '\x01'));
    for (std::size_t length = 0; length < bytes.size(); length++) {
        // A shorter text may be a key of its own, if it ends where a zero was escaped.
        try {
            K other = key_of<K>(std::string_view(bytes).substr(0, length));
            CHECK(key_bytes(other) == bytes.substr(0, length));
        } catch (const lw::bad_format &) {
        }
    }
}

lw_part of_text(const std::string &text) { return lw_part_text_n(text.data(), text.size()); }

lw_part wide(std::uint32_t kind, const void *bytes)
{
    lw_part part = lw_part_of_kind(kind);
    std::memcpy(part.of.wide, bytes, 16);
    return part;
}

void numbers_are_those_of_the_library()
{
    for (int run = 0; run < 3000; run++) {
        auto unsigned_number = number();
        auto signed_number = static_cast<std::int64_t>(number()) * (below(2) ? 1 : -1);
        same<std::uint64_t>(unsigned_number, {lw_part_u64(unsigned_number)});
        same<std::int64_t>(signed_number, {lw_part_i64(signed_number)});
        same<std::uint8_t>(static_cast<std::uint8_t>(unsigned_number),
                           {lw_part_u64(unsigned_number & 0xff)});
        auto little = static_cast<std::int16_t>(signed_number);
        same<std::int16_t>(little, {lw_part_i64(little)});
        double real;
        std::memcpy(&real, &unsigned_number, 8);
        if (real == real) same<double>(real, {lw_part_f64(real)});
        float single = static_cast<float>(signed_number);
        same<float>(single, {lw_part_f32(single)});
#ifdef __SIZEOF_INT128__
        lw::detail::uint128 long_number = number();
        long_number = (long_number << 64 | number()) >> below(70);
        same<lw::detail::uint128>(long_number, {wide(LW_PART_U128, &long_number)});
        auto signed_long = static_cast<lw::detail::int128>(~long_number);
        same<lw::detail::int128>(signed_long, {wide(LW_PART_I128, &signed_long)});
#endif
    }
    for (std::int64_t edge : {INT64_MIN, INT64_MIN + 1, INT64_C(-1), INT64_C(0), INT64_MAX})
        same<std::int64_t>(edge, {lw_part_i64(edge)});
    same<bool>(true, {lw_part_bool(1)});
    same<bool>(false, {lw_part_bool(0)});
}

void numbers_that_do_not_fit_are_errors()
{
    THROWS(lw::bad_format, key_of<std::uint8_t>(key_bytes<std::uint16_t>(256)));
    THROWS(lw::bad_format, key_of<std::uint64_t>(key_bytes<std::int64_t>(-1)));
    THROWS(lw::bad_format, key_of<std::int8_t>(key_bytes<std::int16_t>(-129)));
    CHECK(key_of<std::int8_t>(key_bytes<std::int16_t>(-128)) == -128);
    THROWS(lw::bad_format, key_of<std::uint64_t>(std::string("\x16\x00\x07", 3)));
    THROWS(lw::bad_format, key_of<std::uint64_t>(key_bytes<std::string>("7")));
    THROWS(lw::bad_format, key_of<bool>(key_bytes<std::uint64_t>(1)));
}

void texts_are_those_of_the_library()
{
    for (int run = 0; run < 2000; run++) {
        std::string chars = text();
        same<std::string>(chars, {of_text(chars)});
        lw::bytes some = some_bytes();
        same<lw::bytes>(some, {lw_part_bytes(some.data(), some.size())});
    }
    std::array<std::uint8_t, 4> four{1, 0, 0, 255};
    same(four, {lw_part_bytes(four.data(), 4)});
    lw::uuid id{{1, 2, 3, 0, 255}};
    same(id, {lw_part_uuid(id.value.data())});
    for (const char *wrong : {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"})
        THROWS(lw::bad_format, key_bytes<std::string>(wrong));
}

using compound = std::tuple<std::string, std::optional<std::int64_t>,
                            std::tuple<std::optional<std::uint32_t>, lw::bytes>, bool>;

compound some_compound()
{
    auto maybe = [](auto of) { return below(3) == 0 ? decltype(std::optional(of))() : of; };
    return {text(), maybe(static_cast<std::int64_t>(number())),
            {maybe(static_cast<std::uint32_t>(number())), some_bytes()}, below(2) == 1};
}

void tuples_are_those_of_the_library_and_keep_their_order()
{
    compound before = some_compound();
    for (int run = 0; run < 3000; run++) {
        compound key = some_compound();
        auto &[chars, maybe, nested, is] = key;
        auto &[inner, bytes] = nested;
        same(key, {of_text(chars), maybe ? lw_part_i64(*maybe) : lw_part_null(), lw_part_begin(),
                   inner ? lw_part_u64(*inner) : lw_part_null(),
                   lw_part_bytes(bytes.data(), bytes.size()), lw_part_end(), lw_part_bool(is)});
        CHECK((key < before) == (key_bytes(key) < key_bytes(before)));
        before = key;
    }
    std::pair<std::string, std::uint64_t> pair("ann", 8);
    CHECK(key_bytes(pair) == std::string("\x02" "ann\0\x15\x08", 7));
    CHECK((key_of<std::pair<std::string, std::uint64_t>>(key_bytes(pair)) == pair));
}

template <class V>
void value(const V &of, std::string_view bytes)
{
    lw::detail::encoded_value<V> encoded(of);
    CHECK(encoded.view().text() == bytes);
    CHECK(lw::codec<V>::take_value(bytes) == of);
    if (lw::detail::width_of<V> != lw::no_width)
        THROWS(lw::bad_format, lw::codec<V>::take_value(std::string(bytes) + '\x01'));
}

struct person {
    std::string name;
    std::optional<std::uint16_t> age;
    bool is_member = false;

    friend bool operator==(const person &a, const person &b)
    {
        return a.name == b.name && a.age == b.age && a.is_member == b.is_member;
    }
};

template <class T>
std::string description()
{
    std::string text;
    lw::codec<T>::describe(text);
    return text;
}

}  // namespace

template <>
struct lw::fields<person> {
    static constexpr auto of =
        std::tuple(lw::field("name", &person::name), lw::field("age", &person::age),
                   lw::field("is_member", &person::is_member));
};

namespace {

using namespace std::string_view_literals;

// The bytes are those of the examples of the trait `Value` in Rust.
void values_have_the_bytes_of_rust()
{
    value<std::int64_t>(-2, "\xfe\xff\xff\xff\xff\xff\xff\xff"sv);
    value<std::uint16_t>(258, "\x02\x01"sv);
    value<double>(1, "\0\0\0\0\0\0\xf0\x3f"sv);
    value<bool>(true, "\x01"sv);
    value<lw::unit>({}, ""sv);
    value<std::string>("ann", "ann"sv);
    value<std::tuple<std::string, std::optional<std::uint16_t>, bool>>(
        {"ann", {}, true}, "\x03\0\0\0ann\x01\0\0\0\0\x01"sv);
    value<person>({"ann", {}, true}, "\x03\0\0\0ann\x01\0\0\0\0\x01"sv);
    value<std::pair<std::uint8_t, std::uint32_t>>({7, 8}, "\x07\x08\0\0\0"sv);
    value<std::tuple<std::string>>({"ann"}, "ann"sv);
    THROWS(lw::bad_format, lw::codec<bool>::take_value("\x02"));
    THROWS(lw::bad_format, lw::codec<std::string>::take_value("\xff"));
    THROWS(lw::bad_format, lw::codec<std::optional<bool>>::take_value("\x02\x01"));
    THROWS(lw::bad_format, lw::codec<person>::take_value("\x03\0\0\0an"sv));
    THROWS(lw::bad_format, lw::codec<person>::take_value("\xff\xff\xff\xff" "an"sv));
}

void descriptions_are_those_of_the_store()
{
    CHECK(description<long>() == "i64" && description<unsigned char>() == "u8");
    CHECK(description<compound>() == "(str,opt(i64),(opt(u32),bytes),bool)");
    CHECK(description<std::tuple<std::uint64_t>>() == "(u64,)");
    CHECK((description<std::pair<lw::uuid, std::array<std::byte, 16>>>() == "(uuid,bytes(16))"));
    CHECK(description<person>() == "{name:str,age:opt(u16),is_member:bool}");
    // The store accepts them all.
    lw::table<compound, person> named("named");
    lw::table<std::tuple<std::uint64_t>, lw::unit> single("single");
    THROWS(lw::misuse, lw::table<std::string, std::string>(std::string("a\0b", 3)));
    THROWS(lw::too_long, lw::table<std::string, std::string>(std::string(901, 'a')));
}

}  // namespace

int main()
{
    numbers_are_those_of_the_library();
    numbers_that_do_not_fit_are_errors();
    texts_are_those_of_the_library();
    tuples_are_those_of_the_library_and_keep_their_order();
    values_have_the_bytes_of_rust();
    descriptions_are_those_of_the_store();
}
