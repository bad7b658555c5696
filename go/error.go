package latchwork

/*
#include <latchwork.h>
*/
import "C"

import (
	"strings"
	"unsafe"
)

// A Code is one case that a program can act on: errors.Is(err, latchwork.ErrConflict).
type Code int

// The codes: see lw_code in latchwork.h.
const (
	ErrMisuse         Code = C.LW_MISUSE
	ErrForked         Code = C.LW_FORKED
	ErrPanic          Code = C.LW_PANIC
	ErrNoMemory       Code = C.LW_NO_MEMORY
	ErrOptions        Code = C.LW_OPTIONS
	ErrReadOnly       Code = C.LW_READ_ONLY
	ErrClosed         Code = C.LW_CLOSED
	ErrBusy           Code = C.LW_BUSY
	ErrOpen           Code = C.LW_OPEN
	ErrNoStore        Code = C.LW_NO_STORE
	ErrPermission     Code = C.LW_PERMISSION
	ErrVersion        Code = C.LW_VERSION
	ErrInUse          Code = C.LW_IN_USE
	ErrConflict       Code = C.LW_CONFLICT
	ErrTimeout        Code = C.LW_TIMEOUT
	ErrTooOld         Code = C.LW_TOO_OLD
	ErrDeadline       Code = C.LW_DEADLINE
	ErrKilled         Code = C.LW_KILLED
	ErrSelf           Code = C.LW_SELF
	ErrSavepoint      Code = C.LW_SAVEPOINT
	ErrTableType      Code = C.LW_TABLE_TYPE
	ErrMigrating      Code = C.LW_MIGRATING
	ErrTooLong        Code = C.LW_TOO_LONG
	ErrFormat         Code = C.LW_FORMAT
	ErrThreads        Code = C.LW_THREADS
	ErrLocksFull      Code = C.LW_LOCKS_FULL
	ErrNoSpace        Code = C.LW_NO_SPACE
	ErrDamaged        Code = C.LW_DAMAGED
	ErrIO             Code = C.LW_IO
	ErrCommitUnknown  Code = C.LW_COMMIT_UNKNOWN
	ErrReadsUnknown   Code = C.LW_READS_UNKNOWN
	ErrPrepareUnknown Code = C.LW_PREPARE_UNKNOWN
	ErrPrepared       Code = C.LW_PREPARED
	ErrNotPrepared    Code = C.LW_NOT_PREPARED
	ErrFailed         Code = C.LW_FAILED
)

func (c Code) Error() string {
	name := C.GoString(C.lw_code_name(C.int(c)))
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "LW_")), "_", " ")
}

// An Error says why a call failed.
type Error struct {
	Code    Code
	Message string
	// The table and the key that the error concerns, if any; the key as it is stored.
	Table string
	Key   []byte
	// The error that led to this one: why the last attempt of a transaction failed.
	Cause error
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the code and the cause, so that errors.Is finds both.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Code}
	}
	return []error{e.Code, e.Cause}
}

// Retryable returns whether the same transaction may succeed when it runs again. Write runs it
// again by itself.
func (e *Error) Retryable() bool { return C.lw_is_retryable(C.int(e.Code)) != 0 }

// The error of a code; nil for LW_OK and for answers. Frees the object.
func errorOf(code C.int, why *C.lw_error) error {
	if code >= 0 {
		return nil
	}
	made := copyOf(why, code)
	C.lw_error_free(why)
	return made
}

func copyOf(why *C.lw_error, code C.int) *Error {
	made := &Error{Code: Code(code), Message: C.GoString(C.lw_error_message(why))}
	if made.Message == "" {
		made.Message = "latchwork: " + made.Code.Error()
	}
	if table := C.lw_error_table(why); table != nil {
		made.Table = C.GoString(table)
	}
	var length C.size_t
	if key := C.lw_error_key(why, &length); key != nil {
		made.Key = C.GoBytes(unsafe.Pointer(key), C.int(length))
	}
	if cause := C.lw_error_cause(why); cause != nil {
		made.Cause = copyOf(cause, C.lw_error_code(cause))
	}
	return made
}
