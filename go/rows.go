package latchwork

/*
#include <latchwork.h>

static int go_cursor(lw_txn *tx, lw_snapshot *snapshot, const lw_table *table, const void *from,
                     size_t from_len, const void *to, size_t to_len, uint32_t flags, uint64_t limit,
                     lw_cursor **cursor, lw_error **error)
{
    lw_range range = LW_RANGE_INIT;
    range.from = from;
    range.from_len = from_len;
    range.to = to;
    range.to_len = to_len;
    range.flags = flags;
    range.limit = limit;
    return snapshot ? lw_snapshot_cursor(snapshot, table, &range, cursor, error)
                    : lw_txn_cursor(tx, table, &range, cursor, error);
}
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// A Range is a range of keys. The zero value is all keys.
type Range struct {
	// The first key, and the one before which the range ends; nil is the end of the table.
	From, To []byte
	// The range begins behind From; it includes To.
	FromExcluded, ToIncluded bool
	// All keys that begin with the parts of From, which Key has made; To is nil.
	Prefix bool
	// From the last record to the first.
	Reverse bool
	// At most this many records; 0 is no limit.
	Limit uint64
}

// Rows are the records of a range, one at a time:
//
//	rows, err := snapshot.Rows(table, latchwork.Range{})
//	defer rows.Close()
//	for rows.Next() {
//		use(rows.Key(), rows.Value())
//	}
//	return rows.Err()
//
// They end with their snapshot or transaction.
type Rows struct {
	c     *C.lw_cursor
	rows  []C.lw_row
	at    int
	count C.size_t
	err   error
}

// How many records are taken from a snapshot at a time. A transaction may write between two.
const ahead = 64

// Rows opens a range of the snapshot. The caller closes it.
func (s *Snapshot) Rows(table *Table, r Range) (*Rows, error) {
	return open(nil, s.c, table, r, ahead)
}

// Rows opens a range of the transaction, which locks what it gives out against other writers.
func (t *Tx) Rows(table *Table, r Range) (*Rows, error) { return open(t.c, nil, table, r, 1) }

func open(tx *C.lw_txn, snapshot *C.lw_snapshot, table *Table, r Range, most int) (*Rows, error) {
	var flags C.uint32_t
	for flag, is := range map[C.uint32_t]bool{
		C.LW_FROM_EXCLUDED: r.FromExcluded, C.LW_TO_INCLUDED: r.ToIncluded,
		C.LW_PREFIX_PARTS: r.Prefix, C.LW_REVERSE: r.Reverse,
	} {
		if is {
			flags |= flag
		}
	}
	rows := &Rows{rows: make([]C.lw_row, most)}
	var why *C.lw_error
	code := C.go_cursor(tx, snapshot, table.c, at(r.From), size(r.From), at(r.To), size(r.To), flags,
		C.uint64_t(r.Limit), &rows.c, &why)
	runtime.KeepAlive(table)
	if code != C.LW_OK {
		return nil, errorOf(code, why)
	}
	return rows, nil
}

// Next moves to the next record; it returns false at the end and after an error.
func (r *Rows) Next() bool {
	if r.at++; r.at < int(r.count) {
		return true
	}
	r.at = 0
	var why *C.lw_error
	code := C.lw_cursor_next_some(r.c, &r.rows[0], C.size_t(len(r.rows)), &r.count, &why)
	if code < 0 {
		r.count = 0
		r.err = errorOf(code, why)
	}
	return code == C.LW_OK
}

// Key returns a copy of the key of this record; nil if there is none.
func (r *Rows) Key() []byte {
	if r.at >= int(r.count) {
		return nil
	}
	row := r.rows[r.at]
	return C.GoBytes(unsafe.Pointer(row.key), C.int(row.key_len))
}

// Value returns a copy of the value of this record; nil if there is none.
func (r *Rows) Value() []byte {
	if r.at >= int(r.count) {
		return nil
	}
	row := r.rows[r.at]
	return C.GoBytes(unsafe.Pointer(row.value), C.int(row.value_len))
}

// Err returns the error that ended the rows; nil at the end of the range.
func (r *Rows) Err() error { return r.err }

// Close frees the rows. A second call does nothing.
func (r *Rows) Close() {
	C.lw_cursor_free(r.c)
	r.c, r.count = nil, 0
}
