// Latchwork for C++17 and later: a store that several processes write at the same time, and a lock
// manager. The headers contain no compiled part; link with the C library: `-llatchwork`.
//
//     lw::store store("visits");
//     const lw::table<std::string, std::uint64_t> visits("visits");
//     store.write([&](lw::transaction &tx) {
//         tx.put(visits, "ann", tx.get_for_update(visits, "ann").value_or(0) + 1);
//     });
//
// | header                  | contents                                                      |
// |-------------------------|---------------------------------------------------------------|
// | latchwork/bytes.hpp     | lw::bytes, lw::bytes_view, lw::uuid                           |
// | latchwork/error.hpp     | lw::error and one exception class for each code               |
// | latchwork/codec.hpp     | how C++ types are stored: numbers, text, bytes                |
// | latchwork/compound.hpp  | the same for optional, tuple, pair and structs                |
// | latchwork/table.hpp     | lw::table, lw::raw_table                                      |
// | latchwork/range.hpp     | lw::range, lw::cursor                                         |
// | latchwork/transaction.hpp | lw::snapshot, lw::transaction, lw::manual_transaction       |
// | latchwork/store.hpp     | lw::store, lw::sequence                                       |
// | latchwork/locks.hpp     | lw::lock_manager, lw::owner                                   |
//
// The guide is docs/cpp.md. Exceptions must be enabled.
#ifndef LATCHWORK_HPP
#define LATCHWORK_HPP

#include "latchwork/bytes.hpp"
#include "latchwork/codec.hpp"
#include "latchwork/compound.hpp"
#include "latchwork/error.hpp"
#include "latchwork/locks.hpp"
#include "latchwork/range.hpp"
#include "latchwork/store.hpp"
#include "latchwork/table.hpp"
#include "latchwork/transaction.hpp"

#endif
