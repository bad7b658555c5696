// Common parts of the C++ tests.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <latchwork.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#define CHECK(is)                                                                      \
    do {                                                                               \
        if (!(is)) {                                                                   \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #is);      \
            std::_Exit(1);                                                             \
        }                                                                              \
    } while (0)

// The statement throws this exception, which is returned.
#define THROWS(type, ...)                                                              \
    [&]() -> type {                                                                    \
        try {                                                                          \
            __VA_ARGS__;                                                               \
        } catch (const type &thrown) {                                                 \
            return thrown;                                                             \
        } catch (const std::exception &other) {                                        \
            std::fprintf(stderr, "%s:%d: not a " #type ": %s\n", __FILE__, __LINE__,   \
                         other.what());                                                \
            std::_Exit(1);                                                             \
        }                                                                              \
        std::fprintf(stderr, "%s:%d: no " #type ": " #__VA_ARGS__ "\n", __FILE__,      \
                     __LINE__);                                                        \
        std::_Exit(1);                                                                 \
    }()

// A folder for one part of a test, that does not exist yet.
inline std::string fresh(const char *name)
{
    std::string path = std::string(std::getenv("TEST_FOLDER") ? std::getenv("TEST_FOLDER") : ".") +
                       "/" + name;
    std::filesystem::remove_all(path);
    return path;
}

inline lw::options small()
{
    lw::options options;
    options.small = true;
    options.mode = lw::mode::none;
    return options;
}

#endif
