// Counters starts several processes that count in one store at the same time, and kills one of them
// again and again. The sum is that of the transactions that have committed.
//
//	go run ./examples/counters FOLDER
package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"

	"latchwork"
)

var hits = latchwork.Must(latchwork.NewTable("hits", "str", "u64"))

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: counters FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], len(os.Args) > 2); err != nil {
		fmt.Fprintln(os.Stderr, "counters:", err)
		os.Exit(1)
	}
}

func run(path string, isWorker bool) error {
	store, err := latchwork.Open(path, &latchwork.Options{Small: true, Mode: latchwork.ModeNone})
	if err != nil {
		return err
	}
	defer store.Close()
	for isWorker {
		if err := store.Write(count, nil); err != nil {
			return err
		}
	}
	workers := make([]*exec.Cmd, 4)
	start := func(at int) error {
		workers[at] = exec.Command(os.Args[0], path, "worker")
		workers[at].Stderr = os.Stderr
		return workers[at].Start()
	}
	stop := func(at int) {
		_ = workers[at].Process.Kill()
		_ = workers[at].Wait()
	}
	for at := range workers {
		if err := start(at); err != nil {
			return err
		}
	}
	for round := range 10 {
		time.Sleep(100 * time.Millisecond)
		stop(round % len(workers))
		if err := start(round % len(workers)); err != nil {
			return err
		}
	}
	for at := range workers {
		stop(at)
	}
	value, _, err := store.Get(hits, latchwork.Key("all"))
	if err != nil {
		return err
	}
	sum, err := latchwork.ToUint64(value)
	if err != nil {
		return err
	}
	fmt.Println(sum, "transactions by 4 processes, of which one was killed every 100 ms")
	return nil
}

func count(tx *latchwork.Tx) error {
	value, _, err := tx.GetForUpdate(hits, latchwork.Key("all"))
	if err != nil {
		return err
	}
	sum, err := latchwork.ToUint64(value)
	if err != nil {
		return err
	}
	return tx.Put(hits, latchwork.Key("all"), latchwork.Uint64(sum+1))
}
