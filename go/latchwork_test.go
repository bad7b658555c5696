package latchwork

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	fruit    = Must(NewTable("fruit", "str", "u64"))
	counters = Must(NewTable("counters", "str", "u64"))
	raw      = Must(NewTable("raw", "", ""))
)

func opened(t *testing.T) *Store {
	t.Helper()
	store, err := Open(filepath.Join(t.TempDir(), "store"), &Options{Small: true, Mode: ModeNone})
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	return store
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, err error, code Code) *Error {
	t.Helper()
	var why *Error
	if !errors.Is(err, code) || !errors.As(err, &why) {
		t.Fatalf("%v, not: %v", err, code)
	}
	return why
}

func add(table *Table, key string) func(tx *Tx) error {
	return func(tx *Tx) error {
		value, _, err := tx.GetForUpdate(table, Key(key))
		if err != nil {
			return err
		}
		count, err := ToUint64(value)
		if err != nil {
			return err
		}
		return tx.Put(table, Key(key), Uint64(count+1))
	}
}

func count(t *testing.T, store *Store, table *Table, key string) uint64 {
	t.Helper()
	value, _, err := store.Get(table, Key(key))
	must(t, err)
	number, err := ToUint64(value)
	must(t, err)
	return number
}

func TestRecordsAreWrittenReadAndRemoved(t *testing.T) {
	store := opened(t)
	_, found, err := store.Get(fruit, Key("pear"))
	if found || err != nil {
		t.Fatal(found, err)
	}
	must(t, store.Put(fruit, Key("pear"), Uint64(3)))
	if count(t, store, fruit, "pear") != 3 {
		t.Fatal("another value")
	}
	if made, err := store.Insert(fruit, Key("pear"), Uint64(4)); made || err != nil {
		t.Fatal(made, err)
	}
	for _, wanted := range []bool{true, false} {
		if was, err := store.Remove(fruit, Key("pear")); was != wanted || err != nil {
			t.Fatal(was, err)
		}
	}
	// Empty keys and values, and all bytes.
	all := make([]byte, 256)
	for at := range all {
		all[at] = byte(at)
	}
	for _, some := range [][]byte{nil, all} {
		must(t, store.Put(raw, all, some))
		value, found, err := store.Get(raw, all)
		if !found || err != nil || !bytes.Equal(value, some) {
			t.Fatal(value, found, err)
		}
	}
	one, err := store.Sequence("ids")
	must(t, err)
	two, err := store.Sequence("ids")
	if must(t, err); one != 1 || two != 2 {
		t.Fatal(one, two)
	}
	must(t, store.Sync())
	if fruit.Name() != "fruit" {
		t.Fatal(fruit.Name())
	}
	if stats, err := store.Stats(); err != nil || stats[0] != '{' {
		t.Fatal(stats, err)
	}
}

func TestKeysHaveParts(t *testing.T) {
	id := UUID{1, 2, 0, 255}
	parts := []any{"ann\x00", int64(-300), uint64(1<<63 + 1), nil, true, 0.25, float32(-1),
		[]byte{0, 1}, id, Tuple{"x", nil, Tuple{int64(7)}}}
	key, err := Encode(parts...)
	must(t, err)
	back, err := Decode(key)
	must(t, err)
	if !reflect.DeepEqual(parts, back) {
		t.Fatalf("%#v", back)
	}
	if !bytes.Equal(Key("ann", 8), []byte("\x02ann\x00\x15\x08")) {
		t.Fatalf("%q", Key("ann", 8))
	}
	if bytes.Compare(Key("a", -1), Key("a", 1)) >= 0 {
		t.Fatal("the order of the keys")
	}
	_, err = Encode(complex(1, 2))
	is(t, err, ErrMisuse)
	_, err = Encode("\xff")
	is(t, err, ErrFormat)
	_, err = Decode([]byte{0xfe})
	is(t, err, ErrFormat)
	_, err = ToUint64([]byte{1})
	is(t, err, ErrFormat)
}

func TestRangesAreInOrder(t *testing.T) {
	store := opened(t)
	scores := Must(NewTable("scores", "(str,u64)", "u64"))
	must(t, store.Write(func(tx *Tx) error {
		for number := range 200 {
			name := []string{"ann", "bob"}[number%2]
			if err := tx.Put(scores, Key(name, number), Uint64(uint64(number))); err != nil {
				return err
			}
		}
		return nil
	}, nil))
	at, err := store.Snapshot()
	must(t, err)
	defer at.Close()
	sum := func(r Range) (numbers []uint64) {
		rows, err := at.Rows(scores, r)
		must(t, err)
		defer rows.Close()
		for rows.Next() {
			parts, err := Decode(rows.Key())
			must(t, err)
			number, err := ToUint64(rows.Value())
			must(t, err)
			if parts[1] != int64(number) {
				t.Fatal(parts, number)
			}
			numbers = append(numbers, number)
		}
		must(t, rows.Err())
		if rows.Close(); rows.Key() != nil || rows.Value() != nil {
			t.Fatal("a record after Close")
		}
		return
	}
	for _, test := range []struct {
		r     Range
		first uint64
		count int
	}{
		{Range{}, 0, 200},
		{Range{Reverse: true}, 199, 200},
		{Range{Reverse: true, Limit: 3}, 199, 3},
		{Range{From: Key("bob"), Prefix: true}, 1, 100},
		{Range{From: Key("ann", 50), To: Key("ann", 60)}, 50, 5},
		{Range{From: Key("ann", 50), To: Key("ann", 60), FromExcluded: true, ToIncluded: true}, 52, 5},
	} {
		numbers := sum(test.r)
		if len(numbers) != test.count || numbers[0] != test.first {
			t.Fatal(test.r, numbers)
		}
	}
	// A transaction sees what it has written ahead of its loop.
	must(t, store.Write(func(tx *Tx) error {
		rows, err := tx.Rows(scores, Range{From: Key("ann"), Prefix: true})
		if err != nil {
			return err
		}
		defer rows.Close()
		seen := 0
		for ; rows.Next(); seen++ {
			parts, err := Decode(rows.Key())
			if err != nil {
				return err
			}
			if _, err := tx.Remove(scores, Key("ann", parts[1].(int64)+2)); err != nil {
				return err
			}
		}
		if seen != 50 {
			t.Error(seen)
		}
		return rows.Err()
	}, nil))
}

func TestAnErrorOfABodyRollsBack(t *testing.T) {
	store := opened(t)
	own := errors.New("of the program")
	err := store.Write(func(tx *Tx) error {
		must(t, tx.Put(fruit, Key("lost"), Uint64(1)))
		return own
	}, nil)
	if err != own {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() != "a panic" {
				t.Fatal("no panic")
			}
		}()
		_ = store.Write(func(tx *Tx) error {
			must(t, tx.Put(fruit, Key("lost"), Uint64(1)))
			panic("a panic")
		}, nil)
	}()
	must(t, store.Write(func(tx *Tx) error {
		err := tx.Nested(func() error {
			must(t, tx.Put(fruit, Key("lost"), Uint64(1)))
			return own
		})
		if err != own {
			t.Error(err)
		}
		return tx.Put(fruit, Key("kept"), Uint64(2))
	}, nil))
	if count(t, store, fruit, "lost") != 0 || count(t, store, fruit, "kept") != 2 {
		t.Fatal("another value")
	}
	// A transaction is not used after its end.
	var kept *Tx
	must(t, store.Write(func(tx *Tx) error { kept = tx; return nil }, nil))
	is(t, kept.Put(fruit, Key("lost"), Uint64(1)), ErrMisuse)
	tx, err := store.Begin(nil)
	must(t, err)
	defer tx.RollBack()
	must(t, tx.Put(fruit, Key("kept"), Uint64(3)))
	must(t, tx.Commit())
	is(t, tx.Commit(), ErrMisuse)
}

// Two goroutines take two locks in opposite orders: one of them runs again.
func TestConflictsRunAgain(t *testing.T) {
	store := opened(t)
	var runs, arrived atomic.Int32
	both := func(first, second string) error {
		return store.Write(func(tx *Tx) error {
			runs.Add(1)
			if err := add(fruit, first)(tx); err != nil {
				return err
			}
			if arrived.Add(1) <= 2 {
				for arrived.Load() < 2 {
					time.Sleep(time.Millisecond)
				}
			}
			err := add(fruit, second)(tx)
			if errors.Is(err, ErrConflict) {
				// Whatever error it becomes, the transaction decides.
				return errors.New("something went wrong")
			}
			return err
		}, nil)
	}
	other := make(chan error)
	go func() { other <- both("a", "b") }()
	must(t, both("b", "a"))
	must(t, <-other)
	if count(t, store, fruit, "a") != 2 || count(t, store, fruit, "b") != 2 || runs.Load() != 3 {
		t.Fatal(runs.Load())
	}
}

func TestADeadlineEndsTheAttempts(t *testing.T) {
	store := opened(t)
	holder, err := store.Begin(nil)
	must(t, err)
	defer holder.RollBack()
	must(t, holder.Put(fruit, Key("pear"), Uint64(1)))
	err = store.Write(func(tx *Tx) error { return tx.Put(fruit, Key("pear"), Uint64(2)) },
		&TxOptions{Time: 30 * time.Millisecond})
	why := is(t, err, ErrDeadline)
	if why.Retryable() || !errors.Is(err, ErrTimeout) {
		t.Fatal(why, why.Cause)
	}
	var cause *Error
	if !errors.As(why.Cause, &cause) || cause.Table != "fruit" || !bytes.Equal(cause.Key, Key("pear")) {
		t.Fatal(why.Cause)
	}
	tx, err := store.Begin(&TxOptions{NoWait: true})
	must(t, err)
	defer tx.RollBack()
	is(t, tx.Put(fruit, Key("pear"), Uint64(2)), ErrTimeout)
}

func TestErrorsHaveCodes(t *testing.T) {
	store := opened(t)
	must(t, store.Put(fruit, Key("pear"), Uint64(1)))
	other := Must(NewTable("fruit", "str", "f64"))
	why := is(t, store.Put(other, Key("pear"), Float64(1)), ErrTableType)
	if why.Table != "fruit" || why.Error() == "" || ErrTableType.Error() != "table type" {
		t.Fatalf("%#v", why)
	}
	_, err := Open(filepath.Join(t.TempDir(), "none"), &Options{NoCreate: true})
	is(t, err, ErrNoStore)
	_, err = Open("a\x00b", nil)
	is(t, err, ErrMisuse)
	_, err = NewTable("fruit", "string", "u64")
	is(t, err, ErrOptions)
	is(t, store.Put(fruit, make([]byte, 5000), nil), ErrTooLong)
	closed, err := Open(filepath.Join(t.TempDir(), "closed"), &Options{Small: true})
	must(t, err)
	must(t, closed.Close())
	is(t, closed.Put(fruit, Key("pear"), nil), ErrMisuse)
}

func TestGoroutinesCountTogether(t *testing.T) {
	store := opened(t)
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 50 {
				if err := store.Write(add(counters, "all"), nil); err != nil {
					t.Error(err)
				}
				if _, _, err := store.Get(counters, Key("all")); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	if number := count(t, store, counters, "all"); number != 400 {
		t.Fatal(number)
	}
}

// Several processes count, and one of them is killed again and again.
func TestProcessesCountTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	options := &Options{Small: true, Mode: ModeNone}
	if os.Getenv("LATCHWORK_CHILD") != "" {
		countForEver(os.Getenv("LATCHWORK_CHILD"), options)
	}
	store, err := Open(path, options)
	must(t, err)
	start := func() *exec.Cmd {
		child := exec.Command(os.Args[0], "-test.run=TestProcessesCountTogether")
		child.Env = append(os.Environ(), "LATCHWORK_CHILD="+path)
		must(t, child.Start())
		return child
	}
	children := []*exec.Cmd{start(), start(), start()}
	value := func(key string) uint64 { return count(t, store, counters, key) }
	for number := range 6 {
		before := value("total")
		for value("total") < before+20 {
			time.Sleep(time.Millisecond)
		}
		victim := children[number%3]
		must(t, victim.Process.Kill())
		_ = victim.Wait()
		children[number%3] = start()
	}
	for _, child := range children {
		must(t, child.Process.Kill())
		_ = child.Wait()
	}
	// Each transaction has counted both, or neither.
	must(t, store.Write(func(tx *Tx) error {
		one, _, err := tx.Get(counters, Key("total"))
		if err != nil {
			return err
		}
		two, _, err := tx.Get(counters, Key("same"))
		if err == nil && (!bytes.Equal(one, two) || one == nil) {
			t.Error(one, two)
		}
		return err
	}, nil))
	must(t, store.Close())
}

func countForEver(path string, options *Options) {
	store, err := Open(path, options)
	for err == nil {
		err = store.Write(func(tx *Tx) error {
			if err := add(counters, "total")(tx); err != nil {
				return err
			}
			return add(counters, "same")(tx)
		}, nil)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Reads tables written by a program in Rust: see scripts/go.
func TestTablesAreSharedWithRust(t *testing.T) {
	path := os.Getenv("LATCHWORK_RUST_STORE")
	if path == "" {
		t.Skip("LATCHWORK_RUST_STORE names no store: scripts/go test")
	}
	store, err := Open(path, &Options{NoCreate: true})
	must(t, err)
	defer store.Close()
	if count(t, store, fruit, "pear") != 3 || count(t, store, fruit, "péar\x00x") != 1<<64-1 {
		t.Fatal("another value")
	}
	scores := Must(NewTable("scores", "(str,i64)", "opt(f64)"))
	value, _, err := store.Get(scores, Key("ann", -300))
	must(t, err)
	if !bytes.Equal(value, append([]byte{1}, Float64(-0.5)...)) {
		t.Fatal(value)
	}
	ids := Must(NewTable("ids", "uuid", "bytes"))
	var id UUID
	copy(id[:], "0123456789abcdef")
	value, _, err = store.Get(ids, Key(id))
	must(t, err)
	if string(value) != "\x00\xff\x00" {
		t.Fatal(value)
	}
	is(t, store.Put(Must(NewTable("ids", "str", "bytes")), Key("a"), nil), ErrTableType)
}
