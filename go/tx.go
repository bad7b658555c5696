package latchwork

/*
#include <latchwork.h>

static lw_txn_options go_options(uint32_t flags, uint32_t mode, uint32_t period, uint64_t time)
{
    lw_txn_options options = LW_TXN_OPTIONS_INIT;
    options.flags = flags;
    options.mode = mode;
    options.period_ms = period;
    options.time_ms = time;
    return options;
}

static int go_attempts(lw_store *store, uint32_t flags, uint32_t mode, uint32_t period, uint64_t time,
                       lw_attempts **attempts, lw_error **error)
{
    lw_txn_options options = go_options(flags, mode, period, time);
    return lw_attempts_new(store, &options, attempts, error);
}

static int go_begin(lw_store *store, uint32_t flags, uint32_t mode, uint32_t period, uint64_t time,
                    lw_txn **tx, lw_error **error)
{
    lw_txn_options options = go_options(flags, mode, period, time);
    return lw_begin(store, &options, tx, error);
}
*/
import "C"

import (
	"errors"
	"math"
	"runtime"
	"time"
)

// TxOptions say how a transaction runs.
type TxOptions struct {
	// Reads may change before the transaction ends.
	ReadCommitted bool
	// A call that would have to wait for a lock returns ErrTimeout.
	NoWait bool
	// When the commit returns.
	Mode   Mode
	Period time.Duration
	// For how long it waits for locks and is run again: 10 seconds if it is 0.
	Time time.Duration
}

// Threads of the system say nothing of goroutines: so a transaction always has an end of its
// waiting, with which the library does not ask whether a thread waits for itself.
func (o *TxOptions) get() (flags, mode, period C.uint32_t, ms C.uint64_t) {
	ms = 10_000
	if o == nil {
		return
	}
	if o.ReadCommitted {
		flags |= C.LW_READ_COMMITTED
	}
	if o.NoWait {
		flags |= C.LW_NO_WAIT
	}
	if o.Time > 0 {
		ms = C.uint64_t(max(1, o.Time.Milliseconds()))
	}
	return flags, C.uint32_t(o.Mode), C.uint32_t(o.Period.Milliseconds()), ms
}

// A Tx is a transaction that reads and writes: serializable, with locks that it holds until it
// ends. The methods return ErrConflict, ErrTimeout and ErrTooOld, which Write handles, and the
// errors of the C functions of the same names.
type Tx struct{ c *C.lw_txn }

// Ends the attempt of a body that failed without an error of the library.
const foreign = math.MaxInt32

// Write runs a function as a transaction until it commits. After a deadlock and whatever else is
// retryable it runs again, so it must have no effects but through the transaction. An error that it
// returns rolls the transaction back and is returned. The transaction decides whether to run again,
// not the error. Write returns ErrDeadline when the time of the options has passed. A panic rolls
// back and propagates. The options may be nil.
func (s *Store) Write(body func(tx *Tx) error, options *TxOptions) error {
	flags, mode, period, ms := options.get()
	var loop *C.lw_attempts
	var why *C.lw_error
	if code := C.go_attempts(s.c, flags, mode, period, ms, &loop, &why); code != C.LW_OK {
		return errorOf(code, why)
	}
	defer C.lw_attempts_free(loop)
	for {
		tx := &Tx{}
		if code := C.lw_attempts_next(loop, &tx.c, &why); code != C.LW_OK {
			return errorOf(code, why)
		}
		err := body(tx)
		// The transaction belongs to the attempt.
		tx.c = nil
		code := codeOf(err)
		ended := C.lw_attempts_end(loop, code, &why)
		switch {
		case ended == C.LW_AGAIN:
			continue
		case err != nil && ended == code && why == nil:
			return err
		default:
			return errorOf(ended, why)
		}
	}
}

func codeOf(err error) C.int {
	var why *Error
	switch {
	case err == nil:
		return C.LW_OK
	case errors.As(err, &why) && why.Code < 0:
		return C.int(why.Code)
	default:
		return foreign
	}
}

// Begin begins a transaction that the caller ends with Commit or RollBack. It is not run again.
func (s *Store) Begin(options *TxOptions) (*Tx, error) {
	flags, mode, period, ms := options.get()
	tx := &Tx{}
	var why *C.lw_error
	if code := C.go_begin(s.c, flags, mode, period, ms, &tx.c, &why); code != C.LW_OK {
		return nil, errorOf(code, why)
	}
	return tx, nil
}

// Commit commits a transaction of Begin, which ends whatever this returns.
func (t *Tx) Commit() error {
	var why *C.lw_error
	return errorOf(C.lw_commit(t.end(), &why), why)
}

// RollBack rolls a transaction of Begin back. After Commit it does nothing: it may be deferred.
func (t *Tx) RollBack() error {
	if t.c == nil {
		return nil
	}
	var why *C.lw_error
	return errorOf(C.lw_roll_back(t.end(), &why), why)
}

func (t *Tx) end() *C.lw_txn {
	c := t.c
	t.c = nil
	return c
}

// Get reads a record and locks it against writers; found is false if there is none.
func (t *Tx) Get(table *Table, key []byte) (value []byte, found bool, err error) {
	var buf buffer
	defer buf.free()
	var why *C.lw_error
	code := C.lw_txn_get(t.c, table.c, at(key), size(key), &buf.c, &why)
	runtime.KeepAlive(table)
	return answer(&buf, code, why)
}

// GetForUpdate reads a record that will be written: no other transaction can read it in this way
// until this one ends.
func (t *Tx) GetForUpdate(table *Table, key []byte) (value []byte, found bool, err error) {
	var buf buffer
	defer buf.free()
	var why *C.lw_error
	code := C.lw_txn_get_for_update(t.c, table.c, at(key), size(key), &buf.c, &why)
	runtime.KeepAlive(table)
	return answer(&buf, code, why)
}

// Put writes a record, new or not.
func (t *Tx) Put(table *Table, key, value []byte) error {
	var why *C.lw_error
	code := C.lw_txn_put(t.c, table.c, at(key), size(key), at(value), size(value), &why)
	runtime.KeepAlive(table)
	return errorOf(code, why)
}

// Insert writes a record that does not exist yet; it returns false, and changes nothing, if it does.
func (t *Tx) Insert(table *Table, key, value []byte) (bool, error) {
	var why *C.lw_error
	code := C.lw_txn_insert(t.c, table.c, at(key), size(key), at(value), size(value), &why)
	runtime.KeepAlive(table)
	return code == C.LW_OK, errorOf(code, why)
}

// Remove removes a record, and returns whether it existed.
func (t *Tx) Remove(table *Table, key []byte) (bool, error) {
	var why *C.lw_error
	code := C.lw_txn_remove(t.c, table.c, at(key), size(key), &why)
	runtime.KeepAlive(table)
	return code == C.LW_OK, errorOf(code, why)
}

// PopFirst removes the first record and returns it: the head of a queue.
func (t *Tx) PopFirst(table *Table) (key, value []byte, found bool, err error) {
	var first, second buffer
	defer first.free()
	defer second.free()
	var why *C.lw_error
	code := C.lw_txn_pop_first(t.c, table.c, &first.c, &second.c, &why)
	runtime.KeepAlive(table)
	if code != C.LW_OK {
		return nil, nil, false, errorOf(code, why)
	}
	return first.bytes(), second.bytes(), true, nil
}

// Nested runs a part of the transaction: if it returns an error, what it has written is undone.
func (t *Tx) Nested(part func() error) error {
	var savepoint C.uint64_t
	var why *C.lw_error
	if code := C.lw_txn_savepoint(t.c, &savepoint, &why); code != C.LW_OK {
		return errorOf(code, why)
	}
	err := part()
	if err == nil || C.lw_is_retryable(codeOf(err)) != 0 {
		return err
	}
	if code := C.lw_txn_roll_back_to(t.c, savepoint, &why); code != C.LW_OK {
		return errorOf(code, why)
	}
	return err
}

// A Snapshot is the state of all tables at one moment. It takes no lock and never blocks.
type Snapshot struct{ c *C.lw_snapshot }

// Snapshot takes a snapshot of now, which the caller closes.
func (s *Store) Snapshot() (*Snapshot, error) {
	made := &Snapshot{}
	var why *C.lw_error
	if code := C.lw_snapshot_new(s.c, &made.c, &why); code != C.LW_OK {
		return nil, errorOf(code, why)
	}
	return made, nil
}

// Close frees the snapshot. A second call does nothing.
func (s *Snapshot) Close() {
	C.lw_snapshot_free(s.c)
	s.c = nil
}

// Get reads a record of the snapshot; found is false if there is none.
func (s *Snapshot) Get(table *Table, key []byte) (value []byte, found bool, err error) {
	var buf buffer
	defer buf.free()
	var why *C.lw_error
	code := C.lw_snapshot_get(s.c, table.c, at(key), size(key), &buf.c, &why)
	runtime.KeepAlive(table)
	return answer(&buf, code, why)
}
