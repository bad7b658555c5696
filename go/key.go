package latchwork

/*
#include <latchwork.h>
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"unsafe"
)

// UUID is a part of a key.
type UUID [16]byte

// Tuple is a part of a key that has parts itself.
type Tuple []any

// Encode makes a key of parts: nil, bool, int, int64, uint64 and the other integers, float32,
// float64, string, []byte, UUID and Tuple. One part alone is the key of a table of that type,
// several are the key of a tuple. The order of the bytes is that of the parts.
func Encode(parts ...any) ([]byte, error) {
	var list []C.lw_part
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if err := appendParts(&list, &pinner, parts); err != nil {
		return nil, err
	}
	var buf buffer
	defer buf.free()
	var why *C.lw_error
	code := C.lw_key_encode(unsafe.SliceData(list), C.size_t(len(list)), &buf.c, &why)
	if code != C.LW_OK {
		return nil, errorOf(code, why)
	}
	return buf.bytes(), nil
}

// Key is Encode for parts that are known to be correct: it panics otherwise.
func Key(parts ...any) []byte {
	key, err := Encode(parts...)
	if err != nil {
		panic(err)
	}
	return key
}

func appendParts(list *[]C.lw_part, pinner *runtime.Pinner, parts []any) error {
	for _, part := range parts {
		made := C.lw_part{}
		of := unsafe.Pointer(&made.of)
		integer := func(number int64) {
			made.kind = C.LW_PART_I64
			*(*int64)(of) = number
		}
		natural := func(number uint64) {
			made.kind = C.LW_PART_U64
			*(*uint64)(of) = number
		}
		bytes := func(kind C.uint32_t, data *byte, length int) {
			made.kind, made.len = kind, C.size_t(length)
			if length > 0 {
				pinner.Pin(data)
				made.data = unsafe.Pointer(data)
			}
		}
		switch part := part.(type) {
		case nil:
			made.kind = C.LW_PART_NULL
		case bool:
			made.kind = C.LW_PART_BOOL
			if part {
				*(*uint64)(of) = 1
			}
		case int:
			integer(int64(part))
		case int8:
			integer(int64(part))
		case int16:
			integer(int64(part))
		case int32:
			integer(int64(part))
		case int64:
			integer(part)
		case uint:
			natural(uint64(part))
		case uint8:
			natural(uint64(part))
		case uint16:
			natural(uint64(part))
		case uint32:
			natural(uint64(part))
		case uint64:
			natural(part)
		case float32:
			made.kind = C.LW_PART_F32
			*(*float32)(of) = part
		case float64:
			made.kind = C.LW_PART_F64
			*(*float64)(of) = part
		case string:
			bytes(C.LW_PART_TEXT, unsafe.StringData(part), len(part))
		case []byte:
			bytes(C.LW_PART_BYTES, unsafe.SliceData(part), len(part))
		case UUID:
			made.kind = C.LW_PART_UUID
			*(*UUID)(of) = part
		case Tuple:
			*list = append(*list, C.lw_part{kind: C.LW_PART_BEGIN})
			if err := appendParts(list, pinner, part); err != nil {
				return err
			}
			made.kind = C.LW_PART_END
		default:
			return &Error{Code: ErrMisuse, Message: fmt.Sprintf("%T is no part of a key", part)}
		}
		*list = append(*list, made)
	}
	return nil
}

// Decode returns the parts of a key. Integers are int64, or uint64 if they do not fit.
func Decode(key []byte) ([]any, error) {
	var buf buffer
	defer buf.free()
	// Each part has at least one byte.
	most := len(key) + 1
	list := make([]C.lw_part, 2*most)
	var count C.size_t
	var why *C.lw_error
	code := C.lw_key_decode(at(key), size(key), &list[0], C.size_t(len(list)), &count, &buf.c, &why)
	if code != C.LW_OK {
		return nil, errorOf(code, why)
	}
	list = list[:count]
	return partsOf(&list)
}

// Takes parts up to the end of the list or of a tuple.
func partsOf(list *[]C.lw_part) ([]any, error) {
	parts := []any{}
	for len(*list) > 0 {
		part := &(*list)[0]
		*list = (*list)[1:]
		of := unsafe.Pointer(&part.of)
		switch part.kind {
		case C.LW_PART_NULL:
			parts = append(parts, nil)
		case C.LW_PART_BYTES:
			parts = append(parts, C.GoBytes(part.data, C.int(part.len)))
		case C.LW_PART_TEXT:
			parts = append(parts, C.GoStringN((*C.char)(part.data), C.int(part.len)))
		case C.LW_PART_I64:
			parts = append(parts, *(*int64)(of))
		case C.LW_PART_U64:
			parts = append(parts, *(*uint64)(of))
		case C.LW_PART_F32:
			parts = append(parts, *(*float32)(of))
		case C.LW_PART_F64:
			parts = append(parts, *(*float64)(of))
		case C.LW_PART_BOOL:
			parts = append(parts, *(*uint64)(of) != 0)
		case C.LW_PART_UUID:
			parts = append(parts, *(*UUID)(of))
		case C.LW_PART_BEGIN:
			inner, err := partsOf(list)
			if err != nil {
				return nil, err
			}
			parts = append(parts, Tuple(inner))
		case C.LW_PART_END:
			return parts, nil
		default:
			return nil, &Error{Code: ErrFormat, Message: "an integer of the key has over 64 bits"}
		}
	}
	return parts, nil
}

// Uint64 returns a value of the type "u64". Values of "str" and "bytes" are the bytes themselves.
func Uint64(number uint64) []byte { return binary.LittleEndian.AppendUint64(nil, number) }

// Int64 returns a value of the type "i64".
func Int64(number int64) []byte { return Uint64(uint64(number)) }

// Float64 returns a value of the type "f64".
func Float64(number float64) []byte { return Uint64(math.Float64bits(number)) }

// ToUint64 returns the number of a value of the type "u64"; 0 for nil, which is no record.
func ToUint64(value []byte) (uint64, error) {
	switch len(value) {
	case 0:
		return 0, nil
	case 8:
		return binary.LittleEndian.Uint64(value), nil
	}
	text := fmt.Sprintf("a value of %d bytes, and its type has 8", len(value))
	return 0, &Error{Code: ErrFormat, Message: text}
}
