// Tables: a name, and the types of keys and values.
#ifndef LATCHWORK_TABLE_HPP
#define LATCHWORK_TABLE_HPP

#include <memory>
#include <string>

#include "compound.hpp"
#include "error.hpp"

namespace lw {

// A key and a value as their bytes are stored, of any table: for tools. Nothing is recorded or
// compared; a program that writes must write what the types of the table allow.
struct raw {};

template <>
struct codec<raw> {
    using arg = bytes_view;
    static constexpr std::size_t width = no_width;

    static void put_key(arg key, bool, writer &to) { to.append(key); }
    static bytes take_key(reader &from, bool) { return from.take(from.rest().size()).copy(); }
    static bytes_view direct(arg value) { return value; }
    static void put_value(arg value, writer &to) { to.append(value); }
    static bytes take_value(bytes_view from) { return from.copy(); }
};

namespace detail {

using table_handle = std::unique_ptr<lw_table, free_with<lw_table_free>>;

// The C++ type of a key or value that was read.
template <class T>
struct owned_of {
    using type = T;
};
template <>
struct owned_of<raw> {
    using type = bytes;
};

}  // namespace detail

template <class T>
using owned = typename detail::owned_of<T>::type;

// A table of keys K and values V. It belongs to no store and holds nothing of one: one object, such
// as a constant at namespace scope, serves all stores and threads of a program, also after a fork.
// The first write creates the table in the store and records its types. From then on a program in
// any language that names the table with other types gets lw::bad_table_type.
//
// Create it once: the process keeps each name until it exits.
template <class K, class V>
class table {
public:
    using key_type = K;
    using value_type = V;
    using key_arg = typename codec<K>::arg;
    using value_arg = typename codec<V>::arg;

    // `version` is the schema version, which a program raises with the meaning of its records.
    // Throws lw::too_long for a name of more than 900 bytes, lw::misuse for text that is not UTF-8.
    explicit table(const std::string &name, std::uint32_t version = 0)
    {
        static_assert(std::is_same_v<K, raw> == std::is_same_v<V, raw>,
                      "either both keys and values are raw, or neither");
        std::string key, value;
        lw_table_options options = LW_TABLE_OPTIONS_INIT;
        if constexpr (!std::is_same_v<K, raw>) {
            codec<K>::describe(key);
            codec<V>::describe(value);
            options.key_type = key.c_str();
            options.value_type = value.c_str();
        }
        options.version = version;
        if (name.find('\0') != name.npos) throw misuse("the name of a table contains a zero");
        lw_table *made = nullptr;
        detail::call(lw_table_new, name.c_str(), &options, &made);
        handle_.reset(made);
    }

    std::string name() const
    {
        std::size_t length = 0;
        const char *text = lw_table_name(handle_.get(), &length);
        return text ? std::string(text, length) : std::string();
    }
    const lw_table *get() const noexcept { return handle_.get(); }

private:
    detail::table_handle handle_;
};

// A table as bytes, whatever its types are.
using raw_table = table<raw, raw>;

namespace detail {

// The bytes of a key for the time of a call.
template <class K>
class encoded_key {
public:
    explicit encoded_key(const typename codec<K>::arg &key) { encode_key<K>(key, to_); }
    const std::byte *data() const { return to_.data(); }
    std::size_t size() const { return to_.size(); }

private:
    writer to_;
};

template <class K>
owned<K> key_of(bytes_view bytes)
{
    if constexpr (std::is_same_v<K, raw>) {
        return bytes.copy();
    } else {
        return decode_key<K>(bytes);
    }
}

}  // namespace detail
}  // namespace lw

#endif
