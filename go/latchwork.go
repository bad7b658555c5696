// Package latchwork is a store that several processes write at the same time and that survives the
// death of any of them. This is the Go binding of the C library.
//
//	store, err := latchwork.Open("visits", nil)
//	visits, err := latchwork.NewTable("visits", "str", "u64")
//	err = store.Write(func(tx *latchwork.Tx) error {
//		value, _, err := tx.GetForUpdate(visits, latchwork.Key("ann"))
//		if err != nil {
//			return err
//		}
//		count, err := latchwork.ToUint64(value)
//		if err != nil {
//			return err
//		}
//		return tx.Put(visits, latchwork.Key("ann"), latchwork.Uint64(count+1))
//	}, nil)
//
// A Store and a Table may be used by all goroutines at the same time. A Tx, a Snapshot and a Rows
// are used by one goroutine at a time; a second use at the same time returns ErrBusy. No Go
// function is called from C. The guide is docs/go.md.
package latchwork

/*
#cgo LDFLAGS: -llatchwork
#include <stdlib.h>
#include <latchwork.h>

// Structs that have pointers are made here: C code may not keep a pointer to a Go object that has
// one to another Go object.

static int go_open(const char *path, uint32_t flags, uint32_t mode, uint32_t period, lw_store **store,
                   lw_error **error)
{
    lw_options options = LW_OPTIONS_INIT;
    options.flags = flags;
    options.mode = mode;
    options.period_ms = period;
    return lw_open(path, &options, store, error);
}

static int go_table(const char *name, const char *key, const char *value, uint32_t version,
                    lw_table **table, lw_error **error)
{
    lw_table_options options = LW_TABLE_OPTIONS_INIT;
    options.key_type = key;
    options.value_type = value;
    options.version = version;
    return lw_table_new(name, &options, table, error);
}
*/
import "C"

import (
	"runtime"
	"time"
	"unsafe"
)

// A Mode says when a commit returns.
type Mode uint32

// The modes: see lw_mode in latchwork.h.
const (
	ModeDefault  Mode = C.LW_MODE_DEFAULT
	ModeFull     Mode = C.LW_MODE_FULL
	ModeWrite    Mode = C.LW_MODE_WRITE
	ModeNone     Mode = C.LW_MODE_NONE
	ModePeriodic Mode = C.LW_MODE_PERIODIC
)

// Options say how a store is opened.
type Options struct {
	// The store must exist.
	NoCreate bool
	// The store is only read.
	ReadOnly bool
	// Sizes for a small store or a small machine.
	Small bool
	// When commits return, unless a transaction says otherwise.
	Mode Mode
	// The period of ModePeriodic.
	Period time.Duration
}

// A Store is an open store. Open each store once in a process.
type Store struct{ c *C.lw_store }

// Open opens the store in a folder: it creates it, joins the processes that have it open, or
// recovers it after a crash. The options may be nil.
func Open(path string, options *Options) (*Store, error) {
	var o Options
	if options != nil {
		o = *options
	}
	var flags C.uint32_t
	for flag, is := range map[C.uint32_t]bool{
		C.LW_NO_CREATE: o.NoCreate, C.LW_READ_ONLY_STORE: o.ReadOnly, C.LW_SMALL: o.Small,
	} {
		if is {
			flags |= flag
		}
	}
	text, free, err := cString(path)
	if err != nil {
		return nil, err
	}
	defer free()
	var store *C.lw_store
	var why *C.lw_error
	code := C.go_open(text, flags, C.uint32_t(o.Mode), C.uint32_t(o.Period.Milliseconds()), &store, &why)
	if code != C.LW_OK {
		return nil, errorOf(code, why)
	}
	return &Store{store}, nil
}

// Close closes the store. Open transactions, snapshots and rows can still be used, and the store is
// closed when the last of them has ended. While a call of another goroutine uses the store it stays
// open, and Close returns ErrBusy; no call may begin concurrently with Close.
func (s *Store) Close() error {
	var why *C.lw_error
	code := C.lw_close(s.c, &why)
	if code != C.LW_BUSY {
		s.c = nil
	}
	return errorOf(code, why)
}

// Sync waits until all that any process has committed is durable.
func (s *Store) Sync() error {
	var why *C.lw_error
	return errorOf(C.lw_sync(s.c, &why), why)
}

// Stats returns counts and sizes of the store, of all processes, as JSON.
func (s *Store) Stats() ([]byte, error) {
	var buf buffer
	defer buf.free()
	var why *C.lw_error
	code := C.lw_stats(s.c, &buf.c, &why)
	return buf.bytes(), errorOf(code, why)
}

// Backup copies the store into a folder that does not exist yet, while others write.
func (s *Store) Backup(path string) error {
	text, free, err := cString(path)
	if err != nil {
		return err
	}
	defer free()
	var why *C.lw_error
	return errorOf(C.lw_backup(s.c, text, &why), why)
}

// Sequence gives out the next number of a sequence, which no other caller gets in any process.
func (s *Store) Sequence(name string) (uint64, error) {
	text, free, err := cString(name)
	if err != nil {
		return 0, err
	}
	defer free()
	var number C.uint64_t
	var why *C.lw_error
	code := C.lw_sequence_next(s.c, text, 0, &number, &why)
	return uint64(number), errorOf(code, why)
}

// A Table is a name, and the types of its keys and values. It belongs to no store: one variable of
// a package serves all stores and goroutines.
type Table struct{ c *C.lw_table }

// NewTable names a table. The types are those of docs/types.md: "bytes", "str", "u64", "i64",
// "f64", "bool", "(str,u64)"; both are empty for a table without types. The first write to the
// table creates it in the store and records the types; a program in any language that names it with
// others gets ErrTableType. Key makes keys, Uint64 and the like make values.
func NewTable(name, key, value string) (*Table, error) {
	texts, free, err := cStrings(name, key, value)
	if err != nil {
		return nil, err
	}
	defer free()
	for at, given := range []string{key, value} {
		if given == "" {
			texts[1+at] = nil
		}
	}
	var table *C.lw_table
	var why *C.lw_error
	code := C.go_table(texts[0], texts[1], texts[2], 0, &table, &why)
	if code != C.LW_OK {
		return nil, errorOf(code, why)
	}
	made := &Table{table}
	runtime.SetFinalizer(made, func(t *Table) { C.lw_table_free(t.c) })
	return made, nil
}

// Name returns the name of the table.
func (t *Table) Name() string {
	var length C.size_t
	text := C.lw_table_name(t.c, &length)
	name := C.GoStringN(text, C.int(length))
	runtime.KeepAlive(t)
	return name
}

// Must returns the table, or panics: for variables of a package.
func Must(table *Table, err error) *Table {
	if err != nil {
		panic(err)
	}
	return table
}

// Get reads a record at a snapshot of now, without a lock; found is false if there is none.
func (s *Store) Get(table *Table, key []byte) (value []byte, found bool, err error) {
	var buf buffer
	defer buf.free()
	var why *C.lw_error
	code := C.lw_get(s.c, table.c, at(key), size(key), &buf.c, &why)
	runtime.KeepAlive(table)
	return answer(&buf, code, why)
}

// Put writes a record, new or not, as a transaction of its own, which runs again until it succeeds,
// for 10 seconds at most.
func (s *Store) Put(table *Table, key, value []byte) error {
	var why *C.lw_error
	code := C.lw_put(s.c, table.c, at(key), size(key), at(value), size(value), &why)
	runtime.KeepAlive(table)
	return errorOf(code, why)
}

// Insert writes a record that does not exist yet; it returns false, and changes nothing, if it does.
func (s *Store) Insert(table *Table, key, value []byte) (bool, error) {
	var why *C.lw_error
	code := C.lw_insert(s.c, table.c, at(key), size(key), at(value), size(value), &why)
	runtime.KeepAlive(table)
	return code == C.LW_OK, errorOf(code, why)
}

// Remove removes a record, and returns whether it existed.
func (s *Store) Remove(table *Table, key []byte) (bool, error) {
	var why *C.lw_error
	code := C.lw_remove(s.c, table.c, at(key), size(key), &why)
	runtime.KeepAlive(table)
	return code == C.LW_OK, errorOf(code, why)
}

// A buffer of the C library.
type buffer struct{ c C.lw_buf }

func (b *buffer) bytes() []byte { return C.GoBytes(b.c.data, C.int(b.c.len)) }
func (b *buffer) free()         { C.lw_buf_free(&b.c) }

func answer(buf *buffer, code C.int, why *C.lw_error) ([]byte, bool, error) {
	if code != C.LW_OK {
		return nil, false, errorOf(code, why)
	}
	return buf.bytes(), true, nil
}

// The bytes of a slice during a call.
func at(bytes []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(bytes)) }
func size(bytes []byte) C.size_t     { return C.size_t(len(bytes)) }

// A text that ends with a zero, and how to free it.
func cString(text string) (*C.char, func(), error) {
	texts, free, err := cStrings(text)
	if err != nil {
		return nil, nil, err
	}
	return texts[0], free, nil
}

func cStrings(texts ...string) ([]*C.char, func(), error) {
	made := make([]*C.char, len(texts))
	for at, text := range texts {
		for _, char := range []byte(text) {
			if char == 0 {
				return nil, nil, &Error{Code: ErrMisuse, Message: "a name contains a zero"}
			}
		}
		made[at] = C.CString(text)
	}
	all := append([]*C.char(nil), made...)
	return made, func() {
		for _, text := range all {
			C.free(unsafe.Pointer(text))
		}
	}, nil
}
