package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Cache keeps the newest entries of a log in memory, for followers and for Apply: at most count entries, and at most
// size bytes of data. raft.LogCache limits only the count, and a thousand large entries take more memory than the state
// of a small cluster.
func Cache(store raft.LogStore, count, size int) raft.LogStore {
	return &cache{LogStore: store, count: uint64(count), size: size, logs: make(map[uint64]*raft.Log, count)}
}

// Cached reports whether a log was made by Cache.
func Cached(store raft.LogStore) bool {
	_, ok := store.(*cache)
	return ok
}

type cache struct {
	raft.LogStore
	count uint64
	size  int

	mu          sync.RWMutex
	logs        map[uint64]*raft.Log // the entries from first to last
	first, last uint64               // 0, 0: none
	bytes       int                  // of their data
}

// IsMonotonic implements raft.MonotonicLogStore.
func (c *cache) IsMonotonic() bool {
	m, ok := c.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

func (c *cache) GetLog(index uint64, l *raft.Log) error {
	c.mu.RLock()
	have := c.logs[index]
	c.mu.RUnlock()
	if have == nil {
		return c.LogStore.GetLog(index, l)
	}
	*l = *have
	return nil
}

func (c *cache) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

func (c *cache) StoreLogs(ls []*raft.Log) error {
	if err := c.LogStore.StoreLogs(ls); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range ls {
		if c.first == 0 || l.Index != c.last+1 { // the log was cut, or skips entries after a snapshot
			c.drop(c.last)
			c.first = l.Index
		}
		c.logs[l.Index] = l
		c.last, c.bytes = l.Index, c.bytes+len(l.Data)
		for c.first < c.last && (c.bytes > c.size || c.last-c.first >= c.count) {
			c.drop(c.first)
		}
	}
	return nil
}

func (c *cache) DeleteRange(first, last uint64) error {
	c.mu.Lock()
	if last >= c.first { // else old entries go after a snapshot
		c.drop(c.last)
	}
	c.mu.Unlock()
	return c.LogStore.DeleteRange(first, last)
}

// drop removes the entries up to an index. mu is locked.
func (c *cache) drop(to uint64) {
	for ; c.first <= to && c.first > 0; c.first++ {
		if l := c.logs[c.first]; l != nil {
			c.bytes -= len(l.Data)
			delete(c.logs, c.first)
		}
	}
	if c.first > c.last {
		c.first, c.last = 0, 0
	}
}
