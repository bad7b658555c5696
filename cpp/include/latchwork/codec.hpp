// How C++ types are stored as keys and values: numbers, text and bytes.
//
// | C++                                   | in a store        | key | value |
// |---------------------------------------|-------------------|-----|-------|
// | integers of 8 to 128 bits             | u8 .. i128        | yes | yes   |
// | float, double, bool                   | f32, f64, bool    | yes | yes   |
// | std::string                           | str (UTF-8)       | yes | yes   |
// | lw::bytes                             | bytes             | yes | yes   |
// | std::array<std::byte or uint8_t, N>   | bytes(N)          | yes | yes   |
// | lw::uuid                              | uuid              | yes | no    |
// | lw::unit                              | ()                | no  | yes   |
// | std::optional<T>                      | opt(T)            | yes | yes   |
// | std::tuple<..>, std::pair             | (A,B), (A,)       | yes | yes   |
// | a struct with lw::fields              | {a:A,b:B}         | yes | yes   |
//
// Keys are FoundationDB's tuple codes: the order of the bytes is the order of the keys. Values of
// numbers are little-endian. The encoding is that of the Rust crate (docs/types.md). It is written here
// a second time because lw_key_encode costs 700 instructions more for each key, a third of a `get`
// (scripts/cpp count). The test cpp/tests/codec.cpp compares both for random keys.
#ifndef LATCHWORK_CODEC_HPP
#define LATCHWORK_CODEC_HPP

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "bytes.hpp"
#include "error.hpp"

namespace lw {

// Reads values from the front of stored bytes.
class reader {
public:
    explicit reader(bytes_view from) noexcept : from_(from) {}

    bool empty() const noexcept { return from_.empty(); }
    bytes_view rest() const noexcept { return from_; }
    bool next_is(std::uint8_t code) const { return !empty() && from_[0] == code; }
    std::uint8_t byte() { return take(1)[0]; }
    bytes_view take(std::size_t count)
    {
        if (count > from_.size()) throw bad_format("the bytes of a record end too early");
        bytes_view taken(from_.data(), count);
        from_ = bytes_view(from_.data() + count, from_.size() - count);
        return taken;
    }
    void expect(std::uint8_t code)
    {
        if (byte() != code) throw bad_format("a part of a key is of another type");
    }

private:
    bytes_view from_;
};

// The width of values whose number of bytes differs.
inline constexpr std::size_t no_width = std::numeric_limits<std::size_t>::max();

// How a type is stored. A program may specialise this for types of its own, in terms of another
// type or with `own(name)` as description; the rules are those of the trait `Key` in Rust.
//
//     using arg                                    what callers pass; cheap to copy
//     static void describe(std::string &to)        appends the description
//     static void put_key(arg, bool nested, writer &)      appends one part of a key
//     static T take_key(reader &, bool nested)             takes one part
//     static constexpr std::size_t width                   bytes of a value, or no_width
//     static void put_value(arg, writer &)
//     static T take_value(bytes_view)
template <class T, class Enable = void>
struct codec;

namespace detail {

// The codes of the parts of a key.
namespace code {
inline constexpr std::uint8_t null = 0x00, bytes = 0x01, text = 0x02, nested = 0x05, below = 0x0b,
                              zero = 0x14, above = 0x1d, f32 = 0x20, f64 = 0x21, no = 0x26,
                              yes = 0x27, uuid = 0x30, escape = 0xff;
}

#ifdef __SIZEOF_INT128__
__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;
#else
using int128 = std::int64_t;
using uint128 = std::uint64_t;
#endif

template <class T>
inline constexpr bool is_wide = sizeof(int128) == 16 &&
                                (std::is_same_v<T, int128> || std::is_same_v<T, uint128>);

template <class T>
inline constexpr bool is_character =
    std::is_same_v<T, char> || std::is_same_v<T, wchar_t> || std::is_same_v<T, char16_t> ||
#ifdef __cpp_char8_t
    std::is_same_v<T, char8_t> ||
#endif
    std::is_same_v<T, char32_t>;

template <class T>
inline constexpr bool is_integer =
    is_wide<T> || (std::is_integral_v<T> && !std::is_same_v<T, bool> && !is_character<T>);

template <class T>
inline constexpr bool is_byte = std::is_same_v<T, std::byte> || std::is_same_v<T, std::uint8_t>;

[[noreturn]] inline void bad_width(std::size_t found, std::size_t wanted)
{
    throw bad_format("a value of " + std::to_string(found) + " bytes, and its type has " +
                     std::to_string(wanted));
}

// Appends a number's bytes, in the order of the machine (little-endian) or reversed.
template <class T>
void put_little(T number, writer &to)
{
    std::uint8_t bytes[sizeof(T)];
    for (std::size_t at = 0; at < sizeof(T); at++) {
        bytes[at] = static_cast<std::uint8_t>(number);
        number = static_cast<T>(static_cast<T>(number >> 7) >> 1);
    }
    to.append({bytes, sizeof(T)});
}

template <class T>
T take_little(bytes_view from)
{
    if (from.size() != sizeof(T)) bad_width(from.size(), sizeof(T));
    T number = 0;
    for (std::size_t at = sizeof(T); at-- > 0;)
        number = static_cast<T>(static_cast<T>(static_cast<T>(number << 7) << 1) | from[at]);
    return number;
}

// Returns whether the text is UTF-8 as RFC 3629 defines it.
inline bool is_utf8(std::string_view text)
{
    auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
    for (std::size_t i = 0; i < text.size();) {
        std::uint8_t first = at(i);
        std::size_t more = first < 0x80 ? 0 : first < 0xc2 ? 9 : first < 0xe0 ? 1 : first < 0xf0 ? 2
                           : first < 0xf5 ? 3 : 9;
        if (more >= text.size() - i) return false;
        // The second byte has a narrower range after some first bytes.
        std::uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        std::uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        for (std::size_t k = 1; k <= more; k++) {
            if (at(i + k) < low || at(i + k) > high) return false;
            low = 0x80, high = 0xbf;
        }
        i += 1 + more;
    }
    return true;
}

inline std::string_view checked_text(std::string_view text)
{
    if (!is_utf8(text)) throw bad_format("a text is not UTF-8: use lw::bytes for other bytes");
    return text;
}

// Appends bytes between a code and an end; a zero byte among them is escaped.
inline void put_escaped(std::uint8_t kind, bytes_view some, writer &to)
{
    to.byte(kind);
    std::string_view text = some.text();
    for (std::size_t zero; (zero = text.find('\0')) != text.npos; text.remove_prefix(zero + 1)) {
        to.append(text.substr(0, zero + 1));
        to.byte(code::escape);
    }
    to.append(text);
    to.byte(0);
}

// Takes what `put_escaped` has appended; `Owned` is a string or a vector of bytes.
template <class Owned>
Owned take_escaped(std::uint8_t kind, reader &from)
{
    from.expect(kind);
    Owned taken;
    for (;;) {
        std::size_t end = from.rest().text().find('\0');
        if (end == std::string_view::npos) throw bad_format("a text of a key has no end");
        auto some = from.take(end + 1);
        bool escaped = from.next_is(code::escape);
        auto first = reinterpret_cast<const typename Owned::value_type *>(some.data());
        taken.insert(taken.end(), first, first + end + (escaped ? 1 : 0));
        if (!escaped) return taken;
        from.byte();
    }
}

inline std::size_t significant(uint128 magnitude)
{
    std::size_t length = 0;
    for (; magnitude != 0; magnitude >>= 8) length++;
    return length;
}

// Appends an integer: its length in the code, and its magnitude, big-endian; the complement of
// both if it is below zero.
inline void put_integer(uint128 magnitude, bool negative, writer &to)
{
    std::size_t length = significant(magnitude);
    std::uint8_t flip = negative ? 0xff : 0, bytes[18], *at = bytes;
    auto short_length = static_cast<std::uint8_t>(length);
    if (length <= 8) {
        *at++ = static_cast<std::uint8_t>(negative ? code::zero - length : code::zero + length);
    } else {
        *at++ = negative ? code::below : code::above;
        *at++ = short_length ^ flip;
    }
    for (std::size_t byte = length; byte-- > 0;)
        *at++ = static_cast<std::uint8_t>(magnitude >> (8 * byte)) ^ flip;
    to.append({bytes, static_cast<std::size_t>(at - bytes)});
}

inline uint128 take_integer(reader &from, bool &negative)
{
    std::uint8_t first = from.byte();
    std::size_t length;
    if (first >= 0x0c && first <= 0x1c) {
        negative = first < code::zero;
        length = negative ? code::zero - first : first - code::zero;
    } else if (first == code::below || first == code::above) {
        negative = first == code::below;
        length = from.byte() ^ (negative ? 0xff : 0);
        if (length < 9 || length > sizeof(uint128))
            throw bad_format("an integer of a key has an impossible length");
    } else {
        throw bad_format("a part of a key is of another type");
    }
    uint128 magnitude = 0;
    for (std::byte byte : from.take(length)) {
        auto bits = std::to_integer<std::uint8_t>(byte);
        magnitude = static_cast<uint128>(magnitude << 8) |
                    static_cast<std::uint8_t>(negative ? ~bits : bits);
    }
    if (significant(magnitude) != length)
        throw bad_format("an integer of a key is written in too many bytes");
    return magnitude;
}

// A type that is passed and stored as a value of fixed width.
template <class T>
struct plain {
    using arg = T;
    static constexpr std::size_t width = sizeof(T);
};

}  // namespace detail

template <class T>
struct codec<T, std::enable_if_t<detail::is_integer<T>>> : detail::plain<T> {
    static constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0);

    static void describe(std::string &to)
    {
        to += is_signed ? 'i' : 'u';
        to += std::to_string(8 * sizeof(T));
    }
    static void put_key(T key, bool, writer &to)
    {
        bool negative = is_signed && key < static_cast<T>(0);
        auto number = static_cast<detail::uint128>(key);
        detail::put_integer(negative ? ~number + 1 : number, negative, to);
    }
    static T take_key(reader &from, bool)
    {
        bool negative = false;
        detail::uint128 magnitude = detail::take_integer(from, negative);
        constexpr unsigned bits = 8 * sizeof(T) - (is_signed ? 1 : 0);
        // The smallest number of a signed type has no positive counterpart.
        constexpr auto most = static_cast<detail::uint128>(static_cast<detail::uint128>(-1) >>
                                                           (8 * sizeof(detail::uint128) - bits));
        if (negative ? !is_signed || magnitude > most + 1 : magnitude > most)
            throw bad_format("an integer of a key does not fit into its type");
        return static_cast<T>(negative ? ~magnitude + 1 : magnitude);
    }
    static void put_value(T value, writer &to)
    {
        if constexpr (is_signed && !detail::is_wide<T>) {
            detail::put_little(static_cast<std::make_unsigned_t<T>>(value), to);
        } else {
            detail::put_little(static_cast<std::conditional_t<is_signed, detail::uint128, T>>(value),
                               to);
        }
    }
    static T take_value(bytes_view from)
    {
        if constexpr (is_signed && !detail::is_wide<T>) {
            return static_cast<T>(detail::take_little<std::make_unsigned_t<T>>(from));
        } else {
            using same = std::conditional_t<is_signed, detail::uint128, T>;
            return static_cast<T>(detail::take_little<same>(from));
        }
    }
};

namespace detail {

// Floats are in the order of IEEE 754's totalOrder: -0.0 and 0.0 are two keys.
template <class T, class Bits, std::uint8_t Code>
struct floating : plain<T> {
    static constexpr Bits sign = static_cast<Bits>(1) << (8 * sizeof(Bits) - 1);

    static void describe(std::string &to) { to += sizeof(T) == 4 ? "f32" : "f64"; }
    static void put_key(T key, bool, writer &to)
    {
        Bits bits = bits_of(key);
        bits = (bits & sign) == 0 ? bits | sign : static_cast<Bits>(~bits);
        to.byte(Code);
        for (std::size_t byte = sizeof(Bits); byte-- > 0;)
            to.byte(static_cast<std::uint8_t>(bits >> (8 * byte)));
    }
    static T take_key(reader &from, bool)
    {
        from.expect(Code);
        Bits bits = 0;
        for (std::byte byte : from.take(sizeof(Bits)))
            bits = static_cast<Bits>(bits << 8) | std::to_integer<Bits>(byte);
        return of_bits((bits & sign) == 0 ? static_cast<Bits>(~bits) : bits ^ sign);
    }
    static void put_value(T value, writer &to) { put_little(bits_of(value), to); }
    static T take_value(bytes_view from) { return of_bits(take_little<Bits>(from)); }

private:
    static Bits bits_of(T number)
    {
        Bits bits;
        std::memcpy(&bits, &number, sizeof bits);
        return bits;
    }
    static T of_bits(Bits bits)
    {
        T number;
        std::memcpy(&number, &bits, sizeof bits);
        return number;
    }
};

}  // namespace detail

template <>
struct codec<float> : detail::floating<float, std::uint32_t, detail::code::f32> {};
template <>
struct codec<double> : detail::floating<double, std::uint64_t, detail::code::f64> {};

template <>
struct codec<bool> : detail::plain<bool> {
    static void describe(std::string &to) { to += "bool"; }
    static void put_key(bool key, bool, writer &to)
    {
        to.byte(key ? detail::code::yes : detail::code::no);
    }
    static bool take_key(reader &from, bool)
    {
        std::uint8_t found = from.byte();
        if (found != detail::code::yes && found != detail::code::no)
            throw bad_format("a part of a key is of another type");
        return found == detail::code::yes;
    }
    static void put_value(bool value, writer &to) { to.byte(value ? 1 : 0); }
    static bool take_value(bytes_view from)
    {
        if (from.size() != 1) detail::bad_width(from.size(), 1);
        if (from[0] > 1) throw bad_format("a boolean that is neither 0 nor 1");
        return from[0] == 1;
    }
};

template <>
struct codec<std::string> {
    using arg = std::string_view;
    static constexpr std::size_t width = no_width;

    static void describe(std::string &to) { to += "str"; }
    static void put_key(arg key, bool, writer &to)
    {
        detail::put_escaped(detail::code::text, detail::checked_text(key), to);
    }
    static std::string take_key(reader &from, bool)
    {
        auto key = detail::take_escaped<std::string>(detail::code::text, from);
        detail::checked_text(key);
        return key;
    }
    // A value that is stored as it lies in memory is not copied.
    static bytes_view direct(arg value) { return detail::checked_text(value); }
    static void put_value(arg value, writer &to) { to.append(direct(value)); }
    static std::string take_value(bytes_view from)
    {
        return std::string(detail::checked_text(from.text()));
    }
};

template <>
struct codec<bytes> {
    using arg = bytes_view;
    static constexpr std::size_t width = no_width;

    static void describe(std::string &to) { to += "bytes"; }
    static void put_key(arg key, bool, writer &to)
    {
        detail::put_escaped(detail::code::bytes, key, to);
    }
    static bytes take_key(reader &from, bool)
    {
        return detail::take_escaped<bytes>(detail::code::bytes, from);
    }
    static bytes_view direct(arg value) { return value; }
    static void put_value(arg value, writer &to) { to.append(value); }
    static bytes take_value(bytes_view from) { return from.copy(); }
};

template <class Byte, std::size_t N>
struct codec<std::array<Byte, N>, std::enable_if_t<detail::is_byte<Byte>>> {
    using arg = const std::array<Byte, N> &;
    using owned = std::array<Byte, N>;
    static constexpr std::size_t width = N;

    static void describe(std::string &to) { to += "bytes(" + std::to_string(N) + ")"; }
    static void put_key(arg key, bool, writer &to)
    {
        detail::put_escaped(detail::code::bytes, key, to);
    }
    static owned take_key(reader &from, bool)
    {
        return take_value(detail::take_escaped<bytes>(detail::code::bytes, from));
    }
    static void put_value(arg value, writer &to) { to.append(value); }
    static owned take_value(bytes_view from)
    {
        if (from.size() != N) detail::bad_width(from.size(), N);
        owned value;
        if (N != 0) std::memcpy(value.data(), from.data(), N);
        return value;
    }
};

template <>
struct codec<uuid> {
    using arg = const uuid &;

    static void describe(std::string &to) { to += "uuid"; }
    static void put_key(arg key, bool, writer &to)
    {
        to.byte(detail::code::uuid);
        to.append(key.value);
    }
    static uuid take_key(reader &from, bool)
    {
        from.expect(detail::code::uuid);
        uuid key;
        std::memcpy(key.value.data(), from.take(16).data(), 16);
        return key;
    }
};

template <>
struct codec<unit> {
    using arg = unit;
    static constexpr std::size_t width = 0;

    static void describe(std::string &to) { to += "()"; }
    static void put_value(unit, writer &) {}
    static unit take_value(bytes_view from)
    {
        if (!from.empty()) detail::bad_width(from.size(), 0);
        return {};
    }
};

}  // namespace lw

#endif
