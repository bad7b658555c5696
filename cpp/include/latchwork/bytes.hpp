// Bytes: owned, borrowed, and under construction.
#ifndef LATCHWORK_BYTES_HPP
#define LATCHWORK_BYTES_HPP

#include <latchwork.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lw {

// Owned bytes: the type of keys and values that is called "bytes" in a store.
using bytes = std::vector<std::byte>;

// Borrowed bytes. Text, vectors and arrays of bytes convert to it.
class bytes_view {
public:
    constexpr bytes_view() noexcept = default;
    bytes_view(const void *data, std::size_t size) noexcept
        : data_(static_cast<const std::byte *>(data)), size_(size) {}
    bytes_view(std::string_view text) noexcept : bytes_view(text.data(), text.size()) {}
    bytes_view(const std::string &text) noexcept : bytes_view(text.data(), text.size()) {}
    bytes_view(const char *text) noexcept : bytes_view(std::string_view(text)) {}
    bytes_view(const bytes &of) noexcept : bytes_view(of.data(), of.size()) {}
    bytes_view(const std::vector<std::uint8_t> &of) noexcept : bytes_view(of.data(), of.size()) {}
    template <std::size_t N>
    bytes_view(const std::array<std::byte, N> &of) noexcept : bytes_view(of.data(), N) {}
    template <std::size_t N>
    bytes_view(const std::array<std::uint8_t, N> &of) noexcept : bytes_view(of.data(), N) {}

    const std::byte *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    const std::byte *begin() const noexcept { return data_; }
    const std::byte *end() const noexcept { return data_ + size_; }
    std::uint8_t operator[](std::size_t at) const { return std::to_integer<std::uint8_t>(data_[at]); }

    // The same bytes as characters.
    std::string_view text() const noexcept
    {
        return {reinterpret_cast<const char *>(data_), size_};
    }
    bytes copy() const { return bytes(begin(), end()); }

    friend bool operator==(bytes_view a, bytes_view b) noexcept { return a.text() == b.text(); }
    friend bool operator!=(bytes_view a, bytes_view b) noexcept { return !(a == b); }

private:
    const std::byte *data_ = nullptr;
    std::size_t size_ = 0;
};

// A universally unique identifier, ordered by its bytes. A type of keys.
struct uuid {
    std::array<std::uint8_t, 16> value{};

    friend bool operator==(const uuid &a, const uuid &b) noexcept { return a.value == b.value; }
    friend bool operator!=(const uuid &a, const uuid &b) noexcept { return !(a == b); }
    friend bool operator<(const uuid &a, const uuid &b) noexcept { return a.value < b.value; }
};

// No value: the type of values that is called "()" in a store.
struct unit {
    friend bool operator==(unit, unit) noexcept { return true; }
    friend bool operator!=(unit, unit) noexcept { return false; }
};

// Bytes that grow; short ones need no allocation. For key and value types of a program's own.
class writer {
public:
    writer() = default;
    writer(const writer &) = delete;
    writer &operator=(const writer &) = delete;

    const std::byte *data() const noexcept { return long_.empty() ? short_ : long_.data(); }
    std::size_t size() const noexcept { return size_; }
    bytes_view view() const noexcept { return {data(), size_}; }

    void byte(std::uint8_t value) { *grow(1) = std::byte{value}; }
    void append(bytes_view some)
    {
        if (!some.empty()) std::memcpy(grow(some.size()), some.data(), some.size());
    }
    // Overwrites 4 bytes with a number, little-endian.
    void length_at(std::size_t at, std::uint32_t length)
    {
        std::byte *to = mutable_data() + at;
        for (int byte = 0; byte < 4; byte++) to[byte] = std::byte(length >> (8 * byte) & 0xff);
    }

private:
    static constexpr std::size_t inline_size = 120;

    std::byte *mutable_data() noexcept { return long_.empty() ? short_ : long_.data(); }
    std::byte *grow(std::size_t by)
    {
        std::size_t wanted = size_ + by;
        std::size_t room = long_.empty() ? inline_size : long_.size();
        if (wanted > room) {
            bytes larger(wanted + wanted / 2);
            if (size_ != 0) std::memcpy(larger.data(), data(), size_);
            long_.swap(larger);
        }
        std::byte *at = mutable_data() + size_;
        size_ = wanted;
        return at;
    }

    std::byte short_[inline_size];
    bytes long_;
    std::size_t size_ = 0;
};

namespace detail {

// A buffer of the C library.
class buffer {
public:
    buffer() noexcept = default;
    ~buffer() { lw_buf_free(&buf_); }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;

    lw_buf *get() noexcept { return &buf_; }
    bytes_view view() const noexcept { return {buf_.data, buf_.len}; }

private:
    lw_buf buf_ = LW_BUF_INIT;
};

// Frees an object of the C library with its function.
template <auto Free>
struct free_with {
    template <class T>
    void operator()(T *object) const noexcept
    {
        Free(object);
    }
};

}  // namespace detail
}  // namespace lw

#endif
