// How optional, tuple, pair and structs are stored.
#ifndef LATCHWORK_COMPOUND_HPP
#define LATCHWORK_COMPOUND_HPP

#include <optional>
#include <tuple>
#include <utility>

#include "codec.hpp"

namespace lw {

// A field of a struct: the name that the store records, and the member.
template <class Struct, class Member>
struct field {
    const char *name;
    Member Struct::*member;

    constexpr field(const char *name, Member Struct::*member) : name(name), member(member) {}
};

// Makes a struct a type of keys and values: the same as a derived one in Rust. Specialise it with a
// tuple of its fields in the order in which they are stored.
//
//     struct order { std::string what; std::uint32_t count; };
//     template <> struct lw::fields<order> {
//         static constexpr auto of =
//             std::tuple(lw::field("what", &order::what), lw::field("count", &order::count));
//     };
template <class T>
struct fields;

namespace detail {

template <class T, class = void>
inline constexpr bool has_fields = false;
template <class T>
inline constexpr bool has_fields<T, std::void_t<decltype(fields<T>::of)>> = true;

template <class T, class = void>
inline constexpr std::size_t width_of = no_width;
template <class T>
inline constexpr std::size_t width_of<T, std::void_t<decltype(codec<T>::width)>> = codec<T>::width;

// Properties of all parts of a tuple, pair or struct.
template <class... Parts>
struct parts {
    static constexpr std::size_t width = ((width_of<Parts> == no_width) || ...)
                                             ? no_width
                                             : (width_of<Parts> + ... + 0);

    // Appends a part of a value: behind its length if that is needed to find the next one.
    template <class Part>
    static void put_value(typename codec<Part>::arg part, bool last, writer &to)
    {
        if (last || codec<Part>::width != no_width) return codec<Part>::put_value(part, to);
        std::size_t at = to.size();
        to.append({"\0\0\0", 4});
        codec<Part>::put_value(part, to);
        // A value that does not fit is longer than the store takes, which refuses it.
        std::size_t length = to.size() - at - 4;
        to.length_at(at, static_cast<std::uint32_t>(length > 0xffffffff ? 0xffffffff : length));
    }
    template <class Part>
    static Part take_value(reader &from, std::size_t &left)
    {
        if (--left == 0) return codec<Part>::take_value(from.rest());
        std::size_t length = codec<Part>::width;
        if (length == no_width) length = take_little<std::uint32_t>(from.take(4));
        return codec<Part>::take_value(from.take(length));
    }
    static void check(bytes_view from)
    {
        if (width != no_width && from.size() != width) bad_width(from.size(), width);
    }

    static void put_keys(bool nested, writer &to, typename codec<Parts>::arg... keys)
    {
        (codec<Parts>::put_key(keys, nested, to), ...);
    }
    static std::tuple<Parts...> take_keys(reader &from, bool nested)
    {
        // The elements of a list in braces are evaluated in order.
        return std::tuple<Parts...>{codec<Parts>::take_key(from, nested)...};
    }
    static void put_values(writer &to, typename codec<Parts>::arg... values)
    {
        std::size_t left = sizeof...(Parts);
        (put_value<Parts>(values, --left == 0, to), ...);
    }
    static std::tuple<Parts...> take_values(bytes_view bytes)
    {
        check(bytes);
        reader from(bytes);
        std::size_t left = sizeof...(Parts);
        return std::tuple<Parts...>{take_value<Parts>(from, left)...};
    }
    static void describe(std::string &to)
    {
        to += '(';
        const char *between = "";
        ((to += between, codec<Parts>::describe(to), between = ","), ...);
        to += sizeof...(Parts) == 1 ? ",)" : ")";
    }
    // A tuple inside a key is a part of it between a code and an end.
    template <class Put>
    static void put_nested(writer &to, Put put)
    {
        to.byte(code::nested);
        put();
        to.byte(0);
    }
    static std::tuple<Parts...> take_nested(reader &from)
    {
        from.expect(code::nested);
        auto taken = take_keys(from, true);
        from.expect(0);
        return taken;
    }
};

}  // namespace detail

template <class T>
struct codec<std::optional<T>> {
    using arg = std::optional<std::decay_t<typename codec<T>::arg>>;
    static constexpr std::size_t width = no_width;

    static void describe(std::string &to)
    {
        to += "opt(";
        codec<T>::describe(to);
        to += ')';
    }
    static void put_key(const arg &key, bool nested, writer &to)
    {
        if (key) return codec<T>::put_key(*key, nested, to);
        to.byte(detail::code::null);
        if (nested) to.byte(detail::code::escape);
    }
    static std::optional<T> take_key(reader &from, bool nested)
    {
        if (!from.next_is(detail::code::null)) return codec<T>::take_key(from, nested);
        from.byte();
        if (nested) from.expect(detail::code::escape);
        return std::nullopt;
    }
    static void put_value(const arg &value, writer &to)
    {
        to.byte(value ? 1 : 0);
        if (value) codec<T>::put_value(*value, to);
    }
    static std::optional<T> take_value(bytes_view bytes)
    {
        reader from(bytes);
        std::uint8_t is = from.byte();
        if (is > 1) throw bad_format("an option that begins with neither 0 nor 1");
        if (is == 1) return codec<T>::take_value(from.rest());
        if (!from.empty()) detail::bad_width(bytes.size(), 1);
        return std::nullopt;
    }
};

template <class... Parts>
struct codec<std::tuple<Parts...>> {
    static_assert(sizeof...(Parts) >= 1 && sizeof...(Parts) <= 6, "a tuple has 1 to 6 parts");
    using parts = detail::parts<Parts...>;
    using arg = std::tuple<std::decay_t<typename codec<Parts>::arg>...>;
    using owned = std::tuple<Parts...>;
    static constexpr std::size_t width = parts::width;

    static void describe(std::string &to) { parts::describe(to); }
    static void put_key(const arg &key, bool, writer &to)
    {
        parts::put_nested(to, [&] {
            std::apply([&](auto &...each) { parts::put_keys(true, to, each...); }, key);
        });
    }
    static owned take_key(reader &from, bool) { return parts::take_nested(from); }
    static void put_whole_key(const arg &key, writer &to)
    {
        std::apply([&](auto &...each) { parts::put_keys(false, to, each...); }, key);
    }
    static owned take_whole_key(reader &from) { return parts::take_keys(from, false); }
    static void put_value(const arg &value, writer &to)
    {
        std::apply([&](auto &...each) { parts::put_values(to, each...); }, value);
    }
    static owned take_value(bytes_view from) { return parts::take_values(from); }
};

template <class A, class B>
struct codec<std::pair<A, B>> {
    using same = codec<std::tuple<A, B>>;
    using arg = std::pair<std::decay_t<typename codec<A>::arg>, std::decay_t<typename codec<B>::arg>>;
    using owned = std::pair<A, B>;
    static constexpr std::size_t width = same::width;

    static void describe(std::string &to) { same::describe(to); }
    static void put_key(const arg &key, bool nested, writer &to) { same::put_key(key, nested, to); }
    static owned take_key(reader &from, bool nested) { return pair(same::take_key(from, nested)); }
    static void put_whole_key(const arg &key, writer &to) { same::put_whole_key(key, to); }
    static owned take_whole_key(reader &from) { return pair(same::take_whole_key(from)); }
    static void put_value(const arg &value, writer &to) { same::put_value(value, to); }
    static owned take_value(bytes_view from) { return pair(same::take_value(from)); }

private:
    static owned pair(std::tuple<A, B> &&of)
    {
        return {std::get<0>(std::move(of)), std::get<1>(std::move(of))};
    }
};

template <class T>
struct codec<T, std::enable_if_t<detail::has_fields<T>>> {
private:
    template <class... Fields>
    static auto types_of(const std::tuple<Fields...> &)
        -> detail::parts<std::decay_t<decltype(std::declval<T &>().*(std::declval<Fields>().member))>...>;
    using parts = decltype(types_of(fields<T>::of));

    template <class Tuple>
    static T made(Tuple &&from)
    {
        return made(from, std::make_index_sequence<std::tuple_size_v<Tuple>>());
    }
    template <class Tuple, std::size_t... At>
    static T made(Tuple &from, std::index_sequence<At...>)
    {
        T made{};
        ((made.*(std::get<At>(fields<T>::of).member) = std::move(std::get<At>(from))), ...);
        return made;
    }
    // Calls a function with all members.
    template <class Put>
    static void with(const T &of, Put put)
    {
        std::apply([&](const auto &...field) { put(of.*(field.member)...); }, fields<T>::of);
    }

public:
    using arg = const T &;
    static constexpr std::size_t width = parts::width;

    static void describe(std::string &to)
    {
        to += '{';
        std::apply(
            [&](const auto &...field) {
                const char *between = "";
                auto one = [&](const auto &field) {
                    to += between;
                    to += field.name;
                    to += ':';
                    codec<std::decay_t<decltype(std::declval<T &>().*(field.member))>>::describe(to);
                    between = ",";
                };
                (one(field), ...);
            },
            fields<T>::of);
        to += '}';
    }
    static void put_key(arg key, bool, writer &to)
    {
        parts::put_nested(to, [&] {
            with(key, [&](const auto &...each) { parts::put_keys(true, to, each...); });
        });
    }
    static T take_key(reader &from, bool) { return made(parts::take_nested(from)); }
    static void put_whole_key(arg key, writer &to)
    {
        with(key, [&](const auto &...each) { parts::put_keys(false, to, each...); });
    }
    static T take_whole_key(reader &from) { return made(parts::take_keys(from, false)); }
    static void put_value(arg value, writer &to)
    {
        with(value, [&](const auto &...each) { parts::put_values(to, each...); });
    }
    static T take_value(bytes_view from) { return made(parts::take_values(from)); }
};

namespace detail {

// A tuple as the whole key has no code around its parts.
template <class T, class = void>
inline constexpr bool has_whole_key = false;
template <class T>
inline constexpr bool
    has_whole_key<T, std::void_t<decltype(codec<T>::take_whole_key(std::declval<reader &>()))>> =
        true;

template <class K>
void encode_key(const typename codec<K>::arg &key, writer &to)
{
    if constexpr (has_whole_key<K>) {
        codec<K>::put_whole_key(key, to);
    } else {
        codec<K>::put_key(key, false, to);
    }
}

template <class K>
K decode_key(bytes_view bytes)
{
    reader from(bytes);
    auto end = [&](K key) {
        if (!from.empty()) throw bad_format("bytes follow the key");
        return key;
    };
    if constexpr (has_whole_key<K>) {
        return end(codec<K>::take_whole_key(from));
    } else {
        return end(codec<K>::take_key(from, false));
    }
}

// The bytes of a value for the time of a call.
template <class V, class = void>
class encoded_value {
public:
    explicit encoded_value(const typename codec<V>::arg &value) { codec<V>::put_value(value, to_); }
    bytes_view view() const { return to_.view(); }

private:
    writer to_;
};

template <class V>
class encoded_value<V, std::void_t<decltype(codec<V>::direct(std::declval<typename codec<V>::arg>()))>> {
public:
    explicit encoded_value(typename codec<V>::arg value) : view_(codec<V>::direct(value)) {}
    bytes_view view() const { return view_; }

private:
    bytes_view view_;
};

}  // namespace detail
}  // namespace lw

#endif
